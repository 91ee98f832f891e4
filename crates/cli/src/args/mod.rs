//! The command line: every subcommand and option with its help. The help is the contract.

mod fleet;
mod kept;
mod problem;

pub use fleet::*;
pub use kept::*;
pub use problem::*;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tilewright::CacheState;
use tilewright_bench::values::{Budget, Part, budget, bytes, part, time, whole};
use tilewright_bench::{Against, Measuring};
use tilewright_device::COMPILE_WORKER;

const LONG_ABOUT: &str = "\
tilewright turns a problem (a matrix product, a convolution, a reduction) into the fastest GPU kernel it can find for \
your shape on your device: it generates the kernel, checks its results, measures it, remembers it and hands you the source.

Without a GPU everything runs on the built-in device, an emulator: results are real, times are modelled and say so.";

const EXAMPLES: &str = "\
Examples:
  Tune a first kernel on the most capable device:
    tilewright tune gemm --m 1024 --n 1024 --k 1024 --budget 30s
  Explain the plan of a convolution in words and figures:
    tilewright explain conv --n 64 --c 64 --k 64 --size 56x56 --filter 3x3 --pad 1 --svg plan.svg
  Write a stand-alone CUDA source file:
    tilewright emit gemm --m 4096 --n 4096 --k 4096 --target cuda --arch sm_90a > kernel.cu
  Tune many cases from a file, with one JSON object per line:
    tilewright tune --cases benchmarks/cases/cases.csv --budget 5s --json > tuned.jsonl
  List devices and missing drivers:
    tilewright devices";

/// Generates, verifies, tunes and runs the fastest kernel for a matrix product, convolution or reduction.
#[derive(Debug, Parser)]
#[command(name = "tilewright", version, long_about = LONG_ABOUT, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// No progress on the terminal
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// More messages on stderr: -v steps, -vv everything
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Search for the fastest verified kernel, record it and write its source
    #[command(after_help = "\
Examples:
  tilewright tune gemm --m 1024 --n 1024 --k 1024 --dtype f32 --trans nt --budget 30s
  tilewright tune conv --n 64 --c 64 --k 128 --size 28x28 --filter 3x3 --stride 2 --pad 0:1 --layout nhwc --bias
  tilewright tune --problem tC0_tA0_tB0_colMaj1_m1000_n2000_k3000_lda1000_ldb3000_ldc1000_ws0_f32
  tilewright tune --cases benchmarks/cases/cases.csv --budget 5s --json
  tilewright tune --onnx model.onnx --dim batch=8 --onnx-dtype f16 --onnx-layout nhwc --budget 20s
  tilewright tune gemm --m 512 --n 512 --k 512 --plan C_ICE1_UNR16      (searches the other keys)
  tilewright tune --cases benchmarks/cases/cases.csv --device all      (a worker for each GPU of this host)
  tilewright tune --cases benchmarks/cases/cases.csv --fleet postgresql://me@db/tuning --run night      (the same on every node)
  tilewright tune --cases benchmarks/cases/cases.csv --part 2/8 --records node2.sqlite      (process 2 of 8; `records merge` joins the files)

After Ctrl-C or a kill the records keep all trials. Run the command again to continue from them.")]
    Tune(TuneArgs),
    /// Time the recorded or picked plans of problems, without a search
    #[command(after_help = "\
Examples:
  tilewright bench gemm --m 1024 --n 1024 --k 1024
  tilewright bench --against cublaslt,cublas --cases benchmarks/cases/cases.csv --html page.html
  tilewright bench --cases conv_forward_f32.csv --device cuda:0 --json
  tilewright bench --source edited.cu                     (a kernel that `emit` wrote and you changed)")]
    Bench(BenchArgs),
    /// Check one plan's results against the f64 reference; exit code 1 if they are wrong
    #[command(after_help = "\
Examples:
  tilewright verify gemm --m 100 --n 90 --k 80 --device emu:gfx942
  tilewright verify --problem tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32 --plan A_MIC4__B_MIC4__C_MAC64_SKW10
  tilewright verify --source edited.cl --device opencl:0")]
    Verify(VerifyArgs),
    /// Print the source of a plan as a stand-alone file
    #[command(after_help = "\
