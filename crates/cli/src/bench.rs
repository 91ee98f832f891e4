//! `tilewright bench`: times of recorded or picked plans, without searching.

use crate::args::BenchArgs;
use crate::error::CliError;
use crate::output::{human_rate, human_time, line};
use crate::problem::{self, Case};
use crate::progress::Progress;
use crate::session;
use serde_json::json;
use tilewright::{Context, Operation, Origin, Plan};
use tilewright_tune::verify::{Depth, Verification};

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
}

/// Times every problem of the command line. A case that fails is reported and the others go on.
pub fn run(args: &BenchArgs, quiet: bool) -> Result<(), CliError> {
    if args.html.is_some() {
        return Err(CliError::usage("--html is the page of a comparison: name libraries with --against"));
    }
    let cases = problem::cases_or_source(&args.problem, &args.source, &args.plan)?;
    session::constraint(&args.plan)?;
    let context = session::open_to_time(&session::place_of(&args.place, &cases)?, &args.plan, false, args.cache)?;
    let width = cases.list.iter().map(|c| c.title.chars().count()).max().unwrap_or(0);
    if !args.json {
        line(&format!("on {}", context.info().name))?;
        line(&format!(
            "{:<width$}  {:>10}  {:>14}  {:<8}  {:<8}  {:<8}  {:>7}",
            "problem", "time", "rate", "time is", "plan is", "verified", "error"
        ))?;
    }
    let (mut logs, mut done) = (0.0, 0u32);
    let ended = session::each(&cases, &context, args.json, |number, case| {
        let shown = !args.json && !quiet;
        let progress = Progress::new(case, (number + 1, cases.list.len()), context.info(), None, shown);
        let timed = bench_case(args, &context, case, &progress);
        progress.finish();
        let timed = timed?;
        report(args, &context, case, &timed, width)?;
        if !timed.verification.passed {
            return Err(CliError::Told(timed.verification.reason.unwrap_or_else(|| "the result is wrong".into())));
        }
        logs += (case.problem.flop() / timed.median()).ln();
        done += 1;
        Ok(())
    });
    if !args.json && done > 1 {
        line(&format!("geometric mean over {done} cases: {}", human_rate((logs / f64::from(done)).exp(), 1.0)))?;
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

fn report(args: &BenchArgs, context: &Context, case: &Case, timed: &Timed, width: usize) -> Result<(), CliError> {
    let (us, v) = (timed.median(), &timed.verification);
    if args.json {
        let object = json!({
            "problem": case.problem.key(),
            "title": case.title,
            "dynamic": problem::dynamic(&case.problem),
            "device": context.info().id,
            "plan": timed.plan.to_string(),
            "origin": timed.origin.name(),
            "source": case.source.as_ref().map(|(path, _)| path),
            "time_us": us,
            "time_us_min": timed.samples.first(),
            "time_us_max": timed.samples.last(),
            "time_kind": timed.kind,
            "cache": args.cache.name(),
            "gflops": case.problem.flop() / us / 1e3,
            "repeats": timed.samples.len(),
            "verified": v.passed,
            "verified_on": timed.verified_on,
            "max_error": v.finite_error(),
        });
        return line(&object.to_string());
    }
    line(&format!(
        "{:<width$}  {:>10}  {:>14}  {:<8}  {:<8}  {:<8}  {:>7.0e}",
        case.title,
        human_time(us),
        human_rate(case.problem.flop(), us),
        timed.kind,
        timed.origin.name(),
        if v.passed { "yes" } else { "NO" },
        v.max_error
    ))
}
