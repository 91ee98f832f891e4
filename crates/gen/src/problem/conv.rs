//! Convolutions of one, two or three spatial dimensions, in the papers' words: N, C, K, groups.

use super::{Activation, DEFAULT_WORKSPACE, Math, ProblemError, check_dtype, check_elements, check_out_dtype, check_positive};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use tilewright_ir::Scalar;

/// Which of the three tensors of a convolution is computed from the other two.
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

/// Order of dimensions in memory, last fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Channels first: activations N C spatial, filters K C/g spatial.
    #[default]
    Nchw,
    /// Channels last: activations N spatial C, filters K spatial C/g. Grouped channels (g, c) are one dimension.
    Nhwc,
}

/// A convolution. Per-dimension lists run from the slowest to the fastest spatial dimension (D, H, W) and have the same length.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Conv {
    /// What is computed.
    pub direction: Direction,
    /// Layout of all tensors.
    pub layout: Layout,
    /// Element type of input and filter.
    pub dtype: Scalar,
    /// With what precision f32 factors are multiplied.
    #[serde(default, skip_serializing_if = "Math::is_exact")]
    pub math: Math,
    /// Element type of output, bias and residual: f64 beside f64; f32, f16 or bf16 beside each of these.
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
    /// Zeros behind the last pixel.
    pub pad_end: Vec<u64>,
    /// A value per output channel is added to the output.
    pub bias: bool,
    /// Applied to the output with its bias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// A tensor as the output, in its layout, is added last.
    #[serde(default)]
    pub residual: bool,
    /// Workspace budget in bytes.
    pub workspace: u64,
}

/// Collects a [`Conv`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvBuilder(Conv);

