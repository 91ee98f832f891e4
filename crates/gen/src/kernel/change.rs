//! How the operands of complex products change between memory and shared memory, or a copy in workspace. Elements change their
//! signs, or are multiplied by a complex alpha, as their tensor's [`Signs`] say.

use super::arguments::Arguments;
use crate::program::Binding;
use tilewright_ir::affine::{Affine, Coord, Part, affine};
use tilewright_ir::{Builder, ExprId, Scalar, UnaryOp};
use tilewright_problem::contraction::{Signs, Tensor};
use tilewright_problem::view::{COL, ROW};

/// How elements change.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    signs: Signs,
    /// Of a complex alpha: its real and imaginary part, and where the other part of an element's complex number changes its sign.
    turned: Option<([ExprId; 2], [[bool; 2]; 2])>,
}

/// How the element at one point changes.
pub(crate) struct Changed {
    /// Bit 0: the element changes its sign. Bit 1: the other part of its complex number does.
    pub bits: ExprId,
    /// Distance in memory from the element to that other part, where it is needed.
    pub other: Option<ExprId>,
}

impl Change {
    /// The change of a tensor's elements, if they have one, with the kernel arguments it needs.
    pub fn declare(b: &mut Builder, args: &mut Arguments, x: &Tensor) -> Option<Change> {
        let signs = x.signs?;
        let turned = signs.other.map(|other| {
            let re = args.scalar(b, "alpha", x.scalar, "factor of the product, its real part", Binding::Alpha);
            ([re, args.scalar(b, "alpha_im", x.scalar, "and its imaginary part", Binding::AlphaIm)], other)
        });
        Some(Change { signs, turned })
    }

    /// Whether both parts of a complex number are read for each element.
    pub const fn reads_other(&self) -> bool {
        self.turned.is_some()
    }

    /// What happens to the element at a point.
    pub fn at(&self, b: &mut Builder, at: &[Coord; 3], coord: Scalar) -> Changed {
        let odd = |axis| Affine::axis(axis).digit_of(1, Some(2));
        let index = affine(b, &odd(COL).plus(&odd(ROW), 2), at, Part::Whole, coord);
        let places = |table: [[bool; 2]; 2]| table.concat().into_iter().map(i64::from).collect::<Vec<i64>>();
        let (negative, each) = match self.turned {
            None => (places(self.signs.negative), 1),
            Some((_, other)) => {
                (places(self.signs.negative).iter().zip(places(other)).map(|(own, other)| own | other << 1).collect(), 2)
            }
        };
        let table = (0..).zip(negative).map(|(i, bits)| bits << (i * each)).sum();
        let table = b.int(table, coord);
        if each == 1 {
            let bit = b.value((table >> index) & 1);
            return Changed { bits: b.value(bit.cast(Scalar::I32)), other: None };
        }
        let bits = b.value((table >> (index * 2)) & 3);
        // The imaginary part stands where one of row and term is odd: the real one is before it.
        let imaginary = b.int(0b0110, coord);
        let other = b.value(1 - ((imaginary >> index) & 1) * 2);
        Changed { bits: b.value(bits.cast(Scalar::I32)), other: Some(other) }
    }

    /// The changed element, from its [`Changed::bits`], its value in memory and, with a complex alpha, the other part's.
    pub fn apply(&self, b: &mut Builder, bits: ExprId, own: ExprId, other: Option<ExprId>) -> ExprId {
        let (Some(([re, im], _)), Some(other)) = (self.turned, other) else { return signed(b, own, bits) };
        let (of_own, of_other) = (b.value(bits & 1), b.value(bits >> 1));
        let (own, other) = (signed(b, own, of_own), signed(b, other, of_other));
        b.bind("turned", re.fma(own, im * other))
    }
}

/// A value with its sign changed where this is 1.
fn signed(b: &mut Builder, value: ExprId, negative: ExprId) -> ExprId {
    b.bind("factor", negative.ge(1).select(value.unary(UnaryOp::Neg), value))
}
