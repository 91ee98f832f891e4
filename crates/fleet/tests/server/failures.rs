//! Devices that fail, plans that take their host down, two workers on one GPU.

use super::{Fleet, ends, identity, run, tasks};
use std::process::Child;
use std::time::{Duration, Instant};
use tilewright_fleet::{End, Identity, Queue, RunSpec, Server};

pub fn one_sick_gpu_of_four_fails_no_task() {
    let Some(fleet) = Fleet::new() else { return };
    let sound: Vec<_> = (0..3)
        .map(|n| fleet.start(&format!("w{n}"), &format!("tasks=12 trials=4 sleep=100 lease=2000 poll=100 gpu=G{n}")))
        .collect();
    let sick = fleet.start("sick", "tasks=12 lease=2000 poll=100 gpu=G3 sick=1");
    for worker in sound {
        ends(worker, 0);
    }
    leaves(sick);
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 12);
    assert!(fleet.count("tw.task WHERE 'G3' = ANY(failed_by)") < 2);
}

/// A worker on a sick GPU leaves: nothing is left, or it has looked often enough.
fn leaves(worker: Child) {
    let out = worker.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let retired = said.contains("Retired");
    assert_eq!((out.status.code(), retired || said.contains("Finished")), (Some(i32::from(retired)), true), "{said}");
}

/// It gets one task, and none as long as a known problem fails: nor does a process that follows.
pub fn a_gpu_that_stays_sick_gets_one_task() {
    let Some(fleet) = Fleet::new() else { return };
    let options = "tasks=3 trials=2 sleep=0 lease=60000 poll=50 gpu=G0";
    for more in ["", "looks-first=1", "looks-first=1"] {
        let said = ends(fleet.start("sick", &format!("{options} sick=1 {more}")), 1);
        assert!(said.contains("Retired") && said.matches("looked: sick").count() == 4, "{said}");
        assert_eq!(fleet.server.sql("SELECT sum(epoch), sum(cardinality(failed_by)) FROM tw.task"), "1|1");
    }
    let said = ends(fleet.start("sound", &format!("{options} looks-first=1")), 0);
    assert!(said.contains("looked: sound"), "{said}");
    // Nothing is left that it could wait for.
    let said = ends(fleet.start("sick", &format!("{options} sick=1 looks-first=1")), 0);
    assert_eq!(said.matches("looked: sick").count(), 1, "{said}");
}

/// Once a known problem is right on it again, it gets tasks again.
pub fn a_sick_gpu_that_heals_gets_tasks_again() {
    let Some(fleet) = Fleet::new() else { return };
    let said = ends(fleet.start("w", "tasks=4 trials=2 lease=60000 poll=100 gpu=G0 sick=1 heals=2"), 0);
    let looks: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("looked: ")).collect();
    assert_eq!(looks, ["sick", "sound"], "{said}");
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 4);
    // While it was sick it had one task.
    assert_eq!(fleet.server.sql("SELECT sum(cardinality(failed_by)), max(epoch) FROM tw.task"), "1|2");
}

/// The same of a GPU that reports no error: all its results are wrong.
pub fn a_gpu_whose_results_are_wrong_fails_no_task() {
    let Some(fleet) = Fleet::new() else { return };
    let sound: Vec<_> = (0..3)
        .map(|n| fleet.start(&format!("w{n}"), &format!("tasks=12 trials=4 sleep=100 lease=5000 poll=100 gpu=G{n}")))
        .collect();
    let wrong = fleet.start("wrong", "tasks=12 lease=5000 poll=100 gpu=G3 sick=wrong");
    for worker in sound {
        ends(worker, 0);
    }
    leaves(wrong);
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 12);
    // It showed itself with its first task, and got no other.
    assert_eq!(fleet.count("tw.task WHERE 'G3' = ANY(failed_by)"), 1);
}

