//! Interrupted tuning: killed or stopped, it goes on from the recorded trials.

#![cfg(unix)]

use crate::common;
use common::Bench;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const TUNE: &str = "tune gemm --m 96 --n 80 --k 64 --device emu --json";

/// Lines of trials; the two before them are a heading.
fn trials(shown: &str) -> impl Iterator<Item = &str> {
    shown.lines().skip(2)
}

fn recorded(bench: &Bench) -> usize {
    let shown = bench.run("records show");
    if shown.code == Some(0) { trials(&shown.out).count() } else { 0 }
}

/// Starts a search that does not end before it is stopped; its messages go to a file.
fn start(bench: &Bench) -> Child {
    let messages = File::create(messages(bench)).expect("a file");
    bench.command(&format!("{TUNE} --budget 10m")).stdout(Stdio::null()).stderr(messages).spawn().expect("it starts")
}

fn messages(bench: &Bench) -> PathBuf {
    bench.folder.path().join("messages")
}

/// Waits until a running search has recorded so many trials.
fn wait_for(bench: &Bench, child: &mut Child, trials: usize) {
    let start = Instant::now();
    let said = || std::fs::read_to_string(messages(bench)).unwrap_or_default();
    while recorded(bench) < trials {
        let ended = child.try_wait().expect("it can be asked");
        assert!(ended.is_none(), "the search ended, {ended:?}: {}", said());
        assert!(start.elapsed() < Duration::from_secs(120), "no {trials} trials in two minutes: {}", said());
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn killed_tuning_goes_on_from_its_trials() {
    let bench = Bench::new();
    let mut child = start(&bench);
    wait_for(&bench, &mut child, 5);
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
    let mut plans: Vec<&str> = trials(&shown).filter_map(|l| l.split_whitespace().find(|word| word.starts_with("A_"))).collect();
    let all = plans.len();
    plans.sort_unstable();
    plans.dedup();
    assert_eq!(plans.len(), all);
}

fn signal(name: &str, id: u32) {
    let sent = std::process::Command::new("kill").args([format!("-{name}"), id.to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// True if this process, and so what it starts, ignores the signal with this number.
fn is_ignored(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

/// Told twice, by whatever signal, the command ends at once and blames no candidate.
pub fn told_twice_to_end_it_excludes_nothing() {
    for (name, number) in [("HUP", 1), ("INT", 2), ("TERM", 15)] {
        // Under nohup a search goes on when its terminal is gone.
        if is_ignored(number) {
            println!("SKIPPED {name}: the tests themselves were started with it ignored");
            continue;
        }
        let bench = Bench::new();
        for _ in 0..2 {
            let before = recorded(&bench);
            let mut child = start(&bench);
            wait_for(&bench, &mut child, before + 5);
            signal(name, child.id());
            signal(name, child.id());
            assert_eq!(child.wait().expect("it ends").code(), Some(130), "{name}");
        }
        let shown = bench.run("records show").out;
        assert!(!shown.contains("  hung "), "{name}: {shown}");
    }
}

/// What took the process down is known afterwards; a kill says nothing.
pub fn a_crash_is_noted_and_a_kill_is_not() {
    for (name, crashed) in [("SEGV", true), ("KILL", false)] {
        let bench = Bench::new();
        let mut child = start(&bench);
        wait_for(&bench, &mut child, 3);
        signal(name, child.id());
        assert_eq!(child.wait().expect("it ends").code(), None, "{name}");
        let files = std::fs::read_dir(bench.folder.path()).expect("a folder").map(|e| e.expect("an entry").path());
        let files: Vec<_> = files.filter(|p| p.to_string_lossy().contains("-alive-")).collect();
        assert_eq!(files.len(), 1, "{name}: {files:?}");
        let noted = std::fs::read(&files[0]).expect("it can be read").ends_with(b"crashed\n");
        assert_eq!(noted, crashed, "{name}");
        bench.run(&format!("{TUNE} --budget 1")).ends(0);
        assert!(!files[0].exists(), "{name}");
    }
}

pub fn export_ends_quietly_when_its_reader_has_gone() {
    let bench = Bench::new();
    bench.run(&format!("{TUNE} --budget 20")).ends(0);
    // Gone before the command starts, which is quick to write all there is.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = bench.command("records export").stdout(writer).stderr(Stdio::piped()).spawn().expect("it starts");
    let ran = common::Ran::new("records export", child.wait_with_output().expect("it ends"));
    ran.ends(0);
    assert_eq!(ran.err, "");
}

pub fn an_interrupt_keeps_what_was_found() {
    let bench = Bench::new();
    let ran = interrupted(&bench, "INT", TUNE, 5);
    ran.ends(130);
    let o = &ran.objects()[0];
    assert_eq!(o["verified"], true);
    assert_eq!(o["ended"]["why"], "cancelled");
    assert!(std::path::Path::new(o["source"].as_str().expect("a source")).exists());
}

/// PoCL's compiler catches signals itself.
fn a_signal_ends_a_search_on_opencl(name: &str) {
    let tune = TUNE.replace("emu", "opencl:0");
    let bench = Bench::new();
    let opened = bench.run(&format!("{tune} --budget 1"));
    if opened.code == Some(1) {
        assert!(opened.err.contains("is not available"), "{}", opened.err);
        return common::missing::missing(&opened.err);
    }
    // PoCL takes seconds for a trial.
    interrupted(&bench, name, &tune, 1).ends(130);
}

pub fn an_interrupt_ends_a_search_on_opencl() {
    a_signal_ends_a_search_on_opencl("INT");
}

pub fn a_termination_ends_a_search_on_opencl() {
    a_signal_ends_a_search_on_opencl("TERM");
}

/// A search that is sent this signal after some trials.
fn interrupted(bench: &Bench, name: &str, tune: &str, trials: usize) -> common::Ran {
    let before = recorded(bench);
    let mut child =
        bench.command(&format!("{tune} --budget 10m")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for(bench, &mut child, before + trials);
    signal(name, child.id());
    common::Ran::new(tune, child.wait_with_output().expect("it ends"))
}
