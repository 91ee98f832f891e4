//! What a view's normal form says about memory: strides, vector widths, reach, boxes.

use super::View;
use tilewright_ir::affine::{Affine, Atom, Group, gcd};

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
    /// Distance between neighbours along a coordinate, in elements, if it is one number. It is one if the coordinate appears only
    /// as a plain term of the offset (0: not at all) and in no condition.
    pub fn stride(&self, axis: usize) -> Option<i64> {
        if self.bounded_by(axis) { None } else { self.access.offset.stride(axis) }
    }
    /// Least and greatest value of the offset over all coordinates, existing or not: what index arithmetic must hold.
    pub fn span(&self) -> (i64, i64) {
        self.access.offset.reach(&self.extent)
    }
    /// Width in elements of the widest vector along an axis: the largest w of 1, 2, 4, 8, 16, 32 that is at most `max`. `align` is the alignment
    /// of the tensor's element 0, in elements.
    ///
    /// A vector has w consecutive coordinates, and its first coordinate is a multiple of w. For all values of the other coordinates, its
    /// elements are adjacent in memory and start at a multiple of w elements. Either all of them exist, or none.
    ///
    /// The extent need not be a multiple of w: the rule holds for the vectors within the extent.
    pub fn vector_width(&self, axis: usize, max: u32, align: u32) -> u32 {
        let mut width = 1;
        for w in [2, 4, 8, 16, 32] {
            if w <= max && align.is_multiple_of(w) && self.contiguous(axis, i64::from(w)) {
                width = w;
            }
        }
        width
    }
    /// Length of runs of adjacent elements along a coordinate. This is a number r such that the existing elements of each range
    /// `0..r, r..2r, ...` are adjacent in memory. It is 1 if neighbours are not adjacent. The last range may be shorter.
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
            *stride = self.access.offset.stride(axis)?;
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

    fn contiguous(&self, axis: usize, width: i64) -> bool {
        let group = Group { axis, width, extent: &self.extent };
        group.contiguous(&self.access.offset)
            && self.access.bounds.iter().all(|bound| group.equally_within(&bound.value, bound.low, bound.high))
    }
}
