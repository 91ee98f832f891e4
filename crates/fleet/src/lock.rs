//! Locked files: a file that its process keeps locked shows that the process lives. The operating system releases the lock however
//! the process ends, also in another container, where a process id says nothing.

use crate::FleetError;
use crate::queue::{digest, unique};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Seconds since the machine started, time asleep included (`CLOCK_BOOTTIME`); no change of the wall clock moves it. `None` where
/// the system does not tell.
pub fn boottime() -> Option<f64> {
    std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()
}

/// Names the time since the last start of the machine.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

/// The file that shows that a holder of leases lives.
#[derive(Debug)]
pub struct HolderFile {
    path: PathBuf,
    /// Locked for as long as it is open.
    _file: File,
}

impl Drop for HolderFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn place(beside: &Path, holder: &str) -> PathBuf {
    let mut path = beside.as_os_str().to_os_string();
    path.push(format!("-holder-{holder}"));
    path.into()
}

impl HolderFile {
    /// Makes and locks the file of a holder beside a queue's file.
    ///
    /// # Errors
    /// [`FleetError::File`].
    pub fn new(beside: &Path, holder: &str) -> Result<HolderFile, FleetError> {
        let path = place(beside, holder);
        let failed = |e: std::io::Error| FleetError::File {
            path: path.clone(),
            reason: format!("{e}; it shows that this worker lives: name a records file in a folder that may be written"),
        };
        let file = File::create_new(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(HolderFile { path: path.clone(), _file: file })
    }

    /// True unless the holder is known to be gone: where a file system has no locks, nobody is declared dead.
    pub fn lives(beside: &Path, holder: &str) -> bool {
        File::open(place(beside, holder)).is_ok_and(|file| file.try_lock().is_err())
    }

    /// Removes what a holder that is gone has left.
    pub fn sweep(beside: &Path, holder: &str) {
        let _ = std::fs::remove_file(place(beside, holder));
    }
}

/// Locked for as long as a process times on a GPU: two at once would spoil each other's times.
#[derive(Debug)]
pub struct GpuLock {
    /// Locked for as long as it is open.
    _file: File,
    /// Names the file itself: who sees another file of this name is in another container.
    pub token: String,
}

impl GpuLock {
    /// Locks a GPU for this process; `None` while another process of this host has it.
    ///
    /// # Errors
    /// [`FleetError::File`] if the lock file cannot be made.
    pub fn take(folder: &Path, gpu: &str) -> Result<Option<GpuLock>, FleetError> {
        let path = folder.join(format!("tilewright-gpu-{}.lock", digest(gpu)));
        let failed = |e: std::io::Error| FleetError::File {
            path: path.clone(),
            reason: format!("{e}; it keeps two processes from timing on one GPU: set TMPDIR to a folder that may be written"),
        };
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        if file.try_lock().is_err() {
            return Ok(None);
        }
        let mut token = String::new();
        file.read_to_string(&mut token).map_err(failed)?;
        if token.is_empty() {
            token = unique();
            file.seek(SeekFrom::Start(0)).map_err(failed)?;
            file.write_all(token.as_bytes()).map_err(failed)?;
        }
        Ok(Some(GpuLock { _file: file, token }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_had_once_and_free_again_after_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let first = GpuLock::take(folder.path(), "GPU-1").unwrap().expect("it is free");
        assert!(GpuLock::take(folder.path(), "GPU-1").unwrap().is_none());
        assert!(GpuLock::take(folder.path(), "GPU-2").unwrap().is_some());
        let token = first.token.clone();
        drop(first);
        assert_eq!(GpuLock::take(folder.path(), "GPU-1").unwrap().expect("free again").token, token);
    }

    #[test]
    fn a_holder_lives_as_long_as_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let beside = folder.path().join("queue");
        assert!(!HolderFile::lives(&beside, "x"));
        let file = HolderFile::new(&beside, "x").unwrap();
        assert!(HolderFile::lives(&beside, "x"));
        drop(file);
        assert!(!HolderFile::lives(&beside, "x"));
    }

    #[test]
    fn time_since_the_start_of_the_machine_grows() {
        let (Some(first), Some(second)) = (boottime(), boottime()) else { return assert!(!Path::new("/proc/uptime").exists()) };
        assert!(first > 0.0 && second >= first);
    }
}
