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

/// Makes a library loadable by name: those it needs, then itself, each as the files and Python packages that [`cuda::preload`] takes.
/// What this process has loaded already is left alone.
///
/// # Errors
/// [`BenchError::Missing`].
pub(super) fn find(
    library: &'static str,
    libraries: &[(&[&str], &[&str])],
    pip: &str,
    present: impl Fn() -> bool,
) -> Result<(), BenchError> {
    let named = std::env::var_os("TILEWRIGHT_CUDA_LIBS").is_some();
    let loaded_from = |file: &str| cuda::folders_of_loaded(file.trim_end_matches(".so"));
    let mut file = library;
    if named || !present() {
        for (files, packages) in libraries {
            file = files.last().unwrap_or(&library);
            if loaded_from(file).is_empty() {
                cuda::preload(files, packages);
            }
        }
    }
    if present() {
        // Where only the loader's own path has the name without a version, that goes before what was loaded by its place.
        let folders = loaded_from(file);
        let [one, other, ..] = folders.as_slice() else { return Ok(()) };
        return Err(BenchError::Missing {
            library,
            reason: format!("parts of two installations were loaded, from {} and {}", one.display(), other.display()),
            remedy: "let LD_LIBRARY_PATH begin with the folder that TILEWRIGHT_CUDA_LIBS names, or unset both".into(),
        });
    }
    Err(BenchError::Missing {
        library,
        reason: format!("{file} was not found"),
        remedy: format!(
            "install the CUDA toolkit or `pip install {pip}`, and set TILEWRIGHT_CUDA_LIBS to the folders that hold \
             its libraries (joined by `:`) if they are not found by themselves"
        ),
    })
}
