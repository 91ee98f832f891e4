//! An OpenCL device: one in-order queue with profiling, a watchdog on every wait.

use super::handle::{Failure, Handle, check};
use super::hold::{HELD, Hold};
use super::program::{self, Built, Context};
use crate::compile;
use crate::device::{DeviceKind, check_launches, nothing, run_nothing};
use crate::identity::Found;
use crate::identity::Place;
use crate::mark::{self, Mark, Passed};
use crate::options::Options;
use crate::sweep::Sweep;
use crate::timing::hold_expired;
use crate::{Buffer, CacheState, Compiled, Device, DeviceError, DeviceInfo, Identity, Launch, LaunchArg, Native, Timing};
use opencl3::error_codes::{CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES};
use opencl3::{command_queue as cl_queue, event as cl_event, kernel as cl_kernel, memory as cl_memory};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tilewright_ir::Kernel;

/// Kernels that may be queued before the host waits.
const QUEUE: usize = 512;

/// The queue's state; its lock keeps sequences of calls together, a kernel's arguments above all.
#[derive(Default)]
pub(super) struct Queue {
    /// Event of the last command.
    pub(super) last: Option<Arc<Handle>>,
    /// Commands since the last wait.
    pending: usize,
    /// Name of the last kernel started.
    pub(super) entry: String,
    /// What keeps the device from running the span that is being queued.
    hold: Option<Hold>,
}

#[cfg(test)]
impl Queue {
    /// A hold has begun and has not ended.
    pub(super) fn is_held(&self) -> bool {
        self.hold.is_some()
    }
}

pub(crate) struct ClDevice {
    pub(super) info: DeviceInfo,
    pub(super) id: Arc<str>,
    pub(super) place: Place,
    pub(super) options: Options,
    pub(super) compiler_options: Vec<String>,
    pub(super) context: Arc<Context>,
    pub(super) commands: ManuallyDrop<Handle>,
    queue: Mutex<Queue>,
    pub(super) sweep: Sweep,
    dead: OnceLock<String>,
    slice_alignment: u64,
    /// Timed spans begin when all of them is queued.
    pub(super) holds: bool,
    /// Longest wait. Processors' drivers compile a kernel for its work-group when it first runs.
    patience: Duration,
}

impl Drop for ClDevice {
    fn drop(&mut self) {
        if self.dead.get().is_none() {
            // SAFETY: nothing uses the queue after this. That of a dead device is leaked: its release may wait for ever.
            unsafe { ManuallyDrop::drop(&mut self.commands) };
        }
    }
}

pub(super) struct Memory {
    pub(super) handle: Handle,
    bytes: usize,
}

impl ClDevice {
    pub(crate) fn new(info: DeviceInfo, place: Place, context: Context, options: Options) -> Result<Self, DeviceError> {
        // SAFETY: the device is the context's.
        let raw = unsafe {
            cl_queue::create_command_queue(context.handle.get(), context.found.id(), cl_queue::CL_QUEUE_PROFILING_ENABLE)
        };
        let raw = check("clCreateCommandQueue", raw).map_err(|f| api(&info.id, f))?;
        Ok(ClDevice {
            id: info.id.as_str().into(),
            compiler_options: program::options(&context.found),
            slice_alignment: context.slice_alignment(),
            holds: info.kind == DeviceKind::Gpu,
            patience: match info.kind {
                DeviceKind::Cpu => options.deadline + options.compile_limit,
                _ => options.deadline,
            },
            commands: ManuallyDrop::new(Handle::new(raw, cl_queue::release_command_queue)),
            context: Arc::new(context),
            queue: Mutex::default(),
            sweep: Sweep::default(),
            dead: OnceLock::new(),
            options,
            place,
            info,
        })
    }

