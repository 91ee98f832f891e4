//! The strided-batched matrix product `C = alpha * op(A) * op(B) + beta * C`, as BLAS and MIOpenGEMM state it, with what
//! [`crate::epilogue`] adds: the description, and what follows from it.

pub(crate) mod builder;
mod validate;

pub use builder::GemmBuilder;

use crate::complex::Complex;
use crate::epilogue::{Activation, Along, BiasVector, Residual};
use crate::error::{ProblemError, check_extents};
use crate::extent::{Dynamic, Extents};
use crate::gate::Gate;
use crate::math::Math;
use crate::names::names;
use crate::quant::{Quant, Scales, ZeroPoint, ZeroPoints, multiplied};
use crate::ragged::Ragged;
use crate::reduction::Reduction;
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// Which direction of a stored matrix is contiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Column-major: elements of a column are adjacent (Fortran, BLAS, MIOpenGEMM `colMaj1`).
    Col,
    /// Row-major: elements of a row are adjacent (C, `colMaj0`); the default everywhere.
    #[default]
    Row,
}

names!(Order {
    Row = 101, ["row"], "rows are contiguous (C)";
    Col = 102, ["col"], "columns are contiguous (BLAS, Fortran)";
});

/// How one matrix of a [`Gemm`] is stored. Distances are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Matrix {
    /// Stored transposed: A as k x m, B as n x k, C as n x m.
    pub trans: bool,
    /// Leading dimension: distance between adjacent columns (column-major) or rows (row-major) as stored.
    pub ld: u64,
    /// Distance between the matrices of adjacent batch entries; 0 with a batch: one matrix shared by all (A and B only).
    /// Always 0 without a batch.
    pub batch_stride: u64,
    /// Position of the first element within the buffer.
    pub offset: u64,
}

/// A strided-batched matrix product. Built and validated by [`Gemm::new`] ... [`GemmBuilder::build`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Gemm {
    /// Element type of A and B; of complex elements that of their parts.
    pub dtype: Scalar,
    /// Elements are complex numbers, with parts of these types. What counts elements counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complex: Option<Complex>,
    /// Element type of B where it is another: the other of two 8-bit floats of a kind, or of the two 8-bit integers. Or one of the two has small
    /// weights, 8-bit integers, and the other f16, bf16 or f32, in which they are multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b_dtype: Option<Scalar>,
    /// With what precision f32 factors are multiplied.
    #[serde(default, skip_serializing_if = "Math::is_exact")]
    pub math: Math,
    /// Element type of C: f64 beside f64; f32, f16, bf16 or an 8-bit float beside each of these and beside 8-bit floats; beside 8-bit integers f32, f16, bf16, i32, i8 or u8
    /// as well.
    pub out_dtype: Scalar,
    /// Storage order of all three matrices.
    pub order: Order,
    /// Number of products.
    pub batch: u64,
    /// Rows of op(A) and C.
    pub m: u64,
    /// Columns of C, and of op(B) but for gated products.
    pub n: u64,
    /// Columns of op(A), rows of op(B).
    pub k: u64,
    /// Operand A, m x k.
    pub a: Matrix,
    /// Operand B, k x n; k x 2 n of a gated product.
    pub b: Matrix,
    /// Result, m x n.
    pub c: Matrix,
    /// Subtracted from the factors.
    #[serde(default, skip_serializing_if = "ZeroPoints::is_none")]
    pub zero_points: ZeroPoints,
    /// Multiplied by the scaled sums.
    #[serde(default, skip_serializing_if = "Scales::is_none")]
    pub scales: Scales,
    /// Added to the scaled sums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<BiasVector>,
    /// Applied to the scaled sums with bias and old result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// A gated product: B has the columns of two factors of n columns each, and C their product after a function of the gate's. Bias and scales
    /// along n, and alpha, are those of both factors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// Added last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<Residual>,
    /// Values of the result that are computed beside it, in the order of their buffers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reductions: Vec<Reduction>,
    /// C is not stored: there are only its reductions, and it is never read either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_c: bool,
    /// Workspace budget in bytes, a multiple of the size of an element of A.
    pub workspace: u64,
    /// Extents known only at launch (`g` is the batch). One kernel computes every size from 1 to the size given here, and plans are tuned
    /// for the size given here. Leading dimensions and batch strides do not change.
    #[serde(default, skip_serializing_if = "Dynamic::is_none")]
    pub dynamic: Dynamic,
    /// A grouped product: batch entries are groups of rows (m), of columns (n) or of terms (k).
    ///
    /// Groups of rows have their own B and share A and C. Groups of columns have their own A and share B and C. Groups of terms have their own
    /// C and share A and B, as in weight gradients.
    ///
    /// A vector of i32 in device memory ([`Quant::Ends`]) holds the end of each group, ascending, at most `m` (`n`, `k`). A group with the same
    /// end as its predecessor is empty; its sums are 0. Rows and columns after the last end are not written, terms after it are not added.
    /// `m` (`n`, `k`) is the largest size, and plans are tuned for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grouped: Option<Ragged>,
}

crate::error::validated_serde!(Gemm);

