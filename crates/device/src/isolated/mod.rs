//! A device in a worker process. A crash or a hang there costs the worker, and leaves this process and its own use of the same
//! device untouched.
//!
//! [`isolate`] gives a [`Device`] whose calls run in the worker: kernels are compiled and loaded there, memory lives there. After a
//! crash or a hang the call fails with [`DeviceError::WorkerLost`]. [`Device::restart`] then starts another worker: kernels are loaded
//! there again when they are next launched, memory is gone.

mod client;
mod host;
mod mishap;
mod program;
mod staging;

pub(crate) use host::Host;
pub use program::{COMPILE_WORKER, Program, worker_main};

use crate::options::Options;
use crate::{Device, DeviceError};
use std::sync::Arc;

/// The same device, in a worker process of this program. None is started yet.
///
/// # Errors
/// [`DeviceError::NoWorker`] for a device that another process cannot open.
pub fn isolate(device: &Arc<dyn Device>, program: &Program, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let identity = device.identity().ok_or_else(|| DeviceError::NoWorker {
        device: device.info().id.clone(),
        reason: "another process cannot open this device; choose trials in this process".into(),
    })?;
    Ok(Arc::new(client::Isolated::new(device.clone(), identity, program.workers(), options)))
}
