//! A queue that says which tasks were ended here, and stops its process around a step as SIGSTOP at that moment would.

use std::process::Command;
use std::time::Duration;
use tilewright_fleet::{End, FleetError, Lease, Left, Line, Pulled, Queue};

/// A step of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A task is leased.
    Claim,
    /// A trial runs.
    Trial,
    /// The lease is renewed.
    Renew,
    /// Trials are stored.
    Ship,
    /// The task is ended.
    End,
}

impl Step {
    const ALL: [Step; 5] = [Step::Claim, Step::Trial, Step::Renew, Step::Ship, Step::End];

    const fn name(self) -> &'static str {
        match self {
            Step::Claim => "claim",
            Step::Trial => "trial",
            Step::Renew => "renew",
            Step::Ship => "ship",
            Step::End => "end",
        }
    }
}

/// Stops this process once, before or after a step.
#[derive(Clone, Debug)]
pub struct Stop {
    step: Option<Step>,
    after: bool,
}

impl Stop {
    /// Of `before-STEP` or `after-STEP`; never for any other text.
    pub fn parse(text: &str) -> Stop {
        let (when, step) = text.split_once('-').unwrap_or_default();
        Stop { step: Step::ALL.into_iter().find(|known| known.name() == step), after: when == "after" }
    }

    /// The process stops here if this is the step.
    pub fn at(&mut self, step: Step, after: bool) {
        if self.step == Some(step) && self.after == after {
            self.step = None;
            // The call returns when somebody continues this process.
            let sent = Command::new("kill").args(["-STOP", &std::process::id().to_string()]).status();
            assert!(sent.is_ok_and(|status| status.success()), "the process cannot stop itself");
        }
    }
}

/// Passes calls on to a queue.
pub struct Watched {
    /// The queue.
    pub queue: Box<dyn Queue>,
    /// Where to stop.
    pub stop: Stop,
}

impl Watched {
    fn step<T>(&mut self, step: Step, call: impl FnOnce(&mut dyn Queue) -> Result<T, FleetError>) -> Result<T, FleetError> {
        self.stop.at(step, false);
        let answer = call(&mut *self.queue);
        self.stop.at(step, true);
        answer
    }
}

impl Queue for Watched {
    fn lease_time(&self) -> Duration {
        self.queue.lease_time()
    }
    fn generation(&self) -> u64 {
        self.queue.generation()
    }
    fn tick(&mut self) {
        self.queue.tick();
    }
    fn claim(&mut self) -> Result<Option<Lease>, FleetError> {
        self.step(Step::Claim, |queue| queue.claim())
    }
    fn renew(&mut self, lease: &Lease, spent: f64) -> Result<bool, FleetError> {
        self.step(Step::Renew, |queue| queue.renew(lease, spent))
    }
    fn end(&mut self, lease: &Lease, end: &End) -> Result<bool, FleetError> {
        let ended = self.step(Step::End, |queue| queue.end(lease, end))?;
        if ended && matches!(end, End::Done { .. }) {
            println!("done {}", lease.problem);
        }
        Ok(ended)
    }
    fn number_by(&mut self, journal: &str) {
        self.queue.number_by(journal);
    }
    fn ship(&mut self, lease: &Lease, lines: &[Line]) -> Result<(), FleetError> {
        self.step(Step::Ship, |queue| queue.ship(lease, lines))
    }
    fn trials(&mut self, lease: &Lease) -> Result<Vec<Pulled>, FleetError> {
        self.queue.trials(lease)
    }
    fn lacking(&mut self, held: &[tilewright_fleet::Shipped]) -> Result<Vec<Lease>, FleetError> {
        self.queue.lacking(held)
    }
    fn mark(&mut self, lease: &Lease, plan: &str) -> Result<(), FleetError> {
        self.queue.mark(lease, plan)
    }
    fn hung(&mut self, lease: &Lease) -> Result<Vec<String>, FleetError> {
        self.queue.hung(lease)
    }
    fn left(&mut self) -> Result<Left, FleetError> {
        self.queue.left()
    }
    fn leave(&mut self, how: &str) {
        self.queue.leave(how);
    }
}
