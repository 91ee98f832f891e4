//! Layers with a bias and their gradients, without Python on the way. `aten::addmm` has scalars, which do not pass the C
//! interface, and the gradient of our own operator would be Python's. So these kernels take the place of `aten::mkldnn_linear`
//! for tensors it has no kernel for. Torch differentiates that in C++ and has kernels for oneDNN's own tensors alone. `Linear` in
//! `python/tilewright/_models.py` calls it.

use super::calls::{Operand, Out, Which, is_bias, multiply, run};
use super::shim::{Boxed, Handle, Seen, Shim, Tensor};
use super::table::Op;
use std::ffi::CStr;

/// The kernel for a device's dispatch key.
pub fn forward<const CUDA: bool>() -> (&'static CStr, Boxed) {
    (c"mkldnn_linear", boxed_forward::<CUDA>)
}

/// Its gradients, for a device's key of differentiation. Python computes those that are differentiated once more.
pub fn backward<const CUDA: bool>() -> (&'static CStr, Boxed) {
    (c"mkldnn_linear_backward", boxed_backward::<CUDA>)
}

/// A tensor with all its dimensions but the last as rows.
struct Rows<'a> {
    handle: Handle,
    /// Where its rows do not lie evenly.
    _copy: Option<Tensor<'a>>,
    address: u64,
    shape: [i64; 2],
    strides: [i64; 2],
    dtype: i32,
    device: i32,
    viewed: bool,
}

impl<'a> Rows<'a> {
    /// # Safety
    /// A living tensor.
    unsafe fn of(shim: &'a Shim, cuda: bool, handle: Handle) -> Result<Rows<'a>, String> {
        // SAFETY: the caller's.
        let seen = unsafe { shim.look(handle) }?;
        let dims = seen.shape.len();
        let Some(&columns) = seen.shape.last() else {
            return Err("linear: both arguments need to be at least 1D, but they are 0D and 2D".into());
        };
        let mut down = None;
        let mut even = true;
        let mut next = 0;
        for (&size, &stride) in seen.shape[..dims - 1].iter().zip(&seen.strides[..dims - 1]).rev().filter(|(size, _)| **size != 1)
        {
            even &= down.is_none() || stride == next;
            down = down.or(Some(stride));
            next = stride * size;
        }
        if even {
            let strides = [down.unwrap_or(columns), seen.strides[dims - 1]];
            let shape = [seen.shape[..dims - 1].iter().product(), columns];
            let Seen { address, dtype, device, .. } = seen;
            return Ok(Rows { handle, _copy: None, address, shape, strides, dtype, device, viewed: dims != 2 });
        }
        let copy = shim.empty(seen.shape, seen.dtype, cuda, seen.device)?;
        // SAFETY: both live, and have the same shape; a copy lies evenly.
        let rows = unsafe {
            shim.copy(handle, &copy)?;
            Rows::of(shim, cuda, copy.handle)?
        };
        Ok(Rows { _copy: Some(copy), ..rows })
    }
    const fn transposed(&self) -> Rows<'static> {
        let Rows { handle, address, shape: [rows, columns], strides: [down, right], dtype, device, .. } = *self;
        Rows { handle, _copy: None, address, shape: [columns, rows], strides: [right, down], dtype, device, viewed: true }
    }
    fn operand(&self) -> Operand<'_> {
        let Rows { address, dtype, device, .. } = *self;
        Operand {
            handle: self.handle,
            seen: Seen { address, shape: &self.shape, strides: &self.strides, dtype, device },
            viewed: self.viewed,
        }
    }
}

/// The product of rows and a matrix, in a tensor of this shape.
///
/// # Safety
/// Living tensors.
unsafe fn product<'a>(
    shim: &'a Shim,
    home: &super::Home,
    cuda: bool,
    [a, b]: [&Rows<'_>; 2],
    bias: Option<&Operand<'_>>,
    shape: &[i64],
) -> Result<Tensor<'a>, String> {
    let op = if bias.is_some() { Op::Addmm } else { Op::Mm };
    let which = Which { own: false, cuda, op };
    let out = shim.empty(shape, a.dtype, cuda, a.device)?;
    // Torch names what does not fit.
    let may = a.shape[1] == b.shape[0] && a.dtype == b.dtype && a.device == b.device;
    let may = may && bias.is_none_or(|bias| is_bias(&bias.seen, &b.operand().seen));
    // SAFETY: the caller's; the result has been made.
    unsafe {
        let sizes = ([a.shape[0], b.shape[1]], [b.shape[1], 1]);
        let into = Out { viewed: (shape.len() != 2).then_some((&sizes.0, &sizes.1)), ..Out::new(out.handle) };
        multiply(home, &which, [&a.operand(), &b.operand()], bias, &into, may)?;
    }
    Ok(out)
}

