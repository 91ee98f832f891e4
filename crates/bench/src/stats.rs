//! Medians, spreads and means of measured times.

use serde::{Deserialize, Serialize};

/// Times of one alternative over the rounds of a measurement, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median.
    pub median_us: f64,
    /// Least.
    pub min_us: f64,
    /// Tenth percentile.
    pub p10_us: f64,
    /// Ninetieth percentile.
    pub p90_us: f64,
    /// Samples taken.
    pub rounds: u32,
    /// Runs of a sample, which is their mean.
    #[serde(default = "one_run", skip_serializing_if = "is_one_run")]
    pub runs: u32,
}

fn one_run() -> u32 {
    1
}

fn is_one_run(runs: &u32) -> bool {
    *runs == 1
}

impl Summary {
    /// Summarises samples; `None` without any.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Summary {
            median_us: quantile(&sorted, 0.5)?,
            min_us: quantile(&sorted, 0.0)?,
            p10_us: quantile(&sorted, 0.1)?,
            p90_us: quantile(&sorted, 0.9)?,
            rounds: sorted.len() as u32,
            runs: 1,
        })
    }
    /// Summarises the means of every `runs` successive samples; `None` with fewer samples. A rest at the end is left out.
    pub fn of_means(samples: &[f64], runs: usize) -> Option<Summary> {
        let means: Vec<f64> = samples.chunks_exact(runs).map(|s| s.iter().sum::<f64>() / runs as f64).collect();
        Some(Summary { runs: runs as u32, ..Summary::of(&means)? })
    }
    /// The distance between the tenth and the ninetieth percentile, relative to the median.
    pub fn spread(&self) -> f64 {
        (self.p90_us - self.p10_us) / self.median_us
    }
    /// The spread is too large for a comparison: above 10 % of the median, for medians below 10 us above 1 us.
    pub fn is_wide(&self) -> bool {
        self.p90_us - self.p10_us > 0.1 * self.median_us.max(10.0)
    }
}

/// The quantile of sorted samples, linear between neighbours; `None` without any.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted.get(at.floor() as usize)?, sorted.get(at.ceil() as usize)?);
    Some(low + (high - low) * at.fract())
}

/// The median of samples in any order; `None` without any.
pub fn median(samples: &[f64]) -> Option<f64> {
    Summary::of(samples).map(|s| s.median_us)
}

/// Geometric mean of positive values; `None` without any.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|v| v.is_nan() || *v <= 0.0) {
        return None;
    }
    Some((values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_small_samples() {
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.median_us, one.min_us, one.p90_us, one.rounds), (7.0, 7.0, 7.0, 1));
        let s = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((s.median_us, s.min_us), (2.5, 1.0));
        assert!((s.p10_us - 1.3).abs() < 1e-12 && (s.p90_us - 3.7).abs() < 1e-12);
        assert!((s.spread() - 2.4 / 2.5).abs() < 1e-12);
    }

    #[test]
    fn wide_is_a_tenth_of_the_median_or_a_microsecond() {
        let of = |median: f64, spread: f64| Summary {
            median_us: median,
            min_us: median,
            p10_us: median,
            p90_us: median + spread,
            rounds: 9,
            runs: 1,
        };
        assert!(of(100.0, 10.5).is_wide() && !of(100.0, 9.5).is_wide());
        assert!(of(2.0, 1.1).is_wide() && !of(2.0, 0.9).is_wide());
    }

    #[test]
    fn geometric_means() {
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert!((geometric_mean(&[0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
        assert!((geometric_mean(&[1.0, 8.0, 1.0]).unwrap() - 2.0).abs() < 1e-12);
    }
}
