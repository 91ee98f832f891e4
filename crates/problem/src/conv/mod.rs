//! Convolutions of one, two or three spatial dimensions, in the papers' words: N, C, K, groups.

mod builder;

use crate::contraction::Operand;
use crate::epilogue::Activation;
use crate::error::{
    DEFAULT_WORKSPACE, ProblemError, check_dtype, check_elements, check_out_dtype, check_positive, computed_in, default_out,
};
use crate::extent::Extents;
use crate::math::Math;
use crate::names::names;
use crate::reduction::{Reduction, ResultShape, check_all, check_integers};
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// Which of the three tensors of a convolution is computed from the other two.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::contraction::Operand;
/// use tilewright_problem::{Conv, Direction};
///
/// let direction = Direction::named("bwdw").expect("a direction");
/// assert_eq!(direction, Direction::BackwardWeight);
/// // 2 input channels, 3 output channels, 3 x 3 taps: the filter's gradient is computed.
/// let conv = Conv::new(Scalar::F32, 8, 2, 3, &[4, 4], &[3, 3]).direction(direction).build()?;
/// assert_eq!(conv.operand(Operand::C), ("filter gradient", 2 * 3 * 9));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Output from input and filter.
    #[default]
    Forward,
    /// Input gradient from output gradient and filter.
    BackwardData,
    /// Filter gradient from output gradient and input.
    BackwardWeight,
}

names!(Direction {
    Forward = 0, ["forward", "fwd"], "the output, from input and filter";
    BackwardData = 1, ["backward-data", "bwdd"], "the input's gradient, from the output's gradient and the filter";
    BackwardWeight = 2, ["backward-weight", "bwdw"], "the filter's gradient, from the output's gradient and the input";
});

/// Order of dimensions in memory, last fastest.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Conv, Layout, Problem};
///
/// assert_eq!(Layout::named("nhwc"), Some(Layout::Nhwc));
/// let conv = Conv::new(Scalar::F32, 1, 8, 8, &[4, 4], &[3, 3]).layout(Layout::Nhwc).build()?;
/// assert!(Problem::from(conv).key().contains("nhwc"));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Channels first: activations N C spatial, filters K C/g spatial.
    #[default]
    Nchw,
    /// Channels last: activations N spatial C, filters K spatial C/g. Grouped channels (g, c) are one dimension.
    Nhwc,
}

names!(Layout {
    Nchw = 0, ["nchw"], "channels before space";
    Nhwc = 1, ["nhwc"], "channels last";
});

/// A convolution. Per-dimension lists run from the slowest to the fastest spatial dimension (D, H, W) and have the same length.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::Conv;
///
/// // One image of 5 x 5 pixels, every second window of 3 x 3.
/// let conv = Conv::new(Scalar::F32, 1, 2, 3, &[5, 5], &[3, 3]).stride(&[2, 2]).build()?;
/// assert_eq!(conv.output(), [2, 2]);
/// let error = Conv::new(Scalar::F32, 1, 2, 3, &[5, 5], &[3, 3]).groups(3).build().unwrap_err();
/// assert!(error.to_string().starts_with("c = 2: must be a multiple of the 3 groups"));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Conv {
    /// What is computed.
    pub direction: Direction,
    /// Layout of all tensors.
    pub layout: Layout,
    /// Element type of A and B ([`Conv::operand`]).
    pub dtype: Scalar,
    /// With what precision f32 factors are multiplied.
    #[serde(default, skip_serializing_if = "Math::is_exact")]
    pub math: Math,
    /// Element type of the result, bias and residual: f64 beside f64; f32, f16 or bf16 beside each of these.
    pub out_dtype: Scalar,
    /// Samples (N).
    pub n: u64,
    /// Groups; each convolves C/groups input channels into K/groups output channels.
    pub groups: u64,
    /// Input channels over all groups (C).
    pub c: u64,
    /// Output channels over all groups (K).
    pub k: u64,
    /// Input size per spatial dimension.
    pub input: Vec<u64>,
    /// Filter size per spatial dimension.
    pub filter: Vec<u64>,
    /// Distance between windows, in input pixels.
    pub stride: Vec<u64>,
    /// Distance between filter taps, in input pixels.
    pub dilation: Vec<u64>,
    /// Zeros before the first pixel.
    pub pad_begin: Vec<u64>,
    /// Zeros after the last pixel.
    pub pad_end: Vec<u64>,
    /// A value per channel of the result is added to it; not to filter gradients.
    pub bias: bool,
    /// Applied to the result with its bias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// A tensor as the result, in its layout, is added last.
    #[serde(default)]
    pub residual: bool,
    /// Reductions of the result. Rows are its pixels, columns are the channels of a group, and the batch is its samples. In a
    /// filter gradient rows are output channels, and columns are input channels with taps. Groups stay apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reductions: Vec<Reduction>,
    /// The result is not stored: there are only its reductions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_c: bool,
    /// The residual is not added: the result is 0 where it is not above 0. So the gradient of a ReLU's argument comes of that of its
    /// result, which is the residual.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mask: bool,
    /// Workspace budget in bytes.
    pub workspace: u64,
}

