//! Where the elements of an instruction's operands and accumulators are: which lane, register and place in it holds which row, column
//! and k.

use crate::layout::{Axis, Layout};
use crate::types::Scalar;
use Axis::{Col, Element, K, Lane, Register, Row};

/// A contribution to a coordinate of an element: `times * ((from / div) % modulo)`; without remainder where `modulo` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    to: Axis,
    times: u32,
    from: Axis,
    div: u32,
    modulo: u32,
}

/// Where the elements of a matrix that lanes hold in registers are. Coordinates are sums of digits of lane, register and element
/// within the register. Each digit is of one of the three, so that their contributions can be separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    pub(super) terms: &'static [Term],
    /// Registers per lane.
    pub registers: u32,
    /// Elements of a register: 2 or 4 where 32 bits hold as many, the first in the lowest.
    pub elements: u32,
    /// What its registers may hold.
    pub held: &'static [Scalar],
}

impl Fragment {
    /// A coordinate of an element: [`Axis::Row`] (of B: its column), [`Axis::K`], or of accumulators [`Axis::Row`] and [`Axis::Col`].
    pub const fn at(&self, to: Axis, lane: u32, register: u32, element: u32) -> u32 {
        let (mut sum, mut i) = (0, 0);
        while i < self.terms.len() {
            let t = self.terms[i];
            let from = match t.from {
                Axis::Lane => lane,
                Axis::Register => register,
                _ => element,
            };
            if t.to as u32 == to as u32 {
                let digit = from / t.div;
                sum += t.times * if t.modulo == 0 { digit } else { digit % t.modulo };
            }
            i += 1;
        }
        sum
    }
    /// The same as a layout of (lane, register, element) for so many lanes and registers.
    pub fn layout(&self, lanes: u32, registers: u32) -> Layout {
        use crate::affine::Affine;
        let from = [(Axis::Lane, lanes.into()), (Axis::Register, registers.into()), (Axis::Element, self.elements.into())];
        let form = |to: Axis| {
            self.terms.iter().filter(|t| t.to == to).fold(Affine::default(), |sum, t| {
                let axis = from.iter().position(|(a, _)| *a == t.from).unwrap_or(0);
                let digit = Affine::axis(axis).digit_of(t.div.into(), (t.modulo > 0).then(|| t.modulo.into()));
                sum.plus(&digit, t.times.into())
            })
        };
        let results: Vec<Axis> =
            [Axis::Row, Axis::Col, Axis::K].into_iter().filter(|a| self.terms.iter().any(|t| t.to == *a)).collect();
        Layout::new(&from, &results.into_iter().map(|to| (to, form(to))).collect::<Vec<_>>())
    }
}

pub(super) const fn term(to: Axis, times: u32, from: Axis, div: u32, modulo: u32) -> Term {
    Term { to, times, from, div, modulo }
}
pub(super) const fn fragment(terms: &'static [Term], registers: u32, elements: u32, held: &'static [Scalar]) -> Fragment {
    Fragment { terms, registers, elements, held }
}

/// 32-bit registers that hold several elements, or bits as they are.
pub(super) const WORDS: &[Scalar] = &[Scalar::U32];
pub(super) const FLOATS: &[Scalar] = &[Scalar::F32];
pub(super) const DOUBLES: &[Scalar] = &[Scalar::F64];
pub(super) const INTEGERS: &[Scalar] = &[Scalar::I32];
/// TF32 fragments may be floats as well, whose lower 13 bits the unit drops.
pub(super) const TF32: &[Scalar] = &[Scalar::U32, Scalar::F32];
/// Of an operand in shared memory.
pub(super) const NONE: Fragment = fragment(&[], 0, 1, &[]);
/// Of a single thread: one element of everything.
pub(super) const fn single(held: &'static [Scalar]) -> Fragment {
    fragment(&[], 1, 1, held)
}

// mma.sync: four lanes along k (or n) for each of eight rows (or columns).
pub(super) const MMA_A_PAIRS: &[Term] = &[
    term(Row, 1, Lane, 4, 0),
    term(Row, 8, Register, 1, 2),
    term(K, 2, Lane, 1, 4),
    term(K, 1, Element, 1, 0),
    term(K, 8, Register, 2, 0),
];
pub(super) const MMA_A_SINGLE: &[Term] =
    &[term(Row, 1, Lane, 4, 0), term(Row, 8, Register, 1, 2), term(K, 1, Lane, 1, 4), term(K, 4, Register, 2, 0)];
pub(super) const MMA_B_PAIRS: &[Term] =
    &[term(Row, 1, Lane, 4, 0), term(K, 2, Lane, 1, 4), term(K, 1, Element, 1, 0), term(K, 8, Register, 1, 0)];
