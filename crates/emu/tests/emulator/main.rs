//! The emulator: what kernels compute, which rules they break, how much work they are.

mod async_proxy;
mod bulk_store;
mod checks;
mod cluster;
mod common;
mod counters;
mod fragments;
mod launches;
mod matrix;
mod matrix_waves;
mod random;
#[path = "../../../ir/tests/support/scrambled.rs"]
mod scrambled;
mod semantics;
