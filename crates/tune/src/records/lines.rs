//! Records as JSON lines: one object per trial, to keep, compare and carry between machines.

use super::rows::{device_id, insert_trial, problem_id};
use super::{Filter, Record, Records, RecordsError};
use rusqlite::TransactionBehavior;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{BufRead, Write};

/// Version of the line format that is written. Format 1, which is read too, says of `verified` only true or false.
const FORMAT: u32 = 2;

/// A line that import refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}, line {line}: {reason}; nothing was imported")]
pub struct LineError {
    /// Where the lines come from.
    pub source_name: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// One line: the record with the format's version in front.
#[derive(Serialize, Deserialize)]
struct Line<R> {
    tilewright: u32,
    #[serde(flatten)]
    record: R,
}

impl Records {
    /// Writes the records that pass a filter as JSON lines, oldest first; gives their number.
    ///
    /// # Errors
    /// [`RecordsError::Io`] of either side, named after the records file.
    pub fn export(&self, filter: &Filter, out: &mut dyn Write) -> Result<usize, RecordsError> {
        let mut count = 0;
        let failed = |reason: String| RecordsError::Io { path: self.path.clone(), reason: format!("export: {reason}") };
        self.each(filter, |record| {
            serde_json::to_writer(&mut *out, &Line { tilewright: FORMAT, record }).map_err(|e| failed(e.to_string()))?;
            out.write_all(b"\n").map_err(|e| failed(e.to_string()))?;
            count += 1;
            Ok(())
        })?;
        out.flush().map_err(|e| failed(e.to_string()))?;
        Ok(count)
    }

    /// Adds records from JSON lines, all or none; gives the number of those that were not there yet. Empty lines are
    /// skipped. `source_name` stands in errors.
    ///
    /// # Errors
    /// [`RecordsError::Line`] for the first line that is no valid record; [`RecordsError::Io`] if writing fails.
    pub fn import(&self, input: &mut dyn BufRead, source_name: &str) -> Result<usize, RecordsError> {
        let mut connection = self.lock();
        let t = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|e| self.err(e))?;
        let (mut problems, mut devices) = (HashMap::new(), HashMap::new());
        let mut added = 0;
        for (index, line) in input.lines().enumerate() {
            let refuse = |reason: String| LineError { source_name: source_name.into(), line: index + 1, reason };
            let line = line.map_err(|e| refuse(format!("cannot be read: {e}")))?;
            if line.trim().is_empty() {
                continue;
            }
            let record = parse(&line).map_err(refuse)?;
            let key = record.problem.text();
            let problem = match problems.get(&key) {
                Some(id) => *id,
                None => {
                    let id = problem_id(&t, &record.problem, &record.name).map_err(|e| self.err(e))?;
                    problems.insert(key, id);
                    id
                }
            };
            let device = match devices.get(&record.device) {
                Some(id) => *id,
                None => {
                    let id = device_id(&t, &record.device).map_err(|e| self.err(e))?;
                    devices.insert(record.device.clone(), id);
                    id
                }
            };
            added += usize::from(insert_trial(&t, problem, device, &record.generator, &record.trial).map_err(|e| self.err(e))?);
        }
        t.commit().map_err(|e| self.err(e))?;
        Ok(added)
    }
}

/// Reads one line. Two passes, because flattening and refusing unknown fields exclude each other.
fn parse(line: &str) -> Result<Record, String> {
    let mut value: serde_json::Value = serde_json::from_str(line).map_err(|e| format!("no JSON object: {e}"))?;
    let object = value.as_object_mut().ok_or("no JSON object")?;
    match object.remove("tilewright").map(|v| v.as_u64()) {
        Some(Some(v)) if (1..=u64::from(FORMAT)).contains(&v) => {}
        Some(Some(v)) => return Err(format!("format {v}, this tilewright reads formats up to {FORMAT}")),
        _ => return Err("no tilewright record: the field `tilewright` with the format's number is missing".into()),
    }
    let record: Record = serde_json::from_value(value).map_err(|e| e.to_string())?;
    crate::key::ProblemKey::parse(&record.problem.text()).map_err(|e| format!("problem: {e}"))?;
    record.trial.check()?;
    if record.generator.trim().is_empty() {
        return Err("generator is empty".into());
    }
    Ok(record)
}