super::validated_serde!(Conv);

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
            out_dtype: dtype,
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
        if self.direction != Direction::Forward {
            return Err(ProblemError::Unsupported {
                what: format!("direction {}", self.direction.name()),
                remedy: "only forward convolutions are built so far".to_string(),
            });
        }
        Ok(())
    }
    /// The canonical text, e.g. `conv_fwd_nchw_n64_g1_c64_k64_in56x56_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias1_ws1073741824_f32`
    /// (workspace in bytes).
    pub fn key(&self) -> String {
        let mut key = format!("conv_{}_{}", self.direction.name(), self.layout.name());
        // Writing to a String cannot fail.
        let _ = write!(key, "_n{}_g{}_c{}_k{}", self.n, self.groups, self.c, self.k);
        let lists = [&self.input, &self.filter, &self.stride, &self.dilation, &self.pad_begin, &self.pad_end];
        for (name, list) in LISTS.iter().zip(lists) {
            let _ = write!(key, "_{name}{}", joined(list));
        }
        let _ = write!(key, "_bias{}_ws{}_{}", u8::from(self.bias), self.workspace, self.math.dtype_name(self.dtype));
        if self.out_dtype != self.dtype {
            let _ = write!(key, "_out{}", self.out_dtype);
        }
        if let Some(activation) = self.activation {
            let _ = write!(key, "_act{activation}");
        }
        if self.residual {
            key.push_str("_res1");
        }
        key
    }
    /// Reads [`Conv::key`] back. Keys may stand in any order; `g`, `st`, `dil`, `pb`, `pe`, `bias` and `ws` may be left out,
    /// as may `outf32` (element type of the output), `actrelu` (an activation) and `res1` (a residual), which are printed only where
    /// they say something.
    ///
    /// # Errors
    /// [`ProblemError::Text`] for unknown, repeated, missing or malformed keys; [`ProblemError`] of [`Conv::validate`].
    pub fn parse_key(text: &str) -> Result<Conv, ProblemError> {
        let fail = |reason: String| ProblemError::text(text, reason);
        let mut tokens = text.split('_');
        let head = [tokens.next(), tokens.next(), tokens.next()];
        let direction = head[1].and_then(Direction::from_name);
        let layout = head[2].and_then(Layout::from_name);
        let (Some("conv"), Some(direction), Some(layout)) = (head[0], direction, layout) else {
            return Err(fail("must start with conv_DIRECTION_LAYOUT, e.g. conv_fwd_nchw or conv_fwd_nhwc".to_string()));
        };
        let mut numbers: [Option<u64>; 7] = [None; 7];
        let mut lists: [Option<Vec<u64>>; 6] = [const { None }; 6];
        let (mut dtype, mut out, mut activation) = (None, None, None);
        for token in tokens {
            if let Some(element) = Math::of_name(token) {
                if dtype.replace(element).is_some() {
                    return Err(fail(format!("the element type is given twice (`{token}`)")));
                }
                continue;
            }
            if let Some(scalar) = token.strip_prefix("out").and_then(super::geometry::dtype) {
                if out.replace(scalar).is_some() {
                    return Err(fail(format!("the element type of the output is given twice (`{token}`)")));
                }
                continue;
            }
            if let Some(name) = token.strip_prefix("act") {
                let found = super::geometry::parse_activation(token, name).map_err(&fail)?;
                if activation.replace(found).is_some() {
                    return Err(fail(format!("the activation is given twice (`{token}`)")));
                }
                continue;
            }
            let split = token.find(|ch: char| ch.is_ascii_digit()).unwrap_or(token.len());
            let (name, digits) = token.split_at(split);
            let repeated = || fail(format!("key `{name}` is given twice"));
            if let Some(index) = NUMBERS.iter().position(|&key| key == name) {
                let value = super::geometry::number(digits).map_err(|reason| fail(format!("`{token}`: {reason}")))?;
                if numbers[index].replace(value).is_some() {
                    return Err(repeated());
                }
            } else if let Some(index) = LISTS.iter().position(|&key| key == name) {
                let values = digits.split('x').map(super::geometry::number).collect::<Result<Vec<_>, _>>();
                let values =
                    values.map_err(|reason| fail(format!("`{token}`: {reason}; sizes are joined by x, e.g. {name}3x3")))?;
                if lists[index].replace(values).is_some() {
                    return Err(repeated());
                }
            } else {
                let known = NUMBERS.iter().chain(&LISTS).copied().collect::<Vec<_>>().join(", ");
                return Err(fail(format!("unknown key in `{token}`; the keys are {known} and the element type, e.g. f32")));
            }
        }
        let missing = |name: &str| fail(format!("key `{name}` is missing"));
        let [n, groups, c, k, bias, workspace, residual] = numbers;
        let [input, filter, stride, dilation, pad_begin, pad_end] = lists;
        let input = input.ok_or_else(|| missing("in"))?;
        let dims = input.len();
        let flag = |name: &str, value: Option<u64>| match value {
            None | Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => Err(fail(format!("`{name}{other}`: must be 0 or 1"))),
        };
        let (dtype, math) = dtype.ok_or_else(|| fail("the element type is missing (f16, bf16, tf32, f32 or f64)".to_string()))?;
        let conv = Conv {
            direction,
            layout,
            dtype,
            math,
            out_dtype: out.unwrap_or(dtype),
            n: n.ok_or_else(|| missing("n"))?,
            groups: groups.unwrap_or(1),
            c: c.ok_or_else(|| missing("c"))?,
            k: k.ok_or_else(|| missing("k"))?,
            input,
            filter: filter.ok_or_else(|| missing("fil"))?,
            stride: stride.unwrap_or_else(|| vec![1; dims]),
            dilation: dilation.unwrap_or_else(|| vec![1; dims]),
            pad_begin: pad_begin.unwrap_or_else(|| vec![0; dims]),
            pad_end: pad_end.unwrap_or_else(|| vec![0; dims]),
            bias: flag("bias", bias)?,
            activation,
            residual: flag("res", residual)?,
            workspace: workspace.unwrap_or(DEFAULT_WORKSPACE),
        };
        conv.validate()?;
        Ok(conv)
    }
}

const NUMBERS: [&str; 7] = ["n", "g", "c", "k", "bias", "ws", "res"];
const LISTS: [&str; 6] = ["in", "fil", "st", "dil", "pb", "pe"];

fn joined(list: &[u64]) -> String {
    list.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

impl Direction {
    /// Short name: `fwd`, `bwdd`, `bwdw`.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "fwd",
            Direction::BackwardData => "bwdd",
            Direction::BackwardWeight => "bwdw",
        }
    }
    /// The direction of a short name.
    pub fn from_name(name: &str) -> Option<Direction> {
        [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight].into_iter().find(|d| d.name() == name)
    }
}

