//! How the command fails: wrong use (exit code 2) or a job that did not succeed (exit code 1). Each has one sentence that names
//! the input and the remedy.

use crate::reference::{FAILED, INTERRUPTED, USAGE};
use std::fmt::Display;

/// Why the command ends with a code that is not 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// The command line or an input file is wrong.
    #[error("{0}")]
    Usage(String),
    /// The job could not be done, or its answer is no.
    #[error("{0}")]
    Failed(String),
    /// As `Failed`, in lines that the user needs: a compiler's words about a source of theirs.
    #[error("{0}")]
    Log(String),
    /// As `Failed`, where the output has said so already.
    #[error("{0}")]
    Told(String),
    /// Another process finished the work and ended with this code.
    #[error("finished by another process")]
    HandedOver(u8),
    /// Ctrl-C; what was found until then has been kept.
    #[error("interrupted; what was found is kept")]
    Interrupted,
}

impl CliError {
    /// Wrong use.
    pub fn usage(reason: impl Display) -> Self {
        CliError::Usage(reason.to_string())
    }
    /// A job that did not succeed.
    pub fn failed(reason: impl Display) -> Self {
        CliError::Failed(reason.to_string())
    }
    /// Process exit code, one of `EXIT_CODES` in `reference.rs`.
    pub const fn code(&self) -> u8 {
        match self {
            CliError::Usage(_) => USAGE,
            CliError::Failed(_) | CliError::Log(_) | CliError::Told(_) => FAILED,
            CliError::HandedOver(code) => *code,
            CliError::Interrupted => INTERRUPTED,
        }
    }
}
