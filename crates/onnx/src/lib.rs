//! Reads ONNX models: the products, convolutions and reductions that they run, as problems with the shapes of a given batch.
//!
//! [`read`] returns a [`Model`]: a list of [`Layer`]s, each with its problem and the operators that its epilogue computes, too. The file is
//! checked before it is parsed (`wire`), free dimensions are bound and every shape is inferred (`model`, `infer`), and nodes become problems
//! (`layers`). Weights are not read.
//!
//! ```no_run
//! use tilewright_onnx::{Options, read};
//!
//! let model = read("resnet50.onnx".as_ref(), &Options::default())?;
//! for layer in &model.layers {
//!     println!("{} ({}): {}", layer.name, layer.op, layer.problem);
//! }
//! # Ok::<(), tilewright_onnx::OnnxError>(())
//! ```

mod gated;
mod infer;
mod layers;
mod model;
mod value;
mod wire;

use std::path::{Path, PathBuf};
use tilewright_ir::Scalar;
use tilewright_problem::{Layout, Problem};

/// What a model may leave open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Sizes of free dimensions by their name in the model, and of any dimension of an input by `input.index`.
    pub dims: Vec<(String, u64)>,
    /// Element type in place of the model's.
    pub dtype: Option<Scalar>,
    /// Layout of convolutions; ONNX has NCHW.
    pub layout: Option<Layout>,
}

/// A node that becomes a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its name, or that of its output.
    pub name: String,
    /// `Conv`, `Gemm`, `MatMul`, `ReduceMean`, ...
    pub op: String,
    /// Operators after it that its epilogue computes, too.
    pub folded: Vec<String>,
    /// What it computes.
    pub problem: Problem,
}

/// What a model runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// In the model's order.
    pub layers: Vec<Layer>,
    /// Nodes of these kinds that have no problem, with the reason.
    pub skipped: Vec<String>,
}

/// Why a model cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnnxError {
    /// The system refused.
    #[error("{}: cannot be read: {reason}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file is no sound model.
    #[error("{file}: not a sound ONNX model: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// Dimensions are free.
    #[error("{file}: free dimensions: {}; give each a size: --dim {}=N", .free.join(", "), .free.first().map_or("NAME", |f| f.split(' ').next().unwrap_or(f)))]
    Free {
        /// The file.
        file: String,
        /// Their names, with where they are.
        free: Vec<String>,
    },
    /// A size was given for no dimension.
    #[error("{file}: has no dimension {name}; its inputs are {inputs}")]
    NoSuchDimension {
        /// The file.
        file: String,
        /// As it was given.
        name: String,
        /// Names and shapes.
        inputs: String,
    },
    /// An element type that no kernel multiplies.
    #[error("{file}: its tensors are {found}; choose f32, f16, bf16 or f64 for it")]
    Dtype {
        /// The file.
        file: String,
        /// What they are.
        found: String,
    },
}

/// Reads a model.
///
/// # Errors
/// [`OnnxError`] names the file, and the node where there is one.
pub fn read(path: &Path, options: &Options) -> Result<Model, OnnxError> {
    let bytes = std::fs::read(path).map_err(|e| OnnxError::Read { path: path.into(), reason: e.to_string() })?;
    parse(&path.display().to_string(), &bytes, options)
}

/// Reads a model from bytes; `file` names it in errors.
///
/// # Errors
/// As [`read`].
pub fn parse(file: &str, bytes: &[u8], options: &Options) -> Result<Model, OnnxError> {
    let graph = model::load(file, bytes, options)?;
    layers::extract(&graph, options)
}
