//! Candidates that pass a quick look and are wrong all the same: none of them may end as the verified winner, whatever interrupts the
//! search, and however often it goes on from its records.

use rayon::prelude::*;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tilewright_device::{CacheState, Device, DeviceError, DeviceInfo, DeviceKind, Launch, LaunchArg, Timing, open};
use tilewright_gen::plan::{Chiral, Common, Constraint, Key, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Order, Problem};
use tilewright_tune::search::{Budget, Cancel, Ended, GENERATOR, Options, Outcome, Strategy, TuneError, device_key, tune};
use tilewright_tune::{ProblemKey, Records};

/// How a candidate lies. All of them are right the first time, without beta, as far as C is looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// Every second run of a kernel leaves something else in C.
    SecondRun,
    /// Wrong only where there is a beta.
    WithBeta,
    /// Writes to A.
    WritesOutside,
    /// Every second run with a beta leaves something else in C, where operands are too large to be kept twice.
    SecondRunWithBetaOfLarge,
}

const LIES: [Lie; 3] = [Lie::SecondRun, Lie::WithBeta, Lie::WritesOutside];

/// The emulator with a clock on which liars are the fastest.
struct Liar {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    lie: Lie,
    /// By the number of work-groups of the main kernel.
    lies: fn(u32) -> bool,
    /// Candidates timed before one hangs.
    hangs_after: i64,
    /// Runs of each kernel's source, without and with beta.
    runs: Mutex<HashMap<(String, bool), u32>>,
    /// Calls until the process dies.
    calls_left: AtomicI64,
    timed: AtomicI64,
}

impl Liar {
    fn new(lie: Lie, lies: fn(u32) -> bool, hangs_after: i64, calls: i64) -> Arc<Liar> {
        let inner = open("emu").unwrap();
        let info = DeviceInfo { kind: DeviceKind::Gpu, name: "liar".into(), ..inner.info().clone() };
        Arc::new(Liar {
            inner,
            info,
            lie,
            lies,
            hangs_after,
            runs: Mutex::default(),
            calls_left: AtomicI64::new(calls),
            timed: AtomicI64::new(0),
        })
    }

    /// The thread that drives the device unwinds here, as if the process had been killed: nothing is recorded after it.
    fn step(&self) {
        assert!(self.calls_left.fetch_sub(1, Ordering::Relaxed) > 0, "killed");
    }

    fn is_lying(&self, launches: &[Launch]) -> bool {
        launches.iter().any(|l| l.kernel.entry() == "tw_contract" && (self.lies)(l.grid.iter().product()))
    }

    /// The last argument of that name.
    fn arg<'a>(launches: &'a [Launch], name: &str) -> Option<&'a LaunchArg> {
        let mut named = launches.iter().flat_map(|l| l.kernel.args().iter().zip(&l.args));
        named.rfind(|(arg, _)| arg.name == name).map(|(_, value)| value)
    }

    /// Changes element 0 of an operand.
    fn spoil(&self, launches: &[Launch], name: &str) -> Result<(), DeviceError> {
        let Some(LaunchArg::Buffer(buffer)) = Liar::arg(launches, name) else { panic!("no buffer {name}") };
        let Some(LaunchArg::I64(at)) = Liar::arg(launches, &format!("{name}_offset")) else { panic!("no offset of {name}") };
        let (mut element, byte) = ([0; 4], *at as u64 * 4);
        self.inner.read(buffer, byte, &mut element)?;
        self.inner.write(buffer, byte, &(f32::from_le_bytes(element) + 64.0).to_le_bytes())
    }
}

impl Device for Liar {
    delegated!(inner: prepare compile memory sync);
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        self.step();
        self.inner.launch(launches)?;
        if !self.is_lying(launches) {
            return Ok(());
        }
        let sources: String = launches.iter().map(|l| l.kernel.source()).collect();
        let with_beta = matches!(Liar::arg(launches, "beta"), Some(LaunchArg::F32(beta)) if *beta != 0.0);
        let is_large = matches!(Liar::arg(launches, "a"), Some(LaunchArg::Buffer(a)) if a.bytes() > 256 << 20);
        let run = *self.runs.lock().unwrap().entry((sources, with_beta)).and_modify(|n| *n += 1).or_insert(1);
        match self.lie {
            Lie::SecondRun if run.is_multiple_of(2) => self.spoil(launches, "c"),
            Lie::SecondRunWithBetaOfLarge if is_large && with_beta && run.is_multiple_of(2) => self.spoil(launches, "c"),
            Lie::WithBeta if with_beta => self.spoil(launches, "c"),
            Lie::WritesOutside => self.spoil(launches, "a"),
            _ => Ok(()),
        }
    }
    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        self.step();
        if self.timed.fetch_add(1, Ordering::Relaxed) >= self.hangs_after {
            let (device, entry) = (self.info.id.clone(), launches[0].kernel.entry().into());
            return Err(DeviceError::Hang { device, entry, deadline: Duration::from_secs(1) });
        }
        let length: usize = launches.iter().map(|l| l.kernel.source().len()).sum();
        let us = if self.is_lying(launches) { 1.0 } else { 100.0 } + length as f64 * 1e-6;
        Ok(vec![us; timing.repeats as usize])
    }
}

