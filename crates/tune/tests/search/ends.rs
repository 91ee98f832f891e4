//! Where a search ends on a device that measures.

use std::sync::{Arc, Mutex};
use tilewright_device::{Device, DeviceError, DeviceInfo, DeviceKind, Launch, Timing, open};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Order, Problem};
use tilewright_tune::search::{Budget, Cancel, Ended, Event, Options, Strategy, tune};

/// The emulator with a clock that goes by the number of the kernels, in the order in which they are first timed.
struct Clock {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    /// Microseconds of the kernels of a number.
    us: fn(usize) -> f64,
    /// Sources that were timed.
    seen: Mutex<Vec<String>>,
}

impl Device for Clock {
    delegated!(inner: prepare compile memory sync);
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        self.inner.launch(launches)
    }
    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        let source: String = launches.iter().map(|l| l.kernel.source()).collect();
        let mut seen = self.seen.lock().unwrap();
        let number = seen.iter().position(|s| *s == source).unwrap_or(seen.len());
        if number == seen.len() {
            seen.push(source);
        }
        Ok(vec![(self.us)(number); timing.repeats as usize])
    }
}

/// How a search ended, after how many trials, and after which of them it had its last plan.
struct End {
    ended: Ended,
    trials: u64,
    last: u64,
}

fn end(us: fn(usize) -> f64, budget: Budget) -> End {
    let inner = open("emu").unwrap();
    let info = DeviceInfo { kind: DeviceKind::Gpu, name: "clock".into(), ..inner.info().clone() };
    let device: Arc<dyn Device> = Arc::new(Clock { inner, info, us, seen: Mutex::default() });
    let problem = Problem::Gemm(Gemm::new(Scalar::F32, 40, 36, 20).order(Order::Col).build().unwrap());
    let space = Space::new(&problem, &device.info().target).unwrap();
    let options = Options { budget, strategy: Strategy::Random, threads: 2, ..Options::default() };
    let mut trials = 0;
    let count = &mut |event: &Event| trials += u64::from(matches!(event, Event::Trial { .. }));
    let outcome = tune(&device, &space, None, &options, &Cancel::default(), count).unwrap();
    End { ended: outcome.ended, trials, last: outcome.history.last().expect("a plan").trial }
}

/// A search ends after the longer of 200 trials and a quarter of its budget without a gain of 1 %.
#[test]
fn a_measured_search_without_gains_ends_early() {
    for (trials, patience) in [(450, 200), (1000, 250)] {
        let End { ended, trials, last } = end(|_| 100.0, Budget::trials(trials));
        assert_eq!((ended, trials), (Ended::Converged, last + patience));
    }
    // Gains of 1 % begin it anew, smaller ones do not.
    let End { ended, trials, last } = end(|number| if number < 60 { 100.0 } else { 98.5 }, Budget::trials(700));
    assert!(ended == Ended::Converged && last > 60 && trials == last + 200, "{ended:?} after {trials}, {last}");
    let End { ended, trials, last } = end(|number| if number < 60 { 100.0 } else { 99.5 }, Budget::trials(700));
    assert!(ended == Ended::Converged && last > 60 && trials < last + 200, "{ended:?} after {trials}, {last}");
    // Small ones that add up are one.
    let End { ended, trials, last } = end(|number| 100.0 - 0.6 * (number / 60).min(2) as f64, Budget::trials(700));
    assert!(ended == Ended::Converged && last > 120 && trials == last + 200, "{ended:?} after {trials}, {last}");
    // Of a budget in both, a quarter of each.
    let both = Budget { seconds: Some(1e6), trials: Some(300) };
    let End { ended, trials, .. } = end(|_| 100.0, both);
    assert_eq!((ended, trials), (Ended::Budget, 300));
}
