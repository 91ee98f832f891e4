//! Random pairs of plan and problem on the emulator, every check on.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use support::Run;
use tilewright_check::random::Recipe;
use tilewright_gen::plan::Edge;
use tilewright_problem::Problem;

/// GEMM and convolution, all types, in place and materialised, on waves of 32 and of 64.
#[test]
fn random_pairs_verify_on_the_emulator() {
    Run { devices: &["emu:sm_90a", "emu:sm_90a", "emu:gfx900"], recipe: Recipe::emulated(), count: 3000, interleave: false }
        .all_pass();
}

/// Tiles whose results leave in shares, of each number of work-groups and width of a store: a share may begin within a vector.
#[test]
fn shares_of_tiles_verify_on_the_emulator() {
    let names = ["shares of 3, 5 or 6", "pulled-back edges", "planes of odd sizes", "stores of 2", "stores of 4 or 8"];
    Run { devices: &["emu:sm_90a"], recipe: Recipe::shares(), count: 500, interleave: false }.all_pass_with(
        |space, pair| {
            let spec = space.resolve(&pair.plan).unwrap().spec;
            let width = spec.epilogue.exit.width();
            let odd = matches!(&pair.problem, Problem::Conv(conv) if conv.output().iter().product::<u64>() % 4 != 0);
            let splits = spec.tiling.cluster.splits;
            [[3, 5, 6].contains(&splits), spec.tiling.edge_m == Edge::PullBack, odd, width == 2, width >= 4]
        },
        &names,
    );
}
