//! The worker's end: the device, with the memory and the kernels that the tuner has numbered.

use super::mishap::{Mishap, Ordered};
use super::staging::{Staging, unshared};
use crate::identity::{Found, Identity};
use crate::job::{Binary, Refusal};
use crate::options::Options;
use crate::wire::{BUILD, Call, Fault, Given, Invocation, LoadReply, Opening, Part, Start, TimeReply, Waited};
use crate::worker::Workers;
use crate::{Buffer, Cache, Compiled, Device, DeviceError, Launch, LaunchArg, Timing};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for another process that times on the same device. It goes on without the lock then.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Shortest wait that is reported.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Opens the device in this process.
fn open(identity: &Identity, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    match &identity.0 {
        Found::Id(id) => crate::open_with(id, options),
        Found::Cuda(uuid) => crate::cuda::open_uuid(uuid, options),
        Found::OpenCl { id, place } => Ok(Arc::new(crate::opencl::device_at(id, place, options)?)),
    }
}

/// A device held for a tuner.
#[derive(Default)]
pub(crate) struct Host {
    held: Mutex<Option<Held>>,
}

struct Held {
    device: Arc<dyn Device>,
    identity: Identity,
    memory: HashMap<u64, Buffer>,
    kernels: HashMap<u64, Arc<Compiled>>,
    timed: u64,
    launched: u64,
    /// The last field: everything else of the device is dropped before it, and with it the device's context.
    staging: Arc<Staging>,
}

/// A device's lock, until it is dropped: no other process times on the device meanwhile.
struct DeviceLock {
    /// None: another process has held the device for long, or the file cannot be opened.
    _file: Option<File>,
    waited: Option<Waited>,
}

impl DeviceLock {
    /// Waits for the lock, at most so long.
    fn take(path: &Path, longest: Duration) -> DeviceLock {
        let Ok(mut file) = File::options().create(true).read(true).append(true).open(path) else {
            return DeviceLock { _file: None, waited: None };
        };
        let start = Instant::now();
        loop {
            let locked = file.try_lock();
            let time = start.elapsed();
            match locked {
                Err(TryLockError::WouldBlock) if time < longest => std::thread::sleep(Duration::from_millis(1)),
                Ok(()) | Err(_) => {
                    let in_vain = locked.is_err();
                    // Its holder has written its name before, and this process does so from now on.
                    let mut holder = String::new();
                    let _ = file.read_to_string(&mut holder);
                    let waited =
                        (time >= LONG_WAIT.min(longest) && !holder.is_empty()).then_some(Waited { holder, time, in_vain });
                    if !in_vain {
                        let _ = file.set_len(0).and_then(|()| file.write_all(own_name().as_bytes()));
                    }
                    return DeviceLock { _file: (!in_vain).then_some(file), waited };
                }
            }
        }
    }
}

/// Process ids of this process and its parent, for messages of other processes.
fn own_name() -> String {
    let own = std::process::id();
    #[cfg(unix)]
    let name = format!("process {own}, a worker of process {}", std::os::unix::process::parent_id());
    #[cfg(not(unix))]
    let name = format!("process {own}");
    name
}

