//! The C interface of libtorch that stays the same from one version to the next (`torch/csrc/stable/c/shim.h` and
//! `torch/csrc/inductor/aoti_torch/c/shim.h` there). It is found in the libraries that Python has loaded, so nothing of torch is
//! needed to build.

mod lists;
mod reductions;

use libloading::os::unix::{Library as Loaded, RTLD_LAZY, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;

use lists::{Convolutions, Lists};
pub use lists::{Geometry, List};
pub use reductions::{Form, Over, Theirs, Values};

/// `dlopen` only finds what is loaded already.
const RTLD_NOLOAD: c_int = 4;

/// A `Tensor` of torch on its heap, which one of us owns.
pub type Handle = *mut c_void;
/// A kernel: arguments on a stack, which it owns; results take their place.
pub type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);
type Code = i32;
type Out = unsafe extern "C" fn(Handle, Handle, Handle) -> Code;
/// A function of torch's C++ that makes its result itself. Exceptions pass it.
pub type Made = unsafe extern "C-unwind" fn(Handle, Handle) -> InPlace;
/// A result as C++ returns tensors: a pointer, where the caller says. Rust returns what is as large as this there, on every architecture.
#[repr(C)]
pub struct InPlace(Handle, [MaybeUninit<u64>; 2]);
type OutPlus = unsafe extern "C" fn(Handle, Handle, Handle, Handle, f64, f64) -> Code;

/// What of torch is missing or failed.
#[derive(Debug)]
pub struct ShimError(String);

impl fmt::Display for ShimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<ShimError> for String {
    fn from(e: ShimError) -> String {
        e.0
    }
}

/// What a tensor is and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub address: u64,
    pub shape: &'a [i64],
    pub strides: &'a [i64],
    pub dtype: i32,
    /// Number of the device; -1 on the CPU.
    pub device: i32,
}

impl Seen<'_> {
    /// Whether the tensor is contiguous, with the last dimension fastest, or with `last` the channels.
    pub fn is_packed(&self, last: bool) -> bool {
        let mut next = 1;
        let mut fits = |at: usize| {
            let (size, stride) = (self.shape[at], self.strides[at]);
            let fits = size == 1 || stride == next;
            next *= size.max(1);
            fits
        };
        let dims = self.shape.len();
        if last && dims > 2 { fits(1) && (2..dims).rev().all(&mut fits) && fits(0) } else { (0..dims).rev().all(fits) }
    }
    /// The address after its last element. `size`: bytes of an element.
    pub fn end(&self, size: u64) -> u64 {
        let last: i64 =
            self.shape.iter().zip(self.strides).map(|(&size, &stride)| (size - 1).max(0).saturating_mul(stride)).sum();
        self.address.saturating_add(size.saturating_mul(last as u64 + 1))
    }
}

macro_rules! functions {
    ($($name:ident: $kind:ty = $symbol:literal,)*) => {
        struct Functions { $($name: Symbol<$kind>,)* }
        impl Functions {
            fn find(library: &Loaded) -> Result<Functions, ShimError> {
                // SAFETY: types as torch's headers declare them.
                Ok(Functions { $($name: unsafe { symbol(library, $symbol) }?,)* })
            }
        }
    };
}

functions! {
    library_init: unsafe extern "C" fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> Code
        = "aoti_torch_library_init_impl",
    library_impl: unsafe extern "C" fn(Handle, *const c_char, Boxed) -> Code = "aoti_torch_library_impl",
    library_delete: unsafe extern "C" fn(Handle) -> Code = "aoti_torch_delete_library_object",
    dim: unsafe extern "C" fn(Handle, *mut i64) -> Code = "aoti_torch_get_dim",
    sizes: unsafe extern "C" fn(Handle, *mut *const i64) -> Code = "aoti_torch_get_sizes",
    strides: unsafe extern "C" fn(Handle, *mut *const i64) -> Code = "aoti_torch_get_strides",
    dtype: unsafe extern "C" fn(Handle, *mut i32) -> Code = "aoti_torch_get_dtype",
    data: unsafe extern "C" fn(Handle, *mut *mut c_void) -> Code = "aoti_torch_get_data_ptr",
    device_index: unsafe extern "C" fn(Handle, *mut i32) -> Code = "aoti_torch_get_device_index",
    empty: unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Code = "aoti_torch_empty_strided",
    copy: unsafe extern "C" fn(Handle, Handle, i32) -> Code = "aoti_torch_copy_",
    delete: unsafe extern "C" fn(Handle) -> Code = "aoti_torch_delete_tensor_object",
    view: unsafe extern "C" fn(Handle, i64, *const i64, *const i64, i64, *mut Handle) -> Code = "aoti_torch__reinterpret_tensor",
    undefined: unsafe extern "C" fn(*mut Handle) -> Code = "aoti_torch_new_uninitialized_tensor",
    differentiates: unsafe extern "C" fn() -> bool = "aoti_torch_grad_mode_is_enabled",
    call: unsafe extern "C" fn(*const c_char, *const c_char, *mut u64) -> Code = "aoti_torch_call_dispatcher",
    // Of C++, which optional arguments are allocated with.
    free: unsafe extern "C" fn(*mut c_void) = "_ZdlPv",
    check: unsafe extern "C-unwind" fn(bool, *const c_char, *const c_char, u32, *const c_char) = "aoti_torch_check",
    cpu: unsafe extern "C" fn() -> i32 = "aoti_torch_device_type_cpu",
    cuda: unsafe extern "C" fn() -> i32 = "aoti_torch_device_type_cuda",
    byte: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_uint8",
    half: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_float16",
    bfloat16: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_bfloat16",
    float: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_float32",
    double: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_float64",
    long: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_int64",
    mm: Out = "aoti_torch_cpu_mm_out",
    bmm: Out = "aoti_torch_cpu_bmm_out",
    addmm: OutPlus = "aoti_torch_cpu_addmm_out",
}

