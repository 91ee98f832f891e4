//! What a search tells: events while it runs, the outcome at its end.

use crate::records::{State, TimeKind};
use serde::Serialize;
use tilewright_gen::plan::Plan;

/// Trials by how they ended.
///
/// ```
/// use tilewright_tune::search::Tally;
///
/// let tally = Tally { trials: 40, refused: 3, failed: 1, ..Tally::default() };
/// assert_eq!(tally.trials - tally.refused - tally.failed - tally.wrong - tally.hung, 36);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// All of them.
    pub trials: u64,
    /// Not legal here.
    pub refused: u64,
    /// Could not be generated, compiled or launched.
    pub failed: u64,
    /// Computed wrongly.
    pub wrong: u64,
    /// Did not end.
    pub hung: u64,
}

impl Tally {
    pub(super) fn count(&mut self, state: State) {
        self.trials += 1;
        self.ended(state);
    }

    /// Counts how a candidate ended, in its trial or in the last verification.
    pub(super) fn ended(&mut self, state: State) {
        match state {
            State::Ok => {}
            State::Refused => self.refused += 1,
            State::Failed => self.failed += 1,
            State::Wrong => self.wrong += 1,
            State::Hung => self.hung += 1,
        }
    }
}

/// Something happened in a search.
///
/// ```
/// # use tilewright_device::open;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::Gemm;
/// use tilewright_tune::search::{Budget, Cancel, Event, Options, tune};
///
/// # let device = open("emu")?;
/// # let space = Space::new(&Gemm::new(Scalar::F32, 8, 8, 8).build()?.into(), &device.info().target)?;
/// # let options = Options { budget: Budget::trials(3), ..Options::default() };
/// // A line of progress for each plan that is the best so far.
/// let mut best = Vec::new();
/// let outcome = tune(&device, &space, None, &options, &Cancel::default(), &mut |event| {
///     if let Event::Trial { is_best: true, time_us: Some(us), .. } = event {
///         best.push(*us);
///     }
/// })?;
/// assert!(best.contains(&outcome.time_us));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
#[expect(clippy::large_enum_variant, reason = "events are looked at and dropped, never kept in number")]
pub enum Event {
    /// The search starts; so many trials were in the records already.
    Started {
        /// Trials taken over.
        resumed: u64,
        /// Plans of this problem, right and fast with another driver or with other sources of this program, that are tried first.
        stale: u64,
    },
    /// Something else is done from now on.
    Phase {
        /// What.
        phase: Phase,
    },
    /// A trial ended, or a plan that had a time failed the thorough look at the end.
    Trial {
        /// What was tried.
        plan: Plan,
        /// How it ended.
        state: State,
        /// Microseconds, where it has a time.
        time_us: Option<f64>,
        /// Why it did not end well.
        reason: Option<String>,
        /// It is the best so far, and its result was right at a quick look.
        is_best: bool,
        /// Best time so far in microseconds, of a result that was right at a quick look.
        best_us: Option<f64>,
        /// Trials so far.
        tally: Tally,
        /// Seconds since the start.
        seconds: f64,
    },
}

/// What a search is doing.
///
/// ```
/// use tilewright_tune::search::{Event, Phase};
///
/// // An event of this kind names the work from then on.
/// let event = Event::Phase { phase: Phase::Verifying };
/// let Event::Phase { phase } = event else { panic!("a phase") };
/// assert_eq!(phase.name(), "verifying");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Device, compile workers, records, ranking of plans, test data.
    Preparing,
    /// Waiting for a candidate to be compiled.
    Compiling,
    /// Timing a candidate, and verifying it if it would win.
    Timing,
    /// The last verification of the winner.
    Verifying,
}

impl Phase {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Preparing => "preparing",
            Phase::Compiling => "compiling",
            Phase::Timing => "timing",
            Phase::Verifying => "verifying",
        }
    }
}

