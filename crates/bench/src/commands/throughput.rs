//! Candidates per second: of the search as it is, and where every single one is compiled, verified and timed.

use crate::args::{Common, Tuned};
use crate::error::{BenchError, Lost};
use crate::handover::{self, GoOn};
use crate::ours::{Tuning, searched};
use crate::session::Session;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tilewright_check::reference::Samples;
use tilewright_check::run::{Factors, compile};
use tilewright_check::verify::{Case, Depth};
use tilewright_device::{CacheState, Device, Timing};
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_problem::Problem;
use tilewright_tune::search::{Proposal, Random, Searcher};

/// Samples of one candidate's time.
const REPEATS: u32 = 5;

/// Candidates and seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Pace {
    candidates: f64,
    seconds: f64,
}

impl Pace {
    fn add(&mut self, other: Pace) {
        self.candidates += other.candidates;
        self.seconds += other.seconds;
    }
    /// Candidates per second; 0 where no time was spent.
    fn rate(self) -> f64 {
        if self.seconds > 0.0 { self.candidates / self.seconds } else { 0.0 }
    }
}

/// Over all cases of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Totals {
    cases: usize,
    search: Pace,
    strict: Pace,
}

/// What a process leaves to the next.
#[derive(Serialize)]
struct Left {
    #[serde(flatten)]
    go_on: GoOn,
    #[serde(flatten)]
    totals: Totals,
}

/// `throughput`.
///
/// # Errors
/// Bad arguments, cases that failed; [`BenchError::HandedOver`] where a new process has gone on.
pub fn throughput(common: Common, args: Tuned) -> Result<(), BenchError> {
    let budget = args.choice.budget;
    let mut totals: Totals = handover::left(common.go_on.as_deref())?;
    let goes_on = common.go_on.is_some();
    let mut session = Session::begin("throughput", common)?;
    let (_, constraint) = session.choose(&args.choice)?;
    let cases = session.cases(&args.cases)?;
    let device = session.device()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    if !goes_on {
        println!("{threads} threads, {budget:?} per case and column");
        println!("{:44} {:>22} {:>30}", "case", "search, candidates/s", "all verified, candidates/s");
    }
    let lost = RefCell::new(session.lost());
    let left = session.each_until_lost(&cases, |case| {
        let lost = lost.take();
        let space = Space::new(&case.problem, &device.info().target)?.constrained(&constraint);
        let outcome = searched(&device, &space, &Tuning { budget, records: None, cache: CacheState::Cold }, &lost)?;
        let search = Pace { candidates: outcome.tally.trials as f64, seconds: outcome.seconds };
        let (strict, failed) = strict(&device, &case.problem, &space, threads, budget, &lost)?;
        totals.cases += 1;
        totals.search.add(search);
        totals.strict.add(strict);
        println!(
            "{:44} {:>10.1} ({} tried) {:>14.1} ({} done, {failed} failed)",
            case.name,
            search.rate(),
            search.candidates,
            strict.rate(),
            strict.candidates,
        );
        Ok(Vec::new())
    })?;
    if let Some(go_on) = left {
        return Err(handover::hand_over(&Left { go_on, totals }));
    }
    println!("{:44} {:>10.1} {:>30.1}", format!("all {} cases", totals.cases), totals.search.rate(), totals.strict.rate());
    session.finish()
}

/// Random candidates, compiled on all threads; each is verified and timed on the device, one at a time. Their pace, and how many failed.
/// Those of `before` took an earlier process down: they count as failed.
fn strict(
    device: &Arc<dyn Device>,
    problem: &Problem,
    space: &Space,
    threads: usize,
    budget: Duration,
    before: &Lost,
) -> Result<(Pace, u64), BenchError> {
    let case = Case::new(device, problem, 1, Factors::default(), Samples::Budget(1 << 24))
        .map_err(|e| BenchError::Plan(e.to_string()))?;
    let searcher = Mutex::new(Random::new(space, 1));
    let (done, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let turn = Mutex::new(Turn::default());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while start.elapsed() < budget && lock(&turn).lost.is_none() {
                    let proposal = lock(&searcher).propose();
                    let Proposal::Try(plan) = proposal else { return };
                    let known = before.plans.contains(&plan.to_string());
                    match if known { Ok(false) } else { one(device, space, &case, &turn, &plan) } {
                        Ok(true) => done.fetch_add(1, Ordering::Relaxed),
                        // The device was lost beside it.
                        Err(e) if e.is_fatal() => return,
                        _ => failed.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
    });
    if let Some(e) = lock(&turn).lost.take() {
        return Err(e);
    }
    // Lost outside of any candidate's turn.
    device.sync()?;
    let pace = Pace { candidates: done.into_inner() as f64, seconds: start.elapsed().as_secs_f64() };
    Ok((pace, failed.into_inner()))
}

/// Held by the candidate that has the device: the one that loses it is known.
#[derive(Default)]
struct Turn {
    lost: Option<BenchError>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One candidate; true if it was right and has a time.
fn one(device: &Arc<dyn Device>, space: &Space, case: &Case, turn: &Mutex<Turn>, plan: &Plan) -> Result<bool, BenchError> {
    let bad = |e: String| BenchError::Plan(e);
    let resolved = space.resolve(plan).map_err(|e| bad(e.to_string()))?;
    let program = resolved.generate(space.env().workspace_bytes).map_err(|e| bad(e.to_string()))?;
    let compiled = compile(device.as_ref(), &program)?;
    let mut turn = lock(turn);
    if turn.lost.is_some() {
        return Ok(false);
    }
    let run = || {
        let verified = case.verify(&program, &compiled, resolved.contraction, Depth::Quick, false);
        let verified = verified.map_err(|e| e.device().cloned().map_or_else(|| bad(e.to_string()), BenchError::from))?;
        let workspace = match program.workspace_bytes {
            0 => None,
            bytes => Some(device.alloc(bytes)?),
        };
        let launches = case.bind(&program, &compiled, resolved.contraction, workspace).map_err(|e| bad(e.to_string()))?;
        let times = device.time(&launches, &Timing::cold(REPEATS))?;
        Ok(verified.passed && !times.is_empty())
    };
    run().inspect_err(|e: &BenchError| {
        if e.is_fatal() {
            let lost = Lost { plans: vec![plan.to_string()], seconds: 0.0 };
            turn.lost = Some(BenchError::Lost { why: format!("a candidate took the device down: {e}"), lost });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handover_keeps_the_cases_and_the_totals() {
        let go_on = GoOn { skip: 3, broken: 1, seconds: 2.5, ..GoOn::default() };
        let mut totals = Totals { cases: 2, ..Totals::default() };
        totals.search.add(Pace { candidates: 30.0, seconds: 2.0 });
        let text = serde_json::to_string(&Left { go_on: go_on.clone(), totals }).unwrap();
        assert_eq!(serde_json::from_str::<GoOn>(&text).unwrap(), go_on);
        assert_eq!(serde_json::from_str::<Totals>(&text).unwrap(), totals);
        assert_eq!((totals.search.rate(), totals.strict.rate()), (15.0, 0.0));
    }
}
