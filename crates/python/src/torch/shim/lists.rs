//! Arguments that are lists or may be left out, and convolutions, whose geometry is such: what torch's C interface passes from version 2.10 on.

use super::{Code, Handle, InPlace, Loaded, Seen, Shim, ShimError, Symbol, Tensor, ok, symbol};

/// Most numbers of a list.
const NUMBERS: usize = 8;

pub(super) struct Lists {
    new: Symbol<unsafe extern "C" fn(usize, *mut Handle) -> Code>,
    push: Symbol<unsafe extern "C" fn(Handle, u64) -> Code>,
    pub(super) size: Symbol<unsafe extern "C" fn(Handle, *mut usize) -> Code>,
    pub(super) get: Symbol<unsafe extern "C" fn(Handle, usize, *mut u64) -> Code>,
    pub(super) delete: Symbol<unsafe extern "C" fn(Handle) -> Code>,
}

/// `c10::IntArrayRef`, and the same that may be left out: as C++ passes them by value.
#[repr(C)]
pub(super) struct Dims(pub(super) *const i64, pub(super) usize);
#[repr(C)]
pub(super) struct MaybeDims(pub(super) Dims, pub(super) bool);
/// `std::optional<at::Tensor>`, which C++ only reads.
#[repr(C)]
struct MaybeTensor(Handle, bool);
/// `std::array<bool, 3>`
#[repr(C)]
struct Truths([bool; 3]);
/// `std::tuple` of three tensors, the last one first in memory.
#[repr(C)]
struct ThreeInPlace([Handle; 3]);

type Forward = unsafe extern "C-unwind" fn(Handle, Handle, *const MaybeTensor, Dims, Dims, Dims, bool, Dims, i64) -> InPlace;
type Backward =
    unsafe extern "C-unwind" fn(Handle, Handle, Handle, MaybeDims, Dims, Dims, Dims, bool, Dims, i64, Truths) -> ThreeInPlace;

/// A device's own convolutions, as C++ calls them: torch has promised nothing about these names, and without them convolutions are left alone.
pub(super) struct Convolutions {
    forward: Symbol<Forward>,
    backward: Symbol<Backward>,
}

impl Lists {
    pub(super) fn find(cpu: &Loaded) -> Option<Lists> {
        // SAFETY: types as torch's headers declare them.
        unsafe {
            Some(Lists {
                new: symbol(cpu, "torch_new_list_reserve_size").ok()?,
                push: symbol(cpu, "torch_list_push_back").ok()?,
                size: symbol(cpu, "torch_list_size").ok()?,
                get: symbol(cpu, "torch_list_get_item").ok()?,
                delete: symbol(cpu, "torch_delete_list").ok()?,
            })
        }
    }
}

impl Convolutions {
    /// `library` and `device`: where the device's own gradients are, and their namespace.
    pub(super) fn find(cpu: &Loaded, library: &Loaded, device: &str) -> Option<Convolutions> {
        let lists = "N3c108ArrayRefIlEESA_SA_bSA_l";
        let backward = "N3c1016OptionalArrayRefIlEENS4_8ArrayRefIlEES8_S8_bS8_lSt5arrayIbLm3EE";
        // SAFETY: the mangled names give the parameters, pointers to `at::Tensor`s among them. The functions return one `at::Tensor`, and three.
        unsafe {
            Some(Convolutions {
                forward: symbol(cpu, &format!("_ZN2at6native11convolutionERKNS_6TensorES3_RKSt8optionalIS1_E{lists}")).ok()?,
                backward: symbol(library, &format!("_ZN2at{device}20convolution_backwardERKNS_6TensorES3_S3_{backward}")).ok()?,
            })
        }
    }
}

/// A few numbers.
#[derive(Clone, Copy, Default)]
pub struct List {
    count: usize,
    numbers: [i64; NUMBERS],
}

impl List {
    pub fn as_slice(&self) -> &[i64] {
        &self.numbers[..self.count]
    }
    fn dims(&self) -> Dims {
        Dims(self.numbers.as_ptr(), self.count)
    }
}

/// How a convolution goes over its input, as torch tells it.
#[derive(Default)]
pub struct Geometry {
    stride: List,
    padding: List,
    dilation: List,
    pub transposed: bool,
    output_padding: List,
    pub groups: i64,
}

