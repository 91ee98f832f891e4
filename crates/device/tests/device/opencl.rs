//! OpenCL devices at hand against the emulator, and what only a real device does: time, part buffers, the cache.

use crate::common;
use common::{Case, cases, compare, run, tool};
use std::sync::Arc;
use tilewright_device::{
    Backend, Cache, CacheState, Device, DeviceError, Launch, LaunchArg, Options, Timing, list, open, open_with,
};

fn first() -> Option<Arc<dyn Device>> {
    tool("an OpenCL device", open("opencl:0"))
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|c| c.kernel.name == name).unwrap()
}

#[test]
fn every_device_agrees_with_the_emulator() {
    let emulator = open("emu:gfx942").unwrap();
    let (mut devices, mut ran, mut refused) = (0, 0, Vec::new());
    for listing in list() {
        match listing.device {
            Ok(info) if info.backend == Backend::OpenCl => {
                let device = open(&info.id).unwrap();
                devices += 1;
                for case in cases() {
                    let want = run(&*emulator, &case).unwrap();
                    let got = match run(&*device, &case) {
                        Err(DeviceError::Invalid { invalid, .. }) if invalid.fault.is_refusal() => {
                            refused.push(format!("{} refuses {}: {invalid}", info.name, case.kernel.name));
                            continue;
                        }
                        other => other.unwrap(),
                    };
                    compare(&case, &got, &want, &info.name);
                    ran += 1;
                }
            }
            Err(e) if listing.backend == Backend::OpenCl => drop(tool::<()>("OpenCL", Err(e))),
            _ => {}
        }
    }
    eprintln!("{ran} kernels compared, {} refused:\n{}", refused.len(), refused.join("\n"));
    assert!(devices == 0 || ran > 0, "{devices} devices refuse all of {} kernels", refused.len());
}

#[test]
fn what_a_device_tells_is_sound() {
    let Some(device) = first() else { return };
    let info = device.info();
    assert_eq!(info.id, "opencl:0");
    assert!(info.is_measured());
    assert!(!info.name.is_empty() && !info.fingerprint.is_empty());
    let t = &info.target;
    assert!(t.units > 0 && t.wave > 0 && t.limits.max_threads >= 32 && t.limits.shared_per_group >= 16 << 10);
    assert!(info.memory_bytes >= info.max_buffer_bytes && info.max_buffer_bytes > 1 << 20);
    // By name, too.
    let word = info.name.split_whitespace().next().unwrap();
    assert_eq!(open(&format!("opencl:{word}")).unwrap().info().name, info.name);
}

#[test]
fn repeats_are_timed_one_by_one() {
    let Some(device) = first() else { return };
    let case = case("copy");
    let kernel = device.compile(&case.kernel).unwrap();
    let args: Vec<_> = (0..2).map(|_| LaunchArg::Buffer(device.alloc(1280).unwrap())).collect();
    let launches = [1, 2, 3].map(|_| Launch { kernel: kernel.clone(), grid: case.grid, args: args.clone() });
    for cache in [CacheState::Cold, CacheState::Warm] {
        let times = device.time(&launches, &Timing { cache, repeats: 3 }).unwrap();
        assert_eq!(times.len(), 3);
        assert!(times.iter().all(|&t| t > 0.0 && t < 10e6), "{times:?}");
    }
    // Nothing at all takes some time, too: between two marks on the queue.
    assert!(device.time(&[], &Timing::default()).unwrap()[0] < 1e6);
}

#[test]
fn marks_are_passed_in_their_order() {
    let Some(device) = first() else { return };
    assert!(device.mark().unwrap().is_passed().unwrap());
    let case = case("copy");
    let kernel = device.compile(&case.kernel).unwrap();
    let buffers: Vec<_> = (0..2).map(|_| device.alloc(1280).unwrap()).collect();
    device.write(&buffers[0], 0, &[7; 1280]).unwrap();
    let args = buffers.iter().cloned().map(LaunchArg::Buffer).collect();
    let launch = Launch { kernel, grid: case.grid, args };
    let work = vec![launch; 50];
    device.launch(&work).unwrap();
    let first = device.mark().unwrap();
    device.launch(&work).unwrap();
    let last = device.mark().unwrap();
    // From any thread.
    std::thread::scope(|scope| scope.spawn(|| last.wait().unwrap()).join().unwrap());
    assert!(first.is_passed().unwrap() && last.is_passed().unwrap());
    first.wait().unwrap();
    // Those of a device that is given up are passed, too.
    device.launch(&work).unwrap();
    let last = device.mark().unwrap();
    drop((device, work));
    last.wait().unwrap();
    assert!(last.is_passed().unwrap());
}

