//! cuBLAS's products of complex numbers: `cublasCgemm` and `cublasZgemm`, of batches the strided ones; and `cublasCgemm3m`, which makes three real
//! products do for a complex one and loses accuracy for it, as a library of its own.

use super::cublas::{Cublas, operations};
use super::cuda::check;
use super::gemm::{Call, Piece};
use super::{Baseline, Runner};
use crate::error::BenchError;
use crate::workload::Workload;
use cudarc::cublas::sys::{self, cublasStatus_t::CUBLAS_STATUS_SUCCESS as OK};
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

/// What the calls for a complex product have in common.
pub(super) struct Complex {
    pub handle: sys::cublasHandle_t,
    pub strides: [i64; 3],
    pub ops: [sys::cublasOperation_t; 2],
    /// Type of the parts.
    pub dtype: Scalar,
    /// By three real products.
    pub three: bool,
}

impl Complex {
    /// Puts the call for a product on the queue.
    pub(super) fn multiply(&self, piece: &Piece, workload: &Workload<'_>) -> Result<(), String> {
        let handle = self.handle;
        let [m, n, k, lda, ldb, ldc, batch] = piece.sizes;
        let [sa, sb, sc] = self.strides;
        let [ta, tb] = self.ops;
        let factors = [workload.alpha(), workload.beta()];
        let (singles, doubles) =
            (factors.map(|x| sys::float2 { x: x as f32, y: 0.0 }), factors.map(|x| sys::double2 { x, y: 0.0 }));
        // SAFETY: the addresses are those of device buffers that hold the operands (the workload made them for this problem); the factors are read
        // during the call, the pointer mode being the host's.
        let done = unsafe {
            match (self.dtype, batch, self.three) {
                (Scalar::F64, ..) => {
                    let (x, y) = (&raw const doubles[0], &raw const doubles[1]);
                    let [a, b, c] = piece.addresses.map(|address| address as *mut sys::cuDoubleComplex);
                    match batch {
                        1 => check!(OK, sys::cublasZgemm_v2(handle, ta, tb, m, n, k, x, a, lda, b, ldb, y, c, ldc)),
                        _ => check!(
                            OK,
                            sys::cublasZgemmStridedBatched(
                                handle, ta, tb, m, n, k, x, a, lda, sa, b, ldb, sb, y, c, ldc, sc, batch
                            )
                        ),
                    }
                }
                (_, batch, three) => {
                    let (x, y) = (&raw const singles[0], &raw const singles[1]);
                    let [a, b, c] = piece.addresses.map(|address| address as *mut sys::cuComplex);
                    match (batch, three) {
                        (1, false) => check!(OK, sys::cublasCgemm_v2(handle, ta, tb, m, n, k, x, a, lda, b, ldb, y, c, ldc)),
                        (1, true) => check!(OK, sys::cublasCgemm3m(handle, ta, tb, m, n, k, x, a, lda, b, ldb, y, c, ldc)),
                        (_, false) => check!(
                            OK,
                            sys::cublasCgemmStridedBatched(
                                handle, ta, tb, m, n, k, x, a, lda, sa, b, ldb, sb, y, c, ldc, sc, batch
                            )
                        ),
                        (_, true) => check!(
                            OK,
                            sys::cublasCgemm3mStridedBatched(
                                handle, ta, tb, m, n, k, x, a, lda, sa, b, ldb, sb, y, c, ldc, sc, batch
                            )
                        ),
                    }
                }
            }
        };
        done.map_err(|e| e.to_string())
    }
}