Examples:
  tilewright emit gemm --m 4096 --n 4096 --k 4096 --target cuda --arch sm_90a > kernel.cu
  tilewright emit gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --arch sm_90a --host cuda --out gemm.cu     (nvcc -c -arch=sm_90a gemm.cu)
  tilewright emit gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --arch sm_90a --host c --out gemm.c     (cc -c gemm.c)
  tilewright emit conv --n 8 --c 32 --k 64 --size 56x56 --filter 3x3 --pad 1 --target opencl
  tilewright emit gemm --m 512 --n 512 --k 512 --target hip --arch gfx942 --plan C_UNR16_MAC256")]
    Emit(EmitArgs),
    /// Compile the plans of many problems ahead of time: cubins, a C file that launches them, and a manifest
    #[command(after_help = "\
Examples:
  tilewright bundle --cases benchmarks/cases/cases.csv --arch sm_90a -o kernels
  tilewright bundle --recorded-shapes shapes.csv --device cuda:0 --name model -o kernels
  tilewright bundle gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --dynamic m -o kernels

Plans come from the records: the fastest plan that was measured on the architecture, or else the cost model's pick. The machine that runs the \
kernels needs no compiler, no records and no search. This command needs NVRTC and no GPU.")]
    Bundle(BundleArgs),
    /// Explain the parameters of a plan in words, numbers, and figures as SVG
    #[command(after_help = "\
Examples:
  tilewright explain gemm --m 1024 --n 1024 --k 1024
  tilewright explain gemm --m 1024 --n 1024 --k 1024 --plan A_MIC8_LIW1__B_MIC6__C_UNR16_GAL3 --svg plan.svg")]
    Explain(ExplainArgs),
    /// Show the compiled main loop of a plan: loads, waits, stores, math and barriers in order, registers, occupancy
    #[command(after_help = "\
Examples:
  tilewright inspect gemm --m 4096 --n 4096 --k 4096 --arch gfx900 --plan C_PFG1_BUF2_STP1
  tilewright inspect gemm --m 4096 --n 4096 --k 4096 --arch sm_90a --svg loop.svg --asm loop.sass
  tilewright inspect --source edited.cu --asm loop.sass
  tilewright inspect conv --n 64 --c 64 --k 64 --size 56x56 --filter 3x3 --pad 1 --arch gfx942 --target opencl --json

No GPU is needed. AMD's architectures need clang 20 or newer, NVIDIA's need NVRTC and nvdisasm. A message names a missing tool.")]
    Inspect(InspectArgs),
    /// List devices. For a back end without a device: what is missing and how to install it
    Devices(DevicesArgs),
    /// Verify random kernels, tune a few shapes, read clocks and limits, and write one report file
    #[command(after_help = "\
Examples:
  tilewright selfcheck --device hip:0
  tilewright selfcheck --device opencl:0 --pairs 50 --shapes 3 --budget 5s --out report.md

It takes some minutes. If a kernel crashes the device, verification continues in a new process. Nothing is recorded.")]
    Selfcheck(SelfcheckArgs),
    /// Runs that nodes of a cluster share: set up, watch, collect, end
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// List, export, import, merge, prune and clear tuning records
    #[command(subcommand)]
    Records(RecordsCommand),
    /// Show or clear the cache of compiled binaries
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Print completions for a shell: bash, zsh, fish, elvish, powershell
    #[command(after_help = "\
Examples:
  tilewright completions bash > ~/.local/share/bash-completion/completions/tilewright
  tilewright completions fish > ~/.config/fish/completions/tilewright.fish")]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Compiles kernels for a tuner in another process.
    #[command(hide = true, name = COMPILE_WORKER)]
    CompileWorker,
}

/// Options that only `--help` shows beside rare fields; `-h` shows the options that most calls need.
const RARE: [&str; 16] = [
    "alpha_im",
    "atomics",
    "beta_im",
    "cache",
    "clblast_tuned",
    "dim",
    "dynamic",
    "ieee",
    "measure",
    "onnx_dtype",
    "onnx_layout",
    "part",
    "search",
    "seed",
    "set",
    "total",
];

