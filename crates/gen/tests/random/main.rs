//! Random pairs of problem and plan on the emulator, and the regressions that such pairs found.

mod cells;
mod coverage;
mod inert;
mod random_chains;
mod random_convolutions;
mod random_formats;
mod random_matrix;
mod random_pairs;
mod random_schedules;
mod random_tails;
mod random_wave_units;
mod regressions;
#[path = "../support/mod.rs"]
mod support;
