//! What happens to the sums on their way out, on every unit and by every way out, on the emulator with every check on.

use crate::support;

use rayon::prelude::*;
use std::sync::Arc;
use support::{emulator, runs_one_of};
use tilewright_check::random::whole_run;
use tilewright_check::reference::Samples;
use tilewright_check::run::{Buffers, compile};
use tilewright_check::verify::{Case, Depth, Verification, test_factors};
use tilewright_device::Device;
use tilewright_gen::kernel::generate;
use tilewright_gen::plan::{Constraint, Derived, Keys, Plan, Refusal};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::{Contraction, EpilogueOp, Vector};
use tilewright_problem::{Activation, Along, Conv, Gemm, GemmBuilder, Layout, Order, Problem, Real, Role};

/// A device, keys that a plan must have, and the types of the operands it computes with.
type Way = (&'static str, &'static str, &'static [Scalar]);

const HALVES: &[Scalar] = &[Scalar::F16, Scalar::BF16];

/// Every unit and every way out. `ICE` above 1 with `SKS1` applies everything in the kernel that sums the splits.
const WAYS: [Way; 22] = [
    ("emu:gfx900", "C_UNI0", &[Scalar::F32, Scalar::F16, Scalar::BF16, Scalar::F64]),
    ("emu:gfx900", "C_UNI0_EDG1_CST1", &[Scalar::F32, Scalar::F16]),
    ("emu:gfx900", "C_UNI0_ICE3_SKS1", &[Scalar::F32, Scalar::BF16]),
    ("emu:gfx900", "A_WOS1__B_WOS2__C_UNI0", &[Scalar::F32]),
    ("emu:sm_80", "C_UNI1", HALVES),
    ("emu:sm_80", "C_UNI1_SWP1", HALVES),
    ("emu:sm_80", "C_UNI1_ICE2_SKS1", HALVES),
    ("emu:sm_80", "C_UNI1_CST1", &[Scalar::F64, Scalar::F16]),
    ("emu:sm_90a", "C_UNI0_ICE3_SKS2", &[Scalar::F32, Scalar::F64]),
    ("emu:sm_90a", "C_UNI1_ICE2_SKS2", &[Scalar::BF16, Scalar::F64]),
    ("emu:sm_90a", "C_UNI2_ICE2_SKS2", HALVES),
    ("emu:sm_90a", "C_UNI2_CST0", HALVES),
    ("emu:sm_90a", "C_UNI2_CST1", HALVES),
    ("emu:sm_90a", "C_UNI2_CST1_SWP1", HALVES),
    ("emu:sm_90a", "C_UNI2_CST1_PST2_LWV4", HALVES),
    ("emu:sm_90a", "C_UNI2_ICE2_SKS1", HALVES),
    ("emu:sm_90a", "A_WOS1__B_WOS1__C_UNI2_CST1", HALVES),
    ("emu:gfx942", "C_UNI3", HALVES),
    ("emu:gfx942", "C_UNI3_SWP1", HALVES),
    ("emu:gfx942", "C_UNI3_ICE2_SKS1", HALVES),
    ("emu:gfx942", "C_UNI3_CST1", HALVES),
    ("emu:gfx942", "C_UNI3_ICE2_SKS1_CST1_SWP1", HALVES),
];

/// Ways, and how many of the four convolutions (layout, form of the sum) have no legal plan with their keys: bulk copies do not move every view of
/// an image, and whole rows are not staged where the result's neighbours are rows.
const WITHOUT_PLAN: [(&str, usize); 10] = [
    ("C_UNI1_CST1", 2),
    ("C_UNI2_ICE2_SKS2", 4),
    ("C_UNI2_CST0", 4),
    ("C_UNI2_CST1", 4),
    ("C_UNI2_CST1_SWP1", 4),
    ("C_UNI2_CST1_PST2_LWV4", 4),
    ("C_UNI2_ICE2_SKS1", 4),
    ("A_WOS1__B_WOS1__C_UNI2_CST1", 1),
    ("C_UNI3_CST1", 2),
    ("C_UNI3_ICE2_SKS1_CST1_SWP1", 3),
];

/// Seeds for legal plans; the keys of a way are set in each.
const STARTS: [&str; 6] = [
    "C_EDG1",
    "A_MIC1_PAD1__B_MIC1_PAD1__C_UNI1_UNR16_MAC64_PFG1_BUF2_STP1_EDG1",
    "A_MIC4__B_MIC4__C_EDG1_UNR16_MAC64_CVW4",
    "A_MIC2_GLW8__B_MIC2_GLW8__C_UNI1_EDG1_UNR32_MAC64_CVW2",
    "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_CVW2",
    "A_MIC2_GLW4__B_MIC2_GLW4__C_UNI3_EDG1_UNR32_MAC128",
];

/// A legal plan with these keys that stores as widely as the problem allows.
fn plan(space: &Space, keys: &str) -> Option<Plan> {
    let keys = Constraint::parse(keys).expect("keys");
    let starts = STARTS.iter().map(|s| keys.apply(&Constraint::parse(s).expect("a start").apply(&Plan::default())));
    let narrow = Constraint::parse("C_CVW1").expect("keys");
    let both = |p: Keys| [p, narrow.apply(&p)];
    starts.flat_map(both).map(Plan::from).find(|p| keys.allows(p) && space.resolve(p).is_ok())
}

fn with_epilogue(c: &Contraction, epilogue: Vec<EpilogueOp>) -> Contraction {
    let mut other = c.clone();
    other.epilogue = epilogue;
    other
}

/// Runs the plan's program for a contraction on a case of what was asked for.
fn run(device: &Arc<dyn Device>, space: &Space, plan: &Plan, case: &Case, contraction: &Contraction) -> Verification {
    let derived = space.resolve(plan).expect("legal").spec;
    let c = contraction.oriented(derived.tiling.swapped, derived.tiling.unit);
    let program = generate(&Derived { c, ..derived }, space.env().workspace_bytes).expect("a program");
    let compiled = compile(device.as_ref(), &program).expect("it compiles");
    case.verify(&program, &compiled, contraction, Depth::Thorough, true).expect("it runs")
}

fn verify(device: &Arc<dyn Device>, problem: &Problem, keys: &str, with_beta: bool) -> Option<String> {
    let space = Space::new(problem, &device.info().target).expect("a space");
    let Some(plan) = plan(&space, keys) else { return Some(format!("{keys} {problem}: no plan")) };
    let case = Case::new(device, problem, 3, test_factors(3, with_beta), Samples::All).expect("a case");
    let v = run(device, &space, &plan, &case, space.contraction(&plan));
    (!v.passed).then(|| format!("{} --problem {problem} --plan {plan}: {:?}", device.info().id, v.reason))
}

/// The order in which a plan with these keys stores whole rows.
fn order(keys: &str) -> Order {
    if keys.contains("SWP1") { Order::Col } else { Order::Row }
}

/// Products with tails in every direction; lines at multiples of 16 bytes where `round`.
fn product(keys: &str, dtype: Scalar, round: bool) -> GemmBuilder {
    let (m, n) = if round { (88, 72) } else { (83, 69) };
    let gemm = Gemm::new(dtype, m, n, 72).order(order(keys)).batch(2);
    if round { gemm } else { gemm.lda(88).ldb(88) }
}

#[test]
fn every_way_out_does_all_of_it() {
    let mut cases = Vec::new();
    for (device, keys, types) in WAYS {
        for (i, &dtype) in types.iter().enumerate() {
            let softcap = Activation::Softcap(Real::parse("1.5").expect("a limit"));
            for (j, activation) in Activation::ALL.into_iter().chain([softcap]).enumerate() {
                let outs: &[Scalar] =
                    if dtype == Scalar::F64 { &[Scalar::F64] } else { &[Scalar::F32, Scalar::F16, Scalar::BF16] };
                let out = outs[(i + j) % outs.len()];
                let round = j % 2 == 0;
                let all = product(keys, dtype, round).out_dtype(out).activation(activation);
                // Residual shared by the batch, and with lines of its own; a bias for each entry, and one for all.
                let one = all.clone().bias_strided(Along::M, 96).ldr(if round { 96 } else { 85 }).stride_r(0);
                let other = all.bias(Along::N).residual();
                for (gemm, with_beta) in [(one, round), (other, !round)] {
                    cases.push((device, keys, Problem::Gemm(gemm.build().expect("a product")), with_beta));
                }
            }
        }
    }
    let failed: Vec<String> = cases
        .into_par_iter()
        .enumerate()
        .filter(|(seed, _)| runs_one_of(10, *seed))
        .filter_map(|(seed, (device, keys, problem, with_beta))| {
            verify(&emulator(device, seed % 2 == 0, seed as u64), &problem, keys, with_beta)
        })
        .collect();
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn convolutions_in_both_layouts() {
    let mut cases = Vec::new();
    for (device, keys, types) in WAYS {
        for layout in [Layout::Nchw, Layout::Nhwc] {
            for form in ["BIM0", "BIM1"] {
                let conv = Conv::new(types[0], 2, 8, 24, &[9, 7], &[3, 2]).layout(layout).pad(&[1, 0], &[1, 2]).bias();
                let conv = conv.groups(if layout == Layout::Nchw { 1 } else { 2 }).activation(Activation::Silu).residual();
                let out = if form == "BIM0" { Scalar::F32 } else { types[0] };
                let out = if types[0] == Scalar::F64 { types[0] } else { out };
                cases.push((
                    device,
                    format!("{keys}_{form}"),
                    Problem::Conv(conv.out_dtype(out).build().expect("a convolution")),
                ));
            }
        }
    }
    let found: Vec<Option<String>> =
        cases.into_par_iter().map(|(device, keys, problem)| verify(&emulator(device, true, 1), &problem, &keys, false)).collect();
    let failed: Vec<&String> = found.iter().flatten().filter(|f| !f.ends_with("no plan")).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let without: Vec<&String> = found.iter().flatten().collect();
    let of = |keys: &str| without.iter().filter(|f| f.starts_with(&format!("{keys}_BIM"))).count();
    let counted: Vec<(&str, usize)> = WAYS.iter().map(|(_, keys, _)| (*keys, of(keys))).filter(|(_, n)| *n > 0).collect();
    assert_eq!(counted, WITHOUT_PLAN, "{without:#?}");
}

/// A program that leaves out a part, or takes one for another, is caught on every way out.
#[test]
fn what_is_left_out_is_caught() {
    let uncaught: Vec<String> = WAYS
        .par_iter()
        .enumerate()
        .flat_map(|(way, &(device, keys, types))| {
            let device = emulator(device, false, 0);
            let gemm = Gemm::new(types[0], 72, 72, 40).order(order(keys));
            let gemm = gemm.bias(Along::N).activation(Activation::Gelu).residual().build().expect("a product");
            let problem = Problem::Gemm(gemm);
            let space = Space::new(&problem, &device.info().target).expect("a space");
            let plan = plan(&space, keys).expect("a plan");
            let case = Case::new(&device, &problem, 3, test_factors(3, true), Samples::All).expect("a case");
            let right = space.contraction(&plan).clone();
            assert!(run(&device, &space, &plan, &case, &right).passed, "{keys}");
            let (bias, activation, residual) = (right.bias().cloned(), right.activation(), right.residual().cloned());
            let turned = bias.clone().map(|bias| Vector { along_n: false, ..bias });
            let mutants = [
                ("no bias", EpilogueOp::list(Vec::new(), None, activation, residual.clone())),
                ("bias along m", EpilogueOp::list(Vec::new(), turned, activation, residual.clone())),
                ("no activation", EpilogueOp::list(Vec::new(), bias.clone(), None, residual.clone())),
                ("relu", EpilogueOp::list(Vec::new(), bias.clone(), Some(Activation::Relu), residual.clone())),
                ("silu", EpilogueOp::list(Vec::new(), bias.clone(), Some(Activation::Silu), residual.clone())),
                ("no residual", EpilogueOp::list(Vec::new(), bias, activation, None)),
            ];
            let tried = mutants.into_iter().enumerate().filter(|(fault, _)| whole_run() || (way + fault) % 3 == 0);
            let mutants: Vec<_> = tried.map(|(_, (what, epilogue))| (what, with_epilogue(&right, epilogue))).collect();
            let passed = mutants.iter().filter(|(_, c)| run(&device, &space, &plan, &case, c).passed);
            passed.map(|(what, _)| format!("{keys}: {what}")).collect::<Vec<_>>()
        })
        .collect();
    assert!(uncaught.is_empty(), "{uncaught:#?}");
}

#[test]
fn gelu_and_its_approximation_are_told_apart_in_f32() {
    let device = emulator("emu:gfx900", false, 0);
    let gemm = Gemm::new(Scalar::F32, 40, 40, 9).order(Order::Col).activation(Activation::Gelu).build().expect("a product");
    let problem = Problem::Gemm(gemm);
    let space = Space::new(&problem, &device.info().target).expect("a space");
    let plan = plan(&space, "C_UNI0").expect("a plan");
    let case = Case::new(&device, &problem, 3, test_factors(3, false), Samples::All).expect("a case");
    let right = space.contraction(&plan).clone();
    assert!(run(&device, &space, &plan, &case, &right).passed);
    let other = with_epilogue(&right, EpilogueOp::list(Vec::new(), None, Some(Activation::GeluTanh), None));
    assert!(!run(&device, &space, &plan, &case, &other).passed);
}

#[test]
fn atomic_sums_take_bias_and_residual_but_no_activation() {
    let device = emulator("emu:gfx900", false, 0);
    let gemm = || Gemm::new(Scalar::F32, 40, 40, 99).order(Order::Col).bias(Along::M).residual();
    let space = |gemm: GemmBuilder| {
        let problem = Problem::Gemm(gemm.build().expect("a product"));
        Space::new(&problem, &device.info().target).expect("a space").with_atomics(true)
    };
    let added = space(gemm());
    let plan = plan(&added, "C_ICE3_SKS0").expect("a plan");
    for with_beta in [false, true] {
        let case = Case::new(&device, added.problem(), 3, test_factors(3, with_beta), Samples::All).expect("a case");
        let spec = added.resolve(&plan).expect("legal").spec;
        let c = added.contraction(&plan);
        let program = generate(&spec, added.env().workspace_bytes).expect("a program");
        let compiled = compile(device.as_ref(), &program).expect("it compiles");
        let v = case.verify(&program, &compiled, c, Depth::Thorough, false).expect("it runs");
        assert!(v.passed, "{v:?}");
    }
    let refusal = space(gemm().activation(Activation::Relu)).resolve(&plan).map(|_| ()).expect_err("refused");
    assert_eq!(refusal, Refusal::AtomicActivation { ice: 3, activation: Activation::Relu });
    assert!(refusal.to_string().contains("SKS1"), "{refusal}");
}

#[test]
fn missing_and_short_buffers_are_named() {
    let device = emulator("emu:gfx900", false, 0);
    let gemm = Gemm::new(Scalar::F32, 40, 40, 9).order(Order::Col).bias(Along::M).residual().build().expect("a product");
    let problem = Problem::Gemm(gemm);
    let space = Space::new(&problem, &device.info().target).expect("a space");
    let plan = plan(&space, "C_UNI0").expect("a plan");
    let case = Case::new(&device, &problem, 3, test_factors(3, false), Samples::All).expect("a case");
    let resolved = space.resolve(&plan).expect("legal");
    let program = resolved.generate(0).expect("a program");
    let whole = case.buffers(None);
    let part = |b: &tilewright_device::Buffer, from: u64, bytes: u64| Some(b.slice(from, bytes).expect("a part"));
    let [bias, residual] = [Role::Bias, Role::Residual].map(|role| whole.get(role).cloned().expect("a buffer"));
    let with = |role: Role, buffer| Buffers { added: whole.added.clone().with(role, buffer), ..whole.clone() };
    for (buffers, words) in [
        (with(Role::Bias, None), "a bias vector"),
        (with(Role::Residual, None), "a residual"),
        (with(Role::Bias, part(&bias, 0, 156)), "bias holds 156 bytes, 160"),
        (with(Role::Residual, part(&residual, 0, 6396)), "residual holds 6396 bytes, 6400"),
        (with(Role::Residual, part(&residual, 4, 6400)), "residual starts at a multiple of 4 bytes"),
    ] {
        let message = tilewright_check::run::check(&program, resolved.contraction, &buffers, &resolved.contraction.extents())
            .expect_err(words)
            .to_string();
        assert!(message.contains(words), "`{message}` lacks `{words}`");
    }
}
