//! `tune` on several devices of a host and on nodes that share a PostgreSQL server. Without a server its tests say SKIPPED.

#[path = "../../../fleet/tests/support/postgres.rs"]
pub mod postgres;

use crate::common::{Bench, Ran, missing};
use crate::reference;
use postgres::{PASSWORD, Postgres};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Large enough for a search to go on: a product as fast as its launch has converged.
pub const CASES: &str = "m,n,k,dtype\n96,80,64,f32\n64,96,48,f32\n80,64,64,f32\n96,96,64,f32\n";

pub fn bench() -> Bench {
    let bench = Bench::new();
    std::fs::write(bench.path("cases.csv"), CASES).expect("a file");
    bench
}

/// A server with the tables.
pub fn server(bench: &Bench) -> Option<Postgres> {
    let server = Postgres::start()?;
    let ran = bench.run(&format!("fleet init {}", server.socket("owner")));
    ran.ends(0);
    ran.says(&["the tables are made", "\\password tilewright_worker"]);
    Some(server)
}

pub fn worker(server: &Postgres) -> String {
    server.socket("tilewright_worker")
}

/// Plans of all exported trials with their problems, sorted; times and moments left out.
pub fn trials(bench: &Bench, records: &str) -> Vec<String> {
    let exported = bench.run(&format!("records export --records {records}"));
    exported.ends(0);
    let trial = |o: &serde_json::Value| format!("{} {} {}", o["name"], o["trial"]["plan"], o["trial"]["state"]);
    let mut all: Vec<String> = exported.objects().iter().map(trial).collect();
    all.sort();
    all
}

fn problems(ran: &Ran) -> BTreeSet<String> {
    ran.objects().iter().map(|o| o["problem"].as_str().expect("a problem").to_string()).collect()
}

pub fn several_devices_of_a_host_share_the_problems() {
    let bench = bench();
    let ran = bench.run("tune --cases cases.csv --device emu,emu --budget 3 --json");
    ran.ends(0);
    assert_eq!((ran.objects().len(), problems(&ran).len()), (4, 4), "each once: {}", ran.out);
    assert!(ran.objects().iter().all(|o| o["verified"] == true && o["trials"] == 3));
    assert!(ran.err.contains("4 problems tuned by 2 workers"), "{}", ran.err);
    assert_eq!(trials(&bench, "records.sqlite").len(), 12);
    // Its list of tasks is gone, and so are the lock files.
    let files: Vec<String> = std::fs::read_dir(bench.folder.path())
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(!files.iter().any(|name| name.contains("-tasks") || name.contains("-alive-")), "{files:?}");
    // Two classes: each has all problems.
    let ran = bench.run("tune --cases cases.csv --device emu:sm_90a,emu:gfx942 --budget 1 --csv --records classes.sqlite");
    ran.ends(0);
    assert_eq!(ran.out.lines().count(), 1 + 8, "{}", ran.out);
    assert_eq!(ran.out.lines().filter(|line| line.starts_with("problem,")).count(), 1);
    // And records of its own.
    let listed = bench.run("records list --json --records classes.sqlite");
    listed.ends(0);
    let of = |class: &str| listed.objects().iter().filter(|o| o["device"].to_string().contains(class)).count();
    assert_eq!((listed.objects().len(), of("sm_90a"), of("gfx942")), (8, 4, 4), "{}", listed.out);
}

/// Two containers share a folder of records: their commands have one process id, and tasks of their own.
pub fn commands_in_two_containers_have_tasks_of_their_own() {
    let bench = bench();
    let inside = |line: &str| {
        let command = bench.command(line);
        let mut container = Command::new("unshare");
        container.args(["-Urpf", "--mount-proc", "--kill-child"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => container.env(name, value),
                None => container.env_remove(name),
            };
        }
        container.current_dir(bench.folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        container
    };
    if !inside("--version").output().is_ok_and(|out| out.status.success()) {
        return missing::skipped("no namespaces of process ids can be made (right: CAP_SYS_ADMIN)");
    }
    let files = || {
        let names = std::fs::read_dir(bench.folder.path()).expect("a folder").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().contains("-tasks-") && !name.to_string_lossy().contains("-holder-")).count()
    };
    let mut first = inside("tune --cases cases.csv --device emu,emu --budget 10m").spawn().expect("it starts");
    until("it has tasks", || files() > 0);
    let second = inside("tune --cases cases.csv --device emu,emu --budget 2 --json").output().expect("it ends");
    let ran = Ran::new("a command in another container", second);
    ran.ends(0);
    assert_eq!(problems(&ran).len(), 4, "{}", ran.out);
    assert!(files() > 0, "the tasks of the first command are gone");
    first.kill().and_then(|()| first.wait()).expect("it ends");
}

