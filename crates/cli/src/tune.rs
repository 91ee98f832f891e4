//! `tilewright tune`: searches each problem's fastest verified plan, records it, writes its source.

use crate::args::{PlaceArgs, Search, TuneArgs};
use crate::error::CliError;
use crate::figures::search;
use crate::output::{file_name, human_rate, human_time, line, write_file};
use crate::problem::{self, Case, Cases};
use crate::progress::{CaseNumber, Progress};
use crate::table::{Row, Table};
use crate::{part, records, report, session, table, workers};
use serde_json::json;
use std::cell::RefCell;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tilewright::{Context, Operation, Wanted};
use tilewright_bench::values;
use tilewright_fleet::GpuLock;
use tilewright_tune::search::{
    Audience, Budget, Cancel, Ended, Event, Options, Outcome, RivalTime, SharedBudget, Standing, Strategy, TuneError,
};

/// Tunes every problem of the command line. A case that fails is reported and the others go on. Where a candidate takes the
/// device down, a new process goes on from the records.
pub fn run(args: &TuneArgs, quiet: bool) -> Result<(), CliError> {
    if args.worker.is_some() {
        return workers::child(args, quiet);
    }
    if workers::several(args) {
        return workers::parent(args, quiet);
    }
    alone(args, &args.place, quiet)
}

/// In this process, on one device.
pub fn alone(args: &TuneArgs, place: &PlaceArgs, quiet: bool) -> Result<(), CliError> {
    let mut cases = problem::cases(&args.problem, args.plan.workspace)?;
    part::take(args.part, &mut cases.list, |case| case.problem.flop())?;
    let whole = cases.clone();
    cases.list.drain(..args.skip.min(cases.list.len()));
    session::constraint(&args.plan)?;
    if let Some(folder) = &args.out {
        // Not after the search.
        std::fs::create_dir_all(folder).map_err(|e| {
            CliError::usage(format!("--out {}: no folder for sources can be made there: {e}; name another", folder.display()))
        })?;
    }
    let cancel = Cancel::default();
    // Before a device is opened: compilers inside drivers (LLVM) install signal handlers too, and pass signals on to earlier handlers.
    session::on_interrupt(&cancel)?;
    let context = Arc::new(session::open_to_time(place, &args.plan, true, args.cache)?);
    let noted = |e: std::io::Error| CliError::failed(format!("crashes cannot be noted: {e}"));
    if let Some(file) = context.records().crash_file().map_err(CliError::failed)? {
        tilewright_device::note_crashes(file).map_err(noted)?;
    }
    let watched = !quiet && !args.json && args.skip == 0 && std::io::stderr().is_terminal();
    if let (values::Budget::Trials(trials), true) = (args.budget, watched && args.total.is_none()) {
        eprintln!("budget: {trials} trials for each problem ({trials}s would be a time)");
    }
    if args.csv && args.skip == 0 {
        table::csv(&COLUMNS, None)?;
    }
    let mut found = Found { several: cases.list.len() > 1, rows: Vec::new(), searches: Vec::new() };
    let lock = RefCell::new(workers::lock_alone(&context, &cancel)?);
    let running = Running { context: &context, cases: &cases, cancel: &cancel, quiet, lock: &lock };
    let tuned = match shared(args, cases.list.len()) {
        Some(shared) => together(args, &running, shared, &mut found),
        None => one_by_one(args, &running, &mut found),
    };
    if !found.rows.is_empty() {
        line(&format!("\non {}; sources of the kernels: {}", context.info().name, source_folder(args).display()))?;
        let mut table = Table::begin(&cases.list, "trials")?;
        found.rows.iter().try_for_each(|row| table.row(row))?;
        table.end()?;
    }
    if let Some(path) = &args.svg {
        write_file(path, &search::page(&found.searches, "Searches", &format!("on {}", context.info().name)))?;
        eprintln!("searches: {}", path.display());
    }
    // A process that goes on in place of this one writes the page.
    if let (Some(path), false) = (page_path(args), matches!(tuned, Err(CliError::HandedOver(_)))) {
        let title = args.problem.onnx.as_deref().and_then(|p| p.file_name()).map_or("tilewright".into(), |f| f.to_string_lossy());
        report::write(&path, &title, &context, &whole, args.cache)?;
        eprintln!("report: {}", path.display());
    }
    tuned
}

