//! This test program as the worker of its own searches.

/// What makes a worker of a test program with this module.
pub const ARGUMENTS: [&str; 3] = ["worker::is_a_worker", "--exact", "--nocapture"];

/// A worker where the program was started as one; else there is nothing to test.
pub fn is_a_worker() {
    if std::env::var_os("TILEWRIGHT_COMPILE_ANSWERS").is_some() {
        tilewright::exit_now(tilewright::compile_worker_main());
    }
}
