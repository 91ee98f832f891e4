//! Reductions of results, on the emulator with all checks: random problems on every unit, and values that go wrong elsewhere.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many random pairs there are of each kind, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

mod support;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use support::wave_units::{plan, product};
use support::{Run, emulator, judge, number};
use tilewright_tune::random::{Pair, Recipe, reduced};
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
