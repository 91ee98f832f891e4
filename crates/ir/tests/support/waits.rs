//! A harness for tests that wait more than they compute: more of them run at once than there are cores. Test files of other crates include
//! this file by its path.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Cores of this machine.
#[allow(dead_code, reason = "tests that only wait run all at once")]
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A test with its name.
pub type Test = (&'static str, fn());

/// Tests by their modules, long ones first. The compiler warns of one that is missing in the list.
#[allow(unused_macros, reason = "tests of one file need no modules")]
macro_rules! tests {
    ($($(#[$where:meta])? $module:ident: $($test:ident)*;)*) => {{
        let mut all: Vec<crate::waits::Test> = Vec::new();
        $($(#[$where])? all.extend([$((concat!(stringify!($module), "::", stringify!($test)), $module::$test as fn())),*]);)*
        all
    }};
}

/// Runs the tests that the command line asks for, so many at once, and ends the process with an error where one failed.
///
/// As with the usual harness, arguments that are no options choose tests by a part of their name, with `--exact` by the whole, and `--skip` leaves
/// tests out. `--list` lists tests.
pub fn run(tests: &[Test], at_once: usize) {
    let (mut flags, mut wanted, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--skip" => skipped.extend(args.next()),
            "--test-threads" | "--format" | "--color" => drop(args.next()),
            option if option.starts_with('-') => flags.push(arg),
            _ => wanted.push(arg),
        }
    }
    let has = |option: &str| flags.iter().any(|flag| flag == option);
    let is = |part: &String, name: &str| if has("--exact") { part == name } else { name.contains(part.as_str()) };
    let chosen = tests.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|part| is(part, name)));
    let chosen = chosen.filter(|(name, _)| !skipped.iter().any(|part| is(part, name)));
    // None of these tests is ignored.
    let chosen: Vec<Test> = chosen.filter(|_| !has("--ignored")).copied().collect();
    if has("--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    println!("\nrunning {} tests", chosen.len());
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once.min(chosen.len()) {
            scope.spawn(|| {
                while let Some((name, test)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // A thread of its own: messages name it.
                    let start = Instant::now();
                    let ended = thread::Builder::new().name((*name).into()).spawn(*test).expect("a thread").join();
                    let _ = writeln!(
                        std::io::stdout(),
                        "test {name} ... {} ({:.1} s)",
                        if ended.is_ok() { "ok" } else { "FAILED" },
                        start.elapsed().as_secs_f64()
                    );
                    if ended.is_err() {
                        failed.lock().expect("no thread panics with it").push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no thread panics with it");
    let (passed, said) = (chosen.len() - failed.len(), if failed.is_empty() { "ok" } else { "FAILED" });
    println!("\ntest result: {said}. {passed} passed; {} failed", failed.len());
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
        std::process::exit(101);
    }
}
