//! Two devices in one process: each has memory, streams, kernels and records of its own. Two that the emulator plays, two of OpenCL's on this
//! processor, two of a CUDA driver that only writes down what it is told, and two GPUs where there are two.

use crate::missing;
use crate::stand_in;
use std::path::Path;
use std::process::Command;
use tilewright::{
    Addresses, Backend, Budget, Context, Error, Factors, Gemm, Options, Order, Origin, Prepared, RecordsAt, Role, Scalar, Stream,
    Trials, WorkerProgram,
};

const SIZES: [usize; 3] = [33, 20, 17];

fn gemm() -> tilewright::GemmBuilder {
    let [m, n, k] = SIZES.map(|size| size as u64);
    Gemm::new(Scalar::F32, m, n, k).order(Order::Row)
}

/// Small whole numbers: sums of their products are exact.
fn numbers(count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * step) % 7) as f32 - 3.0).collect()
}

fn product(a: &[f32], b: &[f32]) -> Vec<f32> {
    let [m, n, k] = SIZES;
    (0..m * n).map(|at| (0..k).map(|l| a[at / n * k + l] * b[l * n + at % n]).sum()).collect()
}

fn opened(device: &str, records: &Path) -> Context {
    let (device_name, records) = (Some(device.into()), RecordsAt::File(records.into()));
    let options = Options { device: device_name, records, trials: Trials::InProcess, ..Options::default() };
    Context::with(options).unwrap_or_else(|e| panic!("{device}: {e}"))
}

