//! This test program as the worker of its own searches.

use crate::missing;
use std::path::Path;
use std::process::{Command, Output};
use tilewright::{
    Backend, Budget, Cache, Context, DeviceOptions, Gemm, Options, RecordsAt, Scalar, Trials, compile_worker_main, exit_now,
    worker_main,
};

/// What makes a worker of a test program with this module.
pub const ARGUMENTS: [&str; 3] = ["worker::is_a_worker", "--exact", "--nocapture"];
/// Names a file that a worker of [`plays`] makes.
const MARK: &str = "TILEWRIGHT_TEST_WORKER_MARK";

/// A worker where the program was started as one; else there is nothing to test.
pub fn is_a_worker() {
    if std::env::var_os("TILEWRIGHT_COMPILE_ANSWERS").is_some() {
        exit_now(compile_worker_main());
    }
}

/// The program in the place of one that tunes: with `own-worker` it calls `worker_main` first, with `no-worker` it does not.
pub fn plays() {
    let of = std::env::args().nth(1).unwrap_or_default();
    if !["own-worker", "no-worker", "compile-worker"].contains(&of.as_str()) {
        return;
    }
    if of == "compile-worker" {
        std::fs::write(std::env::var_os(MARK).expect("a file"), "").expect("a file");
    }
    if of != "no-worker" {
        worker_main();
    }
    let device_options = DeviceOptions { cache: Cache::disabled(), ..DeviceOptions::default() };
    let (device, records) = (Some("opencl:0".into()), RecordsAt::Memory);
    let options = Options { device, device_options, records, trials: Trials::Worker, ..Options::default() };
    let context = Context::with(options).expect("the device opens");
    let operation = context.gemm(Gemm::new(Scalar::F32, 8, 8, 8)).expect("a problem");
    match operation.tune(Budget::trials(2)) {
        Ok(tuned) => println!("verified: {}", tuned.verified),
        Err(e) => println!("{e}"),
    }
    exit_now(0);
}

pub fn a_program_that_calls_worker_main_is_its_own_worker() {
    if !tilewright::list_devices().iter().any(|l| l.device.is_ok() && l.backend == Backend::OpenCl) {
        return missing::missing("an OpenCL device");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("mark");
    // No command `tilewright` is in this PATH, and none is beside this program.
    let run = |of: &str, mark: &Path| -> Output {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.arg(of).env(MARK, mark).env("PATH", "/usr/bin:/bin").env_remove("TILEWRIGHT_WORKER");
        command.output().expect("it starts")
    };
    let said = |output: &Output| [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
    let own = said(&run("own-worker", &mark));
    assert!(own.contains("verified: true"), "{own}");
    assert!(mark.is_file(), "the search started another worker, or none");
    std::fs::remove_file(&mark).expect("the mark");
    let without = said(&run("no-worker", &mark));
    assert!(without.contains("there is no command `tilewright`") && without.contains("worker_main()"), "{without}");
    assert!(!mark.exists());
}
