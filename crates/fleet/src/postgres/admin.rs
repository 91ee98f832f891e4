//! What people ask of a server: tables and rights, how far runs are, their trials, and that a run ends.

use super::address::Address;
use super::call::Caller;
use super::{LONGEST, pulled, sql};
use crate::FleetError;
use crate::queue::Pulled;
use crate::status::{ClassStatus, FailedStatus, Status, WorkerStatus, printable};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Trials of one answer.
const BATCH: i64 = 500;
/// Failed tasks that a status names.
const FAILED: i64 = 100;
/// Letters of a text that are read.
const LETTERS: i32 = 4096;

fn caller(address: &Address) -> Result<Caller, FleetError> {
    Caller::new(address, "tilewright fleet")
}

/// Refuses a server without the tables, or with those of another version.
pub(super) fn check_schema(caller: &mut Caller) -> Result<(), FleetError> {
    let found = caller.number("SELECT version::int8 FROM tw.schema", &[])?;
    if found == i64::from(sql::SCHEMA_VERSION) {
        return Ok(());
    }
    Err(FleetError::Refused(format!(
        "--fleet: the tables have version {found}, this tilewright knows {}: use the tilewright that made them, or another database",
        sql::SCHEMA_VERSION
    )))
}

/// Makes the tables and the role of workers, where they are missing. True if the tables were made.
///
/// # Errors
/// [`FleetError`]; the tables are made all or none.
pub fn init(address: &Address, role: &str) -> Result<bool, FleetError> {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if role.is_empty() || role.len() > 60 || !role.chars().all(letters) || role.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(FleetError::Wrong("--role: take small letters, digits and _".into()));
    }
    let mut caller = caller(address)?;
    let there = caller.number("SELECT count(*) FROM pg_tables WHERE schemaname = 'tw' AND tablename = 'schema'", &[])? > 0;
    if there {
        check_schema(&mut caller)?;
    }
    let known = caller.number("SELECT count(*) FROM pg_roles WHERE rolname = $1", &[(&role, Type::TEXT)])? > 0;
    let tables = if there { "" } else { sql::SCHEMA };
    let make = if known { String::new() } else { format!("CREATE ROLE {role} LOGIN;") };
    caller.batch(&format!("BEGIN; {tables} {make} {} COMMIT;", sql::RIGHTS.replace("{role}", role)))?;
    Ok(!there)
}

/// A text that others wrote. Programs print what JSON gives them, so it is clean there, too.
fn text(row: &Row, column: usize) -> String {
    printable(row.get(column), LETTERS as usize)
}

/// How far a run is, or all of them.
///
/// # Errors
/// [`FleetError`].
pub fn status(address: &Address, run: Option<&str>) -> Result<Status, FleetError> {
    let mut caller = caller(address)?;
    check_schema(&mut caller)?;
    let run = run.unwrap_or_default();
    known(&mut caller, run)?;
    let rows = caller.query(
        "SELECT run, class, open, leased, done, failed, withdrawn, trials_per_minute, oldest_lease, seconds_left::float8, gain \
         FROM tw.progress WHERE $1 IN ('', run) ORDER BY run, class",
        &[(&run, Type::TEXT)],
    )?;
    let classes = rows.iter().map(|row| ClassStatus {
        run: text(row, 0),
        class: text(row, 1),
        open: row.get(2),
        leased: row.get(3),
        done: row.get(4),
        failed: row.get(5),
        withdrawn: row.get(6),
        trials_per_minute: row.get(7),
        oldest_lease: row.get(8),
        seconds_left: row.get(9),
        gain: row.get(10),
    });
    // A worker is of no run: it is shown for those that have tasks of its class, unless it holds a task of another.
    let workers = caller.query(
        "SELECT left(coalesce(w.host, ''), $2), left(coalesce(w.gpu, ''), $2), coalesce(t.problem, ''), \
         extract(epoch FROM clock_timestamp() - w.seen)::float8 FROM tw.worker w \
         LEFT JOIN tw.task t ON t.holder = w.id AND t.state = 'leased' \
         WHERE w.ended IS NULL AND w.seen > clock_timestamp() - interval '1 hour' AND ($1 = '' OR EXISTS \
         (SELECT FROM tw.run r WHERE r.name = $1 AND CASE WHEN t.run IS NULL \
         THEN EXISTS (SELECT FROM tw.task k WHERE k.run = r.id AND k.class = w.class) ELSE t.run = r.id END)) ORDER BY 1, 2",
        &[(&run, Type::TEXT), (&LETTERS, Type::INT4)],
    )?;
    let workers =
        workers.iter().map(|row| WorkerStatus { host: text(row, 0), gpu: text(row, 1), problem: text(row, 2), seen: row.get(3) });
    let failed = caller.query(
        "SELECT r.name, t.class, t.problem, left(coalesce(t.reason, ''), $3) FROM tw.task t JOIN tw.run r ON r.id = t.run \
         WHERE t.state = 'failed' AND $1 IN ('', r.name) ORDER BY t.work DESC, t.id LIMIT $2",
        &[(&run, Type::TEXT), (&FAILED, Type::INT8), (&LETTERS, Type::INT4)],
    )?;
    let failed = failed.iter().map(|row| FailedStatus {
        run: text(row, 0),
        class: text(row, 1),
        problem: text(row, 2),
        reason: text(row, 3),
    });
    Ok(Status { classes: classes.collect(), workers: workers.collect(), failed: failed.collect() })
}

