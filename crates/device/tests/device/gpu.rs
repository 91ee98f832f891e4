//! CUDA and HIP devices at hand, if any, against the emulator. A machine without a GPU skips this with one line.

use crate::common;
use common::{cases, compare, run};
use std::sync::Arc;
use tilewright_device::{
    Cache, CacheState, Device, DeviceError, Launch, LaunchArg, NativeHandles, Options, Timing, open, open_with,
};
use tilewright_ir::{Access, Base, Builder, Builtin, Kernel, Scalar, ShuffleKind, Stmt};

/// Devices that open. GPUs are hardware, no tool that can be required.
fn gpus() -> Vec<Arc<dyn Device>> {
    let opened = ["cuda:0", "hip:0"].map(open);
    let gpus: Vec<_> = opened
        .into_iter()
        .filter_map(|d| match d {
            Ok(device) => Some(device),
            Err(e @ DeviceError::Missing { .. }) => {
                common::missing::skipped(&e.to_string());
                None
            }
            Err(e) => panic!("{e}"),
        })
        .collect();
    gpus
}

#[test]
fn gpus_agree_with_the_emulator() {
    for device in gpus() {
        let emulator = open(&format!("emu:{}", if device.info().target.wave == 64 { "gfx942" } else { "sm_90a" })).unwrap();
        for case in cases() {
            let want = run(&*emulator, &case).unwrap();
            compare(&case, &run(&*device, &case).unwrap(), &want, &device.info().name);
        }
    }
}

#[test]
fn the_compiler_tells_resources() {
    for device in gpus() {
        let case = cases().into_iter().find(|c| c.kernel.name == "product").unwrap();
        let kernel = device.compile(&case.kernel).unwrap();
        let r = kernel.resources();
        assert!(r.registers.is_some_and(|n| n >= 8), "{r:?}");
        assert!(r.shared_bytes.is_some_and(|b| b >= 8192), "{r:?}");
        assert!(r.max_threads.is_some_and(|n| n >= 256), "{r:?}");
        if device.info().backend == tilewright_device::Backend::Cuda {
            assert_eq!(r.spill_bytes, Some(0));
        }
    }
}

#[test]
fn binaries_come_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    for gpu in gpus() {
        let options = Options { cache: Cache::at(folder.path()), ..Options::default() };
        let device = open_with(&gpu.info().id, &options).unwrap();
        let case = &cases()[0];
        assert!(!device.compile(&case.kernel).unwrap().cached());
        let again = device.compile(&case.kernel).unwrap();
        assert!(again.cached() && again.resources().registers.is_some());
        assert!(!run(&*device, case).unwrap().is_empty());
    }
}

#[test]
fn more_than_48_kib_of_shared_memory_works() {
    for device in gpus() {
        let most = device.info().target.limits.shared_per_group;
        let mut b = Builder::new("large", 64);
        let y = b.buffer("y", Scalar::F32, Access::Write, "one number per thread");
        let t = b.shared("t", Scalar::F32, most / 4, 0);
        let local = b.builtin(Builtin::LocalId);
        let v = b.cast(local, Scalar::F32);
        let far = b.add(local, most / 4 - 64);
        b.store(Base::Shared(t), far, v, None);
        b.barrier();
        let last = b.int(i64::from(most / 4) - 1, Scalar::I32);
        let other = b.sub(last, local);
        let w = b.load("w", Base::Shared(t), other, 1, None);
        b.store(Base::Buffer(y), local, w, None);
        let kernel = device.compile(&b.finish()).unwrap();
        assert!(kernel.resources().shared_bytes.is_some_and(|b| b >= most), "{:?} of {most}", kernel.resources());
        let y = device.alloc(256).unwrap();
        device.launch(&[Launch { kernel, grid: [1, 1, 1], args: vec![LaunchArg::Buffer(y.clone())] }]).unwrap();
        let mut out = vec![0; 256];
        device.read(&y, 0, &mut out).unwrap();
        let want: Vec<f32> = (0..64).rev().map(|v| v as f32).collect();
        assert_eq!(common::floats(&out), want);
    }
}

fn shuffles() -> Kernel {
    let mut b = Builder::new("shuffles", 64);
    b.wave(32);
    let y = b.buffer("y", Scalar::F32, Access::Write, "sum of the wave");
    let local = b.builtin(Builtin::LocalId);
    let v = b.cast(local, Scalar::F32);
    let sum = b.declare("sum", v);
    for mask in [1, 2, 4, 8, 16] {
        let value = b.get(sum);
        let got = b.declare("got", value);
        b.push(Stmt::Shuffle { place: tilewright_ir::Place::Var(got), value, kind: ShuffleKind::Xor(mask) });
        let (a, c) = (b.get(sum), b.get(got));
        let both = b.add(a, c);
        b.set(sum, both);
    }
    let sum = b.get(sum);
    b.store(Base::Buffer(y), local, sum, None);
    b.finish()
}

