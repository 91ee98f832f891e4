//! The order in which a search tries its candidates: a budget in trials repeats, however long builds take.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tilewright_device::{Compiled, Device, DeviceError, DeviceInfo, DeviceKind, Launch, Timing, open};
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_ir::{Kernel, Scalar};
use tilewright_problem::{Gemm, Order, Problem};
use tilewright_tune::search::{Budget, Cancel, Event, Options, tune};

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

/// What a search tried, and the microseconds.
fn tried(kind: DeviceKind, weather: u64, budget: Budget) -> Vec<(Plan, Option<f64>)> {
    let device = Slow::device(kind, weather);
    let problem = Problem::Gemm(Gemm::new(Scalar::F32, 40, 36, 20).order(Order::Col).build().unwrap());
    let space = Space::new(&problem, &device.info().target).unwrap();
    let options = Options { budget, threads: 4, ..Options::default() };
    let mut trials = Vec::new();
    let outcome = tune(&device, &space, None, &options, &Cancel::default(), &mut |event| {
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
