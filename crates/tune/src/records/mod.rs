//! Tuning records: every trial ever made, in one SQLite file.
//!
//! A record says for which problem ([`ProblemKey`](crate::ProblemKey)), on which device ([`DeviceKey`]) and by which generator
//! version a plan was tried, and how it went. Each trial is its own transaction in a write-ahead log. A process killed at any
//! moment loses at most the trial in flight, and several processes may share a file.
//!
//! A build without the feature `records` keeps the trials of its own process instead, in [`Records`] of the same name.

mod error;
#[cfg(feature = "records")]
mod file;
#[cfg(feature = "records")]
mod journal;
#[cfg(feature = "records")]
mod lines;
#[cfg(feature = "records")]
mod listing;
mod looks;
#[cfg(feature = "records")]
mod marks;
#[cfg(feature = "records")]
mod migrate;
#[cfg(feature = "records")]
mod network;
#[cfg(feature = "records")]
mod picks;
#[cfg(any(test, not(feature = "records")))]
mod process;
#[cfg(feature = "records")]
mod rows;
#[cfg(feature = "records")]
mod schema;
#[cfg(feature = "records")]
mod shapes;
mod sources;
#[cfg(feature = "records")]
mod tables;
mod trial;

pub use error::{LineError, RecordsError};
#[cfg(feature = "records")]
pub use file::Records;
#[cfg(feature = "records")]
pub use journal::{Entry, Named, Witness};
#[cfg(feature = "records")]
pub use lines::{Bad, Exported, Imported};
#[cfg(feature = "records")]
pub use listing::{Counted, Listing, Unread};
pub use looks::{Look, Looked};
#[cfg(not(feature = "records"))]
pub use process::Records;
pub use sources::{GENERATOR, MODEL, TIMING, VERIFIER};
pub use trial::{DeviceKey, Filter, Near, Record, State, TimeKind, Trial};
