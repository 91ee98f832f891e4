//! Reading all rows of a records file. A row that this build cannot read stays in the file and is reported; it never condemns the others.

use super::rows::{TRIAL_COLUMNS, read_trial, unreadable};
use super::{DeviceKey, Filter, Record, Records, RecordsError};
use crate::key::ProblemKey;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;

/// Problems whose keys are kept while rows are read.
const KEPT: usize = 256;
/// Rows that are read before some of them are removed.
const BATCH: usize = 4096;

/// A row that this build cannot read. It stays in the file as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The problem in the user's words.
    pub name: String,
    /// The device's name.
    pub device: String,
    /// Why the row cannot be read.
    pub reason: String,
    /// The row's columns as one line of JSON.
    pub line: String,
}

impl Unread {
    /// One sentence for several rows: `1 row was not understood and is left as it is: REASON`. `None` where there is no such row.
    pub fn summary(rows: &[Unread]) -> Option<String> {
        let first = rows.first()?;
        let (count, verb) =
            if rows.len() == 1 { ("1 row was".to_string(), "is") } else { (format!("{} rows were", rows.len()), "are") };
        let (more, it) = if rows.len() == 1 { ("", "it is") } else { ("first ", "they are") };
        Some(format!("{count} not understood and {verb} left as {it}: {more}{}: {}", first.name, first.reason))
    }
}

/// The rows of a file that pass a filter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Those that were read, oldest first.
    pub records: Vec<Record>,
    /// Those that were not, of the problems and devices that the filter names.
    pub unread: Vec<Unread>,
}

/// How many rows of a file pass a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Those that can be read.
    pub records: usize,
    /// Those that cannot, of the problems and devices that the filter names.
    pub unread: Vec<Unread>,
}

/// Columns of a row before those of its trial.
const LEADING: usize = 6;
/// Column of the row's number, after those of its trial.
pub(super) const NUMBER: usize = LEADING + 9;

/// The query of whole rows, as [`read_record`] reads them, without a condition.
pub(super) fn rows_of() -> String {
    format!(
        "SELECT p.key AS key, p.name AS name, d.name AS device, d.fingerprint AS fingerprint, \
           (SELECT text FROM sources WHERE id = t.generator) AS generator, \
           (SELECT text FROM sources WHERE id = t.timed_by) AS timed_by, {TRIAL_COLUMNS}, t.id AS number, p.id AS problem \
         FROM trials t JOIN problems p ON p.id = t.problem JOIN devices d ON d.id = t.device"
    )
}

/// The query of all rows, oldest first.
fn rows_in_order() -> String {
    format!("{} ORDER BY t.id", rows_of())
}

/// The query of the next rows after one with this number.
fn next_rows() -> String {
    format!("{} WHERE t.id > ?1 ORDER BY t.id LIMIT {BATCH}", rows_of())
}

