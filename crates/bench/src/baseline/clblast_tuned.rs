//! CLBlast with parameters of its own tuners. The best few of each tuner for the very size are applied and timed on the workload,
//! and the fastest is kept. Overrides hold for the whole process, so the defaults are compared in another one.

use super::clblast::{ClBlast, Run};
use super::{Baseline, Runner, Samples, fastest_right};
use crate::error::BenchError;
use crate::workload::Workload;
use serde::Deserialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tilewright_device::Native;
use tilewright_problem::Problem;

const NAME: &str = "clblast-tuned";
/// Parameter sets per tuner that are timed again.
const KEEP: usize = 6;
/// Those this many times slower than the best, by the tuners' own times, are not.
const HOPELESS: f64 = 2.0;

/// What a tuner of CLBlast writes.
#[derive(Deserialize)]
struct File {
    kernel_family: String,
    precision: String,
    arg_m: String,
    arg_n: String,
    arg_k: String,
    results: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    /// Milliseconds.
    time: f64,
    parameters: BTreeMap<String, usize>,
}

/// A way to configure CLBlast.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    /// For this m, n, k.
    size: [u64; 3],
    /// The one-kernel variant without copies of the operands.
    direct: bool,
    /// The tuner's time in milliseconds.
    time: f64,
    parameters: Vec<(String, usize)>,
}

pub(super) struct Tuned {
    library: ClBlast,
    folder: PathBuf,
    choices: Vec<Choice>,
}

impl Tuned {
    pub(super) fn open(native: &dyn Native, folder: &Path) -> Result<Self, BenchError> {
        Ok(Tuned { library: ClBlast::open(native)?, folder: folder.to_path_buf(), choices: read(folder)? })
    }

    /// Configures CLBlast.
    fn apply(&self, choice: &Choice) -> Result<(), BenchError> {
        let kernel = if choice.direct { "XgemmDirect" } else { "Xgemm" };
        self.library.set_parameters(kernel, &choice.parameters)?;
        // From this size on, the variant with copies is taken.
        let threshold = if choice.direct { 1 << 30 } else { 1 };
        self.library.set_parameters("GemmRoutine", &[("XGEMM_MIN_INDIRECT_SIZE".into(), threshold)])
    }
}

/// Reads every tuner's results below a folder, the best few of each.
fn read(folder: &Path) -> Result<Vec<Choice>, BenchError> {
    let mut choices = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|e| BenchError::unreadable(&folder, &e))? {
            let path = entry.map_err(|e| BenchError::unreadable(&folder, &e))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "json") {
                choices.extend(read_file(&path)?);
            }
        }
    }
    Ok(choices)
}

fn read_file(path: &Path) -> Result<Vec<Choice>, BenchError> {
    let text = std::fs::read_to_string(path).map_err(|e| BenchError::unreadable(path, &e))?;
    let file: File =
        serde_json::from_str(&text).map_err(|e| BenchError::file(path, format!("not a result of a CLBlast tuner: {e}")))?;
    let number = |text: &str| text.parse().map_err(|e| BenchError::file(path, format!("`{text}`: {e}")));
    let size = [number(&file.arg_m)?, number(&file.arg_n)?, number(&file.arg_k)?];
    let direct = file.kernel_family.starts_with("xgemm_direct");
    if file.precision != "32" || !file.kernel_family.starts_with("xgemm") {
        return Ok(Vec::new());
    }
    // The second variant of the kernel (GEMMK=1) writes out of bounds when CLBlast runs it under PoCL (1.5.3): it takes the
    // process down.
    let mut results: Vec<Outcome> = file.results.into_iter().filter(|r| r.parameters.get("GEMMK") != Some(&1)).collect();
    results.sort_by(|x, y| x.time.total_cmp(&y.time));
    results.truncate(KEEP);
    let choice = |outcome: Outcome| Choice {
        size,
        direct,
        time: outcome.time,
        parameters: outcome.parameters.into_iter().filter(|(name, _)| name != "PRECISION").collect(),
    };
    Ok(results.into_iter().map(choice).collect())
}

