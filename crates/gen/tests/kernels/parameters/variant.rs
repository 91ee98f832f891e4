//! A plan with the changes of one key, its kernel, and its comparison with the model.

use crate::support::emulator;
use crate::support::model::{Model, Step};
use crate::support::trace::{Event, Touch, trace};
use std::collections::BTreeSet;
use tilewright_check::random::{Pair, verify};
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Plan, Side};
use tilewright_gen::program::Program;
use tilewright_gen::space::Space;
use tilewright_ir::{Kernel, Scalar, Target};
use tilewright_problem::{Conv, Gemm, Order, Problem};

/// 8 x 8 threads, macro tile 32 x 16, 8 deep.
pub const BASE: &str = "A_MIC4_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__B_MIC2_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__\
                    C_UNR8_GAL1_PUN1_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC64_SKW10_AFI1_MIA0";

pub fn plan(change: &str) -> Plan {
    Constraint::parse(change).unwrap().apply(&Plan::parse(BASE).unwrap()).into()
}

/// Column-major, A not and B transposed: both contiguous across k. Not a whole number of tiles in either direction.
pub fn problem(lda: u64, ldb: u64) -> Problem {
    Gemm::new(Scalar::F32, 100, 76, 48).order(Order::Col).trans(false, true).lda(lda).ldb(ldb).ldc(1000).build().unwrap().into()
}

/// A plan's program with everything that is asked of it.
pub struct Variant {
    pub plan: Plan,
    pub model: Model,
    pub program: Program,
}

impl Variant {
    /// Generates, compares with the model, verifies.
    pub fn new(change: &str) -> Variant {
        let (problem, plan) = (problem(1000, 1000), plan(change));
        let target = Target::by_arch("sm_90a").unwrap();
        let space = Space::new(&problem, &target).unwrap().with_atomics(true);
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        let program = r.generate(space.env().workspace_bytes).unwrap();
        let line = |side: Side, rows: u64| match plan.of(side).source {
            // Copies have a leading dimension of their own.
            1 => tilewright_gen::plan::copy_leading_dimension(rows, Scalar::F32) as i64,
            _ => 1000,
        };
        let ld = [line(Side::A, 100), line(Side::B, 76), 1000];
        let variant = Variant { plan, model: Model { plan, m: 100, n: 76, k: 48, ld }, program };
        variant.is_the_model();
        variant.verifies(&problem);
        variant
    }

    pub fn main(&self) -> &Kernel {
        self.program.kernels.iter().find(|k| k.name == MAIN).unwrap()
    }

    /// Sampled threads of all work-groups do what the model says, in its order where it has one.
    pub fn is_the_model(&self) {
        let main = self.main();
        let launch = self.program.launches.iter().find(|l| self.program.kernels[l.kernel].name == MAIN).unwrap();
        assert_eq!(i64::from(launch.grid[0]), self.model.all_groups(), "{}", self.plan);
        for group in 0..launch.grid[0] {
            for thread in [0, 1, 2, 7, 13, main.threads - 1].into_iter().filter(|t| *t < main.threads) {
                let what = format!("{}: work-group {group}, thread {thread}", self.plan);
                let (steps, stores) = self.run(group, thread);
                let (expected, results) = self.model.run(group.into(), thread.into());
                assert_eq!(steps.len(), expected.len(), "{what}: k-tiles");
                for (step, expected) in steps.iter().zip(&expected) {
                    assert_eq!(sorted(&step.loads), sorted(&expected.loads), "{what}: loads");
                    assert_eq!(sorted(&step.shares), sorted(&expected.shares), "{what}: shared stores");
                    assert_eq!(memories(&step.loads), memories(&expected.loads), "{what}: order of loads");
                    assert_eq!(memories(&step.shares), memories(&expected.shares), "{what}: order of shared stores");
                    assert_eq!(step.fragments, expected.fragments, "{what}: fragments");
                    assert_eq!(step.math, expected.math, "{what}: math");
                }
                assert_eq!(sorted(&stores), sorted(&results), "{what}: results");
            }
        }
    }