/// Problems that are near each other, by one worker and by two: the same plans are tried.
pub fn two_workers_try_what_one_tries() {
    let bench = Bench::new();
    let near = (0..14).map(|n| format!("{},64,64,f32\n", 136 - 8 * n)).collect::<String>();
    std::fs::write(bench.path("near.csv"), format!("m,n,k,dtype\n{near}")).expect("a file");
    let tune = "tune --cases near.csv --run night --budget 3 --seed 3 --quiet";
    bench.run(&format!("{tune} --device emu --records one.sqlite")).ends(0);
    bench.run(&format!("{tune} --device emu,emu --records two.sqlite")).ends(0);
    let one = trials(&bench, "one.sqlite");
    assert_eq!(one.len(), 14 * 3);
    assert_eq!(trials(&bench, "two.sqlite"), one);
}

pub fn a_named_run_of_a_host_goes_on_where_it_stood() {
    let bench = bench();
    bench.run("tune --cases cases.csv --device emu --run night --budget 2").ends(0);
    let before = trials(&bench, "records.sqlite");
    assert_eq!(before.len(), 8);
    let ran = bench.run("tune --cases cases.csv --device emu,emu --run night --budget 2");
    ran.ends(0);
    assert!(ran.err.contains("4 problems tuned"), "{}", ran.err);
    assert_eq!(trials(&bench, "records.sqlite"), before);
    let ran = bench.run("tune --cases cases.csv --device emu --run night --budget 3");
    ran.ends(2);
    assert!(ran.err.contains("--run night: the run has other options"), "{}", ran.err);
    std::fs::write(bench.path("more.csv"), format!("{CASES}64,64,96,f32\n")).expect("a file");
    let ran = bench.run("tune --cases more.csv --device emu --run night --budget 2");
    ran.ends(2);
    assert!(ran.err.contains("other cases") && ran.err.contains("--extend"), "{}", ran.err);
    bench.run("tune --cases more.csv --device emu --run night --budget 2 --extend").ends(0);
    assert_eq!(trials(&bench, "records.sqlite").len(), 10);
}

/// A worker tunes cases that another command adds to its run.
pub fn added_cases_are_tuned_by_workers_with_the_earlier_list() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let start = |cases: &str| {
        let line = format!("tune --cases {cases} --fleet {} --run night --device emu --budget 1s --quiet", worker(&server));
        bench.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let early = start("cases.csv");
    until("the run has its tasks", || server.number("SELECT count(*) FROM tw.task") == 4);
    std::fs::write(bench.path("more.csv"), format!("{CASES}128,128,96,f32\n64,64,96,f32\n")).expect("a file");
    let late = start("more.csv --extend");
    until("tasks are added", || server.number("SELECT count(*) FROM tw.task") == 6);
    signal("TERM", late.id());
    Ran::new("the command that adds tasks", late.wait_with_output().expect("it ends")).ends(130);
    Ran::new("the earlier worker", early.wait_with_output().expect("it ends")).ends(0);
    assert_eq!(server.sql("SELECT state, failed_by, count(*) FROM tw.task GROUP BY 1, 2"), "done|{}|6");
    assert_eq!(server.number("SELECT count(DISTINCT task) FROM tw.trial"), 6);
}

/// Processes that this one started.
pub fn children(of: u32) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

