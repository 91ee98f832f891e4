//! Choosing plans with no measuring: the grid of seeds, then a climb over neighbours, by modelled time.

use super::seeds::{finishes, legal, schedules, seeds};
use super::{Calibration, Estimate, Model};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};
use tilewright_gen::kernel::join;
use tilewright_gen::plan::{Keys, Plan};
use tilewright_gen::space::{ResolvedPart, Space};
use tilewright_problem::contraction::Contraction;

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
        let resolved = self.space.resolve(plan).ok()?;
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

    /// The `count` plans of least modelled time that the grid of seeds and a climb from its best find, best first. Empty
    /// only where no legal plan was found that satisfies the constraint.
    pub fn pick(&self, count: usize) -> Vec<Candidate> {
        const TILINGS: usize = 300;
        const CENTRES: usize = 12;
        const ROUNDS: usize = 4;
        let mut ranked = self.rank(&seeds(self));
        let scheduled: Vec<Keys> = best(&ranked, TILINGS).flat_map(|c| schedules(self.space, &c.plan)).collect();
        let known: HashSet<Plan> = ranked.iter().map(|c| c.plan).collect();
        let mut scheduled = legal(self.space, &scheduled);
        scheduled.retain(|plan| !known.contains(plan));
        ranked.extend(self.rank(&scheduled));
        sort(&mut ranked);
        let others: Vec<Keys> = best(&ranked, TILINGS).flat_map(|c| finishes(self.space, &c.plan)).collect();
        let known: HashSet<Plan> = ranked.iter().map(|c| c.plan).collect();
        let mut others = legal(self.space, &others);
        others.retain(|plan| !known.contains(plan));
        ranked.extend(self.rank(&others));
        sort(&mut ranked);
        let mut seen: HashSet<Plan> = ranked.iter().map(|c| c.plan).collect();
        let mut expanded = HashSet::new();
        for _ in 0..ROUNDS {
            let unseen = ranked.iter().filter(|c| !expanded.contains(&c.plan));
            let centres: Vec<Plan> = best(unseen, CENTRES).map(|c| c.plan).collect();
            let mut around = Vec::new();
            for centre in centres {
                expanded.insert(centre);
                around.extend(self.space.neighbours(&centre).into_iter().map(|n| *n.plan));
            }
            let mut fresh = legal(self.space, &around);
            fresh.retain(|plan| seen.insert(*plan));
            if fresh.is_empty() {
                break;
            }
            ranked.extend(self.rank(&fresh));
            sort(&mut ranked);
        }
        ranked.truncate(count);
        ranked
    }
}

/// The first so many, and a sixth as many of each form of the problem: the plans of one form must not end the way to a better one of another.
fn best<'a>(ranked: impl IntoIterator<Item = &'a Candidate>, count: usize) -> impl Iterator<Item = &'a Candidate> {
    let mut of_form = HashMap::new();
    ranked.into_iter().enumerate().filter_map(move |(place, candidate)| {
        let seen: &mut usize = of_form.entry(candidate.plan.form).or_default();
        *seen += 1;
        (place < count || *seen <= count.div_ceil(6)).then_some(candidate)
    })
}

/// Best first. Where the model sees hardly a difference, the simpler plan comes first; the plans' own order decides the
/// rest, so that a pick is repeatable.
fn sort(candidates: &mut [Candidate]) {
    let cost = |c: &Candidate| c.estimate.total_us * (1.0 + 4e-4 * f64::from(complexity(&c.plan)));
    candidates.sort_by(|x, y| cost(x).total_cmp(&cost(y)).then_with(|| x.plan.cmp(&y.plan)));
}

/// How much a plan asks for beyond the plain.
fn complexity(plan: &Plan) -> u32 {
    let p = &**plan;
    let extras = [p.wide_index, p.stagger, p.fences, p.min_groups, p.producers, p.staged, p.interleave_splits];
    extras.into_iter().map(|value| value.min(1)).sum::<u32>()
        + 2 * p.ahead.saturating_sub(1)
        + p.buffers.saturating_sub(2)
        + p.store_point.saturating_sub(1)
        + p.k_tile / 32
        + (1 - p.unroll_hint.min(1))
        + (1 - p.explicit_fma.min(1))
        + (p.a.copy + p.b.copy) % 2
}
