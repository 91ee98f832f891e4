//! The options that name a problem.

use crate::values::{Pads, Range, Trans, extents, number, pads, positive, range, scales, trans, whole};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsStr;
use std::path::PathBuf;
use tilewright::{Activation, Dtype, Reduction};

/// The problem, in one of these forms: words, a geometry string, a file of cases, a model.
#[derive(Debug, Args)]
pub struct ProblemArgs {
    /// The problem in words.
    #[command(subcommand)]
    pub word: Option<Word>,
    /// The problem as a geometry string: tC0_tA0_tB0_colMaj1_m64_n64_k64_lda64_ldb64_ldc64_ws0_f32
    #[arg(long, value_name = "GEOMETRY", help_heading = "Problem")]
    pub problem: Option<String>,
    /// Problems from a CSV file with a header line (columns m,n,k,... or n,groups,k,c,r,s,h,w,... or problem, as
    /// tilewright.torch.record writes it)
    #[arg(long, visible_alias = "recorded-shapes", value_name = "FILE", help_heading = "Problem")]
    pub cases: Option<PathBuf>,
    /// Convolutions, matrix products and reductions of an ONNX model, with fused epilogues
    #[arg(long, value_name = "FILE", help_heading = "Problem")]
    pub onnx: Option<PathBuf>,
    /// Size of a free dimension of the model by its name, or of any dimension of an input: batch=8, images.0=8
    #[arg(long, value_name = "NAME=N", value_parser = dimension, requires = "onnx", help_heading = "Problem")]
    pub dim: Vec<(String, u64)>,
    /// Element type instead of the model's
    #[arg(long, value_parser = DtypeName, hide_possible_values = true, value_name = "DTYPE", requires = "onnx", help_heading = "Problem")]
    pub onnx_dtype: Option<Dtype>,
    /// Layout of the model's convolutions [default: nchw, as in ONNX]
    #[arg(long, value_enum, value_name = "LAYOUT", requires = "onnx", help_heading = "Problem")]
    pub onnx_layout: Option<Layout>,
    /// Extents of matrix products that each launch gives. One kernel serves sizes from 1 to the given one; plans are tuned for the given one
    #[arg(long, value_enum, value_delimiter = ',', value_name = "EXTENTS", help_heading = "Problem")]
    pub dynamic: Vec<RunTime>,
    /// Only the cases of --cases with this name in the column `set`
    #[arg(long, value_name = "NAME", help_heading = "Problem")]
    pub set: Option<String>,
}

/// An extent that may be known only at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunTime {
    /// rows of C
    M,
    /// columns of C
    N,
    /// number of products
    Batch,
}

/// A problem in words.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one value per process")]
pub enum Word {
    /// Matrix product C = alpha op(A) op(B) + beta C, or a batch of them
    #[command(after_help = "\
Examples (for tune; bench, verify, emit, explain and inspect take the same):
  tilewright tune gemm --m 1024 --n 1024 --k 1024 --dtype f32 --trans nt --budget 30s
  tilewright tune gemm --m 64 --n 4096 --k 4096 --dtype bf16 --batch 8 --stride-b 0
  tilewright tune gemm --m 8192 --n 2048 --k 4096 --dtype bf16 --groups 16
  tilewright tune gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --bias n --activation gelu --residual
  tilewright tune gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --reduce max:n,sum:m --no-store
  tilewright tune gemm --m 512 --n 4096 --k 4096 --dynamic m --device emu")]
    Gemm(GemmArgs),
    /// Convolution in 1, 2 or 3 dimensions, forward or a gradient of it
    #[command(after_help = "\
Examples (for tune; bench, verify, emit, explain and inspect take the same):
  tilewright tune conv --n 64 --c 64 --k 64 --size 56x56 --filter 3x3 --pad 1 --layout nhwc --bias
  tilewright tune conv --n 8 --c 32 --k 32 --size 16x32x32 --filter 3 --stride 2 --pad 0:1 --groups 4
  tilewright tune conv --n 32 --c 64 --k 64 --size 28 --filter 3 --pad 1 --reduce sum:bm,sumsq:bm
  tilewright tune conv --direction backward-weight --n 32 --c 64 --k 64 --size 28 --filter 3 --dtype bf16 --out-dtype f32")]
    Conv(ConvArgs),
    /// Reduction of a strided tensor over some of its axes
    #[command(after_help = "\
Examples (for tune; bench, verify, emit, explain and inspect take the same):
  tilewright tune reduce --shape 65536x1024 --over 1 --op sum,sumsq
  tilewright tune reduce --shape 256x56x56x64 --over 0,1,2 --op mean,absmax:bf16 --dtype bf16")]
    Reduce(ReduceArgs),
}