    fn alive(&self) -> Result<(), DeviceError> {
        match self.dead.get() {
            Some(cause) => Err(DeviceError::Poisoned { device: self.info.id.clone(), cause: cause.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn queue(&self) -> Result<MutexGuard<'_, Queue>, DeviceError> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.alive()?;
        Ok(queue)
    }

    pub(super) fn failed(&self, failure: Failure) -> DeviceError {
        api(&self.info.id, failure)
    }

    /// Waits for the last command, at most until the deadline.
    pub(super) fn wait(&self, queue: &mut Queue) -> Result<(), DeviceError> {
        let Some(last) = queue.last.take() else { return Ok(()) };
        check("clFlush", cl_queue::flush(self.commands.get())).map_err(|f| self.failed(f))?;
        let command = Command { device: self.id.clone(), event: last, entry: queue.entry.clone(), patience: self.patience };
        let waited = command.wait();
        match &waited {
            Ok(()) => queue.pending = 0,
            Err(DeviceError::Crash { entry, reason, .. }) => {
                let _ = self.dead.set(format!("`{entry}` crashed ({reason})"));
            }
            Err(DeviceError::Hang { entry, .. }) => {
                let _ = self.dead.set(format!("`{entry}` hung"));
            }
            Err(_) => {}
        }
        waited
    }

    fn memory<'a>(&self, buffer: &'a Buffer) -> Result<&'a Memory, DeviceError> {
        buffer.memory::<Memory>(&self.info.id)
    }

    fn allocate(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        let no_room = |reason: String| DeviceError::OutOfMemory { device: self.info.id.clone(), bytes, reason };
        if bytes > self.info.max_buffer_bytes {
            return Err(no_room(format!("its largest buffer is {} bytes", self.info.max_buffer_bytes)));
        }
        // A multiple of four, so that filling can go by words.
        let size = usize::try_from(bytes.next_multiple_of(4).max(4)).map_err(|e| no_room(e.to_string()))?;
        // SAFETY: no host memory is handed over.
        let raw = unsafe {
            cl_memory::create_buffer(self.context.handle.get(), cl_memory::CL_MEM_READ_WRITE, size, std::ptr::null_mut())
        };
        let raw = check("clCreateBuffer", raw).map_err(|f| match f.code {
            CL_MEM_OBJECT_ALLOCATION_FAILURE | CL_OUT_OF_RESOURCES | CL_OUT_OF_HOST_MEMORY => no_room(f.reason),
            _ => self.failed(f),
        })?;
        let memory = Memory { handle: Handle::new(raw, cl_memory::release_mem_object), bytes: size };
        let alignment = 1u64 << self.slice_alignment.trailing_zeros().clamp(6, 12);
        Ok(Buffer::new(self.id.clone(), Arc::new(memory), alignment, bytes))
    }

    pub(super) fn fill_queue(&self, queue: &mut Queue, buffer: &Buffer, byte: u8) -> Result<(), DeviceError> {
        let memory = self.memory(buffer)?;
        let (offset, bytes) = (buffer.offset() as usize, buffer.bytes() as usize);
        if bytes == 0 {
            return Ok(());
        }
        // By words where the range allows: byte patterns are slow on some drivers. A whole buffer is filled to the end
        // of its rounded-up allocation.
        let whole = offset == 0 && bytes.next_multiple_of(4) == memory.bytes;
        let (size, width) = match (offset % 4, bytes % 4) {
            _ if whole => (memory.bytes, 4),
            (0, 0) => (bytes, 4),
            _ => (bytes, 1),
        };
        let pattern = [byte; 4];
        // SAFETY: the range lies in the allocation, the pattern is copied by the call.
        let raw = unsafe {
            cl_queue::enqueue_fill_buffer(
                self.commands.get(),
                memory.handle.get(),
                pattern.as_ptr().cast(),
                width,
                offset,
                size,
                0,
                std::ptr::null(),
            )
        };
        self.queued(queue, "clEnqueueFillBuffer", raw)
    }

    fn queued(&self, queue: &mut Queue, call: &'static str, event: Result<*mut c_void, i32>) -> Result<(), DeviceError> {
        let event = check(call, event).map_err(|f| self.failed(f))?;
        queue.last = Some(Arc::new(Handle::new(event, cl_event::release_event)));
        queue.pending += 1;
        Ok(())
    }

    /// Copies bytes between this process and a buffer, after all work started so far. `copy` receives the queue, the memory and the first byte.
    fn transfer(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: usize,
        call: &'static str,
        copy: impl FnOnce(*mut c_void, *mut c_void, usize) -> Result<*mut c_void, i32>,
    ) -> Result<(), DeviceError> {
        buffer.check_range(offset, bytes as u64)?;
        let memory = self.memory(buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        let mut queue = self.queue()?;
        self.wait(&mut queue)?;
        let event = copy(self.commands.get(), memory.handle.get(), (buffer.offset() + offset) as usize);
        self.queued(&mut queue, call, event)
    }

    /// The object to pass for a buffer: itself, or a sub-buffer for a slice.
    fn argument(&self, buffer: &Buffer, entry: &str, name: &str) -> Result<(*mut c_void, Option<Handle>), DeviceError> {
        let memory = self.memory(buffer)?;
        if buffer.offset() == 0 {
            return Ok((memory.handle.get(), None));
        }
        if !buffer.offset().is_multiple_of(self.slice_alignment) {
            return Err(DeviceError::BadLaunch {
                device: self.info.id.clone(),
                entry: entry.into(),
                reason: format!(
                    "`{name}` starts at byte {} of its buffer; OpenCL passes parts only from multiples of {} bytes on",
                    buffer.offset(),
                    self.slice_alignment
                ),
            });
        }
        let size = (buffer.bytes() as usize).max(1);
        let region = cl_memory::cl_buffer_region { origin: buffer.offset() as usize, size };
        // SAFETY: the region lies in the allocation; the structure is read during the call.
        let raw = unsafe {
            cl_memory::create_sub_buffer(
                memory.handle.get(),
                cl_memory::CL_MEM_READ_WRITE,
                cl_memory::CL_BUFFER_CREATE_TYPE_REGION,
                (&raw const region).cast(),
            )
        };
        let raw = check("clCreateSubBuffer", raw).map_err(|f| self.failed(f))?;
        Ok((raw, Some(Handle::new(raw, cl_memory::release_mem_object))))
    }

    pub(super) fn start(&self, queue: &mut Queue, launch: &Launch) -> Result<(), DeviceError> {
        if queue.pending >= QUEUE {
            self.release(queue)?;
            self.wait(queue)?;
        }
        let entry = launch.kernel.entry();
        let Some(built) = launch.kernel.binary::<Built>(&self.info.id) else {
            let reason = format!("the kernel was compiled for {}", launch.kernel.device());
            return Err(DeviceError::BadLaunch { device: self.info.id.clone(), entry: entry.into(), reason });
        };
        let kernel = built.kernel.get();
        // OpenCL keeps parts of buffers alive for the commands that use them: these may go when the launch is queued.
        let mut parts = Vec::new();
        for (n, (arg, declared)) in launch.args.iter().zip(launch.kernel.args()).enumerate() {
            let set = |bytes: &[u8]| {
                // SAFETY: `check_launches` compared the arguments with the kernel's declaration; the value is copied.
                unsafe { cl_kernel::set_kernel_arg(kernel, n as u32, bytes.len(), bytes.as_ptr().cast()) }
            };
            let result = match arg {
                LaunchArg::Buffer(buffer) => {
                    let (raw, part) = self.argument(buffer, entry, &declared.name)?;
                    parts.extend(part);
                    set(&(raw as usize).to_ne_bytes())
                }
                // Not let through by `check_launches`.
                LaunchArg::Map { .. } => continue,
                LaunchArg::I32(v) => set(&v.to_ne_bytes()),
                LaunchArg::I64(v) => set(&v.to_ne_bytes()),
                LaunchArg::F32(v) => set(&v.to_ne_bytes()),
                LaunchArg::F64(v) => set(&v.to_ne_bytes()),
            };
            check("clSetKernelArg", result).map_err(|f| self.failed(f))?;
        }
        queue.entry.clear();
        queue.entry.push_str(entry);
        let local = [launch.kernel.threads() as usize, 1, 1];
        let global = [0, 1, 2].map(|d| launch.grid[d] as usize * local[d]);
        // SAFETY: all arguments are set; the sizes have three elements.
        let raw = unsafe {
            cl_queue::enqueue_nd_range_kernel(
                self.commands.get(),
                kernel,
                3,
                std::ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                std::ptr::null(),
            )
        };
        self.queued(queue, "clEnqueueNDRangeKernel", raw)?;
        if queue.hold.as_mut().is_some_and(Hold::is_full_after_one_more) {
            self.release(queue)?;
        }
        Ok(())
    }
}

/// A command as a mark: the queue runs them in order.
struct Command {
    device: Arc<str>,
    event: Arc<Handle>,
    entry: String,
    patience: Duration,
}

impl Mark for Command {
    fn is_passed(&self) -> Result<bool, DeviceError> {
        let status = cl_event::get_event_info(self.event.get(), cl_event::CL_EVENT_COMMAND_EXECUTION_STATUS);
        let status: i32 = check("clGetEventInfo", status).map_err(|f| api(&self.device, f))?.into();
        if status < 0 {
            let (device, entry) = (self.device.to_string(), self.entry.clone());
            return Err(DeviceError::Crash {
                device,
                entry,
                reason: format!("{} ({status})", opencl3::error_codes::ClError(status)),
            });
        }
        Ok(status == cl_event::CL_COMPLETE)
    }
    fn wait(&self) -> Result<(), DeviceError> {
        if mark::within(self.patience, || self.is_passed())? {
            return Ok(());
        }
        // Releasing anything of a hung queue may wait for ever.
        std::mem::forget(self.event.clone());
        Err(DeviceError::Hang { device: self.device.to_string(), entry: self.entry.clone(), deadline: self.patience })
    }
}

fn api(device: &str, failure: Failure) -> DeviceError {
    DeviceError::Api { device: device.into(), call: failure.call, reason: failure.reason }
}

impl Device for ClDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn prepare(&self, threads: usize) -> Result<(), DeviceError> {
        self.alive()?;
        compile::prepare(&self.options, threads, self.printed(&nothing())?);
        run_nothing(self)
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<Compiled>, DeviceError> {
        self.alive()?;
        self.ready(self.printed(kernel)?, &kernel.args, kernel.threads)
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.alive()?;
        self.allocate(bytes)
    }

    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.transfer(buffer, offset, data.len(), "clEnqueueWriteBuffer", |queue, memory, first| {
            let (from, blocking, none) = (data.as_ptr().cast(), opencl3::types::CL_TRUE, std::ptr::null());
            // SAFETY: the range was checked; the call blocks until the data has been read.
            unsafe { cl_queue::enqueue_write_buffer(queue, memory, blocking, first, data.len(), from, 0, none) }
        })
    }

    fn read(&self, buffer: &Buffer, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        self.transfer(buffer, offset, data.len(), "clEnqueueReadBuffer", |queue, memory, first| {
            let (to, blocking, none) = (data.as_mut_ptr().cast(), opencl3::types::CL_TRUE, std::ptr::null());
            // SAFETY: the range was checked; the call blocks until the data has been written.
            unsafe { cl_queue::enqueue_read_buffer(queue, memory, blocking, first, data.len(), to, 0, none) }
        })
    }

    fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), DeviceError> {
        let mut queue = self.queue()?;
        self.fill_queue(&mut queue, buffer, byte)
    }

    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        check_launches(&self.info, launches)?;
        let mut queue = self.queue()?;
        for launch in launches {
            self.start(&mut queue, launch)?;
        }
        check("clFlush", cl_queue::flush(self.commands.get())).map_err(|f| self.failed(f))
    }

    fn rehearse(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        check_launches(&self.info, launches)?;
        self.rehearse_in_workers(launches)
    }

    fn identity(&self) -> Option<Identity> {
        Some(Identity(Found::OpenCl { id: self.info.id.clone(), place: self.place.clone() }))
    }

    fn sync(&self) -> Result<(), DeviceError> {
        let mut queue = self.queue()?;
        self.wait(&mut queue)
    }

    fn mark(&self) -> Result<Box<dyn Mark>, DeviceError> {
        let queue = self.queue()?;
        let Some(last) = &queue.last else { return Ok(Box::new(Passed)) };
        // Commands that are not flushed may never begin.
        check("clFlush", cl_queue::flush(self.commands.get())).map_err(|f| self.failed(f))?;
        let (event, entry, patience) = (last.clone(), queue.entry.clone(), self.patience);
        Ok(Box::new(Command { device: self.id.clone(), event, entry, patience }))
    }

    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        check_launches(&self.info, launches)?;
        let sweep = self.sweep.launch(self)?;
        let mut queue = self.queue()?;
        let mut times = Vec::with_capacity(timing.repeats as usize);
        for _ in 0..timing.repeats {
            let mut work = |queue: &mut Queue| launches.iter().try_for_each(|launch| self.start(queue, launch));
            times.push(self.timed(&mut queue, &sweep, timing.cache, &mut work)?);
        }
        Ok(times)
    }

    fn native(&self) -> Option<&dyn Native> {
        Some(self)
    }
}

