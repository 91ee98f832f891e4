//! Tasks of one host in a file of SQLite. A lease is a lock file that its worker holds. A worker that lives and makes no progress
//! loses its task by the time since the machine started. The wall clock is never read.

use crate::FleetError;
use crate::lock::{HolderFile, boot_id, boottime};
use crate::queue::{
    Counted, End, FAILURES, Lease, Left, Line, NewTask, OWN_FAILURES, Pulled, Queue, RunSpec, list_name, other_cases,
    other_options, unique,
};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a worker waits for others that hold the file.
const BUSY: Duration = Duration::from_secs(20);
/// Version of the tables below.
const VERSION: i64 = 1;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS run(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, options TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS list(run INTEGER NOT NULL REFERENCES run(id), name TEXT NOT NULL, PRIMARY KEY(run, name)) STRICT;
CREATE TABLE IF NOT EXISTS task(
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL REFERENCES run(id),
  class TEXT NOT NULL,
  problem TEXT NOT NULL,
  work REAL NOT NULL,
  state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'leased', 'done', 'failed')),
  epoch INTEGER NOT NULL DEFAULT 0,
  holder TEXT,
  boot TEXT,
  progress REAL,
  lapses INTEGER NOT NULL DEFAULT 0,
  spent REAL NOT NULL DEFAULT 0,
  best_us REAL,
  best_plan TEXT,
  reason TEXT,
  UNIQUE(run, class, problem),
  CHECK ((state = 'leased') = (holder IS NOT NULL))
) STRICT;
CREATE INDEX IF NOT EXISTS todo ON task(run, class, state, work DESC);
CREATE TABLE IF NOT EXISTS failure(task INTEGER NOT NULL REFERENCES task(id), gpu TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS mark(id INTEGER PRIMARY KEY, task INTEGER NOT NULL, epoch INTEGER NOT NULL, plan TEXT NOT NULL) STRICT;
";

/// The tasks of one host.
#[derive(Debug)]
pub struct HostQueue {
    path: PathBuf,
    connection: Connection,
    run: i64,
    class: String,
    gpu: String,
    holder: String,
    lease: Duration,
    boot: String,
    _file: HolderFile,
}

/// A task that somebody holds.
struct Held {
    task: i64,
    holder: String,
    boot: Option<String>,
    progress: Option<f64>,
}

impl HostQueue {
    /// Joins a run in a file, which is made where there is none, and adds the tasks that it lacks.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn join(path: &Path, run: &RunSpec, class: &str, gpu: &str, tasks: &[NewTask]) -> Result<HostQueue, FleetError> {
        let failed = |e: rusqlite::Error| failure(path, &e);
        let mut connection = Connection::open(path).map_err(failed)?;
        connection.busy_timeout(BUSY).map_err(failed)?;
        log_ahead(&connection).map_err(failed)?;
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        let version: i64 = connection.query_row("PRAGMA user_version", [], |r| r.get(0)).map_err(failed)?;
        if version > VERSION {
            let reason = format!("its tables have version {version}, this tilewright knows {VERSION}: use the newer tilewright");
            return Err(FleetError::File { path: path.into(), reason });
        }
        let t = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let id = add(&t, run, class, tasks).map_err(failed)??;
        t.commit().map_err(failed)?;
        let holder = unique();
        let file = HolderFile::new(path, &holder)?;
        Ok(HostQueue {
            path: path.into(),
            connection,
            run: id,
            class: class.into(),
            gpu: gpu.into(),
            holder,
            lease: run.lease,
            boot: boot_id(),
            _file: file,
        })
    }

    /// How far a run is.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn count(path: &Path, run: &str) -> Result<Counted, FleetError> {
        let failed = |e: rusqlite::Error| failure(path, &e);
        let connection = Connection::open(path).map_err(failed)?;
        let sql = "SELECT coalesce(sum(t.state = 'open'), 0), coalesce(sum(t.state = 'leased'), 0), coalesce(sum(t.state = 'done'), 0), \
             coalesce(sum(t.state = 'failed'), 0), coalesce(sum(t.work) FILTER (WHERE t.state = 'done') / sum(t.work), 0.0) \
             FROM task t JOIN run r ON r.id = t.run WHERE r.name = ?1";
        let read = |r: &rusqlite::Row<'_>| {
            let left = Left { open: r.get(0)?, refused: 0, leased: r.get(1)?, done: r.get(2)?, failed: r.get(3)? };
            Ok(Counted { left, share: r.get(4)? })
        };
        connection.query_row(sql, [run], read).map_err(failed)
    }

    fn write<T>(&mut self, run: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T, FleetError> {
        let path = self.path.clone();
        let go = || {
            let t = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let given = run(&t)?;
            t.commit().map(|()| given)
        };
        // One call only: the closure is consumed.
        go().map_err(|e| failure(&path, &e))
    }
}

