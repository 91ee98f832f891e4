//! Compile workers: this program is its own worker, and also plays one that crashes and one that hangs.

mod common;
#[path = "workers/found.rs"]
mod found;
#[path = "../../ir/tests/support/waits.rs"]
mod waits;

use common::{cases, compare, run, tool};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tilewright_device::{
    Cache, Device, DeviceError, DeviceKind, Launch, LaunchArg, Options, Program, Timing, Workers, compile_worker_main, cuda,
    isolate, open, open_with,
};
use tilewright_ir::{Access, Base, Builder, Builtin, Scalar, Unroll};
use waits::Test;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("compile-worker") => std::process::exit(compile_worker_main()),
        Some("crash-worker") => {
            let _ = std::io::stdin().read_line(&mut String::new());
            eprintln!("terminate called after throwing");
            std::process::abort();
        }
        Some("slow-worker") => {
            std::thread::sleep(SLOW);
            std::process::exit(compile_worker_main());
        }
        Some("hang-worker") => std::thread::sleep(Duration::from_secs(600)),
        Some("abort-worker") => mishap("abort:2"),
        Some("hanging-worker") => mishap("hang:2"),
        Some("old-worker") => other_build(""),
        Some("other-worker") => other_build("0.0.1+0123456789abcdef"),
        Some("find-worker") => found::asks(false),
        Some("own-worker") => found::asks(true),
        Some("hang-device") => hang_device(),
        Some("hang-with-worker") => hang_with_worker(),
        _ => {}
    }
    let tests: [Test; 15] = [
        ("a_worker_of_another_build_is_refused", a_worker_of_another_build_is_refused),
        ("a_crash_or_a_hang_costs_a_worker_of_the_device", a_crash_or_a_hang_costs_a_worker_of_the_device),
        ("bytes_cross_in_shared_memory", bytes_cross_in_shared_memory),
        ("opencl_through_workers", opencl_through_workers),
        ("workers_that_do_not_see_the_device_are_done_without", workers_that_do_not_see_the_device_are_done_without),
        ("workers_are_started_ahead", workers_are_started_ahead),
        ("workers_that_do_not_start_are_no_error_yet", workers_that_do_not_start_are_no_error_yet),
        ("nvrtc_through_workers", nvrtc_through_workers),
        ("a_crash_costs_one_kernel", a_crash_costs_one_kernel),
        ("a_hang_costs_one_kernel", a_hang_costs_one_kernel),
        ("a_kernel_that_never_ends_costs_a_worker", a_kernel_that_never_ends_costs_a_worker),
        ("a_worker_ends_with_its_tuner", a_worker_ends_with_its_tuner),
        ("the_watchdog_gives_up_on_a_kernel_that_never_ends", the_watchdog_gives_up_on_a_kernel_that_never_ends),
        ("a_program_that_is_no_worker_is_named", a_program_that_is_no_worker_is_named),
        ("the_program_of_workers_is_found_in_this_order", found::the_program_of_workers_is_found_in_this_order),
    ];
    // All at once: nearly all of their time is waiting.
    waits::run(&tests, tests.len());
}

fn options(subcommand: &str, limit: Duration) -> Options {
    let options = Options { cache: Cache::disabled(), compile_limit: limit, ..Options::default() };
    options.with_workers(Workers::of_current_exe(subcommand).unwrap())
}

/// A worker that ends or stops when it times for the second time.
fn mishap(what: &str) -> ! {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let ended = command.arg("compile-worker").env("TILEWRIGHT_WORKER_MISHAP", what).status().unwrap();
    if ended.success() { std::process::exit(0) } else { std::process::abort() }
}

/// A worker of another build: it opens what it is asked for, and gives its build. The first builds gave none.
fn other_build(build: &str) -> ! {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let request: serde_json::Value = serde_json::from_str(&line).unwrap();
    let answer = request["answer"].as_str().unwrap();
    std::fs::write(answer, format!("{}\n", serde_json::json!({ "Made": { "log": build } }))).unwrap();
    println!("tilewright-compile-done {answer}");
    let _ = std::io::stdin().read_line(&mut line);
    std::process::exit(0)
}

/// It would print another kernel, and time it in place of ours.
fn a_worker_of_another_build_is_refused() {
    let options = Options { cache: Cache::disabled(), ..Options::default() };
    let device = open("emu:sm_80").unwrap();
    for (subcommand, build) in [("old-worker", "an older one"), ("other-worker", "0.0.1+0123456789abcdef")] {
        let program = Program::new(std::env::current_exe().unwrap(), [subcommand.into()]);
        let e = isolate(&device, &program, &options).unwrap().alloc(4).unwrap_err();
        let text = e.to_string();
        assert!(matches!(e, DeviceError::NoWorker { .. }), "{text}");
        assert!(text.contains(&format!("another build ({build})")) && text.contains("TILEWRIGHT_WORKER"), "{text}");
    }
    let program = Program::new(std::env::current_exe().unwrap(), ["compile-worker".into()]);
    isolate(&device, &program, &options).unwrap().alloc(4).unwrap();
}

