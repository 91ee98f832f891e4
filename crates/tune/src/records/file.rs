//! Records in a file of SQLite.

use super::rows::{
    CURRENT, TRIAL_COLUMNS, append_trial, clear_mark, current, depth_number, device_id, finite, imported, problem_id,
    read_current, read_trial, readable, source_id,
};
use super::{DeviceKey, Filter, Near, RecordsError, TIMING, Trial, VERIFIER, Witness, journal, listing, marks, schema, shapes};
use crate::key::ProblemKey;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The trials of [`Records::trials`], with their ids.
fn own_trials() -> String {
    format!("SELECT t.id, {TRIAL_COLUMNS} FROM trials t WHERE {CURRENT}")
}

/// The trials of [`Records::best`], best first.
fn best_trials() -> String {
    format!(
        "SELECT {TRIAL_COLUMNS} FROM trials t WHERE {CURRENT} AND t.state = 'ok' AND t.verified = 2 \
         AND t.verified_by = (SELECT id FROM sources WHERE text = ?7) \
         AND NOT EXISTS (SELECT 1 FROM trials w WHERE w.problem = t.problem AND w.device = t.device \
           AND w.generator = t.generator AND w.plan_hash = t.plan_hash AND w.plan = t.plan \
           AND ((w.state = 'wrong' AND w.verified_by = (SELECT id FROM sources WHERE text = ?7)) OR (w.state = 'hung' AND w.id > t.id))) \
         ORDER BY t.time_kind = 'modelled', t.time_us, t.id"
    )
}

/// The plans of [`Records::candidates`].
const CANDIDATES: &str = "SELECT t.plan FROM trials t JOIN problems p ON p.id = t.problem JOIN devices d ON d.id = t.device \
     WHERE p.key = ?1 AND d.name = ?2 AND t.state = 'ok' AND t.verified > 0 \
     GROUP BY t.plan ORDER BY min(t.time_kind = 'modelled'), min(t.time_us) LIMIT ?3";

/// Removes the trials of a problem that [`Records::prune`] does not keep.
pub(super) const LOSERS: &str = "DELETE FROM trials WHERE problem = ?1 AND (state IN ('refused', 'failed') OR id IN (SELECT id FROM (SELECT id, verified, \
     row_number() OVER (PARTITION BY device, generator, time_kind ORDER BY time_us, id) AS place, \
     row_number() OVER (PARTITION BY device, generator, time_kind, verified ORDER BY time_us, id) AS among \
     FROM trials WHERE problem = ?1 AND state = 'ok') WHERE place > ?2 AND NOT (verified = 2 AND among = 1)))";

/// An open records file. Methods may be called from any thread.
///
/// ```
/// use tilewright_tune::Records;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
/// use tilewright_tune::ProblemKey;
/// use tilewright_tune::records::{DeviceKey, TimeKind, Trial};
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// # let space = Space::new(&Gemm::new(Scalar::F32, 64, 64, 64).build()?.into(), &target)?;
/// # let problem = ProblemKey::of(&space);
/// # let device = DeviceKey { name: "a device".into(), fingerprint: "its driver".into() };
/// let records = Records::in_memory()?;
/// records.add(&problem, "layer", &device, "1", &Trial::timed("A_MIC4", 12.5, TimeKind::Measured))?;
/// assert_eq!(records.trials(&problem, &device, "1")?.len(), 1);
/// // Its result was not verified thoroughly: nobody gets it as the best plan.
/// assert_eq!(records.best(&problem, &device, "1")?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Records {
    pub(super) path: PathBuf,
    connection: Mutex<Connection>,
    /// Shows other processes that this one lives, from its first mark on.
    pub(super) alive: Mutex<Option<marks::Alive>>,
    pub(super) witness: Mutex<Option<Witness>>,
}

