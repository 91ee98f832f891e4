//! NVRTC: from CUDA C++ to a cubin, with or without a GPU.

use super::library::{preload_from, search};
use crate::job::{Binary, Job, Refusal};
use crate::options::Options;
use crate::{DeviceError, compile as compiling};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const NAME: &str = "libnvrtc.so";

/// Finds the library and tells its version (major, minor).
///
/// It is looked for in `TILEWRIGHT_NVRTC` (a file or its folder), else in `TILEWRIGHT_CUDA_LIBS`. Else it is looked for under the
/// usual names (which follows `LD_LIBRARY_PATH`), in CUDA's folders and in the Python packages of the environments at hand.
///
/// # Errors
/// [`DeviceError::Missing`].
pub(crate) fn version() -> Result<(i32, i32), DeviceError> {
    // Loading happens once per process and cannot be undone, so its outcome is kept.
    static FOUND: OnceLock<Result<(i32, i32), DeviceError>> = OnceLock::new();
    FOUND.get_or_init(find).clone()
}

fn find() -> Result<(i32, i32), DeviceError> {
    let missing = |reason: String| DeviceError::Missing {
        what: "NVRTC (CUDA's run-time compiler)".into(),
        reason,
        remedy: "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`, and set TILEWRIGHT_NVRTC to the folder that \
                 holds libnvrtc.so.NN if it is not found by itself"
            .into(),
    };
    let mut loaded = None;
    if let Some(path) = std::env::var_os("TILEWRIGHT_NVRTC") {
        let path = PathBuf::from(path);
        loaded = preload_from(&path, NAME);
        if loaded.is_none() {
            return Err(missing(format!("TILEWRIGHT_NVRTC is {}, which is no libnvrtc", path.display())));
        }
    } else if std::env::var_os("TILEWRIGHT_CUDA_LIBS").is_some() || !present() {
        loaded = search(&[NAME], &["cu13", "cuda_nvrtc"]);
    }
    if let Some(folder) = loaded.as_deref().and_then(Path::parent) {
        // NVRTC opens this file by name at the first compilation. A library that was loaded by path does not search its own folder.
        preload_from(folder, "libnvrtc-builtins.so");
    }
    if !present() {
        return Err(missing("libnvrtc.so was not found".into()));
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present; the out pointers are valid.
    let result = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    result.result().map_err(|e| missing(format!("nvrtcVersion says {e}")))?;
    Ok((major, minor))
}

fn present() -> bool {
    // SAFETY: loading the vendor's library runs its initialisers, which is what is wanted.
    unsafe { sys::is_culib_present() }
}

/// The first version that keeps binaries in the driver's cache on the disk.
const CACHES: (i32, i32) = (12, 9);

/// Options of every compilation: no header is needed, the log tells registers and spills.
///
/// The driver's cache belongs to all programs of a user. Thousands of candidates of a search would push their binaries out, and the times of
/// compilations would be those of an earlier search. Our own cache keeps the binaries that are used.
pub(crate) fn options(arch: &str) -> Vec<String> {
    let mut options =
        [&format!("--gpu-architecture={arch}"), "-std=c++17", "-default-device", "--ptxas-options=-v"].map(String::from).to_vec();
    if version().is_ok_and(|found| found >= CACHES) {
        options.push("--no-cache".into());
    }
    options
}

/// Compiles a job to a cubin.
pub(crate) fn compile(job: &Job) -> Result<Binary, Refusal> {
    version().map_err(|e| Refusal::Compiler(e.to_string()))?;
    let failed = |call: &str, e: result::NvrtcError| Refusal::Compiler(format!("{call}: {e}"));
    let source = CString::new(job.source.as_str()).map_err(|e| Refusal::Source(e.to_string()))?;
    let name = CString::new(format!("{}.cu", job.entry)).map_err(|e| Refusal::Source(e.to_string()))?;
    let program = Program(result::create_program(&source, Some(&name)).map_err(|e| failed("nvrtcCreateProgram", e))?);
    // SAFETY: the program is alive.
    let compiled = unsafe { result::compile_program(program.0, &job.options) };
    // SAFETY: the program is alive.
    let log = unsafe { result::get_program_log(program.0) }.map_err(|e| failed("nvrtcGetProgramLog", e))?;
    let bytes: Vec<u8> = log.iter().map(|&c| c as u8).collect();
    let log = CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |log| log.to_string_lossy().into_owned());
    match compiled {
        Ok(()) => {}
        Err(e) if e.0 == sys::nvrtcResult::NVRTC_ERROR_COMPILATION => return Err(Refusal::Source(log)),
        Err(e) if e.0 == sys::nvrtcResult::NVRTC_ERROR_INVALID_OPTION => {
            return Err(Refusal::Compiler(format!("an option is refused (is NVRTC too old for {}?): {log}", job.arch)));
        }
        Err(e) => return Err(Refusal::Source(format!("{e}: {log}"))),
    }
    let mut size = 0;
    // SAFETY: the program is alive and compiled; the out pointer is valid.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) }.result().map_err(|e| failed("nvrtcGetCUBINSize", e))?;
    let mut code = vec![0u8; size];
    // SAFETY: as above; the buffer has the size the library asked for.
    unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }.result().map_err(|e| failed("nvrtcGetCUBIN", e))?;
    Ok(Binary { log, code })
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program`, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Compiles a job under the limits of some options.
pub(crate) fn compile_limited(job: Job, options: &Options) -> Result<Binary, DeviceError> {
    version()?;
    compiling::fresh(options, job, compile)
}
