//! The log of a run of random pairs, as `benchmarks/verified` keeps it and the support page shows it: one JSON object.

use super::pairs::{HUNG, PASSED, Pairs};
use crate::error::BenchError;
use crate::record::{Environment, SOURCE};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use tilewright_device::DeviceInfo;

/// Which pairs ran where, and how many were right.
#[derive(Debug, Serialize)]
pub struct Log<'a> {
    /// The vendor's name of the device.
    pub device: &'a str,
    /// Driver and compiler with versions.
    pub driver: &'a str,
    /// Version of the program, and a fingerprint of its sources.
    pub source: &'a str,
    /// Day of the end of the run, UTC.
    pub date: String,
    /// What kinds of pairs were drawn.
    pub mix: String,
    /// Seed of the pairs.
    pub seed: u64,
    /// Pairs that were judged.
    pub pairs: u64,
    /// Pairs that were right.
    pub passed: u64,
    /// Pairs that were wrong, differed between runs, or took the device down.
    pub wrong: u64,
    /// Pairs that were right, by kind of problem, instruction and type.
    pub covered: &'a BTreeMap<String, u64>,
}

impl<'a> Log<'a> {
    /// The log of a run that has ended.
    pub fn new(info: &'a DeviceInfo, pairs: &'a Pairs, mix: String, seed: u64) -> Log<'a> {
        Log {
            device: &info.name,
            driver: info.fingerprint.strip_prefix("driver ").unwrap_or(&info.fingerprint),
            source: SOURCE,
            date: Environment::now(info).date.chars().take(10).collect(),
            mix,
            seed,
            pairs: pairs.done(),
            passed: pairs.of(PASSED),
            wrong: ["wrong", "racing", HUNG].iter().map(|outcome| pairs.of(outcome)).sum(),
            covered: pairs.covered(),
        }
    }

    /// Writes the log.
    ///
    /// # Errors
    /// [`BenchError::File`] with the file's name.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        let failed = |reason: String| BenchError::File { path: path.into(), reason };
        let text = serde_json::to_string_pretty(self).map_err(|e| failed(e.to_string()))?;
        std::fs::write(path, text + "\n").map_err(|e| failed(e.to_string()))
    }
}
