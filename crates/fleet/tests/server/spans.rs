//! Spans of `tracing`: what a search says names its task and epoch.

use super::{run, tasks};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tilewright_fleet::{Attempt, Control, HANG, HostQueue, Journal, Lease, Line, Patience, Pulled, Queue, Tuner, work};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Notes spans and events with their fields, and in how many spans an event of the search lies.
#[derive(Clone, Default)]
pub struct Notes {
    spans: Arc<Mutex<Vec<String>>>,
    pub events: Arc<Mutex<Vec<String>>>,
    entered: Arc<AtomicU64>,
    deepest: Arc<AtomicU64>,
}

/// Fields as text.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Subscriber for Notes {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(span.metadata().name().into());
        span.record(&mut text);
        let mut spans = self.spans.lock().expect("no test panicked");
        spans.push(text.0);
        Id::from_u64(spans.len() as u64)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.events.lock().expect("no test panicked").push(text.0);
        if event.metadata().target() == "search" {
            self.deepest.fetch_max(self.entered.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }
    fn enter(&self, _: &Id) {
        self.entered.fetch_add(1, Ordering::SeqCst);
    }
    fn exit(&self, _: &Id) {
        self.entered.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Nothing;

impl Journal for Nothing {
    fn after(&self, _: &str, _: i64, _: usize) -> Result<Vec<Line>, String> {
        Ok(Vec::new())
    }
    fn deepened(&self, _: &str) -> Result<Vec<Line>, String> {
        Ok(Vec::new())
    }
}

impl Tuner for Nothing {
    fn tune(&mut self, _: &Lease, _: Vec<Pulled>, _: Vec<String>, _: &Control<'_>) -> Attempt {
        tracing::info!(target: "search", "a trial");
        Attempt::Done { best_us: 1.0, best_plan: "x".into(), first_us: 1.0 }
    }
    fn is_sound(&mut self) -> bool {
        true
    }
}

pub fn a_search_runs_in_a_span_of_its_task() {
    let folder = tempfile::tempdir().expect("a folder");
    let queue = HostQueue::join(&folder.path().join("tasks"), &run(60), "class", "0", &tasks(2)).expect("it joins");
    let queue: Arc<Mutex<Box<dyn Queue>>> = Arc::new(Mutex::new(Box::new(queue)));
    let notes = Notes::default();
    let patience = Patience { no_wait: false, poll: Duration::from_millis(50), hang: HANG, looks_first: false };
    let all = || work(&queue, &mut Nothing, &Nothing, patience, &|| false, &|| ());
    tracing::subscriber::with_default(notes.clone(), all).expect("it works");
    let spans = notes.spans.lock().expect("no test panicked").clone();
    assert_eq!(spans, ["task task=2 epoch=1", "task task=1 epoch=1"]);
    assert!(notes.deepest.load(Ordering::SeqCst) >= 1);
    assert_eq!(notes.entered.load(Ordering::SeqCst), 0);
}
