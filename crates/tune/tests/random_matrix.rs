//! Random plans on matrix units for random products, every check on: what the search may try must be right.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many are drawn, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

mod support;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use support::{emulator, judge, number};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::problem::{Gemm, Order, Problem};
use tilewright_ir::Scalar;
use tilewright_tune::random::Pair;
use tilewright_tune::space::Space;

/// One of a few.
fn one<T: Copy>(rng: &mut ChaCha8Rng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// A product whose lines start at multiples of 16 bytes, as bulk copies ask, with edges everywhere.
fn product(rng: &mut ChaCha8Rng) -> Problem {
    let mut extent = || 8 * rng.random_range(1..32);
    let (m, n, k) = (extent(), extent(), extent());
    let dtype = one(rng, &[Scalar::F16, Scalar::BF16]);
    let gemm = Gemm::new(dtype, m, n, k).trans(rng.random(), rng.random()).batch(one(rng, &[1, 1, 2, 3]));
    gemm.order(one(rng, &[Order::Row, Order::Col])).build().unwrap().into()
}

fn plan(rng: &mut ChaCha8Rng) -> Plan {
    let (ahead, fra) = (rng.random_range(1..3), rng.random_range(0..2));
    let buffers = ahead + fra + 1 + rng.random_range(0..2);
    let (ways, unr) = (one(rng, &[1, 1, 2, 3]), one(rng, &[64, 64, 128]));
    let text = format!(
        "A_MIC{}_ACP2__B_MIC{}_ACP2__C_UNI2_UNR{unr}_MAC{}_SKW10_PFG{ahead}_BUF{buffers}_FRA{fra}_LWV{}_PST{}_SWP{}_CST{}_CVW{}_GAL{}_ICE{ways}_SKS{}",
        one(rng, &[1, 1, 2]),
        one(rng, &[1, 2, 4, 8, 16]),
        one(rng, &[128, 256]),
        one(rng, &[0, 1, 4]),
        one(rng, &[0, 0, 1, 3]),
        rng.random_range(0..2),
        rng.random_range(0..2),
        one(rng, &[1, 2]),
        one(rng, &[1, 2]),
        i32::from(ways > 1),
    );
    Constraint::parse(&text).unwrap().apply(&Plan::default())
}

#[test]
fn random_plans_on_matrix_units() {
    let count = number("TILEWRIGHT_RANDOM_PAIRS").unwrap_or(600);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let outcomes: Vec<Option<String>> = (first..first + count)
        .into_par_iter()
        .filter_map(|seed| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (problem, plan) = (product(&mut rng), plan(&mut rng));
            let device = emulator("emu:sm_90a", rng.random(), seed);
            // A refusal is an answer too.
            Space::new(&problem, &device.info().target).unwrap().resolve(&plan).ok()?;
            Some(judge(&device, &Pair { seed, problem, plan }))
        })
        .collect();
    let failed: Vec<&String> = outcomes.iter().flatten().collect();
    eprintln!("{} of {count} pairs are legal, {} failed", outcomes.len(), failed.len());
    assert!(failed.is_empty(), "{}", failed.iter().take(5).map(|s| s.as_str()).collect::<Vec<_>>().join("\n"));
    assert!(outcomes.len() as u64 > count / 10, "{} of {count} pairs are legal", outcomes.len());
}
