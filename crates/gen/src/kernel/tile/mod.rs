//! Which result tiles a work-group computes, in which order, and its share of k.

pub mod cluster;
pub mod order;
pub mod position;