/// Reads an element type by any of its names.
#[derive(Clone, Copy, Debug)]
struct DtypeName;

impl TypedValueParser for DtypeName {
    type Value = Dtype;
    fn parse_ref(&self, command: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<Dtype, clap::Error> {
        let names = PossibleValuesParser::new(self.possible_values().into_iter().flatten());
        let name = names.parse_ref(command, arg, value)?;
        Dtype::named(&name).ok_or_else(|| clap::Error::new(clap::error::ErrorKind::InvalidValue))
    }
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        Some(Box::new(Dtype::ALL.into_iter().map(|dtype| PossibleValue::new(dtype.name()).aliases(dtype.aliases()))))
    }
}

/// The element types in a table.
pub(super) fn types() -> String {
    let mut text = String::from("\n\nElement types (--dtype):");
    for dtype in Dtype::ALL {
        let names = std::iter::once(&dtype.name()).chain(dtype.aliases()).copied().collect::<Vec<_>>().join(", ");
        text.push_str(&format!("\n  {names:<34} {}", dtype.help));
    }
    text
}

/// Storage order of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// rows are contiguous (C)
    Row,
    /// columns are contiguous (BLAS, Fortran)
    Col,
}

/// The direction of C along which a bias vector runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Along {
    /// one value per row
    M,
    /// one value per column
    N,
}

/// The axis that groups divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ragged {
    /// rows of A and C
    M,
    /// terms: columns of A, rows of B
    K,
}

/// Zero points of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Zeros {
    /// one of A
    A,
    /// one of B
    B,
    /// one per row of A
    M,
    /// one per column of B
    N,
}

/// Reads a function of every result by any of its names.
#[derive(Clone, Copy, Debug)]
struct ActivationName;

impl TypedValueParser for ActivationName {
    type Value = Activation;
    fn parse_ref(&self, command: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<Activation, clap::Error> {
        let names = PossibleValuesParser::new(self.possible_values().into_iter().flatten());
        let name = names.parse_ref(command, arg, value)?;
        Activation::from_name(&name).ok_or_else(|| clap::Error::new(clap::error::ErrorKind::InvalidValue))
    }
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        Some(Box::new(Activation::ALL.into_iter().map(|a| PossibleValue::new(a.name()).aliases(a.aliases()))))
    }
}

/// The result of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// the output, from input and filter
    Forward,
    /// the input's gradient, from the output's gradient and the filter
    BackwardData,
    /// the filter's gradient, from the output's gradient and the input
    BackwardWeight,
}

/// Layout of image tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// channels before space
    Nchw,
    /// channels last
    Nhwc,
}

