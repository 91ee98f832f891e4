//! Nodes of a fleet that end by a signal, are watched, withdrawn and killed, and all devices of a host.

use crate::common::{Ran, missing};
use crate::fleet::postgres::PASSWORD;
use crate::fleet::{CASES, bench, children, server, signal, trials, until, worker};
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// SIGTERM, as of Slurm and Kubernetes: the task is open at once and all trials are on the server. No list of processes shows the password.
pub fn a_node_that_is_told_to_end_gives_its_task_back() {
    if !Path::new("/proc/self/task").exists() {
        return missing::skipped("children of a process are read from /proc");
    }
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    server.sql(&format!("ALTER ROLE tilewright_worker PASSWORD '{PASSWORD}'"));
    let url = server.tcp("tilewright_worker");
    let tune = format!("tune --cases cases.csv --fleet {url} --run night --device emu,emu --budget 10m");
    let mut command = bench.command(&tune);
    command.env("PGPASSWORD", PASSWORD).stdout(Stdio::piped()).stderr(Stdio::piped());
    let parent = command.spawn().expect("it starts");
    until("two problems are searched", || server.number("SELECT count(DISTINCT task) FROM tw.trial") == 2);
    let workers = children(parent.id());
    for id in workers.iter().chain([&parent.id()]) {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(line.contains("--run night") && !line.contains(PASSWORD), "{line}");
    }
    assert_eq!(workers.len(), 2);
    signal("TERM", parent.id());
    let out = Ran::new(&tune, parent.wait_with_output().expect("it ends"));
    out.ends(130);
    assert!(!out.err.contains(PASSWORD) && !out.out.contains(PASSWORD), "{}", out.err);
    // A lease that lapses leaves its task as it is until the next claim: the workers gave theirs back.
    assert_eq!(server.sql("SELECT state, count(*), bool_and(spent > 0) FROM tw.task WHERE epoch > 0 GROUP BY state"), "open|2|t");
    bench.run(&format!("fleet pull {} --run night --records pulled.sqlite", worker(&server))).ends(0);
    let own = trials(&bench, "records.sqlite");
    assert!(!own.is_empty());
    assert_eq!(trials(&bench, "pulled.sqlite"), own);
}

/// What a status says while a problem is searched, and that the search stops once the run is withdrawn.
pub fn a_live_run_is_seen_and_withdrawn() {
    let bench = bench();
    let Some(server) = server(&bench) else { return };
    let tune = format!("tune --cases cases.csv --fleet {} --run night --device emu --budget 10m --lease 2s", worker(&server));
    let node = bench.command(&tune).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until("a problem is searched", || server.number("SELECT count(*) FROM tw.trial") > 0);
    // One problem took ten seconds: two and a half are left for the only worker.
    server.sql(
        "UPDATE tw.task SET state = 'done', ended = clock_timestamp(), begun = clock_timestamp() - interval '10 s' \
         WHERE id = (SELECT min(id) FROM tw.task WHERE state = 'open')",
    );
    let ran = bench.run(&format!("fleet status {} --run night --json", worker(&server)));
    ran.ends(0);
    let status = &ran.objects()[0];
    let (class, seen) = (&status["classes"][0], &status["workers"][0]);
    assert_eq!(["open", "leased", "done"].map(|state| class[state].as_i64()), [Some(2), Some(1), Some(1)], "{status}");
    assert!(class["oldest_lease"].as_f64().is_some_and(|held| held > 0.0 && held < 120.0), "{status}");
    assert!(class["seconds_left"].as_f64().is_some_and(|left| (left - 25.0).abs() < 0.1), "{status}");
    assert!(class["trials_per_minute"].as_i64().is_some_and(|trials| trials > 0), "{status}");
    let held = server.sql("SELECT w.host, k.problem FROM tw.task k JOIN tw.worker w ON w.id = k.holder");
    let (host, problem) = held.split_once('|').expect("a holder");
    assert_eq!((seen["host"].as_str(), seen["problem"].as_str()), (Some(host), Some(problem)), "{status}");
    assert!(seen["seen"].as_f64().is_some_and(|seen| seen < 60.0), "{status}");
    let ran = bench.run(&format!("fleet status {}", worker(&server)));
    ran.ends(0);
    ran.says(&[
        "2 open, 1 leased, 1 done",
        "oldest lease ",
        ", 25 s left",
        &format!("  {host} "),
        &format!(": {problem} (seen "),
    ]);

    let refused = bench.run(&format!("fleet withdraw {} --run night", worker(&server)));
    refused.ends(1);
    assert!(refused.err.contains("permission denied"), "{}", refused.err);
    let ran = bench.run(&format!("fleet withdraw {} --run night", server.socket("owner")));
    ran.ends(0);
    ran.says(&["run night ends; 3 problems are left untuned"]);
    // The search stops at its next renewal.
    Ran::new(&tune, node.wait_with_output().expect("it ends")).ends(0);
    bench
        .run(&format!("fleet status {} --run night", worker(&server)))
        .says(&["0 open, 0 leased, 1 done, 0 failed, 3 withdrawn"]);
    let late = bench.run(&tune);
    late.ends(2);
    assert!(late.err.contains("--run night: it was withdrawn"), "{}", late.err);
}