impl Gemm {
    /// The largest extents: all there are where nothing is dynamic.
    pub const fn extents(&self) -> Extents {
        Extents { g: self.batch, m: self.m, n: self.n }
    }
    /// The product that a launch with these extents computes: the same matrices in the same memory, fewer rows, columns or batch
    /// entries of them. Nothing of it is dynamic any more.
    ///
    /// # Errors
    /// [`ProblemError::Value`] for an extent that is 0, beyond the largest, or other than it where it is not dynamic.
    pub fn at(&self, at: Extents) -> Result<Gemm, ProblemError> {
        check_extents(self.extents(), self.dynamic, at)?;
        let mut gemm = Gemm { batch: at.g, m: at.m, n: at.n, dynamic: Dynamic::NONE, ..self.clone() };
        if at.g == 1 {
            for x in [&mut gemm.a, &mut gemm.b, &mut gemm.c] {
                x.batch_stride = 0;
            }
            if let Some(bias) = &mut gemm.bias {
                bias.batch_stride = 0;
            }
            if let Some(residual) = &mut gemm.residual {
                residual.batch_stride = 0;
            }
            // A batch of one entry is none, over which nothing can be reduced: the values are the same.
            gemm.reductions.iter_mut().for_each(|r| r.over.g = false);
        }
        Ok(gemm)
    }
    /// The matrices in order A, B, C.
    pub fn matrices(&self) -> [&Matrix; 3] {
        [&self.a, &self.b, &self.c]
    }
    /// (contiguous length of a line, number of lines) of matrix 0 = A, 1 = B, 2 = C as stored.
    pub fn lines(&self, matrix: usize) -> (u64, u64) {
        let (rows, cols) = [(self.m, self.k), (self.k, self.product_columns()), (self.m, self.n)][matrix.min(2)];
        let trans = self.matrices()[matrix.min(2)].trans;
        if trans == (self.order == Order::Col) { (cols, rows) } else { (rows, cols) }
    }
    /// Elements from a matrix's first to just past its last, whole batch; the offset is not counted.
    pub fn span(&self, matrix: usize) -> u64 {
        let (line, lines) = self.lines(matrix);
        let x = self.matrices()[matrix.min(2)];
        (self.batch - 1) * x.batch_stride + (lines - 1) * x.ld + line
    }
    /// No memory lies between the first and the last element of a matrix but its elements.
    pub fn is_packed(&self, matrix: usize) -> bool {
        let (line, lines) = self.lines(matrix);
        let shared = self.grouped.is_some_and(|of| matrix != of.owned());
        self.span(matrix) == (if shared { 1 } else { self.batch }) * lines * line
    }
    /// Elements of a vector of quantisation parameters; 0 without one.
    pub const fn quant_len(&self, quant: Quant) -> u64 {
        let (zero, each) = match quant {
            Quant::Ends => return if self.grouped.is_some() { self.batch } else { 0 },
            Quant::ScaleM => return self.scales_len(Along::M),
            Quant::ScaleN => return self.scales_len(Along::N),
            Quant::ZeroA => (self.zero_points.a, self.m),
            Quant::ZeroB => (self.zero_points.b, self.n),
        };
        match zero {
            None => 0,
            Some(ZeroPoint::Tensor) => 1,
            Some(ZeroPoint::Each) => each,
        }
    }
    /// Scales along a direction.
    const fn scales_len(&self, along: Along) -> u64 {
        let lines = if matches!(along, Along::M) { self.m } else { self.product_columns() };
        match self.scales.of(along) {
            None => 0,
            Some(scale) => {
                let [lines, terms] = scale.blocks(lines, self.k);
                lines * terms
            }
        }
    }
    /// Sums over k that zero points are multiplied by, in i32: of B where A has zero points, and the other way round.
    pub const fn totals_len(&self, of: Along) -> u64 {
        let (other, lines) = match of {
            Along::M => (Along::N, self.m),
            Along::N => (Along::M, self.n),
        };
        if self.zero_points.of(other).is_some() { self.batch * lines } else { 0 }
    }
    /// Elements of the bias vector's buffer, whole batch; 0 without one.
    pub fn bias_len(&self) -> u64 {
        let length = |bias: &BiasVector| if bias.along == Along::M { self.m } else { self.product_columns() };
        self.bias.as_ref().map_or(0, |bias| (self.batch - 1) * bias.batch_stride + length(bias))
    }
    /// Elements of the residual's buffer, whole batch; 0 without one.
    pub fn residual_len(&self) -> u64 {
        let (line, lines) = self.lines(2);
        self.residual.as_ref().map_or(0, |r| (self.batch - 1) * r.batch_stride + (lines - 1) * r.ld + line)
    }
    /// Element type of matrix 0 = A, 1 = B, 2 = C.
    pub fn scalar(&self, matrix: usize) -> Scalar {
        match matrix {
            0 => self.dtype,
            1 => self.b_dtype.unwrap_or(self.dtype),
            _ => self.out_dtype,
        }
    }
    /// The type in which factors are multiplied: A's, or B's where A has the small weights.
    pub fn multiplied(&self) -> Scalar {
        multiplied(self.dtype, self.scalar(1)).unwrap_or(self.dtype)
    }
    /// One factor has small weights: integers of 8 or 4 bits, which become the other's float on their way.
    pub fn has_weights(&self) -> bool {
        [0, 1].into_iter().any(|matrix| self.scalar(matrix).is_weight()) && !self.multiplied().is_weight()
    }
}
