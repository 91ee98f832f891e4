//! What to compute: problems in the user's words, their texts and case files, the contraction of views that each becomes, and the
//! f64 reference that results are compared with.
//!
//! ```text
//! Gemm, Conv --lower--> Contraction (views, bias, activation, residual)
//! ```
//! Nothing here knows a plan, a kernel or a device.

mod canonical;
pub mod cases;
mod complex;
mod complex_gemm;
pub mod contraction;
mod conv;
pub mod epilogue;
mod error;
mod extent;
mod factor_parts;
mod factors;
mod gemm;
mod geometry;
mod grouped;
pub mod lower;
mod math;
mod problem;
mod quant;
mod ragged;
mod reduce;
mod reduction;
pub mod reference;
mod role;
mod text;
pub mod view;

pub use canonical::Canonical;
pub use complex::Complex;
pub use conv::{Conv, ConvBuilder, Direction, Layout};
pub use epilogue::{Activation, Along, BiasVector, Residual};
pub use error::{DEFAULT_WORKSPACE, ProblemError};
pub use extent::{Dynamic, Extent, Extents};
pub use factor_parts::FactorParts;
pub use factors::Factors;
pub use gemm::{Gemm, GemmBuilder, Matrix, Order};
pub use math::Math;
pub use problem::Problem;
pub use quant::{Quant, Scale, Scales, ZeroPoint, ZeroPoints};
pub use ragged::Ragged;
pub use reduce::{Reduce, ReduceBuilder, operator};
pub use reduction::{Axes, Function, MOST_REDUCTIONS, Operator, Reduction, ResultShape};
pub use role::{PerRole, Role, RoleMemory};
