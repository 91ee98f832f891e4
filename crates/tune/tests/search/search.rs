//! Searches on the emulator and on devices that misbehave.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tilewright_check::verify::Depth;
use tilewright_device::{CacheState, Compiled, Device, DeviceError, DeviceInfo, DeviceKind, Launch, Timing, open};
use tilewright_gen::plan::{Chiral, Common, Constraint, Key, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::{Kernel, Scalar};
use tilewright_problem::{Conv, Gemm, Operator, Order, Problem, Reduce};
use tilewright_tune::records::{Filter, State, TimeKind, Trial};
use tilewright_tune::search::{Budget, Cancel, Ended, Event, GENERATOR, Options, Outcome, Strategy, TuneError, device_key, tune};
use tilewright_tune::{ProblemKey, Records};

/// What a faulty device does with a kernel.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The compiler refuses it.
    Refuses,
    /// The compiler never ends.
    Sleeps,
    /// The compiler panics.
    Panics,
    /// The kernel does nothing.
    Idles,
    /// The kernel never ends and takes the device with it.
    Hangs,
}

/// The emulator with a clock and with faults.
struct Faulty {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    /// By threads of the main kernel.
    fault: fn(u32) -> Fault,
    /// Runs of each kernel's source so far.
    runs: Mutex<HashMap<String, u32>>,
    /// How many times as long as usual the run of this number takes.
    pace: fn(u32) -> f64,
    /// Until it is ready.
    start: Duration,
    /// A rehearsal in a compile worker cancels the search and goes on until it is released.
    stuck: Option<Arc<Stuck>>,
}

struct Stuck {
    cancel: Cancel,
    release: Mutex<Receiver<()>>,
    /// A rehearsal has ended.
    ended: AtomicBool,
}

impl Faulty {
    fn device(fault: fn(u32) -> Fault) -> Arc<dyn Device> {
        Faulty::with(fault, |_| 1.0, Duration::ZERO)
    }
    fn with(fault: fn(u32) -> Fault, pace: fn(u32) -> f64, start: Duration) -> Arc<dyn Device> {
        let inner = open("emu").unwrap();
        let info = DeviceInfo { kind: DeviceKind::Gpu, name: "faulty".into(), ..inner.info().clone() };
        Arc::new(Faulty { inner, info, fault, runs: Mutex::default(), pace, start, stuck: None })
    }
    fn of(&self, kernel: &Compiled) -> Fault {
        if kernel.entry() == "tw_contract" { (self.fault)(kernel.threads()) } else { Fault::None }
    }
    fn any(&self, launches: &[Launch], fault: Fault) -> bool {
        launches.iter().any(|l| self.of(&l.kernel) == fault)
    }
}