/// Products of one device as C++ calls them: no dispatcher allocates their results, and nobody asks whether they fit. Torch has promised nothing about
/// these names; without them products go through its C interface.
struct Cxx {
    mm: Option<Symbol<Made>>,
    bmm: Option<Symbol<Made>>,
}

impl Cxx {
    /// `device`: a namespace, with its length as C++'s names have it.
    fn find(library: &Loaded, device: &str) -> Cxx {
        // SAFETY: of two `const at::Tensor &`, each a pointer to a tensor on the heap; they return an `at::Tensor`.
        let named = |name: &str| unsafe { symbol(library, &format!("_ZN2at{device}{name}ERKNS_6TensorES3_")) }.ok();
        Cxx { mm: named("2mm"), bmm: named("3bmm") }
    }
}

/// What torch has for CUDA beside it.
struct OnCuda {
    loaded: Loaded,
    cxx: Cxx,
    stream: Symbol<unsafe extern "C" fn(i32, *mut *mut c_void) -> Code>,
    mm: Symbol<Out>,
    bmm: Symbol<Out>,
    addmm: Symbol<OutPlus>,
    convolutions: Option<Convolutions>,
}

/// Torch's functions, which stay loaded for as long as the process.
pub struct Shim {
    loaded: Loaded,
    to: Functions,
    cxx: Cxx,
    on_cuda: Option<OnCuda>,
    lists: Option<Lists>,
    convolutions: Option<Convolutions>,
    is_defined: Option<Symbol<unsafe extern "C" fn(Handle, *mut bool) -> Code>>,
    what: Option<Symbol<unsafe extern "C" fn() -> *const c_char>>,
    dtypes: [(i32, &'static str); 4],
    /// The CPU's and CUDA's numbers as kinds of devices.
    kinds: [i32; 2],
    byte: i32,
}

/// # Safety
/// The symbol must be of this type.
unsafe fn symbol<T>(library: &Loaded, name: &str) -> Result<Symbol<T>, ShimError> {
    // SAFETY: the caller's.
    unsafe { library.get(name.as_bytes()) }
        .map_err(|e| ShimError(format!("this PyTorch lacks {name}: 2.8 or newer is needed ({e})")))
}

fn loaded(name: &str) -> Result<Loaded, ShimError> {
    // SAFETY: it is loaded: nothing of it runs now.
    unsafe { Loaded::open(Some(name), RTLD_LAZY | RTLD_NOLOAD) }
        .map_err(|e| ShimError(format!("PyTorch's {name} is not loaded: {e}")))
}

fn ok(code: Code, what: &str) -> Result<(), ShimError> {
    if code == 0 { Ok(()) } else { Err(ShimError(format!("PyTorch failed to {what}"))) }
}

impl Shim {
    pub fn find() -> Result<Shim, ShimError> {
        let cpu = loaded("libtorch_cpu.so")?;
        let to = Functions::find(&cpu)?;
        let on_cuda = loaded("libtorch_cuda.so").ok().and_then(|cuda| {
            // SAFETY: types as torch's headers declare them.
            let found = unsafe {
                OnCuda {
                    cxx: Cxx::find(&cuda, "4cuda"),
                    stream: symbol(&cuda, "aoti_torch_get_current_cuda_stream").ok()?,
                    mm: symbol(&cuda, "aoti_torch_cuda_mm_out").ok()?,
                    bmm: symbol(&cuda, "aoti_torch_cuda_bmm_out").ok()?,
                    addmm: symbol(&cuda, "aoti_torch_cuda_addmm_out").ok()?,
                    convolutions: Convolutions::find(&cpu, &cuda, "4cuda"),
                    loaded: cuda,
                }
            };
            Some(found)
        });
        let (lists, convolutions) = (Lists::find(&cpu), Convolutions::find(&cpu, &cpu, "6native"));
        // SAFETY: as above; constants.
        let (is_defined, what, dtypes, kinds, byte) = unsafe {
            (
                symbol(&cpu, "aoti_torch_is_defined").ok(),
                symbol(&cpu, "torch_exception_get_what_without_backtrace").ok(),
                [((to.half)(), "float16"), ((to.bfloat16)(), "bfloat16"), ((to.float)(), "float32"), ((to.double)(), "float64")],
                [(to.cpu)(), (to.cuda)()],
                (to.byte)(),
            )
        };
        Ok(Shim {
            cxx: Cxx::find(&cpu, "3cpu"),
            to,
            on_cuda,
            lists,
            convolutions,
            is_defined,
            what,
            dtypes,
            kinds,
            byte,
            loaded: cpu,
        })
    }

    /// Torch's reduction of a name (that of C++, mangled) for a kind of device; `anywhere`: one function for all of them.
    pub fn reduction(&self, name: &str, anywhere: bool, form: Form, cuda: bool) -> Option<Theirs> {
        let library = if cuda && !anywhere { &self.on_cuda.as_ref()?.loaded } else { &self.loaded };
        let device = if anywhere { "6native" } else { ["3cpu", "4cuda"][usize::from(cuda)] };
        Theirs::find(library, &format!("{device}{name}"), form).filter(|_| self.has_lists())
    }

    /// The number of the type of indices.
    pub fn indices(&self) -> i32 {
        // SAFETY: a constant.
        unsafe { (self.to.long)() }
    }

    pub fn has_cuda(&self) -> bool {
        self.on_cuda.is_some()
    }

    /// The type's name as the package has it; None for those that no kernel here computes with.
    pub fn dtype(&self, number: i32) -> Option<&'static str> {
        self.dtypes.iter().find(|(n, _)| *n == number).map(|(_, name)| *name)
    }

    /// Bytes of an element, at most.
    pub fn bytes_of(&self, dtype: i32) -> u64 {
        match self.dtype(dtype) {
            Some("float16" | "bfloat16") => 2,
            Some("float32") => 4,
            _ => 8,
        }
    }

    /// A place for kernels of a namespace's operators at a dispatch key.
    pub fn library(&'static self, namespace: &str, key: &str) -> Result<Library, ShimError> {
        let text = |s: &str| CString::new(s).map_err(|e| ShimError(e.to_string()));
        let mut handle = std::ptr::null_mut();
        let (namespace, key) = (text(namespace)?, text(key)?);
        // SAFETY: texts that live during the call; torch copies them.
        let code = unsafe { (self.to.library_init)(namespace.as_ptr(), key.as_ptr(), c"tilewright".as_ptr(), 0, &mut handle) };
        ok(code, "open a library of operators")?;
        Ok(Library { shim: self, handle })
    }

    /// # Safety
    /// A living tensor, which the result must not outlive.
    pub unsafe fn look<'a>(&self, tensor: Handle) -> Result<Seen<'a>, ShimError> {
        // SAFETY: the caller's.
        unsafe { Ok(Seen { address: self.address(tensor)?, ..self.look_without_address(tensor)? }) }
    }

    /// All but the address, which is 0: who falls back needs none.
    ///
    /// # Safety
    /// As `look`.
    #[inline]
    pub unsafe fn look_without_address<'a>(&self, tensor: Handle) -> Result<Seen<'a>, ShimError> {
        let (mut dims, mut shape, mut strides) = (0, std::ptr::null(), std::ptr::null());
        let (mut dtype, mut device) = (0, -1);
        // SAFETY: the caller's.
        unsafe {
            let code = (self.to.dim)(tensor, &mut dims)
                | (self.to.sizes)(tensor, &mut shape)
                | (self.to.strides)(tensor, &mut strides)
                | (self.to.dtype)(tensor, &mut dtype)
                | (self.to.device_index)(tensor, &mut device);
            ok(code, "describe a tensor")?;
            let dims = usize::try_from(dims).unwrap_or(0);
            let list = |at: *const i64| if dims == 0 { &[][..] } else { std::slice::from_raw_parts(at, dims) };
            Ok(Seen { address: 0, shape: list(shape), strides: list(strides), dtype, device })
        }
    }

    /// # Safety
    /// A living tensor.
    pub unsafe fn address(&self, tensor: Handle) -> Result<u64, ShimError> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the caller's.
        ok(unsafe { (self.to.data)(tensor, &mut address) }, "tell where a tensor lies")?;
        Ok(address as u64)
    }

