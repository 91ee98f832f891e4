//! Runs without accidents: each task once, each trial once.

use super::{Fleet, SIMULATION, ends, full, identity, run, tasks, until};
use std::process::Command;
use std::time::Instant;
use tilewright_fleet::{End, Identity, Left, Queue, RunSpec, digest};

pub fn each_task_is_done_once_and_each_trial_shipped_once() {
    let Some(fleet) = Fleet::new() else { return };
    let (tasks, trials, workers) = if full() { (1000, 5, 8) } else { (100, 5, 8) };
    let options = format!("tasks={tasks} trials={trials} sleep=25 lease=60000 poll=100");
    let all: Vec<_> = (0..workers).map(|n| fleet.start(&format!("w{n}"), &options)).collect();
    for worker in all {
        ends(worker, 0);
    }
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND epoch = 1 AND lapses = 0"), tasks);
    assert_eq!(fleet.count("tw.trial"), tasks * trials);
    assert_eq!(fleet.count("(SELECT DISTINCT task, line FROM tw.trial) t"), tasks * trials);
    assert_eq!(fleet.journals() as i64, tasks * trials);
    // The server has the lines of the journals, each of its journal.
    assert_eq!(shipped(&fleet), written(&fleet, workers));
    workers_are_busy(&fleet, workers);
    // Who comes late finds nothing to do.
    ends(fleet.start("late", &options), 0);
    assert_eq!(fleet.count("tw.trial"), tasks * trials);
}

/// Lines of the journals of `w0`, `w1`, ... as a server has them: journal, number, trial.
fn written(fleet: &Fleet, workers: usize) -> Vec<String> {
    let mut all = Vec::new();
    for worker in 0..workers {
        let path = fleet.server.folder.path().join(format!("w{worker}.journal"));
        let journal = digest(&path.display().to_string());
        for line in std::fs::read_to_string(&path).expect("a journal").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [number, problem, plan] = words[..] else { panic!("{line}") };
            all.push(format!("{journal}|{number}|{{\"name\":\"{problem}\",\"plan\":\"{plan}\"}}"));
        }
    }
    all.sort();
    all
}

fn shipped(fleet: &Fleet) -> Vec<String> {
    let mut all: Vec<String> = fleet.server.sql("SELECT journal, seq, line FROM tw.trial").lines().map(String::from).collect();
    all.sort();
    all
}

/// From its first lease to the end of the run a worker holds a task, but for a sixth of the time: wall within 1.2 of work / workers.
/// The work is the time of leases by the server's clock. On a busy machine a trial sleeps longer than asked, and a process starts
/// late: neither is a fault of the queue.
fn workers_are_busy(fleet: &Fleet, workers: usize) {
    let times = "SELECT count(*), sum(busy), sum(extract(epoch FROM (SELECT max(ended) FROM tw.task) - first)) FROM (
        SELECT journal, sum(extract(epoch FROM ended - begun)) AS busy, min(begun) AS first
        FROM (SELECT DISTINCT x.journal, k.id, k.begun, k.ended FROM tw.trial x JOIN tw.task k ON k.id = x.task) t GROUP BY journal) w";
    let said = fleet.server.sql(times);
    let numbers: Vec<f64> = said.split('|').map(|number| number.parse().expect("a number")).collect();
    let [count, busy, wall] = numbers[..] else { panic!("{said}") };
    assert_eq!(count, workers as f64, "a worker got no task");
    assert!(wall <= 1.2 * busy, "workers wait: they hold tasks for {busy} s of {wall} s");
}