pub fn signal(name: &str, id: u32) {
    let sent = Command::new("kill").args([format!("-{name}"), id.to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// Waits for something.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "it never happens: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_gone(id: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    state.is_empty() || state.contains(") Z ")
}

pub fn a_worker_that_dies_is_replaced_and_one_without_a_parent_ends() {
    if !Path::new("/proc/self/task").exists() {
        return missing::skipped("children of a process are read from /proc");
    }
    let bench = bench();
    let start = |budget: &str| -> Child {
        let line =
            format!("tune --cases cases.csv --device emu,emu --run {} --budget {budget} --json", budget.replace("ms", "x"));
        bench.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let mut parent = start("1500ms");
    until("two workers", || children(parent.id()).len() == 2);
    std::thread::sleep(Duration::from_millis(300));
    signal("KILL", children(parent.id())[0]);
    let out = Ran::new("two workers, one killed", parent.wait_with_output().expect("it ends"));
    out.ends(0);
    assert!(out.err.contains("died") && out.err.contains("a new one goes on"), "{}", out.err);
    assert_eq!(problems(&out).len(), 4, "{}", out.out);

    parent = start("10m");
    until("two workers", || children(parent.id()).len() == 2);
    let workers = children(parent.id());
    parent.kill().expect("it can be killed");
    parent.wait().expect("it is gone");
    until("workers end without their parent", || workers.iter().all(|id| is_gone(*id)));

    // Told to end, all of them do, with what was found.
    let parent = start("10m");
    until("two workers", || children(parent.id()).len() == 2);
    let workers = children(parent.id());
    std::thread::sleep(Duration::from_millis(500));
    signal("TERM", parent.id());
    Ran::new("told to end", parent.wait_with_output().expect("it ends")).ends(130);
    assert!(workers.iter().all(|id| is_gone(*id)));
}

pub fn nodes_share_a_run_and_its_trials_are_collected() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let url = worker(&server);
    let tune = |node: &str| {
        let line =
            format!("tune --cases cases.csv --fleet {url} --run night --device emu --budget 3 --json --records {node}.sqlite");
        bench.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let watching = bench.command(&format!("fleet status {url} --watch --json")).stdout(Stdio::piped()).spawn();
    let mut watching = watching.expect("it starts");
    let nodes = [tune("one"), tune("two")].map(|node| Ran::new("a node", node.wait_with_output().expect("it ends")));
    for ran in &nodes {
        ran.ends(0);
    }
    assert_eq!(nodes.iter().map(|ran| problems(ran).len()).sum::<usize>(), 4);
    assert_eq!(server.sql("SELECT state, count(*) FROM tw.task GROUP BY state"), "done|4");
    // The view is for psql, too.
    assert_eq!(server.sql("SELECT run, open, leased, done FROM tw.progress"), "night|0|0|4");
    // Who watches sees that all is done.
    let seen = BufReader::new(watching.stdout.take().expect("its output")).lines();
    let done = seen.map(|line| line.expect("a line")).find(|line| line.contains("\"open\":0,\"leased\":0,\"done\":4"));
    watching.kill().and_then(|()| watching.wait()).expect("it ends");
    assert!(done.is_some(), "it ended before all was done");
    // The union of the journals is on the server.
    let mut union = BTreeSet::new();
    for (node, ran) in ["one", "two"].iter().zip(&nodes) {
        if !ran.out.is_empty() {
            union.extend(trials(&bench, &format!("{node}.sqlite")));
        }
    }
    assert_eq!(union.len(), 12);
    let pulled = bench.run(&format!("fleet pull {url} --run night --records all.sqlite"));
    pulled.ends(0);
    assert_eq!(trials(&bench, "all.sqlite").into_iter().collect::<BTreeSet<_>>(), union);
    // Nobody here has seen their results: they are candidates.
    let listed = bench.run("records list --json --records all.sqlite");
    assert!(listed.objects().iter().all(|o| o["stale"] == true && o["trials"] == 3), "{}", listed.out);
    // A search begins with them: verified and timed here, they count.
    bench.run("tune --cases cases.csv --device emu --budget 3 --records all.sqlite").ends(0);
    let listed = bench.run("records list --json --records all.sqlite");
    assert!(listed.objects().iter().all(|o| o["stale"] == false), "{}", listed.out);
    assert_eq!(trials(&bench, "all.sqlite").into_iter().collect::<BTreeSet<_>>(), union, "no other plan was tried");
    let status = bench.run(&format!("fleet status {url} --run night --json"));
    let status = &status.objects()[0];
    reference::agrees("fleet status", status);
    let class = &status["classes"][0];
    assert_eq!((&class["done"], &class["open"], &class["failed"]), (&4.into(), &0.into(), &0.into()), "{status}");
    assert!(class["gain"].as_f64().is_some_and(|gain| gain >= 1.0), "{status}");
    let words = bench.run(&format!("fleet status {url}"));
    words.says(&["run night on", "0 open, 0 leased, 4 done, 0 failed"]);
    bench.run(&format!("fleet status {url} --html page.html")).ends(0);
    assert!(std::fs::read_to_string(bench.path("page.html")).expect("a page").contains("<td>night<td>"));
    #[cfg(target_os = "linux")]
    assert!(bench.run(&format!("fleet status {url} --html /dev/stdout")).ends(0).contains("<td>night<td>"));
    // What is pushed is there once.
    let before = server.number("SELECT count(*) FROM tw.trial");
    let pushed = bench.run(&format!("fleet push {url} --run night --records one.sqlite"));
    pushed.ends(0);
    assert_eq!(server.number("SELECT count(*) FROM tw.trial"), before);
    // What the server lacks is there again.
    server.sql("DELETE FROM tw.trial");
    for node in ["one", "two"] {
        bench.run(&format!("fleet push {url} --run night --records {node}.sqlite")).ends(0);
    }
    bench.run(&format!("fleet pull {url} --run night --records again.sqlite")).ends(0);
    assert_eq!(trials(&bench, "again.sqlite").into_iter().collect::<BTreeSet<_>>(), union);
    // Who comes late has nothing to do; with other cases, or in another run, it has.
    let late = Ran::new("late", tune("late").wait_with_output().expect("it ends"));
    assert_eq!(late.ends(0), "");
}

/// Times of another GPU are only starts: a new holder times the best three plans again, although the budget is spent.
pub fn the_best_of_an_earlier_holder_are_timed_again() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let tune = format!("tune --cases cases.csv --fleet {} --run night --device emu --budget 5 --json --records", worker(&server));
    bench.run(&format!("{tune} one.sqlite")).ends(0);
    server.sql("UPDATE tw.task SET state = 'open', spent = 5");
    let ran = bench.run(&format!("{tune} two.sqlite"));
    ran.ends(0);
    assert_eq!(ran.objects().len(), 4);
    assert!(ran.objects().iter().all(|o| o["trials"] == 3 && o["verified"] == true), "{}", ran.out);
    let first: BTreeSet<String> = trials(&bench, "one.sqlite").into_iter().collect();
    assert!(trials(&bench, "two.sqlite").iter().all(|trial| first.contains(trial)), "no other plan is tried");
}

/// A page is written again while a run goes on.
pub fn a_page_of_a_run_that_is_watched_shows_itself_again() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let mut watching = bench.command(&format!("fleet status {} --watch --html page.html", worker(&server)));
    let mut watching = watching.stdout(Stdio::null()).spawn().expect("it starts");
    let page = || std::fs::read_to_string(bench.path("page.html")).unwrap_or_default();
    until("a page", || page().contains("refresh"));
    bench.run(&format!("tune --cases cases.csv --fleet {} --run night --device emu --budget 1", worker(&server))).ends(0);
    until("a page with the run", || page().contains("<td>night<td>"));
    watching.kill().and_then(|()| watching.wait()).expect("it ends");
}

/// Alone in a fleet, a worker finds the plans of plain `tune`, if the file is in order of work, the most first: a fleet takes problems in
/// this order, and a search starts from the winners of earlier ones. Workers of a host start only from problems eight places before, so their
/// first problem alone is compared.
pub fn a_fleet_of_one_makes_the_trials_of_plain_tune() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let sorted = "m,n,k,dtype\n96,96,64,f32\n96,80,64,f32\n80,64,64,f32\n64,96,48,f32\n";
    std::fs::write(bench.path("sorted.csv"), sorted).expect("a file");
    let tune = "tune --cases sorted.csv --device emu --budget 6 --seed 7 --records";
    bench.run(&format!("{tune} plain.sqlite")).ends(0);
    bench.run(&format!("{tune} fleet.sqlite --fleet {} --run one", worker(&server))).ends(0);
    let plain = trials(&bench, "plain.sqlite");
    assert_eq!(plain.len(), 4 * 6);
    assert_eq!(trials(&bench, "fleet.sqlite"), plain);
    std::fs::write(bench.path("sorted.csv"), "m,n,k,dtype\n96,96,64,f32\n").expect("a file");
    bench.run(&format!("{tune} host.sqlite --run one")).ends(0);
    let first: Vec<String> = plain.into_iter().filter(|trial| trial.contains("_m96_n96_k64_")).collect();
    assert_eq!(first.len(), 6);
    assert_eq!(trials(&bench, "host.sqlite"), first);
}