/// Options of a matrix product.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true, next_help_heading = "Matrix product")]
pub struct GemmArgs {
    /// Rows of C. A range gives several problems: 1024:4096:1024 is from:to:step
    #[arg(long, value_parser = range)]
    pub m: Range,
    /// Columns of C
    #[arg(long, value_parser = range)]
    pub n: Range,
    /// Columns of A and rows of B: the length of the sum
    #[arg(long, value_parser = range)]
    pub k: Range,
    /// Element type of A, B and C
    #[arg(long, value_parser = DtypeName, default_value = "f32", hide_possible_values = true)]
    pub dtype: Dtype,
    /// Element type of B, if it differs: another 8-bit float or integer type, or i8, u8, i4, u4 weights with A in f16, bf16 or f32
    #[arg(long, value_parser = DtypeName, value_name = "DTYPE", hide_possible_values = true)]
    pub b_dtype: Option<Dtype>,
    /// Element type of C, bias and residual, if it differs; 8-bit floats saturate
    #[arg(long, value_parser = DtypeName, value_name = "DTYPE", hide_possible_values = true)]
    pub out_dtype: Option<Dtype>,
    /// A letter for A and one for B: n (not transposed), t (transposed); complex types also c (conjugate transpose), r (conjugate)
    #[arg(long, default_value = "nn", value_parser = trans, value_name = "LETTERS")]
    pub trans: Trans,
    /// Storage order
    #[arg(long, value_enum, default_value_t = Order::Row)]
    pub order: Order,
    /// Leading dimension of A in elements [default: tight]
    #[arg(long, value_parser = positive)]
    pub lda: Option<u64>,
    /// Leading dimension of B in elements [default: tight]
    #[arg(long, value_parser = positive)]
    pub ldb: Option<u64>,
    /// Leading dimension of C in elements [default: tight]
    #[arg(long, value_parser = positive)]
    pub ldc: Option<u64>,
    /// Number of products
    #[arg(long, default_value = "1", value_parser = range)]
    pub batch: Range,
    /// Number of groups of a grouped product (mixture of experts). The groups divide the m rows of A and C, and each has its own B. A vector
    /// on the device holds the end of each group
    #[arg(long, value_parser = positive, conflicts_with_all = ["batch", "stride_a"])]
    pub groups: Option<u64>,
    /// Axis that the groups divide: rows (m), or k (weight gradients: each group has its own C)
    #[arg(long, value_enum, default_value_t = Ragged::M, requires = "groups")]
    pub ragged: Ragged,
    /// Elements from one A to the next; 0 shares it [default: tight]
    #[arg(long, value_parser = whole, value_name = "ELEMENTS")]
    pub stride_a: Option<u64>,
    /// Elements from one B to the next; 0 shares it [default: tight]
    #[arg(long, value_parser = whole, value_name = "ELEMENTS")]
    pub stride_b: Option<u64>,
    /// Elements from one C to the next [default: tight]
    #[arg(long, value_parser = positive, value_name = "ELEMENTS")]
    pub stride_c: Option<u64>,
    /// Elements of A's buffer before its first element
    #[arg(long, default_value_t = 0, value_parser = whole, value_name = "ELEMENTS")]
    pub offset_a: u64,
    /// Elements of B's buffer before its first element
    #[arg(long, default_value_t = 0, value_parser = whole, value_name = "ELEMENTS")]
    pub offset_b: u64,
    /// Elements of C's buffer before its first element
    #[arg(long, default_value_t = 0, value_parser = whole, value_name = "ELEMENTS")]
    pub offset_c: u64,
    /// Factor of A * B
    #[arg(long, default_value_t = 1.0, value_parser = number, allow_hyphen_values = true)]
    pub alpha: f64,
    /// Factor of the old C; at 0 it is never read
    #[arg(long, default_value_t = 0.0, value_parser = number, allow_hyphen_values = true)]
    pub beta: f64,
    /// Imaginary part of alpha, for complex types. Any value but 0 makes alpha complex in the problem
    #[arg(long, default_value_t = 0.0, value_parser = number, allow_hyphen_values = true)]
    pub alpha_im: f64,
    /// Imaginary part of beta, for complex types
    #[arg(long, default_value_t = 0.0, value_parser = number, allow_hyphen_values = true)]
    pub beta_im: f64,
    /// Extents that each launch gives. One kernel serves sizes from 1 to the given one; plans are tuned for the given one
    #[arg(long, value_enum, value_delimiter = ',', value_name = "EXTENTS")]
    pub dynamic: Vec<RunTime>,
    /// Subtract i32 zero points from 8-bit integers: one of A (a), one per row of A (m), one of B (b), one per column of B (n)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OF")]
    pub zero_points: Vec<Zeros>,
    /// Multiply alpha A B by f32 scales: one per row (m), per column (n), or both (m,n). Types with `promoted` and 4- or 8-bit weights
    /// also take one per block of k: m1x128, n1x128, n1x64, n1x32, m128x128, n128x128
    #[arg(long, value_delimiter = ',', value_name = "OF", value_parser = scales)]
    pub scales: Vec<(tilewright::Along, tilewright::Scale)>,
    /// Add a vector to alpha A B: one value per row (m) or per column (n)
    #[arg(long, value_enum, value_name = "ALONG")]
    pub bias: Option<Along>,
    /// Elements from the bias of one batch entry to the next [default: 0, one for all]
    #[arg(long, value_parser = whole, value_name = "ELEMENTS", requires = "bias")]
    pub stride_bias: Option<u64>,
    /// Function of alpha A B + bias + beta C
    #[arg(long, value_parser = ActivationName)]
    pub activation: Option<Activation>,
    /// Add a matrix of C's size after the activation
    #[arg(long)]
    pub residual: bool,
    /// Leading dimension of the residual in elements [default: that of C]
    #[arg(long, value_parser = positive, requires = "residual")]
    pub ldr: Option<u64>,
    /// Elements from the residual of one batch entry to the next; 0 shares it [default: as C]
    #[arg(long, value_parser = whole, value_name = "ELEMENTS", requires = "residual")]
    pub stride_r: Option<u64>,
    /// Reduce the result in the same pass: max:n,sum:bm. Operators: sum, mean, sumsq, max, min, absmax, argmax, argmin, logsumexp,
    /// var, norm2. Axes: b (batch), m (rows), n (columns). sum:n:stored:bf16 reduces C as stored, in bf16. sum:k:a and sum:k:b reduce an operand
    #[arg(long, value_delimiter = ',', value_parser = reduction_arg, value_name = "REDUCTIONS")]
    pub reduce: Vec<Reduction>,
    /// Do not store C, only its reductions
    #[arg(long, requires = "reduce")]
    pub no_store: bool,
}

