//! Measures alternatives round-robin: A B A B ..., each run alone on a cold cache, until the medians stand or time is up.

use crate::error::BenchError;
use crate::stats::Summary;
use std::time::{Duration, Instant};

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Rounds at least.
    pub least: u32,
    /// Rounds at most; while a side's spread is wide, [`LONGER`] times as many.
    pub most: u32,
    /// No round starts after this, the least ones excepted; while a side's spread is wide, after [`LONGER`] times this.
    pub time: Duration,
    /// Done when half of each side's spread relative to its median over the square root of the rounds is below this.
    pub precision: f64,
    /// Runs before the first round start until this has passed, two at least: clocks rise, caches of drivers fill.
    pub warm_up: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { least: 9, most: 101, time: Duration::from_millis(1500), precision: 0.002, warm_up: Duration::from_millis(30) }
    }
}

/// How many times as long a measurement may take while a side's spread is wide.
const LONGER: u32 = 4;
/// Runs whose mean is one sample when a side's spread is still wide. The jitter of short kernels and of events then averages out.
const RUNS: usize = 4;

/// One run of an alternative: its time in microseconds.
pub type Run<'a> = Box<dyn FnMut() -> Result<f64, BenchError> + 'a>;

fn is_any_wide(samples: &[Vec<f64>]) -> bool {
    samples.iter().any(|s| Summary::of(s).is_some_and(|s| s.is_wide()))
}

/// Times all alternatives round-robin. One that fails is left out from then on, with its error.
///
/// # Errors
/// Only what ends the whole run: a device that cannot be used any more.
pub fn interleave(sides: &mut [Run<'_>], limits: &Limits) -> Result<Vec<Result<Summary, BenchError>>, BenchError> {
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); sides.len()];
    let mut failed: Vec<Option<BenchError>> = sides.iter().map(|_| None).collect();
    let mut run = |n: usize, failed: &mut [Option<BenchError>]| -> Result<Option<f64>, BenchError> {
        if failed[n].is_some() {
            return Ok(None);
        }
        match sides[n]() {
            Ok(us) => Ok(Some(us)),
            Err(e) if e.is_fatal() => Err(e),
            Err(e) => {
                failed[n] = Some(e);
                Ok(None)
            }
        }
    };
    let start = Instant::now();
    for round in 0.. {
        for n in 0..samples.len() {
            run(n, &mut failed)?;
        }
        if round >= 1 && start.elapsed() >= limits.warm_up {
            break;
        }
    }
    let start = Instant::now();
    for round in 1..=limits.most * LONGER {
        for at in 0..samples.len() {
            // Every other round the other way round, so that no side always follows the same other.
            let n = if round % 2 == 0 { samples.len() - 1 - at } else { at };
            if let Some(us) = run(n, &mut failed)? {
                samples[n].push(us);
            }
        }
        let settled =
            |s: &Vec<f64>| Summary::of(s).is_none_or(|s| s.spread() / (2.0 * f64::from(s.rounds).sqrt()) <= limits.precision);
        let wide = is_any_wide(&samples);
        let more = if wide { LONGER } else { 1 };
        let over = round >= limits.most * more || start.elapsed() >= limits.time * more;
        if round >= limits.least && (over || (!wide && samples.iter().all(settled))) {
            break;
        }
    }
    let wide = is_any_wide(&samples);
    let least = RUNS * limits.least as usize;
    let enough = samples.iter().all(|s| s.is_empty() || s.len() >= least);
    let summary = |samples: &[f64]| if wide && enough { Summary::of_means(samples, RUNS) } else { Summary::of(samples) };
    let outcomes = failed.into_iter().zip(samples).map(|(error, samples)| match (error, summary(&samples)) {
        (Some(e), _) => Err(e),
        (None, Some(summary)) => Ok(summary),
        (None, None) => Err(BenchError::Usage("no round was measured: allow more time".into())),
    });
    Ok(outcomes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn limits(least: u32, most: u32) -> Limits {
        Limits { least, most, time: Duration::ZERO, precision: 0.0, warm_up: Duration::ZERO }
    }

    #[test]
    fn sides_take_turns_in_both_orders() {
        let order = RefCell::new(String::new());
        let side = |name: char, us: f64| -> Run<'_> {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(name);
                Ok(us)
            })
        };
        let results = interleave(&mut [side('a', 1.0), side('b', 2.0)], &limits(3, 9)).unwrap();
        // Two rounds to warm up, then three.
        assert_eq!(*order.borrow(), "abababbaab");
        let medians: Vec<f64> = results.into_iter().map(|r| r.unwrap().median_us).collect();
        assert_eq!(medians, [1.0, 2.0]);
    }

    #[test]
    fn a_failing_side_leaves_the_other_alone() {
        let mut calls = 0;
        let good: Run<'_> = Box::new(|| Ok(1.0));
        let bad: Run<'_> = Box::new(|| {
            calls += 1;
            if calls > 3 { Err(BenchError::Usage("broken".into())) } else { Ok(1.0) }
        });
        let results = interleave(&mut [good, bad], &limits(5, 5)).unwrap();
        assert_eq!(results[0].as_ref().unwrap().rounds, 5);
        assert!(results[1].as_ref().unwrap_err().to_string().contains("broken"));
        assert_eq!(calls, 4);
    }

    #[test]
    fn settled_measurements_end_early() {
        let steady: Run<'_> = Box::new(|| Ok(5.0));
        let all = Limits { time: Duration::from_secs(60), precision: 0.01, ..limits(3, 50) };
        assert_eq!(interleave(&mut [steady], &all).unwrap()[0].as_ref().unwrap().rounds, 3);
        let mut us = 100.0;
        let noisy: Run<'_> = Box::new(move || {
            us = 300.0 - us;
            Ok(us)
        });
        // Wide to the end: four times as many runs, and means of four.
        let noisy = interleave(&mut [noisy], &all).unwrap().remove(0).unwrap();
        assert_eq!((noisy.rounds, noisy.runs, noisy.is_wide()), (50, 4, false));
    }

    #[test]
    fn means_do_not_hide_a_slow_change() {
        let mut run = 0;
        let rising: Run<'_> = Box::new(move || {
            run += 1;
            Ok(100.0 + f64::from(run))
        });
        let all = Limits { time: Duration::from_secs(60), ..limits(9, 50) };
        assert!(interleave(&mut [rising], &all).unwrap()[0].as_ref().unwrap().is_wide());
    }
}
