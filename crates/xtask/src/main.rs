//! Commands for those who work on tilewright: `cargo xtask docs`, `bless`, `test-fast`.

mod plans;
mod problems;
mod support;

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
    /// Writes the generated pages of docs/reference: plans.md, problem.md, support.md.
    Docs,
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

/// A generated page: its name in docs/reference, and its text.
type Page = (&'static str, String);

fn pages() -> Result<Vec<Page>, String> {
    let winners = plans::Winners::read(&root().join("benchmarks/records"))?;
    Ok(vec![
        ("plans.md", plans::page(&winners)),
        ("problem.md", problems::page()),
        ("support.md", support::page(&root().join("benchmarks"))?),
    ])
}

fn docs() -> Result<(), String> {
    let folder = root().join("docs/reference");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for (name, text) in pages()? {
        let file = folder.join(name);
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
        Task::Bless => {
            for (setting, binary, module) in SNAPSHOTS {
                cargo(&["test", "-p", "tilewright-tune", "--test", binary, module], Some(setting))?;
            }
            docs()
        }
        Task::TestFast => {
            let packages = ["tilewright-ir", "tilewright-problem", "tilewright-gen", "xtask"];
            let packages: Vec<&str> = packages.iter().flat_map(|package| ["-p", package]).collect();
            cargo(&[&["test"], &packages[..]].concat(), None)
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
        for (name, text) in pages().expect("the pages") {
            let kept = std::fs::read_to_string(root().join("docs/reference").join(name)).unwrap_or_default();
            assert!(kept == text, "docs/reference/{name} is out of date: run `cargo xtask docs`");
        }
    }

    #[test]
    fn every_snapshot_variable_is_read_by_its_test() {
        for (setting, binary, module) in SNAPSHOTS {
            let variable = setting.split('=').next().unwrap_or_default();
            let file = root().join(format!("crates/tune/tests/{binary}/{module}.rs"));
            let text = std::fs::read_to_string(&file).expect("the test");
            assert!(text.contains(variable), "{} does not read {variable}", file.display());
        }
    }
}
