//! From a problem to a program: lowering to a contraction of views, planning, and kernel generation.
//!
//! ```text
//! Problem --lower--> Contraction --plan--> KernelSpec --generate--> Program
//! ```
//! Nothing here knows a device beyond [`tilewright_ir::Target`].

pub mod contraction;
pub mod kernel;
pub mod lower;
pub mod plan;
pub mod problem;
pub mod program;
pub mod reference;
pub mod view;