unsafe extern "C-unwind" fn boxed_forward<const CUDA: bool>(stack: *mut u64, _: u64, _: u64) {
    // SAFETY: two tensors and one that may be left out, which are ours now.
    unsafe {
        run(stack, |home| {
            let shim = &home.shim;
            let (x, weight) = (Tensor::owned(shim, *stack), Tensor::owned(shim, *stack.add(1)));
            let bias = shim.optional_tensor(*stack.add(2))?;
            let seen = (shim.look(x.handle)?, shim.look(weight.handle)?);
            let (&[.., inner], &[outer, fits]) = (seen.0.shape, seen.1.shape) else {
                return Err(format!("linear of {:?} and {:?}: rows and a matrix are needed", seen.0.shape, seen.1.shape));
            };
            if inner != fits {
                return Err(format!(
                    "linear: mat1 and mat2 shapes cannot be multiplied ({:?} and {:?}, turned)",
                    seen.0.shape, seen.1.shape
                ));
            }
            if seen.0.dtype != seen.1.dtype {
                let named = |x: &Seen<'_>| shim.dtype(x.dtype).unwrap_or("another type");
                let shapes = format!("{} and {}", named(&seen.0), named(&seen.1));
                return Err(format!("linear: expected mat1 and mat2 to have the same dtype, but got: {shapes}"));
            }
            let mut shape = seen.0.shape.to_vec();
            if let Some(last) = shape.last_mut() {
                *last = outer;
            }
            let (x, weight) = (Rows::of(shim, CUDA, x.handle)?, Rows::of(shim, CUDA, weight.handle)?.transposed());
            let bias =
                bias.as_ref().map(|bias| shim.look(bias.handle).map(|seen| Operand { handle: bias.handle, seen, viewed: false }));
            let result = product(shim, home, CUDA, [&x, &weight], bias.transpose()?.as_ref(), &shape)?;
            Ok([result.given()])
        });
    }
}

unsafe extern "C-unwind" fn boxed_backward<const CUDA: bool>(stack: *mut u64, _: u64, _: u64) {
    // SAFETY: the input, the result's gradient, the weight, and which of three gradients are wanted, which are ours now.
    unsafe {
        run(stack, |home| {
            let shim = &home.shim;
            if shim.differentiates() {
                shim.call(c"tilewright::linear_backward", c"", stack)?;
                return Ok([*stack, *stack.add(1), *stack.add(2)]);
            }
            let [x, grad, weight] = [0, 1, 2].map(|n| Tensor::owned(shim, *stack.add(n)));
            let [of_x, of_weight, of_bias] = shim.booleans(*stack.add(3))?;
            if !shim.is_defined(grad.handle)? {
                // The result was not used.
                return Ok([shim.undefined()?.given(), shim.undefined()?.given(), shim.undefined()?.given()]);
            }
            let (rows, columns) = (Rows::of(shim, CUDA, x.handle)?, Rows::of(shim, CUDA, weight.handle)?);
            let grads = Rows::of(shim, CUDA, grad.handle)?;
            // The same products as the gradients of torch's own `addmm` run: a weight that lies by columns has its gradient so.
            let by_columns = columns.strides == [1, columns.shape[0]] && columns.shape[1] > 1;
            let at_x = if of_x {
                product(shim, home, CUDA, [&grads, &columns], None, shim.look(x.handle)?.shape)?
            } else {
                shim.undefined()?
            };
            let at_weight = if of_weight && by_columns {
                let [outer, inner] = columns.shape;
                let turned = product(shim, home, CUDA, [&rows.transposed(), &grads], None, &[inner, outer])?;
                shim.view(turned.handle, &[outer, inner], &[1, outer])?
            } else if of_weight {
                product(shim, home, CUDA, [&grads.transposed(), &rows], None, &columns.shape)?
            } else {
                shim.undefined()?
            };
            // As torch sums it: of rows.
            let at_bias = if of_bias {
                shim.sum_of_rows(shim.view(grads.handle, &grads.shape, &grads.strides)?, columns.shape[0])?
            } else {
                shim.undefined()?
            };
            Ok([at_x.given(), at_weight.given(), at_bias.given()])
        });
    }
}
