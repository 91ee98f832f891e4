//! The command line.

use crate::baseline::Library;
use crate::record::SOURCE;
use crate::values::{Part, bytes, part, span, whole};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tilewright_device::CacheState;
use tilewright_problem::{Direction, Layout, Math, Name};

/// Measures generated kernels side by side with vendor libraries: same process, same buffers, random data, same state of the cache, in
/// turn.
#[derive(Debug, Parser)]
#[command(name = "tilewright-bench", version = SOURCE, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// How sides are measured.
#[derive(Clone, Debug, Args)]
pub struct Measuring {
    /// Compare each problem for at most this long: 2s, 500ms. Tuning is not counted
    #[arg(long, global = true, help_heading = "Measuring", value_name = "TIME", value_parser = span, default_value = "1500ms")]
    pub measure: Duration,
    /// State of the last-level cache in timed runs: cold (holds no operands) or warm (after a previous run, as in layers of a network)
    #[arg(long, global = true, help_heading = "Measuring", value_name = "STATE", default_value = "cold")]
    pub cache: CacheState,
}

/// What plans are compared with.
#[derive(Clone, Debug, Args)]
pub struct Against {
    /// Compare with these libraries (joined by commas): same process, same data, alternating runs
    #[arg(long, global = true, help_heading = "Measuring", value_enum, value_delimiter = ',', value_name = "LIBRARY")]
    pub against: Vec<Library>,
    /// Folder with results of CLBlast's tuners (for clblast-tuned)
    #[arg(long, global = true, help_heading = "Measuring", value_name = "DIR")]
    pub clblast_tuned: Option<PathBuf>,
}

/// What all measuring commands take.
#[derive(Debug, Args)]
pub struct Common {
    /// Device: cuda:N, opencl:N or opencl:NAME
    #[arg(long, global = true, default_value = "cuda:0", value_name = "DEVICE")]
    pub device: String,
    /// Append one JSON object per case to this file, as soon as the case is done
    #[arg(long, global = true, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Leave out cases that are in the --out file already
    #[arg(long, global = true, requires = "out")]
    pub resume: bool,
    /// Begin no further case after this time: 30s, 20m
    #[arg(long, global = true, value_name = "TIME", value_parser = span, allow_hyphen_values = true)]
    pub limit: Option<Duration>,
    #[command(flatten)]
    pub measuring: Measuring,
    /// Longest wait for the device before a kernel counts as hung
    #[arg(long, global = true, value_name = "TIME", default_value = "20s", value_parser = span)]
    pub deadline: Duration,
    /// Goes on for a process whose device was lost (set by tilewright-bench itself)
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub go_on: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Matrix products against vendor libraries, cuBLAS where none is named
    Gemm(GemmArgs),
    /// DeepBench's matrix products against cuBLAS (the set of all cases of the file is called deepbench)
    Deepbench(GemmArgs),
    /// Convolutions and their gradients against cuDNN, plans under constraints against each other, one launch against a loop over samples
    Conv(ConvArgs),
    /// The same plans through CUDA and through OpenCL
    OpenclVsCuda(OtherArgs),
    /// The cost model's unmeasured pick against the tuned plan
    PickQuality(Tuned),
    /// How well the cost model orders recorded plans, and how soon searches had a good one (needs no device)
    JudgeModel(JudgeArgs),
    /// How far the cost model's times are from recorded ones, and which of its constants to change (needs no device)
    Fit(FitArgs),
    /// Candidates per second: compiled, verified and timed
    Throughput(Tuned),
    /// An explicit list of plans for one problem, timed alternately: times, registers, spills, occupancy
    Plans(PlansArgs),
    /// Random derivable pairs of plan and problem, verified on the device
    VerifyRandom(VerifyArgs),
    /// Prints records as Markdown tables
    Table(TableArgs),
    /// Writes the page and the plots of published results from sets.csv and its record files (needs no device)
    Results(ResultsArgs),
    /// Compiles for a tuning process (started by tilewright-bench itself)
    #[command(hide = true)]
    CompileWorker,
}

