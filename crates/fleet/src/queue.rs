//! Tasks, leases and the trait that a place of tasks implements.

use crate::FleetError;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// A run as every worker of it states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSpec {
    /// Its name.
    pub name: String,
    /// Options of the searches, one text for equal options.
    pub options: String,
    /// How long a lease holds without a renewal.
    pub lease: Duration,
    /// Whether cases may be added to a run of this name.
    pub extend: bool,
}

/// A problem to be tuned.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTask {
    /// The problem's text.
    pub problem: String,
    /// Floating-point operations: heavy problems go first.
    pub work: f64,
}

/// Who works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Names this process among all workers.
    pub id: String,
    /// The host's name.
    pub host: String,
    /// The GPU, unique among all hosts; empty for a device that several processes may use.
    pub gpu: String,
    /// Names the lock file of the GPU: processes that share it need no further proof that the GPU is free.
    pub lock: String,
    /// Devices of one class give the same times and the same refusals.
    pub class: String,
    /// Version of the program.
    pub version: String,
    /// Names the records that number this worker's trials.
    pub journal: String,
}

/// A task that this worker holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The task's number.
    pub task: i64,
    /// The fence: it grows with every holder.
    pub epoch: i64,
    /// The problem's text.
    pub problem: String,
    /// How often a holder vanished.
    pub lapses: i64,
    /// Part of the budget that earlier holders spent.
    pub spent: f64,
}

/// How a task is given back.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Tuned.
    Done {
        /// Microseconds of the best plan.
        best_us: f64,
        /// The best plan.
        best_plan: String,
        /// Microseconds of the first plan that was right.
        first_us: f64,
    },
    /// Somebody else goes on, with this part of the budget spent.
    Open {
        /// In the unit of the budget.
        spent: f64,
    },
    /// No plan was found, or the device failed.
    Failed {
        /// Why.
        reason: String,
    },
}

/// One trial as the journal numbers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number in the journal.
    pub number: i64,
    /// One line of JSON, as `tilewright records export` writes it.
    pub text: String,
}

/// A task whose trials were shipped.
#[derive(Clone, Debug, PartialEq)]
pub struct Shipped {
    /// The lease under which they were.
    pub lease: Lease,
    /// How many rows the journal has of it.
    pub rows: usize,
}

/// A trial of somebody else: data, not truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Names the row: journal and number.
    pub name: String,
    /// The problem of the task that the row belongs to.
    pub problem: String,
    /// The line; the reason where it is refused.
    pub line: Result<String, String>,
}

/// How many tasks of a class are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Nobody's, and this worker may have them.
    pub open: i64,
    /// Nobody's, and this worker failed them as often as it may.
    pub refused: i64,
    /// Somebody's.
    pub leased: i64,
    /// Tuned.
    pub done: i64,
    /// Given up.
    pub failed: i64,
}

impl Left {
    /// All tasks.
    pub const fn all(&self) -> i64 {
        self.open + self.refused + self.leased + self.done + self.failed
    }
}

/// How far a run is, in all classes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Tasks by state.
    pub left: Left,
    /// Share of the work that is done.
    pub share: f64,
}

/// Failures that give a task up, if two GPUs had them.
pub const FAILURES: i64 = 3;
/// Failures of one task that a GPU may have.
pub const OWN_FAILURES: i64 = 2;

/// Where tasks are leased. Only changes of a task's state are fenced; trials are facts and may be delivered twice.
pub trait Queue: Send {
    /// How long a lease holds.
    fn lease_time(&self) -> Duration;

    /// Grows with every new connection: what was shipped before may be lost with a server.
    fn generation(&self) -> u64 {
        0
    }

    /// Called now and then: what is not used is given back.
    fn tick(&mut self) {}

    /// Leases the heaviest task that is free.
    ///
    /// # Errors
    /// [`FleetError`]. After [`FleetError::Away`] the same claim is asked for again, so a lost answer loses no task.
    fn claim(&mut self) -> Result<Option<Lease>, FleetError>;

    /// Holds a task for one lease time more; false if it is lost.
    ///
    /// # Errors
    /// [`FleetError`].
    fn renew(&mut self, lease: &Lease, spent: f64) -> Result<bool, FleetError>;

    /// Ends a lease; false if it is lost, or was ended by a call whose answer was.
    ///
    /// # Errors
    /// [`FleetError`].
    fn end(&mut self, lease: &Lease, end: &End) -> Result<bool, FleetError>;

    /// Trials that are stored from now on have numbers of this journal.
    fn number_by(&mut self, _journal: &str) {}

    /// Stores trials. One that is there already stays as it is.
    ///
    /// # Errors
    /// [`FleetError`].
    fn ship(&mut self, lease: &Lease, lines: &[Line]) -> Result<(), FleetError>;

    /// Those of which the queue has fewer trials of this journal than were shipped.
    ///
    /// # Errors
    /// [`FleetError`].
    fn lacking(&mut self, _: &[Shipped]) -> Result<Vec<Lease>, FleetError> {
        Ok(Vec::new())
    }

    /// The trials of earlier holders of a task.
    ///
    /// # Errors
    /// [`FleetError`].
    fn trials(&mut self, lease: &Lease) -> Result<Vec<Pulled>, FleetError>;

    /// Notes the plan that is about to run, for tasks whose holders vanished.
    ///
    /// # Errors
    /// [`FleetError`].
    fn mark(&mut self, lease: &Lease, plan: &str) -> Result<(), FleetError>;

    /// Plans that were running when two holders vanished.
    ///
    /// # Errors
    /// [`FleetError`].
    fn hung(&mut self, lease: &Lease) -> Result<Vec<String>, FleetError>;

    /// Open tasks for devices of this worker's class.
    ///
    /// # Errors
    /// [`FleetError`].
    fn left(&mut self) -> Result<Left, FleetError>;

    /// Says that this worker leaves.
    fn leave(&mut self, _how: &str) {}
}

/// A short name of a text.
pub fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

/// A name that no other process has.
pub fn unique() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// The list of cases as one name, whatever their order.
pub fn list_name(tasks: &[NewTask]) -> String {
    let mut all: Vec<&str> = tasks.iter().map(|task| task.problem.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    digest(&all.join("\n"))
}

/// Why a run of this name is not the one that is asked for.
pub fn other_options(name: &str, theirs: &str, ours: &str) -> FleetError {
    FleetError::Wrong(format!("--run {name}: the run has other options: {theirs}, not {ours}; use them, or name another run"))
}

/// As [`other_options`], of cases.
pub fn other_cases(name: &str) -> FleetError {
    FleetError::Wrong(format!("--run {name}: the run has other cases; add these with --extend, or name another run"))
}
