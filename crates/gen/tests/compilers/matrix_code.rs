//! What the assembler makes of plans for warpgroup instructions: the intended instructions, in the main loop, and nothing spilled or
//! serialised. Needs NVRTC and nvdisasm, no GPU.

use crate::missing;

use tilewright_device::inspect::{Class, inspect};
use tilewright_device::{DeviceError, Options, cuda};
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::{Kernel, Scalar, Target};
use tilewright_problem::{Activation, Along, GateFunction, Gemm, GemmBuilder, Math, Order, Problem};

const ARCH: &str = "sm_90a";

/// The main kernel of a plan.
fn main_kernel(problem: &Problem, plan: &str, arch: &str) -> Kernel {
    let space = Space::new(problem, &Target::by_arch(arch).unwrap()).unwrap();
    let plan = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
    let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
    let program = r.generate(space.env().workspace_bytes).unwrap();
    program.kernels.into_iter().find(|k| k.name == MAIN).unwrap()
}

/// What a tool made, or `None` with a visible line where it is missing and not required.
fn made<T>(result: Result<T, DeviceError>) -> Option<T> {
    match result {
        Err(e @ DeviceError::Missing { .. }) => {
            missing::missing(&e.to_string());
            None
        }
        result => Some(result.unwrap()),
    }
}

/// Compiles and reads the main kernel of a plan: all `there`, none of `absent`.
fn reads(gemm: GemmBuilder, plan: &str, there: &[&str], absent: &[&str]) -> bool {
    reads_problem(&gemm.build().unwrap().into(), plan, there, absent)
}

fn reads_problem(problem: &Problem, plan: &str, there: &[&str], absent: &[&str]) -> bool {
    let kernel = main_kernel(problem, plan, ARCH);
    let Some(code) = made(cuda::compile(&kernel, ARCH, &Options::default())) else { return false };
    assert_eq!(code.slow_reason(), None, "{plan}\n{}", code.log);
    let Some(seen) = made(inspect(&kernel, ARCH, None, &Options::default())) else { return false };
    let usage = seen.usage;
    assert_eq!((usage.spill_bytes, usage.private_bytes), (0, 0), "{plan}: {usage:?}");
    for word in there {
        assert!(seen.assembly.contains(word), "{plan}: no {word}");
    }
    for word in absent {
        assert!(!seen.assembly.contains(word), "{plan}: {word}");
    }
    let main = seen.main_loop().unwrap_or_else(|| panic!("{plan}: no main loop"));
    eprintln!("{plan}: {} registers, main loop {:?}", usage.registers, main.counts);
    assert!(main.count(Class::Math) > 0 && main.count(Class::Scratch) == 0, "{plan}: {:?}", main.counts);
    assert!(main.count(Class::Wait) > 0 && main.count(Class::MathWait) > 0, "{plan}: {:?}", main.counts);
    let copies = |l: &tilewright_device::inspect::LoopReport| l.count(Class::Copy) > 0;
    assert!(seen.loops.iter().any(copies) || !plan.contains("ACP2"), "{plan}: no loop copies");
    // With roles, who computes copies nothing.
    let roles = plan.contains("LWV");
    assert_eq!(copies(main), !roles, "{plan}: {:?}", main.counts);
    true
}

