//! Random pairs of plan and problem on the emulator, every check on.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

mod support;

use support::Run;
use tilewright_tune::random::Recipe;

/// GEMM and convolution, all types, in place and materialised, on waves of 32 and of 64.
#[test]
fn random_pairs_verify_on_the_emulator() {
    Run { devices: &["emu:sm_90a", "emu:sm_90a", "emu:gfx900"], recipe: Recipe::emulated(), count: 5000, interleave: false }
        .all_pass();
}
