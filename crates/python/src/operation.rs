//! Operations and their launches.

use crate::errors::{OperandError, raised};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::sync::Arc;
use tilewright::{Addresses, Budget, Cancel, Error, Event, Factors, Operation, Plan, Prepared, Role, SearchOptions, Stream};

#[pyclass(name = "Operation", module = "tilewright._native", frozen)]
pub struct PyOperation(Arc<Operation>);

impl PyOperation {
    pub(crate) fn new(operation: Operation) -> PyOperation {
        PyOperation(Arc::new(operation))
    }
    pub(crate) fn shared(&self) -> Arc<Operation> {
        self.0.clone()
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[pymethods]
impl PyOperation {
    #[getter]
    fn problem(&self) -> String {
        self.0.problem().key()
    }
    /// Plan and where it comes from.
    fn choice(&self, py: Python<'_>) -> PyResult<(String, &'static str)> {
        let (plan, origin) = py.detach(|| self.0.choice()).map_err(raised)?;
        Ok((plan.to_string(), origin.name()))
    }
    fn set_plan(&self, plan: &str) -> PyResult<()> {
        self.0.set_plan(&Plan::parse(plan).map_err(|e| raised(e.into()))?).map_err(raised)
    }
    /// What it runs with, in words and numbers.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        let told = || {
            let (plan, origin) = self.0.choice()?;
            Ok(self.0.explanation(&plan)?.text(origin.name()))
        };
        py.detach(told).map_err(raised)
    }
    /// The kernels as one source file, in the device's language (on the emulator, that of the architecture it plays).
    fn source(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.source()).map_err(raised)
    }
    /// Searches; `heard` gets every event as JSON. What it raises, and Ctrl-C, end the search.
    #[pyo3(signature = (seconds, trials, heard=None))]
    fn tune(&self, py: Python<'_>, seconds: Option<f64>, trials: Option<u64>, heard: Option<Py<PyAny>>) -> PyResult<String> {
        let (options, cancel) =
            (SearchOptions { budget: Budget { seconds, trials }, ..SearchOptions::default() }, Cancel::default());
        let mut raised_there = None;
        let outcome = py.detach(|| {
            self.0.tune_with(&options, &cancel, &mut |event: &Event| {
                let called = Python::attach(|py| {
                    py.check_signals()?;
                    heard.as_ref().map_or(Ok(()), |heard| heard.call1(py, (json(event),)).map(drop))
                });
                if let Err(e) = called
                    && raised_there.is_none()
                {
                    raised_there = Some(e);
                    cancel.cancel();
                }
            })
        });
        match raised_there {
            Some(e) => Err(e),
            None => outcome.map(|outcome| json(&outcome)).map_err(raised),
        }
    }
    fn prepare(&self, py: Python<'_>, alignments: [u64; 3]) -> PyResult<PyPrepared> {
        py.detach(|| self.0.prepare_for(alignments)).map(PyPrepared).map_err(raised)
    }
    /// The same without a look: None where one would be needed first.
    fn prepared(&self, py: Python<'_>, alignments: [u64; 3]) -> PyResult<Option<PyPrepared>> {
        py.detach(|| self.0.prepared_for(alignments)).map(|found| found.map(PyPrepared)).map_err(raised)
    }
    /// Plans that failed their look, each with the reason.
    fn failed_looks(&self) -> Vec<(String, String)> {
        self.0.failed_looks().into_iter().map(|failed| (failed.plan, failed.reason)).collect()
    }
}

#[pyclass(name = "Prepared", module = "tilewright._native", frozen)]
pub struct PyPrepared(Prepared);

impl PyPrepared {
    pub(crate) fn inner(&self) -> &Prepared {
        &self.0
    }
}

#[pymethods]
impl PyPrepared {
    #[getter]
    fn plan(&self) -> String {
        self.0.plan().to_string()
    }
    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.0.workspace_bytes()
    }
    /// Runs on addresses by the names of their roles. `host`: addresses of this process, copied in and out; else those of the device, on a
    /// stream. `imaginary`: parts of alpha and beta.
    #[pyo3(signature = (addresses, alpha=1.0, beta=0.0, stream=0, host=false, imaginary=[0.0; 2]))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn launch(
        &self,
        py: Python<'_>,
        addresses: &Bound<'_, PyDict>,
        alpha: f64,
        beta: f64,
        stream: usize,
        host: bool,
        imaginary: [f64; 2],
    ) -> PyResult<()> {
        let mut memories = Addresses::default();
        for (name, address) in addresses {
            let name = name.cast::<PyString>()?.to_cow()?;
            let role = Role::named(&name).ok_or_else(|| OperandError::new_err(format!("{name} is no role of a memory")))?;
            memories.set(role, address.extract()?);
        }
        let [alpha_im, beta_im] = imaginary;
        let factors = Factors { alpha, beta, alpha_im, beta_im };
        let run = || -> Result<(), Error> {
            // SAFETY: the package beside this takes addresses from arrays it holds during the call and compares their shapes,
            // strides and types with the problem.
            unsafe {
                if host {
                    self.0.launch_on_host_memory(&memories, factors, None)
                } else {
                    self.0.launch(Stream(stream), &memories, factors, None)
                }
            }
        };
        // A launch on a device's memory returns at once: giving the lock away would cost more.
        if host { py.detach(run) } else { run() }.map_err(raised)
    }
}
