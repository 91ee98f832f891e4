//! Finding the fastest verified plan of a problem on a device: verification, cost model, search and records.

pub mod key;
pub mod model;
pub mod records;
pub mod run;
pub mod space;

pub use key::ProblemKey;
pub use records::Records;