/// Options of a convolution.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true, next_help_heading = "Convolution")]
pub struct ConvArgs {
    /// Images. A range gives several problems: 16:64:16 is from:to:step
    #[arg(long, value_parser = range)]
    pub n: Range,
    /// Input channels, all groups together
    #[arg(long, value_parser = range)]
    pub c: Range,
    /// Output channels, all groups together
    #[arg(long, value_parser = range)]
    pub k: Range,
    /// Spatial size of the input: 28, 56x56 or 8x32x32
    #[arg(long, value_parser = extents_arg)]
    pub size: Extents,
    /// Spatial size of the filter: one value for all dimensions, or one each
    #[arg(long, value_parser = extents_arg)]
    pub filter: Extents,
    /// Step of the window
    #[arg(long, default_value = "1", value_parser = extents_arg)]
    pub stride: Extents,
    /// Zeros around the input: 1 on all sides, 1:2 before:after, 1x0:1 per dimension
    #[arg(long, default_value = "0", value_parser = pads_arg)]
    pub pad: Padding,
    /// Distance between filter taps
    #[arg(long, default_value = "1", value_parser = extents_arg)]
    pub dilation: Extents,
    /// Groups of channels that do not mix
    #[arg(long, default_value_t = 1, value_parser = positive)]
    pub groups: u64,
    /// The result to compute; sizes are always those of the forward convolution
    #[arg(long, value_enum, default_value_t = Direction::Forward)]
    pub direction: Direction,
    /// Layout of input and output (the filter follows it)
    #[arg(long, value_enum, default_value_t = Layout::Nchw)]
    pub layout: Layout,
    /// Add a value per channel of the result
    #[arg(long)]
    pub bias: bool,
    /// Function of the result with its bias
    #[arg(long, value_parser = ActivationName)]
    pub activation: Option<Activation>,
    /// Add a tensor of the result's size after the activation
    #[arg(long)]
    pub residual: bool,
    /// Set the result to 0 where a tensor of its size is not above 0 (gradient of a ReLU)
    #[arg(long, conflicts_with = "residual")]
    pub mask: bool,
    /// Element type
    #[arg(long, value_parser = DtypeName, default_value = "f32", hide_possible_values = true)]
    pub dtype: Dtype,
    /// Element type of result, bias and residual, if it differs: f32, f16 or bf16 with each of these
    #[arg(long, value_parser = DtypeName, value_name = "DTYPE", hide_possible_values = true)]
    pub out_dtype: Option<Dtype>,
    /// Reduce the result in the same pass, as for a matrix product. Axes: b (samples), m (pixels), n (channels of a group). sum:bm,sumsq:bm
    /// are the sums of batch normalisation. Groups are never reduced together. With a filter's gradient, sum:k:a is the gradient of the bias
    #[arg(long, value_delimiter = ',', value_parser = reduction_arg, value_name = "REDUCTIONS")]
    pub reduce: Vec<Reduction>,
    /// Do not store the result, only its reductions
    #[arg(long, requires = "reduce")]
    pub no_store: bool,
}

