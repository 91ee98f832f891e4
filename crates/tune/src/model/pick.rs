//! Choosing plans with no measuring: the grid of seeds, then a climb over neighbours, by modelled time.

use super::seeds::seeds;
use super::{Calibration, Estimate, Model};
use crate::space::Space;
use rayon::prelude::*;
use std::collections::HashSet;
use tilewright_gen::plan::Plan;

/// A plan with its modelled time.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// Its estimate.
    pub estimate: Estimate,
}

/// Ranks plans of a space by the cost model.
pub struct Picker<'a> {
    space: &'a Space,
    models: Vec<(u32, Model<'a>)>,
}

impl<'a> Picker<'a> {
    /// A picker over a space.
    pub fn new(space: &'a Space) -> Self {
        let models = space.contractions().into_iter().map(|(form, c)| (form, Model::new(c, space.target()))).collect();
        Picker { space, models }
    }

    /// The same with other constants of the model.
    pub fn calibrated(self, calibration: Calibration) -> Self {
        Picker { models: self.models.into_iter().map(|(form, m)| (form, m.calibrated(calibration))).collect(), ..self }
    }

    /// The modelled time of a plan; `None` where the plan is refused.
    pub fn estimate(&self, plan: &Plan) -> Option<Estimate> {
        let resolved = self.space.resolve(plan).ok()?;
        let model = self.models.iter().find(|(_, m)| std::ptr::eq(m.contraction, resolved.contraction))?;
        Some(model.1.estimate(&resolved.spec, &resolved.footprint))
    }

    /// Estimates for plans, best first; refused plans are left out.
    pub fn rank(&self, plans: &[Plan]) -> Vec<Candidate> {
        let mut ranked: Vec<Candidate> =
            plans.par_iter().filter_map(|plan| Some(Candidate { plan: *plan, estimate: self.estimate(plan)? })).collect();
        // Ties go to the plan that stands first in the plans' own order, so that a pick is repeatable.
        ranked.sort_by(|x, y| x.estimate.total_us.total_cmp(&y.estimate.total_us).then_with(|| x.plan.cmp(&y.plan)));
        ranked
    }

    /// The `count` plans of least modelled time that the grid of seeds and a climb from its best find, best first. Empty
    /// only where the constraint leaves no legal plan.
    pub fn pick(&self, count: usize) -> Vec<Candidate> {
        const CENTRES: usize = 12;
        const ROUNDS: usize = 4;
        let mut ranked = self.rank(&seeds(self.space));
        let mut seen: HashSet<Plan> = ranked.iter().map(|c| c.plan).collect();
        let mut expanded = HashSet::new();
        for _ in 0..ROUNDS {
            let centres: Vec<Plan> = ranked.iter().map(|c| c.plan).filter(|p| !expanded.contains(p)).take(CENTRES).collect();
            let mut fresh = Vec::new();
            for centre in centres {
                expanded.insert(centre);
                for neighbour in self.space.neighbours(&centre) {
                    if let Some(plan) = self.space.repair(&neighbour.plan)
                        && seen.insert(plan)
                    {
                        fresh.push(plan);
                    }
                }
            }
            if fresh.is_empty() {
                break;
            }
            ranked.extend(self.rank(&fresh));
            ranked.sort_by(|x, y| x.estimate.total_us.total_cmp(&y.estimate.total_us).then_with(|| x.plan.cmp(&y.plan)));
        }
        ranked.truncate(count);
        ranked
    }
}
