//! Many problems under one budget, on the emulator's modelled times.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewright_device::{Compiled, Device, DeviceError, DeviceInfo, Launch, Timing, open};
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_ir::{Kernel, Scalar};
use tilewright_problem::{Gemm, Problem};
use tilewright_tune::search::{
    Audience, Budget, Campaign, Cancel, Ended, Event, GENERATOR, Options, Outcome, RivalTime, SharedBudget, Standing, Task,
    TuneError, device_key, tune, tune_all,
};
use tilewright_tune::{ProblemKey, Records};

/// Picks that each problem gets at first.
const PICKS: usize = 3;

/// The emulator, whose compiler refuses kernels of f64.
struct Refusing {
    inner: Arc<dyn Device>,
}

impl Device for Refusing {
    delegated!(inner: memory sync);
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<Compiled>, DeviceError> {
        if format!("{:?}", kernel.args).contains("F64") {
            let (device, entry) = (self.info().id.clone(), kernel.name.clone());
            return Err(DeviceError::Compile { device, entry, log: "no f64".into() });
        }
        self.inner.compile(kernel)
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        self.inner.launch(launches)
    }
    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        self.inner.time(launches, timing)
    }
}

/// Something that an audience heard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Heard {
    Trial(usize),
    Settled(usize),
}

#[derive(Default)]
struct Listener {
    heard: Vec<Heard>,
    last: Standing,
    rivals: Vec<Option<f64>>,
    cancel: Option<Cancel>,
}

impl Audience for Listener {
    fn hear(&mut self, number: usize, event: &Event, _: &Standing) {
        if let Event::Trial { .. } = event {
            self.heard.push(Heard::Trial(number));
        }
    }
    fn settled(&mut self, number: usize, _: &Result<Outcome, TuneError>, standing: &Standing) -> Vec<RivalTime> {
        self.heard.push(Heard::Settled(number));
        self.last = *standing;
        if let (Some(cancel), true) = (&self.cancel, self.heard.iter().filter(|h| matches!(h, Heard::Settled(_))).count() == 2) {
            cancel.cancel();
        }
        self.rivals.get(number).copied().flatten().map(|us| RivalTime { number, us }).into_iter().collect()
    }
}

impl Listener {
    /// The problems in the order of their first winners.
    fn settled_first(&self) -> Vec<usize> {
        let mut order = Vec::new();
        for heard in &self.heard {
            if let Heard::Settled(number) = heard
                && !order.contains(number)
            {
                order.push(*number);
            }
        }
        order
    }
    fn trials(&self, of: usize) -> usize {
        self.heard.iter().filter(|heard| **heard == Heard::Trial(of)).count()
    }
}

fn spaces(device: &Arc<dyn Device>, sizes: &[u64]) -> Vec<Space> {
    let problem = |m: &u64| Problem::Gemm(Gemm::new(Scalar::F32, *m, 256, 256).build().unwrap());
    sizes.iter().map(|m| Space::new(&problem(m), &device.info().target).unwrap()).collect()
}

fn task(space: &Space, calls: f64) -> Task<'_> {
    let options = Options { budget: Budget::default(), threads: 2, ..Options::default() };
    Task { space, calls, rival_us: None, options }
}

fn trials(trials: u64) -> Option<SharedBudget> {
    Some(SharedBudget { budget: Budget::trials(trials), reach_all: false })
}

