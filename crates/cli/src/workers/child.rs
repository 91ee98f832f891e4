//! A child: it leases problems for one device and searches them until nothing is left.

use super::gpu::{self, host};
use super::{AGAIN, News, RETIRED, classify, server, spec, tasks};
use crate::args::TuneArgs;
use crate::error::CliError;
use crate::problem::{self, Case, Cases};
use crate::progress::{CaseNumber, Progress};
use crate::reference::SOME_FAILED;
use crate::{session, tune};
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tilewright::{Context, Gemm};
use tilewright_bench::values;
use tilewright_check::run::Factors;
use tilewright_check::verify::Depth;
use tilewright_fleet::{
    Attempt, Control, FleetError, GpuLock, HANG, HostQueue, Identity, Journal, Lease, Line, NewTask, Patience, Pulled, Queue,
    RunSpec, Tuner, Verdict, digest, printable, unique, work,
};
use tilewright_problem::Problem;
use tilewright_tune::Records;
use tilewright_tune::records::{Bad, DeviceKey, Entry, GENERATOR, Named, State, Trial, Witness};
use tilewright_tune::search::{Cancel, Ended, Event, Lineup, TuneError, device_key};

/// Longest time between two looks for a free task.
const POLL: Duration = Duration::from_secs(4);
/// The same among workers of one host.
const POLL_HOST: Duration = Duration::from_millis(400);
/// Plans of earlier holders that are timed on this GPU, whatever is left of the budget: the best come first.
const RETIMED: u64 = 3;

