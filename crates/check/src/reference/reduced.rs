//! How an element of the result becomes what is reduced, and what is known of a value from some of its elements.
//!
//! How far a value may be off, [`super::reductions`] tells.

use super::data::TestData;
use super::element::rounded;
use super::{Tolerance, two_sum, within};
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Function, Operator, Reduction, State};

/// What is known of a value from its elements so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    state: State,
    /// What rounding took from a sum: what is judged may be an f64 itself.
    lost: f64,
    /// How much elements may be off: their sum, or the largest.
    off: f64,
    /// Sums of magnitudes and of squares of what is added up.
    magnitude: f64,
    square: f64,
}

/// An element as it is reduced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub value: f64,
    /// How far it may be off.
    pub off: f64,
}

impl Elements {
    pub(super) const fn none(operator: Operator) -> Elements {
        Elements { state: operator.identity(), lost: 0.0, off: 0.0, magnitude: 0.0, square: 0.0 }
    }
    /// With another element, which has this number.
    pub(super) fn add(&mut self, operator: Operator, seen: Seen, index: u64) {
        let Seen { value: x, off } = seen;
        let state = operator.element(x, index);
        let contribution = state[0];
        let off = if matches!(operator, Operator::SumSq | Operator::Norm2) { 2.0 * x.abs() * off + off * off } else { off };
        let square = contribution * contribution;
        self.join(operator, Elements { state, off, magnitude: contribution.abs(), square, lost: 0.0 });
    }
    /// Both.
    pub(super) fn joined(mut self, operator: Operator, other: &Elements) -> Elements {
        self.join(operator, *other);
        self
    }
    pub(super) fn join(&mut self, operator: Operator, other: Elements) {
        let (_, lost) = two_sum(self.state[0], other.state[0]);
        if operator.adds() && lost.is_finite() {
            self.lost += lost + other.lost;
        }
        self.state = operator.combine(self.state, other.state);
        self.off = if operator.adds() { self.off + other.off } else { self.off.max(other.off) };
        self.magnitude += other.magnitude;
        self.square += other.square;
    }
    /// The element that an index is of, and how far from it another may be that is as good.
    pub(super) const fn indexed(&self) -> Seen {
        Seen { value: self.state[0], off: 2.0 * self.off }
    }
    /// What errors of the value are relative to: the magnitudes that are added up, else the value itself.
    pub(super) fn scale(&self, operator: Operator, value: f64, count: u64) -> f64 {
        match operator {
            Operator::Sum | Operator::SumSq => self.magnitude,
            Operator::Mean => self.magnitude / count as f64,
            _ => value.abs(),
        }
    }
    /// The value, and by how much it may be off. `exact`: elements are integers in the type of the sums.
    pub(super) fn finish(&self, reduction: &Reduction, count: u64, accumulator: Scalar, exact: bool) -> (f64, f64) {
        let operator = reduction.operator;
        let (unit, digits) = if accumulator == Scalar::F64 { (2f64.powi(-53), 53) } else { (2f64.powi(-24), 24) };
        let scalar = reduction.scalar(accumulator);
        let [first, second, third] = self.state;
        let expected = operator.finish([first + self.lost, second, third], count);
        // Partial sums of so many integers are integers that the type holds, by eight standard deviations.
        let held = exact && self.off == 0.0 && self.state[0].abs() + 8.0 * self.square.sqrt() < 2f64.powi(digits);
        let (mut off, rounding) = (self.off, unit * (256.0 + (count as f64).sqrt()));
        match operator {
            Operator::ArgMax | Operator::ArgMin => return (expected, 0.0),
            Operator::Mean => {
                off = (off + if held { 0.0 } else { rounding * self.magnitude }) / count as f64 + 4.0 * unit * expected.abs();
            }
            Operator::Sum | Operator::SumSq if !held => off += rounding * self.magnitude,
            Operator::LogSumExp => off += 8.0 * rounding + 4.0 * unit * (self.state[0].abs() + expected.abs()),
            Operator::Var => {
                off += rounding * (self.square / count as f64).sqrt();
                off = (2.0 * expected.sqrt() + off) * off + rounding * expected;
            }
            Operator::Norm2 => {
                off += if held { 0.0 } else { rounding * self.magnitude };
                // The root of s + d is no farther from that of s than d / sqrt(s), and than sqrt(d).
                let root = if expected > 0.0 { (off / expected).min(off.sqrt()) } else { off.sqrt() };
                off = root + 8.0 * unit * expected;
            }
            _ => {}
        }
        if !scalar.is_float() {
            // Of no element the ends of i32; else low bits.
            let ends = if expected.is_infinite() { expected.clamp(f64::from(i32::MIN), f64::from(i32::MAX)) } else { expected };
            return (rounded(scalar, ends), 0.0);
        }
        if off == 0.0 {
            let stored = rounded(scalar, expected);
            return (expected, if stored.is_finite() { (stored - expected).abs() } else { 0.0 });
        }
        let t = Tolerance::rounding(scalar);
        (expected, off + t.round * expected.abs() + t.floor)
    }
}

/// How an element of the result becomes what is reduced.
pub(super) struct AsReduced {
    /// C's type, where that is reduced which is stored, and what rounding to it takes.
    stored: Option<(Scalar, Tolerance)>,
    function: Option<Function>,
    accumulator: Scalar,
    /// Rounding of the sums' type.
    unit: f64,
}

impl AsReduced {
    pub(super) fn new(data: &TestData, reduction: &Reduction) -> AsReduced {
        let (scalar, accumulator) = (data.buffer(Operand::C).scalar, data.problem.accumulator());
        AsReduced {
            stored: reduction.stored.then(|| (scalar, Tolerance::rounding(scalar))),
            function: reduction.function,
            accumulator,
            unit: if accumulator == Scalar::F64 { 2f64.powi(-53) } else { 2f64.powi(-24) },
        }
    }
    /// An element as it is reduced: rounded where that is reduced which is stored. What may be off may be rounded to either side.
    pub(super) fn of(&self, expected: f64, off: f64) -> Seen {
        let (x, off) = match &self.stored {
            None => (expected, off),
            Some((scalar, t)) => {
                let expected = within(*scalar, expected);
                let x = rounded(*scalar, expected);
                let moved = off > 0.0 && x.is_finite();
                if moved { (expected, off + t.round * (x.abs() + off) + t.floor) } else { (x, off) }
            }
        };
        let Some(function) = self.function else { return Seen { value: x, off } };
        // What the type of the sums does not hold is infinite, or nothing.
        Seen { value: rounded(self.accumulator, function.apply(x)), off: off_by(function, x, off, self.unit) }
    }
}

/// How far the function of an element may be off that is off by so much, computed with this unit roundoff. An exponential is one of
/// 2, whose argument is rounded twice and whose error is some roundoffs; what is no normal number may be 0.
fn off_by(function: Function, x: f64, off: f64, unit: f64) -> f64 {
    let y = function.apply(x);
    match function {
        _ if !y.is_finite() => 0.0,
        Function::Abs => off,
        // The square of a small integer is one.
        Function::Square if off == 0.0 && x.fract() == 0.0 && y < 1.0 / unit => 0.0,
        Function::Square => (2.0 * x.abs() + off) * off + 2.0 * unit * y,
        Function::Exp => y * (off.exp_m1() + unit * (8.0 + 4.0 * x.abs())) + f64::from(f32::MIN_POSITIVE),
    }
}
