//! Replacement of the emulator in builds without the feature `emulator`: the device is listed as missing and does not open.

use crate::{Device, DeviceError, DeviceInfo, Options};
use std::sync::Arc;

pub(crate) const DEFAULT_ARCH: &str = "";

fn missing() -> DeviceError {
    DeviceError::Missing {
        what: "the emulator".into(),
        reason: "this program was built without it".into(),
        remedy: "build tilewright with its feature `emulator`, or install a driver: OpenCL, CUDA or HIP".into(),
    }
}

pub(crate) fn describe(_: &str, _: &str) -> Result<DeviceInfo, DeviceError> {
    Err(missing())
}

pub(crate) fn open(_: &str, _: &str, _: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    Err(missing())
}