/// Where the page of a model goes, or that which is asked for.
fn page_path(args: &TuneArgs) -> Option<PathBuf> {
    let of_model = || Some(PathBuf::from(format!("{}.html", args.problem.onnx.as_ref()?.file_stem()?.display())));
    args.html.clone().or_else(of_model)
}

/// Columns of `--csv`.
pub const COLUMNS: [&str; 12] = [
    "problem",
    "title",
    "device",
    "time_us",
    "time_kind",
    "gflops",
    "verified",
    "max_error",
    "trials",
    "seconds",
    "plan",
    "source",
];

/// The results of several problems, for the table at the end, and their searches, for a picture.
#[derive(Default)]
pub struct Found {
    several: bool,
    rows: Vec<Row>,
    searches: Vec<search::Search>,
}

impl Found {
    /// Nothing yet, of several problems: each has a line.
    pub fn of_several() -> Found {
        Found { several: true, ..Found::default() }
    }
}

/// The budget of all cases together. Trials are for each, and a single case has its budget for itself. A process that goes on reports all that the
/// records hold, whatever time is left.
fn shared(args: &TuneArgs, cases: usize) -> Option<SharedBudget> {
    let left = |seconds: f64| Budget::seconds((seconds - args.spent).max(0.0));
    match (args.total, args.budget) {
        (Some(total), _) => Some(SharedBudget { budget: left(total.as_secs_f64()), reach_all: args.spent > 0.0 }),
        (None, values::Budget::Time(time)) if cases > 1 => {
            Some(SharedBudget { budget: left(time.as_secs_f64() * cases as f64), reach_all: true })
        }
        (None, _) => None,
    }
}

/// An operation of a case.
struct Of<'a> {
    number: usize,
    case: &'a Case,
    operation: Operation,
}

/// The progress of a search.
struct Shown {
    search: usize,
    progress: Progress,
}

/// Hears of the searches and shows progress.
struct Told<'a> {
    args: &'a TuneArgs,
    context: &'a Context,
    searched: &'a [Of<'a>],
    shared: bool,
    shown: bool,
    /// All cases, those of earlier processes as well.
    of: usize,
    progress: Option<Shown>,
    searches: Vec<search::Search>,
    /// Trials or seconds of the search that runs.
    spent: f64,
}

impl<'a> Told<'a> {
    fn new(args: &'a TuneArgs, context: &'a Context, searched: &'a [Of<'a>], of: usize, quiet: bool) -> Told<'a> {
        let searches = searched.iter().map(|of| search::Search::new(&of.case.title)).collect();
        let shown = !args.json && !args.csv && !quiet;
        Told { args, context, searched, shared: false, shown, of, progress: None, searches, spent: 0.0 }
    }

    /// Searches the problems. The device may be lost afterwards.
    fn run(&mut self, shared: Option<SharedBudget>, cancel: &Cancel) -> Searched {
        self.shared = shared.is_some();
        let wanted: Vec<Wanted<'_>> = self.searched.iter().map(|of| wanted(self.args, of, self.shared)).collect();
        let campaign = self.context.tune_all(&wanted, shared, cancel, self);
        self.end_progress();
        let fatal = |e: tilewright::Error| matches!(&e, tilewright::Error::Device(d) if d.is_fatal());
        let lost = self.context.sync().is_err_and(fatal) && !cancel.is_cancelled();
        Searched { outcomes: campaign.map(|campaign| campaign.outcomes).map_err(session::classify), lost }
    }

    fn end_progress(&mut self) {
        if let Some(Shown { progress, .. }) = self.progress.take() {
            progress.finish();
        }
    }
}

/// What came of searches.
struct Searched {
    outcomes: Result<Vec<Option<Result<Outcome, tilewright::Error>>>, CliError>,
    /// The device cannot be used any more.
    lost: bool,
}

