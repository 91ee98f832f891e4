//! Scales of blocks of k, by which promoted sums are multiplied: every unit, exit and split of k on the emulator, what is refused, and machine code.

use crate::inspected::nothing_is_spilled;
use crate::support;

use support::{emulator, verified_to};
use tilewright_check::reference::Exact;
use tilewright_check::verify::Depth;
use tilewright_gen::plan::{Constraint, Plan, Refusal};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Activation, Along, Factors, Gemm, GemmBuilder, Math, Order, Problem, Quant, Scale};

const FMA: &str = "A_MIC4__B_MIC4__C_MAC64_EDG1";
const MMA: &str = "A_MIC4_PAD1_GLW16_PLU1__B_MIC4_PAD1_GLW16_PLU1__C_UNI1_MAC128_EDG1";
const WGMMA: &str = "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2";
const WGMMA_ROWS: &str = "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2";
const MFMA: &str = "A_MIC2_PAD1_GLW16_PLU1__B_MIC2_PAD1_GLW16_PLU1__C_UNI3_MAC256_EDG1";

/// Device, plan, types of A and B.
const CASES: &[(&str, &str, &str, [Scalar; 2])] = &[
    ("emu:sm_80", FMA, "_UNR16_PFG1_BUF2", [Scalar::E4M3; 2]),
    ("emu:sm_80", "A_MIC4__B_MIC4_FRW2__C_MAC64_EDG1", "_UNR32_MVW2", [Scalar::E5M2; 2]),
    ("emu:sm_80", FMA, "_UNR128_ICE3_SKS1", [Scalar::E4M3, Scalar::E5M2]),
    ("emu:sm_89", MMA, "_UNR128_PFG1_BUF2", [Scalar::E4M3; 2]),
    ("emu:sm_89", MMA, "_UNR64_PFG1_BUF2_FRA1", [Scalar::E4M3, Scalar::E5M2]),
    ("emu:sm_89", MMA, "_UNR128_ICE3_SKS1", [Scalar::E5M2; 2]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR128_BUF4_LWV4", [Scalar::E4M3; 2]),
    ("emu:sm_90a", WGMMA, "_MAC128_UNR128_PFG2_BUF3", [Scalar::E5M2, Scalar::E4M3]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR128_BUF4_LWV4_PST3_PNG1_CST1", [Scalar::E4M3; 2]),
    ("emu:sm_90a", WGMMA, "_MAC256_UNR128_BUF4_LWV4_ICE2_IWI1_SKS1", [Scalar::E4M3; 2]),
    ("emu:sm_90a", WGMMA, "_MAC128_UNR128_BUF4_LWV4_RGA2_SWP1", [Scalar::E4M3; 2]),
    ("emu:gfx942", MFMA, "_UNR64_PFG1_BUF2", [Scalar::E4M3Fnuz; 2]),
    ("emu:gfx950", MFMA, "_UNR128_PFG1_BUF2", [Scalar::E4M3, Scalar::E5M2]),
];

/// Of rows and of columns; the first are DeepSeek's.
const SCALES: [[Option<Scale>; 2]; 5] = [
    [Some(Scale::LineBlock), Some(Scale::Block)],
    [Some(Scale::Block), Some(Scale::LineBlock)],
    [Some(Scale::Line), Some(Scale::Block)],
    [Some(Scale::LineBlock), None],
    [Some(Scale::Block); 2],
];

fn scaled(types: [Scalar; 2], (m, n, k): (u64, u64, u64), scales: [Option<Scale>; 2]) -> GemmBuilder {
    let gemm = Gemm::new(types[0], m, n, k).b_dtype(types[1]).order(Order::Row).trans(false, true).math(Math::Promoted);
    Along::ALL.into_iter().zip(scales).fold(gemm, |gemm, (along, scale)| scale.map_or(gemm.clone(), |x| gemm.scale_by(along, x)))
}

#[test]
fn every_unit_and_pipeline_scales_blocks() {
    for (number, (device, plan, keys, types)) in (0..).zip(CASES) {
        // Every second pair of both lists: each plan has several ways of scales, and each of them several plans.
        let scales = (0..).zip(SCALES).filter(|(i, _)| (number + i) % 2 == 0 && support::runs(number + i));
        for (i, scales) in scales {
            // Of 112, 448 and 704 the last terms are no whole block; 80, 144 and 300 end within blocks of lines.
            let size = [(80, 144, 448), (300, 144, 112), (144, 300, 704)][(number + i) % 3];
            let gemm = scaled(*types, size, scales).out_dtype(Scalar::F32).batch(1 + i as u64 % 2).bias(Along::N);
            let gemm = if i % 2 == 0 { gemm.activation(Activation::Relu) } else { gemm };
            let problem = gemm.build().unwrap().into();
            verified_to(Depth::Thorough, device, &problem, &format!("{plan}{keys}"), (number as u64, i % 2 == 0));
        }
    }
}

/// Two rows of instructions with 128 columns are 128 sums of a thread, which fit once, with 64 accumulators, and not twice; with 64 columns both fit twice.
#[test]
fn rows_take_turns_where_sums_do_not_fit_twice() {
    let problem = scaled([Scalar::E4M3; 2], (1024, 1024, 1024), SCALES[0]).out_dtype(Scalar::BF16).build().unwrap().into();
    let space = Space::new(&problem, &Target::by_arch("sm_90a").unwrap()).unwrap();
    for (rows, columns, in_turn, registers) in [(2, 16, true, 192), (2, 12, true, 144), (2, 8, false, 128), (1, 16, false, 128)] {
        let keys = format!("A_MIC{rows}_ACP2__B_MIC{columns}_ACP2__C_UNI2_MAC256_SKW10_UNR128_PFG1_BUF2_LWV4");
        let plan = Plan::from(Constraint::parse(&keys).unwrap().apply(&Plan::default()));
        let spec = space.resolve(&plan).unwrap_or_else(|e| panic!("{keys}: {e}")).spec;
        assert_eq!((spec.rows_in_turn(), spec.sum_registers()), (in_turn, registers), "{keys}");
    }
    let keys = [
        "_MAC256_SKW10_UNR128_PFG2_BUF3_LWV4_PST3",
        "_MAC128_SKW10_UNR128_PFG1_BUF2",
        "_MAC256_SKW11_UNR128_BUF3_LWV4_ICE2_SKS1",
    ];
    for (number, keys) in (0..).zip(keys) {
        // Scales of lines of columns, of which a thread has 64, do not fit beside the sums.
        let scales = (0..).zip(SCALES.into_iter().filter(|[_, n]| *n != Some(Scale::LineBlock)));
        for (i, scales) in scales.filter(|(i, _)| support::runs(number as usize + i)) {
            let gemm = scaled([Scalar::E4M3, Scalar::E5M2], (300, 272, 400), scales).out_dtype(Scalar::F32).bias(Along::N);
            verified_to(
                Depth::Thorough,
                "emu:sm_90a",
                &gemm.build().unwrap().into(),
                &format!("{WGMMA_ROWS}{keys}"),
                (number, i % 2 == 0),
            );
        }
    }
}

/// Scales that are powers of two leave sums of small integers exact: the reference knows each block's, and tells a wrong one.
#[test]
fn the_exact_reference_knows_blocks() {
    let problem: Problem = scaled([Scalar::E4M3; 2], (5, 300, 400), SCALES[0]).build().unwrap().into();
    let exact = Exact::new(&problem, 3, Factors::real(1.0, 0.0)).unwrap();
    let data = exact.data();
    let f32_at = |bytes: &[u8], i: u64| f32::from_le_bytes(bytes[4 * i as usize..][..4].try_into().unwrap());
    let quant = |i: usize, at: u64| {
        let x = data.added.given_to(Quant::ALL[i].into()).unwrap();
        f32_at(&x.bytes, x.start + at)
    };
    let e4m3 = |x: &tilewright_check::reference::Buffer, at: u64| {
        let bits = x.bytes[(x.start + at) as usize];
        let (exponent, fraction) = (i32::from(bits >> 3 & 15) - 7, f32::from(bits & 7) / 8.0);
        (1.0 + fraction) * 2f32.powi(exponent) * if bits >> 7 == 1 { -1.0 } else { 1.0 }
    };
    let mut after = data.c.bytes.clone();
    let mut put = |i: u64, j: u64, value: f32| {
        let at = 4 * (data.c.start + i * 300 + j) as usize;
        after[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    for i in 0..5 {
        for j in 0..300 {
            let term = |k: u64| e4m3(&data.a, i * 400 + k) * e4m3(&data.b, j * 400 + k);
            let scaled = |k: u64| quant(0, k / 128 * 5 + i) * quant(1, k / 128 * 3 + j / 128) * term(k);
            put(i, j, (0..400).map(scaled).sum());
        }
    }
    let verdict = exact.check(&after);
    assert_eq!((verdict.checked, verdict.wrong), (1500, 0), "{:?}", verdict.worst);
    let at = 4 * (data.c.start + 299) as usize;
    let wrong = f32_at(&after, data.c.start + 299) + 1.0;
    after[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
    assert_eq!(exact.check(&after).wrong, 1);
}

#[test]
fn texts_name_blocks() {
    let gemm = scaled([Scalar::E4M3; 2], (64, 64, 256), SCALES[0]).build().unwrap();
    assert!(gemm.geometry().ends_with("_e4m3promoted_outf32_scalem1x128_scalen128x128"), "{}", gemm.geometry());
    assert_eq!(Problem::parse(&gemm.geometry()).unwrap(), gemm.clone().into());
    let swapped = gemm.in_other_order();
    assert_eq!((swapped.scales.m, swapped.scales.n), (gemm.scales.n, gemm.scales.m));
}

#[test]
fn what_cannot_be_scaled_is_refused() {
    let refused = |gemm: GemmBuilder, needles: &[&str]| {
        let error = gemm.build().unwrap_err().to_string();
        assert!(needles.iter().all(|needle| error.contains(needle)), "{error}");
    };
    let plain = Gemm::new(Scalar::E4M3, 64, 64, 256).scale_by(Along::N, Scale::Block);
    refused(plain, &["scales = n128x128", "promoted to f32", "e4m3promoted"]);
    refused(Gemm::new(Scalar::BF16, 64, 64, 256).scale_by(Along::M, Scale::LineBlock), &["scales = m1x128", "8-bit floats"]);
    let dynamic = scaled([Scalar::E4M3; 2], (64, 64, 256), SCALES[0]);
    refused(
        dynamic.dynamic(tilewright_problem::Dynamic { m: true, n: false, g: false }),
        &["scales of blocks", "an operation for each size"],
    );
    let error = Problem::parse("tC0_tA0_tB0_colMaj0_m5_n6_k7_lda7_ldb6_ldc6_ws0_e4m3promoted_outf32_scalek").unwrap_err();
    assert!(error.to_string().contains("m128x128"), "{error}");
    let split = |plan: &str, keys: &str| {
        let problem = scaled([Scalar::E4M3; 2], (256, 256, 1024), SCALES[0]).build().unwrap().into();
        let space = Space::new(&problem, &emulator("emu:sm_89", false, 0).info().target).unwrap();
        let plan = Plan::from(Constraint::parse(&format!("{plan}{keys}")).unwrap().apply(&Plan::default()));
        space.resolve(&plan).map(|_| ()).map_err(|refusal| (refusal.to_string(), refusal))
    };
    let (words, refusal) = split(MMA, "_UNR64_ICE3_SKS1").unwrap_err();
    assert_eq!(refusal, Refusal::ScaledParts { unr: 64, ice: 3, ufo: 0, every: 128 });
    assert!(words.contains("ICE1 or UNR128"), "{words}");
    split(MMA, "_UNR128_ICE2_SKS1").unwrap();
    split(MMA, "_UNR64_ICE4_SKS1").unwrap();
    assert!(split(MMA, "_UNR64_ICE4_SKS1_IWI1").is_err());
    assert_eq!(split(FMA, "_UNR64_UFO1").unwrap_err().1, Refusal::ScaledParts { unr: 64, ice: 1, ufo: 1, every: 128 });
}

/// Sums of both levels and scales stay in registers.
#[test]
fn sums_stay_in_registers() {
    for (arch, plan, dtype, add) in [
        ("sm_89", format!("{MMA}_UNR128_PFG1_BUF1"), Scalar::E4M3, "QMMA.16832.F32.E4M3.E4M3"),
        ("sm_90a", format!("{WGMMA}_MAC256_UNR128_BUF5_LWV4_PST132"), Scalar::E4M3, "QGMMA.64x128x32.F32.E4M3.E4M3"),
        ("sm_90a", format!("{WGMMA_ROWS}_MAC256_SKW10_UNR128_BUF4_LWV4_PST132"), Scalar::E4M3, "QGMMA.64x128x32.F32.E4M3.E4M3"),
        ("gfx942", format!("{MFMA}_UNR64_PFG1_BUF2"), Scalar::E4M3Fnuz, "v_mfma_f32_32x32x16_fp8_fp8"),
        ("gfx950", format!("{MFMA}_UNR64_PFG1_BUF2"), Scalar::E4M3, "v_mfma_f32_32x32x64_f8f6f4"),
    ] {
        let problem: Problem = scaled([dtype; 2], (4096, 4096, 4096), SCALES[0]).out_dtype(Scalar::BF16).build().unwrap().into();
        nothing_is_spilled(&problem, arch, &plan, add);
    }
}
