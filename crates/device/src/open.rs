//! From a name to a device: what there is, what is missing, and which one to take.

use crate::{Backend, Cache, Device, DeviceError, DeviceInfo, Workers};
use std::sync::Arc;
use std::time::Duration;

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where compiled binaries are kept.
    pub cache: Cache,
    /// Compiles in worker processes; without them on a thread of this process, where a crash of the vendor's compiler is
    /// a crash of the program.
    pub workers: Option<Arc<Workers>>,
    /// Longest time one compilation may take.
    pub compile_limit: Duration,
    /// Longest time one wait for the device may take before its kernel counts as hung.
    pub deadline: Duration,
    /// Emulator: report broken rules (bounds, races, uninitialised reads, ...). Off, it is about four times as fast.
    pub checks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cache: Cache::from_env(),
            workers: None,
            compile_limit: Duration::from_secs(60),
            deadline: Duration::from_secs(20),
            checks: true,
        }
    }
}

/// One line of [`list`]: a device that can be opened, or a back end that cannot be used and why.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The back end.
    pub backend: Backend,
    /// The device, or what is missing and how to install it.
    pub device: Result<DeviceInfo, DeviceError>,
}

/// All devices of this machine, and for each back end without one what is missing. The emulator stands last.
pub fn list() -> Vec<Listing> {
    Vec::new()
}

/// Opens a device by name with default options.
///
/// # Errors
/// See [`open_with`].
pub fn open(spec: &str) -> Result<Arc<dyn Device>, DeviceError> {
    open_with(spec, &Options::default())
}

/// Opens a device: `emu` (plays an H200), `emu:ARCH` for an architecture of [`tilewright_ir::Target::known`],
/// `opencl:N` (counted over all platforms), `opencl:TEXT` (first device or platform whose name holds the text),
/// `cuda:N`, `hip:N`. `cuda`, `hip` and `opencl` alone mean the first.
///
/// # Errors
/// [`DeviceError::BadSpec`], [`DeviceError::Missing`] with how to install what is missing,
/// [`DeviceError::NoSuchDevice`].
pub fn open_with(spec: &str, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let _ = options;
    Err(DeviceError::BadSpec { spec: spec.into(), reason: "no back end is built yet".into() })
}

/// Opens the most capable device: CUDA before HIP before an OpenCL GPU before an OpenCL CPU before the emulator. A CPU
/// under OpenCL is real hardware with measured times, so it stands before the emulator. A device that is listed but
/// does not open is passed over.
///
/// # Errors
/// Those of the emulator, which needs nothing.
pub fn default_device(options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    open_with("emu", options)
}
