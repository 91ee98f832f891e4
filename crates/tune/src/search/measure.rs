//! Timing one candidate: few samples for a hopeless one, many for a close one, alternating with the incumbent.
//!
//! A run is never faster than its kernel, but code loading, clock changes and other programs may slow it. So one slow run does not reject a
//! candidate. The faster of two runs decides whether a candidate is hopeless. Samples are repeated if some are much faster than the median.
//! All samples are repeated if a plan that may be near the best takes far longer than the calibrated cost model ([`super::expect`]) expects.

use super::THRESHOLD;
use super::expect::median;
use tilewright_device::{DeviceError, Launch};

/// A candidate this many times slower than the best is not looked at again.
const HOPELESS: f64 = 1.35;
/// A first run that takes so many microseconds is no slower for code that is loaded and caches that are filled.
const LONG_US: f64 = 1_000.0;
/// Within this share of the best, candidate and incumbent are timed alternately.
const CLOSE: f64 = 1.03;
/// Device time to spend on the samples of one candidate, in microseconds.
const SPEND_US: f64 = 12_000.0;

/// Samples disagree if the fastest is so many times faster than the median.
const APART: f64 = 1.5;
/// A time so many times what is expected is doubted ...
const DOUBTED: f64 = 3.0;
/// ... of a plan that is expected within so many times the best.
const PROMISING: f64 = 2.0;

/// Gives the microseconds of so many runs of a sequence of launches.
type Sample<'a> = dyn FnMut(&[Launch], u32) -> Result<Vec<f64>, DeviceError> + 'a;

/// What a time is judged by before it is believed.
pub(super) struct Reference<'a> {
    /// The incumbent's microseconds and, where they are still at hand, its launches.
    pub best: Option<(f64, Option<&'a [Launch]>)>,
    /// Microseconds that the cost model expects of the candidate; `None` while there are too few trials to calibrate it on.
    pub expected_us: Option<f64>,
}

impl Reference<'_> {
    /// True if a time is to be taken once more: it loses a candidate that should be near the best.
    fn doubts(&self, time_us: f64) -> bool {
        let Some((best_us, _)) = self.best else { return false };
        match self.expected_us {
            Some(expected) => expected < PROMISING * best_us && time_us > DOUBTED * expected,
            None => time_us > DOUBTED * best_us,
        }
    }
}

/// Microseconds of a candidate.
///
/// # Errors
/// Those of `sample`.
pub(super) fn measure(sample: &mut Sample<'_>, launches: &[Launch], reference: &Reference<'_>) -> Result<f64, DeviceError> {
    let mut time = alone(sample, launches, reference)?;
    if reference.doubts(time) {
        time = time.min(alone(sample, launches, reference)?);
    }
    let Some((best_us, Some(incumbent))) = reference.best.filter(|b| time < CLOSE * b.0 && time > b.0 / CLOSE) else {
        return Ok(time);
    };
    // Clocks drift, so the ratio of alternating runs is more accurate than two separate times.
    let rounds = (2.0 * SPEND_US / time.max(1.0)).clamp(3.0, 25.0) as usize;
    let (mut own, mut other) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        own.extend(sample(launches, 1)?);
        other.extend(sample(incumbent, 1)?);
    }
    Ok(best_us * median(&own) / median(&other).max(f64::MIN_POSITIVE))
}

