//! The orientation of a contraction: the problem's product or the transposed one, and the names that the problem has for what is in it.

use crate::contraction::{
    Centre, Centred, Contraction, Elements, EpilogueOp, GroupEnds, LaunchExtents, Operand, OperandValues, PartOf, Reduce,
    ResultSource, SecondOperands, Tensor, Vector,
};
use crate::epilogue::Along;
use crate::extent::{Dynamic, Extent, Extents};
use crate::ragged::Ragged;
use std::borrow::Cow;
use std::ops::Deref;
use tilewright_ir::MathUnit;

/// A contraction as a kernel computes it. It is the problem's product or the transposed one, with operands in the types that the
/// unit reads from shared memory. A generator makes it once, from the contraction that a problem is lowered to.
///
/// ```
/// use tilewright_ir::{MathUnit, Scalar};
/// use tilewright_problem::contraction::Operand;
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Gemm, Problem};
///
/// let product = lower(&Problem::Gemm(Gemm::new(Scalar::F32, 64, 32, 7).build()?), ConvForm::PER_SAMPLE)?.lead;
/// let turned = product.oriented(true, MathUnit::Fma);
/// assert_eq!((turned.m, turned.n, turned.factors()), (32, 64, [Operand::B, Operand::A]));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Oriented<'c> {
    c: Cow<'c, Contraction>,
    changes: [bool; 2],
}

impl Deref for Oriented<'_> {
    type Target = Contraction;
    fn deref(&self) -> &Contraction {
        &self.c
    }
}

impl Oriented<'_> {
    /// The same, independent of the contraction that it was made from.
    pub fn into_owned(self) -> Oriented<'static> {
        Oriented { c: Cow::Owned(self.c.into_owned()), ..self }
    }
    /// How it differs from the contraction that it was made from: transposed, and with operands in other types.
    pub const fn changes(&self) -> [bool; 2] {
        self.changes
    }
}

impl Contraction {
    /// The contraction as a kernel computes it. `swap`: where all columns share operand A, whether A and B change places. A column has its own
    /// operand A, a row never its own operand B. Operands that the unit splits into narrower parts come to shared memory in the type of these.
    pub fn oriented(&self, swap: bool, unit: MathUnit) -> Oriented<'_> {
        let transposed = match self.source {
            ResultSource::OwnOperands(along) => (along == Along::M) != self.transposed,
            ResultSource::Product | ResultSource::Elements(_) => swap,
        };
        let mut changes = [transposed != self.transposed, false];
        let mut c = if changes[0] { Cow::Owned(self.transposed()) } else { Cow::Borrowed(self) };
        let split = c.instruction(unit).and_then(|row| c.splits(row)).filter(|split| !split.as_wide());
        if let Some(factor) = split.map(|split| split.input.storage())
            && [&c.a, &c.b].iter().any(|x| x.factor != Some(factor))
        {
            let c = c.to_mut();
            if let Some(second) = &mut c.second {
                (second.a.factor, second.b.factor) = (Some(factor), Some(factor));
            }
            (c.a.factor, c.b.factor, changes[1]) = (Some(factor), Some(factor), true);
        }
        Oriented { c, changes }
    }
    /// What the problem calls the two factors.
    pub const fn factors(&self) -> [Operand; 2] {
        if self.transposed { [Operand::B, Operand::A] } else { [Operand::A, Operand::B] }
    }
    /// What the problem calls an extent.
    pub const fn problem_extent(&self, extent: Extent) -> Extent {
        if self.transposed { extent.turned() } else { extent }
    }
    /// What the problem calls an extent, where that is known only at launch.
    pub fn dynamic_extent(&self, extent: Extent) -> Option<Extent> {
        self.dynamic().has(extent).then(|| self.problem_extent(extent))
    }
    /// The largest extents, as the problem names them.
    pub fn problem_extents(&self) -> Extents {
        if self.transposed { Extents { g: self.g, m: self.n, n: self.m } } else { self.extents() }
    }
    /// The axis along which the problem's columns run, which follow each other in dense results: 1, or 0 of the transposed product.
    pub const fn columns_axis(&self) -> usize {
        1 - self.transposed as usize
    }
    /// What the problem calls the direction of a vector.
    pub const fn along(&self, x: &Vector) -> Along {
        if x.along_n != self.transposed { Along::N } else { Along::M }
    }
    /// Other parts of the problem have elements of the same values of a reduction.
    pub fn shares_values(&self, r: &Reduce) -> bool {
        r.part.is_some() && r.over.whole()[1 - self.columns_axis()]
    }
    /// The transposed product: A and B, m and n exchanged.
    fn transposed(&self) -> Contraction {
        Contraction {
            g: self.g,
            m: self.n,
            n: self.m,
            k: self.k,
            a: self.b.clone(),
            b: self.a.clone(),
            c: self.c.transposed(),
            second: self.second.as_deref().map(SecondOperands::transposed).map(Box::new),
            accumulator: self.accumulator,
            math: self.math,
            block_scales: self.block_scales.iter().map(Vector::turned).collect(),
            epilogue: self.epilogue.iter().map(EpilogueOp::transposed).collect(),
            launch: self.launch.transposed(),
            source: self.source.transposed(),
            operand_values: self.operand_values.iter().map(OperandValues::transposed).collect(),
            gaps: self.gaps,
            merged_groups: self.merged_groups,
            drop_c: self.drop_c,
            transposed: !self.transposed,
        }
    }
}

