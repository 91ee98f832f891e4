//! Matrix instructions, transaction barriers and bulk copies.
//!
//! `agents` numbers what works beside the threads, `barrier` holds transaction barriers, `bulk` the copies, `operand` reads matrix
//! operands, `places` says where lanes hold what, `warpgroup` and `mma` multiply, `state` is what they leave behind.

pub(crate) mod agents;
pub(crate) mod barrier;
pub(crate) mod bulk;
pub(crate) mod mma;
mod operand;
pub(crate) mod places;
mod short;
pub(crate) mod state;
pub(crate) mod warpgroup;
