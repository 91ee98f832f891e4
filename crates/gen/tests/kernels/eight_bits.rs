//! 8-bit factors: floats (OCP e4m3 and e5m2) by multiply-adds everywhere, by mma.sync from sm_89 on, by wgmma on sm_90a and by MFMA on
//! gfx950, those of gfx942 (FNUZ) by multiply-adds and by its MFMA; integers
//! (i8 and u8) likewise, by mma.sync from sm_80 on, signed ones by MFMA. On the emulator with every check; what assemblers make of it; what is refused.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many pairs are drawn, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::missing;
use crate::support;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use support::wave_units::piped;
use support::{Run, draws_or, emulator, judge, number, verified};
use tilewright_check::random::{Pair, Recipe, epilogue, out_dtype, wave_unit_plan, whole_run};
use tilewright_check::reference::Samples;
use tilewright_check::run::{Factors, compile};
use tilewright_check::verify::{Case, Depth};
use tilewright_device::inspect::inspect;
use tilewright_device::{DeviceError, Options};
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Keys, Plan, Refusal};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Activation, Along, Gemm, Order, Problem};

const FLOATS: &[Scalar] = &[Scalar::E4M3, Scalar::E5M2];
/// Of gfx942.
const FNUZ: &[Scalar] = &[Scalar::E4M3Fnuz, Scalar::E5M2Fnuz];
const INTEGERS: &[Scalar] = &[Scalar::I8, Scalar::U8];

/// Products and convolutions, in place and materialised, on waves of 32 and of 64.
#[test]
fn random_pairs() {
    for (types, count) in [(FLOATS, 150), (INTEGERS, 150), (FNUZ, 60)] {
        let recipe = Recipe::emulated().of(types);
        Run { devices: &["emu:sm_90a", "emu:sm_80", "emu:gfx900"], recipe, count, interleave: false }.all_pass();
    }
}

/// By warpgroup instructions: what rows along m and n need is copied to workspace or written along k by load waves.
#[test]
fn random_plans_on_wgmma() {
    for types in [FLOATS, INTEGERS] {
        Run { devices: &["emu:sm_90a"], recipe: Recipe::units().of(types), count: 40, interleave: true }.all_pass();
    }
}

/// Draws products with edges everywhere, repairs plans for them and verifies those; says how many were legal.
fn verify(count: u64, types: &[Scalar], device: &str, plan: impl Fn(&mut ChaCha8Rng) -> Plan + Sync) -> u64 {
    let count = draws_or(count, count.div_ceil(10));
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let outcomes: Vec<Option<String>> = (first..first + count)
        .into_par_iter()
        .filter_map(|seed| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            // 16 stands for rows at multiples of 16 bytes.
            let unit = if rng.random() { 16 } else { 1 };
            let mut extent = |most: u64| unit * rng.random_range(1..most / unit);
            let (m, n, k) = (extent(180), extent(180), extent(200));
            let [dtype, b] = [0, 1].map(|_| types[rng.random_range(0..types.len())]);
            let order = if rng.random() { Order::Row } else { Order::Col };
            let gemm = Gemm::new(dtype, m, n, k).order(order).trans(rng.random(), rng.random()).batch(rng.random_range(1..3));
            let gemm = gemm.b_dtype(b).out_dtype(out_dtype(&mut rng, dtype));
            let problem: Problem = epilogue(&mut rng, gemm, unit).unwrap().build().unwrap().into();
            let device = emulator(device, rng.random(), seed);
            let space = Space::new(&problem, &device.info().target).unwrap();
            let plan = space.repair(&plan(&mut rng))?;
            space.resolve(&plan).ok()?.spec.tiling.instruction?;
            Some(judge(&device, &Pair { seed, problem, plan }))
        })
        .collect();
    let failed: Vec<&String> = outcomes.iter().flatten().collect();
    eprintln!("{} of {count} plans have matrix instructions, {} failed", outcomes.len(), failed.len());
    assert!(failed.is_empty(), "{}", failed.iter().take(5).map(|s| s.as_str()).collect::<Vec<_>>().join("\n"));
    // Few draws scatter.
    let least = if whole_run() { count / 5 } else { 0 };
    assert!(outcomes.len() as u64 > least, "{} of {count}", outcomes.len());
    outcomes.len() as u64
}

#[test]
fn random_plans_on_mma() {
    verify(100, FLOATS, "emu:sm_89", |rng| wave_unit_plan(rng, 1));
    verify(100, INTEGERS, "emu:sm_80", |rng| wave_unit_plan(rng, 1));
}