impl Audience for Told<'_> {
    fn hear(&mut self, number: usize, event: &Event, standing: &Standing) {
        let Some(of) = self.searched.get(number) else { return };
        let budget = options(self.args, of.case, 0.0).budget;
        if self.progress.as_ref().is_none_or(|shown| shown.search != number) {
            self.end_progress();
            let nth = CaseNumber { nth: self.args.skip + of.number + 1, of: self.of };
            let bar = Some(&budget).filter(|_| !self.shared);
            let progress = Progress::new(of.case, nth, self.context.info(), bar, self.shown);
            self.progress = Some(Shown { search: number, progress });
        }
        if let Event::Trial { tally, seconds, .. } = event {
            self.spent = if budget.trials.is_some() { tally.trials as f64 } else { *seconds };
        }
        if let Some(search) = self.searches.get_mut(number) {
            search.hear(event);
        }
        if let Some(Shown { progress, .. }) = &self.progress {
            if self.shared {
                progress.stand(standing);
            }
            progress.hear(event);
        }
    }
    fn settled(&mut self, _: usize, _: &Result<Outcome, TuneError>, _: &Standing) -> Vec<RivalTime> {
        Vec::new()
    }
}

/// What is asked for a case; where cases share a budget, without one of its own.
fn wanted<'a>(args: &TuneArgs, of: &'a Of<'_>, shares: bool) -> Wanted<'a> {
    let mut options = options(args, of.case, if of.number == 0 { args.spent } else { 0.0 });
    if shares {
        options.budget = Budget::default();
    }
    Wanted { calls: of.case.calls, options, ..Wanted::new(&of.operation) }
}

/// Searches all cases under one budget, then reports them.
fn together(args: &TuneArgs, run: &Running<'_>, shared: SharedBudget, found: &mut Found) -> Result<(), CliError> {
    let Running { context, cases, cancel, quiet, lock } = *run;
    let start = Instant::now();
    let (mut failed, mut searched) = (Vec::new(), Vec::new());
    for (number, case) in cases.list.iter().enumerate() {
        let operation = session::operation(context, case, &args.plan);
        failed.push(operation.map(|operation| searched.push(Of { number, case, operation })).err());
    }
    let mut told = Told::new(args, context, &searched, args.skip + cases.list.len(), quiet);
    let Searched { outcomes, lost } = told.run(Some(shared), cancel);
    found.searches = told.searches;
    if lost {
        return hand_over(lock.take(), args.skip, args.spent + start.elapsed().as_secs_f64());
    }
    let mut outcomes = searched.iter().zip(outcomes?);
    let tuned = session::each(cases, context, args.json, |number, _| {
        if let Some(e) = failed.get_mut(number).and_then(Option::take) {
            return Err(e);
        }
        match outcomes.next() {
            Some((of, Some(outcome))) => report(args, &of.operation, of.case, &outcome.map_err(session::classify)?, found),
            _ if cancel.is_cancelled() => Err(CliError::Interrupted),
            _ => Err(CliError::failed("it was not reached in the time of all problems: give more")),
        }
    });
    if cancel.is_cancelled() { Err(CliError::Interrupted) } else { tuned }
}

/// What all cases are tuned with.
#[derive(Clone, Copy)]
struct Running<'a> {
    context: &'a Context,
    cases: &'a Cases,
    cancel: &'a Cancel,
    quiet: bool,
    /// Of a device that is timed. A process that goes on needs it.
    lock: &'a RefCell<Option<GpuLock>>,
}

/// Searches and reports one case after the other.
fn one_by_one(args: &TuneArgs, run: &Running<'_>, found: &mut Found) -> Result<(), CliError> {
    let Running { context, cases, cancel, quiet, lock } = *run;
    session::each(cases, context, args.json, |number, case| {
        let searched = [Of { number, case, operation: session::operation(context, case, &args.plan)? }];
        let mut told = Told::new(args, context, &searched, args.skip + cases.list.len(), quiet);
        let Searched { outcomes, lost } = told.run(None, cancel);
        let spent = told.spent;
        found.searches.append(&mut told.searches);
        if lost {
            let earlier = if number == 0 { args.spent } else { 0.0 };
            return hand_over(lock.take(), args.skip + number, earlier + spent.max(0.001));
        }
        let outcome = outcomes.map(|outcomes| outcomes.into_iter().flatten().next());
        let told = match (outcome, &searched) {
            (Ok(Some(outcome)), [of]) => {
                outcome.map_err(session::classify).and_then(|outcome| report(args, &of.operation, case, &outcome, found))
            }
            (Ok(None), _) => Ok(()),
            (Err(e), _) => Err(e),
        };
        if cancel.is_cancelled() { Err(CliError::Interrupted) } else { told }
    })
}

