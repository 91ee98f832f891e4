//! Which result tiles a work-group computes, in which order, and its share of k; and where the operands' tiles are in shared memory.

pub mod cluster;
pub mod groups;
pub mod order;
pub mod position;
pub mod shared;
