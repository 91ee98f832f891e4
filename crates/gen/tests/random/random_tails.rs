//! Random plans whose last tiles are split along k, by every unit and of every number format, on the emulator with every check on, waves
//! interleaved at random.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use support::Run;
use tilewright_check::random::Recipe;

/// Edges, every copy and exit, batches that are cut into chunks. A chunked tail has a main kernel of its own.
#[test]
fn random_split_tails_verify() {
    let devices = &["emu:sm_90a", "emu:sm_80", "emu:gfx942", "emu:gfx950"];
    Run { devices, recipe: Recipe::tails(), count: 900, interleave: true }.all_pass();
}

/// Rings, clusters, bulk stores of the whole tiles.
#[test]
fn random_split_tails_of_warpgroups_verify() {
    Run { devices: &["emu:sm_90a"], recipe: Recipe::unit_tails(), count: 600, interleave: true }.all_pass();
}
