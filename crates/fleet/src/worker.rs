//! The loop of a worker: lease a task, let the search run, ship its trials, renew while it makes progress, end the task.

use crate::FleetError;
use crate::queue::{End, Lease, Left, Line, Pulled, Queue, Shipped};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Trials of one batch.
const BATCH: usize = 64;
/// Time before the second look for a free task. It doubles up to [`Patience::poll`].
const SOONEST: Duration = Duration::from_millis(250);
/// Batches between two looks at the lease.
const BATCHES: usize = 50;
/// The search's own limit.
pub const HANG: Duration = Duration::from_secs(300);

/// How an attempt at a task ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Attempt {
    /// The search found a plan.
    Done {
        /// Microseconds.
        best_us: f64,
        /// The plan.
        best_plan: String,
        /// Microseconds of the first plan that was right.
        first_us: f64,
    },
    /// The search had to stop.
    Cut,
    /// It found none.
    Failed(String),
    /// The device failed: it must show that it works before it gets another task.
    DeviceFailed(String),
    /// The device is gone for this process. The task goes back.
    DeviceLost(String),
    /// This host cannot go on, whatever the task: its records or its output cannot be written. The task goes back.
    HostFailed(String),
}

/// What the loop needs of a search.
pub trait Tuner {
    /// Searches a problem, with what others found of it, and plans that must not run again.
    fn tune(&mut self, lease: &Lease, others: Vec<Pulled>, hung: Vec<String>, control: &Control<'_>) -> Attempt;

    /// True if a known problem verifies on the device.
    fn is_sound(&mut self) -> bool;
}

/// The trials of this host, numbered.
pub trait Journal: Sync {
    /// Names the numbers. After trials were removed, numbers are given again under another name. `None` where nobody removes any.
    ///
    /// # Errors
    /// Why the journal cannot be read.
    fn name(&self) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// Trials of a problem with numbers above this one, lowest first.
    ///
    /// # Errors
    /// Why the journal cannot be read.
    fn after(&self, problem: &str, number: i64, most: usize) -> Result<Vec<Line>, String>;

    /// Numbered anew: trials of a problem that say more than when they were shipped.
    ///
    /// # Errors
    /// As [`Journal::after`].
    fn deepened(&self, problem: &str) -> Result<Vec<Line>, String>;
}

/// The journal under its last known name.
struct Named<'a> {
    journal: &'a dyn Journal,
    name: Mutex<Option<String>>,
}

impl<'a> Named<'a> {
    fn new(journal: &'a dyn Journal) -> Named<'a> {
        Named { journal, name: Mutex::new(journal.name().unwrap_or_default()) }
    }

    /// True if the journal has another name since the last call: the queue knows none of its numbers.
    fn is_renamed(&self, queue: Shared<'_>) -> bool {
        let Ok(Some(now)) = self.journal.name() else { return false };
        let mut name = locked(&self.name);
        if name.as_ref() == Some(&now) {
            return false;
        }
        locked(queue).number_by(&now);
        *name = Some(now);
        true
    }
}

/// A queue that the thread of the search and the thread of renewals share.
type Shared<'a> = &'a Arc<Mutex<Box<dyn Queue>>>;

/// Ties a search to its lease.
pub struct Control<'a> {
    queue: Shared<'a>,
    lease: &'a Lease,
    started: Instant,
    /// Milliseconds from `started` to the last sign of progress.
    progress: AtomicU64,
    spent: Mutex<f64>,
    lost: AtomicBool,
    ended: Mutex<bool>,
    wake: Condvar,
    hang: Duration,
    is_stopped: &'a (dyn Fn() -> bool + Sync),
    stop: &'a (dyn Fn() + Sync),
}

impl Control<'_> {
    /// A sign of progress, with the part of the budget that this attempt has spent.
    pub fn progress(&self, spent: f64) {
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.store(millis, Ordering::Relaxed);
        *locked(&self.spent) = spent;
    }

    /// True where earlier holders vanished: each plan must be marked before it runs.
    pub fn is_careful(&self) -> bool {
        self.lease.lapses > 0
    }

    /// Marks a plan as about to run. Without a connection the plan runs unmarked.
    pub fn marker(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let (queue, lease) = (self.queue.clone(), self.lease.clone());
        move |plan: &str| {
            if let Err(e) = locked(&queue).mark(&lease, plan) {
                tracing::warn!("task {}: a plan runs without a mark: {e}", lease.task);
            }
        }
    }

    fn is_stuck(&self) -> bool {
        let last = Duration::from_millis(self.progress.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last) > self.hang
    }

    fn total(&self) -> f64 {
        self.lease.spent + *locked(&self.spent)
    }
}

