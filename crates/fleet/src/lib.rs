//! Leases of tuning tasks: processes of one host and nodes of a cluster share the problems of a run.
//!
//! A *task* is one problem on one class of device. A worker *leases* a task, searches it with its own records as a journal, ships
//! the trials and ends the task. [`Queue`] is where tasks are leased: [`HostQueue`] is a file of one host, and `Server` (feature
//! `postgres`) is a database that many hosts reach. [`work`] is the loop of a worker over either of them.
//!
//! This crate knows nothing of kernels: problems, plans and trials are texts to it.

mod error;
mod host;
mod lock;
#[cfg(feature = "postgres")]
mod postgres;
mod queue;
mod restart;
mod status;
mod worker;

pub use error::FleetError;
pub use host::HostQueue;
pub use lock::{GpuLock, HolderFile, boot_id, boottime};
#[cfg(feature = "postgres")]
pub use postgres::{Address, CLAIM, CLAIMED, PushTask, SCHEMA_VERSION, Server, init, pull, pushable, status, withdraw};
pub use queue::{Counted, End, Identity, Lease, Left, Line, NewTask, Pulled, Queue, RunSpec, Shipped, digest, unique};
pub use restart::{Restarts, cores};
pub use status::{ClassStatus, FailedStatus, Status, WorkerStatus, printable};
pub use worker::{Attempt, Control, HANG, Journal, Patience, Tuner, Verdict, work};