/// Two GPUs of a host whose disk is full fail no task: their workers end, and others do all tasks.
pub fn a_host_in_trouble_fails_no_task() {
    let Some(fleet) = Fleet::new() else { return };
    let full = ["a", "b"].map(|gpu| fleet.start(gpu, &format!("tasks=4 trials=2 lease=60000 poll=50 gpu={gpu} full=1")));
    for worker in full {
        let said = ends(worker, 1);
        assert!(said.contains("HostFailed(\"the disk is full\")"), "{said}");
    }
    assert_eq!(fleet.count("tw.task WHERE state = 'open' AND failed_by = '{}' AND lapses = 0"), 4);
    ends(fleet.start("c", "tasks=4 trials=2 sleep=0 gpu=c"), 0);
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 4);
}

pub fn a_hopeless_task_fails_after_two_gpus_tried_it() {
    let Some(fleet) = Fleet::new() else { return };
    // One GPU alone gives no task up, and does not try for ever.
    let said = ends(fleet.start("a", "tasks=3 trials=1 sleep=0 gpu=A hopeless=p1 poll=50"), 3);
    assert!(said.contains("refused: 1"), "{said}");
    assert_eq!(fleet.server.sql("SELECT state, failed_by FROM tw.task WHERE problem = 'p1'"), "open|{A,A}");
    ends(fleet.start("b", "tasks=3 trials=1 sleep=0 gpu=B hopeless=p1 poll=50"), 3);
    assert_eq!(fleet.server.sql("SELECT state, failed_by, reason FROM tw.task WHERE problem = 'p1'"), "failed|{A,A,B}|no plan");
    // Who asks for the status reads why.
    let failed = |run: Option<&str>| {
        tilewright_fleet::status(&super::address(&fleet.server.socket("owner")), run).expect("a status").failed
    };
    let texts = |f: &tilewright_fleet::FailedStatus| [&f.run, &f.class, &f.problem, &f.reason].map(String::clone);
    let all = failed(Some("night"));
    assert_eq!(all.iter().map(texts).collect::<Vec<_>>(), [["night", "simulated", "p1", "no plan"]]);
    fleet.server.sql("INSERT INTO tw.run(name, options, lease) VALUES ('day', '{}', 60)");
    assert_eq!((failed(Some("day")), failed(None)), (vec![], all));
}

/// A plan that ends its process twice without a word is tried no third time, and the rest of the task is done.
pub fn a_plan_that_takes_hosts_down_is_hung_after_two() {
    let Some(fleet) = Fleet::new() else { return };
    let options = "tasks=2 trials=4 sleep=10 lease=1000 poll=100 deadly=p1/x2";
    let mut said = String::new();
    let mut deaths = 0;
    for attempt in 0..6 {
        let out = fleet.worker(&format!("w{attempt}"), options).output().expect("it ends");
        said.push_str(&String::from_utf8_lossy(&out.stdout));
        if out.status.code() == Some(0) {
            break;
        }
        deaths += 1;
    }
    // The first death leaves no mark: nobody was careful yet.
    assert_eq!(deaths, 3, "{said}");
    assert!(said.contains("hung p1 x2"), "{said}");
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 2);
    assert_eq!(fleet.count("tw.trial WHERE line LIKE '%x3%'"), 2);
}

pub fn the_second_worker_on_a_gpu_waits() {
    let Some(fleet) = Fleet::new() else { return };
    // A run each: the second has work when its turn comes.
    let start = |name: &str| fleet.start(name, &format!("run={name} tasks=6 trials=3 sleep=60 lease=2000 poll=100 gpu=GPU-1"));
    let (one, two) = (start("one"), start("two"));
    let said = [ends(one, 0), ends(two, 0)];
    assert!(said.iter().any(|said| said.contains("GPU-1 is busy")), "{said:?}");
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND epoch = 1"), 12);
    let apart = |times: &str| fleet.server.sql(&format!("SELECT count(*), max(first) > min(last) FROM ({times}) t"));
    // Neither worked while the other was there.
    let of_runs = "SELECT min(begun) AS first, max(ended) AS last FROM tw.task GROUP BY run";
    assert_eq!(apart(of_runs), "2|t");
    assert_eq!(apart("SELECT min(received) AS first, max(received) AS last FROM tw.trial GROUP BY journal"), "2|t");
    // The second joined when the first had done all.
    assert_eq!(fleet.server.sql(&format!("SELECT max(started) > (SELECT min(last) FROM ({of_runs}) t) FROM tw.worker")), "t");
}

