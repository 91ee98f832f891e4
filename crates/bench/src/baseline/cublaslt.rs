//! cuBLASLt: its first 32 heuristic results are timed, the fastest that is right is kept. Split-k partial results in 16 bits are
//! not asked for: they exceed the error that sums in f32 have. Bias along the contiguous direction of C, relu and the
//! approximation of gelu are its own epilogues. A residual without activation is its C, which it reads apart from the result.

use super::cuda::{check, find, stream};
use super::gemm::Call;
use super::{Baseline, Chosen, Runner, Samples, cublas, fastest_right};
use crate::error::BenchError;
use crate::record::Workspace;
use crate::workload::Workload;
use cudarc::cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use cudarc::cublaslt::sys::{self, cublasStatus_t::CUBLAS_STATUS_SUCCESS as OK};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use tilewright_device::Native;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Activation, Along, Gemm, Math, Problem, Residual};

const NAME: &str = "cublaslt";
/// Heuristic results asked for.
const RESULTS: usize = 32;
/// As many are asked for where none of the first is right.
const MORE: usize = 64;

pub(super) struct CublasLt {
    name: &'static str,
    /// Bytes offered. NVIDIA recommends 32 MiB on Hopper; more lets splits of k through.
    workspace: u64,
    handle: sys::cublasLtHandle_t,
    stream: sys::cudaStream_t,
}

impl CublasLt {
    pub(super) fn open(native: &dyn Native, name: &'static str, workspace: u64) -> Result<Self, BenchError> {
        let stream = stream(native, NAME)? as sys::cudaStream_t;
        // SAFETY: loading the vendor's library runs its initialisers, which is what is wanted.
        let present = || unsafe { sys::is_culib_present() };
        find(NAME, &[(&["libcublasLt.so"], &cublas::PACKAGES)], "nvidia-cublas", present)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the out pointer is valid, the device's context is current.
        unsafe { check!(OK, sys::cublasLtCreate(&mut handle)) }?;
        Ok(CublasLt { name, workspace, handle, stream })
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

impl Baseline for CublasLt {
    fn name(&self) -> &'static str {
        self.name
    }
    fn version(&self) -> String {
        // SAFETY: the library is loaded.
        super::version(unsafe { sys::cublasLtGetVersion() })
    }
    fn prepare<'a>(&'a self, workload: &'a Workload<'a>) -> Result<Box<dyn Runner + 'a>, BenchError> {
        let call = Call::with_epilogue(workload, NAME)?;
        let fused = Fused::new(workload, &call)?;
        let workspace = workload.device().alloc(self.workspace)?;
        let mut product = Product {
            library: self,
            descriptor: Descriptor::new(&call, workload.math(), &fused)?,
            layouts: [Layout::new(&call, 0)?, Layout::new(&call, 1)?, Layout::new(&call, 2)?],
            residual: match (call.gemm.residual, fused.residual) {
                (Some(residual), Some(address)) => Some((Layout::of_residual(&call, &residual)?, address)),
                _ => None,
            },
            addresses: [workload.address(call.first)?, workload.address(call.second)?, workload.address(Operand::C)?],
            workspace: workload.native().memory(&workspace)?,
            _workspace: workspace,
            algorithms: Vec::new(),
            chosen: Chosen { number: 0, right: false, passed_over: 0 },
            factors: Factors::new(
                workload.problem().accumulator(),
                workload.alpha(),
                if fused.residual.is_some() { 1.0 } else { workload.beta() },
            ),
        };
        let schemes = schemes(call.gemm.out_dtype);
        // The last resort is any algorithm at all that is right.
        let mut refused = None;
        for (results, schemes) in [(RESULTS, schemes), (MORE, schemes), (MORE, ANY_SCHEME)] {
            if let Err(e) = product.ask(results, schemes) {
                refused.get_or_insert(e);
                continue;
            }
            product.chosen = fastest_right(workload, product.algorithms.len(), Samples::OF_FASTEST, &mut |n| product.run(n))?;
            if product.chosen.right {
                break;
            }
        }
        match refused {
            Some(e) if product.algorithms.is_empty() => Err(e),
            _ => Ok(Box::new(product)),
        }
    }
}