impl Geometry {
    pub const fn lists(&self) -> [&List; 4] {
        [&self.stride, &self.padding, &self.dilation, &self.output_padding]
    }
    /// Shape of the result, of operands that fit.
    pub fn result(&self, x: &Seen<'_>, weight: &Seen<'_>) -> Vec<i64> {
        let [strides, padding, dilation, _] = self.lists().map(List::as_slice);
        let along = |n: usize| (x.shape[n + 2] + 2 * padding[n] - dilation[n] * (weight.shape[n + 2] - 1) - 1) / strides[n] + 1;
        let sizes = (0..strides.len()).map(along);
        [x.shape[0], weight.shape[0]].into_iter().chain(sizes).collect()
    }
}

impl Shim {
    pub fn has_lists(&self) -> bool {
        self.lists.is_some()
    }

    pub(super) fn lists(&self) -> Result<&Lists, ShimError> {
        self.lists.as_ref().ok_or_else(|| ShimError("PyTorch 2.10 or newer is needed for lists".into()))
    }

    /// An argument that may be left out.
    ///
    /// # Safety
    /// Such an argument of a kernel.
    pub unsafe fn optional(&self, given: u64) -> Option<u64> {
        let at = given as *mut u64;
        // SAFETY: the caller's: null, or a value on C++'s heap which is ours.
        (!at.is_null()).then(|| unsafe {
            let value = *at;
            (self.to.free)(at.cast());
            value
        })
    }

