//! Checks kernels: references of every problem, in f64 and exact.
//!
//! [`reference`] makes test data of a problem and judges results.

pub mod reference;
