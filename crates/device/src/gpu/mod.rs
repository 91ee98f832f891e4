//! A GPU device over a [`Driver`]: what CUDA and HIP share. One stream, a watchdog on every wait, events for timing.

mod driver;
mod hold;
mod mark;
mod module;
mod native;
#[cfg(test)]
mod tests;

pub(crate) use driver::{Before, Driver, EncodedMap, Entered, Failure, Handle, LaunchSize, Loaded, Pinned, Reach};

use crate::compile;
use crate::device::{check_launches, nothing, run_nothing};
use crate::ending::{self, Ending};
use crate::foreign::{self, Foreign, Number, Value};
use crate::identity::Found;
use crate::job::{Job, VendorCompiler};
use crate::mark::{self as marks, Mark};
use crate::options::Options;
use crate::sweep::Sweep;
use crate::{
    Buffer, CacheState, Compiled, Device, DeviceError, DeviceInfo, Identity, Launch, LaunchArg, Native, Resources, Stream, Timing,
};
use hold::{Gate, HELD, Held, Hold};
use module::{Module, Refused};
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tilewright_ir::{ArgKind, Kernel, Source};

/// Launches that may be queued before the host waits. Drivers block without limit when their queue (1024 entries) is full, and a
/// watchdog must never block.
const QUEUE: usize = 512;

/// What [`GpuDevice`] needs to know from its back end beside the driver.
pub(crate) struct Compiler {
    /// Options for the vendor's compiler.
    pub options: Vec<String>,
    /// The compiler.
    pub compile: VendorCompiler,
    /// Reads what the driver does not tell out of the compiler's log.
    pub read_log: fn(&str) -> Resources,
}

/// The driver and whether its context is still alive; outlived by nothing that uses it.
struct Context<D: Driver> {
    driver: ManuallyDrop<D>,
    ending: &'static Ending,
    /// The device's.
    id: Arc<str>,
    deadline: Duration,
    /// The failure that killed the context. What was allocated is then leaked: freeing would wait for ever.
    dead: OnceLock<String>,
    gate: Gate,
}

impl<D: Driver> Drop for Context<D> {
    fn drop(&mut self) {
        if self.dead.get().is_none() && !self.ending.has_come() {
            // SAFETY: nothing uses the driver after this.
            unsafe { ManuallyDrop::drop(&mut self.driver) };
        }
    }
}

impl<D: Driver> Context<D> {
    /// The driver, its device current on this thread until the value is dropped, unless the context is lost.
    fn driver(&self) -> Result<Entered<'_, D>, DeviceError> {
        if let Some(cause) = self.dead.get() {
            return Err(DeviceError::Poisoned { device: self.id.to_string(), cause: cause.clone() });
        }
        Entered::new(&*self.driver).map_err(|f| self.failed(f, ""))
    }

    /// The driver, to free something of the device. None where that is left to the system, because the context or the driver is
    /// gone, or the process is about to end.
    fn to_free(&self) -> Option<Entered<'_, D>> {
        if self.ending.has_come() { None } else { self.driver().ok() }
    }

    fn failed(&self, failure: Failure, entry: &str) -> DeviceError {
        let device = self.id.to_string();
        if failure.reach == Reach::Context {
            // An earlier cause, if there is one, explains more.
            let _ = self.dead.set(format!("`{entry}` crashed ({})", failure.reason));
            return DeviceError::Crash { device, entry: entry.into(), reason: failure.reason };
        }
        DeviceError::Api { device, call: failure.call, reason: failure.reason }
    }

    /// Waits until the stream has passed the event after a kernel, at most until the deadline.
    fn wait_for(&self, driver: &D, entry: &str, event: Handle, deadline: Duration) -> Result<(), DeviceError> {
        if marks::within(deadline, || driver.passed(event).map_err(|f| self.failed(f, entry)))? {
            return Ok(());
        }
        let _ = self.dead.set(format!("`{entry}` hung"));
        Err(DeviceError::Hang { device: self.id.to_string(), entry: entry.into(), deadline })
    }
}

struct Memory<D: Driver> {
    context: Arc<Context<D>>,
    address: u64,
}

impl<D: Driver> Drop for Memory<D> {
    fn drop(&mut self) {
        if let Some(driver) = self.context.to_free() {
            self.context.gate.pass();
            driver.free(self.address);
        }
    }
}

/// Entry of work that a vendor's library queued.
const LIBRARY: &str = "a library's kernel";
/// Deadlines that such work may take: a library offers correct ways that are slower than any kernel of a search.
const PATIENCE: u32 = 10;

