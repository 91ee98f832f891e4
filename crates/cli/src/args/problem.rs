//! The options that name a problem. Those of its fields are made of the tables of fields.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Subcommand};
use std::path::PathBuf;
use tilewright::{Dtype, Factors, Layout, Name};
use tilewright_bench::values::{number, range};
use tilewright_problem::Extent;
use tilewright_problem::fields::{Field, Given, Kind, Of};

/// The problem, in one of these forms: words, its text, a file of cases, a model.
#[derive(Debug, Args)]
pub struct ProblemArgs {
    /// The problem in words.
    #[command(subcommand)]
    pub word: Option<Word>,
    /// Text of the problem: tC0_tA0_tB0_colMaj1_m64_n64_k64_lda64_ldb64_ldc64_ws0_f32
    #[arg(long, value_name = "TEXT", help_heading = "Problem")]
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
    #[arg(long, value_parser = dtypes(), hide_possible_values = true, value_name = "DTYPE", requires = "onnx", help_heading = "Problem")]
    pub onnx_dtype: Option<Dtype>,
    /// Layout of the model's convolutions [default: nchw, as in ONNX]
    #[arg(long, value_parser = layouts(), value_name = "LAYOUT", requires = "onnx", help_heading = "Problem")]
    pub onnx_layout: Option<Layout>,
    /// Extents of matrix products that each launch gives. One kernel serves sizes from 1 to the given one; plans are tuned for the given one
    #[arg(long, value_parser = extents(), value_delimiter = ',', value_name = "EXTENTS", help_heading = "Problem")]
    pub dynamic: Vec<Extent>,
    /// Only the cases of --cases with this name in the column `set`
    #[arg(long, value_name = "NAME", help_heading = "Problem")]
    pub set: Option<String>,
}

/// A problem in words.
#[derive(Debug, Subcommand)]
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
    Gemm {
        /// Its fields.
        #[command(flatten)]
        fields: Fields<0>,
        /// Its factors.
        #[command(flatten)]
        factors: FactorArgs,
    },
    /// First half of a gated MLP, C = activation(A B_gate) * (A B_up): a matrix product whose B has 2 n columns
    #[command(after_help = "\
Examples (for tune; bench, verify, emit, explain and inspect take the same):
  tilewright tune glu --m 8192 --n 14336 --k 4096 --dtype bf16 --trans nt --budget 30s
  tilewright tune glu --m 32768 --n 768 --k 2048 --dtype bf16 --groups 64 --activation gelu
  tilewright tune glu --m 128 --n 2880 --k 2880 --dtype bf16 --activation clamped --gate-limit 7 --bias n")]
    Glu {
        /// Its fields.
        #[command(flatten)]
        fields: GluFields,
        /// Factor of the sums
        #[arg(long, default_value_t = 1.0, value_parser = number, allow_hyphen_values = true, help_heading = "Matrix product")]
        alpha: f64,
    },
    /// Forward pass of a linear cross-entropy: logsumexp and sum of each row of the logits X W', which are not stored
    #[command(after_help = "\
Examples (for tune; bench, verify, emit, explain and inspect take the same):
  tilewright tune cross-entropy --rows 4096 --vocabulary 128256 --k 4096 --dtype bf16 --budget 60s
  tilewright tune cross-entropy --rows 1024:8192:1024 --vocabulary 50257 --k 768 --dtype f16 --keep

X has (rows, k), W has (vocabulary, k), both by rows. The loss of a row is its logsumexp less the logit of its label.")]
    CrossEntropy(LossFields),
    /// Convolution in 1, 2 or 3 dimensions, forward or a gradient of it
    #[command(after_help = "\
Examples (for tune; bench, verify, emit, explain and inspect take the same):
  tilewright tune conv --n 64 --c 64 --k 64 --size 56x56 --filter 3x3 --pad 1 --layout nhwc --bias
  tilewright tune conv --n 8 --c 32 --k 32 --size 16x32x32 --filter 3 --stride 2 --groups 4
  tilewright tune conv --n 32 --c 64 --k 64 --size 28 --filter 3 --pad 1 --reduce sum:bm,sumsq:bm
  tilewright tune conv --direction backward-weight --n 32 --c 64 --k 64 --size 28 --filter 3 --dtype bf16 --out-dtype f32")]
    Conv(Fields<1>),
    /// Reduction of a strided tensor over some of its axes
    #[command(after_help = "\