pub fn rows_that_cannot_be_true_are_refused_by_name() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let url = worker(&server);
    let tune = format!("tune --cases cases.csv --fleet {url} --run night --device emu --budget 1");
    bench.run(&tune).ends(0);
    // A plan is judged where the problem and the name are of one task.
    let line = server.sql("SELECT replace(line, '''', '''''') FROM tw.trial ORDER BY task LIMIT 1");
    let mut honest: serde_json::Value = serde_json::from_str(&line).expect("a line");
    let (task, name) = (
        server.number("SELECT min(task) FROM tw.trial"),
        server.sql("SELECT problem FROM tw.task WHERE id = (SELECT min(task) FROM tw.trial)"),
    );
    honest["name"] = name.clone().into();
    let insert = |seq: i64, change: &dyn Fn(&mut serde_json::Value)| {
        let mut line = honest.clone();
        change(&mut line);
        let text = line.to_string().replace('\'', "''");
        server.sql(&format!(
            "INSERT INTO tw.trial(journal, seq, task, epoch, line) VALUES ('evil\u{1b}[2J', {seq}, {task}, 1, '{text}')"
        ));
    };
    insert(1, &|line| line["trial"]["time_us"] = 1e-9.into());
    insert(2, &|line| line["trial"]["plan"] = "rm -rf /".into());
    insert(3, &|line| line["name"] = "another".into());
    insert(4, &|line| *line = "no object".into());
    insert(6, &|line| line["trial"]["time_us"] = 0.0.into());
    // It can be read, and is not legal: neither f32 nor the emulated GPU has wgmma.
    insert(7, &|line| line["trial"]["plan"] = "wgmma 128x256x64 on 2x1, tma+tma, 4 stages, cluster 2x1".into());
    server.sql("ALTER TABLE tw.trial DROP CONSTRAINT short");
    server.sql(&format!(
        "INSERT INTO tw.trial(journal, seq, task, epoch, line) VALUES ('evil', 5, {task}, 1, repeat('x', 10000000))"
    ));
    let ran = bench.run(&format!("fleet pull {url} --run night --records all.sqlite"));
    ran.ends(0);
    ran.says(&["7 refused"]);
    for part in [
        "trial 1 of journal evil",
        "not plausible",
        "trial 2 of",
        "plan",
        "trial 3 of",
        "trial 4 of",
        "trial 5 of journal evil",
        "10000000 bytes",
        "trial 6 of",
        "trial 7 of",
        "is not legal for",
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(!ran.err.contains('\u{1b}'), "{:?}", ran.err);
    assert_eq!(trials(&bench, "all.sqlite").len(), 4);
}

