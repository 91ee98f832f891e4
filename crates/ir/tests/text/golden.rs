//! Printed source, reviewed like code: one snapshot per kernel and dialect.

use crate::support;

use support::*;
use tilewright_ir::*;

fn text(kernel: &Kernel, target: &Target) -> String {
    let source = print(kernel, target).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(source, print(kernel, target).unwrap_or_else(|e| panic!("{e}")), "printing is deterministic");
    assert_eq!(source.entry, kernel.name);
    assert!(!source.text.contains("#include"));
    source.text
}

macro_rules! golden {
    ($($name:ident: $kernel:expr, $target:expr;)*) => {$(
        #[test]
        fn $name() {
            insta::assert_snapshot!(text(&$kernel, &$target));
        }
    )*};
}

golden! {
    gemm_cuda: gemm(), target("sm_90a");
    gemm_hip: gemm(), target("gfx942");
    gemm_opencl: gemm(), opencl();
    guarded_copy_cuda: guarded_copy(), target("sm_80");
    guarded_copy_hip: guarded_copy(), target("gfx900");
    guarded_copy_opencl: guarded_copy(), opencl();
    arithmetic_cuda: arithmetic(), target("sm_90a");
    arithmetic_cuda_sm75: arithmetic(), target("sm_75");
    arithmetic_hip: arithmetic(), target("gfx90a");
    arithmetic_opencl: arithmetic(), opencl();
    atomics_cuda: atomics(), target("sm_90a");
    atomics_hip: atomics(), target("gfx942");
    atomics_opencl: atomics(), opencl();
    wave_sum_cuda: wave_sum(32), target("sm_80");
    wave_sum_hip: wave_sum(64), target("gfx900");
    wave_sum_opencl: wave_sum(64), target_in_opencl("gfx900");
    roles_cuda: roles(32, false), target("sm_90a");
    roles_named_cuda: roles(32, true), target("sm_90a");
    roles_hip: roles(64, false), target("gfx942");
    async_copy_cuda: async_copy(), target("sm_80");
    edge_fetch_cuda: edge_fetch(), target("sm_90a");
    literals_cuda: literals(), target("sm_90a");
    literals_hip: literals(), target("gfx942");
    literals_opencl: literals(), opencl();
    sigmoid_cuda: sigmoid(Scalar::F32), target("sm_90a");
    sigmoid_f64_cuda: sigmoid(Scalar::F64), target("sm_80");
    sigmoid_hip: sigmoid(Scalar::F32), target("gfx942");
    sigmoid_opencl: sigmoid(Scalar::F32), opencl();
    round_tf32_cuda: round_tf32(), target("sm_80");
    round_tf32_hip: round_tf32(), target("gfx942");
    round_tf32_opencl: round_tf32(), opencl();
    warpgroup_gemm_cuda: matrix::warpgroup_gemm(), target("sm_90a");
    cluster_exchange_cuda: matrix::cluster_exchange(), target("sm_90a");
    wave_gemm_cuda: matrix::wave_gemm(), target("sm_80");
    mfma_16_bit_hip: matrix::amd_product(MatrixType::BF16, 32, 8), target("gfx942");
    mfma_f32_hip: matrix::amd_product(MatrixType::F32, 16, 4), target("gfx90a");
    global_exchange_opencl: global_exchange(), opencl();
}

#[test]
fn shared_memory_beyond_48_kib_comes_with_the_launch() {
    let source = |k: &Kernel, arch| print(k, &target(arch)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(source(&async_copy(), "sm_80").dynamic_shared_bytes, 64 << 10);
    assert_eq!(source(&gemm(), "sm_80").dynamic_shared_bytes, 0);
}
