//! Plans of a space in the order of their modelled times.

use super::{Calibration, Estimate, Model};
use rayon::prelude::*;
use tilewright_gen::kernel::join;
use tilewright_gen::plan::{Keys, Plan};
use tilewright_gen::space::{Repaired, Resolved, ResolvedPart, Space};
use tilewright_problem::contraction::Contraction;

/// A plan with its modelled time.
///
/// ```
/// use tilewright_gen::space::Space;
/// use tilewright_ir::{Scalar, Target};
/// use tilewright_problem::Gemm;
/// use tilewright_tune::model::Picker;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 64, 64, 64).build()?.into(), &target)?;
/// // The model's three choices, the best first. Nothing was measured.
/// let candidates = Picker::new(&space).pick(3);
/// assert_eq!(candidates.len(), 3);
/// assert!(candidates.iter().all(|candidate| space.resolve(&candidate.plan).is_ok() && candidate.estimate.total_us > 0.0));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// Its estimate.
    pub estimate: Estimate,
}

/// Ranks plans of a space by the cost model.
pub struct Picker<'a> {
    pub(super) space: &'a Space,
    /// Of every part in every form.
    models: Vec<Model<'a>>,
}

impl<'a> Picker<'a> {
    /// A picker over a space.
    pub fn new(space: &'a Space) -> Self {
        let models = space.forms().flat_map(|parts| parts.iter()).map(|c| Model::new(c, space.target())).collect();
        Picker { space, models }
    }

    /// The same with other constants of the model.
    pub fn calibrated(self, calibration: Calibration) -> Self {
        Picker { models: self.models.into_iter().map(|m| m.calibrated(calibration)).collect(), ..self }
    }

    /// The modelled time of a plan; `None` where the plan is refused.
    pub fn estimate(&self, plan: &Plan) -> Option<Estimate> {
        self.estimate_of(&self.space.resolve(plan).ok()?)
    }

    /// The legal plan next to some keys, with its modelled time.
    pub fn repaired(&self, keys: &Keys) -> Option<Candidate> {
        let Repaired { plan, resolved } = self.space.repaired(keys)?;
        Some(Candidate { plan, estimate: self.estimate_of(&resolved)? })
    }

    /// The modelled time of what a plan means.
    pub(super) fn estimate_of(&self, resolved: &Resolved) -> Option<Estimate> {
        let model = |c: &Contraction| self.models.iter().find(|m| std::ptr::eq(&*m.contraction, c));
        let lead = model(resolved.contraction)?.estimate(&resolved.spec, &resolved.footprint);
        let joins = |part: &ResolvedPart| join(&resolved.spec, part.contraction, &part.spec);
        // Parts of one launch that take turns.
        let alike = |part: &ResolvedPart| joins(part) && part.contraction.m == resolved.contraction.m;
        let in_turn = resolved.spec.schedule.own() && resolved.spec.tiling.persistent == 0 && resolved.rest.iter().all(alike);
        let following = |part: &ResolvedPart| Some(model(part.contraction)?.after_launch(&part.spec, &part.footprint, in_turn));
        resolved.rest.iter().try_fold(lead, |all, part| Some(all.with(&following(part)?, joins(part))))
    }

    /// Estimates for plans, best first; refused plans are left out.
    pub fn rank(&self, plans: &[Plan]) -> Vec<Candidate> {
        let mut ranked: Vec<Candidate> =
            plans.par_iter().filter_map(|plan| Some(Candidate { plan: *plan, estimate: self.estimate(plan)? })).collect();
        sort(&mut ranked);
        ranked
    }
}

/// Best first. Where the model sees hardly a difference, the simpler plan comes first; the plans' own order decides the
/// rest, so that a pick is repeatable.
pub(crate) fn sort(candidates: &mut [Candidate]) {
    let cost = |c: &Candidate| c.estimate.total_us * (1.0 + 4e-4 * f64::from(complexity(&c.plan)));
    candidates.sort_by(|x, y| cost(x).total_cmp(&cost(y)).then_with(|| x.plan.cmp(&y.plan)));
}

/// How much a plan asks for beyond the plain.
fn complexity(plan: &Plan) -> u32 {
    let p = &**plan;
    let extras = [p.wide_index, p.stagger, p.fences, p.min_groups, p.producers, p.staged, p.interleave_splits];
    // Without producer waves, which prefetch the next tile, persistent work-groups gain by a split tail alone.
    let stays = p.persistent.min(1) * u32::from(p.producers == 0 && p.tail_splits == 1);
    extras.into_iter().map(|value| value.min(1)).sum::<u32>()
        + stays
        + 2 * p.ahead.saturating_sub(1)
        + p.buffers.saturating_sub(2)
        + p.store_point.saturating_sub(1)
        + p.k_tile / 32
        + (1 - p.unroll_hint.min(1))
        + (1 - p.explicit_fma.min(1))
        + (p.a.copy + p.b.copy) % 2
}
