//! Candidates are made ahead on a pool of threads: derived, generated, compiled, and run in a compile worker where the driver compiles
//! only then.
//!
//! The threads are detached: one that a compiler holds up for good is given up and replaced, and costs one trial.

use super::order::Order;
use crate::records::State;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tilewright_check::run::compile;
use tilewright_device::{Compiled, Device, DeviceError, Launch};
use tilewright_gen::plan::{Derived, Plan};
use tilewright_gen::program::Program;
use tilewright_gen::space::Space;

/// A candidate that can run.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    pub plan: Plan,
    pub spec: Derived<'static>,
    pub program: Program,
    pub compiled: Vec<Arc<Compiled>>,
}

/// Why a candidate cannot run.
#[derive(Clone, Debug)]
pub(super) struct Reject {
    pub state: State,
    pub reason: String,
}

impl Reject {
    /// What a device's error means for the candidate.
    pub fn of(e: &DeviceError) -> Reject {
        let state = match e {
            DeviceError::CompileTimeout { .. } | DeviceError::Hang { .. } | DeviceError::WorkerLost { .. } => State::Hung,
            DeviceError::Invalid { invalid, .. } if invalid.fault.is_refusal() => State::Refused,
            _ => State::Failed,
        };
        Reject { state, reason: e.to_string() }
    }
}

pub(super) struct Built {
    /// Candidates are numbered as they are given.
    pub number: u64,
    pub plan: Plan,
    pub result: Result<Ready, Reject>,
    /// It has run in a worker, too.
    pub rehearsed: bool,
}

/// What a thread is given to do.
enum Job {
    Build(Box<Plan>),
    Rehearse(Box<Ready>, Vec<Launch>),
}

impl Job {
    fn run(self, device: &dyn Device, space: &Space) -> Result<Ready, Reject> {
        match self {
            Job::Build(plan) => build(device, space, &plan),
            Job::Rehearse(ready, launches) => device.rehearse(&launches).map(|()| *ready).map_err(|e| Reject::of(&e)),
        }
    }
}

/// Builds one candidate.
pub(super) fn build(device: &dyn Device, space: &Space, plan: &Plan) -> Result<Ready, Reject> {
    let reject = |state, reason: String| Reject { state, reason };
    let resolved = space.resolve(plan).map_err(|r| reject(State::Refused, r.to_string()))?;
    let program = resolved.generate(space.env().workspace_bytes).map_err(|e| reject(State::Refused, e.to_string()))?;
    let compiled = compile(device, &program).map_err(|e| Reject::of(&e))?;
    if let Some((kernel, why)) = compiled.iter().find_map(|k| Some((k, k.slow_reason()?))) {
        return Err(reject(State::Refused, format!("the compiler's report on `{}`: {why}", kernel.entry())));
    }
    Ok(Ready { plan: *plan, spec: resolved.spec.into_owned(), program, compiled })
}

/// What the threads know of one search.
struct Shared {
    device: Arc<dyn Device>,
    space: Space,
    /// Since when each candidate is being built.
    started: Mutex<HashMap<u64, Instant>>,
    /// The search has ended: what waits need not be built.
    ended: AtomicBool,
    /// Bits of the weight among searches that share the threads: at least 0, so that heavier ones have larger bits.
    weight: AtomicU64,
}

/// A candidate that waits for a thread.
struct Task {
    number: u64,
    plan: Plan,
    job: Job,
    of: Arc<Shared>,
    report: Sender<Built>,
}

impl Task {
    fn run(self) {
        if self.of.ended.load(Ordering::Relaxed) {
            return;
        }
        let rehearsed = matches!(self.job, Job::Rehearse(..));
        locked(&self.of.started).insert(self.number, Instant::now());
        let (of, job) = (self.of.clone(), self.job);
        let result = catch_unwind(AssertUnwindSafe(|| job.run(of.device.as_ref(), &of.space)));
        locked(&self.of.started).remove(&self.number);
        let result = result.unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<String>().cloned();
            let what = what.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string())).unwrap_or_default();
            Err(Reject { state: State::Failed, reason: format!("building it panicked: {what}") })
        });
        // Nobody listens once the search has ended.
        let _ = self.report.send(Built { number: self.number, plan: self.plan, result, rehearsed });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What waits for the threads. The search that is timed now comes first, then heavier ones; of one search, first come, first served.
#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    first: Option<Arc<Shared>>,
    closed: bool,
}

impl Queue {
    fn pop(&mut self) -> Option<Task> {
        let rank = |task: &Task| {
            let first = self.first.as_ref().is_some_and(|first| Arc::ptr_eq(first, &task.of));
            (first, task.of.weight.load(Ordering::Relaxed))
        };
        // The last of equals is taken: from the back, the earliest.
        let (place, _) = self.tasks.iter().enumerate().rev().max_by_key(|(_, task)| rank(task))?;
        self.tasks.remove(place)
    }
}

#[derive(Default)]
struct Line {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// Threads that build candidates, of one search or of several. They end with it.
pub(super) struct Pool {
    line: Arc<Line>,
}

impl Pool {
    pub fn new(threads: usize) -> Arc<Pool> {
        let pool = Pool { line: Arc::default() };
        for _ in 0..threads.max(1) {
            pool.thread();
        }
        Arc::new(pool)
    }

