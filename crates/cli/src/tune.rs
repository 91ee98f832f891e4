//! `tilewright tune`: searches each problem's fastest verified plan, records it, writes its source.

use crate::args::{Search, TuneArgs};
use crate::error::CliError;
use crate::output::{file_name, human_rate, human_time, line, write_file};
use crate::problem::{self, Case};
use crate::progress::Progress;
use crate::{records, session, values};
use serde_json::json;
use std::path::PathBuf;
use tilewright::{Context, Operation};
use tilewright_tune::run::Factors;
use tilewright_tune::search::{Budget, Cancel, Ended, Options, Outcome, Strategy};

/// Tunes every problem of the command line. A case that fails is reported and the others go on.
pub fn run(args: &TuneArgs, quiet: bool) -> Result<(), CliError> {
    let cases = problem::cases(&args.problem, args.plan.workspace)?;
    session::constraint(&args.plan)?;
    let context = session::open(&args.place, &args.plan, true)?;
    let cancel = Cancel::default();
    session::on_interrupt(&cancel)?;
    session::each(&cases, &context, args.json, |case| {
        let ended = tune_case(args, &context, case, &cancel, quiet);
        if cancel.is_cancelled() { Err(CliError::Interrupted) } else { ended }
    })
}

fn tune_case(args: &TuneArgs, context: &Context, case: &Case, cancel: &Cancel, quiet: bool) -> Result<(), CliError> {
    let operation = session::operation(context, case, &args.plan)?;
    let options = options(args, case);
    let progress = Progress::new(&case.title, case.problem.flop(), &options.budget, !args.json && !quiet);
    let outcome = operation.tune_with(&options, cancel, &mut |event| progress.hear(event));
    progress.finish();
    let outcome = outcome.map_err(session::classify)?;
    let source = source_path(args, context, case);
    write_file(&source, &operation.source().map_err(session::classify)?)?;
    if args.json {
        line(&object(&outcome, case, &source).to_string())?;
    } else {
        line(&words(&operation, &outcome, case, &source))?;
    }
    if !outcome.verified {
        return Err(CliError::Told("no plan could be verified".into()));
    }
    match outcome.ended {
        Ended::DeviceLost(reason) => Err(CliError::Told(format!(
            "the device was lost: {reason}. What was found is recorded; run the command again to go on from there"
        ))),
        _ => Ok(()),
    }
}

fn options(args: &TuneArgs, case: &Case) -> Options {
    Options {
        budget: match args.budget {
            values::Budget::Trials(trials) => Budget::trials(trials),
            values::Budget::Time(time) => Budget::seconds(time.as_secs_f64()),
        },
        strategy: match args.search {
            Search::Descent => Strategy::Descent,
            Search::Random => Strategy::Random,
            Search::Exhaustive => Strategy::Exhaustive,
        },
        seed: args.seed,
        factors: Factors { alpha: case.alpha, beta: case.beta },
        ..Options::default()
    }
}

/// Where a case's source goes: a file named after problem and device.
fn source_path(args: &TuneArgs, context: &Context, case: &Case) -> PathBuf {
    let folder = args.out.clone().unwrap_or_else(|| {
        let records = records::place(args.place.records.as_deref());
        records.parent().map_or_else(PathBuf::new, |p| p.join("sources"))
    });
    let extension = match context.info().target.dialect {
        tilewright_ir::Dialect::Cuda => "cu",
        tilewright_ir::Dialect::Hip => "hip",
        tilewright_ir::Dialect::OpenCl => "cl",
    };
    folder.join(format!("{}.{extension}", file_name(&format!("{}-{}", case.problem.key(), context.info().id))))
}

fn object(outcome: &Outcome, case: &Case, source: &std::path::Path) -> serde_json::Value {
    let t = &outcome.tally;
    json!({
        "problem": outcome.problem,
        "title": case.title,
        "device": outcome.device,
        "plan": outcome.plan.to_string(),
        "time_us": outcome.time_us,
        "time_kind": outcome.time_kind.name(),
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
        "ended": outcome.ended,
        "source": source.display().to_string(),
    })
}

fn words(operation: &Operation, outcome: &Outcome, case: &Case, source: &std::path::Path) -> String {
    let t = &outcome.tally;
    let verified = match (outcome.verified, &outcome.verified_on, outcome.max_error) {
        (false, ..) => "no: do not use this plan".to_string(),
        (true, None, error) => format!("yes, largest error {:.1e} of |alpha| |A||B| + |beta||C|", error.unwrap_or_default()),
        (true, Some(small), error) => {
            format!(
                "yes, on the reduced problem {small}, largest error {:.1e} of |alpha| |A||B| + |beta||C|",
                error.unwrap_or_default()
            )
        }
    };
    let resumed = if outcome.resumed > 0 { format!(", {} more from the records", outcome.resumed) } else { String::new() };
    let ended = match &outcome.ended {
        Ended::Budget => "",
        Ended::Exhausted => "; nothing is left to try",
        Ended::Cancelled => "; interrupted",
        Ended::DeviceLost(_) => "; the device was lost",
    };
    let rows = [
        ("plan", outcome.plan.to_string()),
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
