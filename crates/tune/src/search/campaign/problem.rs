//! A problem within a campaign: its weight, and what another slice of its search promises.

use crate::search::session::Live;
use crate::search::{Budget, Outcome, TuneError};

/// Share of the gap to the model's floor that a search is expected to close at first.
pub(super) const HOPE: f64 = 0.5;
/// What saves time only beyond a rival's counts by this share.
const BEYOND: f64 = 0.1;

/// A problem within a running campaign.
pub(super) struct Problem<'a> {
    pub calls: f64,
    /// Operations of all calls.
    pub flop: f64,
    pub rival_us: Option<f64>,
    /// Of the best pick.
    pub modelled_us: f64,
    /// What math or memory alone takes by the model.
    pub floor_us: f64,
    pub live: Option<Live<'a>>,
    pub result: Option<Result<Outcome, TuneError>>,
    /// Share of the gap to the floor that the next slice is expected to close.
    pub hope: f64,
    /// What its own search may take.
    pub own: Budget,
    /// Nothing is left to try.
    pub exhausted: bool,
}

impl Problem<'_> {
    /// A budget within its own.
    pub fn within(&self, Budget { seconds, trials }: Budget) -> Budget {
        let least = |x: Option<f64>, y: Option<f64>| x.map_or(y, |x| Some(y.map_or(x, |y| x.min(y))));
        let (made, took) = self.live.as_ref().map_or((0, 0.0), |live| (live.trials(), live.seconds()));
        let own = self.own.trials.map(|trials| trials.saturating_sub(made).max(1));
        let trials = trials.map_or(own, |trials| Some(own.map_or(trials, |own| own.min(trials))));
        Budget { seconds: least(seconds, self.own.seconds.map(|s| (s - took).max(0.0))), trials }
    }

    pub fn best_us(&self) -> Option<f64> {
        self.result.as_ref().and_then(|result| Some(result.as_ref().ok()?.time_us))
    }

    /// Microseconds per call that the problem takes where nobody has searched it.
    pub fn base_us(&self) -> f64 {
        self.rival_us.or_else(|| self.live.as_ref()?.first_us()).unwrap_or(self.modelled_us)
    }

    /// Time of all calls.
    pub fn weight(&self) -> f64 {
        self.calls * self.base_us()
    }

    /// Microseconds that another slice may save, by all calls.
    pub fn promise(&self) -> f64 {
        let Some(best) = self.best_us() else { return self.weight() * self.hope };
        let gap = (best - self.floor_us).max(0.0) * self.hope;
        let rival = self.rival_us.unwrap_or(f64::INFINITY);
        let useful = best.min(rival) - (best - gap).min(rival);
        self.calls * useful.max(BEYOND * gap)
    }
}