impl ClDevice {
    /// Microseconds of what `work` queues, between the ends of two markers. One is after the sweep (and, for warm caches, an
    /// untimed run), one after the work. On a GPU a hold keeps the queue before the first marker until all is queued, or [`HELD`]
    /// launches are. On a CPU the processor that queues also runs the kernels, and PoCL's `basic` device deadlocks when a hold
    /// ends: nothing holds its queue.
    ///
    /// # Errors
    /// Those of `work` and of the queue; [`DeviceError::Api`] where the hold ran out of time.
    pub(super) fn timed(
        &self,
        queue: &mut Queue,
        sweep: &Launch,
        cache: CacheState,
        work: &mut dyn FnMut(&mut Queue) -> Result<(), DeviceError>,
    ) -> Result<f64, DeviceError> {
        self.wait(queue)?;
        self.start(queue, sweep)?;
        if cache == CacheState::Warm {
            work(queue)?;
        }
        if queue.pending + HELD >= QUEUE {
            self.wait(queue)?;
        }
        if self.holds {
            let hold = Hold::begin(&self.context.handle).map_err(|f| self.failed(f))?;
            self.barrier(queue, hold.event.handle())?;
            queue.hold = Some(hold);
        }
        let held = queue.hold.as_ref().map(|hold| hold.event.clone());
        let queued = self.marker(queue).and_then(|start| {
            work(queue)?;
            Ok((start, self.marker(queue)?))
        });
        self.release(queue)?;
        let (start, end) = queued?;
        self.wait(queue)?;
        if held.is_some_and(|event| event.is_expired()) {
            return Err(hold_expired(&self.info.id));
        }
        let [from, to] = [self.stamp(&start)?, self.stamp(&end)?];
        Ok(to.saturating_sub(from) as f64 * 1e-3)
    }