/// Microseconds of a candidate, timed without the incumbent.
fn alone(sample: &mut Sample<'_>, launches: &[Launch], reference: &Reference<'_>) -> Result<f64, DeviceError> {
    let best_us = reference.best.map_or(f64::INFINITY, |b| b.0);
    // The first run loads code and fills caches. One that is hopeless even so need not run again.
    let warm_up = median(&sample(launches, 1)?);
    if warm_up > 20.0 * best_us || (warm_up > LONG_US && warm_up > 1.1 * HOPELESS * best_us) {
        return Ok(warm_up);
    }
    let first = median(&sample(launches, 1)?);
    let faster = first.min(warm_up);
    let hopeless = if faster > LONG_US { 1.0 + (HOPELESS - 1.0) / 3.0 } else { HOPELESS };
    if faster > hopeless * best_us {
        return Ok(faster);
    }
    let repeats = (SPEND_US / faster.max(1.0)).clamp(1.0, 24.0) as u32;
    let mut samples = sample(launches, repeats)?;
    samples.push(first);
    let fastest = samples.iter().copied().fold(warm_up, f64::min);
    if median(&samples) > APART * fastest {
        samples.extend(sample(launches, repeats)?);
    }
    Ok(median(&samples))
}

/// True if a time beats the best.
pub(super) fn beats(time_us: f64, best_us: Option<f64>) -> bool {
    best_us.is_none_or(|best| time_us < THRESHOLD * best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures a candidate of 100 us on a device on which runs with these numbers take `times` as long. Gives its time and how
    /// often it ran.
    fn held_up(runs: &[usize], times: f64, reference: &Reference<'_>) -> (f64, usize) {
        let mut ran = 0;
        let mut sample = |_: &[Launch], repeats: u32| {
            let one = |n: usize| if runs.contains(&n) { 100.0 * times } else { 100.0 };
            let samples = (ran..ran + repeats as usize).map(one).collect();
            ran += repeats as usize;
            Ok(samples)
        };
        let time = measure(&mut sample, &[], reference).unwrap();
        (time, ran)
    }

    fn beside(best_us: f64, expected_us: Option<f64>) -> Reference<'static> {
        Reference { best: Some((best_us, None)), expected_us }
    }

    #[test]
    fn one_slow_run_loses_no_candidate() {
        let promising = beside(99.0, Some(80.0));
        assert_eq!(held_up(&[], 1.0, &promising), (100.0, 26));
        // Any one run, by little or much.
        for run in 0..26 {
            for times in [1.5, 9.0, 170.0] {
                assert_eq!(held_up(&[run], times, &promising).0, 100.0, "run {run}, {times} times");
            }
        }
        // The first two, and half of the samples.
        assert_eq!(held_up(&[0, 1], 9.0, &promising), (100.0, 28));
        let half: Vec<usize> = (2..20).collect();
        assert_eq!(held_up(&half, 9.0, &promising), (100.0, 50));
        // Without an expected time, a slow candidate is timed twice.
        assert_eq!(held_up(&[0, 1], 9.0, &beside(99.0, None)), (100.0, 28));
        assert_eq!(held_up(&[0, 1], 9.0, &Reference { best: None, expected_us: None }).0, 100.0);
    }

    #[test]
    fn slow_candidates_cost_few_runs() {
        // As expected, or not expected near the best.
        assert_eq!(held_up(&[], 1.0, &beside(10.0, Some(50.0))), (100.0, 2));
        assert_eq!(held_up(&[], 1.0, &beside(10.0, Some(30.0))), (100.0, 2));
        assert_eq!(held_up(&[], 1.0, &beside(4.0, Some(9.0))), (100.0, 1));
        // Unexpected: once more, and no more.
        assert_eq!(held_up(&[], 1.0, &beside(10.0, Some(15.0))), (100.0, 4));
        assert_eq!(held_up(&[], 1.0, &beside(4.0, Some(5.0))), (100.0, 2));
        assert_eq!(held_up(&[], 1.0, &beside(4.0, None)), (100.0, 2));
    }

    #[test]
    fn an_incumbent_close_by_is_timed_in_turn() {
        let incumbent = &[][..];
        let reference = Reference { best: Some((98.0, Some(incumbent))), expected_us: None };
        // Alternating runs take the same time.
        assert_eq!(held_up(&[30], 9.0, &reference).0, 98.0);
    }

    #[test]
    fn the_threshold_is_two_per_mille() {
        assert!(beats(99.7, Some(100.0)) && !beats(99.9, Some(100.0)) && beats(1e9, None));
    }
}
