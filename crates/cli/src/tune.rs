//! `tilewright tune`: searches each problem's fastest verified plan, records it, writes its source.

use crate::args::{PlaceArgs, Search, TuneArgs};
use crate::error::CliError;
use crate::figures::search;
use crate::output::{file_name, human_rate, human_time, line, write_file};
use crate::problem::{self, Case};
use crate::progress::{CaseNumber, Progress};
use crate::table::{Row, Table};
use crate::{part, records, report, session, table, workers};
use serde_json::json;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use tilewright::{Context, Operation};
use tilewright_bench::values;
use tilewright_tune::search::{Budget, Cancel, Ended, Event, Options, Outcome, Strategy};

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
    if let (values::Budget::Trials(trials), true) = (args.budget, watched) {
        eprintln!("budget: {trials} trials for each problem ({trials}s would be a time)");
    }
    if args.csv && args.skip == 0 {
        table::csv(&COLUMNS, None)?;
    }
    let (mut done, mut found) = (0, Found { several: cases.list.len() > 1, rows: Vec::new(), searches: Vec::new() });
    let all = args.skip + cases.list.len();
    let tuned = session::each(&cases, &context, args.json, |number, case| {
        let number = CaseNumber { nth: args.skip + number + 1, of: all };
        let options = options(args, case, if done == 0 { args.spent } else { 0.0 });
        let shown = !args.json && !args.csv && !quiet;
        let result = tune_case(args, &context, case, &options, &cancel, &mut found, &|| {
            Progress::new(case, number, context.info(), Some(&options.budget), shown)
        });
        if cancel.is_cancelled() {
            return Err(CliError::Interrupted);
        }
        if let Err(Lost { trials, seconds }) = result {
            let earlier = if done == 0 { args.spent } else { 0.0 };
            let now = if options.budget.trials.is_some() { trials as f64 } else { seconds };
            return hand_over(args.skip + done, earlier + now.max(0.001));
        }
        done += 1;
        result.unwrap_or(Ok(()))
    });
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

/// The device was lost after so many trials of this case and seconds of its search.
struct Lost {
    trials: u64,
    seconds: f64,
}

fn tune_case(
    args: &TuneArgs,
    context: &Context,
    case: &Case,
    options: &Options,
    cancel: &Cancel,
    found: &mut Found,
    progress: &dyn Fn() -> Progress,
) -> Result<Result<(), CliError>, Lost> {
    let operation = match session::operation(context, case, &args.plan) {
        Ok(operation) => operation,
        Err(e) => return Ok(Err(e)),
    };
    let progress = progress();
    let mut spent = Lost { trials: 0, seconds: 0.0 };
    let mut search = search::Search::new(&case.title);
    let outcome = operation.tune_with(options, cancel, &mut |event| {
        if let Event::Trial { tally, seconds, .. } = event {
            spent = Lost { trials: tally.trials, seconds: *seconds };
        }
        search.hear(event);
        progress.hear(event);
    });
    progress.finish();
    found.searches.push(search);
    if context.sync().is_err_and(|e| matches!(&e, tilewright::Error::Device(d) if d.is_fatal())) && !cancel.is_cancelled() {
        return Err(spent);
    }
    Ok(outcome.map_err(session::classify).and_then(|outcome| report(args, &operation, case, &outcome, found)))
}

/// Prints what was found and writes its source.
pub fn report(args: &TuneArgs, operation: &Operation, case: &Case, outcome: &Outcome, found: &mut Found) -> Result<(), CliError> {
    let source = source_path(args, operation.context(), case);
    let text = operation.source_of(&outcome.plan, &operation.context().info().target).map_err(session::classify)?;
    write_file(&source, &text)?;
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

/// Lets a new process with the same arguments do the cases from `skip` on.
fn hand_over(skip: usize, spent: f64) -> Result<(), CliError> {
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
        "dynamic": problem::dynamic(&case.problem),
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
