//! What compilers make of matrix instructions of single waves: the instructions meant, and no spills.

use crate::common;
use common::Bench;
use serde_json::Value;
use tilewright_check::random::whole_run;

/// 128 x 128 x 32 by four waves, loads along either direction in 16 bytes.
const MMA: &str =
    "A_MIC4_PAD1_GLW8_LIW1_ACP1__B_MIC8_PAD1_GLW8_LIW1_ACP1__C_UNI1_UNR32_MAC128_SKW10_PFG3_BUF4_FRA1_CVW2_EDG1_UKL1_ICE1";
/// The same through registers, as operands want whose lines start anywhere, deeper and with load waves.
const SCALAR: &str =
    "A_MIC2_PAD1_GLW1_LIW1_ACP0__B_MIC4_PAD1_GLW1_LIW1_ACP0__C_UNI1_UNR64_MAC128_SKW10_PFG1_BUF2_STP1_FRA0_LWV4_CVW1_EDG1_ICE1";
/// 128 x 128 x 32 by four waves of 64, instructions of 32 x 32.
const MFMA: &str =
    "A_MIC4_PAD1_GLW8_LIW1__B_MIC4_PAD1_GLW8_LIW1__C_UNI3_UNR32_MAC256_SKW10_PFG1_BUF2_STP1_FRA1_CVW2_EDG1_UKL1_HNT1_ICE1";
/// Instructions of 16 x 16.
const SMALL: &str = "A_MIC3_PAD1_GLW1__B_MIC1_PAD1_GLW1__C_UNI3_UNR32_MAC128_SKW10_PFG1_BUF2_STP1_FRA0_CVW1_EDG1_ICE1";

/// The reading of a kernel; `None`, and a visible line, where a tool is missing and not required.
fn inspect(arch: &str, dtype: &str, trans: &str, extent: u32, plan: &str) -> Option<Value> {
    let sizes = format!("--m {extent} --n {extent} --k {extent} --order row --trans {trans}");
    let ran = Bench::new().run(&format!("inspect gemm --dtype {dtype} {sizes} --arch {arch} --plan {plan} --json"));
    if ran.misses_a_tool() {
        return None;
    }
    ran.ends(0);
    Some(ran.objects().remove(0)["inspection"].clone())
}

fn holds(arch: &str, dtype: &str, extent: u32, plan: &str, instruction: &str) {
    // Outside of a whole run one transposition, another for each type.
    let all = ["nn", "nt", "tn"].into_iter().cycle().skip(arch.len() + dtype.len());
    for trans in all.take(if whole_run() { 3 } else { 1 }) {
        let Some(read) = inspect(arch, dtype, trans, extent, plan) else { return };
        let name = format!("{arch} {dtype} {trans} {plan}");
        let loops = read["loops"].to_string();
        assert!(loops.contains(instruction), "{name}: no {instruction} in {loops}");
        for usage in ["spill_bytes", "private_bytes"] {
            assert_eq!(read["usage"][usage], 0, "{name}: {usage} in {}", read["usage"]);
        }
    }
}

pub fn mma_on_nvidia() {
    for arch in ["sm_80", "sm_90a"] {
        holds(arch, "bf16", 4096, MMA, "HMMA.16816.F32.BF16");
        holds(arch, "f16", 4095, SCALAR, "HMMA.16816.F32");
    }
}

pub fn mfma_on_amd() {
    // The assembler names shapes with or without underscores.
    for (arch, large, small) in [
        ("gfx90a", "v_mfma_f32_32x32x8bf16_1k", "v_mfma_f32_16x16x16f16"),
        ("gfx942", "v_mfma_f32_32x32x8_bf16", "v_mfma_f32_16x16x16_f16"),
        ("gfx950", "v_mfma_f32_32x32x16_bf16", "v_mfma_f32_16x16x32_f16"),
    ] {
        holds(arch, "bf16", 4096, MFMA, large);
        holds(arch, "f16", 4095, SMALL, small);
    }
}