/// The whole command line. Help prints examples before options. `all`: every option, and the table of element types.
pub fn command(all: bool) -> clap::Command {
    let print = || {
        let help = clap::Arg::new("help").short('h').long("help").action(clap::ArgAction::HelpShort);
        help.help_heading("Options").help("Print help; --help prints every option and element type")
    };
    fn laid_out(command: clap::Command, all: bool, print: fn() -> clap::Arg) -> clap::Command {
        let types = if all && ["gemm", "glu", "cross-entropy", "conv", "reduce"].contains(&command.get_name()) {
            types()
        } else {
            String::new()
        };
        let template = format!("{{about}}{{after-help}}\n\n{{usage-heading}} {{usage}}\n\n{{all-args}}{types}");
        let command = command.disable_help_flag(true).arg(print()).help_template(template);
        let command =
            command.mut_args(|arg| if !all && is_rare(arg.get_id().as_str()) { arg.hide_short_help(true) } else { arg });
        command.mut_subcommands(|command| laid_out(command, all, print))
    }
    laid_out(Cli::command(), all, print)
}

/// Only `--help` shows the option with this name.
fn is_rare(name: &str) -> bool {
    RARE.contains(&name) || problem::is_rare(name)
}

/// A source in place of a problem.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// An edited file of `emit`. Its head names problem and plan; kernels, arguments and launch must be the same
    #[arg(long, global = true, help_heading = "Problem", value_name = "FILE")]
    pub source: Option<PathBuf>,
}

/// Options that constrain the plans.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A plan, whole or in part: A_MIC8_VEW4__C_UNR16. Its keys are kept, the others are chosen
    #[arg(long, global = true, help_heading = "Plan", value_name = "PLAN")]
    pub plan: Option<String>,
    /// Device memory for copies of operands and partial sums: 0, 64M, 2G [default: 1G, or the workspace in --problem]
    #[arg(long, global = true, help_heading = "Plan", value_parser = bytes, value_name = "BYTES")]
    pub workspace: Option<u64>,
    /// Allow sums by atomics: sometimes faster, but the last bits of results vary from run to run
    #[arg(long, global = true, help_heading = "Plan")]
    pub atomics: bool,
    /// Leave out plans in which NaN, infinities or overflow become other values than IEEE 754 has
    #[arg(long, global = true, help_heading = "Plan")]
    pub ieee: bool,
}

/// Options that name a device and the records.
#[derive(Clone, Debug, Args)]
pub struct PlaceArgs {
    /// Device: emu, emu:ARCH, opencl:N, opencl:NAME, cuda:N, hip:N; for `tune` also a list, or all [default: the most capable one here]
    #[arg(long, global = true, help_heading = "Device and records", value_name = "DEVICE")]
    pub device: Option<String>,
    /// Records file [default: in the user's data folder, see `tilewright records path`]
    #[arg(long, global = true, help_heading = "Device and records", value_name = "FILE", env = "TILEWRIGHT_RECORDS")]
    pub records: Option<PathBuf>,
}

/// How the space of plans is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Search {
    /// walk to better neighbours, restart when there is none
    Descent,
    /// independent random plans
    Random,
    /// every plan within the constraints
    Exhaustive,
}

