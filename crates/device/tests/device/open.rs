//! Naming and listing devices, with nothing assumed about the machine.

use crate::common;
use tilewright_device::{Backend, DeviceError, Launch, Options, Timing, default_device, list, open};

#[test]
fn the_list_names_every_back_end() {
    let list = list();
    for backend in Backend::ALL {
        assert_eq!(Backend::of_id(&format!("{}:0", backend.prefix())), Some(backend));
        assert!(list.iter().any(|l| l.backend == backend), "{backend} is not listed");
    }
    for listing in list {
        match listing.device {
            Ok(info) => assert_eq!(info.backend, listing.backend),
            Err(e @ DeviceError::Missing { .. }) => assert!(e.to_string().contains("install"), "{e}"),
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn what_is_no_device_is_refused() {
    for spec in ["", "cudda", "cuda:x", "cuda:-1", "hip:", "opencl:", "emu:sm_1", "emu:", "emulator", "0"] {
        let e = open(spec).err().unwrap();
        assert!(matches!(&e, DeviceError::BadSpec { spec: s, .. } if s == spec), "{spec}: {e}");
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_with_a_remedy() {
    for spec in ["cuda:77", "hip:77", "opencl:77", "opencl:no device has this name"] {
        let e = open(spec).err().unwrap();
        assert!(matches!(e, DeviceError::Missing { .. } | DeviceError::NoSuchDevice { .. }), "{spec}: {e}");
    }
}

#[test]
fn there_is_always_a_default() {
    let device = default_device(&Options::default()).unwrap();
    assert!(device.info().target.units > 0);
}

#[test]
fn the_emulator_runs_and_measures_nothing() {
    for arch in tilewright_ir::Target::known() {
        let device = open(&format!("emu:{arch}")).unwrap();
        assert!(!device.info().is_measured());
        assert_eq!(device.info().target.arch, *arch);
    }
    let device = open("emu").unwrap();
    assert_eq!(device.info().id, "emu");
    for case in common::cases() {
        let out = common::run(&*device, &case).unwrap();
        assert!(out.is_empty() || out.iter().any(|b| b.iter().any(|&x| x != 0xEE)), "{}", case.kernel.name);
    }
    let kernel = device.compile(&common::cases()[0].kernel).unwrap();
    let buffer = || tilewright_device::LaunchArg::Buffer(device.alloc(1280).unwrap());
    let launch = [Launch { kernel, grid: [5, 1, 1], args: vec![buffer(), buffer()] }];
    assert!(matches!(device.time(&launch, &Timing::default()), Err(DeviceError::NotTimed { .. })));
    // Nobody wrote the source: the emulator's checks see that.
    let e = device.launch(&launch).unwrap_err();
    assert!(matches!(e, DeviceError::Emulation { .. }) && !e.is_fatal(), "{e}");
}
