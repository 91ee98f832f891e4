//! In which order a search tries its candidates, and how many it has under way.

use super::Budget;

/// The order in which candidates are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As they were proposed. The tried candidates then depend on times alone, not on how long each candidate took to build. Two
    /// searches with one seed try the same plans for as long as they find the same best ones. The device waits where an early
    /// candidate is built late.
    Proposed,
    /// As their builds end: the device seldom waits.
    Built,
}

impl Order {
    /// The order of a search that ends with this budget.
    ///
    /// Trials say how much is tried, so who gives them wants the same each time, and waiting costs no trial. Each wait costs a budget in seconds a trial,
    /// and a clock makes each search another one anyway. Where times are modelled, nothing is timed, so waiting costs nothing.
    pub const fn of(budget: Budget, is_measured: bool) -> Order {
        match budget {
            Budget { seconds: None, trials: Some(_) } => Order::Proposed,
            _ if is_measured => Order::Built,
            _ => Order::Proposed,
        }
    }

    /// Candidates under way at a time: proposed and not yet tried.
    ///
    /// Twice the threads keep all of them at work while the device times. In the order of proposals, candidates after a slow
    /// build wait too, so there may be four times the threads. They are no more than a quarter of the trials, because later
    /// proposals follow the results of earlier ones. Time decides nothing here.
    pub fn window(self, threads: usize, trials: Option<u64>) -> usize {
        let least = 2 * threads;
        match (self, trials) {
            (Order::Proposed, Some(trials)) => usize::try_from(trials / 4).unwrap_or(usize::MAX).clamp(least, 2 * least),
            _ => least,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_alone_are_tried_in_the_order_of_their_proposals() {
        assert_eq!(Order::of(Budget::trials(9), true), Order::Proposed);
        let both = Budget { seconds: Some(9.0), trials: Some(9) };
        for budget in [Budget::seconds(9.0), both, Budget::default()] {
            assert_eq!((Order::of(budget, true), Order::of(budget, false)), (Order::Built, Order::Proposed), "{budget:?}");
        }
    }

    #[test]
    fn windows_hold_a_quarter_of_the_trials() {
        let window = |trials| Order::Proposed.window(16, trials);
        assert_eq!([window(Some(24)), window(Some(200)), window(Some(9000)), window(None)], [32, 50, 64, 32]);
        assert_eq!(Order::Built.window(16, Some(9000)), 32);
    }
}
