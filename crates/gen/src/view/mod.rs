//! Views: where an element lives and whether it exists.
//!
//! A [`View`] is a strided tensor plus a chain of named coordinate transforms. Its normal form is an [`Access`]: an
//! affine offset over coordinates and digits of coordinates, and the ranges that make it valid. One normal form serves
//! the evaluator, the index expressions in kernels, the vector-width analysis and the box recogniser.

mod analysis;
mod materialise;
pub(crate) mod simplify;
mod transform;

pub use analysis::AffineBox;
pub use materialise::{WORKSPACE_ALIGN, copy_leading_dimension, materialised};
pub use transform::{Chain, Dim, Transform, ViewBuilder, ViewError};

use serde::{Deserialize, Serialize};

/// First upper coordinate: batch.
pub const G: usize = 0;
/// Second upper coordinate: m for A and C, n for B.
pub const ROW: usize = 1;
/// Third upper coordinate: k for A and B, n for C.
pub const COL: usize = 2;

/// Something an affine form multiplies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Atom {
    /// Upper coordinate [`G`], [`ROW`] or [`COL`].
    Axis(usize),
    /// `(of / div) % modulo`; `of` is never negative where the access is valid. Without `modulo` there is no remainder.
    Digit {
        /// What is divided.
        of: Box<Affine>,
        /// Positive divisor.
        div: i64,
        /// Positive modulus.
        modulo: Option<i64>,
    },
}

/// `constant + sum of coefficient * atom`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Affine {
    /// Terms, sorted by atom, no zero coefficients.
    pub terms: Vec<(Atom, i64)>,
    /// Constant.
    pub constant: i64,
}

/// A range condition `low <= value < high`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bound {
    /// What is compared.
    pub value: Affine,
    /// Inclusive.
    pub low: i64,
    /// Exclusive.
    pub high: i64,
}

/// A view's normal form: offset in elements, and the conditions under which the element exists (it reads as zero
/// otherwise).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    /// Offset from the tensor's element 0.
    pub offset: Affine,
    /// All must hold.
    pub bounds: Vec<Bound>,
}

/// A tensor seen through coordinates (g, row, col).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Extents of the upper coordinates (g, row, col).
    pub extent: [u64; 3],
    /// Normal form.
    pub access: Access,
}

impl View {
    /// The same elements with row and column exchanged.
    pub fn transposed(&self) -> View {
        let [g, row, col] = self.extent;
        let bounds = self.access.bounds.iter().map(|b| Bound { value: b.value.transposed(), ..b.clone() }).collect();
        View { extent: [g, col, row], access: Access { offset: self.access.offset.transposed(), bounds } }
    }
}

impl Affine {
    /// The form with row and column exchanged.
    fn transposed(&self) -> Affine {
        let turn = |axis: usize| match axis {
            ROW => COL,
            COL => ROW,
            other => other,
        };
        let atom = |a: &Atom| match a {
            Atom::Axis(axis) => Atom::Axis(turn(*axis)),
            Atom::Digit { of, div, modulo } => Atom::Digit { of: Box::new(of.transposed()), div: *div, modulo: *modulo },
        };
        let mut terms: Vec<(Atom, i64)> = self.terms.iter().map(|(a, c)| (atom(a), *c)).collect();
        terms.sort();
        Affine { terms, constant: self.constant }
    }
    /// A constant.
    pub fn constant(value: i64) -> Affine {
        Affine { terms: Vec::new(), constant: value }
    }
    /// One upper coordinate.
    pub fn axis(axis: usize) -> Affine {
        Affine { terms: vec![(Atom::Axis(axis), 1)], constant: 0 }
    }
    /// This plus `factor` times another.
    pub fn plus(&self, other: &Affine, factor: i64) -> Affine {
        let mut sum = std::collections::BTreeMap::new();
        for (atom, c) in &self.terms {
            *sum.entry(atom.clone()).or_insert(0) += c;
        }
        for (atom, c) in &other.terms {
            *sum.entry(atom.clone()).or_insert(0) += c * factor;
        }
        Affine { terms: sum.into_iter().filter(|(_, c)| *c != 0).collect(), constant: self.constant + factor * other.constant }
    }
    /// The value at a point.
    pub fn at(&self, point: [i64; 3]) -> i64 {
        self.terms.iter().fold(self.constant, |sum, (atom, c)| sum + c * atom.at(point))
    }
    /// True if the axis takes part.
    pub fn uses(&self, axis: usize) -> bool {
        self.terms.iter().any(|(a, _)| a.uses(axis))
    }
}

impl Atom {
    /// The value at a point.
    pub fn at(&self, point: [i64; 3]) -> i64 {
        match self {
            Atom::Axis(axis) => point[*axis],
            Atom::Digit { of, div, modulo } => {
                let q = of.at(point) / div;
                modulo.map_or(q, |m| q % m)
            }
        }
    }
    /// True if the axis takes part.
    pub fn uses(&self, axis: usize) -> bool {
        match self {
            Atom::Axis(a) => *a == axis,
            Atom::Digit { of, .. } => of.uses(axis),
        }
    }
}

impl Access {
    /// Offset of an element, `None` where it does not exist.
    pub fn at(&self, point: [i64; 3]) -> Option<i64> {
        let valid = self.bounds.iter().all(|b| (b.low..b.high).contains(&b.value.at(point)));
        valid.then(|| self.offset.at(point))
    }
}
