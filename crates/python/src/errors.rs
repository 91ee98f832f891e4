//! One exception class per kind of failure, below `tilewright.Error`.

use pyo3::prelude::*;
use pyo3::{create_exception, exceptions::PyException};
use tilewright::{DeviceError as Failure, Error as Failed};

create_exception!(tilewright, Error, PyException, "What tilewright refuses or fails at.");
create_exception!(tilewright, ProblemError, Error, "An impossible size, stride, type or option.");
create_exception!(tilewright, PlanError, Error, "A plan does not suit the problem or the device, or there is none.");
create_exception!(tilewright, OperandError, Error, "An array of the wrong type, shape, place or alignment.");
create_exception!(tilewright, DeviceError, Error, "No such device, or its driver, its compiler or a kernel failed.");
create_exception!(tilewright, OutOfMemory, DeviceError, "The device has no memory left.");
create_exception!(tilewright, TuneError, Error, "The search found nothing that was right.");
create_exception!(tilewright, RecordsError, Error, "The records file cannot be used.");

/// The name of an error's class.
pub(crate) fn class(e: &Failed) -> &'static str {
    match e {
        Failed::Problem(_) => "ProblemError",
        Failed::Plan(_)
        | Failed::Refused(_)
        | Failed::NoPlan { .. }
        | Failed::Look { .. }
        | Failed::Generate(_)
        | Failed::Invalid(_) => "PlanError",
        Failed::Bind(_) | Failed::Dtype { .. } | Failed::Length { .. } | Failed::Unwanted { .. } => "OperandError",
        Failed::Device(Failure::OutOfMemory { .. }) | Failed::TooLarge { .. } => "OutOfMemory",
        Failed::Device(_) | Failed::Source(_) => "DeviceError",
        Failed::Tune(_) => "TuneError",
        Failed::Records(_) => "RecordsError",
        _ => "Error",
    }
}

/// An error of the library as Python's.
pub(crate) fn raised(e: Failed) -> PyErr {
    let text = e.to_string();
    match class(&e) {
        "ProblemError" => ProblemError::new_err(text),
        "PlanError" => PlanError::new_err(text),
        "OperandError" => OperandError::new_err(text),
        "OutOfMemory" => OutOfMemory::new_err(text),
        "DeviceError" => DeviceError::new_err(text),
        "TuneError" => TuneError::new_err(text),
        "RecordsError" => RecordsError::new_err(text),
        _ => Error::new_err(text),
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("ProblemError", py.get_type::<ProblemError>())?;
    module.add("PlanError", py.get_type::<PlanError>())?;
    module.add("OperandError", py.get_type::<OperandError>())?;
    module.add("DeviceError", py.get_type::<DeviceError>())?;
    module.add("OutOfMemory", py.get_type::<OutOfMemory>())?;
    module.add("TuneError", py.get_type::<TuneError>())?;
    module.add("RecordsError", py.get_type::<RecordsError>())
}
