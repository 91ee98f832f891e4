//! The order in which a search tries its candidates: a budget in trials repeats, however long builds take.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tilewright_device::{Compiled, Device, DeviceError, DeviceInfo, DeviceKind, Launch, Timing, open};
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_ir::{Kernel, Scalar};
use tilewright_problem::{Gemm, Order, Problem};
use tilewright_tune::Records;
use tilewright_tune::search::{Budget, Cancel, Event, Lineup, Options, tune};

/// The emulator with a clock, and a compiler that takes another time for each kernel and weather.
struct Slow {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    weather: u64,
}

impl Slow {
    fn device(kind: DeviceKind, weather: u64) -> Arc<dyn Device> {
        let inner = open("emu").unwrap();
        let info = DeviceInfo { kind, name: "slow".into(), ..inner.info().clone() };
        Arc::new(Slow { inner, info, weather })
    }
}

fn number(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Device for Slow {
    delegated!(inner: prepare memory sync);
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<Compiled>, DeviceError> {
        let compiled = self.inner.compile(kernel)?;
        std::thread::sleep(Duration::from_millis(number((compiled.source(), self.weather)) % 40));
        Ok(compiled)
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        self.inner.launch(launches)
    }
    fn rehearse(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        let sources: Vec<&str> = launches.iter().map(|launch| launch.kernel.source()).collect();
        std::thread::sleep(Duration::from_millis(number((sources, !self.weather)) % 20));
        Ok(())
    }
    /// The same for a plan in all weathers.
    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        let sources: Vec<&str> = launches.iter().map(|launch| launch.kernel.source()).collect();
        let us = 100.0 + (number(sources) % 1000) as f64 / 10.0;
        Ok(vec![us; timing.repeats as usize])
    }
}

fn problem(m: u64) -> Problem {
    Problem::Gemm(Gemm::new(Scalar::F32, m, 36, 20).order(Order::Col).build().unwrap())
}

/// What a search tried, and the microseconds.
fn tried(kind: DeviceKind, weather: u64, budget: Budget) -> Vec<(Plan, Option<f64>)> {
    searched(&problem(40), &Slow::device(kind, weather), None, &Options { budget, threads: 4, ..Options::default() })
}

fn searched(
    problem: &Problem,
    device: &Arc<dyn Device>,
    records: Option<&Records>,
    options: &Options,
) -> Vec<(Plan, Option<f64>)> {
    let space = Space::new(problem, &device.info().target).unwrap();
    let mut trials = Vec::new();
    let outcome = tune(device, &space, records, options, &Cancel::default(), &mut |event| {
        if let Event::Trial { plan, time_us, .. } = event {
            trials.push((*plan, *time_us));
        }
    });
    assert!(outcome.unwrap().verified);
    trials
}

#[test]
fn trials_are_the_same_however_builds_end() {
    for kind in [DeviceKind::Gpu, DeviceKind::Cpu] {
        let first = tried(kind, 0, Budget::trials(60));
        assert_eq!(first.len(), 60);
        for weather in 1..3 {
            assert_eq!(tried(kind, weather, Budget::trials(60)), first, "{kind:?}, weather {weather}");
        }
    }
}

#[test]
fn with_a_clock_what_is_built_first_is_tried_first() {
    let both = Budget { seconds: Some(60.0), trials: Some(24) };
    let first = tried(DeviceKind::Gpu, 0, both);
    assert!((1..6).any(|weather| tried(DeviceKind::Gpu, weather, both) != first));
}

/// Several workers: what a problem starts from does not depend on which of its neighbours in the order have ended.
#[test]
fn starts_come_from_problems_far_before_in_the_order() {
    let device = Slow::device(DeviceKind::Gpu, 0);
    let sizes: Vec<u64> = (0..10).map(|n| 58 - 2 * n).collect();
    let lineup = Arc::new(Lineup::new(sizes.iter().map(|m| problem(*m).key())));
    let options = Options { budget: Budget::trials(6), threads: 4, lineup: Some(lineup), ..Options::default() };
    // Of ten problems the last is searched, with these searched before it.
    let last = |before: &[u64]| {
        let records = Records::in_memory().unwrap();
        before.iter().for_each(|m| drop(searched(&problem(*m), &device, Some(&records), &options)));
        searched(&problem(sizes[9]), &device, Some(&records), &options)
    };
    let (alone, first) = (last(&[]), last(&sizes[..2]));
    assert_eq!(last(&sizes[7..9]), alone, "these may still be searched");
    assert_ne!(first, alone, "these have ended");
    assert_eq!(last(&[sizes[0], sizes[1], sizes[8]]), first);
}