#[test]
fn warpgroup_instructions_and_bulk_copies() {
    let gemm = |dtype| Gemm::new(dtype, 4096, 4096, 4096).order(Order::Col);
    let (f16, bf16) = (|| gemm(Scalar::F16), || gemm(Scalar::BF16));
    let head = |mic_a: u32, mic_b: u32, rest: &str| format!("A_MIC{mic_a}_ACP2__B_MIC{mic_b}_ACP2__C_UNI2_{rest}");
    let plans = [
        (f16(), head(1, 8, "MAC128_UNR64_PFG1_BUF2")),
        (bf16().trans(true, false), head(1, 16, "MAC128_UNR64_PFG2_BUF4_FRA1")),
        (f16().trans(false, true), head(1, 16, "MAC256_UNR64_PFG2_BUF3_LWV1")),
        (bf16().trans(true, true), head(2, 16, "MAC256_UNR64_BUF4_LWV4_PST132")),
        (bf16().order(Order::Row).trans(false, true), head(1, 32, "MAC256_UNR64_BUF4_LWV4_PST132_FRA1")),
        (f16().order(Order::Row).trans(false, true), head(1, 13, "MAC256_UNR64_BUF3_LWV4")),
        (bf16().order(Order::Row), head(1, 8, "MAC384_SKW11_UNR64_BUF3_LWV4")),
        (f16().order(Order::Row).trans(true, false), head(1, 16, "MAC128_UNR128_PFG1_BUF3_FRA1_SWP1")),
        (bf16().out_dtype(Scalar::F32), head(1, 16, "MAC256_UNR64_BUF3_LWV4_SWP1_CVW2")),
        (bf16(), head(1, 16, "MAC256_UNR64_BUF3_LWV4_ICE3_SKS1")),
    ];
    for (gemm, plan) in plans {
        if !reads(gemm, &plan, &["HGMMA", "UTMALDG"], &["HMMA.", "UTMASTG"]) {
            return;
        }
    }
    // Work-groups of a cluster copy for each other: both operands, or one of them beside splits that sum up.
    let clusters = [
        (bf16().order(Order::Row).trans(false, true), (2, 1), head(2, 16, "MAC256_UNR64_BUF4_LWV4_PST132_FRA1")),
        (bf16().order(Order::Row), (1, 2), head(1, 16, "MAC256_UNR64_BUF4_LWV4_PST132")),
        (f16(), (2, 2), head(1, 16, "MAC256_UNR64_PFG2_BUF3")),
        (bf16().order(Order::Row), (2, 1), head(1, 16, "MAC128_UNR64_BUF4_LWV4_ICE4_SKS2_CVW2")),
    ];
    for (gemm, (m, n), plan) in clusters {
        let plan = plan.replacen("__B", &format!("_CLU{m}__B"), 1).replacen("__C", &format!("_CLU{n}__C"), 1);
        if !reads(gemm, &plan, &["HGMMA", ".MULTICAST", "UCGABAR"], &["HMMA.", "UTMASTG"]) {
            return;
        }
    }
    let sums = head(1, 16, "MAC128_UNR64_BUF4_LWV4_ICE8_SKS2_CVW2");
    if !reads(bf16().order(Order::Row), &sums, &["HGMMA", "UTMALDG", "UCGABAR"], &[".MULTICAST", "UTMASTG"]) {
        return;
    }
    let staged = [
        (bf16().order(Order::Row), head(1, 16, "MAC256_UNR64_BUF4_LWV4_PST132_CST1")),
        (bf16().order(Order::Row).trans(false, true), head(2, 16, "MAC256_UNR64_BUF5_LWV4_PST132_FRA1_CST1_PNG1")),
        (f16().order(Order::Row).out_dtype(Scalar::F32), head(1, 8, "MAC128_UNR64_PFG2_BUF3_CST1")),
        (f16().order(Order::Col), head(2, 16, "MAC128_UNR64_PFG2_BUF4_FRA1_PST264_SWP1_CST1")),
    ];
    for (gemm, plan) in staged {
        if !reads(gemm, &plan, &["HGMMA", "UTMALDG", "UTMASTG"], &[]) {
            return;
        }
    }
}

/// Groups of rows take nothing from the loop: bulk copies begin at any row, and rows leave by plain stores in vectors.
#[test]
fn groups_of_rows() {
    let (both, other) = ("A_MIC1_ACP2__B_MIC32_ACP2", "A_MIC1_ACP0__B_MIC16_ACP2");
    let gemm = || Gemm::new(Scalar::BF16, 8192, 2048, 4096).grouped(Along::M, 16);
    let cases = [
        (gemm(), format!("{both}__C_UNI2_MAC256_UNR64_BUF4_LWV1_PST132_CST1")),
        (gemm().trans(false, true), format!("{both}__C_UNI2_MAC256_UNR64_PFG3_BUF4_LWV1_FRA1_CST1")),
        // Rows that are neighbours in memory begin anywhere.
        (gemm().trans(true, false), format!("{other}__C_UNI2_MAC256_UNR64_BUF3_LWV4_PST132_CST1")),
    ];
    for (gemm, plan) in cases {
        if !reads(gemm, &plan, &["HGMMA", "UTMALDG", "STG.E.128"], &["UTMASTG"]) {
            return;
        }
    }
}

