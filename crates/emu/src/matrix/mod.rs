//! Matrix instructions, transaction barriers and bulk copies.
//!
//! `agents` numbers the asynchronous engines, `barrier` holds transaction barriers, `bulk` the copies. `operand` reads matrix operands,
//! `places` maps lanes and registers to elements, `warpgroup` and `mma` multiply, `state` holds their pending effects.

pub(crate) mod agents;
pub(crate) mod barrier;
pub(crate) mod bulk;
pub(crate) mod mma;
mod operand;
pub(crate) mod places;
mod short;
pub(crate) mod state;
pub(crate) mod warpgroup;
