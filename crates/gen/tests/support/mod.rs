//! What tests of random pairs share; each uses a part of it.
#![allow(dead_code)]

pub mod cells;
pub mod model;
pub mod trace;
pub mod wave_units;

use rayon::prelude::*;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;
use tilewright_check::random::{Chain, Pair, Recipe, pair, verify, whole_run};
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, Verification, test_factors};
use tilewright_device::{Device, Options, open_with};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::{Block, Stmt};
use tilewright_problem::Problem;

/// What is run.
pub struct Run<'a> {
    /// Emulators, taken in turn.
    pub devices: &'a [&'a str],
    /// What is drawn.
    pub recipe: Recipe,
    /// How many, unless the environment says otherwise.
    pub count: u64,
    /// Waves are interleaved at random, each pair with its own seed.
    pub interleave: bool,
}

/// What became of a pair, with its features.
struct Outcome<const N: usize> {
    has: [bool; N],
    kinds: Vec<String>,
    failed: Option<String>,
}

/// A row of an operand or of the result does not begin at a multiple of 16 bytes.
const ODD: &str = "rows at odd addresses";

/// What a pair counts as in the histogram of a run: its unit, its multiply-adds, its rows.
fn kinds(space: &Space, pair: &Pair) -> Vec<String> {
    let unit = space.resolve(&pair.plan).map(|resolved| format!("unit {:?}", resolved.spec.tiling.unit));
    let mut kinds: Vec<String> = unit.into_iter().collect();
    if let Problem::Gemm(gemm) = &pair.problem {
        let work = (gemm.m * gemm.n * gemm.k).max(1);
        kinds.push(format!("below 2^{:02} multiply-adds", (work.ilog2() / 3 + 1) * 3));
        let rows = [(&gemm.a, gemm.dtype), (&gemm.b, gemm.b_dtype.unwrap_or(gemm.dtype)), (&gemm.c, gemm.out_dtype)];
        let odd = rows.iter().any(|(matrix, scalar)| !(matrix.ld * u64::from(scalar.bytes())).is_multiple_of(16));
        kinds.push(if odd { ODD } else { "rows at multiples of 16 bytes" }.into());
    }
    kinds
}

/// A number from the environment.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many random pairs a test draws: as [`draws_or`], a twentieth outside of a whole run. Of few pairs it is a fifth, so that what is rare
/// comes up.
pub fn draws(full: u64) -> u64 {
    draws_or(full, full.div_ceil(20).max(full.div_ceil(5).min(90)))
}

/// How many random pairs a test draws: `TILEWRIGHT_RANDOM_PAIRS`, else all of `full` in a whole run, else so many.
pub fn draws_or(full: u64, by_hand: u64) -> u64 {
    number("TILEWRIGHT_RANDOM_PAIRS").unwrap_or(if whole_run() { full } else { by_hand })
}

/// Whether a case of a list runs on the emulator: each in a whole run, else about one of five.
pub fn runs(number: usize) -> bool {
    runs_one_of(5, number)
}

/// The same of a long list, else about one of so many: mixed so that the levels of a nested list are not left out one by one.
pub fn runs_one_of(many: u64, number: usize) -> bool {
    whole_run() || ((number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).is_multiple_of(many)
}

/// An emulator with every check on, one host thread.
pub fn emulator(spec: &str, interleave: bool, seed: u64) -> Arc<dyn Device> {
    let mut options = Options::default();
    options.emulator.threads = 1;
    options.emulator.interleave = interleave;
    options.emulator.seed = seed;
    open_with(spec, &options).expect("the emulator opens")
}

/// A problem run on an emulator, in a random order of waves, by a plan that is legal for it: every element against the reference.
pub fn verified(device: &str, problem: &Problem, plan: &str, drawn: (u64, bool)) -> Verification {
    verified_to(Depth::Quick, device, problem, plan, drawn)
}

/// The same to some depth: also with other factors, and on integers whose sums are exact.
pub fn verified_to(depth: Depth, device: &str, problem: &Problem, plan: &str, (seed, with_beta): (u64, bool)) -> Verification {
    let device = emulator(device, true, seed);
    let space = Space::new(problem, &device.info().target).unwrap();
    let plan = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
    let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
    let program = r.generate(space.env().workspace_bytes).unwrap();
    let compiled = compile(device.as_ref(), &program).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
    let case = Case::new(&device, problem, 5, test_factors(5, with_beta), Samples::All).unwrap();
    let verdict = case.verify(&program, &compiled, space.contraction(&plan), depth, false);
    let verdict = verdict.unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
    assert!(verdict.passed, "{problem} {plan}: {:?}", verdict.reason);
    verdict
}

/// What went wrong with a pair, if anything did.
pub fn judge(device: &Arc<dyn Device>, pair: &Pair) -> Option<String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| verify(device, pair)));
    let what = match outcome {
        Ok(Ok(v)) if v.passed => return None,
        Ok(Ok(v)) => v.reason.unwrap_or_else(|| "wrong".into()),
        Ok(Err(e)) => e.to_string(),
        Err(_) => "panicked".into(),
    };
    Some(format!("{} {pair}\n    {what}", device.info().id))
}