    /// Ends the hold before a span that is being queued, if there is one.
    fn release(&self, queue: &mut Queue) -> Result<(), DeviceError> {
        queue.hold.take().map_or(Ok(()), |hold| hold.end().map_err(|f| self.failed(f)))
    }

    /// Lets nothing that is queued from here on begin before an event is complete.
    fn barrier(&self, queue: &mut Queue, event: &Handle) -> Result<(), DeviceError> {
        let events = [event.get()];
        // SAFETY: the queue and the event are alive; the list has one event and is read during the call.
        let raw = unsafe { cl_queue::enqueue_barrier_with_wait_list(self.commands.get(), 1, events.as_ptr()) };
        self.queued(queue, "clEnqueueBarrierWithWaitList", raw)
    }

    pub(super) fn marker(&self, queue: &mut Queue) -> Result<Arc<Handle>, DeviceError> {
        // SAFETY: the queue is alive; the list of events to wait for is empty: the queue's order is enough.
        let raw = unsafe { cl_queue::enqueue_marker_with_wait_list(self.commands.get(), 0, std::ptr::null()) };
        let event = check("clEnqueueMarkerWithWaitList", raw).map_err(|f| self.failed(f))?;
        let event = Arc::new(Handle::new(event, cl_event::release_event));
        queue.last = Some(event.clone());
        queue.pending += 1;
        Ok(event)
    }

    /// When an event ended, in nanoseconds.
    fn stamp(&self, event: &Handle) -> Result<u64, DeviceError> {
        let time = cl_event::get_event_profiling_info(event.get(), cl_event::CL_PROFILING_COMMAND_END);
        Ok(check("clGetEventProfilingInfo", time).map_err(|f| self.failed(f))?.into())
    }
}
