//! Random plans on matrix units of single waves (`UNI1`, `UNI3`) for random products, every check on.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many are drawn, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use support::wave_units::{piped, product};
use support::{draws, emulator, judge, number};
use tilewright_check::random::{Pair, wave_unit_plan, whole_run};
use tilewright_gen::plan::Along;
use tilewright_gen::space::Space;

/// Draws, repairs and verifies; says how many plans were legal, how many brought an operand in rows along k, how many were persistent and
/// how many staged their results.
fn verify(unit: u32, device: &str) {
    let count = draws(300);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let outcomes: Vec<([bool; 3], Option<String>)> = (first..first + count)
        .into_par_iter()
        .filter_map(|seed| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (problem, plan) = (product(&mut rng, unit, &[1, 8]), wave_unit_plan(&mut rng, unit));
            let device = emulator(device, rng.random(), seed);
            let space = Space::new(&problem, &device.info().target).unwrap();
            // A refusal is an answer too.
            let plan = space.repair(&plan)?;
            let spec = space.resolve(&plan).ok()?.spec;
            let t = &spec.tiling;
            let along_k = [&t.a, &t.b].iter().any(|o| o.shared_along == Along::K);
            let kinds = [along_k, t.persistent > 0, spec.epilogue.exit.staged()];
            Some((kinds, judge(&device, &Pair { seed, problem, plan })))
        })
        .collect();
    let failed: Vec<&String> = outcomes.iter().filter_map(|o| o.1.as_ref()).collect();
    let [along_k, persistent, staged] = [0, 1, 2].map(|i| outcomes.iter().filter(|o| o.0[i]).count() as u64);
    eprintln!(
        "{} of {count} pairs are legal, {along_k} with rows along k, {persistent} persistent, {staged} staged, {} failed",
        outcomes.len(),
        failed.len()
    );
    assert!(failed.is_empty(), "{}", failed.iter().take(5).map(|s| s.as_str()).collect::<Vec<_>>().join("\n"));
    let all = outcomes.len() as u64;
    assert!(all > count / 4 && along_k > count / 20 && persistent > count / 20, "{all} of {count}: {along_k}, {persistent}");
    assert!(staged > count / 20, "{staged} staged");
}

/// One operand at least in bulk: multiply-adds and mma.sync, too, with transaction barriers, roles, ping-pong, clusters.
#[test]
fn random_plans_of_bulk_copies() {
    let count = draws(300);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let outcomes: Vec<([bool; 4], Option<String>)> = (first..first + count)
        .into_par_iter()
        .filter_map(|seed| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let unit = (seed % 3) as u32;
            let (problem, plan) = (product(&mut rng, 1, &[1, 8, 8, 8]), piped(&mut rng, unit));
            let device = emulator("emu:sm_90a", rng.random(), seed);
            let space = Space::new(&problem, &device.info().target).unwrap();
            let plan = space.repair(&plan)?;
            let spec = space.resolve(&plan).ok()?.spec;
            let s = &spec.schedule;
            let other = unit < 2 && s.in_pipeline();
            let threads = s.copies.iter().any(|copy| copy.is_async() && other);
            let kinds = [other, other && spec.teams() > 1, other && spec.tiling.cluster.size() > 1, threads];
            Some((kinds, judge(&device, &Pair { seed, problem, plan })))
        })
        .collect();
    let failed: Vec<&String> = outcomes.iter().filter_map(|o| o.1.as_ref()).collect();
    let kinds = [0, 1, 2, 3].map(|i| outcomes.iter().filter(|o| o.0[i]).count() as u64);
    eprintln!("{} of {count} pairs are legal, {kinds:?} with other units, ping-pong, clusters, cp.async", outcomes.len());
    assert!(
        failed.is_empty(),
        "{} failed:\n{}",
        failed.len(),
        failed.iter().take(5).map(|s| s.as_str()).collect::<Vec<_>>().join("\n")
    );
    // Few pairs may lack a kind.
    let all = kinds[0] > count / 10 && kinds[1..].iter().all(|n| *n > count / 100);
    assert!(all || !whole_run(), "{kinds:?} of {count}");
}

#[test]
fn random_plans_on_mma() {
    verify(1, "emu:sm_80");
}

#[test]
fn random_plans_on_mfma() {
    verify(3, "emu:gfx942");
}
