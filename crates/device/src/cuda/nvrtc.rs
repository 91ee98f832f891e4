//! NVRTC: from CUDA C++ to a cubin, with or without a GPU.

use crate::compile::{Binary, Job, Refusal};
use crate::{DeviceError, Options};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Finds the library and tells its version (major, minor).
///
/// It is looked for under the usual names (which follows `LD_LIBRARY_PATH`), in `TILEWRIGHT_NVRTC` (a file or its
/// folder), in CUDA's folders and in the Python packages of the environments at hand.
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
    if let Some(path) = std::env::var_os("TILEWRIGHT_NVRTC") {
        let path = PathBuf::from(path);
        if !preload(&path) {
            return Err(missing(format!("TILEWRIGHT_NVRTC is {}, which is no libnvrtc", path.display())));
        }
    } else if !present() {
        places().iter().any(|folder| preload(folder));
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

/// Loads the library by path, so that a later search by name finds it already there.
fn preload(path: &Path) -> bool {
    let files = if path.is_dir() {
        let mut files: Vec<_> = entries(path).into_iter().filter(|f| is_nvrtc(f)).collect();
        // The newest last in name stands first.
        files.sort();
        files.reverse();
        files
    } else {
        vec![path.to_path_buf()]
    };
    for file in files {
        // SAFETY: as `present`.
        if let Ok(library) = unsafe { libloading::Library::new(&file) } {
            // It stays loaded: cudarc looks functions up at any later time.
            std::mem::forget(library);
            return true;
        }
    }
    false
}

fn is_nvrtc(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("libnvrtc.so").is_some_and(|tail| tail.is_empty() || tail[1..].parse::<u32>().is_ok())
}

/// Well-known folders that may hold the library, likeliest first.
fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = std::env::var_os(variable) {
            places.push(Path::new(&root).join("lib64"));
        }
    }
    for root in entries(Path::new("/usr/local")) {
        if root.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cuda")) {
            places.push(root.join("lib64"));
        }
    }
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    prefixes.extend(std::env::var_os("HOME").map(|h| Path::new(&h).join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for prefix in prefixes {
        for python in entries(&prefix.join("lib")) {
            if !python.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")) {
                continue;
            }
            for packages in ["site-packages", "dist-packages"] {
                for package in ["cu13", "cuda_nvrtc"] {
                    places.push(python.join(packages).join("nvidia").join(package).join("lib"));
                }
            }
        }
    }
    places
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    entries
}

/// Options of every compilation: no header is needed, the log tells registers and spills.
pub(crate) fn options(arch: &str) -> Vec<String> {
    [&format!("--gpu-architecture={arch}"), "-std=c++17", "-default-device", "--ptxas-options=-v"].map(String::from).into()
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
    crate::compile::fresh(options, job)
}
