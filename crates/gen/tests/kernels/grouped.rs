//! Grouped products by every unit of each target, on the emulator with every check on: groups of all sizes, also without rows, with one, and with
//! all of them; what lies behind the last group untouched. Of terms in groups those behind the last are NaNs.

use crate::support;

use std::ops::Range;
use std::sync::Arc;
use support::Run;
use tilewright_check::random::{Pair, Recipe, pair};
use tilewright_check::reference::{Buffer, TestData};
use tilewright_check::run::{Buffers, bind, compile};
use tilewright_device::Device;
use tilewright_gen::space::Space;
use tilewright_ir::{MathUnit, Target};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{G, ROW};
use tilewright_problem::{Extent, Gemm, Order, Problem, Ragged};

const FEATURES: [&str; 11] = [
    "groups of rows",
    "groups of columns",
    "groups of terms",
    "transposed products",
    "multiply-adds",
    "mma.sync",
    "MFMA",
    "integers",
    "persistent work-groups",
    "staged results",
    "a residual",
];

const OF_WARPGROUPS: [&str; 15] = [
    "groups of rows",
    "groups of columns",
    "groups of terms",
    "groups of terms whose sums are split",
    "groups of terms in persistent work-groups",
    "persistent work-groups",
    "load waves",
    "bulk copies of the grouped factor",
    "bulk copies of the other",
    "factors of groups written by load waves",
    "rows that are neighbours in memory",
    "staged results",
    "a bias for each group",
    "tiles that work-groups count",
    "waves without rows",
];

/// What groups are of; `None` without groups.
fn ragged(pair: &Pair) -> Option<Ragged> {
    if let Problem::Gemm(gemm) = &pair.problem { gemm.grouped } else { None }
}

fn features(space: &Space, pair: &Pair) -> [bool; FEATURES.len()] {
    let Some(of) = ragged(pair) else { return [false; FEATURES.len()] };
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let (spec, t, c) = (&resolved.spec, &resolved.spec.tiling, resolved.contraction);
    [
        of == Ragged::M,
        of == Ragged::N,
        of == Ragged::K,
        t.swapped,
        t.unit == MathUnit::Fma,
        t.unit == MathUnit::Mma,
        t.unit == MathUnit::Mfma,
        c.a.scalar.is_int8(),
        t.persistent > 0,
        spec.epilogue.exit.staged(),
        c.residual().is_some(),
    ]
}

fn of_warpgroups(space: &Space, pair: &Pair) -> [bool; OF_WARPGROUPS.len()] {
    let Some(of) = ragged(pair) else { return [false; OF_WARPGROUPS.len()] };
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let spec = &resolved.spec;
    let c = &spec.c;
    let side = usize::from(c.grouped(Extent::N));
    let (copies, factors, rows) = (&spec.schedule.copies, [&c.a, &c.b], of != Ragged::K);
    [
        of == Ragged::M,
        of == Ragged::N,
        !rows,
        !rows && spec.tiling.split_k.ways > 1,
        !rows && spec.tiling.persistent > 0,
        rows && spec.tiling.persistent > 0,
        spec.schedule.roles.is_some(),
        rows && copies[side].is_bulk(),
        rows && copies[1 - side].is_bulk(),
        rows && copies[side].is_written(),
        rows && factors[side].view.stride(ROW) == Some(1),
        spec.epilogue.exit.staged(),
        c.bias().is_some_and(|bias| bias.view.uses(G)),
        spec.counted_groups(c).is_some(),
        rows && spec.schedule.roles.is_some() && [&spec.tiling.a, &spec.tiling.b][side].leaves_empty(None),
    ]
}

#[test]
fn groups_verify() {
    let devices = ["emu:sm_90a", "emu:sm_80", "emu:gfx942", "emu:sm_90a", "emu:gfx90a"];
    Run { devices: &devices, recipe: Recipe::grouped(), count: 400, interleave: false }.all_pass_with(features, &FEATURES);
}

#[test]
fn groups_verify_by_warpgroups() {
    let recipe = Recipe { grouped: true, ..Recipe::units() };
    Run { devices: &["emu:sm_90a"], recipe, count: 250, interleave: true }.all_pass_with(of_warpgroups, &OF_WARPGROUPS);
}

/// What a pair leaves in C.
fn left(device: &Arc<dyn Device>, pair: &Pair, data: &TestData) -> Vec<u8> {
    let space = Space::new(&pair.problem, &device.info().target).unwrap().with_atomics(true);
    let resolved = space.resolve(&pair.plan).unwrap();
    let program = resolved.generate(space.env().workspace_bytes).unwrap();
    let compiled = compile(device.as_ref(), &program).unwrap();
    let mut buffers = Buffers::upload(device.as_ref(), data).unwrap();
    buffers.workspace = (program.workspace_bytes > 0).then(|| device.alloc(program.workspace_bytes).unwrap());
    let (c, factors) = (space.contraction(&pair.plan), data.factors);
    let launches = bind(&program, &compiled, c, &buffers, factors, &c.extents()).unwrap_or_else(|e| panic!("{pair}: {e}"));
    device.launch(&launches).unwrap();
    device.sync().unwrap();
    let mut after = vec![0; data.c.bytes.len()];
    device.read(&buffers.c, 0, &mut after).unwrap();
    after
}

