//! One exception class per kind of failure, below `tilewright.Error`.

use pyo3::prelude::*;
use pyo3::{create_exception, exceptions::PyException};
use tilewright::{DeviceError, Error};

create_exception!(tilewright, TilewrightError, PyException, "What tilewright refuses or fails at.");
create_exception!(tilewright, ProblemError, TilewrightError, "An impossible size, stride, type or option.");
create_exception!(tilewright, PlanError, TilewrightError, "A plan does not suit the problem or the device, or there is none.");
create_exception!(tilewright, OperandError, TilewrightError, "An array of the wrong type, shape, place or alignment.");
create_exception!(tilewright, DeviceFailure, TilewrightError, "No such device, or its driver, its compiler or a kernel failed.");
create_exception!(tilewright, OutOfMemory, DeviceFailure, "The device has no memory left.");
create_exception!(tilewright, TuneError, TilewrightError, "The search found nothing that was right.");
create_exception!(tilewright, RecordsError, TilewrightError, "The records file cannot be used.");

/// The name of an error's class.
pub(crate) fn class(e: &Error) -> &'static str {
    match e {
        Error::Problem(_) => "ProblemError",
        Error::Plan(_) | Error::Refused(_) | Error::NoPlan { .. } | Error::Generate(_) | Error::Invalid(_) => "PlanError",
        Error::Bind(_) | Error::Dtype { .. } | Error::Length { .. } | Error::Unwanted { .. } => "OperandError",
        Error::Device(DeviceError::OutOfMemory { .. }) | Error::TooLarge { .. } => "OutOfMemory",
        Error::Device(_) | Error::Source(_) => "DeviceError",
        Error::Tune(_) => "TuneError",
        Error::Records(_) => "RecordsError",
        _ => "Error",
    }
}

/// An error of the library as Python's.
pub(crate) fn raised(e: Error) -> PyErr {
    let text = e.to_string();
    match class(&e) {
        "ProblemError" => ProblemError::new_err(text),
        "PlanError" => PlanError::new_err(text),
        "OperandError" => OperandError::new_err(text),
        "OutOfMemory" => OutOfMemory::new_err(text),
        "DeviceError" => DeviceFailure::new_err(text),
        "TuneError" => TuneError::new_err(text),
        "RecordsError" => RecordsError::new_err(text),
        _ => TilewrightError::new_err(text),
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<TilewrightError>())?;
    module.add("ProblemError", py.get_type::<ProblemError>())?;
    module.add("PlanError", py.get_type::<PlanError>())?;
    module.add("OperandError", py.get_type::<OperandError>())?;
    module.add("DeviceError", py.get_type::<DeviceFailure>())?;
    module.add("OutOfMemory", py.get_type::<OutOfMemory>())?;
    module.add("TuneError", py.get_type::<TuneError>())?;
    module.add("RecordsError", py.get_type::<RecordsError>())
}
