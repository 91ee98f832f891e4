//! Collects the fields of a convolution.

use super::{Conv, ConvBuilder, Direction, Layout};
use crate::epilogue::Activation;
use crate::error::ProblemError;
use crate::math::Math;
use crate::reduction::Reduction;
use tilewright_ir::Scalar;

impl ConvBuilder {
    /// What is computed.
    pub fn direction(mut self, direction: Direction) -> Self {
        self.0.direction = direction;
        self
    }
    /// Layout of all tensors.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.0.layout = layout;
        self
    }
    /// Number of groups.
    pub fn groups(mut self, groups: u64) -> Self {
        self.0.groups = groups;
        self
    }
    /// Distance between windows per spatial dimension.
    pub fn stride(mut self, stride: &[u64]) -> Self {
        self.0.stride = stride.to_vec();
        self
    }
    /// Distance between filter taps per spatial dimension.
    pub fn dilation(mut self, dilation: &[u64]) -> Self {
        self.0.dilation = dilation.to_vec();
        self
    }
    /// Zeros before and after the input per spatial dimension.
    pub fn pad(mut self, begin: &[u64], end: &[u64]) -> Self {
        (self.0.pad_begin, self.0.pad_end) = (begin.to_vec(), end.to_vec());
        self
    }
    /// A vector is added to the scaled sums: one value per channel of the result, of its type.
    pub fn bias(mut self) -> Self {
        self.0.bias = true;
        self
    }
    /// With what precision f32 factors are multiplied.
    pub fn math(mut self, math: Math) -> Self {
        self.0.math = math;
        self
    }
    /// Element type of the result, bias and residual; by default that of A and B.
    pub fn out_dtype(mut self, dtype: Scalar) -> Self {
        self.0.out_dtype = dtype;
        self
    }
    /// A function is applied to the result with its bias.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.0.activation = Some(activation);
        self
    }
    /// A tensor as the result, in its layout and type, is added last.
    pub fn residual(mut self) -> Self {
        self.0.residual = true;
        self
    }
    /// A value of the result is computed beside it. Several are in the order of the calls.
    pub fn reduce(mut self, reduction: Reduction) -> Self {
        self.0.reductions.push(reduction);
        self
    }
    /// The result is not stored: there are only its reductions.
    pub fn drop_c(mut self) -> Self {
        self.0.drop_c = true;
        self
    }
    /// A tensor as the result, in its layout and type, says where the result is kept: where it is above 0. Elsewhere the result is 0.
    pub fn mask(mut self) -> Self {
        (self.0.residual, self.0.mask) = (true, true);
        self
    }
    /// Workspace budget in bytes.
    pub fn workspace(mut self, bytes: u64) -> Self {
        self.0.workspace = bytes;
        self
    }
    /// Validates.
    ///
    /// # Errors
    /// [`ProblemError`] with the field, its value and what it may be.
    pub fn build(self) -> Result<Conv, ProblemError> {
        self.0.validate()?;
        Ok(self.0)
    }
}
