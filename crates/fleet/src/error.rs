//! How leasing fails, by what the user or the worker can do about it.

use std::path::PathBuf;

/// Why a queue did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The address, the name of the run or its content is wrong: nothing was written.
    #[error("{0}")]
    Wrong(String),
    /// The server answered, and does not want: missing rights, another schema.
    #[error("{0}")]
    Refused(String),
    /// The server does not answer for now. Trying again may help.
    #[error("{server} cannot be reached: {reason}")]
    Away {
        /// The address without a password.
        server: String,
        /// What the system or the server said.
        reason: String,
    },
    /// A file of this host.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
}

impl FleetError {
    /// True if the same call may succeed later.
    pub const fn is_passing(&self) -> bool {
        matches!(self, FleetError::Away { .. })
    }
}