/// alpha and beta in the type of the sums.
enum Factors {
    I32([i32; 2]),
    F32([f32; 2]),
    F64([f64; 2]),
}

impl Factors {
    fn new(accumulator: Scalar, alpha: f64, beta: f64) -> Factors {
        match accumulator {
            Scalar::I32 => Factors::I32([alpha as i32, beta as i32]),
            Scalar::F64 => Factors::F64([alpha, beta]),
            _ => Factors::F32([alpha as f32, beta as f32]),
        }
    }
    fn pointers(&self) -> [*const c_void; 2] {
        match self {
            Factors::I32([x, y]) => [(&raw const *x).cast(), (&raw const *y).cast()],
            Factors::F32([x, y]) => [(&raw const *x).cast(), (&raw const *y).cast()],
            Factors::F64([x, y]) => [(&raw const *x).cast(), (&raw const *y).cast()],
        }
    }
}

fn data_type(scalar: Scalar) -> Result<sys::cudaDataType, BenchError> {
    use sys::cudaDataType_t::*;
    Ok(match scalar {
        Scalar::I8 => CUDA_R_8I,
        Scalar::I32 => CUDA_R_32I,
        Scalar::F16 => CUDA_R_16F,
        Scalar::BF16 => CUDA_R_16BF,
        Scalar::F32 => CUDA_R_32F,
        Scalar::F64 => CUDA_R_64F,
        Scalar::E4M3 => CUDA_R_8F_E4M3,
        Scalar::E5M2 => CUDA_R_8F_E5M2,
        other => return Err(BenchError::Unsupported { library: NAME, reason: format!("no products of {other}") }),
    })
}

/// Every way to reduce partial results of split k.
const ANY_SCHEME: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_MASK as u32;

/// The reduction schemes that keep partial results as wide as the accumulators, for a type of the result. Schemes in place and in
/// the result's own type do so where it is no 16-bit type.
fn schemes(out: Scalar) -> u32 {
    match out {
        Scalar::F16 | Scalar::BF16 => sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32,
        _ => ANY_SCHEME,
    }
}

/// What the library does with the sums besides alpha and beta.
struct Fused {
    epilogue: sys::cublasLtEpilogue_t,
    /// Address and batch stride of the bias vector.
    bias: Option<(usize, i64)>,
    residual: Option<usize>,
}

impl Fused {
    fn new(workload: &Workload<'_>, call: &Call) -> Result<Fused, BenchError> {
        use sys::cublasLtEpilogue_t::*;
        let refuse = |reason: &str| Err(BenchError::Unsupported { library: NAME, reason: reason.into() });
        let gemm = &call.gemm;
        if let Some(memory) = Problem::Gemm(gemm.clone()).memories().find(|memory| memory.role.quant().is_some()) {
            return refuse(&format!("it takes no {} here: compare the product alone", memory.role.words()));
        }
        if gemm.bias.is_some_and(|b| b.along == Along::N) {
            return refuse("its bias runs along the contiguous direction of C: compare a bias along the other");
        }
        let epilogue = match (gemm.activation, gemm.bias.is_some()) {
            (None, false) => CUBLASLT_EPILOGUE_DEFAULT,
            (None, true) => CUBLASLT_EPILOGUE_BIAS,
            (Some(Activation::Relu), false) => CUBLASLT_EPILOGUE_RELU,
            (Some(Activation::Relu), true) => CUBLASLT_EPILOGUE_RELU_BIAS,
            (Some(Activation::GeluTanh), false) => CUBLASLT_EPILOGUE_GELU,
            (Some(Activation::GeluTanh), true) => CUBLASLT_EPILOGUE_GELU_BIAS,
            (Some(Activation::Gelu), _) => return refuse("its gelu is the approximation by tanh: compare gelu-tanh"),
            (Some(Activation::Silu), _) => return refuse("it has no silu"),
            (Some(Activation::HardSwish), _) => return refuse("it has no hardswish"),
            (Some(Activation::Exp), _) => return refuse("it has no exp"),
            (Some(Activation::Softcap(_)), _) => return refuse("it has no softcap"),
        };
        let residual = workload.residual_address()?;
        if residual.is_some() && (gemm.activation.is_some() || workload.beta() != 0.0) {
            return refuse("it adds no residual after an activation, or together with beta * C");
        }
        let bias = workload.bias_address()?.zip(gemm.bias).map(|(address, b)| (address, b.batch_stride as i64));
        Ok(Fused { epilogue, bias, residual })
    }
}

