//! Plans: hyperparameters, their grammar, what they mean for a contraction, and whether they fit a device.

pub mod spec;
pub use spec::*;