/// `tune`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = false)]
pub struct TuneArgs {
    #[command(flatten)]
    pub problem: ProblemArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Limit for each problem: a time (500ms, 30s, 2m, 1h), which several problems share, or a number of trials (200). One search ends
    /// earlier if it gains less than 1 % in 200 trials and a quarter of the budget
    #[arg(long, global = true, help_heading = "Search", default_value = "30s", value_parser = budget, allow_hyphen_values = true)]
    pub budget: Budget,
    /// Limit for all problems together, in place of --budget: 60s, 10m
    #[arg(long, global = true, help_heading = "Search", value_parser = time, value_name = "TIME", conflicts_with = "budget")]
    pub total: Option<Duration>,
    /// Strategy
    #[arg(long, global = true, help_heading = "Search", value_enum, default_value_t = Search::Descent)]
    pub search: Search,
    /// State of the last-level cache in timed runs: cold (holds no operands) or warm (after a previous run, as in layers of a network).
    /// Times of the two states are recorded separately
    #[arg(long, global = true, help_heading = "Search", value_name = "STATE", default_value = "cold")]
    pub cache: CacheState,
    /// Seed of everything random
    #[arg(long, global = true, help_heading = "Search", default_value_t = 1, value_parser = whole)]
    pub seed: u64,
    /// Tune the I-th of N shares of the problems: 2/8. Heavy problems are spread evenly [default: from Slurm (array tasks, tasks of a
    /// step), Open MPI or MPICH; 1/1 takes all]
    #[arg(long, global = true, help_heading = "Search", value_name = "I/N", value_parser = part)]
    pub part: Option<Part>,
    /// Folder for the sources of the best plans [default: `sources` next to the records file]
    #[arg(long, global = true, help_heading = "Output", value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write a page of problems with plans, times, rates, and shares of the device's limits
    /// [default with --onnx: MODEL.html in the current folder]
    #[arg(long, global = true, help_heading = "Output", value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Draw each search: the time of every trial, and the best so far
    #[arg(long, global = true, help_heading = "Output", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// One JSON object per problem on stdout
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
    /// CSV on stdout: a header line, then one line per problem
    #[arg(long, global = true, help_heading = "Output", conflicts_with = "json")]
    pub csv: bool,
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Number of this worker among those of its parent.
    #[arg(long, global = true, hide = true)]
    pub worker: Option<usize>,
    /// The device of this worker ended an earlier one.
    #[arg(long, global = true, hide = true)]
    pub looks_first: bool,
    /// This worker's parent draws its progress.
    #[arg(long, global = true, hide = true)]
    pub tell_parent: bool,
    /// File with the tasks of this host.
    #[arg(long, global = true, hide = true)]
    pub queue: Option<PathBuf>,
    /// Number of cases that an earlier process finished.
    #[arg(long, global = true, hide = true, default_value_t = 0)]
    pub skip: usize,
    /// Part of the first case's budget that an earlier process spent, in seconds or trials.
    #[arg(long, global = true, hide = true, default_value_t = 0.0)]
    pub spent: f64,
}

/// `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub problem: ProblemArgs,
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Timed repeats; the median is reported (without --against)
    #[arg(long, global = true, help_heading = "Measuring", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    #[command(flatten)]
    pub measuring: Measuring,
    #[command(flatten)]
    pub rivals: Against,
    /// Write the comparison as a page with tables and plots
    #[arg(long, global = true, help_heading = "Output", value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// One JSON object per problem on stdout
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
    /// CSV on stdout: a header line, then one line per problem (without --against)
    #[arg(long, global = true, help_heading = "Output", conflicts_with_all = ["json", "against"])]
    pub csv: bool,
}

/// `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub problem: ProblemArgs,
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Seed of the random operands
    #[arg(long, global = true, help_heading = "Check", default_value_t = 1, value_parser = whole)]
    pub seed: u64,
    /// On the emulator, run every tile of a large problem instead of a few
    #[arg(long, global = true, help_heading = "Check")]
    pub whole: bool,
    /// One JSON object per problem on stdout
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
}

/// Language of printed source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// CUDA C++
    Cuda,
    /// HIP C++
    Hip,
    /// OpenCL C
    Opencl,
}

/// Host code in addition to the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HostLanguage {
    /// C with the compiled kernels in it, for any C compiler and CUDA's driver (libcuda)
    C,
    /// one CUDA C++ file for nvcc
    Cuda,
    /// one HIP C++ file for hipcc
    Hip,
}

