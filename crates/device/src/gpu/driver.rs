//! The calls that CUDA's driver and HIP's runtime have in common, as one trait: the whole surface that is `unsafe`.

use crate::{NativeHandles, Resources, Stream};
use std::ffi::c_void;
use tilewright_ir::TensorMap;

/// An opaque handle of the driver (a pointer in C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub usize);

/// A call that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The function.
    pub call: &'static str,
    /// The driver's name for the failure.
    pub reason: String,
    /// How far it reaches.
    pub reach: Reach,
}

/// How far a failure reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only this call.
    Call,
    /// There is no memory left.
    Memory,
    /// The context is lost: a kernel broke it.
    Context,
}

/// The size of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchSize {
    /// Work-groups.
    pub grid: [u32; 3],
    /// Threads of each.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A loaded kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    /// To unload.
    pub module: Handle,
    /// To launch.
    pub function: Handle,
    /// What the driver tells of it.
    pub resources: Resources,
}

/// Page-locked memory of the host that kernels reach as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    /// Its address in this process.
    pub host: usize,
    /// Its address on the device.
    pub device: u64,
}

/// A tensor map as kernels take it: by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(128))]
pub(crate) struct EncodedMap(pub [u64; 16]);

/// A thread's state in the driver before [`Driver::enter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before {
    /// The context or device that was current, if it is another.
    pub current: Option<Handle>,
    /// How far the thread respected captures of graphs, as the driver's number, if the driver knows of captures.
    pub capture: Option<u32>,
}

/// A driver whose device is current on this thread for as long as the value lives. The thread's calls then disturb no stream that is capturing
/// a graph. The thread's state from before is the caller's, and holds again afterwards.
pub(crate) struct Entered<'a, D: Driver> {
    driver: &'a D,
    before: Before,
}

impl<'a, D: Driver> Entered<'a, D> {
    pub(crate) fn new(driver: &'a D) -> Result<Self, Failure> {
        Ok(Entered { driver, before: driver.enter()? })
    }
}

impl<D: Driver> std::ops::Deref for Entered<'_, D> {
    type Target = D;

    fn deref(&self) -> &D {
        self.driver
    }
}

impl<D: Driver> Drop for Entered<'_, D> {
    fn drop(&mut self) {
        self.driver.restore(self.before);
    }
}

/// One device through one driver, with one stream. Every method may be called from any thread where [`Entered`] has made the device current.
pub(crate) trait Driver: Send + Sync + 'static {
    /// UUID of the device as 32 hexadecimal digits, where the driver finds a device by it.
    fn uuid(&self) -> Option<String> {
        None
    }
    /// Bytes of the device's memory that nobody holds.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// Context and stream.
    fn native(&self) -> NativeHandles;
    /// The stream.
    fn stream(&self) -> Stream;
    /// Makes the device current for the calling thread. Until `restore`, calls that allocate, load, free or ask are allowed while another stream
    /// captures a graph, and do not end that capture. Gives the thread's state from before. Fails where the driver has ended.
    fn enter(&self) -> Result<Before, Failure>;
    /// Restores the thread's state.
    fn restore(&self, before: Before);
    /// Is a stream capturing a graph?
    fn is_capturing(&self, stream: Handle) -> bool;
    /// Allocates device memory and gives its address.
    fn alloc(&self, bytes: usize) -> Result<u64, Failure>;
    /// Frees what `alloc` gave.
    fn free(&self, address: u64);
    /// Allocates page-locked memory of the host that the device reaches.
    fn pinned(&self, bytes: usize) -> Result<Pinned, Failure>;
    /// Frees what `pinned` gave.
    fn free_pinned(&self, memory: Pinned);
    /// Locks the pages of host memory: copies to and from it need no copy by the processor. Nothing, where the driver cannot.
    ///
    /// # Safety
    /// The memory stays mapped until the device and all that belongs to it are dropped.
    unsafe fn lock_pages(&self, _memory: *mut [u8]) {}
    /// Copies host to device and waits for the copy.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), Failure>;
    /// Copies device to host and waits for the copy.
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Failure>;
    /// Sets bytes, in the stream's order.
    fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<(), Failure>;
    /// Loads code and finds its entry, ready for launches with this much dynamic shared memory.
    fn load(&self, code: &[u8], entry: &str, dynamic_shared: u32) -> Result<Loaded, Failure>;
    /// Unloads a module.
    fn unload(&self, module: Handle);
    /// Encodes a tensor map over the memory from an address on. The caller checked that the map lies in an allocation.
    fn tensor_map(&self, map: &TensorMap, address: u64) -> Result<EncodedMap, Failure>;
    /// Starts a kernel on a stream. `params` point at the argument values, in order. `early`: the kernel may begin before its
    /// predecessor has ended; the kernel contains the wait.
    ///
    /// # Safety
    /// The parameters must be those the kernel declares, and stay valid during the call; the stream must be one of the context.
    unsafe fn launch(
        &self,
        stream: Handle,
        function: Handle,
        size: LaunchSize,
        early: bool,
        params: &mut [*mut c_void],
    ) -> Result<(), Failure>;
    /// Makes an event that takes time stamps.
    fn event(&self) -> Result<Handle, Failure>;
    /// Records an event on the stream.
    fn record(&self, event: Handle) -> Result<(), Failure>;
    /// Has the stream passed the event?
    fn passed(&self, event: Handle) -> Result<bool, Failure>;
    /// Microseconds between two events that have passed.
    fn elapsed_us(&self, start: Handle, end: Handle) -> Result<f64, Failure>;
    /// Frees an event.
    fn free_event(&self, event: Handle);
}
