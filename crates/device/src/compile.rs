//! From printed source to a binary: cache first, then a compile worker or a helper thread, both with a time limit.

use crate::ending;
use crate::job::{Binary, Job, Refusal, VendorCompiler, Work};
use crate::options::Options;
use crate::worker::Ended;
use crate::{Cache, DeviceError, DeviceInfo};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The binary of a job, and whether it came from the cache.
pub(crate) fn binary(
    info: &DeviceInfo,
    options: &Options,
    job: Job,
    vendor: VendorCompiler,
) -> Result<(Binary, bool), DeviceError> {
    let key = key(info, &job);
    if let Some((log, code)) = options.cache.get(&key) {
        tracing::debug!("{}: `{}` is in the cache", info.id, job.entry);
        return Ok((Binary { log, code }, true));
    }
    Ok((renewed(info, options, job, vendor)?, false))
}

/// The binary of a job, compiled anew; replaces what the cache holds.
pub(crate) fn renewed(info: &DeviceInfo, options: &Options, job: Job, vendor: VendorCompiler) -> Result<Binary, DeviceError> {
    let key = key(info, &job);
    let (entry, start) = (job.entry.clone(), Instant::now());
    let made = fresh(options, job, vendor)?;
    tracing::debug!("{}: `{entry}` compiled in {} ms", info.id, start.elapsed().as_millis());
    options.cache.put(&key, &made.log, &made.code);
    Ok(made)
}

/// Cache key of a job on a device.
pub(crate) fn key(info: &DeviceInfo, job: &Job) -> String {
    Cache::key(&[info.backend.prefix(), &info.fingerprint, &job.arch, &job.options.join("\n"), &job.source])
}

/// Compiles a job with protection: in a worker process where there are workers, else on a helper thread, which is
/// abandoned when the limit passes.
pub(crate) fn fresh(options: &Options, job: Job, vendor: VendorCompiler) -> Result<Binary, DeviceError> {
    let (device, entry) = (job.device.clone(), job.entry.clone());
    let ended = match &options.workers {
        Some(workers) => workers.run(Work::Compile(job), options.compile_limit),
        None => limited(options.compile_limit, move || vendor(&job)),
    };
    finish(ended, device, entry, options.compile_limit)
}

/// The binary of a job from a worker process; nothing if there are no workers, or if they do not see the device.
pub(crate) fn from_workers(options: &Options, job: Job) -> Result<Option<Binary>, DeviceError> {
    let Some(workers) = &options.workers else { return Ok(None) };
    let (device, entry) = (job.device.clone(), job.entry.clone());
    match workers.run(Work::Compile(job), options.compile_limit) {
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

/// Runs a closure on a helper thread; gives up on it when the limit passes.
pub(crate) fn limited<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> Result<T, Refusal> + Send + 'static) -> Ended<T> {
    let (send, receive) = mpsc::channel();
    let Some(running) = ending::OF_PROCESS.compilation() else { return Ended::Crashed("the process is about to end".into()) };
    let spawned = std::thread::Builder::new().name("compile".into()).stack_size(64 << 20).spawn(move || {
        let _running = running;
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
        Ended::Refused(Refusal::Failed(fault)) => Err(fault.on(&device)),
        Ended::TimedOut => Err(DeviceError::CompileTimeout { device, entry, limit }),
        Ended::Crashed(reason) => Err(DeviceError::CompilerCrashed { device, entry, reason }),
    }
}
