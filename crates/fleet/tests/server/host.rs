//! Tasks of one host: lock files and the time since the machine started.

use super::{run, tasks};
use rusqlite::Connection;
use std::path::PathBuf;
use tilewright_fleet::{End, HostQueue, Left, Queue, boot_id, boottime};

struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        Host { folder: tempfile::tempdir().expect("a folder") }
    }
    fn file(&self) -> PathBuf {
        self.folder.path().join("records.sqlite-tasks")
    }
    fn join(&self, gpu: &str, count: u32) -> HostQueue {
        HostQueue::join(&self.file(), &run(60), "class", gpu, &tasks(count)).expect("it joins")
    }
    fn change(&self, statement: &str) {
        Connection::open(self.file()).expect("a file").execute_batch(statement).expect(statement);
    }
}

#[test]
fn a_task_of_a_worker_that_is_gone_goes_on() {
    let host = Host::new();
    let (mut one, mut two) = (host.join("0", 2), host.join("1", 2));
    let heavy = one.claim().unwrap().expect("a task");
    assert_eq!((heavy.problem.as_str(), heavy.epoch), ("p1", 1));
    assert_eq!(two.claim().unwrap().expect("a task").problem, "p0");
    assert_eq!(two.claim().unwrap(), None);
    assert_eq!(one.renew(&heavy, 3.0).ok(), Some(true));
    // Its lock file is free, however it ended: also in another container, where its process id says nothing.
    drop(one);
    let next = two.claim().unwrap().expect("the task");
    assert_eq!((next.problem.as_str(), next.epoch, next.lapses, next.spent), ("p1", 2, 1, 3.0));
    let done = End::Done { best_us: 1.0, best_plan: "x".into(), first_us: 1.0 };
    assert_eq!(two.end(&heavy, &done).ok(), Some(false));
    assert_eq!(two.end(&next, &done).ok(), Some(true));
    let left = Left { leased: 1, done: 1, ..Left::default() };
    assert_eq!(two.left().unwrap(), left);
    assert_eq!(HostQueue::count(&host.file(), "night").unwrap(), left);
}

/// Progress is judged by the time since the machine started, of the same start alone; the wall clock is not read.
#[test]
fn a_worker_that_lives_and_does_nothing_loses_its_task() {
    let host = Host::new();
    let (mut one, mut two) = (host.join("0", 1), host.join("1", 1));
    let lease = one.claim().unwrap().expect("a task");
    let Some(now) = boottime() else { return super::missing::skipped("the system does not tell since when it runs") };
    // Another start of the machine: its times say nothing about this one.
    host.change(&format!("UPDATE task SET boot = 'another', progress = {}", now - 1e6));
    assert_eq!(two.claim().unwrap(), None);
    // Ahead of now, as no clock of this start can be.
    host.change(&format!("UPDATE task SET boot = '{}', progress = {}", boot_id(), now + 1e6));
    assert_eq!(two.claim().unwrap(), None);
    host.change(&format!("UPDATE task SET progress = {}", now - 59.0));
    assert_eq!(two.claim().unwrap(), None);
    host.change(&format!("UPDATE task SET progress = {}", now - 61.0));
    let next = two.claim().unwrap().expect("the task");
    assert_eq!(one.renew(&lease, 1.0).ok(), Some(false));
    assert_eq!(two.renew(&next, 1.0).ok(), Some(true));
    // Handed back, it is free at once.
    assert_eq!(two.end(&next, &End::Open { spent: 2.0 }).ok(), Some(true));
    let again = one.claim().unwrap().expect("the task");
    assert_eq!((again.lapses, again.spent), (1, 2.0));
}

#[test]
fn failures_of_one_device_fail_no_task() {
    let host = Host::new();
    let (mut one, mut two) = (host.join("0", 1), host.join("1", 1));
    let failed = End::Failed { reason: "no plan".into() };
    for _ in 0..2 {
        let lease = one.claim().unwrap().expect("the task");
        assert_eq!(one.end(&lease, &failed).ok(), Some(true));
    }
    assert_eq!(one.claim().unwrap(), None);
    assert_eq!(one.left().unwrap(), Left { refused: 1, ..Left::default() });
    assert_eq!(two.left().unwrap(), Left { open: 1, ..Left::default() });
    let lease = two.claim().unwrap().expect("the task");
    assert_eq!(two.end(&lease, &failed).ok(), Some(true));
    assert_eq!(one.left().unwrap(), Left { failed: 1, ..Left::default() });
}

#[test]
fn a_file_of_a_newer_tilewright_is_refused() {
    let host = Host::new();
    drop(host.join("0", 1));
    host.change("PRAGMA user_version = 99");
    let error = HostQueue::join(&host.file(), &run(60), "class", "0", &tasks(1)).expect_err("newer").to_string();
    assert!(error.contains("version 99") && error.contains("newer tilewright"), "{error}");
}
