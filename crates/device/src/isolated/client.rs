//! The tuner's end: a [`Device`] whose calls run in a worker.

use super::host::LOCK_WAIT;
use super::staging::{ROOM, Room, Staging, unshared};
use crate::device::{DeviceKind, check_launches};
use crate::identity::Identity;
use crate::job::{Binary, Refusal, Work};
use crate::options::Options;
use crate::wire::Fault;
use crate::wire::{BUILD, Call, Given, Invocation, LoadReply, Opening, Part, Start, TimeReply};
use crate::worker::{Ended, Worker, Workers};
use crate::{Buffer, Compiled, Device, DeviceError, DeviceInfo, Launch, LaunchArg, Timing};
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tilewright_ir::Kernel;

/// How long a worker may take to start, besides the deadline of its device.
const SLACK: Duration = Duration::from_secs(15);
/// Least and most that a call may take beyond its limit, to copy and to answer: as long as a launch in between.
const CALL_SLACK: [Duration; 2] = [Duration::from_secs(5), SLACK];
/// So often a kernel is loaded anew because the worker was lost to another one.
const LOADS: usize = 3;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a worker that opened the device is not used.
fn another_build(theirs: &str) -> String {
    let theirs = if theirs.is_empty() { "an older one" } else { theirs };
    format!("this is another build ({theirs}) than the process that tunes ({BUILD}): install the command of the same build")
}

/// A device in a worker process.
pub(super) struct Isolated {
    /// The same device in this process.
    here: Arc<dyn Device>,
    info: DeviceInfo,
    id: Arc<str>,
    identity: Identity,
    workers: Workers,
    options: Options,
    link: Mutex<Link>,
    /// Numbers of memory and kernels: none is given twice, so that one of a worker that is gone means nothing to the next.
    numbers: AtomicU64,
    unused: Arc<Mutex<Unused>>,
}

/// The worker that runs.
#[derive(Default)]
struct Link {
    worker: Option<Arc<Running>>,
    /// How many were started.
    generation: u64,
    /// The last kernel launched.
    entry: String,
}

struct Running {
    worker: Worker,
    /// Locked by the transfer that uses it.
    staging: Mutex<Staging>,
}

/// What nobody holds any more and the worker still has.
#[derive(Default)]
struct Unused {
    memory: Vec<u64>,
    kernels: Vec<u64>,
}

struct RemoteMemory {
    number: u64,
    unused: Arc<Mutex<Unused>>,
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        locked(&self.unused).memory.push(self.number);
    }
}

struct RemoteKernel {
    kernel: Kernel,
    /// The worker that has it, and its number there.
    loaded: Mutex<(u64, u64)>,
    unused: Arc<Mutex<Unused>>,
}

impl Drop for RemoteKernel {
    fn drop(&mut self) {
        locked(&self.unused).kernels.push(locked(&self.loaded).1);
    }
}