fn run(
    device: &Arc<dyn Device>,
    tasks: &[Task<'_>],
    records: &Records,
    budget: Option<SharedBudget>,
    listener: &mut Listener,
) -> Campaign {
    let cancel = listener.cancel.clone().unwrap_or_default();
    tune_all(device, tasks, Some(records), budget, &cancel, listener).unwrap()
}

fn winner(campaign: &Campaign, number: usize) -> &Outcome {
    campaign.outcomes[number].as_ref().unwrap().as_ref().unwrap()
}

#[test]
fn every_problem_has_a_winner_before_one_is_searched_on() {
    let (device, records) = (open("emu:sm_90a").unwrap(), Records::in_memory().unwrap());
    let spaces = spaces(&device, &[2048, 256, 8192]);
    let tasks: Vec<Task<'_>> = spaces.iter().map(|space| task(space, 1.0)).collect();
    let mut listener = Listener::default();
    let campaign = run(&device, &tasks, &records, trials(60), &mut listener);
    // The heaviest first, each with its picks and its winner.
    let opening = [2, 0, 1].into_iter().flat_map(|n| [Heard::Trial(n); PICKS].into_iter().chain([Heard::Settled(n)]));
    assert_eq!(listener.heard[..3 * (PICKS + 1)], opening.collect::<Vec<_>>());
    assert_eq!((0..3).map(|n| listener.trials(n)).sum::<usize>(), 60);
    assert_eq!(campaign.ended, Ended::Budget);
    assert_eq!((listener.last.reached, listener.last.problems, listener.last.share), (3, 3, 1.0));
    assert!(listener.last.gain >= 1.0, "{:?}", listener.last);
    for (number, space) in spaces.iter().enumerate() {
        let outcome = winner(&campaign, number);
        assert!(outcome.verified && outcome.tally.trials == listener.trials(number) as u64);
        let key = device_key(device.info(), Options::default().cache);
        let best = records.best(&ProblemKey::of(space), &key, GENERATOR).unwrap().unwrap();
        assert_eq!(Plan::parse(&best.plan).unwrap(), outcome.plan);
    }
    // The same again.
    let mut again = Listener::default();
    let second = run(&device, &tasks, &Records::in_memory().unwrap(), trials(60), &mut again);
    assert_eq!(again.heard, listener.heard);
    assert!((0..3).all(|n| winner(&second, n).plan == winner(&campaign, n).plan));
}

#[test]
fn calls_and_rivals_are_weights() {
    let device = open("emu:sm_90a").unwrap();
    let spaces = spaces(&device, &[2048, 256, 8192]);
    let calls = [1.0, 1000.0, 10.0];
    let mut tasks: Vec<Task<'_>> = spaces.iter().zip(calls).map(|(space, calls)| task(space, calls)).collect();
    let mut listener = Listener::default();
    run(&device, &tasks, &Records::in_memory().unwrap(), trials(9), &mut listener);
    assert_eq!(listener.settled_first(), [1, 2, 0]);
    // A budget that is too short leaves the light ones.
    let mut listener = Listener::default();
    let campaign = run(&device, &tasks, &Records::in_memory().unwrap(), trials(6), &mut listener);
    assert_eq!(listener.settled_first(), [1, 2]);
    assert!(campaign.outcomes[0].is_none() && listener.last.share > 0.9 && listener.last.share < 1.0);
    // A rival's time counts in place of the model's.
    for (task, rival) in tasks.iter_mut().zip([1e6, 1.0, 1.0]) {
        (task.calls, task.rival_us) = (1.0, Some(rival));
    }
    let mut listener = Listener::default();
    run(&device, &tasks, &Records::in_memory().unwrap(), trials(9), &mut listener);
    assert_eq!(listener.settled_first()[0], 0);
    assert!(listener.last.gain > 100.0, "{:?}", listener.last);
}

#[test]
fn picks_that_fail_do_not_stop_the_others() {
    let device: Arc<dyn Device> = Arc::new(Refusing { inner: open("emu:sm_90a").unwrap() });
    let mut spaces = spaces(&device, &[2048, 1024, 256]);
    let f64 = Problem::Gemm(Gemm::new(Scalar::F64, 1024, 256, 256).build().unwrap());
    spaces[1] = Space::new(&f64, &device.info().target).unwrap();
    let tasks: Vec<Task<'_>> = spaces.iter().map(|space| task(space, 1.0)).collect();
    let mut listener = Listener::default();
    let campaign = run(&device, &tasks, &Records::in_memory().unwrap(), trials(20), &mut listener);
    assert!(winner(&campaign, 0).verified && winner(&campaign, 2).verified);
    assert!(matches!(campaign.outcomes[1], Some(Err(TuneError::NoPlan { .. }))), "{:?}", campaign.outcomes[1]);
    assert_eq!(listener.last.reached, 2);
}

#[test]
fn an_interruption_keeps_what_was_found_and_the_next_run_goes_on() {
    let (device, records) = (open("emu:sm_90a").unwrap(), Records::in_memory().unwrap());
    let spaces = spaces(&device, &[2048, 256, 8192]);
    let tasks: Vec<Task<'_>> = spaces.iter().map(|space| task(space, 1.0)).collect();
    let mut listener = Listener { cancel: Some(Cancel::default()), ..Listener::default() };
    let campaign = run(&device, &tasks, &records, trials(60), &mut listener);
    assert_eq!((campaign.ended, listener.settled_first()), (Ended::Cancelled, vec![2, 0]));
    assert!(campaign.outcomes[1].is_none());
    // Winners in the records get no picks again; what is missing does.
    let mut listener = Listener::default();
    let second = run(&device, &tasks, &records, trials(PICKS as u64), &mut listener);
    assert_eq!(listener.heard[..2], [Heard::Settled(2), Heard::Settled(0)]);
    assert_eq!(listener.trials(1), PICKS);
    assert!((0..3).all(|n| winner(&second, n).verified));
    assert_eq!(winner(&second, 2).resumed, PICKS as u64);
}

#[test]
fn budgets_of_their_own_are_those_of_plain_searches() {
    let (device, cancel) = (open("emu:sm_90a").unwrap(), Cancel::default());
    let spaces = spaces(&device, &[256, 512]);
    let options = Options { budget: Budget::trials(6), ..Options::default() };
    let tasks: Vec<Task<'_>> = spaces.iter().map(|space| Task { options: options.clone(), ..task(space, 1.0) }).collect();
    let campaign = run(&device, &tasks, &Records::in_memory().unwrap(), None, &mut Listener::default());
    let records = Records::in_memory().unwrap();
    for (number, space) in spaces.iter().enumerate() {
        let plain = tune(&device, space, Some(&records), &options, &cancel, &mut |_| ()).unwrap();
        let outcome = winner(&campaign, number);
        assert_eq!((outcome.plan, outcome.tally, outcome.history.len()), (plain.plan, plain.tally, plain.history.len()));
    }
    // With a common budget as well, no search takes more.
    let mut listener = Listener::default();
    let campaign = run(&device, &tasks, &Records::in_memory().unwrap(), trials(100), &mut listener);
    assert_eq!((listener.trials(0), listener.trials(1), campaign.ended), (6, 6, Ended::Exhausted));
}

#[test]
fn seconds_are_kept() {
    let device = open("emu:sm_90a").unwrap();
    let spaces = spaces(&device, &[2048, 256, 8192, 1024]);
    let tasks: Vec<Task<'_>> = spaces.iter().map(|space| task(space, 1.0)).collect();
    let budget = |seconds, reach_all| Some(SharedBudget { budget: Budget::seconds(seconds), reach_all });
    let records = Records::in_memory().unwrap();
    let start = Instant::now();
    let campaign = run(&device, &tasks, &records, budget(0.0, false), &mut Listener::default());
    assert!(campaign.outcomes.iter().all(Option::is_none) && campaign.ended == Ended::Budget);
    assert!(start.elapsed() < Duration::from_secs(60));
    let campaign = run(&device, &tasks, &records, budget(0.0, true), &mut Listener::default());
    assert!((0..4).all(|n| winner(&campaign, n).verified));
}

#[test]
fn winners_of_a_run_are_starts_of_their_neighbours() {
    let (device, records) = (open("emu:sm_90a").unwrap(), Records::in_memory().unwrap());
    let spaces = spaces(&device, &[2048, 2056]);
    let tasks: Vec<Task<'_>> = spaces.iter().zip([2.0, 1.0]).map(|(space, calls)| task(space, calls)).collect();
    let campaign = run(&device, &tasks, &records, trials(150), &mut Listener::default());
    let key = device_key(device.info(), Options::default().cache);
    let tried = records.trials(&ProblemKey::of(&spaces[1]), &key, GENERATOR).unwrap();
    let later: Vec<Plan> = tried.iter().skip(PICKS).map(|t| Plan::parse(&t.plan).unwrap()).collect();
    let wins = winner(&campaign, 0).history.iter().filter_map(|step| spaces[1].repair(&step.plan));
    assert!(wins.into_iter().any(|win| later.contains(&win)), "{} trials", later.len());
}
