//! From printed source to a binary: cache first, then a compile worker or a helper thread, both with a time limit.

use crate::opencl::{ClDevice, Place};
use crate::worker::Ended;
use crate::{Cache, DeviceError, DeviceInfo, Options};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tilewright_ir::Arg;

/// Everything a vendor's compiler needs: plain data, so that it can cross into a worker process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Id of the device (OpenCL compiles for one); tells the back end.
    pub device: String,
    /// The same device by names, where its number may differ between processes (OpenCL).
    pub place: Option<Place>,
    /// Architecture to compile for.
    pub arch: String,
    /// Entry point, for messages.
    pub entry: String,
    /// Source text.
    pub source: String,
    /// Compiler options.
    pub options: Vec<String>,
}

/// A launch to try in a worker, on zeros: what is needed to repeat it there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rehearsal {
    /// The kernel.
    pub job: Job,
    /// Its arguments.
    pub declared: Vec<Arg>,
    /// Threads per work-group.
    pub threads: u32,
    /// Work-groups.
    pub grid: [u32; 3],
    /// Values in the same order.
    pub values: Vec<Value>,
}

/// An argument's value, for a buffer its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value {
    Buffer(u64),
    I32(i32),
    I64(i64),
    /// As bits: JSON has no infinities.
    F32(u32),
    /// As bits.
    F64(u64),
}

/// What a worker is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// A binary.
    Compile(Job),
    /// A trial run. Nothing comes back but that it ended.
    Rehearse(Rehearsal),
}

/// What a compiler made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Binary {
    /// What the compiler said.
    pub log: String,
    /// Loadable code.
    pub code: Vec<u8>,
}

/// Why a compiler made nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// It refused the source, saying this.
    Source(String),
    /// It could not be called.
    Compiler(String),
    /// The worker process has no such device, though the process that asks has.
    Unseen(String),
}

/// The vendors' compilers, with what they keep between jobs.
#[derive(Default)]
pub(crate) struct Compilers {
    opencl: Vec<(String, Arc<ClDevice>)>,
}

impl Compilers {
    /// Works in this process, in this thread, without a limit.
    pub(crate) fn run(&mut self, work: &Work) -> Result<Binary, Refusal> {
        match work {
            Work::Compile(job) => match job.device.split(':').next() {
                Some("cuda") => crate::cuda::nvrtc::compile(job),
                Some("hip") => crate::hip::hiprtc::compile(job),
                Some("opencl") => self.opencl(job)?.compile_job(job),
                _ => Err(Refusal::Compiler(format!("{} has no compiler", job.device))),
            },
            Work::Rehearse(rehearsal) => {
                let device = self.opencl(&rehearsal.job)?;
                device.rehearse_here(rehearsal).map_err(|e| Refusal::Source(e.to_string()))?;
                Ok(Binary::default())
            }
        }
    }

    fn opencl(&mut self, job: &Job) -> Result<Arc<ClDevice>, Refusal> {
        let id = job.device.as_str();
        if let Some((_, device)) = self.opencl.iter().find(|(known, _)| known == id) {
            return Ok(device.clone());
        }
        // A worker has no workers, and what it compiles is kept by whoever asked for it.
        let options = Options { cache: Cache::disabled(), workers: None, ..Options::default() };
        let device = match &job.place {
            Some(place) => crate::opencl::device_at(id, place, &options),
            None => crate::opencl::device(id.strip_prefix("opencl:").unwrap_or(id), &options),
        };
        let device = Arc::new(device.map_err(|e| match e {
            DeviceError::NoSuchDevice { .. } | DeviceError::Missing { .. } => Refusal::Unseen(e.to_string()),
            other => Refusal::Compiler(other.to_string()),
        })?);
        self.opencl.push((id.to_string(), device.clone()));
        Ok(device)
    }
}

