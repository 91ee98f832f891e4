//! cuBLAS's own grouped products in one call (`cublasGemmGroupedBatchedEx`). The sizes of all groups are in the host's memory,
//! and the addresses of their matrices in the device's. Sizes and addresses are prepared before the call is timed.

use super::cublas::{Cublas, data_type, operations};
use super::cuda::check;
use super::gemm::{Call, Piece};
use super::{Baseline, Runner};
use crate::error::BenchError;
use crate::workload::Workload;
use cudarc::cublas::sys::{self, cublasStatus_t::CUBLAS_STATUS_SUCCESS as OK};
use tilewright_device::{Buffer, Native};
use tilewright_ir::Scalar;

const NAME: &str = "cublas-grouped";

pub(super) struct CublasGroups(Cublas);

impl CublasGroups {
    pub(super) fn open(native: &dyn Native) -> Result<Self, BenchError> {
        let cublas = Cublas::open(native)?;
        // SAFETY: the library is loaded; the symbol is looked up and not called.
        let there = unsafe { sys::culib().get::<*const ()>(b"cublasGemmGroupedBatchedEx\0").is_ok() };
        if there {
            return Ok(CublasGroups(cublas));
        }
        let reason = "the loaded cuBLAS has no cublasGemmGroupedBatchedEx".into();
        Err(BenchError::Missing { library: NAME, reason, remedy: "install cuBLAS 12.5 or later, or compare with cublas".into() })
    }
}

impl Baseline for CublasGroups {
    fn name(&self) -> &'static str {
        NAME
    }
    fn version(&self) -> String {
        self.0.version()
    }
    fn prepare<'a>(&'a self, workload: &'a Workload<'a>) -> Result<Box<dyn Runner + 'a>, BenchError> {
        let call = Call::in_pieces(workload, NAME)?;
        let refuse = |reason: &str| Err(BenchError::Unsupported { library: NAME, reason: reason.into() });
        if call.gemm.grouped.is_none() {
            return refuse("it computes grouped products: compare with cublas");
        }
        if !matches!(call.gemm.dtype, Scalar::F16 | Scalar::BF16 | Scalar::F32) {
            return refuse("it multiplies groups of f16, bf16 and f32: compare with cublas");
        }
        self.0.set_math(workload, &call)?;
        let [random, exact] = workload.ends();
        let ops = operations(&call, NAME)?;
        let groups = |ends: Option<&[u64]>| Groups::new(workload, &call.pieces(workload, ends, NAME)?, ops);
        Ok(Box::new(Product {
            library: self,
            workload,
            groups: [groups(random.as_deref())?, groups(exact.as_deref())?],
            types: [data_type(call.gemm.dtype)?, data_type(call.gemm.out_dtype)?],
        }))
    }
}

/// Groups as the call takes them, each a group of one product.
struct Groups {
    count: i32,
    /// m, n, k, lda, ldb and ldc of each.
    sizes: [Vec<i32>; 6],
    ops: [Vec<sys::cublasOperation_t>; 2],
    /// One product each.
    ones: Vec<i32>,
    /// alpha and beta of each.
    factors: [Vec<f32>; 2],
    /// Device memory with the addresses of the first factors, of the second ones, and of the results.
    addresses: usize,
    _addresses: Buffer,
}

impl Groups {
    fn new(workload: &Workload<'_>, pieces: &[Piece], ops: [sys::cublasOperation_t; 2]) -> Result<Groups, BenchError> {
        let all: Vec<u8> = (0..3)
            .flat_map(|matrix| pieces.iter().flat_map(move |piece| (piece.addresses[matrix] as u64).to_le_bytes()))
            .collect();
        let buffer = workload.device().alloc(all.len() as u64)?;
        workload.device().write(&buffer, 0, &all)?;
        let factors = [workload.alpha(), workload.beta()];
        Ok(Groups {
            count: i32::try_from(pieces.len()).unwrap_or(i32::MAX),
            sizes: [0, 1, 2, 3, 4, 5].map(|size| pieces.iter().map(|piece| piece.sizes[size]).collect()),
            ops: ops.map(|op| vec![op; pieces.len()]),
            ones: vec![1; pieces.len()],
            factors: factors.map(|factor| vec![factor as f32; pieces.len()]),
            addresses: workload.native().memory(&buffer)?,
            _addresses: buffer,
        })
    }
}

struct Product<'a> {
    library: &'a CublasGroups,
    workload: &'a Workload<'a>,
    /// What it computes on each of the workload's data.
    groups: [Groups; 2],
    types: [sys::cudaDataType; 2],
}

impl Runner for Product<'_> {
    fn enqueue(&mut self) -> Result<(), String> {
        let Groups { count, sizes: [m, n, k, lda, ldb, ldc], ops: [ta, tb], ones, factors: [alpha, beta], addresses, .. } =
            &self.groups[self.workload.on_device()];
        let apart = *count as usize * size_of::<u64>();
        let [a, b, c] = [0, 1, 2].map(|matrix| addresses + matrix * apart);
        let [input, output] = self.types;
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: the vectors have an element for each group, and the device's memory has three for each group. The addresses
        // point to parts of the workload's buffers. The call reads the host's memory before it returns, because the pointer mode
        // is the host's.
        let done = unsafe {
            check!(
                OK,
                sys::cublasGemmGroupedBatchedEx(
                    self.library.0.handle,
                    ta.as_ptr(),
                    tb.as_ptr(),
                    m.as_ptr(),
                    n.as_ptr(),
                    k.as_ptr(),
                    alpha.as_ptr().cast(),
                    a as *const _,
                    input,
                    lda.as_ptr(),
                    b as *const _,
                    input,
                    ldb.as_ptr(),
                    beta.as_ptr().cast(),
                    c as *const _,
                    output,
                    ldc.as_ptr(),
                    *count,
                    ones.as_ptr(),
                    compute
                )
            )
        };
        done.map_err(|e| e.to_string())
    }
    fn note(&self) -> String {
        format!("one call for {} groups", self.groups[0].count)
    }
}
