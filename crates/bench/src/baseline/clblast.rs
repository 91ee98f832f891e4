//! CLBlast through its C interface, with the parameters it comes with.

use super::gemm::Call;
use super::{Baseline, Runner};
use crate::error::BenchError;
use crate::workload::Workload;
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use tilewright_device::{Native, NativeHandles};
use tilewright_ir::Scalar;
use tilewright_problem::Gemm;
use tilewright_problem::contraction::Operand;

const NAME: &str = "clblast";

const COLUMN_MAJOR: c_int = 102;
const PRECISION_SINGLE: c_int = 32;

/// `CLBlastSgemm`, `CLBlastDgemm` with the scalar type of alpha and beta.
type Product<T> = unsafe extern "C" fn(
    layout: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: usize,
    n: usize,
    k: usize,
    alpha: T,
    a: *mut c_void,
    a_offset: usize,
    a_ld: usize,
    b: *mut c_void,
    b_offset: usize,
    b_ld: usize,
    beta: T,
    c: *mut c_void,
    c_offset: usize,
    c_ld: usize,
    queue: *mut *mut c_void,
    event: *mut *mut c_void,
) -> c_int;

/// `CLBlastSgemmStridedBatched`, `CLBlastDgemmStridedBatched`.
type Batched<T> = unsafe extern "C" fn(
    layout: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: usize,
    n: usize,
    k: usize,
    alpha: T,
    a: *mut c_void,
    a_offset: usize,
    a_ld: usize,
    a_stride: usize,
    b: *mut c_void,
    b_offset: usize,
    b_ld: usize,
    b_stride: usize,
    beta: T,
    c: *mut c_void,
    c_offset: usize,
    c_ld: usize,
    c_stride: usize,
    batch: usize,
    queue: *mut *mut c_void,
    event: *mut *mut c_void,
) -> c_int;

/// `CLBlastOverrideParameters`.
type Override = unsafe extern "C" fn(
    device: *mut c_void,
    kernel: *const c_char,
    precision: c_int,
    count: usize,
    names: *const *const c_char,
    values: *const usize,
) -> c_int;

pub(super) struct ClBlast {
    library: Library,
    device: usize,
    queue: usize,
}

impl ClBlast {
    pub(super) fn open(native: &dyn Native) -> Result<Self, BenchError> {
        let NativeHandles::OpenCl { device, queue, .. } = native.handles() else {
            let reason = "it needs an OpenCL device; choose --device opencl:0".into();
            return Err(BenchError::Unsupported { library: NAME, reason });
        };
        let mut reason = String::new();
        for file in ["libclblast.so.1", "libclblast.so"] {
            // SAFETY: loading the library runs its initialisers, which is what is wanted.
            match unsafe { Library::new(file) } {
                Ok(library) => return Ok(ClBlast { library, device, queue }),
                Err(e) => reason = e.to_string(),
            }
        }
        let remedy = "install it, e.g. `apt install libclblast1` (and `clblast-utils` for its tuners)".into();
        Err(BenchError::Missing { library: NAME, reason, remedy })
    }

    /// Looks a function up.
    ///
    /// # Safety
    /// `T` must be the function's type.
    unsafe fn function<T: Copy>(&self, name: &'static str) -> Result<T, BenchError> {
        let missing = |reason: String| BenchError::Call { call: name, reason };
        let text = CString::new(name).map_err(|e| missing(e.to_string()))?;
        // SAFETY: the caller vouches for the type.
        let symbol = unsafe { self.library.get::<T>(text.as_bytes_with_nul()) };
        symbol.map(|s| *s).map_err(|e| missing(e.to_string()))
    }

    /// Gives a kernel other parameters for f32, in this process from now on.
    pub(super) fn set_parameters(&self, kernel: &str, parameters: &[(String, usize)]) -> Result<(), BenchError> {
        const CALL: &str = "CLBlastOverrideParameters";
        let broken = |e: std::ffi::NulError| BenchError::Call { call: CALL, reason: e.to_string() };
        let kernel = CString::new(kernel).map_err(broken)?;
        let names = parameters.iter().map(|(name, _)| CString::new(name.as_str())).collect::<Result<Vec<_>, _>>();
        let names = names.map_err(broken)?;
        let pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
        let values: Vec<usize> = parameters.iter().map(|(_, value)| *value).collect();
        // SAFETY: the signature is that of clblast_c.h; all arrays have `parameters.len()` elements and live through the call.
        let status = unsafe {
            let set: Override = self.function(CALL)?;
            let device = self.device as *mut c_void;
            set(device, kernel.as_ptr(), PRECISION_SINGLE, values.len(), pointers.as_ptr(), values.as_ptr())
        };
        status_of(CALL, status)
    }