/// All that must hold of two devices that run what they are told.
fn both(devices: [&str; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let records = folder.path().join("records.sqlite");
    let contexts = devices.map(|device| opened(device, &records));
    assert_eq!(contexts.each_ref().map(|context| context.info().id.as_str()), devices);
    each_computes_at_once(&contexts);
    memory_of_the_other_is_refused(&contexts);
    records_are_of_one_file(&contexts, &records);
}

fn each_computes_at_once(contexts: &[Context; 2]) {
    let [m, n, k] = SIZES;
    let run = |context: &Context, seed: usize| {
        let operation = context.gemm(gemm()).expect("a problem");
        let prepared = operation.prepare().expect("it compiles");
        for turn in 0..4 {
            let (a, b) = (numbers(m * k, seed + turn), numbers(k * n, 3));
            let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
            let mut c = context.alloc::<f32>((m * n) as u64).expect("memory");
            operation.run(&da, &db, &mut c, 1.0, 0.0).expect("it runs");
            let want = product(&a, &b);
            assert_eq!(c.download().expect("the result"), want, "{}", context.info().id);
            let mut here = vec![f32::NAN; m * n];
            let [a, b, c] = [a.as_ptr() as u64, b.as_ptr() as u64, here.as_mut_ptr() as u64];
            let addresses = Addresses::operands([a, b, c]);
            // SAFETY: the vectors are as large as the problem says and live until the launch, which copies, returns.
            unsafe { prepared.launch_on_host_memory(&addresses, Factors::default(), None) }.expect("it runs");
            assert_eq!(here, want, "{}", context.info().id);
        }
    };
    let [first, second] = contexts;
    // In turns on one thread, then a thread for each.
    run(first, 1);
    run(second, 2);
    run(first, 5);
    std::thread::scope(|scope| {
        scope.spawn(|| run(first, 3));
        scope.spawn(|| run(second, 4));
    });
}

fn memory_of_the_other_is_refused([first, second]: &[Context; 2]) {
    let [m, n, k] = SIZES;
    let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
    for (here, there) in [(first, second), (second, first)] {
        let operation = here.gemm(gemm()).expect("a problem");
        let on = |context: &Context| {
            let c = context.alloc::<f32>((m * n) as u64).expect("memory");
            (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"), c)
        };
        let ((a, b, mut c), (other_a, other_b, mut other_c)) = (on(here), on(there));
        for (refused, operand) in [
            (operation.run(&other_a, &b, &mut c, 1.0, 0.0), "A"),
            (operation.run(&a, &other_b, &mut c, 1.0, 0.0), "B"),
            (operation.run(&a, &b, &mut other_c, 1.0, 0.0), "C"),
        ] {
            let refused = refused.expect_err("it lies elsewhere");
            assert!(matches!(refused, Error::OtherContext { operand: named } if named == operand), "{refused}");
            assert!(refused.to_string().contains("upload it through the context of this operation"), "{refused}");
        }
    }
}

/// What is tuned on one is known to another of the same name and driver, and to no other.
fn records_are_of_one_file([first, second]: &[Context; 2], records: &Path) {
    let origin = |context: &Context| context.gemm(gemm()).expect("a problem").choice().expect("a plan").1;
    let name = |context: &Context| (context.info().name.clone(), context.info().fingerprint.clone());
    assert_eq!([origin(first), origin(second)], [Origin::Picked; 2]);
    let tuned = first.gemm(gemm()).expect("a problem").tune(Budget::trials(2)).expect("a plan");
    assert_eq!((tuned.device.as_str(), tuned.verified), (first.info().id.as_str(), true));
    let again = |context: &Context| opened(&context.info().id, records);
    let known = if name(first) == name(second) { Origin::Recorded } else { Origin::Picked };
    assert_eq!([origin(&again(first)), origin(&again(second))], [Origin::Recorded, known]);
    second.gemm(gemm()).expect("a problem").tune(Budget::trials(2)).expect("a plan");
    assert_eq!([origin(&again(first)), origin(&again(second))], [Origin::Recorded; 2]);
    let mut names: Vec<_> =
        first.records().list(&Default::default()).expect("records").into_iter().map(|r| r.device.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), if known == Origin::Recorded { 1 } else { 2 }, "{names:?}");
}

/// This test once more, in a process of its own.
fn again(test: &str, device: &str, environment: &[(&str, &Path)]) {
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child
        .args(["--exact", &format!("several_devices::{test}"), "--nocapture"])
        .env("TWO_DEVICES", device)
        .envs(environment.iter().copied());
    let output = child.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = output.status.success() && text(&output.stdout).contains("1 passed");
    assert!(ran, "{device}: {}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
}

fn in_a_child() -> bool {
    std::env::var_os("TWO_DEVICES").is_some()
}

pub fn two_emulated_devices() {
    both(["emu:sm_90a", "emu:gfx942"]);
    both(["emu", "emu"]);
}

pub fn two_opencl_devices() {
    let count = || tilewright::list_devices().iter().filter(|l| l.device.is_ok() && l.backend == Backend::OpenCl).count();
    if in_a_child() {
        assert_eq!(count(), 2, "PoCL has the devices that it is told to have");
        return both(["opencl:0", "opencl:1"]);
    }
    if count() == 0 {
        return missing::missing("an OpenCL device");
    }
    let pocl = |l: &tilewright::Listing| l.platform.as_ref().is_some_and(|name| name.contains("Portable Computing Language"));
    if !tilewright::list_devices().iter().any(pocl) {
        return missing::skipped("PoCL, which has as many devices as it is told to have");
    }
    // Two of one name, and two of different names.
    for devices in ["pthread pthread", "basic pthread"] {
        again("two_opencl_devices", devices, &[("POCL_DEVICES", Path::new(devices))]);
    }
}

pub fn two_gpus() {
    for (backend, devices) in [(Backend::Cuda, ["cuda:0", "cuda:1"]), (Backend::Hip, ["hip:0", "hip:1"])] {
        let there = tilewright::list_devices().iter().filter(|l| l.device.is_ok() && l.backend == backend).count();
        if there > 1 {
            both(devices);
        } else {
            missing::skipped(&format!("two devices of {backend}"));
        }
    }
}

/// Prepared operations on streams of both: each launch finds its device's context current, and leaves the caller's.
fn on_streams_of_both(log: &Path) {
    let options = |device: &str| Options { device: Some(device.into()), records: RecordsAt::Memory, ..Options::default() };
    let contexts =
        ["cuda:0", "cuda:1"].map(|device| Context::with(options(device)).expect("the recording driver has two devices"));
    let problem = Gemm::new(Scalar::BF16, 128, 128, 64);
    let prepared = contexts.each_ref().map(|context| {
        let operation = context.gemm(problem.clone()).expect("a product");
        stand_in::trust(&operation);
        operation.prepare().expect("it compiles")
    });
    let launch = |prepared: &Prepared, stream: usize| {
        let addresses = Addresses::operands([1 << 20, 2 << 20, 3 << 20]).with(Role::Workspace, 4 << 20);
        // SAFETY: the driver runs nothing.
        unsafe { prepared.launch(Stream(stream), &addresses, Factors::default(), None) }.expect("it is the function's device");
    };
    let logged = |run: &dyn Fn()| {
        std::fs::write(log, "").expect("a file");
        run();
        let text = std::fs::read_to_string(log).expect("the log");
        let kept = text.lines().filter(|line| line.starts_with("current") || line.starts_with("launch"));
        kept.map(String::from).collect::<Vec<_>>()
    };
    // What is current is the caller's: nothing was before the devices were opened and used, and nothing is now.
    let opened = std::fs::read_to_string(log).expect("the log");
    assert_eq!(opened.lines().rfind(|line| line.starts_with("current")), Some("current -1"), "{opened}");
    for (i, stream) in [(0, 11), (1, 22)] {
        let seen = logged(&|| launch(&prepared[i], stream));
        let [before, launches @ .., after] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!([before.as_str(), after.as_str()], [&*format!("current {i}"), "current -1"], "{seen:?}");
        assert!(!launches.is_empty() && launches.iter().all(|line| line.contains(&format!(" stream {stream} "))), "{seen:?}");
    }
    // Threads that have no current device, at once.
    std::thread::scope(|scope| {
        for (prepared, stream) in prepared.iter().zip([11, 22]) {
            scope.spawn(move || (0..20).for_each(|_| launch(prepared, stream)));
        }
    });
}

pub fn streams_of_two_devices_of_a_recording_driver() {
    if let Some(log) = std::env::var_os("STUB_LOG").filter(|_| in_a_child()) {
        return on_streams_of_both(Path::new(&log));
    }
    let Some(folder) = stand_in::driver() else { return };
    let (at, log) = (folder.path(), folder.path().join("log"));
    again(
        "streams_of_two_devices_of_a_recording_driver",
        "cuda",
        &[("LD_LIBRARY_PATH", at), ("STUB_LOG", &log), ("STUB_CONTEXTS", at)],
    );
}

/// How the recording driver makes a worker impossible.
#[cfg(unix)]
struct Refused {
    /// The variable that it reads.
    variable: &'static str,
    /// What the refusal says.
    parts: [&'static str; 4],
}

/// A worker that gets no context: because the memory is full, because the device is for one process, or because a crash in it would reach
/// this process. Each refusal names the remedy.
#[cfg(unix)]
pub fn a_worker_without_a_context_of_its_own() {
    let here = "trials in this process";
    let told = [
        Refused {
            variable: "STUB_FULL",
            parts: ["no room for 629145600 bytes", "4096 bytes are free", "empty their caches", here],
        },
        Refused {
            variable: "STUB_EXCLUSIVE",
            parts: ["exclusive compute mode", "another process uses it", "`nvidia-smi -c DEFAULT`", here],
        },
        Refused {
            variable: "STUB_MPS",
            parts: ["multi-process service (MPS)", "end this process too", "`echo quit | nvidia-cuda-mps-control`", here],
        },
    ];
    if !in_a_child() {
        let Some(folder) = stand_in::driver() else { return };
        for Refused { variable, .. } in told {
            let taken = folder.path().join(variable);
            again("a_worker_without_a_context_of_its_own", "cuda", &[("LD_LIBRARY_PATH", folder.path()), (variable, &taken)]);
        }
        return;
    }
    let program = WorkerProgram::new(std::env::current_exe().expect("this test"), crate::worker::ARGUMENTS.map(Into::into));
    let options = Options { device: Some("cuda:0".into()), records: RecordsAt::Memory, ..Options::default() };
    let context = Context::with(Options { trials: Trials::WorkerOf(program), ..options }).expect("the first context is made");
    let refused = context.gemm(gemm()).expect("a problem").tune(Budget::trials(1)).expect_err("no context").to_string();
    let of = told.iter().find(|told| std::env::var_os(told.variable).is_some()).expect("a variable");
    assert!(of.parts.iter().all(|part| refused.contains(part)), "{refused}");
}
