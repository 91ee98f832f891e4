//! Ranges of integer expressions: what is known of an index without running the kernel.
//!
//! A range folds comparisons, quotients and remainders that have one outcome: in a work-group of 128 threads `local_id / 128` is 0.

use super::{Builder, Ex};
use crate::ids::*;
use crate::kernel::*;
use crate::types::*;

/// Least and largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub least: i64,
    pub most: i64,
}

impl Range {
    pub const fn new(least: i64, most: i64) -> Range {
        Range { least, most }
    }
    /// The values of a type that has a range.
    fn of_type(ty: Type) -> Option<Range> {
        match ty.scalar {
            _ if ty.lanes != 1 => None,
            Scalar::Bool => Some(Range::new(0, 1)),
            Scalar::I32 => Some(Range::new(i32::MIN.into(), i32::MAX.into())),
            Scalar::U32 => Some(Range::new(0, u32::MAX.into())),
            Scalar::I64 => Some(Range::new(i64::MIN, i64::MAX)),
            _ => None,
        }
    }
    /// The range, unless arithmetic in the type may have wrapped.
    fn fits(self, ty: Type) -> Option<Range> {
        let whole = Range::of_type(ty)?;
        (whole.least <= self.least && self.most <= whole.most).then_some(self)
    }
    /// The only value.
    fn value(self) -> Option<i64> {
        (self.least == self.most).then_some(self.least)
    }
    fn not_negative(self) -> Option<Range> {
        (self.least >= 0).then_some(self)
    }
    fn below(self, other: Range) -> bool {
        self.most < other.least
    }
    /// The range of a function that has its extremes at the corners of two ranges.
    fn corners(self, other: Range, f: impl Fn(i64, i64) -> Option<i64>) -> Option<Range> {
        let Range { least, most } = other;
        let all = [f(self.least, least)?, f(self.least, most)?, f(self.most, least)?, f(self.most, most)?];
        Some(Range::new(*all.iter().min()?, *all.iter().max()?))
    }
}

impl Builder {
    /// The range of an expression; `None`: all values of its type.
    pub(super) fn range(&self, e: ExprId) -> Option<Range> {
        self.ranges.get(e.index()).copied().flatten()
    }

    /// Names a value that the caller knows to lie in `least..=most`, for example the number of a producer thread.
    pub fn bind_within(&mut self, name: &str, value: impl Into<Ex>, least: i64, most: i64) -> ExprId {
        let value = self.value(value);
        if self.kernel.as_int(value).is_some() {
            return value;
        }
        // A name of its own: what is known here need not hold elsewhere.
        let v = self.var(name, self.ty(value));
        self.push(Stmt::Let(v, value));
        self.known_within(v, least, most)
    }

    /// A new name whose value lies in `least..=most`.
    pub(super) fn known_within(&mut self, v: VarId, least: i64, most: i64) -> ExprId {
        self.of_vars.insert(v, Range::new(least, most));
        self.get(v)
    }

    /// The range of a new expression of operands whose ranges are known.
    pub(super) fn range_of(&self, expr: &Expr, ty: Type) -> Option<Range> {
        Range::of_type(ty)?;
        let range = match *expr {
            Expr::Int(v) => Range::new(v, v),
            Expr::Builtin(Builtin::LocalId) => Range::new(0, i64::from(self.kernel.threads) - 1),
            Expr::Builtin(Builtin::GroupId(_)) => Range::new(0, i32::MAX.into()),
            Expr::Var(v) => *self.of_vars.get(&v)?,
            Expr::Cast(a) if self.ty(a).lanes == 1 => self.range(a)?,
            Expr::Select(_, a, b) => {
                let (a, b) = (self.range(a)?, self.range(b)?);
                Range::new(a.least.min(b.least), a.most.max(b.most))
            }
            Expr::Binary(op, a, b) => self.of_binary(op, a, b)?,
            _ => return None,
        };
        range.fits(ty)
    }

