//! Partial plans: a value of a key that some legal plan has can be demanded alone, and the rest is found.

use rayon::prelude::*;
use std::collections::BTreeSet;
use tilewright_check::random::{Recipe, plan, whole_run};
use tilewright_gen::plan::{Constraint, Key};
use tilewright_gen::space::Space;
use tilewright_ir::{Dialect, Scalar, Target};
use tilewright_problem::{Conv, Gemm, Order, Problem};
use tilewright_tune::model::Picker;

/// Random legal plans whose values are demanded.
fn plans() -> u64 {
    if whole_run() { 24 } else { 5 }
}

/// The cost model's pick meets the least and the greatest value of every key of random legal plans, each demanded alone. With `TILEWRIGHT_ALL_PINS`
/// it meets all values, in minutes. Outside of a whole run a third of the keys alternate between both.
fn every_pin_is_met(problem: &Problem, target: &Target, recipe: &Recipe, third: usize) {
    let space = Space::new(problem, target).unwrap().with_atomics(true);
    let count = plans();
    let plans: Vec<_> = (0..count).into_par_iter().filter_map(|seed| plan(&space, recipe, seed)).collect();
    assert!(plans.len() as u64 > count / 2, "{} random plans for {problem}", plans.len());
    let mut pins: BTreeSet<(Key, u32)> = plans.iter().flat_map(|p| Key::all().map(|key| (key, p.get(key)))).collect();
    // What is picked anyway shows nothing.
    let free = Picker::new(&space).pick(1)[0].plan;
    pins.retain(|(key, value)| free.get(*key) != *value);
    if std::env::var_os("TILEWRIGHT_ALL_PINS").is_none() {
        let all = Vec::from_iter(pins);
        let ends = all.chunk_by(|x, y| x.0 == y.0).map(|values| [values.first(), values.last()]).enumerate();
        let ends = ends.flat_map(|(n, ends)| match whole_run() {
            true => ends,
            false if n % 3 == third => [ends[n / 3 % 2], None],
            false => [None; 2],
        });
        pins = ends.flatten().copied().collect();
    }
    let unmet: Vec<String> = pins
        .into_par_iter()
        .filter_map(|(key, value)| {
            let mut constraint = Constraint::none();
            constraint.pin(key, value);
            let pinned = space.clone().constrained(&constraint);
            let picked = Picker::new(&pinned).pick(1);
            let met = picked.first().is_some_and(|c| constraint.allows(&c.plan) && pinned.resolve(&c.plan).is_ok());
            (!met).then(|| constraint.to_string())
        })
        .collect();
    assert!(unmet.is_empty(), "{problem} on {}: {unmet:?}", target.arch);
}

fn target(arch: &str) -> Target {
    Target::by_arch(arch).unwrap()
}

fn gemm(dtype: Scalar) -> Problem {
    Gemm::new(dtype, 96, 160, 64).order(Order::Row).trans(false, true).build().unwrap().into()
}

/// A processor under OpenCL: no waves.
fn processor() -> Target {
    Target { wave: 1, dialect: Dialect::OpenCl, ..target("gfx900") }
}

#[test]
fn in_f32() {
    every_pin_is_met(&gemm(Scalar::F32), &target("sm_90a"), &Recipe::schedules(), 0);
    every_pin_is_met(&gemm(Scalar::F32), &processor(), &Recipe::emulated(), 1);
}

#[test]
fn of_warpgroup_instructions() {
    every_pin_is_met(&gemm(Scalar::BF16), &target("sm_90a"), &Recipe::units(), 2);
}

#[test]
fn of_a_convolution() {
    let conv = Conv::new(Scalar::F16, 2, 8, 24, &[12, 10], &[3, 3]).pad(&[1, 1], &[1, 1]).build().unwrap();
    every_pin_is_met(&conv.into(), &target("gfx942"), &Recipe::emulated(), 0);
}

/// Where a pinned key needs another, the other one moves.
#[test]
fn what_needs_another_key_moves_it() {
    let space = Space::new(&gemm(Scalar::BF16), &target("sm_90a")).unwrap();
    for pins in
        ["C_BUF3", "C_BUF4_UNI0", "C_MVW8", "C_UNI2_FRA1", "C_PNG1", "C_LWV3", "A_ACP1__B_ACP1__C_UNI0", "C_RGA2", "A_CLU2"]
    {
        let constraint = Constraint::parse(pins).unwrap();
        let pinned = space.clone().constrained(&constraint);
        let picked = Picker::new(&pinned).pick(1);
        let picked = picked.first().unwrap_or_else(|| panic!("{pins}: no plan was found")).plan;
        assert!(constraint.allows(&picked) && pinned.resolve(&picked).is_ok(), "{pins}: {picked}");
    }
}
