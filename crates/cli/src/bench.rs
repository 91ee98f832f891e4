//! `tilewright bench`: times of recorded or picked plans, without searching.

use crate::args::BenchArgs;
use crate::error::CliError;
use crate::output::line;
use crate::problem::{self, Case};
use crate::progress::{CaseNumber, Progress};
use crate::session;
use crate::table::{self, Row, Table};
use crate::workers;
use serde_json::json;
use tilewright::{Context, Operation, Origin, Plan};
use tilewright_check::verify::{Depth, Verification};
use tilewright_tune::search::Cancel;

/// Columns of `--csv`.
const COLUMNS: [&str; 11] = [
    "problem",
    "title",
    "device",
    "time_us",
    "time_us_min",
    "time_us_max",
    "time_kind",
    "gflops",
    "verified",
    "max_error",
    "plan",
];

/// How one case did.
struct Timed {
    plan: Plan,
    origin: Origin,
    /// Microseconds of each repeat, ascending; one modelled time on the emulator.
    samples: Vec<f64>,
    kind: &'static str,
    verification: Verification,
    verified_on: Option<String>,
}

impl Timed {
    fn median(&self) -> f64 {
        self.samples.get(self.samples.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn row(&self, case: &Case) -> Row {
        Row {
            title: case.title.clone(),
            flop: case.problem.flop(),
            us: self.median(),
            kind: self.kind,
            note: self.origin.name().into(),
            verified: self.verification.passed,
            error: self.verification.max_error,
        }
    }

    fn object(&self, args: &BenchArgs, context: &Context, case: &Case) -> serde_json::Value {
        let us = self.median();
        json!({
            "problem": case.problem.key(),
            "title": case.title,
            "dynamic": case.problem.names_at_launch(),
            "device": context.info().id,
            "plan": self.plan.to_string(),
            "readable": self.plan.readable(),
            "origin": self.origin.name(),
            "source": case.source.as_ref().map(|(path, _)| path),
            "time_us": us,
            "time_us_min": self.samples.first(),
            "time_us_max": self.samples.last(),
            "time_kind": self.kind,
            "cache": args.measuring.cache.name(),
            "gflops": case.problem.flop() / us / 1e3,
            "repeats": self.samples.len(),
            "verified": self.verification.passed,
            "verified_on": self.verified_on,
            "max_error": self.verification.finite_error(),
        })
    }
}

/// Times every problem of the command line. A case that fails is reported and the others go on.
pub fn run(args: &BenchArgs, quiet: bool) -> Result<(), CliError> {
    if args.html.is_some() {
        return Err(CliError::usage("--html is the page of a comparison: name libraries with --against"));
    }
    let cases = problem::cases_or_source(&args.problem, &args.source, &args.plan)?;
    session::constraint(&args.plan)?;
    let context = session::open_to_time(&session::place_of(&args.place, &cases)?, &args.plan, false, args.measuring.cache)?;
    let _lock = workers::lock_alone(&context, &Cancel::default())?;
    let mut table = None;
    if args.csv {
        table::csv(&COLUMNS, None)?;
    } else if !args.json {
        line(&format!("on {}", context.info().name))?;
        table = Some(Table::begin(&cases.list, "plan is")?);
    }
    let ended = session::each(&cases, &context, args.json, |number, case| {
        let shown = table.is_some() && !quiet;
        let progress = Progress::new(case, CaseNumber { nth: number + 1, of: cases.list.len() }, context.info(), None, shown);
        let timed = bench_case(args, &context, case, &progress);
        progress.finish();
        let timed = timed?;
        match &mut table {
            Some(table) => table.row(&timed.row(case))?,
            None if args.csv => table::csv(&COLUMNS, Some(&timed.object(args, &context, case)))?,
            None => line(&timed.object(args, &context, case).to_string())?,
        }
        if !timed.verification.passed {
            return Err(CliError::Told(timed.verification.reason.unwrap_or_else(|| "the result is wrong".into())));
        }
        Ok(())
    });
    if let Some(table) = table {
        table.end()?;
    }
    ended
}

fn bench_case(args: &BenchArgs, context: &Context, case: &Case, progress: &Progress) -> Result<Timed, CliError> {
    let operation: Operation = session::operation(context, case, &args.plan)?;
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    progress.phase("verifying");
    let factors = case.factors;
    let verification = operation.verify(&plan, 1, factors, Depth::Thorough, false).map_err(session::classify)?;
    progress.phase("timing");
    let timing = operation.time(&plan, factors, args.repeats).map_err(session::classify)?;
    Ok(Timed {
        plan,
        origin,
        samples: timing.samples,
        kind: timing.kind.name(),
        verification: verification.verification,
        verified_on: verification.on,
    })
}
