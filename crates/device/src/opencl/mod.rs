//! OpenCL: devices of every installed driver, through the loader.

mod device;
mod handle;
mod native;
mod program;
mod query;
mod rehearse;

pub(crate) use device::ClDevice;

use crate::{Device, DeviceError, DeviceInfo, Options};
use std::sync::Arc;

/// All devices; each that cannot be described is the error that says why.
///
/// # Errors
/// What is missing: loader, driver or device.
pub(crate) fn list() -> Result<Vec<Result<DeviceInfo, DeviceError>>, DeviceError> {
    let (found, broken) = query::devices()?;
    let mut list: Vec<_> = found.iter().map(query::describe).collect();
    list.extend(broken.into_iter().map(|platform| Err(query::missing(platform))));
    Ok(list)
}

/// Opens a device by number or by a part of its or its platform's name.
pub(crate) fn open(which: &str, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    Ok(Arc::new(device(which, options)?))
}

/// The same, with its type.
pub(crate) fn device(which: &str, options: &Options) -> Result<ClDevice, DeviceError> {
    let found = query::find(which)?;
    let info = query::describe(&found)?;
    let context =
        program::Context::new(found).map_err(|f| DeviceError::Api { device: info.id.clone(), call: f.call, reason: f.reason })?;
    ClDevice::new(info, context, options.clone())
}
