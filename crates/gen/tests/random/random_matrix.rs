//! Random plans for warpgroup matrix instructions and problems for them, on the emulator: every check on, waves interleaved at
//! random.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use support::Run;
use tilewright_check::random::Recipe;

/// Rings of buffers with and without roles, math behind its instructions, persistent work-groups, swapped operands, split
/// sums, bulk stores, materialised operands; products with edges everywhere and convolutions.
#[test]
fn random_plans_on_matrix_units() {
    Run { devices: &["emu:sm_90a"], recipe: Recipe::units(), count: 1000, interleave: true }.all_pass();
}
