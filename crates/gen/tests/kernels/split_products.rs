//! f32 as three products of TF32 numbers: right by every way of loading and storing, nearly as accurate as f32, and what assemblers make
//! of it.

use crate::inspected;
use crate::support;

use inspected::inspected_in;
use support::verified;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::{MatrixType, Scalar, Target};
use tilewright_problem::{Activation, Along, Conv, Direction, Gemm, GemmBuilder, Layout, Math, Order, Problem};

/// Through registers, by asynchronous copies, with roles, with splits of k.
const WAVES: [&str; 4] = [
    "A_MIC1_PAD1__B_MIC2_PAD1__C_UNI1_MAC64_UNR16_EDG1",
    "A_MIC2_PAD1__B_MIC3_PAD1__C_UNI1_MAC128_UNR32_PFG1_BUF2_STP1_FRA1_EDG1_UKL1",
    "A_MIC1_PAD1_ACP1__B_MIC1_PAD1_ACP1__C_UNI1_MAC128_UNR32_PFG2_BUF3_FRA1_EDG1_ICE3_SKS1_SWP1",
    "A_MIC2_PAD1__B_MIC1_PAD1__C_UNI1_MAC64_UNR16_PFG1_BUF2_LWV2_EDG1_PST3",
];

/// From bulk copies, which must not round.
const BULK: [&str; 2] = [
    "A_MIC2_ACP2__B_MIC4_ACP2__C_UNI1_MAC64_UNR32_PFG1_BUF2_EDG1",
    "A_MIC2_ACP2__B_MIC4_ACP0__C_UNI1_MAC128_UNR32_PFG2_BUF3_FRA1_LWV1_EDG1",
];

/// By warpgroup instructions: A's fragments split in registers, B by the load waves.
const GROUPS: [&str; 4] = [
    "A_MIC1_ACP2__B_MIC4_ACP0__C_UNI2_MAC128_UNR32_BUF2_PFG1_LWV4_RGA2",
    "A_MIC2_ACP2__B_MIC5_ACP0__C_UNI2_MAC128_UNR64_BUF3_PFG2_LWV1_RGA4_FRA1_ICE2_SKS1",
    "A_MIC1_ACP2_WOS1__B_MIC8_ACP0__C_UNI2_MAC256_UNR32_BUF3_PFG2_LWV4_RGA2_PST2_CST1_FRA1",
    "A_MIC1_ACP2__B_MIC12_ACP0__C_UNI2_MAC256_UNR32_BUF3_PFG2_LWV4_RGA4_PST2_PNG1_SWP1",
];

fn gemm((m, n, k): (u64, u64, u64), math: Math) -> GemmBuilder {
    Gemm::new(Scalar::F32, m, n, k).order(Order::Row).math(math)
}

fn problem(gemm: GemmBuilder) -> Problem {
    gemm.build().unwrap().into()
}

#[test]
fn waves_multiply_right() {
    let transposes = [(false, false), (false, true), (true, false), (true, true)];
    for (i, plan) in WAVES.iter().enumerate() {
        for (seed, (a, b)) in (i as u64..).zip(transposes) {
            let gemm = gemm((71, 53, 67), Math::Tf32x3).trans(a, b).batch(2).activation(Activation::Gelu).bias(Along::N);
            verified("emu:sm_80", &problem(gemm), plan, (seed, true));
        }
    }
    for (plan, (a, b)) in BULK.iter().chain(&GROUPS).flat_map(|plan| transposes.map(|t| (plan, t))) {
        verified("emu:sm_90a", &problem(gemm((72, 52, 68), Math::Tf32x3).trans(a, b)), plan, (1, true));
    }
}

#[test]
fn convolutions_multiply_right() {
    for direction in [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight] {
        for layout in [Layout::Nchw, Layout::Nhwc] {
            let conv = Conv::new(Scalar::F32, 2, 12, 10, &[7, 6], &[3, 2]).layout(layout).direction(direction).groups(2);
            let conv = conv.stride(&[2, 1]).pad(&[1, 1], &[1, 1]).math(Math::Tf32x3).build().unwrap();
            verified("emu:sm_80", &conv.into(), WAVES[1], (2, false));
        }
    }
}