/// A matmul descriptor.
struct Descriptor(sys::cublasLtMatmulDesc_t);

/// Refuses products that the library has no kernels for, by the documentation of `cublasLtMatmul()`. It has kernels only for:
///
/// - 8-bit floats along k on both sides, one of them at least e4m3, with rows that start at multiples of 16 bytes;
/// - i8 with results in i32, with rows of multiples of 4.
fn check_8_bits(gemm: &Gemm) -> Result<(), BenchError> {
    let refuse = |reason: &str| Err(BenchError::Unsupported { library: NAME, reason: reason.into() });
    let lines = [gemm.a.ld, gemm.b.ld, gemm.m, gemm.k];
    match gemm.dtype {
        Scalar::E4M3 | Scalar::E5M2 if !gemm.a.trans || gemm.b.trans => {
            refuse("it multiplies 8-bit floats only where k is contiguous in both matrices: compare that layout")
        }
        Scalar::E5M2 if gemm.b_dtype.is_none() => refuse("it does not multiply e5m2 by e5m2: compare e4m3"),
        Scalar::E4M3 | Scalar::E5M2 if lines.iter().any(|x| x % 16 != 0) => {
            refuse("it multiplies 8-bit floats only with rows, columns, k and leading dimensions that are multiples of 16")
        }
        Scalar::E4M3 | Scalar::E5M2 if gemm.out_dtype.is_float8() => {
            refuse("it takes the old C in another type than 8-bit results: compare bf16")
        }
        Scalar::U8 => refuse("it does not multiply unsigned integers: compare i8"),
        Scalar::I8 if gemm.out_dtype != Scalar::I32 || gemm.b_dtype.is_some() || gemm.bias.is_some() => {
            refuse("it multiplies i8 by i8 to plain i32: compare that")
        }
        Scalar::I8 if !gemm.a.trans || gemm.b.trans || lines.iter().any(|x| x % 4 != 0) => refuse(
            "it multiplies i8 only where k is contiguous in both matrices, with sizes that are multiples of 4: compare that layout",
        ),
        _ => Ok(()),
    }
}

