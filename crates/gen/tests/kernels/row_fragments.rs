//! Plans whose warpgroup instructions read the operand of C's rows from registers: every type, direction of the operand and width of the
//! instructions, under every kind of schedule, on the emulator with all checks.

use crate::support;

use tilewright_check::random::whole_run;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_device::{Options, open_with};
use tilewright_emu::{ArgValue, Buffer};
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::ROW;
use tilewright_problem::{Gemm, GemmBuilder, Math, Order, Problem};

/// A product of this type: f32 is multiplied as TF32.
fn product(dtype: Scalar, m: u64, n: u64, k: u64) -> GemmBuilder {
    let gemm = Gemm::new(dtype, m, n, k).order(Order::Row);
    if dtype == Scalar::F32 { gemm.math(Math::Tf32) } else { gemm }
}

/// Verifies the first of these plans that is legal under one interleaving, and says which; `check` sees the contraction as the kernel
/// does.
fn verify(gemm: GemmBuilder, plans: &[String], seed: u64, check: impl FnOnce(&Contraction)) -> usize {
    let problem: Problem = gemm.build().unwrap().into();
    let mut options = Options::default();
    (options.emulator.threads, options.emulator.interleave, options.emulator.seed) = (1, true, seed);
    let device = open_with("emu:sm_90a", &options).unwrap();
    let space = Space::new(&problem, &device.info().target).unwrap();
    let parsed: Vec<Plan> = plans.iter().map(|p| Constraint::parse(p).unwrap().apply(&Plan::default()).into()).collect();
    let legal = parsed.iter().position(|p| space.resolve(p).is_ok());
    let which = legal.unwrap_or_else(|| panic!("{}: {:?}", plans[0], space.resolve(&parsed[0]).err()));
    let plan = parsed[which];
    let r = space.resolve(&plan).unwrap();
    check(&r.spec.c);
    let program = r.generate(space.env().workspace_bytes).unwrap();
    let compiled = compile(device.as_ref(), &program).unwrap_or_else(|e| panic!("{plan}: {e}"));
    let case = Case::new(&device, &problem, 5, test_factors(5, false), Samples::All).unwrap();
    let verdict = case.verify(&program, &compiled, space.contraction(&plan), Depth::Quick, false);
    let verdict = verdict.unwrap_or_else(|e| panic!("{plan}: {e}"));
    assert!(verdict.passed, "{plan}: {:?}", verdict.reason);
    which
}

/// The ways of a schedule, of threads and of distributing work, each with sets of fragments.
const WAYS: [&str; 10] = [
    "MAC128_PFG1_BUF2_RGA2",
    "MAC128_PFG2_BUF4_FRA1_RGA4_PST2",
    "MAC256_BUF3_LWV4_PST3_RGA2",
    "MAC256_BUF3_LWV1_FRA1_RGA2_PST2_CST1",
    "MAC256_BUF3_LWV4_PST1_PNG1_FRA1_RGA4",
    "MAC128_BUF3_LWV1_RGA4_CST1",
    "MAC256_SKW11_BUF4_LWV4_FRA1_RGA2",
    "MAC128_BUF2_LWV4_ICE3_SKS1_RGA2",
    "MAC128_BUF2_LWV4_ICE2_SKS2_RGA4",
    "MAC256_PFG1_BUF3_FRA1_RGA4",
];

