//! What a search may try: the plans of one problem on one target, and what each of them means.

use crate::graph::{Graph, Move, Reach, reflected};
use crate::key::ProblemKey;
use tilewright_gen::plan::{Common, Constraint, Env, Footprint, KernelSpec, Key, Plan, Refusal, derive, fits, generic};
use tilewright_ir::Target;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::lower::{ConvForm, lower};
use tilewright_problem::{Problem, ProblemError};

/// What a plan means for the problem.
#[derive(Clone, Debug)]
pub struct Resolved<'a> {
    /// The contraction the plan runs on; a convolution has one for each value of `BIM`.
    pub contraction: &'a Contraction,
    /// The derived plan.
    pub spec: KernelSpec,
    /// What it takes of the target.
    pub footprint: Footprint,
}

/// The plans of a problem on a target, under constraints.
#[derive(Clone, Debug)]
pub struct Space {
    problem: Problem,
    target: Target,
    env: Env,
    constraint: Constraint,
    per_sample: Contraction,
    merged: Option<Contraction>,
}

impl Space {
    /// All plans of a problem on a target: no atomics, the problem's own workspace.
    ///
    /// # Errors
    /// Those of [`lower`].
    pub fn new(problem: &Problem, target: &Target) -> Result<Space, ProblemError> {
        let merged = match problem {
            Problem::Conv(_) => Some(lower(problem, ConvForm::Merged)?),
            Problem::Gemm(_) => None,
        };
        Ok(Space {
            problem: problem.clone(),
            target: target.clone(),
            env: Env::new(target, problem.workspace()),
            constraint: Constraint::none(),
            per_sample: lower(problem, ConvForm::PerSample)?,
            merged,
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

    /// The contraction a plan runs on.
    pub fn contraction(&self, plan: &Plan) -> &Contraction {
        match &self.merged {
            Some(merged) if plan.common(Common::Bim) == 1 => merged,
            _ => &self.per_sample,
        }
    }

    /// Every contraction of the problem with the value of `BIM` that chooses it.
    pub fn contractions(&self) -> Vec<(u32, &Contraction)> {
        [(0, Some(&self.per_sample)), (1, self.merged.as_ref())].into_iter().filter_map(|(b, c)| Some((b, c?))).collect()
    }

    /// The key of records: the facts that legality reads.
    pub fn key(&self) -> ProblemKey {
        ProblemKey::new(&self.per_sample, self.env.workspace_bytes, !self.env.allow_atomics)
    }

    /// What a plan means here, or why it cannot be.
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn resolve(&self, plan: &Plan) -> Result<Resolved<'_>, Refusal> {
        let contraction = self.contraction(plan);
        let spec = derive(plan, contraction, &self.env)?;
        let footprint = fits(&spec, contraction, &self.target)?;
        Ok(Resolved { contraction, spec, footprint })
    }

    /// The same product told in the other storage order; `None` for a convolution.
    ///
    /// # Errors
    /// Those of [`Space::new`].
    pub fn in_other_order(&self) -> Option<Result<Space, ProblemError>> {
        let Problem::Gemm(gemm) = &self.problem else { return None };
        let other = Space::new(&gemm.in_other_order().into(), &self.target);
        Some(other.map(|other| Space { env: self.env, ..other }))
    }

    /// The plan that does here what `plan` does for [`Space::in_other_order`], if there is one and it satisfies the constraint.
    pub fn from_other_order(&self, plan: &Plan) -> Option<Plan> {
        let here = match plan.common(Common::Uni) {
            0 => reflected(plan, self.env.wave)?,
            // Matrix units take their operands in either order: the very same kernel.
            _ => plan.with(Key::C(Common::Swp), 1 - plan.common(Common::Swp).min(1)),
        };
        (self.constraint.allows(&here) && self.resolve(&here).is_ok()).then_some(here)
    }

    /// The graph that searches walk, around a plan.
    pub fn graph(&self, plan: &Plan) -> Graph<'_> {
        Graph {
            contraction: self.contraction(plan),
            env: &self.env,
            constraint: &self.constraint,
            reach: Reach::Full,
            convolution: self.merged.is_some(),
        }
    }

    /// Plans one move away. They need not be legal.
    pub fn neighbours(&self, plan: &Plan) -> Vec<Move> {
        self.graph(plan).neighbours(plan)
    }

    /// The legal plan nearest to one that is not, by number of keys changed; looks at `most` plans.
    pub fn nearest(&self, plan: &Plan, most: usize) -> Option<Plan> {
        self.graph(plan).nearest(plan, most, |p| self.resolve(p).map(|_| ()))
    }

    /// A plan that is legal wherever any is, the constraint aside.
    pub fn fallback(&self) -> Plan {
        self.admit(&generic(&self.per_sample))
    }

    /// The plan with the constraint's values, and one way to write what has no effect here.
    pub fn admit(&self, plan: &Plan) -> Plan {
        let plan = self.constraint.apply(plan);
        let plan = if self.merged.is_none() { plan.with(Key::C(Common::Bim), 0) } else { plan };
        self.constraint.apply(&plan.normalised(self.contraction(&plan)))
    }
}