impl Run<'_> {
    /// Draws and verifies; fails with the first few pairs that did not.
    pub fn all_pass(&self) {
        self.all_pass_with(|_, _| [], &[]);
    }

    /// The same, and in a whole run each of some features comes up: in a fiftieth of the pairs at least. Few pairs cannot promise that.
    pub fn all_pass_with<const N: usize>(&self, has: impl Fn(&Space, &Pair) -> [bool; N] + Sync, names: &[&str; N]) {
        let count = draws(self.count);
        let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
        let start = Instant::now();
        let outcomes: Vec<Outcome<N>> = (first..first + count)
            .into_par_iter()
            .map(|seed| {
                let device = emulator(self.devices[(seed % self.devices.len() as u64) as usize], self.interleave, seed);
                let target = &device.info().target;
                let Some(pair) = pair(target, &self.recipe, seed) else {
                    let failed = Some(format!("seed {seed}: no legal pair was found"));
                    return Outcome { has: [false; N], kinds: Vec::new(), failed };
                };
                let space = Space::new(&pair.problem, target).unwrap().with_atomics(true);
                Outcome { has: has(&space, &pair), kinds: kinds(&space, &pair), failed: judge(&device, &pair) }
            })
            .collect();
        let failed: Vec<&String> = outcomes.iter().filter_map(|outcome| outcome.failed.as_ref()).collect();
        eprintln!("{count} pairs in {:.1} s, {} failed", start.elapsed().as_secs_f64(), failed.len());
        let mut histogram = BTreeMap::new();
        for kind in outcomes.iter().flat_map(|outcome| &outcome.kinds) {
            *histogram.entry(kind).or_insert(0u64) += 1;
        }
        eprintln!("{histogram:?}");
        // Links of chains by all units, so that half of all links are odd; warpgroups' units like rows at multiples of 16 bytes.
        if self.recipe.chain != Chain::Seldom && self.recipe.formats && whole_run() {
            assert!(histogram.get(&ODD.to_string()).is_some_and(|odd| odd * 3 >= count * 2), "{histogram:?} of {count}");
        }
        let drawn = |n: usize| outcomes.iter().filter(|outcome| outcome.has[n]).count() as u64;
        let drawn: Vec<(&str, u64)> = names.iter().enumerate().map(|(n, name)| (*name, drawn(n))).collect();
        eprintln!("{drawn:?}");
        assert!(
            failed.is_empty(),
            "{} of {count} failed, among them:\n{}",
            failed.len(),
            failed.iter().take(12).map(|s| s.as_str()).collect::<Vec<_>>().join("\n")
        );
        assert!(!whole_run() || drawn.iter().all(|(_, n)| *n >= count.div_ceil(50)), "{drawn:?} of {count}");
    }
}

/// The blocks within a statement.
pub fn children(s: &mut Stmt) -> Vec<&mut Block> {
    match s {
        Stmt::For { body, .. } => vec![body],
        Stmt::If { then, otherwise, .. } => vec![then, otherwise],
        Stmt::Roles(roles) => roles.iter_mut().map(|r| &mut r.body).collect(),
        _ => vec![],
    }
}
