//! Kernels as the printers write them, with runs of statements as loops ([`tilewright_ir::reroll`]), compute what the generator's kernels compute.

use crate::support;

use rayon::prelude::*;
use support::emulator;
use tilewright_check::random::{Pair, Recipe, pair};
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_gen::space::Space;
use tilewright_ir::{Stmt, Unroll, reroll, validate};

/// Random pairs of each target.
const PAIRS: u64 = 40;

fn loops(block: &[Stmt]) -> usize {
    let of = |s: &Stmt| match s {
        Stmt::For { body, unroll, .. } => usize::from(*unroll == Unroll::Repeat) + loops(body),
        Stmt::If { then, otherwise, .. } => loops(then) + loops(otherwise),
        Stmt::Roles(roles) => roles.iter().map(|r| loops(&r.body)).sum(),
        _ => 0,
    };
    block.iter().map(of).sum()
}

/// Verifies the rerolled kernels of a pair; the number of their loops.
fn judged(spec: &str, Pair { problem, plan, seed }: &Pair) -> usize {
    let device = emulator(spec, true, *seed);
    let target = &device.info().target;
    let space = Space::new(problem, target).expect("the problem lowers").with_atomics(true);
    let mut program = space.resolve(plan).expect("a legal plan").generate(space.env().workspace_bytes).expect("it generates");
    for kernel in &mut program.kernels {
        *kernel = reroll(kernel);
        validate(kernel, target).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
    }
    let compiled = compile(device.as_ref(), &program).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
    let case = Case::new(&device, problem, *seed, test_factors(*seed, problem.gate().is_none()), Samples::All).expect("data");
    let verdict = case.verify(&program, &compiled, space.contraction(plan), Depth::Quick, false);
    let verdict = verdict.unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
    assert!(verdict.passed, "{spec} {problem} {plan}: {:?}", verdict.reason);
    program.kernels.iter().map(|kernel| loops(&kernel.body)).sum()
}

#[test]
fn rerolled_kernels_compute_the_same() {
    for (spec, recipe) in [
        ("emu:gfx900", Recipe::emulated()),
        ("emu:sm_80", Recipe::schedules()),
        ("emu:sm_90a", Recipe::units()),
        ("emu:gfx942", Recipe::emulated()),
    ] {
        let target = &emulator(spec, false, 0).info().target.clone();
        let pairs: Vec<Pair> = (0..PAIRS).filter_map(|seed| pair(target, &recipe, 77_000 + seed)).collect();
        let rolled = pairs.par_iter().filter(|pair| judged(spec, pair) > 0).count();
        assert!(rolled >= 10, "{spec}: {rolled} of {} pairs have a loop", pairs.len());
    }
}
