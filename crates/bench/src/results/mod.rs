//! Published results: the sets of `sets.csv`, their records after one rule, and the page and plots that are generated from them.

pub mod page;
pub mod plot;
pub mod rule;

use crate::error::BenchError;
use crate::record::{self, Record, lacks};
use crate::stats::geometric_mean;
use rule::{Row, Verdict};
use serde::Deserialize;
use std::path::Path;
use tilewright_problem::Math;

/// A row of `sets.csv`: one set of cases in one mode.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    /// Name of the set in its record file.
    pub set: String,
    /// Name of the record file in `records/`.
    pub records: String,
    /// The subcommand that measured the set.
    pub experiment: String,
    /// Precision of the products.
    pub mode: Math,
    /// Sides to compare with, joined by `+`: the fastest right one counts.
    pub baseline: String,
    /// Distinct problems in the record file.
    pub problems: usize,
    /// Cases of the set: N.
    pub cases: Option<usize>,
    /// What may be done with the record.
    pub state: State,
    /// A short reason or remark.
    pub why: String,
}

/// What may be done with the record of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The record may be quoted.
    Published,
    /// The record is not to be quoted.
    Withdrawn,
    /// The record compares plans of tilewright.
    Internal,
}

impl Entry {
    /// Name of the record file without its endings.
    pub fn stem(&self) -> &str {
        self.records.split('.').next().unwrap_or(&self.records)
    }
    /// The set, and its mode where a mode was asked for.
    pub fn label(&self) -> String {
        match self.mode {
            Math::Exact => self.set.clone(),
            mode if self.set == mode.name() => self.set.clone(),
            mode => format!("{} {}", self.set, mode.name()),
        }
    }
    fn holds(&self, record: &Record) -> bool {
        self.set == record.set && self.experiment == record.experiment && self.mode == record.math
    }
}

/// A set whose record may be quoted.
#[derive(Clone, Debug)]
pub struct SetResult {
    /// Its row of `sets.csv`.
    pub entry: Entry,
    /// Its problems after the rule.
    pub rows: Vec<Row>,
    /// N: cases of the set.
    pub of: usize,
}

impl SetResult {
    /// Ratios of the cases that count, ascending.
    pub fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.counted().map(|(ratio, _)| ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }
    /// Ratio and row of each case that counts.
    fn counted(&self) -> impl Iterator<Item = (f64, &Row)> {
        self.rows.iter().filter_map(|row| match row.verdict {
            Verdict::Counts(ratio) => Some((ratio, row)),
            _ => None,
        })
    }
    /// Geometric mean of the ratios.
    pub fn mean(&self) -> Option<f64> {
        geometric_mean(&self.ratios())
    }
    /// n: cases that count.
    pub fn count(&self) -> usize {
        self.counted().count()
    }
    /// More than 5 % of the cases do not count.
    pub fn lacks(&self) -> bool {
        lacks(self.count(), self.of)
    }
    /// Card models of the cases that count.
    pub fn devices(&self) -> Vec<&str> {
        let mut devices: Vec<&str> = self.counted().map(|(_, row)| row.device.as_str()).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }
    /// First and last day of the cases that count.
    pub fn days(&self) -> Option<(&str, &str)> {
        let days = || self.counted().map(|(_, row)| row.day.as_str());
        Some((days().min()?, days().max()?))
    }
}

/// A day, or two with `to`.
pub fn span(days: Option<(&str, &str)>) -> String {
    match days {
        Some((first, last)) if first == last => first.into(),
        Some((first, last)) => format!("{first} to {last}"),
        None => String::new(),
    }
}

/// All sets of a folder of benchmarks.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Sets with at least 95 % of their cases.
    pub whole: Vec<SetResult>,
    /// Sets that lack more.
    pub parts: Vec<SetResult>,
    /// Sets whose records are not to be quoted.
    pub withdrawn: Vec<Entry>,
    /// Comparisons of plans of tilewright.
    pub internal: Vec<Entry>,
}

/// Reads `sets.csv` and the record files that it names.
///
/// # Errors
/// Files that cannot be read; a row of `sets.csv` that contradicts its record file; a set of a record file without a row.
pub fn read(folder: &Path) -> Result<Results, BenchError> {
    let path = folder.join("sets.csv");
    let entries = entries(&path)?;
    let mut results = Results::default();
    let mut files: Vec<&str> = Vec::new();
    for entry in &entries {
        if !files.contains(&entry.records.as_str()) {
            files.push(&entry.records);
        }
    }
    for file in files {
        let records = record::read(&folder.join("records").join(file))?;
        let listed: Vec<&Entry> = entries.iter().filter(|entry| entry.records == file).collect();
        if let Some(lone) = records.iter().find(|record| !listed.iter().any(|entry| entry.holds(record))) {
            let Record { set, experiment, math, .. } = lone;
            let reason = format!("no row for set `{set}` ({experiment}, {}) of records/{file}; add one", math.name());
            return Err(BenchError::file(&path, reason));
        }
        for entry in listed {
            let of = checked(entry, &records).map_err(|reason| BenchError::file(&path, reason))?;
            match entry.state {
                State::Withdrawn => results.withdrawn.push(entry.clone()),
                State::Internal => results.internal.push(entry.clone()),
                State::Published if of.lacks() => results.parts.push(of),
                State::Published => results.whole.push(of),
            }
        }
    }
    Ok(results)
}

