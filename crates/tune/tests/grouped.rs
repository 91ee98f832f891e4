//! Grouped products by every unit of each target, on the emulator with every check on: groups of all sizes, also without rows, with one, and with
//! all of them; what lies behind the last group untouched.

mod support;

use support::Run;
use tilewright_ir::{MathUnit, Target};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{G, ROW};
use tilewright_problem::{Along, Extent, Gemm, Problem};
use tilewright_tune::random::{Pair, Recipe};
use tilewright_tune::space::Space;

const FEATURES: [&str; 10] = [
    "groups of rows",
    "groups of columns",
    "transposed products",
    "multiply-adds",
    "mma.sync",
    "MFMA",
    "integers",
    "persistent work-groups",
    "staged results",
    "a residual",
];

const OF_WARPGROUPS: [&str; 10] = [
    "groups of rows",
    "groups of columns",
    "persistent work-groups",
    "load waves",
    "bulk copies of the grouped factor",
    "bulk copies of the other",
    "factors of groups written by load waves",
    "rows that are neighbours in memory",
    "staged results",
    "a bias for each group",
];

/// Whether groups are of rows; `None` without groups.
fn rows(pair: &Pair) -> Option<bool> {
    if let Problem::Gemm(gemm) = &pair.problem { gemm.grouped.map(|along| along == Along::M) } else { None }
}

fn features(space: &Space, pair: &Pair) -> [bool; FEATURES.len()] {
    let Some(rows) = rows(pair) else { return [false; FEATURES.len()] };
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let (spec, t, c) = (&resolved.spec, &resolved.spec.tiling, resolved.contraction);
    [
        rows,
        !rows,
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
    let Some(rows) = rows(pair) else { return [false; OF_WARPGROUPS.len()] };
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let spec = &resolved.spec;
    let c = &*resolved.contraction.oriented(spec.tiling.swapped);
    let of = usize::from(c.grouped(Extent::N));
    let (copies, factors) = (&spec.schedule.copies, [&c.a, &c.b]);
    [
        rows,
        !rows,
        spec.tiling.persistent > 0,
        spec.schedule.roles.is_some(),
        copies[of].is_bulk(),
        copies[1 - of].is_bulk(),
        copies[of].is_written(),
        factors[of].view.stride(ROW) == Some(1),
        spec.epilogue.exit.staged(),
        c.bias().is_some_and(|bias| bias.view.uses(G)),
    ]
}

#[test]
fn groups_verify() {
    let devices = ["emu:sm_90a", "emu:sm_80", "emu:gfx942", "emu:sm_90a", "emu:gfx90a"];
    Run { devices: &devices, recipe: Recipe::grouped(), count: 600, interleave: false }.all_pass_with(features, &FEATURES);
}

#[test]
fn groups_verify_by_warpgroups() {
    let recipe = Recipe { grouped: true, ..Recipe::units() };
    Run { devices: &["emu:sm_90a"], recipe, count: 300, interleave: true }.all_pass_with(of_warpgroups, &OF_WARPGROUPS);
}

/// No two groups have tiles of the same number, and all of their tiles have one.
#[test]
fn tiles_of_groups_never_share_a_number() {
    let target = Target::by_arch("sm_90a").unwrap();
    let gemm = Gemm::new(tilewright_ir::Scalar::F32, 1000, 8, 8).grouped(Along::M, 7).build().unwrap();
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