/// Each generation has instructions of its own: gfx942 takes its own formats, gfx950 those of OCP, half of them by instructions of 64 and 128 k.
#[test]
fn random_plans_on_mfma() {
    for device in ["emu:gfx90a", "emu:gfx942", "emu:gfx950"] {
        verify(80, &[Scalar::I8], device, |rng| wave_unit_plan(rng, 3));
    }
    verify(100, FNUZ, "emu:gfx942", |rng| wave_unit_plan(rng, 3));
    verify(80, FLOATS, "emu:gfx950", |rng| wave_unit_plan(rng, 3));
    verify(80, FLOATS, "emu:gfx950", |rng| {
        let k_tile = 64 * rng.random_range(1..3);
        Keys::clone(&wave_unit_plan(rng, 3)).but(|keys| keys.k_tile = k_tile).into()
    });
}

/// Panels that TMA and load waves bring, for mma.sync and wgmma.
#[test]
fn random_plans_of_bulk_copies() {
    for types in [FLOATS, INTEGERS] {
        verify(100, types, "emu:sm_90a", |rng| {
            let unit = rng.random_range(1..3);
            // Rows of 128 bytes.
            piped(rng, unit).but(|keys| keys.k_tile = rng.random_range(1..3) * 128).into()
        });
    }
}

/// Results of one byte leave by bulk stores whose lines are whole chunks of 16 bytes, which two runs of a lane's neighbours fill.
#[test]
fn results_of_bytes_leave_in_bulk() {
    for (dtype, out) in [(Scalar::E5M2, Scalar::E4M3), (Scalar::I8, Scalar::I8), (Scalar::U8, Scalar::U8)] {
        for (order, swapped) in [(Order::Row, 0), (Order::Row, 1), (Order::Col, 0), (Order::Col, 1)] {
            let trans = (order == Order::Col, order == Order::Row);
            let gemm = Gemm::new(dtype, 80, 96, 160).order(order).trans(trans.0, trans.1).out_dtype(out).batch(2);
            let problem: Problem = gemm.build().unwrap().into();
            verified("emu:sm_90a", &problem, &format!("{WGMMA}_CST1_SWP{swapped}"), (5, false));
            // Tiles of 8 columns have no whole chunk in a row.
            let narrow = format!("{}_CST1_SWP{swapped}", WGMMA.replace("MIC16", "MIC1"));
            let space = Space::new(&problem, &emulator("emu:sm_90a", false, 0).info().target).unwrap();
            match space.resolve(&of_text(&narrow)) {
                Ok(_) => drop(verified("emu:sm_90a", &problem, &narrow, (5, false))),
                Err(refusal) => assert!(refusal.to_string().contains("16 bytes"), "{narrow}: {refusal}"),
            }
        }
    }
}

fn product([a, b]: [Scalar; 2], trans: (bool, bool)) -> Problem {
    let out = if a == Scalar::U8 { a } else { Scalar::BF16 };
    let gemm = Gemm::new(a, 1024, 1024, 1024).b_dtype(b).order(Order::Row).trans(trans.0, trans.1).out_dtype(out);
    gemm.bias(Along::N).activation(Activation::Relu).build().unwrap().into()
}

fn of_text(text: &str) -> Plan {
    Constraint::parse(text).unwrap().apply(&Plan::default()).into()
}

const MMA: &str = "A_MIC4_PAD1_GLW16_PLU1_ACP1__B_MIC4_PAD1_GLW16_PLU1_ACP1__C_UNI1_MAC128_UNR64_PFG2_BUF3_FRA1_EDG1";
const WGMMA: &str = "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR128_PFG3_BUF4_LWV4";
const WGMMA_SWAPPED: &str = "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR128_PFG3_BUF4_LWV4_SWP1";
const MFMA_DEEP: &str = "A_MIC1_PAD1_GLW16_PLU1__B_MIC1_PAD1_GLW16_PLU1__C_UNI3_MAC256_UNR128_PFG1_BUF2_EDG1";
const MFMA_FLAT: &str = "A_MIC2_PAD1_GLW8_PLU1__B_MIC2_PAD1_GLW8_PLU1__C_UNI3_MAC256_UNR32_PFG1_BUF2_EDG1";
const FNUZ_MIXED: [Scalar; 2] = [Scalar::E4M3Fnuz, Scalar::E5M2Fnuz];
const MIXED: [Scalar; 2] = [Scalar::E4M3, Scalar::E5M2];
const SIGNS: [Scalar; 2] = [Scalar::I8, Scalar::U8];
const MFMA: &str = "A_MIC4_PAD1_GLW16_PLU1__B_MIC4_PAD1_GLW16_PLU1__C_UNI3_MAC256_UNR64_PFG1_BUF2_EDG1";
const MFMA_SMALL: &str = "A_MIC1_PAD1_GLW16_PLU1__B_MIC1_PAD1_GLW16_PLU1__C_UNI3_MAC64_UNR64_PFG1_BUF2_EDG1";
const FMA: &str = "A_MIC4__B_MIC4__C_MAC64_UNR16_EDG1";

