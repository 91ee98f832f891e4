//! From a contraction to a program: planning and kernel generation.
//!
//! ```text
//! Contraction --plan--> KernelSpec --generate--> Program
//! ```
//! Problems, their lowering and their reference are below: [`tilewright_problem`]. Nothing here knows a device beyond [`tilewright_ir::Target`].

pub mod kernel;
pub mod plan;
pub mod program;

pub use tilewright_problem as problem;
pub use tilewright_problem::{lower, reference};
/// Contractions, under their former path.
pub mod contraction {
    pub use tilewright_problem::contraction::*;
    pub use tilewright_problem::{Dynamic, Extent, Extents};
}
/// Views, under their former path.
pub mod view {
    pub use crate::plan::{WORKSPACE_ALIGN, copy_leading_dimension, materialised};
    pub use tilewright_problem::view::*;
}