/// `emit`.
#[derive(Debug, Args)]
pub struct EmitArgs {
    #[command(flatten)]
    pub problem: ProblemArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Language [default: the language of --arch, or the device's]
    #[arg(long, global = true, help_heading = "Target", value_enum)]
    pub target: Option<Language>,
    /// Architecture to plan for: sm_75, sm_80, sm_86, sm_87, sm_89, sm_90a, sm_100a, sm_103a, sm_120a, gfx900, gfx906, gfx90a, gfx942, gfx950. It
    /// sets the language too, unless --target is opencl [default: the device's; with --target sm_90a or gfx942]
    #[arg(long, global = true, help_heading = "Target")]
    pub arch: Option<String>,
    /// Also write a function that launches the kernels. It takes the arguments of a BLAS call, loads the kernels, encodes tensor maps and
    /// passes grids and arguments
    #[arg(long, global = true, help_heading = "Target", value_enum, value_name = "LANGUAGE")]
    pub host: Option<HostLanguage>,
    /// Name of that function [default: tilewright_gemm, tilewright_conv]
    #[arg(long, global = true, help_heading = "Target", requires = "host", value_name = "NAME")]
    pub name: Option<String>,
    /// Write here instead of stdout
    #[arg(long, global = true, help_heading = "Output", value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub problem: ProblemArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub plan: PlanArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: PlaceArgs,
    /// Architecture to compile for: sm_75, sm_80, sm_86, sm_87, sm_89, sm_90a, sm_100a, sm_103a, sm_120a [default: the architecture of --device, else
    /// sm_90a]
    #[arg(long, global = true, help_heading = "Target")]
    pub arch: Option<String>,
    /// Name of the files, and prefix of the functions
    #[arg(long, global = true, help_heading = "Output", value_name = "NAME", default_value = "tilewright_bundle")]
    pub name: String,
    /// Folder to write to
    #[arg(long, short, global = true, help_heading = "Output", value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub problem: ProblemArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Write all figures as one page
    #[arg(long, global = true, help_heading = "Output", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write each figure as a file of its own: grid.svg, work-group.svg, accumulators.svg, copies.svg, shared-memory.svg, timeline.svg,
    /// epilogue.svg, of a convolution view.svg
    #[arg(long, global = true, help_heading = "Output", value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// The explanation as one JSON object
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
}

/// `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    pub problem: ProblemArgs,
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Records file [default: in the user's data folder, see `tilewright records path`]
    #[arg(long, global = true, help_heading = "Device and records", value_name = "FILE", env = "TILEWRIGHT_RECORDS")]
    pub records: Option<PathBuf>,
    /// Architecture: gfx900, gfx906, gfx90a, gfx942, gfx950, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90a, sm_100a, sm_103a, sm_120a [default: gfx942, or
    /// the architecture of --source]
    #[arg(long, global = true, help_heading = "Target")]
    pub arch: Option<String>,
    /// Language of the compiled source [default: hip for gfx*, cuda for sm_*, or the language of --source]
    #[arg(long, global = true, help_heading = "Target", value_enum)]
    pub target: Option<Language>,
    /// Write the figure here
    #[arg(long, global = true, help_heading = "Output", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the disassembly here
    #[arg(long, global = true, help_heading = "Output", value_name = "FILE")]
    pub asm: Option<PathBuf>,
    /// Everything as one JSON object
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
}

/// `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// One JSON object per device or missing back end
    #[arg(long)]
    pub json: bool,
}

