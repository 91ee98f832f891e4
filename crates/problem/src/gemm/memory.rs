//! Where the elements of a [`Gemm`] lie: lines, distances, and what a launch with fewer of them touches.

use super::{Gemm, Matrix, Order};
use crate::epilogue::{Along, BiasVector};
use crate::error::{ProblemError, check_extents};
use crate::extent::{Dynamic, Extents};
use tilewright_ir::Scalar;

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
        let (rows, cols) = [(self.m, self.k), (self.k, self.b_columns()), (self.m, self.n)][matrix.min(2)];
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
}
