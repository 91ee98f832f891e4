//! Random pairs of plan and problem, verified on a device.

use crate::args::{Common, VerifyArgs};
use crate::error::BenchError;

/// `verify-random`.
///
/// # Errors
/// Bad arguments, a lost device.
pub fn verify_random(_common: Common, _args: VerifyArgs) -> Result<(), BenchError> {
    Err(BenchError::Usage("not built yet".into()))
}
