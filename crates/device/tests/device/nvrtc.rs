//! Printed CUDA C++ through NVRTC, which needs no GPU.

use crate::common;
use common::{cases, tool};
use tilewright_device::{DeviceError, Options, cuda};
use tilewright_ir::{Access, Base, Builtin, Scalar, Unroll};

#[test]
fn kernels_become_cubins() {
    for arch in ["sm_75", "sm_80", "sm_90a"] {
        for case in cases() {
            let Some(made) = tool("NVRTC", cuda::compile(&case.kernel, arch, &Options::default())) else { return };
            assert!(made.code.starts_with(b"\x7fELF"), "{arch} {}", case.kernel.name);
            let r = made.resources;
            assert!(r.registers.is_some_and(|n| (4..=255).contains(&n)), "{arch} {}: {r:?}\n{}", case.kernel.name, made.log);
            assert_eq!(r.spill_bytes, Some(0), "{arch} {}", case.kernel.name);
            let shared = r.shared_bytes.unwrap();
            // Some generations keep up to 1 KiB for themselves.
            let own = case.kernel.shared_bytes();
            assert!((own..=own + 1024 + 128).contains(&shared), "{arch} {}: {shared} bytes, {own} declared", case.kernel.name);
        }
    }
}

#[test]
fn an_unknown_architecture_is_named() {
    if tool("NVRTC", cuda::compile(&cases()[0].kernel, "sm_90a", &Options::default())).is_none() {
        return;
    }
    for arch in ["sm_1", "gfx942", ""] {
        let e = cuda::compile(&cases()[0].kernel, arch, &Options::default()).unwrap_err();
        assert!(matches!(e, DeviceError::BadSpec { .. }), "{e}");
    }
}

#[test]
fn bulk_copies_and_moving_registers_become_a_cubin() {
    let kernel = common::boxes::boxes();
    let Some(made) = tool("NVRTC", cuda::compile(&kernel, "sm_90a", &Options::default())) else { return };
    // Shared memory starts at a multiple of what patterns of rows repeat after, and bounds let registers move.
    assert!(made.source.text.contains("__align__(1024)") && made.source.text.contains("__launch_bounds__(256, 1)"));
    assert_eq!(made.source.dynamic_shared_bytes, (60 << 10) + 1024 + 8);
    assert!(!made.log.contains("setmaxnreg"), "{}", made.log);
    let e = cuda::compile(&kernel, "sm_80", &Options::default()).unwrap_err();
    assert!(matches!(e, DeviceError::Invalid { .. }), "{e}");
}

/// Registers for 300 live values in work-groups of 1024 threads, of which each may have 64.
#[test]
fn a_kernel_that_spills_more_than_it_has_is_told() {
    let mut b = tilewright_ir::Builder::new("crowded", 1024);
    let x = b.buffer("x", Scalar::F32, Access::Read, "300 numbers per thread");
    let y = b.buffer("y", Scalar::F32, Access::Write, "as many");
    let turns = b.scalar_arg("turns", Scalar::I32, "turns");
    let tid = b.builtin(Builtin::LocalId);
    let regs = b.regs("r", Scalar::F32.ty(), 300);
    for i in 0..300 {
        let at = b.add(tid, 1024 * i);
        let value = b.load("v", Base::Buffer(x), at, 1, None);
        b.set_reg(regs, i, value);
    }
    b.for_range("turn", 0, turns, Unroll::No, |b, turn| {
        let factor = b.load("f", Base::Buffer(x), turn, 1, None);
        for i in 0..300 {
            let (own, other) = (b.reg(regs, i), b.reg(regs, (i * 37 + 11) % 300));
            let sum = b.fma(own, factor, other);
            b.set_reg(regs, i, sum);
        }
    });
    for i in 0..300 {
        let (at, value) = (b.add(tid, 1024 * i), b.reg(regs, i));
        b.store(Base::Buffer(y), at, value, None);
    }
    let Some(made) = tool("NVRTC", cuda::compile(&b.finish(), "sm_90a", &Options::default())) else { return };
    let why = made.slow_reason().unwrap_or_default();
    assert!(why.contains("spills"), "{why}\n{}", made.log);
    for case in cases() {
        let made = cuda::compile(&case.kernel, "sm_90a", &Options::default()).unwrap();
        assert_eq!(made.slow_reason(), None, "{}", case.kernel.name);
    }
}
