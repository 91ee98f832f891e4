//! hiprtc: from HIP C++ to a code object.

use super::available;
use crate::job::{Binary, Job, Refusal};
use cubecl_hip_sys as sys;
use std::ffi::{CStr, CString, c_char};

/// Version (major, minor).
pub(crate) fn version() -> Option<(i32, i32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there when this is called; the out pointers are valid.
    let status = unsafe { sys::hiprtcVersion(&mut major, &mut minor) };
    (status == sys::hiprtcResult_HIPRTC_SUCCESS).then_some((major, minor))
}

/// Options of every compilation.
pub(crate) fn options(arch: &str) -> Vec<String> {
    [&format!("--gpu-architecture={arch}"), "-std=c++17", "-O3"].map(String::from).into()
}

/// Compiles a job to a code object.
pub(crate) fn compile(job: &Job) -> Result<Binary, Refusal> {
    available().map_err(|e| Refusal::Compiler(e.to_string()))?;
    let text = |s: &str| CString::new(s).map_err(|e| Refusal::Source(e.to_string()));
    let (source, name) = (text(&job.source)?, text(&format!("{}.hip", job.entry))?);
    let options = job.options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
    let mut options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: the strings end in zero bytes and outlive the program; there are no headers.
    let status = unsafe {
        let (headers, names) = (std::ptr::null_mut(), std::ptr::null_mut());
        sys::hiprtcCreateProgram(&mut program.0, source.as_ptr(), name.as_ptr(), 0, headers, names)
    };
    check("hiprtcCreateProgram", status)?;
    // SAFETY: the program is alive, so are the options.
    let compiled = unsafe { sys::hiprtcCompileProgram(program.0, options.len() as i32, options.as_mut_ptr()) };
    let log = log(&program);
    if compiled != sys::hiprtcResult_HIPRTC_SUCCESS {
        return Err(Refusal::Source(format!("{}: {log}", describe(compiled))));
    }
    let mut size = 0;
    // SAFETY: the program is alive and compiled; the out pointer is valid.
    check("hiprtcGetCodeSize", unsafe { sys::hiprtcGetCodeSize(program.0, &mut size) })?;
    let mut code = vec![0u8; size];
    // SAFETY: as above; the buffer has the size the library asked for.
    check("hiprtcGetCode", unsafe { sys::hiprtcGetCode(program.0, code.as_mut_ptr().cast()) })?;
    Ok(Binary { log, code })
}

fn log(program: &Program) -> String {
    let mut size = 0;
    // SAFETY: the program is alive; the out pointer is valid.
    let status = unsafe { sys::hiprtcGetProgramLogSize(program.0, &mut size) };
    let mut log = vec![0u8; size];
    // SAFETY: as above; the buffer has the size the library asked for.
    if status != sys::hiprtcResult_HIPRTC_SUCCESS
        || unsafe { sys::hiprtcGetProgramLog(program.0, log.as_mut_ptr().cast()) } != sys::hiprtcResult_HIPRTC_SUCCESS
    {
        return String::new();
    }
    CStr::from_bytes_until_nul(&log).map_or_else(|_| String::new(), |log| log.to_string_lossy().into_owned())
}

fn check(call: &str, status: sys::hiprtcResult) -> Result<(), Refusal> {
    match status {
        sys::hiprtcResult_HIPRTC_SUCCESS => Ok(()),
        status => Err(Refusal::Compiler(format!("{call}: {}", describe(status)))),
    }
}

fn describe(status: sys::hiprtcResult) -> String {
    // SAFETY: the function takes any number and gives a static string or null.
    let text = unsafe { sys::hiprtcGetErrorString(status) };
    if text.is_null() {
        return status.to_string();
    }
    // SAFETY: not null, static, ends in a zero byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

struct Program(sys::hiprtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by `hiprtcCreateProgram`, destroyed once.
            let _ = unsafe { sys::hiprtcDestroyProgram(&mut self.0) };
        }
    }
}
