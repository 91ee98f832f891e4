//! Copies of operand tiles to shared memory:
//!
//! - by threads through registers or with asynchronous copies (`load`);
//! - by producer warps from any view (`fetch_tile`);
//! - by bulk copies to a staging buffer and a shift by producer warps (`shift`).

pub mod copies;
pub mod fetch_layout;
pub mod fetch_tile;
pub mod load;
pub mod memory;
pub mod shift;
