//! `aten`'s convolutions and their gradients, as torch's dispatcher hands them over. We answer them where that was decided. Else
//! torch's own C++ functions do, past the dispatcher. Their geometry comes in lists, which pass torch's C interface from version
//! 2.10 on.

use super::Home;
use super::calls::{caught, launch};
use super::shim::{Boxed, Geometry, List, Seen, Tensor};
use super::table::{ANY, CONVOLUTION, Call, Op, aligned};
use std::ffi::CStr;
use tilewright::{Addresses, Role};

/// Most dimensions of an operand.
const DIMS: usize = 5;

/// The kernels in the place of `aten`'s, for a device's dispatch key.
pub fn overrides<const CUDA: bool>() -> [(&'static CStr, Boxed); 2] {
    [(c"convolution", boxed_forward::<CUDA>), (c"convolution_backward", boxed_backward::<CUDA>)]
}

unsafe extern "C-unwind" fn boxed_forward<const CUDA: bool>(stack: *mut u64, _: u64, _: u64) {
    let mut geometry = Geometry::default();
    // SAFETY: input, filters, a bias that may be left out and the geometry, which are ours now.
    let answered = caught(|home| unsafe {
        let shim = &home.shim;
        let operands = [Tensor::owned(shim, *stack), Tensor::owned(shim, *stack.add(1))];
        let bias = shim.optional_tensor(*stack.add(2));
        shim.geometry(stack.add(3), &mut geometry)?;
        let bias = bias?;
        let [x, weight] = &operands;
        let seen = [shim.look_without_address(x.handle)?, shim.look_without_address(weight.handle)?];
        let intercepted =
            Intercepted { home, cuda: CUDA, op: Op::Forward, operands: [x, weight], seen: [&seen[0], &seen[1]], like: None };
        let ours = convolve(&intercepted, bias.as_ref(), &geometry)?;
        Ok((operands, bias, ours))
    });
    let result = match answered {
        None => return,
        Some((_, (_, _, Some(ours)))) => ours,
        // SAFETY: living tensors. C++'s exceptions pass here, where nothing catches them.
        Some((home, ([x, weight], bias, None))) => {
            match unsafe { home.shim.convolution(CUDA, [&x, &weight], bias.as_ref(), &geometry) } {
                Ok(result) => result,
                Err(e) => return home.shim.raise(&String::from(e)),
            }
        }
    };
    // SAFETY: room for the result.
    unsafe { *stack = result.given() };
}

unsafe extern "C-unwind" fn boxed_backward<const CUDA: bool>(stack: *mut u64, _: u64, _: u64) {
    let (mut geometry, mut bias) = (Geometry::default(), None);
    // SAFETY: the result's gradient, input, filters, sizes of a bias that may be left out, the geometry, and which of three
    // gradients are wanted. They are ours now.
    let answered = caught(|home| unsafe {
        let shim = &home.shim;
        let operands = [0, 1, 2].map(|n| Tensor::owned(shim, *stack.add(n)));
        let sizes = shim.optional(*stack.add(3)).map(|sizes| shim.numbers(sizes, bias.insert(List::default())));
        let read = shim.geometry(stack.add(4), &mut geometry);
        let mut wanted = shim.booleans::<3>(*stack.add(10))?;
        sizes.transpose().and(read)?;
        let [grad, x, weight] = &operands;
        let look = |x: &Tensor<'_>| shim.look_without_address(x.handle);
        let (at_grad, at_x, at_weight) = (look(grad)?, look(x)?, look(weight)?);
        let mut results = [None, None, None];
        for (n, op, other, seen, like) in
            [(0, Op::BackwardData, weight, &at_weight, &at_x), (1, Op::BackwardWeight, x, &at_x, &at_weight)]
        {
            if wanted[n] {
                let intercepted =
                    Intercepted { home, cuda: CUDA, op, operands: [grad, other], seen: [&at_grad, seen], like: Some(like) };
                results[n] = convolve(&intercepted, None, &geometry)?;
                wanted[n] = results[n].is_none();
            }
        }
        Ok((operands, wanted, results))
    });
    let Some((home, ([grad, x, weight], wanted, mut results))) = answered else { return };
    let shim = &home.shim;
    if wanted.contains(&true) {
        // SAFETY: living tensors. C++'s exceptions pass here, where nothing catches them.
        match unsafe { shim.convolution_backward(CUDA, [&grad, &x, &weight], bias.as_ref(), &geometry, wanted) } {
            Ok(theirs) => results.iter_mut().zip(theirs).for_each(|(result, theirs)| {
                result.get_or_insert(theirs);
            }),
            Err(e) => return shim.raise(&String::from(e)),
        }
    }
    for (n, result) in results.into_iter().enumerate() {
        match result.map_or_else(|| shim.undefined(), Ok) {
            // SAFETY: room for the results.
            Ok(result) => unsafe { *stack.add(n) = result.given() },
            Err(e) => return shim.raise(&String::from(e)),
        }
    }
}

/// A direction of a convolution, as it was called.
struct Intercepted<'a, 'b> {
    home: &'a Home,
    cuda: bool,
    op: Op,
    operands: [&'b Tensor<'b>; 2],
    /// How they lie, without their addresses.
    seen: [&'b Seen<'b>; 2],
    /// What a gradient has the shape of.
    like: Option<&'b Seen<'b>>,
}

/// A direction of a convolution, where it is ours.
///
/// # Safety
/// Living tensors.
unsafe fn convolve<'a>(
    intercepted: &Intercepted<'a, '_>,
    bias: Option<&Tensor<'_>>,
    geometry: &Geometry,
) -> Result<Option<Tensor<'a>>, String> {
    let &Intercepted { home, cuda, op, like, .. } = intercepted;
    let Some(how) = How::of(geometry, bias.is_some(), like) else { return Ok(None) };
    let call = Call { own: false, op, cuda, operands: &intercepted.seen, alignments: ANY, how: how.words(), last: false };
    // Who computes what torch is known to compute is torch, which checks it, too.
    if home.table.falls_back::<CONVOLUTION>(&call) {
        return Ok(None);
    }
    // SAFETY: the caller's.
    unsafe { launched(intercepted, bias, geometry, call) }
}

