//! Arguments that are lists or may be left out, and convolutions, whose geometry is such: what torch's C interface passes from version 2.10 on.

use super::{Code, Handle, Loaded, Seen, Shim, ShimError, Symbol, Tensor, ok, symbol};

/// Most numbers of a list.
const NUMBERS: usize = 8;

pub(super) struct Lists {
    new: Symbol<unsafe extern "C" fn(usize, *mut Handle) -> Code>,
    push: Symbol<unsafe extern "C" fn(Handle, u64) -> Code>,
    pub(super) size: Symbol<unsafe extern "C" fn(Handle, *mut usize) -> Code>,
    pub(super) get: Symbol<unsafe extern "C" fn(Handle, usize, *mut u64) -> Code>,
    pub(super) delete: Symbol<unsafe extern "C" fn(Handle) -> Code>,
}

type Numbers = *const i64;
type Forward = unsafe extern "C" fn(
    Handle,
    Handle,
    *const Handle,
    Numbers,
    i64,
    Numbers,
    i64,
    Numbers,
    i64,
    i32,
    Numbers,
    i64,
    i64,
    *mut Handle,
) -> Code;
type Backward = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    *const Numbers,
    i64,
    Numbers,
    i64,
    Numbers,
    i64,
    Numbers,
    i64,
    i32,
    Numbers,
    i64,
    i64,
    *const i32,
    i64,
    *mut Handle,
    *mut Handle,
    *mut Handle,
) -> Code;

