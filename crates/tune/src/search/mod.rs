//! Search: trying plans on a device until a budget is spent, keeping the fastest one that is right.
//!
//! A [`Searcher`] says what to try next and learns how it went. Around it, candidates are derived, generated and compiled ahead
//! on all cores while the device times. A candidate that would win is verified before it may. A time that would lose a candidate
//! is not believed before it is sure that the candidate was not held up (`measure`). A candidate that is refused, fails, computes
//! wrongly or hangs costs one trial. Every trial goes to the records at once, so that an interrupted search goes on where it
//! stood.

mod build;
mod campaign;
mod descent;
mod exhaustive;
mod expect;
mod lineup;
mod measure;
mod order;
mod outcome;
mod random;
mod session;
mod slice;
mod start;

pub use crate::records::GENERATOR;
pub use campaign::{Audience, Campaign, RivalTime, SharedBudget, Standing, Task, tune_all};
pub use descent::Descent;
pub use exhaustive::Exhaustive;
pub use lineup::Lineup;
pub use outcome::{Ended, Event, Outcome, Phase, Spent, Step, Tally};
pub use random::Random;
pub(crate) use session::state_of;
pub use start::Starts;

use crate::model::Picker;
use crate::records::{DeviceKey, Records, RecordsError};
use build::Pool;
use session::Live;
use slice::Slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tilewright_check::run::Factors;
use tilewright_check::verify::VerifyError;
use tilewright_device::{CacheState, Device, DeviceInfo};
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_problem::ProblemError;

/// A candidate must be faster than the best by this share to replace it.
pub(crate) const THRESHOLD: f64 = 0.998;

/// What a searcher wants next.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "plans are plain values, copied everywhere else too")]
pub enum Proposal {
    /// Try this plan. It is legal and was not proposed before.
    Try(Plan),
    /// Nothing before an outstanding result is known.
    Wait,
    /// Nothing any more.
    Done,
}

/// A strategy: proposes plans and learns what came of them.
pub trait Searcher {
    /// The next plan.
    fn propose(&mut self) -> Proposal;
    /// How a proposed (or recorded) plan did: microseconds, or `None` where it has no valid time.
    fn report(&mut self, plan: &Plan, time_us: Option<f64>);
    /// Proposes the cost model's best plans of different tiles first, where it knows them.
    fn picks_first(&mut self) {}
    /// Proposes these plans next, where they are legal, promising and new.
    fn start_from(&mut self, plans: &[Plan]) {
        let _ = plans;
    }
}

/// Choices of the model that [`pick`] asks the compiler about.
const PICKS: usize = 16;

/// The plan of least modelled time whose kernels the device's compiler takes without complaint. Nothing is measured. Where the
/// compiler complains about all of the model's first choices, it is the first of them. `None` where no legal plan was found that
/// satisfies the constraint.
pub fn pick(device: &dyn Device, space: &Space) -> Option<Plan> {
    taken(device, space, &choices(space))
}

/// The model's first choices, the one of least modelled time first.
pub fn choices(space: &Space) -> Vec<Plan> {
    Picker::new(space).pick(PICKS).into_iter().map(|c| c.plan).collect()
}

/// The first of some choices whose kernels the device's compiler takes without complaint; where it complains about all of them, the first.
pub fn taken(device: &dyn Device, space: &Space, choices: &[Plan]) -> Option<Plan> {
    let taken = choices.iter().find(|plan| build::build(device, space, plan).is_ok());
    taken.or(choices.first()).copied()
}

/// Which [`Searcher`] is used.
///
/// ```
/// use tilewright_tune::search::{Options, Strategy};
///
/// // Every plan of a small space, instead of descents from picks.
/// let options = Options { strategy: Strategy::Exhaustive, ..Options::default() };
/// assert_ne!(options.strategy, Strategy::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// [`Descent`].
    #[default]
    Descent,
    /// [`Random`].
    Random,
    /// [`Exhaustive`].
    Exhaustive,
}

/// When to stop. Without any limit a search goes on until nothing is left or it is cancelled.
///
/// ```
/// use tilewright_tune::search::Budget;
///
/// // A minute, and at most 500 trials.
/// let budget = Budget { trials: Some(500), ..Budget::seconds(60.0) };
/// assert_eq!(budget.seconds, Some(60.0));
/// // No limit: until nothing is left to try.
/// assert_eq!(Budget::default(), Budget { seconds: None, trials: None });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// Seconds from the moment when candidates can run. Before it, the device and its compile workers start ([`Device::prepare`]), plans are ranked,
    /// and test data are made. The first candidates are tried before it, too; the search waits at most five seconds for their compilation. A search
    /// without a result at the end goes on until it has one, for half a minute at most.
    pub seconds: Option<f64>,
    /// Trials of this run, whatever becomes of them.
    ///
    /// Without seconds they are tried in the order of their proposals. With the same seed, records and number of threads two
    /// searches then differ by what was measured alone.
    pub trials: Option<u64>,
}

impl Budget {
    /// Stop after this time.
    pub const fn seconds(seconds: f64) -> Budget {
        Budget { seconds: Some(seconds), trials: None }
    }
    /// Stop after this many trials.
    pub const fn trials(trials: u64) -> Budget {
        Budget { seconds: None, trials: Some(trials) }
    }
}