/// When a worker gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Leave when nothing is open, although others still work.
    pub no_wait: bool,
    /// Longest time between two looks for a free task.
    pub poll: Duration,
    /// Without a sign of progress for so long the lease is not renewed: [`HANG`], but for tests.
    pub hang: Duration,
    /// The device must show that it works before the first task: it may have ended an earlier process.
    pub looks_first: bool,
}

/// How a worker's work came to an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is left.
    Finished(Left),
    /// It had to stop; the task went back.
    Stopped,
    /// The device is gone for this process: a new one must go on.
    DeviceLost(String),
    /// The device fails and goes on failing.
    Retired(String),
    /// This host cannot go on.
    HostFailed(String),
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says something at most once a minute.
#[derive(Default)]
struct Grumble(Option<Instant>);

impl Grumble {
    fn say(&mut self, text: &str) {
        if self.0.is_none_or(|last| last.elapsed() > Duration::from_secs(60)) {
            self.0 = Some(Instant::now());
            tracing::warn!("{text}");
        }
    }
}

/// The surroundings of a worker's loop.
struct Loop<'a> {
    journal: &'a Named<'a>,
    is_stopped: &'a (dyn Fn() -> bool + Sync),
    stop_search: &'a (dyn Fn() + Sync),
    hang: Duration,
    grumble: Grumble,
    /// Leases whose trials this worker has shipped.
    held: Vec<Lease>,
    /// The connection on which the last of them were shipped.
    generation: u64,
}

/// Works until nothing is left for this worker's class, or until `is_stopped` says so. `is_stopped` is asked often; `stop_search` ends the
/// search in flight.
///
/// # Errors
/// [`FleetError`] that trying again does not lift.
pub fn work(
    queue: &Arc<Mutex<Box<dyn Queue>>>,
    tuner: &mut dyn Tuner,
    journal: &dyn Journal,
    patience: Patience,
    is_stopped: &(dyn Fn() -> bool + Sync),
    stop_search: &(dyn Fn() + Sync),
) -> Result<Verdict, FleetError> {
    let journal = Named::new(journal);
    let mut at = Loop {
        journal: &journal,
        is_stopped,
        stop_search,
        hang: patience.hang,
        grumble: Grumble::default(),
        held: Vec::new(),
        generation: locked(queue).generation(),
    };
    // A worker that only looks shows that the server is there: looks are nearer to each other than renewals may be.
    let poll = patience.poll.min(locked(queue).lease_time() / 4);
    let mut unsound = u32::from(patience.looks_first);
    // The last tasks of a run often end at about the same time, so the first looks follow soon after each other.
    let mut look = SOONEST;
    loop {
        if is_stopped() {
            return Ok(Verdict::Stopped);
        }
        if unsound > 0 && !tuner.is_sound() {
            tracing::warn!("the device fails a known problem: it gets no task ({unsound})");
            unsound += 1;
            if let Some(verdict) = at.over(queue, patience)? {
                return Ok(verdict);
            }
            if unsound > 4 {
                return Ok(Verdict::Retired("the device fails a known problem".into()));
            }
            at.pause(Duration::from_secs(1) * unsound.min(30));
            continue;
        }
        unsound = 0;
        // While no task is held: it takes long where there are many trials.
        at.mend(queue)?;
        let Some(lease) = at.trying(queue, |q| q.claim())? else {
            // The claim may have made a new connection.
            at.mend(queue)?;
            if let Some(verdict) = at.over(queue, patience)? {
                return Ok(verdict);
            }
            at.pause(look.min(poll));
            look = (look * 2).min(poll);
            continue;
        };
        look = SOONEST;
        // Whatever the search says carries the task and its fence.
        let _in_task = tracing::info_span!("task", task = lease.task, epoch = lease.epoch).entered();
        tracing::info!(task = lease.task, epoch = lease.epoch, "leased {}", lease.problem);
        let (attempt, spent, lost) = at.attempt(queue, tuner, &lease)?;
        let end = match &attempt {
            _ if lost => None,
            Attempt::Done { best_us, best_plan, first_us } => {
                Some(End::Done { best_us: *best_us, best_plan: best_plan.clone(), first_us: *first_us })
            }
            Attempt::Cut => Some(End::Open { spent }),
            Attempt::Failed(reason) | Attempt::DeviceFailed(reason) => Some(End::Failed { reason: reason.clone() }),
            Attempt::DeviceLost(_) | Attempt::HostFailed(_) => Some(End::Open { spent }),
        };
        if let Some(end) = end {
            let ended = at.trying(queue, |q| q.end(&lease, &end).map(Some))?;
            tracing::info!(task = lease.task, epoch = lease.epoch, "ended: {ended:?}");
        } else {
            tracing::warn!(task = lease.task, epoch = lease.epoch, "the lease was lost; its trials are kept");
        }
        match attempt {
            // Also where no plan was right: a device may compute wrong results and report nothing.
            Attempt::DeviceFailed(_) | Attempt::Failed(_) => unsound = 1,
            Attempt::DeviceLost(reason) => return Ok(Verdict::DeviceLost(reason)),
            Attempt::HostFailed(reason) => return Ok(Verdict::HostFailed(reason)),
            _ => {}
        }
    }
}

