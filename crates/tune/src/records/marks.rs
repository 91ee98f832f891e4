//! Marks of plans that are running. One that outlives its process shows that the plan may have taken the process down.
//!
//! Who made a mark is known by a file beside the records that its process keeps locked: the operating system releases the lock
//! however the process ends, also in another container or after a restart of the machine, where a process id says nothing.

use super::rows::{append_trial, device_id, problem_id};
use super::{DeviceKey, Records, RecordsError, State, Trial};
use crate::key::ProblemKey;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

/// Processes that end while a plan runs before it counts as hung. One may have been killed for other reasons, and of hundreds of kills
/// at random moments two do meet the same plan twice.
const DEATHS: i64 = 3;

/// The locked file that shows that this process lives.
#[derive(Debug)]
pub(super) struct Alive {
    owner: String,
    path: PathBuf,
    /// Locked for as long as it is open.
    _file: File,
}

impl Drop for Alive {
    fn drop(&mut self) {
        // One that stays behind is removed by the next process that looks.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where an owner's file lies.
fn place(records: &Path, owner: &str) -> PathBuf {
    let mut path = records.as_os_str().to_os_string();
    path.push(format!("-alive-{owner}"));
    PathBuf::from(path)
}

/// True while an owner's process runs. The file of one that is gone is removed. Only within a write transaction of the records: files
/// are made within one, too, so that none is met before it is locked.
fn is_alive(records: &Path, owner: &str) -> bool {
    let path = place(records, owner);
    let Ok(file) = File::open(&path) else { return false };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => true,
        // A file system without locks: nothing is known, and nobody is declared dead.
        Err(TryLockError::Error(_)) => true,
        Ok(()) => {
            let _ = std::fs::remove_file(&path);
            false
        }
    }
}

impl Records {
    /// The name this process's marks have, made (with its file) within a write transaction when first needed.
    fn owner(&self) -> Result<String, RecordsError> {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(alive) = alive.as_ref() {
            return Ok(alive.owner.clone());
        }
        let owner = format!("{:016x}", rand::random::<u64>());
        if self.is_in_memory() {
            return Ok(owner);
        }
        let path = place(&self.path, &owner);
        let failed =
            |e: std::io::Error| RecordsError::Io { path: path.clone(), reason: format!("{e}; it shows that this process runs") };
        let file = File::create_new(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        *alive = Some(Alive { owner: owner.clone(), path, _file: file });
        Ok(owner)
    }

    /// Marks a plan as about to run. [`Records::add`] takes the mark back. One that outlives its process shows that the plan may have
    /// taken the process (or the machine) down; see [`Records::recover`].
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn begin(
        &self,
        problem: &ProblemKey,
        name: &str,
        device: &DeviceKey,
        generator: &str,
        plan: &str,
    ) -> Result<(), RecordsError> {
        let mut connection = self.lock();
        let err = |e| self.err(e);
        let t = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(err)?;
        let owner = self.owner()?;
        let run = |t: &Connection| -> rusqlite::Result<()> {
            let (p, d) = (problem_id(t, problem, name)?, device_id(t, device)?);
            let before: Option<Option<String>> = t
                .prepare_cached("SELECT owner FROM inflight WHERE problem = ?1 AND device = ?2 AND generator = ?3 AND plan = ?4")?
                .query_row(params![p, d, generator, plan], |r| r.get(0))
                .optional()?;
            let died = before.flatten().is_some_and(|before| before != owner && !is_alive(&self.path, &before));
            t.prepare_cached(
                "INSERT INTO inflight(problem, device, generator, plan, owner, deaths) VALUES (?1, ?2, ?3, ?4, ?5, 0) \
                 ON CONFLICT DO UPDATE SET owner = excluded.owner, deaths = deaths + ?6",
            )?
            .execute(params![p, d, generator, plan, owner, died])?;
            Ok(())
        };
        run(&t).and_then(|()| t.commit()).map_err(err)
    }

    /// Takes back this process's marks without trials: it ends because it was told to.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn abandon(&self) -> Result<(), RecordsError> {
        let owner = self.alive.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|a| a.owner.clone());
        let run = |c: &mut Connection| -> rusqlite::Result<()> {
            let t = c.transaction_with_behavior(TransactionBehavior::Immediate)?;
            t.execute("DELETE FROM inflight WHERE owner = ?1 AND deaths = 0", [&owner])?;
            t.execute("UPDATE inflight SET owner = NULL WHERE owner = ?1", [&owner])?;
            t.commit()
        };
        run(&mut self.lock()).map_err(|e| self.err(e))
    }

    /// Looks at the marks of processes that are gone. A plan that outlasted one or two processes may be tried once more: those may
    /// have been killed for other reasons. One that outlasted three becomes a trial of state [`State::Hung`]. Gives the number of those.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn recover(&self) -> Result<usize, RecordsError> {
        if self.is_in_memory() {
            return Ok(0);
        }
        let own = self.alive.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|a| a.owner.clone());
        let run = |c: &mut Connection| -> rusqlite::Result<usize> {
            let t = c.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let marks: Vec<(i64, i64, String, String, String, i64)> = t
                .prepare("SELECT problem, device, generator, plan, owner, deaths FROM inflight WHERE owner IS NOT NULL")?
                .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let mut hung = 0;
            for (p, d, generator, plan, owner, deaths) in marks {
                if own.as_ref() == Some(&owner) || is_alive(&self.path, &owner) {
                    continue;
                }
                if deaths + 1 >= DEATHS {
                    let reason = format!("{} processes ended while this candidate ran", deaths + 1);
                    append_trial(&t, p, d, &generator, &Trial::unmeasured(&plan, State::Hung, &reason))?;
                    hung += 1;
                } else {
                    t.execute(
                        "UPDATE inflight SET owner = NULL, deaths = deaths + 1 \
                         WHERE problem = ?1 AND device = ?2 AND generator = ?3 AND plan = ?4",
                        params![p, d, generator, plan],
                    )?;
                }
            }
            self.sweep();
            t.commit()?;
            Ok(hung)
        };
        run(&mut self.lock()).map_err(|e| self.err(e))
    }

    /// Removes the files of processes that were killed; within a write transaction.
    fn sweep(&self) {
        let Some(prefix) = self.path.file_name().map(|name| format!("{}-alive-", name.to_string_lossy())) else { return };
        let folder = self.path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if let Some(owner) = entry.file_name().to_str().and_then(|name| name.strip_prefix(&prefix)) {
                is_alive(&self.path, owner);
            }
        }
    }
}
