//! A search on a device whose candidates run in worker processes of this program, which crash and hang.

#![cfg(unix)]

use crate::missing;
use crate::worker;
use std::path::Path;
use std::time::Duration;
use tilewright::{
    Backend, Budget, Cache, CacheState, Context, Depth, DeviceError, DeviceOptions, Error, Gemm, Options, Order, Origin,
    RecordsAt, Scalar, TimeKind, Trial, Trials, WorkerProgram,
};
use tilewright_tune::ProblemKey;
use tilewright_tune::records::{Filter, State};
use tilewright_tune::search::device_key;

/// Gives the first worker that the search starts one mishap, the second another; compile workers, which inherit it, and later workers none.
const MISHAPS: &str = r#"
if [ -n "$TILEWRIGHT_WORKER_MISHAP" ]; then :
elif mkdir "$0/abort" 2> /dev/null; then export TILEWRIGHT_WORKER_MISHAP=abort:2
elif mkdir "$0/hang" 2> /dev/null; then export TILEWRIGHT_WORKER_MISHAP=hang:2
fi
exec "$@""#;

fn opencl(records: &Path, trials: Trials) -> Option<Context> {
    if !tilewright::list_devices().iter().any(|l| l.device.is_ok() && l.backend == Backend::OpenCl) {
        missing::missing("an OpenCL device");
        return None;
    }
    let (deadline, compile_limit) = (Duration::from_secs(2), Duration::from_secs(8));
    let device_options = DeviceOptions { cache: Cache::disabled(), deadline, compile_limit, ..DeviceOptions::default() };
    let (device, records) = (Some("opencl:0".into()), RecordsAt::File(records.into()));
    Some(Context::with(Options { device, device_options, records, trials, ..Options::default() }).expect("the device opens"))
}

pub fn a_search_outlives_workers_that_crash_and_hang() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut words = vec!["-c".into(), MISHAPS.into(), folder.path().into()];
    words.push(std::env::current_exe().expect("this test").into());
    words.extend(worker::ARGUMENTS.map(Into::into));
    let records = folder.path().join("records.sqlite");
    let Some(context) = opencl(&records, Trials::WorkerOf(WorkerProgram::new("sh", words))) else { return };

    let (m, n, k) = (16, 12, 8);
    let a: Vec<f32> = (0..m * k).map(|at| (at % 7) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|at| (at % 5) as f32 - 2.0).collect();
    let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    let operation = context.gemm(Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).order(Order::Row)).expect("a problem");
    let tuned = operation.tune(Budget::trials(6)).expect("a plan");
    for mishap in ["abort", "hang"] {
        assert!(folder.path().join(mishap).is_dir(), "no worker was to {mishap}");
    }
    assert!(tuned.verified, "{tuned:?}");
    assert_eq!(operation.choice().expect("a plan"), (tuned.plan, Origin::Tuned));
    let hung = context.records().list(&Filter { state: Some(State::Hung), ..Filter::default() }).expect("records");
    let reasons: Vec<String> = hung.iter().map(|record| record.trial.reason.clone().unwrap_or_default()).collect();
    assert_eq!(hung.len(), 2, "{reasons:?}");
    for how in ["crashed", "did not end"] {
        assert!(reasons.iter().any(|reason| reason.contains(how)), "{reasons:?}");
    }

    // The memory and the device of this process are as they were.
    assert_eq!((da.download().expect("data"), db.download().expect("data")), (a.clone(), b.clone()));
    let mut c = context.alloc::<f32>((m * n) as u64).expect("memory");
    operation.run(&da, &db, &mut c, 1.0, 0.0).expect("it runs");
    let product: Vec<f32> = (0..m * n).map(|at| (0..k).map(|l| a[at / n * k + l] * b[l * n + at % n]).sum()).collect();
    assert_eq!(c.download().expect("the result"), product);
}