/// Prints what was found and writes its source. A worker without a place for the source has done its task: the plan is recorded.
pub fn report(args: &TuneArgs, operation: &Operation, case: &Case, outcome: &Outcome, found: &mut Found) -> Result<(), CliError> {
    let source = source_path(args, operation.context(), case);
    let text = operation.source_of(&outcome.plan, &operation.context().info().target).map_err(session::classify);
    match text.and_then(|text| write_file(&source, &text)) {
        Err(e) if args.worker.is_some() => tracing::warn!("{}: its source is not written: {e}", case.title),
        written => written?,
    }
    let object = || object(args, outcome, case, &source);
    if args.json {
        line(&object().to_string())?;
    } else if args.csv {
        table::csv(&COLUMNS, Some(&object()))?;
    } else if found.several {
        let row = row(outcome, case);
        let (time, rate) = (human_time(row.us), human_rate(row.flop, row.us));
        let verified = if row.verified { "verified" } else { "NOT VERIFIED" };
        let ended = ended(&outcome.ended);
        line(&format!("{}: {time} {}, {rate}, {verified}, {} trials{ended}", row.title, row.kind, row.note))?;
        found.rows.push(row);
    } else {
        line(&words(operation, outcome, case, &source))?;
    }
    if outcome.verified { Ok(()) } else { Err(CliError::Told("no plan could be verified".into())) }
}

fn row(outcome: &Outcome, case: &Case) -> Row {
    Row {
        title: case.title.clone(),
        flop: case.problem.flop(),
        us: outcome.time_us,
        kind: outcome.time_kind.name(),
        note: outcome.tally.trials.to_string(),
        verified: outcome.verified,
        error: outcome.max_error.unwrap_or_default(),
    }
}

/// Why a search ended before its budget.
fn ended(ended: &Ended) -> &'static str {
    match ended {
        Ended::Budget => "",
        Ended::Converged => "; ended: converged",
        Ended::Exhausted => "; nothing is left to try",
        Ended::Cancelled => "; interrupted",
        Ended::DeviceLost(_) => "; the device was lost",
    }
}

/// Lets a new process with the same arguments do the cases from `skip` on. It takes the lock of the device.
fn hand_over(lock: Option<GpuLock>, skip: usize, spent: f64) -> Result<(), CliError> {
    drop(lock);
    eprintln!("a candidate took the device down; it is recorded, and a new process goes on");
    let failed = |e: std::io::Error| CliError::failed(format!("no new process could be started after the device was lost: {e}"));
    let program = std::env::current_exe().map_err(failed)?;
    let status =
        std::process::Command::new(program).args(continued(std::env::args().skip(1), skip, spent)).status().map_err(failed)?;
    Err(CliError::HandedOver(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)))
}

/// Arguments that go on where a process stopped.
fn continued(args: impl Iterator<Item = String>, skip: usize, spent: f64) -> Vec<String> {
    let mut kept = Vec::new();
    let mut args = args;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--skip" | "--spent" => drop(args.next()),
            _ => kept.push(arg),
        }
    }
    kept.extend(["--skip".into(), skip.to_string(), "--spent".into(), spent.to_string()]);
    kept
}

pub fn options(args: &TuneArgs, case: &Case, spent: f64) -> Options {
    Options {
        // At least a little: a process that goes on must report what the records hold.
        budget: match args.budget {
            values::Budget::Trials(trials) => Budget::trials(trials.saturating_sub(spent as u64).max(1)),
            values::Budget::Time(time) => Budget::seconds((time.as_secs_f64() - spent).max(0.05)),
        },
        strategy: match args.search {
            Search::Descent => Strategy::Descent,
            Search::Random => Strategy::Random,
            Search::Exhaustive => Strategy::Exhaustive,
        },
        seed: args.seed,
        factors: case.factors,
        ..Options::default()
    }
}