/// The stream's state; its lock keeps sequences of calls together.
#[derive(Default)]
struct Queue {
    /// Kernels started since the last wait.
    pending: usize,
    /// Name of the last one.
    entry: String,
    /// What runs since then: kernels and buffers must outlive their launches, and freeing them would wait without limit.
    held: Vec<Launch>,
    /// Events that are free to use.
    events: Vec<Handle>,
    /// What keeps the device from running the span that is being queued.
    hold: Option<Held>,
    /// Ticket of the last hold.
    ticket: u32,
}

/// A CUDA or HIP device.
pub(crate) struct GpuDevice<D: Driver> {
    info: DeviceInfo,
    id: Arc<str>,
    options: Options,
    compiler: Compiler,
    context: Arc<Context<D>>,
    queue: Mutex<Queue>,
    sweep: Sweep,
    hold: OnceLock<Hold<D>>,
}

/// A timed span: its events, and the hold before it.
#[derive(Clone, Copy)]
struct Span {
    start: Handle,
    end: Handle,
    ticket: u32,
}

impl<D: Driver> GpuDevice<D> {
    pub(crate) fn new(info: DeviceInfo, options: Options, compiler: Compiler, driver: D) -> Self {
        GpuDevice::until(&ending::OF_PROCESS, info, options, compiler, driver)
    }

    /// The same, whose memory and kernels are freed until an end has come.
    fn until(ending: &'static Ending, info: DeviceInfo, options: Options, compiler: Compiler, driver: D) -> Self {
        let (id, deadline) = (Arc::from(info.id.as_str()), options.deadline);
        let context = Context {
            driver: ManuallyDrop::new(driver),
            ending,
            id: Arc::clone(&id),
            deadline,
            dead: OnceLock::new(),
            gate: Gate::default(),
        };
        let (context, queue, sweep, hold) = (Arc::new(context), Mutex::default(), Sweep::default(), OnceLock::new());
        GpuDevice { info, id, options, compiler, context, queue, sweep, hold }
    }