fn a_crash_or_a_hang_costs_a_worker_of_the_device() {
    let short = Duration::from_secs(2);
    let options =
        Options { cache: Cache::disabled(), deadline: short, compile_limit: Duration::from_secs(4), ..Options::default() };
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options)) else { return };
    let data = [1, 2, 3, 4];
    let kept = device.alloc(4).unwrap();
    device.write(&kept, 0, &data).unwrap();
    for (subcommand, how) in [("abort-worker", "crashed"), ("hanging-worker", "did not end")] {
        let program = Program::new(std::env::current_exe().unwrap(), [subcommand.into()]);
        let isolated = isolate(&device, &program, &options).unwrap();
        let kernel = isolated.compile(&Builder::new("nothing", 32).finish()).unwrap();
        let launch = [Launch { kernel, grid: [1; 3], args: Vec::new() }];
        let there = isolated.alloc(4).unwrap();
        let mut read = [0; 4];
        isolated.write(&there, 0, &data).unwrap();
        isolated.read(&there, 0, &mut read).unwrap();
        assert_eq!(read, data);
        assert_eq!(isolated.time(&launch, &Timing::cold(3)).unwrap().len(), 3);
        let e = isolated.time(&launch, &Timing::cold(1)).unwrap_err();
        assert!(matches!(&e, DeviceError::WorkerLost { entry, reason, .. } if entry == "nothing" && reason.contains(how)), "{e}");
        assert!(e.is_fatal() && isolated.revives());
        // Kernels are there again, memory is not.
        assert!(matches!(isolated.read(&there, 0, &mut read), Err(DeviceError::BadBuffer { .. })));
        assert_eq!(isolated.time(&launch, &Timing::cold(1)).unwrap().len(), 1);
    }
    let mut read = [0; 4];
    device.read(&kept, 0, &mut read).unwrap();
    assert_eq!(read, data);
}

/// More than the memory that both processes share holds at once, from an odd byte on, by two threads at once.
fn bytes_cross_in_shared_memory() {
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options("compile-worker", LONG))) else { return };
    let program = Program::new(std::env::current_exe().unwrap(), ["compile-worker".into()]);
    let isolated = isolate(&device, &program, &Options { cache: Cache::disabled(), ..Options::default() }).unwrap();
    let cross = |seed: u32| {
        let len = (40 << 20) + 3;
        let data: Vec<u8> = (0..len).map(|i: u32| (i.wrapping_mul(2654435761) >> 24) as u8 ^ seed as u8).collect();
        let there = isolated.alloc(u64::from(len) + 7).unwrap();
        isolated.fill(&there, 0xa5).unwrap();
        isolated.write(&there, 5, &data).unwrap();
        let mut back = vec![0; data.len() + 7];
        isolated.read(&there, 0, &mut back).unwrap();
        assert!(back[..5] == [0xa5; 5] && back[5..data.len() + 5] == data[..] && back[data.len() + 5..] == [0xa5; 2]);
        isolated.read(&there, 11, &mut []).unwrap();
    };
    std::thread::scope(|scope| (0..2).for_each(|seed| drop(scope.spawn(move || cross(seed)))));
}

const LONG: Duration = Duration::from_secs(120);
/// Until a slow worker takes its first job: far longer than two small kernels take, also while other tests run.
const SLOW: Duration = Duration::from_secs(8);

fn opencl_through_workers() {
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options("compile-worker", LONG))) else { return };
    let emulator = open("emu:gfx942").unwrap();
    for name in ["copy", "tile", "product"] {
        let case = cases().into_iter().find(|c| c.kernel.name == name).unwrap();
        let want = run(&*emulator, &case).unwrap();
        compare(&case, &run(&*device, &case).unwrap(), &want, "OpenCL through a worker");
    }
}

/// The loader of the worker finds no driver: its caller, who does, compiles by itself.
fn workers_that_do_not_see_the_device_are_done_without() {
    let exe = std::env::current_exe().unwrap().into_os_string();
    let blind = Workers::new("env", ["OCL_ICD_VENDORS=/nonexistent".into(), exe, "compile-worker".into()]);
    let options = Options { cache: Cache::disabled(), compile_limit: LONG, ..Options::default() }.with_workers(blind);
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options)) else { return };
    let case = cases().into_iter().find(|c| c.kernel.name == "copy").unwrap();
    let want = run(&*open("emu:gfx942").unwrap(), &case).unwrap();
    compare(&case, &run(&*device, &case).unwrap(), &want, "OpenCL without a worker");
}