pub fn wrong_input_is_named_and_no_password_is_shown() {
    let bench = bench();
    for (line, code, part) in [
        ("tune --cases cases.csv --fleet postgresql://me:hunter2@db/x --run a", 2, "PGPASSFILE"),
        ("tune --cases cases.csv --fleet mysql://me:hunter2@db/x --run a", 2, "postgresql://ROLE@HOST"),
        ("tune --cases cases.csv --fleet postgresql://localhost:1/x", 2, "--fleet needs --run NAME"),
        ("tune --cases cases.csv --fleet postgresql://u@localhost:1/x --run a --device emu", 1, "cannot be reached"),
        ("tune --cases cases.csv --run a --part 1/2", 2, "--part"),
        ("tune --cases cases.csv --run a --total 5s", 2, "--total"),
        ("tune --cases cases.csv --device emu,emu --total 5s", 2, "--total"),
        ("tune --cases cases.csv --device emu,emu --svg x.svg", 2, "--svg"),
        ("tune --cases cases.csv --device emu,,emu", 2, "cuda:0,cuda:1"),
        ("fleet status postgresql://me@db/x?password=hunter2", 2, "PGPASSFILE"),
        ("fleet status postgresql://me:hunter2#x@db/y", 2, "PGPASSFILE"),
        ("fleet status postgresql://me:hunter2?x@db/y", 2, "PGPASSFILE"),
        ("fleet status postgresql://me@db/x?pass%77ord=hunter2", 2, "PGPASSFILE"),
        ("fleet status postgresql://me@db/x?sslmode=prefer", 2, "verify-full or disable"),
        ("fleet init postgresql://u@localhost:1/x --role Bad;Name", 2, "--role"),
    ] {
        let ran = bench.run(line);
        ran.ends(code);
        assert!(ran.err.contains(part), "{line}: {}", ran.err);
        assert!(!ran.err.contains("hunter2") && !ran.out.contains("hunter2"), "{line}: {}", ran.err);
    }
    // Help names the variable, and not its value.
    for line in ["tune -h", "tune --help", "fleet status --help", "fleet init --help"] {
        let out = bench.command(line).env("TILEWRIGHT_FLEET", "postgresql://me:hunter2@db/x").output().expect("it runs");
        let ran = Ran::new(line, out);
        ran.ends(0);
        assert!(ran.out.contains("TILEWRIGHT_FLEET") && !ran.out.contains("hunter2"), "{line}: {}", ran.out);
    }
    let Some(server) = server(&bench) else { return };
    let url = worker(&server);
    let unknown = bench.run(&format!("fleet status {url} --run day"));
    unknown.ends(2);
    assert!(unknown.err.contains("--run day: the server has no such run"), "{}", unknown.err);
    // With a password from a file, and none shown by ps: it is on no command line.
    server.sql(&format!("ALTER ROLE tilewright_worker PASSWORD '{PASSWORD}'"));
    let tcp = server.tcp("tilewright_worker");
    let refused = bench.run(&format!("fleet status {tcp}"));
    refused.ends(1);
    assert!(refused.err.contains("PGPASSFILE") || refused.err.contains("password"), "{}", refused.err);
    let file = bench.path("pass");
    std::fs::write(&file, format!("127.0.0.1:*:fleet:tilewright_worker:{PASSWORD}\n")).expect("a file");
    Command::new("chmod").arg("600").arg(&file).status().expect("chmod runs");
    let out = bench.command(&format!("fleet status {tcp} -vv")).env("PGPASSFILE", &file).output().expect("it runs");
    let ran = Ran::new("with a password file", out);
    ran.ends(0);
    assert!(!ran.err.contains(PASSWORD) && !ran.out.contains(PASSWORD));
    // The server has no certificate: a connection that must be verified is refused.
    let tls = bench.run(&format!("fleet status {tcp}?sslmode=verify-full"));
    assert_ne!(tls.code, Some(0), "{}", tls.out);
}

