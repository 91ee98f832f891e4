//! Affine forms over digits of coordinates: the arithmetic of every index.
//!
//! A form is `constant + sum of coefficient * atom`, an atom a coordinate or a digit `(form / div) % modulo`. Coordinates are
//! numbered. The owner of the form (a view of global memory, a layout of shared memory or registers) defines the meaning of the numbers.
//! Functions that need the ranges of coordinates take their extents.
//!
//! All rules about digits need non-negative dividends. For negative dividends the value of a form is unspecified.

mod emit;
mod group;
mod simplify;

pub use emit::{Coord, Part, affine, in_range};
pub use group::Group;
pub use simplify::gcd;

use serde::{Deserialize, Serialize};

/// Something an affine form multiplies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Atom {
    /// A coordinate, by its number.
    Axis(usize),
    /// `(of / div) % modulo`; `of` is never negative where the form is valid. Without `modulo` there is no remainder.
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

impl Affine {
    /// A constant.
    pub fn constant(value: i64) -> Affine {
        Affine { terms: Vec::new(), constant: value }
    }
    /// One coordinate.
    pub fn axis(axis: usize) -> Affine {
        Affine { terms: vec![(Atom::Axis(axis), 1)], constant: 0 }
    }
    /// `(self / div) % modulo` as it is written; [`Affine::digit`] simplifies.
    pub fn digit_of(&self, div: i64, modulo: Option<i64>) -> Affine {
        if div == 1 && modulo.is_none() {
            return self.clone();
        }
        Affine { terms: vec![(Atom::Digit { of: Box::new(self.clone()), div, modulo }, 1)], constant: 0 }
    }
    /// This plus `factor` times another.
    pub fn plus(&self, other: &Affine, factor: i64) -> Affine {
        let mut terms = self.terms.clone();
        for (atom, c) in &other.terms {
            match terms.binary_search_by(|(known, _)| known.cmp(atom)) {
                Ok(i) => terms[i].1 += c * factor,
                Err(i) => terms.insert(i, (atom.clone(), c * factor)),
            }
        }
        terms.retain(|(_, c)| *c != 0);
        Affine { terms, constant: self.constant + factor * other.constant }
    }
    /// The value at a point. Coordinates that the point does not have are 0.
    pub fn at(&self, point: &[i64]) -> i64 {
        self.terms.iter().fold(self.constant, |sum, (atom, c)| sum + c * atom.at(point))
    }
    /// True if the coordinate takes part.
    pub fn uses(&self, axis: usize) -> bool {
        self.terms.iter().any(|(a, _)| a.uses(axis))
    }
    /// True if some digit takes part.
    pub fn has_digits(&self) -> bool {
        self.terms.iter().any(|(a, _)| matches!(a, Atom::Digit { .. }))
    }
    /// Coefficient of a coordinate that appears as a plain term only (0: not at all).
    pub fn stride(&self, axis: usize) -> Option<i64> {
        let mut stride = 0;
        for (atom, coefficient) in &self.terms {
            match atom {
                Atom::Axis(a) if *a == axis => stride = *coefficient,
                atom if atom.uses(axis) => return None,
                _ => {}
            }
        }
        Some(stride)
    }
    /// The form with two coordinates swapped.
    pub fn swapped(&self, one: usize, other: usize) -> Affine {
        let turn = |axis: usize| match axis {
            a if a == one => other,
            a if a == other => one,
            a => a,
        };
        let atom = |a: &Atom| match a {
            Atom::Axis(axis) => Atom::Axis(turn(*axis)),
            Atom::Digit { of, div, modulo } => Atom::Digit { of: Box::new(of.swapped(one, other)), div: *div, modulo: *modulo },
        };
        let mut terms: Vec<(Atom, i64)> = self.terms.iter().map(|(a, c)| (atom(a), *c)).collect();
        terms.sort();
        Affine { terms, constant: self.constant }
    }
    /// The form with `forms[axis]` in place of every coordinate, simplified over the extents of their coordinates.
    /// Coordinates without a form are 0.
    pub fn substituted(&self, forms: &[Affine], extent: &[u64]) -> Affine {
        let mut sum = Affine::constant(self.constant);
        for (atom, coefficient) in &self.terms {
            let value = match atom {
                Atom::Axis(axis) => forms.get(*axis).cloned().unwrap_or_default(),
                Atom::Digit { of, div, modulo } => of.substituted(forms, extent).digit(*div, *modulo, extent),
            };
            sum = sum.plus(&value, *coefficient);
        }
        sum.simplified(extent)
    }
}

impl Atom {
    /// The value at a point.
    pub fn at(&self, point: &[i64]) -> i64 {
        match self {
            Atom::Axis(axis) => point.get(*axis).copied().unwrap_or(0),
            Atom::Digit { of, div, modulo } => {
                let q = of.at(point) / div;
                modulo.map_or(q, |m| q % m)
            }
        }
    }
    /// True if the coordinate takes part.
    pub fn uses(&self, axis: usize) -> bool {
        match self {
            Atom::Axis(a) => *a == axis,
            Atom::Digit { of, .. } => of.uses(axis),
        }
    }
}
