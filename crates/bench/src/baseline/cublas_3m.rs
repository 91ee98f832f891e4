//! cuBLAS's complex products by three real ones, as a library of its own: what `cublasCgemm3m` computes is less accurate.

use super::cublas::{Cublas, operations};
use super::cublas_complex::Complex;
use super::gemm::{Call, Piece};
use super::{Baseline, Runner};
use crate::error::BenchError;
use crate::workload::Workload;
use tilewright_device::Native;
use tilewright_ir::Scalar;

const NAME: &str = "cublas-3m";

/// `cublasCgemm3m` and its strided batches.
pub(super) struct Cublas3m(Cublas);

impl Cublas3m {
    pub(super) fn open(native: &dyn Native) -> Result<Self, BenchError> {
        Cublas::open(native).map(Cublas3m)
    }
}

impl Baseline for Cublas3m {
    fn name(&self) -> &'static str {
        NAME
    }
    fn version(&self) -> String {
        self.0.version()
    }
    fn prepare<'a>(&'a self, workload: &'a Workload<'a>) -> Result<Box<dyn Runner + 'a>, BenchError> {
        let call = Call::in_pieces(workload, NAME)?;
        if call.gemm.complex.is_none() || call.gemm.dtype != Scalar::F32 {
            let reason = "it has three real products for one of complex64: compare with cublas".into();
            return Err(BenchError::Unsupported { library: NAME, reason });
        }
        self.0.set_math(workload, &call)?;
        let pieces = call.pieces(workload, None, NAME)?;
        let (strides, ops, handle) = (call.strides(), operations(&call, NAME)?, self.0.handle);
        Ok(Box::new(Product { workload, pieces, of: Complex { handle, strides, ops, dtype: Scalar::F32, three: true } }))
    }
}

struct Product<'a> {
    workload: &'a Workload<'a>,
    pieces: Vec<Piece>,
    of: Complex,
}

impl Runner for Product<'_> {
    fn enqueue(&mut self) -> Result<(), String> {
        self.pieces.iter().try_for_each(|piece| self.of.multiply(piece, self.workload))
    }
}