    /// The main loop of a thread, k-tile by k-tile, and its results.
    pub fn run(&self, group: u32, thread: u32) -> (Vec<Step>, Vec<Event>) {
        let events = trace(self.main(), group, thread);
        let mut parts: Vec<&[Event]> = events.split(|e| *e == Event::Barrier).collect();
        assert_eq!(parts.len() % 2, 1, "two barriers per k-tile");
        let before = parts.remove(0);
        assert!(before.is_empty(), "nothing before the first barrier");
        let pick = |events: &[Event], keep: fn(&Event) -> bool| events.iter().filter(|e| keep(e)).cloned().collect::<Vec<_>>();
        let steps = parts.chunks(2).map(|pair| Step {
            loads: pick(pair[0], |e| matches!(e, Event::Load(_) | Event::Zero)),
            shares: pick(pair[0], |e| matches!(e, Event::Share(_))),
            fragments: pick(pair[1], |e| matches!(e, Event::Fragment(_))),
            math: pick(pair[1], |e| matches!(e, Event::Math { .. })),
        });
        let stores = parts.last().map(|last| pick(last, |e| matches!(e, Event::Store(_) | Event::Atomic(_))));
        (steps.collect(), stores.unwrap_or_default())
    }

    pub fn verifies(&self, problem: &Problem) {
        let conv = Conv::new(Scalar::F32, 2, 8, 40, &[9, 8], &[2, 3]).pad(&[1, 0], &[0, 2]).bias().build().unwrap();
        let split = self.plan.splits > 1;
        let mut odd = problem.clone();
        if let Problem::Gemm(gemm) = &mut odd {
            gemm.k = 45;
        }
        for problem in [problem.clone(), odd, conv.into()] {
            // Vectors across k are not for every problem.
            let target = Target::by_arch("sm_90a").unwrap();
            let space = Space::new(&problem, &target).unwrap().with_atomics(true);
            let plan = space.repair(&self.plan).unwrap_or_else(|| panic!("{problem} {}", self.plan));
            assert!(!split || plan.splits > 1);
            for seed in [2, 3] {
                let pair = Pair { seed, problem: problem.clone(), plan };
                let verdict = verify(&emulator("emu:sm_90a", true, seed), &pair).unwrap_or_else(|e| panic!("{pair}: {e}"));
                assert!(verdict.passed, "{pair}: {:?}", verdict.reason);
            }
        }
    }

    /// Everything a thread of the first work-group does in its first k-tile.
    pub fn first(&self, thread: u32) -> Step {
        self.run(0, thread).0.swap_remove(0)
    }

    /// Rows and columns of C that a thread of the first work-group stores.
    pub fn results(&self, thread: u32) -> (Vec<i64>, Vec<i64>) {
        let stores = self.run(0, thread).1;
        let at = touches(&stores, "c");
        let set = |part: fn(i64) -> i64| at.iter().map(|t| part(t.index)).collect::<BTreeSet<_>>().into_iter().collect();
        (set(|i| i % 1000), set(|i| i / 1000))
    }
}

pub fn touches(events: &[Event], memory: &str) -> Vec<Touch> {
    let touch = |e: &Event| match e {
        Event::Load(t) | Event::Store(t) | Event::Atomic(t) | Event::Fragment(t) | Event::Share(t) => Some(t.clone()),
        _ => None,
    };
    events.iter().filter_map(touch).filter(|t| t.memory == memory).collect()
}

pub fn indices(events: &[Event], memory: &str) -> Vec<i64> {
    touches(events, memory).iter().map(|t| t.index).collect()
}

/// The same multiset in one order.
pub fn sorted(events: &[Event]) -> Vec<String> {
    let mut names: Vec<String> = events.iter().map(|e| format!("{e:?}")).collect();
    names.sort();
    names
}

/// The memories in the order in which they come up.
pub fn memories(events: &[Event]) -> Vec<String> {
    let mut names: Vec<String> = events
        .iter()
        .filter_map(|e| match e {
            Event::Load(t) | Event::Share(t) | Event::Fragment(t) => Some(t.memory.clone()),
            _ => None,
        })
        .collect();
    names.dedup();
    names
}

/// A change of a key of A and of B, with the memory names of the side.
pub fn both(test: impl Fn(&dyn Fn(&str) -> Variant, &str)) {
    test(&|change| Variant::new(&format!("A_{change}")), "a");
    test(&|change| Variant::new(&format!("B_{change}")), "b");
}

pub fn shared_len(v: &Variant, side: &str) -> u32 {
    v.main().shared.iter().find(|s| s.name == format!("smem_{side}")).unwrap().len
}
