//! The table of instructions that multiply: what each computes, who runs it, where its operands and accumulators are.
//!
//! Validator, emulator, printers, generator and cost model read these rows. A [`MathUnit`] is a family of instructions that a
//! plan chooses; an [`Mma`] is one of its instructions. A new instruction needs a row of [`TABLE`], its spelling in `print`, and
//! the place of its fragments in `fragments`. If its numbers are of another type, the emulator needs their arithmetic, too.

mod family;
mod fragments;

use crate::layout::Axis::{Element, K};
use crate::matrix::{MatrixOp, MatrixType};
use crate::target::Features;
use crate::types::{MmaShape, Scalar};
use fragments::{
    DOUBLES, FLOATS, INTEGERS, MFMA_C_16, MFMA_C_32, MFMA_C_F64, MMA_A_PAIRS, MMA_A_QUADS, MMA_A_SINGLE, MMA_B_PAIRS,
    MMA_B_QUADS, MMA_B_SINGLE, MMA_C, NONE, Neighbours, TF32, WARPGROUP_A_PAIRS, WARPGROUP_A_QUADS, WARPGROUP_A_SINGLE,
    WARPGROUP_C, WORDS, fragment, single, term,
};
use serde::Serialize;

pub use family::{FAMILIES, Family, Lines, MathUnit, Owner, Reads, UnitBlock};
pub use fragments::{Fragment, Term};

/// The generations of AMD's matrix units ([`Features::mfma`]) that have an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Generations {
    /// The first.
    pub first: u8,
    /// The last.
    pub last: u8,
}

/// One instruction.
///
/// ```
/// use tilewright_ir::{MathUnit, MatrixType, Mma};
///
/// let row = Mma::find(MathUnit::Mma, MatrixType::BF16).expect("an instruction");
/// assert_eq!((row.shape.to_string(), row.lanes()), ("16 x 8 x 16".to_string(), 32));
/// // 16 x 8 results of 32 lanes: 4 registers each.
/// assert_eq!(row.accumulator_registers(8), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Mma {
    /// Its family.
    pub unit: MathUnit,
    /// What it takes the factors in.
    pub input: MatrixType,
    /// Type of the accumulators.
    pub sum: Scalar,
    /// Its extents. A warpgroup's has any multiple of 8 columns up to 256; here are those of 8.
    pub shape: MmaShape,
    /// Most columns of one instruction: more than the shape's where it repeats them, as a warpgroup's does.
    #[serde(skip)]
    pub columns: u32,
    /// Left fragment.
    #[serde(skip)]
    pub a: Fragment,
    /// Right fragment; a warpgroup reads its right operand from shared memory.
    #[serde(skip)]
    pub b: Fragment,
    /// Accumulators. A warpgroup's go on in the same way for further columns.
    #[serde(skip)]
    pub c: Fragment,
    /// The generations of AMD's matrix units that have it.
    pub generations: Generations,
    /// Depth of a k-step, what fragments are read for at once: one instruction or several.
    pub step: u32,
    /// How long its multiply-adds take, in halves of those of 16-bit inputs.
    pub halves: u32,
}