    fn driver(&self) -> Result<Entered<'_, D>, DeviceError> {
        self.context.driver()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, failure: Failure, entry: &str) -> DeviceError {
        self.context.failed(failure, entry)
    }

    /// Copies bytes between this process and a buffer, after all work started so far.
    fn transfer(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: usize,
        copy: impl FnOnce(&D, u64) -> Result<(), Failure>,
    ) -> Result<(), DeviceError> {
        buffer.check_range(offset, bytes as u64)?;
        let address = buffer.memory::<Memory<D>>(&self.info.id)?.address + buffer.offset() + offset;
        if bytes == 0 {
            return Ok(());
        }
        let driver = self.driver()?;
        let mut queue = self.queue();
        self.wait(&driver, &mut queue)?;
        copy(&driver, address).map_err(|f| self.failed(f, &queue.entry))
    }

    /// Waits until the stream has passed everything recorded, at most until the deadline.
    fn wait(&self, driver: &D, queue: &mut Queue) -> Result<(), DeviceError> {
        let event = self.take_event(driver, queue)?;
        driver.record(event).map_err(|f| self.failed(f, &queue.entry))?;
        let deadline = if queue.entry == LIBRARY { self.context.deadline * PATIENCE } else { self.context.deadline };
        self.context.wait_for(driver, &queue.entry, event, deadline)?;
        queue.events.push(event);
        queue.pending = 0;
        queue.held.clear();
        Ok(())
    }

    fn take_event(&self, driver: &D, queue: &mut Queue) -> Result<Handle, DeviceError> {
        match queue.events.pop() {
            Some(event) => Ok(event),
            None => driver.event().map_err(|f| self.failed(f, "")),
        }
    }

    /// Starts one launch. The flag says that its predecessor on the queue belongs to the same sequence.
    fn start(&self, driver: &D, queue: &mut Queue, launch: &Launch, in_sequence: bool) -> Result<(), DeviceError> {
        if queue.pending >= QUEUE {
            self.release(queue);
            self.wait(driver, queue)?;
        }
        let kernel = &launch.kernel;
        let address = |b: &Buffer| Ok::<_, DeviceError>(b.memory::<Memory<D>>(&self.info.id)?.address + b.offset());
        let values = launch.args.iter().zip(kernel.args()).map(|(arg, declared)| {
            Ok(match (arg, &declared.kind) {
                (LaunchArg::Buffer(b), ArgKind::TensorMap(map)) => Value::Map(address(b)?, foreign::declared(map)),
                (LaunchArg::Map { memory, extent }, _) => Value::Map(address(memory)?, *extent),
                (LaunchArg::Buffer(b), _) => Value::Address(address(b)?),
                (LaunchArg::I32(v), _) => Value::Number(Number::I32(*v)),
                (LaunchArg::I64(v), _) => Value::Number(Number::I64(*v)),
                (LaunchArg::F32(v), _) => Value::Number(Number::F32(*v)),
                (LaunchArg::F64(v), _) => Value::Number(Number::F64(*v)),
            })
        });
        let values = values.collect::<Result<Vec<_>, DeviceError>>()?;
        queue.entry.clear();
        queue.entry.push_str(kernel.entry());
        // SAFETY: `check_launches` asked that the buffers are as large as the kernel declares; `held` keeps them.
        unsafe { self.enqueue(driver.stream(), kernel, launch.grid, in_sequence, &values) }?;
        queue.pending += 1;
        queue.held.push(launch.clone());
        if let Some(hold) = &mut queue.hold {
            hold.launches += 1;
            if hold.launches >= HELD {
                self.release(queue);
            }
        }
        Ok(())
    }

    /// Starts a kernel on any stream of the context.
    ///
    /// # Safety
    /// As [`Foreign::start`].
    unsafe fn enqueue(
        &self,
        stream: Stream,
        kernel: &Compiled,
        grid: [u32; 3],
        in_sequence: bool,
        args: &[Value],
    ) -> Result<(), DeviceError> {
        let refused =
            |reason: String| DeviceError::BadLaunch { device: self.info.id.clone(), entry: kernel.entry().into(), reason };
        let module = kernel.binary::<Module<D>>(&self.info.id);
        let module = module.ok_or_else(|| refused(format!("the kernel was compiled for {}", kernel.device())))?;
        let early = in_sequence && kernel.follows && self.info.target.features.cluster;
        // SAFETY: the caller vouches for the addresses.
        unsafe { module.start(kernel, stream, grid, early, args) }.map_err(|why| match why {
            Refused::Arguments(reason) => refused(reason),
            Refused::Driver(failure) => self.failed(failure, kernel.entry()),
        })
    }

    /// What is to be compiled for a kernel, and its dynamic shared memory in bytes.
    fn job(&self, kernel: &Kernel) -> Result<(Job, u32), DeviceError> {
        let Source { text, entry, dynamic_shared_bytes } = tilewright_ir::print(kernel, &self.info.target)
            .map_err(|e| DeviceError::Invalid { device: self.info.id.clone(), invalid: Box::new(e) })?;
        let job = Job {
            backend: self.info.backend,
            device: self.info.id.clone(),
            place: None,
            arch: self.info.target.arch.clone(),
            entry,
            source: text,
            options: self.compiler.options.clone(),
        };
        Ok((job, dynamic_shared_bytes))
    }

    fn allocate(&self, driver: &D, bytes: u64) -> Result<Buffer, DeviceError> {
        let no_room = |reason: String| DeviceError::OutOfMemory { device: self.info.id.clone(), bytes, reason };
        let size = usize::try_from(bytes).map_err(|e| no_room(e.to_string()))?;
        self.context.gate.pass();
        let address = driver.alloc(size.max(1)).map_err(|f| match f.reach {
            Reach::Memory => no_room(f.reason),
            _ => self.failed(f, ""),
        })?;
        let alignment = 1u64 << address.trailing_zeros().min(12);
        let memory = Arc::new(Memory { context: self.context.clone(), address });
        Ok(Buffer::new(self.id.clone(), memory, alignment, bytes))
    }

    /// The kernel that holds the device, made when it is first asked for. Call it without holding the device's queue.
    fn hold(&self) -> Result<&Hold<D>, DeviceError> {
        if let Some(hold) = self.hold.get() {
            return Ok(hold);
        }
        let driver = self.driver()?;
        let job = hold::job(self.job(&nothing())?.0);
        let (binary, cached) = compile::binary(&self.info, &self.options, job.clone(), self.compiler.compile)?;
        let load = |code: &[u8]| {
            let _queue = self.queue();
            driver.load(code, hold::ENTRY, 0)
        };
        let loaded = match load(&binary.code) {
            Err(_) if cached => load(&compile::renewed(&self.info, &self.options, job, self.compiler.compile)?.code),
            loaded => loaded,
        };
        let made = loaded.and_then(|loaded| Hold::new(self.context.clone(), &driver, loaded));
        let made = made.map_err(|f| self.failed(f, hold::ENTRY))?;
        Ok(self.hold.get_or_init(|| made))
    }

    /// Ends the hold before a span that is being queued, if there is one.
    fn release(&self, queue: &mut Queue) {
        if let (Some(held), Some(hold)) = (queue.hold.take(), self.hold.get()) {
            hold.end(&held);
        }
    }

    /// Queues one timed run: the sweep, for warm caches an untimed run, the hold, and what `work` queues between two events. The device
    /// begins with that when all of it is queued, or [`HELD`] launches are.
    fn timed(
        &self,
        driver: &D,
        queue: &mut Queue,
        sweep: &Launch,
        cache: CacheState,
        work: &mut dyn FnMut(&mut Queue) -> Result<(), DeviceError>,
    ) -> Result<Span, DeviceError> {
        let hold = self.hold.get().ok_or_else(|| DeviceError::Api {
            device: self.info.id.clone(),
            call: "the hold of the device",
            reason: "it was not made".into(),
        })?;
        self.start(driver, queue, sweep, false)?;
        if cache == CacheState::Warm {
            work(queue)?;
        }
        if queue.pending + HELD >= QUEUE {
            self.wait(driver, queue)?;
        }
        let (start, end) = (self.take_event(driver, queue)?, self.take_event(driver, queue)?);
        let held = hold.begin(driver, &mut queue.ticket).map_err(|f| self.failed(f, hold::ENTRY))?;
        let ticket = held.ticket;
        queue.pending += 1;
        queue.hold = Some(held);
        let queued = driver.record(start).map_err(|f| self.failed(f, &queue.entry)).and_then(|()| {
            work(queue)?;
            driver.record(end).map_err(|f| self.failed(f, &queue.entry))
        });
        self.release(queue);
        queued.map(|()| Span { start, end, ticket })
    }

    /// Microseconds of a span that has passed; its events are free again.
    fn span(&self, driver: &D, queue: &mut Queue, Span { start, end, ticket }: Span) -> Result<f64, DeviceError> {
        let elapsed = driver.elapsed_us(start, end).map_err(|f| self.failed(f, &queue.entry))?;
        queue.events.extend([start, end]);
        self.hold.get().map_or(Ok(()), |hold| hold.judge(ticket))?;
        Ok(elapsed)
    }

    /// Runs launches once, untimed, if one of their kernels never ran. At the first run a driver may finish loading a kernel, or
    /// make room for its private memory, and then waits for the device.
    fn run_first(&self, driver: &D, queue: &mut Queue, launches: &[Launch]) -> Result<(), DeviceError> {
        let has_run = |launch: &Launch| launch.kernel.binary::<Module<D>>(&self.info.id).is_none_or(Module::has_run);
        if launches.iter().all(has_run) {
            return Ok(());
        }
        launches.iter().enumerate().try_for_each(|(n, launch)| self.start(driver, queue, launch, n > 0))?;
        self.wait(driver, queue)
    }

    fn fill_stream(&self, driver: &D, buffer: &Buffer, byte: u8) -> Result<(), DeviceError> {
        let address = buffer.memory::<Memory<D>>(&self.info.id)?.address + buffer.offset();
        if buffer.bytes() == 0 {
            return Ok(());
        }
        driver.fill(address, byte, buffer.bytes() as usize).map_err(|f| self.failed(f, ""))
    }
}

