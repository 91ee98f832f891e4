//! Several problems tuned under one budget.

use crate::errors::raised;
use crate::operation::PyOperation;
use pyo3::prelude::*;
use serde_json::json;
use std::sync::Arc;
use tilewright::{
    Audience, Budget, Cancel, Context, Event, Operation, Outcome, SearchOptions, SharedBudget, Standing, TuneError, Wanted,
};

/// Passes what a campaign tells on to Python. The first exception ends the campaign.
struct Listeners {
    heard: Option<Py<PyAny>>,
    settled: Option<Py<PyAny>>,
    cancel: Cancel,
    raised: Option<PyErr>,
}

fn told(standing: &Standing) -> serde_json::Value {
    let Standing { reached, problems, share, gain } = standing;
    json!({ "reached": reached, "problems": problems, "share": share, "gain": gain })
}

impl Listeners {
    fn call<T>(&mut self, call: impl FnOnce(Python<'_>) -> PyResult<Option<T>>) -> Option<T> {
        if self.raised.is_some() {
            return None;
        }
        let called = Python::attach(|py| {
            py.check_signals()?;
            call(py)
        });
        called.unwrap_or_else(|e| {
            self.raised = Some(e);
            self.cancel.cancel();
            None
        })
    }
}

impl Audience for Listeners {
    fn hear(&mut self, number: usize, event: &Event, standing: &Standing) {
        let heard = self.heard.as_ref().map(|heard| Python::attach(|py| heard.clone_ref(py)));
        self.call(|py| {
            let Some(heard) = heard else { return Ok(None::<()>) };
            let mut text = json!(event);
            if let Some(fields) = text.as_object_mut() {
                fields.insert("standing".into(), told(standing));
            }
            heard.call1(py, (number, text.to_string())).map(|_| None)
        });
    }
    fn settled(&mut self, number: usize, result: &Result<Outcome, TuneError>, standing: &Standing) -> Option<f64> {
        let settled = self.settled.as_ref().map(|settled| Python::attach(|py| settled.clone_ref(py)))?;
        let (outcome, error) = match result {
            Ok(outcome) => (json!(outcome).to_string(), String::new()),
            Err(e) => (String::new(), e.to_string()),
        };
        self.call(|py| settled.call1(py, (number, outcome, error, told(standing).to_string()))?.extract(py))
    }
}

/// Searches operations of a context, each computed so many times. `seconds`, `trials`: of each; `total`: seconds of all. `heard` gets a number and every event as JSON;
/// `settled` gets the number, the outcome as JSON or the error, and how far the campaign is, and gives a rival's microseconds or None. Gives how many
/// problems have a winner.
pub(crate) fn tune_all(
    py: Python<'_>,
    context: &Context,
    operations: Vec<PyRef<'_, PyOperation>>,
    calls: Vec<f64>,
    [seconds, total]: [Option<f64>; 2],
    trials: Option<u64>,
    [heard, settled]: [Option<Py<PyAny>>; 2],
) -> PyResult<usize> {
    let operations: Vec<Arc<Operation>> = operations.iter().map(|operation| operation.shared()).collect();
    let options = SearchOptions { budget: Budget { seconds, trials }, ..SearchOptions::default() };
    let wanted: Vec<Wanted<'_>> = operations
        .iter()
        .zip(calls)
        .map(|(operation, calls)| Wanted { calls, options: options.clone(), ..Wanted::new(operation) })
        .collect();
    let shared = total.map(|total| SharedBudget { budget: Budget::seconds(total), reach_all: false });
    let cancel = Cancel::default();
    let mut listeners = Listeners { heard, settled, cancel: cancel.clone(), raised: None };
    let found = py.detach(|| context.tune_all(&wanted, shared, &cancel, &mut listeners));
    match listeners.raised {
        Some(e) => Err(e),
        None => found.map(|found| found.outcomes.iter().filter(|o| matches!(o, Some(Ok(_)))).count()).map_err(raised),
    }
}
