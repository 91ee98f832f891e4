//! One line of results: everything that tables, plots and a later reader need, as one JSON object.

use crate::clocks::Clocks;
use crate::error::BenchError;
use crate::stats::{Summary, geometric_mean};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tilewright_device::{CacheState, DeviceInfo, Resources};
use tilewright_ir::{Rates, Scalar, Target};
use tilewright_problem::Math;
use tilewright_tune::search::Tally;

/// One case: alternatives measured round-robin in one process. The first side is what the others are compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was compared: the subcommand.
    pub experiment: String,
    /// Group of cases.
    pub set: String,
    /// Readable name of the case.
    pub case: String,
    /// The problem's canonical key.
    pub problem: String,
    /// Element type of the inputs.
    pub dtype: String,
    /// With what precision f32 products are computed.
    pub math: Math,
    /// What timed runs found in the last-level cache.
    #[serde(default)]
    pub cache: CacheState,
    /// Floating-point operations, two per multiply and add.
    pub flop: f64,
    /// Fewest bytes that must move.
    pub bytes: f64,
    /// The alternatives.
    pub sides: Vec<Side>,
    /// Clocks before the measurement.
    pub clocks_before: Option<Clocks>,
    /// Clocks right after it.
    pub clocks_after: Option<Clocks>,
    /// Where and when.
    pub environment: Environment,
    /// What the device could do at most for this type of product, by its description; absent in older records.
    #[serde(default)]
    pub roof: Option<Roof>,
}

/// Bounds of a device: no execution is faster than its operations over the one and its bytes over the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    /// TFLOP/s of the unit that computes products of this type, at the nominal clock.
    pub tflops: f64,
    /// Device memory in GB/s.
    pub dram_gbs: f64,
}

impl Roof {
    /// Operations per byte from which on the unit bounds, not the memory.
    pub fn corner(&self) -> f64 {
        self.tflops * 1e3 / self.dram_gbs
    }
    /// For products of a type on a target. Matrix units count for 16-bit types, and for f32 where TF32 is allowed.
    pub fn of(target: &Target, dtype: Scalar, math: Math) -> Roof {
        let Rates { f32_fma, f64_fma, f64_matrix_fma, warpgroup_fma, clock_ghz, dram_gbs, .. } = target.rates;
        let multiply_adds = match (dtype, math) {
            (Scalar::F16 | Scalar::BF16, _) if target.features.warpgroup => warpgroup_fma,
            (eight, _) if (eight.is_int8() || eight.is_float8()) && target.features.warpgroup => 2.0 * warpgroup_fma,
            (Scalar::F32, Math::Tf32) if target.features.warpgroup => warpgroup_fma / 2.0,
            (Scalar::F32, Math::Tf32x3) if target.features.warpgroup => warpgroup_fma / 6.0,
            (Scalar::F32, Math::Bf16x3) if target.features.warpgroup => warpgroup_fma / 3.0,
            (Scalar::F32, Math::Bf16x6) if target.features.warpgroup => warpgroup_fma / 6.0,
            (Scalar::F64, _) => f64_fma.max(f64_matrix_fma),
            _ => f32_fma,
        };
        Roof { tflops: 2.0 * multiply_adds * f64::from(target.units) * clock_ghz * 1e-3, dram_gbs }
    }
}

/// One alternative.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// `tilewright`, a library's name, or what tells it apart.
    pub name: String,
    /// Version of the library or generator.
    pub version: String,
    /// What was chosen within it.
    pub note: String,
    /// The plan, where it is a generated kernel.
    pub plan: Option<String>,
    /// Device memory besides the operands; absent where a library has its own, and in older records.
    pub workspace: Option<Workspace>,
    /// Times of whole executions.
    pub time: Option<Summary>,
    /// The times scatter too much for a comparison; never set in older records.
    #[serde(default)]
    pub wide: bool,
    /// Result and memory around it as they must be.
    pub correct: Option<bool>,
    /// Greatest error relative to the sum of magnitudes.
    pub max_error: Option<f64>,
    /// Why there is no time.
    pub failure: Option<String>,
    /// Seconds spent choosing (tuning, heuristics).
    pub prepare_s: f64,
    /// What the search did, where there was one.
    pub search: Option<SearchCounts>,
    /// What the main kernel uses.
    pub resources: Option<Resources>,
    /// Work-groups of the main kernel that one compute unit holds at once, by the plan's footprint.
    pub groups_per_unit: Option<u32>,
    /// Time by the cost model in microseconds.
    pub modelled_us: Option<f64>,
}

/// Device memory besides the operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// Bytes that the side might use.
    pub limit: u64,
    /// Bytes that what it chose uses.
    pub used: u64,
}

/// What a search did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchCounts {
    /// Candidates tried, whatever became of them.
    pub trials: u64,
    /// Not legal.
    pub refused: u64,
    /// Did not generate, compile or launch.
    pub failed: u64,
    /// Computed wrongly.
    pub wrong: u64,
    /// Did not end.
    pub hung: u64,
    /// Seconds it took.
    pub seconds: f64,
}

