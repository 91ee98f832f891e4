//! What is remembered about every piece of memory to find uninitialised reads and races: see `clocks`, `shared` and `global`.

mod clocks;
mod global;
mod order;
mod shared;

pub(crate) use clocks::{AGENTS, Clocks, Lanes, Row};
pub(crate) use global::{GlobalShadow, Toucher};
pub(crate) use order::Order;
pub(crate) use shared::{EPOCHS, Has, SharedShadow, Watch};

/// A broken rule found by a shadow, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) byte: usize,
    pub(crate) trouble: Trouble,
}

/// A broken rule found by a shadow, in terms of the piece of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Never written.
    Uninitialised,
    /// Not ordered with an earlier access.
    Race {
        /// What the earlier access was.
        other: &'static str,
        /// Who made it.
        who: String,
    },
    /// Written by this thread in the ordinary way and not made visible to bulk copies and warpgroup instructions.
    Unfenced {
        /// The thread.
        writer: u32,
    },
    /// A read of it may not have arrived in registers yet when a bulk copy overwrites it.
    Unread,
    /// An asynchronous copy of this thread is filling it.
    InFlight {
        /// The thread.
        issuer: u32,
    },
}
