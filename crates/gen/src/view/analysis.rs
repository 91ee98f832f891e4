//! What a view's normal form says about memory: strides, vector widths, reach, boxes.

use super::{Affine, Atom, View, simplify};
use crate::view::simplify::gcd;

/// A view whose offset is plain strides and whose conditions are ranges of single coordinates: what a bulk tensor copy moves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AffineBox {
    /// Offset of coordinate (0, 0, 0), which need not exist.
    pub base: i64,
    /// Distance between neighbours along (g, row, col) in elements.
    pub strides: [i64; 3],
    /// Existing coordinates along (g, row, col): inclusive low, exclusive high, within the extents.
    pub valid: [(i64, i64); 3],
}

impl View {
    /// True if the coordinate takes part in the offset or a condition.
    pub fn uses(&self, axis: usize) -> bool {
        self.access.offset.uses(axis) || self.bounded_by(axis)
    }
    /// True if whether an element exists depends on the coordinate.
    pub fn bounded_by(&self, axis: usize) -> bool {
        self.access.bounds.iter().any(|b| b.value.uses(axis))
    }
    /// Distance between neighbours along a coordinate, in elements, where that is one number: the coordinate appears only as a
    /// plain term of the offset (0: not at all) and in no condition.
    pub fn stride(&self, axis: usize) -> Option<i64> {
        if self.bounded_by(axis) { None } else { plain_stride(&self.access.offset, axis) }
    }
    /// Least and greatest value of the offset over all coordinates, existing or not: what index arithmetic must hold.
    pub fn span(&self) -> (i64, i64) {
        simplify::reach(&self.access.offset, &self.extent)
    }
    /// Least and greatest value of any intermediate of the index arithmetic: the offset, every condition's value, and every
    /// partial sum of their terms in order.
    pub fn index_span(&self) -> (i64, i64) {
        let forms = self.access.bounds.iter().map(|b| &b.value).chain([&self.access.offset]);
        forms.fold((0, 0), |span, form| widen(span, form, &self.extent))
    }
    /// Largest w of 1, 2, 4, 8, 16, at most `max`, such that every w consecutive coordinates along the axis whose first is a
    /// multiple of w (whatever the other coordinates are) lie side by side in memory, start at a multiple of w elements, and
    /// all exist or all do not. `align` is the alignment of the tensor's element 0, in elements.
    ///
    /// The extent need not be a multiple of w: what is said holds for the groups that lie within it.
    pub fn vector_width(&self, axis: usize, max: u32, align: u32) -> u32 {
        let mut width = 1;
        for w in [2, 4, 8, 16] {
            if w <= max && align.is_multiple_of(w) && self.contiguous(axis, i64::from(w)) {
                width = w;
            }
        }
        width
    }
    /// How far neighbours along a coordinate lie side by side: a number r such that the coordinates of each of the ranges
    /// `0..r, r..2r, ...` are adjacent in memory where they exist; 1 if neighbours are not adjacent. The last range may be shorter.
    pub fn run(&self, axis: usize) -> u64 {
        // What limits a run is where a quotient of the coordinate changes and where a remainder starts again.
        let mut run = self.extent[axis].max(1);
        let mut adjacent = false;
        for (atom, coefficient) in &self.access.offset.terms {
            match atom {
                Atom::Axis(a) if *a == axis => {
                    if *coefficient != 1 || adjacent {
                        return 1;
                    }
                    adjacent = true;
                }
                Atom::Digit { of, div, modulo } if of.uses(axis) => {
                    if **of != Affine::axis(axis) {
                        return 1;
                    }
                    let period = if *div > 1 { Some(*div) } else { *modulo };
                    if *div == 1 {
                        if *coefficient != 1 || adjacent {
                            return 1;
                        }
                        adjacent = true;
                    }
                    if let Some(period) = period {
                        let period = period.unsigned_abs();
                        // Ranges must not straddle any period.
                        run = if run >= self.extent[axis] { period } else { gcd(run as i64, period as i64).unsigned_abs() };
                    }
                }
                _ => {}
            }
        }
        if adjacent { run } else { 1 }
    }
    /// The box this view is, if it is one.
    pub fn is_affine_box(&self) -> Option<AffineBox> {
        let mut strides = [0; 3];
        for (axis, stride) in strides.iter_mut().enumerate() {
            *stride = plain_stride(&self.access.offset, axis)?;
        }
        let mut valid = self.extent.map(|e| (0, i64::try_from(e).unwrap_or(i64::MAX)));
        for bound in &self.access.bounds {
            let [(Atom::Axis(axis), 1)] = bound.value.terms.as_slice() else { return None };
            let range = &mut valid[*axis];
            range.0 = range.0.max(bound.low - bound.value.constant);
            range.1 = range.1.min(bound.high - bound.value.constant);
        }
        Some(AffineBox { base: self.access.offset.constant, strides, valid })
    }
    /// The part `begin .. end` of a coordinate's range, renumbered from 0: a chunk of a batch, say.
    pub fn part(&self, axis: usize, begin: u64, end: u64) -> View {
        let mut extent = self.extent;
        extent[axis] = end.saturating_sub(begin);
        let begin = begin as i64;
        let offset = simplify::simplify(&shifted(&self.access.offset, axis, begin, &extent), &extent);
        let bounds =
            self.access.bounds.iter().map(|b| super::Bound { value: shifted(&b.value, axis, begin, &extent), ..b.clone() });
        let bounds = simplify::bounds(bounds.collect::<Vec<_>>(), &extent);
        View { extent, access: super::Access { offset, bounds } }
    }