/// Sets the write-ahead log. SQLite does not wait here for another process that opens the new file, so this does.
fn log_ahead(connection: &Connection) -> rusqlite::Result<()> {
    let end = Instant::now() + BUSY;
    loop {
        match connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())) {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            ended => return ended,
        }
    }
}

fn failure(path: &Path, e: &rusqlite::Error) -> FleetError {
    FleetError::File { path: path.into(), reason: format!("{e}; name records on a disk of this machine that may be written") }
}

/// Adds a run and its tasks; the run's number.
fn add(t: &Transaction<'_>, run: &RunSpec, class: &str, tasks: &[NewTask]) -> rusqlite::Result<Result<i64, FleetError>> {
    t.execute_batch(TABLES)?;
    t.pragma_update(None, "user_version", VERSION)?;
    t.execute("INSERT INTO run(name, options) VALUES (?1, ?2) ON CONFLICT DO NOTHING", params![run.name, run.options])?;
    let (id, options): (i64, String) =
        t.query_row("SELECT id, options FROM run WHERE name = ?1", [&run.name], |r| Ok((r.get(0)?, r.get(1)?)))?;
    if options != run.options {
        return Ok(Err(other_options(&run.name, &options, &run.options)));
    }
    let list = list_name(tasks);
    let known: Option<bool> = t.query_row("SELECT max(name = ?2) FROM list WHERE run = ?1", params![id, list], |r| r.get(0))?;
    if known == Some(false) && !run.extend {
        return Ok(Err(other_cases(&run.name)));
    }
    t.execute("INSERT INTO list(run, name) VALUES (?1, ?2) ON CONFLICT DO NOTHING", params![id, list])?;
    let mut insert = t.prepare("INSERT INTO task(run, class, problem, work) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING")?;
    for task in tasks {
        insert.execute(params![id, class, task.problem, task.work])?;
    }
    Ok(Ok(id))
}

/// True if the holder of a task is gone, or lives and has made no progress for a lease time of this machine's run.
fn is_lost(path: &Path, held: &Held, boot: &str, now: Option<f64>, lease: Duration) -> bool {
    if !HolderFile::lives(path, &held.holder) {
        return true;
    }
    match (held.boot.as_deref(), held.progress, now) {
        // Times of another run of the machine say nothing.
        (Some(then), Some(progress), Some(now)) if then == boot => now - progress > lease.as_secs_f64(),
        _ => false,
    }
}

impl Queue for HostQueue {
    fn lease_time(&self) -> Duration {
        self.lease
    }