/// The greatest errors of many sums, relative to the sums of magnitudes: without the small parts they would be those of TF32.
#[test]
fn nearly_as_accurate_as_f32() {
    let error =
        |math, plan| verified("emu:sm_90a", &problem(gemm((96, 80, 320), math)), plan, (3, false)).finite_error().unwrap();
    let exact = error(Math::Exact, "A_MIC4__B_MIC4__C_MAC64_EDG1");
    let rounded = error(Math::Tf32, WAVES[1]);
    for plan in [WAVES[1], BULK[0], BULK[1], GROUPS[0], GROUPS[3]] {
        let split = error(Math::Tf32x3, plan);
        println!("f32 {exact:.1e}, tf32x3 {split:.1e}, tf32 {rounded:.1e}: {plan}");
        assert!(split < 4.0 * exact && 100.0 * split < rounded, "{plan}: f32 {exact:e}, tf32x3 {split:e}, tf32 {rounded:e}");
    }
}

/// Units that multiply f32 itself serve as well: multiply-adds everywhere, MFMA on AMD's.
#[test]
fn units_of_f32_serve_as_well() {
    let problem = problem(gemm((70, 54, 66), Math::Tf32x3));
    verified("emu:gfx900", &problem, "A_MIC4__B_MIC4__C_MAC64_EDG1", (4, true));
    verified("emu:gfx942", &problem, "A_MIC2_PAD1__B_MIC4_PAD1__C_UNI3_MAC128_UNR32_PFG1_BUF2_STP1_FRA1_EDG1_CVW2", (4, true));
}

/// A product for which 128 x 128 and 128 x 256 tiles are compiled, and the instructions of the main loop beside those that multiply.
#[test]
fn assemblers_take_them() {
    let tall = |waves: u32, mic: (u32, u32), rest: &str| {
        let side = "PAD1_PLU1_GLW4_ACP1";
        let (a, b) = mic;
        format!("A_MIC{a}_{side}__B_MIC{b}_{side}__C_UNI1_UNR16_MAC{}_PFG2_BUF3_CVW2_EDG1_UKL1{rest}", 32 * waves)
    };
    let plans = [
        ("sm_80", tall(4, (4, 8), "")),
        ("sm_80", tall(8, (4, 4), "")),
        ("sm_80", tall(8, (2, 8), "_FRA1")),
        ("sm_80", tall(8, (4, 8), "")),
        ("sm_90a", tall(8, (4, 8), "")),
        ("sm_90a", tall(8, (2, 8), "")),
    ];
    let groups = [
        "A_MIC1_ACP2__B_MIC16_ACP0__C_UNI2_MAC256_UNR32_BUF4_LWV4_PST132_CST1_RGA4",
        "A_MIC1_ACP2__B_MIC32_ACP0__C_UNI2_MAC256_UNR32_BUF2_LWV4_PST132_RGA2",
        "A_MIC2_ACP2__B_MIC16_ACP0__C_UNI2_MAC256_UNR32_BUF3_LWV4_PST132_FRA1_RGA2",
    ];
    let plans = plans.into_iter().chain(groups.map(|text| ("sm_90a", text.to_string())));
    let gemm = problem(gemm((4096, 4096, 4096), Math::Tf32x3).trans(false, true));
    for (arch, text) in plans {
        let plan = Plan::from(Constraint::parse(&text).unwrap().apply(&Plan::default()));
        let space = Space::new(&gemm, &Target::by_arch(arch).unwrap()).unwrap();
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        assert!(r.spec.tiling.a.split.is_some() && r.spec.tiling.instruction.is_some_and(|row| row.input == MatrixType::TF32));
        let Some(seen) = inspected_in(&space, arch, &plan) else { return };
        let usage = seen.usage;
        let main = seen.main_loop().unwrap_or_else(|| panic!("{plan}: no main loop"));
        println!("{arch} {text}: {} registers, spills {}, {:?}", usage.registers, usage.spill_bytes, main.counts);
        if let Ok(folder) = std::env::var("SASS_OUT") {
            std::fs::write(format!("{folder}/{arch}_{text}.sass"), &seen.assembly).unwrap();
        }
        assert_eq!((usage.spill_bytes, usage.private_bytes), (0, 0), "{plan}: {usage:?}");
        let instruction = if text.contains("UNI2") { "HGMMA.64x" } else { "HMMA.1688.F32.TF32" };
        assert!(seen.assembly.contains(instruction), "{plan}");
    }
}
