//! Each of MIOpenGEMM's 27 hyperparameters changes the kernel in the way MIOpenGEMM documents: every thread's loads, shared
//! memory, order, ids and instructions are compared with a model of its kernel, and each variant verifies on the emulator.

mod support;

use std::collections::BTreeSet;
use support::emulator;
use support::model::{Model, Step};
use support::trace::{Event, Touch, trace};
use tilewright_gen::kernel::{MAIN, generate};
use tilewright_gen::lower::{ConvForm, lower};
use tilewright_gen::plan::{Chiral, Constraint, Env, Key, Plan, derive};
use tilewright_gen::problem::{Conv, Gemm, Problem};
use tilewright_gen::program::Program;
use tilewright_ir::{Block, Kernel, Scalar, Stmt, Target, Unroll, print};
use tilewright_tune::random::{Pair, verify};
use tilewright_tune::space::Space;

/// 8 x 8 threads, macro tile 32 x 16, 8 deep.
const BASE: &str = "A_MIC4_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__B_MIC2_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__\
                    C_UNR8_GAL1_PUN1_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC64_SKW10_AFI1_MIA0";

fn plan(change: &str) -> Plan {
    Constraint::parse(change).unwrap().apply(&Plan::parse(BASE).unwrap())
}

/// Column-major, A not and B transposed: both contiguous across k. Not a whole number of tiles in either direction.
fn problem(lda: u64, ldb: u64) -> Problem {
    Gemm::new(Scalar::F32, 100, 76, 48).trans(false, true).lda(lda).ldb(ldb).ldc(1000).build().unwrap().into()
}

/// A plan's program with everything that is asked of it.
struct Variant {
    plan: Plan,
    model: Model,
    program: Program,
}

impl Variant {
    /// Generates, compares with the model, verifies.
    fn new(change: &str) -> Variant {
        let (problem, plan) = (problem(1000, 1000), plan(change));
        let target = Target::by_arch("sm_90a").unwrap();
        let space = Space::new(&problem, &target).unwrap().with_atomics(true);
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        let program = generate(r.contraction, &r.spec, space.env().workspace_bytes).unwrap();
        let line = |side: fn(Chiral) -> Key, rows: u64| match plan.get(side(Chiral::Wos)) {
            // Copies have a leading dimension of their own.
            1 => tilewright_gen::view::copy_leading_dimension(rows, Scalar::F32) as i64,
            _ => 1000,
        };
        let ld = [line(Key::A, 100), line(Key::B, 76), 1000];
        let variant = Variant { plan, model: Model { plan, m: 100, n: 76, k: 48, ld }, program };
        variant.is_the_model();
        variant.verifies(&problem);
        variant
    }

    fn main(&self) -> &Kernel {
        self.program.kernels.iter().find(|k| k.name == MAIN).unwrap()
    }