/// Containers share no folder: the server tells.
pub fn a_gpu_of_another_container_is_busy() {
    let Some(fleet) = Fleet::new() else { return };
    let inside = |id: &str, lock: &str| Identity { gpu: "GPU-1".into(), lock: lock.into(), ..identity(id) };
    let mut first = fleet.joined(inside("first", "a"), &run(1), &tasks(1));
    assert!(first.gpu_is_free().unwrap());
    let mut second = fleet.joined(inside("second", "b"), &run(1), &tasks(1));
    assert!(!second.gpu_is_free().unwrap() && first.gpu_is_free().unwrap());
    // Who shares the lock file and has the lock knows that the other is gone.
    assert!(fleet.joined(inside("third", "a"), &run(1), &tasks(1)).gpu_is_free().is_ok());
    first.leave("done");
    fleet.server.sql("DELETE FROM tw.worker WHERE id = 'third'");
    assert!(second.gpu_is_free().unwrap());
}

/// After a silence of everybody, leases hold for one lease time more. A restart may last for as long as a lease has left.
pub fn a_silence_of_all_is_no_lapse() {
    let Some(fleet) = Fleet::new() else { return };
    for (name, lease_s, silence_ms) in [("longer than a lease", 1, 2500), ("little longer", 5, 5500)] {
        let run = RunSpec { name: name.into(), ..run(lease_s) };
        let one_of = |id: &str| fleet.joined(identity(&format!("{id} {lease_s}")), &run, &tasks(1));
        let (mut one, mut two) = (one_of("one"), one_of("two"));
        let lease = one.claim().unwrap().expect("the task");
        std::thread::sleep(Duration::from_millis(silence_ms));
        assert_eq!(two.claim().unwrap(), None, "{name}: the server may have been away");
        assert_eq!(one.renew(&lease, 1.0).ok(), Some(true));
        let start = Instant::now();
        while two.claim().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(40));
            std::thread::sleep(Duration::from_millis(200));
        }
        assert_eq!(one.end(&lease, &End::Open { spent: 0.0 }).ok(), Some(false));
    }
}

/// A server has few connections; workers that get none wait for one.
pub fn more_workers_than_connections_do_all_tasks() {
    let Some(fleet) = Fleet::with(&["max_connections = 5", "superuser_reserved_connections = 2"]) else { return };
    let options = "tasks=20 trials=2 sleep=20 lease=60000 poll=100";
    let all: Vec<_> = (0..if super::full() { 20 } else { 12 }).map(|n| fleet.start(&format!("w{n}"), options)).collect();
    for worker in all {
        ends(worker, 0);
    }
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND epoch = 1"), 20);
    assert_eq!(fleet.count("tw.trial"), 40);
}

/// Busy workers keep their connections: who gets none hears of the remedy.
pub fn a_server_without_a_free_connection_is_said_with_the_remedy() {
    let Some(fleet) = Fleet::with(&["max_connections = 5", "superuser_reserved_connections = 2"]) else { return };
    let _held = [0, 1, 2].map(|n| fleet.joined(identity(&format!("w{n}")), &run(60), &tasks(1)));
    let mut one_more =
        Server::new(&super::address(&fleet.server.socket("tilewright_worker")), identity("x")).expect("an address");
    let error = one_more.join(&run(60), &tasks(1)).expect_err("no connection is free");
    let text = error.to_string();
    assert!(error.is_passing() && text.contains("raise max_connections") && text.contains("PgBouncer"), "{text}");
}
