//! How long a search runs at a time.

use super::order::Order;
use super::{Budget, Tally};

/// Part of a search: its whole budget, or a share of a budget that several searches have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slice {
    /// Seconds and trials of this part.
    pub budget: Budget,
    /// Other searches share the budget: it is kept although nothing was found yet.
    pub shared: bool,
    /// In which order its candidates are tried.
    pub order: Order,
    /// Trials of earlier parts.
    earlier: u64,
}

impl Slice {
    /// All of a search.
    pub const fn whole(budget: Budget, is_measured: bool) -> Slice {
        Slice { budget, shared: false, order: Order::of(budget, is_measured), earlier: 0 }
    }

    /// A share of the budget of several searches.
    pub const fn share(budget: Budget, order: Order) -> Slice {
        Slice { budget, shared: true, order, earlier: 0 }
    }

    /// The same with no more trials than these.
    pub fn at_most(self, trials: Option<u64>) -> Slice {
        let least = |own: u64| trials.map_or(own, |most| own.min(most));
        Slice { budget: Budget { trials: self.budget.trials.map(least).or(trials), ..self.budget }, ..self }
    }

    /// The same after these trials.
    pub const fn after(self, tally: &Tally) -> Slice {
        Slice { earlier: tally.trials, ..self }
    }

    /// Trials of this part.
    pub const fn trials(&self, tally: &Tally) -> u64 {
        tally.trials - self.earlier
    }
}
