//! One case, all sides: verified one after the other, then measured alternately, then recorded.

use crate::baseline::{Baseline, Runner};
use crate::clocks::Monitor;
use crate::error::BenchError;
use crate::measure::{Limits, Run, interleave};
use crate::ours::Ours;
use crate::plain::PLAIN;
use crate::record::{Environment, Record, Roof, Side};
use crate::workload::Workload;
use std::cell::RefCell;
use std::time::Instant;
use tilewright_device::{Backend, Timing};

/// What a case is called in records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Title {
    /// Subcommand.
    pub experiment: String,
    /// Group of cases.
    pub set: String,
    /// The case.
    pub case: String,
}

/// An alternative to measure.
pub struct Contender<'a> {
    /// What is known of it before measuring; a failure here keeps it out of the measurement.
    pub side: Side,
    /// Runs it once for its result.
    pub check: Run<'a>,
    /// Runs it once and times it, with caches as the workload says.
    pub time: Run<'a>,
    /// Buffers it works on.
    pub workload: &'a Workload<'a>,
    /// Its library does not compute the problem.
    pub unsupported: bool,
}

impl<'a> Contender<'a> {
    /// A generated program.
    pub fn ours(workload: &'a Workload<'a>, ours: Result<&'a Ours, &BenchError>, name: &str) -> Contender<'a> {
        match ours {
            Ok(ours) => Contender {
                side: ours.side(name),
                check: Box::new(move || ours.run(workload).map(|()| 0.0)),
                time: Box::new(move || ours.time(workload)),
                workload,
                unsupported: false,
            },
            Err(e) => Contender::failed(workload, name, e),
        }
    }

    /// A vendor's library.
    ///
    /// # Errors
    /// Only those that end the run.
    pub fn library(workload: &'a Workload<'a>, library: &'a dyn Baseline) -> Result<Contender<'a>, BenchError> {
        let start = Instant::now();
        let mut contender = match library.prepare(workload) {
            Ok(runner) => {
                let side = Side { note: runner.note(), workspace: runner.workspace(), ..Side::default() };
                // Checked first, measured later: never at once.
                let shared: std::rc::Rc<RefCell<Box<dyn Runner + 'a>>> = std::rc::Rc::new(RefCell::new(runner));
                let runner = shared.clone();
                let check: Run<'a> = Box::new(move || {
                    workload.native().run(&mut || runner.borrow_mut().enqueue())?;
                    Ok(0.0)
                });
                let time: Run<'a> = Box::new(move || {
                    let timing = Timing { cache: workload.cache(), repeats: 1 };
                    let times = workload.native().time(&mut || shared.borrow_mut().enqueue(), &timing)?;
                    times.first().copied().ok_or_else(|| BenchError::Usage("the device gave no time".into()))
                });
                Contender { side, check, time, workload, unsupported: false }
            }
            Err(e) if e.is_fatal() => return Err(e),
            Err(e) => Contender::failed(workload, library.name(), &e),
        };
        contender.side.name = library.name().into();
        contender.side.version = library.version();
        contender.side.prepare_s = start.elapsed().as_secs_f64();
        Ok(contender)
    }

    /// One that cannot run, and why.
    pub fn failed(workload: &'a Workload<'a>, name: &str, error: &BenchError) -> Contender<'a> {
        let text = error.to_string();
        let side = Side { name: name.into(), failure: Some(text.clone()), ..Side::default() };
        let run = |text: String| -> Run<'a> { Box::new(move || Err(BenchError::Plan(text.clone()))) };
        let unsupported = matches!(error, BenchError::Unsupported { .. });
        Contender { side, check: run(text.clone()), time: run(text), workload, unsupported }
    }

    /// The same, told as a side that computes the plain product beside a case.
    pub fn of_plain(mut self) -> Contender<'a> {
        self.side.name = format!("{} {PLAIN}", self.side.name);
        let note = std::mem::take(&mut self.side.note);
        let apart = if note.is_empty() { "" } else { "; " };
        self.side.note = format!("of {}{apart}{note}", self.workload.problem().key());
        self
    }
}

/// Verifies and measures contenders.
///
/// # Errors
/// Only those that end the run.
pub fn compare(title: &Title, contenders: Vec<Contender<'_>>, limits: &Limits) -> Result<Record, BenchError> {
    let Some(first) = contenders.first().map(|c| c.workload) else {
        return Err(BenchError::Usage("nothing to compare".into()));
    };
    let info = first.device().info();
    let monitor = match info.backend {
        Backend::Cuda => Monitor::open(info.id.rsplit(':').next().and_then(|n| n.parse().ok()).unwrap_or(0)),
        _ => None,
    };
    let (mut sides, mut runs) = (Vec::new(), Vec::new());
    for Contender { mut side, mut check, time, workload, .. } in contenders {
        if side.failure.is_none() {
            match workload.check(&mut || check().map(|_| ())) {
                Ok(judgement) => {
                    side.correct = Some(judgement.correct);
                    side.max_error = Some(judgement.max_error).filter(|e| e.is_finite());
                    side.failure = judgement.failure;
                }
                Err(e) if e.is_fatal() => return Err(e),
                Err(e) => side.failure = Some(e.to_string()),
            }
        }
        // A wrong result is measured, too, but never counts.
        if side.failure.is_none() || side.correct == Some(false) {
            runs.push((sides.len(), time));
        }
        sides.push(side);
    }
    let clocks_before = monitor.as_ref().map(Monitor::read);
    let (numbers, mut runs) = runs.into_iter().unzip::<_, _, Vec<usize>, Vec<Run<'_>>>();
    let outcomes = interleave(&mut runs, limits)?;
    let clocks_after = monitor.as_ref().map(Monitor::read);
    for (n, outcome) in numbers.into_iter().zip(outcomes) {
        match outcome {
            Ok(summary) => {
                sides[n].wide = summary.is_wide();
                sides[n].time = Some(summary);
            }
            Err(e) => sides[n].failure = Some(e.to_string()),
        }
    }
    let problem = first.problem();
    Ok(Record {
        experiment: title.experiment.clone(),
        set: title.set.clone(),
        case: title.case.clone(),
        problem: problem.key(),
        dtype: problem.dtype_name().into(),
        math: first.math(),
        cache: first.cache(),
        flop: problem.flop(),
        bytes: first.bytes(),
        sides,
        clocks_before,
        clocks_after,
        environment: Environment::now(info),
        roof: Some(Roof::of(&info.target, problem.multiplied(), first.math())),
    })
}
