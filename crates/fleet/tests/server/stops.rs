//! Workers that are stopped for longer than their lease, before and after each step, and go on.

use super::{Fleet, ended, ends, until};
use std::process::Child;

fn is_stopped(worker: &Child) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", worker.id())).unwrap_or_default();
    state.contains(") T ")
}

pub fn a_worker_stopped_at_any_step_does_nothing_twice() {
    if !std::path::Path::new("/proc/self/stat").exists() {
        return super::missing::skipped("states of processes are read from /proc");
    }
    let Some(fleet) = Fleet::new() else { return };
    let options = "tasks=14 trials=12 sleep=150 lease=1000 poll=100";
    let steps = ["claim", "trial", "renew", "ship", "end"];
    let points: Vec<String> = ["before", "after"].iter().flat_map(|when| steps.map(|step| format!("{when}-{step}"))).collect();
    let stopped: Vec<Child> = points.iter().map(|at| fleet.start(at, &format!("{options} stop={at}"))).collect();
    until("each worker stops", || stopped.iter().all(is_stopped));
    let others: Vec<Child> = ["one", "two"].iter().map(|name| fleet.start(name, options)).collect();
    until("leases lapse", || fleet.count("tw.task WHERE lapses > 0") > 3);
    stopped.iter().for_each(|worker| super::signal("CONT", worker));
    let said: Vec<String> = stopped.into_iter().chain(others).map(|worker| ends(worker, 0)).collect();
    let ended = ended(&said);
    // Each task was ended once: a worker that stopped after its own end may not have said so.
    let mut once = ended.clone();
    once.dedup();
    assert_eq!(ended, once);
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 14);
    assert_eq!(ended.len(), 14);
    // Both sets of trials of a task with two holders are true.
    assert_eq!(fleet.count("tw.trial"), fleet.journals() as i64);
}

/// A plan that never ends makes no progress: its lease lapses, and after two marked lapses the rest of the task is done without it.
pub fn a_plan_that_never_ends_is_hung_after_two() {
    let Some(fleet) = Fleet::new() else { return };
    let options = "tasks=1 trials=4 sleep=10 lease=1000 poll=100 hang=1500 endless=p0/x2";
    let mut stuck: Vec<Child> = Vec::new();
    for holder in 1..=3 {
        stuck.push(fleet.start(&format!("w{holder}"), options));
        until("the next holder has the task", || fleet.count(&format!("tw.task WHERE epoch = {holder}")) == 1);
    }
    let said = ends(fleet.start("last", options), 0);
    assert!(said.contains("hung p0 x2"), "{said}");
    for mut worker in stuck {
        worker.kill().expect("it can be killed");
        worker.wait().expect("it ends");
    }
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND lapses = 3"), 1);
    assert_eq!(fleet.count("tw.trial WHERE line LIKE '%x2%'"), 0);
    assert_eq!(fleet.count("tw.trial WHERE line LIKE '%x3%'"), 1);
}