/// Collects a [`Conv`].
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Conv, Direction, Layout};
///
/// // One sample with 8 channels, 16 output channels, 28 x 28 pixels, a 3 x 3 filter that moves by two.
/// let conv = Conv::new(Scalar::F16, 1, 8, 16, &[28, 28], &[3, 3]).stride(&[2, 2]).pad(&[1, 1], &[1, 1]);
/// let conv = conv.layout(Layout::Nhwc).build()?;
/// assert_eq!(conv.output(), [14, 14]);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvBuilder(pub(crate) Conv);

crate::error::validated_serde!(Conv);

impl Conv {
    /// Starts a forward NCHW convolution of stride 1, dilation 1, no padding, one group, no bias.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(dtype: Scalar, n: u64, c: u64, k: u64, input: &[u64], filter: &[u64]) -> ConvBuilder {
        let dims = input.len();
        ConvBuilder(Conv {
            direction: Direction::Forward,
            layout: Layout::Nchw,
            dtype,
            math: Math::Exact,
            out_dtype: default_out(dtype),
            n,
            groups: 1,
            c,
            k,
            input: input.to_vec(),
            filter: filter.to_vec(),
            stride: vec![1; dims],
            dilation: vec![1; dims],
            pad_begin: vec![0; dims],
            pad_end: vec![0; dims],
            bias: false,
            activation: None,
            residual: false,
            reductions: Vec::new(),
            drop_c: false,
            mask: false,
            workspace: DEFAULT_WORKSPACE,
        })
    }
    /// Spatial dimensions.
    pub fn dims(&self) -> usize {
        self.input.len()
    }
    /// Output size per spatial dimension: `(input + pads - dilation * (filter - 1) - 1) / stride + 1`.
    pub fn output(&self) -> Vec<u64> {
        (0..self.dims())
            .map(|d| {
                let window = self.dilation[d] * (self.filter[d] - 1) + 1;
                (self.input[d] + self.pad_begin[d] + self.pad_end[d] - window) / self.stride[d] + 1
            })
            .collect()
    }
    /// Input channels of a group.
    pub fn c_per_group(&self) -> u64 {
        self.c / self.groups
    }
    /// Output channels of a group.
    pub fn k_per_group(&self) -> u64 {
        self.k / self.groups
    }
    /// Elements of the input tensor.
    pub fn input_len(&self) -> u64 {
        self.n * self.c * self.input.iter().product::<u64>()
    }
    /// Elements of the filter tensor.
    pub fn filter_len(&self) -> u64 {
        self.k * self.c_per_group() * self.filter.iter().product::<u64>()
    }
    /// Elements of the output tensor.
    pub fn output_len(&self) -> u64 {
        self.n * self.k * self.output().iter().product::<u64>()
    }
    /// Name and number of elements of a tensor: A and B are what the direction computes from, C is what it computes.
    pub fn operand(&self, operand: Operand) -> (&'static str, u64) {
        let (input, filter, output) = (self.input_len(), self.filter_len(), self.output_len());
        match (self.direction, operand) {
            (Direction::Forward, Operand::A) => ("input", input),
            (Direction::Forward | Direction::BackwardData, Operand::B) => ("filter", filter),
            (Direction::Forward, Operand::C) => ("output", output),
            (_, Operand::A) => ("output gradient", output),
            (Direction::BackwardData, Operand::C) => ("input gradient", input),
            (Direction::BackwardWeight, Operand::B) => ("input", input),
            (Direction::BackwardWeight, Operand::C) => ("filter gradient", filter),
        }
    }
    /// Channels of the result that have a bias each: of the output, or of an input gradient (a transposed convolution's output).
    pub const fn bias_len(&self) -> u64 {
        match (self.bias, self.direction) {
            (true, Direction::Forward) => self.k,
            (true, Direction::BackwardData) => self.c,
            _ => 0,
        }
    }
    /// The result's rows, columns and batch, as reductions name them.
    pub fn result_shape(&self) -> ResultShape {
        let pixels = |size: &[u64]| size.iter().product();
        let (g, m, n) = match self.direction {
            Direction::Forward => (self.n * self.groups, pixels(&self.output()), self.k_per_group()),
            Direction::BackwardData => (self.n * self.groups, pixels(&self.input), self.c_per_group()),
            Direction::BackwardWeight => (self.groups, self.k_per_group(), self.c_per_group() * pixels(&self.filter)),
        };
        ResultShape { extents: Extents { g, m, n }, groups: self.groups }
    }
    /// Samples and pixels may be one axis of the product: every reduction reduces both, or neither. If neither, its values keep
    /// their order where there is one group.
    pub fn merges(&self) -> bool {
        let kept = self.groups == 1;
        self.reductions.iter().all(|r| r.operand.is_some() || (r.over.g && r.over.whole()[0]) || (kept && !r.over.g && !r.over.m))
    }
    /// The result itself is reduced, not only operands of it.
    pub(crate) fn reduces_result(&self) -> bool {
        self.reductions.iter().any(|r| r.operand.is_none())
    }
    fn validate_reductions(&self) -> Result<(), ProblemError> {
        Activation::check_outside_of_products(self.activation)?;
        check_integers(self.dtype, self.out_dtype, self.activation, &self.reductions)?;
        check_all(&self.reductions, self.drop_c, computed_in(self.dtype, self.out_dtype)[1], self.result_shape())?;
        for operand in self.reductions.iter().filter_map(|r| self.reduced_operand(r)) {
            operand?;
        }
        if self.direction == Direction::BackwardWeight
            && let Some(r) = self.reductions.iter().find(|r| r.over.g)
        {
            return Err(ProblemError::value("reduce", r, "a filter gradient is a sum over all samples already; leave b out"));
        }
        let parts = self.direction == Direction::BackwardData && self.stride.iter().any(|s| *s > 1);
        let apart = |r: &&Reduction| parts && r.operand.is_none() && !r.over.whole()[0];
        if let Some(r) = self.reductions.iter().find(apart) {
            return Err(ProblemError::Unsupported {
                what: format!("{r} of an input gradient with a stride (its pixels are computed in separate parts)"),
                remedy: "reduce over all pixels (m), or store the gradient and reduce it in a second call".into(),
            });
        }
        Ok(())
    }
    /// Terms of a result's sum, those of padding counted: channels and taps, or samples and output pixels.
    pub fn depth(&self) -> u64 {
        let taps: u64 = self.filter.iter().product();
        match self.direction {
            Direction::Forward => self.c_per_group() * taps,
            Direction::BackwardData => self.k_per_group() * taps,
            Direction::BackwardWeight => self.n * self.output().iter().product::<u64>(),
        }
    }
    /// Fewest terms of a result. Near an edge most elements under a window, or for a tap, may not exist. Along a padded
    /// dimension, and along every dimension of an input gradient, there may be a single term.
    pub fn fewest_terms(&self) -> u64 {
        let alone = |d: usize| self.direction == Direction::BackwardData || self.pad_begin[d] + self.pad_end[d] > 0;
        let of = |sizes: &[u64]| sizes.iter().enumerate().map(|(d, size)| if alone(d) { 1 } else { *size }).product::<u64>();
        match self.direction {
            Direction::Forward => self.c_per_group() * of(&self.filter),
            Direction::BackwardData => self.k_per_group(),
            Direction::BackwardWeight => self.n * of(&self.output()),
        }
    }
    /// Floating-point operations: two per multiply and add, padding counted.
    pub fn flop(&self) -> f64 {
        2.0 * self.output_len() as f64 * self.c_per_group() as f64 * self.filter.iter().product::<u64>() as f64
    }
    /// Checks every field.
    ///
    /// # Errors
    /// [`ProblemError`] with the field, its value and what it may be.
    pub fn validate(&self) -> Result<(), ProblemError> {
        check_dtype("dtype", self.dtype)?;
        self.math.check(self.dtype)?;
        if self.mask && !self.residual {
            return Err(ProblemError::value("mask", "true", "false without a residual, the tensor that masks"));
        }
        check_out_dtype(self.dtype, self.out_dtype)?;
        let dims = self.dims();
        if !(1..=3).contains(&dims) {
            return Err(ProblemError::value("input", format!("{dims} sizes"), "one, two or three spatial dimensions"));
        }
        let lists = [
            ("filter", &self.filter, 1),
            ("stride", &self.stride, 1),
            ("dilation", &self.dilation, 1),
            ("pad_begin", &self.pad_begin, 0),
            ("pad_end", &self.pad_end, 0),
            ("input", &self.input, 1),
        ];
        for (name, list, least) in lists {
            if list.len() != dims {
                let reason = format!("must have {dims}, one per spatial dimension of the input");
                return Err(ProblemError::value(name, format!("{} values", list.len()), reason));
            }
            if list.iter().any(|&v| v < least) {
                return Err(ProblemError::value(name, joined(list), format!("every value must be at least {least}")));
            }
            if list.iter().any(|&v| v > i64::MAX as u64 / 8) {
                return Err(ProblemError::value(name, joined(list), "a value is too large for a 64-bit address space"));
            }
        }
        for (name, value) in [("n", self.n), ("groups", self.groups), ("c", self.c), ("k", self.k)] {
            check_positive(name, value)?;
        }
        for (name, value) in [("c", self.c), ("k", self.k)] {
            if value % self.groups != 0 {
                let reason = format!("must be a multiple of the {} groups (it counts the channels of all groups)", self.groups);
                return Err(ProblemError::value(name, value, reason));
            }
        }
        for d in 0..dims {
            let padded = self.input[d] + self.pad_begin[d] + self.pad_end[d];
            let window = self.dilation[d].checked_mul(self.filter[d] - 1).and_then(|w| w.checked_add(1));
            if window.is_none_or(|w| w > padded) {
                let name = ["w", "h", "d"][dims - 1 - d];
                let value = format!("{} with dilation {}", self.filter[d], self.dilation[d]);
                let reason =
                    format!("larger than the padded input ({padded}) in dimension {name}; pad more or shrink the filter");
                return Err(ProblemError::value("filter", value, reason));
            }
        }
        let output = self.output();
        // Coordinates of the padded input are computed even where they do not exist.
        let padded: Vec<u64> = (0..dims).map(|d| self.input[d] + self.pad_begin[d] + self.pad_end[d]).collect();
        let tensors = [
            ("input tensor", self.n, self.c, &self.input),
            ("padded input tensor", self.n, self.c, &padded),
            ("filter tensor", self.k, self.c / self.groups, &self.filter),
            ("output tensor", self.n, self.k, &output),
        ];
        let widest = if self.out_dtype.bytes() > self.dtype.bytes() { self.out_dtype } else { self.dtype };
        for (name, outer, channels, spatial) in tensors {
            let mut extents = vec![outer, channels];
            extents.extend_from_slice(spatial);
            check_elements(name, &extents, 0, widest)?;
        }
        if self.workspace > i64::MAX as u64 {
            return Err(ProblemError::value("workspace", self.workspace, "must be less than 2^63 bytes"));
        }
        if self.direction == Direction::BackwardWeight && self.bias {
            let reason =
                "a filter gradient has no channels that a bias belongs to; drop it (the gradient of a bias is a reduction)";
            return Err(ProblemError::value("bias", 1, reason));
        }
        self.validate_reductions()
    }
}