    fn of_binary(&self, op: BinaryOp, a: ExprId, b: ExprId) -> Option<Range> {
        use BinaryOp::*;
        let (x, y) = (self.range(a), self.range(b));
        let constant = || y.and_then(Range::value).filter(|c| *c >= 0);
        match op {
            Add => x?.corners(y?, i64::checked_add),
            Sub => x?.corners(y?, i64::checked_sub),
            Mul => x?.corners(y?, i64::checked_mul),
            Min | Minimum => x?.corners(y?, |x, y| Some(x.min(y))),
            Max | Maximum => x?.corners(y?, |x, y| Some(x.max(y))),
            Div => {
                let c = constant().filter(|c| *c > 0)?;
                x.map(|x| Range::new(x.least / c, x.most / c))
            }
            Rem => {
                let most = constant().filter(|c| *c > 0)? - 1;
                let unsigned = self.ty(a).scalar == Scalar::U32;
                let x = x.unwrap_or(if unsigned { Range::new(0, most) } else { Range::new(-most, most) });
                Some(Range::new(x.least.clamp(-most, 0), x.most.clamp(0, most)))
            }
            // A mask that is not negative leaves nothing that is negative.
            And => {
                let masks = [x, y].into_iter().flatten().filter_map(Range::not_negative);
                masks.map(|mask| mask.most).min().map(|most| Range::new(0, most))
            }
            Or | Xor => {
                let both = x?.not_negative()?.most | y?.not_negative()?.most;
                let bits = i64::BITS - both.leading_zeros();
                Some(Range::new(0, if bits < 63 { (1 << bits) - 1 } else { i64::MAX }))
            }
            Shr => {
                let (x, c) = (x?.not_negative()?, constant().filter(|c| *c < 63)?);
                Some(Range::new(x.least >> c, x.most >> c))
            }
            Shl => {
                let factor = 1 << constant().filter(|c| *c < 62)?;
                x?.corners(Range::new(factor, factor), i64::checked_mul)
            }
            Lt | Le | Eq | Ne => Some(Range::new(0, 1)),
        }
    }

    /// The operation's result where ranges leave one: an operand, or a constant.
    pub(super) fn by_ranges(&mut self, op: BinaryOp, a: ExprId, b: ExprId, out: Type) -> Option<ExprId> {
        use BinaryOp::*;
        let only = |found: Option<Range>| found.and_then(|range| range.fits(out)).and_then(Range::value);
        let value = match (self.range(a), self.range(b)) {
            (Some(x), Some(y)) => match op {
                Lt if x.below(y) => Some(1),
                Lt if y.most <= x.least => Some(0),
                Le if x.most <= y.least => Some(1),
                Le if y.below(x) => Some(0),
                Eq if x.below(y) || y.below(x) => Some(0),
                Ne if x.below(y) || y.below(x) => Some(1),
                Min | Minimum if x.most <= y.least => return Some(a),
                Min | Minimum if y.most <= x.least => return Some(b),
                Max | Maximum if x.least >= y.most => return Some(a),
                Max | Maximum if y.least >= x.most => return Some(b),
                Rem if y.value().is_some_and(|c| c > 0 && -c < x.least && x.most < c) => return Some(a),
                _ => only(self.of_binary(op, a, b)),
            },
            _ => only(self.of_binary(op, a, b)),
        };
        match value {
            Some(value) => Some(self.int(value, out.scalar)),
            None => self.of_nested(op, a, b).or_else(|| self.without_multiples(op, a, b)),
        }
    }