/// Windows of convolutions come in im2col mode in all directions, also by multicast, of channels that are padded, and from a tensor copied
/// with padded rows.
#[test]
fn windows_of_convolutions() {
    let head = |mic_a: u32, mic_b: u32, rest: &str| format!("A_MIC{mic_a}_ACP2__B_MIC{mic_b}_ACP2__C_UNI2_{rest}_BIM1");
    let clustered = head(2, 16, "MAC256_UNR64_BUF4_LWV4_PST132").replacen("__C", "_CLU2__C", 1);
    let size = "n32_g1_c256_k256_in25x25_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let padded = head(2, 16, "MAC256_UNR64_BUF4_LWV4_PST132").replace("BIM1", "BIM3");
    let narrow = size.replace("k256", "k36");
    let depthwise = "n32_g144_c144_k144_in56x56_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let cases = [
        (format!("conv_bwdd_nhwc_{narrow}"), padded.replacen("__B", "_WOS3__B", 1), "UTMALDG.4D.IM2COL"),
        (
            format!("conv_fwd_nhwc_{depthwise}"),
            padded.replacen("__C", "_WOS1__C", 1).replace("MIC16", "MIC6"),
            "UTMALDG.4D.IM2COL",
        ),
        (format!("conv_fwd_nhwc_{size}"), head(2, 16, "MAC256_UNR64_BUF4_LWV4_PST132_FRA1"), "UTMALDG.4D.IM2COL"),
        (format!("conv_fwd_nhwc_{size}"), head(2, 19, "MAC256_UNR64_BUF4_LWV4_SWP1"), "UTMALDG.4D.IM2COL"),
        (format!("conv_fwd_nhwc_{size}"), clustered, "UTMALDG.4D.IM2COL.MULTICAST"),
        (format!("conv_bwdd_nhwc_{size}"), head(2, 16, "MAC256_UNR64_BUF4_LWV4_PST132"), "UTMALDG.4D.IM2COL"),
        (format!("conv_bwdw_nhwc_{size}"), head(1, 32, "MAC256_UNR64_BUF4_LWV4_ICE7_SKS1"), "UTMALDG.4D.IM2COL"),
    ];
    for (problem, plan, copy) in cases {
        let problem = Problem::parse(&format!("{problem}_bias0_ws67108864_bf16")).unwrap();
        if !reads_problem(&problem, &plan, &["HGMMA", copy], &["HMMA."]) {
            return;
        }
    }
}

/// Operands reduced over k beside the product: by the math warps, from shared memory, with matrix instructions of the k-tile in flight.
#[test]
fn operands_over_k() {
    let gemm = |a: bool, b: bool, reductions: &[&str]| {
        let gemm = Gemm::new(Scalar::BF16, 4096, 4096, 4096).order(Order::Row).trans(a, b);
        reductions.iter().fold(gemm, |gemm, text| gemm.reduce(text.parse().unwrap()))
    };
    let plans = [
        (gemm(false, true, &["sum:k:a"]), "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_RDK1"),
        (gemm(true, false, &["sum:k:a"]), "A_MIC1_ACP2__B_MIC32_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_FRA1_CST1_RDK1"),
        (
            gemm(false, true, &["sum:k:a", "absmax:k:b"]),
            "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR64_BUF5_LWV4_PST132_FRA1_CST1_PNG1_RDK1",
        ),
        (gemm(false, false, &["sum:k:b"]), "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC128_UNR64_PFG2_BUF4_ICE3_SKS1_RDK1"),
    ];
    for (gemm, plan) in plans {
        if !reads(gemm, plan, &["HGMMA", "UTMALDG", "LDS.128"], &["HMMA."]) {
            return;
        }
    }
}