#[test]
fn waves_exchange_values() {
    for device in gpus().into_iter().filter(|d| d.info().target.wave == 32) {
        let kernel = device.compile(&shuffles()).unwrap();
        let y = device.alloc(256).unwrap();
        device.launch(&[Launch { kernel, grid: [1, 1, 1], args: vec![LaunchArg::Buffer(y.clone())] }]).unwrap();
        let mut out = vec![0; 256];
        device.read(&y, 0, &mut out).unwrap();
        let want = [vec![496.0; 32], vec![1520.0; 32]].concat();
        assert_eq!(common::floats(&out), want);
    }
}

#[test]
fn repeats_are_timed_one_by_one() {
    for device in gpus() {
        let case = &cases()[0];
        let kernel = device.compile(&case.kernel).unwrap();
        let args: Vec<_> = (0..2).map(|_| LaunchArg::Buffer(device.alloc(1280).unwrap())).collect();
        let launches = vec![Launch { kernel, grid: case.grid, args }; 3];
        for cache in [CacheState::Cold, CacheState::Warm] {
            // More repeats than are queued together.
            let times = device.time(&launches, &Timing { cache, repeats: 150 }).unwrap();
            assert_eq!(times.len(), 150);
            assert!(times.iter().all(|&t| t > 0.5 && t < 1e6), "{times:?}");
        }
        // Far more launches than a driver's queue holds.
        device.launch(&vec![launches[0].clone(); 3000]).unwrap();
        device.sync().unwrap();
    }
}

#[test]
fn parts_of_buffers_and_native_addresses_agree() {
    for device in gpus() {
        let whole = device.alloc(4096).unwrap();
        let native = device.native().unwrap();
        match native.handles() {
            NativeHandles::Cuda { context, stream } => assert!(context != 0 && stream != 0),
            NativeHandles::Hip { stream, .. } => assert!(stream != 0),
            other => panic!("{other:?}"),
        }
        let part = whole.slice(52, 100).unwrap();
        assert_eq!(native.memory(&part).unwrap(), native.memory(&whole).unwrap() + 52);
        device.fill(&whole, 1).unwrap();
        device.fill(&part, 2).unwrap();
        device.write(&part, 98, &[3, 4]).unwrap();
        let mut all = vec![0; 4096];
        device.read(&whole, 0, &mut all).unwrap();
        let mut want = vec![1; 4096];
        want[52..150].fill(2);
        want[150..152].copy_from_slice(&[3, 4]);
        assert_eq!(all, want);
    }
}

#[test]
fn what_is_too_large_is_refused() {
    for device in gpus() {
        let e = device.alloc(1 << 50).unwrap_err();
        assert!(matches!(e, DeviceError::OutOfMemory { .. }), "{e}");
        // And the device goes on.
        device.alloc(1 << 20).unwrap();
    }
}

#[test]
fn bulk_copies_bring_boxes_with_zeros_beyond_the_edges() {
    let (rows, columns, stride) = common::boxes::BOX_FROM;
    let (high, wide) = common::boxes::BOX;
    let emulator = open("emu:sm_90a").unwrap();
    for device in gpus().into_iter().chain([emulator]).filter(|d| d.info().target.features.bulk_copy) {
        let kernel = device.compile(&common::boxes::boxes()).unwrap();
        // The matrix starts 64 bytes into its buffer.
        let data: Vec<f32> = (0..16 + rows * stride).map(|i| i as f32).collect();
        let whole = device.alloc(4 * data.len() as u64).unwrap();
        device.write(&whole, 0, &data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        let groups = 4;
        let out = device.alloc(4 * u64::from(groups * high * wide)).unwrap();
        let launch = |from: u64, bytes: u64| {
            let args = vec![LaunchArg::Buffer(whole.slice(from, bytes).unwrap()), LaunchArg::Buffer(out.clone())];
            device.launch(&[Launch { kernel: kernel.clone(), grid: [groups, 1, 1], args }])
        };
        // Twice: the second time the map is known.
        for _ in 0..2 {
            device.fill(&out, 0xEE).unwrap();
            launch(64, whole.bytes() - 64).unwrap();
            let mut got = vec![0; out.bytes() as usize];
            device.read(&out, 0, &mut got).unwrap();
            let got: Vec<f32> = got.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            for (i, value) in got.iter().enumerate() {
                let (group, row, column) = (i as u64 / 256, i as u64 % 256 / u64::from(wide), i as u64 % u64::from(wide));
                let (row, column) = (4 * group + row, 20 * group + column);
                let want = if row < rows && column < columns { (16 + row * stride + column) as f32 } else { 0.0 };
                assert_eq!(*value, want, "row {row}, column {column}");
            }
        }
        let odd = launch(8, whole.bytes() - 8).unwrap_err();
        assert!(!odd.is_fatal() && odd.to_string().contains("multiple of 16"), "{odd}");
        let short = launch(64, 100).unwrap_err();
        assert!(!short.is_fatal() && short.to_string().contains("span"), "{short}");
    }
}