/// A kernel that takes longer than anyone waits, and a launch of it.
fn endless(device: &dyn Device) -> Launch {
    let mut b = Builder::new("endless", 64);
    let y = b.buffer("y", Scalar::F32, Access::ReadWrite, "one number per thread");
    let t = b.shared("t", Scalar::F32, 64, 0);
    let local = b.builtin(Builtin::LocalId);
    let many = b.scalar_arg("many", Scalar::I64, "turns");
    let zero = b.int(0, Scalar::I64);
    b.for_range("turn", zero, many, Unroll::No, |b, _| {
        let v = b.load("v", Base::Buffer(y), local, 1, None);
        b.store(Base::Shared(t), local, v, None);
        b.barrier();
        let last = b.int(63, Scalar::I32);
        let other = b.sub(last, local);
        let w = b.load("w", Base::Shared(t), other, 1, None);
        b.barrier();
        b.store(Base::Buffer(y), local, w, None);
    });
    let kernel = device.compile(&b.finish()).unwrap();
    let y = LaunchArg::Buffer(device.alloc(256).unwrap());
    Launch { kernel, grid: [1, 1, 1], args: vec![y, LaunchArg::I64(i64::MAX)] }
}

fn a_kernel_that_never_ends_costs_a_worker() {
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options("compile-worker", Duration::from_secs(10)))) else {
        return;
    };
    if device.info().kind != DeviceKind::Cpu {
        return;
    }
    let mut launch = endless(&*device);
    let e = device.rehearse(std::slice::from_ref(&launch)).unwrap_err();
    assert!(matches!(e, DeviceError::CompileTimeout { .. }) && !e.is_fatal(), "{e}");
    launch.args[1] = LaunchArg::I64(3);
    device.rehearse(std::slice::from_ref(&launch)).unwrap();
    device.launch(&[launch]).unwrap();
    device.sync().unwrap();
}

/// Whatever the worker is at, a compiler's kernel or a trial, and however the tuner ends: nothing runs on, and no file of theirs stays.
fn a_worker_ends_with_its_tuner() {
    if tool("OpenCL", open("opencl:0")).is_none_or(|device| device.info().kind != DeviceKind::Cpu) {
        return;
    }
    for (busy, held) in [("rehearsing", false), ("timing", false), ("rehearsing", true), ("timing", true)] {
        let folder = tempfile::tempdir().unwrap();
        // The lock of a device is for all processes and stays.
        let is_theirs = |path: &Path| path.extension().is_none_or(|extension| extension != "lock");
        let files = || std::fs::read_dir(folder.path()).unwrap().filter(|file| is_theirs(&file.as_ref().unwrap().path())).count();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["hang-with-worker", busy]).env("TMPDIR", folder.path()).stdout(Stdio::piped());
        let mut tuner = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(tuner.stdout.take().unwrap()).read_line(&mut said).unwrap();
        // Time for the kernel to begin: in any case the worker has its job.
        std::thread::sleep(Duration::from_secs(1));
        let workers = children(tuner.id());
        assert_eq!(said.trim(), busy);
        assert!(files() > 0 && !workers.is_empty() && workers.iter().all(|&worker| runs(worker)), "{busy}: {workers:?}");
        // As a process does that the tuner forked: the workers' input does not end with the tuner.
        let pipes = if held { pipes(tuner.id()) } else { Vec::new() };
        assert_eq!(pipes.is_empty(), !held);
        tuner.kill().unwrap();
        tuner.wait().unwrap();
        let start = Instant::now();
        while files() > 0 || workers.iter().any(|&worker| runs(worker)) {
            assert!(start.elapsed() < Duration::from_secs(5), "{busy}, {held}: {workers:?} go on, {} files stay", files());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The pipes of a process, opened here too.
fn pipes(process: u32) -> Vec<std::fs::File> {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let pipes = open.filter(|path| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:")));
    pipes.map(|path| std::fs::File::options().read(true).write(true).open(path).unwrap()).collect()
}

/// Processes that a process started, and those that they started.
fn children(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let own: Vec<u32> =
        lists.flat_map(|list| list.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<_>>()).collect();
    own.iter().flat_map(|&child| [vec![child], children(child)].concat()).collect()
}

/// Whether a process runs: one that has ended may wait for its parent.
fn runs(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// A tuner whose worker runs a kernel that never ends.
fn hang_with_worker() -> ! {
    let options = options("compile-worker", LONG);
    let device = open_with("opencl:0", &options).unwrap();
    if std::env::args().nth(2).as_deref() == Some("timing") {
        let program = Program::new(std::env::current_exe().unwrap(), ["compile-worker".into()]);
        let isolated = isolate(&device, &program, &options).unwrap();
        let launch = endless(&*isolated);
        println!("timing");
        let _ = isolated.time(&[launch], &Timing::cold(1));
    } else {
        let launch = endless(&*device);
        println!("rehearsing");
        let _ = device.rehearse(&[launch]);
    }
    std::process::exit(1)
}

/// In a process of its own, which has a kernel running for ever when it ends.
fn the_watchdog_gives_up_on_a_kernel_that_never_ends() {
    if tool("OpenCL", open("opencl:0")).is_none() {
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap()).arg("hang-device").spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            None if start.elapsed() < Duration::from_secs(100) => std::thread::sleep(Duration::from_millis(20)),
            None => {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
            Some(status) => break status,
        }
    };
    assert!(status.success(), "{status}");
}

/// Ends well if the watchdog barks in time.
fn hang_device() -> ! {
    let (deadline, compile_limit) = (Duration::from_secs(2), Duration::from_secs(10));
    let options = Options { cache: Cache::disabled(), deadline, compile_limit, ..Options::default() };
    let device = open_with("opencl:0", &options).unwrap();
    let launch = endless(&*device);
    device.launch(&[launch]).unwrap();
    let e = device.sync().unwrap_err();
    assert!(matches!(&e, DeviceError::Hang { entry, .. } if entry == "endless") && e.is_fatal(), "{e}");
    let e = device.alloc(4).unwrap_err();
    assert!(matches!(&e, DeviceError::Poisoned { .. }) && e.is_fatal(), "{e}");
    drop(device);
    std::process::exit(0);
}

fn workers_are_started_ahead() {
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options("slow-worker", LONG))) else { return };
    let start = Instant::now();
    device.prepare(2).unwrap();
    assert!(start.elapsed() >= SLOW);
    // Two at once, and no further start.
    let start = Instant::now();
    std::thread::scope(|scope| {
        for case in cases().into_iter().take(2) {
            let device = &device;
            scope.spawn(move || device.compile(&case.kernel).unwrap());
        }
    });
    device.prepare(2).unwrap();
    assert!(start.elapsed() < SLOW, "{:?}", start.elapsed());
}

fn workers_that_do_not_start_are_no_error_yet() {
    let options = Options { cache: Cache::disabled(), ..Options::default() };
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options)) else { return };
    device.prepare(2).unwrap();
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options.with_workers(Workers::new("/no/such/program", [])))) else {
        return;
    };
    // What it compiles itself tells.
    assert!(device.prepare(2).unwrap_err().to_string().contains("/no/such/program"));
}

