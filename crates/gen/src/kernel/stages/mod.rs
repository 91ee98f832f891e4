//! When each stage of the main loop runs: the lowered schedule, the circular buffer of stages and its barriers, consumers that take result
//! tiles in turn, and the check that roles meet the same barriers.

pub(crate) mod counter;
pub(crate) mod ping_pong;
pub(crate) mod ring;
pub(crate) mod roles;
pub mod schedule;
pub(crate) mod walk;
