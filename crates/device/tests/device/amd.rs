//! Printed HIP C++ and OpenCL C through clang for AMD's architectures: no GPU, but registers, LDS and occupancy.

use crate::common;
use common::{cases, tool};
use tilewright_device::DeviceError;
use tilewright_device::amd::Clang;
use tilewright_ir::Dialect;

const ARCHS: [&str; 4] = ["gfx900", "gfx90a", "gfx942", "gfx950"];

fn check(dialect: Dialect) {
    let Some(clang) = tool("clang for AMD", Clang::find()) else { return };
    for arch in ARCHS {
        for case in cases() {
            let Some(code) = tool("libclc", clang.compile(&case.kernel, arch, dialect)) else { return };
            let (name, u) = (&case.kernel.name, code.usage);
            // What takes no arguments needs no vector registers.
            let least = u32::from(!case.args.is_empty());
            assert!((least..=512).contains(&u.vgprs) && (1..=128).contains(&u.sgprs), "{arch} {name}: {u:?}");
            assert_eq!((u.vgpr_spills, u.sgpr_spills), (0, 0), "{arch} {name}: {u:?}");
            assert_eq!(u.lds_bytes, case.kernel.shared_bytes().next_multiple_of(4), "{arch} {name}");
            assert_eq!((u.max_threads, u.wave), (case.kernel.threads, 64), "{arch} {name}");
            assert!((1..=10).contains(&u.waves_per_simd), "{arch} {name}: {u:?}");
        }
    }
}

#[test]
fn hip_compiles_without_spills() {
    check(Dialect::Hip);
}

#[test]
fn opencl_compiles_without_spills() {
    check(Dialect::OpenCl);
}

#[test]
fn code_objects_link() {
    let Some(clang) = tool("clang for AMD", Clang::find()) else { return };
    let case = cases().into_iter().find(|c| c.kernel.name == "product").unwrap();
    for (arch, dialect) in ARCHS.into_iter().flat_map(|a| [(a, Dialect::Hip), (a, Dialect::OpenCl)]) {
        let Some(code) = tool("libclc", clang.compile(&case.kernel, arch, dialect)) else { return };
        let object = clang.link(&code, arch).unwrap();
        assert!(object.starts_with(b"\x7fELF"), "{arch}");
    }
}

#[test]
fn what_cannot_be_is_named() {
    let Some(clang) = tool("clang for AMD", Clang::find()) else { return };
    let kernel = &cases()[0].kernel;
    for (arch, dialect) in [("sm_90a", Dialect::Hip), ("gfx1", Dialect::Hip), ("gfx942", Dialect::Cuda)] {
        let e = clang.compile(kernel, arch, dialect).unwrap_err();
        assert!(matches!(e, DeviceError::BadSpec { .. }), "{e}");
    }
}
