//! Interrupted tuning: killed or stopped, it goes on from the recorded trials.

#![cfg(unix)]

mod common;

use common::Bench;
use std::process::Stdio;
use std::time::{Duration, Instant};

const TUNE: &str = "tune gemm --m 96 --n 80 --k 64 --device emu --json";

fn recorded(bench: &Bench) -> usize {
    let shown = bench.run("records show");
    if shown.code == Some(0) { shown.out.lines().count() } else { 0 }
}

/// Waits until so many trials are recorded.
fn wait_for(bench: &Bench, trials: usize) {
    let start = Instant::now();
    while recorded(bench) < trials {
        assert!(start.elapsed() < Duration::from_secs(120), "no {trials} trials in two minutes");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn killed_tuning_goes_on_from_its_trials() {
    let bench = Bench::new();
    let mut child =
        bench.command(&format!("{TUNE} --budget 10m")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    wait_for(&bench, 5);
    child.kill().expect("it can be killed");
    child.wait().expect("it is gone");
    let before = recorded(&bench);
    let ran = bench.run(&format!("{TUNE} --budget 3"));
    ran.ends(0);
    let o = &ran.objects()[0];
    // The trial that ran when the process was killed may have been recorded as well.
    assert!(o["resumed"].as_u64().is_some_and(|r| r >= before as u64), "{o} after {before}");
    assert_eq!(o["trials"], 3);
    assert_eq!(o["verified"], true);
    assert!(recorded(&bench) >= before + 3);
    // No plan is tried twice.
    let shown = bench.run("records show").out;
    let mut plans: Vec<&str> = shown.lines().filter_map(|l| l.rsplit("  ").next()).collect();
    let all = plans.len();
    plans.sort_unstable();
    plans.dedup();
    assert_eq!(plans.len(), all);
}

#[test]
fn an_interrupt_keeps_what_was_found() {
    let bench = Bench::new();
    let child =
        bench.command(&format!("{TUNE} --budget 10m")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for(&bench, 5);
    let interrupt = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(interrupt.success());
    let ran = common::Ran::new(TUNE, child.wait_with_output().expect("it ends"));
    ran.ends(130);
    let o = &ran.objects()[0];
    assert_eq!(o["verified"], true);
    assert_eq!(o["ended"]["why"], "cancelled");
    assert!(std::path::Path::new(o["source"].as_str().expect("a source")).exists());
}
