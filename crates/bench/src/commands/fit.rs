//! How far modelled times are from recorded ones, and which constant of the cost model to change. Needs no device.

use crate::args::FitArgs;
use crate::error::BenchError;
use crate::record::read;
use rayon::prelude::*;
use std::collections::BTreeMap;
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_problem::Problem;
use tilewright_tune::model::{Calibration, Picker};

/// A recorded plan of ours.
struct Sample {
    set: String,
    space: Space,
    plan: Plan,
    measured: f64,
}

/// How modelled times stand to measured ones.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Residual {
    /// Plans.
    count: usize,
    /// Geometric mean of modelled over measured time.
    ratio: f64,
    /// One standard deviation of that ratio around its mean, as a factor.
    spread: f64,
}

impl Residual {
    fn of(logarithms: &[f64]) -> Residual {
        let count = logarithms.len();
        let mean = logarithms.iter().sum::<f64>() / count.max(1) as f64;
        let variance = logarithms.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count.max(1) as f64;
        Residual { count, ratio: mean.exp(), spread: variance.sqrt().exp() }
    }
}

/// `fit`: the residual of each set of records. For each constant, the mean square error with the constant raised and lowered.
/// Over `--rounds`, constants with less error.
///
/// # Errors
/// Records that cannot be read or hold no plan that the model knows, an unknown architecture.
pub fn fit(args: FitArgs) -> Result<(), BenchError> {
    let samples = samples(&args)?;
    let mut best = Calibration::default();
    println!("{:>6} {:>7} {:>7}  set", "plans", "ratio", "spread");
    let mut sets: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (sample, logarithm) in samples.iter().zip(logarithms(&samples, best)) {
        sets.entry(&sample.set).or_default().extend(logarithm);
    }
    for (set, logarithms) in &sets {
        let Residual { count, ratio, spread } = Residual::of(logarithms);
        println!("{count:6} {ratio:7.3} {spread:7.3}  {set}");
    }
    let mut error = mean_square(&samples, best);
    println!("\nmean square of the logarithm of modelled over measured time: {error:.5}");
    let names = Calibration::default().constants().map(|(name, _)| name);
    println!("{:>14} {:>10} {:>10} {:>10}", "constant", "value", "x 0.8", "x 1.25");
    for (at, name) in names.iter().enumerate() {
        let [less, more] = [0.8, 1.25].map(|factor| mean_square(&samples, scaled(best, at, factor)));
        println!("{name:>14} {:10.4} {less:10.5} {more:10.5}", value(best, at));
    }
    for round in 0..args.rounds {
        // Smaller steps from round to round.
        let step = 1.0 + 0.25 / f64::from(1 + round);
        for (at, factor) in (0..names.len()).flat_map(|at| [(at, step), (at, 1.0 / step)]) {
            let tried = scaled(best, at, factor);
            let found = mean_square(&samples, tried);
            if found < error {
                (best, error) = (tried, found);
            }
        }
        println!("\nround {}: {error:.5}", round + 1);
    }
    let changed = (0..names.len()).filter(|at| value(best, *at) != value(Calibration::default(), *at));
    changed.for_each(|at| println!("            {}: {:.4},", names[at], value(best, at)));
    Ok(())
}

/// The recorded plans that are legal for the architecture.
fn samples(args: &FitArgs) -> Result<Vec<Sample>, BenchError> {
    let target = Target::by_arch(&args.arch).ok_or_else(|| {
        BenchError::Usage(format!("--arch {}: no target of that name; `tilewright devices` lists them", args.arch))
    })?;
    let mut samples = Vec::new();
    for path in &args.files {
        for record in read(path)? {
            let wanted = args.only.as_ref().is_none_or(|text| record.case.contains(text));
            let ours = record.sides.iter().filter(|_| wanted).find_map(|side| Some((side.plan.as_deref()?, side.valid_us()?)));
            let Some((plan, measured)) = ours else { continue };
            let (Ok(plan), Ok(problem)) = (Plan::parse(plan), Problem::parse(&record.problem)) else { continue };
            let space = Space::new(&problem, &target)?.with_atomics(true);
            if space.resolve(&plan).is_ok() {
                samples.push(Sample { set: record.set, space, plan, measured });
            }
        }
    }
    if samples.is_empty() {
        return Err(BenchError::Usage("the records hold no plan of ours that is legal for --arch".into()));
    }
    Ok(samples)
}

/// The logarithm of modelled over measured time of each sample that the model knows.
fn logarithms(samples: &[Sample], calibration: Calibration) -> Vec<Option<f64>> {
    let of = |sample: &Sample| {
        let estimate = Picker::new(&sample.space).calibrated(calibration).estimate(&sample.plan)?;
        Some((estimate.total_us / sample.measured).ln())
    };
    samples.par_iter().map(of).collect()
}

fn mean_square(samples: &[Sample], calibration: Calibration) -> f64 {
    let all: Vec<f64> = logarithms(samples, calibration).into_iter().flatten().collect();
    all.iter().map(|x| x * x).sum::<f64>() / all.len().max(1) as f64
}

/// The constants with one of them multiplied.
fn scaled(mut calibration: Calibration, at: usize, factor: f64) -> Calibration {
    *calibration.constants()[at].1 *= factor;
    calibration
}

fn value(mut calibration: Calibration, at: usize) -> f64 {
    *calibration.constants()[at].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_residual_is_a_mean_and_a_spread() {
        let Residual { count, ratio, spread } = Residual::of(&[0.5f64.ln(), 2f64.ln()]);
        assert_eq!(count, 2);
        assert!((ratio - 1.0).abs() < 1e-12 && (spread - 2.0).abs() < 1e-12);
    }

    #[test]
    fn one_constant_is_scaled() {
        let plain = Calibration::default();
        let changed = scaled(plain, 3, 2.0);
        assert_eq!(value(changed, 3), 2.0 * value(plain, 3));
        assert_eq!(scaled(changed, 3, 0.5), plain);
    }
}
