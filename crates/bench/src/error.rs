//! What can go wrong when comparing: every error names the input or library and the remedy.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tilewright_device::DeviceError;
use tilewright_problem::ProblemError;

/// Why a benchmark, or one case of it, failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A vendor's library is not on this machine.
    #[error("{library} is not available: {reason}\n  {remedy}")]
    Missing {
        /// The library.
        library: &'static str,
        /// What was tried.
        reason: String,
        /// How to get it.
        remedy: String,
    },
    /// The library does not compute this problem, or not here.
    #[error("{library} does not run this: {reason}")]
    Unsupported {
        /// The library.
        library: &'static str,
        /// Why not.
        reason: String,
    },
    /// A call of a library failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// The library's name for the failure.
        reason: String,
    },
    /// An option makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file cannot be read or written.
    #[error("{path}: {reason}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line where one is.
        reason: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A search lost the device.
    #[error("{why}")]
    Lost {
        /// What happened.
        why: String,
        /// Which candidates did it.
        lost: Lost,
    },
    /// Another process has done the rest, with this exit code.
    #[error("another process went on and ended with exit code {0}")]
    HandedOver(u8),
    /// The problem is malformed.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Tuning found nothing, or a plan does not fit.
    #[error("{0}")]
    Plan(String),
}

/// Candidates of one case that took the device down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// Their plans.
    pub plans: Vec<String>,
    /// Seconds of tuning whose trials are recorded.
    pub seconds: f64,
}

impl BenchError {
    /// True if the device cannot be used any more in this process: the run must end.
    pub const fn is_fatal(&self) -> bool {
        match self {
            BenchError::Device(e) => e.is_fatal(),
            BenchError::Lost { .. } => true,
            _ => false,
        }
    }
    /// Exit code: 2 for wrong use, 1 for a job that failed, that of another process that has done the rest.
    pub const fn code(&self) -> u8 {
        match self {
            BenchError::Usage(_) | BenchError::Unsupported { .. } | BenchError::Problem(_) => 2,
            BenchError::HandedOver(code) => *code,
            _ => 1,
        }
    }
    /// A file that cannot be read.
    pub fn unreadable(path: impl Into<PathBuf>, e: &std::io::Error) -> BenchError {
        BenchError::file(path, format!("cannot be read: {e}"))
    }
    /// A file that cannot be written.
    pub fn unwritable(path: impl Into<PathBuf>, e: &std::io::Error) -> BenchError {
        BenchError::file(path, format!("cannot be written: {e}; name a file in a folder that is there"))
    }
    /// An error of a file.
    pub fn file(path: impl Into<PathBuf>, reason: impl ToString) -> BenchError {
        BenchError::File { path: path.into(), reason: reason.to_string() }
    }
}
