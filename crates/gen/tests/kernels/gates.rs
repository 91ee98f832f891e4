//! Gated products on every unit and by every way out, on the emulator with every check on: results of random data, and of integers whose sums are
//! exact.

use crate::support;

use rayon::prelude::*;
use std::sync::Arc;
use support::emulator;
use tilewright_check::random::whole_run;
use tilewright_check::reference::Samples;
use tilewright_check::run::{Buffers, bind, compile};
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_device::Device;
use tilewright_gen::kernel::generate;
use tilewright_gen::plan::{Constraint, Derived, Plan, Transport};
use tilewright_gen::program::{Binding, Program};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::{Contraction, EpilogueOp, Operand, Pairs, Tensor};
use tilewright_problem::lower::{ConvForm, lower};
use tilewright_problem::{Along, Dynamic, Factors, Gate, GateFunction, Gemm, GemmBuilder, Order, Problem};

/// A device, a plan, and the types of the operands.
pub type Way = (&'static str, &'static str, &'static [Scalar]);

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

pub fn keys(plan: &str) -> Plan {
    Constraint::parse(plan).expect("a plan").apply(&Plan::default()).into()
}

/// Verifies a problem under a plan, on random data and on integers.
fn verify(device: &Arc<dyn Device>, problem: &Problem, plan: &str) -> Option<String> {
    let space = Space::new(problem, &device.info().target).expect("a space");
    let plan = keys(plan);
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
        // Outside of a whole run, rounds alternate.
        let rounds = [false, true].into_iter().filter(move |round| whole_run() || *round == (i / 4 % 2 == 1));
        rounds.filter_map(move |round| {
            let gemm = product(*dtype, round).trans(false, true).gate(function).up_first(round != (i % 2 == 0));
            let gemm = gemm.interleaved(round == (i % 4 < 2));
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
        // Pairs of columns side by side: vectors of both factors, runs of single elements, boxes of TMA where k is contiguous.
        ("emu:gfx900", WAYS[0].1, of(Scalar::F32).interleaved(true).bias(Along::N)),
        ("emu:gfx900", WAYS[2].1, of(Scalar::I8).interleaved(true).out_dtype(Scalar::BF16).scale(Along::N)),
        ("emu:sm_80", WAYS[6].1, of(Scalar::F16).interleaved(true).up_first(true).bias(Along::N)),
        ("emu:sm_90a", WAYS[12].1, of(Scalar::E4M3).interleaved(true).trans(false, true).out_dtype(Scalar::BF16)),
        ("emu:gfx942", WAYS[15].1, of(Scalar::F16).interleaved(true)),
    ];
    let wrong = all.into_par_iter().filter_map(|(id, plan, gemm)| {
        // An instruction for 8-bit floats is deeper.
        let plan = if plan == WAYS[12].1 { plan.replace("UNR64", "UNR128") } else { plan.into() };
        verify(&emulator(id, false, 1), &gemm.build().expect("a problem").into(), &plan)
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ways in beside those of [`WAYS`]: asynchronous copies of matrix fragments and of panels, and producer warps.
const WAYS_IN: [Way; 4] = [
    ("emu:sm_80", "A_MIC2_PLU1_ACP1_GLW8__B_MIC4_PLU1_ACP1_GLW8__C_UNI1_EDG1_UNR32_MAC64_BIM1_PFG1_BUF2", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP0__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_BIM1_LWV4", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP0__B_MIC16_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_BIM3_LWV4", HALVES),
    ("emu:gfx900", "A_MIC2__B_MIC4_MIW0__C_UNI0_EDG1_PFG1_BUF2_MAC64", FLOATS),
];

/// The weights of gate and other factor are two tensors: by every way in and out, contiguous along k and along n, in a batch that shares them or has its
/// own, of groups, with an offset that the second tensor does not have.
#[test]
fn weights_are_two_tensors() {
    let ways = WAYS.iter().chain(&WAYS_IN).filter(|(_, plan, _)| !plan.contains("WOS1"));
    let all: Vec<_> = ways.flat_map(|(id, plan, types)| types.iter().map(move |dtype| (id, plan, *dtype))).collect();
    let wrong = all.par_iter().enumerate().flat_map_iter(|(i, (id, plan, dtype))| {
        let device = emulator(id, false, 1);
        // Outside of a whole run, rounds alternate.
        let rounds = [false, true].into_iter().filter(move |round| whole_run() || *round == (i / 2 % 2 == 1));
        rounds.filter_map(move |round| {
            let gemm = product(*dtype, round).gate(GateFunction::ALL[i % GateFunction::ALL.len()]).separate_up(true);
            // Bulk and asynchronous copies are of vectors along k here.
            let gemm = gemm.trans(false, i % 3 > 0 || plan.contains("ACP")).bias(Along::N);
            let gemm = if i % 2 == 0 { gemm.preactivations() } else { gemm };
            let gemm = if i % 5 == 0 { gemm.stride_b(0) } else { gemm };
            let gemm = if i % 5 == 1 && !plan.contains("SKS1") { gemm.grouped(Along::M, 2) } else { gemm };
            let gemm = if i % 3 == 1 { gemm.offsets(0, 16, 0) } else { gemm };
            verify(&device, &gemm.build().expect("a problem").into(), plan)
        })
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Weights that become factors on the way, of 8 and of 4 bits, and rows known only at launch.
#[test]
fn two_tensors_of_small_weights() {
    let of =
        |b: Scalar| Gemm::new(Scalar::F16, 70, 96, 64).b_dtype(b).trans(false, true).gate(GateFunction::Silu).separate_up(true);
    let rows = Dynamic { m: true, ..Dynamic::NONE };
    let all = [
        ("emu:gfx900", WAYS[0].1, of(Scalar::I4).scale(Along::N)),
        ("emu:gfx900", WAYS[0].1, of(Scalar::U4).offsets(0, 8, 0).dynamic(rows)),
        ("emu:sm_80", WAYS[6].1, of(Scalar::I8).scale(Along::N).dynamic(rows)),
        ("emu:sm_80", WAYS[6].1, of(Scalar::I4).bias(Along::N).preactivations()),
        ("emu:gfx942", WAYS[15].1, of(Scalar::I4).batch(3).stride_b(0)),
    ];
    let wrong: Vec<String> = all
        .into_par_iter()
        .filter_map(|(id, plan, gemm)| verify(&emulator(id, false, 1), &gemm.build().expect("a problem").into(), plan))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Programs that read both factors from one tensor, or each from the other's, on every way in.
#[test]
fn the_wrong_tensor_is_caught() {
    let ways: Vec<_> = WAYS.iter().chain(&WAYS_IN).filter(|(_, plan, _)| !plan.contains("WOS1")).collect();
    let uncaught = ways.par_iter().flat_map_iter(|(id, plan, types)| {
        let (device, plan) = (emulator(id, false, 1), keys(plan));
        let gemm = Gemm::new(types[0], 72, 64, 72).trans(false, true).gate(GateFunction::Silu).separate_up(true);
        let space = Space::new(&gemm.build().expect("a problem").into(), &device.info().target).expect("a space");
        let right = program(&space, &plan, &|_, _| ());
        let swapped = |binding: Binding| match binding {
            Binding::Buffer(Operand::B) => Binding::Up,
            Binding::Up => Binding::Buffer(Operand::B),
            Binding::OperandMap(Operand::B, first) => Binding::UpMap(first),
            Binding::UpMap(first) => Binding::OperandMap(Operand::B, first),
            other => other,
        };
        let mut turned = right.clone();
        turned.launches.iter_mut().flat_map(|launch| &mut launch.args).for_each(|binding| *binding = swapped(*binding));
        let one = program(&space, &plan, &|c, _| of_gate(c, |pairs| pairs.gate.separate_up = false));
        assert!(passes(&device, &space, &plan, &right), "{id} {plan}");
        let programs = [("the tensors swapped", turned), ("one tensor", one)];
        let passed = programs.into_iter().filter(|(_, program)| passes(&device, &space, &plan, program));
        passed.map(|(what, _)| format!("{id} {plan}: {what}")).collect::<Vec<_>>()
    });
    let uncaught: Vec<String> = uncaught.collect();
    assert!(uncaught.is_empty(), "{uncaught:#?}");
}

/// A copy in workspace is of one tensor.
#[test]
fn two_tensors_refuse_copies_of_one() {
    let problem =
        Gemm::new(Scalar::F16, 64, 64, 64).gate(GateFunction::Silu).separate_up(true).build().expect("a problem").into();
    let space = Space::new(&problem, &emulator("emu:sm_90a", false, 1).info().target).expect("a space");
    for source in 1..=3 {
        let why = space.resolve(&keys(&format!("B_WOS{source}__C_EDG1"))).err().map(|why| why.to_string()).unwrap_or_default();
        assert!(why.contains("two tensors for an operand") && why.contains("use WOS0"), "{source}: {why}");
    }
}

/// Sums that are stored beside what the gate makes of them: by every way out, in every order of columns, in rows and columns, of groups.
#[test]
fn preactivations_are_stored() {
    let all = WAYS.iter().flat_map(|(id, plan, types)| types.iter().map(move |dtype| (id, plan, *dtype)));
    let all: Vec<_> = all.collect();
    let wrong = all.par_iter().enumerate().flat_map_iter(|(i, (id, plan, dtype))| {
        let device = emulator(id, false, 1);
        // Outside of a whole run, rounds alternate.
        let rounds = [false, true].into_iter().filter(move |round| whole_run() || *round == (i / 2 % 2 == 1));
        let wrong = rounds.filter_map(move |round| {
            let gemm = product(*dtype, round).gate(GateFunction::ALL[i % GateFunction::ALL.len()]).preactivations();
            let gemm = gemm.trans(false, true).up_first(i % 3 == 0).interleaved(round == (i % 2 == 0)).bias(Along::N);
            let gemm = if i % 5 == 0 { gemm.residual() } else { gemm };
            verify(&device, &gemm.build().expect("a problem").into(), plan)
        });
        wrong.collect::<Vec<_>>()
    });
    let mut wrong: Vec<String> = wrong.collect();
    let of = |dtype: Scalar| Gemm::new(dtype, 70, 96, 64).gate(GateFunction::Silu).preactivations();
    let more = [
        ("emu:gfx900", WAYS[0].1, of(Scalar::F32).order(Order::Col).batch(2)),
        ("emu:gfx900", WAYS[2].1, of(Scalar::I8).out_dtype(Scalar::BF16).scale(Along::N).scale(Along::M)),
        ("emu:sm_80", WAYS[6].1, of(Scalar::F16).out_dtype(Scalar::F32).grouped(Along::M, 3)),
        ("emu:sm_80", WAYS[9].1, of(Scalar::BF16).trans_c(true).batch(2)),
        ("emu:sm_90a", WAYS[10].1, of(Scalar::BF16).trans(false, true).grouped(Along::M, 3)),
        ("emu:sm_90a", WAYS[10].1, of(Scalar::F16).trans(false, true).trans_c(true)),
    ];
    wrong.extend(
        more.into_iter()
            .filter_map(|(id, plan, gemm)| verify(&emulator(id, false, 1), &gemm.build().expect("a problem").into(), plan)),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sums that leave by bulk stores beside the results: with tiles that reach over into the other half, in rows and columns, of batches and of
/// rows that are known only at launch. Halves that change places, or begin 8 elements early, are caught.
#[test]
fn preactivations_leave_in_bulk() {
    let device = emulator("emu:sm_90a", false, 1);
    let of = |m, n| Gemm::new(Scalar::BF16, m, n, 72).trans(false, true).gate(GateFunction::Silu).preactivations();
    let rows_at_launch = Dynamic { n: false, m: true, g: false };
    let all = [
        (WAYS[11].1, of(70, 136)),
        (WAYS[11].1, of(88, 128).batch(2).up_first(true).bias(Along::N)),
        (WAYS[12].1, of(83, 200).batch(2)),
        (WAYS[12].1, of(150, 64).separate_up(true).up_first(false)),
        (WAYS[12].1, of(88, 72).order(Order::Col).trans(true, false)),
        (WAYS[12].1, of(88, 72).trans_c(true).batch(2)),
        (WAYS[11].1, of(88, 136).dynamic(rows_at_launch)),
    ];
    all.into_par_iter().for_each(|(plan, gemm)| {
        let problem = gemm.build().expect("a problem").into();
        assert_eq!(verify(&device, &problem, plan), None, "{problem}");
        let space = Space::new(&problem, &device.info().target).expect("a space");
        let plan = keys(plan);
        let right = program(&space, &plan, &|_, _| {});
        let maps =
            |program: &Program| program.launches[0].args.iter().filter(|x| matches!(x, Binding::PreactivationsMap(_))).count();
        assert_eq!(maps(&right), 2, "{problem}");
        let changed = |change: &dyn Fn(&mut u64)| {
            let mut program = right.clone();
            let all = program.launches[0].args.iter_mut();
            all.for_each(|x| {
                if let Binding::PreactivationsMap(first) = x {
                    change(first)
                }
            });
            program
        };
        let last =
            right.launches[0].args.iter().map(|x| if let Binding::PreactivationsMap(first) = x { *first } else { 0 }).max();
        let last = last.unwrap_or(0);
        assert!(!passes(&device, &space, &plan, &changed(&|first| *first = last - *first)), "{problem}: halves swapped");
        assert!(!passes(&device, &space, &plan, &changed(&|first| *first = first.saturating_sub(8))), "{problem}: 8 too early");
    });
    // Columns that take turns, and halves that begin within 16 bytes, leave as they are.
    for gemm in [of(88, 128).interleaved(true), of(88, 68)] {
        let problem = gemm.build().expect("a problem").into();
        assert_eq!(verify(&device, &problem, WAYS[11].1), None, "{problem}");
    }
}

/// A plan's program for a problem, with a fault in the contraction or in how B's tiles are copied.
fn program(space: &Space, plan: &Plan, fault: Fault) -> Program {
    let Derived { mut spec, copies, .. } = space.resolve(plan).expect("legal").spec;
    let mut c = space.contraction(plan).clone();
    fault(&mut c, &mut spec.schedule.copies[1]);
    let c = c.oriented(spec.tiling.swapped, spec.tiling.unit);
    generate(&Derived { spec, c, copies }, space.env().workspace_bytes).expect("a program")
}

type Fault<'f> = &'f dyn Fn(&mut Contraction, &mut Transport);

/// Whether a program passes for a problem.
pub fn passes(device: &Arc<dyn Device>, space: &Space, plan: &Plan, program: &Program) -> bool {
    let compiled = compile(device.as_ref(), program).expect("it compiles");
    let case = Case::new(device, space.problem(), 3, test_factors(3, false), Samples::All).expect("a case");
    // The emulator reports reads beyond a buffer.
    case.verify(program, &compiled, space.contraction(plan), Depth::Quick, true).is_ok_and(|v| v.passed)
}

fn of_gate(c: &mut Contraction, change: impl Fn(&mut Pairs)) {
    c.epilogue.iter_mut().for_each(|op| {
        if let EpilogueOp::Gate(pairs) = op {
            change(pairs);
        }
    });
}

fn of_stored(c: &mut Contraction, change: impl Fn(&mut Tensor)) {
    c.epilogue.iter_mut().for_each(|op| {
        if let EpilogueOp::Store(x) = op {
            change(x);
        }
    });
}

fn swap_bias(c: &mut Contraction, other: &Contraction) {
    c.epilogue.iter_mut().zip(&other.epilogue).filter(|(op, _)| matches!(op, EpilogueOp::AddVector(_))).for_each(
        |(op, other)| {
            op.clone_from(other);
        },
    );
}

/// Programs with a fault, on every way out: halves swapped, columns off by one or in another order, another function, a factor applied once, stored
/// pre-activations that are wrong.
#[test]
fn faults_are_caught() {
    let uncaught = WAYS.par_iter().enumerate().flat_map_iter(|(way, &(id, plan, types))| {
        let (device, plan) = (emulator(id, false, 1), keys(plan));
        let spaces = [(false, false), (true, false), (false, true)].map(|(up_first, interleaved)| {
            let gemm = Gemm::new(types[0], 72, 139, 72).ldc(141).trans(false, true).gate(GateFunction::Silu).bias(Along::N);
            let gemm = gemm.preactivations();
            let problem = gemm.up_first(up_first).interleaved(interleaved).build().expect("a problem").into();
            Space::new(&problem, &device.info().target).expect("a space")
        });
        let [space, swapped, alternating] = &spaces;
        let granule = space.contraction(&plan).pairs().expect("a gate").granule;
        let form = ConvForm { granule: if granule == 1 { 8 } else { 1 }, ..ConvForm::PER_SAMPLE };
        let (other, of_other) = (swapped.contraction(&plan), lower(space.problem(), form).expect("a contraction").lead);
        let faults: [(&str, Fault); 12] = [
            ("the halves of the bias swapped", &|c, _| swap_bias(c, other)),
            ("the bias in another order", &|c, _| swap_bias(c, &of_other)),
            ("B one column further", &|c, copy| match copy {
                Transport::Bulk(tile) => tile.first += 72,
                _ => c.b.view.access.offset.constant += 72,
            }),
            ("a column of the result missing", &|c, _| of_gate(c, |pairs| pairs.columns -= 1)),
            ("sigmoid", &|c, _| of_gate(c, |pairs| pairs.gate.function = GateFunction::Sigmoid)),
            ("no function", &|c, _| of_gate(c, |pairs| pairs.gate.function = GateFunction::Linear)),
            ("no pre-activations", &|c, _| c.epilogue.retain(|op| !matches!(op, EpilogueOp::Store(_)))),
            ("pre-activations one column further", &|c, _| of_stored(c, |x| x.view.access.offset.constant += 1)),
            ("pre-activations swapped", &|c, _| of_stored(c, |x| x.clone_from(other.preactivations().expect("a tensor")))),
            ("pre-activations ahead of the bias", &|c, _| {
                let stored = c.epilogue.iter().position(|op| matches!(op, EpilogueOp::Store(_))).expect("one");
                c.epilogue.swap(stored - 1, stored);
            }),
            ("no alpha", &|c, _| c.epilogue.retain(|op| *op != EpilogueOp::Scale)),
            ("alpha after the gate", &|c, _| {
                let gate = c.epilogue.iter().position(|op| matches!(op, EpilogueOp::Gate(_))).expect("a gate");
                c.epilogue[..=gate].rotate_left(1);
            }),
        ];
        assert!(passes(&device, space, &plan, &program(space, &plan, &|_, _| ())), "{id} {plan}");
        let of_others = [("the function on the other half", swapped), ("alternating columns", alternating)];
        let of_others = of_others.map(|(what, other)| (what, program(other, &plan, &|_, _| ())));
        let programs = faults.into_iter().map(|(what, fault)| (what, program(space, &plan, fault))).chain(of_others);
        // Outside of a whole run, a third of the faults on each way out.
        let tried = programs.enumerate().filter(|(fault, _)| whole_run() || (way + fault) % 3 == 0).map(|(_, program)| program);
        let passed: Vec<_> = tried.filter(|(_, program)| passes(&device, space, &plan, program)).collect();
        passed.into_iter().map(move |(what, _)| format!("{id} {plan}: {what}")).collect::<Vec<_>>()
    });
    let uncaught: Vec<String> = uncaught.collect();
    assert!(uncaught.is_empty(), "{uncaught:#?}");
}

/// Random data show every function apart from every other.
#[test]
fn functions_are_told_apart() {
    let (device, plan) = (emulator("emu:gfx900", false, 1), keys(WAYS[0].1));
    for (i, function) in GateFunction::ALL.into_iter().enumerate() {
        let problem = Gemm::new(Scalar::F32, 40, 40, 9).gate(function).build().expect("a problem").into();
        let space = Space::new(&problem, &device.info().target).expect("a space");
        // Outside of a whole run, each is compared with one half of the others: of two functions one of the pairs is.
        let all = GateFunction::ALL.into_iter().enumerate();
        let apart = |j: usize| (j + GateFunction::ALL.len() - i) % GateFunction::ALL.len();
        for (_, other) in all.filter(|(j, _)| whole_run() || apart(*j) <= GateFunction::ALL.len() / 2) {
            let other_program = program(&space, &plan, &|c, _| of_gate(c, |pairs| pairs.gate.function = other));
            let passed = passes(&device, &space, &plan, &other_program);
            assert_eq!(passed, other == function, "{other} in the place of {function}");
        }
    }
}

/// Zeros of both signs, subnormal numbers, both ends of f32, infinities and NaN beside ordinary numbers.
const SPECIAL: [f32; 14] = [
    0.0,
    -0.0,
    1e-39,
    -1e-39,
    f32::MIN_POSITIVE,
    0.5,
    -0.75,
    40.0,
    -200.0,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// The results of a row of A whose first term is 1 and others 0, with these columns of both halves as B's first row.
fn of_one_row(device: &Arc<dyn Device>, problem: &Problem, plan: &str, columns: &[f32]) -> Vec<f32> {
    let space = Space::new(problem, &device.info().target).expect("a space");
    let resolved = space.resolve(&keys(plan)).unwrap_or_else(|why| panic!("{plan}: {why}"));
    let program = resolved.generate(space.env().workspace_bytes).expect("a program");
    let compiled = compile(device.as_ref(), &program).expect("it compiles");
    let upload = |values: Vec<f32>| {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let buffer = device.alloc(bytes.len() as u64).expect("memory");
        device.write(&buffer, 0, &bytes).expect("it is written");
        buffer
    };
    let (k, n) = (problem.depth() as usize, columns.len() / 2);
    let first = |values: &[f32]| [values, &vec![0.0; (k - 1) * values.len()]].concat();
    let buffers = Buffers {
        a: upload(first(&[1.0])),
        b: upload(first(columns)),
        c: upload(vec![1.0; n]),
        added: Default::default(),
        reductions: Vec::new(),
        workspace: Some(device.alloc(program.workspace_bytes.max(1)).expect("memory")),
        offsets: [0; 3],
    };
    let at = resolved.contraction.extents();
    let launches = bind(&program, &compiled, resolved.contraction, &buffers, Factors::default(), &at).expect("it binds");
    device.launch(&launches).expect("it runs");
    let mut bytes = vec![0; 4 * n];
    device.read(&buffers.c, 0, &mut bytes).expect("the result is read");
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
}

/// Every pair of special values as gate and other factor, by every function: combined in registers, and by the kernel that adds up splits.
#[test]
fn special_values_reach_both_factors() {
    let pairs: Vec<[f32; 2]> = SPECIAL.iter().flat_map(|gate| SPECIAL.map(|up| [*gate, up])).collect();
    let mut cases = Vec::new();
    for (function, up_first) in GateFunction::ALL.into_iter().flat_map(|function| [(function, false), (function, true)]) {
        cases.extend([0, 4].map(|way| (function, up_first, WAYS[way])));
    }
    let wrong = cases.into_par_iter().flat_map_iter(|(function, up_first, (id, plan, _))| {
        let of = Gate::new(function);
        let gemm = Gemm::new(Scalar::F32, 1, pairs.len() as u64, 40).gate(function).up_first(up_first);
        let halves = [usize::from(up_first), usize::from(!up_first)].map(|part| pairs.iter().map(move |pair| pair[part]));
        let columns: Vec<f32> = halves.into_iter().flatten().collect();
        let results = of_one_row(&emulator(id, false, 1), &gemm.build().expect("a problem").into(), plan, &columns);
        let found = pairs.iter().zip(results).filter_map(move |([gate, up], got)| {
            let want = of.of_gate(f64::from(*gate)) as f32 * of.of_up(f64::from(*up)) as f32;
            let right = match want.is_finite() {
                true => (got - want).abs() <= want.abs().mul_add(1e-5, f32::MIN_POSITIVE),
                false => got == want || got.is_nan() && want.is_nan(),
            };
            (!right).then(|| format!("{plan}: {function}({gate:e}) * {up:e} is {want:e}, not {got:e}"))
        });
        found.collect::<Vec<_>>()
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