/// The folder of sources.
fn source_folder(args: &TuneArgs) -> PathBuf {
    args.out.clone().unwrap_or_else(|| {
        let records = records::place(args.place.records.as_deref());
        records.parent().map_or_else(PathBuf::new, |p| p.join("sources"))
    })
}

/// Where a case's source goes: a file named after problem and device.
fn source_path(args: &TuneArgs, context: &Context, case: &Case) -> PathBuf {
    let extension = match context.info().target.dialect {
        tilewright_ir::Dialect::Cuda => "cu",
        tilewright_ir::Dialect::Hip => "hip",
        tilewright_ir::Dialect::OpenCl => "cl",
    };
    source_folder(args).join(format!("{}.{extension}", file_name(&format!("{}-{}", case.problem.key(), context.info().id))))
}

fn object(args: &TuneArgs, outcome: &Outcome, case: &Case, source: &std::path::Path) -> serde_json::Value {
    let t = &outcome.tally;
    json!({
        "problem": outcome.problem,
        "title": case.title,
        "dynamic": case.problem.names_at_launch(),
        "device": outcome.device,
        "plan": outcome.plan.to_string(),
        "readable": outcome.plan.readable(),
        "time_us": outcome.time_us,
        "time_kind": outcome.time_kind.name(),
        "cache": args.cache.name(),
        "gflops": outcome.gflops,
        "verified": outcome.verified,
        "verified_on": outcome.verified_on,
        "max_error": outcome.max_error,
        "trials": t.trials,
        "refused": t.refused,
        "failed": t.failed,
        "wrong": t.wrong,
        "hung": t.hung,
        "resumed": outcome.resumed,
        "seconds": outcome.seconds,
        "spent": outcome.spent,
        "ended": outcome.ended,
        "source": source.display().to_string(),
    })
}

fn words(operation: &Operation, outcome: &Outcome, case: &Case, source: &std::path::Path) -> String {
    let t = &outcome.tally;
    let error = case.error_in_words(outcome.max_error.unwrap_or_default());
    let verified = match (outcome.verified, &outcome.verified_on) {
        (false, _) => "no: do not use this plan".to_string(),
        (true, None) => format!("yes, {error}"),
        (true, Some(small)) => format!("yes, on the reduced problem {small}, {error}"),
    };
    let resumed = if outcome.resumed > 0 { format!(", {} more from the records", outcome.resumed) } else { String::new() };
    let ended = ended(&outcome.ended);
    let rows = [
        ("plan", outcome.plan.readable()),
        ("keys", outcome.plan.to_string()),
        (
            "time",
            format!(
                "{} ({}), {}",
                human_time(outcome.time_us),
                outcome.time_kind.name(),
                human_rate(case.problem.flop(), outcome.time_us)
            ),
        ),
        ("verified", verified),
        (
            "trials",
            format!(
                "{} in {:.1} s: {} refused, {} failed, {} wrong, {} hung{resumed}{ended}",
                t.trials, outcome.seconds, t.refused, t.failed, t.wrong, t.hung
            ),
        ),
        ("source", source.display().to_string()),
        ("records", operation.context().records().path().display().to_string()),
    ];
    let mut out = format!("{} on {}", case.title, operation.context().info().name);
    for (name, text) in rows {
        out.push_str(&format!("\n  {name:<9} {text}"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_goes_on_has_the_same_arguments_and_skips_what_is_done() {
        let line = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        let first = continued(line("tune --cases a.csv --budget 5s").into_iter(), 3, 2.5);
        assert_eq!(first, line("tune --cases a.csv --budget 5s --skip 3 --spent 2.5"));
        let second = continued(first.into_iter(), 4, 1.0);
        assert_eq!(second, line("tune --cases a.csv --budget 5s --skip 4 --spent 1"));
    }
}