    /// The product of a workload.
    pub(super) fn product<'a>(&'a self, workload: &Workload<'_>) -> Result<Run<'a>, BenchError> {
        let call = Call::new(workload, NAME)?;
        let gemm = call.gemm;
        if !matches!(gemm.dtype, Scalar::F32 | Scalar::F64) || gemm.dtype != gemm.out_dtype {
            let reason = format!("only f32 and f64 are compared (its {} product sums in {0})", gemm.dtype);
            return Err(BenchError::Unsupported { library: NAME, reason });
        }
        Ok(Run {
            library: self,
            objects: [workload.object(call.first)?, workload.object(call.second)?, workload.object(Operand::C)?],
            starts: [call.first, call.second, Operand::C].map(|operand| workload.start(operand) as usize),
            gemm,
            alpha: workload.alpha(),
            beta: workload.beta(),
        })
    }
}

impl Baseline for ClBlast {
    fn name(&self) -> &'static str {
        NAME
    }
    fn version(&self) -> String {
        // The library does not tell; 1.5.x and later have what is used here.
        "1".into()
    }
    fn prepare<'a>(&'a self, workload: &'a Workload<'a>) -> Result<Box<dyn Runner + 'a>, BenchError> {
        Ok(Box::new(self.product(workload)?))
    }
}

fn status_of(call: &'static str, status: c_int) -> Result<(), BenchError> {
    if status == 0 { Ok(()) } else { Err(BenchError::Call { call, reason: format!("status {status} (see clblast_c.h)") }) }
}

/// A product on a workload's buffers.
pub(super) struct Run<'a> {
    library: &'a ClBlast,
    gemm: Gemm,
    objects: [usize; 3],
    starts: [usize; 3],
    alpha: f64,
    beta: f64,
}

impl Run<'_> {
    fn call<T: Copy>(&self, plain: &'static str, batched: &'static str, alpha: T, beta: T) -> Result<(), BenchError> {
        let g = &self.gemm;
        let op = |trans: bool| if trans { 112 } else { 111 };
        let (ta, tb) = (op(g.a.trans), op(g.b.trans));
        let [a, b, c] = self.objects.map(|object| object as *mut c_void);
        let [sa, sb, sc] = self.starts;
        let (m, n, k) = (g.m as usize, g.n as usize, g.k as usize);
        let (lda, ldb, ldc) = (g.a.ld as usize, g.b.ld as usize, g.c.ld as usize);
        let mut queue = self.library.queue as *mut c_void;
        let event = std::ptr::null_mut();
        // SAFETY: the signatures are those of clblast_c.h. The memory objects hold the operands (the workload made them for this
        // problem), and the queue belongs to their context. No event is asked for.
        unsafe {
            if g.batch == 1 {
                let f: Product<T> = self.library.function(plain)?;
                let status = f(COLUMN_MAJOR, ta, tb, m, n, k, alpha, a, sa, lda, b, sb, ldb, beta, c, sc, ldc, &mut queue, event);
                return status_of(plain, status);
            }
            let f: Batched<T> = self.library.function(batched)?;
            let [da, db, dc] = [g.a.batch_stride, g.b.batch_stride, g.c.batch_stride].map(|s| s as usize);
            let batch = g.batch as usize;
            let status = f(
                COLUMN_MAJOR,
                ta,
                tb,
                m,
                n,
                k,
                alpha,
                a,
                sa,
                lda,
                da,
                b,
                sb,
                ldb,
                db,
                beta,
                c,
                sc,
                ldc,
                dc,
                batch,
                &mut queue,
                event,
            );
            status_of(batched, status)
        }
    }
}

impl Runner for Run<'_> {
    fn enqueue(&mut self) -> Result<(), String> {
        let done = match self.gemm.dtype {
            Scalar::F64 => self.call("CLBlastDgemm", "CLBlastDgemmStridedBatched", self.alpha, self.beta),
            _ => self.call("CLBlastSgemm", "CLBlastSgemmStridedBatched", self.alpha as f32, self.beta as f32),
        };
        done.map_err(|e| e.to_string())
    }
}
