//! Candidates per second.

use crate::args::{Common, ThroughputArgs};
use crate::error::BenchError;

/// `throughput`.
///
/// # Errors
/// Bad arguments, a lost device.
pub fn throughput(_common: Common, _args: ThroughputArgs) -> Result<(), BenchError> {
    Err(BenchError::Usage("not built yet".into()))
}