impl Records {
    /// Records that pass a filter, oldest first. Rows that cannot be read are left out; [`Records::listing`] has them too.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn list(&self, filter: &Filter) -> Result<Vec<Record>, RecordsError> {
        Ok(self.listing(filter)?.records)
    }

    /// Records that pass a filter, oldest first, and the rows that cannot be read.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn listing(&self, filter: &Filter) -> Result<Listing, RecordsError> {
        let mut listing = Listing::default();
        listing.unread = self.each(filter, |record| {
            listing.records.push(record);
            Ok(())
        })?;
        Ok(listing)
    }

    /// How many records pass a filter, and the rows that cannot be read.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn count(&self, filter: &Filter) -> Result<Counted, RecordsError> {
        let mut counted = Counted::default();
        counted.unread = self.each(filter, |_| {
            counted.records += 1;
            Ok(())
        })?;
        Ok(counted)
    }

    /// Calls a function with the records that pass a filter, one problem's name at a time, in the order of the names. Gives the
    /// rows that cannot be read. A file may have more records than memory holds. The function says whether it wants more.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn by_problem(
        &self,
        filter: &Filter,
        mut visit: impl FnMut(Vec<Record>) -> ControlFlow<()>,
    ) -> Result<Vec<Unread>, RecordsError> {
        let mut reading = Reading::new(filter);
        let sql = format!("{} WHERE t.problem = ?1 ORDER BY t.id", rows_of());
        self.read(|c| {
            let (mut problems, mut trials) = (c.prepare("SELECT id, name FROM problems ORDER BY name, id")?, c.prepare(&sql)?);
            let mut problems = problems.query([])?;
            let mut records = Vec::new();
            let mut of: Option<String> = None;
            while let Some(row) = problems.next()? {
                let (id, name): (i64, String) = (row.get(0)?, row.get(1)?);
                if of.as_ref() != Some(&name) && !records.is_empty() && visit(std::mem::take(&mut records)).is_break() {
                    return Ok(());
                }
                of = Some(name);
                let mut rows = trials.query([id])?;
                while let Some(row) = rows.next()? {
                    records.extend(reading.record(row)?);
                }
            }
            if !records.is_empty() {
                let _ = visit(records);
            }
            Ok(())
        })?;
        Ok(reading.unread)
    }

    /// Calls a function for each record that passes a filter, oldest first; gives the rows that cannot be read.
    pub(super) fn each(
        &self,
        filter: &Filter,
        mut visit: impl FnMut(Record) -> Result<(), RecordsError>,
    ) -> Result<Vec<Unread>, RecordsError> {
        let mut failed = Ok(());
        let mut reading = Reading::new(filter);
        self.read(|c| {
            let mut statement = c.prepare(&rows_in_order())?;
            let mut rows = statement.query([])?;
            while let (Ok(()), Some(row)) = (&failed, rows.next()?) {
                if let Some(record) = reading.record(row)? {
                    failed = visit(record);
                }
            }
            Ok(())
        })?;
        failed.map(|()| reading.unread)
    }
}

/// Removes the records that pass a filter; gives their number. Rows are read in batches: a file may have more than memory holds.
pub(super) fn remove(c: &Connection, filter: &Filter) -> rusqlite::Result<usize> {
    let (mut select, mut delete) = (c.prepare(&next_rows())?, c.prepare("DELETE FROM trials WHERE id = ?1")?);
    let (mut count, mut last) = (0, Some(i64::MIN));
    while let Some(above) = last.take() {
        let (mut reading, mut meant) = (Reading::new(filter), Vec::new());
        let mut rows = select.query([above])?;
        while let Some(row) = rows.next()? {
            let id: i64 = row.get(NUMBER)?;
            last = Some(id);
            meant.extend(reading.record(row)?.map(|_| id));
        }
        drop(rows);
        for id in meant {
            count += delete.execute([id])?;
        }
    }
    Ok(count)
}

/// Rows of a file on their way to records.
struct Reading<'a> {
    filter: &'a Filter,
    /// Of the problems that were met last.
    keys: HashMap<i64, Result<ProblemKey, String>>,
    unread: Vec<Unread>,
}

impl<'a> Reading<'a> {
    fn new(filter: &'a Filter) -> Reading<'a> {
        Reading { filter, keys: HashMap::new(), unread: Vec::new() }
    }

    /// A row as a record, if it passes the filter. One that cannot be read is noted.
    fn record(&mut self, row: &Row<'_>) -> rusqlite::Result<Option<Record>> {
        let id: i64 = row.get(NUMBER + 1)?;
        // Neighbours are of a few problems; a file may have more than memory holds.
        if self.keys.len() >= KEPT && !self.keys.contains_key(&id) {
            self.keys.clear();
        }
        let key = match self.keys.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(ProblemKey::parse(&row.get::<_, String>(0)?)),
        };
        match read_record(row, key) {
            Ok(record) => Ok(Some(record).filter(|record| self.filter.passes(record))),
            Err(reason) => {
                let row = raw(row, reason)?;
                if self.filter.names(&row.name, &row.device) {
                    self.unread.push(row);
                }
                Ok(None)
            }
        }
    }
}

