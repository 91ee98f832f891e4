//! Random pairs of plan and problem, verified on a device: many at once, since compiling takes most of the time. Where a pair takes the
//! device down, a new process goes on.

mod pairs;

use crate::args::{Common, Mix, VerifyArgs};
use crate::error::BenchError;
use crate::handover;
use crate::record::Sink;
use crate::session::Session;
use pairs::{Ended, Judged, Line, PASSED, Pairs};
use std::time::Instant;
use tilewright_device::{DeviceError, DeviceInfo, DeviceKind};
use tilewright_tune::random::{Pair, PairError, Recipe, pair, verify};

/// `verify-random`.
///
/// # Errors
/// Bad arguments, and where any pair did not pass; [`BenchError::HandedOver`] where a new process has gone on.
pub fn verify_random(common: Common, args: VerifyArgs) -> Result<(), BenchError> {
    let limit = common.limit_seconds;
    let mut sink = Sink::open(common.json.as_deref())?;
    let mut pairs: Pairs = handover::left(common.go_on.as_deref())?;
    let device = Session::begin("verify-random", common)?.any_device()?;
    let info = device.info().clone();
    let recipe = recipe(&info, args.mix);
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let (start, before) = (Instant::now(), pairs.seconds);
    let seconds = || before + start.elapsed().as_secs_f64();
    let is_late = || limit.is_some_and(|limit| seconds() >= limit.as_secs_f64());
    let one = |n: u64| {
        let seed = args.seed.wrapping_mul(1_000_003).wrapping_add(args.first + n);
        pair(&info.target, &recipe, seed).map_or(Judged::None, |pair| judge(&info, &pair, verify(&device, &pair)))
    };
    let ended = pairs.run((args.count, threads), &is_late, &one, &mut |line, pairs| {
        if line.outcome != PASSED {
            println!("{}: seed {}: --problem {} --plan {}", line.outcome, line.seed, line.problem, line.plan);
            println!("    {}", line.reason.as_deref().unwrap_or_default());
        }
        let n = pairs.done();
        if n % 50 == 0 {
            eprintln!("[{:6.1} s] {n} of {} pairs: {}", seconds(), args.count, pairs.told());
        }
        sink.write(line)
    })?;
    pairs.seconds = seconds();
    if ended == Ended::Lost {
        return Err(handover::hand_over(&pairs));
    }
    println!("{} of {} pairs in {:.1} s on {}: {}", pairs.done(), args.count, pairs.seconds, info.id, pairs.told());
    pairs.verdict(args.seed)
}

/// Pairs that suit a kind of device.
fn recipe(info: &DeviceInfo, mix: Mix) -> Recipe {
    let all = match info.kind {
        DeviceKind::Emulated => Recipe::emulated(),
        DeviceKind::Cpu => Recipe::short_code(),
        DeviceKind::Gpu | DeviceKind::Accelerator => Recipe::device(),
    };
    match mix {
        Mix::All => all,
        Mix::Schedules => Recipe { schedules: true, ..all },
        Mix::Units if info.kind == DeviceKind::Emulated => Recipe::units(),
        Mix::Units => Recipe { units: true, ..all },
    }
}

/// What verifying a pair says of it.
fn judge(info: &DeviceInfo, pair: &Pair, result: Result<tilewright_tune::verify::Verification, PairError>) -> Judged {
    let mut line = Line {
        device: info.id.clone(),
        seed: pair.seed,
        problem: pair.problem.key(),
        plan: pair.plan.to_string(),
        outcome: PASSED,
        max_error: None,
        reason: None,
    };
    match result {
        Ok(v) => {
            line.max_error = v.finite_error();
            if !v.passed {
                line.outcome = if v.race { "racing" } else { "wrong" };
                line.reason = v.reason;
            }
            Judged::Line(line)
        }
        Err(e) => {
            line.outcome = match &e {
                PairError::Problem(_) => "malformed",
                PairError::Refused(_) => "refused",
                PairError::Generate(_) => "not generated",
                PairError::Compile(_) => "not compiled",
                PairError::Verify(_) => "not run",
            };
            line.reason = Some(e.to_string());
            let device = match &e {
                PairError::Compile(e) => Some(e),
                PairError::Verify(e) => e.device(),
                _ => None,
            };
            if device.is_some_and(DeviceError::is_fatal) { Judged::Lost(line) } else { Judged::Line(line) }
        }
    }
}
