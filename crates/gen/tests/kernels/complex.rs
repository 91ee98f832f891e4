//! Products of complex matrices by every unit on the emulator: all ways to take the factors, both orders, batches, splits, copies in workspace and
//! factors that change their signs on the way; real and complex alpha and beta; sums of small integers to the last bit.

use crate::support;

use support::{emulator, verified_to};
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_gen::plan::{Constraint, Plan, Source};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Gemm, GemmBuilder, Math, Order, Problem};

const FMA: &str = "A_MIC4__B_MIC4__C_MAC64_EDG1";
const COPIED: &str = "A_MIC4_WOS1__B_MIC4_WOS1__C_MAC64_EDG1";

/// Device, plan, type of the parts and how they are multiplied.
const CASES: &[(&str, &str, &str, Scalar, Math)] = &[
    ("emu:sm_80", FMA, "_UNR16", Scalar::F32, Math::Exact),
    ("emu:sm_80", FMA, "_UNR8_PFG1_BUF2", Scalar::F64, Math::Exact),
    ("emu:sm_80", "A_MIC8__B_MIC8__C_MAC16_EDG1", "_UNR3_UFO1", Scalar::F32, Math::Exact),
    ("emu:sm_80", FMA, "_UNR16_ICE3_SKS1", Scalar::F64, Math::Exact),
    ("emu:sm_80", FMA, "_UNR8_LWV2_PFG1_BUF2_SWP1", Scalar::F32, Math::Exact),
    ("emu:sm_80", COPIED, "_UNR16_PFG1_BUF2", Scalar::F32, Math::Exact),
    ("emu:sm_80", "A_MIC4_WOS2__B_MIC4_WOS2__C_MAC64_EDG1", "_UNR16_ICE2_SKS1", Scalar::F64, Math::Exact),
    ("emu:sm_80", "A_MIC4_WOS1_ACP1__B_MIC4_WOS1_ACP1__C_MAC64_EDG1", "_UNR16_PFG1_BUF2", Scalar::F64, Math::Exact),
    ("emu:sm_90a", "A_MIC2_PAD1__B_MIC4_PAD1__C_UNI1_MAC128_EDG1", "_UNR16_PFG1_BUF2", Scalar::F64, Math::Exact),
    ("emu:sm_90a", "A_MIC2_WOS1__B_MIC4_WOS1__C_UNI1_MAC128_EDG1", "_UNR16_PFG1_BUF2_ICE2_SKS1", Scalar::F64, Math::Exact),
    ("emu:sm_80", "A_MIC2_PAD1__B_MIC4_PAD1__C_UNI1_MAC128_EDG1", "_UNR32_PFG1_BUF2", Scalar::F32, Math::Tf32x3),
    ("emu:sm_80", "A_MIC2_PAD1__B_MIC4_PAD1__C_UNI1_MAC128_EDG1", "_UNR32_SWP1", Scalar::F32, Math::Tf32),
    ("emu:sm_90a", "A_MIC1_WOS1_ACP2__B_MIC16_ACP0__C_UNI2", "_MAC256_UNR32_BUF4_LWV4", Scalar::F32, Math::Tf32),
    ("emu:sm_90a", "A_MIC1_WOS1_ACP2__B_MIC8_WOS1_ACP2__C_UNI2", "_MAC128_UNR32_BUF4_LWV1", Scalar::F32, Math::Tf32),
    ("emu:sm_90a", "A_MIC1_ACP2_WOS1__B_MIC8_ACP0__C_UNI2", "_MAC256_UNR32_BUF3_PFG2_LWV4_RGA2", Scalar::F32, Math::Tf32x3),
    ("emu:gfx942", "A_MIC2_PAD1__B_MIC2_PAD1__C_UNI3_MAC256_EDG1", "_UNR16_PFG1_BUF2", Scalar::F64, Math::Exact),
    ("emu:gfx942", "A_MIC2_WOS1__B_MIC2_WOS1__C_UNI3_MAC256_EDG1", "_UNR16_ICE2_SKS1", Scalar::F32, Math::Exact),
];

/// How factors are taken: bits of A's transposition, A's conjugates, B's, and the order of all matrices.
fn product((scalar, math): (Scalar, Math), (m, n, k): (u64, u64, u64), bits: u32) -> GemmBuilder {
    let bit = |i: u32| bits >> i & 1 == 1;
    let order = if bit(4) { Order::Row } else { Order::Col };
    Gemm::new(scalar, m, n, k).math(math).order(order).trans(bit(0), bit(2)).conj(bit(1), bit(3))
}

