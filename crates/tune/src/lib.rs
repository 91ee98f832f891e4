//! Finding the fastest verified plan of a problem on a device: verification, cost model, search and records.

pub mod graph;
pub mod key;
pub mod model;
pub mod random;
pub mod records;
pub mod reduce;
mod repair;
mod room;
pub mod run;
pub mod search;
pub mod space;
mod spread;
pub mod verify;

pub use key::ProblemKey;
pub use records::Records;
