//! Random search: half of the plans drawn from the start values, half a walk away from seeds of the cost model.

use super::{Proposal, Searcher, Starts};
use crate::model::Picker;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;

/// Draws before the space counts as exhausted.
const TRIES: usize = 2000;

/// Tries legal plans at random, none twice.
pub struct Random<'a> {
    space: &'a Space,
    seeds: Vec<Plan>,
    rng: ChaCha8Rng,
    given: HashSet<Plan>,
}

impl<'a> Random<'a> {
    /// A random search of a space.
    pub fn new(space: &'a Space, seed: u64) -> Self {
        let seeds = Picker::new(space).pick(200).into_iter().map(|c| c.plan).collect();
        Random { space, seeds, rng: ChaCha8Rng::seed_from_u64(seed), given: HashSet::new() }
    }
}

/// A legal plan drawn from the start values, or wandered to from one of the seeds.
pub(super) fn draw(space: &Space, seeds: &[Plan], rng: &mut ChaCha8Rng) -> Option<Plan> {
    let contractions = space.contractions();
    let form = contractions.choose(rng).map_or(0, |(form, _)| *form);
    let home = Plan::default().but(|keys| keys.form = form);
    let plan = match seeds.choose(rng) {
        Some(seed) if rng.random_bool(0.5) => {
            let steps = rng.random_range(1..12);
            Starts::of(space.graph(seed)).walk(seed, steps, rng)
        }
        _ => Starts::of(space.graph(&home)).start(rng, 200, |plan| space.repair(plan).is_some())?,
    };
    space.repair(&plan)
}

impl Searcher for Random<'_> {
    fn propose(&mut self) -> Proposal {
        for _ in 0..TRIES {
            if let Some(plan) = draw(self.space, &self.seeds, &mut self.rng)
                && self.given.insert(plan)
            {
                return Proposal::Try(plan);
            }
        }
        Proposal::Done
    }

    fn report(&mut self, plan: &Plan, _time_us: Option<f64>) {
        self.given.insert(*plan);
    }
}