/// Refuses a run that is not there; no name stands for all.
fn known(caller: &mut Caller, run: &str) -> Result<(), FleetError> {
    let there = caller.number("SELECT count(*) FROM tw.run WHERE name = $1", &[(&run, Type::TEXT)])?;
    if run.is_empty() || there > 0 {
        return Ok(());
    }
    let names = caller.query("SELECT name FROM tw.run ORDER BY created DESC LIMIT 20", &[])?;
    let names: Vec<String> = names.iter().map(|row| crate::printable(row.get(0), 60)).collect();
    let names = if names.is_empty() { "none".into() } else { names.join(", ") };
    Err(FleetError::Wrong(format!("--run {run}: the server has no such run; its runs are: {names}")))
}

/// Hands over all trials of a run, or of all runs, in batches.
///
/// # Errors
/// [`FleetError`], also the receiver's.
pub fn pull(
    address: &Address,
    run: Option<&str>,
    receive: &mut dyn FnMut(Vec<Pulled>) -> Result<(), FleetError>,
) -> Result<(), FleetError> {
    let mut caller = caller(address)?;
    check_schema(&mut caller)?;
    let run = run.unwrap_or_default();
    known(&mut caller, run)?;
    let (mut journal, mut seq) = (String::new(), i64::MIN);
    loop {
        let rows = caller.query(
            "SELECT x.journal, x.seq, k.problem, CASE WHEN octet_length(x.line) <= $5 THEN x.line END, octet_length(x.line) \
             FROM tw.trial x JOIN tw.task k ON k.id = x.task JOIN tw.run r ON r.id = k.run \
             WHERE $1 IN ('', r.name) AND (x.journal, x.seq) > ($2, $3) ORDER BY x.journal, x.seq LIMIT $4",
            &[
                (&run, Type::TEXT),
                (&journal, Type::TEXT),
                (&seq, Type::INT8),
                (&BATCH, Type::INT8),
                (&(LONGEST as i32), Type::INT4),
            ],
        )?;
        let Some(last) = rows.last() else { return Ok(()) };
        (journal, seq) = (last.get(0), last.get(1));
        receive(rows.iter().map(pulled).collect())?;
    }
}

/// A task whose trials a journal may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushTask {
    /// Its number.
    pub task: i64,
    /// Its fence.
    pub epoch: i64,
    /// The problem's text.
    pub problem: String,
    /// The class.
    pub class: String,
}

/// The tasks of a run with these problems.
///
/// # Errors
/// [`FleetError`].
pub fn pushable(address: &Address, run: &str, problems: &[String]) -> Result<Vec<PushTask>, FleetError> {
    let mut caller = caller(address)?;
    check_schema(&mut caller)?;
    known(&mut caller, run)?;
    let mut tasks = Vec::new();
    for some in problems.chunks(1000) {
        let rows = caller.query(
            "SELECT k.id, k.epoch, k.problem, k.class FROM tw.task k JOIN tw.run r ON r.id = k.run \
             WHERE r.name = $1 AND k.problem = ANY($2)",
            &[(&run, Type::TEXT), (&some, Type::TEXT_ARRAY)],
        )?;
        tasks.extend(rows.iter().map(|row| PushTask {
            task: row.get(0),
            epoch: row.get(1),
            problem: row.get(2),
            class: row.get(3),
        }));
    }
    Ok(tasks)
}

/// Takes back what is not tuned of a run; the number of its tasks. Workers stop at their next renewal.
///
/// # Errors
/// [`FleetError`].
pub fn withdraw(address: &Address, run: &str) -> Result<u64, FleetError> {
    let mut caller = caller(address)?;
    check_schema(&mut caller)?;
    known(&mut caller, run)?;
    caller.execute(
        "UPDATE tw.run SET withdrawn = clock_timestamp() WHERE name = $1 AND withdrawn IS NULL",
        &[(&run, Type::TEXT)],
    )?;
    caller.execute(
        "UPDATE tw.task SET state = 'withdrawn', holder = NULL, until = NULL FROM tw.run r \
         WHERE r.id = run AND r.name = $1 AND state IN ('open', 'leased')",
        &[(&run, Type::TEXT)],
    )
}
