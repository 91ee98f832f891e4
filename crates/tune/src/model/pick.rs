//! Choosing plans with no measuring: the grid of seeds, then a climb over neighbours, by modelled time.

use super::rank::{Candidate, Picker, sort};
use super::seeds::{finishes, legal, schedules, seeds};
use std::collections::HashMap;
use tilewright_gen::plan::{Keys, Plan, Plans};

impl Picker<'_> {
    /// The `count` plans of least modelled time that the grid of seeds and a climb from its best find, best first. Empty
    /// only where no legal plan was found that satisfies the constraint.
    pub fn pick(&self, count: usize) -> Vec<Candidate> {
        const TILINGS: usize = 300;
        const CENTRES: usize = 12;
        const ROUNDS: usize = 4;
        let mut ranked = seeds(self);
        sort(&mut ranked);
        let mut seen: Plans = ranked.iter().map(|c| c.plan).collect();
        let scheduled: Vec<Keys> = best(&ranked, TILINGS).flat_map(|c| schedules(self.space, &c.plan)).collect();
        ranked.extend(legal(self, &scheduled, &mut seen));
        sort(&mut ranked);
        let others: Vec<Keys> = best(&ranked, TILINGS).flat_map(|c| finishes(self.space, &c.plan)).collect();
        ranked.extend(legal(self, &others, &mut seen));
        sort(&mut ranked);
        let mut expanded = Plans::default();
        for _ in 0..ROUNDS {
            let unseen = ranked.iter().filter(|c| !expanded.contains(&c.plan));
            let centres: Vec<Plan> = best(unseen, CENTRES).map(|c| c.plan).collect();
            let mut around = Vec::new();
            for centre in centres {
                expanded.insert(centre);
                around.extend(self.space.neighbours(&centre).into_iter().map(|n| *n.plan));
            }
            let fresh = legal(self, &around, &mut seen);
            if fresh.is_empty() {
                break;
            }
            ranked.extend(fresh);
            sort(&mut ranked);
        }
        ranked.truncate(count);
        ranked
    }
}

/// The first `count` candidates, and a sixth as many of each form of the problem. The plans of one form must not end the way to a
/// better plan of another form.
fn best<'a>(ranked: impl IntoIterator<Item = &'a Candidate>, count: usize) -> impl Iterator<Item = &'a Candidate> {
    let mut of_form = HashMap::new();
    ranked.into_iter().enumerate().filter_map(move |(place, candidate)| {
        let seen: &mut usize = of_form.entry(candidate.plan.form).or_default();
        *seen += 1;
        (place < count || *seen <= count.div_ceil(6)).then_some(candidate)
    })
}
