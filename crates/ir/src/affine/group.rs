//! Behaviour of a form over groups of neighbouring coordinates, from which vector widths follow.

use super::{Affine, Atom, gcd};

/// Groups of `width` consecutive coordinates along `axis`, the first a multiple of `width`, other coordinates fixed.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Coordinate along which neighbours form a group.
    pub axis: usize,
    /// Coordinates per group.
    pub width: i64,
    /// Extents of all coordinates.
    pub extent: &'a [u64],
}

impl Group<'_> {
    /// True if the values of every group are neighbours that start at a multiple of `width`.
    pub fn contiguous(&self, form: &Affine) -> bool {
        self.slope(form) == Some(1) && self.multiple(form) % self.width == 0
    }
    /// True if `low <= form < high` holds for all members of a group or for none.
    pub fn equally_within(&self, form: &Affine, low: i64, high: i64) -> bool {
        let Some(slope) = self.slope(form) else { return false };
        if slope == 0 {
            return true;
        }
        // With a group's values within one period of `step`, a limit that is a multiple of `step` cannot cut it.
        let plain = Affine { terms: form.terms.clone(), constant: 0 };
        let step = self.multiple(&plain);
        let (least, most) = plain.range(self.extent);
        let cuts = |limit: i64| least < limit && limit <= most && limit % step.max(1) != 0;
        slope > 0 && step > slope * (self.width - 1) && ![low - form.constant, high - form.constant].into_iter().any(cuts)
    }
    /// Increase per step within every group, if it is the same everywhere.
    pub fn slope(&self, form: &Affine) -> Option<i64> {
        form.terms.iter().try_fold(0, |sum, (atom, c)| Some(sum + c * self.atom_slope(atom)?))
    }
    fn atom_slope(&self, atom: &Atom) -> Option<i64> {
        match atom {
            Atom::Axis(axis) => Some(i64::from(*axis == self.axis)),
            Atom::Digit { of, div, modulo } => {
                let slope = self.slope(of)?;
                let reach = slope * (self.width - 1);
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
    pub fn multiple(&self, form: &Affine) -> i64 {
        form.terms.iter().fold(form.constant.saturating_abs(), |g, (atom, c)| gcd(g, c.saturating_mul(self.atom_multiple(atom))))
    }
    fn atom_multiple(&self, atom: &Atom) -> i64 {
        match atom {
            Atom::Axis(axis) if self.extent[*axis] <= 1 => 0,
            Atom::Axis(axis) if *axis == self.axis => self.width,
            Atom::Axis(_) => 1,
            Atom::Digit { of, div, modulo } => {
                let start = self.multiple(of);
                if start % div == 0 { gcd(start / div, modulo.unwrap_or(0)) } else { 1 }
            }
        }
    }
}
