//! Random pairs of plan and problem on the emulator, every check on.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use rayon::prelude::*;
use support::{Run, emulator, judge};
use tilewright_check::random::{Pair, Recipe, pair, whole_run};
use tilewright_gen::plan::Edge;
use tilewright_gen::space::Space;
use tilewright_problem::Problem;

/// GEMM and convolution, all types, in place and materialised, on waves of 32 and of 64.
#[test]
fn random_pairs_verify_on_the_emulator() {
    Run { devices: &["emu:sm_90a", "emu:sm_90a", "emu:gfx900"], recipe: Recipe::emulated(), count: 1500, interleave: false }
        .all_pass();
}

/// Tiles whose results leave in shares, of each number of work-groups and width of a store: a share may begin within a vector.
#[test]
fn shares_of_tiles_verify_on_the_emulator() {
    let names = ["shares of 3, 5 or 6", "pulled-back edges", "odd planes", "stores of 2", "stores of 4", "stores of 8"];
    Run { devices: &["emu:sm_90a"], recipe: Recipe::shares(), count: 500, interleave: false }.all_pass_with(
        |space, pair| {
            let Share { width, uneven, pulled, odd } = Share::of(space, pair);
            [uneven, pulled, odd, width == 2, width == 4, width == 8]
        },
        &names,
    );
}

/// How a work-group stores its share of a tile.
struct Share {
    /// Elements of a store.
    width: u32,
    /// 3, 5 or 6 work-groups.
    uneven: bool,
    /// Tiles at the edge are pulled back.
    pulled: bool,
    /// Two stores do not divide a plane of the result.
    odd: bool,
}

impl Share {
    fn of(space: &Space, pair: &Pair) -> Share {
        let spec = space.resolve(&pair.plan).unwrap().spec;
        let width = spec.epilogue.exit.width();
        let two = 2 * u64::from(width);
        let odd = matches!(&pair.problem, Problem::Conv(conv) if conv.output().iter().product::<u64>() % two != 0);
        let (uneven, pulled) = ([3, 5, 6].contains(&spec.tiling.cluster.splits), spec.tiling.edge_m == Edge::PullBack);
        Share { width, uneven, pulled, odd }
    }
}

/// Uneven shares of odd planes with edges that are pulled back, by stores of each width: too rare among few pairs.
#[test]
fn awkward_shares_verify_on_the_emulator() {
    let device = emulator("emu:sm_90a", false, 0);
    let target = &device.info().target;
    let drawn: Vec<(u32, Pair)> = (0..3000)
        .into_par_iter()
        .filter_map(|seed| {
            let pair = pair(target, &Recipe::shares(), seed)?;
            let share = Share::of(&Space::new(&pair.problem, target).unwrap().with_atomics(true), &pair);
            (share.uneven && share.pulled && share.odd).then_some((share.width, pair))
        })
        .collect();
    let most = if whole_run() { usize::MAX } else { 3 };
    for width in [2, 4, 8] {
        let pairs: Vec<&Pair> = drawn.iter().filter(|(of, _)| *of == width).map(|(_, pair)| pair).take(most).collect();
        let failed: Vec<String> = pairs.par_iter().filter_map(|pair| judge(&device, pair)).collect();
        assert!(pairs.len() >= 3 && failed.is_empty(), "{} pairs with stores of {width}:\n{}", pairs.len(), failed.join("\n"));
    }
}
