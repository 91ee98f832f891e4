//! cuBLAS: the calls a user makes without further thought. f32 runs with TF32 off, 16-bit types accumulate in f32. Grouped
//! products are one call for each group, with ends that the host knows. Or they are one call for all of them, a library of its
//! own ([`super::cublas_groups`]).

use super::cublas_complex::Complex;
use super::cuda::{check, find, stream};
use super::gemm::{Call, Piece};
use super::{Baseline, Runner};
use crate::error::BenchError;
use crate::workload::Workload;
use cudarc::cublas::sys::{self, cublasStatus_t::CUBLAS_STATUS_SUCCESS as OK};
use std::ffi::c_void;
use tilewright_device::Native;
use tilewright_ir::Scalar;
use tilewright_problem::Math;

const NAME: &str = "cublas";
pub(super) const FILES: [&str; 2] = ["libcublasLt.so", "libcublas.so"];
pub(super) const PACKAGES: [&str; 2] = ["cu13", "cublas"];

pub(super) struct Cublas {
    pub(super) handle: sys::cublasHandle_t,
    version: i32,
}

impl Cublas {
    pub(super) fn open(native: &dyn Native) -> Result<Self, BenchError> {
        let stream = stream(native, NAME)?;
        // SAFETY: loading the vendor's library runs its initialisers, which is what is wanted.
        let present = || unsafe { sys::is_culib_present() };
        find(NAME, &[(&FILES, &PACKAGES)], "nvidia-cublas", present)?;
        let (mut handle, mut version) = (std::ptr::null_mut(), 0);
        // SAFETY: the out pointer is valid, the device's context is current.
        unsafe { check!(OK, sys::cublasCreate_v2(&mut handle)) }?;
        let mut this = Cublas { handle, version };
        // SAFETY: the handle is alive; the stream belongs to the current context and outlives it.
        unsafe {
            check!(OK, sys::cublasSetStream_v2(handle, stream as sys::cudaStream_t))?;
            check!(OK, sys::cublasGetVersion_v2(handle, &mut version))?;
        }
        this.version = version;
        Ok(this)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once.
        let _ = unsafe { sys::cublasDestroy_v2(self.handle) };
    }
}

impl Baseline for Cublas {
    fn name(&self) -> &'static str {
        NAME
    }
    fn version(&self) -> String {
        super::version(self.version as usize)
    }
    fn prepare<'a>(&'a self, workload: &'a Workload<'a>) -> Result<Box<dyn Runner + 'a>, BenchError> {
        let call = Call::in_pieces(workload, NAME)?;
        self.set_math(workload, &call)?;
        let [random, exact] = workload.ends();
        Ok(Box::new(Product {
            library: self,
            workload,
            pieces: [call.pieces(workload, random.as_deref(), NAME)?, call.pieces(workload, exact.as_deref(), NAME)?],
            strides: call.strides(),
            ops: operations(&call, NAME)?,
            complex: call.gemm.complex.is_some(),
            types: [data_type(call.gemm.dtype)?, data_type(call.gemm.out_dtype)?],
            dtype: call.gemm.dtype,
        }))
    }
}

impl Cublas {
    /// Says with what precision the calls for a workload multiply and add.
    pub(super) fn set_math(&self, workload: &Workload<'_>, call: &Call) -> Result<(), BenchError> {
        use sys::cublasMath_t::*;
        let math = match (workload.math(), call.gemm.dtype) {
            (Math::Tf32, Scalar::F32) => CUBLAS_TF32_TENSOR_OP_MATH,
            // Partial sums stay f32.
            (_, Scalar::F16 | Scalar::BF16) => CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION,
            _ => CUBLAS_DEFAULT_MATH,
        };
        // SAFETY: the handle is alive.
        unsafe { check!(OK, sys::cublasSetMathMode(self.handle, math)) }
    }
}

/// How the call takes its factors.
///
/// # Errors
/// [`BenchError::Unsupported`] for conjugates of what is not transposed, which its calls do not have.
pub(super) fn operations(call: &Call, library: &'static str) -> Result<[sys::cublasOperation_t; 2], BenchError> {
    use sys::cublasOperation_t::*;
    let op = |matrix: usize| match call.gemm.letter(matrix) {
        'n' => Ok(CUBLAS_OP_N),
        't' => Ok(CUBLAS_OP_T),
        'c' => Ok(CUBLAS_OP_C),
        _ => {
            let reason = "it takes no conjugates of a factor that is not transposed (r): compare n or c".into();
            Err(BenchError::Unsupported { library, reason })
        }
    };
    Ok([op(0)?, op(1)?])
}

