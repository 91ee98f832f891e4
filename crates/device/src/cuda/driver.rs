//! [`Driver`] for CUDA's driver library.

use super::status::{call, check};
use crate::gpu::{Before, Driver, EncodedMap, Failure, Handle, LaunchSize, Loaded, Pinned, Reach};
use crate::{NativeHandles, Resources, Stream};
use cudarc::driver::sys::{self, CUfunction_attribute, CUresult};
use std::ffi::{CString, c_void};
use tilewright_ir::{PORTABLE_CLUSTER, TensorMap};

/// A device with its primary context and one stream.
pub(crate) struct Cuda {
    device: sys::CUdevice,
    /// CUDA version of the driver, as 1000 major + 10 minor.
    version: i32,
    context: usize,
    stream: usize,
}

impl Cuda {
    /// Retains the primary context of a device and makes a stream.
    pub(crate) fn new(device: sys::CUdevice, version: i32) -> Result<Self, Failure> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the out pointer is valid; the device comes from the driver.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut context, device)) }?;
        let mut made = Cuda { device, version, context: context as usize, stream: 0 };
        let (before, mut stream) = (made.enter()?, std::ptr::null_mut());
        // SAFETY: the out pointer is valid, and the context current.
        let created = unsafe { call!(cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32)) };
        made.restore(before);
        made.stream = stream as usize;
        created.map(|()| made)
    }
    fn own(&self) -> sys::CUstream {
        self.stream as sys::CUstream
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // After the driver's end nothing is left to free.
        let Ok(before) = self.enter() else { return };
        let stream = self.own();
        // SAFETY: made by `new`; nothing that uses it is left. A dead context ignores this.
        let _ = if stream.is_null() { Ok(()) } else { unsafe { call!(cuStreamDestroy_v2(stream)) } };
        self.restore(before);
        // SAFETY: as above.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

/// Free bytes of the current context's device, and all.
struct Room {
    free: usize,
    total: usize,
}

fn room() -> Option<Room> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the out pointers are valid.
    unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total)) }.ok().map(|()| Room { free, total })
}

/// A failure to allocate, with what is free.
fn with_free(failure: Failure) -> Failure {
    match room() {
        Some(Room { free, total }) => {
            Failure { reason: format!("{}; {free} of {total} bytes are free", failure.reason), ..failure }
        }
        None => failure,
    }
}

