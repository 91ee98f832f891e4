//! Exhaustive search: every legal plan of the graph's values that the constraint leaves.

use super::{Proposal, Searcher};

use crate::model::Picker;
use std::collections::HashSet;
use tilewright_gen::plan::{Key, Moves, Plan};
use tilewright_gen::space::Space;

/// Plans looked at per proposal before the caller may look after its budget.
const PATIENCE: usize = 20_000;

/// Counts through all values of all keys that are not pinned, those of high priority first. Meant for constrained
/// spaces: the whole one has more plans than anybody can try.
pub struct Exhaustive<'a> {
    space: &'a Space,
    base: Plan,
    digits: Vec<Digit>,
    done: bool,
    given: HashSet<Plan>,
}

struct Digit {
    key: Key,
    values: Vec<u32>,
    at: usize,
}

impl<'a> Exhaustive<'a> {
    /// All plans of a space.
    pub fn new(space: &'a Space) -> Self {
        let base = Picker::new(space).pick(1).first().map_or_else(|| space.fallback(), |c| c.plan);
        let graph = space.graph(&base);
        let mut digits: Vec<Digit> = Key::all()
            .filter(|key| !space.constraint().pins(*key))
            .map(|key| {
                // The base's value first: neighbours of a good plan before far ones.
                let mut values = graph.values(key);
                values.retain(|v| *v != base.get(key));
                values.insert(0, base.get(key));
                Digit { key, values, at: 0 }
            })
            .filter(|d| d.values.len() > 1 && (d.key.info().moves != Moves::Forms || space.contractions().len() > 1))
            .collect();
        digits.sort_by_key(|d| -d.key.info().priority);
        Exhaustive { space, base, digits, done: false, given: HashSet::new() }
    }

    fn advance(&mut self) {
        for digit in &mut self.digits {
            digit.at += 1;
            if digit.at < digit.values.len() {
                return;
            }
            digit.at = 0;
        }
        self.done = true;
    }
}

impl Searcher for Exhaustive<'_> {
    fn propose(&mut self) -> Proposal {
        for _ in 0..PATIENCE {
            if self.done {
                return Proposal::Done;
            }
            let plan = self.digits.iter().fold(*self.base, |p, d| match d.values.get(d.at) {
                Some(value) => p.with(d.key, *value),
                None => p,
            });
            self.advance();
            let plan = self.space.admit(&plan);
            if !self.given.contains(&plan) && self.space.resolve(&plan).is_ok() {
                self.given.insert(plan);
                return Proposal::Try(plan);
            }
        }
        Proposal::Wait
    }

    fn report(&mut self, plan: &Plan, _time_us: Option<f64>) {
        self.given.insert(*plan);
    }
}
