//! Values of the records as rows of the tables, and back.

use super::sources::{MODEL, TIMING, VERIFIER, timed_by};
use super::{DeviceKey, State, TimeKind, Trial, shapes};
use crate::key::ProblemKey;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Params, Row, ToSql, params};
use tilewright_check::verify::Depth;

pub(super) const TRIAL_COLUMNS: &str = "t.plan, t.state, t.time_us, t.time_kind, t.verified, t.max_error, t.reason, t.at, \
     (SELECT text FROM sources WHERE id = t.verified_by) AS verified_by";

pub(super) fn read_trial(row: &Row<'_>, first: usize) -> rusqlite::Result<Trial> {
    Ok(Trial {
        plan: row.get(first)?,
        state: row.get(first + 1)?,
        time_us: row.get(first + 2)?,
        time_kind: row.get(first + 3)?,
        verified: depth_of(row, first + 4)?,
        max_error: row.get(first + 5)?,
        reason: row.get(first + 6)?,
        at: row.get(first + 7)?,
    })
}

/// The rows of a problem on a device by a generator that still hold: their kernels, times and verdicts come from today's sources. With
/// the values of [`current`].
pub(super) const CURRENT: &str = "t.problem = (SELECT id FROM problems WHERE key = ?1) \
     AND t.device = (SELECT id FROM devices WHERE name = ?2 AND fingerprint = ?3) \
     AND t.generator = (SELECT id FROM sources WHERE text = ?4) \
     AND t.timed_by = (SELECT id FROM sources WHERE text = CASE WHEN t.time_kind = 'modelled' THEN ?6 ELSE ?5 END) \
     AND (t.state <> 'wrong' OR t.verified_by = (SELECT id FROM sources WHERE text = ?7))";

/// The values for [`CURRENT`].
pub(super) fn current(problem: &str, device: &DeviceKey, generator: &str) -> impl Params {
    [problem, &device.name, &device.fingerprint, generator, TIMING, MODEL, VERIFIER].map(String::from)
}

/// Reads a trial and the column `verified_by` after it. A verification by other sources does not count.
pub(super) fn read_current(row: &Row<'_>, first: usize) -> rusqlite::Result<Trial> {
    let trial = read_trial(row, first)?;
    let by: Option<String> = row.get(first + 8)?;
    if by.as_deref() == Some(VERIFIER) || trial.verified.is_none() {
        return Ok(trial);
    }
    Ok(Trial { verified: None, max_error: None, ..trial })
}

/// A depth as the number that stands for it: 0, 1 (quick), 2 (thorough). Files of schema 1 hold 0 and 1 and mean the same.
pub(super) const fn depth_number(depth: Option<Depth>) -> i64 {
    match depth {
        None => 0,
        Some(Depth::Quick) => 1,
        Some(Depth::Thorough) => 2,
    }
}

pub(super) fn depth_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Depth>> {
    let number = row.get(column)?;
    let all = [None, Some(Depth::Quick), Some(Depth::Thorough)];
    all.into_iter().find(|d| depth_number(*d) == number).ok_or(rusqlite::Error::IntegralValueOutOfRange(column, number))
}

/// Passes rows and errors of the file; drops a row with values that this build does not know.
pub(super) fn readable<T>(row: rusqlite::Result<T>) -> Option<rusqlite::Result<T>> {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};
    let unknown = matches!(row, Err(FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..)));
    (!unknown).then_some(row)
}

/// Why a row cannot be read.
pub(super) fn unreadable(e: &rusqlite::Error) -> String {
    match e {
        rusqlite::Error::IntegralValueOutOfRange(_, number) => {
            format!("{number} is not a depth of verification that this build knows")
        }
        other => other.to_string(),
    }
}

/// Marks the sources of an imported time or verdict, because this machine did not measure them.
pub(super) fn imported(by: &str) -> String {
    const MARK: &str = "imported:";
    if by.starts_with(MARK) { by.into() } else { format!("{MARK}{by}") }
}

/// The number that stands for a plan's text in the index: FNV-1a, part of the file's format.
pub(super) fn hash(text: &str) -> i64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step).cast_signed()
}

/// Lets SQL call [`hash`].
pub(super) fn register(c: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    c.create_scalar_function("hash", 1, flags, |call| {
        let text = call.get_raw(0).as_str_or_null()?;
        Ok(text.map(hash))
    })
}

/// The number of a problem. A new one is among the nearest from now on.
pub(super) fn problem_id(c: &Connection, problem: &ProblemKey, name: &str) -> rusqlite::Result<i64> {
    let key = problem.text();
    let known = c.prepare_cached("SELECT id FROM problems WHERE key = ?1")?.query_row([&key], |r| r.get(0)).optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    c.prepare_cached("INSERT INTO problems(key, name) VALUES (?1, ?2)")?.execute([&key, name])?;
    let id = c.last_insert_rowid();
    shapes::add(c, id, &problem.shape())?;
    Ok(id)
}

pub(super) fn device_id(c: &Connection, device: &DeviceKey) -> rusqlite::Result<i64> {
    c.prepare_cached("INSERT INTO devices(name, fingerprint) VALUES (?1, ?2) ON CONFLICT(name, fingerprint) DO NOTHING")?
        .execute(params![device.name, device.fingerprint])?;
    c.prepare_cached("SELECT id FROM devices WHERE name = ?1 AND fingerprint = ?2")?
        .query_row(params![device.name, device.fingerprint], |r| r.get(0))
}