impl Records {
    /// Opens a records file, creating it (and its folder) where there is none. An existing file that is not a sound
    /// records file is refused and left untouched. One that may not be written can be read.
    ///
    /// # Errors
    /// [`RecordsError`] names the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Records, RecordsError> {
        let path = path.as_ref().to_path_buf();
        let connection = schema::open(&path)?;
        Ok(Records::of(path, connection))
    }

    /// Opens a records file that must be there already.
    ///
    /// # Errors
    /// [`RecordsError::Absent`]; those of [`Records::open`].
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Records, RecordsError> {
        if !path.as_ref().exists() {
            return Err(RecordsError::Absent { path: path.as_ref().to_path_buf() });
        }
        Records::open(path)
    }

    /// Opens a records file that must be there already, to be read alone: also one on a network file system.
    ///
    /// # Errors
    /// As [`Records::open_existing`].
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<Records, RecordsError> {
        let path = path.as_ref().to_path_buf();
        if !path.exists() {
            return Err(RecordsError::Absent { path });
        }
        let connection = schema::open_to_read(&path)?;
        Ok(Records::of(path, connection))
    }

    /// Records that live in memory and vanish with the value: for tests and for tuning that keeps nothing.
    ///
    /// # Errors
    /// [`RecordsError::Io`] when memory runs out.
    pub fn in_memory() -> Result<Records, RecordsError> {
        let path = PathBuf::from(":memory:");
        let connection = schema::in_memory().map_err(|e| schema::classify(&path, e))?;
        Ok(Records::of(path, connection))
    }

    pub(super) fn of(path: PathBuf, connection: Connection) -> Records {
        Records { path, connection: Mutex::new(connection), alive: Mutex::default(), witness: Mutex::default() }
    }

    pub(super) fn is_in_memory(&self) -> bool {
        self.path.as_os_str() == ":memory:"
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Connection> {
        // A thread that panicked in between left no half-done transaction: dropping it rolled back.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn err(&self, e: rusqlite::Error) -> RecordsError {
        schema::classify(&self.path, e)
    }

    /// What a query gives.
    pub(super) fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, RecordsError> {
        query(&self.lock()).map_err(|e| self.err(e))
    }

    /// What a write transaction gives, once it is committed.
    pub(super) fn write<T>(&self, run: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T, RecordsError> {
        let run = |c: &mut Connection| {
            let t = c.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let given = run(&t)?;
            t.commit().map(|()| given)
        };
        run(&mut self.lock()).map_err(|e| self.err(e))
    }

    /// As [`Records::write`], for what can do without: another process's transaction is waited for no longer than this.
    pub(super) fn write_within<T>(
        &self,
        wait: Duration,
        run: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, RecordsError> {
        let wait_for = |time| self.lock().busy_timeout(time).map_err(|e| self.err(e));
        wait_for(wait)?;
        let written = self.write(run);
        wait_for(schema::BUSY)?;
        written
    }

    /// Records one trial, durably against the end of this process, and clears its mark of [`Records::begin`].
    ///
    /// # Errors
    /// [`RecordsError::Io`], [`RecordsError::Damaged`].
    pub fn add(
        &self,
        problem: &ProblemKey,
        name: &str,
        device: &DeviceKey,
        generator: &str,
        trial: &Trial,
    ) -> Result<(), RecordsError> {
        self.write(|t| append_trial(t, problem_id(t, problem, name)?, device_id(t, device)?, generator, trial))
    }

    /// Records that the result of a timed plan was verified more deeply, and clears its mark of [`Records::begin`]. The plan's
    /// last timed trial holds the deeper verification from now on. Without such a trial this one is added.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn record_depth(
        &self,
        problem: &ProblemKey,
        name: &str,
        device: &DeviceKey,
        generator: &str,
        trial: &Trial,
    ) -> Result<(), RecordsError> {
        self.write(|t| {
            let (p, d) = (problem_id(t, problem, name)?, device_id(t, device)?);
            let changed = t
                .prepare_cached(
                    "UPDATE trials SET verified = ?5, max_error = ?6, verified_by = ?7 WHERE id = (SELECT max(id) FROM trials \
                     WHERE problem = ?1 AND device = ?2 AND generator = (SELECT id FROM sources WHERE text = ?3) \
                     AND plan_hash = hash(?4) AND plan = ?4 AND state = 'ok')",
                )?
                .execute(params![
                    p,
                    d,
                    generator,
                    trial.plan,
                    depth_number(trial.verified),
                    finite(trial.max_error),
                    source_id(t, VERIFIER)?
                ])?;
            if changed == 0 { append_trial(t, p, d, generator, trial) } else { clear_mark(t, p, d, generator, &trial.plan) }
        })
    }

    /// Every valid trial of one problem on one device by one generator version, oldest first. A trial whose time was measured or modelled by other
    /// sources is left out. A verification by other sources counts as none.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn trials(&self, problem: &ProblemKey, device: &DeviceKey, generator: &str) -> Result<Vec<Trial>, RecordsError> {
        let mut trials: Vec<(i64, Trial)> = self.read(|c| {
            let read = |r: &rusqlite::Row<'_>| Ok((r.get(0)?, read_current(r, 1)?));
            let mut statement = c.prepare_cached(&own_trials())?;
            statement.query_map(current(&problem.text(), device, generator), read)?.filter_map(readable).collect()
        })?;
        // Cheaper than SQLite's sort, which carries whole rows.
        trials.sort_unstable_by_key(|(id, _)| *id);
        Ok(trials.into_iter().map(|(_, trial)| trial).collect())
    }

    /// The fastest thoroughly verified trial of a problem on a device by a generator version, of a plan that was never found wrong.
    /// Measured times win over modelled ones, whatever they are.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn best(&self, problem: &ProblemKey, device: &DeviceKey, generator: &str) -> Result<Option<Trial>, RecordsError> {
        self.read(|c| {
            let mut statement = c.prepare_cached(&best_trials())?;
            let mut rows = statement.query_map(current(&problem.text(), device, generator), |r| read_current(r, 0))?;
            rows.find_map(readable).transpose()
        })
    }

    /// The fastest measured trial of a problem that [`Records::import`] brought from elsewhere, of today's generator. Nobody verified it
    /// here: only for kernels that are built ahead for a device that is not here.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn best_imported(
        &self,
        problem: &ProblemKey,
        device: &DeviceKey,
        generator: &str,
    ) -> Result<Option<Trial>, RecordsError> {
        let sql = format!(
            "SELECT {TRIAL_COLUMNS} FROM trials t WHERE t.problem = (SELECT id FROM problems WHERE key = ?1) \
             AND t.device = (SELECT id FROM devices WHERE name = ?2 AND fingerprint = ?3) \
             AND t.generator = (SELECT id FROM sources WHERE text = ?4) AND t.timed_by = (SELECT id FROM sources WHERE text = ?5) AND t.time_kind = 'measured' AND t.verified > 0 ORDER BY t.time_us, t.id"
        );
        self.read(|c| {
            let mut statement = c.prepare_cached(&sql)?;
            let values = params![problem.text(), device.name, device.fingerprint, generator, imported(TIMING)];
            let mut rows = statement.query_map(values, |r| read_trial(r, 0))?;
            rows.find_map(readable).transpose()
        })
    }

    /// Plans of a problem that were right and fast on devices of the same name, fastest first, with any driver and sources. They
    /// are candidates to be verified and timed first where the driver or the sources have changed.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn candidates(&self, problem: &ProblemKey, device: &DeviceKey, count: usize) -> Result<Vec<String>, RecordsError> {
        let most = i64::try_from(count).unwrap_or(i64::MAX);
        self.read(|c| {
            c.prepare_cached(CANDIDATES)?.query_map(params![problem.text(), device.name, most], |r| r.get(0))?.collect()
        })
    }

    /// The best verified plans of the `count` recorded problems nearest to this one, nearest first: one per recorded
    /// problem and device. The problem itself takes part. Other devices and generator versions count as further away.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn nearest(
        &self,
        problem: &ProblemKey,
        device: &DeviceKey,
        generator: &str,
        count: usize,
    ) -> Result<Vec<Near>, RecordsError> {
        self.nearest_of(problem, device, generator, count, &|_| true)
    }

    /// As [`Records::nearest`], of the problems whose names are taken.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn nearest_of(
        &self,
        problem: &ProblemKey,
        device: &DeviceKey,
        generator: &str,
        count: usize,
        takes: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Near>, RecordsError> {
        // A file of an older tilewright that may not be written.
        let lacks = "SELECT (SELECT max(id) FROM problems) > (SELECT coalesce(max(problem), 0) FROM shapes)";
        let lacks: Option<bool> = self.read(|c| c.query_row(lacks, [], |r| r.get(0)))?;
        if lacks == Some(true) {
            self.read(shapes::fill)?;
        }
        self.read(|c| shapes::nearest(c, problem, device, generator, count, takes))
    }

    /// True unless the file may only be read.
    pub fn is_writable(&self) -> bool {
        self.lock().is_readonly("main").is_ok_and(|is| !is)
    }

    /// Removes trials that no search misses, and makes the file smaller. For each problem, device, generator and kind of time it
    /// keeps the fastest `keep` trials and the fastest trial that was verified thoroughly. It also keeps trials that were found
    /// wrong or hung. Gives the number of removed trials.
    ///
    /// # Errors
    /// As [`Records::add`]; nothing is removed then.
    pub fn prune(&self, keep: usize) -> Result<usize, RecordsError> {
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        let count = self.write(|t| {
            // One statement for all problems would sort all rows, and hold the numbers of all that go.
            let (mut problems, mut delete) = (t.prepare("SELECT id FROM problems")?, t.prepare(LOSERS)?);
            let (mut problems, mut count) = (problems.query([])?, 0);
            while let Some(row) = problems.next()? {
                count += delete.execute([row.get(0)?, keep])?;
            }
            journal::renew(t)?;
            Ok(count)
        })?;
        self.read(schema::compact)?;
        Ok(count)
    }

    /// Removes the records that pass a filter; gives their number. A filter that names neither state nor depth also removes looks and
    /// picks.
    ///
    /// # Errors
    /// As [`Records::add`]; nothing is removed then.
    pub fn remove(&self, filter: &Filter) -> Result<usize, RecordsError> {
        self.write(|t| {
            if filter.state.is_none() && filter.verified.is_none() {
                let named = [&filter.problem, &filter.device].map(|name| name.as_deref().unwrap_or_default());
                for table in ["looks", "picks"] {
                    let rows = "problem IN (SELECT id FROM problems WHERE instr(name, ?1)) \
                         AND device IN (SELECT id FROM devices WHERE instr(name, ?2))";
                    t.execute(&format!("DELETE FROM {table} WHERE {rows}"), named)?;
                }
            }
            let count = listing::remove(t, filter)?;
            journal::renew(t)?;
            Ok(count)
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