/// `selfcheck`.
#[derive(Debug, Args)]
pub struct SelfcheckArgs {
    /// Device: emu, emu:ARCH, opencl:N, opencl:NAME, cuda:N, hip:N [default: the most capable one here]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Random pairs of problem and plan to verify
    #[arg(long, default_value_t = 500, value_parser = whole)]
    pub pairs: u64,
    /// Shapes to tune, at most 10
    #[arg(long, default_value_t = 10)]
    pub shapes: usize,
    /// Limit for each shape: 200 (trials), or 500ms, 30s, 2m
    #[arg(long, default_value = "20s", value_parser = budget)]
    pub budget: Budget,
    /// Seed of everything random
    #[arg(long, default_value_t = 1, value_parser = whole)]
    pub seed: u64,
    /// Write the report here [default: selfcheck-DEVICE.md]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write the outcome of the pairs as one JSON object: device, driver, sources, seed, pairs, passed, wrong
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// State that an earlier process wrote.
    #[arg(long, hide = true)]
    pub go_on: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command(false).debug_assert();
    }

    #[test]
    fn options_may_stand_before_and_after_the_word() {
        for line in [
            "tilewright tune gemm --m 4 --n 5 --k 6 --budget 20 --device emu",
            "tilewright tune --budget 20 --device emu gemm --m 4 --n 5 --k 6",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            let Command::Tune(tune) = cli.command else { panic!("not tune") };
            assert_eq!(tune.budget, Budget::Trials(20));
            assert_eq!(tune.place.device.as_deref(), Some("emu"));
            let Some(Word::Gemm { fields, .. }) = &tune.problem.word else { panic!("{line}") };
            let given: Vec<_> = fields.0.iter().map(|given| format!("{}{}", given.field.name, given.value)).collect();
            assert_eq!(given, ["m4", "n5", "k6"]);
        }
    }

    /// Products by their own words are those of `gemm` with options.
    #[test]
    fn gated_products_and_losses_have_words() {
        let problem = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            let Command::Tune(tune) = cli.command else { panic!("not tune") };
            crate::problem::one(&tune.problem, None).expect(line).problem
        };
        for (glu, gemm) in [
            ("", "--gate silu"),
            ("--activation gelu --up-first --interleaved", "--gate gelu --up-first --interleaved"),
            ("--activation clamped --gate-limit 2.5 --trans nt", "--gate clamped --gate-limit 2.5 --trans nt"),
        ] {
            let [glu, gemm] = [("glu", glu), ("gemm", gemm)]
                .map(|(word, options)| problem(format!("tilewright tune {word} --m 4 --n 5 --k 6 {options}").trim_end()));
            assert_eq!(glu, gemm);
        }
        for (options, same) in [
            ("", "--dtype bf16 --reduce logsumexp:n,sum:n --no-store"),
            ("--dtype f16 --bias --keep", "--dtype f16 --bias n --reduce logsumexp:n,sum:n"),
            ("--dtype tf32", "--dtype tf32 --reduce logsumexp:n,sum:n --no-store"),
            ("--softcap 30", "--dtype bf16 --softcap 30 --reduce logsumexp:n,sum:n --no-store"),
        ] {
            let loss = problem(format!("tilewright tune cross-entropy --rows 4 --vocabulary 5 --k 6 {options}").trim_end());
            assert_eq!(loss, problem(&format!("tilewright tune gemm --m 4 --n 5 --k 6 --trans nt {same}")));
        }
        for wrong in ["--gate silu", "--activation tanh", "--beta 1", "--activation clamped --gate-slope -1", "--softcap 30"] {
            let line = format!("tilewright tune glu --m 4 --n 5 --k 6 {wrong}");
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    /// Lines of a text that call the command, without comments in round brackets.
    fn calls(text: &str) -> Vec<String> {
        let call = |line: &str| {
            let line = line.trim();
            let line = line
                .strip_prefix("cargo run --release --bin tilewright -- ")
                .map_or_else(|| line.to_string(), |l| format!("tilewright {l}"));
            let end = line.find("  ").or_else(|| line.find(" > ")).unwrap_or(line.len());
            (line.starts_with("tilewright ") && !line.contains("tilewright emulator")).then(|| line[..end].to_string())
        };
        text.lines().filter_map(call).collect()
    }

    #[test]
    fn helps_list_every_known_architecture() {
        for (name, vendor) in [("emit", ""), ("inspect", ""), ("bundle", "sm_")] {
            let command = Cli::command();
            let arguments = command.find_subcommand(name).expect(name).get_arguments();
            let arch = arguments.filter(|argument| argument.get_id() == "arch").find_map(|argument| argument.get_help());
            let help = arch.expect("the option --arch with its help").to_string();
            let missing: Vec<_> =
                tilewright_ir::Target::known().iter().filter(|arch| arch.starts_with(vendor) && !help.contains(**arch)).collect();
            assert!(missing.is_empty(), "{name} --help does not list {missing:?}: {help}");
        }
    }

    #[test]
    fn every_example_in_readme_and_help_is_a_command() {
        let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).expect("the README");
        let mut lines = calls(&readme);
        assert!(lines.len() >= 6, "{lines:?}");
        for command in std::iter::once(Cli::command()).chain(Cli::command().get_subcommands().cloned()) {
            lines.extend(command.get_after_help().map(|h| calls(&h.to_string())).unwrap_or_default());
        }
        assert!(lines.len() >= 25, "{lines:?}");
        for line in lines {
            if let Err(e) = Cli::try_parse_from(line.split_whitespace()) {
                panic!("{line}: {e}");
            }
        }
    }
}