/// A device's own convolutions.
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
    pub(super) fn find(library: &Loaded, device: &str) -> Option<Convolutions> {
        // SAFETY: types as torch's headers declare them.
        unsafe {
            Some(Convolutions {
                forward: symbol(library, &format!("aoti_torch_{device}_convolution")).ok()?,
                backward: symbol(library, &format!("aoti_torch_{device}_convolution_backward")).ok()?,
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
    fn parts(&self) -> (Numbers, i64) {
        (self.numbers.as_ptr(), self.count as i64)
    }
}

/// How a convolution goes over its input, as torch tells it.
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

    /// The values of a list, which is freed.
    ///
    /// # Safety
    /// A list that the caller owns.
    unsafe fn values(&self, list: u64) -> Result<(usize, [u64; NUMBERS]), ShimError> {
        let lists = self.lists()?;
        let (list, mut found, mut count) = (list as Handle, [0; NUMBERS], 0);
        // SAFETY: the caller's; not used after it is freed.
        unsafe {
            let mut code = (lists.size)(list, &mut count);
            for (n, found) in found.iter_mut().enumerate().take(count) {
                code |= (lists.get)(list, n, found);
            }
            ok(code | (lists.delete)(list), "read a list")?;
        }
        if count > NUMBERS {
            Err(ShimError(format!("a list of {count} numbers: {NUMBERS} are possible")))
        } else {
            Ok((count, found))
        }
    }

    /// The numbers of a list, which is freed.
    ///
    /// # Safety
    /// A list of numbers that the caller owns.
    pub unsafe fn numbers(&self, list: u64) -> Result<List, ShimError> {
        // SAFETY: the caller's.
        unsafe { self.values(list) }.map(|(count, values)| List { count, numbers: values.map(|value| value as i64) })
    }

    /// The truths of a list, which is freed.
    ///
    /// # Safety
    /// A list of so many truths that the caller owns.
    pub unsafe fn truths<const N: usize>(&self, list: u64) -> Result<[bool; N], ShimError> {
        // SAFETY: the caller's.
        let (_, values) = unsafe { self.values(list) }?;
        Ok(std::array::from_fn(|n| values.get(n).is_some_and(|value| value & 0xff != 0)))
    }

    /// The geometry of a convolution, from a kernel's arguments: stride, padding, dilation, transposed, output padding and groups.
    ///
    /// # Safety
    /// Such arguments, which the caller owns.
    pub unsafe fn geometry(&self, at: *const u64) -> Result<Geometry, ShimError> {
        // SAFETY: the caller's. Each list is freed, whatever the others hold.
        let [stride, padding, dilation, output_padding] = [0, 1, 2, 4].map(|n| unsafe { self.numbers(*at.add(n)) });
        let (stride, padding, dilation, output_padding) = (stride?, padding?, dilation?, output_padding?);
        // SAFETY: the caller's.
        let (transposed, groups) = unsafe { (*at.add(3) & 0xff != 0, *at.add(5) as i64) };
        Ok(Geometry { stride, padding, dilation, transposed, output_padding, groups })
    }

    fn convolutions(&self, cuda: bool) -> Result<&Convolutions, ShimError> {
        let found = if cuda { self.on_cuda.as_ref().and_then(|on| on.convolutions.as_ref()) } else { self.convolutions.as_ref() };
        found.ok_or_else(|| ShimError("this PyTorch has no convolutions for this device".into()))
    }

    pub fn has_convolutions(&self, cuda: bool) -> bool {
        self.has_lists() && self.convolutions(cuda).is_ok()
    }

    /// Torch's own convolution, past the dispatcher.
    ///
    /// # Safety
    /// Living tensors on a device of this kind.
    pub unsafe fn convolution(
        &self,
        cuda: bool,
        x: &Tensor<'_>,
        weight: &Tensor<'_>,
        bias: Option<&Tensor<'_>>,
        how: &Geometry,
    ) -> Result<Tensor<'_>, ShimError> {
        let bias = bias.map(|bias| bias.handle);
        let bias = bias.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let [(s, ns), (p, np), (d, nd), (o, no)] = how.lists().map(List::parts);
        let mut out = std::ptr::null_mut();
        let run = &self.convolutions(cuda)?.forward;
        // SAFETY: the caller's; lists that live during the call.
        let code = unsafe {
            run(x.handle, weight.handle, bias, s, ns, p, np, d, nd, how.transposed.into(), o, no, how.groups, &mut out)
        };
        if code == 0 { Ok(Tensor { shim: self, handle: out }) } else { Err(self.failure("PyTorch's convolution")) }
    }

    /// Torch's own gradients of input, filters and bias, as far as they are wanted, past the dispatcher.
    ///
    /// # Safety
    /// Living tensors on a device of this kind: the result's gradient, input, filters.
    pub unsafe fn convolution_backward(
        &self,
        cuda: bool,
        [grad, x, weight]: [&Tensor<'_>; 3],
        bias: Option<&List>,
        how: &Geometry,
        wanted: [bool; 3],
    ) -> Result<[Tensor<'_>; 3], ShimError> {
        let (sizes, count) = bias.map_or((std::ptr::null(), 0), List::parts);
        let sizes = bias.map_or(std::ptr::null(), |_| std::ptr::from_ref(&sizes));
        let [(s, ns), (p, np), (d, nd), (o, no)] = how.lists().map(List::parts);
        let ([mut of_x, mut of_weight, mut of_bias], mask) = ([std::ptr::null_mut(); 3], wanted.map(i32::from));
        let (turned, groups, run) = (how.transposed.into(), how.groups, &self.convolutions(cuda)?.backward);
        let (grad, x, weight) = (grad.handle, x.handle, weight.handle);
        // SAFETY: the caller's; lists that live during the call.
        let code = unsafe {
            let results = (&mut of_x, &mut of_weight, &mut of_bias);
            let mask = (mask.as_ptr(), mask.len() as i64);
            run(
                grad, x, weight, sizes, count, s, ns, p, np, d, nd, turned, o, no, groups, mask.0, mask.1, results.0, results.1,
                results.2,
            )
        };
        if code != 0 {
            return Err(self.failure("PyTorch's gradients of a convolution"));
        }
        Ok([of_x, of_weight, of_bias].map(|handle| Tensor { shim: self, handle }))
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