impl Loop<'_> {
    /// Waits, with jitter, unless the worker was stopped.
    fn pause(&self, most: Duration) {
        let until = Instant::now() + most.mul_f64(rand::random_range(0.2..1.0));
        while Instant::now() < until && !(self.is_stopped)() {
            std::thread::sleep(Duration::from_millis(50).min(most));
        }
    }

    /// How the work ends, if nothing is left for this worker.
    fn over(&mut self, queue: Shared<'_>, patience: Patience) -> Result<Option<Verdict>, FleetError> {
        let Some(left) = self.trying(queue, |q| q.left().map(Some))? else { return Ok(Some(Verdict::Stopped)) };
        let over = left.open == 0 && (left.leased == 0 || patience.no_wait);
        Ok(over.then_some(Verdict::Finished(left)))
    }

    /// Asks until an answer comes. A worker that has to stop asks three times.
    fn trying<T>(
        &mut self,
        queue: Shared<'_>,
        mut ask: impl FnMut(&mut (dyn Queue + 'static)) -> Result<Option<T>, FleetError>,
    ) -> Result<Option<T>, FleetError> {
        let mut last = 3;
        loop {
            let answer = ask(&mut **locked(queue));
            match answer {
                Err(e) if e.is_passing() => {
                    self.grumble.say(&e.to_string());
                    if (self.is_stopped)() {
                        last -= 1;
                        if last == 0 {
                            return Err(e);
                        }
                        std::thread::sleep(Duration::from_millis(300));
                    }
                    self.pause(Duration::from_secs(3));
                }
                other => return other,
            }
        }
    }

    /// One search under a lease: its end, what was spent in all, and whether the lease was lost.
    fn attempt(&mut self, queue: Shared<'_>, tuner: &mut dyn Tuner, lease: &Lease) -> Result<(Attempt, f64, bool), FleetError> {
        // What this host has of the problem, and nobody else knows yet.
        let mut shipped = self.ship_all(queue, lease, 0)?;
        let others = if lease.epoch > 1 { self.trying(queue, |q| q.trials(lease).map(Some))? } else { None };
        let hung = if lease.lapses > 1 { self.trying(queue, |q| q.hung(lease).map(Some))? } else { None };
        let lease_time = locked(queue).lease_time();
        let (attempt, spent, lost) = {
            let control = Control {
                queue,
                lease,
                started: Instant::now(),
                progress: AtomicU64::new(0),
                spent: Mutex::new(0.0),
                lost: AtomicBool::new(false),
                ended: Mutex::new(false),
                wake: Condvar::new(),
                hang: self.hang,
                is_stopped: self.is_stopped,
                stop: self.stop_search,
            };
            let (journal, number) = (self.journal, &mut shipped);
            let span = tracing::Span::current();
            let attempt = std::thread::scope(|scope| {
                let keep = || span.in_scope(|| keep(&control, journal, lease_time, number));
                let keeper = std::thread::Builder::new().name("lease".into()).spawn_scoped(scope, keep);
                if let Err(e) = keeper {
                    return Attempt::DeviceLost(format!("no thread could be started: {e}"));
                }
                let attempt = tuner.tune(lease, others.unwrap_or_default(), hung.unwrap_or_default(), &control);
                *locked(&control.ended) = true;
                control.wake.notify_all();
                attempt
            });
            (attempt, control.total(), control.lost.load(Ordering::Relaxed))
        };
        self.ship_all(queue, lease, shipped)?;
        let deepened = self.journal.journal.deepened(&lease.problem).unwrap_or_default();
        for batch in deepened.chunks(BATCH) {
            self.trying(queue, |q| q.ship(lease, batch).map(Some))?;
        }
        self.held.retain(|held| held.task != lease.task);
        self.held.push(lease.clone());
        Ok((attempt, spent, lost))
    }

    /// After a new connection: ships again those trials of earlier tasks that the server lacks. It may have come back from an older copy.
    fn mend(&mut self, queue: Shared<'_>) -> Result<(), FleetError> {
        let now = locked(queue).generation();
        if std::mem::replace(&mut self.generation, now) == now || self.held.is_empty() {
            return Ok(());
        }
        let rows = |lease: &Lease| self.journal.journal.after(&lease.problem, 0, usize::MAX).map_or(0, |lines| lines.len());
        let held: Vec<Shipped> = self.held.iter().map(|lease| Shipped { lease: lease.clone(), rows: rows(lease) }).collect();
        for lease in self.trying(queue, |q| q.lacking(&held).map(Some))?.unwrap_or_default() {
            tracing::warn!(task = lease.task, "the server lacks trials that it had: they are sent again");
            self.ship_all(queue, &lease, 0)?;
        }
        Ok(())
    }

    /// Ships what the journal has above a number; gives the last number.
    fn ship_all(&mut self, queue: Shared<'_>, lease: &Lease, after: i64) -> Result<i64, FleetError> {
        let mut number = if self.journal.is_renamed(queue) { 0 } else { after };
        loop {
            let lines = match self.journal.journal.after(&lease.problem, number, BATCH) {
                Ok(lines) => lines,
                Err(e) => {
                    tracing::warn!("the journal cannot be read: {e}");
                    return Ok(number);
                }
            };
            let Some(last) = lines.last().map(|line| line.number) else { return Ok(number) };
            if self.trying(queue, |q| q.ship(lease, &lines).map(Some))?.is_none() {
                return Ok(number);
            }
            number = last;
        }
    }
}

/// What the thread of renewals knows of shipped trials.
struct Shipping<'a> {
    journal: &'a Named<'a>,
    /// The last number that the server has.
    shipped: &'a mut i64,
    generation: u64,
    /// The part of the budget whose trials the server has: a holder that vanishes leaves no trial that is spent and unknown.
    covered: f64,
}

