//! This test program as the worker of its own searches.

use tilewright::{Trials, WorkerProgram};

/// What makes a worker of a test program with this module.
pub const ARGUMENTS: [&str; 3] = ["worker::is_a_worker", "--exact", "--nocapture"];

/// Trials in workers of this program.
#[allow(dead_code, reason = "some add arguments")]
pub fn trials() -> Trials {
    let this = std::env::current_exe().expect("this test");
    Trials::WorkerOf(WorkerProgram::new(this, ARGUMENTS.map(Into::into)))
}

/// A worker where the program was started as one; else there is nothing to test.
#[test]
fn is_a_worker() {
    if std::env::var_os("TILEWRIGHT_COMPILE_ANSWERS").is_some() {
        tilewright::leave(tilewright::compile_worker_main());
    }
}
