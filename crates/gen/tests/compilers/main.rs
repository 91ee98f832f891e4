//! What compilers make of kernels: NVRTC, clang and PoCL. Tests skip visibly where a tool is missing.

mod cells;
mod matrix_code;
#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
mod random_opencl;
mod reduction_stages;
#[path = "../support/mod.rs"]
mod support;
mod warnings;
mod wavelet;
