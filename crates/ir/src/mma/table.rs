//! The rows: where each instruction's fragments lie, what it takes, and which processors have it.

use super::{Fragment, MathUnit, Mma, Term};
use crate::layout::Axis;
use crate::matrix::MatrixType;
use crate::types::Scalar;
use Axis::{Col, Element, K, Lane, Register, Row};

const fn term(to: Axis, times: u32, from: Axis, div: u32, modulo: u32) -> Term {
    Term { to, times, from, div, modulo }
}
const fn fragment(terms: &'static [Term], registers: u32, elements: u32, held: &'static [Scalar]) -> Fragment {
    Fragment { terms, registers, elements, held }
}

/// 32-bit registers that hold several elements, or bits as they are.
const WORDS: &[Scalar] = &[Scalar::U32];
const FLOATS: &[Scalar] = &[Scalar::F32];
const DOUBLES: &[Scalar] = &[Scalar::F64];
const INTEGERS: &[Scalar] = &[Scalar::I32];
/// TF32 fragments may be floats as well, whose lower 13 bits the unit drops.
const TF32: &[Scalar] = &[Scalar::U32, Scalar::F32];
/// Fragments of doubles fill twice the registers: half the depth of others' k-steps leaves room for the next step's.
const DOUBLE_STEP: u32 = 8;
/// Of an operand in shared memory.
const NONE: Fragment = fragment(&[], 0, 1, &[]);
/// Of a single thread: one element of everything.
const fn single(held: &'static [Scalar]) -> Fragment {
    fragment(&[], 1, 1, held)
}

// mma.sync: four lanes along k (or n) for each of eight rows (or columns).
const MMA_A_PAIRS: &[Term] = &[
    term(Row, 1, Lane, 4, 0),
    term(Row, 8, Register, 1, 2),
    term(K, 2, Lane, 1, 4),
    term(K, 1, Element, 1, 0),
    term(K, 8, Register, 2, 0),
];
const MMA_A_SINGLE: &[Term] =
    &[term(Row, 1, Lane, 4, 0), term(Row, 8, Register, 1, 2), term(K, 1, Lane, 1, 4), term(K, 4, Register, 2, 0)];
const MMA_B_PAIRS: &[Term] =
    &[term(Row, 1, Lane, 4, 0), term(K, 2, Lane, 1, 4), term(K, 1, Element, 1, 0), term(K, 8, Register, 1, 0)];
const MMA_B_SINGLE: &[Term] = &[term(Row, 1, Lane, 4, 0), term(K, 1, Lane, 1, 4), term(K, 4, Register, 1, 0)];
const MMA_C: &[Term] =
    &[term(Row, 1, Lane, 4, 0), term(Row, 8, Register, 2, 0), term(Col, 2, Lane, 1, 4), term(Col, 1, Register, 1, 2)];

// Of four elements to a register the same with all k twice: eight rows of 16 bytes as of 16-bit elements.
const MMA_A_QUADS: &[Term] = &[
    term(Row, 1, Lane, 4, 0),
    term(Row, 8, Register, 1, 2),
    term(K, 4, Lane, 1, 4),
    term(K, 1, Element, 1, 0),
    term(K, 16, Register, 2, 0),
];
const MMA_B_QUADS: &[Term] =
    &[term(Row, 1, Lane, 4, 0), term(K, 4, Lane, 1, 4), term(K, 1, Element, 1, 0), term(K, 16, Register, 1, 0)];

// Warpgroups: the four waves have 16 rows each.
const WARPGROUP_A_PAIRS: &[Term] = &[
    term(Row, 16, Lane, 32, 0),
    term(Row, 1, Lane, 4, 8),
    term(Row, 8, Register, 1, 2),
    term(K, 2, Lane, 1, 4),
    term(K, 1, Element, 1, 0),
    term(K, 8, Register, 2, 0),
];
const WARPGROUP_A_SINGLE: &[Term] = &[
    term(Row, 16, Lane, 32, 0),
    term(Row, 1, Lane, 4, 8),
    term(Row, 8, Register, 1, 2),
    term(K, 1, Lane, 1, 4),
    term(K, 4, Register, 2, 0),
];
const WARPGROUP_A_QUADS: &[Term] = &[
    term(Row, 16, Lane, 32, 0),
    term(Row, 1, Lane, 4, 8),
    term(Row, 8, Register, 1, 2),
    term(K, 4, Lane, 1, 4),
    term(K, 1, Element, 1, 0),
    term(K, 16, Register, 2, 0),
];
const WARPGROUP_C: Fragment = fragment(
    &[
        term(Row, 16, Lane, 32, 0),
        term(Row, 1, Lane, 4, 8),
        term(Row, 8, Register, 2, 2),
        term(Col, 8, Register, 4, 0),
        term(Col, 2, Lane, 1, 4),
        term(Col, 1, Register, 1, 2),
    ],
    4,
    1,
    FLOATS,
);

