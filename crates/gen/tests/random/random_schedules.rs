//! Random schedules, tilings and problems on the emulator, every check on, waves interleaved at random.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use support::Run;
use tilewright_check::random::Recipe;

/// Fetching ahead, any number of buffers, every store point, fragments ahead, asynchronous copies, roles; sums of 1, shorter
/// than what runs ahead, and with tails.
#[test]
fn random_schedules_verify_under_random_interleaving() {
    Run {
        devices: &["emu:sm_90a", "emu:sm_90a", "emu:sm_90a", "emu:gfx942"],
        recipe: Recipe::schedules(),
        count: 1500,
        interleave: true,
    }
    .all_pass();
}