    /// A tensor that may be left out. Torch's derivatives leave it out by giving one that is none.
    ///
    /// # Safety
    /// Such an argument of a kernel.
    pub unsafe fn optional_tensor(&self, given: u64) -> Result<Option<Tensor<'_>>, ShimError> {
        // SAFETY: the caller's.
        let Some(tensor) = (unsafe { self.optional(given).map(|tensor| Tensor::owned(self, tensor)) }) else { return Ok(None) };
        // SAFETY: it lives.
        Ok(unsafe { self.is_defined(tensor.handle) }?.then_some(tensor))
    }

    /// Puts the values of a list, which is freed, where there is room for them.
    ///
    /// # Safety
    /// A list of numbers or truths that the caller owns.
    pub(super) unsafe fn read(&self, list: u64, to: &mut [i64]) -> Result<usize, ShimError> {
        let lists = self.lists()?;
        let (list, mut count) = (list as Handle, 0);
        // SAFETY: the caller's; not used after it is freed.
        unsafe {
            let mut code = (lists.size)(list, &mut count);
            for (n, to) in to.iter_mut().enumerate().take(count) {
                code |= (lists.get)(list, n, std::ptr::from_mut(to).cast());
            }
            ok(code | (lists.delete)(list), "read a list")?;
        }
        if count > to.len() { Err(ShimError(format!("a list of {count} numbers: {} are possible", to.len()))) } else { Ok(count) }
    }

    /// The numbers of a list, which is freed.
    ///
    /// # Safety
    /// A list of numbers that the caller owns.
    pub unsafe fn numbers(&self, list: u64, to: &mut List) -> Result<(), ShimError> {
        // SAFETY: the caller's.
        to.count = unsafe { self.read(list, &mut to.numbers) }?;
        Ok(())
    }

    /// The truths of a list, which is freed.
    ///
    /// # Safety
    /// A list of truths that the caller owns.
    pub unsafe fn booleans<const N: usize>(&self, list: u64) -> Result<[bool; N], ShimError> {
        let mut found = [0; N];
        // SAFETY: the caller's.
        unsafe { self.read(list, &mut found) }?;
        Ok(found.map(|value| value & 0xff != 0))
    }

    /// The geometry of a convolution, from a kernel's arguments: stride, padding, dilation, transposed, output padding and groups. It is put where
    /// it stays: a call that falls back copies nothing.
    ///
    /// # Safety
    /// Such arguments, which the caller owns.
    pub unsafe fn geometry(&self, at: *const u64, to: &mut Geometry) -> Result<(), ShimError> {
        let lists = [&mut to.stride, &mut to.padding, &mut to.dilation, &mut to.output_padding];
        let mut read = Ok(());
        // SAFETY: the caller's. Each list is freed, whatever the others hold.
        unsafe {
            for (n, list) in [0, 1, 2, 4].into_iter().zip(lists) {
                read = read.and(self.numbers(*at.add(n), list));
            }
            (to.transposed, to.groups) = (*at.add(3) & 0xff != 0, *at.add(5) as i64);
        }
        read
    }

    fn convolutions(&self, cuda: bool) -> Result<&Convolutions, ShimError> {
        let found = if cuda { self.on_cuda.as_ref().and_then(|on| on.convolutions.as_ref()) } else { self.convolutions.as_ref() };
        found.ok_or_else(|| ShimError("this PyTorch has no convolutions for this device".into()))
    }

    pub fn has_convolutions(&self, cuda: bool) -> bool {
        self.has_lists() && self.convolutions(cuda).is_ok()
    }

    /// Torch's own convolution, past the dispatcher, with C++'s exceptions passing.
    ///
    /// # Safety
    /// Living tensors on a device of this kind. Frames up to torch's may be unwound.
    pub unsafe fn convolution(
        &self,
        cuda: bool,
        [x, weight]: [&Tensor<'_>; 2],
        bias: Option<&Tensor<'_>>,
        how: &Geometry,
    ) -> Result<Tensor<'_>, ShimError> {
        let (run, result) = (&self.convolutions(cuda)?.forward, self.undefined()?);
        let [stride, padding, dilation, output_padding] = how.lists().map(List::dims);
        // SAFETY: the caller's; the tensor that is overwritten is none, which nobody counts.
        unsafe {
            let bias = bias.map_or(MaybeTensor(std::ptr::null_mut(), false), |bias| MaybeTensor(*bias.handle.cast(), true));
            let made = run(x.handle, weight.handle, &bias, stride, padding, dilation, how.transposed, output_padding, how.groups);
            *result.handle.cast::<Handle>() = made.0;
        }
        Ok(result)
    }

    /// Torch's own gradients of input, filters and bias, as far as they are wanted, past the dispatcher, with C++'s exceptions passing.
    ///
    /// # Safety
    /// Living tensors on a device of this kind: the result's gradient, input, filters. Frames up to torch's may be unwound.
    pub unsafe fn convolution_backward(
        &self,
        cuda: bool,
        [grad, x, weight]: [&Tensor<'_>; 3],
        bias: Option<&List>,
        how: &Geometry,
        wanted: [bool; 3],
    ) -> Result<[Tensor<'_>; 3], ShimError> {
        let results = [self.undefined()?, self.undefined()?, self.undefined()?];
        let run = &self.convolutions(cuda)?.backward;
        let sizes = MaybeDims(bias.map_or(Dims(std::ptr::null(), 0), List::dims), bias.is_some());
        let [stride, padding, dilation, output_padding] = how.lists().map(List::dims);
        let (grad, x, weight) = (grad.handle, x.handle, weight.handle);
        // SAFETY: the caller's; tensors that are overwritten are none, which nobody counts.
        unsafe {
            let (turned, groups) = (how.transposed, how.groups);
            let made = run(grad, x, weight, sizes, stride, padding, dilation, turned, output_padding, groups, Truths(wanted));
            for (result, made) in results.iter().zip(made.0.into_iter().rev()) {
                *result.handle.cast::<Handle>() = made;
            }
        }
        Ok(results)
    }

    /// The sum over all dimensions but the last, of so many columns.
    ///
    /// # Safety
    /// A living tensor.
    pub unsafe fn sum_of_rows(&self, tensor: Tensor<'_>, columns: i64) -> Result<Tensor<'_>, ShimError> {
        let lists = self.lists()?;
        let mut list = std::ptr::null_mut();
        // SAFETY: room for a pointer; a list that lives, which the operator takes with the tensor.
        unsafe {
            ok((lists.new)(1, &mut list), "make a list")?;
            ok((lists.push)(list, columns as u64), "make a list")?;
            let mut stack = [tensor.given(), list as u64];
            self.call(c"aten::sum_to_size", c"", stack.as_mut_ptr())?;
            Ok(Tensor::owned(self, stack[0]))
        }
    }
}