/// Works on a run's tasks.
pub fn run(args: &TuneArgs, quiet: bool) -> Result<(), CliError> {
    let cases = problem::cases(&args.problem, args.plan.workspace)?;
    session::constraint(&args.plan)?;
    let cancel = Cancel::default();
    session::on_interrupt(&cancel)?;
    end_with_parent(&cancel)?;
    let context = Arc::new(session::open_to_time(&args.place, &args.plan, true, args.cache)?);
    let noted = |e: std::io::Error| CliError::failed(format!("crashes cannot be noted: {e}"));
    if let Some(file) = context.records().crash_file().map_err(CliError::failed)? {
        tilewright_device::note_crashes(file).map_err(noted)?;
    }
    let me = Me::new(args, &context)?;
    let run = spec(args, args.fleet.run.as_deref().unwrap_or_default());
    let lock = gpu::lock(&context, &me.identity.gpu, &cancel)?;
    let queue = join(args, &me, lock.as_ref(), &run, &tasks(&cases), &cancel)?;
    let current = Mutex::new(Cancel::default());
    let listed = Listed::new(&cases);
    let journal = RecordsJournal { context: &context, device: me.device.clone(), listed: &listed, last: Mutex::default() };
    let mut tuner =
        Searches { args, quiet, context: &context, listed: &listed, current: &current, found: tune::Found::of_several() };
    let poll = if args.fleet.fleet.is_some() { POLL } else { POLL_HOST };
    let patience = Patience { no_wait: args.fleet.no_wait, poll, hang: HANG, looks_first: args.looks_first };
    let queue = Arc::new(Mutex::new(queue));
    let stop = || locked(&current).cancel();
    let verdict = work(&queue, &mut tuner, &journal, patience, &|| cancel.is_cancelled(), &stop);
    drop(lock);
    match verdict {
        Ok(Verdict::Finished(left)) if left.failed + left.refused > 0 => {
            locked(&queue).leave("finished");
            eprintln!("{} tasks failed", left.failed + left.refused);
            Err(CliError::HandedOver(SOME_FAILED))
        }
        Ok(Verdict::Finished(_)) => {
            locked(&queue).leave("finished");
            Ok(())
        }
        Ok(Verdict::Stopped) => {
            locked(&queue).leave("stopped");
            Err(CliError::Interrupted)
        }
        Ok(Verdict::DeviceLost(reason)) => {
            eprintln!("{}: the device was lost: {}", context.info().id, crate::output::one_line(&reason));
            Err(CliError::HandedOver(u8::try_from(AGAIN).unwrap_or(1)))
        }
        Ok(Verdict::HostFailed(reason)) => {
            locked(&queue).leave("failed");
            Err(CliError::failed(reason))
        }
        Ok(Verdict::Retired(reason)) => {
            locked(&queue).leave("retired");
            eprintln!("{}: {reason}; it gets no task until it is right", context.info().id);
            Err(CliError::HandedOver(u8::try_from(RETIRED).unwrap_or(1)))
        }
        Err(e) => Err(classify(e)),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the work when the parent's end of the pipe is closed.
fn end_with_parent(cancel: &Cancel) -> Result<(), CliError> {
    let cancel = cancel.clone();
    let listen = move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        cancel.cancel();
    };
    let started = std::thread::Builder::new().name("parent".into()).spawn(listen);
    started.map(drop).map_err(|e| CliError::failed(format!("no thread could be started: {e}")))
}

/// Who this worker is.
struct Me {
    identity: Identity,
    device: DeviceKey,
}

impl Me {
    fn new(args: &TuneArgs, context: &Context) -> Result<Me, CliError> {
        let (info, host) = (context.info(), host());
        let device = device_key(info, args.cache);
        let gpu = gpu::name(context, &host, args.worker);
        let settings = context.device().identity().and_then(|identity| identity.settings());
        let settings = settings.map_or_else(String::new, |settings| format!("; {settings}"));
        let identity = Identity {
            id: format!("{host}-{}-{}", std::process::id(), unique()),
            class: format!("{}{} units{settings}", class_begins(&device), info.target.units),
            gpu,
            lock: String::new(),
            version: env!("CARGO_PKG_VERSION").into(),
            journal: journal_name(context.records())?,
            host,
        };
        Ok(Me { identity, device })
    }
}

/// Names the records of this host as a journal. A copy of the file elsewhere is another one.
pub fn journal_name(records: &Records) -> Result<String, CliError> {
    let journal = records.journal().map_err(CliError::failed)?;
    let path = std::path::absolute(records.path()).unwrap_or_else(|_| records.path().into());
    Ok(format!("{journal}-{}", digest(&format!("{}:{}", host(), path.display()))))
}

/// How the names of a device's classes begin, whatever its number of units.
pub fn class_begins(device: &DeviceKey) -> String {
    format!("{}; {}; generator {GENERATOR}; ", device.name, device.fingerprint)
}

/// Joins the run, on the server or in the file of this host.
fn join(
    args: &TuneArgs,
    me: &Me,
    lock: Option<&GpuLock>,
    run: &RunSpec,
    tasks: &[NewTask],
    cancel: &Cancel,
) -> Result<Box<dyn Queue>, CliError> {
    let Some(url) = &args.fleet.fleet else {
        let Some(file) = &args.queue else { return Err(CliError::usage("--worker is for workers that tilewright starts")) };
        let (class, gpu) = (&me.identity.class, &me.identity.gpu);
        return Ok(Box::new(HostQueue::join(Path::new(file), run, class, gpu, tasks).map_err(classify)?));
    };
    // A device that is not timed may be used by several at once.
    let gpu = if lock.is_some() { me.identity.gpu.clone() } else { String::new() };
    let identity = Identity { lock: lock.map_or_else(String::new, |lock| lock.token.clone()), gpu, ..me.identity.clone() };
    server::join(url, identity, &me.identity.gpu, run, tasks, cancel)
}

/// A case and its place in the list.
struct Numbered {
    number: CaseNumber,
    case: Case,
}

/// The cases by the texts of their problems.
struct Listed<'a> {
    cases: &'a Cases,
    places: HashMap<String, usize>,
    /// The problems in the order in which workers take them.
    lineup: Arc<Lineup>,
}

impl<'a> Listed<'a> {
    fn new(cases: &'a Cases) -> Listed<'a> {
        // The first of equal problems stands for all.
        let places = cases.list.iter().enumerate().rev().map(|(place, case)| (case.problem.key(), place)).collect();
        let mut tasks = tasks(cases);
        tasks.sort_by(|x, y| y.work.total_cmp(&x.work));
        Listed { cases, places, lineup: Arc::new(Lineup::new(tasks.into_iter().map(|task| task.problem))) }
    }

    /// A case of the list, or one that another command added to the run.
    ///
    /// # Errors
    /// Why the text is no problem.
    fn case(&self, problem: &str) -> Result<Numbered, String> {
        let of = self.cases.list.len();
        let known = self.places.get(problem).and_then(|place| Some((*place, self.cases.list.get(*place)?)));
        if let Some((place, case)) = known {
            return Ok(Numbered { number: CaseNumber { nth: place + 1, of }, case: case.clone() });
        }
        let added = Problem::parse(problem).map_err(|e| e.to_string())?;
        Ok(Numbered { number: CaseNumber { nth: of + 1, of: of + 1 }, case: problem::plain(added) })
    }
}

/// The records as a journal.
struct RecordsJournal<'a> {
    context: &'a Context,
    device: DeviceKey,
    listed: &'a Listed<'a>,
    /// The problem that was asked for last.
    last: Mutex<Option<Named>>,
}