    fn thread(&self) {
        let line = self.line.clone();
        let work = move || {
            loop {
                let mut queue = locked(&line.queue);
                let task = loop {
                    match queue.pop() {
                        Some(task) => break task,
                        None if queue.closed => return,
                        None => queue = line.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
                    }
                };
                drop(queue);
                task.run();
            }
        };
        if let Err(e) = std::thread::Builder::new().name("tilewright-build".into()).spawn(work) {
            tracing::warn!("no further build thread: {e}");
        }
    }

    fn give(&self, task: Task) {
        locked(&self.line.queue).tasks.push_back(task);
        self.line.more.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut queue = locked(&self.line.queue);
        queue.closed = true;
        queue.tasks.clear();
        drop(queue);
        self.line.more.notify_all();
    }
}

/// The candidates of one search that are built.
pub(super) struct Builders {
    pool: Arc<Pool>,
    shared: Arc<Shared>,
    done: Receiver<Built>,
    report: Sender<Built>,
    outstanding: HashMap<u64, Plan>,
    next: u64,
    limit: Duration,
    order: Order,
    /// Built candidates that wait for earlier ones.
    early: BTreeMap<u64, Built>,
}

impl Drop for Builders {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

impl Builders {
    pub fn new(pool: &Arc<Pool>, device: &Arc<dyn Device>, space: &Space, limit: Duration, order: Order) -> Self {
        let (report, done) = channel();
        let shared = Shared {
            device: device.clone(),
            space: space.clone(),
            started: Mutex::default(),
            ended: AtomicBool::default(),
            weight: AtomicU64::default(),
        };
        Builders {
            pool: pool.clone(),
            shared: Arc::new(shared),
            done,
            report,
            outstanding: HashMap::new(),
            next: 0,
            limit,
            order,
            early: BTreeMap::new(),
        }
    }

    /// From now on these candidates are built before those of other searches.
    pub fn first(&self) {
        locked(&self.pool.line.queue).first = Some(self.shared.clone());
    }

    /// The plan that was given first, of those that were not taken.
    pub fn first_plan(&self) -> Option<Plan> {
        self.outstanding.iter().min_by_key(|(number, _)| **number).map(|(_, plan)| *plan)
    }

    /// Sets the weight among searches that share the threads.
    pub fn weigh(&self, weight: f64) {
        self.shared.weight.store(weight.max(0.0).to_bits(), Ordering::Relaxed);
    }

    /// Nothing that was given is still being built.
    pub fn is_built(&mut self) -> bool {
        while let Ok(built) = self.done.try_recv() {
            self.early.insert(built.number, built);
        }
        self.outstanding.keys().all(|number| self.early.contains_key(number))
    }

    /// Candidates given and not yet taken.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// One of the first `count` is still being built.
    pub fn is_building(&self, count: u64) -> bool {
        self.outstanding.keys().any(|number| *number < count)
    }

    pub fn submit(&mut self, plan: Plan) {
        let number = self.next;
        self.next += 1;
        self.give(number, plan, Job::Build(Box::new(plan)));
    }

    /// Lets what was built run in a worker; it keeps its number.
    pub fn rehearse(&mut self, number: u64, ready: Ready, launches: Vec<Launch>) {
        self.give(number, ready.plan, Job::Rehearse(Box::new(ready), launches));
    }

    fn give(&mut self, number: u64, plan: Plan, job: Job) {
        self.outstanding.insert(number, plan);
        self.pool.give(Task { number, plan, job, of: self.shared.clone(), report: self.report.clone() });
    }

    /// The next built candidate; `None` if there is none within the wait.
    pub fn take(&mut self, wait: Duration) -> Option<Built> {
        loop {
            if let Some((number, built)) = self.early.pop_first() {
                if !self.outstanding.contains_key(&number) {
                    continue;
                }
                if self.order == Order::Built || self.outstanding.keys().all(|other| *other >= number) {
                    self.outstanding.remove(&number);
                    return Some(built);
                }
                self.early.insert(number, built);
            }
            let built = match self.done.recv_timeout(wait) {
                Ok(built) => built,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.give_up()?,
            };
            // One that was given up may still answer.
            if !self.outstanding.contains_key(&built.number) {
                continue;
            }
            match self.order {
                Order::Proposed => {
                    self.early.insert(built.number, built);
                }
                Order::Built => {
                    self.outstanding.remove(&built.number);
                    return Some(built);
                }
            }
        }
    }

    /// A candidate whose building took too long, given up; its thread is replaced.
    fn give_up(&mut self) -> Option<Built> {
        let limit = self.limit;
        let late = {
            let started = locked(&self.shared.started);
            let late = |id: &u64, since: &Instant| since.elapsed() > limit && self.outstanding.contains_key(id);
            started.iter().find(|(id, since)| late(id, since) && !self.early.contains_key(id)).map(|(id, _)| *id)
        };
        let number = late?;
        let plan = *self.outstanding.get(&number)?;
        self.pool.thread();
        let reason = format!("building it took more than {limit:?}");
        Some(Built { number, plan, result: Err(Reject { state: State::Hung, reason }), rehearsed: false })
    }
}
