//! Timing one candidate: few samples for a hopeless one, many for a close one, in turn with the incumbent.

use super::THRESHOLD;
use tilewright_device::{Device, DeviceError, Launch, Timing};

/// A candidate this many times slower than the best is not looked at again.
const HOPELESS: f64 = 1.35;
/// A first run that takes so many microseconds is no slower for code that is loaded and caches that are filled.
const LONG_US: f64 = 1_000.0;
/// Within this share of the best, both are timed in turn.
const CLOSE: f64 = 1.03;
/// Device time to spend on the samples of one candidate, in microseconds.
const SPEND_US: f64 = 12_000.0;

/// The median; infinite without values.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len() / 2), sorted.len() % 2) {
        (Some(high), 0) => sorted.get(sorted.len() / 2 - 1).map_or(*high, |low| (low + high) / 2.0),
        (Some(middle), _) => *middle,
        (None, _) => f64::INFINITY,
    }
}

/// Microseconds of a candidate.
///
/// `best` is the incumbent's time and, where it is still at hand, its launches.
///
/// # Errors
/// Those of [`Device::time`].
pub(super) fn measure(
    device: &dyn Device,
    launches: &[Launch],
    best: Option<(f64, Option<&[Launch]>)>,
    flush_l2: bool,
) -> Result<f64, DeviceError> {
    let sample = |launches: &[Launch], repeats: u32| device.time(launches, &Timing { flush_l2, repeats });
    let best_us = best.map_or(f64::INFINITY, |b| b.0);
    // The first run loads code and fills caches. One that is hopeless even so need not run again.
    let warm_up = median(&sample(launches, 1)?);
    if warm_up > 20.0 * best_us || (warm_up > LONG_US && warm_up > 1.1 * HOPELESS * best_us) {
        return Ok(warm_up);
    }
    let first = median(&sample(launches, 1)?);
    let hopeless = if first > LONG_US { 1.0 + (HOPELESS - 1.0) / 3.0 } else { HOPELESS };
    if first > hopeless * best_us {
        return Ok(first);
    }
    let repeats = (SPEND_US / first.max(1.0)).clamp(1.0, 24.0) as u32;
    let mut samples = sample(launches, repeats)?;
    samples.push(first);
    let time = median(&samples);
    let Some((best_us, Some(incumbent))) = best.filter(|b| time < CLOSE * b.0 && time > b.0 / CLOSE) else {
        return Ok(time);
    };
    // Clocks drift: the ratio of runs in turn says more than two times taken apart.
    let rounds = (2.0 * SPEND_US / time.max(1.0)).clamp(3.0, 25.0) as usize;
    let (mut own, mut other) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        own.extend(sample(launches, 1)?);
        other.extend(sample(incumbent, 1)?);
    }
    Ok(best_us * median(&own) / median(&other).max(f64::MIN_POSITIVE))
}

/// True if a time beats the best.
pub(super) fn beats(time_us: f64, best_us: Option<f64>) -> bool {
    best_us.is_none_or(|best| time_us < THRESHOLD * best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), f64::INFINITY);
    }

    #[test]
    fn the_threshold_is_two_per_mille() {
        assert!(beats(99.7, Some(100.0)) && !beats(99.9, Some(100.0)) && beats(1e9, None));
    }
}
