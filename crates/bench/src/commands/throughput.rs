//! Candidates per second: of the search as it is, and where every single one is compiled, verified and timed.

use crate::args::{Common, ThroughputArgs};
use crate::error::BenchError;
use crate::session::Session;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tilewright_device::{Device, Timing};
use tilewright_gen::kernel::generate;
use tilewright_gen::plan::Plan;
use tilewright_gen::problem::Problem;
use tilewright_gen::reference::Samples;
use tilewright_tune::run::{Factors, compile};
use tilewright_tune::search::{self, Proposal, Random, Searcher};
use tilewright_tune::space::Space;
use tilewright_tune::verify::{Case, Depth};

/// Samples of one candidate's time.
const REPEATS: u32 = 5;

/// `throughput`.
///
/// # Errors
/// Bad arguments, a lost device.
pub fn throughput(common: Common, args: ThroughputArgs) -> Result<(), BenchError> {
    let budget = args.choice.budget;
    let session = Session::begin("throughput", common)?;
    let (_, constraint) = session.choose(&args.choice)?;
    let cases = session.cases(&args.cases, "problem")?;
    let device = session.device()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{threads} threads, {budget:?} per case and column");
    println!("{:44} {:>22} {:>30}", "case", "search, candidates/s", "all verified, candidates/s");
    let (mut search_sum, mut strict_sum) = ((0.0, 0.0), (0.0, 0.0));
    for case in &cases {
        let space = Space::new(&case.problem, &device.info().target)?.constrained(&constraint);
        let options = search::Options { budget: search::Budget::seconds(budget.as_secs_f64()), ..search::Options::default() };
        let outcome = search::tune(&device, &space, None, &options, &search::Cancel::default(), &mut |_| {})
            .map_err(|e| BenchError::Plan(e.to_string()))?;
        let (tried, seconds) = (outcome.tally.trials as f64, outcome.seconds);
        let strict = strict(&device, &case.problem, &space, threads, budget)?;
        search_sum = (search_sum.0 + tried, search_sum.1 + seconds);
        strict_sum = (strict_sum.0 + strict.done as f64, strict_sum.1 + strict.seconds);
        println!(
            "{:44} {:>10.1} ({tried} tried) {:>14.1} ({} done, {} failed)",
            case.name,
            tried / seconds,
            strict.done as f64 / strict.seconds,
            strict.done,
            strict.failed
        );
    }
    println!(
        "{:44} {:>10.1} {:>30.1}",
        format!("all {} cases", cases.len()),
        search_sum.0 / search_sum.1,
        strict_sum.0 / strict_sum.1
    );
    Ok(())
}

/// What came of candidates that were all compiled, verified and timed.
struct Strict {
    done: u64,
    failed: u64,
    seconds: f64,
}

/// Random candidates, compiled on all threads; each is verified and timed on the device, one at a time.
fn strict(
    device: &Arc<dyn Device>,
    problem: &Problem,
    space: &Space,
    threads: usize,
    budget: Duration,
) -> Result<Strict, BenchError> {
    let case = Case::new(device, problem, 1, Factors::default(), Samples::Budget(1 << 24))
        .map_err(|e| BenchError::Plan(e.to_string()))?;
    let searcher = Mutex::new(Random::new(space, 1));
    let (done, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let lost = Mutex::new(None);
    let gate = Mutex::new(());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while start.elapsed() < budget && lock(&lost).is_none() {
                    let proposal = lock(&searcher).propose();
                    let Proposal::Try(plan) = proposal else { return };
                    match one(device, space, &case, &gate, &plan) {
                        Ok(true) => done.fetch_add(1, Ordering::Relaxed),
                        Ok(false) => failed.fetch_add(1, Ordering::Relaxed),
                        Err(e) if e.is_fatal() => {
                            *lock(&lost) = Some(e);
                            return;
                        }
                        Err(_) => failed.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
    });
    if let Some(e) = lock(&lost).take() {
        return Err(e);
    }
    Ok(Strict { done: done.into_inner(), failed: failed.into_inner(), seconds: start.elapsed().as_secs_f64() })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One candidate; true if it was right and has a time.
fn one(device: &Arc<dyn Device>, space: &Space, case: &Case, gate: &Mutex<()>, plan: &Plan) -> Result<bool, BenchError> {
    let bad = |e: String| BenchError::Plan(e);
    let resolved = space.resolve(plan).map_err(|e| bad(e.to_string()))?;
    let program = generate(resolved.contraction, &resolved.spec, space.env().workspace_bytes).map_err(|e| bad(e.to_string()))?;
    let compiled = compile(device.as_ref(), &program)?;
    let _turn = lock(gate);
    let verified = case.verify(&program, &compiled, resolved.contraction, Depth::Quick, false);
    let verified = verified.map_err(|e| e.device().cloned().map_or_else(|| bad(e.to_string()), BenchError::from))?;
    let workspace = match program.workspace_bytes {
        0 => None,
        bytes => Some(device.alloc(bytes)?),
    };
    let launches = case.bind(&program, &compiled, resolved.contraction, workspace).map_err(|e| bad(e.to_string()))?;
    let times = device.time(&launches, &Timing { flush_l2: true, repeats: REPEATS })?;
    Ok(verified.passed && !times.is_empty())
}
