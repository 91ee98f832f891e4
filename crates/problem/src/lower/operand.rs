//! Reductions of operand A or B of a product over k. Each is lowered to a reduction of the operand's tensor alone.

use crate::conv::{Conv, Direction, Layout};
use crate::epilogue::Along;
use crate::error::{ProblemError, computed_in};
use crate::gemm::{Gemm, Order};
use crate::reduce::{OVER, Reduce};
use crate::reduction::Reduction;
use tilewright_ir::Scalar;

/// An operand as a tensor.
struct OperandTensor {
    dtype: Scalar,
    /// Type of the product's accumulators.
    accumulator: Scalar,
    shape: Vec<u64>,
    strides: Vec<u64>,
    /// Axes of k.
    over: Vec<usize>,
    offset: u64,
}

impl Reduction {
    /// This reduction of an operand over k.
    fn of_tensor(&self, x: OperandTensor) -> Result<Reduce, ProblemError> {
        let OperandTensor { dtype, accumulator, shape, strides, over, offset } = x;
        if let Some(empty) = over.iter().find(|axis| shape[**axis] == 0) {
            let reason = format!("k has no elements (axis {empty} of the operand is empty); leave the reduction out");
            return Err(ProblemError::value("reduce", self, reason));
        }
        let alone = Reduction { operand: None, over: OVER, dtype: Some(self.scalar(accumulator)), ..*self };
        let tensor = Reduce::new(dtype, &shape, &over).strides(&strides).offset(offset).reduction(alone);
        tensor.build().map_err(|e| ProblemError::value("reduce", self, format!("its operand cannot be reduced: {e}")))
    }
}

impl Gemm {
    /// The operand that a reduction is of, as a tensor over k; `None` for a reduction of the result.
    pub(crate) fn reduced_operand(&self, r: &Reduction) -> Option<Result<Reduce, ProblemError>> {
        let index = usize::from(r.operand? == Along::N);
        let x = &self.matrices()[index];
        let (row, column) = if x.trans == (self.order == Order::Col) { (x.ld, 1) } else { (1, x.ld) };
        let (rows, kept, along_k) = if index == 0 { (self.m, row, column) } else { (self.n, column, row) };
        Some(r.of_tensor(OperandTensor {
            dtype: self.scalar(index),
            accumulator: computed_in(self.multiplied(), self.out_dtype)[1],
            shape: vec![self.batch, rows, self.k],
            strides: vec![x.batch_stride, kept, along_k],
            over: vec![2],
            offset: x.offset,
        }))
    }
}

impl Conv {
    /// The same: of a filter's gradient, the output's gradient over samples and pixels.
    pub(crate) fn reduced_operand(&self, r: &Reduction) -> Option<Result<Reduce, ProblemError>> {
        if (self.direction, r.operand?) != (Direction::BackwardWeight, Along::M) {
            return Some(Err(ProblemError::Unsupported {
                what: format!("a reduction of a convolution's operand over k ({r})"),
                remedy:
                    "only operand a of a filter gradient (the output's gradient) has reductions; reduce other tensors in a call of their own"
                        .into(),
            }));
        }
        let (channels, pixels) = (self.k, self.output());
        let (shape, kept) = match self.layout {
            Layout::Nchw => ([&[self.n, channels], pixels.as_slice()].concat(), 1),
            Layout::Nhwc => ([&[self.n], pixels.as_slice(), &[channels]].concat(), pixels.len() + 1),
        };
        let strides = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect();
        let over = (0..shape.len()).filter(|axis| *axis != kept).collect();
        let accumulator = computed_in(self.dtype, self.out_dtype)[1];
        Some(r.of_tensor(OperandTensor { dtype: self.dtype, accumulator, shape, strides, over, offset: 0 }))
    }
}