impl Layout {
    /// Short name: `nchw`, `nhwc`, whatever the number of spatial dimensions.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Nchw => "nchw",
            Layout::Nhwc => "nhwc",
        }
    }
    /// The layout of a short name.
    pub fn from_name(name: &str) -> Option<Layout> {
        [Layout::Nchw, Layout::Nhwc].into_iter().find(|l| l.name() == name)
    }
}

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
    /// Zeros before and behind the input per spatial dimension.
    pub fn pad(mut self, begin: &[u64], end: &[u64]) -> Self {
        (self.0.pad_begin, self.0.pad_end) = (begin.to_vec(), end.to_vec());
        self
    }
    /// Whether a value per output channel is added.
    pub fn bias(mut self, bias: bool) -> Self {
        self.0.bias = bias;
        self
    }
    /// With what precision f32 factors are multiplied.
    pub fn math(mut self, math: Math) -> Self {
        self.0.math = math;
        self
    }
    /// Element type of output, bias and residual; by default that of the input.
    pub fn out_dtype(mut self, dtype: Scalar) -> Self {
        self.0.out_dtype = dtype;
        self
    }
    /// A function is applied to the output with its bias.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.0.activation = Some(activation);
        self
    }
    /// Whether a tensor as the output, in its layout and type, is added last.
    pub fn residual(mut self, residual: bool) -> Self {
        self.0.residual = residual;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> ConvBuilder {
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
        refused(base().direction(Direction::BackwardData), &["bwdd", "not supported", "forward"]);
        refused(Conv::new(Scalar::F32, 2, 8, 6, &[], &[]), &["input", "one, two or three"]);
        refused(Conv::new(Scalar::F32, 1 << 40, 1 << 20, 6, &[9], &[1]), &["input tensor", "64-bit"]);
        refused(Conv::new(Scalar::F32, 1, 1, 1, &[u64::MAX], &[1]), &["input", "too large"]);
        refused(base().pad(&[1 << 59, 0], &[0, 0]).stride(&[1 << 58, 1]), &["padded input tensor", "64-bit"]);
    }

    #[test]
    fn keys_round_trip() {
        let conv = base().layout(Layout::Nhwc).groups(2).pad(&[1, 0], &[0, 2]).bias(true).workspace(77).build().unwrap();
        assert_eq!(conv.key(), "conv_fwd_nhwc_n2_g2_c8_k6_in9x7_fil3x2_st1x1_dil1x1_pb1x0_pe0x2_bias1_ws77_f32");
        assert_eq!(Conv::parse_key(&conv.key()).unwrap(), conv);
        let short = Conv::parse_key("conv_fwd_nchw_n2_c8_k6_in9x7_fil3x2_bf16").unwrap();
        assert_eq!(short, Conv::new(Scalar::BF16, 2, 8, 6, &[9, 7], &[3, 2]).build().unwrap());
        let all = base().out_dtype(Scalar::BF16).activation(Activation::GeluTanh).residual(true).build().unwrap();
        assert!(all.key().ends_with("_bias0_ws1073741824_f32_outbf16_actgelutanh_res1"), "{}", all.key());
        assert_eq!(Conv::parse_key(&all.key()).unwrap(), all);
    }

    #[test]
    fn malformed_keys_are_refused() {
        for (key, part) in [
            ("conv_fwd", "must start with"),
            ("conv_fwd_nchw_n2_c8_k6_fil3_f32", "`in` is missing"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3", "element type is missing"),
            ("conv_fwd_nchw_n2_n2_c8_k6_in9_fil3_f32", "`n` is given twice"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_f64", "given twice"),
            ("conv_fwd_nchw_n2_c8_k6_in9x_fil3_f32", "in9x"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_q5_f32", "unknown key"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_bias2_f32", "must be 0 or 1"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_res2_f32", "`res2`: must be 0 or 1"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_actelu", "relu, gelu, gelutanh, silu"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_outf64", "out_dtype = f64"),
        ] {
            let message = Conv::parse_key(key).expect_err(key).to_string();
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }
}