/// The first worker ends when it launches for the first time; later ones do not.
const CRASH: &str = r#"
if [ -z "$TILEWRIGHT_WORKER_MISHAP" ] && mkdir "$0/crash" 2> /dev/null; then export TILEWRIGHT_WORKER_MISHAP=abort-launch:1; fi
exec "$@""#;

/// A plan that takes its worker down in its look is never run in this process; another takes its place, and the records know both.
pub fn a_look_that_crashes_costs_a_worker_and_a_plan() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut words = vec!["-c".into(), CRASH.into(), folder.path().into()];
    words.push(std::env::current_exe().expect("this test").into());
    words.extend(worker::ARGUMENTS.map(Into::into));
    let records = folder.path().join("records.sqlite");
    let Some(context) = opencl(&records, Trials::WorkerOf(WorkerProgram::new("sh", words))) else { return };
    let operation = context.gemm(Gemm::new(Scalar::F32, 8, 8, 8).order(Order::Row)).expect("a problem");
    let first = operation.choice().expect("a plan").0;
    let prepared = operation.prepare().expect("another plan");
    assert!(folder.path().join("crash").is_dir(), "no worker was to crash");
    assert_ne!(prepared.plan(), first);
    let failed = operation.failed_looks();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].plan == first.to_string() && failed[0].reason.contains("crashed"), "{failed:?}");
    let looks = context.records().looks(&Filter::default()).expect("records");
    let state = |plan: String| looks.iter().find(|l| l.look.plan == plan).map(|l| l.look.state);
    assert_eq!([state(first.to_string()), state(prepared.plan().to_string())], [Some(State::Hung), Some(State::Ok)]);
    let (a, b) = (context.upload(&[1.0f32; 64]).expect("memory"), context.upload(&[2.0f32; 64]).expect("memory"));
    let mut c = context.alloc::<f32>(64).expect("memory");
    operation.run(&a, &b, &mut c, 1.0, 0.0).expect("it runs");
    assert_eq!(c.download().expect("the result"), [16.0; 64]);
}

/// Tuning is refused with the remedy, and so is a plan that nobody has looked at, unless the caller lets both run in this process.
pub fn without_a_worker_nothing_is_tuned_and_no_look_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = folder.path().join("records.sqlite");
    let Some(context) = opencl(&records, Trials::WorkerOf(WorkerProgram::new("/no/such/program", []))) else { return };
    let operation = context.gemm(Gemm::new(Scalar::F32, 8, 8, 8).order(Order::Row)).expect("a problem");
    // Another version of this program recorded it: the plan is looked at again where there is a worker.
    let best = operation.candidates(1)[0].plan.to_string();
    let old = Trial { verified: Some(Depth::Thorough), ..Trial::timed(&best, 5.0, TimeKind::Measured) };
    let device = device_key(context.info(), CacheState::default());
    context.records().add(&ProblemKey::of(operation.space()), "gemm", &device, "older", &old).expect("it is recorded");
    assert!(!context.records().candidates(&ProblemKey::of(operation.space()), &device, 1).expect("records").is_empty());
    let refused = operation.tune(Budget::trials(1)).expect_err("no worker");
    assert!(refused.to_string().contains("/no/such/program") && refused.to_string().contains("TILEWRIGHT_WORKER"), "{refused}");
    assert!(!matches!(refused, Error::Device(DeviceError::WorkerLost { .. })), "{refused}");
    assert_eq!(operation.choice().expect("a plan").1, Origin::Picked);
    let looks = || context.records().looks(&Filter::default()).expect("records");
    let refused = operation.prepare().expect_err("no worker").to_string();
    for part in ["/no/such/program", "TILEWRIGHT_WORKER", "TW_TRIALS_IN_PROCESS"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!((looks(), operation.failed_looks()), (Vec::new(), Vec::new()));
    context.set_trials(Trials::InProcess);
    let plan = operation.prepare().expect("it compiles").plan();
    let looks = looks();
    assert!(looks.iter().any(|l| l.look.plan == plan.to_string() && l.look.passed()), "{looks:?}");
}
