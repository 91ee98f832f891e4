//! Random pairs of plan and problem, verified on a device: many at once, since compiling takes most of the time. Where a pair takes the
//! device down, a new process goes on.

mod log;
mod pairs;

use crate::args::{Common, Mix, VerifyArgs};
use crate::error::BenchError;
use crate::handover;
use crate::record::Sink;
use crate::session::Session;
use clap::ValueEnum;
pub use log::Log;
pub use pairs::{Ended, Line, Pairs};
use pairs::{Judged, PASSED};
use std::sync::Arc;
use std::time::Instant;
use tilewright_check::random::{Chain, Pair, PairError, Recipe, pair, verify};
use tilewright_device::{Device, DeviceError, DeviceInfo, DeviceKind};
use tilewright_gen::cell::Cell;

/// `verify-random`.
///
/// # Errors
/// Bad arguments, and where any pair did not pass; [`BenchError::HandedOver`] where a new process has gone on.
pub fn verify_random(common: Common, args: VerifyArgs) -> Result<(), BenchError> {
    let limit = common.limit;
    let mut sink = Sink::open(common.out.as_deref())?;
    let mut pairs: Pairs = handover::left(common.go_on.as_deref())?;
    let device = Session::begin("verify-random", common)?.any_device()?;
    let info = device.info().clone();
    let (start, before) = (Instant::now(), pairs.seconds);
    let seconds = || before + start.elapsed().as_secs_f64();
    let is_late = || limit.is_some_and(|limit| seconds() >= limit.as_secs_f64());
    let drawn = Drawn { mix: args.mix, seed: args.seed, first: args.first, count: args.count, threads: args.threads };
    let ended = run(&device, &mut pairs, &drawn, &is_late, &mut |line, pairs| {
        if !line.passed() {
            println!("{}: seed {}: --problem {} --plan {}", line.outcome, line.seed, line.problem, line.plan);
            println!("    {}", line.reason.as_deref().unwrap_or_default());
        }
        let n = pairs.done();
        if n % 50 == 0 {
            eprintln!("[{:6.1} s] {n} of {} pairs: {}", seconds(), args.count, pairs.summary());
        }
        sink.write(line)
    })?;
    pairs.seconds = seconds();
    if ended == Ended::Lost {
        return Err(handover::hand_over(&pairs));
    }
    println!("{} of {} pairs in {:.1} s on {}: {}", pairs.done(), args.count, pairs.seconds, info.id, pairs.summary());
    if let Some(path) = &args.log {
        let mix = args.mix.to_possible_value().map_or_else(String::new, |mix| mix.get_name().into());
        Log::new(&info, &pairs, mix, args.seed).write(path)?;
    }
    pairs.verdict(args.seed)
}

/// Which pairs are drawn, and on how many threads they are verified (0: one per core).
struct Drawn {
    mix: Mix,
    seed: u64,
    first: u64,
    count: u64,
    threads: usize,
}

fn run(
    device: &Arc<dyn Device>,
    pairs: &mut Pairs,
    drawn: &Drawn,
    is_late: &(dyn Fn() -> bool + Sync),
    tell: &mut dyn FnMut(&Line, &Pairs) -> Result<(), BenchError>,
) -> Result<Ended, BenchError> {
    let info = device.info();
    let recipe = recipe(info, drawn.mix);
    let threads = match drawn.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let one = |n: u64| {
        let seed = drawn.seed.wrapping_mul(1_000_003).wrapping_add(drawn.first + n);
        pair(&info.target, &recipe, seed).map_or(Judged::None, |pair| judge(info, &pair, verify(device, &pair)))
    };
    pairs.run(drawn.count, threads, is_late, &one, tell)
}

/// Verifies so many random pairs of every kind that suits the device, those that `pairs` has not judged yet. `tell` hears of each.
/// [`Ended::Lost`]: a pair took the device down, and another process may go on with `pairs`.
///
/// # Errors
/// Those of `tell`; [`BenchError::Plan`] where pair after pair takes the device down.
pub fn verify_pairs(
    device: &Arc<dyn Device>,
    pairs: &mut Pairs,
    seed: u64,
    count: u64,
    tell: &mut dyn FnMut(&Line, &Pairs) -> Result<(), BenchError>,
) -> Result<Ended, BenchError> {
    run(device, pairs, &Drawn { mix: Mix::All, seed, first: 0, count, threads: 0 }, &|| false, tell)
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
        Mix::Conv => Recipe { convolutions: true, ..all },
        Mix::Formats => Recipe { formats: true, ..all },
        Mix::Grouped => Recipe { formats: true, grouped: true, ..all },
        Mix::Gated => Recipe { formats: true, chain: Chain::Gated, ..all },
        Mix::Losses => Recipe { formats: true, chain: Chain::Loss, ..all },
        Mix::Pairs => Recipe { formats: true, chain: Chain::Pairs, ..all },
        Mix::Tails => Recipe { formats: true, tails: true, ..all },
        Mix::Reduce => Recipe { reductions: true, ..all },
        Mix::ReduceUnits => Recipe { reductions: true, ..recipe(info, Mix::Units) },
        Mix::Schedules => Recipe { schedules: true, ..all },
        Mix::Units if info.kind == DeviceKind::Emulated => Recipe::units(),
        Mix::Units => Recipe { units: true, ..all },
    }
}

/// What verifying a pair says of it.
fn judge(info: &DeviceInfo, pair: &Pair, result: Result<tilewright_check::verify::Verification, PairError>) -> Judged {
    let mut line = Line {
        device: info.id.clone(),
        seed: pair.seed,
        problem: pair.problem.key(),
        plan: pair.plan.to_string(),
        outcome: PASSED,
        max_error: None,
        reason: None,
        cell: Cell::of(&pair.problem, &pair.plan, &info.target).map(|cell| cell.to_string()),
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