impl SearchCounts {
    /// Of a search's tally.
    pub fn of(tally: &Tally, seconds: f64) -> SearchCounts {
        let Tally { trials, refused, failed, wrong, hung } = *tally;
        SearchCounts { trials, refused, failed, wrong, hung, seconds }
    }
}

/// Version, and a fingerprint of all sources that the program was built from (`build.rs`).
pub const SOURCE: &str = env!("TILEWRIGHT_SOURCE");

/// Where and when a record was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Device id and name.
    pub device: String,
    /// Driver and compiler.
    pub fingerprint: String,
    /// Version of tilewright.
    pub version: String,
    /// What it was built from ([`SOURCE`]); absent in older records.
    #[serde(default)]
    pub source: String,
    /// UTC, `2026-11-21T08:15:00Z`.
    pub date: String,
}

impl Environment {
    /// Of a device, now.
    pub fn now(info: &DeviceInfo) -> Environment {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Environment {
            device: format!("{} ({})", info.id, info.name),
            fingerprint: info.fingerprint.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            source: SOURCE.into(),
            date: utc(seconds),
        }
    }
}

/// Seconds since 1970 as a date in UTC (days to a civil date after Hinnant).
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

impl Side {
    /// Median in microseconds, if it was measured and its result was right.
    pub fn valid_us(&self) -> Option<f64> {
        self.time.filter(|_| self.correct == Some(true)).map(|t| t.median_us)
    }
}

impl Record {
    /// The time of side `n` over that of the first: above 1 the first is faster. `None` unless both were measured and right, without wide spread.
    pub fn ratio(&self, n: usize) -> Option<f64> {
        let steady = |n: usize| self.sides.get(n).filter(|side| !side.wide)?.valid_us();
        Some(steady(n)? / steady(0)?)
    }
    /// The least time in microseconds that the device's rates of operations and of bytes allow; unknown of older records.
    pub fn floor_us(&self) -> Option<f64> {
        self.roof.map(|roof| (self.flop / roof.tflops * 1e-6).max(self.bytes / roof.dram_gbs * 1e-3))
    }
    /// TFLOP/s of a side.
    pub fn tflops(&self, side: &Side) -> Option<f64> {
        side.time.map(|t| self.flop / t.median_us * 1e-6)
    }
}

/// How one alternative compares over the cases of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct SetSummary {
    /// Set of cases.
    pub set: String,
    /// Name of the alternative.
    pub side: String,
    /// Geometric mean of its time over that of the first side, where any case counts.
    pub mean: Option<f64>,
    /// Least ratio and its case.
    pub worst: Option<(f64, String)>,
    /// Cases that count.
    pub cases: usize,
    /// Cases of the set in which one of the two has no valid time.
    pub missing: Vec<String>,
}

impl SetSummary {
    /// More than 5 % of the cases are missing: the mean is not fit to be published.
    pub fn lacks(&self) -> bool {
        lacks(self.cases, self.cases + self.missing.len())
    }
    /// How many cases count, and which do not.
    pub fn counted(&self) -> String {
        match self.missing.len() {
            0 => self.cases.to_string(),
            more => format!("{} ({more} more without a valid pair: {})", self.cases, self.missing.join(", ")),
        }
    }
}

/// Of `of` cases so few count that more than 5 % are missing: a mean is not fit to be published.
pub fn lacks(count: usize, of: usize) -> bool {
    20 * of.saturating_sub(count) > of
}

/// Summaries per set and alternative, in order of appearance.
pub fn summarise(records: &[Record]) -> Vec<SetSummary> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for record in records {
        for side in record.sides.iter().skip(1) {
            if !keys.contains(&(&record.set, &side.name)) {
                keys.push((&record.set, &side.name));
            }
        }
    }
    let mut summaries = Vec::new();
    for (set, name) in keys {
        let mut ratios = Vec::new();
        let mut missing = Vec::new();
        for record in records.iter().filter(|r| r.set == set) {
            let Some(n) = record.sides.iter().skip(1).position(|s| s.name == name) else { continue };
            match record.ratio(n + 1) {
                Some(ratio) => ratios.push((ratio, record.case.clone())),
                None => missing.push(record.case.clone()),
            }
        }
        let values: Vec<f64> = ratios.iter().map(|r| r.0).collect();
        let worst = ratios.into_iter().min_by(|x, y| x.0.total_cmp(&y.0));
        let (set, side, mean, cases) = (set.to_string(), name.to_string(), geometric_mean(&values), values.len());
        summaries.push(SetSummary { set, side, mean, worst, cases, missing });
    }
    summaries
}

/// Where records go: a file of JSON lines, each flushed when it is made, so that a killed run keeps what it has.
pub struct Sink {
    file: Option<(PathBuf, File)>,
}

