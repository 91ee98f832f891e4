//! `tilewright bench --against`: recorded or picked plans side by side with vendor libraries, as `tilewright-bench` compares them.

use crate::args::BenchArgs;
use crate::error::CliError;
use crate::output::{line, writable, write_file};
use crate::problem::{self, Case};
use crate::session;
use crate::workers;
use tilewright::Context;
use tilewright_bench::{BenchError, Record, Rivals, Title, page, summary};
use tilewright_check::run::Factors;
use tilewright_tune::search::Cancel;

/// What records of this command are called.
const EXPERIMENT: &str = "bench";

/// Compares every problem of the command line; writes the page, if one is wanted, of what was measured, also after a failure.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    if args.source.source.is_some() {
        return Err(CliError::usage("--against compares our own plans: time an edited source with `bench --source` alone"));
    }
    let cases = problem::cases(&args.problem, args.plan.workspace)?;
    session::constraint(&args.plan)?;
    if let Some(case) = cases.list.iter().find(|c| c.factors != Factors::default()) {
        let given: Vec<String> = case.factors.named().into_iter().map(|(name, value)| format!("{name} = {value}")).collect();
        return Err(CliError::usage(format!("--against compares at alpha = 1 and beta = 0, not {}", given.join(", "))));
    }
    if let Some(path) = &args.html {
        // Not after all measuring.
        writable(path).map_err(|e| CliError::usage(format!("--html {e}")))?;
    }
    let context = session::open_to_time(&args.place, &args.plan, false, args.measuring.cache)?;
    let _lock = workers::lock_alone(&context, &Cancel::default())?;
    let rivals = Rivals::open(&args.rivals, context.device(), &args.measuring);
    let rivals = rivals.map_err(classify)?;
    if !args.json {
        line(&format!("on {}", context.info().name))?;
    }
    let mut records: Vec<Record> = Vec::new();
    let ended = session::each(&cases, &context, args.json, |_, case| {
        let record = compare(args, &context, &rivals, case)?;
        if args.json {
            line(&serde_json::to_string(&record).map_err(CliError::failed)?)?;
        } else {
            line(tilewright_bench::line(&record).trim_end())?;
        }
        let ours = record.sides.first().and_then(|s| s.failure.clone());
        records.push(record);
        match ours {
            Some(failure) => Err(CliError::Told(failure)),
            None => Ok(()),
        }
    });
    if !args.json {
        let text = summary(&records);
        if !text.is_empty() {
            line(text.trim_end())?;
        }
    }
    if let Some(path) = &args.html {
        write_file(path, &page(&records))?;
        eprintln!("written: {}", path.display());
    }
    ended
}

fn compare(args: &BenchArgs, context: &Context, rivals: &Rivals, case: &Case) -> Result<Record, CliError> {
    let operation = session::operation(context, case, &args.plan)?;
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    let set = case.set.clone().unwrap_or_else(|| "problem".into());
    let title = Title { experiment: EXPERIMENT.into(), set, case: case.title.clone() };
    let mut record = rivals.measure_plan(&title, operation.space(), &plan).map_err(classify)?;
    if let Some(ours) = record.sides.first_mut() {
        ours.note = format!("plan is {}", origin.name());
    }
    Ok(record)
}

/// Distinguishes wrong use (a usage error) from a job that failed.
pub fn classify(e: BenchError) -> CliError {
    match e {
        BenchError::Usage(_) | BenchError::Unsupported { .. } => CliError::usage(e),
        other => CliError::failed(other),
    }
}
