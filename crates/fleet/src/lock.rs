//! Locked files: a file that its process keeps locked shows that the process lives. The operating system releases the lock however
//! the process ends, also in another container, where a process id says nothing.

use crate::FleetError;
use crate::queue::{digest, unique};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
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

    /// True unless the holder is known to be gone: where a file cannot be read or locked, nobody is declared dead.
    pub fn lives(beside: &Path, holder: &str) -> bool {
        match File::open(place(beside, holder)) {
            Ok(file) => file.try_lock().is_err(),
            Err(e) => e.kind() != ErrorKind::NotFound,
        }
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
    /// [`FleetError::File`] if the lock file can be neither made nor read.
    pub fn take(folder: &Path, gpu: &str) -> Result<Option<GpuLock>, FleetError> {
        let path = folder.join(format!("tilewright-gpu-{}.lock", digest(gpu)));
        let failed = |e: std::io::Error| FleetError::File {
            path: path.clone(),
            reason: format!("{e}; it keeps two processes from timing on one GPU: let this user read it"),
        };
        let mut file = open(&path).map_err(failed)?;
        if file.try_lock().is_err() {
            return Ok(None);
        }
        let mut token = String::new();
        file.read_to_string(&mut token).map_err(failed)?;
        if token.is_empty() {
            token = unique();
            let written = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(token.as_bytes()));
            if let Err(e) = written {
                // The next process has another token: the server then tells whether the GPU is free.
                tracing::debug!("{}: {e}", path.display());
            }
        }
        Ok(Some(GpuLock { _file: file, token }))
    }
}

/// Opens a lock file, which is made where there is none. Its owner alone writes it, and all users can lock it.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    // In a folder of all users the system may refuse to make a file that another user has made, so that is asked for last.
    match options.open(path) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => File::open(path),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let file = options.create(true).truncate(false).open(path)?;
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                // Whatever the user's mask. Another user may have made it first.
                let _ = file.set_permissions(std::fs::Permissions::from_mode(0o644));
            }
            Ok(file)
        }
        opened => opened,
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

    /// As of another user. A user who may write any file is tested with the workers.
    #[cfg(unix)]
    #[test]
    fn a_lock_file_that_cannot_be_written_is_locked() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        drop(GpuLock::take(folder.path(), "GPU-1").unwrap());
        let path = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        let first = GpuLock::take(folder.path(), "GPU-1").unwrap().expect("it is free");
        assert!(GpuLock::take(folder.path(), "GPU-1").unwrap().is_none());
        drop(first);
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

    /// As one without the right to read, or with too many open files.
    #[cfg(unix)]
    #[test]
    fn a_holder_whose_file_cannot_be_opened_lives() {
        let folder = tempfile::tempdir().unwrap();
        let beside = folder.path().join("queue");
        std::os::unix::fs::symlink(place(&beside, "x"), place(&beside, "x")).unwrap();
        assert!(HolderFile::lives(&beside, "x"));
    }

    #[test]
    fn time_since_the_start_of_the_machine_grows() {
        let (Some(first), Some(second)) = (boottime(), boottime()) else { return assert!(!Path::new("/proc/uptime").exists()) };
        assert!(first > 0.0 && second >= first);
    }
}
