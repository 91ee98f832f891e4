//! Tables of problems with their times, for people and as CSV.

use crate::error::CliError;
use crate::output::{human_rate, human_time, line};
use crate::problem::Case;
use serde_json::Value;

/// A problem with its time.
#[derive(Clone, Debug)]
pub struct Row {
    /// The problem in words.
    pub title: String,
    /// Floating-point operations.
    pub flop: f64,
    /// Microseconds.
    pub us: f64,
    /// `measured` or `modelled`.
    pub kind: &'static str,
    /// The value of the column that [`Table::begin`] names.
    pub note: String,
    /// The result is right.
    pub verified: bool,
    /// Largest error.
    pub error: f64,
}

/// A table that is printed line by line.
pub struct Table {
    width: usize,
    logs: f64,
    rows: u32,
}

impl Table {
    /// Prints the heading of a table of these problems; `note` heads the column of [`Row::note`].
    pub fn begin(cases: &[Case], note: &str) -> Result<Table, CliError> {
        let width = cases.iter().map(|c| c.title.chars().count()).max().unwrap_or(0);
        line(&format!(
            "{:<width$}  {:>10}  {:>14}  {:<8}  {note:<8}  {:<8}  {:>7}",
            "problem", "time", "rate", "time is", "verified", "error"
        ))?;
        Ok(Table { width, logs: 0.0, rows: 0 })
    }

    /// Prints a problem.
    pub fn row(&mut self, row: &Row) -> Result<(), CliError> {
        // A tensor without elements has no rate.
        if row.verified && row.flop > 0.0 {
            self.logs += (row.flop / row.us).ln();
            self.rows += 1;
        }
        let (width, verified) = (self.width, if row.verified { "yes" } else { "NO" });
        line(&format!(
            "{:<width$}  {:>10}  {:>14}  {:<8}  {:<8}  {verified:<8}  {:>7.0e}",
            row.title,
            human_time(row.us),
            human_rate(row.flop, row.us),
            row.kind,
            row.note,
            row.error
        ))
    }

    /// Prints the geometric mean of the rates, where there are several.
    pub fn end(&self) -> Result<(), CliError> {
        if self.rows < 2 {
            return Ok(());
        }
        let mean = (self.logs / f64::from(self.rows)).exp();
        line(&format!("geometric mean over {} cases: {}", self.rows, human_rate(mean, 1.0)))
    }
}

/// Prints fields of an object, in the order of these names, as a line with commas; the names themselves without an object.
pub fn csv(names: &[&str], object: Option<&Value>) -> Result<(), CliError> {
    let text = |name: &&str| match object.and_then(|object| object.get(*name)) {
        None => (*name).to_string(),
        Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::Any(b'\n')).from_writer(Vec::new());
    let failed = |e: &dyn std::fmt::Display| CliError::failed(format!("--csv: {e}"));
    writer.write_record(names.iter().map(text)).map_err(|e| failed(&e))?;
    let bytes = writer.into_inner().map_err(|e| failed(&e))?;
    line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'))
}
