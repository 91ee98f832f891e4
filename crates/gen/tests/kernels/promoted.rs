//! Sums of 8-bit floats in two levels ([`Math::Promoted`]): by every unit and pipeline on the emulator, whose instructions keep as few bits of sums
//! as NVIDIA's, and from machine code.

use crate::inspected::nothing_is_spilled;
use crate::support;

use support::{emulator, verified};
use tilewright_gen::plan::{Constraint, Plan, Refusal};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, GemmBuilder, Math, Order, Problem};

const FMA: &str = "A_MIC4__B_MIC4__C_MAC64_UNR16_EDG1";
const MMA: &str = "A_MIC4_PAD1_GLW16_PLU1__B_MIC4_PAD1_GLW16_PLU1__C_UNI1_MAC128_EDG1";
const WGMMA: &str = "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2";
const MFMA: &str = "A_MIC2_PAD1_GLW16_PLU1__B_MIC2_PAD1_GLW16_PLU1__C_UNI3_MAC256_EDG1";

/// Device, plan, types of A and B.
const CASES: &[(&str, &str, &str, [Scalar; 2])] = &[
    ("emu:sm_89", FMA, "", [Scalar::E4M3; 2]),
    ("emu:sm_89", MMA, "_UNR128_PFG1_BUF2", [Scalar::E4M3; 2]),
    ("emu:sm_89", MMA, "_UNR64_PFG1_BUF2_FRA1", [Scalar::E4M3, Scalar::E5M2]),
    ("emu:sm_89", MMA, "_UNR32_ICE3_SKS1", [Scalar::E5M2; 2]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR128_BUF4_LWV4", [Scalar::E4M3; 2]),
    ("emu:sm_90a", WGMMA, "_MAC128_UNR128_PFG2_BUF3", [Scalar::E5M2, Scalar::E4M3]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR128_BUF4_LWV4_PST3_PNG1_CST1", [Scalar::E4M3; 2]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR128_BUF4_LWV4_ICE7_SKS1", [Scalar::E4M3; 2]),
    ("emu:sm_90a", WGMMA, "_MAC128_UNR128_BUF4_LWV4_RGA2", [Scalar::E4M3; 2]),
    ("emu:gfx942", MFMA, "_UNR64_PFG1_BUF2", [Scalar::E4M3Fnuz; 2]),
    ("emu:gfx950", MFMA, "_UNR128_PFG1_BUF2", [Scalar::E4M3, Scalar::E5M2]),
];

fn promoted(types: [Scalar; 2], (m, n, k): (u64, u64, u64)) -> GemmBuilder {
    Gemm::new(types[0], m, n, k).b_dtype(types[1]).order(Order::Row).trans(false, true).math(Math::Promoted)
}

#[test]
fn every_unit_and_pipeline_promotes() {
    for (number, (device, plan, keys, types)) in (0..).zip(CASES) {
        // Of 112, 448 and 704 the last terms are no whole interval, of some plans no whole k-tile.
        for k in [112, 448, 704] {
            let problem: Problem = promoted(*types, (80, 144, k)).out_dtype(Scalar::F32).build().unwrap().into();
            verified(device, &problem, &format!("{plan}{keys}"), (number, number % 2 == 0));
        }
    }
}

/// Long sums of instructions that keep 14 bits err several times less.
#[test]
fn promoted_sums_err_less() {
    for (device, plan) in
        [("emu:sm_89", format!("{MMA}_UNR64_PFG1_BUF2")), ("emu:sm_90a", format!("{WGMMA}_MAC128_UNR128_PFG2_BUF3"))]
    {
        let error = |math: Math, k: u64| {
            let problem = promoted([Scalar::E4M3; 2], (64, 128, k)).math(math).out_dtype(Scalar::F32).build().unwrap().into();
            verified(device, &problem, &plan, (1, false)).max_error
        };
        let [plain, promoted] = [Math::Exact, Math::Promoted].map(|math| error(math, 8192));
        eprintln!("{device}: errors at k = 8192 of the sum of magnitudes: {plain:.1e}, promoted {promoted:.1e}");
        assert!(4.0 * promoted < plain, "{device}: {promoted:e} promoted, {plain:e} plain");
    }
}

#[test]
fn what_cannot_be_promoted_is_refused() {
    let refused = |plan: &str| {
        let problem = promoted([Scalar::E4M3; 2], (256, 256, 1024)).build().unwrap().into();
        let space = Space::new(&problem, &emulator("emu:sm_90a", false, 0).info().target).unwrap();
        space.resolve(&Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()))).unwrap_err()
    };
    let error = refused(&format!("{WGMMA}_MAC128_UNR128_PFG1_BUF3_FRA1"));
    assert_eq!(error, Refusal::PromotedInFlight { fra: 1 });
    assert!(error.to_string().contains("use FRA0"), "{error}");
    let deep = refused(&format!("{WGMMA}_MAC128_UNR256_PFG1_BUF2"));
    assert_eq!(deep, Refusal::PromotedTile { unr: 256, every: 128 });
    assert!(deep.to_string().contains("use UNR128 or a divisor"), "{deep}");
    let error = Gemm::new(Scalar::BF16, 8, 8, 8).math(Math::Promoted).build().unwrap_err().to_string();
    assert!(error.contains("add up products of 8-bit floats, the operands are bf16"), "{error}");
}

/// Both sets of sums stay in registers.
#[test]
fn sums_stay_in_registers() {
    let (wide, deep) = ("A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2", "A_MIC2_ACP2__B_MIC8_ACP2__C_UNI2");
    for (arch, plan, types, add) in [
        ("sm_89", format!("{MMA}_UNR64_PFG1_BUF2"), [Scalar::E4M3; 2], "QMMA.16832.F32.E4M3.E4M3"),
        ("sm_90a", format!("{wide}_MAC256_UNR128_BUF5_LWV4_PST132"), [Scalar::E4M3; 2], "QGMMA.64x128x32.F32.E4M3.E4M3"),
        ("sm_90a", format!("{deep}_MAC256_UNR128_BUF5_LWV4"), [Scalar::E5M2; 2], "QGMMA.64x64x32.F32.E5M2.E5M2"),
        ("sm_90a", format!("{wide}_MAC128_UNR128_PFG2_BUF3"), [Scalar::E4M3, Scalar::E5M2], "QGMMA.64x128x32.F32.E4M3.E5M2"),
        ("gfx942", format!("{MFMA}_UNR64_PFG1_BUF2"), [Scalar::E4M3Fnuz; 2], "v_mfma_f32_32x32x16_fp8_fp8"),
        ("gfx950", format!("{MFMA}_UNR64_PFG1_BUF2"), [Scalar::E4M3; 2], "v_mfma_f32_32x32x64_f8f6f4"),
    ] {
        let problem: Problem = promoted(types, (4096, 4096, 4096)).out_dtype(Scalar::BF16).build().unwrap().into();
        nothing_is_spilled(&problem, arch, &plan, add);
    }
}