/// Load waves with loads of their own: vectors of 16 bytes where rows are aligned, single elements elsewhere; nothing spilled on either side
/// of the registers' move.
#[test]
fn tiles_through_registers() {
    let gemm = |m, n, k| Gemm::new(Scalar::BF16, m, n, k).order(Order::Row);
    let aligned = [
        (gemm(4096, 4096, 4096), "A_MIC1_ACP0__B_MIC16_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV8"),
        (gemm(4096, 4096, 4096).trans(false, true), "A_MIC1_ACP0__B_MIC16_ACP0__C_UNI2_MAC256_UNR64_BUF4_LWV4"),
    ];
    let single = [
        (gemm(4095, 4095, 4095), "A_MIC1_ACP0__B_MIC16_ACP0__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_CST1"),
        (gemm(4095, 4095, 4095).trans(false, true), "A_MIC1_ACP0__B_MIC32_ACP0__C_UNI2_MAC256_UNR64_BUF4_LWV4_CVW1"),
        (gemm(35, 8457, 2560), "A_MIC1_ACP2__B_MIC8_ACP0__C_UNI2_MAC128_UNR64_BUF4_LWV4"),
        (gemm(1000, 1001, 1002), "A_MIC1_ACP0__B_MIC8_ACP0__C_UNI2_MAC128_UNR64_BUF3_LWV4_MGP2"),
        (gemm(2047, 2047, 8191), "A_MIC2_ACP0__B_MIC16_WOS1_ACP2__C_UNI2_MAC256_UNR64_BUF3_LWV8_CST1"),
    ];
    let aligned = aligned.map(|(gemm, plan)| (gemm, plan, ["HGMMA", "LDG.E.128", "STS.128"]));
    let single = single.map(|(gemm, plan)| (gemm, plan, ["HGMMA", "LDG.E.U16", "STS."]));
    for (gemm, plan, words) in aligned.into_iter().chain(single) {
        if !reads(gemm, plan, &words, &["HMMA."]) {
            return;
        }
    }
}

/// Load waves that shift lines from staging: bulk copies of their aligned spans, vectors from there and back, and
/// nothing spilled.
#[test]
fn lines_from_staging() {
    let gemm = |m, n, k| Gemm::new(Scalar::BF16, m, n, k).order(Order::Row);
    let plans = [
        (gemm(3136, 64, 575), "A_MIC1_ACP3__B_MIC8_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_CST1"),
        (gemm(4095, 4095, 4095), "A_MIC1_ACP3__B_MIC16_ACP3__C_UNI2_MAC256_UNR64_BUF3_LWV8_PST132_CST1"),
        (gemm(4095, 4095, 4095).trans(false, true), "A_MIC1_WOS1_ACP2__B_MIC32_ACP3__C_UNI2_MAC256_UNR64_BUF2_LWV4_CVW1"),
        (gemm(35, 8457, 2560), "A_MIC1_ACP2__B_MIC8_ACP3__C_UNI2_MAC128_UNR64_BUF4_LWV4"),
        (gemm(1000, 1001, 1002), "A_MIC1_ACP3__B_MIC8_ACP3__C_UNI2_MAC128_UNR64_BUF3_LWV1"),
    ];
    for (gemm, plan) in plans {
        if !reads(gemm, plan, &["HGMMA", "UTMALDG", "LDS.128", "STS.128"], &["HMMA."]) {
            return;
        }
    }
}

/// What happens to the sums costs neither registers nor the overlap of matrix instructions; functions are the hardware's own, bias and
/// residual come in vectors.
#[test]
fn epilogues() {
    let gemm = |m, n| Gemm::new(Scalar::BF16, m, n, 4096).order(Order::Row).trans(false, true);
    let (even, odd) = (|| gemm(4096, 4096), || gemm(4095, 4095));
    let big = "A_MIC1_ACP2__B_MIC32_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_CST1";
    let gated = "A_MIC1_ACP2__B_MIC32_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_CST1_BIM4";
    let turns = "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR64_BUF5_LWV4_PST132_FRA1_CST1_PNG1";
    let plain = "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC128_UNR64_PFG2_BUF3_CVW2";
    let all = |g: GemmBuilder, f| g.bias(Along::N).activation(f).residual();
    let plans = [
        (even().bias(Along::N).activation(Activation::GeluTanh), big, vec!["MUFU.EX2", "MUFU.RCP"]),
        (all(even(), Activation::Silu), turns, vec!["MUFU.EX2", "MUFU.RCP"]),
        (gemm(4096, 2048).gate(GateFunction::Silu), gated, vec!["MUFU.EX2", "UTMASTG"]),
        (all(even(), Activation::Gelu), big, vec!["FFMA"]),
        (all(even(), Activation::Relu).out_dtype(Scalar::F32), plain, vec!["LDG.E.64"]),
        (
            all(odd(), Activation::GeluTanh),
            "A_MIC1_ACP2_WOS1__B_MIC32_ACP2_WOS1__C_UNI2_MAC256_UNR64_BUF3_LWV4_PST132_CST1",
            vec!["MUFU.EX2"],
        ),
        (
            odd().bias(Along::N).activation(Activation::GeluTanh),
            "A_MIC1_ACP2_WOS1__B_MIC32_ACP2_WOS1__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_CST1",
            vec!["MUFU.EX2"],
        ),
        (all(odd(), Activation::Gelu), "A_MIC1_ACP0__B_MIC16_ACP0__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_CST1", vec!["FFMA"]),
    ];
    for (gemm, plan, there) in plans {
        // No subroutine, as divisions have one.
        if !reads(gemm, plan, &there, &["CALL."]) {
            return;
        }
    }
}

