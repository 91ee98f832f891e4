//! Describes computations: problems in the user's words, their texts and case files, and the contraction that each becomes. Nothing here
//! knows a plan, a kernel or a device.
//!
//! A [`Problem`] is a [`Gemm`], a [`Conv`] or a [`Reduce`]; each has a builder and a canonical text. [`lower`](lower::lower) makes
//! [`Contraction`](contraction::Contraction)s of it: products of views with a list of epilogue operations. A [`View`](view::View) says where
//! an element is in memory and whether it exists.
//!
//! ```
//! use tilewright_ir::Scalar;
//! use tilewright_problem::lower::{ConvForm, lower};
//! use tilewright_problem::{Gemm, Problem};
//!
//! // Row-major, 4 x 3 = (4 x 2) * (2 x 3).
//! let problem = Problem::Gemm(Gemm::new(Scalar::F32, 4, 3, 2).build()?);
//! assert_eq!(Problem::parse(&problem.key())?, problem);
//!
//! let product = lower(&problem, ConvForm::PER_SAMPLE)?.lead;
//! assert_eq!((product.g, product.m, product.n, product.k), (1, 4, 3, 2));
//! // A[3, 1] is element 3 * 2 + 1 of its buffer.
//! assert_eq!(product.a.view.access.at([0, 3, 1]), Some(7));
//! # Ok::<(), tilewright_problem::ProblemError>(())
//! ```
//!
//! Windows of a convolution are a view, too. Here an image of 8 x 8 pixels with 8 channels (channels last) is under a 3 x 3
//! filter, with one pixel of padding. Rows are output pixels, columns are (tap, tap, channel).
//!
//! ```
//! use tilewright_problem::view::ViewBuilder;
//!
//! let windows = ViewBuilder::dense(&[("n", 1), ("h", 8), ("w", 8), ("c", 8)])
//!     .pad("h", 1, 1)
//!     .pad("w", 1, 1)
//!     .embed("h", &[("ho", 8, 1), ("r", 3, 1)])
//!     .embed("w", &[("wo", 8, 1), ("s", 3, 1)])
//!     .merge(&["ho", "wo"], "row")
//!     .merge(&["r", "s", "c"], "col")
//!     .view("n", "row", "col")?;
//! assert_eq!(windows.extent, [1, 64, 72]);
//! for (row, col) in [(19, 0), (19, 30), (27, 71), (0, 0)] {
//!     let (h, w) = (row / 8 + col / 24 - 1, row % 8 + col / 8 % 3 - 1);
//!     let exists = (0..8).contains(&h) && (0..8).contains(&w);
//!     let offset = exists.then_some(8 * row + 64 * (col / 24) + col % 24 - 72);
//!     assert_eq!(windows.access.at([0, row, col]), offset);
//! }
//! # Ok::<(), tilewright_problem::view::ViewError>(())
//! ```

mod canonical;
pub mod cases;
mod complex;
mod complex_gemm;
pub mod contraction;
mod conv;
mod dtype;
pub mod epilogue;
mod error;
mod extent;
mod factor_parts;
mod factors;
pub mod fields;
mod gate;
mod gated_gemm;
mod gemm;
mod grouped;
pub mod lower;
mod math;
mod names;
mod oriented;
mod paired_gemm;
mod problem;
mod quant;
mod ragged;
mod real;
mod reduce;
mod reduction;
mod role;
mod second_pair;
pub mod view;

pub use canonical::Canonical;
pub use complex::Complex;
pub use conv::{Conv, ConvBuilder, Direction, Layout};
pub use dtype::Dtype;
pub use epilogue::{Activation, Along, BiasVector, Residual};
pub use error::{DEFAULT_WORKSPACE, ProblemError};
pub use extent::{Dynamic, Extent, Extents};
pub use factor_parts::FactorParts;
pub use factors::Factors;
pub use gate::{Gate, GateFunction};
pub use gemm::{Gemm, GemmBuilder, Matrix, Order};
pub use math::Math;
pub use names::Name;
pub use oriented::Oriented;
pub use problem::Problem;
pub use quant::{Quant, Scale, Scales, ZeroPoint, ZeroPoints};
pub use ragged::Ragged;
pub use real::Real;
pub use reduce::{Reduce, ReduceBuilder, operator};
pub use reduction::{Axes, Function, MOST_REDUCTIONS, Operator, Reduction, ResultShape, State};
pub use role::{PerRole, Role, RoleMemory};
pub use second_pair::SecondPair;
