//! Trials that a server may have lost, and journals whose numbers begin again.

use super::{Fleet, identity, run, tasks};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tilewright_fleet::{
    Attempt, Control, End, FleetError, HANG, Journal, Lease, Left, Line, Patience, Pulled, Queue, Shipped, Tuner, Verdict, work,
};

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, text: impl Into<String>) {
        self.0.lock().expect("no test panicked").push(text.into());
    }
}

/// Two tasks on a server; each claim makes a new connection.
struct Reconnecting {
    log: Log,
    open: Vec<&'static str>,
    connections: u64,
}

impl Queue for Reconnecting {
    fn lease_time(&self) -> Duration {
        Duration::from_secs(60)
    }
    fn generation(&self) -> u64 {
        self.connections
    }
    fn claim(&mut self) -> Result<Option<Lease>, FleetError> {
        self.connections += 1;
        let lease = |problem: &str| Lease { task: 1, epoch: 1, problem: problem.into(), lapses: 0, spent: 0.0 };
        let leased = self.open.pop().map(lease);
        self.log.say(if leased.is_some() { "leased" } else { "nothing is left" });
        Ok(leased)
    }
    fn renew(&mut self, _: &Lease, _: f64) -> Result<bool, FleetError> {
        Ok(true)
    }
    fn end(&mut self, lease: &Lease, _: &End) -> Result<bool, FleetError> {
        self.log.say(format!("ended {}", lease.problem));
        Ok(true)
    }
    fn ship(&mut self, _: &Lease, _: &[Line]) -> Result<(), FleetError> {
        Ok(())
    }
    fn lacking(&mut self, _: &[Shipped]) -> Result<Vec<Lease>, FleetError> {
        self.log.say("looked");
        Ok(Vec::new())
    }
    fn trials(&mut self, _: &Lease) -> Result<Vec<Pulled>, FleetError> {
        Ok(Vec::new())
    }
    fn mark(&mut self, _: &Lease, _: &str) -> Result<(), FleetError> {
        Ok(())
    }
    fn hung(&mut self, _: &Lease) -> Result<Vec<String>, FleetError> {
        Ok(Vec::new())
    }
    fn left(&mut self) -> Result<Left, FleetError> {
        Ok(Left::default())
    }
}

impl Journal for Log {
    fn after(&self, _: &str, _: i64, _: usize) -> Result<Vec<Line>, String> {
        Ok(Vec::new())
    }
    fn deepened(&self, _: &str) -> Result<Vec<Line>, String> {
        Ok(Vec::new())
    }
}

impl Tuner for Log {
    fn tune(&mut self, _: &Lease, _: Vec<Pulled>, _: Vec<String>, _: &Control<'_>) -> Attempt {
        Attempt::Done { best_us: 1.0, best_plan: "x".into(), first_us: 1.0 }
    }
    fn is_sound(&mut self) -> bool {
        true
    }
}

/// Never under a lease, which nobody renews meanwhile.
pub fn lost_trials_are_looked_for_while_no_task_is_held() {
    let log = Log::default();
    let queue = Reconnecting { log: log.clone(), open: vec!["b", "a"], connections: 0 };
    let queue: Arc<Mutex<Box<dyn Queue>>> = Arc::new(Mutex::new(Box::new(queue)));
    let patience = Patience { no_wait: false, poll: Duration::from_millis(50), hang: HANG, looks_first: false };
    let verdict = work(&queue, &mut log.clone(), &log, patience, &|| false, &|| ()).expect("it works");
    assert_eq!(verdict, Verdict::Finished(Left::default()));
    let expected = ["leased", "ended a", "looked", "leased", "ended b", "looked", "nothing is left", "looked"];
    assert_eq!(*log.0.lock().expect("no test panicked"), expected);
}

/// A journal whose trials are removed while a task is searched, and the queue that it is shipped to.
#[derive(Clone)]
struct Cleared {
    name: Arc<Mutex<&'static str>>,
    lines: Arc<Mutex<Vec<Line>>>,
    shipped: Log,
}