/// A product of f32 that TF32 may be multiplied for.
fn tf32() -> GemmBuilder {
    Gemm::new(Scalar::F32, 4096, 4096, 4096).order(Order::Col).math(Math::Tf32)
}

#[test]
fn warpgroup_instructions_of_tf32() {
    let head = |mic_a: u32, mic_b: u32, wos: [u32; 2], rest: &str| {
        format!("A_MIC{mic_a}_ACP2_WOS{}__B_MIC{mic_b}_ACP2_WOS{}__C_UNI2_{rest}", wos[0], wos[1])
    };
    let row = || tf32().order(Order::Row);
    let plans = [
        (row().trans(false, true), head(1, 32, [0, 0], "MAC256_UNR32_BUF4_LWV4_PST132_FRA1_CST1")),
        (row(), head(2, 16, [0, 1], "MAC256_UNR32_BUF4_LWV4_PST132_CST1")),
        (row().trans(true, false), head(1, 16, [1, 1], "MAC128_UNR64_PFG1_BUF3_FRA1")),
        (tf32(), head(1, 16, [0, 1], "MAC256_UNR32_BUF4_LWV4_PST132_SWP1_CST1_PNG1")),
    ];
    for (gemm, plan) in plans {
        if !reads(gemm, &plan, &["HGMMA", "TF32", "UTMALDG"], &["HMMA."]) {
            return;
        }
    }
}

/// The left operand from registers: instructions name them, fragments come by `ldmatrix` or word by word, and the assembler waits for
/// no more groups than the plan does.
#[test]
fn left_operands_from_registers() {
    let bf16 = || Gemm::new(Scalar::BF16, 4096, 4096, 4096).order(Order::Row);
    let f32 = || tf32().order(Order::Row);
    let plans = [
        // Contiguous along rows, read in place.
        (f32().trans(true, true), "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR32_BUF4_LWV4_PST132_CST1_FRA1_RGA2", "LDS"),
        (f32().trans(true, true), "A_MIC1_ACP2__B_MIC32_ACP2__C_UNI2_MAC256_UNR32_BUF4_LWV4_PST132_CST1_FRA1_RGA4", "LDS"),
        (f32(), "A_MIC1_ACP2__B_MIC32_ACP2__C_UNI2_MAC256_UNR32_BUF4_LWV4_PST132_SWP1_CST1_RGA2", "UTMASTG"),
        (f32(), "A_MIC1_ACP2__B_MIC32_ACP2__C_UNI2_MAC256_UNR32_BUF4_LWV4_PST132_SWP1_CST1_FRA1_RGA4", "UTMASTG"),
        (f32(), "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR32_BUF4_LWV4_PST132_SWP1_FRA1_RGA4", "LDS"),
        (f32().trans(true, true), "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR32_BUF5_LWV4_PST132_CST1_FRA1_PNG1_RGA2", "LDS"),
        (f32().trans(true, true), "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC128_UNR32_PFG2_BUF4_FRA1_RGA4", "LDS"),
        // Along k, and 16-bit operands either way.
        (
            f32().trans(false, true),
            "A_MIC1_ACP2__B_MIC32_ACP2__C_UNI2_MAC256_UNR32_BUF4_LWV4_PST132_CST1_FRA1_RGA4",
            "LDSM.16.M88.4",
        ),
        (
            bf16().trans(false, true),
            "A_MIC1_ACP2__B_MIC32_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_CST1_FRA1_RGA2",
            "LDSM.16.M88.4",
        ),
        (
            bf16().trans(true, false),
            "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV4_PST132_CST1_RGA4",
            "LDSM.16.MT88.4",
        ),
    ];
    for (gemm, plan, fragments) in plans {
        if !reads(gemm, plan, &["HGMMA", "UTMALDG", fragments], &["HMMA."]) {
            return;
        }
    }
}

