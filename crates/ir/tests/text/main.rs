//! Kernels as data and as text: building, validation, printing, compilation, the order of the crates, their examples, the features and licences of dependencies.

mod build;
mod compile;
mod examples;
mod features;
mod floors;
mod golden;
mod hints;
mod licences;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/tools.rs"]
mod tools;
mod tuples;
mod validate;
mod validate_matrix;