#[test]
fn every_unit_multiplies_complex_numbers() {
    for (number, (device, plan, keys, scalar, math)) in (0..).zip(CASES) {
        // Eight of the 32 ways for each, another eight for the next.
        for i in 0..8u32 {
            let bits = i * 4 + number % 4 + if i % 2 == 0 { 0 } else { 16 };
            let size = [(40, 36, 24), (33, 70, 19), (17, 5, 50)][(number + i) as usize % 3];
            let builder = product((*scalar, *math), size, bits % 32).batch(1 + u64::from(i) % 2);
            // Of the three ways to have a complex factor each unit meets all, with a real one between them.
            let imaginary = (i + number) % 4;
            let builder = builder.imaginary(imaginary & 1 != 0, imaginary & 2 != 0);
            let builder = match i / 2 % 4 {
                0 => builder.lda(75).ldb(77).ldc(79).offsets(1, 2, 3),
                1 => builder.stride_b(0).residual(),
                2 => builder.trans_c(true),
                _ => builder.stride_a(0).ldc(71),
            };
            let problem = Problem::Gemm(builder.build().unwrap());
            verified_to(Depth::Thorough, device, &problem, &format!("{plan}{keys}"), (number.into(), i % 2 == 0));
        }
    }
}

#[test]
fn all_ways_to_take_the_factors() {
    for (scalar, plan) in [(Scalar::F32, FMA), (Scalar::F64, COPIED)] {
        for bits in 0..32 {
            for (alpha_im, beta_im) in [(false, false), (true, true)] {
                let gemm = product((scalar, Math::Exact), (9, 7, 6), bits).imaginary(alpha_im, beta_im).build().unwrap();
                let with_beta = beta_im || bits % 3 == 0;
                verified_to(
                    Depth::Thorough,
                    "emu:sm_80",
                    &Problem::Gemm(gemm),
                    &format!("{plan}_UNR8"),
                    (bits.into(), with_beta),
                );
            }
        }
    }
}

#[test]
fn small_and_thin_products() {
    for (i, size) in (0..).zip([(1, 1, 1), (1, 65, 1), (65, 1, 3), (3, 3, 129), (128, 2, 1)]) {
        for (order, plan) in [(0, FMA), (16, COPIED)] {
            let gemm = product((Scalar::F32, Math::Exact), size, order + i).imaginary(i % 2 == 0, i % 2 == 1);
            let problem = Problem::Gemm(gemm.build().unwrap());
            verified_to(Depth::Thorough, "emu:sm_80", &problem, &format!("{plan}_UNR8"), (i.into(), true));
        }
    }
}

/// A budget that holds the copy of one batch entry.
#[test]
fn batches_are_cut_where_workspace_is_small() {
    for imaginary in [false, true] {
        let product = product((Scalar::F32, Math::Exact), (24, 24, 16), 16).batch(3).workspace(24 * 1024);
        let problem = product.imaginary(imaginary, imaginary).build().unwrap().into();
        verified_to(Depth::Thorough, "emu:sm_80", &problem, "A_MIC4__B_MIC4_WOS1__C_MAC64_EDG1_UNR16", (1, true));
    }
}

/// The fallback of every operation needs no workspace and no alignment.
#[test]
fn the_last_resort_multiplies_complex_numbers() {
    let target = Target::by_arch("sm_80").unwrap();
    for bits in [0, 19, 31] {
        let gemm = product((Scalar::F64, Math::Exact), (30, 20, 10), bits).offsets(1, 1, 1).workspace(0);
        let gemm = gemm.imaginary(true, bits > 0).build().unwrap();
        let space = Space::new(&gemm.into(), &target).unwrap();
        let plan = tilewright_gen::plan::generic(space.contraction(&Plan::default()));
        verified_to(Depth::Thorough, "emu:sm_80", space.problem(), &plan.to_string(), (bits.into(), true));
    }
}

