//! Reading all rows of a records file. A row that this build cannot read stays in the file and is reported; it never condemns the others.

use super::rows::{TRIAL_COLUMNS, read_trial, unreadable};
use super::{DeviceKey, Filter, Record, Records, RecordsError};
use crate::key::ProblemKey;
use rusqlite::Row;
use rusqlite::types::ValueRef;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Problems whose keys are kept while rows are read.
const KEPT: usize = 256;

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

    /// Calls a function for each record that passes a filter, oldest first; gives the rows that cannot be read.
    pub(super) fn each(
        &self,
        filter: &Filter,
        mut visit: impl FnMut(Record) -> Result<(), RecordsError>,
    ) -> Result<Vec<Unread>, RecordsError> {
        let mut failed = Ok(());
        let mut unread = Vec::new();
        let mut keys: HashMap<i64, Result<ProblemKey, String>> = HashMap::new();
        let sql = format!("{} ORDER BY t.id", rows_of());
        self.read(|c| {
            let mut statement = c.prepare(&sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(NUMBER + 1)?;
                // Neighbours are of a few problems; a file may have more than memory holds.
                if keys.len() >= KEPT && !keys.contains_key(&id) {
                    keys.clear();
                }
                let key = match keys.entry(id) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => place.insert(ProblemKey::parse(&row.get::<_, String>(0)?)),
                };
                match read_record(row, key) {
                    Ok(record) if filter.passes(&record) => failed = visit(record),
                    Ok(_) => {}
                    Err(reason) => {
                        let row = raw(row, reason)?;
                        if filter.names(&row.name, &row.device) {
                            unread.push(row);
                        }
                    }
                }
                if failed.is_err() {
                    break;
                }
            }
            Ok(())
        })?;
        failed.map(|()| unread)
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