/// Options of a tensor reduction.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true, next_help_heading = "Reduction")]
pub struct ReduceArgs {
    /// Sizes of the tensor, outermost first: 65536x1024
    #[arg(long, value_parser = numbers_arg)]
    pub shape: Extents,
    /// Axes to reduce, counted from 0
    #[arg(long, value_delimiter = ',', value_parser = whole, required = true, value_name = "AXES")]
    pub over: Vec<u64>,
    /// Operators, all in one pass: sum, mean, sumsq, max, min, absmax, argmax, argmin, logsumexp, var, norm2. A type after a colon replaces the
    /// accumulator's type, or i64 for indices: sum:bf16, argmax:i32
    #[arg(long, value_delimiter = ',', value_parser = operator_arg, required = true, value_name = "OPERATORS")]
    pub op: Vec<Reduction>,
    /// Element type of the tensor
    #[arg(long, value_parser = DtypeName, default_value = "f32", hide_possible_values = true)]
    pub dtype: Dtype,
    /// Stride of each axis in elements; 0 repeats the element [default: dense]
    #[arg(long, value_parser = numbers_arg)]
    pub strides: Option<Extents>,
    /// Elements of the buffer before the tensor's first
    #[arg(long, default_value_t = 0, value_parser = whole, value_name = "ELEMENTS")]
    pub offset: u64,
    /// Factor of the elements
    #[arg(long, default_value_t = 1.0, value_parser = number, allow_hyphen_values = true)]
    pub alpha: f64,
    /// Function of the scaled elements
    #[arg(long, value_parser = ActivationName)]
    pub activation: Option<Activation>,
}

/// Extents of the spatial dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents(pub Vec<u64>);

/// Padding of the spatial dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding(pub Vec<Pads>);

/// Reads `batch=8`.
fn dimension(text: &str) -> Result<(String, u64), String> {
    let read = || {
        let (name, size) = text.rsplit_once('=')?;
        let size = size.parse().ok().filter(|size| *size > 0)?;
        (!name.is_empty()).then(|| (name.to_string(), size))
    };
    read().ok_or_else(|| "write NAME=N with a positive number: batch=8".into())
}

fn reduction_arg(text: &str) -> Result<Reduction, String> {
    text.parse()
}

fn operator_arg(text: &str) -> Result<Reduction, String> {
    tilewright::operator(text)
}

/// Sizes or distances along axes, any of which may be 0.
fn numbers_arg(text: &str) -> Result<Extents, String> {
    text.split('x').map(whole).collect::<Result<_, _>>().map(Extents)
}

fn extents_arg(text: &str) -> Result<Extents, String> {
    extents(text).map(Extents)
}

fn pads_arg(text: &str) -> Result<Padding, String> {
    pads(text).map(Padding)
}
