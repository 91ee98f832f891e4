//! Kernel generation: a contraction and a derived plan become a program.
//!
//! [`generate`] goes through the stages. The main kernel (`main`) puts together:
//!
//! - which tiles a work-group computes (`tile`);
//! - when each stage of the main loop runs ([`stages`]);
//! - how tiles of the operands get to shared memory (`copy`);
//! - the unit that multiplies them (`unit`);
//! - the epilogue of the accumulators (`exit`).
//!
//! `prepare` copies an operand into workspace before it, `finish` adds the partial sums of splits after it.

mod arguments;
mod change;
mod copy;
mod elements;
mod error;
mod exit;
mod finish;
mod generate;
mod input;
mod main;
mod prepare;
mod reduce;
pub mod stages;
mod tile;
mod unit;

pub use error::GenerateError;
pub use finish::split_lanes;
pub use generate::{generate, generate_parts, join};
pub use input::WIDE_OFFSETS;
pub use stages::schedule;
pub use tile::order::{Work, works};

/// Name of the kernel that holds the main loop; the others of a program prepare its operands or sum its results.
pub const MAIN: &str = "tw_contract";