impl RecordsJournal<'_> {
    fn named(&self, problem: &str) -> Result<Named, String> {
        let mut last = locked(&self.last);
        if let Some(named) = last.as_ref().filter(|named| named.name == problem) {
            return Ok(named.clone());
        }
        let Numbered { case, .. } = self.listed.case(problem)?;
        let operation = self.context.operation(case.problem).map_err(|e| e.to_string())?;
        Ok(last.insert(Named { key: operation.key(), name: problem.into() }).clone())
    }

    fn own(&self, problem: &str, number: i64, most: usize) -> Result<Vec<Entry>, String> {
        let named = self.named(problem)?;
        self.context.records().own(&named, &self.device, GENERATOR, number, most).map_err(|e| e.to_string())
    }
}

impl Journal for RecordsJournal<'_> {
    fn name(&self) -> Result<Option<String>, String> {
        journal_name(self.context.records()).map(Some).map_err(|e| e.to_string())
    }

    fn after(&self, problem: &str, number: i64, most: usize) -> Result<Vec<Line>, String> {
        Ok(self.own(problem, number, most)?.into_iter().map(|entry| Line { number: entry.number, text: entry.line }).collect())
    }

    fn deepened(&self, problem: &str) -> Result<Vec<Line>, String> {
        let deep = self.own(problem, 0, usize::MAX)?.into_iter().filter(|entry| entry.verified.is_some());
        Ok(deep.map(|entry| Line { number: entry.number, text: entry.line }).collect())
    }
}

/// Searches under leases.
struct Searches<'a> {
    args: &'a TuneArgs,
    quiet: bool,
    context: &'a Arc<Context>,
    listed: &'a Listed<'a>,
    /// Ends the search in flight.
    current: &'a Mutex<Cancel>,
    found: tune::Found,
}

impl Searches<'_> {
    /// Trials of others become candidates; those that cannot be true are refused by name.
    fn take_in(&self, others: Vec<Pulled>) {
        for refusal in import(self.context.records(), others) {
            tracing::warn!("{refusal}");
        }
    }

    /// Records plans that took hosts down.
    fn exclude(&self, operation: &tilewright::Operation, hung: &[String]) {
        let key = operation.key();
        let device = device_key(self.context.info(), self.args.cache);
        for plan in hung {
            let trial = Trial::unmeasured(plan, State::Hung, "two workers vanished while it ran");
            let name = operation.problem().key();
            if let Err(e) = self.context.records().add(&key, &name, &device, GENERATOR, &trial) {
                tracing::warn!("{e}");
            }
        }
    }
}

/// Adds trials of others to records; what was refused, by name.
pub fn import(records: &Records, rows: Vec<Pulled>) -> Vec<String> {
    let (mut refused, mut names, mut text) = (Vec::new(), Vec::new(), String::new());
    for row in rows {
        match row.line.and_then(|line| named(&line, &row.problem).map(|()| line)) {
            Ok(line) => {
                names.push(row.name);
                text.push_str(&line.replace(['\n', '\r'], " "));
                text.push('\n');
            }
            Err(reason) => refused.push(format!("{} is refused: {reason}", row.name)),
        }
    }
    match records.import_with(&mut text.as_bytes(), "the server", Bad::Skip) {
        Err(e) => refused.push(e.to_string()),
        Ok(imported) => refused.extend(imported.skipped.iter().map(|bad| {
            let name = names.get(bad.line - 1).map_or("a row", String::as_str);
            format!("{name} is refused: {}", printable(&bad.reason, 300))
        })),
    }
    refused
}

/// Refuses a line of another problem than its task's.
fn named(line: &str, problem: &str) -> Result<(), String> {
    let value: serde_json::Value = serde_json::from_str(line).map_err(|e| format!("no JSON object: {e}"))?;
    match value.get("name").and_then(|name| name.as_str()) {
        Some(name) if name == problem => Ok(()),
        _ => Err("it is not of its task's problem".into()),
    }
}