    /// `x / c / d` as one quotient, `x % c % d` as the last remainder where d divides c. Both hold for negative x, too: quotients truncate, and
    /// remainders have the sign of x.
    fn of_nested(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> Option<ExprId> {
        let Expr::Binary(inner, x, c) = *self.kernel.expr(a) else { return None };
        let (c, d) = (self.kernel.as_int(c)?, self.kernel.as_int(b)?);
        if inner != op || c <= 0 || d <= 0 {
            return None;
        }
        match op {
            BinaryOp::Div => {
                let both = c.checked_mul(d).filter(|both| Range::new(*both, *both).fits(self.ty(b)).is_some())?;
                let both = self.int(both, self.ty(b).scalar);
                Some(self.binary(op, x, both))
            }
            BinaryOp::Rem if c % d == 0 => Some(self.binary(op, x, b)),
            _ => None,
        }
    }

    /// Quotient or remainder of `x + s` by a divisor of `s`, where nothing is negative: by that of `x`.
    fn without_multiples(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> Option<ExprId> {
        let Expr::Binary(BinaryOp::Add, x, s) = *self.kernel.expr(a) else { return None };
        let (s, c) = (self.kernel.as_int(s)?, self.kernel.as_int(b)?);
        self.range(a)?.not_negative()?;
        self.range(x)?.not_negative()?;
        if c <= 0 || s % c != 0 {
            return None;
        }
        match op {
            BinaryOp::Rem => Some(self.binary(op, x, b)),
            BinaryOp::Div => {
                let whole = self.binary(op, x, b);
                Some(self.binary(BinaryOp::Add, whole, s / c))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_numbers_below_their_count() {
        let mut b = Builder::new("k", 160);
        let thread = b.value(Builtin::LocalId);
        assert_eq!(b.value(thread / 160), b.int(0, Scalar::I32));
        assert_eq!(b.value(thread % 160), thread);
        assert_eq!(b.value(thread.lt(160)), b.int(1, Scalar::Bool));
        assert_eq!(b.value(thread % 32 / 4 % 8), b.value(thread % 32 / 4));
        assert_eq!(b.value(thread % 32 / 4 / 8), b.int(0, Scalar::I32));
        // 159 / 128 is 1: nothing is known.
        let wave = b.value(thread / 128);
        assert!(matches!(b.kernel().expr(wave), Expr::Binary(BinaryOp::Div, ..)));
        assert_eq!(b.value((thread % 32 / 4 + 8) % 8), b.value(thread % 32 / 4));
        assert_eq!(b.value((thread + 64) / 32), b.value(thread / 32 + 2));
        assert_eq!(b.value(thread % 64 % 32), b.value(thread % 32));
        assert_ne!(b.value(thread % 48 % 32), b.value(thread % 32));
        assert_eq!(b.value(thread / 8 / 4), b.value(thread / 32));
        let producer = b.bind_within("producer_thread", thread - 128, 0, 31);
        assert_eq!(b.value(producer / 32), b.int(0, Scalar::I32));
    }

    #[test]
    fn unknown_and_wrapping_values_have_no_range() {
        let mut b = Builder::new("k", 64);
        let n = b.scalar_arg("n", Scalar::I32, "");
        let sum = b.value(n + 1);
        assert_eq!(b.range(sum), None);
        let rem = b.value(n % 8);
        assert_eq!(b.range(rem), Some(Range::new(-7, 7)));
        assert_eq!(b.value(rem % 8), rem);
        assert_eq!(b.value(n / 8 / 4), b.value(n / 32));
        let far = b.value(n / (1 << 20));
        assert_ne!(b.value(far / (1 << 12)), b.value(n / 1), "the product of the divisors has no such type");
        let large = b.value(Ex::from(Builtin::GroupId(0)) * 4);
        assert_eq!(b.range(large), None, "it may have wrapped");
        let mutable = b.declare("x", 3);
        let mutable = b.get(mutable);
        assert_eq!(b.range(mutable), None, "it may be set");
    }

    #[test]
    fn counters_lie_in_their_loop() {
        let mut b = Builder::new("k", 64);
        let mut seen = None;
        b.for_range("i", 2, 10, Unroll::No, |b, i| seen = b.range(i));
        assert_eq!(seen, Some(Range::new(2, 9)));
    }
}
