//! Owned OpenCL objects, released without a panic, and errors with the name OpenCL gives them.

use opencl3::error_codes::ClError;
use opencl3::types::cl_int;
use std::ffi::c_void;

/// A call that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The function.
    pub call: &'static str,
    /// OpenCL's name for the failure and its number.
    pub reason: String,
    /// The number.
    pub code: cl_int,
}

/// Names the function that failed.
pub(crate) fn check<T, E: Into<Code>>(call: &'static str, result: Result<T, E>) -> Result<T, Failure> {
    result.map_err(|e| {
        let Code(code) = e.into();
        Failure { call, reason: format!("{} ({code})", ClError(code)), code }
    })
}

/// An error number, however it comes.
pub(crate) struct Code(cl_int);

impl From<cl_int> for Code {
    fn from(code: cl_int) -> Self {
        Code(code)
    }
}

impl From<ClError> for Code {
    fn from(e: ClError) -> Self {
        Code(e.0)
    }
}

/// An OpenCL object (all are pointers in C) with its release function.
#[derive(Debug)]
pub(crate) struct Handle {
    raw: *mut c_void,
    release: unsafe fn(*mut c_void) -> Result<(), cl_int>,
}

// SAFETY: OpenCL's objects may be used from any thread; only a kernel's arguments need one thread at a time, which the
// queue's lock sees to.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Takes ownership.
    pub(crate) const fn new(raw: *mut c_void, release: unsafe fn(*mut c_void) -> Result<(), cl_int>) -> Self {
        Handle { raw, release }
    }
    pub(crate) const fn get(&self) -> *mut c_void {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: owned, released once. A failure leaves nothing to do.
        let _ = unsafe { (self.release)(self.raw) };
    }
}
