//! When each stage of the main loop runs: the lowered schedule, and the circular buffer of stages with its barriers. Also
//! consumers that alternate between result tiles, and the check that roles execute the same barriers.

pub(crate) mod counter;
pub(crate) mod ping_pong;
pub(crate) mod ring;
pub(crate) mod roles;
pub mod schedule;
pub(crate) mod walk;