impl Baseline for Tuned {
    fn name(&self) -> &'static str {
        NAME
    }
    fn version(&self) -> String {
        self.library.version()
    }
    fn prepare<'a>(&'a self, workload: &'a Workload<'a>) -> Result<Box<dyn Runner + 'a>, BenchError> {
        let product = self.library.product(workload)?;
        let Problem::Gemm(gemm) = workload.problem() else {
            return Err(BenchError::Unsupported { library: NAME, reason: "it computes matrix products only".into() });
        };
        // A row-major product is called with the factors and their sizes swapped.
        let canonical = gemm.canonical().gemm;
        let sizes = [[canonical.m, canonical.n, canonical.k], [gemm.m, gemm.n, gemm.k]];
        let mut choices: Vec<Choice> = self.choices.iter().filter(|c| sizes.contains(&c.size)).cloned().collect();
        let least = choices.iter().map(|c| c.time).fold(f64::INFINITY, f64::min);
        choices.retain(|c| c.time <= HOPELESS * least);
        if choices.is_empty() {
            return Err(BenchError::Unsupported {
                library: NAME,
                reason: format!(
                    "{} holds no tuner results for {}x{}x{}; run crates/bench/scripts/clblast-tune.sh for this size",
                    self.folder.display(),
                    gemm.m,
                    gemm.n,
                    gemm.k
                ),
            });
        }
        let mut run = Configured { tuned: self, product, choices, chosen: 0, applied: Cell::new(None) };
        let count = run.choices.len();
        run.chosen = fastest_right(workload, count, Samples::OF_FASTEST, &mut |n| run.run(n))?.number;
        Ok(Box::new(run))
    }
}

struct Configured<'a> {
    tuned: &'a Tuned,
    product: Run<'a>,
    choices: Vec<Choice>,
    chosen: usize,
    applied: Cell<Option<usize>>,
}

impl Configured<'_> {
    fn run(&mut self, n: usize) -> Result<(), String> {
        if self.applied.get() != Some(n) {
            let choice = self.choices.get(n).ok_or("no such parameters")?;
            // Parameters that fail half-way leave CLBlast in neither state.
            self.applied.set(None);
            self.tuned.apply(choice).map_err(|e| e.to_string())?;
            self.applied.set(Some(n));
        }
        self.product.enqueue()
    }
}

impl Runner for Configured<'_> {
    fn enqueue(&mut self) -> Result<(), String> {
        self.run(self.chosen)
    }
    fn note(&self) -> String {
        let Some(choice) = self.choices.get(self.chosen) else { return String::new() };
        let values: Vec<String> = choice.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let kind = if choice.direct { "direct" } else { "indirect" };
        format!("{kind}, best of {}: {}", self.choices.len(), values.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"kernel_family": "xgemm_direct_2", "precision": "32", "best_kernel": "XgemmDirectTN",
        "arg_m": "512", "arg_n": "256", "arg_k": "64",
        "results": [
          {"kernel": "XgemmDirectTN", "time": 5.5, "parameters": {"KWID": 8, "PRECISION": 32, "WGD": 64}},
          {"kernel": "XgemmDirectTN", "time": 2.5, "parameters": {"KWID": 2, "PRECISION": 32, "WGD": 32}}
        ]}"#;

    #[test]
    fn tuner_results_are_read_best_first() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("512x256x64");
        std::fs::create_dir(&below).unwrap();
        std::fs::write(below.join("clblast_xgemm_direct_2_32.json"), FILE).unwrap();
        std::fs::write(below.join("tuner.log"), "no result").unwrap();
        let choices = read(folder.path()).unwrap();
        assert_eq!(choices.len(), 2);
        assert_eq!((choices[0].time, choices[0].size, choices[0].direct), (2.5, [512, 256, 64], true));
        assert_eq!(choices[0].parameters, [("KWID".to_string(), 2), ("WGD".to_string(), 32)]);
    }

    #[test]
    fn foreign_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.json"), "{}").unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("x.json") && error.contains("CLBlast"), "{error}");
        assert!(read(&folder.path().join("absent")).unwrap_err().to_string().contains("absent"));
    }
}