/// Every width of instructions, both directions of the operand, the kernel's own or the swapped one.
fn every_width(dtype: Scalar) {
    let row = 128 / dtype.bytes();
    let mut used = [0; WAYS.len()];
    for columns in (1..=32u64).filter(|columns| support::runs(*columns as usize)) {
        for (rows_contiguous, swapped) in [(true, false), (false, false), (true, true), (false, true)] {
            // The other operand's lines run along k, which every type may have.
            let trans = if swapped { (false, !rows_contiguous) } else { (rows_contiguous, true) };
            let (m, n, k) = if swapped { (8 * columns + 8, 136, 200) } else { (136, 8 * columns + 8, 200) };
            let head = format!("A_MIC{}_ACP2__B_MIC{columns}_ACP2__C_UNI2_GAL1", if columns <= 8 { 1 + columns % 2 } else { 1 });
            let turn = columns as usize + 3 * usize::from(rows_contiguous) + 5 * usize::from(swapped);
            // Not all have room for the widest tiles.
            let ways: Vec<usize> = (0..WAYS.len()).map(|i| (turn + i) % WAYS.len()).collect();
            let plan = |way: &usize| format!("{head}_UNR{row}_SWP{}_{}", u32::from(swapped), WAYS[*way]);
            let plans: Vec<String> = ways.iter().map(plan).collect();
            let which = verify(product(dtype, m, n, k).trans(trans.0, trans.1), &plans, columns, |c| {
                assert_eq!(c.a.view.stride(ROW) == Some(1), rows_contiguous, "{}", plans[0]);
            });
            used[ways[which]] += 1;
        }
    }
    assert!(used.iter().all(|n| *n > if whole_run() { 2 } else { 0 }), "{used:?}");
}

#[test]
fn every_width_of_tf32() {
    every_width(Scalar::F32);
}

#[test]
fn every_width_of_f16() {
    every_width(Scalar::F16);
}

#[test]
fn every_width_of_bf16() {
    every_width(Scalar::BF16);
}

/// Deeper k-tiles, several blocks of 64 rows, clusters that share the operand, copies in workspace, load waves that write it.
#[test]
fn tiles_of_other_shapes() {
    for (turn, (dtype, row)) in [(Scalar::F32, 32), (Scalar::F16, 64)].into_iter().enumerate() {
        for (other, (a, b)) in [(true, true), (false, true)].into_iter().enumerate() {
            for (i, keys) in [
                format!("A_MIC3_ACP2__B_MIC5_ACP2__C_MAC128_UNR{}_PFG1_BUF3_FRA1_RGA4", 2 * row),
                format!("A_MIC2_ACP2__B_MIC4_ACP2__C_MAC128_UNR{}_BUF3_LWV4_PST4_RGA2", 3 * row),
                format!("A_MIC1_ACP2_CLU2__B_MIC4_ACP2__C_MAC128_UNR{row}_BUF3_LWV4_PST4_FRA1_RGA2"),
                format!("A_MIC1_ACP2__B_MIC4_ACP2_CLU2__C_MAC128_UNR{row}_BUF3_LWV4_RGA4"),
                format!("A_MIC1_ACP2_CLU2__B_MIC4_ACP2_CLU2__C_MAC256_UNR{row}_PFG1_BUF2_PST4_RGA2"),
                format!("A_MIC1_ACP2_WOS1__B_MIC4_ACP2_WOS1__C_MAC256_UNR{row}_BUF3_LWV4_FRA1_RGA2_CST1"),
            ]
            .iter()
            .enumerate()
            .filter(|(i, _)| whole_run() || (turn + other + i / 2) % 2 == 0)
            {
                verify(product(dtype, 200, 136, 328).trans(a, b), &[format!("{keys}_UNI2_GAL1")], i as u64, |_| {});
            }
        }
    }
    // Load waves bring the other one.
    for (a, b) in [(true, true), (false, true)] {
        let plan = "A_MIC1_ACP2__B_MIC8_ACP0__C_UNI2_GAL1_MAC128_UNR64_BUF3_LWV4_PST2_RGA2";
        verify(product(Scalar::BF16, 200, 136, 328).trans(a, b), &[plan.to_string()], 1, |_| {});
    }
}