/// A row as a record.
pub(super) fn read_record(row: &Row<'_>, key: &Result<ProblemKey, String>) -> Result<Record, String> {
    let problem = key.clone().map_err(|reason| format!("its problem key is malformed: {reason}"))?;
    let read = || -> rusqlite::Result<Record> {
        Ok(Record {
            problem,
            name: row.get(1)?,
            device: DeviceKey { name: row.get(2)?, fingerprint: row.get(3)? },
            generator: row.get(4)?,
            timed_by: row.get(5)?,
            verified_by: row.get(NUMBER - 1)?,
            trial: read_trial(row, LEADING)?,
        })
    };
    let record = read().map_err(|e| unreadable(&e))?;
    record.trial.check().map(|()| record)
}

/// A row that cannot be read, column by column.
fn raw(row: &Row<'_>, reason: String) -> rusqlite::Result<Unread> {
    let mut columns = serde_json::Map::new();
    for index in 0..NUMBER {
        let name = row.as_ref().column_name(index)?;
        let value = match row.get_ref(index)? {
            ValueRef::Null => serde_json::Value::Null,
            ValueRef::Integer(number) => number.into(),
            ValueRef::Real(number) => number.into(),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
        };
        columns.insert(name.into(), value);
    }
    let text = |name: &str| columns.get(name).and_then(|v| v.as_str()).unwrap_or_default().to_string();
    Ok(Unread { name: text("name"), device: text("device"), reason, line: serde_json::Value::from(columns.clone()).to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::tests::gemm;
    use crate::records::file::LOSERS;
    use crate::records::file::tests::{GENERATOR, device, filled, steps, timed};
    use tilewright_ir::Scalar;

    #[test]
    fn records_come_problem_by_problem_in_the_order_of_names() {
        let records = Records::in_memory().unwrap();
        filled(&records);
        let newer = DeviceKey { fingerprint: "driver 2".into(), ..device() };
        // Another key with the same name belongs to the same problem, as users see it.
        records.add(&gemm(64, 64, 32, Scalar::F32), "gemm 64", &newer, GENERATOR, &timed("late", 1.0, 9)).unwrap();
        let seen = |filter: &Filter, most: usize| {
            let mut seen = Vec::new();
            let unread = records.by_problem(filter, |of| {
                seen.push((of[0].name.clone(), of.len()));
                if seen.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            assert_eq!(unread.unwrap(), []);
            seen
        };
        let all = [("gemm 4096".to_string(), 1), ("gemm 64".to_string(), 5)];
        assert_eq!(seen(&Filter::default(), 9), all);
        assert_eq!(seen(&Filter::default(), 1), all[..1]);
        assert_eq!(seen(&Filter { problem: Some("gemm 6".into()), ..Filter::default() }, 9), all[1..]);
        assert_eq!(records.count(&Filter::default()).unwrap(), Counted { records: 6, unread: Vec::new() });
        assert_eq!(records.measured_devices().unwrap(), [device(), newer]);
        assert_eq!(records.last_fingerprints().unwrap().get("Test GPU").map(String::as_str), Some("driver 2"));
    }

    /// Memory does not grow with the file: rows are neither sorted nor collected.
    #[test]
    fn rows_are_read_and_removed_without_a_sort_of_all() {
        let records = Records::in_memory().unwrap();
        for sql in [rows_in_order(), next_rows()] {
            let steps = steps(&records, &sql);
            assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE")), "{steps:?}");
        }
        let steps = steps(&records, LOSERS);
        let of_trials: Vec<&String> = steps.iter().filter(|step| step.contains(" trials")).collect();
        assert!(!of_trials.is_empty() && of_trials.iter().all(|step| step.contains("problem=?")), "{steps:?}");
    }
}