impl Mma {
    /// Threads that run it together.
    pub const fn lanes(&self) -> u32 {
        self.unit.family().lanes
    }
    /// True if a target with the family has it, as far as its inputs and its generation say.
    pub const fn takes(&self, features: &Features) -> bool {
        self.of_generation(features.mfma) && features.float8.takes(self.input.storage())
    }
    /// True if this generation of AMD's matrix units has it, or other vendors have.
    pub const fn of_generation(&self, generation: u8) -> bool {
        !matches!(self.unit, MathUnit::Mfma) || self.generations.first <= generation && generation <= self.generations.last
    }
    /// Columns of one instruction in a micro tile of so many.
    pub const fn columns(&self, micro: u32) -> u32 {
        if micro < self.columns { micro } else { self.columns }
    }
    /// A warpgroup's instruction may have so many columns: 8 to 256 in steps of 8, of integers in steps of 16 from 32 on.
    pub const fn has_columns(&self, n: u32) -> bool {
        let step = if matches!(self.sum, Scalar::I32) && n > 32 { 16 } else { 8 };
        n >= 8 && n <= 256 && n.is_multiple_of(step)
    }
    /// Mantissa bits of the accumulator, if they are fewer than f32's; `None` otherwise.
    ///
    /// NVIDIA's units for 8-bit floats align all products of an instruction and the accumulator to the largest of them, and cut off lower
    /// bits. (`mma.sync` of sm_90 multiplies them as f16 and keeps more bits; no code relies on this.)
    pub fn fraction(&self) -> Option<u32> {
        let nvidia = matches!(self.unit, MathUnit::Mma | MathUnit::Warpgroup);
        (nvidia && self.input.storage().is_float8()).then_some(13)
    }
    /// Depth of a k-step; where factors are split in registers, which fills twice as many, that of one instruction.
    pub const fn k_step(&self, split: bool) -> u32 {
        if split { self.shape.k } else { self.step }
    }
    /// Registers per lane of the accumulators of this many columns.
    pub const fn accumulator_registers(&self, n: u32) -> u32 {
        self.c.registers * (n / self.shape.n)
    }
    /// A family's instructions for an input type, those with the shallowest k-steps first.
    pub fn all(unit: MathUnit, input: MatrixType) -> impl DoubleEndedIterator<Item = &'static Mma> + Clone {
        TABLE.iter().filter(move |m| m.unit == unit && m.input == input)
    }
    /// The first of them.
    pub fn find(unit: MathUnit, input: MatrixType) -> Option<&'static Mma> {
        Mma::all(unit, input).next()
    }
    /// True if it divides micro tiles of m x n, and its k-steps k.
    pub const fn divides(&self, m: u32, n: u32, k: u32) -> bool {
        m.is_multiple_of(self.shape.m) && n.is_multiple_of(self.shape.n) && k.is_multiple_of(self.step)
    }
    /// Depth of the shallowest k-steps of a family.
    pub fn least_step(unit: MathUnit) -> u32 {
        TABLE.iter().filter(|row| row.unit == unit).map(|row| row.step).min().unwrap_or(1)
    }
    /// A family's instruction of a shape.
    pub fn shaped(unit: MathUnit, input: MatrixType, shape: MmaShape) -> Option<&'static Mma> {
        TABLE.iter().find(|m| m.unit == unit && m.input == input && m.shape == shape)
    }
    /// The instruction of an operation, if it multiplies and the instruction exists.
    pub fn of(op: &MatrixOp) -> Option<&'static Mma> {
        match op {
            MatrixOp::Mma { input, shape, .. } => Mma::shaped(MathUnit::Mma, *input, *shape),
            MatrixOp::Warpgroup { input, .. } => Mma::find(MathUnit::Warpgroup, *input),
            MatrixOp::Mfma { input, shape, .. } => Mma::shaped(MathUnit::Mfma, *input, *shape),
            _ => None,
        }
    }
}