Examples (for tune; bench, verify, emit, explain and inspect take the same):
  tilewright tune reduce --shape 65536x1024 --over 1 --op sum,sumsq
  tilewright tune reduce --shape 256x56x56x64 --over 0,1,2 --op mean,absmax:bf16 --dtype bf16")]
    Reduce {
        /// Its fields.
        #[command(flatten)]
        fields: Fields<2>,
        /// Factor of the elements
        #[arg(long, default_value_t = 1.0, value_parser = number, allow_hyphen_values = true, help_heading = "Reduction")]
        alpha: f64,
    },
}

/// The element types in a table.
pub(super) fn types() -> String {
    let mut text = String::from("\n\nElement types (--dtype):");
    for dtype in Dtype::ALL {
        let names = std::iter::once(&dtype.name()).chain(dtype.aliases()).copied().collect::<Vec<_>>().join(", ");
        text.push_str(&format!("\n  {names:<34} {}", dtype.spelling.help));
    }
    text
}

/// Options of the fields of problems `Of::ALL[OF]`, with their values.
#[derive(Clone, Debug)]
pub struct Fields<const OF: usize>(pub Vec<Given>);

/// The fields that are options.
fn options(of: usize) -> impl Iterator<Item = &'static Field> {
    Of::ALL.into_iter().skip(of).take(1).flat_map(Of::fields).filter(|field| !field.option.is_empty())
}

impl<const OF: usize> Args for Fields<OF> {
    fn augment_args(command: clap::Command) -> clap::Command {
        let heading = ["Matrix product", "Convolution", "Reduction"].get(OF).copied();
        command.allow_negative_numbers(true).args(options(OF).map(|field| argument(field, "").help_heading(heading)))
    }
    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<const OF: usize> FromArgMatches for Fields<OF> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Fields(options(OF).filter_map(|field| given(field, matches)).collect()))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Options of a gated product: those of a matrix product, whose gate is spelled `--activation`.
#[derive(Clone, Debug)]
pub struct GluFields(pub Vec<Given>);

/// The field that a gated product is not without.
const GATE: &str = "gate";

fn options_of_glu() -> impl Iterator<Item = &'static Field> {
    options(0).filter(|field| !["activation", "softcap"].contains(&field.name))
}