/// True for an error that any other task on this host would meet.
const fn is_of_host(e: &tilewright::Error) -> bool {
    matches!(e, tilewright::Error::Records(_) | tilewright::Error::Tune(TuneError::Records(_)))
}

impl Tuner for Searches<'_> {
    fn tune(&mut self, lease: &Lease, others: Vec<Pulled>, hung: Vec<String>, control: &Control<'_>) -> Attempt {
        let cancel = Cancel::default();
        *locked(self.current) = cancel.clone();
        let Numbered { number, case } = match self.listed.case(&lease.problem) {
            Ok(numbered) => numbered,
            Err(e) => return Attempt::Failed(e),
        };
        let least = if others.is_empty() { 0 } else { RETIMED };
        self.take_in(others);
        let operation = match session::operation(self.context, &case, &self.args.plan) {
            Ok(operation) => operation,
            Err(e) => return Attempt::Failed(e.to_string()),
        };
        self.exclude(&operation, &hung);
        let marker: Option<Witness> = control.is_careful().then(|| Witness(Arc::new(control.marker())));
        self.context.records().set_witness(marker);
        let mut options = tune::options(self.args, &case, lease.spent);
        // A budget in seconds begins when these were tried, or after 5 s.
        options.budget.trials = options.budget.trials.map(|trials| trials.max(least));
        let by_trials = matches!(self.args.budget, values::Budget::Trials(_));
        // A budget in trials asks for a repeatable search. A host of a fleet holds other tasks in each run.
        options.lineup = (by_trials && self.args.fleet.fleet.is_none()).then(|| self.listed.lineup.clone());
        let shown = !self.args.json && !self.args.csv && !self.quiet;
        let progress = Progress::new(&case, number, self.context.info(), Some(&options.budget), shown);
        let progress = if self.args.tell_parent { progress.for_parent() } else { progress };
        let mut spent = 0.0;
        let outcome = operation.tune_with(&options, &cancel, &mut |event| {
            if let Event::Trial { tally, seconds, .. } = event {
                spent = if by_trials { tally.trials as f64 } else { *seconds };
            }
            control.progress(spent);
            progress.hear(event);
        });
        progress.finish();
        self.context.records().set_witness(None);
        if self.context.sync().is_err_and(|e| matches!(&e, tilewright::Error::Device(d) if d.is_fatal())) {
            return Attempt::DeviceLost("a candidate took it down".into());
        }
        let mut gain = None;
        let attempt = match outcome {
            Err(e @ tilewright::Error::Device(_)) => Attempt::DeviceFailed(e.to_string()),
            Err(e) if cancel.is_cancelled() => {
                tracing::info!("{e}");
                Attempt::Cut
            }
            Err(e) if is_of_host(&e) => Attempt::HostFailed(e.to_string()),
            Err(e) => {
                eprintln!("error: {}: {}", case.title, crate::output::one_line(&e.to_string()));
                Attempt::Failed(e.to_string())
            }
            Ok(outcome) => match &outcome.ended {
                Ended::Cancelled => Attempt::Cut,
                Ended::DeviceLost(reason) => Attempt::DeviceLost(reason.clone()),
                _ => match tune::report(self.args, &operation, &case, &outcome, &mut self.found) {
                    Err(e @ CliError::Told(_)) => Attempt::Failed(e.to_string()),
                    Err(e) => Attempt::HostFailed(e.to_string()),
                    Ok(()) => {
                        let first_us = outcome.history.first().map_or(outcome.time_us, |step| step.time_us);
                        gain = Some(first_us / outcome.time_us).filter(|gain| gain.is_finite());
                        Attempt::Done { best_us: outcome.time_us, best_plan: outcome.plan.to_string(), first_us }
                    }
                },
            },
        };
        if self.args.tell_parent {
            News::Ended { gain }.tell();
        }
        attempt
    }

    /// A small product, right to the last check.
    fn is_sound(&mut self) -> bool {
        let verified = || {
            let operation = self.context.gemm(Gemm::new(tilewright_ir::Scalar::F32, 64, 64, 64))?;
            let plan = operation.plan()?;
            operation.verify(&plan, 1, Factors::default(), Depth::Thorough, true).map(|verified| verified.verification.passed)
        };
        verified().unwrap_or_else(|e: tilewright::Error| {
            tracing::warn!("{e}");
            false
        })
    }
}

/// Errors of queues as the command's.
impl From<FleetError> for CliError {
    fn from(e: FleetError) -> Self {
        classify(e)
    }
}
