//! How long a search runs at a time.

use super::{Budget, Tally};

/// Part of a search: its whole budget, or a share of a budget that several searches have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slice {
    /// Seconds and trials of this part.
    pub budget: Budget,
    /// Other searches share the budget: it is kept although nothing was found yet.
    pub shared: bool,
    /// Trials of earlier parts.
    earlier: u64,
}

impl Slice {
    /// All of a search.
    pub const fn whole(budget: Budget) -> Slice {
        Slice { budget, shared: false, earlier: 0 }
    }

    /// A share of the budget of several searches.
    pub const fn share(budget: Budget) -> Slice {
        Slice { budget, shared: true, earlier: 0 }
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