impl Device for Faulty {
    delegated!(inner: memory sync);
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn prepare(&self, threads: usize) -> Result<(), DeviceError> {
        std::thread::sleep(self.start);
        self.inner.prepare(threads)
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<Compiled>, DeviceError> {
        let compiled = self.inner.compile(kernel)?;
        match self.of(&compiled) {
            Fault::Refuses => {
                Err(DeviceError::Compile { device: self.info.id.clone(), entry: kernel.name.clone(), log: "no".into() })
            }
            Fault::Sleeps => {
                std::thread::sleep(Duration::from_secs(600));
                Ok(compiled)
            }
            Fault::Panics => panic!("a compiler bug"),
            _ => Ok(compiled),
        }
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        if self.any(launches, Fault::Idles) { Ok(()) } else { self.inner.launch(launches) }
    }
    fn rehearse(&self, _: &[Launch]) -> Result<(), DeviceError> {
        if let Some(stuck) = &self.stuck {
            stuck.cancel.cancel();
            let _ = stuck.release.lock().unwrap().recv_timeout(Duration::from_secs(60));
            stuck.ended.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        if self.any(launches, Fault::Hangs) {
            let (device, entry) = (self.info.id.clone(), launches[0].kernel.entry().into());
            return Err(DeviceError::Hang { device, entry, deadline: Duration::from_secs(1) });
        }
        // Idle kernels are the fastest of all; the others' times are as good as any.
        let length: usize = launches.iter().map(|l| l.kernel.source().len()).sum();
        let us = if self.any(launches, Fault::Idles) { 1.0 } else { 100.0 + length as f64 };
        let sources: String = launches.iter().map(|l| l.kernel.source()).collect();
        let mut runs = self.runs.lock().unwrap();
        let run = runs.entry(sources).or_default();
        let samples = (0..timing.repeats).map(|n| us * (self.pace)(*run + n)).collect();
        *run += timing.repeats;
        Ok(samples)
    }
}

fn gemm(m: u64, n: u64, k: u64) -> Problem {
    Problem::Gemm(Gemm::new(Scalar::F32, m, n, k).order(Order::Col).build().unwrap())
}

fn small() -> Problem {
    gemm(40, 36, 20)
}

fn options(trials: u64) -> Options {
    Options { budget: Budget::trials(trials), threads: 2, ..Options::default() }
}

type Trials = Vec<(Plan, State, Option<String>)>;

/// A search with all its trials.
fn search(
    device: &Arc<dyn Device>,
    problem: &Problem,
    records: Option<&Records>,
    options: &Options,
) -> (Result<Outcome, TuneError>, Trials) {
    let space = Space::new(problem, &device.info().target).unwrap();
    let mut trials = Vec::new();
    let outcome = tune(device, &space, records, options, &Cancel::default(), &mut |event| {
        if let Event::Trial { plan, state, reason, .. } = event {
            trials.push((*plan, *state, reason.clone()));
        }
    });
    (outcome, trials)
}

#[test]
fn the_emulator_gives_modelled_times_and_verified_results() {
    let device = open("emu").unwrap();
    let (outcome, trials) = search(&device, &small(), None, &options(30));
    let outcome = outcome.unwrap();
    assert_eq!((outcome.time_kind, outcome.verified, outcome.verified_on), (TimeKind::Modelled, true, None));
    assert!(outcome.max_error.unwrap() < 1e-5);
    assert_eq!((trials.len(), outcome.tally.trials, outcome.ended), (30, 30, Ended::Budget));
    assert!(outcome.history.windows(2).all(|w| w[1].time_us < w[0].time_us));
    assert_eq!(outcome.history.last().map(|s| s.plan), Some(outcome.plan));
}

#[test]
fn convolutions_are_searched_as_well() {
    let conv = Conv::new(Scalar::F32, 3, 5, 6, &[9, 8], &[3, 3]).pad(&[1, 0], &[1, 2]).bias().build().unwrap();
    let (outcome, trials) = search(&open("emu").unwrap(), &Problem::Conv(conv), None, &options(25));
    assert!(outcome.unwrap().verified);
    let forms: HashSet<u32> = trials.iter().map(|t| t.0.form).collect();
    assert!(forms.len() > 1, "several forms of a convolution are tried: {forms:?}");
}

#[test]
fn records_name_the_generator_by_its_sources() {
    let (version, fingerprint) = GENERATOR.split_once('+').unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert!(fingerprint.len() == 16 && u64::from_str_radix(fingerprint, 16).is_ok_and(|f| f != 0xcbf2_9ce4_8422_2325));
}

#[test]
fn a_problem_too_large_for_the_emulator_is_verified_on_a_smaller_one() {
    let problem = gemm(4099, 5000, 1023);
    let (outcome, _) = search(&open("emu").unwrap(), &problem, None, &options(6));
    let outcome = outcome.unwrap();
    let on = outcome.verified_on.expect("a reduced problem");
    let (key, spared) = on.split_once(" (not run: ").expect("what did not run");
    assert!(Problem::parse(key).unwrap().flop() < 2e8 && outcome.verified && spared.contains("tiles of C"), "{on}");
}

#[test]
fn recorded_trials_are_not_repeated() {
    let device = open("emu").unwrap();
    let records = Records::in_memory().unwrap();
    let (first, tried) = search(&device, &small(), Some(&records), &options(20));
    let (second, more) = search(&device, &small(), Some(&records), &options(20));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((first.resumed, second.resumed), (0, 20));
    assert!(second.time_us <= first.time_us);
    let before: HashSet<Plan> = tried.iter().map(|t| t.0).collect();
    assert!(more.iter().all(|t| !before.contains(&t.0)));
    assert_eq!(records.list(&Filter::default()).unwrap().len(), 40);
}

#[test]
fn faults_cost_one_trial_each() {
    let fault = |threads| match threads {
        32 => Fault::Refuses,
        128 => Fault::Panics,
        256 => Fault::Idles,
        _ => Fault::None,
    };
    let device = Faulty::device(fault);
    let records = Records::in_memory().unwrap();
    let options = Options { strategy: Strategy::Random, ..options(100) };
    let (outcome, trials) = search(&device, &small(), Some(&records), &options);
    let outcome = outcome.unwrap();
    let of = |count: u32| trials.iter().filter(move |t| t.0.threads == count && t.0.producers == 0);
    assert!(of(32).count() > 0 && of(32).all(|t| t.1 == State::Failed));
    assert!(of(128).count() > 0 && of(128).all(|t| t.1 == State::Failed && t.2.as_ref().unwrap().contains("a compiler bug")));
    assert!(of(256).count() > 0 && of(256).all(|t| t.1 == State::Wrong && t.2.as_ref().unwrap().contains("NaN")));
    assert!(of(64).any(|t| t.1 == State::Ok));
    assert!(outcome.time_us > 100.0 && outcome.time_kind == TimeKind::Measured);
    assert_eq!(outcome.tally.trials, 100);
    assert_eq!(outcome.tally.failed, trials.iter().filter(|t| t.1 == State::Failed).count() as u64);
}

#[test]
fn runs_that_are_held_up_change_nothing() {
    let search = |pace, seed| {
        let options = Options { strategy: Strategy::Random, threads: 1, seed, ..options(40) };
        search(&Faulty::with(|_| Fault::None, pace, Duration::ZERO), &small(), None, &options).0.unwrap()
    };
    // One that does not begin with its best plan.
    let steady = |seed| (seed, search(|_| 1.0, seed));
    let (seed, steady) = (1..9).map(steady).find(|(_, found)| found.history.len() > 2).expect("a search that improves twice");
    for held_up in [|run| if run == 1 { 9.0 } else { 1.0 }, |run| if run % 5 == 2 { 50.0 } else { 1.0 }] {
        let found = search(held_up, seed);
        assert_eq!((found.plan, found.time_us, found.history.len()), (steady.plan, steady.time_us, steady.history.len()));
    }
}

#[test]
fn a_device_that_starts_slowly_costs_no_budget() {
    let start = Duration::from_secs(3);
    let device = Faulty::with(|_| Fault::None, |_| 1.0, start);
    let options = Options { budget: Budget::seconds(2.0), ..options(0) };
    let (outcome, trials) = search(&device, &small(), None, &options);
    let outcome = outcome.unwrap();
    assert!(outcome.spent.starting >= start.as_secs_f64());
    assert!(trials.len() > 1 && outcome.history[0].seconds < 2.0, "{} trials", trials.len());
}

#[test]
fn a_compiler_that_never_ends_costs_one_trial() {
    // Only the grid of one shape is affected: the rest of the search goes on beside the sleeping thread.
    let device = Faulty::device(|threads| if threads == 128 { Fault::Sleeps } else { Fault::None });
    let options = Options { build_limit: Duration::from_secs(4), strategy: Strategy::Random, ..options(40) };
    let start = Instant::now();
    let (outcome, trials) = search(&device, &small(), None, &options);
    let hung: Vec<_> = trials.iter().filter(|t| t.1 == State::Hung).collect();
    assert!(!hung.is_empty() && hung.iter().all(|t| t.0.threads == 128));
    assert_eq!(outcome.unwrap().tally.hung, hung.len() as u64);
    assert!(start.elapsed() < Duration::from_secs(120));
}

#[test]
fn a_lost_device_ends_the_search_and_the_next_one_avoids_the_candidate() {
    let records = Records::in_memory().unwrap();
    let device = Faulty::device(|threads| if threads >= 256 { Fault::Hangs } else { Fault::None });
    let mut rounds = 0;
    let mut hung = HashSet::new();
    // As a supervisor would: on until a run ends within its budget.
    loop {
        rounds += 1;
        let options = Options { strategy: Strategy::Random, ..options(8) };
        let (outcome, trials) = search(&device, &small(), Some(&records), &options);
        let (last, fine) = trials.split_last().unwrap();
        match outcome {
            Ok(Outcome { ended: Ended::Budget, .. }) => break,
            Ok(Outcome { ended: Ended::DeviceLost(_), .. }) | Err(TuneError::NoPlan { .. }) => {
                assert_eq!(last.1, State::Hung);
                assert!(hung.insert(last.0), "tried again: {}", last.0);
                assert!(fine.iter().all(|t| t.1 != State::Hung));
            }
            other => panic!("{other:?}"),
        }
        assert!(rounds < 400);
    }
    assert!(rounds > 1);
}

#[test]
fn cancelling_keeps_what_was_found() {
    let device = open("emu").unwrap();
    let space = Space::new(&small(), &device.info().target).unwrap();
    let cancel = Cancel::default();
    let outcome = tune(&device, &space, None, &options(100_000), &cancel, &mut |event| {
        if let Event::Trial { tally, .. } = event
            && tally.trials == 10
        {
            cancel.cancel();
        }
    });
    let outcome = outcome.unwrap();
    assert_eq!((outcome.ended, outcome.tally.trials, outcome.verified), (Ended::Cancelled, 10, true));
}

#[test]
fn constraints_hold_and_a_small_space_is_exhausted() {
    let device = open("emu").unwrap();
    let mut pins = Constraint::exactly(&Plan::default().but(|keys| keys.predicate = 1));
    pins = Key::all().fold(Constraint::none(), |mut kept, key| {
        let free = [Key::C(Common::Unr), Key::A(Chiral::Mic), Key::C(Common::Mad)].contains(&key);
        if let Some(value) = pins.get(key).filter(|_| !free) {
            kept.pin(key, value);
        }
        kept
    });
    let space = Space::new(&small(), &device.info().target).unwrap().constrained(&pins);
    let mut plans = HashSet::new();
    let options = Options { strategy: Strategy::Exhaustive, ..options(10_000) };
    let outcome = tune(&device, &space, None, &options, &Cancel::default(), &mut |event| {
        if let Event::Trial { plan, .. } = event {
            assert!(pins.allows(plan), "{plan}");
            plans.insert(*plan);
        }
    });
    assert_eq!(outcome.unwrap().ended, Ended::Exhausted);
    assert!(plans.len() > 20, "{}", plans.len());
}

#[test]
fn random_search_tries_different_plans() {
    let options = Options { strategy: Strategy::Random, ..options(30) };
    let (outcome, trials) = search(&open("emu").unwrap(), &small(), None, &options);
    assert!(outcome.unwrap().verified);
    assert_eq!(trials.iter().map(|t| t.0).collect::<HashSet<_>>().len(), 30);
}

#[test]
fn an_impossible_constraint_is_an_error_with_a_hint() {
    let device = open("emu").unwrap();
    let mut pins = Constraint::none();
    pins.pin(Key::C(Common::Mac), 1024);
    pins.pin(Key::A(Chiral::Mic), 64);
    pins.pin(Key::B(Chiral::Mic), 64);
    let space = Space::new(&small(), &device.info().target).unwrap().constrained(&pins);
    let e = tune(&device, &space, None, &options(10), &Cancel::default(), &mut |_| {}).unwrap_err();
    assert!(matches!(e, TuneError::NoPlan { .. }) && e.to_string().contains("constraint"), "{e}");
}

#[test]
fn a_budget_that_is_no_time_is_an_error() {
    for seconds in [f64::NAN, -1.0] {
        let options = Options { budget: Budget::seconds(seconds), ..options(0) };
        let e = search(&open("emu").unwrap(), &small(), None, &options).0.unwrap_err();
        assert!(matches!(e, TuneError::Budget { .. }) && e.to_string().contains("at least 0"), "{e}");
    }
}

#[test]
fn plans_of_another_driver_and_generator_are_tried_first() {
    let device = open("emu").unwrap();
    let records = Records::in_memory().unwrap();
    let (found, _) = search(&device, &small(), Some(&records), &options(30));
    let plan = found.unwrap().plan;
    let mut lines = Vec::new();
    records.export(&Filter { problem: None, ..Filter::default() }, &mut lines).unwrap();
    let text = plan.to_string();
    let other = String::from_utf8(lines).unwrap().lines().filter(|line| line.contains(&text)).collect::<Vec<_>>().join("\n");
    for (what, instead) in [(GENERATOR, "0.0.1+old"), ("emulator ", "emulator of yesterday ")] {
        let records = Records::in_memory().unwrap();
        assert_eq!(records.import(&mut other.replace(what, instead).as_bytes(), "lines").unwrap(), 1);
        let (again, trials) = search(&device, &small(), Some(&records), &Options { threads: 1, ..options(3) });
        let again = again.unwrap();
        assert_eq!((trials[0].0, trials[0].1, again.resumed), (plan, State::Ok, 0), "{instead}");
        assert!(again.verified);
    }
}

/// A search ends where more trials gain nothing: at once if nothing is read, else in a quarter of its budget.
#[test]
fn a_search_without_gains_ends_early() {
    let device = open("emu").unwrap();
    let nothing = Reduce::new(Scalar::F32, &[3, 0, 4], &[1]).op(Operator::Max).build().unwrap();
    let (outcome, trials) = search(&device, &Problem::Reduce(nothing), None, &options(1000));
    assert_eq!(outcome.unwrap().ended, Ended::Converged);
    assert!(trials.len() < 10, "{} trials", trials.len());
    let (outcome, trials) = search(&device, &small(), None, &options(1200));
    let outcome = outcome.unwrap();
    let last = outcome.history.iter().rfind(|step| step.time_us > 1.01 * outcome.time_us).map_or(0, |step| step.trial);
    assert_eq!(outcome.ended, Ended::Converged);
    assert!(trials.len() >= 300 && (trials.len() as u64) < 1200 && trials.len() as u64 >= last + 300, "{} trials", trials.len());
    // Whoever asks for all plans gets them.
    let all = Options { strategy: Strategy::Exhaustive, ..options(400) };
    assert_eq!(search(&device, &small(), None, &all).0.unwrap().ended, Ended::Budget);
}

/// A row that names a plan which is not legal here costs one candidate, whoever wrote it.
#[test]
fn an_illegal_recorded_plan_is_not_the_best() {
    let device = open("emu").unwrap();
    let records = Records::in_memory().unwrap();
    let space = Space::new(&small(), &device.info().target).unwrap();
    let illegal = Plan::from(Plan::default().but(|keys| {
        keys.both(|o| o.micro = 64);
        keys.threads = 1024;
    }));
    assert!(space.resolve(&illegal).is_err());
    let trial = Trial { verified: Some(Depth::Thorough), ..Trial::timed(&illegal.to_string(), 1e-2, TimeKind::Modelled) };
    records
        .add(&ProblemKey::of(&space), &small().key(), &device_key(device.info(), CacheState::Cold), GENERATOR, &trial)
        .unwrap();
    let (outcome, _) = search(&device, &small(), Some(&records), &options(10));
    let outcome = outcome.unwrap();
    assert!(outcome.plan != illegal && outcome.verified);
    // Nor is it imported, where it can be told.
    let mut lines = Vec::new();
    records.export(&Filter::default(), &mut lines).unwrap();
    let e = Records::in_memory().unwrap().import(&mut &lines[..], "rows.jsonl").unwrap_err().to_string();
    assert!(e.starts_with("rows.jsonl, line 1: plan ") && e.contains("is not legal"), "{e}");
}

const CHILD: &str = "TILEWRIGHT_TEST_RECORDS";

/// Not a test of its own: the process that [`a_killed_search_goes_on_where_it_stood`] kills.
#[test]
fn child_process() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let records = Records::open(path).unwrap();
    let _ = search(&open("emu").unwrap(), &small(), Some(&records), &options(1_000_000));
}

#[test]
fn a_killed_search_goes_on_where_it_stood() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.db");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "search::child_process", "--nocapture"])
        .env(CHILD, &path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let count = || Records::open(&path).and_then(|r| r.list(&Filter::default())).map_or(0, |l| l.len());
    let start = Instant::now();
    while count() < 15 {
        assert!(start.elapsed() < Duration::from_secs(120) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let device = open("emu").unwrap();
    let records = Records::open(&path).unwrap();
    let key = ProblemKey::of(&Space::new(&small(), &device.info().target).unwrap());
    let before = records.trials(&key, &device_key(device.info(), CacheState::Cold), GENERATOR).unwrap();
    assert!(before.len() >= 15);
    let (outcome, trials) = search(&device, &small(), Some(&records), &options(10));
    let outcome = outcome.unwrap();
    // The trial in flight, if there was one, may be tried again.
    assert_eq!(outcome.resumed as usize, before.len());
    assert_eq!(trials.iter().filter(|t| t.1 == State::Hung).count(), 0);
    let known: HashSet<String> = before.iter().map(|t| t.plan.clone()).collect();
    assert!(trials.iter().all(|t| !known.contains(&t.0.to_string())));
}

#[test]
fn times_with_warm_caches_are_recorded_apart() {
    let device = open("emu").unwrap();
    let records = Records::in_memory().unwrap();
    let key = ProblemKey::of(&Space::new(&small(), &device.info().target).unwrap());
    let warm = Options { cache: CacheState::Warm, ..options(4) };
    search(&device, &small(), Some(&records), &warm).0.unwrap();
    let trials = |cache| records.trials(&key, &device_key(device.info(), cache), GENERATOR).unwrap().len();
    assert_eq!((trials(CacheState::Warm), trials(CacheState::Cold)), (4, 0));
    // A cold search does not go on with them.
    assert_eq!(search(&device, &small(), Some(&records), &options(4)).0.unwrap().resumed, 0);
    assert_eq!(trials(CacheState::Cold), 4);
}

/// Who cancels does not wait for what runs in compile workers.
#[test]
fn a_cancelled_search_leaves_its_workers_behind() {
    let inner = open("emu").unwrap();
    let info = DeviceInfo { kind: DeviceKind::Cpu, name: "stuck".into(), ..inner.info().clone() };
    let cancel = Cancel::default();
    let (release, wait) = channel();
    let stuck = Arc::new(Stuck { cancel: cancel.clone(), release: Mutex::new(wait), ended: AtomicBool::new(false) });
    let fault: fn(u32) -> Fault = |_| Fault::None;
    let pace: fn(u32) -> f64 = |_| 1.0;
    let device: Arc<dyn Device> =
        Arc::new(Faulty { inner, info, fault, runs: Mutex::default(), pace, start: Duration::ZERO, stuck: Some(stuck.clone()) });
    let space = Space::new(&small(), &device.info().target).unwrap();
    let ended = tune(&device, &space, None, &options(5), &cancel, &mut |_| ());
    assert!(matches!(ended, Err(TuneError::NoPlan { trials: 0, .. })), "{ended:?}");
    assert!(!stuck.ended.load(Ordering::SeqCst), "the search waited for its compile worker");
    release.send(()).unwrap();
}