impl SecondOperands {
    /// The same of the transposed product.
    fn transposed(&self) -> SecondOperands {
        SecondOperands { first: self.first, a: self.b.clone(), b: self.a.clone() }
    }
}

impl Tensor {
    /// The same with rows and columns exchanged.
    fn transposed(&self) -> Tensor {
        Tensor { view: self.view.transposed(), ..self.clone() }
    }
}

impl Vector {
    /// The same of the transposed result.
    fn turned(&self) -> Vector {
        Vector { along_n: !self.along_n, ..self.clone() }
    }
}

impl Reduce {
    /// The same of the transposed result.
    fn transposed(&self) -> Reduce {
        let turned = |part: &PartOf| {
            let Extents { g, m, n } = part.extents;
            Box::new(PartOf { extents: Extents { g, m: n, n: m }, rows: part.rows.transposed(), ..*part })
        };
        Reduce { over: self.over.turned(), part: self.part.as_deref().map(turned), ..self.clone() }
    }
}

impl OperandValues {
    /// The same beside the transposed product.
    fn transposed(&self) -> OperandValues {
        OperandValues { reduce: self.reduce.transposed(), ..self.clone() }
    }
}

impl LaunchExtents {
    /// The same of the transposed product.
    fn transposed(&self) -> LaunchExtents {
        match self {
            LaunchExtents::Fixed => LaunchExtents::Fixed,
            LaunchExtents::AtLaunch(x) => LaunchExtents::AtLaunch(Dynamic { m: x.n, n: x.m, ..*x }),
            LaunchExtents::Grouped(GroupEnds { of, ends }) => {
                let ends = if *of == Ragged::K { ends.clone() } else { ends.turned() };
                LaunchExtents::Grouped(GroupEnds { of: of.turned(), ends })
            }
        }
    }
}

impl ResultSource {
    /// The same of the transposed product.
    fn transposed(&self) -> ResultSource {
        match self {
            ResultSource::Product => ResultSource::Product,
            ResultSource::OwnOperands(along) => ResultSource::OwnOperands(along.other()),
            ResultSource::Elements(x) => ResultSource::Elements(Elements { of: x.of, view: x.view.transposed() }),
        }
    }
}

impl EpilogueOp {
    /// The same of the transposed result.
    fn transposed(&self) -> EpilogueOp {
        match self {
            EpilogueOp::Centre(x) => {
                let turned = |x: &Option<Centred>| {
                    x.as_ref().map(|x| Centred { zero: x.zero.turned(), totals: x.totals.turned(), number: x.number })
                };
                EpilogueOp::Centre(Box::new(Centre { a: turned(&x.a), b: turned(&x.b), k: x.k }))
            }
            EpilogueOp::ScaleVector(x) => EpilogueOp::ScaleVector(x.turned()),
            EpilogueOp::AddVector(x) => EpilogueOp::AddVector(x.turned()),
            EpilogueOp::AddTensor(x) => EpilogueOp::AddTensor(x.transposed()),
            EpilogueOp::Mask(x) => EpilogueOp::Mask(x.transposed()),
            EpilogueOp::Store(x) => EpilogueOp::Store(x.transposed()),
            EpilogueOp::Reduce(x) => EpilogueOp::Reduce(x.transposed()),
            other => other.clone(),
        }
    }
}
