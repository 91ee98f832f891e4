//! How tiles of the operands get to shared memory: by threads through registers or with asynchronous copies (`load`), by load waves that
//! read any view (`fetch_tile`), by bulk copies to staging that load waves shift (`shift`).

pub mod copies;
pub mod fetch_layout;
pub mod fetch_tile;
pub mod load;
pub mod shift;
