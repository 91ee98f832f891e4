//! Tasks of one host: lock files and the time since the machine started.

use super::postgres::{FAKETIME, tell_time};
use super::{SIMULATION, ended, ends, full, run, tasks, until};
use rusqlite::Connection;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tilewright_fleet::{End, GpuLock, HostQueue, Left, Queue, boot_id, boottime};

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
    /// A worker process, started by a command that takes more arguments.
    fn start(&self, mut command: Command, name: &str, options: &str) -> Child {
        command.arg("host").arg(self.file()).arg(format!("journal={}", self.journal(name).display()));
        command.args(options.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("a worker starts")
    }
    fn journal(&self, name: &str) -> PathBuf {
        self.folder.path().join(name).with_extension("journal")
    }
    fn lines(&self, name: &str) -> usize {
        std::fs::read_to_string(self.journal(name)).unwrap_or_default().lines().count()
    }
    fn done(&self) -> i64 {
        HostQueue::count(&self.file(), "night").map_or(0, |counted| counted.left.done)
    }
    fn change(&self, statement: &str) {
        Connection::open(self.file()).expect("a file").execute_batch(statement).expect(statement);
    }
}

pub fn a_task_of_a_worker_that_is_gone_goes_on() {
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
    let counted = HostQueue::count(&host.file(), "night").unwrap();
    assert!(counted.left == left && counted.share > 0.5, "{counted:?}");
}

/// Progress is judged by the time since the machine started, of the same start alone; the wall clock is not read.
pub fn a_worker_that_lives_and_does_nothing_loses_its_task() {
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

pub fn failures_of_one_device_fail_no_task() {
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

pub fn a_file_of_a_newer_tilewright_is_refused() {
    let host = Host::new();
    drop(host.join("0", 1));
    host.change("PRAGMA user_version = 99");
    let error = HostQueue::join(&host.file(), &run(60), "class", "0", &tasks(1)).expect_err("newer").to_string();
    assert!(error.contains("version 99") && error.contains("newer tilewright"), "{error}");
}

pub fn killed_workers_of_a_host_lose_no_task() {
    let host = Host::new();
    let kills = if full() { 50 } else { 10 };
    let options = format!("tasks={} trials=6 sleep=20 lease=3000 poll=50", kills * 3);
    let start = |name: &str| host.start(Command::new(SIMULATION), name, &options);
    let mut workers: Vec<Child> = ["w0", "w1", "w2", "w3"].map(start).into();
    for kill in 0..kills {
        std::thread::sleep(std::time::Duration::from_millis(150));
        let place = kill as usize % workers.len();
        workers[place].kill().expect("it can be killed");
        workers[place].wait().expect("it ends");
        workers[place] = start(&format!("w{place}"));
    }
    let said: Vec<String> = workers.into_iter().map(|worker| ends(worker, 0)).collect();
    assert_eq!(host.done(), i64::from(kills) * 3);
    let mut once = ended(&said);
    once.dedup();
    assert_eq!(ended(&said), once, "a task was done twice");
}

/// The wall clocks of two workers differ by an hour and jump to the other side.
pub fn a_jump_of_the_hosts_clock_takes_no_task_away() {
    if !Path::new(FAKETIME).exists() {
        return super::missing::missing("libfaketime is not installed (Debian: faketime)");
    }
    let host = Host::new();
    let clock = |name: &str| host.folder.path().join(name);
    let start = |name: &str| {
        std::fs::write(clock(name), "+30m\n").expect("a clock");
        let mut command = Command::new(SIMULATION);
        tell_time(&mut command, &clock(name));
        host.start(command, name, "tasks=8 trials=8 sleep=60 lease=5000 poll=50")
    };
    let workers = ["one", "two"].map(start);
    // Of both or of one: a program begins slowly under a faked clock.
    until("trials run", || host.lines("one") + host.lines("two") > 4);
    std::fs::write(clock("one"), "+2d\n").expect("a clock");
    std::fs::write(clock("two"), "-2d\n").expect("a clock");
    let said = workers.map(|worker| ends(worker, 0));
    assert_eq!((host.done(), ended(&said).len()), (8, 8), "{said:?}");
    assert_eq!(host.lines("one") + host.lines("two"), 64);
}

/// After a new start of the machine no lock is held, and times of the earlier start say nothing.
pub fn tasks_of_an_earlier_start_of_the_machine_are_free() {
    let host = Host::new();
    let mut one = host.join("0", 1);
    let lease = one.claim().unwrap().expect("a task");
    let left_behind = format!("{}-holder-gone", host.file().display());
    std::fs::write(&left_behind, "").expect("a file");
    host.change("UPDATE task SET holder = 'gone', boot = 'another', progress = 1e9");
    let next = host.join("1", 1).claim().unwrap().expect("the task");
    assert_eq!((next.task, next.epoch, next.lapses), (lease.task, 2, 1));
    assert!(!Path::new(&left_behind).exists());
}

/// Another user made the lock file, in a folder of all users.
pub fn a_lock_file_of_another_user_is_locked() {
    if !super::postgres::is_run_by_root() {
        return super::missing::skipped("only root starts programs of another user");
    }
    let (locks, host) = (tempfile::tempdir().expect("a folder"), Host::new());
    for (folder, mode) in [(locks.path(), 0o1777), (host.folder.path(), 0o777)] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).expect("rights");
    }
    let of_root = GpuLock::take(locks.path(), "GPU-1").expect("a lock").expect("it is free");
    let options = format!("tasks=1 trials=1 gpu=GPU-1 locks={}", locks.path().display());
    let mut worker = host.start(super::postgres::server_program(SIMULATION), "w", &options);
    let mut said = BufReader::new(worker.stdout.take().expect("its output")).lines();
    assert!(said.any(|line| line.expect("a line").contains("GPU-1 is busy")), "it does not wait");
    drop(of_root);
    ends(worker, 0);
}

/// Two containers share a folder and nothing else: in each the worker has the same process id.
pub fn workers_in_two_containers_share_the_tasks() {
    let container = || {
        let mut command = Command::new("unshare");
        let kinds = if super::postgres::is_run_by_root() { "-pf" } else { "-Urpf" };
        command.args([kinds, "--mount-proc", "--kill-child"]);
        command
    };
    if !container().arg("true").status().is_ok_and(|status| status.success()) {
        return super::forbidden("no namespaces of process ids can be made (right: CAP_SYS_ADMIN)");
    }
    let host = Host::new();
    let start = |name: &str, options: &str| {
        let mut command = container();
        command.arg(SIMULATION);
        host.start(command, name, options)
    };
    let options = "tasks=6 trials=10 sleep=50 lease=60000 poll=50";
    let mut killed = start("one", options);
    until("its trials run", || host.lines("one") > 2);
    let other = start("two", options);
    until("its trials run, too", || host.lines("two") > 2);
    killed.kill().expect("it can be killed");
    killed.wait().expect("it ends");
    let said = [ends(other, 0), ends(start("three", options), 0)];
    assert_eq!(host.done(), 6);
    let mut once = ended(&said);
    once.dedup();
    assert_eq!(ended(&said), once);
}
