//! Why a plan does not derive for a contraction or does not fit a device. A refusal is data for search and users.

use super::keys::Key;
use serde::Serialize;

/// What a plan asks for that cannot be, with keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, thiserror::Error)]
pub enum Refusal {
    /// A key's value is outside its legal values.
    #[error("{key}{value}: legal values are {}", key.info().legal)]
    Value {
        /// Key.
        key: Key,
        /// Its value.
        value: u32,
    },
    /// Not built yet.
    #[error("{0} is not built yet")]
    NotBuilt(&'static str),
}