/// The binary of a job, and whether it came from the cache.
pub(crate) fn binary(info: &DeviceInfo, options: &Options, job: Job) -> Result<(Binary, bool), DeviceError> {
    let key = key(info, &job);
    if let Some((log, code)) = options.cache.get(&key) {
        return Ok((Binary { log, code }, true));
    }
    Ok((renewed(info, options, job)?, false))
}

/// The binary of a job, compiled anew; replaces what the cache holds.
pub(crate) fn renewed(info: &DeviceInfo, options: &Options, job: Job) -> Result<Binary, DeviceError> {
    let key = key(info, &job);
    let made = fresh(options, job)?;
    options.cache.put(&key, &made.log, &made.code);
    Ok(made)
}

/// Cache key of a job on a device.
pub(crate) fn key(info: &DeviceInfo, job: &Job) -> String {
    Cache::key(&[info.backend.prefix(), &info.fingerprint, &job.arch, &job.options.join("\n"), &job.source])
}

/// Compiles a job with protection: in a worker process where there are workers, else on a helper thread, which is
/// abandoned when the limit passes.
pub(crate) fn fresh(options: &Options, job: Job) -> Result<Binary, DeviceError> {
    let (device, entry) = (job.device.clone(), job.entry.clone());
    finish(protected(options, job), device, entry, options.compile_limit)
}

/// As [`fresh`]; nothing if workers do not see the device.
pub(crate) fn fresh_if_seen(options: &Options, job: Job) -> Result<Option<Binary>, DeviceError> {
    let (device, entry) = (job.device.clone(), job.entry.clone());
    match protected(options, job) {
        Ended::Refused(Refusal::Unseen(reason)) => {
            tracing::warn!("{device}: `{entry}` is compiled in this process, since workers do not see the device: {reason}");
            Ok(None)
        }
        ended => finish(ended, device, entry, options.compile_limit).map(Some),
    }
}

/// Sees that so many workers run which have compiled a job, where there are workers.
pub(crate) fn prepare(options: &Options, threads: usize, job: Job) {
    if let Some(workers) = &options.workers {
        workers.prepare(threads, &Work::Compile(job), options.compile_limit);
    }
}

fn protected(options: &Options, job: Job) -> Ended<Binary> {
    match &options.workers {
        Some(workers) => workers.run(Work::Compile(job), options.compile_limit),
        None => limited(options.compile_limit, move || Compilers::default().run(&Work::Compile(job))),
    }
}

/// Runs a closure on a helper thread; gives up on it when the limit passes.
pub(crate) fn limited<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> Result<T, Refusal> + Send + 'static) -> Ended<T> {
    let (send, receive) = mpsc::channel();
    let spawned = std::thread::Builder::new().name("compile".into()).stack_size(64 << 20).spawn(move || {
        // The receiver is gone if the limit has passed: nobody wants the result then.
        let _ = send.send(f());
    });
    if let Err(e) = spawned {
        return Ended::Crashed(format!("no thread for it: {e}"));
    }
    match receive.recv_timeout(limit) {
        Ok(Ok(made)) => Ended::Made(made),
        Ok(Err(refusal)) => Ended::Refused(refusal),
        Err(mpsc::RecvTimeoutError::Timeout) => Ended::TimedOut,
        Err(mpsc::RecvTimeoutError::Disconnected) => Ended::Crashed("its thread panicked".into()),
    }
}

/// Turns the end of a compilation into the device's terms.
pub(crate) fn finish<T>(ended: Ended<T>, device: String, entry: String, limit: Duration) -> Result<T, DeviceError> {
    match ended {
        Ended::Made(made) => Ok(made),
        Ended::Refused(Refusal::Source(log)) => Err(DeviceError::Compile { device, entry, log }),
        Ended::Refused(Refusal::Compiler(reason) | Refusal::Unseen(reason)) => {
            Err(DeviceError::Api { device, call: "the compiler", reason })
        }
        Ended::TimedOut => Err(DeviceError::CompileTimeout { device, entry, limit }),
        Ended::Crashed(reason) => Err(DeviceError::CompilerCrashed { device, entry, reason }),
    }
}
