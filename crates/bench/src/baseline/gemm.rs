//! A matrix product as BLAS libraries take it: column-major, with pointers or buffers in the order of the call.

use crate::error::BenchError;
use crate::workload::Workload;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Gemm, Problem};

/// The call's view of the problem. `first` and `second` are the factors in the order of the call.
pub(super) struct Call {
    /// Column-major, C not transposed.
    pub gemm: Gemm,
    pub first: Operand,
    pub second: Operand,
}

impl Call {
    /// The column-major call for a problem.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] for convolutions, and for products with more than alpha and beta.
    pub(super) fn new(workload: &Workload<'_>, library: &'static str) -> Result<Call, BenchError> {
        if workload.problem().has_epilogue() {
            let reason = "its call has no bias, activation or residual: compare with cublaslt, or the product alone".into();
            return Err(BenchError::Unsupported { library, reason });
        }
        Call::with_epilogue(workload, library)
    }

    /// The column-major call for a product whose epilogue the caller looks after.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] for convolutions and grouped products.
    pub(super) fn with_epilogue(workload: &Workload<'_>, library: &'static str) -> Result<Call, BenchError> {
        let Problem::Gemm(gemm) = workload.problem() else {
            return Err(BenchError::Unsupported { library, reason: "it computes matrix products only".into() });
        };
        if gemm.has_weights() {
            let reason = format!("it does not multiply 8-bit integers by floats: compare {}", gemm.multiplied());
            return Err(BenchError::Unsupported { library, reason });
        }
        if gemm.grouped.is_some() {
            let reason =
                "its call has no groups whose ends are in device memory: compare the dense product of as many rows".into();
            return Err(BenchError::Unsupported { library, reason });
        }
        let canonical = gemm.canonical();
        let (first, second) = if canonical.swapped { (Operand::B, Operand::A) } else { (Operand::A, Operand::B) };
        Ok(Call { gemm: canonical.gemm, first, second })
    }

    /// Sizes and distances as 32-bit integers: m, n, k, lda, ldb, ldc, batch.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] where one is too large.
    pub(super) fn narrow(&self, library: &'static str) -> Result<[i32; 7], BenchError> {
        let g = &self.gemm;
        let mut out = [0; 7];
        for (slot, value) in out.iter_mut().zip([g.m, g.n, g.k, g.a.ld, g.b.ld, g.c.ld, g.batch]) {
            *slot = i32::try_from(value)
                .map_err(|_| BenchError::Unsupported { library, reason: format!("{value} does not fit its 32-bit sizes") })?;
        }
        Ok(out)
    }

    /// Batch strides of the factors in the order of the call, and of C.
    pub(super) fn strides(&self) -> [i64; 3] {
        let g = &self.gemm;
        [g.a.batch_stride, g.b.batch_stride, g.c.batch_stride].map(|s| i64::try_from(s).unwrap_or(i64::MAX))
    }
}