/// The guide's server, its four workers, the kill of one, and its report.
pub fn the_guide_for_a_cluster_runs() {
    if postgres::programs().is_none() {
        return missing::missing("PostgreSQL is not installed (Debian: postgresql)");
    }
    let bench = bench();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = crate::pages::Page::read(&root, "docs/guide/cluster.md");
    let blocks: Vec<String> = page.blocks().iter().filter(|b| b.info == "sh cluster").map(|b| b.text.clone()).collect();
    assert!(blocks.len() > 1, "the guide has no blocks for a cluster");
    // Shorter leases, where the killed worker held a shape.
    let text = blocks.join("\n").replace("--run night --device", "--run night --lease 2s --device");
    std::fs::write(bench.path("shapes.csv"), CASES).expect("a file");
    let script = format!("set -euo pipefail; trap 'pg_ctl -D db -m immediate stop || true' EXIT; {text}\n trap - EXIT");
    let mut command = postgres::as_ordinary_user("timeout", bench.folder.path());
    command.args(["120", "bash", "-c", &script]).current_dir(bench.folder.path());
    let tool = Path::new(env!("CARGO_BIN_EXE_tilewright")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{}:{path}", tool.display()))
        .env("HOME", bench.folder.path())
        .env("TILEWRIGHT_CACHE", bench.path("cache"));
    for variable in ["TILEWRIGHT_RECORDS", "TILEWRIGHT_FLEET", "PGPASSWORD"] {
        command.env_remove(variable);
    }
    let ran = Ran::new("the guide", command.output().expect("it runs"));
    ran.ends(0);
    ran.says(&["the tables are made", "0 open, 0 leased, 4 done, 0 failed", "trials read"]);
    assert!(bench.path("fleet.html").exists());
}

/// Runs a command on a terminal, perhaps with a fleet. `None` where nothing makes a terminal.
fn on_a_terminal(bench: &Bench, fleet: Option<&str>, command: &str) -> Option<Ran> {
    let line = format!("stty cols 150 rows 40 && {} {command} 2>&1", env!("CARGO_BIN_EXE_tilewright"));
    let mut terminal = Command::new("script");
    terminal.env("TILEWRIGHT_RECORDS", bench.path("records.sqlite")).env("TILEWRIGHT_CACHE", bench.path("cache"));
    // An address has characters that a shell reads.
    terminal.env_remove("TILEWRIGHT_FLEET").envs(fleet.map(|url| ("TILEWRIGHT_FLEET", url)));
    terminal.args(["-qec", &line, "/dev/null"]).current_dir(bench.folder.path()).stdin(Stdio::null());
    let ran = Ran::new(&line, terminal.output().ok()?);
    ran.ends(0);
    assert!(!ran.out.contains('\u{1}'), "{}", ran.out);
    Some(ran)
}

/// On a terminal each worker has a bar, and all problems together have one.
pub fn workers_of_a_terminal_have_bars() {
    let bench = bench();
    let Some(ran) = on_a_terminal(&bench, None, "tune --cases cases.csv --device emu,emu --budget 40") else {
        return missing::skipped("script (util-linux) makes a terminal");
    };
    // The bar of all problems, one of each worker with its problem, and lines that stay.
    ran.says(&[
        "of 4 problems, ",
        " % of the work",
        " left",
        "] emu ",
        "case ",
        "trials, ",
        "4 problems tuned by 2 workers",
        ", verified, ",
    ]);
}

/// The only worker of a run has both bars, on a server as well.
pub fn a_worker_of_a_fleet_has_the_bar_of_all_problems() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let command = "tune --cases cases.csv --device emu --budget 40 --run night";
    let Some(ran) = on_a_terminal(&bench, Some(&worker(&server)), command) else {
        return missing::skipped("script (util-linux) makes a terminal");
    };
    ran.says(&["of 4 problems, ", " % of the work", "] emu ", "trials, ", ", verified, "]);
}

