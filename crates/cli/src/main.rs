//! x
mod args;
mod error;
mod figures;
mod values;
fn main() {}
