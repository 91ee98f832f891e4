//! Small weights: integers of 8 and 4 bits beside f16, bf16 or f32, in which they are multiplied: every unit, copy method and exit on the emulator, what
//! is refused, and machine code.

use crate::inspected;
use crate::support;

use inspected::{inspected, nothing_is_spilled};
use support::{emulator, verified_to};
use tilewright_check::random::whole_run;
use tilewright_check::verify::Depth;
use tilewright_device::inspect::Class;
use tilewright_gen::plan::{Chiral, Constraint, Key, Plan, Refusal};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Activation, Along, Gemm, GemmBuilder, Order, Problem, Quant, Scale};

const FMA: &str = "A_MIC4__B_MIC4__C_MAC64_EDG1";
const MMA: &str = "A_MIC2_PAD1_GLW8_PLU?__B_MIC4_PAD1_GLW8_PLU?__C_UNI1_MAC128_EDG1";
const WGMMA: &str = "A_MIC1_ACP2__B_MIC16_ACP0__C_UNI2";
const MFMA: &str = "A_MIC2_PAD1_GLW8_PLU?__B_MIC2_PAD1_GLW8_PLU?__C_UNI3_MAC256_EDG1";

/// Device, plan, types of A and B.
const CASES: &[(&str, &str, &str, [Scalar; 2])] = &[
    ("emu:sm_80", FMA, "_UNR16_PFG1_BUF2", [Scalar::F16, Scalar::I8]),
    ("emu:sm_80", FMA, "_UNR8_UFO1", [Scalar::BF16, Scalar::U8]),
    ("emu:sm_80", FMA, "_UNR32_ICE3_SKS1", [Scalar::F32, Scalar::I8]),
    ("emu:sm_80", "A_MIC4_WOS1__B_MIC4_WOS1__C_MAC64_EDG1", "_UNR16", [Scalar::F32, Scalar::U8]),
    ("emu:sm_80", "A_MIC4_WOS2__B_MIC4_WOS2__C_MAC64_EDG1", "_UNR16", [Scalar::I8, Scalar::BF16]),
    ("emu:sm_80", MMA, "_UNR32_PFG1_BUF2", [Scalar::BF16, Scalar::I8]),
    ("emu:sm_80", MMA, "_UNR64_PFG2_BUF2_FRA1_SWP1", [Scalar::F16, Scalar::U8]),
    ("emu:sm_80", MMA, "_UNR64_PFG1_BUF2_STP2_ICE3_SKS1", [Scalar::I8, Scalar::F16]),
    (
        "emu:sm_80",
        "A_MIC1_PAD1_GLW8_PLU?_ACP1__B_MIC4_PAD1_GLW16_PLU?__C_UNI1_MAC128_EDG1",
        "_UNR64_PFG1_BUF2",
        [Scalar::F16, Scalar::I8],
    ),
    ("emu:sm_80", "A_MIC2_GLW8_PLU?__B_MIC4_GLW8_PLU?__C_UNI1_MAC128_EDG1", "_UNR32_LWV2_PFG1_BUF2", [Scalar::F16, Scalar::I8]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR64_BUF4_LWV4", [Scalar::BF16, Scalar::I8]),
    ("emu:sm_90a", WGMMA, "_MAC128_UNR128_BUF4_LWV4_FRA1_PST3_CST1", [Scalar::F16, Scalar::U8]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR64_BUF4_LWV4_ICE2_IWI1_SKS1", [Scalar::BF16, Scalar::I8]),
    ("emu:sm_90a", "A_MIC1_ACP0__B_MIC8_ACP2__C_UNI2", "_MAC128_UNR64_BUF4_LWV4_SWP1", [Scalar::BF16, Scalar::I8]),
    ("emu:sm_90a", "A_MIC1_ACP0_GLW8_PLU?__B_MIC8_ACP0_GLW8_PLU?__C_UNI2", "_MAC128_UNR64_PFG1_BUF2", [Scalar::I8, Scalar::BF16]),
    (
        "emu:sm_90a",
        "A_MIC1_ACP0_GLW16_PLU?__B_MIC16_ACP0_GLW16_PLU?__C_UNI2",
        "_MAC128_UNR64_PFG1_BUF2",
        [Scalar::F16, Scalar::U8],
    ),
    ("emu:gfx942", MFMA, "_UNR32_PFG1_BUF2", [Scalar::F16, Scalar::I8]),
    ("emu:gfx950", MFMA, "_UNR64_PFG1_BUF2_ICE2_SKS1", [Scalar::U8, Scalar::BF16]),
    // Of 4 bits: single ones, of either half of a byte, then in vectors.
    ("emu:sm_80", FMA, "_UNR16_PFG1_BUF2", [Scalar::F16, Scalar::I4]),
    ("emu:sm_80", FMA, "_UNR8_UFO1", [Scalar::BF16, Scalar::U4]),
    ("emu:sm_80", FMA, "_UNR32_ICE3_SKS1", [Scalar::I4, Scalar::F32]),
    ("emu:sm_80", "A_MIC4_GLW2_PLU?__B_MIC4_GLW4_PLU?__C_MAC64_EDG1", "_UNR16", [Scalar::F32, Scalar::U4]),
    ("emu:sm_80", MMA, "_UNR32_PFG1_BUF2", [Scalar::BF16, Scalar::I4]),
    ("emu:sm_80", MMA, "_UNR64_PFG2_BUF2_FRA1_SWP1", [Scalar::F16, Scalar::U4]),
    ("emu:sm_80", MMA, "_UNR64_PFG1_BUF2_STP2_ICE3_SKS1", [Scalar::I4, Scalar::F16]),
    (
        "emu:sm_80",
        "A_MIC1_PAD1_GLW8_PLU?_ACP1__B_MIC4_PAD1_GLW16_PLU?__C_UNI1_MAC128_EDG1",
        "_UNR64_PFG1_BUF2",
        [Scalar::F16, Scalar::I4],
    ),
    ("emu:sm_80", "A_MIC2_GLW8_PLU?__B_MIC4_GLW8_PLU?__C_UNI1_MAC128_EDG1", "_UNR32_LWV2_PFG1_BUF2", [Scalar::F16, Scalar::U4]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR64_BUF4_LWV4", [Scalar::BF16, Scalar::I4]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR64_BUF4_LWV4_ICE2_IWI1_SKS1", [Scalar::F16, Scalar::U4]),
    (
        "emu:sm_90a",
        "A_MIC1_ACP0_GLW16_PLU?__B_MIC16_ACP0_GLW16_PLU?__C_UNI2",
        "_MAC128_UNR64_PFG1_BUF2",
        [Scalar::I4, Scalar::BF16],
    ),
    ("emu:gfx942", MFMA, "_UNR32_PFG1_BUF2", [Scalar::F16, Scalar::I4]),
    ("emu:gfx950", MFMA, "_UNR64_PFG1_BUF2_ICE2_SKS1", [Scalar::U4, Scalar::BF16]),
];

/// A plan with threads' load tiles along the direction in which each operand's vectors lie.
fn along(plan: &str, trans: (bool, bool)) -> String {
    let of = |along_k: bool| if along_k { "PLU1" } else { "PLU0" };
    let [a, b] = if plan.contains("SWP1") { [!trans.1, trans.0] } else { [trans.0, !trans.1] };
    plan.replacen("PLU?", of(a), 1).replacen("PLU?", of(b), 1)
}

/// The same, with scales of groups of k: of A's or of B's lines.
type Grouped = (&'static str, &'static str, &'static str, [Scalar; 2], Along, Scale);

const GROUPED: &[Grouped] = &[
    ("emu:sm_80", FMA, "_UNR16_PFG1_BUF2", [Scalar::F16, Scalar::I8], Along::N, Scale::Line32),
    ("emu:sm_80", FMA, "_UNR64_ICE3_SKS1", [Scalar::F32, Scalar::U8], Along::N, Scale::Line64),
    ("emu:sm_80", FMA, "_UNR32_SWP1", [Scalar::I8, Scalar::BF16], Along::M, Scale::LineBlock),
    ("emu:sm_80", MMA, "_UNR32_PFG1_BUF2", [Scalar::BF16, Scalar::I8], Along::N, Scale::Line32),
    ("emu:sm_80", MMA, "_UNR64_PFG2_BUF2_FRA1_SWP1", [Scalar::F16, Scalar::U8], Along::N, Scale::Line64),
    ("emu:sm_80", MMA, "_UNR128_PFG1_BUF2_ICE3_SKS1", [Scalar::F16, Scalar::I8], Along::N, Scale::LineBlock),
    ("emu:sm_80", MMA, "_UNR16_PFG1_BUF2_ICE7_SKS1", [Scalar::U8, Scalar::F16], Along::M, Scale::Line32),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR64_BUF4_LWV4", [Scalar::BF16, Scalar::I8], Along::N, Scale::Line64),
    ("emu:sm_90a", WGMMA, "_MAC128_UNR64_BUF4_LWV4_PST3_CST1", [Scalar::F16, Scalar::U8], Along::N, Scale::LineBlock),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR128_BUF3_LWV4_ICE2_IWI1_SKS1", [Scalar::BF16, Scalar::I8], Along::N, Scale::Block),
    ("emu:gfx942", MFMA, "_UNR32_PFG1_BUF2", [Scalar::F16, Scalar::I8], Along::N, Scale::Line32),
    ("emu:gfx950", MFMA, "_UNR64_PFG1_BUF2", [Scalar::U8, Scalar::BF16], Along::M, Scale::LineBlock),
    ("emu:sm_80", FMA, "_UNR16_PFG1_BUF2", [Scalar::F16, Scalar::U4], Along::N, Scale::Line32),
    ("emu:sm_80", MMA, "_UNR32_PFG1_BUF2", [Scalar::BF16, Scalar::I4], Along::N, Scale::Line32),
    ("emu:sm_80", MMA, "_UNR128_PFG1_BUF2_ICE3_SKS1", [Scalar::F16, Scalar::I4], Along::N, Scale::LineBlock),
    ("emu:sm_80", MMA, "_UNR16_PFG1_BUF2_ICE7_SKS1", [Scalar::U4, Scalar::F16], Along::M, Scale::Line32),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR64_BUF4_LWV4", [Scalar::BF16, Scalar::I4], Along::N, Scale::Line64),
    ("emu:gfx942", MFMA, "_UNR32_PFG1_BUF2", [Scalar::F16, Scalar::I4], Along::N, Scale::Line32),
];

fn weights(types: [Scalar; 2], (m, n, k): (u64, u64, u64), trans: (bool, bool)) -> GemmBuilder {
    Gemm::new(types[0], m, n, k).b_dtype(types[1]).order(Order::Col).trans(trans.0, trans.1)
}

#[test]
fn every_unit_and_copy_multiplies_small_weights() {
    for (number, (device, plan, keys, types)) in (0..).zip(CASES) {
        let all = (0..).zip([(true, false), (false, true), (false, false), (true, true)]);
        // Outside of a whole run, cases alternate between transpositions.
        for (i, trans) in all.filter(|(i, _)| whole_run() || (number + i) % 4 == 0) {
            let size = [(80, 144, 448), (304, 144, 112), (16, 320, 704)][(number + i) % 3];
            let gemm = weights(*types, size, trans).batch(1 + i as u64 % 2).bias(Along::N);
            let gemm = if i % 2 == 0 { gemm.activation(Activation::Relu) } else { gemm.out_dtype(Scalar::F32).scale(Along::N) };
            let problem = gemm.build().unwrap().into();
            let plan = along(&format!("{plan}{keys}"), trans);
            verified_to(Depth::Thorough, device, &problem, &plan, (number as u64, i % 2 == 0));
        }
    }
}

/// Sums of a group are exact in f32, and multiplied by its scale in f32.
#[test]
fn every_unit_scales_groups() {
    for (number, (device, plan, keys, types, of, scale)) in (0..).zip(GROUPED) {
        let all = (0..).zip([(true, false), (false, true)]);
        for (i, trans) in all.filter(|(i, _)| whole_run() || (number / 2 + i) % 2 == 0) {
            // Of 112 the last terms are no whole group of 32 or more; parts of 448 begin with groups of 64.
            let size = if keys.contains("ICE") { (80, 144, 448) } else { [(304, 144, 112), (16, 320, 704)][(number + i) % 2] };
            let gemm = weights(*types, size, trans).scale_by(*of, *scale).batch(1 + i as u64 % 2);
            let gemm = if i == 0 { gemm.activation(Activation::Relu) } else { gemm.out_dtype(Scalar::F32).scale(of.other()) };
            let problem = gemm.build().unwrap().into();
            let plan = along(&format!("{plan}{keys}"), trans);
            verified_to(Depth::Thorough, device, &problem, &plan, (number as u64, i % 2 == 0));
        }
    }
}

#[test]
fn texts_name_weights() {
    let gemm = weights([Scalar::BF16, Scalar::I8], (64, 96, 256), (true, false)).scale(Along::N).build().unwrap();
    assert!(gemm.geometry().ends_with("_bf16_bi8_scalen"), "{}", gemm.geometry());
    assert_eq!(Problem::parse(&gemm.geometry()).unwrap(), gemm.clone().into());
    let swapped = gemm.in_other_order();
    assert_eq!((swapped.dtype, swapped.b_dtype, swapped.out_dtype), (Scalar::I8, Some(Scalar::BF16), Scalar::BF16));
    assert_eq!(Problem::parse(&swapped.geometry()).unwrap(), swapped.clone().into());
    assert_eq!([gemm.multiplied(), swapped.multiplied()], [Scalar::BF16; 2]);
    let groups =
        weights([Scalar::F16, Scalar::U8], (64, 96, 200), (true, false)).scale_by(Along::N, Scale::Line32).build().unwrap();
    assert!(groups.geometry().ends_with("_f16_bu8_scalen1x32"), "{}", groups.geometry());
    assert_eq!(Problem::parse(&groups.geometry()).unwrap(), groups.clone().into());
    assert_eq!(groups.quant_len(Quant::ScaleN), 7 * 96);
    let pairs =
        weights([Scalar::F32, Scalar::I4], (64, 96, 200), (true, false)).scale_by(Along::N, Scale::LineBlock).build().unwrap();
    assert!(pairs.geometry().ends_with("_f32_bi4_scalen1x128"), "{}", pairs.geometry());
    assert_eq!(Problem::parse(&pairs.geometry()).unwrap(), pairs.clone().into());
    assert_eq!(Problem::parse(&pairs.in_other_order().geometry()).unwrap(), pairs.in_other_order().into());
    // Groups are of products of small weights, or of promoted sums.
    let error = Gemm::new(Scalar::F16, 64, 96, 200).scale_by(Along::N, Scale::Line32).build().unwrap_err().to_string();
    assert!(error.contains("scales = n1x32") && error.contains("B's as i8, u8, i4 or u4"), "{error}");
}

#[test]
fn what_cannot_be_converted_is_refused() {
    let tried_of = |scalar: Scalar, plan: &str| {
        let gemm = weights([Scalar::BF16, scalar], (256, 256, 1024), (true, false)).scale_by(Along::N, Scale::Line32);
        let problem: Problem = gemm.build().unwrap().into();
        let space = Space::new(&problem, &emulator("emu:sm_90a", false, 0).info().target).unwrap();
        let plan = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
        space.resolve(&plan).map(|_| ()).map_err(|refusal| (refusal.to_string(), refusal))
    };
    let tried = |plan: &str| tried_of(Scalar::I8, plan);
    // Elements of a copy in workspace are whole bytes.
    for value in [1, 2] {
        let plan = format!("A_MIC4__B_MIC4_WOS{value}__C_MAC64_EDG1_UNR16");
        let (words, refusal) = tried_of(Scalar::U4, &plan).unwrap_err();
        assert_eq!(refusal, Refusal::CopiedPairs { wos: Key::B(Chiral::Wos), value, scalar: Scalar::U4 }, "{plan}");
        assert!(words.contains("use WOS0"), "{words}");
    }
    for (value, plan) in [
        (1, "A_MIC4__B_MIC4_ACP1__C_MAC64_EDG1_UNR16_PFG1_BUF2".to_string()),
        (2, "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR64_BUF4_LWV4".to_string()),
        (3, "A_MIC1_ACP2__B_MIC16_ACP3__C_UNI2_MAC256_UNR64_BUF4_LWV4".to_string()),
        (4, along(&format!("{MMA}_UNR64_PFG1_BUF2").replace("__C_", "_ACP4__C_"), (true, false))),
    ] {
        let (words, refusal) = tried(&plan).unwrap_err();
        let acp = Key::B(Chiral::Acp);
        assert_eq!(refusal, Refusal::Converted { acp, value, scalar: Scalar::I8, factor: Scalar::BF16 }, "{plan}");
        assert!(words.contains("use ACP0"), "{words}");
    }
    let deep = tried(&along(&format!("{MMA}_UNR64_PFG1_BUF2"), (true, false))).unwrap_err().1;
    assert_eq!(deep, Refusal::PromotedTile { unr: 64, every: 32 });
}

/// Two weights become a pair of floats by a permutation and one addition, or two of u8 in bf16, and are stored in vectors of 16 bytes. Those of 4 bits
/// take a mask besides.
#[test]
fn weights_become_floats_in_pairs() {
    for (types, added, additions) in [
        ([Scalar::F16, Scalar::I8], "HADD2 ", 1),
        ([Scalar::F16, Scalar::U8], "HADD2 ", 1),
        ([Scalar::BF16, Scalar::I8], "BF16_V2 ", 1),
        ([Scalar::BF16, Scalar::U8], "BF16_V2 ", 2),
        ([Scalar::F16, Scalar::I4], "HFMA2 ", 1),
        ([Scalar::F16, Scalar::U4], "HFMA2 ", 1),
        ([Scalar::BF16, Scalar::I4], "BF16_V2 ", 1),
        ([Scalar::BF16, Scalar::U4], "BF16_V2 ", 1),
    ] {
        let gemm = weights(types, (4096, 4096, 4096), (true, false)).out_dtype(Scalar::F32);
        let problem: Problem = gemm.build().unwrap().into();
        // Vectors of 8 bytes.
        let plan = if types[1].is_int4() { MMA.replace("__B_MIC4_PAD1_GLW8", "__B_MIC4_PAD1_GLW16") } else { MMA.to_string() };
        let plan = along(&format!("{plan}_UNR64_PFG1_BUF2_UKL1"), (true, false));
        let Some(seen) = inspected(&problem, "sm_90a", &plan) else { continue };
        let main = seen.main_loop().unwrap_or_else(|| panic!("{types:?}: no main loop"));
        eprintln!("{types:?}: {} registers, main loop {:?}", seen.usage.registers, main.counts);
        assert_eq!((seen.usage.spill_bytes, main.count(Class::Scratch)), (0, 0));
        // Of the 32 weights of a thread in a k-tile, before the loop and in it.
        let moves = |line: &&str| line.contains(added) && !line.contains("-RZ, RZ");
        assert_eq!(seen.assembly.lines().filter(moves).count(), 2 * 16 * additions, "{types:?}");
        assert_eq!(seen.assembly.matches("STS.128").count(), 2 * 8, "{types:?}");
        assert!(!seen.assembly.contains("I2F"), "{types:?}");
    }
}

/// A load of one byte has two weights of 4 bits, which become a pair of floats.
#[test]
fn single_bytes_of_two_weights_compile() {
    for (arch, types) in [
        ("sm_90a", [Scalar::F32, Scalar::I4]),
        ("sm_90a", [Scalar::F16, Scalar::U4]),
        ("sm_80", [Scalar::BF16, Scalar::I4]),
        ("gfx942", [Scalar::F32, Scalar::U4]),
        ("gfx942", [Scalar::BF16, Scalar::I4]),
    ] {
        let problem: Problem = weights(types, (144, 80, 96), (true, false)).build().unwrap().into();
        drop(inspected(&problem, arch, &along("A_MIC4_GLW2_PLU?__B_MIC4_GLW2_PLU?__C_MAC64_EDG1_UNR16", (true, false))));
    }
}

/// AMD's compiler keeps everything in registers as well.
#[test]
fn sums_stay_in_registers_on_amd() {
    for (arch, types) in [("gfx942", [Scalar::F16, Scalar::I8]), ("gfx950", [Scalar::BF16, Scalar::U8])] {
        let problem: Problem = weights(types, (4096, 4096, 4096), (true, false)).build().unwrap().into();
        let plan = along(&format!("{MFMA}_UNR64_PFG1_BUF2"), (true, false));
        nothing_is_spilled(&problem, arch, &plan, "v_mfma_f32");
    }
}