impl Sink {
    /// Appends to a file; without one, records are only shown.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn open(path: Option<&Path>) -> Result<Sink, BenchError> {
        let file = match path {
            Some(path) => {
                let file = File::options().create(true).append(true).open(path).map_err(|e| BenchError::unwritable(path, &e))?;
                Some((path.to_path_buf(), file))
            }
            None => None,
        };
        Ok(Sink { file })
    }
    /// Writes a record.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn write<T: Serialize>(&mut self, record: &T) -> Result<(), BenchError> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let mut line = serde_json::to_string(record).map_err(|e| BenchError::file(&*path, e))?;
        line.push('\n');
        file.write_all(line.as_bytes()).and_then(|()| file.flush()).map_err(|e| BenchError::unwritable(&*path, &e))
    }
}

/// Reads records back, from a file of JSON lines or such a file compressed by gzip (`.gz`).
///
/// # Errors
/// [`BenchError::File`] with the line that is no record.
pub fn read(path: &Path) -> Result<Vec<Record>, BenchError> {
    let file = File::open(path).map_err(|e| BenchError::unreadable(path, &e))?;
    let packed = path.extension().is_some_and(|e| e == "gz");
    // Several compressed files in a row are one.
    let lines: Box<dyn BufRead> =
        if packed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(BufReader::new(file)) };
    let mut records = Vec::new();
    for (n, line) in lines.lines().enumerate() {
        let line = line.map_err(|e| BenchError::unreadable(path, &e))?;
        if line.trim().is_empty() {
            continue;
        }
        let record = serde_json::from_str(&line);
        records.push(record.map_err(|e| BenchError::file(path, format!("line {}: not a benchmark record: {e}", n + 1)))?);
    }
    Ok(records)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record of `set` in which the first side takes 10 us and the second `ratio` times as long.
    pub(crate) fn record(set: &str, case: &str, ratio: Option<f64>) -> Record {
        let side = |name: &str, us: Option<f64>| Side {
            name: name.into(),
            time: us.and_then(|us| Summary::of(&[us])),
            correct: Some(true),
            failure: if us.is_none() { Some("refused".into()) } else { None },
            ..Side::default()
        };
        Record {
            experiment: "gemm".into(),
            set: set.into(),
            case: case.into(),
            problem: "p".into(),
            dtype: "f32".into(),
            math: Math::Exact,
            cache: CacheState::Cold,
            flop: 2e9,
            bytes: 1e6,
            sides: vec![side("tilewright", Some(10.0)), side("cublas", ratio.map(|r| r * 10.0))],
            clocks_before: None,
            clocks_after: Some(Clocks { sm_mhz: Some(1980), ..Clocks::default() }),
            environment: Environment::default(),
            roof: Some(Roof { tflops: 67.0, dram_gbs: 4800.0 }),
        }
    }

    #[test]
    fn sets_are_summarised_apart() {
        let records =
            [record("x", "1", Some(0.5)), record("y", "2", Some(3.0)), record("x", "3", Some(2.0)), record("x", "4", None)];
        let summaries = summarise(&records);
        assert_eq!(summaries.len(), 2);
        assert!((summaries[0].mean.unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(summaries[0].worst, Some((0.5, "1".to_string())));
        assert_eq!((summaries[0].cases, summaries[0].missing.as_slice()), (2, ["4".to_string()].as_slice()));
        assert_eq!(summaries[1].set, "y");
    }

    #[test]
    fn a_set_without_any_ratio_is_reported_all_the_same() {
        let summaries = summarise(&[record("x", "1", None), record("x", "2", None)]);
        assert_eq!((summaries[0].mean, summaries[0].cases, summaries[0].missing.len()), (None, 0, 2));
        assert_eq!(summaries[0].counted(), "0 (2 more without a valid pair: 1, 2)");
    }

    #[test]
    fn wrong_results_have_no_ratio() {
        let mut r = record("x", "1", Some(2.0));
        assert_eq!(r.ratio(1), Some(2.0));
        assert_eq!(r.tflops(&r.sides[0]), Some(200.0));
        r.sides[1].correct = Some(false);
        assert_eq!(r.ratio(1), None);
        assert_eq!(r.ratio(2), None);
    }

    #[test]
    fn lines_round_trip_and_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let records = vec![record("x", "1", Some(1.5)), record("y", "2", None)];
        for r in &records {
            // One sink per record: files are appended to.
            Sink::open(Some(&path)).unwrap().write(r).unwrap();
        }
        assert_eq!(read(&path).unwrap(), records);
        let packed = folder.path().join("r.jsonl.gz");
        let mut encoder = flate2::write::GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::default());
        encoder.write_all(&std::fs::read(&path).unwrap()).unwrap();
        encoder.finish().unwrap();
        assert_eq!(read(&packed).unwrap(), records);
        std::fs::write(&packed, "no gzip").unwrap();
        assert!(read(&packed).unwrap_err().to_string().contains("r.jsonl.gz"));
        std::fs::write(&path, "{\"a\":1}\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("r.jsonl") && error.contains("line 1"), "{error}");
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(1_709_210_096), "2024-02-29T12:34:56Z");
    }
}