pub(super) const MMA_B_SINGLE: &[Term] = &[term(Row, 1, Lane, 4, 0), term(K, 1, Lane, 1, 4), term(K, 4, Register, 1, 0)];
pub(super) const MMA_C: &[Term] =
    &[term(Row, 1, Lane, 4, 0), term(Row, 8, Register, 2, 0), term(Col, 2, Lane, 1, 4), term(Col, 1, Register, 1, 2)];

// Of four elements to a register the same with all k twice: eight rows of 16 bytes as of 16-bit elements.
pub(super) const MMA_A_QUADS: &[Term] = &[
    term(Row, 1, Lane, 4, 0),
    term(Row, 8, Register, 1, 2),
    term(K, 4, Lane, 1, 4),
    term(K, 1, Element, 1, 0),
    term(K, 16, Register, 2, 0),
];
pub(super) const MMA_B_QUADS: &[Term] =
    &[term(Row, 1, Lane, 4, 0), term(K, 4, Lane, 1, 4), term(K, 1, Element, 1, 0), term(K, 16, Register, 1, 0)];

// Warpgroups: the four waves have 16 rows each.
pub(super) const WARPGROUP_A_PAIRS: &[Term] = &[
    term(Row, 16, Lane, 32, 0),
    term(Row, 1, Lane, 4, 8),
    term(Row, 8, Register, 1, 2),
    term(K, 2, Lane, 1, 4),
    term(K, 1, Element, 1, 0),
    term(K, 8, Register, 2, 0),
];
pub(super) const WARPGROUP_A_SINGLE: &[Term] = &[
    term(Row, 16, Lane, 32, 0),
    term(Row, 1, Lane, 4, 8),
    term(Row, 8, Register, 1, 2),
    term(K, 1, Lane, 1, 4),
    term(K, 4, Register, 2, 0),
];
pub(super) const WARPGROUP_A_QUADS: &[Term] = &[
    term(Row, 16, Lane, 32, 0),
    term(Row, 1, Lane, 4, 8),
    term(Row, 8, Register, 1, 2),
    term(K, 4, Lane, 1, 4),
    term(K, 1, Element, 1, 0),
    term(K, 16, Register, 2, 0),
];
pub(super) const WARPGROUP_C: Fragment = fragment(
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

/// Operands of MFMA: a lane holds `HELD` neighbours along k of one row, `WORD` in a register. The first `ROWS` lanes hold the first k of
/// all rows, and the next lanes hold the following k.
pub(super) struct Neighbours<const ROWS: u32, const HELD: u32, const WORD: u32>;
impl<const ROWS: u32, const HELD: u32, const WORD: u32> Neighbours<ROWS, HELD, WORD> {
    pub(super) const TERMS: &'static [Term] =
        &[term(Row, 1, Lane, 1, ROWS), term(K, HELD, Lane, ROWS, 0), term(K, WORD, Register, 1, 0), term(K, 1, Element, 1, 0)];
    /// The same, and as many neighbours again after the elements of all lanes.
    pub(super) const TWICE: &'static [Term] = &[
        term(Row, 1, Lane, 1, ROWS),
        term(K, HELD, Lane, ROWS, 0),
        term(K, WORD, Register, 1, HELD / WORD),
        term(K, HELD * 64 / ROWS, Register, HELD / WORD, 0),
        term(K, 1, Element, 1, 0),
    ];
    pub(super) const fn held(scalars: &'static [Scalar]) -> Fragment {
        fragment(Self::TERMS, HELD / WORD, WORD, scalars)
    }
    pub(super) const fn twice(scalars: &'static [Scalar]) -> Fragment {
        fragment(Self::TWICE, 2 * HELD / WORD, WORD, scalars)
    }
}
pub(super) const MFMA_C_32: Fragment = fragment(
    &[term(Row, 8, Register, 4, 0), term(Row, 4, Lane, 32, 0), term(Row, 1, Register, 1, 4), term(Col, 1, Lane, 1, 32)],
    16,
    1,
    FLOATS,
);
/// Of doubles a lane's registers are four rows apart.
pub(super) const MFMA_C_F64: Fragment =
    fragment(&[term(Row, 4, Register, 1, 0), term(Row, 1, Lane, 16, 0), term(Col, 1, Lane, 1, 16)], 4, 1, DOUBLES);
pub(super) const MFMA_C_16: Fragment =
    fragment(&[term(Row, 4, Lane, 16, 0), term(Row, 1, Register, 1, 0), term(Col, 1, Lane, 1, 16)], 4, 1, FLOATS);