/// Why a search ended.
///
/// ```
/// # use tilewright_device::open;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::Gemm;
/// use tilewright_tune::search::{Budget, Cancel, Ended, Options, tune};
///
/// # let device = open("emu")?;
/// # let space = Space::new(&Gemm::new(Scalar::F32, 8, 8, 8).build()?.into(), &device.info().target)?;
/// let options = Options { budget: Budget::trials(2), ..Options::default() };
/// let outcome = tune(&device, &space, None, &options, &Cancel::default(), &mut |_| ())?;
/// assert_eq!((outcome.ended, outcome.tally.trials), (Ended::Budget, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", content = "reason", rename_all = "lowercase")]
pub enum Ended {
    /// The budget was spent.
    Budget,
    /// There was no gain of 1 % in the longer of 200 trials and a quarter of the budget (in 1,000 trials where times are
    /// modelled). Or no gain is possible: nothing is read, or the modelled time is that of the launch. An exhaustive search only
    /// ends for the latter.
    Converged,
    /// Nothing was left to try.
    Exhausted,
    /// It was cancelled.
    Cancelled,
    /// A candidate took the device down. It is recorded; a new process can go on.
    DeviceLost(String),
}

/// An improvement on the way to the result.
///
/// ```
/// # use tilewright_device::open;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::Gemm;
/// use tilewright_tune::search::{Budget, Cancel, Options, tune};
///
/// # let device = open("emu")?;
/// # let space = Space::new(&Gemm::new(Scalar::F32, 8, 8, 8).build()?.into(), &device.info().target)?;
/// let options = Options { budget: Budget::trials(4), ..Options::default() };
/// let outcome = tune(&device, &space, None, &options, &Cancel::default(), &mut |_| ())?;
/// // Each improvement is faster than the one before.
/// assert!(outcome.history.is_sorted_by(|before, after| before.time_us > after.time_us));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Trials up to then.
    pub trial: u64,
    /// Seconds from the start of this run.
    pub seconds: f64,
    /// Microseconds.
    pub time_us: f64,
    /// The plan.
    pub plan: Plan,
}

/// Where the seconds of a search went, as the thread saw it that drives the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spent {
    /// Starting compile workers and the device, before the clock of the search.
    pub starting: f64,
    /// Reading records, ranking plans: before the clock as well.
    pub preparing: f64,
    /// Seconds for test data and their reference.
    pub data: f64,
    /// Waiting for candidates to be built.
    pub waiting: f64,
    /// Timing candidates.
    pub timing: f64,
    /// Verifying candidates that would win.
    pub verifying: f64,
    /// Verifying the winner thoroughly.
    pub settling: f64,
}

/// The result of a search.
///
/// ```
/// # use tilewright_device::open;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::Gemm;
/// use tilewright_tune::records::TimeKind;
/// use tilewright_tune::search::{Budget, Cancel, Options, tune};
///
/// # let device = open("emu")?;
/// # let space = Space::new(&Gemm::new(Scalar::F32, 8, 8, 8).build()?.into(), &device.info().target)?;
/// let options = Options { budget: Budget::trials(2), ..Options::default() };
/// let outcome = tune(&device, &space, None, &options, &Cancel::default(), &mut |_| ())?;
/// // The emulator has no clock: the time is the cost model's.
/// assert!(outcome.verified && outcome.time_us > 0.0);
/// assert_eq!((outcome.device.as_str(), outcome.time_kind), ("emu", TimeKind::Modelled));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The problem's canonical text.
    pub problem: String,
    /// Id of the device.
    pub device: String,
    /// The fastest plan found whose result was right, as far as that was looked at.
    pub plan: Plan,
    /// Its time in microseconds, all kernels of the program together.
    pub time_us: f64,
    /// Whether that was measured or modelled.
    pub time_kind: TimeKind,
    /// Its result was compared with the reference thoroughly, with and without beta, in this run or an earlier one. False where the
    /// device was lost before that.
    pub verified: bool,
    /// The reduced problem on which it was verified. `None`: the problem itself was. A problem is reduced if it is too large for
    /// the device (an emulator). It is also reduced if the data with a beta are too large for the host. Then words say which part
    /// of the verification ran where.
    pub verified_on: Option<String>,
    /// Largest error relative to `|alpha| |A||B| + |beta||C|`.
    pub max_error: Option<f64>,
    /// Trials of this run.
    #[serde(flatten)]
    pub tally: Tally,
    /// Trials taken over from the records.
    pub resumed: u64,
    /// Billions of floating-point operations per second at that time.
    pub gflops: f64,
    /// Seconds the search took, from when candidates could run.
    pub seconds: f64,
    /// Where these seconds went.
    pub spent: Spent,
    /// Improvements of this run, first to last.
    pub history: Vec<Step>,
    /// Why it ended.
    pub ended: Ended,
}
