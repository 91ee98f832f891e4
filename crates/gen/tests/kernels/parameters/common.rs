//! The keys that both sides have in common.

use super::variant::*;
use crate::support::model::Step;
use crate::support::trace::{Event, trace};
use std::collections::BTreeSet;
use tilewright_gen::kernel::{MAIN, generate};
use tilewright_gen::plan::{Env, derive};
use tilewright_ir::{Block, Scalar, Stmt, Target, Unroll, print};
use tilewright_problem::lower::{ConvForm, lower};
use tilewright_problem::{Gemm, Order, Problem};

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
    let large: Problem = Gemm::new(Scalar::F32, 50_000, 50_000, 48).order(Order::Col).trans(false, true).build().unwrap().into();
    let c = lower(&large, ConvForm::PER_SAMPLE).unwrap().lead;
    let env = Env::new(&Target::by_arch("sm_90a").unwrap(), 0);
    let spec = derive(&plan("C_SZT0"), &c, &env).unwrap();
    let program = generate(&spec, 0).unwrap();
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
        let tiles = order.map(|x| format!("smem_{x}"));
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