    /// Sampled threads of all work-groups do what the model says, in its order where it has one.
    fn is_the_model(&self) {
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
    fn run(&self, group: u32, thread: u32) -> (Vec<Step>, Vec<Event>) {
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

    fn verifies(&self, problem: &Problem) {
        let conv = Conv::new(Scalar::F32, 2, 8, 40, &[9, 8], &[2, 3]).pad(&[1, 0], &[0, 2]).bias(true).build().unwrap();
        let split = self.plan.get(Key::C(tilewright_gen::plan::Common::Ice)) > 1;
        let mut odd = problem.clone();
        if let Problem::Gemm(gemm) = &mut odd {
            gemm.k = 45;
        }
        for problem in [problem.clone(), odd, conv.into()] {
            // Vectors across k are not for every problem.
            let target = Target::by_arch("sm_90a").unwrap();
            let space = Space::new(&problem, &target).unwrap().with_atomics(true);
            let plan = space.repair(&self.plan).unwrap_or_else(|| panic!("{problem} {}", self.plan));
            assert!(!split || plan.get(Key::C(tilewright_gen::plan::Common::Ice)) > 1);
            for seed in [2, 3] {
                let pair = Pair { seed, problem: problem.clone(), plan };
                let verdict = verify(&emulator("emu:sm_90a", true, seed), &pair).unwrap_or_else(|e| panic!("{pair}: {e}"));
                assert!(verdict.passed, "{pair}: {:?}", verdict.reason);
            }
        }
    }

    /// Everything a thread of the first work-group does in its first k-tile.
    fn first(&self, thread: u32) -> Step {
        self.run(0, thread).0.swap_remove(0)
    }

    /// Rows and columns of C that a thread of the first work-group stores.
    fn results(&self, thread: u32) -> (Vec<i64>, Vec<i64>) {
        let stores = self.run(0, thread).1;
        let at = touches(&stores, "c");
        let set = |part: fn(i64) -> i64| at.iter().map(|t| part(t.index)).collect::<BTreeSet<_>>().into_iter().collect();
        (set(|i| i % 1000), set(|i| i / 1000))
    }
}

fn touches(events: &[Event], memory: &str) -> Vec<Touch> {
    let touch = |e: &Event| match e {
        Event::Load(t) | Event::Store(t) | Event::Atomic(t) | Event::Fragment(t) | Event::Share(t) => Some(t.clone()),
        _ => None,
    };
    events.iter().filter_map(touch).filter(|t| t.memory == memory).collect()
}

fn indices(events: &[Event], memory: &str) -> Vec<i64> {
    touches(events, memory).iter().map(|t| t.index).collect()
}

/// The same multiset in one order.
fn sorted(events: &[Event]) -> Vec<String> {
    let mut names: Vec<String> = events.iter().map(|e| format!("{e:?}")).collect();
    names.sort();
    names
}

/// The memories in the order in which they come up.
fn memories(events: &[Event]) -> Vec<String> {
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
fn both(test: impl Fn(&dyn Fn(&str) -> Variant, &str)) {
    test(&|change| Variant::new(&format!("A_{change}")), "a");
    test(&|change| Variant::new(&format!("B_{change}")), "b");
}

fn shared_len(v: &Variant, side: &str) -> u32 {
    v.main().shared.iter().find(|s| s.name == format!("{side}_tile")).unwrap().len
}

#[test]
fn mic_is_the_micro_tile() {
    both(|with, side| {
        for mic in [1, 2, 4, 6] {
            let v = with(&format!("MIC{mic}"));
            // As many rows (columns) of C per thread, fragments per k-step, and 8 threads times as many per work-group.
            let (rows, cols) = v.results(9);
            assert_eq!(if side == "a" { rows.len() } else { cols.len() }, mic);
            assert_eq!(indices(&v.first(9).fragments, &format!("{side}_tile")).len(), 8 * mic);
            let tile = if side == "a" { v.model.tile().0 } else { v.model.tile().1 };
            assert_eq!(tile, 8 * mic as i64);
        }
    });
}

#[test]
fn pad_widens_rows_of_shared_memory_by_vectors() {
    both(|with, side| {
        for (vew, pad) in [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)] {
            let v = with(&format!("PAD{pad}_VEW{vew}"));
            let tile = if side == "a" { 32 } else { 16 };
            let pitch = tile + pad * vew;
            assert_eq!(shared_len(&v, side), pitch * 8);
            // The same fragment of two k-steps is one row apart.
            let at = indices(&v.first(0).fragments, &format!("{side}_tile"));
            let per_step = at.len() / 8;
            assert_eq!(at[per_step] - at[0], i64::from(pitch));
        }
    });
}

/// (row, k) of what a thread loads of a factor in the first k-tile of the first work-group.
fn load_tile(v: &Variant, side: &str, thread: u32) -> (BTreeSet<i64>, BTreeSet<i64>) {
    let at = touches(&v.first(thread).loads, side);
    let each = at.iter().flat_map(|t| (0..i64::from(t.lanes)).map(|l| t.index + l));
    (each.clone().map(|i| i % 1000).collect(), each.map(|i| i / 1000).collect())
}

#[test]
fn plu_turns_the_load_tile() {
    both(|with, side| {
        // 4 (A) or 2 (B) elements each: across k, or along it.
        let each = if side == "a" { 4 } else { 2 };
        let (rows, ks) = load_tile(&with("PLU0"), side, 5);
        assert_eq!((rows.len(), ks.len()), (each, 1));
        let (rows, ks) = load_tile(&with("PLU1"), side, 5);
        assert_eq!((rows.len(), ks.len()), (1, each));
    });
}

#[test]
fn liw_spreads_the_load_tile() {
    both(|with, side| {
        let tile = if side == "a" { 32 } else { 16 };
        let each = if side == "a" { 4 } else { 2 };
        let gap = |v: &Variant, along_k: bool| {
            let (rows, ks) = load_tile(v, side, 5);
            let set = if along_k { ks } else { rows };
            let list: Vec<i64> = set.into_iter().collect();
            list[1] - list[0]
        };
        assert_eq!(gap(&with("LIW0_PLU0"), false), 1);
        assert_eq!(gap(&with("LIW1_PLU0"), false), tile / each);
        assert_eq!(gap(&with("LIW0_PLU1"), true), 1);
        assert_eq!(gap(&with("LIW1_PLU1"), true), 8 / each);
    });
}

#[test]
fn miw_spreads_the_micro_tile() {
    both(|with, side| {
        let lines = |v: &Variant, thread| {
            let (rows, cols) = v.results(thread);
            if side == "a" { rows } else { cols }
        };
        // Thread 9 is second along both sides of the 8 x 8 grid.
        let mic = if side == "a" { 4 } else { 2 };
        assert_eq!(lines(&with("MIW0"), 9), (mic..2 * mic).collect::<Vec<_>>());
        assert_eq!(lines(&with("MIW1"), 9), (0..mic).map(|i| 1 + 8 * i).collect::<Vec<_>>());
        // In vectors, where there are vectors.
        assert_eq!(lines(&with("MIW1_VEW2"), 9), (0..mic / 2).flat_map(|i| [2 + 16 * i, 3 + 16 * i]).collect::<Vec<_>>());
    });
}

#[test]
fn wos_loads_from_a_copy() {
    both(|with, side| {
        let names = |v: &Variant| v.program.kernels.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
        let plain = with("WOS0");
        assert_eq!((names(&plain), plain.program.workspace_bytes), (vec![MAIN.to_string()], 0));
        let (rows, tile) = if side == "a" { (100, 32) } else { (76, 16) };
        for wos in [1, 2] {
            let v = with(&format!("WOS{wos}"));
            assert_eq!(names(&v), [format!("tw_materialise_{side}"), MAIN.to_string()]);
            assert_eq!(v.program.launches.len(), 2);
            // Copies have a leading dimension of their own, panels whole tiles.
            let line = if wos == 1 { v.model.ld[usize::from(side == "b")] } else { (rows as i64 + tile - 1) / tile * tile };
            assert_eq!(v.program.workspace_bytes, line as u64 * 48 * 4);
            // Panels are contiguous: the next k is one tile further.
            let k_stride = if wos == 1 { line } else { tile };
            let at = indices(&v.first(0).loads, side)[0];
            assert_eq!(indices(&v.run(0, 0).0[1].loads, side)[0] - at, 8 * k_stride);
        }
    });
}

#[test]
fn vew_is_the_vector_width() {
    both(|with, side| {
        for vew in [1, 2, 4].into_iter().filter(|v| side == "a" || *v < 4) {
            let v = with(&format!("VEW{vew}"));
            let step = v.first(3);
            let lanes = |events: &[Event], memory: &str| touches(events, memory).iter().map(|t| t.lanes).collect::<BTreeSet<_>>();
            assert_eq!(lanes(&step.loads, side), [vew].into());
            assert_eq!(lanes(&step.shares, &format!("{side}_tile")), [vew].into());
            assert_eq!(lanes(&step.fragments, &format!("{side}_tile")), [vew].into());
            // The other factor and C stay as they are.
            let other = if side == "a" { "b" } else { "a" };
            assert_eq!(lanes(&step.loads, other), [1].into());
            assert_eq!(lanes(&v.run(0, 3).1, "c"), [1].into());
        }
    });
}

#[test]
fn unr_is_the_depth_of_a_tile() {
    for unr in [4, 8, 16, 24] {
        let v = Variant::new(&format!("C_UNR{unr}"));
        assert_eq!(shared_len(&v, "a"), 33 * unr);
        let (steps, _) = v.run(0, 0);
        assert_eq!(steps.len() as u32, 48 / unr);
        assert_eq!(steps[0].math.len() as u32, 8 * unr);
    }
}

/// (a, b) of the first tiles as work-groups take them: from the rows and columns they store.
fn walk(v: &Variant) -> Vec<(i64, i64)> {
    let (ta, tb) = v.model.tile();
    let launch = v.program.launches.last().unwrap();
    (0..launch.grid[0])
        .map(|group| v.run(group, 63).1)
        .map(|stores| touches(&stores, "c")[0].index)
        .map(|i| (i % 1000 / ta, i / 1000 / tb))
        .collect()
}

#[test]
fn gal_orders_the_tiles() {
    // 4 x 5 tiles; the last thread's results are never cut off by their neighbours'.
    let orders: [&[(i64, i64)]; 3] =
        [&[(0, 0), (0, 1), (0, 2)], &[(0, 0), (1, 0), (2, 0)], &[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]];
    for (gal, order) in orders.iter().enumerate() {
        let v = Variant::new(&format!("C_GAL{}_NAW4", gal + 1));
        assert_eq!(v.model.groups(), (4, 5));
        let tiles = walk(&v);
        assert_eq!(&tiles[..order.len()], *order);
        assert_eq!(tiles.iter().collect::<BTreeSet<_>>().len(), 20);
    }
}

#[test]
fn naw_is_the_width_of_strips() {
    for (naw, width) in [(1, 1), (4, 2), (8, 2), (9, 3), (16, 4), (64, 8)] {
        let v = Variant::new(&format!("C_GAL3_NAW{naw}"));
        let tiles = walk(&v);
        let first_row = tiles.iter().take_while(|t| t.0 == 0).count();
        // 5 tiles along n at most.
        assert_eq!(first_row, width.min(5));
    }
    // Split work-groups share the width: sqrt(16 / 4) = 2.
    let v = Variant::new("C_GAL3_NAW16_ICE4");
    assert_eq!(v.model.place(4 * 2).0, 1);
    // The other orders do not have it.
    assert_eq!(Variant::new("C_GAL2_NAW16").program, Variant::new("C_GAL2_NAW64").program);
}

fn loops<'k>(block: &'k Block, found: &mut Vec<(&'k Unroll, &'k Block)>) {
    for s in block {
        match s {
            Stmt::For { unroll, body, .. } => {
                found.push((unroll, body));
                loops(body, found);
            }
            Stmt::If { then, otherwise, .. } => {
                loops(then, found);
                loops(otherwise, found);
            }
            _ => {}
        }
    }
}

#[test]
fn pun_asks_for_unrolling() {
    let target = Target::by_arch("sm_90a").unwrap();
    let asked = |v: &Variant| print(v.main(), &target).unwrap().text.matches("#pragma unroll\n").count();
    let [silent, loud] = ["C_PUN0", "C_PUN1"].map(Variant::new);
    assert_eq!(asked(&silent), 0);
    let mut of = Vec::new();
    loops(&loud.main().body, &mut of);
    let full = of.iter().filter(|(u, _)| **u == Unroll::Full).count();
    assert!(full > 0 && asked(&loud) == full, "{} of {full}", asked(&loud));
    // Fragments, math and results; neither the loop over k-tiles nor that over the k-steps of one.
    let holds = |body: &Block, what: fn(&Stmt) -> bool| body.iter().any(what);
    assert!(of.iter().any(|(u, body)| **u == Unroll::Full && holds(body, |s| matches!(s, Stmt::Load { .. }))));
    assert!(of.iter().any(|(u, body)| **u == Unroll::Full && holds(body, |s| matches!(s, Stmt::Assign(..)))));
    assert!(of.iter().any(|(u, body)| **u == Unroll::Full && holds(body, |s| matches!(s, Stmt::Store { .. }))));
    assert_eq!(of.iter().filter(|(u, _)| **u == Unroll::No).count(), 2);
    // Otherwise the kernels are the same.
    for thread in [0, 9] {
        assert_eq!(trace(silent.main(), 3, thread), trace(loud.main(), 3, thread));
    }
}

/// First k of each k-tile that a work-group loads.
fn k_starts(v: &Variant, group: u32) -> Vec<i64> {
    // Thread 0 loads the first k of each tile first.
    v.run(group, 0).0.iter().map(|s| indices(&s.loads, "a").first().map_or(-1, |i| i / 1000)).collect()
}

#[test]
fn ice_splits_k() {
    for (ways, sks) in [(2, 0), (3, 0), (4, 0)] {
        let v = Variant::new(&format!("C_ICE{ways}_SKS{sks}"));
        let names: Vec<&str> = v.program.kernels.iter().map(|k| k.name.as_str()).collect();
        assert_eq!(names, ["tw_scale_c", MAIN]);
        // As many work-groups more; adjacent ones share a tile; results are added.
        assert_eq!(v.program.launches[1].grid[0], 20 * ways);
        let all: Vec<i64> = (0..ways).flat_map(|z| k_starts(&v, z)).collect();
        assert_eq!(all, [0, 8, 16, 24, 32, 40]);
        assert!(v.run(0, 0).1.iter().all(|e| matches!(e, Event::Atomic(_))));
    }
    let whole = Variant::new("C_ICE1");
    assert_eq!(whole.program.kernels.len(), 1);
    assert!(whole.run(0, 0).1.iter().all(|e| matches!(e, Event::Store(_))));
}

#[test]
fn iwi_deals_k_tiles_out() {
    let contiguous = Variant::new("C_ICE4_IWI0");
    assert_eq!([0, 1, 2, 3].map(|z| k_starts(&contiguous, z)), [vec![0, 8], vec![16, 24], vec![32], vec![40]]);
    let dealt = Variant::new("C_ICE4_IWI1");
    assert_eq!([0, 1, 2, 3].map(|z| k_starts(&dealt, z)), [vec![0, 32], vec![8, 40], vec![16], vec![24]]);
}

#[test]
fn szt_is_the_width_of_indices() {
    let types = |v: &Variant| {
        let named = |name: &str| v.main().vars.iter().find(|x| x.name == name).map(|x| x.ty.scalar);
        ["m_start", "n_start", "k_begin", "k_fetch"].map(|name| named(name).unwrap_or(Scalar::I32))
    };
    let (narrow, wide) = (Variant::new("C_SZT0"), Variant::new("C_SZT1"));
    assert_eq!(types(&narrow), [Scalar::I32; 4]);
    assert_eq!(types(&wide)[..2], [Scalar::I64; 2]);
    assert_eq!(types(&wide)[3], Scalar::I64);
    for thread in [0, 9] {
        assert_eq!(trace(narrow.main(), 3, thread), trace(wide.main(), 3, thread));
    }
    // As narrow as the problem allows: more than 2^31 elements are addressed in 64 bits anyway.
    let large: Problem = Gemm::new(Scalar::F32, 50_000, 50_000, 48).trans(false, true).build().unwrap().into();
    let c = lower(&large, ConvForm::PerSample).unwrap();
    let env = Env::new(&Target::by_arch("sm_90a").unwrap(), 0);
    let spec = derive(&plan("C_SZT0"), &c, &env).unwrap();
    let program = generate(&c, &spec, 0).unwrap();
    let last = program.launches[0].grid[0] - 1;
    let stores = trace(&program.kernels[0], last, 63);
    let end = touches(&stores, "c").iter().map(|t| t.index).max().unwrap();
    assert_eq!(end, 50_000 * 50_000 - 1);
    let wide = |s: &Stmt| matches!(s, Stmt::Store { mem, .. } if program.kernels[0].ty(mem.index).scalar == Scalar::I64);
    let mut of = Vec::new();
    loops(&program.kernels[0].body, &mut of);
    assert!(of.iter().any(|(_, body)| body.iter().any(wide)));
}

#[test]
fn mad_fuses_multiply_and_add() {
    for (mad, fused) in [(0, false), (1, true)] {
        let step = Variant::new(&format!("C_MAD{mad}")).first(0);
        assert_eq!(step.math.len(), 4 * 2 * 8);
        assert!(step.math.iter().all(|e| matches!(e, Event::Math { fused: f, .. } if *f == fused)));
    }
}

#[test]
fn ufo_staggers_the_start() {
    let v = Variant::new("C_UFO1");
    for group in 0..20 {
        let (a, b, _) = v.model.place(group);
        let shift = (13 * a + 7 * b) % 8;
        let (steps, _) = v.run(group as u32, 0);
        // The first tile begins before k = 0, where there is nothing to load; a shifted range needs one tile more.
        assert_eq!(steps.len(), if shift == 0 { 6 } else { 7 });
        let load = |step: &Step| step.loads.iter().filter(|e| **e != Event::Zero).count();
        assert_eq!(load(&steps[0]) < 6, shift > 0, "{shift}");
        assert_eq!(v.model.k_starts(group)[0], -shift);
    }
    assert_eq!(k_starts(&Variant::new("C_UFO0"), 1)[0], 0);
}

#[test]
fn mac_is_the_number_of_threads() {
    for (mac, grid) in [(16, (4, 4)), (32, (8, 4)), (64, (8, 8)), (128, (16, 8)), (256, (16, 16))] {
        let v = Variant::new(&format!("C_MAC{mac}"));
        assert_eq!((v.main().threads, v.model.grid()), (mac, grid));
        assert_eq!(v.model.tile(), (grid.0 * 4, grid.1 * 2));
    }
}

#[test]
fn skw_skews_the_thread_grid() {
    for (skw, grid) in [(8, (32, 2)), (9, (16, 4)), (10, (8, 8)), (11, (4, 16)), (12, (2, 32)), (13, (1, 64))] {
        // Micro tiles that fit the problem and a depth that 64 threads share out in every shape.
        let v = Variant::new(&format!("A_MIC2__B_MIC1__C_UNR32_SKW{skw}"));
        assert_eq!(v.model.grid(), grid);
        let rows: BTreeSet<i64> = (0..64).flat_map(|t| v.results(t).0).collect();
        assert_eq!(rows.len() as i64, 2 * grid.0);
    }
}

#[test]
fn afi_puts_a_or_b_first() {
    for (afi, order) in [(1, ["a", "b"]), (0, ["b", "a"])] {
        let v = Variant::new(&format!("C_AFI{afi}"));
        let step = v.first(0);
        let tiles = order.map(|x| format!("{x}_tile"));
        assert_eq!(memories(&step.loads), order);
        assert_eq!(memories(&step.shares), tiles);
        assert_eq!(memories(&step.fragments)[..2], tiles);
        // The outer loop of the math is that of the first.
        let outer: Vec<i64> = step.math[..8]
            .iter()
            .map(|e| if let Event::Math { x, y, .. } = e { if afi == 1 { *x } else { *y } } else { -1 })
            .collect();
        assert!(outer.is_sorted(), "{outer:?}");
        // Definitions, too.
        let position = |name: &str| v.main().regs.iter().position(|r| r.name == name).unwrap();
        assert_eq!(position("a_frag") < position("b_frag"), afi == 1);
        assert_eq!(position("a_stage") < position("b_stage"), afi == 1);
    }
}

#[test]
fn mia_says_who_is_adjacent() {
    let next = |v: &Variant| {
        let ((r0, c0), (r1, c1)) = (v.results(0), v.results(1));
        (r1[0] - r0[0], c1[0] - c0[0])
    };
    // One micro tile further along m, or along n.
    assert_eq!(next(&Variant::new("C_MIA0")), (4, 0));
    assert_eq!(next(&Variant::new("C_MIA1")), (0, 2));
}

/// All 27 are tested above.
#[test]
fn every_parameter_has_its_test() {
    let names: BTreeSet<&str> = Key::all().filter(|k| k.info().is_classic()).map(Key::name).collect();
    let tests = include_str!("parameters.rs");
    for name in names {
        let start = format!("fn {}_", name.to_lowercase());
        assert!(tests.contains(&start), "{name}");
    }
}