fn range(at: usize, bytes: u64) -> Range<usize> {
    at..at.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn outside() -> DeviceError {
    DeviceError::BadBuffer { device: "worker".into(), reason: "the bytes leave the shared memory".into() }
}

fn json(value: &impl serde::Serialize) -> Result<Binary, DeviceError> {
    let log = serde_json::to_string(value)
        .map_err(|e| DeviceError::Io { what: "the worker's answer".into(), reason: e.to_string() })?;
    Ok(Binary { log, code: Vec::new() })
}

impl Host {
    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn run(&self, call: &Call) -> Result<Binary, Refusal> {
        if let Call::Open(opening) = call {
            return self.open(opening);
        }
        self.call(call).map_err(|e| Refusal::Failed(Fault::from(e)))
    }

    fn open(&self, opening: &Opening) -> Result<Binary, Refusal> {
        let Invocation { path, args } = &opening.compilers;
        let mut options = Options::default().with_workers(Workers::new(path, args.iter().map(OsString::from)));
        options.cache = opening.cache.as_ref().map_or_else(Cache::disabled, Cache::at);
        let limits = [opening.deadline, opening.compile_limit];
        [options.deadline, options.compile_limit] = Ordered::here().map_or(limits, |ordered| ordered.limits(limits));
        let device = open(&opening.identity, &options).map_err(|e| match e {
            DeviceError::NoSuchDevice { .. } | DeviceError::Missing { .. } => Refusal::Unseen(e.to_string()),
            other => Refusal::Failed(other.into()),
        })?;
        let staging = Staging::open(&opening.staging).map_err(|e| Refusal::Failed(unshared(&e).into()))?;
        // SAFETY: `Held` drops all that belongs to the device before the memory.
        unsafe { device.lock_pages(staging.all()) };
        *self.held() = Some(Held {
            device,
            identity: opening.identity.clone(),
            memory: HashMap::new(),
            kernels: HashMap::new(),
            timed: 0,
            launched: 0,
            staging: Arc::new(staging),
        });
        Ok(Binary { log: BUILD.into(), code: Vec::new() })
    }

    fn device(&self) -> Result<(Arc<Staging>, Arc<dyn Device>), DeviceError> {
        match &*self.held() {
            Some(held) => Ok((held.staging.clone(), held.device.clone())),
            None => Err(DeviceError::BadBuffer { device: "worker".into(), reason: "the worker's device is not open".into() }),
        }
    }

    fn call(&self, call: &Call) -> Result<Binary, DeviceError> {
        // Dropped in reverse: the memory last.
        let (staging, device) = self.device()?;
        let nothing = |()| Binary::default();
        match call {
            Call::Open(_) => Ok(Binary::default()),
            Call::Prepare { threads } => device.prepare(*threads).map(nothing),
            Call::Load { number, kernel } => {
                let compiled = device.compile(kernel)?;
                let reply =
                    LoadReply { resources: *compiled.resources(), log: compiled.log().to_string(), cached: compiled.cached() };
                if let Some(held) = &mut *self.held() {
                    held.kernels.insert(*number, compiled);
                }
                json(&reply)
            }
            Call::Alloc { number, bytes } => {
                let buffer = device.alloc(*bytes)?;
                let alignment = buffer.alignment();
                if let Some(held) = &mut *self.held() {
                    held.memory.insert(*number, buffer);
                }
                json(&alignment)
            }
            Call::Free { memory, kernels } => {
                let mut freed = (Vec::new(), Vec::new());
                if let Some(held) = &mut *self.held() {
                    freed.0.extend(memory.iter().filter_map(|number| held.memory.remove(number)));
                    freed.1.extend(kernels.iter().filter_map(|number| held.kernels.remove(number)));
                }
                Ok(Binary::default())
            }
            Call::Write { to, at } => {
                // SAFETY: the tuner leaves these bytes to this call until it is answered.
                let bytes = unsafe { staging.bytes(range(*at, to.bytes)) }.ok_or_else(outside)?;
                device.write(&self.part(to)?, 0, bytes).map(nothing)
            }
            Call::Read { from, at } => {
                // SAFETY: the tuner leaves these bytes to this call until it is answered.
                let bytes = unsafe { staging.bytes(range(*at, from.bytes)) }.ok_or_else(outside)?;
                device.read(&self.part(from)?, 0, bytes).map(nothing)
            }
            Call::Fill { part, byte } => device.fill(&self.part(part)?, *byte).map(nothing),
            Call::Launch(starts) => {
                let launches = self.launches(starts)?;
                self.mishap(&*device, true)?;
                device.launch(&launches).map(nothing)
            }
            Call::Rehearse(starts) => device.rehearse(&self.launches(starts)?).map(nothing),
            Call::Sync => device.sync().map(nothing),
            Call::Time { launches, cache, repeats } => {
                let launches = self.launches(launches)?;
                let lock = self.lock_file().map(|path| DeviceLock::take(&path, LOCK_WAIT));
                self.mishap(&*device, false)?;
                let times = device.time(&launches, &Timing { cache: *cache, repeats: *repeats })?;
                json(&TimeReply { times, waited: lock.and_then(|lock| lock.waited) })
            }
        }
    }

    fn lock_file(&self) -> Option<PathBuf> {
        Some(self.held().as_ref()?.identity.lock_file())
    }

    /// What a test has ordered for this run.
    fn mishap(&self, device: &dyn Device, launches: bool) -> Result<(), DeviceError> {
        let Some(ordered) = Ordered::here().filter(|ordered| (ordered.what == Mishap::AbortLaunch) == launches) else {
            return Ok(());
        };
        let run = self.held().as_mut().map_or(0, |held| {
            let count = if launches { &mut held.launched } else { &mut held.timed };
            *count += 1;
            *count
        });
        ordered.happen(run, device)
    }

    fn part(&self, part: &Part) -> Result<Buffer, DeviceError> {
        let held = self.held();
        let buffer = held.as_ref().and_then(|held| held.memory.get(&part.memory)).ok_or_else(|| DeviceError::BadBuffer {
            device: "worker".into(),
            reason: format!("there is no memory {}", part.memory),
        })?;
        buffer.slice(part.offset, part.bytes)
    }

    fn launches(&self, starts: &[Start]) -> Result<Vec<Launch>, DeviceError> {
        starts.iter().map(|start| self.launch(start)).collect()
    }

    fn launch(&self, start: &Start) -> Result<Launch, DeviceError> {
        let kernel = self.held().as_ref().and_then(|held| held.kernels.get(&start.kernel).cloned());
        let kernel = kernel.ok_or_else(|| DeviceError::BadLaunch {
            device: "worker".into(),
            entry: String::new(),
            reason: format!("there is no kernel {}", start.kernel),
        })?;
        let args = start.args.iter().map(|given| {
            Ok(match given {
                Given::Buffer(part) => LaunchArg::Buffer(self.part(part)?),
                Given::Map(part, extent) => LaunchArg::Map { memory: self.part(part)?, extent: *extent },
                Given::I32(v) => LaunchArg::I32(*v),
                Given::I64(v) => LaunchArg::I64(*v),
                Given::F32(bits) => LaunchArg::F32(f32::from_bits(*bits)),
                Given::F64(bits) => LaunchArg::F64(f64::from_bits(*bits)),
            })
        });
        Ok(Launch { kernel, grid: start.grid, args: args.collect::<Result<_, DeviceError>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_for_whom() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.lock");
        let first = DeviceLock::take(&path, LOCK_WAIT);
        assert_eq!(first.waited, None);
        let short = Duration::from_millis(30);
        let second = DeviceLock::take(&path, short);
        let waited = second.waited.unwrap();
        assert!(waited.in_vain && waited.time >= short && second._file.is_none(), "{waited:?}");
        let words = waited.to_string();
        let own = format!("s for process {}", std::process::id());
        assert!(words.contains(&own) && words.contains("both time at once"), "{words}");
        drop(first);
        let third = DeviceLock::take(&path, LOCK_WAIT);
        assert!(third.waited.is_none() && third._file.is_some());
        // A folder that is not there costs no trial.
        assert!(DeviceLock::take(&folder.path().join("none/device.lock"), short).waited.is_none());
    }
}