impl Isolated {
    pub(super) fn new(here: Arc<dyn Device>, identity: Identity, workers: Workers, options: &Options) -> Self {
        let info = here.info().clone();
        Isolated {
            id: info.id.as_str().into(),
            here,
            info,
            identity,
            workers,
            options: options.clone(),
            link: Mutex::default(),
            numbers: AtomicU64::new(0),
            unused: Arc::default(),
        }
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The running worker and its generation; starts one where none runs.
    fn worker(&self) -> Result<(Arc<Running>, u64), DeviceError> {
        let mut link = locked(&self.link);
        if let Some(worker) = &link.worker {
            return Ok((worker.clone(), link.generation));
        }
        let worker = Arc::new(self.start()?);
        link.generation += 1;
        link.worker = Some(worker.clone());
        Ok((worker, link.generation))
    }

    /// A refusal for lack of memory, with the bytes that are free: this process can ask for them.
    fn with_free(&self, e: DeviceError) -> DeviceError {
        match (e, self.here.free_bytes()) {
            (DeviceError::OutOfMemory { device, bytes, reason }, Some(free)) => {
                DeviceError::OutOfMemory { device, bytes, reason: format!("{free} bytes are free; {reason}") }
            }
            (e, _) => e,
        }
    }

    fn start(&self) -> Result<Running, DeviceError> {
        let (program, args) = self.workers.program();
        let no_worker = |reason: String| DeviceError::NoWorker {
            device: self.info.id.clone(),
            reason: format!("{}: {reason}", program.display()),
        };
        let (staging, file) = Staging::create().map_err(|e| unshared(&e))?;
        let opening = Opening {
            staging: file.path().into(),
            identity: self.identity.clone(),
            deadline: self.options.deadline,
            compile_limit: self.options.compile_limit,
            cache: self.options.cache.directory().map(Into::into),
            compilers: Invocation { path: program.into(), args: args.iter().map(|a| a.to_string_lossy().into_owned()).collect() },
        };
        let mut unseen = String::new();
        for variables in self.identity.attempts() {
            let worker = self.workers.start(&variables).map_err(|e| no_worker(format!("did not start: {e}")))?;
            let limit = self.options.deadline + SLACK;
            let work = Work::Device(Call::Open(opening.clone()));
            match worker.run(work, limit).map_err(|e| no_worker(e.to_string()))? {
                Ended::Made(answer) if answer.log != BUILD => return Err(no_worker(another_build(&answer.log))),
                Ended::Made(_) => return Ok(Running { worker, staging: Mutex::new(staging) }),
                Ended::Refused(Refusal::Unseen(reason)) => unseen = reason,
                Ended::Refused(Refusal::Failed(fault)) => return Err(self.with_free(fault.on(&self.info.id))),
                Ended::Refused(Refusal::Source(reason) | Refusal::Compiler(reason)) => return Err(no_worker(reason)),
                Ended::TimedOut => return Err(no_worker(format!("did not open the device within {limit:?}"))),
                Ended::Crashed(reason) => return Err(no_worker(format!("ended when it opened the device: {reason}"))),
            }
        }
        Err(no_worker(format!("does not see the device: {unseen}")))
    }

    /// Whether this worker still runs.
    fn has(&self, generation: u64) -> bool {
        let link = locked(&self.link);
        link.generation == generation && link.worker.is_some()
    }

    /// Ends a worker that is of no use any more.
    fn lose(&self, generation: u64) -> String {
        let mut link = locked(&self.link);
        if link.generation == generation {
            link.worker = None;
        }
        link.entry.clone()
    }

    /// One call, and the worker that it ran in.
    fn call(&self, call: Call, limit: Duration) -> Result<(Binary, u64), DeviceError> {
        let (running, generation) = self.worker()?;
        Ok((self.call_in(&running, generation, call, limit)?, generation))
    }

    /// One call of this worker.
    fn call_in(&self, running: &Running, generation: u64, call: Call, limit: Duration) -> Result<Binary, DeviceError> {
        let lost = |reason: String| {
            let (device, entry) = (self.info.id.clone(), self.lose(generation));
            tracing::warn!("{device}: the worker process was lost with `{entry}`: {reason}");
            DeviceError::WorkerLost { device, entry, reason }
        };
        let limit = limit + self.options.deadline.clamp(CALL_SLACK[0], CALL_SLACK[1]);
        match running.worker.run(Work::Device(call), limit) {
            Ok(Ended::Made(made)) => Ok(made),
            Ok(Ended::Refused(Refusal::Failed(fault))) => Err(self.failed(fault, generation)),
            Ok(Ended::Refused(Refusal::Source(reason) | Refusal::Compiler(reason) | Refusal::Unseen(reason))) => {
                Err(DeviceError::Api { device: self.info.id.clone(), call: "the worker", reason })
            }
            Ok(Ended::TimedOut) => Err(lost(format!("did not end within {limit:?}"))),
            Ok(Ended::Crashed(reason)) => Err(lost(format!("crashed: {reason}"))),
            Err(e) => Err(lost(format!("crashed: no answer: {e}"))),
        }
    }

    fn failed(&self, fault: Fault, generation: u64) -> DeviceError {
        let e = fault.on(&self.info.id);
        if let DeviceError::WorkerLost { entry, reason, .. } = &e {
            self.lose(generation);
            tracing::warn!("{}: the worker process was lost with `{entry}`: {reason}", self.info.id);
        }
        e
    }

    /// One call without a result.
    fn done(&self, call: Call) -> Result<(), DeviceError> {
        self.call(call, self.patience()).map(drop)
    }

    /// Copies the chunks of a part of device memory, several at once. `each` copies one chunk: through the room that it is given, by calls.
    fn transfer<C: Send>(
        &self,
        of: Part,
        chunks: impl Iterator<Item = C> + Send,
        each: impl Fn(&mut Room, C, Part, &dyn Fn(Call) -> Result<(), DeviceError>) -> Result<(), DeviceError> + Sync,
    ) -> Result<(), DeviceError> {
        let (running, generation) = self.worker()?;
        let mut staging = locked(&running.staging);
        // A call without an answer may still use the memory.
        if !self.has(generation) {
            let (device, entry) = (self.info.id.clone(), self.lose(generation));
            return Err(DeviceError::WorkerLost { device, entry, reason: "another call had no answer".into() });
        }
        let end = of.offset + of.bytes;
        let parts = (of.offset..end).step_by(ROOM).map(|offset| Part { offset, bytes: (end - offset).min(ROOM as u64), ..of });
        let rest = Mutex::new(chunks.zip(parts));
        let call = |call| self.call_in(&running, generation, call, self.patience()).map(drop);
        let move_on = |mut room: Room| {
            let next = || locked(&rest).next();
            while let Some((chunk, part)) = next() {
                each(&mut room, chunk, part, &call)?;
            }
            Ok(())
        };
        let mut rooms = staging.rooms().into_iter().take(of.bytes.div_ceil(ROOM as u64) as usize);
        let own = rooms.next();
        std::thread::scope(|scope| {
            let beside: Vec<_> = rooms.map(|room| scope.spawn(|| move_on(room))).collect();
            let first = own.map_or(Ok(()), &move_on);
            let panicked = || Err(self.io("a thread that copies panicked".into()));
            beside.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).fold(first, Result::and)
        })
    }

