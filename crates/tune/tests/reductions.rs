//! Reductions of results, on the emulator with all checks: random problems on every unit, and values that go wrong elsewhere.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many random pairs there are of each kind, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

mod support;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use support::wave_units::{plan, product};
use support::{Run, emulator, judge, number};
use tilewright_gen::plan::{KernelSpec, Split};
use tilewright_ir::Scalar;
use tilewright_problem::{Activation, Operator, Problem, Reduce};
use tilewright_tune::random::{Pair, Recipe, pair, reduced};
use tilewright_tune::space::Space;

fn random(recipe: Recipe, devices: &[&str], count: u64) {
    Run { devices, recipe: Recipe { reductions: true, ..recipe }, count, interleave: true }.all_pass();
}

#[test]
fn on_multiply_adds() {
    random(Recipe::emulated(), &["emu:sm_90a", "emu:gfx900"], 300);
}

#[test]
fn in_every_schedule() {
    random(Recipe::schedules(), &["emu:sm_90a", "emu:gfx942"], 300);
}

#[test]
fn on_warpgroups() {
    random(Recipe::units(), &["emu:sm_90a"], 120);
}

/// What the pairs above are to meet is among what is drawn.
#[test]
fn every_way_out_is_drawn() {
    type Is = fn(&Pair, &KernelSpec) -> bool;
    let conv: (&str, Is) = ("convolutions", |pair, _| matches!(pair.problem, Problem::Conv(_)));
    let workspace: (&str, Is) = ("splits through workspace", |_, spec| spec.epilogue.split == Split::Workspace);
    let cluster: (&str, Is) = ("splits in clusters", |_, spec| spec.epilogue.split == Split::Cluster);
    let persistent: (&str, Is) = ("persistent work-groups", |_, spec| spec.tiling.persistent > 0);
    let ping_pong: (&str, Is) = ("ping-pong", |_, spec| spec.teams() > 1);
    for (recipe, device, ways) in [
        (Recipe::emulated(), "emu:gfx900", vec![conv, workspace, persistent]),
        (Recipe::units(), "emu:sm_90a", vec![conv, workspace, cluster, persistent, ping_pong]),
    ] {
        let (recipe, target) = (Recipe { reductions: true, ..recipe }, emulator(device, false, 0).info().target.clone());
        let drawn = (0..120).into_par_iter().filter_map(|seed| pair(&target, &recipe, seed));
        let drawn = drawn.filter(|pair| !pair.problem.reductions().is_empty()).filter_map(|pair| {
            let spec = Space::new(&pair.problem, &target).ok()?.resolve(&pair.plan).ok()?.spec;
            Some((pair, spec))
        });
        let drawn: Vec<(Pair, KernelSpec)> = drawn.collect();
        for (what, is) in ways {
            let count = drawn.iter().filter(|(pair, spec)| is(pair, spec)).count();
            assert!(count > 2, "{count} of {} on {device}: {what}", drawn.len());
        }
    }
}

/// A tensor of up to four axes, with gaps and repetitions in memory, over some of them.
fn tensor(rng: &mut ChaCha8Rng) -> Problem {
    let axes = rng.random_range(1..=4usize);
    let largest = [3000f64, 200.0, 40.0, 14.0][axes - 1];
    let unit = [1, 1, 4, 8][rng.random_range(0..4)];
    let shape: Vec<u64> = (0..axes).map(|_| (largest.powf(rng.random()) as u64).max(1).next_multiple_of(unit)).collect();
    let over: Vec<usize> = (0..axes).filter(|_| rng.random_bool(0.6)).collect();
    let over = if over.is_empty() { vec![rng.random_range(0..axes)] } else { over };
    let dtype = [Scalar::F32, Scalar::F16, Scalar::BF16, Scalar::F64][rng.random_range(0..4)];
    let mut builder = Reduce::new(dtype, &shape, &over);
    let dense = builder.clone().op(Operator::Sum).build().unwrap().strides;
    builder = match rng.random_range(0..4) {
        0 => builder.strides(&dense.iter().map(|stride| stride * 3).collect::<Vec<_>>()),
        1 => builder.strides(&dense.iter().map(|stride| if rng.random_bool(0.3) { 0 } else { *stride }).collect::<Vec<_>>()),
        _ => builder,
    };
    for _ in 0..rng.random_range(1..=3) {
        let operator = Operator::ALL[rng.random_range(0..Operator::ALL.len())];
        builder = match rng.random_range(0..4) {
            0 if dtype != Scalar::F64 => builder.op_in(operator, Scalar::BF16),
            _ => builder.op(operator),
        };
    }
    if rng.random_bool(0.3) {
        builder = builder.activation(Activation::Silu);
    }
    builder.offset(rng.random_range(0..3) * unit).build().unwrap().into()
}

/// Tensors by themselves.
#[test]
fn of_tensors() {
    let count = number("TILEWRIGHT_RANDOM_PAIRS").unwrap_or(300);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let outcomes: Vec<Option<String>> = (first..first + count)
        .into_par_iter()
        .filter_map(|seed| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let problem = tensor(&mut rng);
            let device = emulator(["emu:sm_90a", "emu:gfx942", "emu:gfx900"][seed as usize % 3], rng.random(), seed);
            let space = Space::new(&problem, &device.info().target).unwrap();
            let plan = tilewright_tune::random::plan(&space, &Recipe { long_code: false, ..Recipe::emulated() }, seed);
            let plan = plan.unwrap_or_else(|| space.fallback());
            Some(judge(&device, &Pair { seed, problem, plan }))
        })
        .collect();
    let failed: Vec<&String> = outcomes.iter().flatten().collect();
    assert!(
        failed.is_empty(),
        "{} of {count}:\n{}",
        failed.len(),
        failed.iter().take(8).map(|s| s.as_str()).collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn on_units_of_waves() {
    let count = number("TILEWRIGHT_RANDOM_PAIRS").unwrap_or(150);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    for (unit, device) in [(1, "emu:sm_80"), (3, "emu:gfx942")] {
        let outcomes: Vec<Option<String>> = (first..first + count)
            .into_par_iter()
            .filter_map(|seed| {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let problem = product(&mut rng, unit, &[1, 8]);
                let (problem, plan) = (reduced(&mut rng, &problem), plan(&mut rng, unit));
                let device = emulator(device, rng.random(), seed);
                let space = Space::new(&problem, &device.info().target).unwrap();
                let plan = space.repair(&plan)?;
                Some(judge(&device, &Pair { seed, problem, plan }))
            })
            .collect();
        let failed: Vec<&String> = outcomes.iter().flatten().collect();
        assert!(failed.is_empty(), "{}", failed.iter().take(5).map(|s| s.as_str()).collect::<Vec<_>>().join("\n"));
        assert!(outcomes.len() as u64 > count / 4, "{} of {count} are legal", outcomes.len());
    }
}
