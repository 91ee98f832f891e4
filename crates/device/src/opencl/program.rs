//! OpenCL's compiler: source or binary to kernel, kernel to binary.

use super::handle::{Failure, Handle, check};
use super::query::{Found, Vendor};
use crate::Resources;
use crate::job::{Job, Refusal};
use opencl3::context::context as cl_context;
use opencl3::device::Device as ClDevice;
use opencl3::{kernel as cl_kernel, program as cl_program};
use std::ffi::CString;

/// A device with its context.
#[derive(Debug)]
pub(crate) struct Context {
    pub found: Found,
    pub handle: Handle,
}

impl Context {
    pub(crate) fn new(found: Found) -> Result<Self, Failure> {
        let raw = cl_context::create_context(&[found.id()], std::ptr::null(), None, std::ptr::null_mut());
        Ok(Context { handle: Handle::new(check("clCreateContext", raw)?, cl_context::release_context), found })
    }
    fn device(&self) -> &ClDevice {
        &self.found.device
    }
}

/// A built kernel. Its parts keep each other alive inside OpenCL.
#[derive(Debug)]
pub(crate) struct Built {
    pub kernel: Handle,
    program: Handle,
    pub log: String,
    pub resources: Resources,
}

/// Options of every compilation.
pub(crate) fn options(found: &Found) -> Vec<String> {
    let mut options = vec!["-cl-std=CL1.2".to_string()];
    if found.vendor() == Vendor::Nvidia {
        // Registers and spills in the log.
        options.push("-cl-nv-verbose".into());
    }
    options
}

/// Builds a job's source.
pub(crate) fn from_source(context: &Context, job: &Job) -> Result<Built, Refusal> {
    let raw = cl_program::create_program_with_source(context.handle.get(), &[&job.source]);
    let raw = check("clCreateProgramWithSource", raw).map_err(refused)?;
    build(context, job, Handle::new(raw, cl_program::release_program))
}

/// Builds what [`code`] gave on the same device and driver.
pub(crate) fn from_binary(context: &Context, job: &Job, code: &[u8]) -> Result<Built, Refusal> {
    // SAFETY: the device is the context's.
    let raw = unsafe { cl_program::create_program_with_binary(context.handle.get(), &[context.found.id()], &[code]) };
    let raw = check("clCreateProgramWithBinary", raw).map_err(refused)?;
    build(context, job, Handle::new(raw, cl_program::release_program))
}

fn refused(failure: Failure) -> Refusal {
    Refusal::Compiler(format!("{}: {}", failure.call, failure.reason))
}

fn build(context: &Context, job: &Job, program: Handle) -> Result<Built, Refusal> {
    let text = |s: &str| CString::new(s).map_err(|e| Refusal::Source(e.to_string()));
    let (options, entry) = (text(&job.options.join(" "))?, text(&job.entry)?);
    let device = context.found.id();
    let built = cl_program::build_program(program.get(), &[device], &options, None, std::ptr::null_mut());
    let log = cl_program::get_program_build_info(program.get(), device, cl_program::CL_PROGRAM_BUILD_LOG)
        .map_or_else(|_| String::new(), String::from);
    if let Err(failure) = check("clBuildProgram", built) {
        return Err(Refusal::Source(format!("{}\n{}", failure.reason, log.trim())));
    }
    let raw = check("clCreateKernel", cl_kernel::create_kernel(program.get(), &entry)).map_err(refused)?;
    let kernel = Handle::new(raw, cl_kernel::release_kernel);
    let ask = |what| cl_kernel::get_kernel_work_group_info(kernel.get(), device, what).ok();
    let logged = match context.found.vendor() {
        Vendor::Nvidia => crate::cuda::read_log(&log),
        _ => Resources::default(),
    };
    let small = |bytes: u64| u32::try_from(bytes).ok();
    let resources = Resources {
        private_bytes: ask(cl_kernel::CL_KERNEL_PRIVATE_MEM_SIZE).and_then(|v| small(v.into())),
        shared_bytes: ask(cl_kernel::CL_KERNEL_LOCAL_MEM_SIZE).and_then(|v| small(v.into())),
        max_threads: ask(cl_kernel::CL_KERNEL_WORK_GROUP_SIZE).and_then(|v| u32::try_from(usize::from(v)).ok()),
        ..logged
    };
    Ok(Built { kernel, program, log: log.trim().to_string(), resources })
}

/// The binary of a built program.
pub(crate) fn code(built: &Built) -> Result<Vec<u8>, Refusal> {
    let binaries = cl_program::get_program_info(built.program.get(), cl_program::CL_PROGRAM_BINARIES);
    let binaries: Vec<Vec<u8>> = check("clGetProgramInfo", binaries).map_err(refused)?.into();
    binaries.into_iter().next().ok_or_else(|| Refusal::Compiler("clGetProgramInfo: no binary".into()))
}

impl Context {
    /// Bytes a sub-buffer's start must be a multiple of.
    pub(crate) fn slice_alignment(&self) -> u64 {
        self.device().mem_base_addr_align().map_or(256, |bits| u64::from(bits / 8).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceError;
    use crate::opencl::query;
    use std::io::Write;

    fn context() -> Option<Context> {
        match query::find("0") {
            Ok(found) => Some(Context::new(found).unwrap()),
            Err(e @ DeviceError::Missing { .. }) => {
                assert!(std::env::var_os("TILEWRIGHT_REQUIRE_TOOLS").is_none_or(|v| v != "1"), "OpenCL is required: {e}");
                let _ = writeln!(std::io::stderr(), "SKIPPED: {e}");
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn job(context: &Context, source: &str) -> Job {
        let options = options(&context.found);
        let (device, arch) = ("opencl:0".into(), "generic".into());
        Job { backend: crate::Backend::OpenCl, device, place: None, arch, entry: "twice".into(), source: source.into(), options }
    }

    const TWICE: &str = "__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void twice(__global float* x) \
                         { x[get_global_id(0)] *= 2.0f; }";

    #[test]
    fn a_binary_makes_the_same_kernel() {
        let Some(context) = context() else { return };
        let job = job(&context, TWICE);
        let code = code(&from_source(&context, &job).unwrap()).unwrap();
        let again = from_binary(&context, &job, &code).unwrap();
        assert!(again.resources.max_threads.is_some_and(|n| n >= 8));
        assert!(from_binary(&context, &job, b"no binary").is_err());
    }

    #[test]
    fn what_the_compiler_refuses_comes_with_its_words() {
        let Some(context) = context() else { return };
        let job = job(&context, "__kernel void twice(__global float* x) { y[0] = 1; }");
        match from_source(&context, &job) {
            Err(Refusal::Source(log)) => assert!(log.contains('y') && log.contains("BUILD"), "{log}"),
            other => panic!("{other:?}"),
        }
    }
}
