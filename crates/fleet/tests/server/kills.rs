//! Workers and servers that are killed, stopped and cut off.

use super::{Fleet, ends, identity, run, signal, tasks};
use std::process::Child;
use std::time::{Duration, Instant};
use tilewright_fleet::{End, Line, Queue};

/// Starts a worker in place of each that has ended; gives those that are running.
fn all_done(fleet: &Fleet, mut workers: Vec<Child>) {
    let start = Instant::now();
    while let Some(worker) = workers.pop() {
        assert!(start.elapsed() < Duration::from_secs(120), "the run does not end");
        ends(worker, 0);
    }
    assert_eq!(fleet.count("tw.task WHERE state <> 'done'"), 0);
}

#[test]
fn killed_workers_lose_no_task_and_no_trial_of_others() {
    let Some(fleet) = Fleet::new() else { return };
    let options = "tasks=30 trials=8 sleep=30 lease=2000 poll=100";
    let mut workers: Vec<Child> = (0..4).map(|n| fleet.start(&format!("w{n}"), options)).collect();
    for kill in 0..10 {
        std::thread::sleep(Duration::from_millis(250));
        let name = kill % workers.len();
        workers[name].kill().expect("it can be killed");
        workers[name].wait().expect("it is gone");
        // With the same journal, as on the same node.
        workers[name] = fleet.start(&format!("w{name}"), options);
    }
    all_done(&fleet, workers);
    // Whatever a journal holds of a task that a survivor finished is on the server, once.
    assert_eq!(fleet.count("(SELECT task FROM tw.trial GROUP BY task HAVING count(DISTINCT line) < 8) t"), 0);
    assert_eq!(fleet.count("tw.trial WHERE task IS NULL"), 0);
    assert!(fleet.count("tw.trial") <= fleet.journals() as i64);
    assert!(fleet.count("tw.task WHERE epoch > 1") > 0, "no kill met a task");
    assert_eq!(fleet.count("(SELECT plan FROM tw.mark WHERE plan = 'hung') t"), 0);
}

#[test]
fn a_server_that_restarts_loses_no_trial() {
    let Some(mut fleet) = Fleet::new() else { return };
    let options = "tasks=12 trials=20 sleep=100 lease=2000 poll=100";
    let workers: Vec<Child> = (0..4).map(|n| fleet.start(&format!("w{n}"), options)).collect();
    for outage in [1, 3] {
        std::thread::sleep(Duration::from_millis(600));
        fleet.server.kill();
        std::thread::sleep(Duration::from_secs(2 * outage));
        fleet.server.up();
    }
    all_done(&fleet, workers);
    // On a busy machine a lease may lapse in spite of the longer lease: then two workers have trials of one task.
    assert!(fleet.journals() >= 12 * 20);
    assert_eq!(fleet.count("tw.trial"), fleet.journals() as i64);
}

/// A worker that was stopped for longer than its lease has lost it, and finds out at whatever step it goes on.
#[test]
fn a_stopped_worker_ends_nothing_of_others() {
    let Some(fleet) = Fleet::new() else { return };
    let options = "tasks=2 trials=30 sleep=100 lease=1000 poll=100";
    let stopped = fleet.start("stopped", options);
    let start = Instant::now();
    while fleet.count("tw.trial") == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "no trial was shipped");
        std::thread::sleep(Duration::from_millis(50));
    }
    signal("STOP", &stopped);
    let other = fleet.start("other", options);
    while fleet.count("tw.task WHERE lapses > 0") == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the lease never lapses");
        std::thread::sleep(Duration::from_millis(50));
    }
    signal("CONT", &stopped);
    ends(stopped, 0);
    ends(other, 0);
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 2);
    // Both sets of trials are true.
    assert_eq!(fleet.count("tw.trial"), fleet.journals() as i64);
}

/// Each statement of a lease after another worker took the task over.
#[test]
fn a_lost_lease_changes_nothing() {
    let Some(fleet) = Fleet::new() else { return };
    let (mut slow, mut other) =
        (fleet.joined(identity("slow"), &run(1), &tasks(1)), fleet.joined(identity("other"), &run(1), &tasks(1)));
    let lost = slow.claim().unwrap().expect("the task");
    assert_eq!(other.claim().unwrap(), None);
    let start = Instant::now();
    let taken = loop {
        // Somebody renews now and then: a silence would look like a server that was away.
        assert!(start.elapsed() < Duration::from_secs(20), "the lease never lapses");
        std::thread::sleep(Duration::from_millis(300));
        if let Some(taken) = other.claim().unwrap() {
            break taken;
        }
    };
    assert!(start.elapsed() > Duration::from_millis(700), "a lease must hold");
    assert_eq!((taken.task, taken.epoch, taken.lapses), (lost.task, lost.epoch + 1, 1));
    let done = End::Done { best_us: 9.0, best_plan: "slow".into(), first_us: 9.0 };
    assert_eq!(slow.renew(&lost, 1.0).ok(), Some(false));
    for end in [done, End::Open { spent: 5.0 }, End::Failed { reason: "x".into() }] {
        assert_eq!(slow.end(&lost, &end).ok(), Some(false));
    }
    // Its trials are taken.
    slow.ship(&lost, &[Line { number: 1, text: "{}".into() }]).unwrap();
    assert_eq!(other.trials(&taken).unwrap().len(), 1);
    let done = End::Done { best_us: 1.0, best_plan: "other".into(), first_us: 1.0 };
    assert_eq!(other.end(&taken, &done).ok(), Some(true));
    // An answer that was lost: the same again changes nothing.
    assert_eq!(other.end(&taken, &done).ok(), Some(false));
    assert_eq!(fleet.server.sql("SELECT state, best_plan, spent, failed_by FROM tw.task"), "done|other|0|{}");
}
