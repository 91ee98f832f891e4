//! What the cost model expects of a plan, calibrated on what other plans of the same search took.

use crate::model::{Estimate, Picker};
use std::collections::VecDeque;
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;

/// Trials that a calibration needs.
const FEW: usize = 4;
/// Last trials that it looks at.
const MANY: usize = 64;

/// The cost model with the ratios of the times of a search to its own.
pub(super) struct Expectation<'a> {
    picker: Picker<'a>,
    /// Measured over modelled, of the last trials. The median of few of them is no time that was held up.
    ratios: VecDeque<f64>,
}

impl<'a> Expectation<'a> {
    /// An uncalibrated model.
    pub fn new(space: &'a Space) -> Self {
        Expectation { picker: Picker::new(space), ratios: VecDeque::new() }
    }

    /// The model's estimate; `None` where the plan is refused.
    pub fn estimate(&self, plan: &Plan) -> Option<Estimate> {
        self.picker.estimate(plan)
    }

    /// Modelled microseconds; `None` where the plan is refused.
    pub fn modelled(&self, plan: &Plan) -> Option<f64> {
        self.picker.estimate(plan).map(|e| e.total_us)
    }

    /// Takes over what trials took, oldest first.
    pub fn learn(&mut self, trials: impl ExactSizeIterator<Item = (Plan, f64)>) {
        let old = trials.len().saturating_sub(MANY);
        for (plan, time_us) in trials.skip(old) {
            let ratio = self.modelled(&plan).map(|modelled| time_us / modelled);
            self.ratios.extend(ratio.filter(|r| r.is_finite() && *r > 0.0));
        }
        self.ratios.drain(..self.ratios.len().saturating_sub(MANY));
    }

    /// Microseconds that a plan should take; `None` before a few trials are known.
    pub fn of(&self, plan: &Plan) -> Option<f64> {
        if self.ratios.len() < FEW {
            return None;
        }
        let ratios: Vec<f64> = self.ratios.iter().copied().collect();
        Some(median(&ratios) * self.modelled(plan)?)
    }
}

/// The median; infinite without values.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len() / 2), sorted.len() % 2) {
        (Some(high), 0) => sorted.get(sorted.len() / 2 - 1).map_or(*high, |low| (low + high) / 2.0),
        (Some(middle), _) => *middle,
        (None, _) => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::{Scalar, Target};
    use tilewright_problem::{Gemm, Order};

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), f64::INFINITY);
    }

    #[test]
    fn what_was_held_up_hardly_moves_an_expectation() {
        let problem = Gemm::new(Scalar::F32, 512, 512, 512).order(Order::Col).build().unwrap().into();
        let target = Target::by_arch("sm_90a").unwrap();
        let space = Space::new(&problem, &target).unwrap();
        let mut expectation = Expectation::new(&space);
        let plans: Vec<Plan> = Picker::new(&space).pick(12).into_iter().map(|c| c.plan).collect();
        let twice = |plan: &Plan| 2.0 * expectation.modelled(plan).unwrap();
        let mut trials: Vec<(Plan, f64)> = plans.iter().map(|plan| (*plan, twice(plan))).collect();
        trials[2].1 *= 170.0;
        let last = trials.pop().unwrap();
        expectation.learn(trials[..FEW - 1].iter().copied());
        assert_eq!(expectation.of(&last.0), None);
        expectation.learn(trials[FEW - 1..].iter().copied());
        assert!((expectation.of(&last.0).unwrap() / last.1 - 1.0).abs() < 1e-9);
        // Much later, only the latest count.
        let slower: Vec<(Plan, f64)> = trials.iter().cycle().take(10 * MANY).map(|(p, _)| (*p, 3.0 * last.1)).collect();
        expectation.learn(slower.into_iter());
        assert!(expectation.of(&last.0).unwrap() > 1.4 * last.1);
        assert_eq!(expectation.modelled(&last.0.but(|keys| keys.threads = 3).into()), None);
    }
}