    /// A new row-major tensor from torch's allocator.
    pub fn empty(&self, shape: &[i64], dtype: i32, cuda: bool, device: i32) -> Result<Tensor<'_>, ShimError> {
        self.empty_in(false, shape, dtype, cuda, device)
    }

    /// As `empty`; `last`: with its channels innermost.
    pub fn empty_in(&self, last: bool, shape: &[i64], dtype: i32, cuda: bool, device: i32) -> Result<Tensor<'_>, ShimError> {
        let (mut few, mut many) = ([1; 5], Vec::new());
        let strides = if let Some(few) = few.get_mut(..shape.len()) {
            few
        } else {
            many.resize(shape.len(), 1);
            &mut many[..]
        };
        let mut next = 1;
        if last && shape.len() > 2 {
            for at in std::iter::once(1).chain((2..shape.len()).rev()).chain([0]) {
                strides[at] = next;
                next *= shape[at].max(1);
            }
        } else {
            for (stride, size) in strides.iter_mut().zip(shape).rev() {
                *stride = next;
                next *= (*size).max(1);
            }
        }
        let (dims, kind, mut handle) = (shape.len() as i64, self.kinds[usize::from(cuda)], std::ptr::null_mut());
        // SAFETY: as many sizes and strides as dimensions.
        let code = unsafe { (self.to.empty)(dims, shape.as_ptr(), strides.as_ptr(), dtype, kind, device.max(0), &mut handle) };
        ok(code, "allocate a tensor: out of memory?")?;
        Ok(Tensor { shim: self, handle })
    }

    /// A tensor with the same memory and other sizes.
    ///
    /// # Safety
    /// A living tensor, whose memory holds that; as many sizes as strides.
    pub unsafe fn view(&self, tensor: Handle, shape: &[i64], strides: &[i64]) -> Result<Tensor<'_>, ShimError> {
        let (dims, mut handle) = (shape.len() as i64, std::ptr::null_mut());
        // SAFETY: the caller's.
        let code = unsafe { (self.to.view)(tensor, dims, shape.as_ptr(), strides.as_ptr(), 0, &mut handle) };
        ok(code, "view a tensor")?;
        Ok(Tensor { shim: self, handle })
    }

    /// No tensor, as gradients that nobody wants are given.
    pub fn undefined(&self) -> Result<Tensor<'_>, ShimError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: room for a pointer.
        ok(unsafe { (self.to.undefined)(&mut handle) }, "make an undefined tensor")?;
        Ok(Tensor { shim: self, handle })
    }

    /// Is it a tensor at all? Versions that cannot tell are taken to give one.
    ///
    /// # Safety
    /// A handle of torch's.
    pub unsafe fn is_defined(&self, tensor: Handle) -> Result<bool, ShimError> {
        let mut defined = true;
        if let Some(is_defined) = &self.is_defined {
            // SAFETY: the caller's.
            ok(unsafe { is_defined(tensor, &mut defined) }, "describe a tensor")?;
        }
        Ok(defined)
    }

    /// Is what runs now to be differentiated?
    pub fn differentiates(&self) -> bool {
        // SAFETY: a question.
        unsafe { (self.to.differentiates)() }
    }

    /// Calls an operator by its name with what is on the stack, which it takes; its results take their place.
    ///
    /// # Safety
    /// A stack as its schema says.
    pub unsafe fn call(&self, name: &CStr, overload: &CStr, stack: *mut u64) -> Result<(), ShimError> {
        // SAFETY: the caller's.
        let code = unsafe { (self.to.call)(name.as_ptr(), overload.as_ptr(), stack) };
        if code == 0 { Ok(()) } else { Err(self.failure(&format!("PyTorch's {}", name.to_string_lossy()))) }
    }

    /// So many bytes on a CUDA device.
    pub fn bytes(&self, count: u64, device: i32) -> Result<Tensor<'_>, ShimError> {
        self.empty(&[i64::try_from(count).unwrap_or(i64::MAX)], self.byte, true, device)
    }

    /// Copies values, whatever the strides.
    ///
    /// # Safety
    /// Living tensors of the same shape.
    pub unsafe fn copy(&self, from: Handle, to: &Tensor<'_>) -> Result<(), ShimError> {
        // SAFETY: the caller's.
        ok(unsafe { (self.to.copy)(to.handle, from, 1) }, "copy a tensor")
    }

    /// Torch's own product, past the dispatcher, with a vector added or not.
    ///
    /// # Safety
    /// Living tensors on a device of this kind.
    pub unsafe fn product(
        &self,
        batched: bool,
        cuda: bool,
        out: Handle,
        [a, b]: [Handle; 2],
        bias: Option<Handle>,
    ) -> Result<(), ShimError> {
        let (mm, bmm, addmm) = match (&self.on_cuda, cuda) {
            (Some(on_cuda), true) => (&on_cuda.mm, &on_cuda.bmm, &on_cuda.addmm),
            (None, true) => return Err(ShimError("this PyTorch has no CUDA".into())),
            (_, false) => (&self.to.mm, &self.to.bmm, &self.to.addmm),
        };
        // SAFETY: the caller's.
        let code = unsafe {
            match bias {
                Some(bias) => addmm(out, bias, a, b, 1.0, 1.0),
                None if batched => bmm(out, a, b),
                None => mm(out, a, b),
            }
        };
        if code == 0 { Ok(()) } else { Err(self.failure("PyTorch's product")) }
    }

    /// Torch's own product with a result of its own making, past the dispatcher, where it has one that we can call.
    pub fn made(&self, batched: bool, cuda: bool) -> Option<Made> {
        let cxx = if cuda { &self.on_cuda.as_ref()?.cxx } else { &self.cxx };
        if batched { cxx.bmm.as_deref() } else { cxx.mm.as_deref() }.copied()
    }

    /// What `made` gave, with C++'s exceptions passing.
    ///
    /// # Safety
    /// Living tensors on its kind of device. Frames up to torch's may be unwound.
    pub unsafe fn make(&self, made: Made, [a, b]: [Handle; 2]) -> Result<Tensor<'_>, ShimError> {
        let result = self.undefined()?;
        // SAFETY: the caller's; the tensor that is overwritten is none, which nobody counts.
        unsafe { *result.handle.cast::<Handle>() = made(a, b).0 };
        Ok(result)
    }

    /// What torch says about its latest failure on this thread.
    fn failure(&self, what: &str) -> ShimError {
        // SAFETY: a text that stays until the next failure of this thread.
        let message = self.what.as_ref().map(|what| unsafe { CStr::from_ptr(what()) }.to_string_lossy().into_owned());
        ShimError(message.unwrap_or_else(|| format!("{what} failed; its message is on stderr")))
    }

    /// The stream that torch works on now.
    pub fn stream(&self, device: i32) -> Result<usize, ShimError> {
        let on_cuda = self.on_cuda.as_ref().ok_or_else(|| ShimError("this PyTorch has no CUDA".into()))?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a device's number, and room for a pointer.
        ok(unsafe { (on_cuda.stream)(device, &mut stream) }, "tell its stream")?;
        Ok(stream as usize)
    }

    /// Raises `RuntimeError` in Python: a C++ exception from here on.
    pub fn raise(&self, text: &str) {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: texts that live until the exception has a copy. It passes frames that may be unwound.
        unsafe { (self.to.check)(false, c"tilewright".as_ptr(), c"tilewright".as_ptr(), 0, text.as_ptr()) }
    }
}

