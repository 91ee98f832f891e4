//! When trials that a server may have lost are looked for.

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