/// The instructions that assemblers make of plans.
#[test]
fn assemblers_take_them() {
    let cases = [
        ("sm_80", FMA, [Scalar::E4M3; 2], "FFMA"),
        ("sm_80", FMA, [Scalar::E5M2; 2], "FFMA"),
        ("sm_89", FMA, [Scalar::E4M3; 2], "F2FP.F16.E4M3.UNPACK_B"),
        ("sm_89", MMA, [Scalar::E4M3; 2], "QMMA.16832.F32.E4M3.E4M3"),
        ("sm_89", MMA, [Scalar::E5M2; 2], "QMMA.16832.F32.E5M2.E5M2"),
        // Hopper's mma.sync widens 8-bit floats to f16.
        ("sm_90a", MMA, [Scalar::E4M3; 2], "HMMA.16816.F32"),
        ("sm_90a", WGMMA, [Scalar::E4M3; 2], "QGMMA.64x128x32.F32.E4M3.E4M3"),
        ("sm_90a", WGMMA, [Scalar::E5M2; 2], "QGMMA.64x128x32.F32.E5M2.E5M2"),
        ("sm_89", MMA, MIXED, "QMMA.16832.F32.E4M3.E5M2"),
        ("sm_90a", WGMMA, MIXED, "QGMMA.64x128x32.F32.E4M3.E5M2"),
        ("sm_90a", WGMMA_SWAPPED, MIXED, "QGMMA.64x128x32.F32.E5M2.E4M3"),
        ("sm_80", FMA, [Scalar::I8; 2], "IDP.4A.S8.S8"),
        ("sm_75", FMA, [Scalar::U8; 2], "IDP.4A.U8.U8"),
        ("gfx906", FMA, [Scalar::I8; 2], "v_dot4_i32_i8"),
        ("gfx90a", FMA, [Scalar::U8; 2], "v_dot4_u32_u8"),
        ("gfx942", FMA, [Scalar::I8; 2], "v_dot4c_i32_i8"),
        ("sm_80", MMA, [Scalar::I8; 2], "IMMA.16832.S8.S8"),
        ("sm_90a", MMA, [Scalar::U8; 2], "IMMA.16832.U8.U8"),
        ("sm_80", MMA, SIGNS, "IMMA.16832.S8.U8"),
        ("sm_90a", WGMMA, [Scalar::I8; 2], "IGMMA.64x128x32.S8.S8"),
        ("sm_90a", WGMMA, [Scalar::U8; 2], "IGMMA.64x128x32.U8.U8"),
        ("sm_90a", WGMMA, SIGNS, "IGMMA.64x128x32.S8.U8"),
        ("sm_90a", WGMMA_SWAPPED, SIGNS, "IGMMA.64x128x32.U8.S8"),
        ("gfx90a", MFMA, [Scalar::I8; 2], "v_mfma_i32_32x32x8i8"),
        ("gfx90a", MFMA_SMALL, [Scalar::I8; 2], "v_mfma_i32_16x16x16i8"),
        ("gfx942", MFMA, [Scalar::I8; 2], "v_mfma_i32_32x32x16_i8"),
        ("gfx942", MFMA_SMALL, [Scalar::I8; 2], "v_mfma_i32_16x16x32_i8"),
        ("gfx950", MFMA, [Scalar::I8; 2], "v_mfma_i32_32x32x32_i8"),
        ("gfx950", MFMA_SMALL, [Scalar::I8; 2], "v_mfma_i32_16x16x64_i8"),
        ("gfx900", FMA, [Scalar::U8; 2], "v_mad"),
        ("gfx942", FMA, [Scalar::E4M3; 2], "v_fma"),
        ("gfx90a", FMA, [Scalar::E5M2; 2], "v_cvt_f32_f16"),
        ("gfx942", FMA, [Scalar::E4M3Fnuz; 2], "v_cvt_f32_fp8"),
        ("gfx950", FMA, [Scalar::E5M2; 2], "v_cvt_f32_bf8"),
        ("gfx942", MFMA, [Scalar::E4M3Fnuz; 2], "v_mfma_f32_32x32x16_fp8_fp8"),
        ("gfx942", MFMA, [Scalar::E5M2Fnuz; 2], "v_mfma_f32_32x32x16_bf8_bf8"),
        ("gfx942", MFMA, FNUZ_MIXED, "v_mfma_f32_32x32x16_fp8_bf8"),
        ("gfx942", MFMA_SMALL, [Scalar::E4M3Fnuz; 2], "v_mfma_f32_16x16x32_fp8_fp8"),
        ("gfx950", MFMA_FLAT, [Scalar::E4M3; 2], "v_mfma_f32_32x32x16_fp8_fp8"),
        ("gfx950", MFMA, [Scalar::E4M3; 2], "v_mfma_f32_32x32x64_f8f6f4"),
        ("gfx950", MFMA_DEEP, [Scalar::E5M2; 2], "v_mfma_f32_16x16x128_f8f6f4"),
        // Formats are named behind the instruction.
        ("gfx950", MFMA, MIXED, "blgp:1"),
    ];
    for (arch, plan, types, instruction) in cases {
        let Some(code) = assembly(&product(types, (false, true)), arch, plan) else { return };
        let other: Vec<&str> = code.lines().filter(|line| line.contains("MMA")).take(1).collect();
        assert!(code.contains(instruction), "{arch} {types:?}: no {instruction}, but {other:?}");
    }
}