/// Ends a search from elsewhere (a signal handler, say); what was found is kept. Clones share the state.
///
/// ```
/// use tilewright_tune::search::Cancel;
///
/// let cancel = Cancel::default();
/// // A signal handler or another thread has a clone.
/// let of_handler = cancel.clone();
/// of_handler.cancel();
/// assert!(cancel.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the search to end after the trial in flight, with at most one thorough verification more.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    /// True once asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a search is run.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// use tilewright_tune::search::{Budget, Options};
///
/// // Two searches with the same seed, records and threads try the same plans.
/// let start = Plan::parse("fma 128x128x16 on 16x16")?;
/// let options = Options { budget: Budget::trials(100), seed: 7, threads: 2, starts: vec![start], ..Options::default() };
/// assert_eq!((options.seed, options.starts.len()), (7, 1));
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// When to stop.
    pub budget: Budget,
    /// What to try next.
    pub strategy: Strategy,
    /// Decides random choices and test data.
    pub seed: u64,
    /// Threads that derive, generate and compile; 0 takes one per core.
    pub threads: usize,
    /// Longest time that building one candidate may take; then it counts as hung.
    pub build_limit: Duration,
    /// What timed runs find in the last-level cache. Times of either kind are recorded apart.
    pub cache: CacheState,
    /// Factors that candidates are timed with (alpha hardly matters; beta other than 0 reads C).
    pub factors: Factors,
    /// Plans to try first.
    pub starts: Vec<Plan>,
    /// Problems that are searched beside this one; `None` where it may start from whatever is recorded.
    pub lineup: Option<Arc<Lineup>>,
}

impl Options {
    fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            budget: Budget::seconds(30.0),
            strategy: Strategy::Descent,
            seed: 1,
            threads: 0,
            build_limit: Duration::from_secs(120),
            cache: CacheState::default(),
            factors: Factors::default(),
            starts: Vec::new(),
            lineup: None,
        }
    }
}

/// Why a search has no result.
///
/// ```
/// # use tilewright_device::open;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::Gemm;
/// use tilewright_tune::search::{Budget, Cancel, Options, TuneError, tune};
///
/// # let device = open("emu")?;
/// # let space = Space::new(&Gemm::new(Scalar::F32, 8, 8, 8).build()?.into(), &device.info().target)?;
/// let options = Options { budget: Budget::seconds(-1.0), ..Options::default() };
/// let error = tune(&device, &space, None, &options, &Cancel::default(), &mut |_| ()).unwrap_err();
/// assert!(matches!(error, TuneError::Budget { .. }));
/// assert!(error.to_string().ends_with("give a number of at least 0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The problem cannot be lowered.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Records cannot be read or written.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// A budget that is no time.
    #[error("a budget of {seconds} seconds is no time to search for; give a number of at least 0")]
    Budget {
        /// As given.
        seconds: f64,
    },
    /// Test data cannot be made or do not fit the device.
    #[error("preparing the tuning: {0}")]
    Prepare(VerifyError),
    /// No plan was legal, ran and was right.
    #[error("no plan was found in {trials} trials; {hint}")]
    NoPlan {
        /// Trials made.
        trials: u64,
        /// The most frequent reason, or what to change.
        hint: String,
    },
}

/// The key of a device in records. Times with warm caches are those of a device apart: they are never mixed with cold ones.
pub fn device_key(info: &DeviceInfo, cache: CacheState) -> DeviceKey {
    let warm = if cache == CacheState::Warm { "; warm caches" } else { "" };
    DeviceKey {
        name: format!("{} ({})", info.name, info.backend),
        fingerprint: format!("{}; {}{warm}", info.target.arch, info.fingerprint),
    }
}

/// Searches the fastest verified plan of a space on a device.
///
/// Trials that the records hold for the same problem, device and generator are not repeated. Their times seed the search. The
/// best of them is the result if nothing better is found and it passes a thorough verification. Recorded plans of the same
/// problem on a device of the same name are tried first, if the driver or the sources of this program differ. `progress` hears of
/// every trial.
///
/// # Errors
/// [`TuneError`]. A search that found something before its device was lost or it was cancelled is no error: see
/// [`Outcome::ended`].
pub fn tune(
    device: &Arc<dyn Device>,
    space: &Space,
    records: Option<&Records>,
    options: &Options,
    cancel: &Cancel,
    progress: &mut dyn FnMut(&Event),
) -> Result<Outcome, TuneError> {
    if let Some(seconds) = options.budget.seconds.filter(|s| s.is_nan() || *s < 0.0) {
        return Err(TuneError::Budget { seconds });
    }
    progress(&Event::Phase { phase: Phase::Preparing });
    let starting = prepared(device, options)?;
    let pool = Pool::new(options.threads());
    let slice = Slice::whole(options.budget, device.info().is_measured());
    let mut live = Live::begin(device, space, records, options, cancel, &pool, slice)?;
    let ended = live.advance(slice, progress)?;
    let mut outcome = live.settle(ended, progress)?;
    outcome.spent.starting = starting;
    Ok(outcome)
}

/// Starts the device and its compile workers; the seconds that took. They are not on a search's time.
fn prepared(device: &Arc<dyn Device>, options: &Options) -> Result<f64, TuneError> {
    let since = Instant::now();
    match device.prepare(options.threads()) {
        Err(e) if e.is_fatal() => return Err(TuneError::Prepare(e.into())),
        Err(e) => tracing::warn!("preparing {}: {e}", device.info().id),
        Ok(()) => {}
    }
    Ok(since.elapsed().as_secs_f64())
}