impl Cleared {
    fn add(&self, number: i64) {
        self.lines.lock().expect("no test panicked").push(Line { number, text: "{}".into() });
    }
    fn shipped(&self) -> Vec<String> {
        self.shipped.0.lock().expect("no test panicked").clone()
    }
}

impl Journal for Cleared {
    fn name(&self) -> Result<Option<String>, String> {
        Ok(Some(self.name.lock().expect("no test panicked").to_string()))
    }
    fn after(&self, _: &str, number: i64, _: usize) -> Result<Vec<Line>, String> {
        let lines = self.lines.lock().expect("no test panicked");
        Ok(lines.iter().filter(|line| line.number > number).cloned().collect())
    }
    fn deepened(&self, _: &str) -> Result<Vec<Line>, String> {
        Ok(Vec::new())
    }
}

impl Tuner for Cleared {
    fn tune(&mut self, _: &Lease, _: Vec<Pulled>, _: Vec<String>, _: &Control<'_>) -> Attempt {
        (1..=3).for_each(|number| self.add(number));
        super::until("all are shipped", || self.shipped().len() >= 3);
        self.lines.lock().expect("no test panicked").clear();
        *self.name.lock().expect("no test panicked") = "second";
        self.add(1);
        Attempt::Done { best_us: 1.0, best_plan: "x".into(), first_us: 1.0 }
    }
    fn is_sound(&mut self) -> bool {
        true
    }
}

/// One task; names and numbers of trials are noted.
struct Numbered {
    journal: String,
    shipped: Log,
    inner: Reconnecting,
}

impl Queue for Numbered {
    fn lease_time(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn claim(&mut self) -> Result<Option<Lease>, FleetError> {
        self.inner.claim()
    }
    fn renew(&mut self, _: &Lease, _: f64) -> Result<bool, FleetError> {
        Ok(true)
    }
    fn end(&mut self, lease: &Lease, end: &End) -> Result<bool, FleetError> {
        self.inner.end(lease, end)
    }
    fn number_by(&mut self, journal: &str) {
        self.journal = journal.into();
    }
    fn ship(&mut self, _: &Lease, lines: &[Line]) -> Result<(), FleetError> {
        lines.iter().for_each(|line| self.shipped.say(format!("{} {}", self.journal, line.number)));
        Ok(())
    }
    fn trials(&mut self, lease: &Lease) -> Result<Vec<Pulled>, FleetError> {
        self.inner.trials(lease)
    }
    fn mark(&mut self, lease: &Lease, plan: &str) -> Result<(), FleetError> {
        self.inner.mark(lease, plan)
    }
    fn hung(&mut self, lease: &Lease) -> Result<Vec<String>, FleetError> {
        self.inner.hung(lease)
    }
    fn left(&mut self) -> Result<Left, FleetError> {
        self.inner.left()
    }
}

/// Numbers that are given again belong to a journal of another name: none of its trials counts as sent.
pub fn trials_after_a_clear_are_shipped_under_another_name() {
    let shipped = Log::default();
    let journal = Cleared { name: Arc::new(Mutex::new("first")), lines: Arc::default(), shipped: shipped.clone() };
    let inner = Reconnecting { log: Log::default(), open: vec!["a"], connections: 0 };
    let queue: Box<dyn Queue> = Box::new(Numbered { journal: "first".into(), shipped, inner });
    let queue = Arc::new(Mutex::new(queue));
    let patience = Patience { no_wait: false, poll: Duration::from_millis(50), hang: HANG, looks_first: false };
    work(&queue, &mut journal.clone(), &journal, patience, &|| false, &|| ()).expect("it works");
    assert_eq!(journal.shipped(), ["first 1", "first 2", "first 3", "second 1"]);
    // The server keeps both.
    let Some(fleet) = Fleet::new() else { return };
    let mut server = fleet.joined(identity("one"), &run(60), &tasks(1));
    let lease = server.claim().unwrap().expect("a task");
    let line = [Line { number: 1, text: "{}".into() }];
    server.ship(&lease, &line).unwrap();
    server.number_by("another");
    server.ship(&lease, &line).unwrap();
    assert_eq!(fleet.server.sql("SELECT journal, seq FROM tw.trial ORDER BY 1"), "another|1\none|1");
}