/// What nothing but registers reaches: without them the plan is refused, and says so.
#[test]
fn rows_of_tf32_need_them() {
    let problem: Problem = product(Scalar::F32, 136, 136, 200).trans(true, true).build().unwrap().into();
    let target = support::emulator("emu:sm_90a", false, 0).info().target.clone();
    let space = Space::new(&problem, &target).unwrap();
    let of = |text: &str| space.resolve(&Constraint::parse(text).unwrap().apply(&Plan::default())).err().map(|e| e.to_string());
    let plan = "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_MAC128_UNR32_PFG1_BUF2";
    assert!(of(plan).is_some_and(|e| e.contains("RGA")), "{:?}", of(plan));
    assert_eq!(of(&format!("{plan}_RGA2")), None);
}

/// A search comes from the copy that turns an operand round to the swapped product, whose registers read it in place, in one move.
#[test]
fn a_move_leads_to_them() {
    let problem: Problem = product(Scalar::F32, 1024, 1024, 1024).build().unwrap().into();
    let space = Space::new(&problem, &support::emulator("emu:sm_90a", false, 0).info().target).unwrap();
    let of = |text: &str| Plan::from(Constraint::parse(text).unwrap().apply(&Plan::default()));
    let home = of("A_MIC1_ACP2__B_MIC8_ACP2_WOS1__C_UNI2_MAC128_UNR32_BUF3_LWV4_CST1");
    let there = of("A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_MAC128_UNR32_BUF3_LWV4_CST1_SWP1_RGA2");
    assert!(space.resolve(&home).is_ok() && space.resolve(&there).is_ok());
    assert!(space.neighbours(&home).iter().any(|m| m.plan == there));
}

/// What one work-group's shared memory is asked for: loads, stores, cycles and those that conflicts cost. Copies and matrix instructions
/// count elsewhere.
fn shared_accesses(trans: (bool, bool), plan: &str) -> (u64, u64, u64, u64) {
    let (m, n, k) = (128u64, 128u64, 96u64);
    let problem: Problem = product(Scalar::F32, m, n, k).trans(trans.0, trans.1).build().unwrap().into();
    let target = support::emulator("emu:sm_90a", false, 0).info().target.clone();
    let space = Space::new(&problem, &target).unwrap();
    let r = space.resolve(&Constraint::parse(plan).unwrap().apply(&Plan::default())).unwrap();
    let program = r.generate(0).unwrap();
    let kernel = program.kernels.iter().find(|k| k.name == MAIN).unwrap();
    let bytes = |bytes: u64| {
        let buffer = Buffer::from_bytes(&vec![0; bytes as usize]);
        ArgValue::Buffer { buffer, offset: 0 }
    };
    let value = |name: &str| match name {
        "a" => bytes(4 * m * k),
        "b" => bytes(4 * n * k),
        "c" | "c_map" => bytes(4 * m * n),
        "c_offset" => ArgValue::I64(0),
        "alpha" => ArgValue::F32(1.0),
        "beta" => ArgValue::F32(0.0),
        other => panic!("{other}"),
    };
    let args: Vec<ArgValue> = kernel.args.iter().map(|arg| value(&arg.name)).collect();
    let options = tilewright_emu::Options { count: true, ..tilewright_emu::Options::default() };
    let c = tilewright_emu::run(kernel, [1; 3], &args, &options).unwrap().counters;
    (c.shared_loads, c.shared_stores, c.shared_cycles, c.bank_conflicts)
}

/// Lanes of a wave read their words, and write their results to staging buffers, without two of them in one bank.
#[test]
fn lanes_meet_in_no_bank() {
    // Four waves, twelve k-steps, two blocks of rows, four words each: a cycle per load.
    let plan = "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC128_UNR32_PFG1_BUF3_FRA1_CVW2_RGA2";
    assert_eq!(shared_accesses((true, true), plan), (384, 0, 384, 0));
    // And each of 128 sums goes to its staging buffer, whose lines are columns.
    let plan = "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC128_UNR32_PFG1_BUF3_FRA1_CST1_SWP1_RGA2";
    assert_eq!(shared_accesses((false, false), plan), (384, 512, 896, 0));
}
