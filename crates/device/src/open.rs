//! From a name to a device: what there is, what is missing, and which one to take.

use crate::opencl::Described;
use crate::options::Options;
use crate::{Backend, Device, DeviceError, DeviceInfo, DeviceKind, emulator};
use std::sync::Arc;

/// One line of [`list`]: a device that can be opened, or a back end that cannot be used and why.
///
/// ```
/// use tilewright_device::{Backend, list};
///
/// let listings = list();
/// for listing in &listings {
///     match &listing.device {
///         Ok(info) => println!("{}: {}", info.id, info.name),
///         // The message names the missing library and how to install it.
///         Err(missing) => println!("{}: {missing}", listing.backend),
///     }
/// }
/// assert!(listings.last().is_some_and(|last| last.backend == Backend::Emulator && last.device.is_ok()));
/// ```
#[derive(Clone, Debug)]
pub struct Listing {
    /// The back end.
    pub backend: Backend,
    /// The device, or what is missing and how to install it.
    pub device: Result<DeviceInfo, DeviceError>,
    /// OpenCL: the platform's name and version.
    pub platform: Option<String>,
}

/// All devices of this machine, and for each back end without one what is missing. The emulator stands last.
pub fn list() -> Vec<Listing> {
    let mut list = Vec::new();
    let mut add = |backend, devices: Result<Vec<Described>, DeviceError>| {
        for device in devices.unwrap_or_else(|missing| vec![Err(missing)]) {
            let (device, platform) = match device {
                Ok((device, platform)) => (Ok(device), platform),
                Err(e) => (Err(e), None),
            };
            list.push(Listing { backend, device, platform });
        }
    };
    let plain = |devices: Vec<DeviceInfo>| devices.into_iter().map(|d| Ok((d, None))).collect();
    for backend in Backend::ALL {
        add(
            backend,
            match backend {
                Backend::Cuda => crate::cuda::list().map(plain),
                Backend::Hip => crate::hip::list().map(plain),
                Backend::OpenCl => crate::opencl::list(),
                Backend::Emulator => Ok(vec![emulator::describe("emu", emulator::DEFAULT_ARCH).map(|d| (d, None))]),
            },
        );
    }
    list
}

/// Opens a device by name with default options.
///
/// # Errors
/// See [`open_with`].
pub fn open(spec: &str) -> Result<Arc<dyn Device>, DeviceError> {
    open_with(spec, &Options::default())
}

/// Opens a device:
///
/// - `emu` (plays an H200), `emu:ARCH` for an architecture of [`tilewright_ir::Target::known`];
/// - `opencl:N` (counted over all platforms), `opencl:TEXT` (first device or platform whose name holds the text);
/// - `cuda:N`, `hip:N`.
///
/// The names `cuda`, `hip` and `opencl` alone mean the first. `cuda`, `hip` and `opencl` alone mean the first.
///
/// # Errors
/// [`DeviceError::BadSpec`], [`DeviceError::Missing`] with how to install what is missing,
/// [`DeviceError::NoSuchDevice`].
pub fn open_with(spec: &str, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let which = spec.split_once(':').map(|(_, which)| which);
    let bad = |reason: &str| DeviceError::BadSpec { spec: spec.into(), reason: reason.into() };
    let number = || which.unwrap_or("0").parse::<usize>().map_err(|_| bad("a number should follow the colon"));
    match Backend::of_id(spec).ok_or_else(|| bad("there is no such back end"))? {
        Backend::Emulator => emulator::open(spec, which.unwrap_or(emulator::DEFAULT_ARCH), options),
        Backend::OpenCl if which == Some("") => Err(bad("a number or a name should follow the colon")),
        Backend::OpenCl => crate::opencl::open(which.unwrap_or("0"), options),
        Backend::Cuda => crate::cuda::open(number()?, options),
        Backend::Hip => crate::hip::open(number()?, options),
    }
}

/// Opens the most capable device: CUDA before HIP before an OpenCL GPU before an OpenCL CPU before the emulator. A CPU
/// under OpenCL is real hardware with measured times, so it stands before the emulator. A device that is listed but
/// does not open is passed over.
///
/// # Errors
/// Those of the emulator, which needs nothing.
pub fn default_device(options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let mut devices: Vec<DeviceInfo> = list().into_iter().filter_map(|l| l.device.ok()).collect();
    devices.sort_by_key(rank);
    for info in devices {
        match open_with(&info.id, options) {
            Ok(device) => return Ok(device),
            Err(e) => tracing::warn!("{e}"),
        }
    }
    open_with("emu", options)
}

/// Smaller is preferred; the order of the listing decides among equals.
fn rank(info: &DeviceInfo) -> u32 {
    match (info.backend, info.kind) {
        (Backend::Cuda, _) => 0,
        (Backend::Hip, _) => 1,
        (Backend::OpenCl, DeviceKind::Gpu) => 2,
        (Backend::OpenCl, DeviceKind::Accelerator) => 3,
        (Backend::OpenCl, _) => 4,
        (Backend::Emulator, _) => 5,
    }
}
