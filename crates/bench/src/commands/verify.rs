//! Random pairs of plan and problem, verified on a device: many at once, since compiling takes most of the time.

use crate::args::{Common, Mix, VerifyArgs};
use crate::error::BenchError;
use crate::record::Sink;
use crate::session::Session;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use tilewright_device::{DeviceError, DeviceInfo, DeviceKind};
use tilewright_tune::random::{Pair, PairError, Recipe, pair, verify};

/// How one pair went: one line of JSON.
#[derive(Clone, Debug, Serialize)]
struct Line {
    device: String,
    seed: u64,
    problem: String,
    plan: String,
    /// `passed`, `wrong`, or what failed.
    outcome: &'static str,
    max_error: Option<f64>,
    reason: Option<String>,
}

/// `verify-random`.
///
/// # Errors
/// Bad arguments, a lost device, and where any pair did not pass.
pub fn verify_random(common: Common, args: VerifyArgs) -> Result<(), BenchError> {
    let limit = common.limit_seconds;
    let mut sink = Sink::open(common.json.as_deref())?;
    let device = Session::begin("verify-random", common)?.any_device()?;
    let info = device.info().clone();
    let recipe = recipe(&info, args.mix);
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let start = Instant::now();
    let (next, stop, lost) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(None::<DeviceError>));
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut failure = Ok(());
    std::thread::scope(|scope| {
        let (send, lines) = mpsc::channel::<Line>();
        for _ in 0..threads {
            let (send, device, info) = (send.clone(), &device, &info);
            let (next, stop, lost) = (&next, &stop, &lost);
            scope.spawn(move || {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let late = limit.is_some_and(|limit| start.elapsed() >= limit);
                    if n >= args.count || late || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let seed = args.seed.wrapping_mul(1_000_003).wrapping_add(args.first + n);
                    let (line, fatal) = match pair(&info.target, &recipe, seed) {
                        Some(pair) => judge(info, &pair, verify(device, &pair)),
                        None => continue,
                    };
                    if let Some(e) = fatal {
                        stop.store(true, Ordering::Relaxed);
                        lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    }
                    if send.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (n, line) in lines.into_iter().enumerate() {
            *counts.entry(line.outcome).or_default() += 1;
            if line.outcome != "passed" {
                println!("{}: seed {}: --problem {} --plan {}", line.outcome, line.seed, line.problem, line.plan);
                println!("    {}", line.reason.as_deref().unwrap_or_default());
            }
            if n % 50 == 49 {
                eprintln!("[{:6.1} s] {} of {} pairs: {}", start.elapsed().as_secs_f64(), n + 1, args.count, tell(&counts));
            }
            if let Err(e) = sink.write(&line) {
                stop.store(true, Ordering::Relaxed);
                failure = Err(e);
            }
        }
    });
    failure?;
    let done: u64 = counts.values().sum();
    println!("{done} of {} pairs in {:.1} s on {}: {}", args.count, start.elapsed().as_secs_f64(), info.id, tell(&counts));
    if let Some(e) = lost.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(e.into());
    }
    match done - counts.get("passed").copied().unwrap_or(0) {
        0 if done > 0 => Ok(()),
        0 => Err(BenchError::Usage("no pair was verified: allow more time".into())),
        bad => Err(BenchError::Plan(format!("{bad} pairs did not pass; `--seed {} --first N --count 1` repeats one", args.seed))),
    }
}

fn tell(counts: &BTreeMap<&'static str, u64>) -> String {
    counts.iter().map(|(what, n)| format!("{n} {what}")).collect::<Vec<_>>().join(", ")
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

/// The line of a pair, and the error that took the device down, if one did.
fn judge(
    info: &DeviceInfo,
    pair: &Pair,
    result: Result<tilewright_tune::verify::Verification, PairError>,
) -> (Line, Option<DeviceError>) {
    let mut line = Line {
        device: info.id.clone(),
        seed: pair.seed,
        problem: pair.problem.key(),
        plan: pair.plan.to_string(),
        outcome: "passed",
        max_error: None,
        reason: None,
    };
    match result {
        Ok(v) => {
            line.max_error = Some(v.max_error).filter(|e| e.is_finite());
            if !v.passed {
                line.outcome = if v.race { "racing" } else { "wrong" };
                line.reason = v.reason;
            }
            (line, None)
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
            (line, device.filter(|e| e.is_fatal()).cloned())
        }
    }
}
