//! Random links of chains on the emulator with every check on: gated products, products of linear cross-entropies and of their gradients, products of
//! two pairs of factors. 3,600 in a whole run, half of them with rows at odd addresses.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use support::Run;
use tilewright_check::random::{Chain, Pair, Recipe};
use tilewright_gen::plan::{Along, Exit, Source, Transport};
use tilewright_gen::space::Space;
use tilewright_ir::MathUnit;
use tilewright_problem::{Activation, Problem};

const OF_GATES: [&str; 11] = [
    "multiply-adds",
    "mma.sync",
    "MFMA",
    "granules of several columns",
    "splits",
    "whole rows staged",
    "bias along n",
    "columns beyond the last",
    "groups",
    "interleaved columns",
    "pre-activations",
];

fn of_gates(space: &Space, pair: &Pair) -> [bool; OF_GATES.len()] {
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let (c, spec) = (resolved.contraction, &resolved.spec);
    let Some(pairs) = c.pairs() else { return [false; OF_GATES.len()] };
    let unit = spec.tiling.unit;
    [
        unit == MathUnit::Fma,
        unit == MathUnit::Mma,
        unit == MathUnit::Mfma,
        pairs.granule > 1,
        spec.tiling.split_k.ways > 1,
        spec.epilogue.exit == Exit::Rows,
        c.bias().is_some_and(|bias| bias.along_n),
        pairs.columns % pairs.granule != 0,
        matches!(&pair.problem, Problem::Gemm(gemm) if gemm.grouped.is_some()),
        matches!(&pair.problem, Problem::Gemm(gemm) if gemm.gate.is_some_and(|gate| gate.interleaved)),
        c.preactivations().is_some(),
    ]
}

#[test]
fn gated_products_verify() {
    let devices = ["emu:sm_90a", "emu:sm_90a", "emu:sm_80", "emu:gfx942"];
    Run { devices: &devices, recipe: Recipe::gated(), count: 1500, interleave: false }.all_pass_with(of_gates, &OF_GATES);
}

const OF_GATED_UNITS: [&str; 4] = ["wgmma", "halves of one bulk copy", "bulk stores", "persistent work-groups"];

fn of_gated_units(space: &Space, pair: &Pair) -> [bool; OF_GATED_UNITS.len()] {
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let spec = &resolved.spec;
    if resolved.contraction.pairs().is_none() || spec.tiling.unit != MathUnit::Warpgroup {
        return [false; OF_GATED_UNITS.len()];
    }
    let in_place = spec.tiling.b.source == Source::InPlace;
    [
        true,
        matches!(spec.schedule.copies[1], Transport::Bulk(_)) && in_place,
        spec.epilogue.exit.bulk().is_some() && spec.tiling.split_k.ways == 1,
        spec.tiling.persistent > 0,
    ]
}

#[test]
fn gated_products_by_warpgroups_verify() {
    let recipe = Recipe { chain: Chain::Gated, ..Recipe::units() };
    let run = Run { devices: &["emu:sm_90a"], recipe, count: 500, interleave: false };
    run.all_pass_with(of_gated_units, &OF_GATED_UNITS);
}

const OF_LOSSES: [&str; 6] =
    ["multiply-adds", "matrix units", "logits that are not stored", "exponentials", "a softcap", "splits"];

fn of_losses(space: &Space, pair: &Pair) -> [bool; OF_LOSSES.len()] {
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let (c, tiling) = (&resolved.contraction, &resolved.spec.tiling);
    [
        tiling.unit == MathUnit::Fma,
        tiling.unit != MathUnit::Fma,
        c.drop_c,
        c.activation() == Some(Activation::Exp),
        matches!(c.activation(), Some(Activation::Softcap(_))),
        tiling.split_k.ways > 1,
    ]
}

#[test]
fn losses_verify() {
    let devices = ["emu:sm_90a", "emu:sm_90a", "emu:sm_80", "emu:gfx942"];
    Run { devices: &devices, recipe: Recipe::losses(), count: 700, interleave: false }.all_pass_with(of_losses, &OF_LOSSES);
}

const OF_LOSS_UNITS: [&str; 4] = ["wgmma", "logits that are not stored", "exponentials", "bulk stores"];

fn of_loss_units(space: &Space, pair: &Pair) -> [bool; OF_LOSS_UNITS.len()] {
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let c = &resolved.contraction;
    [
        resolved.spec.tiling.unit == MathUnit::Warpgroup,
        c.drop_c,
        c.activation() == Some(Activation::Exp),
        resolved.spec.epilogue.exit.bulk().is_some(),
    ]
}

#[test]
fn losses_by_warpgroups_verify() {
    let recipe = Recipe { chain: Chain::Loss, ..Recipe::units() };
    Run { devices: &["emu:sm_90a"], recipe, count: 300, interleave: false }.all_pass_with(of_loss_units, &OF_LOSS_UNITS);
}

const OF_PAIRS: [&str; 7] = [
    "multiply-adds",
    "matrix units",
    "vectors along k",
    "asynchronous copies",
    "a second pair of several k-tiles",
    "splits",
    "extents known only at launch",
];

fn of_pairs(space: &Space, pair: &Pair) -> [bool; OF_PAIRS.len()] {
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let (c, spec) = (&resolved.contraction, &resolved.spec);
    let tiling = &spec.tiling;
    let first = c.second.as_ref().map_or(c.k, |second| second.first);
    [
        tiling.unit == MathUnit::Fma,
        tiling.unit != MathUnit::Fma,
        tiling.a.load_width > 1 && tiling.a.load_along == Along::K,
        spec.schedule.copies.iter().any(Transport::is_async),
        c.k - first > tiling.k_tile.into(),
        tiling.split_k.ways > 1,
        !c.dynamic().is_none(),
    ]
}

#[test]
fn two_pairs_of_factors_verify() {
    let devices = ["emu:sm_90a", "emu:sm_80", "emu:gfx942"];
    Run { devices: &devices, recipe: Recipe::two_pairs(), count: 400, interleave: false }.all_pass_with(of_pairs, &OF_PAIRS);
}

const OF_PAIR_UNITS: [&str; 6] =
    ["wgmma", "bulk copies", "rows by producer warps", "clusters", "persistent work-groups", "k along lines"];

fn of_pair_units(space: &Space, pair: &Pair) -> [bool; OF_PAIR_UNITS.len()] {
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let spec = &resolved.spec;
    let bulk = spec.schedule.second.as_ref().map_or([None, None], |second| second.bulk.clone());
    [
        spec.tiling.unit == MathUnit::Warpgroup,
        bulk.iter().any(Option::is_some),
        spec.schedule.copies.iter().any(|copy| matches!(copy, Transport::Written(_))),
        spec.tiling.cluster.size() > 1,
        spec.tiling.persistent > 0,
        bulk.iter().flatten().any(|tile| !tile.k_contiguous),
    ]
}

#[test]
fn two_pairs_of_factors_by_warpgroups_verify() {
    let recipe = Recipe { chain: Chain::Pairs, ..Recipe::units() };
    Run { devices: &["emu:sm_90a"], recipe, count: 200, interleave: false }.all_pass_with(of_pair_units, &OF_PAIR_UNITS);
}
