//! From a contraction to a program: planning and kernel generation.
//!
//! ```text
//! Contraction --plan--> KernelSpec --generate--> Program
//! ```
//! Problems, their lowering and their reference are below: [`tilewright_problem`]. Nothing here knows a device beyond [`tilewright_ir::Target`].

pub mod kernel;
pub mod plan;
pub mod program;