impl<D: Driver> Device for GpuDevice<D> {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn prepare(&self, threads: usize) -> Result<(), DeviceError> {
        compile::prepare(&self.options, threads, self.job(&nothing())?.0);
        run_nothing(self)
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<Compiled>, DeviceError> {
        let driver = self.driver()?;
        let (job, dynamic_shared_bytes) = self.job(kernel)?;
        let (entry, text) = (job.entry.clone(), job.source.clone());
        let (binary, cached) = compile::binary(&self.info, &self.options, job.clone(), self.compiler.compile)?;
        let load = |code: &[u8]| {
            // Not while something is being timed.
            let _queue = self.queue();
            driver.load(code, &entry, dynamic_shared_bytes)
        };
        let (loaded, binary, cached) = match load(&binary.code) {
            Ok(loaded) => (loaded, binary, cached),
            // Whatever is wrong with an entry of the cache, compiling anew tells.
            Err(_) if cached => {
                let binary = compile::renewed(&self.info, &self.options, job, self.compiler.compile)?;
                (load(&binary.code).map_err(|f| self.failed(f, &entry))?, binary, false)
            }
            Err(f) => return Err(self.failed(f, &entry)),
        };
        let logged = (self.compiler.read_log)(&binary.log);
        let resources = Resources {
            registers: loaded.resources.registers.or(logged.registers),
            spill_bytes: logged.spill_bytes.or(loaded.resources.spill_bytes),
            private_bytes: loaded.resources.private_bytes.or(logged.private_bytes),
            shared_bytes: loaded.resources.shared_bytes.map(|b| b + dynamic_shared_bytes),
            max_threads: loaded.resources.max_threads,
        };
        let (context, maps, ran) = (self.context.clone(), Mutex::default(), AtomicBool::new(false));
        let captured = AtomicBool::new(false);
        let module = Module { context, loaded, dynamic_shared: dynamic_shared_bytes, maps, ran, captured };
        Ok(Arc::new(Compiled {
            device: self.id.clone(),
            entry,
            source: text,
            args: kernel.args.clone(),
            threads: kernel.threads,
            follows: kernel.follows,
            resources,
            log: binary.log,
            cached,
            binary: Arc::new(module),
        }))
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.allocate(&*self.driver()?, bytes)
    }