fn joined(list: &[u64]) -> String {
    list.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn base() -> ConvBuilder {
        Conv::new(Scalar::F32, 2, 8, 6, &[9, 7], &[3, 2])
    }
    fn refused(builder: ConvBuilder, parts: &[&str]) {
        let message = builder.build().expect_err("must be refused").to_string();
        for part in parts {
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }

    #[test]
    fn output_size() {
        let conv = base().stride(&[2, 1]).dilation(&[2, 3]).pad(&[1, 0], &[0, 2]).build().unwrap();
        assert_eq!(conv.output(), [3, 6]);
        assert_eq!((conv.input_len(), conv.filter_len(), conv.output_len()), (2 * 8 * 63, 6 * 8 * 6, 2 * 6 * 18));
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        refused(base().groups(3), &["c = 8", "multiple of the 3 groups"]);
        refused(base().groups(4), &["k = 6", "4 groups"]);
        refused(base().groups(0), &["groups = 0"]);
        refused(base().stride(&[1]), &["stride = 1 values", "must have 2"]);
        refused(base().stride(&[1, 0]), &["stride = 1x0", "at least 1"]);
        refused(base().dilation(&[5, 1]), &["filter = 3 with dilation 5", "padded input (9)", "dimension h"]);
        refused(base().direction(Direction::BackwardWeight).bias(), &["bias = 1", "filter gradient"]);
        refused(Conv::new(Scalar::F32, 2, 8, 6, &[], &[]), &["input", "one, two or three"]);
        refused(Conv::new(Scalar::F32, 1 << 40, 1 << 20, 6, &[9], &[1]), &["input tensor", "64-bit"]);
        refused(Conv::new(Scalar::F32, 1, 1, 1, &[u64::MAX], &[1]), &["input", "too large"]);
        refused(base().pad(&[1 << 59, 0], &[0, 0]).stride(&[1 << 58, 1]), &["padded input tensor", "64-bit"]);
    }
}
