//! Compares tilewright's kernels with vendor libraries, in one process and on the same buffers. It is the command `tilewright-bench`, and
//! the comparison of `tilewright bench --against`.
//!
//! Libraries are loaded at run time, so that one executable runs anywhere. `tilewright-bench --help` lists libraries and sets of problems;
//! the project's page `benchmarks/method.md` describes the method.

mod args;
mod baseline;
mod clocks;
mod commands;
mod compare;
mod error;
mod filed;
mod handover;
mod html;
mod measure;
mod ours;
mod plain;
mod plot;
mod record;
mod results;
mod rivals;
mod session;
mod stats;
mod table;
pub mod values;
mod workload;

pub use args::{Against, Measuring};
pub use baseline::Library;
pub use clocks::{Clocks, Monitor};
pub use commands::{Ended, Line, Log, Pairs, verify_pairs};
pub use compare::Title;
pub use error::BenchError;
pub use handover::{hand_over, left};
pub use html::{STYLE, page};
pub use plot::{Point, escape, roofline};
pub use record::{Record, Roof, Side};
pub use rivals::Rivals;
pub use table::{line, summary};
pub use tilewright_problem::Math;
pub use workload::least_bytes;

use args::{Cli, Command};
use clap::Parser;

/// The whole command `tilewright-bench`.
pub fn command() -> i32 {
    let Cli { common, command } = Cli::parse();
    let done = match command {
        Command::Gemm(args) => commands::gemm(common, args, "gemm"),
        Command::Deepbench(args) => commands::gemm(common, args, "deepbench"),
        Command::Conv(args) => commands::conv(common, args),
        Command::OpenclVsCuda(args) => commands::opencl_vs_cuda(common, args),
        Command::PickQuality(args) => commands::pick_quality(common, args),
        Command::JudgeModel(args) => commands::judge_model(args),
        Command::Fit(args) => commands::fit(args),
        Command::Throughput(args) => commands::throughput(common, args),
        Command::Plans(args) => commands::plans(common, args),
        Command::VerifyRandom(args) => commands::verify_random(common, args),
        Command::Table(args) => commands::table(args),
        Command::Results(args) => commands::results(args),
        Command::CompileWorker => return tilewright_device::compile_worker_main(),
    };
    match done {
        Ok(()) => 0,
        Err(e) => {
            if !matches!(e, BenchError::HandedOver(_)) {
                eprintln!("error: {e}");
            }
            e.code().into()
        }
    }
}