/// Copies of bytes cannot change signs: they are refused with the way out, and the way out holds.
#[test]
fn copies_that_change_no_signs_are_refused() {
    let device = emulator("emu:sm_80", false, 0);
    let problem = product((Scalar::F64, Math::Exact), (64, 64, 64), 16).build().unwrap().into();
    let space = Space::new(&problem, &device.info().target).unwrap();
    let resolve = |plan: &str| space.resolve(&Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default())));
    let refusal = resolve("B_ACP1__C_PFG1_BUF2_EDG1").unwrap_err();
    assert!(refusal.to_string().contains("WOS1"), "{refusal}");
    assert!(resolve("B_WOS3__C_EDG1").unwrap_err().to_string().contains("use WOS1"));
    let resolved = resolve("B_ACP1_WOS1__C_PFG1_BUF2_EDG1").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(resolved.spec.tiling.b.source, Source::Copy);
    // The other factor is a plain matrix, of numbers side by side.
    assert!(!matches!(resolve("A_ACP1__C_PFG1_BUF2_EDG1").map(|_| ()), Err(refusal) if refusal.to_string().contains("negate")));
}

/// Splits that add to C with atomics, and what a kernel ahead leaves there for them.
#[test]
fn atomic_splits_add_to_what_was_multiplied() {
    let device = emulator("emu:sm_80", true, 1);
    for (bits, beta_im) in [(0, true), (16, true), (21, false)] {
        let gemm = product((Scalar::F32, Math::Exact), (33, 21, 70), bits).imaginary(true, beta_im).residual().build().unwrap();
        let problem = gemm.into();
        let space = Space::new(&problem, &device.info().target).unwrap().with_atomics(true);
        let plan = Plan::from(Constraint::parse(&format!("{FMA}_UNR8_ICE3_SKS0")).unwrap().apply(&Plan::default()));
        let program = space.resolve(&plan).unwrap().generate(space.env().workspace_bytes).unwrap();
        let compiled = compile(device.as_ref(), &program).unwrap();
        let case = Case::new(&device, &problem, 5, test_factors(5, true), Samples::All).unwrap();
        let verdict = case.verify(&program, &compiled, space.contraction(&plan), Depth::Thorough, false).unwrap();
        assert!(verdict.passed, "{problem}: {:?}", verdict.reason);
    }
}

/// Real factors are those of kernels that know of no others; complex ones are refused there, with the way out.
#[test]
fn complex_factors_cost_where_they_are_asked_for_alone() {
    let target = Target::by_arch("sm_80").unwrap();
    let names = |alpha_im: bool, beta_im: bool| {
        let gemm = product((Scalar::F32, Math::Exact), (64, 64, 64), 16).imaginary(alpha_im, beta_im).build().unwrap();
        let space = Space::new(&gemm.into(), &target).unwrap();
        let resolved = space.resolve(&Plan::from(Constraint::parse(&format!("{FMA}_UNR8")).unwrap().apply(&Plan::default())));
        let program = resolved.unwrap().generate(space.env().workspace_bytes).unwrap();
        let arguments = program.kernels.iter().flat_map(|kernel| &kernel.args).filter(|arg| arg.name.ends_with("_im"));
        (program.launches.len(), arguments.map(|arg| arg.name.clone()).collect::<Vec<String>>())
    };
    assert_eq!(names(false, false), (1, vec![]));
    assert_eq!(names(true, false), (1, vec!["alpha_im".into()]));
    // The kernel ahead multiplies C, the main one asks whether there is something to add.
    assert_eq!(names(false, true), (2, vec!["beta_im".into(), "beta_im".into()]));
}

/// A copy whose lines run along k, of a factor whose numbers lie along its rows, passes through shared memory, or threads would stride through the factor.
#[test]
fn copies_of_expanded_factors_read_whole_lines() {
    for (trans, turned) in [(false, true), (true, false)] {
        let gemm = Gemm::new(Scalar::F64, 256, 256, 256).complex().order(Order::Col).trans(trans, false).workspace(1 << 30);
        let problem = gemm.build().unwrap().into();
        let space = Space::new(&problem, &Target::by_arch("sm_90a").unwrap()).unwrap();
        let keys = "A_MIC2_ACP2__B_MIC6_WOS1_ACP2__C_UNI1_MAC256_SKW10_UNR32_PFG1_BUF2_SWP1";
        let plan = Plan::from(Constraint::parse(keys).unwrap().apply(&Plan::default()));
        let program = space.resolve(&plan).unwrap_or_else(|e| panic!("{keys}: {e}")).generate(1 << 30).unwrap();
        let copy = program.kernels.iter().find(|kernel| kernel.name.starts_with("tw_materialise")).expect("a copy");
        assert_eq!(copy.shared_bytes() > 0, turned, "{trans}");
    }
}