/// The rows of `sets.csv`.
fn entries(path: &Path) -> Result<Vec<Entry>, BenchError> {
    let mut reader = csv::Reader::from_path(path).map_err(|e| BenchError::file(path, e))?;
    reader.deserialize().collect::<Result<_, _>>().map_err(|e| BenchError::file(path, e))
}

/// The result of a set, or what its row of `sets.csv` has wrong.
fn checked(entry: &Entry, records: &[Record]) -> Result<SetResult, String> {
    let Entry { set, records: file, .. } = entry;
    let name = format!("set `{set}` ({}) of records/{file}", entry.mode.name());
    let of_set: Vec<&Record> = records.iter().filter(|record| entry.holds(record)).collect();
    let rows = rule::rows(&of_set, &entry.baseline.split('+').collect::<Vec<_>>());
    let found = rows.len();
    if found != entry.problems {
        return Err(format!("{name}: the file holds {found} problems, the row says {}; write {found}", entry.problems));
    }
    match (entry.state, entry.cases) {
        (_, Some(cases)) if cases < found => {
            Err(format!("{name}: {found} problems are more than its {cases} cases; correct `cases`"))
        }
        (State::Published, None) => Err(format!("{name}: a published set needs a number of cases; write one or withdraw it")),
        (State::Withdrawn, _) if entry.why.is_empty() => Err(format!("{name}: withdrawn without a reason; write one in `why`")),
        (_, cases) => Ok(SetResult { entry: entry.clone(), rows, of: cases.unwrap_or(found) }),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::Sink;
    use crate::record::tests::record;

    const HEAD: &str = "set,records,experiment,mode,baseline,problems,cases,state,why\n";

    /// A folder with one record file: in set x 19 cases at a ratio of 2 and one that failed, in y one case at 0.5.
    pub(crate) fn folder(rows: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("records")).unwrap();
        let mut sink = Sink::open(Some(&folder.path().join("records/r.jsonl"))).unwrap();
        for n in 0..20 {
            let mut one = record("x", &format!("case {n}"), (n < 19).then_some(2.0));
            one.problem = n.to_string();
            sink.write(&one).unwrap();
        }
        sink.write(&record("y", "slow", Some(0.5))).unwrap();
        std::fs::write(folder.path().join("sets.csv"), format!("{HEAD}{rows}")).unwrap();
        folder
    }

    #[test]
    fn sets_that_lack_more_than_a_twentieth_are_parts() {
        for (cases, whole) in [(20, true), (21, false)] {
            let folder = folder(&format!(
                "x,r.jsonl,gemm,exact,cublas,20,{cases},published,\ny,r.jsonl,gemm,exact,cublas,1,,withdrawn,why\n"
            ));
            let results = read(folder.path()).unwrap();
            assert_eq!(
                (results.whole.len(), results.parts.len(), results.withdrawn.len()),
                (usize::from(whole), usize::from(!whole), 1)
            );
            let set = results.whole.iter().chain(&results.parts).next().unwrap();
            assert_eq!((set.count(), set.of), (19, cases));
            assert!((set.mean().unwrap() - 2.0).abs() < 1e-12);
        }
    }

    #[test]
    fn rows_that_contradict_their_records_are_refused() {
        let refused = |rows: &str| read(folder(rows).path()).unwrap_err().to_string();
        let y = "y,r.jsonl,gemm,exact,cublas,1,1,published,\n";
        let with = |x: &str| refused(&format!("{x}\n{y}"));
        assert!(refused(y).contains("no row for set `x` (gemm, exact) of records/r.jsonl"));
        assert!(with("x,r.jsonl,gemm,tf32,cublas,20,20,published,").contains("no row for set `x`"));
        assert!(with("x,r.jsonl,gemm,exact,cublas,19,20,published,").contains("write 20"));
        assert!(with("x,r.jsonl,gemm,exact,cublas,20,19,published,").contains("more than its 19 cases"));
        assert!(with("x,r.jsonl,gemm,exact,cublas,20,,published,").contains("needs a number of cases"));
        assert!(with("x,r.jsonl,gemm,exact,cublas,20,,withdrawn,").contains("without a reason"));
        assert!(with("x,r.jsonl,gemm,exact,cublas,20,20,shown,").contains("sets.csv"));
        assert!(with("x,none.jsonl,gemm,exact,cublas,20,20,published,").contains("none.jsonl"));
    }
}