/// What a compiler makes of the main kernel of a plan; nothing where it is missing.
fn assembly(problem: &Problem, arch: &str, plan: &str) -> Option<String> {
    let space = Space::new(problem, &Target::by_arch(arch).unwrap()).unwrap();
    let r = space.resolve(&of_text(plan)).unwrap_or_else(|e| panic!("{arch} {plan}: {e}"));
    let program = r.generate(space.env().workspace_bytes).unwrap();
    let kernel = program.kernels.iter().find(|k| k.name == MAIN).unwrap();
    match inspect(kernel, arch, None, &Options::default()) {
        Err(e @ DeviceError::Missing { .. }) => {
            missing::missing(&e.to_string());
            None
        }
        seen => Some(seen.unwrap().assembly),
    }
}

/// Results in 8-bit floats: what the hardware has for the conversion, and arithmetic where it has nothing.
#[test]
fn results_are_narrowed_by_what_hardware_has() {
    let cases = [
        ("sm_89", MMA, Scalar::E4M3, Scalar::E4M3, "F2FP.SATFINITE.E4M3.F32"),
        ("sm_90a", WGMMA, Scalar::E4M3, Scalar::E5M2, "F2FP.SATFINITE.E5M2.F32"),
        ("gfx942", MFMA, Scalar::E4M3Fnuz, Scalar::E4M3Fnuz, "v_cvt_pk_fp8_f32"),
        ("gfx950", MFMA, Scalar::E5M2, Scalar::E5M2, "v_cvt_pk_bf8_f32"),
        ("sm_80", FMA, Scalar::E5M2, Scalar::E4M3, "FFMA"),
        ("gfx90a", FMA, Scalar::F16, Scalar::E5M2Fnuz, "v_fma"),
    ];
    for (arch, plan, dtype, out, instruction) in cases {
        let gemm = Gemm::new(dtype, 1024, 1024, 1024).order(Order::Row).trans(false, true).out_dtype(out);
        let Some(code) = assembly(&gemm.build().unwrap().into(), arch, plan) else { return };
        assert!(code.contains(instruction), "{arch} {dtype} to {out}: no {instruction}");
    }
}

