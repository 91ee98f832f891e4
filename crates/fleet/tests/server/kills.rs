//! Workers and servers that are killed, stopped and cut off.

use super::{Fleet, ended, ends, full, identity, run, signal, tasks, until};
use std::process::Child;
use std::time::{Duration, Instant};
use tilewright_fleet::{End, Line, Queue};

/// All tasks were ended, each once at most by those who tell; what the workers said.
fn all_done(fleet: &Fleet, workers: Vec<Child>) -> Vec<String> {
    let said: Vec<String> = workers.into_iter().map(|worker| ends(worker, 0)).collect();
    assert_eq!(fleet.count("tw.task WHERE state <> 'done'"), 0);
    let ended = ended(&said);
    let mut once = ended.clone();
    once.dedup();
    assert_eq!(ended, once, "a task was done twice");
    said
}

pub fn killed_workers_lose_no_task_and_no_trial_of_others() {
    let Some(fleet) = Fleet::new() else { return };
    let kills = if full() { 50 } else { 10 };
    let options = format!("tasks={} trials=8 sleep=30 lease=2000 poll=100", kills * 3);
    let options = options.as_str();
    let mut workers: Vec<Child> = (0..4).map(|n| fleet.start(&format!("w{n}"), options)).collect();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(250));
        let name = rand::random::<u64>() as usize % workers.len();
        // Of a task that two workers lost, a third could run the plan that the second ran: rightly, it would count as hung.
        let of_two = format!("tw.task WHERE state = 'leased' AND lapses > 1 AND holder LIKE '{}-%'", workers[name].id());
        until("the worker has another task", || fleet.count(&of_two) == 0);
        workers[name].kill().expect("it can be killed");
        workers[name].wait().expect("it is gone");
        // With the same journal, as on the same node.
        workers[name] = fleet.start(&format!("w{name}"), options);
    }
    let said = all_done(&fleet, workers);
    assert!(!said.concat().contains("hung "), "{said:?}");
    // Whatever a journal holds of a task that a survivor finished is on the server, once.
    assert_eq!(fleet.count("(SELECT task FROM tw.trial GROUP BY task HAVING count(DISTINCT line) < 8) t"), 0);
    assert_eq!(fleet.count("tw.trial WHERE task IS NULL"), 0);
    assert!(fleet.count("tw.trial") <= fleet.journals() as i64);
    assert!(fleet.count("tw.task WHERE epoch > 1") > 0, "no kill met a task");
    // No plan was taken for one that takes hosts down: each ran in each task.
    assert_eq!(fleet.count("(SELECT DISTINCT task, line FROM tw.trial) t"), (kills * 3 * 8) as i64);
}

pub fn a_server_that_restarts_loses_no_trial() {
    let Some(mut fleet) = Fleet::new() else { return };
    // Outages of one lease and of three, and short ones.
    let (lease, shorter) = if full() { (4000, 8) } else { (2000, 0) };
    let tasks = if full() { 40 } else { 12 };
    let outages = [lease, 3 * lease].into_iter().chain(std::iter::repeat_n(100, shorter));
    let options = format!("tasks={tasks} trials=20 sleep=100 lease={lease} poll=100");
    let workers: Vec<Child> = (0..4).map(|n| fleet.start(&format!("w{n}"), &options)).collect();
    for outage in outages {
        std::thread::sleep(Duration::from_millis(400));
        until("a task is leased", || fleet.count("tw.task WHERE state = 'leased'") > 0);
        fleet.server.kill();
        std::thread::sleep(Duration::from_millis(outage));
        fleet.server.up();
    }
    all_done(&fleet, workers);
    if full() {
        // From 4 s on no lease lapses in an outage, nor in the first lease time after it.
        assert_eq!(fleet.count("tw.task WHERE lapses > 0 OR epoch > 1"), 0);
        assert_eq!(fleet.journals(), tasks * 20);
    }
    // Shorter leases may lapse: then two workers have trials of one task.
    assert!(fleet.journals() >= tasks * 20);
    assert_eq!(fleet.count("tw.trial"), fleet.journals() as i64);
}

/// A server that was away too shortly for a gap: a lease that ends soon after lasts until the server has run for a lease time.
pub fn a_short_restart_is_no_lapse() {
    let Some(mut fleet) = Fleet::new() else { return };
    let options = "tasks=1 trials=60 sleep=100 lease=4000 poll=100";
    let stopped = fleet.start("stopped", options);
    until("a trial is shipped", || fleet.count("tw.trial") > 0);
    signal("STOP", &stopped);
    let other = fleet.start("other", options);
    until("the lease ends soon", || fleet.count("tw.task WHERE until < clock_timestamp() + interval '3 s'") > 0);
    fleet.server.kill();
    fleet.server.up();
    // As the workers of another run that reach it at once.
    fleet.server.sql("UPDATE tw.alive SET seen = clock_timestamp()");
    until("the lease lapses", || fleet.count("tw.task WHERE lapses > 0") > 0);
    assert_eq!(fleet.count("tw.task WHERE begun < pg_postmaster_start_time() + interval '4 s'"), 0);
    signal("CONT", &stopped);
    ends(stopped, 0);
    ends(other, 0);
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND lapses = 1"), 1);
}

/// A server comes back from an older copy of its folder: it lacks trials that it had confirmed, and knows nothing of tasks that were
/// leased and ended since. The journals of those who still work fill the gap.
pub fn a_server_from_an_older_copy_gets_its_trials_again() {
    let Some(mut fleet) = Fleet::new() else { return };
    let options = "tasks=16 trials=10 sleep=100 lease=2000 poll=100";
    let workers: Vec<Child> = (0..4).map(|n| fleet.start(&format!("w{n}"), options)).collect();
    until("trials are shipped", || fleet.count("tw.trial") > 10);
    fleet.server.kill();
    fleet.server.copy("data", "older");
    fleet.server.up();
    let ended = fleet.count("tw.task WHERE state = 'done'");
    until("tasks are done after the copy", || fleet.count("tw.task WHERE state = 'done'") > ended + 3);
    fleet.server.kill();
    fleet.server.copy("older", "data");
    fleet.server.up();
    assert!(fleet.count("tw.task WHERE state = 'done'") < ended + 3, "the copy is older");
    workers.into_iter().for_each(|worker| drop(ends(worker, 0)));
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 16);
    assert_eq!(fleet.count("tw.trial"), fleet.journals() as i64);
}

/// A worker that was stopped for longer than its lease has lost it, and finds out at whatever step it goes on.
pub fn a_stopped_worker_ends_nothing_of_others() {
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
pub fn a_lost_lease_changes_nothing() {
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
