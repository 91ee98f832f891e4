//! What calls of CUDA's driver return.

use crate::gpu::{Failure, Reach};
use cudarc::driver::sys::CUresult;

/// Turns a result into the driver's own name for it.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), Failure> {
    use CUresult::*;
    let reach = match result {
        CUDA_SUCCESS => return Ok(()),
        CUDA_ERROR_OUT_OF_MEMORY => Reach::Memory,
        CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_LAUNCH_TIMEOUT
        | CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_MISALIGNED_ADDRESS
        | CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUDA_ERROR_INVALID_PC
        | CUDA_ERROR_ASSERT
        | CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_CONTEXT_IS_DESTROYED => Reach::Context,
        _ => Reach::Call,
    };
    let name = cudarc::driver::result::DriverError(result);
    let reason = match (name.error_name(), name.error_string()) {
        (Ok(name), Ok(text)) => format!("{} ({})", name.to_string_lossy(), text.to_string_lossy()),
        _ => format!("{result:?}"),
    };
    Err(Failure { call, reason, reach })
}

/// Calls a function of the driver and names it in the failure.
macro_rules! call {
    ($name:ident($($arg:expr),*)) => { check(stringify!($name), sys::$name($($arg),*)) };
}
pub(crate) use call;