pub fn two_classes_have_tasks_of_their_own() {
    let Some(fleet) = Fleet::new() else { return };
    let one = fleet.start("one", "tasks=4 trials=1 class=sm_90a");
    let two = fleet.start("two", "tasks=4 trials=1 class=gfx942");
    ends(one, 0);
    ends(two, 0);
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 8);
    assert_eq!(fleet.count("(SELECT DISTINCT class FROM tw.task) t"), 2);
    // Each journal served one class.
    assert_eq!(fleet.count("(SELECT DISTINCT x.journal, k.class FROM tw.trial x JOIN tw.task k ON k.id = x.task) t"), 2);
    let status = tilewright_fleet::status(&super::address(&fleet.server.socket("tilewright_worker")), Some("night")).unwrap();
    assert_eq!(status.classes.iter().map(|c| (c.done, c.open, c.trials_per_minute)).collect::<Vec<_>>(), [(4, 0, 4); 2]);
    assert_eq!(status.classes[0].gain, Some(2.0));
}

pub fn cases_are_added_only_when_asked_for() {
    let Some(fleet) = Fleet::new() else { return };
    ends(fleet.start("one", "tasks=3 trials=1"), 0);
    let said = ends(fleet.start("two", "tasks=5 trials=1"), 1);
    assert!(said.contains("--run night: the run has other cases; add these with --extend"), "{said}");
    let said = ends(fleet.start("two", "tasks=3 trials=1 options={\"seed\":2}"), 1);
    assert!(said.contains("--run night: the run has other options"), "{said}");
    assert_eq!(fleet.count("tw.task"), 3);
    ends(fleet.start("two", "tasks=5 trials=1 extend=1"), 0);
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 5);
    // Both lists are of the run from now on.
    ends(fleet.start("three", "tasks=3 trials=1"), 0);
}

