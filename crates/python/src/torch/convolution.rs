//! `aten`'s convolutions and their gradients, as torch's dispatcher hands them over: answered by us where that was decided, else by torch, past the
//! dispatcher. Their geometry comes in lists, which pass torch's C interface from version 2.10 on.

use super::Home;
use super::calls::{launch, run};
use super::shim::{Boxed, Geometry, Seen, Tensor};
use super::table::{Call, Op, aligned};
use std::ffi::CStr;
use tilewright::Addresses;

/// Most dimensions of an operand.
const DIMS: usize = 5;

/// The kernels in the place of `aten`'s, for a device's dispatch key.
pub fn overrides<const CUDA: bool>() -> [(&'static CStr, Boxed); 2] {
    [(c"convolution", boxed_forward::<CUDA>), (c"convolution_backward", boxed_backward::<CUDA>)]
}

unsafe extern "C-unwind" fn boxed_forward<const CUDA: bool>(stack: *mut u64, _: u64, _: u64) {
    // SAFETY: input, filters, a bias that may be left out and the geometry, which are ours now.
    unsafe {
        run(stack, |home| {
            let shim = &home.shim;
            let [x, weight] = [0, 1].map(|n| Tensor::owned(shim, *stack.add(n)));
            let bias = shim.optional_tensor(*stack.add(2))?;
            let geometry = shim.geometry(stack.add(3))?;
            let ours = convolve(home, CUDA, Op::Forward, [&x, &weight], bias.as_ref(), &geometry, None)?;
            let result = ours.map_or_else(|| shim.convolution(CUDA, &x, &weight, bias.as_ref(), &geometry), Ok)?;
            Ok([result.given()])
        });
    }
}

unsafe extern "C-unwind" fn boxed_backward<const CUDA: bool>(stack: *mut u64, _: u64, _: u64) {
    // SAFETY: the result's gradient, input, filters, sizes of a bias that may be left out, the geometry, and which of three gradients are wanted,
    // which are ours now.
    unsafe {
        run(stack, |home| {
            let shim = &home.shim;
            let [grad, x, weight] = [0, 1, 2].map(|n| Tensor::owned(shim, *stack.add(n)));
            let bias = shim.optional(*stack.add(3)).map(|sizes| shim.numbers(sizes)).transpose();
            let geometry = shim.geometry(stack.add(4));
            let mut wanted = shim.truths::<3>(*stack.add(10))?;
            let (bias, geometry) = (bias?, geometry?);
            let mut results = [None, None, None];
            for (n, op, other, like) in [(0, Op::BackwardData, &weight, &x), (1, Op::BackwardWeight, &x, &weight)] {
                if wanted[n] {
                    results[n] = convolve(home, CUDA, op, [&grad, other], None, &geometry, Some(like))?;
                    wanted[n] = results[n].is_none();
                }
            }
            if wanted.contains(&true) {
                let theirs = shim.convolution_backward(CUDA, [&grad, &x, &weight], bias.as_ref(), &geometry, wanted)?;
                results.iter_mut().zip(theirs).for_each(|(result, theirs)| {
                    result.get_or_insert(theirs);
                });
            }
            let [x, weight, bias] = results.map(|result| result.map_or_else(|| shim.undefined(), Ok));
            Ok([x?.given(), weight?.given(), bias?.given()])
        });
    }
}

/// A direction of a convolution, where it is ours. `like`: what a gradient has the shape of.
///
/// # Safety
/// Living tensors.
unsafe fn convolve<'a>(
    home: &'a Home,
    cuda: bool,
    op: Op,
    operands: [&Tensor<'_>; 2],
    bias: Option<&Tensor<'_>>,
    geometry: &Geometry,
    like: Option<&Tensor<'_>>,
) -> Result<Option<Tensor<'a>>, String> {
    let shim = &home.shim;
    // SAFETY: the caller's.
    let look = |x: &Tensor<'_>| unsafe { shim.look(x.handle) };
    let ([a, b], bias, like) = (operands.map(look), bias.map(look).transpose()?, like.map(look).transpose()?);
    let (a, b) = (a?, b?);
    let dims = a.shape.len();
    let alike = |x: &Seen<'_>| x.dtype == a.dtype && x.device == a.device && !x.shape.contains(&0);
    let fits =
        (3..=DIMS).contains(&dims) && [Some(&b), like.as_ref()].into_iter().flatten().all(|x| x.shape.len() == dims && alike(x));
    let plain = geometry.lists().iter().all(|list| list.as_slice().len() == dims.saturating_sub(2)) && !geometry.transposed;
    let added = bias.is_none_or(|bias| alike(&bias) && bias.is_packed(false) && bias.shape == &b.shape[..1]);
    if !(fits && plain && added && alike(&a)) {
        return Ok(None);
    }
    // As torch: where the input's or the filters' channels do.
    let last = [like.as_ref().unwrap_or(&a), &b].into_iter().any(|x| dims > 3 && !x.is_packed(false) && x.is_packed(true));
    let how = how(geometry, last, bias.is_some(), like.as_ref());
    // What is copied lies where torch's allocator puts it.
    let at = |x: &Seen<'_>| if x.is_packed(last) { aligned(cuda, x.address) } else { 8 };
    let call = Call { own: false, op, cuda, operands: &[&a, &b], alignments: [at(&a), at(&b), 8], how: &how };
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
    let addresses = Addresses {
        a: address(&copies[0], &a)?,
        b: address(&copies[1], &b)?,
        // SAFETY: it lives.
        c: unsafe { shim.address(out.handle) }?,
        bias: bias.map_or(0, |bias| bias.address),
        ..Addresses::default()
    };
    // SAFETY: living tensors, as large as the call was planned for.
    unsafe { launch(shim, &ours, cuda, a.device, addresses) }?;
    Ok(Some(out))
}

/// What a convolution's kernels depend on besides its operands, as `_convolution_of` in `python/tilewright/_operators.py` reads it: do channels
/// lie innermost, is there a bias, strides, padding, dilation, groups; shape and strides of what a gradient is of.
fn how(geometry: &Geometry, last: bool, bias: bool, like: Option<&Seen<'_>>) -> Vec<i64> {
    let [stride, padding, dilation, _] = geometry.lists().map(|list| list.as_slice());
    let (shape, strides): (&[i64], &[i64]) = like.map_or((&[], &[]), |like| (like.shape, like.strides));
    [&[i64::from(last), i64::from(bias)], stride, padding, dilation, &[geometry.groups], shape, strides].concat()
}
