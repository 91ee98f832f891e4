//! Gated products on every unit and by every way out, on the emulator with every check on: results of random data, and of integers whose sums are
//! exact.

use crate::support;

use rayon::prelude::*;
use std::sync::Arc;
use support::emulator;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_device::Device;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Along, GateFunction, Gemm, GemmBuilder, Order, Problem};

/// A device, a plan, and the types of the operands.
type Way = (&'static str, &'static str, &'static [Scalar]);

const HALVES: &[Scalar] = &[Scalar::F16, Scalar::BF16];
const FLOATS: &[Scalar] = &[Scalar::F32, Scalar::F64, Scalar::BF16];

const WAYS: [Way; 18] = [
    ("emu:gfx900", "A_MIC2__B_MIC2_MIW0__C_UNI0_EDG1", FLOATS),
    ("emu:gfx900", "A_MIC4__B_MIC4_FRW2__C_UNI0_EDG1", &[Scalar::F32]),
    ("emu:gfx900", "A_MIC2__B_MIC16_MIW0__C_UNI0_EDG1_BIM1_MAC64", FLOATS),
    ("emu:gfx900", "A_MIC2__B_MIC4_MIW0__C_UNI0_EDG1_CST1", &[Scalar::F32, Scalar::F16]),
    ("emu:gfx900", "A_MIC2__B_MIC2__C_UNI0_EDG1_ICE3_SKS1", &[Scalar::F32, Scalar::BF16]),
    ("emu:gfx900", "A_MIC2__B_MIC4__C_UNI0_EDG1_ICE2_SKS1_BIM1", &[Scalar::F32]),
    ("emu:sm_80", "A_MIC2__B_MIC2__C_UNI1_EDG1_UNR32_MAC64_BIM1", HALVES),
    ("emu:sm_80", "A_MIC2__B_MIC8__C_UNI1_EDG1_UNR32_MAC64_BIM2", HALVES),
    ("emu:sm_80", "A_MIC2__B_MIC4__C_UNI1_EDG1_UNR32_MAC64_BIM1_CST1", &[Scalar::BF16, Scalar::F64]),
    ("emu:sm_80", "A_MIC2__B_MIC2__C_UNI1_EDG1_UNR32_MAC64_BIM1_ICE2_SKS1", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_BIM1_CST0", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_BIM3_CST1", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_BIM2_CST1_PST2_LWV4", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_BIM1_ICE2_SKS1", HALVES),
    ("emu:sm_90a", "A_MIC1_WOS1_ACP2__B_MIC8_WOS1_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_BIM2_CST1", HALVES),
    ("emu:gfx942", "A_MIC2__B_MIC4__C_UNI3_EDG1_UNR32_MAC128", HALVES),
    ("emu:gfx942", "A_MIC2__B_MIC4__C_UNI3_EDG1_UNR32_MAC128_CST1", HALVES),
    ("emu:gfx942", "A_MIC2__B_MIC4__C_UNI3_EDG1_UNR32_MAC128_ICE2_SKS1", HALVES),
];

/// Verifies a problem under a plan, on random data and on integers.
fn verify(device: &Arc<dyn Device>, problem: &Problem, plan: &str) -> Option<String> {
    let space = Space::new(problem, &device.info().target).expect("a space");
    let keys = Constraint::parse(plan).expect("a plan");
    let plan: Plan = keys.apply(&Plan::default()).into();
    let named = format!("{} --problem {problem} --plan {plan}", device.info().id);
    let resolved = match space.resolve(&plan) {
        Ok(resolved) => resolved,
        Err(why) => return Some(format!("{named}: {why}")),
    };
    let program = resolved.generate(space.env().workspace_bytes).expect("a program");
    let compiled = compile(device.as_ref(), &program).expect("it compiles");
    let case = Case::new(device, problem, 3, test_factors(3, false), Samples::All).expect("a case");
    let v = case.verify(&program, &compiled, resolved.contraction, Depth::Thorough, true).expect("it runs");
    (!v.passed).then(|| format!("{named}: {:?}", v.reason))
}

/// Whole granules of 64 columns in every way's tile where `round`; else tails in every direction, and lines that begin anywhere.
fn product(dtype: Scalar, round: bool) -> GemmBuilder {
    let (m, n) = if round { (88, 128) } else { (83, 139) };
    let gemm = Gemm::new(dtype, m, n, 72).batch(2);
    if round { gemm } else { gemm.ldc(141) }
}

#[test]
fn every_way_out_combines_pairs() {
    let all = WAYS.iter().flat_map(|(id, plan, types)| types.iter().map(move |dtype| (id, plan, *dtype)));
    let all: Vec<_> = all.collect();
    let wrong = all.par_iter().enumerate().flat_map_iter(|(i, (id, plan, dtype))| {
        let device = emulator(id, false, 1);
        let function = GateFunction::ALL[i % GateFunction::ALL.len()];
        [false, true].into_iter().filter_map(move |round| {
            let gemm = product(*dtype, round).trans(false, true).gate(function).up_first(round != (i % 2 == 0));
            let gemm = if i % 3 == 0 { gemm.bias(Along::M) } else { gemm.bias(Along::N) };
            let gemm = if round { gemm.residual() } else { gemm };
            verify(&device, &gemm.build().expect("a problem").into(), plan)
        })
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Columns of B side by side, results in either order, one batch entry, types that sums are scaled for.
#[test]
fn every_layout_has_a_gate() {
    let of = |dtype: Scalar| Gemm::new(dtype, 70, 96, 64).gate(GateFunction::Silu);
    let all = [
        ("emu:gfx900", WAYS[0].1, of(Scalar::F32).order(Order::Col)),
        ("emu:gfx900", WAYS[0].1, of(Scalar::F32).trans_c(true).bias(Along::N)),
        ("emu:gfx900", WAYS[4].1, of(Scalar::BF16).order(Order::Col).trans(true, true).bias(Along::N)),
        ("emu:gfx900", WAYS[2].1, of(Scalar::I8).out_dtype(Scalar::BF16).scale(Along::N).scale(Along::M)),
        ("emu:sm_80", WAYS[6].1, of(Scalar::F16).out_dtype(Scalar::F32)),
        ("emu:sm_80", WAYS[6].1, of(Scalar::F16).order(Order::Col).bias(Along::N)),
        ("emu:sm_90a", WAYS[11].1, of(Scalar::BF16)),
        ("emu:sm_90a", WAYS[11].1, of(Scalar::BF16).trans(true, false).lda(72).up_first(true)),
        ("emu:sm_90a", WAYS[10].1, of(Scalar::BF16).trans_c(true).trans(false, true)),
        ("emu:sm_90a", WAYS[12].1, of(Scalar::E4M3).trans(false, true).scale(Along::N).out_dtype(Scalar::BF16)),
        ("emu:gfx942", WAYS[15].1, of(Scalar::F16).bias(Along::N)),
    ];
    let wrong = all.into_par_iter().filter_map(|(id, plan, gemm)| {
        // An instruction for 8-bit floats is deeper.
        let plan = if plan == WAYS[12].1 { plan.replace("UNR64", "UNR128") } else { plan.into() };
        verify(&emulator(id, false, 1), &gemm.build().expect("a problem").into(), &plan)
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