    fn io(&self, reason: String) -> DeviceError {
        DeviceError::Io { what: format!("copying to or from the worker of {}", self.info.id), reason }
    }

    /// One call with a result in JSON.
    fn reply<T: DeserializeOwned>(&self, call: Call, limit: Duration) -> Result<(T, u64), DeviceError> {
        let (made, generation) = self.call(call, limit)?;
        let value = serde_json::from_str(&made.log)
            .map_err(|e| DeviceError::Io { what: "the worker's answer".into(), reason: e.to_string() })?;
        Ok((value, generation))
    }

    /// Longest that the worker's device waits for a kernel.
    fn patience(&self) -> Duration {
        match self.info.kind {
            DeviceKind::Cpu => self.options.deadline + self.options.compile_limit,
            _ => self.options.deadline,
        }
    }

    /// Loads a kernel in a worker. Returns the kernel's number, the worker's number and the worker's answer.
    fn load(&self, kernel: &Kernel) -> Result<(u64, u64, LoadReply), DeviceError> {
        let mut attempt = 1;
        loop {
            let number = self.number();
            let call = Call::Load { number, kernel: Box::new(kernel.clone()) };
            match self.reply(call, 2 * self.options.compile_limit) {
                Ok((loaded, generation)) => return Ok((number, generation, loaded)),
                // Lost to a kernel that ran meanwhile.
                Err(DeviceError::WorkerLost { .. }) if attempt < LOADS => attempt += 1,
                Err(DeviceError::WorkerLost { device, reason, .. }) => {
                    return Err(DeviceError::CompilerCrashed { device, entry: kernel.name.clone(), reason });
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn starts(&self, launches: &[Launch]) -> Result<Vec<Start>, DeviceError> {
        check_launches(&self.info, launches)?;
        self.free()?;
        let generation = self.worker()?.1;
        if let Some(last) = launches.last() {
            locked(&self.link).entry = last.kernel.entry().into();
        }
        launches.iter().map(|launch| self.start_of(launch, generation)).collect()
    }

    fn start_of(&self, launch: &Launch, generation: u64) -> Result<Start, DeviceError> {
        let kernel = launch.kernel.binary::<RemoteKernel>(&self.info.id).ok_or_else(|| DeviceError::BadLaunch {
            device: self.info.id.clone(),
            entry: launch.kernel.entry().into(),
            reason: "the kernel was compiled outside of the worker".into(),
        })?;
        let mut loaded = locked(&kernel.loaded);
        if loaded.0 != generation {
            let (number, generation, _) = self.load(&kernel.kernel)?;
            *loaded = (generation, number);
        }
        let args = launch.args.iter().map(|arg| {
            Ok(match arg {
                LaunchArg::Buffer(buffer) => Given::Buffer(self.part(buffer, 0, buffer.bytes())?),
                LaunchArg::Map { memory, extent } => Given::Map(self.part(memory, 0, memory.bytes())?, *extent),
                LaunchArg::I32(v) => Given::I32(*v),
                LaunchArg::I64(v) => Given::I64(*v),
                LaunchArg::F32(v) => Given::F32(v.to_bits()),
                LaunchArg::F64(v) => Given::F64(v.to_bits()),
            })
        });
        Ok(Start { kernel: loaded.1, grid: launch.grid, args: args.collect::<Result<_, DeviceError>>()? })
    }

    /// A part of a buffer that begins at one of its bytes.
    fn part(&self, buffer: &Buffer, offset: u64, bytes: u64) -> Result<Part, DeviceError> {
        buffer.check_range(offset, bytes)?;
        let memory = buffer.memory::<RemoteMemory>(&self.info.id)?.number;
        Ok(Part { memory, offset: buffer.offset() + offset, bytes })
    }

    /// Has the worker free what nobody holds any more.
    fn free(&self) -> Result<(), DeviceError> {
        let Unused { memory, kernels } = std::mem::take(&mut *locked(&self.unused));
        if memory.is_empty() && kernels.is_empty() {
            return Ok(());
        }
        self.done(Call::Free { memory, kernels })
    }
}

impl Device for Isolated {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn prepare(&self, threads: usize) -> Result<(), DeviceError> {
        self.call(Call::Prepare { threads }, 2 * self.options.compile_limit).map(drop)
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<Compiled>, DeviceError> {
        let source = tilewright_ir::print(kernel, &self.info.target)
            .map_err(|e| DeviceError::Invalid { device: self.info.id.clone(), invalid: Box::new(e) })?;
        let (number, generation, reply) = self.load(kernel)?;
        let loaded = Mutex::new((generation, number));
        Ok(Arc::new(Compiled {
            device: self.id.clone(),
            entry: source.entry,
            source: source.text,
            args: kernel.args.clone(),
            threads: kernel.threads,
            follows: kernel.follows,
            resources: reply.resources,
            log: reply.log,
            cached: reply.cached,
            binary: Arc::new(RemoteKernel { kernel: kernel.clone(), loaded, unused: self.unused.clone() }),
        }))
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.free()?;
        let number = self.number();
        let (alignment, _) = self.reply(Call::Alloc { number, bytes }, self.patience())?;
        let memory = RemoteMemory { number, unused: self.unused.clone() };
        Ok(Buffer::new(self.id.clone(), Arc::new(memory), alignment, bytes))
    }

    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        buffer.check_range(offset, data.len() as u64)?;
        let to = self.part(buffer, offset, data.len() as u64)?;
        self.transfer(to, data.chunks(ROOM), |room, chunk, to, call| {
            room.put(chunk);
            call(Call::Write { to, at: room.at() })
        })
    }

    fn read(&self, buffer: &Buffer, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        buffer.check_range(offset, data.len() as u64)?;
        let from = self.part(buffer, offset, data.len() as u64)?;
        self.transfer(from, data.chunks_mut(ROOM), |room, chunk, from, call| {
            call(Call::Read { from, at: room.at() })?;
            room.get(chunk);
            Ok(())
        })
    }

    fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), DeviceError> {
        self.done(Call::Fill { part: self.part(buffer, 0, buffer.bytes())?, byte })
    }

    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        let starts = self.starts(launches)?;
        self.done(Call::Launch(starts))
    }

    fn rehearse(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        if self.info.kind != DeviceKind::Cpu {
            return Ok(());
        }
        let starts = self.starts(launches)?;
        self.call(Call::Rehearse(starts), 2 * self.options.compile_limit).map(drop)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.done(Call::Sync)
    }

    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        let launches = self.starts(launches)?;
        let limit = self.patience() + LOCK_WAIT + self.options.deadline * timing.repeats / 10;
        let Timing { cache, repeats } = *timing;
        let (TimeReply { times, waited }, _) = self.reply(Call::Time { launches, cache, repeats }, limit)?;
        if let Some(waited) = waited {
            tracing::warn!("{}: {waited}", self.info.id);
        }
        Ok(times)
    }

    fn revives(&self) -> bool {
        true
    }
}
