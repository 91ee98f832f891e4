//! Affine forms as index expressions.
//!
//! A coordinate inside a kernel is the start of a tile, a multiple of its size, plus a local part smaller than that. Digits of it
//! are simplified with that knowledge. So the filter tap of a k-tile of an NHWC convolution is computed once per tile and not
//! once per element.

use super::{Affine, Atom};
use crate::{Builder, ExprId, Scalar};

/// `aligned + local` with `aligned % every == 0` and `0 <= local < every`; 1 claims nothing (`local` may then be anything).
#[derive(Clone, Copy, Debug)]
pub struct Coord {
    /// Multiple of `every`.
    pub aligned: ExprId,
    /// Positive.
    pub every: i64,
    /// Rest.
    pub local: ExprId,
}

impl Coord {
    /// The whole value.
    pub fn value(&self, b: &mut Builder) -> ExprId {
        b.add(self.aligned, self.local)
    }
    /// A coordinate of which nothing is known.
    pub fn plain(b: &mut Builder, value: ExprId) -> Coord {
        let zero = b.int(0, b.ty(value).scalar);
        Coord { aligned: zero, every: 1, local: value }
    }
    /// The start of a tile of so many: a multiple of that, or, of tiles of 1, any value.
    pub fn start(b: &mut Builder, value: ExprId, every: i64) -> Coord {
        let plain = Coord::plain(b, value);
        if every == 1 { plain } else { Coord { aligned: value, every, local: plain.aligned } }
    }
    /// The same tile, `by` further; the caller promises that it stays within.
    pub fn shifted(&self, b: &mut Builder, by: i64) -> Coord {
        Coord { local: b.add(self.local, by), ..*self }
    }
}

/// Which terms of an affine form are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All terms and the constant.
    Whole,
    /// Terms that use the axis.
    Using(usize),
    /// Terms that do not use the axis, and the constant.
    Without(usize),
    /// Terms that use no other axis, and the constant.
    Alone(usize),
    /// Terms that use other axes as well, or instead.
    Beyond(usize),
}

/// The expression of (part of) an affine form at a point, in the given integer type.
pub fn affine(b: &mut Builder, form: &Affine, point: &[Coord], part: Part, ty: Scalar) -> ExprId {
    let constant = if matches!(part, Part::Using(_) | Part::Beyond(_)) { 0 } else { form.constant };
    let others = |atom: &Atom, axis: usize| (0..point.len()).any(|other| other != axis && atom.uses(other));
    let mut sum = b.int(0, ty);
    for (atom, coefficient) in &form.terms {
        let wanted = match part {
            Part::Whole => true,
            Part::Using(axis) => atom.uses(axis),
            Part::Without(axis) => !atom.uses(axis),
            Part::Alone(axis) => !others(atom, axis),
            Part::Beyond(axis) => others(atom, axis),
        };
        if wanted {
            let value = self::atom(b, atom, point);
            let value = b.cast(value, ty);
            let scaled = b.mul(value, *coefficient);
            sum = b.add(sum, scaled);
        }
    }
    b.add(sum, constant)
}

fn atom(b: &mut Builder, atom: &Atom, point: &[Coord]) -> ExprId {
    match atom {
        Atom::Axis(axis) => point[*axis].value(b),
        Atom::Digit { of, div, modulo } => {
            let (div, modulo) = (*div, *modulo);
            if let [(Atom::Axis(axis), 1)] = of.terms.as_slice()
                && of.constant == 0
            {
                return digit(b, point[*axis], div, modulo);
            }
            let ty = of.terms.iter().find_map(|(a, _)| axis_of(a)).map_or(Scalar::I32, |axis| b.ty(point[axis].local).scalar);
            let value = affine(b, of, point, Part::Whole, ty);
            let coord = Coord::plain(b, value);
            digit(b, coord, div, modulo)
        }
    }
}

fn axis_of(atom: &Atom) -> Option<usize> {
    match atom {
        Atom::Axis(axis) => Some(*axis),
        Atom::Digit { of, .. } => of.terms.iter().find_map(|(a, _)| axis_of(a)),
    }
}

fn digit(b: &mut Builder, c: Coord, div: i64, modulo: Option<i64>) -> ExprId {
    let quotient_rest = |b: &mut Builder, x: ExprId| {
        let q = b.div(x, div);
        modulo.map_or(q, |m| b.rem(q, m))
    };
    if c.every > 1 && div % c.every == 0 {
        return quotient_rest(b, c.aligned);
    }
    if let Some(m) = modulo {
        if c.every > 1 && c.every % (div * m) == 0 {
            return quotient_rest(b, c.local);
        }
        if c.every > 1 && div == 1 && m % c.every == 0 {
            let high = b.rem(c.aligned, m);
            return b.add(high, c.local);
        }
    }
    let value = c.value(b);
    quotient_rest(b, value)
}

/// `low <= value < high` as one unsigned comparison.
pub fn in_range(b: &mut Builder, value: ExprId, low: i64, high: i64) -> ExprId {
    let from_low = b.sub(value, low);
    if b.ty(value).scalar == Scalar::I32 {
        let unsigned = b.cast(from_low, Scalar::U32);
        b.lt(unsigned, high - low)
    } else {
        let not_below = b.le(low, value);
        let below_end = b.lt(value, high);
        b.and(not_below, below_end)
    }
}