fn nvrtc_through_workers() {
    let own = Options { cache: Cache::disabled(), ..Options::default() };
    let workers = options("compile-worker", LONG);
    for case in cases() {
        let Some(here) = tool("NVRTC", cuda::compile(&case.kernel, "sm_90a", &own)) else { return };
        let there = cuda::compile(&case.kernel, "sm_90a", &workers).unwrap();
        assert_eq!(here.code, there.code, "{}", case.kernel.name);
        assert_eq!(here.resources, there.resources);
    }
}

fn a_crash_costs_one_kernel() {
    let crash = options("crash-worker", LONG);
    let Some(device) = tool("OpenCL", open_with("opencl:0", &crash)) else { return };
    for _ in 0..2 {
        let e = device.compile(&cases()[0].kernel).unwrap_err();
        assert!(matches!(&e, DeviceError::CompilerCrashed { reason, .. } if reason.contains("terminate called")), "{e}");
        assert!(!e.is_fatal());
    }
    // The device itself is as good as before.
    let buffer = device.alloc(4).unwrap();
    device.write(&buffer, 0, &[1, 2, 3, 4]).unwrap();
    device.sync().unwrap();
}

fn a_hang_costs_one_kernel() {
    let hang = options("hang-worker", Duration::from_millis(300));
    let Some(device) = tool("OpenCL", open_with("opencl:0", &hang)) else { return };
    let start = Instant::now();
    let e = device.compile(&cases()[0].kernel).unwrap_err();
    assert!(matches!(e, DeviceError::CompileTimeout { .. }), "{e}");
    assert!(!e.is_fatal());
    assert!(start.elapsed() < Duration::from_secs(60));
}

fn a_program_that_is_no_worker_is_named() {
    let options = Options { workers: None, cache: Cache::disabled(), ..Options::default() };
    let options = options.with_workers(Workers::new("/no/such/program", []));
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options)) else { return };
    let e = device.compile(&cases()[0].kernel).unwrap_err();
    assert!(e.to_string().contains("/no/such/program"), "{e}");
}