/// Operands of MFMA: a lane holds so many neighbours along k of one row, some to a register; the lanes behind those of all rows hold those
/// further along k.
struct Neighbours<const ROWS: u32, const HELD: u32, const WORD: u32>;
impl<const ROWS: u32, const HELD: u32, const WORD: u32> Neighbours<ROWS, HELD, WORD> {
    const TERMS: &'static [Term] =
        &[term(Row, 1, Lane, 1, ROWS), term(K, HELD, Lane, ROWS, 0), term(K, WORD, Register, 1, 0), term(K, 1, Element, 1, 0)];
    /// And as many further on, behind what all lanes hold of them.
    const TWICE: &'static [Term] = &[
        term(Row, 1, Lane, 1, ROWS),
        term(K, HELD, Lane, ROWS, 0),
        term(K, WORD, Register, 1, HELD / WORD),
        term(K, HELD * 64 / ROWS, Register, HELD / WORD, 0),
        term(K, 1, Element, 1, 0),
    ];
    const fn held(scalars: &'static [Scalar]) -> Fragment {
        fragment(Self::TERMS, HELD / WORD, WORD, scalars)
    }
    const fn twice(scalars: &'static [Scalar]) -> Fragment {
        fragment(Self::TWICE, 2 * HELD / WORD, WORD, scalars)
    }
}
const MFMA_C_32: Fragment = fragment(
    &[term(Row, 8, Register, 4, 0), term(Row, 4, Lane, 32, 0), term(Row, 1, Register, 1, 4), term(Col, 1, Lane, 1, 32)],
    16,
    1,
    FLOATS,
);
/// Of doubles a lane's registers are four rows apart.
const MFMA_C_F64: Fragment =
    fragment(&[term(Row, 4, Register, 1, 0), term(Row, 1, Lane, 16, 0), term(Col, 1, Lane, 1, 16)], 4, 1, DOUBLES);
const MFMA_C_16: Fragment =
    fragment(&[term(Row, 4, Lane, 16, 0), term(Row, 1, Register, 1, 0), term(Col, 1, Lane, 1, 16)], 4, 1, FLOATS);

/// Generations that have an instruction: all, or from one on.
const EVERY: (u8, u8) = (0, u8::MAX);
const fn since(generation: u8) -> (u8, u8) {
    (generation, u8::MAX)
}

/// What registers of an instruction's sums hold.
const fn sums(input: MatrixType) -> &'static [Scalar] {
    match input.sum() {
        Scalar::F64 => DOUBLES,
        Scalar::I32 => INTEGERS,
        _ => FLOATS,
    }
}

const fn fma(input: MatrixType) -> Mma {
    let one = single(sums(input));
    Mma {
        unit: MathUnit::Fma,
        input,
        sum: input.sum(),
        shape: (1, 1, 1),
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
    Mma { unit: MathUnit::Dot, shape: (1, 1, 4), a: four, b: four, step: 4, ..fma(input) }
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
    let (c, halves) = (fragment(MMA_C, 4, 1, sums(input)), if input.bytes() == 8 { 32 } else { input.bytes() });
    let step = match input.bytes() {
        8 => DOUBLE_STEP,
        1 => k,
        _ => 16,
    };
    Mma { unit: MathUnit::Mma, input, sum: input.sum(), shape: (16, 8, k), a, b, c, generations: EVERY, step, halves }
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
        shape: (64, 8, k),
        a,
        b: NONE,
        c: Fragment { held: sums(input), ..WARPGROUP_C },
        generations: EVERY,
        step: if k > 16 { k } else { 16 },
        halves: input.bytes(),
    }
}
const fn mfma(input: MatrixType, side: u32, k: u32, generations: (u8, u8)) -> Mma {
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
        1 if generations.1 > 2 => 1,
        1 | 2 => 2,
        _ => 16,
    };
    let c = Fragment { held: sums(input), ..c };
    let step = if k > step { k } else { step };
    Mma {
        unit: MathUnit::Mfma,
        input,
        sum: input.sum(),
        shape: (side, side, k),
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
    mfma(MatrixType::I8, 32, 8, (1, 2)),
    mfma(MatrixType::I8, 16, 16, (1, 2)),
    mfma(MatrixType::I8, 32, 16, since(3)),
    mfma(MatrixType::I8, 16, 32, since(3)),
    mfma(MatrixType::I8, 32, 32, since(4)),
    mfma(MatrixType::I8, 16, 64, since(4)),
    mfma(MatrixType::E4M3Fnuz, 32, 16, (3, 3)),
    mfma(MatrixType::E4M3Fnuz, 16, 32, (3, 3)),
    mfma(MatrixType::E5M2Fnuz, 32, 16, (3, 3)),
    mfma(MatrixType::E5M2Fnuz, 16, 32, (3, 3)),
    mfma(MatrixType::E4M3xE5M2Fnuz, 32, 16, (3, 3)),
    mfma(MatrixType::E4M3xE5M2Fnuz, 16, 32, (3, 3)),
    mfma(MatrixType::E5M2xE4M3Fnuz, 32, 16, (3, 3)),
    mfma(MatrixType::E5M2xE4M3Fnuz, 16, 32, (3, 3)),
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
