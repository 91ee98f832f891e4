//! The nearest plan that is not refused, for messages: the one that changes the fewest keys.

use super::{Graph, remedies};
use crate::plan::{Key, Keys, Plan, Refusal};
use std::collections::{HashSet, VecDeque};

impl Graph<'_> {
    /// The plan nearest to `plan` that `check` accepts, by number of keys changed and then by distance of their values.
    /// Looks at keys that refusals name, at most `budget` plans. Pinned keys stay as they are; `None` where nothing was
    /// found.
    pub fn nearest(&self, plan: &Keys, budget: usize, check: impl Fn(&Plan) -> Result<(), Refusal>) -> Option<Plan> {
        let mut queue = VecDeque::from([*plan]);
        let mut seen = HashSet::from([*plan]);
        let mut looked = 0;
        while let Some(here) = queue.pop_front() {
            looked += 1;
            if looked > budget {
                return None;
            }
            let plan = Plan::from(here);
            let refusal = match check(&plan) {
                Ok(()) => return Some(plan),
                Err(refusal) => refusal,
            };
            for key in remedies(&refusal) {
                if self.constraint.pins(key) {
                    continue;
                }
                for value in self.by_distance(key, here.get(key)) {
                    let next = here.with(key, value);
                    if seen.insert(next) {
                        queue.push_back(next);
                    }
                }
            }
        }
        None
    }

    /// Values of a key from the nearest to the farthest, its default among them.
    fn by_distance(&self, key: Key, from: u32) -> Vec<u32> {
        let mut values = self.values(key);
        values.push(key.info().default);
        values.retain(|v| *v != from);
        let log = |v: u32| f64::from(v + 1).ln();
        values.sort_by(|x, y| (log(*x) - log(from)).abs().total_cmp(&(log(*y) - log(from)).abs()));
        values.dedup();
        values
    }
}
