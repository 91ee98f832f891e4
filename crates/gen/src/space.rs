//! The plans of one problem on one target, and what each of them means: what tests, searches and users choose from.

use crate::graph::{Graph, Move, Reach, reflected};
use crate::kernel::{GenerateError, generate_parts, join};
use crate::plan::special::Contract;
use crate::plan::{
    Constraint, Derived, Env, Footprint, KernelSpec, Keys, Plan, Refusal, Split, derive, fits, generic, of_elements,
};
use crate::program::Program;
use tilewright_ir::Target;
use tilewright_problem::contraction::{Contraction, ResultSource};
use tilewright_problem::lower::{ConvForm, Parts, lower};
use tilewright_problem::{Problem, ProblemError};

/// What a plan means for the problem.
#[derive(Clone, Debug)]
pub struct Resolved<'a> {
    /// The contraction the plan runs on; a convolution has one for each value of `BIM`. Of a problem in parts, the one with most work.
    pub contraction: &'a Contraction,
    /// The derived plan.
    pub spec: Derived<'a>,
    /// What it takes of the target.
    pub footprint: Footprint,
    /// The other parts.
    pub rest: Vec<ResolvedPart<'a>>,
    /// Reductions of operands, which have plans of their own.
    pub operands: Vec<ResolvedPart<'a>>,
}

/// What a plan means for a further part of the problem.
#[derive(Clone, Debug)]
pub struct ResolvedPart<'a> {
    /// The part.
    pub contraction: &'a Contraction,
    /// The plan where it is legal for this part, else without its splits, else a plain one.
    pub spec: Derived<'a>,
    /// What it takes of the target.
    pub footprint: Footprint,
}

/// A legal plan near another.
#[derive(Clone, Debug)]
pub struct Repaired<'a> {
    /// The plan.
    pub plan: Plan,
    /// What it means.
    pub resolved: Resolved<'a>,
}

impl Resolved<'_> {
    /// The parts in one launch with the first: see [`join`].
    pub fn joined(&self) -> impl Iterator<Item = &ResolvedPart<'_>> {
        self.rest.iter().filter(|part| join(&self.spec, part.contraction, &part.spec))
    }
    /// What special values become.
    pub fn contract(&self) -> Contract {
        let of =
            |c: &Contraction, spec: &KernelSpec| Contract::of(c, spec.tiling.instruction, spec.epilogue.split == Split::Atomic);
        self.rest.iter().fold(of(self.contraction, &self.spec), |all, part| all.and(&of(part.contraction, &part.spec)))
    }
    /// The program: the launches of all parts, within a workspace of so many bytes.
    ///
    /// # Errors
    /// [`GenerateError`].
    pub fn generate(&self, workspace: u64) -> Result<Program, GenerateError> {
        let lead = std::iter::once(&self.spec);
        let all: Vec<_> = lead.chain(self.rest.iter().chain(&self.operands).map(|part| &part.spec)).collect();
        generate_parts(&all, workspace)
    }
}

/// The plans of a problem on a target, under constraints.
///
/// ```
/// use tilewright_gen::plan::{Constraint, Plan};
/// use tilewright_gen::space::Space;
/// use tilewright_ir::{Scalar, Target};
/// use tilewright_problem::Gemm;
///
/// let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 128x128x16 on 16x16")?;
/// let resolved = space.resolve(&plan)?;
/// assert_eq!((resolved.footprint.threads, resolved.generate(0)?.kernels.len()), (256, 1));
/// // A search with this constraint takes plans with a k-tile of 32 only.
/// let space = space.constrained(&Constraint::parse("C_UNR32")?);
/// assert!(!space.constraint().allows(&plan));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Space {
    problem: Problem,
    target: Target,
    env: Env,
    constraint: Constraint,
    /// Alignments of the first elements of A, B and C in bytes, where they are not the problem's own.
    starts: Option<[u32; 3]>,
    /// In the form of `BIM0`, and in others by their values of it.
    per_sample: Parts,
    others: Vec<(u32, Parts)>,
}

impl Space {
    /// All plans of a problem on a target: no atomics, the problem's own workspace.
    ///
    /// # Errors
    /// Those of [`lower`].
    pub fn new(problem: &Problem, target: &Target) -> Result<Space, ProblemError> {
        let per_sample = lower(problem, ConvForm::PER_SAMPLE)?;
        let others = ConvForm::of(problem).into_iter().filter(|form| *form != ConvForm::PER_SAMPLE);
        let others = others.map(|form| Ok((form.number(), lower(problem, form)?))).collect::<Result<_, ProblemError>>()?;
        Ok(Space {
            problem: problem.clone(),
            target: target.clone(),
            env: Env::new(target, problem.workspace()),
            constraint: Constraint::none(),
            starts: None,
            per_sample,
            others,
        })
    }

