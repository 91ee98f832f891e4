//! Devices that are timed: their names among all hosts, and the lock that keeps two processes from timing on one of them.

use super::classify;
use crate::error::CliError;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tilewright::Context;
use tilewright_device::Identity;
use tilewright_fleet::{GpuLock, digest};
use tilewright_tune::search::Cancel;

/// The name of the host.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    if name.trim().is_empty() { "host".into() } else { name.trim().into() }
}

/// The name of a context's device among those of all hosts; of the emulator, that of one worker.
pub fn name(context: &Context, host: &str, worker: Option<usize>) -> String {
    let info = context.info();
    match context.device().identity().filter(|_| info.is_measured()) {
        Some(identity) => named(host, &info.id, &identity),
        None => format!("{host} {} #{}", info.id, worker.unwrap_or_default()),
    }
}

/// A number counts the devices that a process sees, so a UUID stands without it.
fn named(host: &str, id: &str, identity: &Identity) -> String {
    match identity.uuid() {
        Some(uuid) => format!("cuda {uuid}"),
        None => format!("{host} {id} {}", digest(&serde_json::to_string(identity).unwrap_or_default())),
    }
}

/// Locks the device of a command that times on it alone.
pub fn lock_alone(context: &Context, cancel: &Cancel) -> Result<Option<GpuLock>, CliError> {
    lock(context, &name(context, &host(), None), cancel)
}

/// Locks a device that is timed; waits while another process of this host has it.
pub fn lock(context: &Context, gpu: &str, cancel: &Cancel) -> Result<Option<GpuLock>, CliError> {
    if !context.info().is_measured() {
        return Ok(None);
    }
    let folder = folder();
    let mut said = false;
    while !cancel.is_cancelled() {
        if let Some(lock) = GpuLock::take(&folder, gpu).map_err(classify)? {
            return Ok(Some(lock));
        }
        if !std::mem::replace(&mut said, true) {
            eprintln!("{}: another process tunes on it; waiting", context.info().id);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Err(CliError::Interrupted)
}

/// The folder of locks. `TMPDIR` may name a folder of one job.
fn folder() -> PathBuf {
    let of_all = Path::new("/tmp");
    if of_all.is_dir() { of_all.into() } else { std::env::temp_dir() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_one_name_whatever_devices_a_process_sees() {
        let identity = |text: &str| serde_json::from_str(text).expect("an identity");
        let cuda = |id: &str, uuid: &str| named("a", id, &identity(&format!("{{\"Cuda\":\"{uuid}\"}}")));
        assert_eq!(cuda("cuda:0", "01"), cuda("cuda:3", "01"));
        assert_ne!(cuda("cuda:0", "01"), cuda("cuda:0", "02"));
        // Without a UUID, hosts have devices of the same names.
        let of = |host: &str, id: &str| named(host, id, &identity(&format!("{{\"Id\":\"{id}\"}}")));
        assert_ne!(of("a", "hip:0"), of("b", "hip:0"));
        assert_ne!(of("a", "hip:0"), of("a", "hip:1"));
    }
}