impl Driver for Cuda {
    fn uuid(&self) -> Option<String> {
        super::uuid(self.device)
    }
    fn free_bytes(&self) -> Option<u64> {
        room().map(|room| room.free as u64)
    }
    fn native(&self) -> NativeHandles {
        NativeHandles::Cuda { context: self.context, stream: self.stream }
    }
    fn stream(&self) -> Stream {
        Stream(self.stream)
    }
    fn enter(&self) -> Result<Before, Failure> {
        let (mut current, mut capture) = (std::ptr::null_mut(), sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        // SAFETY: the out pointers are valid; the context is retained as long as `self` lives.
        let capture = unsafe {
            call!(cuCtxGetCurrent(&mut current))?;
            if current as usize != self.context {
                call!(cuCtxSetCurrent(self.context as sys::CUcontext))?;
            }
            call!(cuThreadExchangeStreamCaptureMode(&mut capture)).ok().map(|()| capture as u32)
        };
        let current = current as usize;
        Ok(Before { current: (current != self.context).then_some(Handle(current)), capture })
    }
    fn restore(&self, before: Before) {
        use sys::CUstreamCaptureMode::{CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL};
        let stricter = [CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL];
        let mode = stricter.into_iter().find(|mode| before.capture == Some(*mode as u32));
        // SAFETY: the pointer is valid; the context was current on this thread, null means none. A failure leaves nothing to do.
        unsafe {
            if let Some(mut mode) = mode {
                let _ = call!(cuThreadExchangeStreamCaptureMode(&mut mode));
            }
            if let Some(Handle(context)) = before.current {
                let _ = call!(cuCtxSetCurrent(context as sys::CUcontext));
            }
        }
    }
    fn is_capturing(&self, stream: Handle) -> bool {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a stream of the context; the out pointer is valid.
        let told = unsafe { call!(cuStreamIsCapturing(stream.0 as sys::CUstream, &mut status)) };
        told.is_ok() && status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
    }
    fn alloc(&self, bytes: usize) -> Result<u64, Failure> {
        let mut address = 0;
        // SAFETY: the out pointer is valid.
        let allocated = unsafe { call!(cuMemAlloc_v2(&mut address, bytes)) };
        allocated.map_err(|f| if f.reach == Reach::Memory { with_free(f) } else { f })?;
        Ok(address)
    }
    fn free(&self, address: u64) {
        // SAFETY: called once per allocation, by the drop of its owner.
        let _ = unsafe { call!(cuMemFree_v2(address)) };
    }
    fn pinned(&self, bytes: usize) -> Result<Pinned, Failure> {
        let (mut host, mut device) = (std::ptr::null_mut(), 0);
        // SAFETY: the out pointer is valid.
        unsafe { call!(cuMemHostAlloc(&mut host, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP)) }?;
        // SAFETY: the out pointer is valid; the memory was allocated just now, for the device's address space as well.
        if let Err(failure) = unsafe { call!(cuMemHostGetDevicePointer_v2(&mut device, host, 0)) } {
            self.free_pinned(Pinned { host: host as usize, device: 0 });
            return Err(failure);
        }
        Ok(Pinned { host: host as usize, device })
    }
    fn free_pinned(&self, memory: Pinned) {
        // SAFETY: called once per allocation, by the drop of its owner.
        let _ = unsafe { call!(cuMemFreeHost(memory.host as *mut c_void)) };
    }
    unsafe fn lock_pages(&self, memory: *mut [u8]) {
        // Copies work without it.
        // SAFETY: the caller keeps the memory mapped. The release of the context unlocks it.
        let _ = unsafe { call!(cuMemHostRegister_v2(memory.cast(), memory.len(), 0)) };
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), Failure> {
        // On the stream, since a copy outside it may still be under way when the stream's next kernel starts. SAFETY: the caller
        // checked that the range lies in an allocation. The driver is done with pageable host memory when the call returns, and
        // the wait covers pinned memory.
        unsafe {
            call!(cuMemcpyHtoDAsync_v2(address, data.as_ptr().cast(), data.len(), self.own()))?;
            call!(cuStreamSynchronize(self.own()))
        }
    }
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Failure> {
        // SAFETY: the caller checked that the range lies in an allocation; the copy is over before `data` is seen again.
        unsafe {
            call!(cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast(), address, data.len(), self.own()))?;
            call!(cuStreamSynchronize(self.own()))
        }
    }
    fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<(), Failure> {
        // SAFETY: the caller checked that the range lies in an allocation.
        unsafe { call!(cuMemsetD8Async(address, byte, bytes, self.own())) }
    }
    fn load(&self, code: &[u8], entry: &str, dynamic_shared: u32) -> Result<Loaded, Failure> {
        let name = CString::new(entry).map_err(|e| Failure {
            call: "cuModuleGetFunction",
            reason: e.to_string(),
            reach: Reach::Call,
        })?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a cubin carries its own length; the cache checked that it is whole.
        unsafe { call!(cuModuleLoadData(&mut module, code.as_ptr().cast())) }?;
        let found = (|| {
            // SAFETY: the module is loaded, the name ends in a zero byte.
            unsafe { call!(cuModuleGetFunction(&mut function, module, name.as_ptr())) }?;
            if dynamic_shared > 0 {
                use CUfunction_attribute::*;
                // SAFETY: the function is valid. The carve-out is a hint: all shared memory the kernel may want.
                unsafe {
                    let bytes = dynamic_shared as i32;
                    call!(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes))?;
                    call!(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100))?;
                }
            }
            let attribute = |which| {
                let mut value = 0;
                // SAFETY: the function and the out pointer are valid.
                unsafe { call!(cuFuncGetAttribute(&mut value, which, function)) }.map(|()| value as u32)
            };
            use CUfunction_attribute::*;
            // Drivers that know no clusters do not know the attribute.
            if attribute(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH).is_ok_and(|width| width > PORTABLE_CLUSTER) {
                // SAFETY: the function is valid.
                unsafe { call!(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)) }?;
            }
            Ok(Resources {
                registers: Some(attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)?),
                spill_bytes: None,
                private_bytes: Some(attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?),
                shared_bytes: Some(attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?),
                max_threads: Some(attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?),
            })
        })();
        let module = Handle(module as usize);
        match found {
            Ok(resources) => Ok(Loaded { module, function: Handle(function as usize), resources }),
            Err(failure) => {
                self.unload(module);
                Err(failure)
            }
        }
    }
    fn unload(&self, module: Handle) {
        // SAFETY: called once per module, by the drop of its owner.
        let _ = unsafe { call!(cuModuleUnload(module.0 as sys::CUmodule)) };
    }
    fn tensor_map(&self, map: &TensorMap, address: u64) -> Result<EncodedMap, Failure> {
        super::tensor_map::encode(map, address, self.version)
    }
    unsafe fn launch(
        &self,
        stream: Handle,
        function: Handle,
        size: LaunchSize,
        early: bool,
        params: &mut [*mut c_void],
    ) -> Result<(), Failure> {
        let LaunchSize { grid: [x, y, z], threads, shared } = size;
        let (function, stream) = (function.0 as sys::CUfunction, stream.0 as sys::CUstream);
        let (params, extra) = (params.as_mut_ptr(), std::ptr::null_mut());
        if !early {
            // SAFETY: the caller vouches for the parameters; the function belongs to a loaded module.
            return unsafe { call!(cuLaunchKernel(function, x, y, z, threads, 1, 1, shared, stream, params, extra)) };
        }
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        // SAFETY: as above; the attribute outlives the call.
        unsafe { call!(cuLaunchKernelEx(&config, function, params, extra)) }
    }
    fn event(&self) -> Result<Handle, Failure> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { call!(cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DEFAULT as u32)) }?;
        Ok(Handle(event as usize))
    }
    fn record(&self, event: Handle) -> Result<(), Failure> {
        // SAFETY: the event was made by `event`.
        unsafe { call!(cuEventRecord(event.0 as sys::CUevent, self.own())) }
    }
    fn passed(&self, event: Handle) -> Result<bool, Failure> {
        // SAFETY: the event was made by `event`.
        match unsafe { sys::cuEventQuery(event.0 as sys::CUevent) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }
    fn elapsed_us(&self, start: Handle, end: Handle) -> Result<f64, Failure> {
        let mut ms = 0.0;
        // SAFETY: both events were made by `event`.
        unsafe { call!(cuEventElapsedTime_v2(&mut ms, start.0 as sys::CUevent, end.0 as sys::CUevent)) }?;
        Ok(f64::from(ms) * 1e3)
    }
    fn free_event(&self, event: Handle) {
        // SAFETY: the event was made by `event` and is not used again.
        let _ = unsafe { call!(cuEventDestroy_v2(event.0 as sys::CUevent)) };
    }
}
