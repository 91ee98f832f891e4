//! Products of two pairs of factors by every way in, on the emulator with every check on: what is refused, and planted faults. Random pairs of them are in
//! `random random_chains`.

use super::gates::{Way, keys, passes};
use crate::support;

use rayon::prelude::*;
use support::emulator;
use tilewright_gen::kernel::generate;
use tilewright_gen::plan::{Derived, Plan, Schedule};
use tilewright_gen::program::{Binding, Program};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::{Contraction, Operand};
use tilewright_problem::{Gemm, GemmBuilder};

const HALVES: &[Scalar] = &[Scalar::F16, Scalar::BF16];

const WAYS: [Way; 9] = [
    ("emu:gfx900", "A_MIC2__B_MIC2__C_UNI0_EDG1", &[Scalar::F32, Scalar::F64]),
    ("emu:gfx900", "A_MIC2__B_MIC4__C_UNI0_EDG1_ICE3_SKS1_PFG1_BUF2", &[Scalar::F32]),
    ("emu:sm_80", "A_MIC2_PLU1_ACP1_GLW8__B_MIC4_PLU1_ACP1_GLW8__C_UNI1_EDG1_UNR32_MAC64_PFG1_BUF2", HALVES),
    ("emu:sm_80", "A_MIC2__B_MIC4__C_UNI1_EDG1_UNR32_MAC64_PFG1_BUF2", HALVES),
    ("emu:gfx942", "A_MIC2__B_MIC4__C_UNI3_EDG1_UNR32_MAC128", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_CST1", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_ICE2_SKS1_PST2_LWV4", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP0__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_LWV4", HALVES),
    ("emu:sm_90a", "A_MIC1_ACP0__B_MIC16_ACP2__C_UNI2_UNR64_MAC128_PFG2_BUF3_FRA0_LWV4", HALVES),
];

/// The second pair begins at term 256.
fn pairs(dtype: Scalar) -> GemmBuilder {
    Gemm::new(dtype, 72, 64, 136).trans(false, true).k2(40)
}

fn program(space: &Space, plan: &Plan, fault: impl Fn(&mut Contraction, &mut Schedule)) -> Program {
    let Derived { mut spec, copies, .. } = space.resolve(plan).expect("legal").spec;
    let mut c = space.contraction(plan).clone();
    fault(&mut c, &mut spec.schedule);
    let c = c.oriented(spec.tiling.swapped, spec.tiling.unit);
    generate(&Derived { spec, c, copies }, space.env().workspace_bytes).expect("a program")
}

fn swapped(binding: Binding) -> Binding {
    match binding {
        Binding::Buffer(operand) if operand != Operand::C => Binding::Second(operand),
        Binding::Second(operand) => Binding::Buffer(operand),
        Binding::OperandMap(operand, first) if operand != Operand::C => Binding::SecondMap(operand, first),
        Binding::SecondMap(operand, first) => Binding::OperandMap(operand, first),
        other => other,
    }
}

#[test]
fn faults_of_the_second_pair_are_caught() {
    let all: Vec<_> = WAYS.iter().flat_map(|(id, plan, types)| types.iter().map(move |dtype| (id, plan, *dtype))).collect();
    let uncaught = all.par_iter().flat_map_iter(|(id, plan, dtype)| {
        let (device, plan) = (emulator(id, false, 1), keys(plan));
        let space = Space::new(&pairs(*dtype).build().expect("a problem").into(), &device.info().target).expect("a space");
        let right = program(&space, &plan, |_, _| ());
        assert!(passes(&device, &space, &plan, &right), "{id} {plan} {dtype}");
        let mut turned = right.clone();
        turned.launches.iter_mut().flat_map(|launch| &mut launch.args).for_each(|binding| *binding = swapped(*binding));
        let moved = |by: i64| {
            program(&space, &plan, move |_, schedule| {
                if let Some(second) = &mut schedule.second {
                    second.first = second.first.saturating_add_signed(by);
                }
            })
        };
        let programs = [
            ("the pairs swapped", turned),
            ("the first pair alone", program(&space, &plan, |c, schedule| (c.second, schedule.second) = (None, None))),
            ("the second pair a k-tile late", moved(space.resolve(&plan).expect("legal").spec.tiling.k_tile.into())),
            ("the second pair as early as the first", moved(i64::MIN)),
        ];
        let passed = programs.into_iter().filter(|(_, program)| passes(&device, &space, &plan, program));
        passed.map(|(what, _)| format!("{id} {plan}: {what}")).collect::<Vec<_>>()
    });
    let uncaught: Vec<String> = uncaught.collect();
    assert!(uncaught.is_empty(), "{uncaught:#?}");
}

#[test]
fn what_reads_one_pair_is_refused() {
    let space =
        Space::new(&pairs(Scalar::F16).build().expect("a problem").into(), &emulator("emu:sm_90a", false, 1).info().target);
    let space = space.expect("a space");
    let refused = [
        ("A_WOS1__C_EDG1", "use WOS0"),
        ("B_WOS2__C_EDG1", "use WOS0"),
        ("C_EDG1_UFO1", "use UFO0"),
        ("C_EDG1_UNR48_MAC64", "use a divisor of 128"),
    ];
    for (plan, remedy) in refused {
        let why = space.resolve(&keys(plan)).err().map(|why| why.to_string()).unwrap_or_default();
        assert!(why.contains("two tensors for an operand") && why.contains(remedy), "{plan}: {why}");
    }
}

/// Terms of the second pair count from those of the first on, so that offsets need 64 bits before its own memory does.
#[test]
fn lines_of_the_second_pair_are_far_apart() {
    let gemm = Gemm::new(Scalar::F16, 64, 64, 128).k2(2).ldb2(1 << 24).build().expect("a problem");
    for (id, plan, _) in [WAYS[2], WAYS[5], WAYS[7]] {
        let (device, plan) =
            (emulator(id, false, 1), keys(&plan.replace("B_MIC16_ACP2", "B_MIC16_ACP0").replace("CST1", "CST1_LWV4")));
        let space = Space::new(&gemm.clone().into(), &device.info().target).expect("a space");
        let plan = space.repair(&plan).expect("a legal plan");
        assert!(passes(&device, &space, &plan, &program(&space, &plan, |_, _| ())), "{id} {plan}");
    }
}