    fn contiguous(&self, axis: usize, w: i64) -> bool {
        let group = Group { axis, w, extent: &self.extent };
        let side_by_side = group.slope(&self.access.offset) == Some(1);
        side_by_side
            && group.multiple(&self.access.offset) % w == 0
            && self.access.bounds.iter().all(|bound| group.equally_valid(bound))
    }
}

fn plain_stride(offset: &Affine, axis: usize) -> Option<i64> {
    let mut stride = 0;
    for (atom, coefficient) in &offset.terms {
        match atom {
            Atom::Axis(a) if *a == axis => stride = *coefficient,
            atom if atom.uses(axis) => return None,
            _ => {}
        }
    }
    Some(stride)
}

fn widen(span: (i64, i64), form: &Affine, extent: &[u64; 3]) -> (i64, i64) {
    let mut span = span;
    let mut partial = Affine::constant(form.constant);
    for term in &form.terms {
        if let Atom::Digit { of, .. } = &term.0 {
            span = widen(span, of, extent);
        }
        partial.terms.push(term.clone());
        let (low, high) = simplify::reach(&partial, extent);
        span = (span.0.min(low), span.1.max(high));
    }
    (span.0.min(form.constant), span.1.max(form.constant))
}

/// `form` with `axis + begin` in place of `axis`.
fn shifted(form: &Affine, axis: usize, begin: i64, extent: &[u64; 3]) -> Affine {
    let mut sum = Affine::constant(form.constant);
    for (atom, coefficient) in &form.terms {
        let moved = match atom {
            Atom::Axis(a) if *a == axis => Affine::axis(axis).plus(&Affine::constant(begin), 1),
            Atom::Axis(a) => Affine::axis(*a),
            Atom::Digit { of, div, modulo } => simplify::digit(&shifted(of, axis, begin, extent), *div, *modulo, extent),
        };
        sum = sum.plus(&moved, *coefficient);
    }
    sum
}

/// Groups of `w` consecutive coordinates along `axis`, aligned to `w`, other coordinates fixed.
struct Group<'a> {
    axis: usize,
    w: i64,
    extent: &'a [u64; 3],
}

impl Group<'_> {
    /// Increase per step within every group, if it is the same everywhere.
    fn slope(&self, form: &Affine) -> Option<i64> {
        form.terms.iter().try_fold(0, |sum, (atom, c)| Some(sum + c * self.atom_slope(atom)?))
    }
    fn atom_slope(&self, atom: &Atom) -> Option<i64> {
        match atom {
            Atom::Axis(axis) => Some(i64::from(*axis == self.axis)),
            Atom::Digit { of, div, modulo } => {
                let slope = self.slope(of)?;
                let reach = slope * (self.w - 1);
                let start = self.multiple(of);
                // Within a group the dividend runs over start ..= start + reach, with start a multiple of `start`.
                let within = |period: i64| slope > 0 && start != 0 && reach < gcd(start, period);
                if slope == 0 || within(*div) {
                    Some(0)
                } else if *div == 1 && modulo.is_none_or(within) {
                    Some(slope)
                } else {
                    None
                }
            }
        }
    }
    /// A number that divides the form's value at the start of every group; 0 if the value is always 0.
    fn multiple(&self, form: &Affine) -> i64 {
        form.terms.iter().fold(form.constant.saturating_abs(), |g, (atom, c)| gcd(g, c.saturating_mul(self.atom_multiple(atom))))
    }
    fn atom_multiple(&self, atom: &Atom) -> i64 {
        match atom {
            Atom::Axis(axis) if self.extent[*axis] <= 1 => 0,
            Atom::Axis(axis) if *axis == self.axis => self.w,
            Atom::Axis(_) => 1,
            Atom::Digit { of, div, modulo } => {
                let start = self.multiple(of);
                if start % div == 0 { gcd(start / div, modulo.unwrap_or(0)) } else { 1 }
            }
        }
    }
    /// True if a condition holds for all members of a group or for none.
    fn equally_valid(&self, bound: &super::Bound) -> bool {
        let Some(slope) = self.slope(&bound.value) else { return false };
        if slope == 0 {
            return true;
        }
        // With a group's values within one period of `step`, a limit that is a multiple of `step` cannot cut it.
        let plain = Affine { terms: bound.value.terms.clone(), constant: 0 };
        let step = self.multiple(&plain);
        let (low, high) = simplify::range(&plain, self.extent);
        let cuts = |limit: i64| low < limit && limit <= high && limit % step.max(1) != 0;
        let limits = [bound.low - bound.value.constant, bound.high - bound.value.constant];
        slope > 0 && step > slope * (self.w - 1) && !limits.into_iter().any(cuts)
    }
}