/// Which cases.
#[derive(Debug, Args)]
pub struct Cases {
    /// CSV of cases
    #[arg(long, value_name = "FILE", required_unless_present = "problem")]
    pub cases: Option<PathBuf>,
    /// Text of a problem, instead of a file; may be repeated
    #[arg(long, value_name = "TEXT", conflicts_with = "cases")]
    pub problem: Vec<String>,
    /// Only the cases of this set; may be repeated
    #[arg(long, value_name = "NAME")]
    pub set: Vec<String>,
    /// Only the cases whose name holds this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Only cases with this input type, which cases of a file without such a column have
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<String>,
    /// Directions of convolutions of a file without such a column: forward, backward-data, backward-weight, several joined by commas
    #[arg(long, value_name = "DIRECTION", value_delimiter = ',', value_parser = direction)]
    pub direction: Vec<Direction>,
    /// Layout of convolutions of a file without such a column: nchw or nhwc
    #[arg(long, value_name = "LAYOUT", value_parser = layout)]
    pub layout: Option<Layout>,
    /// Only convolutions with so many spatial dimensions
    #[arg(long, value_name = "COUNT", value_parser = whole)]
    pub dims: Option<u64>,
    /// Only the I-th of N parts of the cases, dealt out round-robin: for several devices at once
    #[arg(long, value_name = "I/N", value_parser = part)]
    pub part: Option<Part>,
    /// Precision of f32 cases. tf32: both tilewright and the libraries multiply in tf32. tf32x3, bf16x3, bf16x6: tilewright does, and the
    /// libraries multiply in f32. promoted: two-level accumulation of 8-bit floats, on both sides
    #[arg(long, default_value = "exact", value_name = "MATH", value_parser = math)]
    pub math: Math,
    /// Device memory for copies of operands and partial sums: 0, 64M, 2G
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub workspace: Option<u64>,
}

/// How our plan is chosen.
#[derive(Debug, Args)]
pub struct Choice {
    /// Tune each case for this long before it is measured
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "2s")]
    pub budget: Duration,
    /// Keep trials in this file; with --recorded, take the best plan from it
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
    /// Do not tune: take the best plan of the --records file
    #[arg(long, requires = "records", conflicts_with = "pick")]
    pub recorded: bool,
    /// Do not tune: take the cost model's best
    #[arg(long)]
    pub pick: bool,
    /// Pin these keys of the plan, e.g. C_ICE1 (MIOpenGEMM's grammar, whole or part)
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
}

#[derive(Debug, Args)]
pub struct GemmArgs {
    #[command(flatten)]
    pub cases: Cases,
    #[command(flatten)]
    pub choice: Choice,
    #[command(flatten)]
    pub rivals: Against,
    /// Also time the plain product, by us and by libraries that lack the case itself. Of grouped products it is the dense product of all rows, of
    /// integer weights the product with the dequantised matrix. 8-bit floats with promotion or scales get one factor for each tensor
    #[arg(long)]
    pub plain: bool,
}

#[derive(Debug, Args)]
pub struct ConvArgs {
    #[command(flatten)]
    pub cases: Cases,
    #[command(flatten)]
    pub choice: Choice,
    /// Do not compare with cuDNN
    #[arg(long)]
    pub no_cudnn: bool,
    /// Also the best plan with these keys pinned in the place of those of --plan, tuned alike; may be repeated: `--plan C_LWV4
    /// --also C_LWV0` compares plans with load waves with plans without
    #[arg(long, value_name = "PLAN")]
    pub also: Vec<String>,
    /// Compare one launch with a loop over samples, one launch each, through the same generator
    #[arg(long)]
    pub sample_loop: bool,
}

#[derive(Debug, Args)]
pub struct OtherArgs {
    #[command(flatten)]
    pub cases: Cases,
    #[command(flatten)]
    pub choice: Choice,
    /// The other device
    #[arg(long, value_name = "DEVICE", default_value = "opencl:NVIDIA")]
    pub other: String,
}

/// Cases, and how our plan of each is chosen.
#[derive(Debug, Args)]
pub struct Tuned {
    #[command(flatten)]
    pub cases: Cases,
    #[command(flatten)]
    pub choice: Choice,
}

#[derive(Debug, Args)]
pub struct JudgeArgs {
    /// Records with measured trials. The first file that has a problem gives the count of candidates until one was within 3 % of
    /// the best. The best is the best of all files. So `judge-model short.sqlite long.sqlite` counts in searches of a small
    /// budget
    #[arg(required = true, value_name = "FILE")]
    pub records: Vec<PathBuf>,
    /// Count the searches that had such a plan after so many timed candidates
    #[arg(long, value_name = "COUNT", default_value_t = 60)]
    pub within: usize,
    /// Only problems whose name holds this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Architecture that the trials were measured on
    #[arg(long, default_value = tilewright_ir::Target::NVIDIA)]
    pub arch: String,
    /// Show so many of the model's first choices, and as many of the fastest plans
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub show: usize,
    /// Show so many plans that the model would pick now, recorded or not
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub picks: usize,
}

#[derive(Debug, Args)]
pub struct FitArgs {
    /// Files of records
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Only cases whose name holds this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Architecture that the times were measured on
    #[arg(long, default_value = tilewright_ir::Target::NVIDIA)]
    pub arch: String,
    /// Change constants in so many rounds, and print those with less error
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub rounds: u32,
}

