//! The compiled part of the Python package tilewright, `tilewright._native`: contexts, operations and launches.
//!
//! The package beside it (`python/tilewright`) takes arrays and turns them into problems and addresses. No lock of Python is held while
//! something is planned, compiled, searched or run.
#![allow(missing_docs, reason = "what users call is documented in python/tilewright")]

mod campaign;
mod context;
mod dlpack;
mod errors;
mod operation;
mod problem;
mod torch;

use pyo3::prelude::*;
use std::time::Duration;

/// Makes a worker of this process until its input ends; never returns.
#[pyfunction]
fn worker_main(py: Python<'_>) {
    py.detach(|| tilewright::exit_now(tilewright::compile_worker_main()));
}

/// Prepares for the end of the interpreter: from now on nothing on a device is freed, and no compiler starts in this process.
#[pyfunction]
fn end_of_process(py: Python<'_>, seconds: f64) {
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| tilewright::end_of_process(limit));
}

#[pymodule]
#[pyo3(name = "_native", gil_used = false)]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<context::PyContext>()?;
    module.add_class::<operation::PyOperation>()?;
    module.add_class::<operation::PyPrepared>()?;
    module.add_class::<campaign::PyCampaign>()?;
    module.add_function(wrap_pyfunction!(context::devices, module)?)?;
    module.add_function(wrap_pyfunction!(worker_main, module)?)?;
    module.add_function(wrap_pyfunction!(end_of_process, module)?)?;
    module.add_function(wrap_pyfunction!(dlpack::dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(torch::torch_register, module)?)?;
    module.add_function(wrap_pyfunction!(torch::torch_override, module)?)?;
    module.add_function(wrap_pyfunction!(torch::torch_forget, module)?)?;
    module.add_function(wrap_pyfunction!(torch::torch_calls, module)?)?;
    module.add_function(wrap_pyfunction!(problem::array_dtype, module)?)?;
    module.add_function(wrap_pyfunction!(problem::problem, module)?)?;
    module.add_function(wrap_pyfunction!(problem::values, module)?)?;
    errors::register(module)
}