    unsafe fn lock_pages(&self, memory: *mut [u8]) {
        if let Ok(driver) = self.driver() {
            // SAFETY: the caller's promise is the same.
            unsafe { driver.lock_pages(memory) }
        }
    }

    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.transfer(buffer, offset, data.len(), |driver, address| driver.write(address, data))
    }

    fn read(&self, buffer: &Buffer, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        self.transfer(buffer, offset, data.len(), |driver, address| driver.read(address, data))
    }

    fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), DeviceError> {
        let driver = self.driver()?;
        let _queue = self.queue();
        self.fill_stream(&driver, buffer, byte)
    }

    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        check_launches(&self.info, launches)?;
        let driver = self.driver()?;
        let mut queue = self.queue();
        for (n, launch) in launches.iter().enumerate() {
            self.start(&driver, &mut queue, launch, n > 0)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        let driver = self.driver()?;
        let mut queue = self.queue();
        self.wait(&driver, &mut queue)
    }

    fn mark(&self) -> Result<Box<dyn Mark>, DeviceError> {
        let driver = self.driver()?;
        let queue = self.queue();
        let event = driver.event().map_err(|f| self.failed(f, ""))?;
        let made = mark::Event { context: self.context.clone(), event, entry: queue.entry.clone() };
        driver.record(event).map_err(|f| self.failed(f, &queue.entry))?;
        Ok(Box::new(made))
    }

    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        check_launches(&self.info, launches)?;
        let sweep = self.sweep.launch(self)?;
        self.hold()?;
        let driver = self.driver()?;
        let mut queue = self.queue();
        self.run_first(&driver, &mut queue, std::slice::from_ref(&sweep))?;
        self.run_first(&driver, &mut queue, launches)?;
        // Repeats are queued together, so that the device never waits for the host between two of them.
        let batch = (QUEUE / (2 * launches.len() + 5)).clamp(1, 64) as u32;
        let mut times = Vec::with_capacity(timing.repeats as usize);
        let mut left = timing.repeats;
        while left > 0 {
            let now = left.min(batch);
            left -= now;
            self.wait(&driver, &mut queue)?;
            let mut spans = Vec::with_capacity(now as usize);
            for _ in 0..now {
                let mut work = |queue: &mut Queue| {
                    launches.iter().enumerate().try_for_each(|(n, launch)| self.start(&driver, queue, launch, n > 0))
                };
                spans.push(self.timed(&driver, &mut queue, &sweep, timing.cache, &mut work)?);
            }
            self.wait(&driver, &mut queue)?;
            for span in spans {
                times.push(self.span(&driver, &mut queue, span)?);
            }
        }
        Ok(times)
    }

    fn identity(&self) -> Option<Identity> {
        Some(Identity(self.context.driver.uuid().map_or_else(|| Found::Id(self.info.id.clone()), Found::Cuda)))
    }

    fn free_bytes(&self) -> Option<u64> {
        self.driver().ok()?.free_bytes()
    }

    fn native(&self) -> Option<&dyn Native> {
        Some(self)
    }

    fn foreign(&self) -> Option<&dyn Foreign> {
        Some(self)
    }
}

impl<D: Driver> Foreign for GpuDevice<D> {
    unsafe fn start(
        &self,
        stream: Stream,
        kernel: &Compiled,
        grid: [u32; 3],
        early: bool,
        args: &[Value],
    ) -> Result<(), DeviceError> {
        let _entered = self.driver()?;
        // SAFETY: the caller vouches for addresses, kernel and stream.
        unsafe { self.enqueue(stream, kernel, grid, early, args) }
    }
}

impl<D: Driver> Drop for GpuDevice<D> {
    fn drop(&mut self) {
        let Some(driver) = self.context.to_free() else { return };
        let mut queue = self.queue();
        // A kernel that hangs here makes the context dead: what it uses is then leaked instead of freed.
        if self.wait(&driver, &mut queue).is_ok() {
            for event in queue.events.drain(..) {
                driver.free_event(event);
            }
        }
    }
}
