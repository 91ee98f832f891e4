//! Torch's own reductions of a tensor, past the dispatcher. They are called as C++ calls them, because torch's C interface has
//! none of them with a result of their own.

use super::lists::{Dims, MaybeDims};
use super::{Handle, InPlace, Loaded, Shim, ShimError, Symbol, Tensor, symbol};
use std::mem::MaybeUninit;

/// Most dimensions that torch reduces.
const MOST: usize = 64;

/// A dimension that may be left out, as C++ passes it by value.
#[repr(C)]
struct MaybeDim(i64, bool);
/// `std::optional<at::ScalarType>`, whose numbers are those of the C interface.
#[repr(C)]
struct MaybeType(i8, bool);

type OfType = unsafe extern "C-unwind" fn(Handle, MaybeDims, bool, MaybeType) -> InPlace;
type OfDims = unsafe extern "C-unwind" fn(Handle, Dims, bool) -> InPlace;
type OfDim = unsafe extern "C-unwind" fn(Handle, MaybeDim, bool) -> InPlace;
type WithIndices = unsafe extern "C-unwind" fn(Handle, i64, bool) -> TwoInPlace;
/// `std::tuple` of two tensors, the last one first in memory; larger than what Rust would return in registers.
#[repr(C)]
struct TwoInPlace([Handle; 2], MaybeUninit<u64>);

/// How C++ is called, which is how arguments lie on a kernel's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Dimensions that may be left out, and a type that may be.
    Typed,
    Dims,
    /// One dimension that may be left out.
    Dim,
    /// One dimension; values come with where they were found.
    WithIndices,
}

impl Form {
    const fn mangled(self) -> &'static str {
        match self {
            Form::Typed => "N3c1016OptionalArrayRefIlEEbSt8optionalINS4_10ScalarTypeEE",
            Form::Dims => "N3c108ArrayRefIlEEb",
            Form::Dim => "St8optionalIlEb",
            Form::WithIndices => "lb",
        }
    }
}

/// What is reduced, and what to: a kernel's arguments beside its tensor.
pub struct Over {
    dims: [i64; MOST],
    /// None: they were left out.
    count: Option<usize>,
    pub keeps: bool,
    pub dtype: Option<i32>,
}

impl Over {
    pub fn dims(&self) -> Option<&[i64]> {
        self.count.map(|count| &self.dims[..count.min(MOST)])
    }
}

/// A reduction of torch's for one kind of device.
pub struct Theirs(Function);

enum Function {
    Typed(Symbol<OfType>),
    Dims(Symbol<OfDims>),
    Dim(Symbol<OfDim>),
    WithIndices(Symbol<WithIndices>),
}

/// What a reduction gives.
pub struct Values<'a> {
    pub values: Tensor<'a>,
    /// Where they were found, of an operator that says so.
    pub indices: Option<Tensor<'a>>,
}

impl Theirs {
    /// `name` as C++ has it: with its namespace, mangled.
    pub(super) fn find(library: &Loaded, name: &str, form: Form) -> Option<Theirs> {
        let name = format!("_ZN2at{name}ERKNS_6TensorE{}", form.mangled());
        // SAFETY: the mangled name gives the parameters, the first a pointer to an `at::Tensor`. The functions return one `at::Tensor`, or two.
        unsafe {
            match form {
                Form::Typed => symbol(library, &name).map(Function::Typed),
                Form::Dims => symbol(library, &name).map(Function::Dims),
                Form::Dim => symbol(library, &name).map(Function::Dim),
                Form::WithIndices => symbol(library, &name).map(Function::WithIndices),
            }
        }
        .ok()
        .map(Theirs)
    }
}

impl Shim {
    /// Reads and frees the arguments of a reduction that follow its tensor.
    ///
    /// # Safety
    /// `at` points to arguments of this form that the caller owns.
    pub unsafe fn over(&self, form: Form, at: *const u64) -> Result<Over, ShimError> {
        let mut over = Over { dims: [0; MOST], count: None, keeps: false, dtype: None };
        // SAFETY: the caller's.
        unsafe {
            over.keeps = *at.add(1) & 0xff != 0;
            let list = match form {
                Form::Typed => {
                    let dtype = self.optional(*at.add(2));
                    over.dtype = dtype.map(|dtype| dtype as i32);
                    self.optional(*at)
                }
                Form::Dims => Some(*at),
                Form::Dim => {
                    if let Some(dim) = self.optional(*at) {
                        over.dims[0] = dim as i64;
                        over.count = Some(1);
                    }
                    None
                }
                Form::WithIndices => {
                    over.dims[0] = *at as i64;
                    over.count = Some(1);
                    None
                }
            };
            if let Some(list) = list {
                over.count = Some(self.read(list, &mut over.dims)?);
            }
        }
        Ok(over)
    }

    /// Torch's result, with C++'s exceptions passing.
    ///
    /// # Safety
    /// A living tensor on its kind of device. Frames up to torch's may be unwound.
    pub unsafe fn reduced(&self, theirs: &Theirs, x: Handle, over: &Over) -> Result<Values<'_>, ShimError> {
        let result = self.undefined()?;
        let dims = || Dims(over.dims.as_ptr(), over.count.unwrap_or(0));
        let put = |to: &Tensor<'_>, made: Handle| {
            // SAFETY: the tensor that is overwritten is none, which nobody counts.
            unsafe { *to.handle.cast::<Handle>() = made };
        };
        // SAFETY: the caller's.
        let made = unsafe {
            match &theirs.0 {
                Function::Typed(run) => {
                    let dtype = MaybeType(over.dtype.unwrap_or(0) as i8, over.dtype.is_some());
                    run(x, MaybeDims(dims(), over.count.is_some()), over.keeps, dtype)
                }
                Function::Dims(run) => run(x, dims(), over.keeps),
                Function::Dim(run) => run(x, MaybeDim(over.dims[0], over.count.is_some()), over.keeps),
                Function::WithIndices(run) => {
                    let indices = self.undefined()?;
                    let TwoInPlace([found, values], _) = run(x, over.dims[0], over.keeps);
                    put(&result, values);
                    put(&indices, found);
                    return Ok(Values { values: result, indices: Some(indices) });
                }
            }
        };
        put(&result, made.0);
        Ok(Values { values: result, indices: None })
    }
}