    /// The same with values demanded of some keys.
    pub fn constrained(mut self, constraint: &Constraint) -> Space {
        self.constraint = constraint.clone();
        self
    }

    /// The same with atomic sums allowed: results may differ in their last bits from run to run.
    pub fn with_atomics(mut self, allowed: bool) -> Space {
        self.env.allow_atomics = allowed;
        self
    }

    /// The same with plans alone in which NaN, infinities and overflow become what IEEE 754 has.
    pub fn with_ieee(mut self, demanded: bool) -> Space {
        self.env.ieee = demanded;
        self
    }

    /// The problem.
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }
    /// The target.
    pub const fn target(&self) -> &Target {
        &self.target
    }
    /// What legality reads besides plan and contraction.
    pub const fn env(&self) -> &Env {
        &self.env
    }
    /// Values demanded.
    pub const fn constraint(&self) -> &Constraint {
        &self.constraint
    }

    /// The same for operands whose first elements are aligned so, in bytes.
    pub fn aligned(&self, starts: [u32; 3]) -> Space {
        let mut space = Space { starts: Some(starts), ..self.clone() };
        for parts in std::iter::once(&mut space.per_sample).chain(space.others.iter_mut().map(|(_, parts)| parts)) {
            for c in std::iter::once(&mut parts.lead).chain(&mut parts.rest) {
                [c.a.align, c.b.align, c.c.align] = starts;
            }
            for c in &mut parts.operands {
                if let ResultSource::Elements(x) = &c.source {
                    c.a.align = starts[x.of as usize];
                }
            }
        }
        space
    }

    /// The alignments of [`Space::aligned`].
    pub const fn starts(&self) -> Option<[u32; 3]> {
        self.starts
    }

    /// The plans of another problem on the same target, under the same constraint, with operands aligned alike.
    ///
    /// # Errors
    /// Those of [`Space::new`].
    pub fn of(&self, problem: &Problem) -> Result<Space, ProblemError> {
        let space = Space::new(problem, &self.target)?.constrained(&self.constraint).with_atomics(self.env.allow_atomics);
        let space = space.with_ieee(self.env.ieee);
        Ok(if let Some(starts) = self.starts { space.aligned(starts) } else { space })
    }

    /// The contraction a plan runs on: that of the part with most work.
    pub fn contraction(&self, plan: &Keys) -> &Contraction {
        &self.parts(plan).lead
    }

    /// The parts of the problem in the form that a plan chooses.
    pub fn parts(&self, plan: &Keys) -> &Parts {
        let wanted = plan.form;
        self.numbered().find(|(bim, _)| *bim == wanted).map_or(&self.per_sample, |(_, parts)| parts)
    }

    /// Every form of the problem, its part with most work, with the value of `BIM` that chooses it.
    pub fn contractions(&self) -> Vec<(u32, &Contraction)> {
        self.numbered().map(|(bim, parts)| (bim, &parts.lead)).collect()
    }

    /// Every form of the problem.
    pub fn forms(&self) -> impl Iterator<Item = &Parts> {
        self.numbered().map(|(_, parts)| parts)
    }

    fn numbered(&self) -> impl Iterator<Item = (u32, &Parts)> {
        std::iter::once((0, &self.per_sample)).chain(self.others.iter().map(|(bim, parts)| (*bim, parts)))
    }

    /// What a plan means here, or why it cannot be.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn resolve(&self, plan: &Keys) -> Result<Resolved<'_>, Refusal> {
        let contraction = self.contraction(plan);
        let plan = &self.whole_parts(&plan.within_sum(contraction));
        let spec = derive(plan, contraction, &self.env)?;
        let footprint = fits(&spec, &self.target)?;
        let rest = self.parts(plan).rest.iter().map(|part| self.resolve_part(plan, &spec, part)).collect::<Result<_, _>>()?;
        let apart = self.parts(plan).operands.iter().filter(|_| !spec.epilogue.operands);
        let operands = apart.map(|part| self.resolve_operand(part)).collect::<Result<_, _>>()?;
        Ok(Resolved { contraction, spec, footprint, rest, operands })
    }

    /// The plan without a split tail where the problem has several parts: tiles of the next part fill the last round.
    fn whole_parts(&self, plan: &Keys) -> Keys {
        let several = !self.parts(plan).rest.is_empty();
        Keys { tail_splits: if several { 1 } else { plan.tail_splits }, ..*plan }
    }

    /// The plan with persistent work-groups that add up reductions over their own tiles, in an order and a number that let them.
    pub fn carrying(&self, plan: &Keys) -> Option<Plan> {
        let mut plan = Keys { carry: 1, ..*plan };
        if let Err(Refusal::ReduceCarry { gal, pst, .. }) = self.resolve(&plan) {
            plan = Keys { order: gal, persistent: pst, ..plan };
        }
        Some(Plan::from(plan)).filter(|plan| plan.carry == 1 && self.resolve(plan).is_ok())
    }

    /// What a plan means for a part with less work, or the plan that takes its place there.
    fn resolve_part<'a>(
        &self,
        plan: &Keys,
        lead: &KernelSpec,
        contraction: &'a Contraction,
    ) -> Result<ResolvedPart<'a>, Refusal> {
        let try_plan = |plan: &Keys| self.resolved(plan, contraction);
        // The order that the part with most work has.
        let plan = &Keys { entries_fastest: u32::from(lead.tiling.entries_fastest), ..*plan };
        // What several parts have elements of is finished in one way.
        let atomics = |spec: &KernelSpec| spec.epilogue.finish.stage().is_some();
        let shared = contraction.reductions().any(|r| contraction.shares_values(r));
        let alike = |part: &ResolvedPart| !shared || atomics(&part.spec) == atomics(lead);
        let whole = Keys { splits: 1, ..*plan };
        // Of a part that a single tap reaches the operands are matrices, which are copied as such.
        let matrices = whole.but(|keys| keys.both(|o| o.source = if o.source == 3 { 1 } else { o.source }));
        // Nothing need go on from tile to tile where it does in another part.
        let by_tile = Keys { carry: 0, ..matrices };
        let mut ways = [plan, &whole, &matrices, &by_tile].into_iter().map(try_plan);
        let found = ways.find_map(|way| way.ok().filter(alike));
        let plain = generic(contraction).but(|keys| keys.finish = if shared { plan.finish } else { 0 });
        found.map_or_else(|| try_plan(&plain), Ok)
    }

    /// A reduction of an operand under the plan that suits its tensor.
    fn resolve_operand<'a>(&self, contraction: &'a Contraction) -> Result<ResolvedPart<'a>, Refusal> {
        let plan = of_elements(contraction, self.target.units);
        self.resolved(&plan, contraction).or_else(|_| self.resolved(&generic(contraction), contraction))
    }

    fn resolved<'a>(&self, plan: &Keys, contraction: &'a Contraction) -> Result<ResolvedPart<'a>, Refusal> {
        let spec = derive(plan, contraction, &self.env)?;
        let footprint = fits(&spec, &self.target)?;
        Ok(ResolvedPart { contraction, spec, footprint })
    }

    /// The same product told in the other storage order; `None` for a convolution.
    ///
    /// # Errors
    /// Those of [`Space::new`].
    pub fn in_other_order(&self) -> Option<Result<Space, ProblemError>> {
        let Problem::Gemm(gemm) = &self.problem else { return None };
        if gemm.gate.is_some() {
            // Pairs of columns have no counterpart.
            return None;
        }
        let other = Space::new(&gemm.in_other_order().into(), &self.target);
        Some(other.map(|other| Space { env: self.env, ..other }))
    }

    /// The plan that does here what `plan` does for [`Space::in_other_order`], if there is one and it satisfies the constraint.
    pub fn from_other_order(&self, plan: &Plan) -> Option<Plan> {
        let here = match plan.unit {
            0 => reflected(plan, self.env.wave)?.into(),
            // Matrix units take their operands in either order: the very same kernel.
            _ => plan.but(Keys::turn).into(),
        };
        (self.constraint.allows(&here) && self.resolve(&here).is_ok()).then_some(here)
    }

    /// The graph that searches walk, around a plan.
    pub fn graph(&self, plan: &Keys) -> Graph<'_> {
        Graph {
            contraction: self.contraction(plan),
            env: &self.env,
            constraint: &self.constraint,
            reach: Reach::Full,
            forms: [0, 1, 2, 3, 4].map(|bim| self.numbered().any(|(known, _)| known == bim)),
        }
    }

    /// Plans one move away. They need not be legal.
    pub fn neighbours(&self, plan: &Keys) -> Vec<Move> {
        self.graph(plan).neighbours(plan)
    }

    /// The legal plan nearest to one that is not, by number of keys changed; looks at `most` plans.
    pub fn nearest(&self, plan: &Keys, most: usize) -> Option<Plan> {
        self.graph(plan).nearest(&self.constraint.apply(plan), most, |p| self.resolve(p).map(|_| ()))
    }

    /// A plan that is legal wherever any is, the constraint aside.
    pub fn fallback(&self) -> Plan {
        self.admit(&generic(&self.per_sample.lead))
    }

    /// The plan with the constraint's values, and one way to write what has no effect here.
    pub fn admit(&self, keys: &Keys) -> Plan {
        let keys = self.constraint.apply(keys);
        let known = self.numbered().any(|(bim, _)| bim == keys.form);
        let plan = Plan::from(self.whole_parts(&if known { keys } else { Keys { form: 0, ..keys } }));
        self.constraint.apply(&plan.normalised(self.contraction(&plan))).into()
    }
}
