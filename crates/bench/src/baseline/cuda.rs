//! What cuBLAS, cuBLASLt and cuDNN have in common: finding the library, and the device's stream.

use crate::error::BenchError;
use cudarc::driver::sys::{CUcontext, CUresult, cuCtxSetCurrent};
use tilewright_device::{Native, NativeHandles, cuda};

/// Checks that a library's status is `ok`.
macro_rules! check {
    ($ok:path, $module:ident :: $call:ident ( $($arg:expr),* $(,)? )) => {
        match $module::$call($($arg),*) {
            $ok => Ok(()),
            status => Err($crate::error::BenchError::Call { call: stringify!($call), reason: format!("{status:?}") }),
        }
    };
}
pub(super) use check;

/// The stream to work on, with its context current on this thread.
///
/// # Errors
/// [`BenchError::Unsupported`] on devices other than CUDA's.
pub(super) fn stream(native: &dyn Native, library: &'static str) -> Result<usize, BenchError> {
    match native.handles() {
        NativeHandles::Cuda { context, stream } => {
            // SAFETY: the context lives as long as the device.
            match unsafe { cuCtxSetCurrent(context as CUcontext) } {
                CUresult::CUDA_SUCCESS => Ok(stream),
                other => Err(BenchError::Call { call: "cuCtxSetCurrent", reason: format!("{other:?}") }),
            }
        }
        NativeHandles::OpenCl { .. } | NativeHandles::Hip { .. } => {
            Err(BenchError::Unsupported { library, reason: "it needs a CUDA device; choose --device cuda:0".into() })
        }
    }
}

/// Makes a library loadable by name: `files` in order, each before those that depend on it; the last is the library.
///
/// # Errors
/// [`BenchError::Missing`].
pub(super) fn find(
    library: &'static str,
    files: &[&str],
    packages: &[&str],
    pip: &str,
    present: impl Fn() -> bool,
) -> Result<(), BenchError> {
    let named = std::env::var_os("TILEWRIGHT_CUDA_LIBS").is_some();
    if named || !present() {
        for file in files {
            cuda::preload(file, packages);
        }
    }
    if present() {
        return Ok(());
    }
    Err(BenchError::Missing {
        library,
        reason: format!("{} was not found", files.last().unwrap_or(&library)),
        remedy: format!(
            "install the CUDA toolkit or `pip install {pip}`, and set TILEWRIGHT_CUDA_LIBS to the folders that hold \
             its libraries (joined by `:`) if they are not found by themselves"
        ),
    })
}
