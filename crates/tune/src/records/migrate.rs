//! Files of older versions: brought to this one, or shown as this one where they may not be written.

use super::tables::{LOOKS, MARKS, TRIALS, TRIALS_INDEX, VERSION, version};
use super::{journal, shapes};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use std::path::Path;
use std::time::{Duration, Instant};

/// Rows that are copied between two looks at the clock.
const STEP: i64 = 50_000;
/// Time between two lines that say how far a migration is.
const SAID: Duration = Duration::from_secs(5);
/// How often a process waits for another one's migration, `BUSY` each time.
const PATIENCE: u32 = 20;

/// Brings the tables of an older tilewright to this version: one transaction, so that an interrupted one leaves the old file.
pub(super) fn migrate(path: &Path, connection: &mut Connection) -> rusqlite::Result<()> {
    let from = version(connection)?;
    if from >= VERSION {
        return Ok(());
    }
    // Rows that are copied satisfied the references before.
    connection.pragma_update(None, "foreign_keys", false)?;
    let result = begin(path, connection).and_then(|t| {
        // Another process may have done it meanwhile.
        let from = version(&t)?;
        steps(path, &t, from)?;
        t.commit()?;
        Ok(from < VERSION)
    });
    connection.pragma_update(None, "foreign_keys", true)?;
    // The old rows leave free pages. Whoever cannot remove them now may prune later.
    if result? && let Err(e) = connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)") {
        tracing::warn!("{}: larger than needed until `tilewright records prune`: {e}", path.display());
    }
    Ok(())
}

/// Waits for other processes: one of them may be migrating the file.
fn begin<'a>(path: &Path, connection: &'a Connection) -> rusqlite::Result<Transaction<'a>> {
    for _ in 1..PATIENCE {
        match Transaction::new_unchecked(connection, TransactionBehavior::Exclusive) {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                tracing::warn!("{}: waiting for the process that brings it to schema {VERSION}", path.display());
            }
            other => return other,
        }
    }
    Transaction::new_unchecked(connection, TransactionBehavior::Exclusive)
}

fn steps(path: &Path, t: &Transaction<'_>, from: u32) -> rusqlite::Result<()> {
    // Version 1 to 2: the tables are the same, but a tilewright of version 1 would take 1 and 2 alike.
    if from < 3 {
        t.execute_batch(
            "ALTER TABLE trials ADD COLUMN timed_by TEXT; ALTER TABLE trials ADD COLUMN verified_by TEXT; \
             DROP TABLE inflight;",
        )?;
        // How the processes of old marks ended cannot be told.
        t.execute_batch(MARKS)?;
    }
    if from < 4 {
        t.execute_batch(LOOKS)?;
    }
    if from < 5 {
        t.execute_batch(journal::TABLES)?;
        t.execute_batch(shapes::TABLE)?;
        shapes::fill(t)?;
        shorten(path, t)?;
    }
    t.pragma_update(None, "user_version", VERSION)
}

/// Version 4 to 5: the texts of sources become numbers, and the unique index holds a plan's hash in place of its text.
fn shorten(path: &Path, t: &Transaction<'_>) -> rusqlite::Result<()> {
    t.execute_batch("DROP INDEX IF EXISTS verified; ALTER TABLE trials RENAME TO old_trials")?;
    t.execute_batch(TRIALS)?;
    let last: i64 = t.query_row("SELECT coalesce(max(id), 0) FROM old_trials", [], |r| r.get(0))?;
    let mut sources = t.prepare(
        "INSERT INTO sources(text) SELECT text FROM (SELECT generator AS text FROM old_trials WHERE id > ?1 AND id <= ?2 \
         UNION SELECT timed_by FROM old_trials WHERE id > ?1 AND id <= ?2 \
         UNION SELECT verified_by FROM old_trials WHERE id > ?1 AND id <= ?2) \
         WHERE text IS NOT NULL ON CONFLICT DO NOTHING",
    )?;
    let mut copy = t.prepare(
        "INSERT INTO trials(id, problem, device, generator, plan, plan_hash, state, time_us, time_kind, verified, max_error, \
           reason, at, timed_by, verified_by) \
         SELECT id, problem, device, (SELECT id FROM sources WHERE text = generator), plan, hash(plan), state, time_us, time_kind, \
           verified, max_error, reason, at, (SELECT id FROM sources WHERE text = timed_by), \
           (SELECT id FROM sources WHERE text = verified_by) \
         FROM old_trials WHERE id > ?1 AND id <= ?2 ORDER BY id",
    )?;
    let mut said = Instant::now();
    // Ids are as good as consecutive: rows are removed by `prune` and `clear` alone.
    for first in (0..last).step_by(STEP as usize) {
        sources.execute([first, first + STEP])?;
        copy.execute([first, first + STEP])?;
        if said.elapsed() > SAID {
            said = Instant::now();
            tracing::warn!("{}: {} % brought to schema {VERSION}", path.display(), first.saturating_mul(100) / last);
        }
    }
    drop((sources, copy));
    t.execute_batch("DROP TABLE old_trials")?;
    t.execute_batch(TRIALS_INDEX)
}

/// Shows an older file that may not be written as one of this version.
pub(super) fn shadow(connection: &Connection) -> rusqlite::Result<()> {
    let version = version(connection)?;
    let shapes = "SELECT count(*) FROM main.sqlite_schema WHERE name = 'shapes'";
    if connection.query_row(shapes, [], |r| r.get::<_, i64>(0))? == 0 {
        let temporary =
            shapes::TABLE.replace("CREATE TABLE", "CREATE TEMP TABLE").replace("shapes_size ON", "temp.shapes_size ON");
        connection.execute_batch(&temporary)?;
    }
    let [timed_by, verified_by] = if version < 3 { ["NULL"; 2] } else { ["o.timed_by", "o.verified_by"] };
    if version < 3 {
        connection.execute_batch("CREATE TEMP VIEW inflight AS SELECT *, NULL AS owner, 1 AS deaths FROM main.inflight;")?;
    }
    if version < 4 {
        connection.execute_batch(
            "CREATE TEMP VIEW looks AS SELECT 0 AS problem, 0 AS device, '' AS build, '' AS plan, '' AS state, NULL AS reason WHERE 0",
        )?;
    }
    if version < 5 {
        connection.execute_batch(&format!(
            "CREATE TEMP TABLE sources(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT; \
             INSERT INTO sources(text) SELECT text FROM (SELECT o.generator AS text FROM main.trials o \
               UNION SELECT {timed_by} FROM main.trials o UNION SELECT {verified_by} FROM main.trials o) WHERE text IS NOT NULL; \
             CREATE TEMP VIEW trials AS SELECT o.id, o.problem, o.device, \
               (SELECT s.id FROM sources s WHERE s.text = o.generator) AS generator, o.plan, hash(o.plan) AS plan_hash, o.state, \
               o.time_us, o.time_kind, o.verified, o.max_error, o.reason, o.at, \
               (SELECT s.id FROM sources s WHERE s.text = {timed_by}) AS timed_by, \
               (SELECT s.id FROM sources s WHERE s.text = {verified_by}) AS verified_by FROM main.trials o",
        ))?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
