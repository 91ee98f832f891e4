//! Devices with their records.

use crate::campaign::PyCampaign;
use crate::errors::raised;
use crate::operation::PyOperation;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;
use tilewright::{Budget, Context, Error, Options, Problem, RecordsAt, Trials, WorkerProgram, list_devices};

#[pyclass(name = "Context", module = "tilewright._native", frozen)]
pub struct PyContext(Context);

#[pymethods]
impl PyContext {
    /// `worker`: program and arguments of the processes that trials run in; none for trials in this process. `records`: a path; None: the user's file; "": none on disk.
    #[new]
    #[pyo3(signature = (device=None, records=None, workspace=None, atomics=false, worker=None, ieee=false))]
    fn new(
        py: Python<'_>,
        device: Option<String>,
        records: Option<PathBuf>,
        workspace: Option<u64>,
        atomics: bool,
        worker: Option<Vec<OsString>>,
        ieee: bool,
    ) -> PyResult<PyContext> {
        let records = match records {
            None => RecordsAt::Default,
            Some(path) if path.as_os_str().is_empty() => RecordsAt::Memory,
            Some(path) => RecordsAt::File(path),
        };
        let trials = match worker {
            Some(words) if words.is_empty() => Trials::InProcess,
            Some(words) => {
                let mut words = words.into_iter();
                Trials::WorkerOf(WorkerProgram::new(words.next().unwrap_or_default(), words))
            }
            None => Trials::Worker,
        };
        let options = Options { device, records, workspace, allow_atomics: atomics, ieee, trials, ..Options::default() };
        py.detach(|| Context::with(options)).map(PyContext).map_err(raised)
    }
    #[getter]
    fn device(&self) -> &str {
        &self.0.info().id
    }
    #[getter]
    fn name(&self) -> &str {
        &self.0.info().name
    }
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.0.info().fingerprint
    }
    /// The problem of a text that `gemm`, `conv` or the command gave.
    fn operation(&self, py: Python<'_>, problem: &str) -> PyResult<PyOperation> {
        let made = py.detach(|| self.0.operation(Problem::parse(problem)?)).map_err(raised)?;
        Ok(PyOperation::new(made))
    }
    /// Starts to search operations, each computed so many times. `seconds`, `trials`: of each; `total`: seconds of all.
    fn campaign(
        &self,
        operations: Vec<PyRef<'_, PyOperation>>,
        calls: Vec<f64>,
        seconds: Option<f64>,
        trials: Option<u64>,
        total: Option<f64>,
    ) -> PyResult<PyCampaign> {
        PyCampaign::start(&self.0, &operations, calls, Budget { seconds, trials }, total)
    }
    /// All trials, a JSON object per line.
    fn export_records(&self, py: Python<'_>) -> PyResult<String> {
        let mut lines = Vec::new();
        let written = py.detach(|| self.0.records().export(&Default::default(), &mut lines));
        written.map_err(|e| raised(Error::from(e)))?;
        Ok(String::from_utf8_lossy(&lines).into_owned())
    }
    fn import_records(&self, py: Python<'_>, lines: &str, name: &str) -> PyResult<usize> {
        py.detach(|| self.0.records().import(&mut lines.as_bytes(), name)).map_err(|e| raised(Error::from(e)))
    }
    /// The file whose lock a process holds while it times on the device.
    #[getter]
    fn lock_file(&self) -> Option<PathBuf> {
        self.0.device().identity().map(|identity| identity.lock_file())
    }
    #[getter]
    fn records_path(&self) -> PathBuf {
        self.0.records().path().to_path_buf()
    }
}

/// Id and name of each device here; for what is missing, its kind and how to get it.
#[pyfunction]
pub fn devices(py: Python<'_>) -> Vec<(String, String)> {
    let described = list_devices().into_iter().map(|listing| match listing.device {
        Ok(info) => (info.id, info.name),
        Err(missing) => (listing.backend.prefix().to_string(), format!("not available: {missing}")),
    });
    py.detach(|| described.collect())
}
