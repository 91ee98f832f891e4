//! Picks: the cost model's first choices for a problem on a device. A process that finds them does not rank plans: that takes 0.3 to 3 s of a
//! processor for each problem.
//!
//! A row holds for the build that made it; another build replaces it. Picks do not travel: exports leave them out.

use super::rows::{device_id, problem_id};
use super::{DeviceKey, GENERATOR, MODEL, Records, RecordsError, TIMING};
use crate::key::ProblemKey;
use rusqlite::{Connection, OptionalExtension, params};
use std::time::Duration;

/// How long the picks of a problem wait for another process's transaction: without them a later process ranks plans once more.
const WAIT: Duration = Duration::from_millis(100);

/// A row for each problem and device.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS picks(
  problem INTEGER NOT NULL REFERENCES problems(id),
  device INTEGER NOT NULL REFERENCES devices(id),
  build TEXT NOT NULL,
  plans TEXT NOT NULL,
  PRIMARY KEY(problem, device)
) STRICT;";

/// An older file that is only read has none.
pub(super) fn shadow(c: &Connection) -> rusqlite::Result<()> {
    if c.prepare("SELECT problem, device, build, plans FROM picks LIMIT 0").is_ok() {
        return Ok(());
    }
    c.execute_batch("CREATE TEMP VIEW picks AS SELECT 0 AS problem, 0 AS device, '' AS build, '' AS plans WHERE 0")
}

/// The sources that derive and rank plans, and those that say what a device has.
fn build() -> String {
    [GENERATOR, MODEL, TIMING].join(" ")
}

impl Records {
    /// The picks of this build, best first; empty where none were kept.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn picks(&self, problem: &ProblemKey, device: &DeviceKey) -> Result<Vec<String>, RecordsError> {
        let sql = "SELECT plans FROM picks WHERE problem = (SELECT id FROM problems WHERE key = ?1) \
             AND device = (SELECT id FROM devices WHERE name = ?2 AND fingerprint = ?3) AND build = ?4";
        let values = params![problem.text(), device.name, device.fingerprint, build()];
        let plans: Option<String> = self.read(|c| c.prepare_cached(sql)?.query_row(values, |r| r.get(0)).optional())?;
        Ok(plans.unwrap_or_default().split_whitespace().map(String::from).collect())
    }

    /// Keeps the picks of this build.
    ///
    /// # Errors
    /// As [`Records::add`]; at once where another process writes.
    pub fn keep_picks(&self, problem: &ProblemKey, name: &str, device: &DeviceKey, plans: &[String]) -> Result<(), RecordsError> {
        self.write_within(WAIT, |t| {
            let (p, d) = (problem_id(t, problem, name)?, device_id(t, device)?);
            t.prepare_cached("INSERT OR REPLACE INTO picks(problem, device, build, plans) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![p, d, build(), plans.join(" ")])?;
            Ok(())
        })
    }
}