pub(super) fn data_type(scalar: Scalar) -> Result<sys::cudaDataType, BenchError> {
    use sys::cudaDataType_t::*;
    Ok(match scalar {
        Scalar::F16 => CUDA_R_16F,
        Scalar::BF16 => CUDA_R_16BF,
        Scalar::F32 => CUDA_R_32F,
        Scalar::F64 => CUDA_R_64F,
        other => return Err(BenchError::Unsupported { library: NAME, reason: format!("no products of {other}") }),
    })
}

struct Product<'a> {
    library: &'a Cublas,
    workload: &'a Workload<'a>,
    /// What it computes on each of the workload's data.
    pieces: [Vec<Piece>; 2],
    strides: [i64; 3],
    ops: [sys::cublasOperation_t; 2],
    types: [sys::cudaDataType; 2],
    dtype: Scalar,
    complex: bool,
}

impl Runner for Product<'_> {
    fn enqueue(&mut self) -> Result<(), String> {
        self.pieces[self.workload.on_device()].iter().try_for_each(|piece| self.multiply(piece))
    }
    fn note(&self) -> String {
        match &self.pieces[0][..] {
            [_] => String::new(),
            pieces => format!("{} calls, one for each group", pieces.len()),
        }
    }
}

impl Product<'_> {
    fn multiply(&self, piece: &Piece) -> Result<(), String> {
        let handle = self.library.handle;
        if self.complex {
            let (strides, ops, dtype) = (self.strides, self.ops, self.dtype);
            return Complex { handle, strides, ops, dtype, three: false }.multiply(piece, self.workload);
        }
        let [m, n, k, lda, ldb, ldc, batch] = piece.sizes;
        let [sa, sb, sc] = self.strides;
        let [ta, tb] = self.ops;
        let [a, b, c] = piece.addresses.map(|address| address as *mut c_void);
        let factors = [self.workload.alpha(), self.workload.beta()];
        let singles = factors.map(|factor| factor as f32);
        let (x, y) = (&raw const singles[0], &raw const singles[1]);
        // SAFETY: the addresses are those of device buffers that hold the operands (the workload made them for this problem). The
        // factors are read during the call, because the pointer mode is the host's.
        let done = unsafe {
            match self.dtype {
                Scalar::F32 => {
                    let [a, b, c] = [a, b, c].map(|p| p.cast::<f32>());
                    if batch == 1 {
                        check!(OK, sys::cublasSgemm_v2(handle, ta, tb, m, n, k, x, a, lda, b, ldb, y, c, ldc))
                    } else {
                        check!(
                            OK,
                            sys::cublasSgemmStridedBatched(
                                handle, ta, tb, m, n, k, x, a, lda, sa, b, ldb, sb, y, c, ldc, sc, batch
                            )
                        )
                    }
                }
                Scalar::F64 => {
                    let (x, y) = (&raw const factors[0], &raw const factors[1]);
                    let [a, b, c] = [a, b, c].map(|p| p.cast::<f64>());
                    if batch == 1 {
                        check!(OK, sys::cublasDgemm_v2(handle, ta, tb, m, n, k, x, a, lda, b, ldb, y, c, ldc))
                    } else {
                        check!(
                            OK,
                            sys::cublasDgemmStridedBatched(
                                handle, ta, tb, m, n, k, x, a, lda, sa, b, ldb, sb, y, c, ldc, sc, batch
                            )
                        )
                    }
                }
                _ => {
                    let [input, output] = self.types;
                    let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
                    let algorithm = sys::cublasGemmAlgo_t::CUBLAS_GEMM_DFALT;
                    let (x, y) = (x.cast(), y.cast());
                    if batch == 1 {
                        check!(
                            OK,
                            sys::cublasGemmEx(
                                handle, ta, tb, m, n, k, x, a, input, lda, b, input, ldb, y, c, output, ldc, compute, algorithm
                            )
                        )
                    } else {
                        check!(
                            OK,
                            sys::cublasGemmStridedBatchedEx(
                                handle, ta, tb, m, n, k, x, a, input, lda, sa, b, input, ldb, sb, y, c, output, ldc, sc, batch,
                                compute, algorithm
                            )
                        )
                    }
                }
            }
        };
        done.map_err(|e| e.to_string())
    }
}
