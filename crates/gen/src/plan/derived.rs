//! A derived plan with the contraction that its kernel computes: what `derive` returns, and the generator and its callers read.

use super::materialised::copied_elements;
use super::spec::KernelSpec;
use std::ops::Deref;
use tilewright_problem::Oriented;
use tilewright_problem::contraction::Tensor;

/// A derived plan, with the contraction in the orientation that the plan says.
///
/// ```
/// use tilewright_gen::plan::{Constraint, Env, Plan, derive};
/// use tilewright_ir::{Scalar, Target};
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Gemm, Problem};
///
/// let contraction = lower(&Problem::Gemm(Gemm::new(Scalar::F16, 512, 256, 64).build()?), ConvForm::PER_SAMPLE)?.lead;
/// let target = Target::by_arch("sm_80").expect("a known architecture");
/// let plan: Plan = Constraint::parse("A_MIC2__B_MIC2__C_UNI1_MAC128_EDG1_SWP1")?.apply(&Plan::default()).into();
/// let derived = derive(&plan, &contraction, &Env::new(&target, 0))?;
/// assert_eq!((derived.c.m, derived.c.n), (256, 512));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Derived<'c> {
    /// What the plan means.
    pub spec: KernelSpec,
    /// The contraction as the kernel computes it.
    pub c: Oriented<'c>,
    /// A and B as their copies in workspace, where the kernel reads a copy.
    pub copies: [Option<Tensor>; 2],
}

impl Deref for Derived<'_> {
    type Target = KernelSpec;
    fn deref(&self) -> &KernelSpec {
        &self.spec
    }
}

impl Derived<'_> {
    /// The same, independent of the contraction that it was derived for.
    pub fn into_owned(self) -> Derived<'static> {
        Derived { spec: self.spec, c: self.c.into_owned(), copies: self.copies }
    }
    /// Operand 0 (A) or 1 (B) as the kernel reads it: itself, or its copy in workspace.
    pub fn read(&self, which: usize) -> &Tensor {
        let own = if which == 0 { &self.c.a } else { &self.c.b };
        self.copies.get(which).and_then(Option::as_ref).unwrap_or(own)
    }
    /// Elements that a copy in workspace writes of operand 0 (A) or 1 (B); 0 where it is read in place.
    pub fn copied_elements(&self, which: usize) -> f64 {
        let (tiling, rows) = if which == 0 { (&self.spec.tiling.a, self.c.m) } else { (&self.spec.tiling.b, self.c.n) };
        copied_elements(&self.c, self.read(which), tiling.source, rows)
    }
    /// Two runs give the same bits: nothing is added up by atomics.
    pub fn repeatable(&self) -> bool {
        self.spec.repeats(&self.c)
    }
}
