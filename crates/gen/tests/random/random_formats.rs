//! Random pairs of plan and problem over all number formats, by every unit of each target, on the emulator with every check on; and how often
//! each format and unit is among them. Integers are compared bit by bit.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use support::Run;
use tilewright_check::random::{Pair, Recipe};
use tilewright_gen::space::Space;
use tilewright_ir::{MathUnit, Scalar};
use tilewright_problem::Math;

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