    fn claim(&mut self) -> Result<Option<Lease>, FleetError> {
        let (path, run, class, gpu) = (self.path.clone(), self.run, self.class.clone(), self.gpu.clone());
        let (holder, boot, lease) = (self.holder.clone(), self.boot.clone(), self.lease);
        self.write(|t| {
            let read = |r: &rusqlite::Row<'_>| {
                Ok(Held { task: r.get(0)?, holder: r.get(1)?, boot: r.get(2)?, progress: r.get(3)? })
            };
            let held: Vec<Held> = t
                .prepare_cached(
                    "SELECT id, holder, boot, progress FROM task WHERE run = ?1 AND class = ?2 AND state = 'leased' ORDER BY work DESC",
                )?
                .query_map(params![run, class], read)?
                .collect::<rusqlite::Result<_>>()?;
            let now = boottime();
            for lost in held.iter().filter(|held| is_lost(&path, held, &boot, now, lease)) {
                t.execute(
                    "UPDATE task SET state = 'open', holder = NULL, lapses = lapses + 1 WHERE id = ?1 AND state = 'leased'",
                    [lost.task],
                )?;
                if !HolderFile::lives(&path, &lost.holder) {
                    HolderFile::sweep(&path, &lost.holder);
                }
            }
            let free: Option<i64> = t
                .prepare_cached(
                    "SELECT id FROM task WHERE run = ?1 AND class = ?2 AND state = 'open' \
                     AND (SELECT count(*) FROM failure f WHERE f.task = task.id AND f.gpu = ?3) < ?4 ORDER BY work DESC, id LIMIT 1",
                )?
                .query_row(params![run, class, gpu, OWN_FAILURES], |r| r.get(0))
                .optional()?;
            let Some(free) = free else { return Ok(None) };
            let read = |r: &rusqlite::Row<'_>| {
                Ok(Lease { task: free, epoch: r.get(0)?, problem: r.get(1)?, lapses: r.get(2)?, spent: r.get(3)? })
            };
            t.prepare_cached(
                "UPDATE task SET state = 'leased', holder = ?2, boot = ?3, progress = ?4, epoch = epoch + 1 WHERE id = ?1 \
                 RETURNING epoch, problem, lapses, spent",
            )?
            .query_row(params![free, holder, boot, now], read)
            .optional()
        })
    }

    fn renew(&mut self, lease: &Lease, spent: f64) -> Result<bool, FleetError> {
        let (task, epoch) = (lease.task, lease.epoch);
        self.write(|t| {
            t.prepare_cached("UPDATE task SET progress = ?3, spent = ?4 WHERE id = ?1 AND epoch = ?2 AND state = 'leased'")?
                .execute(params![task, epoch, boottime(), spent])
        })
        .map(|rows| rows == 1)
    }

    fn end(&mut self, lease: &Lease, end: &End) -> Result<bool, FleetError> {
        let gpu = self.gpu.clone();
        self.write(|t| {
            let fenced = "WHERE id = ?1 AND epoch = ?2 AND state = 'leased'";
            let (task, epoch) = (lease.task, lease.epoch);
            match end {
                End::Done { best_us, best_plan, .. } => t.execute(
                    &format!("UPDATE task SET state = 'done', holder = NULL, best_us = ?3, best_plan = ?4 {fenced}"),
                    params![task, epoch, best_us, best_plan],
                ),
                End::Open { spent } => t.execute(
                    &format!("UPDATE task SET state = 'open', holder = NULL, spent = ?3 {fenced}"),
                    params![task, epoch, spent],
                ),
                End::Failed { reason } => {
                    let rows = t.execute(
                        &format!("UPDATE task SET state = 'open', holder = NULL, reason = ?3 {fenced}"),
                        params![task, epoch, reason],
                    )?;
                    if rows == 1 {
                        t.execute("INSERT INTO failure(task, gpu) VALUES (?1, ?2)", params![task, gpu])?;
                        t.execute(
                            "UPDATE task SET state = 'failed' WHERE id = ?1 AND \
                             (SELECT count(*) >= ?2 AND count(DISTINCT gpu) > 1 FROM failure WHERE task = ?1)",
                            params![task, FAILURES],
                        )?;
                    }
                    Ok(rows)
                }
            }
        })
        .map(|rows| rows == 1)
    }

    /// Nothing: workers of one host share their records.
    fn ship(&mut self, _: &Lease, _: &[Line]) -> Result<(), FleetError> {
        Ok(())
    }

    /// None, as [`Queue::ship`].
    fn trials(&mut self, _: &Lease) -> Result<Vec<Pulled>, FleetError> {
        Ok(Vec::new())
    }

    fn mark(&mut self, lease: &Lease, plan: &str) -> Result<(), FleetError> {
        let (task, epoch) = (lease.task, lease.epoch);
        self.write(|t| t.execute("INSERT INTO mark(task, epoch, plan) VALUES (?1, ?2, ?3)", params![task, epoch, plan])).map(drop)
    }

    /// None: the records' own marks tell crashes from kills.
    fn hung(&mut self, _: &Lease) -> Result<Vec<String>, FleetError> {
        Ok(Vec::new())
    }

    fn left(&mut self) -> Result<Left, FleetError> {
        let (run, class, gpu) = (self.run, self.class.clone(), self.gpu.clone());
        self.write(|t| {
            t.prepare_cached(
                "SELECT coalesce(sum(state = 'open' AND own < ?4), 0), coalesce(sum(state = 'open' AND own >= ?4), 0), \
                 coalesce(sum(state = 'leased'), 0), coalesce(sum(state = 'done'), 0), coalesce(sum(state = 'failed'), 0) \
                 FROM (SELECT state, (SELECT count(*) FROM failure f WHERE f.task = task.id AND f.gpu = ?3) AS own \
                 FROM task WHERE run = ?1 AND class = ?2)",
            )?
            .query_row(params![run, class, gpu, OWN_FAILURES], |r| {
                Ok(Left { open: r.get(0)?, refused: r.get(1)?, leased: r.get(2)?, done: r.get(3)?, failed: r.get(4)? })
            })
        })
    }
}
