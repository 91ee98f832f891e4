//! cuBLAS's calls for products of complex numbers: `cublasCgemm` and `cublasZgemm`, and their strided variants for batches. Also
//! `cublasCgemm3m`, which makes three real products do for a complex one and loses accuracy for it.

use super::cuda::check;
use super::gemm::Piece;
use crate::workload::Workload;
use cudarc::cublas::sys::{self, cublasStatus_t::CUBLAS_STATUS_SUCCESS as OK};
use tilewright_ir::Scalar;

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
        // SAFETY: the addresses are those of device buffers that hold the operands (the workload made them for this problem). The
        // factors are read during the call, because the pointer mode is the host's.
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