/// A variable of PoCL sets its number of devices.
pub fn all_devices_of_a_host_share_the_problems() {
    let bench = bench();
    let run = |line: &str| {
        let mut command = bench.command(line);
        command.env("POCL_DEVICES", "basic basic").env("CUDA_VISIBLE_DEVICES", "").env("HIP_VISIBLE_DEVICES", "");
        Ran::new(line, command.output().expect("it runs"))
    };
    let devices = run("devices --json").objects();
    let devices: Vec<_> = devices.iter().filter(|o| o["backend"] == "opencl" && o["device"].is_string()).collect();
    let found = devices.len();
    match &devices[..] {
        [] => return missing::missing("an OpenCL device"),
        // PoCL has as many as the variable says; another implementation has what the host has.
        [one] if one["platform"].to_string().contains("Portable Computing Language") => {
            return missing::missing("a second device of PoCL");
        }
        [_] => return missing::skipped("PoCL with two devices"),
        _ => {}
    }
    let ran = run("tune --cases cases.csv --device all --budget 1 --json");
    ran.ends(0);
    assert_eq!(ran.objects().len(), 4, "{}", ran.out);
    assert!(ran.objects().iter().all(|o| o["verified"] == true), "{}", ran.out);
    assert!(ran.err.contains(&format!("4 problems tuned by {found} workers")), "{}", ran.err);
}

/// Delays, on the server of a test, the mark of the first plan that a careful holder marks. The test kills the holder meanwhile.
const DEADLY: &str = "
CREATE TABLE deadly(plan text);
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
  IF NEW.plan <> '' THEN
    INSERT INTO deadly SELECT NEW.plan WHERE NOT EXISTS (SELECT FROM deadly);
    IF EXISTS (SELECT FROM deadly d WHERE d.plan = NEW.plan) THEN PERFORM pg_sleep(2); END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER late BEFORE INSERT ON tw.mark FOR EACH ROW EXECUTE FUNCTION late();";

/// Each holder of a problem is killed with its parent, as by a host that goes down: the first anywhere, two more at one plan.
pub fn a_plan_that_takes_nodes_down_is_recorded_as_hung() {
    let bench = bench();
    std::fs::write(bench.path("one.csv"), CASES.lines().take(2).collect::<Vec<_>>().join("\n")).expect("a file");
    let Some(server) = server(&bench) else { return };
    server.sql(DEADLY);
    let tune = |node: &str| {
        let url = worker(&server);
        let line =
            format!("tune --cases one.csv --fleet {url} --run night --device emu --budget 8 --lease 1s --records {node}.sqlite");
        let mut command = bench.command(&line);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    };
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    for holder in 1..=3 {
        let mut node = tune(&format!("node{holder}")).spawn().expect("it starts");
        let state = format!("SELECT count(*) FROM tw.task WHERE state = 'leased' AND epoch = {holder}");
        until("it has the task", || server.number(&state) == 1);
        if holder > 1 {
            until("it is at the plan", || server.number(sleeping) == 1);
        }
        let group = format!("-{}", node.id());
        let killed = Command::new("kill").args(["-KILL", "--", &group]).status().expect("kill runs");
        assert!(killed.success());
        node.wait().expect("it is gone");
        until("its mark is stored", || server.number("SELECT count(DISTINCT epoch) FROM tw.mark") == holder - 1);
    }
    let plan = server.sql("SELECT plan FROM deadly");
    let last = tune("last").output().expect("it runs");
    Ran::new("the last holder", last).ends(0);
    assert_eq!(server.sql("SELECT state, lapses FROM tw.task"), "done|3");
    // It did not run the plan, and noted why.
    let marked = server.sql("SELECT epoch FROM tw.mark m JOIN deadly d ON d.plan = m.plan ORDER BY 1");
    assert_eq!(marked, "2\n3");
    let listed: BTreeSet<String> = trials(&bench, "last.sqlite").into_iter().collect();
    let of_plan: Vec<&String> = listed.iter().filter(|trial| trial.contains(&format!("\"{plan}\""))).collect();
    assert!(of_plan.len() == 1 && of_plan[0].ends_with("\"hung\""), "{plan}: {listed:?}");
    assert!(listed.len() > 1);
}
