//! What a test does where an optional tool is missing: one visible line, or a failure where tools are required. Test files of
//! other crates include this file by its path.
#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::RefCell;
use std::io::Write;

thread_local! {
    /// What this test (each has a thread) has said last.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Says that the test is skipped because this is missing. With `TILEWRIGHT_REQUIRE_TOOLS=1` the test fails instead.
pub fn missing(what: &str) {
    assert!(std::env::var_os("TILEWRIGHT_REQUIRE_TOOLS").is_none_or(|v| v != "1"), "required and missing: {what}");
    skipped(what);
}

/// Says once that the test, or a part of it, is skipped: hardware and libraries that nobody can be required to have.
pub fn skipped(why: &str) {
    let why = why.lines().next().unwrap_or_default();
    if SAID.replace(why.into()) == why {
        return;
    }
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {why}\n", thread.name().unwrap_or("main"));
    // Not `eprintln`: the test harness keeps what that prints. One write: tests that run beside this one print between two.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
