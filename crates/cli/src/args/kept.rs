//! Options of `records` and `cache`: files that stay between runs.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use tilewright_bench::values::whole;

/// `cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Print the folder of the binaries: `TILEWRIGHT_CACHE`, else in the user's cache folder
    Path,
    /// Print the number, size and age of the binaries
    List {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove all binaries; kernels are compiled again at their next use
    Clear,
}

/// Names the records file.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// Records file [default: in the user's data folder]
    #[arg(long, value_name = "FILE", env = "TILEWRIGHT_RECORDS")]
    pub records: Option<PathBuf>,
}

/// Selects records.
#[derive(Debug, Args)]
pub struct FilterArgs {
    #[command(flatten)]
    pub place: FileArgs,
    /// Only problems whose name holds this text
    #[arg(long, value_name = "TEXT")]
    pub problem: Option<String>,
    /// Only devices whose name holds this text
    #[arg(long, value_name = "TEXT")]
    pub device: Option<String>,
}

/// `records`.
#[derive(Debug, Subcommand)]
pub enum RecordsCommand {
    /// One line per problem and device: the best plan
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// One JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Every trial of the selected problems, fastest first
    Show {
        #[command(flatten)]
        filter: FilterArgs,
    },
    /// Write records as JSON lines. Rows that cannot be read go to FILE.rejected
    Export {
        #[command(flatten)]
        filter: FilterArgs,
        /// File to write; it must not exist yet [default: stdout]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Add records from JSON lines, all or none. Their plans are candidates: `tune` verifies and times them first
    Import {
        /// File to read
        file: PathBuf,
        /// Skip invalid lines and print their number
        #[arg(long)]
        skip_bad: bool,
        #[command(flatten)]
        place: FileArgs,
    },
    /// Add the records of other files, for example of cluster tasks. Their plans are candidates: `tune` verifies and times them first
    #[command(after_help = "\
Examples:
  tilewright records merge node1.sqlite node2.sqlite
  tilewright records merge results/*.sqlite --records all.sqlite")]
    Merge {
        /// Files to read; they may be on a network file system
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Records file to add them to [default: in the user's data folder]
        #[arg(long, value_name = "FILE", env = "TILEWRIGHT_RECORDS")]
        records: Option<PathBuf>,
    },
    /// Keep the fastest trials of each problem and device, and what was found wrong or hung; remove the others
    Prune {
        /// Trials of each problem and device that stay
        #[arg(long, value_name = "N", value_parser = whole)]
        keep: u64,
        #[command(flatten)]
        place: FileArgs,
    },
    /// Remove records
    Clear {
        #[command(flatten)]
        filter: FilterArgs,
        /// Confirm: without this option nothing is removed
        #[arg(long)]
        yes: bool,
    },
    /// Print the path of the records file
    Path {
        #[command(flatten)]
        place: FileArgs,
    },
}