/// Names the input types and accumulator types of the instructions of unit `uni`.
pub fn inputs(uni: u32) -> String {
    let mut names: Vec<String> = Vec::new();
    for row in TABLE.iter().filter(|row| row.unit.family().number == uni) {
        let name = format!("{} with {} accumulators", row.input.name(), row.sum);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// Fragments of doubles fill twice the registers: half the depth of others' k-steps leaves room for the next step's.
const DOUBLE_STEP: u32 = 8;
/// Generations that have an instruction: all, or from one on.
const EVERY: Generations = since(0);
const fn since(first: u8) -> Generations {
    Generations { first, last: u8::MAX }
}
/// The generation of gfx942 alone.
const GFX942: Generations = Generations { first: 3, last: 3 };
/// Those before gfx942.
const EARLY: Generations = Generations { first: 1, last: 2 };

/// Types that one accumulator register of an instruction may have.
const fn accumulator_types(input: MatrixType) -> &'static [Scalar] {
    match input.sum() {
        Scalar::F64 => DOUBLES,
        Scalar::I32 => INTEGERS,
        _ => FLOATS,
    }
}

const fn fma(input: MatrixType) -> Mma {
    let one = single(accumulator_types(input));
    Mma {
        unit: MathUnit::Fma,
        input,
        sum: input.sum(),
        shape: MmaShape { m: 1, n: 1, k: 1 },
        columns: 1,
        a: one,
        b: one,
        c: one,
        generations: EVERY,
        step: 1,
        halves: 2,
    }
}
/// Four neighbours along k, of one thread.
const FOUR: &[Term] = &[term(K, 1, Element, 1, 0)];
const fn dot(input: MatrixType) -> Mma {
    let four = fragment(FOUR, 1, 4, WORDS);
    let shape = MmaShape { m: 1, n: 1, k: 4 };
    Mma { unit: MathUnit::Dot, shape, a: four, b: four, step: 4, ..fma(input) }
}
const fn wave(input: MatrixType) -> Mma {
    let held = match input {
        MatrixType::F64 => DOUBLES,
        MatrixType::TF32 => TF32,
        _ => WORDS,
    };
    let (a, b, k) = match input.bytes() {
        1 => (fragment(MMA_A_QUADS, 4, 4, held), fragment(MMA_B_QUADS, 2, 4, held), 32),
        2 => (fragment(MMA_A_PAIRS, 4, 2, held), fragment(MMA_B_PAIRS, 2, 2, held), 16),
        _ => (fragment(MMA_A_SINGLE, 4, 1, held), fragment(MMA_B_SINGLE, 2, 1, held), 8),
    };
    let (c, halves) = (fragment(MMA_C, 4, 1, accumulator_types(input)), if input.bytes() == 8 { 32 } else { input.bytes() });
    let step = match input.bytes() {
        8 => DOUBLE_STEP,
        1 => k,
        _ => 16,
    };
    let shape = MmaShape { m: 16, n: 8, k };
    Mma { unit: MathUnit::Mma, input, sum: input.sum(), shape, columns: 8, a, b, c, generations: EVERY, step, halves }
}
/// The instruction of doubles with twice the depth: half as many instructions read and write the accumulators.
const fn deep_double() -> Mma {
    let shallow = wave(MatrixType::F64);
    let MmaShape { m, n, k } = shallow.shape;
    let (a, b) = (fragment(MMA_A_SINGLE, 8, 1, DOUBLES), fragment(MMA_B_SINGLE, 4, 1, DOUBLES));
    Mma { shape: MmaShape { m, n, k: 2 * k }, a, b, step: 2 * DOUBLE_STEP, ..shallow }
}
const fn warpgroup(input: MatrixType) -> Mma {
    let (a, k) = match input.bytes() {
        1 => (fragment(WARPGROUP_A_QUADS, 4, 4, WORDS), 32),
        2 => (fragment(WARPGROUP_A_PAIRS, 4, 2, WORDS), 16),
        _ => (fragment(WARPGROUP_A_SINGLE, 4, 1, TF32), 8),
    };
    Mma {
        unit: MathUnit::Warpgroup,
        input,
        sum: input.sum(),
        shape: MmaShape { m: 64, n: 8, k },
        columns: 256,
        a,
        b: NONE,
        c: Fragment { held: accumulator_types(input), ..WARPGROUP_C },
        generations: EVERY,
        step: if k > 16 { k } else { 16 },
        halves: input.bytes(),
    }
}
const fn mfma(input: MatrixType, side: u32, k: u32, generations: Generations) -> Mma {
    // What a lane holds along k, and the same of a register.
    let operand = match (side, side * k / 64, input.bytes()) {
        (32, 4, 2) => Neighbours::<32, 4, 2>::held(WORDS),
        (_, 4, 2) => Neighbours::<16, 4, 2>::held(WORDS),
        (32, _, 2) => Neighbours::<32, 8, 2>::held(WORDS),
        (_, _, 2) => Neighbours::<16, 8, 2>::held(WORDS),
        (32, 4, 1) => Neighbours::<32, 4, 4>::held(WORDS),
        (_, 4, 1) => Neighbours::<16, 4, 4>::held(WORDS),
        (32, 8, 1) => Neighbours::<32, 8, 4>::held(WORDS),
        (_, 8, 1) => Neighbours::<16, 8, 4>::held(WORDS),
        (32, 32, 1) => Neighbours::<32, 16, 4>::twice(WORDS),
        (_, 32, 1) => Neighbours::<16, 16, 4>::twice(WORDS),
        (32, _, 1) => Neighbours::<32, 16, 4>::held(WORDS),
        (_, _, 1) => Neighbours::<16, 16, 4>::held(WORDS),
        (_, _, 8) => Neighbours::<16, 1, 1>::held(DOUBLES),
        (32, ..) => Neighbours::<32, 1, 1>::held(FLOATS),
        _ => Neighbours::<16, 1, 1>::held(FLOATS),
    };
    let (c, step) = match (input.bytes(), side) {
        (8, _) => (MFMA_C_F64, DOUBLE_STEP),
        (_, 32) => (MFMA_C_32, 16),
        _ => (MFMA_C_16, 16),
    };
    // Of 8 bits twice as many at a time, but on the first units, which take them as fast as those of 16.
    let halves = match input.bytes() {
        // Those of gfx950 that gfx942 has as well (LLVM's scheduling model).
        1 if !matches!(input.sum(), Scalar::I32) && !input.storage().is_fnuz() && side * k == 512 => 2,
        1 if generations.last > 2 => 1,
        1 | 2 => 2,
        _ => 16,
    };
    let c = Fragment { held: accumulator_types(input), ..c };
    let step = if k > step { k } else { step };
    Mma {
        unit: MathUnit::Mfma,
        input,
        sum: input.sum(),
        shape: MmaShape { m: side, n: side, k },
        columns: side,
        a: operand,
        b: operand,
        c,
        generations,
        step,
        halves,
    }
}

/// All instructions.
pub const TABLE: &[Mma] = &[
    fma(MatrixType::F16),
    fma(MatrixType::BF16),
    fma(MatrixType::F32),
    fma(MatrixType::F64),
    fma(MatrixType::E4M3),
    fma(MatrixType::E5M2),
    fma(MatrixType::E4M3Fnuz),
    fma(MatrixType::E5M2Fnuz),
    fma(MatrixType::I8),
    fma(MatrixType::U8),
    dot(MatrixType::I8),
    dot(MatrixType::U8),
    wave(MatrixType::F16),
    wave(MatrixType::BF16),
    wave(MatrixType::TF32),
    wave(MatrixType::F64),
    deep_double(),
    wave(MatrixType::E4M3),
    wave(MatrixType::E5M2),
    wave(MatrixType::E4M3xE5M2),
    wave(MatrixType::E5M2xE4M3),
    wave(MatrixType::I8),
    wave(MatrixType::U8),
    wave(MatrixType::I8xU8),
    wave(MatrixType::U8xI8),
    warpgroup(MatrixType::F16),
    warpgroup(MatrixType::BF16),
    warpgroup(MatrixType::TF32),
    warpgroup(MatrixType::E4M3),
    warpgroup(MatrixType::E5M2),
    warpgroup(MatrixType::E4M3xE5M2),
    warpgroup(MatrixType::E5M2xE4M3),
    warpgroup(MatrixType::I8),
    warpgroup(MatrixType::U8),
    warpgroup(MatrixType::I8xU8),
    warpgroup(MatrixType::U8xI8),
    mfma(MatrixType::F16, 32, 8, EVERY),
    mfma(MatrixType::F16, 16, 16, EVERY),
    mfma(MatrixType::BF16, 32, 8, EVERY),
    mfma(MatrixType::BF16, 16, 16, EVERY),
    mfma(MatrixType::F32, 32, 2, EVERY),
    mfma(MatrixType::F32, 16, 4, EVERY),
    mfma(MatrixType::F64, 16, 4, EVERY),
    mfma(MatrixType::F16, 32, 16, since(4)),
    mfma(MatrixType::F16, 16, 32, since(4)),
    mfma(MatrixType::BF16, 32, 16, since(4)),
    mfma(MatrixType::BF16, 16, 32, since(4)),
    mfma(MatrixType::I8, 32, 8, EARLY),
    mfma(MatrixType::I8, 16, 16, EARLY),
    mfma(MatrixType::I8, 32, 16, since(3)),
    mfma(MatrixType::I8, 16, 32, since(3)),
    mfma(MatrixType::I8, 32, 32, since(4)),
    mfma(MatrixType::I8, 16, 64, since(4)),
    mfma(MatrixType::E4M3Fnuz, 32, 16, GFX942),
    mfma(MatrixType::E4M3Fnuz, 16, 32, GFX942),
    mfma(MatrixType::E5M2Fnuz, 32, 16, GFX942),
    mfma(MatrixType::E5M2Fnuz, 16, 32, GFX942),
    mfma(MatrixType::E4M3xE5M2Fnuz, 32, 16, GFX942),
    mfma(MatrixType::E4M3xE5M2Fnuz, 16, 32, GFX942),
    mfma(MatrixType::E5M2xE4M3Fnuz, 32, 16, GFX942),
    mfma(MatrixType::E5M2xE4M3Fnuz, 16, 32, GFX942),
    mfma(MatrixType::E4M3, 32, 16, since(4)),
    mfma(MatrixType::E4M3, 16, 32, since(4)),
    mfma(MatrixType::E4M3, 32, 64, since(4)),
    mfma(MatrixType::E4M3, 16, 128, since(4)),
    mfma(MatrixType::E5M2, 32, 16, since(4)),
    mfma(MatrixType::E5M2, 16, 32, since(4)),
    mfma(MatrixType::E5M2, 32, 64, since(4)),
    mfma(MatrixType::E5M2, 16, 128, since(4)),
    mfma(MatrixType::E4M3xE5M2, 32, 16, since(4)),
    mfma(MatrixType::E4M3xE5M2, 16, 32, since(4)),
    mfma(MatrixType::E4M3xE5M2, 32, 64, since(4)),
    mfma(MatrixType::E4M3xE5M2, 16, 128, since(4)),
    mfma(MatrixType::E5M2xE4M3, 32, 16, since(4)),
    mfma(MatrixType::E5M2xE4M3, 16, 32, since(4)),
    mfma(MatrixType::E5M2xE4M3, 32, 64, since(4)),
    mfma(MatrixType::E5M2xE4M3, 16, 128, since(4)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Axis::{Col, Lane, Register, Row};
    use std::collections::HashSet;

    #[test]
    fn families_stand_at_their_number() {
        for f in &FAMILIES {
            assert_eq!((f.unit.family().number, Family::numbered(f.number).map(|f| f.unit)), (f.number, Some(f.unit)));
        }
        assert!(Family::numbered(4).is_none());
        assert_eq!((MathUnit::Dot.family().unit, MathUnit::Dot.family().number), (MathUnit::Dot, 0));
    }

    /// Every element of every matrix of every instruction is held once, and the layout of a fragment says the same and leads back.
    #[test]
    fn fragments_hold_each_element_once() {
        for m in TABLE {
            let (MmaShape { m: rows, n: columns, k: depth }, lanes) = (m.shape, m.lanes());
            let fragments =
                [(&m.a, (Row, rows), (K, depth)), (&m.b, (Row, columns), (K, depth)), (&m.c, (Row, rows), (Col, columns))];
            for (f, (x, height), (y, width)) in fragments.into_iter().filter(|(f, ..)| f.registers > 0) {
                let layout = f.layout(lanes, f.registers);
                let back = layout.inverse();
                let mut seen = HashSet::new();
                for lane in 0..lanes {
                    for register in 0..f.registers {
                        for element in 0..f.elements {
                            let place = (f.at(x, lane, register, element), f.at(y, lane, register, element));
                            assert!(place.0 < height && place.1 < width && seen.insert(place), "{place:?} of {m:?}");
                            let point = [(Lane, lane.into()), (Register, register.into()), (Element, element.into())];
                            assert_eq!((layout.at(x, &point), layout.at(y, &point)), (place.0.into(), place.1.into()));
                            let at = [(x, place.0.into()), (y, place.1.into())];
                            let found = back.as_ref().map(|b| point.map(|(axis, _)| (axis, b.at(axis, &at))));
                            assert_eq!(found, Some(point), "{m:?}");
                        }
                    }
                }
                assert_eq!(seen.len() as u32, height * width, "{m:?}");
            }
        }
    }

    /// A warpgroup's accumulators of further columns go on where those of the first eight end.
    #[test]
    fn further_columns_follow() {
        let Some(m) = Mma::find(MathUnit::Warpgroup, MatrixType::F16) else { panic!("no instruction") };
        for register in 0..m.accumulator_registers(64) {
            let (first, turn) = (register % 4, register / 4);
            assert_eq!(m.c.at(Col, 77, register, 0), m.c.at(Col, 77, first, 0) + 8 * turn);
            assert_eq!(m.c.at(Row, 77, register, 0), m.c.at(Row, 77, first, 0));
        }
    }
}