impl Descriptor {
    fn new(call: &Call, math: Math, fused: &Fused) -> Result<Descriptor, BenchError> {
        use sys::cublasComputeType_t::*;
        check_8_bits(&call.gemm)?;
        let (compute, scale) = match (call.gemm.dtype, math) {
            (Scalar::I8, _) => (CUBLAS_COMPUTE_32I, Scalar::I32),
            (Scalar::F64, _) => (CUBLAS_COMPUTE_64F, Scalar::F64),
            (Scalar::F32, Math::Tf32) => (CUBLAS_COMPUTE_32F_FAST_TF32, Scalar::F32),
            _ => (CUBLAS_COMPUTE_32F, Scalar::F32),
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cublasLtMatmulDescCreate(&mut raw, compute, data_type(scale)?)) }?;
        let descriptor = Descriptor(raw);
        use sys::cublasLtMatmulDescAttributes_t::*;
        for (attribute, trans) in
            [(CUBLASLT_MATMUL_DESC_TRANSA, call.gemm.a.trans), (CUBLASLT_MATMUL_DESC_TRANSB, call.gemm.b.trans)]
        {
            let op = if trans { CUBLAS_OP_T } else { CUBLAS_OP_N };
            // SAFETY: the attribute is an operation, which is read during the call.
            unsafe {
                let (value, size) = ((&raw const op).cast(), size_of_val(&op));
                check!(OK, sys::cublasLtMatmulDescSetAttribute(raw, attribute, value, size))?;
            }
        }
        if call.gemm.dtype.is_float8() {
            // As the instruction adds up, or in two levels: what is compared does so as well.
            let fast = i8::from(math != Math::Promoted);
            // SAFETY: the attribute is an int8_t, which is read during the call.
            unsafe {
                let (value, size) = ((&raw const fast).cast(), size_of_val(&fast));
                check!(OK, sys::cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_FAST_ACCUM, value, size))?;
            }
        }
        // SAFETY: the attributes have these types (cublasLtEpilogue_t, a device pointer, int64_t) and are read during the calls.
        // The bias vector lives as long as the workload.
        unsafe {
            let (value, size) = ((&raw const fused.epilogue).cast(), size_of_val(&fused.epilogue));
            check!(OK, sys::cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_EPILOGUE, value, size))?;
            if let Some((address, stride)) = fused.bias {
                let pointer = address as *const c_void;
                let (value, size) = ((&raw const pointer).cast(), size_of_val(&pointer));
                check!(OK, sys::cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_BIAS_POINTER, value, size))?;
                let (value, size) = ((&raw const stride).cast(), size_of_val(&stride));
                check!(OK, sys::cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, value, size))?;
            }
        }
        Ok(descriptor)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// A matrix as stored.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(call: &Call, matrix: usize) -> Result<Layout, BenchError> {
        Layout::of(call, matrix, call.gemm.matrices()[matrix].ld as i64, call.strides()[matrix])
    }
    fn of_residual(call: &Call, residual: &Residual) -> Result<Layout, BenchError> {
        Layout::of(call, 2, residual.ld as i64, residual.batch_stride as i64)
    }
    fn of(call: &Call, matrix: usize, ld: i64, stride: i64) -> Result<Layout, BenchError> {
        let gemm = &call.gemm;
        // Column-major: a line is a column.
        let (rows, columns) = gemm.lines(matrix);
        let batch = i32::try_from(gemm.batch)
            .map_err(|_| BenchError::Unsupported { library: NAME, reason: format!("a batch of {}", gemm.batch) })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cublasLtMatrixLayoutCreate(&mut raw, data_type(gemm.scalar(matrix))?, rows, columns, ld)) }?;
        let layout = Layout(raw);
        use sys::cublasLtMatrixLayoutAttribute_t::*;
        // SAFETY: the attributes have these types (int32_t, int64_t) and are read during the calls.
        unsafe {
            let value = (&raw const batch).cast();
            check!(OK, sys::cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, value, size_of::<i32>()))?;
            let (value, attribute) = ((&raw const stride).cast(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
            check!(OK, sys::cublasLtMatrixLayoutSetAttribute(raw, attribute, value, size_of::<i64>()))?;
        }
        Ok(layout)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// What the heuristics may use.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(addresses: &[usize; 3], workspace: u64, schemes: u32) -> Result<Preference, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cublasLtMatmulPreferenceCreate(&mut raw)) }?;
        let preference = Preference(raw);
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        let align = |address: usize| 1u32 << address.trailing_zeros().min(8);
        let [a, b, c] = addresses.map(align);
        let alignments = [
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
        ];
        // SAFETY: the attributes have these types (uint64_t, uint32_t) and are read during the calls.
        unsafe {
            let (value, attribute) = ((&raw const workspace).cast(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
            check!(OK, sys::cublasLtMatmulPreferenceSetAttribute(raw, attribute, value, size_of::<u64>()))?;
            let (value, attribute) = ((&raw const schemes).cast(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
            check!(OK, sys::cublasLtMatmulPreferenceSetAttribute(raw, attribute, value, size_of::<u32>()))?;
            for (attribute, bytes) in alignments {
                let value = (&raw const bytes).cast();
                check!(OK, sys::cublasLtMatmulPreferenceSetAttribute(raw, attribute, value, size_of::<u32>()))?;
            }
        }
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

struct Product<'a> {
    library: &'a CublasLt,
    descriptor: Descriptor,
    layouts: [Layout; 3],
    /// The residual, read in place of the old result: layout and address.
    residual: Option<(Layout, usize)>,
    addresses: [usize; 3],
    workspace: usize,
    _workspace: tilewright_device::Buffer,
    algorithms: Vec<sys::cublasLtMatmulHeuristicResult_t>,
    chosen: Chosen,
    factors: Factors,
}

impl Product<'_> {
    /// Asks the heuristics for so many results that split k in no other ways than these.
    fn ask(&mut self, results: usize, schemes: u32) -> Result<(), BenchError> {
        let preference = Preference::new(&self.addresses, self.library.workspace, schemes)?;
        let [a, b, c] = &self.layouts;
        let old = self.residual.as_ref().map_or(c, |(layout, _)| layout);
        let mut found = [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit() }; MORE];
        let wanted = results.min(found.len());
        let mut count = 0;
        // SAFETY: all descriptors are alive; the array has as many elements as are asked for.
        unsafe {
            let (desc, out) = (self.descriptor.0, found.as_mut_ptr().cast());
            let (handle, most) = (self.library.handle, wanted as i32);
            check!(
                OK,
                sys::cublasLtMatmulAlgoGetHeuristic(handle, desc, a.0, b.0, old.0, c.0, preference.0, most, out, &mut count)
            )?;
        }
        let count = (count.max(0) as usize).min(wanted);
        // SAFETY: the library has written as many results as it says.
        self.algorithms = found.into_iter().take(count).map(|r| unsafe { r.assume_init() }).filter(|r| r.state == OK).collect();
        Ok(())
    }

    fn run(&self, n: usize) -> Result<(), String> {
        let Some(result) = self.algorithms.get(n) else { return Err("no such heuristic result".into()) };
        let [a, b, c] = self.addresses.map(|address| address as *mut c_void);
        let [la, lb, lc] = &self.layouts;
        let (lold, old) = self.residual.as_ref().map_or((lc, c), |(layout, address)| (layout, *address as *mut c_void));
        let [alpha, beta] = self.factors.pointers();
        let (workspace, stream) = (self.workspace as *mut c_void, self.library.stream);
        let (handle, desc, algorithm) = (self.library.handle, self.descriptor.0, &raw const result.algo);
        // SAFETY: the descriptors describe the buffers at these addresses (the workload made them for this problem). The
        // workspace has the size that the heuristics got.
        let done = unsafe {
            check!(
                OK,
                sys::cublasLtMatmul(
                    handle,
                    desc,
                    alpha,
                    a,
                    la.0,
                    b,
                    lb.0,
                    beta,
                    old,
                    lold.0,
                    c,
                    lc.0,
                    algorithm,
                    workspace,
                    self.library.workspace as usize,
                    stream
                )
            )
        };
        done.map_err(|e| e.to_string())
    }
}

impl Runner for Product<'_> {
    fn enqueue(&mut self) -> Result<(), String> {
        self.run(self.chosen.number)
    }
    fn note(&self) -> String {
        let Some(result) = self.algorithms.get(self.chosen.number) else { return String::new() };
        let setting = |attribute| {
            let (mut value, mut written) = (0u32, 0);
            // SAFETY: the attribute is 32 bits wide; the out pointers are valid.
            let status = unsafe {
                let into = (&raw mut value).cast();
                sys::cublasLtMatmulAlgoConfigGetAttribute(&raw const result.algo, attribute, into, size_of::<u32>(), &mut written)
            };
            (status == OK).then_some(value)
        };
        use sys::cublasLtMatmulAlgoConfigAttributes_t::*;
        let split = setting(CUBLASLT_ALGO_CONFIG_SPLITK_NUM).filter(|ways| *ways > 1);
        let scheme = split.map(|ways| {
            let scheme = match setting(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) {
                Some(0) => "none",
                Some(1) => "in place",
                Some(2) => "accumulator type",
                Some(4) => "output type",
                _ => "unknown",
            };
            format!(", split-k {ways}, reduction: {scheme}")
        });
        let (at, of) = (self.chosen.number + 1, self.algorithms.len());
        format!("heuristic result {at} of {of}{}{}", scheme.unwrap_or_default(), self.chosen.note())
    }
    fn workspace(&self) -> Option<Workspace> {
        let used = self.algorithms.get(self.chosen.number)?.workspaceSize as u64;
        Some(Workspace { limit: self.library.workspace, used })
    }
}
