//! Devices and compilers at hand: named, listed, and held against the emulator. Tests skip visibly where one is missing.

mod amd;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../emu/tests/emulator/common/mod.rs"]
mod emulated;
mod gpu;
#[allow(dead_code)] // Others of its kernels are for compilers.
#[path = "../../../ir/tests/support/matrix.rs"]
mod kernels;
mod matrix_units;
mod nvrtc;
mod open;
mod opencl;
