//! Random pairs of plan and problem over all number formats, by every unit of each target, on the emulator with every check on; and how often
//! each format and unit is among them. Integers are compared bit by bit.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use support::Run;
use tilewright_check::random::{Pair, Recipe};
use tilewright_gen::plan::{Exit, Source, Transport};
use tilewright_gen::space::Space;
use tilewright_ir::{MathUnit, Scalar};
use tilewright_problem::{Math, Problem};

const FEATURES: [&str; 34] = [
    "f64",
    "f32",
    "tf32",
    "tf32x3",
    "bf16x3",
    "bf16x6",
    "f16",
    "bf16",
    "e4m3",
    "e5m2",
    "e4m3fnuz",
    "e5m2fnuz",
    "i8",
    "u8",
    "factors of two types",
    "small weights",
    "weights of 4 bits",
    "multiply-adds",
    "dot products",
    "mma.sync",
    "wgmma",
    "MFMA",
    "integers by matrix units",
    "8-bit floats by matrix units",
    "scales of 8-bit factors",
    "scales by matrix units",
    "zero points",
    "promoted sums",
    "scales of blocks of k",
    "complex numbers",
    "complex numbers by matrix units",
    "complex alpha",
    "complex beta",
    "complex alpha or beta by matrix units",
];

fn features(space: &Space, pair: &Pair) -> [bool; FEATURES.len()] {
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let (c, unit) = (resolved.contraction, resolved.spec.tiling.unit);
    let (dtype, matrix) = (c.a.factor(), unit.family().lanes > 1);
    let complex = pair.problem.parts() == 2;
    let of = |scalar: Scalar, math: Math| dtype == scalar && c.math == math;
    [
        of(Scalar::F64, Math::Exact),
        of(Scalar::F32, Math::Exact),
        of(Scalar::F32, Math::Tf32),
        of(Scalar::F32, Math::Tf32x3),
        of(Scalar::F32, Math::Bf16x3),
        of(Scalar::F32, Math::Bf16x6),
        of(Scalar::F16, Math::Exact),
        of(Scalar::BF16, Math::Exact),
        dtype == Scalar::E4M3,
        dtype == Scalar::E5M2,
        dtype == Scalar::E4M3Fnuz,
        dtype == Scalar::E5M2Fnuz,
        of(Scalar::I8, Math::Exact),
        of(Scalar::U8, Math::Exact),
        c.a.scalar != c.b.scalar,
        c.a.factor.or(c.b.factor).is_some(),
        c.a.scalar.is_int4() || c.b.scalar.is_int4(),
        unit == MathUnit::Fma,
        unit == MathUnit::Dot,
        unit == MathUnit::Mma,
        unit == MathUnit::Warpgroup,
        unit == MathUnit::Mfma,
        matrix && dtype.is_int8(),
        matrix && dtype.is_float8(),
        dtype.bytes() == 1 && c.scales().count() > 0,
        matrix && c.scales().count() > 0,
        c.centre().is_some(),
        resolved.spec.schedule.promoted.is_some(),
        !c.block_scales.is_empty(),
        complex,
        complex && matrix,
        c.turns_factor(),
        c.turns_old(),
        matrix && (c.turns_factor() || c.turns_old()),
    ]
}

#[test]
fn every_format_verifies() {
    let devices = ["emu:sm_90a", "emu:sm_80", "emu:gfx942", "emu:sm_90a", "emu:sm_89", "emu:gfx950", "emu:gfx90a", "emu:sm_75"];
    Run { devices: &devices, recipe: Recipe::formats(), count: 1500, interleave: false }.all_pass_with(features, &FEATURES);
}

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
    Run { devices: &devices, recipe: Recipe::gated(), count: 1000, interleave: false }.all_pass_with(of_gates, &OF_GATES);
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
    let recipe = Recipe { gated: true, ..Recipe::units() };
    let run = Run { devices: &["emu:sm_90a"], recipe, count: 400, interleave: false };
    run.all_pass_with(of_gated_units, &OF_GATED_UNITS);
}
