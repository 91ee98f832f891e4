//! Compile workers: this program is its own worker, and also plays one that crashes and one that hangs.

mod common;

use common::{cases, compare, run, tool};
use std::time::{Duration, Instant};
use tilewright_device::{Cache, DeviceError, Options, Workers, compile_worker_main, cuda, open, open_with};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("compile-worker") => std::process::exit(compile_worker_main()),
        Some("crash-worker") => {
            let _ = std::io::stdin().read_line(&mut String::new());
            eprintln!("terminate called after throwing");
            std::process::abort();
        }
        Some("hang-worker") => std::thread::sleep(Duration::from_secs(600)),
        _ => {}
    }
    let tests: [(&str, fn()); 5] = [
        ("opencl_through_workers", opencl_through_workers),
        ("nvrtc_through_workers", nvrtc_through_workers),
        ("a_crash_costs_one_kernel", a_crash_costs_one_kernel),
        ("a_hang_costs_one_kernel", a_hang_costs_one_kernel),
        ("a_program_that_is_no_worker_is_named", a_program_that_is_no_worker_is_named),
    ];
    // As the usual harness does: arguments that are no options choose tests by a part of their name.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    if std::env::args().any(|a| a == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    for (name, test) in tests {
        if wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())) {
            test();
            println!("test {name} ... ok");
        }
    }
}

fn options(subcommand: &str, limit: Duration) -> Options {
    let options = Options { cache: Cache::disabled(), compile_limit: limit, ..Options::default() };
    options.with_workers(Workers::of_current_exe(subcommand).unwrap())
}

const LONG: Duration = Duration::from_secs(120);

fn opencl_through_workers() {
    let folder = tempfile::tempdir().unwrap();
    let with_cache = Options { cache: Cache::at(folder.path()), ..options("compile-worker", LONG) };
    let Some(device) = tool("OpenCL", open_with("opencl:0", &with_cache)) else { return };
    let emulator = open("emu:gfx942").unwrap();
    for name in ["copy", "tile", "product"] {
        let case = cases().into_iter().find(|c| c.kernel.name == name).unwrap();
        let want = run(&*emulator, &case).unwrap();
        assert!(!device.compile(&case.kernel).unwrap().cached(), "{name}");
        // From the cache now, written by the first compilation.
        assert!(device.compile(&case.kernel).unwrap().cached(), "{name}");
        compare(&case, &run(&*device, &case).unwrap(), &want, "OpenCL through a worker");
    }
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
        assert!(e.is_candidate() && !e.is_fatal());
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
    assert!(e.is_candidate() && !e.is_fatal());
    assert!(start.elapsed() < Duration::from_secs(60));
}

fn a_program_that_is_no_worker_is_named() {
    let options = Options { workers: None, cache: Cache::disabled(), ..Options::default() };
    let options = options.with_workers(Workers::new("/no/such/program", []));
    let Some(device) = tool("OpenCL", open_with("opencl:0", &options)) else { return };
    let e = device.compile(&cases()[0].kernel).unwrap_err();
    assert!(e.to_string().contains("/no/such/program"), "{e}");
}