const NEVER: i64 = i64::MAX;

fn problem() -> Problem {
    Problem::Gemm(Gemm::new(Scalar::F32, 40, 36, 20).order(Order::Col).build().unwrap())
}

/// A few dozen plans.
fn few(device: &dyn Device, problem: &Problem) -> Space {
    let whole = Constraint::exactly(&Plan::default().but(|keys| keys.predicate = 1));
    let free = [Key::C(Common::Unr), Key::C(Common::Mac), Key::A(Chiral::Mic)];
    let mut pins = Constraint::none();
    for key in Key::all().filter(|key| !free.contains(key)) {
        if let Some(value) = whole.get(key) {
            pins.pin(key, value);
        }
    }
    Space::new(problem, &device.info().target).unwrap().constrained(&pins)
}

fn search(liar: &Arc<Liar>, records: Option<&Records>, trials: u64) -> Result<Outcome, TuneError> {
    search_of(&problem(), liar, records, trials)
}

fn search_of(problem: &Problem, liar: &Arc<Liar>, records: Option<&Records>, trials: u64) -> Result<Outcome, TuneError> {
    let device: Arc<dyn Device> = liar.clone();
    let options = Options { budget: Budget::trials(trials), strategy: Strategy::Exhaustive, threads: 1, ..Options::default() };
    tune(&device, &few(liar.as_ref(), problem), records, &options, &Cancel::default(), &mut |_| {})
}

/// The time says it.
fn lies(time_us: f64) -> bool {
    time_us < 50.0
}

/// Time and plan that the records offer as the best: to `Operation::plan`, to a comparison.
fn offered(path: &Path, liar: &Liar) -> Option<(f64, Plan)> {
    let records = Records::open(path).unwrap();
    let best =
        records.best(&ProblemKey::of(&few(liar, &problem())), &device_key(liar.info(), CacheState::Cold), GENERATOR).unwrap();
    best.map(|trial| (trial.time_us.unwrap(), Plan::parse(&trial.plan).unwrap()))
}

/// Plans of few work-groups.
const SOME: fn(u32) -> bool = |groups| groups < 20;

#[test]
fn a_liar_is_the_fastest_and_does_not_win() {
    for lie in LIES {
        let outcome = search(&Liar::new(lie, SOME, NEVER, NEVER), None, 12).unwrap();
        assert!(outcome.verified && !lies(outcome.time_us) && outcome.tally.wrong > 0, "{lie:?} {outcome:?}");
    }
}

/// A GPU runs the problem itself, however large: twice with a beta, too.
#[test]
fn a_liar_on_large_operands_does_not_win() {
    // The columns of A lie far apart.
    let gemm = Gemm::new(Scalar::F32, 256, 64, 128).order(Order::Col).lda(540_000);
    let problem = Problem::Gemm(gemm.build().unwrap());
    let liar = Liar::new(Lie::SecondRunWithBetaOfLarge, SOME, NEVER, NEVER);
    let outcome = search_of(&problem, &liar, None, 6).unwrap();
    assert!(outcome.verified && !lies(outcome.time_us) && outcome.tally.wrong > 0, "{outcome:?}");
    assert_eq!(outcome.verified_on, None);
}

/// Kills a search at every call of the device, the calls of its last verification among them, and lets another go on from the records.
#[test]
fn whatever_is_killed_no_liar_wins_after_a_resume() {
    LIES.into_par_iter().for_each(|lie| {
        let (mut killed, mut calls) = (0, 1);
        loop {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("records.db");
            let liar = Liar::new(lie, SOME, NEVER, calls);
            let records = Records::open(&path).unwrap();
            let first = catch_unwind(AssertUnwindSafe(|| search(&liar, Some(&records), 8)));
            drop(records);
            assert!(offered(&path, &liar).is_none_or(|best| !lies(best.0)), "{lie:?}, killed after {calls} calls");
            let liar = Liar::new(lie, SOME, NEVER, NEVER);
            let again = search(&liar, Some(&Records::open(&path).unwrap()), 3).unwrap();
            assert!(again.verified && !lies(again.time_us), "{lie:?}, killed after {calls} calls: {again:?}");
            assert_eq!(offered(&path, &liar), Some((again.time_us, again.plan)));
            if let Ok(outcome) = first {
                assert!(outcome.unwrap().verified);
                break;
            }
            (killed, calls) = (killed + 1, calls + 1 + calls / 4);
        }
        assert!(killed > 10, "{killed}");
    });
}

#[test]
fn a_winner_of_a_lost_device_is_not_verified() {
    let liar = Liar::new(Lie::WithBeta, SOME, 20, NEVER);
    let outcome = search(&liar, None, 40).unwrap();
    assert!(matches!(outcome.ended, Ended::DeviceLost(_)), "{:?}", outcome.ended);
    assert!(lies(outcome.time_us) && !outcome.verified, "{outcome:?}");
}

#[test]
fn where_every_candidate_lies_none_wins() {
    let all = |_| true;
    let liar = Liar::new(Lie::WithBeta, all, NEVER, NEVER);
    let error = search(&liar, None, 20).unwrap_err();
    assert!(matches!(error, TuneError::NoPlan { trials: 20, .. }), "{error}");
}