/// Fragments by single reads, rounded; nothing spilled.
#[test]
fn wave_instructions_of_tf32() {
    let plans = [
        "A_MIC4_PAD1_PLU1_GLW4_ACP1__B_MIC8_PAD2_LOR1_GLW4_ACP1__C_UNI1_UNR16_MAC128_PFG2_BUF3_CVW2_EDG1_UKL1_SWP1",
        "A_MIC2_PAD2_LOR1_GLW4__B_MIC4_PAD1_PLU1_GLW4__C_UNI1_UNR32_MAC128_PFG1_BUF2_STP1_FRA1_EDG1_UKL1",
    ];
    for plan in plans {
        let kernel = main_kernel(&tf32().build().unwrap().into(), plan, "sm_80");
        let Some(seen) = made(inspect(&kernel, "sm_80", None, &Options::default())) else { return };
        let usage = seen.usage;
        assert_eq!((usage.spill_bytes, usage.private_bytes), (0, 0), "{plan}: {usage:?}");
        assert!(seen.assembly.contains("HMMA.1688.F32.TF32"), "{plan}");
        let main = seen.main_loop().unwrap_or_else(|| panic!("{plan}: no main loop"));
        eprintln!("{plan}: {} registers, main loop {:?}", usage.registers, main.counts);
    }
}

/// Doubles by single reads of swizzled panels: constants of the load instructions lead to most of them, and nothing is spilled.
#[test]
fn doubles_from_panels() {
    let plan = "A_MIC4_ACP2__B_MIC4_ACP2__C_UNI1_UNR16_MAC128_SKW10_PFG2_BUF3_FRA1_CVW2";
    for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
        let gemm = Gemm::new(Scalar::F64, 2048, 2048, 2048).order(Order::Row).trans(a, b);
        let kernel = main_kernel(&gemm.build().unwrap().into(), plan, ARCH);
        let Some(seen) = made(inspect(&kernel, ARCH, None, &Options::default())) else { return };
        let usage = seen.usage;
        assert_eq!((usage.spill_bytes, usage.private_bytes), (0, 0), "{plan}: {usage:?}");
        let main = seen.main_loop().unwrap_or_else(|| panic!("{plan}: no main loop"));
        eprintln!("{plan}: {} registers, main loop {:?}, {} of integers", usage.registers, main.counts, main.integer);
        // An address for each of 48 reads would be at least as many.
        let reads = main.count(Class::SharedRead);
        assert!(reads == 48 && main.integer < 2 * reads, "{plan}: {} of integers", main.integer);
    }
}

/// Two reductions of two values each beside as many sums as a thread has registers for, of tiles that overhang: logits of a language model.
#[test]
fn reductions_spill_nothing() {
    let gemm = |m: u64, n: u64, k: u64| {
        let gemm = Gemm::new(Scalar::BF16, m, n, k).order(Order::Row).trans(false, true).drop_c();
        gemm.reduce("argmax:n".parse().unwrap()).reduce("logsumexp:n".parse().unwrap())
    };
    let plan = |side: &str, more: &str| format!("{side}__C_UNI2_MAC256_UNR64_PFG3_BUF4_FRA1_LWV4_PST132_GAL2{more}");
    for (side, more) in [
        ("A_MIC2_ACP2_CLU2__B_MIC24_ACP2", "_PNG1"),
        ("A_MIC2_ACP2_CLU2__B_MIC26_ACP2", "_PNG1"),
        ("A_MIC1_ACP2_CLU2__B_MIC32_ACP2", ""),
        ("A_MIC1_ACP2__B_MIC32_ACP2_CLU2", "_RDF5"),
    ] {
        if !reads(gemm(2048, 32000, 4096), &plan(side, more), &["HGMMA", "SHFL"], &["STL", "LDL"]) {
            return;
        }
    }
}

/// Splits of k that a cluster adds up, each work-group's share staged and, where it says so, reduced: by bulk stores, by whole rows.
#[test]
fn staged_shares_of_a_cluster_spill_nothing() {
    let gemm = |n: u64| Gemm::new(Scalar::BF16, 512, n, 8192).order(Order::Row).trans(false, true);
    let plan = |b: u32, more: &str| {
        format!("A_MIC1_ACP2__B_MIC{b}_ACP2__C_UNI2_MAC256_UNR64_PFG3_BUF4_FRA1_LWV4_ICE2_SKS2_CST1_EDG1{more}")
    };
    let reduced = gemm(1024).reduce("absmax:n".parse().unwrap());
    for (gemm, plan, opcodes) in [
        (gemm(1024), plan(16, ""), ["HGMMA", "UTMASTG"]),
        (gemm(1024), plan(32, "_PST132"), ["HGMMA", "UTMASTG"]),
        (gemm(1026), plan(16, ""), ["HGMMA", "STG.E.128"]),
        (reduced, plan(16, ""), ["SHFL", "UTMASTG"]),
    ] {
        if !reads(gemm, &plan, &opcodes, &["STL", "LDL"]) {
            return;
        }
    }
}

