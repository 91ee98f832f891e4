//! Printed source is accepted by the real compilers, without headers, and becomes the code it is meant to become.

mod support;
#[path = "support/tools.rs"]
mod tools;

use support::*;
use tilewright_ir::*;

fn everywhere() -> Vec<Kernel> {
    vec![gemm(), guarded_copy(), edge_fetch(), arithmetic(), atomics(), global_exchange()]
}

#[test]
fn hip_compiles_without_headers_or_library() {
    for arch in ["gfx900", "gfx90a", "gfx942", "gfx950"] {
        for kernel in everywhere().into_iter().chain([wave_sum(64), roles(64, false)]) {
            let Some(assembly) = tools::clang(&kernel, &target(arch)) else { return };
            assert!(!assembly.contains("s_swappc"), "{} for {arch} calls a function", kernel.name);
            assert!(!assembly.contains("flat_load"), "{} for {arch} does not know where its memory is", kernel.name);
            no_scratch(&kernel, arch, &assembly);
        }
    }
}

#[test]
fn opencl_compiles_for_amd() {
    for arch in ["gfx900", "gfx90a", "gfx942", "gfx950"] {
        for kernel in everywhere() {
            let Some(assembly) = tools::clang(&kernel, &target_in_opencl(arch)) else { return };
            assert!(assembly.contains(&kernel.name));
        }
    }
}

#[test]
fn vectors_move_whole_on_amd() {
    let Some(assembly) = tools::clang(&gemm(), &target("gfx942")) else { return };
    for instruction in ["global_load_dwordx2", "ds_read_b128", "ds_write_b64", "global_store_dwordx4"] {
        assert!(assembly.contains(instruction), "{instruction} is missing in\n{assembly}");
    }
}

fn no_scratch(kernel: &Kernel, arch: &str, assembly: &str) {
    let scratch: Vec<&str> = assembly.lines().filter(|l| l.contains(".private_segment_fixed_size:")).collect();
    assert!(!scratch.is_empty() && scratch.iter().all(|l| l.trim().ends_with(" 0")), "{} for {arch}: {scratch:?}", kernel.name);
}

#[test]
fn cuda_compiles_without_headers() {
    for arch in ["sm_75", "sm_80", "sm_90a"] {
        let target = target(arch);
        let mut kernels = everywhere();
        kernels.extend([wave_sum(32), roles(32, false), roles(32, true)]);
        if target.features.async_copy {
            kernels.push(async_copy());
        }
        for kernel in kernels {
            let Some(cubin) = tools::nvrtc(&kernel, &target) else { return };
            assert!(!cubin.binary.is_empty());
            for line in ["0 bytes stack frame", "0 bytes spill stores"] {
                assert!(cubin.log.contains(line), "{} for {arch}: {}", kernel.name, cubin.log);
            }
        }
    }
}
