//! Finding the fastest verified plan of a problem on a device: verification, cost model, search and records.

pub mod key;
pub mod records;

pub use key::ProblemKey;
pub use records::Records;
