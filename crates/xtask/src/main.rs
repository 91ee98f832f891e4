//! Commands for those who work on tilewright: `cargo xtask docs`, `pictures`, `cases`, `bench-tables`, `bless`, `test-fast`.

mod cases;
mod command;
mod pictures;
mod plans;
mod problems;
mod support;
// The writer of the command's figures: one style for all pictures.
#[allow(dead_code, reason = "the command uses the rest")]
#[path = "../../cli/src/figures/svg.rs"]
mod svg;
// The tables of the command's page.
#[allow(dead_code, reason = "the command uses the rest")]
#[path = "../../cli/src/reference.rs"]
mod reference;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Commands for those who work on tilewright.
#[derive(Parser)]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Writes the generated pages of docs/reference (cli.md, plans.md, problem.md, support.md) and docs/images/crates.svg.
    Docs,
    /// Draws the other pictures of docs/images with the command. Those of compiled loops need clang.
    Pictures,
    /// Draws case files of the kinds of benchmarks/cases, which no constant was fitted to.
    Cases {
        /// The first eight digits of a commit.
        seed: cases::Seed,
        /// Folder for gemm.csv, conv.csv and odd.csv.
        folder: PathBuf,
        /// Cases of each set.
        #[arg(long, default_value_t = 12)]
        count: usize,
    },
    /// Writes benchmarks/results.md and its plots from the records of benchmarks/.
    BenchTables,
    /// Renews pinned kernels and the snapshots of tests after a change that was meant.
    Bless,
    /// Runs the tests that take seconds: those of problems, the generator and the kernel language.
    TestFast,
}

/// Settings that let a snapshot test write its file, with the test that reads each.
const SNAPSHOTS: [(&str, &str, &str); 4] = [
    ("UPDATE_PINNED=hashes", "kernels", "pinned_text"),
    ("UPDATE_CELLS=1", "kernels", "cells"),
    ("UPDATE_WAVELET=1", "compilers", "wavelet"),
    ("UPDATE_STAGES=1", "compilers", "reduction_stages"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A generated file.
struct Page {
    /// Its place in docs.
    file: &'static str,
    text: String,
}

fn pages() -> Result<Vec<Page>, String> {
    let winners = plans::Winners::read(&root().join("benchmarks/records"))?;
    Ok(vec![
        Page { file: "reference/cli.md", text: command::page() },
        Page { file: "reference/plans.md", text: plans::page(&winners) },
        Page { file: "reference/problem.md", text: problems::page() },
        Page { file: "reference/support.md", text: support::page(&root().join("benchmarks"))? },
        Page { file: "images/crates.svg", text: pictures::Crates::read(&root())?.svg() },
    ])
}

fn docs() -> Result<(), String> {
    for Page { file, text } in pages()? {
        let file = root().join("docs").join(file);
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

fn cargo(arguments: &[&str], setting: Option<&str>) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    if let Some((variable, value)) = setting.and_then(|setting| setting.split_once('=')) {
        command.env(variable, value);
    }
    let ended = command.status().map_err(|e| format!("cargo: {e}"))?;
    if ended.success() { Ok(()) } else { Err(format!("cargo {}: {ended}", arguments.join(" "))) }
}

fn run(task: &Task) -> Result<(), String> {
    match task {
        Task::Docs => docs(),
        Task::Pictures => pictures::draw(&root()),
        Task::Cases { seed, folder, count } => cases::write(*seed, *count, folder),
        Task::BenchTables => cargo(&["run", "--release", "--quiet", "-p", "tilewright-bench", "--", "results"], None),
        Task::Bless => {
            for (setting, binary, module) in SNAPSHOTS {
                cargo(&["test", "-p", "tilewright-gen", "--test", binary, module], Some(setting))?;
            }
            docs()
        }
        Task::TestFast => {
            let packages = ["tilewright-ir", "tilewright-problem", "tilewright-gen", "xtask"];
            let packages: Vec<&str> = packages.iter().flat_map(|package| ["-p", package]).collect();
            // Without the kernels that the generator's other binaries run on the emulator.
            let chosen = ["--lib", "--bins", "--test", "text", "--test", "problem", "--test", "plans"];
            cargo(&[&["test"], &packages[..], &chosen].concat(), None)?;
            cargo(&[&["test", "--doc"], &packages[..6]].concat(), None)
        }
    }
}

fn main() -> ExitCode {
    match run(&Xtask::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_pages_are_those_of_the_repository() {
        for Page { file: name, text } in pages().expect("the pages") {
            let kept = std::fs::read_to_string(root().join("docs").join(name)).unwrap_or_default();
            assert!(kept == text, "docs/{name} is out of date: run `cargo xtask docs`");
        }
    }

    #[test]
    fn every_snapshot_variable_is_read_by_its_test() {
        for (setting, binary, module) in SNAPSHOTS {
            let variable = setting.split('=').next().unwrap_or_default();
            let file = root().join(format!("crates/gen/tests/{binary}/{module}.rs"));
            let text = std::fs::read_to_string(&file).expect("the test");
            assert!(text.contains(variable), "{} does not read {variable}", file.display());
        }
    }
}