/// Where element (i, j) of matrix 0 = A, 1 = B, 2 = C lies in a buffer.
fn place(gemm: &Gemm, buffer: &Buffer, matrix: usize, [g, i, j]: [u64; 3]) -> Range<usize> {
    let x = gemm.matrices()[matrix];
    let (line, within) = if x.trans == (gemm.order == Order::Col) { (i, j) } else { (j, i) };
    let at = (buffer.start + g * x.batch_stride + line * x.ld + within) as usize;
    let size = buffer.scalar.bytes() as usize;
    at * size..(at + 1) * size
}

/// Terms of a group are no others' business: with NaNs in the place of one group's, all results of the others are the same to the bit.
#[test]
fn neighbours_of_a_group_of_terms_may_be_nan() {
    let recipes = [("emu:sm_90a", Recipe { grouped: true, ..Recipe::units() }), ("emu:sm_90a", Recipe::grouped())];
    let recipes = recipes.into_iter().chain([("emu:sm_80", Recipe::grouped()), ("emu:gfx942", Recipe::grouped())]);
    let mut poisoned = 0;
    for (spec, recipe) in recipes {
        for seed in 0..60 {
            let device = support::emulator(spec, false, seed);
            let Some(pair) = pair(&device.info().target, &recipe, seed) else { continue };
            let Problem::Gemm(gemm) = &pair.problem else { continue };
            let data = TestData::new(&pair.problem, seed, 1.0, 0.0).unwrap();
            let (Some(Ragged::K), Some(ends)) = (gemm.grouped, data.ends()) else { continue };
            let begin = |g: usize| if g == 0 { 0 } else { ends[g - 1] };
            let Some(group) = (0..ends.len()).find(|g| begin(*g) < ends[*g] && ends.len() > 1) else { continue };
            let mut with_nans = data.clone();
            for term in begin(group)..ends[group] {
                let fill = |buffer: &mut Buffer, at: Range<usize>| buffer.bytes[at].fill(0xff);
                let a = Arc::make_mut(&mut with_nans.a);
                (0..gemm.m).for_each(|i| {
                    let at = place(gemm, a, 0, [0, i, term]);
                    fill(a, at)
                });
                let b = Arc::make_mut(&mut with_nans.b);
                (0..gemm.n).for_each(|j| {
                    let at = place(gemm, b, 1, [0, term, j]);
                    fill(b, at)
                });
            }
            let (clean, other) = (left(&device, &pair, &data), left(&device, &pair, &with_nans));
            for g in (0..gemm.batch).filter(|g| *g != group as u64) {
                for (i, j) in (0..gemm.m).flat_map(|i| (0..gemm.n).map(move |j| (i, j))) {
                    let at = place(gemm, &data.c, 2, [g, i, j]);
                    assert_eq!(
                        clean[at.clone()],
                        other[at],
                        "{spec} {pair}: group {g}, row {i}, column {j}, NaNs in group {group}"
                    );
                }
            }
            poisoned += 1;
        }
    }
    assert!(poisoned > 20, "{poisoned}");
}

/// No two groups have tiles of the same number, and all of their tiles have one.
#[test]
fn tiles_of_groups_never_share_a_number() {
    let target = Target::by_arch("sm_90a").unwrap();
    let gemm = Gemm::new(tilewright_ir::Scalar::F32, 1000, 8, 8).grouped(Ragged::M, 7).build().unwrap();
    let space = Space::new(&Problem::Gemm(gemm), &target).unwrap();
    let c: &Contraction = space.contraction(&tilewright_gen::plan::Plan::default());
    for tile in [1u64, 7, 64, 100, 2000] {
        let [tiles, _, entries] = c.tiles([tile, 8]);
        assert_eq!(entries, 1);
        for ends in [[0, 0, 0, 0, 0, 0, 1000], [1000; 7], [1, 2, 3, 500, 500, 999, 1000], [142, 285, 428, 571, 714, 857, 1000]] {
            let mut next = 0;
            let mut begin = 0u64;
            for (group, end) in (0u64..).zip(ends) {
                let first = begin / tile + group;
                assert!(first >= next, "{tile}: {ends:?}");
                next = first + (end - begin).div_ceil(tile);
                begin = end;
            }
            assert!(next <= tiles, "{tile}: {ends:?}");
        }
    }
}