impl Shipping<'_> {
    /// Ships what is new.
    fn ship(&mut self, control: &Control<'_>) -> Result<(), FleetError> {
        // A server that came back may have lost what it had confirmed.
        let now = locked(control.queue).generation();
        let is_renamed = self.journal.is_renamed(control.queue);
        if std::mem::replace(&mut self.generation, now) != now || is_renamed {
            *self.shipped = 0;
        }
        // Before the journal is read, which holds the trials of all that is spent.
        let spent = control.total();
        for _ in 0..BATCHES {
            let Ok(lines) = self.journal.journal.after(&control.lease.problem, *self.shipped, BATCH) else { return Ok(()) };
            if let Some(last) = lines.last().map(|line| line.number) {
                locked(control.queue).ship(control.lease, &lines)?;
                *self.shipped = last;
            }
            if lines.len() < BATCH {
                self.covered = spent;
                break;
            }
        }
        Ok(())
    }
}

/// Renews and ships while a search runs. The search's thread never waits for a server.
fn keep(control: &Control<'_>, journal: &Named<'_>, lease_time: Duration, shipped: &mut i64) {
    let (every, tick) = (lease_time / 4, (lease_time / 20).clamp(Duration::from_millis(20), Duration::from_secs(1)));
    let batches = (lease_time / 4).min(Duration::from_secs(2));
    let (mut renewed, mut sent, mut grumble) = (Instant::now(), Instant::now(), Grumble::default());
    let generation = locked(control.queue).generation();
    let mut shipping = Shipping { journal, shipped, generation, covered: control.lease.spent };
    loop {
        let ended = locked(&control.ended);
        if *ended {
            return;
        }
        let (ended, _) = control.wake.wait_timeout(ended, tick).unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return;
        }
        drop(ended);
        locked(control.queue).tick();
        if (control.is_stopped)() {
            (control.stop)();
        }
        let is_due = renewed.elapsed() >= every && !control.is_stuck() && !control.lost.load(Ordering::Relaxed);
        if is_due || sent.elapsed() >= batches {
            sent = Instant::now();
            if let Err(e) = shipping.ship(control) {
                grumble.say(&format!("trials stay in the journal for now: {e}"));
            }
        }
        if is_due {
            let answer = locked(control.queue).renew(control.lease, shipping.covered);
            match answer {
                Ok(true) => renewed = Instant::now(),
                Ok(false) => {
                    control.lost.store(true, Ordering::Relaxed);
                    (control.stop)();
                }
                Err(e) => grumble.say(&format!("the lease is not renewed, the search goes on: {e}")),
            }
        }
    }
}
