//! [`Driver`] for HIP's runtime. Written after AMD's documentation; it has not run on AMD hardware.

use crate::gpu::{Before, Driver, EncodedMap, Failure, Handle, LaunchSize, Loaded, Pinned, Reach};
use crate::{NativeHandles, Resources, Stream};
use cubecl_hip_sys as sys;
use std::ffi::{CStr, CString, c_void};
use tilewright_ir::TensorMap;

/// A device and one stream. HIP keeps one current device per thread and manages the primary context.
pub(crate) struct Hip {
    device: i32,
    stream: usize,
}

/// Turns a status into the runtime's own words for it.
pub(crate) fn check(call: &'static str, status: sys::hipError_t) -> Result<(), Failure> {
    if status == sys::HIP_SUCCESS {
        return Ok(());
    }
    let reach = match status {
        sys::hipError_t_hipErrorOutOfMemory => Reach::Memory,
        sys::hipError_t_hipErrorIllegalAddress
        | sys::hipError_t_hipErrorLaunchFailure
        | sys::hipError_t_hipErrorLaunchTimeOut
        | sys::hipError_t_hipErrorAssert
        | sys::hipError_t_hipErrorContextIsDestroyed
        | sys::hipError_t_hipErrorECCNotCorrectable => Reach::Context,
        _ => Reach::Call,
    };
    // SAFETY: the function takes any number and gives a static string or null.
    let text = unsafe { sys::hipGetErrorString(status) };
    let text = if text.is_null() {
        "no description".into()
    } else {
        // SAFETY: not null, static, ends in a zero byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Err(Failure { call, reason: format!("{text} ({status})"), reach })
}

/// Calls a function of the runtime and names it in the failure.
macro_rules! call {
    ($name:ident($($arg:expr),*)) => { check(stringify!($name), sys::$name($($arg),*)) };
}
pub(crate) use call;

fn pointer(address: u64) -> *mut c_void {
    address as usize as *mut c_void
}

impl Hip {
    /// Makes a stream on a device.
    pub(crate) fn new(device: i32) -> Result<Self, Failure> {
        let mut made = Hip { device, stream: 0 };
        let (before, mut stream) = (made.enter()?, std::ptr::null_mut());
        // SAFETY: the out pointer is valid.
        let created = unsafe { call!(hipStreamCreate(&mut stream)) };
        made.restore(before);
        made.stream = stream as usize;
        created.map(|()| made)
    }
    fn own(&self) -> sys::hipStream_t {
        self.stream as sys::hipStream_t
    }
}

impl Drop for Hip {
    fn drop(&mut self) {
        // After the runtime's end nothing is left to free.
        let Ok(before) = self.enter() else { return };
        let stream = self.own();
        // SAFETY: made by `new`; nothing that uses it is left.
        let _ = if stream.is_null() { Ok(()) } else { unsafe { call!(hipStreamDestroy(stream)) } };
        self.restore(before);
    }
}

impl Driver for Hip {
    fn stream(&self) -> Stream {
        Stream(self.stream)
    }
    fn enter(&self) -> Result<Before, Failure> {
        let (mut current, mut capture) = (0, sys::hipStreamCaptureMode_hipStreamCaptureModeRelaxed);
        // SAFETY: the out pointers are valid; any number of a device is allowed.
        let capture = unsafe {
            call!(hipGetDevice(&mut current))?;
            if current != self.device {
                call!(hipSetDevice(self.device))?;
            }
            call!(hipThreadExchangeStreamCaptureMode(&mut capture)).ok().map(|()| capture)
        };
        Ok(Before { current: (current != self.device).then_some(Handle(current as usize)), capture })
    }
    fn restore(&self, before: Before) {
        // SAFETY: the pointer is valid; any number of a device is allowed. A failure leaves nothing to do.
        unsafe {
            if let Some(mut mode) = before.capture.filter(|mode| *mode != sys::hipStreamCaptureMode_hipStreamCaptureModeRelaxed) {
                let _ = call!(hipThreadExchangeStreamCaptureMode(&mut mode));
            }
            if let Some(Handle(device)) = before.current {
                let _ = call!(hipSetDevice(device as i32));
            }
        }
    }
    fn is_capturing(&self, stream: Handle) -> bool {
        let mut status = sys::hipStreamCaptureStatus_hipStreamCaptureStatusNone;
        // SAFETY: a stream of the device; the out pointer is valid.
        let told = unsafe { call!(hipStreamIsCapturing(stream.0 as sys::hipStream_t, &mut status)) };
        told.is_ok() && status == sys::hipStreamCaptureStatus_hipStreamCaptureStatusActive
    }
    fn native(&self) -> NativeHandles {
        NativeHandles::Hip { device: self.device as usize, stream: self.stream }
    }
    fn alloc(&self, bytes: usize) -> Result<u64, Failure> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { call!(hipMalloc(&mut address, bytes)) }?;
        Ok(address as usize as u64)
    }
    fn free(&self, address: u64) {
        // SAFETY: called once per allocation, by the drop of its owner.
        let _ = unsafe { call!(hipFree(pointer(address))) };
    }
    fn pinned(&self, bytes: usize) -> Result<Pinned, Failure> {
        let (mut host, mut device) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the out pointer is valid.
        unsafe { call!(hipHostMalloc(&mut host, bytes, sys::hipHostMallocMapped)) }?;
        // SAFETY: the out pointer is valid; the memory was allocated just now, for the device's address space as well.
        if let Err(failure) = unsafe { call!(hipHostGetDevicePointer(&mut device, host, 0)) } {
            self.free_pinned(Pinned { host: host as usize, device: 0 });
            return Err(failure);
        }
        Ok(Pinned { host: host as usize, device: device as usize as u64 })
    }
    fn free_pinned(&self, memory: Pinned) {
        // SAFETY: called once per allocation, by the drop of its owner.
        let _ = unsafe { call!(hipHostFree(memory.host as *mut c_void)) };
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), Failure> {
        // SAFETY: the caller checked that the range lies in an allocation; the runtime only reads `data`.
        unsafe {
            call!(hipMemcpyHtoD(pointer(address), data.as_ptr().cast_mut().cast(), data.len()))?;
            call!(hipDeviceSynchronize())
        }
    }
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Failure> {
        // SAFETY: the caller checked that the range lies in an allocation.
        unsafe { call!(hipMemcpyDtoH(data.as_mut_ptr().cast(), pointer(address), data.len())) }
    }
    fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<(), Failure> {
        // SAFETY: the caller checked that the range lies in an allocation.
        unsafe { call!(hipMemsetD8Async(pointer(address), byte, bytes, self.own())) }
    }
    fn load(&self, code: &[u8], entry: &str, _dynamic_shared: u32) -> Result<Loaded, Failure> {
        // All of a unit's LDS may be dynamic: no limit has to be raised as on CUDA.
        let name = CString::new(entry).map_err(|e| Failure {
            call: "hipModuleGetFunction",
            reason: e.to_string(),
            reach: Reach::Call,
        })?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a code object carries its own length; the cache checked that it is whole.
        unsafe { call!(hipModuleLoadData(&mut module, code.as_ptr().cast())) }?;
        let handle = Handle(module as usize);
        // SAFETY: the module is loaded, the name ends in a zero byte.
        if let Err(failure) = unsafe { call!(hipModuleGetFunction(&mut function, module, name.as_ptr())) } {
            self.unload(handle);
            return Err(failure);
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function and the out pointer are valid.
            unsafe { call!(hipFuncGetAttribute(&mut value, which, function)) }.ok()?;
            u32::try_from(value).ok()
        };
        let resources = Resources {
            registers: attribute(sys::hipFunction_attribute_HIP_FUNC_ATTRIBUTE_NUM_REGS),
            spill_bytes: None,
            private_bytes: attribute(sys::hipFunction_attribute_HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            shared_bytes: attribute(sys::hipFunction_attribute_HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            max_threads: attribute(sys::hipFunction_attribute_HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        };
        Ok(Loaded { module: handle, function: Handle(function as usize), resources })
    }
    fn unload(&self, module: Handle) {
        // SAFETY: called once per module, by the drop of its owner.
        let _ = unsafe { call!(hipModuleUnload(module.0 as sys::hipModule_t)) };
    }
    fn tensor_map(&self, _: &TensorMap, _: u64) -> Result<EncodedMap, Failure> {
        let reason = "HIP has no tensor maps; choose a plan without bulk copies".into();
        Err(Failure { call: "a tensor map", reason, reach: Reach::Call })
    }
    unsafe fn launch(
        &self,
        stream: Handle,
        function: Handle,
        size: LaunchSize,
        _early: bool,
        params: &mut [*mut c_void],
    ) -> Result<(), Failure> {
        let LaunchSize { grid: [x, y, z], threads, shared } = size;
        let (function, stream) = (function.0 as sys::hipFunction_t, stream.0 as sys::hipStream_t);
        let (params, extra) = (params.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the caller vouches for the parameters; the function belongs to a loaded module.
        unsafe { call!(hipModuleLaunchKernel(function, x, y, z, threads, 1, 1, shared, stream, params, extra)) }
    }
    fn event(&self) -> Result<Handle, Failure> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { call!(hipEventCreate(&mut event)) }?;
        Ok(Handle(event as usize))
    }
    fn record(&self, event: Handle) -> Result<(), Failure> {
        // SAFETY: the event was made by `event`.
        unsafe { call!(hipEventRecord(event.0 as sys::hipEvent_t, self.own())) }
    }
    fn passed(&self, event: Handle) -> Result<bool, Failure> {
        // SAFETY: the event was made by `event`.
        match unsafe { sys::hipEventQuery(event.0 as sys::hipEvent_t) } {
            sys::hipError_t_hipErrorNotReady => Ok(false),
            status => check("hipEventQuery", status).map(|()| true),
        }
    }
    fn elapsed_us(&self, start: Handle, end: Handle) -> Result<f64, Failure> {
        let mut ms = 0.0;
        // SAFETY: both events were made by `event`.
        unsafe { call!(hipEventElapsedTime(&mut ms, start.0 as sys::hipEvent_t, end.0 as sys::hipEvent_t)) }?;
        Ok(f64::from(ms) * 1e3)
    }
    fn free_event(&self, event: Handle) {
        // SAFETY: the event was made by `event` and is not used again.
        let _ = unsafe { call!(hipEventDestroy(event.0 as sys::hipEvent_t)) };
    }
}