impl Args for GluFields {
    fn augment_args(command: clap::Command) -> clap::Command {
        let option = |field: &'static Field| {
            let arg = argument(field, GATE).help_heading("Matrix product");
            if field.name == GATE { arg.long("activation").help("Function of the gate [default: silu]") } else { arg }
        };
        command.allow_negative_numbers(true).args(options_of_glu().map(option))
    }
    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for GluFields {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let silu = |field| Given { field, value: "silu".into() };
        let value = |field: &'static Field| given(field, matches).or_else(|| (field.name == GATE).then(|| silu(field)));
        Ok(GluFields(options_of_glu().filter_map(value).collect()))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Fields of the product whose rows a linear cross-entropy reduces.
#[derive(Clone, Debug)]
pub struct LossFields(pub Vec<Given>);

/// The fields that it has, with their options and meanings.
const LOSS: [[&str; 3]; 5] = [
    ["m", "rows", "Rows of X: tokens"],
    ["n", "vocabulary", "Rows of W: words"],
    ["k", "k", "Columns of X and W"],
    ["dtype", "dtype", "Element type of X and W [default: bf16]"],
    ["softcap", "softcap", "Limit of the logits: softcap tanh(z / softcap), as in Gemma 2"],
];

impl Args for LossFields {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flag = |name: &'static str, help| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
        let options =
            LOSS.into_iter().filter_map(|[name, option, help]| Some(argument(Of::Gemm.field(name)?, "").long(option).help(help)));
        let all = options.chain([
            flag("bias", "A bias of each word is added to the logits"),
            flag("keep", "The logits are stored, too, for the backward pass"),
        ]);
        command.allow_negative_numbers(true).args(all.map(|arg| arg.help_heading("Linear cross-entropy")))
    }
    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LossFields {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all: Vec<Given> = LOSS.iter().filter_map(|[name, ..]| given(Of::Gemm.field(name)?, matches)).collect();
        let mut set =
            |name: &str, value: &str| all.extend(Of::Gemm.field(name).map(|field| Given { field, value: value.into() }));
        if matches.value_source("dtype").is_none() {
            set("dtype", "bf16");
        }
        set("trans_b", "1");
        set("reduce", "logsumexp:n,sum:n");
        if matches.get_flag("bias") {
            set("bias", "n");
        }
        if !matches.get_flag("keep") {
            set("drop_c", "1");
        }
        Ok(LossFields(all))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The value of a field's option.
fn given(field: &'static Field, matches: &ArgMatches) -> Option<Given> {
    let value = match field.kind {
        Kind::Flag | Kind::Bit => matches.get_flag(field.name).then(|| "1".to_string())?,
        _ => matches.get_many::<String>(field.name)?.map(String::as_str).collect::<Vec<&str>>().join(","),
    };
    Some(Given { field, value })
}

/// The option of a field; `always`: a field that the problem is not without.
fn argument(field: &'static Field, always: &str) -> Arg {
    let (first, rest) = field.meaning.split_at(field.meaning.chars().next().map_or(0, char::len_utf8));
    let detail = if field.detail.is_empty() { String::new() } else { format!(". {}", field.detail) };
    let flag = matches!(field.kind, Kind::Flag | Kind::Bit);
    let default =
        if ["", "none"].contains(&field.default) || flag { String::new() } else { format!(" [default: {}]", field.default) };
    let help = format!("{}{rest}{detail}{default}", first.to_uppercase());
    let arg = Arg::new(field.name).long(field.option).help(help).required(field.required);
    let arg = arg.conflicts_with_all(field.excludes.iter().filter(|name| options_have(name)));
    let arg = if field.requires == always || field.requires.is_empty() { arg } else { arg.requires(field.requires) };
    let checked = move |text: &str| field.kind.check(text).map(|()| text.to_string());
    match field.kind {
        Kind::Flag | Kind::Bit => arg.action(ArgAction::SetTrue),
        Kind::Extent => arg.value_parser(|text: &str| range(text).map(|_| text.to_string())).value_name("SIZE"),
        Kind::Dtype => {
            arg.value_parser(dtypes().map(|dtype| dtype.name().to_string())).hide_possible_values(true).value_name("DTYPE")
        }
        Kind::Names(names) => arg.value_parser(PossibleValuesParser::new(possible(names.iter()))).value_name("NAME"),
        Kind::Number(_) | Kind::Decimal => arg.value_parser(checked).value_name("NUMBER"),
        Kind::Sizes(_) => arg.value_parser(checked).value_name("SIZES"),
        Kind::Words => arg.value_parser(checked).value_name("LIST").action(ArgAction::Append),
    }
}

/// Some option has this name.
fn options_have(name: &str) -> bool {
    Of::ALL.into_iter().filter_map(|of| of.field(name)).any(|field| !field.option.is_empty())
}

/// Only `--help` shows the option with this name.
pub(super) fn is_rare(name: &str) -> bool {
    Of::ALL.into_iter().filter_map(|of| of.field(name)).any(|field| field.rare)
}

fn possible<'a>(names: impl Iterator<Item = &'a Name>) -> Vec<PossibleValue> {
    names.map(|name| PossibleValue::new(name.name()).aliases(name.aliases()).help(name.help)).collect()
}

/// Reads an element type by any of its names.
fn dtypes() -> impl TypedValueParser<Value = Dtype> {
    let names = PossibleValuesParser::new(possible(Dtype::ALL.iter().map(|dtype| &dtype.spelling)));
    names.try_map(|name| Dtype::named(&name).ok_or("no element type"))
}

/// Reads a layout of convolutions.
fn layouts() -> impl TypedValueParser<Value = Layout> {
    PossibleValuesParser::new(possible(Layout::NAMES.iter())).try_map(|name| Layout::named(&name).ok_or("no layout"))
}

/// Reads an extent that launches give.
fn extents() -> impl TypedValueParser<Value = Extent> {
    let all = [Extent::M, Extent::N, Extent::G];
    let find = move |name: String| all.into_iter().find(|extent| extent.name() == name).ok_or("no extent");
    PossibleValuesParser::new(all.map(Extent::name)).try_map(find)
}

/// Factors of a matrix product.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Matrix product")]
pub struct FactorArgs {
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
}

impl From<FactorArgs> for Factors {
    fn from(FactorArgs { alpha, beta, alpha_im, beta_im }: FactorArgs) -> Factors {
        Factors { alpha, beta, alpha_im, beta_im }
    }
}

/// Reads `batch=8`.
fn dimension(text: &str) -> Result<(String, u64), String> {
    let read = || {
        let (name, size) = text.rsplit_once('=')?;
        let size = size.parse().ok().filter(|size| *size > 0)?;
        (!name.is_empty()).then(|| (name.to_string(), size))
    };
    read().ok_or_else(|| "write NAME=N with a positive number: batch=8".into())
}
