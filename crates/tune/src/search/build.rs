//! Candidates are made ahead on a pool of threads: derived, generated, compiled, and run in a compile worker where the driver compiles
//! only then.
//!
//! The threads are detached: one that a compiler holds up for good is given up and replaced, and costs one trial.

use crate::records::State;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
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

/// What the threads share.
struct Shared {
    device: Arc<dyn Device>,
    space: Space,
    jobs: Mutex<Receiver<(u64, Plan, Job)>>,
    /// Since when each candidate is being built.
    started: Mutex<HashMap<u64, Instant>>,
}

/// The pool.
pub(super) struct Builders {
    shared: Arc<Shared>,
    jobs: Sender<(u64, Plan, Job)>,
    done: Receiver<Built>,
    report: Sender<Built>,
    outstanding: HashMap<u64, Plan>,
    next: u64,
    limit: Duration,
    /// Candidates are taken in the order of their numbers.
    in_order: bool,
    /// Built candidates that wait for earlier ones.
    early: BTreeMap<u64, Built>,
}

impl Builders {
    pub fn new(device: &Arc<dyn Device>, space: &Space, threads: usize, limit: Duration, in_order: bool) -> Self {
        let (jobs, take) = channel();
        let (report, done) = channel();
        let shared = Shared { device: device.clone(), space: space.clone(), jobs: Mutex::new(take), started: Mutex::default() };
        let pool = Builders {
            shared: Arc::new(shared),
            jobs,
            done,
            report,
            outstanding: HashMap::new(),
            next: 0,
            limit,
            in_order,
            early: BTreeMap::new(),
        };
        for _ in 0..threads.max(1) {
            pool.thread();
        }
        pool
    }

    fn thread(&self) {
        let (shared, report) = (self.shared.clone(), self.report.clone());
        let work = move || {
            loop {
                // Only one thread waits in `recv` at a time; the others wait for the lock.
                let job = shared.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((id, plan, job)) = job else { return };
                let rehearsed = matches!(job, Job::Rehearse(..));
                shared.started.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Instant::now());
                let result = catch_unwind(AssertUnwindSafe(|| job.run(shared.device.as_ref(), &shared.space)));
                shared.started.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                let result = result.unwrap_or_else(|panic| {
                    let what = panic.downcast_ref::<String>().cloned();
                    let what = what.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string())).unwrap_or_default();
                    Err(Reject { state: State::Failed, reason: format!("building it panicked: {what}") })
                });
                if report.send(Built { number: id, plan, result, rehearsed }).is_err() {
                    return;
                }
            }
        };
        if let Err(e) = std::thread::Builder::new().name("tilewright-build".into()).spawn(work) {
            tracing::warn!("no further build thread: {e}");
        }
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
        self.give(plan, Job::Build(Box::new(plan)));
    }

    /// Lets what was built run in a worker.
    pub fn rehearse(&mut self, ready: Ready, launches: Vec<Launch>) {
        self.give(ready.plan, Job::Rehearse(Box::new(ready), launches));
    }

    fn give(&mut self, plan: Plan, job: Job) {
        let id = self.next;
        self.next += 1;
        self.outstanding.insert(id, plan);
        if self.jobs.send((id, plan, job)).is_err() {
            tracing::error!("the build threads are gone");
        }
    }

    /// The next built candidate; `None` if there is none within the wait.
    pub fn take(&mut self, wait: Duration) -> Option<Built> {
        loop {
            if let Some((number, built)) = self.early.pop_first() {
                if self.outstanding.keys().all(|other| *other >= number) {
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
            if self.in_order {
                self.early.insert(built.number, built);
            } else {
                self.outstanding.remove(&built.number);
                return Some(built);
            }
        }
    }

    /// A candidate whose building took too long, given up; its thread is replaced.
    fn give_up(&mut self) -> Option<Built> {
        let limit = self.limit;
        let late = {
            let started = self.shared.started.lock().unwrap_or_else(PoisonError::into_inner);
            let late = |id: &u64, since: &Instant| since.elapsed() > limit && self.outstanding.contains_key(id);
            started.iter().find(|(id, since)| late(id, since) && !self.early.contains_key(id)).map(|(id, _)| *id)
        };
        let number = late?;
        let plan = *self.outstanding.get(&number)?;
        self.thread();
        let reason = format!("building it took more than {limit:?}");
        Some(Built { number, plan, result: Err(Reject { state: State::Hung, reason }), rehearsed: false })
    }
}