/// A tensor that is freed unless it is given away.
pub struct Tensor<'a> {
    shim: &'a Shim,
    pub handle: Handle,
}

impl Tensor<'_> {
    /// Takes over an argument of a kernel.
    ///
    /// # Safety
    /// A tensor that the caller owns.
    pub unsafe fn owned(shim: &Shim, handle: u64) -> Tensor<'_> {
        Tensor { shim, handle: handle as Handle }
    }
    /// Releases the tensor's handle to the caller, who then owns it.
    pub fn given(self) -> u64 {
        let handle = self.handle as u64;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: owned, and not used again.
        unsafe { (self.shim.to.delete)(self.handle) };
    }
}

/// Kernels at one dispatch key, taken away when dropped.
pub struct Library {
    shim: &'static Shim,
    handle: Handle,
}

// SAFETY: torch's registry has a lock of its own.
unsafe impl Send for Library {}

impl Library {
    pub fn implement(&self, name: &CStr, kernel: Boxed) -> Result<(), ShimError> {
        // SAFETY: a library that lives; torch copies the name.
        ok(unsafe { (self.shim.to.library_impl)(self.handle, name.as_ptr(), kernel) }, "register an operator's kernel")
    }
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: made by torch, and not used again.
        unsafe { (self.shim.to.library_delete)(self.handle) };
    }
}
