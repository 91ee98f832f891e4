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
    /// Returns the layout from results back to coordinates, for results of some point.
    ///
    /// It exists under two conditions. Each result is a sum of digits of single coordinates with strides that do not overlap.
    /// Every digit of every coordinate occurs exactly once. A swizzled layout has no inverse.
    pub fn inverse(&self) -> Option<Layout> {
        if self.is_permuted() {
            return None;
        }
        let extent = self.extents();
        let whole: Vec<Affine> = (0..extent.len()).map(Affine::axis).collect();
        let forms: Vec<Affine> = self.to.iter().map(|(_, form)| form.substituted(&whole, &extent)).collect();
        let mut from: Vec<(Axis, u64)> = Vec::new();
        for ((axis, _), form) in self.to.iter().zip(&forms) {
            from.push((*axis, u64::try_from(form.range(&extent).1).ok()? + 1));
        }
        let sizes: Vec<u64> = from.iter().map(|(_, e)| *e).collect();
        let mut found: Vec<(Digit, Affine)> = Vec::new();
        for (index, form) in forms.iter().enumerate() {
            let mut terms: Vec<(Digit, i64)> = Vec::new();
            for (atom, stride) in &form.terms {
                terms.push((digit(atom, &extent)?, *stride));
            }
            // A coordinate with one value is 0.
            terms.retain(|(digit, _)| digit.size > 1);
            terms.sort_by_key(|(_, stride)| *stride);
            let apart = |pair: &[(Digit, i64)]| pair[1].1 >= pair[0].1 * pair[0].0.size;
            if terms.iter().any(|(_, stride)| *stride <= 0) || !terms.windows(2).all(apart) {
                return None;
            }
            // From the largest stride down: each digit is a quotient of what the larger ones leave.
            let mut rest = Affine::axis(index).plus(&Affine::constant(form.constant), -1);
            for (digit, stride) in terms.into_iter().rev() {
                found.push((digit, rest.digit(stride, None, &sizes)));
                rest = rest.digit(1, Some(stride), &sizes);
            }
        }
        found.sort_by_key(|(digit, _)| *digit);
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
