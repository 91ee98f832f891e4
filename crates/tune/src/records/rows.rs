//! Values of the records as rows of the tables, and back.

use super::sources::{MODEL, TIMING, VERIFIER, timed_by};
use super::{DeviceKey, State, TimeKind, Trial};
use crate::key::ProblemKey;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Params, Row, ToSql, params};
use tilewright_check::verify::Depth;

pub(super) const TRIAL_COLUMNS: &str =
    "t.plan, t.state, t.time_us, t.time_kind, t.verified, t.max_error, t.reason, t.at, t.verified_by";

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
     AND t.device = (SELECT id FROM devices WHERE name = ?2 AND fingerprint = ?3) AND t.generator = ?4 \
     AND t.timed_by = CASE WHEN t.time_kind = 'modelled' THEN ?6 ELSE ?5 END AND (t.state <> 'wrong' OR t.verified_by = ?7)";

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

pub(super) fn problem_id(c: &Connection, problem: &ProblemKey, name: &str) -> rusqlite::Result<i64> {
    let key = problem.text();
    c.prepare_cached("INSERT INTO problems(key, name) VALUES (?1, ?2) ON CONFLICT(key) DO NOTHING")?
        .execute(params![key, name])?;
    c.prepare_cached("SELECT id FROM problems WHERE key = ?1")?.query_row(params![key], |r| r.get(0))
}

pub(super) fn device_id(c: &Connection, device: &DeviceKey) -> rusqlite::Result<i64> {
    c.prepare_cached("INSERT INTO devices(name, fingerprint) VALUES (?1, ?2) ON CONFLICT(name, fingerprint) DO NOTHING")?
        .execute(params![device.name, device.fingerprint])?;
    c.prepare_cached("SELECT id FROM devices WHERE name = ?1 AND fingerprint = ?2")?
        .query_row(params![device.name, device.fingerprint], |r| r.get(0))
}

/// Adds a trial after the plan's earlier ones, and clears its mark.
pub(super) fn append_trial(c: &Connection, problem: i64, device: i64, generator: &str, trial: &Trial) -> rusqlite::Result<()> {
    // A plan that ends twice within a millisecond (timed, then found wrong) has two rows all the same.
    let last: Option<i64> = c
        .prepare_cached("SELECT max(at) FROM trials WHERE problem = ?1 AND device = ?2 AND generator = ?3 AND plan = ?4")?
        .query_row(params![problem, device, generator, trial.plan], |r| r.get(0))?;
    let at = last.map_or(trial.at, |last| trial.at.max(last.saturating_add(1)));
    // A wrong result is a verdict, too.
    let verified_by = (trial.verified.is_some() || trial.state == State::Wrong).then_some(VERIFIER);
    insert_trial(
        c,
        problem,
        device,
        [Some(generator), Some(timed_by(trial.time_kind)), verified_by],
        &Trial { at, ..trial.clone() },
    )?;
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

/// Inserts a trial; false if the very same trial is already there. One that says more of how deeply it was verified replaces it. `sources` are the generator, and by whom it was timed and verified, where that is known.
pub(super) fn insert_trial(
    c: &Connection,
    problem: i64,
    device: i64,
    sources: [Option<&str>; 3],
    t: &Trial,
) -> rusqlite::Result<bool> {
    let rows = c
        .prepare_cached(
            "INSERT INTO trials(problem, device, generator, plan, state, time_us, time_kind, verified, max_error, reason, at, timed_by, verified_by) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) \
             ON CONFLICT(problem, device, generator, plan, at) DO UPDATE SET verified = excluded.verified, max_error = excluded.max_error, verified_by = excluded.verified_by \
             WHERE state = excluded.state AND verified < excluded.verified",
        )?
        .execute(params![
            problem,
            device,
            sources[0],
            t.plan,
            t.state,
            finite(t.time_us),
            t.time_kind,
            depth_number(t.verified),
            finite(t.max_error),
            t.reason,
            t.at,
            sources[1],
            sources[2]
        ])?;
    Ok(rows == 1)
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