/// Beyond the largest number results are that, and the largest magnitude beside them is of values before and behind the rounding.
#[test]
fn results_saturate_and_have_a_largest_magnitude() {
    for (arch, plan, out) in [
        ("emu:sm_90a", WGMMA, Scalar::E4M3),
        ("emu:gfx942", MFMA, Scalar::E4M3Fnuz),
        ("emu:sm_89", MMA, Scalar::E5M2),
        ("emu:sm_80", FMA, Scalar::E5M2Fnuz),
    ] {
        let dtype = if out.is_fnuz() { Scalar::E5M2Fnuz } else { Scalar::E5M2 };
        let gemm = Gemm::new(dtype, 144, 160, 256).order(Order::Row).trans(false, true).out_dtype(out);
        let gemm = ["absmax:mn", "absmax:mn:stored"].into_iter().fold(gemm, |gemm, text| gemm.reduce(text.parse().unwrap()));
        let problem: Problem = gemm.build().unwrap().into();
        let device = emulator(arch, true, 1);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let plan = space.repair(&of_text(plan)).expect("legal");
        let program = space.resolve(&plan).unwrap().generate(space.env().workspace_bytes).unwrap();
        let compiled = compile(device.as_ref(), &program).unwrap();
        // Sums of so many products are about 5.
        for alpha in [1.0, 64.0, 16384.0] {
            let case = Case::new(&device, &problem, 3, Factors::real(alpha, 0.0), Samples::All).unwrap();
            let verdict = case.verify(&program, &compiled, space.contraction(&plan), Depth::Quick, false).unwrap();
            assert!(verdict.passed, "{arch} {out} times {alpha}: {:?}", verdict.reason);
        }
    }
}

#[test]
fn what_units_lack_is_refused_by_name() {
    let refused = |arch: &str, plan: &str, trans: (bool, bool)| {
        let space = Space::new(&product([Scalar::E4M3; 2], trans), &Target::by_arch(arch).unwrap()).unwrap();
        space.resolve(&of_text(plan)).expect_err("refused")
    };
    assert!(matches!(refused("sm_80", MMA, (false, true)), Refusal::UnitFloat8 { uni: 1, scalar: Scalar::E4M3, .. }));
    // Lines of m and of n are copied, or transposed on the way: TMA and cp.async do not.
    let why = refused("sm_90a", WGMMA, (true, true)).to_string();
    assert!(why.contains("along k only (RGA lifts this for 32 bits); use WOS1"), "{why}");
    assert!(matches!(refused("sm_89", MMA, (true, true)), Refusal::AsyncAlongRows { .. }));
    assert!(matches!(refused("sm_90a", &MMA.replace("UNR64", "UNR48"), (false, true)), Refusal::UnitSteps { depth: 32, .. }));
    let on = |arch: &str, float: Scalar| {
        let space = Space::new(&product([float; 2], (false, true)), &Target::by_arch(arch).unwrap()).unwrap();
        space.resolve(&of_text(MFMA)).map(|_| ()).map_err(|why| why.to_string())
    };
    for (arch, float, words) in [
        ("gfx942", Scalar::E4M3, ["no e4m3", "use e4m3fnuz"]),
        ("gfx950", Scalar::E5M2Fnuz, ["no e5m2fnuz", "use e4m3 and e5m2"]),
        ("gfx90a", Scalar::E4M3Fnuz, ["no e4m3fnuz", "gfx942"]),
    ] {
        let why = on(arch, float).expect_err(arch);
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
    assert_eq!([on("gfx942", Scalar::E5M2Fnuz), on("gfx950", Scalar::E4M3)], [Ok(()), Ok(())]);
    let space = Space::new(&product([Scalar::E4M3Fnuz; 2], (false, true)), &Target::by_arch("sm_90a").unwrap()).unwrap();
    assert!(matches!(space.resolve(&of_text(WGMMA)), Err(Refusal::UnitTypes { uni: 2, a: Scalar::E4M3Fnuz, .. })));
    // MFMA takes signed bytes alone, gfx942's in steps of 16 or 32.
    let refused = |types, plan: &str| {
        let space = Space::new(&product(types, (false, true)), &Target::by_arch("gfx942").unwrap()).unwrap();
        space.resolve(&of_text(plan)).expect_err("refused")
    };
    assert!(matches!(refused([Scalar::U8; 2], MFMA), Refusal::UnitTypes { uni: 3, .. }));
    assert!(matches!(refused(SIGNS, MFMA), Refusal::UnitTypes { uni: 3, .. }));
    assert!(matches!(refused([Scalar::I8; 2], &MFMA_SMALL.replace("UNR64", "UNR48")), Refusal::UnitSteps { depth: 32, .. }));
    let space = Space::new(&product([Scalar::I8; 2], (false, true)), &Target::by_arch("sm_90a").unwrap()).unwrap();
    let odd = space.resolve(&of_text(&WGMMA.replace("B_MIC16", "B_MIC5"))).expect_err("40 columns of integers");
    assert!(matches!(odd, Refusal::UnitColumns { micro: 5 }), "{odd}");
    assert!(space.resolve(&of_text(&WGMMA.replace("B_MIC16", "B_MIC3"))).is_ok(), "24 columns");
}