/// What is not known as torch's.
///
/// # Safety
/// As `convolve`.
unsafe fn launched<'a>(
    intercepted: &Intercepted<'a, '_>,
    bias: Option<&Tensor<'_>>,
    geometry: &Geometry,
    call: Call<'_>,
) -> Result<Option<Tensor<'a>>, String> {
    let &Intercepted { home, cuda, operands, like, .. } = intercepted;
    let shim = &home.shim;
    // SAFETY: the caller's.
    let look = |x: &Tensor<'_>| unsafe { shim.look(x.handle) };
    let ([a, b], bias) = (operands.map(look), bias.map(look).transpose()?);
    let (a, b) = (a?, b?);
    let dims = a.shape.len();
    let alike = |x: &Seen<'_>| x.dtype == a.dtype && x.device == a.device && !x.shape.contains(&0);
    let fits = (3..=DIMS).contains(&dims) && [Some(&b), like].into_iter().flatten().all(|x| x.shape.len() == dims && alike(x));
    let plain = geometry.lists().iter().all(|list| list.as_slice().len() == dims.saturating_sub(2)) && !geometry.transposed;
    let added = bias.is_none_or(|bias| alike(&bias) && bias.is_packed(false) && bias.shape == &b.shape[..1]);
    if !(fits && plain && added && alike(&a)) {
        return Ok(None);
    }
    // As torch: where the input's or the filters' channels do.
    let last = [like.unwrap_or(&a), &b].into_iter().any(|x| dims > 3 && !x.is_packed(false) && x.is_packed(true));
    // An operand that is not packed is copied to memory of torch's allocator.
    let at = |x: &Seen<'_>| if x.is_packed(last) { aligned(cuda, x.address) } else { 8 };
    let call = Call { operands: &[&a, &b], alignments: [at(&a), at(&b), 8], last, ..call };
    let Some(ours) = home.table.ours(shim, &call)? else { return Ok(None) };
    let packed = |x: &Seen<'_>, from: &Tensor<'_>| -> Result<Option<Tensor<'_>>, String> {
        if x.is_packed(last) {
            return Ok(None);
        }
        let copy = shim.empty_in(last, x.shape, x.dtype, cuda, x.device)?;
        // SAFETY: both live, and have the same shape.
        unsafe { shim.copy(from.handle, &copy) }?;
        Ok(Some(copy))
    };
    let copies = [packed(&a, operands[0])?, packed(&b, operands[1])?];
    let address = |copy: &Option<Tensor<'_>>, x: &Seen<'_>| {
        // SAFETY: it lives.
        copy.as_ref().map_or(Ok(x.address), |copy| unsafe { shim.address(copy.handle) })
    };
    let result = like.map_or_else(|| geometry.result(&a, &b), |like| like.shape.to_vec());
    let out = shim.empty_in(last, &result, a.dtype, cuda, a.device)?;
    // SAFETY: it lives.
    let c = unsafe { shim.address(out.handle) }?;
    let addresses = Addresses::operands([address(&copies[0], &a)?, address(&copies[1], &b)?, c]);
    let addresses = addresses.with(Role::Bias, bias.map_or(0, |bias| bias.address));
    // SAFETY: living tensors, as large as the call was planned for.
    unsafe { launch(shim, &ours, cuda, a.device, addresses) }?;
    Ok(Some(out))
}

/// The properties that a convolution's kernels depend on besides its operands, as `_convolution_of` in
/// `python/tilewright/_operators.py` reads them. They are: is there a bias, strides, padding, dilation, groups; shape and strides
/// of the tensor that a gradient belongs to.
struct How([i64; CONVOLUTION], usize);

impl How {
    /// None where it does not fit, which no convolution's does.
    #[inline]
    fn of(geometry: &Geometry, bias: bool, like: Option<&Seen<'_>>) -> Option<How> {
        let [stride, padding, dilation, _] = geometry.lists().map(|list| list.as_slice());
        let [shape, strides] = like.map_or([&[][..]; 2], |like| [like.shape, like.strides]);
        let mut how = How([0; CONVOLUTION], 0);
        // Copied number by number: they are few.
        for part in [&[i64::from(bias)], stride, padding, dilation, &[geometry.groups], shape, strides] {
            for (to, &word) in how.0.get_mut(how.1..how.1 + part.len())?.iter_mut().zip(part) {
                *to = word;
            }
            how.1 += part.len();
        }
        Some(how)
    }
    fn words(&self) -> &[i64] {
        &self.0[..self.1.min(CONVOLUTION)]
    }
}
