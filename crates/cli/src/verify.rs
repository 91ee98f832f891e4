//! `tilewright verify`: one plan's results against the f64 reference.

use crate::args::VerifyArgs;
use crate::error::CliError;
use crate::output::line;
use crate::problem::{self, Case};
use crate::progress::{CaseNumber, Progress};
use crate::session;
use serde_json::json;
use tilewright::{Context, Operation, Plan, Verified};
use tilewright_check::run::Factors;
use tilewright_check::verify::{Depth, Verification};

/// Verifies every problem of the command line; exit code 1 if one is wrong.
pub fn run(args: &VerifyArgs, quiet: bool) -> Result<(), CliError> {
    let cases = problem::cases_or_source(&args.problem, &args.source, &args.plan)?;
    session::constraint(&args.plan)?;
    let context = session::open(&session::place_of(&args.place, &cases)?, &args.plan, false)?;
    session::each(&cases, &context, args.json, |number, case| {
        let shown = !args.json && !quiet;
        let progress = Progress::new(case, CaseNumber { nth: number + 1, of: cases.list.len() }, context.info(), None, shown);
        let done = verify_case(args, &context, case, &progress);
        progress.finish();
        done
    })
}

fn verify_case(args: &VerifyArgs, context: &Context, case: &Case, progress: &Progress) -> Result<(), CliError> {
    let operation = session::operation(context, case, &args.plan)?;
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    // Both ways through the epilogue, unless the user names factors.
    let given = case.factors;
    let factors = if given == Factors::default() {
        vec![Factors::real(1.25, 0.0), Factors::real(-0.75, if case.problem.adds_old() { 0.5 } else { 0.0 })]
    } else {
        vec![given]
    };
    let (mut whole, mut on) = (None, None);
    progress.phase("verifying");
    for factors in factors {
        let verified = verify(&operation, &plan, args, factors)?;
        on = verified.on;
        let verification = verified.verification;
        whole = Some(match whole {
            Some(before) => Verification::and(before, verification),
            None => verification,
        });
    }
    let Some(v) = whole else { return Ok(()) };
    progress.finish();
    if args.json {
        let object = json!({
            "problem": case.problem.key(),
            "title": case.title,
            "dynamic": case.problem.names_at_launch(),
            "device": context.info().id,
            "plan": plan.to_string(),
            "readable": plan.readable(),
            "origin": origin.name(),
            "source": case.source.as_ref().map(|(path, _)| path),
            "verified": v.passed,
            "verified_on": on,
            "max_error": v.finite_error(),
            "checked": v.checked,
            "race": v.race,
            "reason": v.reason,
        });
        line(&object.to_string())?;
    } else {
        let origin = session::origin(&args.plan, &plan, origin);
        line(&format!("{} on {}\n  plan ({origin}) {}\n  {plan}", case.title, context.info().name, plan.readable()))?;
        if let Some((path, _)) = &case.source {
            line(&format!("  source {}", path.display()))?;
        }
        if let Some(small) = &on {
            line(&format!("  run reduced, as {small} (--whole runs all of it)"))?;
        }
        let runs = "runs with random numbers and with small integers";
        let pairs = if given == Factors::default() { "two pairs of alpha and beta" } else { "the given alpha and beta" };
        let error = format!("{}; {} elements compared in {runs}, for {pairs}", case.error_in_words(v.max_error), v.checked);
        line(&format!("  {}: {error}", if v.passed { "right" } else { "WRONG" }))?;
    }
    if v.passed { Ok(()) } else { Err(CliError::Told(v.reason.unwrap_or_else(|| "the result is wrong".into()))) }
}

/// Thoroughly: result, surroundings, a second run.
fn verify(operation: &Operation, plan: &Plan, args: &VerifyArgs, factors: Factors) -> Result<Verified, CliError> {
    operation.verify(plan, args.seed, factors, Depth::Thorough, args.whole).map_err(session::classify)
}
