//! What can go wrong with records: every error names the file and the remedy.

use std::path::PathBuf;

/// Why records cannot be read or written.
///
/// ```
/// use tilewright_tune::Records;
/// use tilewright_tune::records::RecordsError;
///
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("notes.txt");
/// std::fs::write(&file, "no records")?;
/// let error = Records::open(&file).unwrap_err();
/// assert!(matches!(error, RecordsError::Foreign { .. }));
/// assert!(error.to_string().ends_with("it was left as it is. Name another file"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The file is not one of ours; it was not touched.
    #[error("{}: not a tilewright records file ({reason}); it was left as it is. Name another file", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        reason: String,
    },
    /// The file is ours but broken; it was not touched.
    #[error("{}: damaged ({reason}); it was left as it is. Move it away, or restore it from an export", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is broken.
        reason: String,
    },
    /// A newer tilewright wrote the file.
    #[error("{}: written by a newer tilewright (schema {found}, this one reads {known}); update tilewright or name another file", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Schema version of the file.
        found: u32,
        /// Schema version of this build.
        known: u32,
    },
    /// There is no such file.
    #[error("{}: there is no records file yet; `tilewright tune` makes one, `--records FILE` names another", .path.display())]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// The file lies where several hosts write.
    #[error(
        "{}: on a network file system ({kind}), where SQLite's log and the marks of running plans do not hold; keep records on a disk of this \
         machine (--records FILE, or TILEWRIGHT_RECORDS), and bring those of several together with `tilewright records merge`",
        .path.display()
    )]
    Network {
        /// The file.
        path: PathBuf,
        /// The file system.
        kind: &'static str,
    },
    /// The operating system refused.
    #[error("{}: {reason}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// A line of JSON lines was refused; nothing was imported.
    #[error("{0}; nothing was imported")]
    Line(#[from] LineError),
}

/// A line that import refuses, or skips.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}, line {line}: {reason}")]
pub struct LineError {
    /// Where the lines come from.
    pub source_name: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}