pub fn failed_tasks_are_told_by_the_exit_code() {
    let bench = Bench::new();
    std::fs::write(bench.path("two.csv"), "m,n,k,dtype\n256,256,128,bf16\n96,96,64,f64\n").expect("a file");
    // No warpgroup multiplies f64.
    let ran = bench.run("tune --cases two.csv --device emu:sm_90a --run night --budget 1 --plan C_UNI2 --json");
    ran.ends(3);
    assert_eq!(ran.objects().len(), 1);
    assert!(ran.err.contains("no legal plan") && ran.err.contains("1 tasks failed"), "{}", ran.err);
}

/// Sources without a place, and records without room, fail no problem: they are of the host.
pub fn trouble_of_a_host_fails_no_problem() {
    let bench = bench();
    let ran = bench.run("tune --cases cases.csv --device emu,emu --budget 1 --json --out cases.csv");
    ran.ends(0);
    assert_eq!((problems(&ran).len(), ran.err.matches("its source is not written").count()), (4, 4), "{}", ran.err);
    let full = "CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
    let records = rusqlite::Connection::open(bench.path("records.sqlite")).expect("records");
    records.execute_batch(full).expect("a trigger");
    let ran = bench.run("tune --cases cases.csv --device emu,emu --budget 3 --run night");
    ran.ends(1);
    assert!(ran.err.contains("the disk is full"), "{}", ran.err);
    let tasks = rusqlite::Connection::open(bench.path("records.sqlite-tasks")).expect("tasks");
    let number = |sql: &str| tasks.query_row(sql, [], |row| row.get::<_, i64>(0)).expect(sql);
    assert_eq!((number("SELECT count(*) FROM task WHERE state = 'open'"), number("SELECT count(*) FROM failure")), (4, 0));
    // With room again the same run goes on.
    records.execute_batch("DROP TRIGGER full").expect("no trigger");
    bench.run("tune --cases cases.csv --device emu,emu --budget 3 --run night").ends(0);
    assert_eq!(number("SELECT count(*) FROM task WHERE state = 'done'"), 4);
}

