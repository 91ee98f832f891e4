//! Runs the built command with its own records and cache.

#![allow(dead_code, reason = "each test file uses some of it")]

#[path = "../../../ir/tests/support/missing.rs"]
pub mod missing;

use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder for one test: records, sources and binaries go there and nowhere else.
pub struct Bench {
    pub folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        Bench { folder: tempfile::tempdir().expect("a folder for the test") }
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
    /// The command with a line of arguments, split at blanks.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tilewright"));
        command.args(line.split_whitespace());
        command.env("TILEWRIGHT_RECORDS", self.path("records.sqlite"));
        command.env("TILEWRIGHT_CACHE", self.path("cache"));
        command.env_remove("TILEWRIGHT_LOG");
        command.current_dir(self.folder.path());
        command
    }
    pub fn run(&self, line: &str) -> Ran {
        let output = self.command(line).output().expect("the command starts");
        Ran::new(line, output)
    }
}

/// How a command ended.
pub struct Ran {
    pub line: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn new(line: &str, output: Output) -> Ran {
        Ran {
            line: line.into(),
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
    /// Asserts the exit code and gives stdout.
    pub fn ends(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{}\n--- stdout\n{}\n--- stderr\n{}", self.line, self.out, self.err);
        &self.out
    }
    /// Whether it failed for want of a tool; the test says so and is skipped, or fails where tools are required.
    pub fn misses_a_tool(&self) -> bool {
        let misses = self.code == Some(1) && self.err.contains("is not available");
        if misses {
            missing::missing(&self.err);
        }
        misses
    }
    /// Asserts that stdout holds all of these.
    pub fn says(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.out.contains(part), "{} does not say `{part}`:\n{}\n{}", self.line, self.out, self.err);
        }
    }
    /// Stdout as JSON lines.
    pub fn objects(&self) -> Vec<serde_json::Value> {
        let parse = |l: &str| serde_json::from_str(l).unwrap_or_else(|e| panic!("{}: {e}: {l}", self.line));
        self.out.lines().map(parse).collect()
    }
}