#[test]
fn parts_of_buffers_are_passed() {
    let Some(device) = first() else { return };
    let case = case("copy");
    let kernel = device.compile(&case.kernel).unwrap();
    let whole = device.alloc(8192).unwrap();
    device.fill(&whole, 0).unwrap();
    let data: Vec<u8> = (0..1280).map(|i| i as u8).collect();
    let (from, to) = (whole.slice(1024, 1280).unwrap(), whole.slice(4096, 1280).unwrap());
    device.write(&from, 0, &data).unwrap();
    let launch = |x: &_, y: &_| Launch {
        kernel: kernel.clone(),
        grid: case.grid,
        args: vec![LaunchArg::Buffer(Clone::clone(x)), LaunchArg::Buffer(Clone::clone(y))],
    };
    device.launch(&[launch(&from, &to)]).unwrap();
    let mut all = vec![1; 8192];
    device.read(&whole, 0, &mut all).unwrap();
    let mut want = vec![0; 8192];
    want[1024..1024 + 1280].copy_from_slice(&data);
    want[4096..4096 + 1280].copy_from_slice(&data);
    assert_eq!(all, want);
    // A start that OpenCL cannot pass is refused by name, and so is a misaligned one.
    let odd = whole.slice(4, 1280).unwrap();
    let refused = device.launch(&[launch(&odd, &to)]).unwrap_err();
    assert!(matches!(&refused, DeviceError::BadLaunch { reason, .. } if reason.contains("`x`")), "{refused}");
    let odd = whole.slice(2, 1280).unwrap();
    assert!(matches!(device.launch(&[launch(&odd, &to)]), Err(DeviceError::BadLaunch { .. })));
    device.fill(&whole.slice(3, 6).unwrap(), 7).unwrap();
    device.read(&whole, 0, &mut all[..16]).unwrap();
    assert_eq!(all[..16], [0, 0, 0, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn wrong_launches_are_refused() {
    let Some(device) = first() else { return };
    let emulator = open("emu").unwrap();
    let case = case("tail");
    let kernel = device.compile(&case.kernel).unwrap();
    let buffer = device.alloc(800).unwrap();
    let launch = |grid, args: &[LaunchArg]| device.launch(&[Launch { kernel: kernel.clone(), grid, args: args.to_vec() }]);
    let (b, n) = (LaunchArg::Buffer(buffer.clone()), LaunchArg::I32(100));
    let refused = |result: Result<(), DeviceError>, word: &str| {
        let e = result.unwrap_err();
        assert!(matches!(&e, DeviceError::BadLaunch { reason, .. } if reason.contains(word)), "{e}");
        assert!(!e.is_fatal());
    };
    refused(launch([0, 1, 1], &[b.clone(), b.clone(), n.clone()]), "work-groups");
    refused(launch([1, 1, 1], &[b.clone(), n.clone()]), "arguments");
    refused(launch([1, 1, 1], &[b.clone(), b.clone(), LaunchArg::I64(1)]), "`n` is i32");
    refused(launch([1, 1, 1], &[n.clone(), b.clone(), n.clone()]), "`x` is a buffer");
    let foreign = LaunchArg::Buffer(emulator.alloc(800).unwrap());
    refused(launch([1, 1, 1], &[foreign, b.clone(), n.clone()]), "lives on emu");
    assert!(matches!(emulator.write(&buffer, 0, &[1]), Err(DeviceError::BadBuffer { .. })));
    assert!(matches!(device.write(&buffer, 799, &[1, 2]), Err(DeviceError::BadBuffer { .. })));
    assert!(matches!(buffer.slice(1, u64::MAX), Err(DeviceError::BadBuffer { .. })));
    assert!(matches!(device.alloc(u64::MAX), Err(DeviceError::OutOfMemory { .. })));
}

#[test]
fn many_threads_compile_at_once() {
    let Some(device) = first() else { return };
    let cases = cases();
    std::thread::scope(|scope| {
        for case in &cases {
            scope.spawn(|| {
                let compiled = device.compile(&case.kernel);
                match compiled {
                    Ok(kernel) => assert_eq!(kernel.entry(), case.kernel.name),
                    Err(DeviceError::Invalid { .. }) => {}
                    Err(e) => panic!("{e}"),
                }
            });
        }
    });
}

#[test]
fn a_cache_that_cannot_be_written_costs_nothing() {
    let cache = Cache::at("/proc/no/such/folder");
    let Some(device) = tool("OpenCL", open_with("opencl:0", &Options { cache, ..Options::default() })) else { return };
    device.compile(&case("copy").kernel).unwrap();
}
