//! Kernels as data and as text: building, validation, printing, compilation, and the order of the crates.

mod build;
mod compile;
mod floors;
mod golden;
mod hints;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/tools.rs"]
mod tools;
mod validate;
mod validate_matrix;
