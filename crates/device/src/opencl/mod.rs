//! OpenCL: devices of every installed driver, through the loader.

mod build;
mod device;
mod handle;
mod hold;
mod native;
mod program;
mod query;
mod rehearse;

pub(crate) use device::ClDevice;

use crate::identity::Place;
use crate::options::Options;
use crate::{Device, DeviceError, DeviceInfo};
use std::sync::Arc;

/// A device with its platform's name and version, where there is one.
pub(crate) type Described = Result<(DeviceInfo, Option<String>), DeviceError>;

/// All devices, each with its platform and its version; each that cannot be described is the error that says why.
///
/// # Errors
/// What is missing: loader, driver or device.
pub(crate) fn list() -> Result<Vec<Described>, DeviceError> {
    let (found, broken) = query::devices()?;
    let with_platform = |f: &query::Found| Ok((query::describe(f)?, Some(format!("{}, {}", f.platform, f.version))));
    let mut list: Vec<_> = found.iter().map(with_platform).collect();
    list.extend(broken.into_iter().map(|platform| Err(query::missing(platform))));
    Ok(list)
}

/// Opens a device by number or by a part of its or its platform's name.
pub(crate) fn open(which: &str, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    Ok(Arc::new(device(which, options)?))
}

/// The same, with its type.
pub(crate) fn device(which: &str, options: &Options) -> Result<ClDevice, DeviceError> {
    with(query::find(which)?, options)
}

/// Opens the device that another process calls `id` and that has this place there.
pub(crate) fn device_at(id: &str, place: &Place, options: &Options) -> Result<ClDevice, DeviceError> {
    with(query::find_place(id, place)?, options)
}

fn with(found: query::Found, options: &Options) -> Result<ClDevice, DeviceError> {
    let info = query::describe(&found)?;
    let place = query::place_of(&found)?;
    let context =
        program::Context::new(found).map_err(|f| DeviceError::Api { device: info.id.clone(), call: f.call, reason: f.reason })?;
    ClDevice::new(info, place, context, options.clone())
}