/// The number of a generator, or of a source that timed or verified.
pub(super) fn source_id(c: &Connection, text: &str) -> rusqlite::Result<i64> {
    let known = c.prepare_cached("SELECT id FROM sources WHERE text = ?1")?.query_row([text], |r| r.get(0)).optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    c.prepare_cached("INSERT INTO sources(text) VALUES (?1)")?.execute([text])?;
    Ok(c.last_insert_rowid())
}

/// The generator, and the sources that timed and verified a trial, where they are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    pub generator: &'a str,
    pub timed_by: Option<&'a str>,
    pub verified_by: Option<&'a str>,
}

/// When a plan was tried last.
pub(super) const LAST: &str = "SELECT max(at) FROM trials WHERE problem = ?1 AND device = ?2 \
     AND generator = (SELECT id FROM sources WHERE text = ?3) AND plan_hash = hash(?4) AND plan = ?4";

/// Adds a trial after the plan's earlier ones, and clears its mark.
pub(super) fn append_trial(c: &Connection, problem: i64, device: i64, generator: &str, trial: &Trial) -> rusqlite::Result<()> {
    // A plan that ends twice within a millisecond (timed, then found wrong) has two rows all the same.
    let last: Option<i64> = c.prepare_cached(LAST)?.query_row(params![problem, device, generator, trial.plan], |r| r.get(0))?;
    let at = last.map_or(trial.at, |last| trial.at.max(last.saturating_add(1)));
    // A wrong result is a verdict, too.
    let verified_by = (trial.verified.is_some() || trial.state == State::Wrong).then_some(VERIFIER);
    let sources = Sources { generator, timed_by: Some(timed_by(trial.time_kind)), verified_by };
    insert_trial(c, problem, device, sources, &Trial { at, ..trial.clone() })?;
    clear_mark(c, problem, device, generator, &trial.plan)
}

pub(super) fn clear_mark(c: &Connection, problem: i64, device: i64, generator: &str, plan: &str) -> rusqlite::Result<()> {
    c.prepare_cached("DELETE FROM inflight WHERE problem = ?1 AND device = ?2 AND generator = ?3 AND plan = ?4")?
        .execute(params![problem, device, generator, plan])?;
    Ok(())
}

pub(super) fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|v| v.is_finite())
}

/// Inserts a trial; false if the very same trial is already there. One that says more of how deeply it was verified replaces it.
pub(super) fn insert_trial(c: &Connection, problem: i64, device: i64, sources: Sources<'_>, t: &Trial) -> rusqlite::Result<bool> {
    let source = |text: Option<&str>| text.map(|text| source_id(c, text)).transpose();
    let (generator, depth) = (source_id(c, sources.generator)?, depth_number(t.verified));
    let (timed_by, verified_by) = (source(sources.timed_by)?, source(sources.verified_by)?);
    // Two statements, because one that inserts or updates keeps a copy of each page that it changes. The copies are in a file
    // once the transaction is larger than the page cache: 13 KB a trial.
    let inserted = c
        .prepare_cached(
            "INSERT INTO trials(problem, device, generator, plan, plan_hash, state, time_us, time_kind, verified, max_error, reason, at, timed_by, verified_by) \
             VALUES (?1, ?2, ?3, ?4, hash(?4), ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) \
             ON CONFLICT(problem, device, generator, plan_hash, at) DO NOTHING",
        )?
        .execute(params![
            problem,
            device,
            generator,
            t.plan,
            t.state,
            finite(t.time_us),
            t.time_kind,
            depth,
            finite(t.max_error),
            t.reason,
            t.at,
            timed_by,
            verified_by
        ])?;
    if inserted == 1 {
        return Ok(true);
    }
    let updated = c
        .prepare_cached(
            "UPDATE trials SET verified = ?7, max_error = ?8, verified_by = ?9 WHERE problem = ?1 AND device = ?2 AND generator = ?3 \
             AND plan_hash = hash(?4) AND at = ?5 AND plan = ?4 AND state = ?6 AND verified < ?7",
        )?
        .execute(params![problem, device, generator, t.plan, t.at, t.state, depth, finite(t.max_error), verified_by])?;
    Ok(updated == 1)
}

impl ToSql for State {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.name().into())
    }
}

impl FromSql for State {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let name = value.as_str()?;
        let all = [State::Ok, State::Refused, State::Failed, State::Wrong, State::Hung];
        all.into_iter().find(|s| s.name() == name).ok_or(FromSqlError::InvalidType)
    }
}

impl ToSql for TimeKind {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.name().into())
    }
}

impl FromSql for TimeKind {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let name = value.as_str()?;
        let all = [TimeKind::Measured, TimeKind::Modelled];
        all.into_iter().find(|k| k.name() == name).ok_or(FromSqlError::InvalidType)
    }
}

#[cfg(test)]
mod tests {
    /// Files hold the numbers.
    #[test]
    fn hashes_of_plans_stay_the_same() {
        let known = [("", 0xcbf2_9ce4_8422_2325_u64), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)];
        for (text, hash) in known {
            assert_eq!(super::hash(text).cast_unsigned(), hash, "{text}");
        }
    }
}
