//! Inverting layouts: which coordinates an element came from.

use super::{Axis, Layout};
use crate::affine::{Affine, Atom};

/// A digit `(coordinate / div) % size` of a coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Digit {
    axis: usize,
    div: i64,
    size: i64,
}

impl Layout {
    /// The layout that leads back from the results to the coordinates, on results that some point has. It exists where each result is
    /// a sum of digits of single coordinates whose strides do not overlap, and every digit of every coordinate stands in exactly one
    /// place. There is none of a swizzled layout.
    pub fn inverse(&self) -> Option<Layout> {
        if self.swizzle.is_some_and(|(s, _)| s.mask() > 0) {
            return None;
        }
        let extent = self.extents();
        let whole: Vec<Affine> = (0..extent.len()).map(Affine::axis).collect();
        let mut found: Vec<(Digit, Affine)> = Vec::new();
        let mut from: Vec<(Axis, u64)> = Vec::new();
        for (index, (axis, form)) in self.to.iter().enumerate() {
            let form = form.substituted(&whole, &extent);
            let (_, most) = form.range(&extent);
            from.push((*axis, u64::try_from(most).ok()? + 1));
            let mut terms: Vec<(Digit, i64)> = Vec::new();
            for (atom, stride) in &form.terms {
                terms.push((digit(atom, &extent)?, *stride));
            }
            terms.sort_by_key(|(_, stride)| *stride);
            for (i, (digit, stride)) in terms.iter().enumerate() {
                let next = terms.get(i + 1).map(|(_, next)| *next);
                if *stride <= 0 || next.is_some_and(|next| next % stride != 0 || next < stride * digit.size) {
                    return None;
                }
                let value = Affine::axis(index).plus(&Affine::constant(form.constant), -1);
                found.push((*digit, value.digit_of(*stride, next.map(|next| next / stride))));
            }
        }
        found.sort_by_key(|(digit, _)| *digit);
        let sizes: Vec<u64> = from.iter().map(|(_, e)| *e).collect();
        let mut to = Vec::new();
        for (index, (axis, extent)) in self.from.iter().enumerate() {
            let mut sum = Affine::default();
            let mut reached = 1;
            for (digit, value) in found.iter().filter(|(digit, _)| digit.axis == index) {
                if digit.div != reached {
                    return None;
                }
                reached *= digit.size;
                sum = sum.plus(value, digit.div);
            }
            if reached < i64::try_from(*extent).ok()? {
                return None;
            }
            to.push((*axis, sum.simplified(&sizes)));
        }
        Some(Layout { from, to, swizzle: None })
    }
}

/// An atom as a digit of a single coordinate.
fn digit(atom: &Atom, extent: &[u64]) -> Option<Digit> {
    let reach = |axis: usize, div: i64| i64::try_from(extent.get(axis)?.div_ceil(div.unsigned_abs())).ok();
    match atom {
        Atom::Axis(axis) => Some(Digit { axis: *axis, div: 1, size: reach(*axis, 1)? }),
        Atom::Digit { of, div, modulo } => match (of.terms.as_slice(), of.constant) {
            ([(Atom::Axis(axis), 1)], 0) => {
                let size = reach(*axis, *div)?;
                Some(Digit { axis: *axis, div: *div, size: modulo.map_or(size, |m| m.min(size)) })
            }
            _ => None,
        },
    }
}
