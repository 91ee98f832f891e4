//! Several problems tuned under one budget, on a thread of its own. Python hears of it between its own steps, so that it may call
//! torch, and with it this package, before it answers.

use crate::errors::{TuneError, raised};
use crate::operation::PyOperation;
use pyo3::prelude::*;
use serde_json::json;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tilewright::{
    Audience, Budget, Cancel, Context, Error, Event, Operation, Outcome, RivalTime, SearchOptions, SharedBudget, Standing,
    TuneError as Failed, Wanted,
};

/// Bytes of the thread's stack: what threads of programs usually have.
const STACK: usize = 8 << 20;
/// How long to wait before Python looks after its signals.
const TICK: Duration = Duration::from_millis(100);

/// What a campaign tells.
struct Told {
    number: usize,
    text: String,
    /// The campaign waits for an answer.
    asks: bool,
}

/// Passes on what a campaign tells. It ends when nobody listens.
struct Teller {
    told: Sender<Told>,
    answers: Receiver<Vec<RivalTime>>,
    cancel: Cancel,
}

impl Teller {
    fn tell(&self, number: usize, standing: &Standing, mut text: serde_json::Value, asks: bool) {
        let Standing { reached, problems, share, gain } = standing;
        if let Some(fields) = text.as_object_mut() {
            fields.insert("standing".into(), json!({ "reached": reached, "problems": problems, "share": share, "gain": gain }));
        }
        if self.told.send(Told { number, text: text.to_string(), asks }).is_err() {
            self.cancel.cancel();
        }
    }
}

impl Audience for Teller {
    fn hear(&mut self, number: usize, event: &Event, standing: &Standing) {
        self.tell(number, standing, json!(event), false);
    }
    fn settled(&mut self, number: usize, result: &Result<Outcome, Failed>, standing: &Standing) -> Vec<RivalTime> {
        let text = match result {
            Ok(outcome) => json!({ "event": "settled", "outcome": outcome }),
            Err(e) => json!({ "event": "settled", "error": e.to_string() }),
        };
        self.tell(number, standing, text, true);
        self.answers.recv().unwrap_or_default()
    }
}

/// A running campaign.
#[pyclass(name = "Campaign", module = "tilewright._native", frozen)]
pub struct PyCampaign {
    told: Mutex<Option<Receiver<Told>>>,
    answers: Mutex<Option<Sender<Vec<RivalTime>>>>,
    cancel: Cancel,
    thread: Mutex<Option<JoinHandle<Result<(), Error>>>>,
}

fn taken<T>(held: &Mutex<Option<T>>) -> Option<T> {
    held.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl PyCampaign {
    /// Starts one. `seconds`, `trials`: of each problem; `total`: seconds of all.
    pub(crate) fn start(
        context: &Context,
        operations: &[PyRef<'_, PyOperation>],
        calls: Vec<f64>,
        budget: Budget,
        total: Option<f64>,
    ) -> PyResult<PyCampaign> {
        let operations: Vec<Arc<Operation>> = operations.iter().map(|operation| operation.shared()).collect();
        let (context, cancel) = (context.clone(), Cancel::default());
        let ((tell, told), (answer, answers)) = (channel(), channel());
        let mut teller = Teller { told: tell, answers, cancel: cancel.clone() };
        let work = move || {
            let options = SearchOptions { budget, ..SearchOptions::default() };
            let wanted = operations.iter().zip(calls);
            let wanted: Vec<Wanted<'_>> =
                wanted.map(|(operation, calls)| Wanted { calls, options: options.clone(), ..Wanted::new(operation) }).collect();
            let shared = total.map(|total| SharedBudget { budget: Budget::seconds(total), reach_all: false });
            let cancel = teller.cancel.clone();
            context.tune_all(&wanted, shared, &cancel, &mut teller).map(drop)
        };
        let thread = std::thread::Builder::new().name("tilewright-tune".into()).stack_size(STACK).spawn(work);
        let thread = thread.map_err(|e| TuneError::new_err(format!("no thread could be started: {e}")))?;
        Ok(PyCampaign {
            told: Mutex::new(Some(told)),
            answers: Mutex::new(Some(answer)),
            cancel,
            thread: Mutex::new(Some(thread)),
        })
    }
}

#[pymethods]
impl PyCampaign {
    /// The next event: the problem's number, JSON, and whether `answer` is waited for. None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(usize, String, bool)>> {
        loop {
            let got = py.detach(|| {
                let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                told.as_ref().map_or(Err(RecvTimeoutError::Disconnected), |told| told.recv_timeout(TICK))
            });
            match got {
                Ok(Told { number, text, asks }) => return Ok(Some((number, text, asks))),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => return self.end(py).map(|()| None),
            }
        }
    }
    /// Answers with rivals: numbers of problems and microseconds.
    fn answer(&self, rivals: HashMap<usize, f64>) {
        if let Some(answers) = &*self.answers.lock().unwrap_or_else(PoisonError::into_inner) {
            // One that has ended hears nothing.
            let _ = answers.send(rivals.into_iter().map(|(number, us)| RivalTime { number, us }).collect());
        }
    }
    /// Ends it, after the trial in flight. Raises why it failed.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.cancel.cancel();
        drop((taken(&self.told), taken(&self.answers)));
        let Some(thread) = taken(&self.thread) else { return Ok(()) };
        match py.detach(|| thread.join()) {
            Ok(done) => done.map_err(raised),
            Err(_) => Err(TuneError::new_err("a defect of tilewright: its message is on stderr")),
        }
    }
}