#[derive(Debug, Args)]
pub struct PlansArgs {
    #[command(flatten)]
    pub cases: Cases,
    /// A plan; keys left out are those of --base; may be repeated
    #[arg(long = "plan", value_name = "PLAN")]
    pub plans: Vec<String>,
    /// What the plans have in common; keys left out have their defaults
    #[arg(long, value_name = "PLAN", default_value = "")]
    pub base: String,
    /// A file of plans, one per line, `NAME = PLAN` or `PLAN`; `#` starts a comment
    #[arg(long, value_name = "FILE")]
    pub plans_file: Option<PathBuf>,
    #[command(flatten)]
    pub rivals: Against,
    /// Allow sums by atomics
    #[arg(long)]
    pub atomics: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Pairs to verify
    #[arg(long, default_value_t = 2000, value_parser = whole)]
    pub count: u64,
    /// Seed of the pairs
    #[arg(long, default_value_t = 1, value_parser = whole)]
    pub seed: u64,
    /// Number of the first pair (to repeat a failing one)
    #[arg(long, default_value_t = 0, value_parser = whole)]
    pub first: u64,
    /// What kinds of plans
    #[arg(long, value_enum, default_value_t = Mix::All)]
    pub mix: Mix,
    /// Threads that compile; 0: one per core
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// Write the outcome as one JSON object: a file of benchmarks/verified, from which the support page is made
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    /// Every kind
    All,
    /// Main loops that run ahead, in all forms
    Schedules,
    /// Warpgroup matrix instructions (sm_90a)
    Units,
    /// Convolutions in three directions, by every unit of the device
    Conv,
    /// Products and convolutions of every number format, by every unit of the device
    Formats,
    /// Products of every number format whose batch entries are groups of rows or columns, by every unit of the device
    Grouped,
    /// Gated products of every number format, by every unit of the device
    Gated,
    /// Products of linear cross-entropies and of their gradients, of every number format, by every unit of the device
    Losses,
    /// Products of two pairs of factors, of every number format, by every unit of the device
    Pairs,
    /// Persistent work-groups whose last tiles are split along k, of every number format, by every unit of the device
    Tails,
    /// Reductions of results and of tensors
    Reduce,
    /// Reductions of results of warpgroup matrix instructions
    ReduceUnits,
}

#[derive(Debug, Args)]
pub struct TableArgs {
    /// Files of records
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Show the plans
    #[arg(long)]
    pub plans: bool,
    /// Show registers, spills and occupancy
    #[arg(long)]
    pub resources: bool,
    /// Show the least time by the device's rates of operations and of bytes, and what the first side takes beyond it
    #[arg(long)]
    pub floor: bool,
    /// Only the summaries
    #[arg(long)]
    pub brief: bool,
    /// Also write a page with tables and plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also add the generated kernels' plans to a file of tuning records, as those of another driver: each is verified and timed again when
    /// its problem is first prepared
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ResultsArgs {
    /// Folder with sets.csv and records/; results.md and its plots are written there
    #[arg(long, value_name = "DIR", default_value = "benchmarks")]
    pub folder: PathBuf,
}

/// A direction of convolutions.
fn direction(text: &str) -> Result<Direction, String> {
    Direction::named(text).ok_or_else(|| Name::refusal(Direction::NAMES, text))
}

/// A layout of convolutions.
fn layout(text: &str) -> Result<Layout, String> {
    Layout::named(text).ok_or_else(|| Name::refusal(Layout::NAMES, text))
}

/// A precision of products.
fn math(text: &str) -> Result<Math, String> {
    Math::named(text).ok_or_else(|| Name::refusal(Math::NAMES, text))
}

/// A number of threads.
fn threads(text: &str) -> Result<usize, String> {
    usize::try_from(whole(text)?).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_arguments_are_refused() {
        let refused = |args: &[&str]| Cli::try_parse_from([&["tilewright-bench"], args].concat()).unwrap_err().to_string();
        assert!(refused(&["gemm"]).contains("--cases"));
        assert!(refused(&["gemm", "--cases", "x", "--against", "mkl"]).contains("cublaslt"));
        assert!(refused(&["gemm", "--cases", "x", "--budget", "2y"]).contains("no span of time"));
        assert!(refused(&["gemm", "--cases", "x", "--resume"]).contains("--out"));
        assert!(refused(&["gemm", "--cases", "x", "--recorded"]).contains("--records"));
        assert!(refused(&["table"]).contains("FILE"));
        assert!(
            refused(&["conv", "--cases", "x", "--direction", "fwd,back"])
                .contains("`back` must be one of forward, backward-data")
        );
        assert!(refused(&["conv", "--cases", "x", "--layout", "chwn"]).contains("must be one of nchw, nhwc"));
        assert!(refused(&["gemm", "--cases", "x", "--limit", "-1"]).contains("no span of time"));
        assert!(refused(&["gemm", "--cases", "x", "--deadline", "0"]).contains("no span of time"));
        assert!(refused(&["gemm", "--cases", "x", "--workspace", "y"]).contains("is no size"));
        assert!(refused(&["gemm", "--cases", "x", "--workspace", "99999999999T"]).contains("addressed"));
        assert!(refused(&["gemm", "--cases", "x", "--cache", "hot"]).contains("write cold or warm"));
        assert!(refused(&["verify-random", "--count", "x"]).contains("no whole number"));
    }
}
