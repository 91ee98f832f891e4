//! The public library: operations on devices, host code, several devices, trials in worker processes.

mod host;
#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
mod operations;
mod prepared;
mod public;
mod reductions;
mod run_time;
mod several_devices;
mod stand_in;
mod trials;
#[cfg(unix)]
mod worker;