/// A run's status names workers that hold its tasks, and those that may get one.
pub fn the_status_of_a_run_names_its_workers() {
    let Some(fleet) = Fleet::new() else { return };
    let joined = |host: &str, class: &str, name: &str| {
        let identity = Identity { host: host.into(), class: class.into(), ..identity(host) };
        fleet.joined(identity, &RunSpec { name: name.into(), ..run(60) }, &tasks(1))
    };
    let (mut holder, mut other) = (joined("holder", "sm_90a", "night"), joined("other", "sm_90a", "day"));
    let _idle = (joined("idle", "sm_90a", "night"), joined("of another class", "gfx942", "day"));
    assert!(holder.claim().unwrap().is_some() && other.claim().unwrap().is_some());
    let hosts = |name: Option<&str>| {
        let status =
            tilewright_fleet::status(&super::address(&fleet.server.socket("tilewright_worker")), name).expect("a status");
        status.workers.into_iter().map(|worker| worker.host).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(hosts(Some("night")), "holder, idle");
    assert_eq!(hosts(Some("day")), "idle, of another class, other");
    assert_eq!(hosts(None), "holder, idle, of another class, other");
}

pub fn withdrawn_tasks_stop_their_workers() {
    let Some(fleet) = Fleet::new() else { return };
    let address = super::address(&fleet.server.socket("owner"));
    let mut server = fleet.joined(identity("a"), &run(2), &tasks(3));
    let lease = server.claim().unwrap().expect("a task");
    assert_eq!(tilewright_fleet::withdraw(&address, "night").unwrap(), 3);
    assert_eq!(server.renew(&lease, 0.0).ok(), Some(false));
    assert_eq!(server.claim().unwrap(), None);
    assert_eq!(server.left().unwrap(), Left::default());
    let said = ends(fleet.start("late", "tasks=3"), 1);
    assert!(said.contains("withdrawn"), "{said}");
    let unknown = tilewright_fleet::withdraw(&address, "day").unwrap_err().to_string();
    assert!(unknown.contains("--run day: the server has no such run; its runs are: night"), "{unknown}");
}

pub fn a_worker_that_need_not_wait_leaves_while_others_work() {
    let Some(fleet) = Fleet::new() else { return };
    let mut working = fleet.start("working", "tasks=1 trials=100000 sleep=20 lease=60000");
    until("it has the task", || fleet.count("tw.task WHERE state = 'leased'") == 1);
    ends(fleet.start("brief", "tasks=1 lease=60000 poll=50 no-wait=1"), 0);
    // Without that it would be here still.
    let mut patient = fleet.start("patient", "tasks=1 lease=60000 poll=50");
    until("it has joined", || fleet.count("tw.worker") == 3);
    assert!(patient.try_wait().expect("it can be asked").is_none() && working.try_wait().expect("it can be asked").is_none());
    for child in [&mut working, &mut patient] {
        child.kill().and_then(|()| child.wait()).expect("it ends");
    }
}

/// However many claims and renewals there are, the row of all workers changes once a second.
pub fn the_row_that_shows_life_is_written_once_a_second() {
    let Some(fleet) = Fleet::new() else { return };
    let mut server = fleet.joined(identity("a"), &run(60), &tasks(200));
    let start = Instant::now();
    let mut seen = std::collections::BTreeSet::new();
    let mut calls = 0;
    while calls < 100 || seen.len() < 2 {
        let lease = server.claim().unwrap().expect("a task");
        assert_eq!(server.renew(&lease, 0.0).ok(), Some(true));
        assert_eq!(server.end(&lease, &End::Open { spent: 0.0 }).ok(), Some(true));
        seen.insert(fleet.server.sql("SELECT xmin, seen FROM tw.alive"));
        calls += 3;
    }
    let most = start.elapsed().as_secs() as usize + 2;
    assert!(seen.len() <= most, "{} changes for {calls} calls in {:?}", seen.len(), start.elapsed());
}

/// The claim walks one index in order of work, however many tasks there are.
pub fn a_claim_walks_the_index_in_order_of_work() {
    let Some(fleet) = Fleet::new() else { return };
    let mut server = fleet.joined(identity("a"), &run(60), &tasks(20_000));
    fleet.server.sql("ANALYZE tw.task");
    let values = ["1", "'simulated'", "'x'", "60", "'claim'", "''", "2"];
    let types = ["bigint", "text", "text", "float8", "text", "text", "bigint"];
    let prepared = format!("PREPARE c({}) AS {};", types.join(", "), tilewright_fleet::CLAIM);
    let plan = fleet.server.sql(&format!("{prepared} EXPLAIN (ANALYZE, TIMING OFF) EXECUTE c({})", values.join(", ")));
    assert!(plan.contains("Index Scan using task_todo on task"), "{plan}");
    assert!(!plan.contains("Sort") && !plan.contains("Seq Scan on task"), "{plan}");
    // A retry looks its name up.
    let retry = format!("PREPARE r(text, float8) AS {}; EXPLAIN EXECUTE r('claim', 60)", tilewright_fleet::CLAIMED);
    let plan = fleet.server.sql(&retry);
    assert!(plan.contains("Index Scan using task_claim on task"), "{plan}");
    for _ in 0..20 {
        let lease = server.claim().unwrap().expect("a task");
        let end = End::Done { best_us: 1.0, best_plan: "x".into(), first_us: 1.0 };
        assert_eq!(server.end(&lease, &end).ok(), Some(true));
    }
}

/// A measurement of the load ends with the bytes of the tables and the commits of the server.
pub fn a_load_is_printed_with_its_cost() {
    let Some(fleet) = Fleet::new() else { return };
    let mut load = Command::new(SIMULATION);
    load.args(["load", &fleet.server.socket("tilewright_worker"), "tasks=20", "workers=4", "claims=5", "trials=2"]);
    let out = load.output().expect("it runs");
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("\"claims\": 20,"), "{said}");
    let tables = fleet.server.sql("SELECT relname FROM pg_class WHERE relnamespace = 'tw'::regnamespace AND relkind = 'r'");
    assert!(tables.lines().all(|table| said.contains(&format!("\"{table}\" : "))), "{said}");
    assert!(said.contains("\"commits\" : ") && said.contains("\"rows_inserted\" : "), "{said}");
}