/// Results of batches leave in the vectors that the plan asks for: stored member by member, each is a transaction of its own.
#[test]
fn vectors_of_batches_are_stored_whole() {
    let panels = "A_MIC16_PAD1_FRW4_ACP1__B_MIC8_PAD1_FRW4_ACP1__C_UNR16_MAC128_SKW11_CVW4_WVA8_PFG1_BUF2_FRA1";
    let pairs = "A_MIC4_PAD1_FRW4_ACP1__B_MIC4_PAD1_FRW4_ACP1__C_UNR16_MAC64_SKW10_CVW2_PFG1_BUF2_FRA1";
    let rows = "A_MIC1_ACP2__B_MIC16_ACP2__C_UNR64_MAC512_CST1_PFG4_BUF5_FRA1_LWV4_UNI2_PST132_PNG1";
    let product = |scalar, m, k| Gemm::new(scalar, m, m, k).order(Order::Row).trans(false, true);
    let cases = [
        (product(Scalar::F32, 512, 128).batch(96), panels, "STG.E.128"),
        (product(Scalar::F32, 512, 128).batch(96), pairs, "STG.E.64"),
        (product(Scalar::BF16, 197, 64).batch(768), rows, "STG.E.128"),
    ];
    for (gemm, plan, vector) in cases {
        let kernel = main_kernel(&gemm.build().unwrap().into(), plan, ARCH);
        let Some(seen) = made(inspect(&kernel, ARCH, None, &Options::default())) else { return };
        let stores: Vec<&str> = seen.assembly.lines().filter(|line| line.contains("STG.")).collect();
        assert!(stores.iter().any(|line| line.contains(vector)), "{plan}: {stores:#?}");
        assert!(!stores.iter().any(|line| line.contains("STG.E ")), "{plan}: {stores:#?}");
        assert_eq!(seen.usage.spill_bytes, 0, "{plan}");
        // Rows of a micro tile are a constant apart: that is an offset of the instruction, not an address of its own.
        if plan == panels {
            let offsets = stores.iter().filter(|line| line.contains("+0x")).count();
            assert!(2 * offsets > stores.len(), "{stores:#?}");
        }
    }
}

/// Four halves in one store: each pair is converted into one register. Composed to a 64-bit integer, CUDA 13.0's ptxas converted them one
/// by one and lost the third.
#[test]
fn four_halves_are_stored_as_two_pairs() {
    let plan = "A_MIC1_PAD0_PLU0_LIW0_MIW0_WOS2_VEW1_LOR1__B_MIC4_PAD1_PLU0_LIW0_MIW0_WOS2_VEW1_LOR1__C_UNR12_GAL3_PUN1_ICE1_IWI0_SZT0_MAD1_NAW64_UFO0_MAC192_SKW10_AFI1_MIA1_EDG1_CVW4_CST1_WVA16";
    let gemm = Gemm::new(Scalar::BF16, 36, 60, 4).trans(false, true).batch(4).bias(Along::M);
    let kernel = main_kernel(&gemm.build().unwrap().into(), plan, ARCH);
    let Some(seen) = made(inspect(&kernel, ARCH, None, &Options::default())) else { return };
    let lines = |what: &str| seen.assembly.lines().filter(|line| line.contains(what)).collect::<Vec<&str>>();
    let (stores, pairs) = (lines("STG.E.64"), lines("F2FP.BF16.F32.PACK_AB"));
    assert!(!stores.is_empty(), "{:#?}", lines("STG."));
    assert!(pairs.len() >= 2 * stores.len(), "{pairs:#?}");
    let alone: Vec<&&str> = pairs.iter().filter(|line| line.contains("RZ")).collect();
    assert!(alone.is_empty() && lines("F2F.BF16").is_empty(), "{alone:#?}, {:#?}", lines("F2F."));
}