/// One process at a time times on a device, whatever its folder for temporary files.
pub fn commands_take_turns_on_a_device_that_is_timed() {
    let bench = bench();
    let found = bench.run("devices --json");
    let device =
        found.objects().iter().find_map(|o| o["device"].as_str().filter(|id| id.starts_with("opencl")).map(String::from));
    let Some(device) = device else { return missing::missing("an OpenCL device") };
    let said = |name: &str| std::fs::read_to_string(bench.path(name)).unwrap_or_default();
    let start = |name: &str, line: &str| {
        let mut command = bench.command(&format!("{line} --device {device}"));
        let temporary = bench.path(&format!("temporary-{name}"));
        std::fs::create_dir(&temporary).expect("a folder");
        let told = std::fs::File::create(bench.path(name)).expect("a file");
        command.env("TMPDIR", temporary).stdout(Stdio::null()).stderr(told).spawn().expect("it starts")
    };
    let ends = |name: &str, mut child: Child, code: i32| {
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{}", said(name));
    };
    let product = "gemm --m 96 --n 80 --k 64";
    let alone = start("alone", &format!("tune {product} --budget 10m"));
    until("it searches", || bench.path("records.sqlite").exists() && !trials(&bench, "records.sqlite").is_empty());
    let timing = start("timing", &format!("bench {product} --repeats 1"));
    let worker = start("worker", &format!("tune {product} --run night --budget 1"));
    for name in ["timing", "worker"] {
        until("it waits", || said(name).contains("another process tunes on it; waiting"));
    }
    signal("TERM", alone.id());
    ends("alone", alone, 130);
    ends("timing", timing, 0);
    ends("worker", worker, 0);
}

/// Reasons are texts of workers: they are shown without control characters, and a page escapes them.
pub fn failed_tasks_are_shown_with_their_reasons() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let url = worker(&server);
    bench.run(&format!("tune --cases cases.csv --fleet {url} --run night --device emu --budget 1")).ends(0);
    let hostile = "U&'no <b>plan</b>\\001b[2J\\009b2J\\202e & more'";
    server.sql(&format!("UPDATE tw.task SET state = 'failed', reason = {hostile} WHERE id = (SELECT min(id) FROM tw.task)"));
    let problem = server.sql("SELECT problem FROM tw.task WHERE state = 'failed'");
    let shown = "no <b>plan</b>[2J2J & more";
    let ran = bench.run(&format!("fleet status {url} --run night"));
    ran.ends(0);
    ran.says(&["3 done, 1 failed", &format!("  failed in run night: {problem}: {shown}\n")]);
    let ran = bench.run(&format!("fleet status {url} --json"));
    ran.ends(0);
    let failed = &ran.objects()[0]["failed"];
    assert_eq!(failed.as_array().map(Vec::len), Some(1), "{failed}");
    let told = ["run", "problem", "reason"].map(|name| failed[0][name].as_str().expect("a text").to_string());
    assert_eq!(told, ["night", &problem, shown]);
    bench.run(&format!("fleet status {url} --html page.html")).ends(0);
    let page = std::fs::read_to_string(bench.path("page.html")).expect("a page");
    assert!(page.contains("<th>reason") && page.contains("<td>no &lt;b&gt;plan&lt;/b&gt;[2J2J &amp; more</tr>"), "{page}");
}
