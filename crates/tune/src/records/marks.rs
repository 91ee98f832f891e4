//! Marks of plans that are running. One that outlives its process shows that the plan may have taken the process down, or the machine.
//!
//! A file beside the records shows who made a mark. The process keeps its file locked, and the operating system releases the lock
//! however the process ends. That holds also in another container or after a restart of the machine, where a process id says
//! nothing. The file's content shows how the process ended. It names the machine and since when that runs, and a crash is noted
//! in it ([`tilewright_device::note_crashes`]). A process that was killed says nothing about the plan it was running.

use super::rows::{append_trial, device_id, problem_id};
use super::{DeviceKey, Records, RecordsError, State, Trial};
use crate::key::ProblemKey;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use tilewright_device::CRASHED;

/// Crashes of processes and falls of the machine while a plan runs before it counts as hung: one may have other reasons.
const DOWNS: i64 = 2;

/// The locked file that shows that this process lives.
#[derive(Debug)]
pub(super) struct Alive {
    owner: String,
    path: PathBuf,
    /// Locked for as long as it is open.
    file: File,
}

impl Drop for Alive {
    fn drop(&mut self) {
        // If this fails, the next process that looks for marks removes the file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where an owner's file lies.
fn place(records: &Path, owner: &str) -> PathBuf {
    let mut path = records.as_os_str().to_os_string();
    path.push(format!("-alive-{owner}"));
    PathBuf::from(path)
}

/// What became of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Alive,
    /// It ended, or a signal ended it.
    Gone,
    /// It crashed, or the machine went down under it.
    Down,
}

impl Owner {
    /// Only within a write transaction of the records: files are made within one, too, so that none is met before it is locked.
    fn of(records: &Path, owner: &str) -> Owner {
        let Ok(mut file) = File::open(place(records, owner)) else { return Owner::Gone };
        // Where a file system has no locks nothing is known, and nobody is declared dead.
        if file.try_lock().is_err() {
            return Owner::Alive;
        }
        let mut text = Vec::new();
        let _ = file.read_to_end(&mut text);
        if crashed(&text, &machine()) { Owner::Down } else { Owner::Gone }
    }
}

/// This machine and since when it runs, a line each; empty where the system does not tell.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let (name, id) = (read("/proc/sys/kernel/hostname"), read("/etc/machine-id"));
    if name.is_empty() || id.is_empty() {
        // Another machine that shares the file would pass for this one after a restart.
        return "\n\n".into();
    }
    format!("{name} {id}\n{}\n", read("/proc/sys/kernel/random/boot_id"))
}

/// True if the file of a process that is gone tells of a crash, or of this machine before a restart.
fn crashed(file: &[u8], now: &str) -> bool {
    let text = String::from_utf8_lossy(file);
    let (mut then, mut now) = (text.lines(), now.lines());
    let same_machine = then.next().is_some_and(|name| !name.is_empty() && Some(name) == now.next());
    let restarted = same_machine && then.next() != now.next();
    file.ends_with(CRASHED) || restarted
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
        let mut file = File::create_new(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        file.write_all(machine().as_bytes()).map_err(failed)?;
        *alive = Some(Alive { owner: owner.clone(), path, file });
        Ok(owner)
    }

    /// The file to note a crash of this process in ([`tilewright_device::note_crashes`]); none for records in memory.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn crash_file(&self) -> Result<Option<File>, RecordsError> {
        let mut connection = self.lock();
        let t = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|e| self.err(e))?;
        self.owner()?;
        t.commit().map_err(|e| self.err(e))?;
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = |a: &Alive| a.file.try_clone().map_err(|e| RecordsError::Io { path: a.path.clone(), reason: e.to_string() });
        alive.as_ref().map(copy).transpose()
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
        self.tell(plan);
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
            let down = before.flatten().is_some_and(|before| before != owner && Owner::of(&self.path, &before) == Owner::Down);
            t.prepare_cached(
                "INSERT INTO inflight(problem, device, generator, plan, owner, deaths) VALUES (?1, ?2, ?3, ?4, ?5, 0) \
                 ON CONFLICT DO UPDATE SET owner = excluded.owner, deaths = deaths + ?6",
            )?
            .execute(params![p, d, generator, plan, owner, down])?;
            Ok(())
        };
        run(&t).and_then(|()| t.commit()).map_err(err)
    }

    /// Looks at the marks of processes that are gone. A plan that was running when one of them crashed or the machine went down
    /// may be tried once more. The crash may have had other reasons. One that was running twice becomes a trial of state
    /// [`State::Hung`]. Gives the number of those. Processes that were killed do not count, however many.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn recover(&self) -> Result<usize, RecordsError> {
        if self.is_in_memory() {
            return Ok(0);
        }
        self.write(|t| {
            let marks: Vec<(i64, i64, String, String, String, i64)> = t
                .prepare("SELECT problem, device, generator, plan, owner, deaths FROM inflight WHERE owner IS NOT NULL")?
                .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let mut hung = 0;
            for (p, d, generator, plan, owner, downs) in marks {
                let down = match Owner::of(&self.path, &owner) {
                    Owner::Alive => continue,
                    Owner::Gone => 0,
                    Owner::Down => 1,
                };
                if downs + down >= DOWNS {
                    let reason = format!("its process crashed or the machine went down while it ran, {DOWNS} times");
                    append_trial(t, p, d, &generator, &Trial::unmeasured(&plan, State::Hung, &reason))?;
                    hung += 1;
                } else {
                    t.execute(
                        "UPDATE inflight SET owner = NULL, deaths = deaths + ?5 \
                         WHERE problem = ?1 AND device = ?2 AND generator = ?3 AND plan = ?4",
                        params![p, d, generator, plan, down],
                    )?;
                }
            }
            t.execute("DELETE FROM inflight WHERE owner IS NULL AND deaths = 0", [])?;
            self.sweep(t)?;
            Ok(hung)
        })
    }

    /// Removes the files of processes that are gone and have no marks; within a write transaction.
    fn sweep(&self, t: &Connection) -> rusqlite::Result<()> {
        let Some(prefix) = self.path.file_name().map(|name| format!("{}-alive-", name.to_string_lossy())) else { return Ok(()) };
        let folder = self.path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(owner) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else { continue };
            let marks: i64 = t.query_row("SELECT count(*) FROM inflight WHERE owner = ?1", [owner], |r| r.get(0))?;
            if marks == 0 && Owner::of(&self.path, owner) != Owner::Alive {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_of_the_same_machine_is_distinguished_from_other_machines() {
        let now = "host id\nsecond\n";
        assert!(!crashed(b"host id\nsecond\n", now) && crashed(b"host id\nfirst\n", now));
        assert!(crashed(b"host id\nsecond\ncrashed\n", now) && crashed(b"other\nfirst\ncrashed\n", now));
        assert!(!crashed(b"other id\nfirst\n", now));
        // Where it is not told, or was not written to the end.
        for file in ["", "\n\n", "host"] {
            assert!(!crashed(file.as_bytes(), now) && !crashed(file.as_bytes(), "\n\n"), "{file:?}");
        }
        assert!(!crashed(b"\nfirst\n", "\nsecond\n"));
        assert_eq!(machine().lines().count(), 2);
    }
}
