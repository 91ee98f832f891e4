//! Reductions of a result: one value per row, column or batch entry, or one of all, computed where the result is.
//!
//! A problem has a list of them, each an operator over some of the result's axes. What is reduced is the result as it is computed, in
//! the type of the sums and behind bias, activation and residual, or as it is stored, rounded to C's type. Values of a reduction are
//! dense and start their buffer: batch entries outermost, then rows or columns, axes that are reduced left out.
//!
//! Rows, columns and batch of a convolution's result are pixels, channels of a group, and samples; its groups always stay apart.
//!
//! Rows or columns may be reduced in blocks: `absmax:n128` is the largest magnitude of each 128 columns of a row. A block's values stand
//! where those of its row or column would, in the order of blocks.
//!
//! NaN reaches every reduction that it takes part in. Zeros compare equal. Sums and squares are accumulated in the type of the sums
//! and rounded once; a mean is the sum times the reciprocal of the count. A variance is the mean of squared differences from the mean
//! (population variance), whose parts are merged by their means; an infinity makes it NaN. The logarithm of a sum of exponentials is
//! computed relative to the largest: -infinity of nothing but -infinity, infinity where there is one.
//!
//! Sums of integers are exact in i64 (modulo 2^64); results of another type keep their low bits. Integers have `sum`, `max`, `min`, `argmax`
//! and `argmin` alone, and no factor.
//!
//! `argmax` and `argmin` give the index of the first of the largest or smallest along what is reduced, of the first NaN where there is
//! one: along one axis its coordinate, along several counted as values are (batch entries outermost, then rows). They are i64, or i32
//! where that is asked for and holds them.

use crate::epilogue::Along;
use crate::error::ProblemError;
use crate::extent::Extents;
use crate::text;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use tilewright_ir::Scalar;

/// Most reductions of a problem: each is an argument of its kernels.
pub const MOST_REDUCTIONS: usize = 8;

/// What is computed of many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operator {
    /// Sum.
    Sum,
    /// Sum divided by the count.
    Mean,
    /// Sum of squares.
    SumSq,
    /// Largest.
    Max,
    /// Smallest.
    Min,
    /// Largest magnitude.
    AbsMax,
    /// Index of the largest.
    ArgMax,
    /// Index of the smallest.
    ArgMin,
    /// Logarithm of the sum of exponentials.
    LogSumExp,
    /// Variance of the values themselves, not of what they are drawn from: divided by the count.
    Var,
}

/// What an operator knows of some values: components, those that it does not have are 0. Most have one; `argmax` and `argmin` have the
/// value and its index, `logsumexp` the largest and the sum of exponentials relative to it, `var` mean, count and the sum of squared
/// differences from the mean.
pub type State = [f64; 3];

impl Operator {
    /// All of them.
    pub const ALL: [Operator; 10] = [
        Operator::Sum,
        Operator::Mean,
        Operator::SumSq,
        Operator::Max,
        Operator::Min,
        Operator::AbsMax,
        Operator::ArgMax,
        Operator::ArgMin,
        Operator::LogSumExp,
        Operator::Var,
    ];

    /// In a word: `sum`, `mean`, `sumsq`, `max`, `min`, `absmax`, `argmax`, `argmin`, `logsumexp`, `var`.
    pub const fn name(self) -> &'static str {
        match self {
            Operator::Sum => "sum",
            Operator::Mean => "mean",
            Operator::SumSq => "sumsq",
            Operator::Max => "max",
            Operator::Min => "min",
            Operator::AbsMax => "absmax",
            Operator::ArgMax => "argmax",
            Operator::ArgMin => "argmin",
            Operator::LogSumExp => "logsumexp",
            Operator::Var => "var",
        }
    }
    /// The words of all, with commas between them.
    pub fn names() -> String {
        Operator::ALL.map(Operator::name).join(", ")
    }
    /// The operator of a word.
    pub fn from_name(name: &str) -> Option<Operator> {
        Operator::ALL.into_iter().find(|o| o.name() == name)
    }
    /// Adds values up: what they may be off by adds up.
    pub const fn adds(self) -> bool {
        matches!(self, Operator::Sum | Operator::Mean | Operator::SumSq)
    }
    /// The result is an index.
    pub const fn indexes(self) -> bool {
        matches!(self, Operator::ArgMax | Operator::ArgMin)
    }
    /// The state of no value.
    pub const fn identity(self) -> State {
        match self {
            Operator::Sum | Operator::Mean | Operator::SumSq | Operator::AbsMax | Operator::Var => [0.0; 3],
            Operator::Max | Operator::LogSumExp => [f64::NEG_INFINITY, 0.0, 0.0],
            Operator::Min => [f64::INFINITY, 0.0, 0.0],
            Operator::ArgMax => [f64::NEG_INFINITY, f64::INFINITY, 0.0],
            Operator::ArgMin => [f64::INFINITY, f64::INFINITY, 0.0],
        }
    }
    /// The state of one value, which has this index.
    pub fn element(self, x: f64, index: u64) -> State {
        match self {
            Operator::SumSq => [x * x, 0.0, 0.0],
            Operator::AbsMax => [x.abs(), 0.0, 0.0],
            Operator::ArgMax | Operator::ArgMin => [x, index as f64, 0.0],
            Operator::LogSumExp => [x, if x == f64::NEG_INFINITY { 0.0 } else { 1.0 }, 0.0],
            // Infinities have no differences.
            Operator::Var => [x, 1.0, 0.0 * x],
            _ => [x, 0.0, 0.0],
        }
    }
    /// The state of the values of both.
    pub fn combine(self, x: State, y: State) -> State {
        let largest = |x: f64, y: f64| if x > y || x.is_nan() { x } else { y };
        match self {
            Operator::Sum | Operator::Mean | Operator::SumSq => [x[0] + y[0], 0.0, 0.0],
            Operator::Max | Operator::AbsMax => [largest(x[0], y[0]), 0.0, 0.0],
            Operator::Min => [-largest(-x[0], -y[0]), 0.0, 0.0],
            Operator::ArgMax | Operator::ArgMin => {
                let (a, b) = if self == Operator::ArgMax { (x[0], y[0]) } else { (y[0], x[0]) };
                let alike = x[0] == y[0] || (x[0].is_nan() && y[0].is_nan());
                let first = if alike { x[1] <= y[1] } else { a > b || x[0].is_nan() };
                if first { x } else { y }
            }
            Operator::LogSumExp => {
                let most = largest(x[0], y[0]);
                let from = if most.is_infinite() { 0.0 } else { most };
                [most, x[1] * (x[0] - from).exp() + y[1] * (y[0] - from).exp(), 0.0]
            }
            Operator::Var => {
                let (count, apart) = (x[1] + y[1], y[0] - x[0]);
                let share = if count == 0.0 { 0.0 } else { y[1] / count };
                [x[0] + apart * share, count, x[2] + y[2] + apart * apart * x[1] * share]
            }
        }
    }
    /// The result of a state of so many values.
    pub fn finish(self, x: State, count: u64) -> f64 {
        match self {
            Operator::Mean => x[0] / count as f64,
            Operator::ArgMax | Operator::ArgMin => x[1],
            Operator::LogSumExp => x[0] + x[1].ln(),
            Operator::Var => x[2] / count as f64,
            _ => x[0],
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Axes of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Axes {
    /// Batch entries.
    pub g: bool,
    /// Rows.
    pub m: bool,
    /// Columns.
    pub n: bool,
    /// Rows and columns that are reduced together: blocks of so many, which divide the extent; 0: all of them.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub blocks: [u64; 2],
}

const fn is_whole(blocks: &[u64; 2]) -> bool {
    matches!(blocks, [0, 0])
}

impl Axes {
    /// The same axes of the transposed result.
    #[must_use]
    pub const fn turned(self) -> Axes {
        Axes { g: self.g, m: self.n, n: self.m, blocks: [self.blocks[1], self.blocks[0]] }
    }
    /// Rows and columns that are reduced as a whole.
    pub const fn whole(self) -> [bool; 2] {
        [self.m && self.blocks[0] == 0, self.n && self.blocks[1] == 0]
    }
    /// Rows or columns are reduced in blocks.
    pub const fn in_blocks(self) -> bool {
        !is_whole(&self.blocks)
    }
}

/// What is reduced: the extents of a result. Groups of a convolution are batch entries that follow each other, and always stay apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultShape {
    /// Batch entries, those of all groups; rows and columns.
    pub extents: Extents,
    /// Groups; 1 for a product.
    pub groups: u64,
}

impl ResultShape {
    /// Rows and columns that a value is computed of: 1 along what is kept.
    pub fn each(&self, over: Axes) -> [u64; 2] {
        let Extents { m, n, .. } = self.extents;
        let each = |over: bool, block: u64, extent: u64| match (over, block) {
            (false, _) => 1,
            (true, 0) => extent,
            (true, block) => block,
        };
        [each(over.m, over.blocks[0], m), each(over.n, over.blocks[1], n)]
    }
    /// Digits of an element's place: its number outside of the groups, in the groups, of rows and of columns; each extent with whether
    /// these axes reduce it.
    fn digits(&self, over: Axes) -> [(bool, u64); 6] {
        let (Extents { g, m, n }, groups, [rows, columns]) =
            (self.extents, self.groups.max(1), self.each(over).map(|e| e.max(1)));
        [(over.g, g / groups), (false, groups), (false, m / rows), (true, rows), (false, n / columns), (true, columns)]
    }
    /// Values that are left where these axes are reduced.
    pub fn left(&self, over: Axes) -> u64 {
        self.digits(over).iter().filter(|a| !a.0).map(|a| a.1).product()
    }
    /// Elements that each of them is computed of.
    pub fn count(&self, over: Axes) -> u64 {
        self.digits(over).iter().filter(|a| a.0).map(|a| a.1).product()
    }
    /// Where the value of an element is among those that are left: batch entries outermost, then rows.
    pub fn index(&self, over: Axes, element: [u64; 3]) -> u64 {
        self.number(over, element, false)
    }
    /// Number of an element among those of its value, in the same order, where the operator asks for it.
    pub fn within(&self, r: &Reduction, element: [u64; 3]) -> u64 {
        if r.operator.indexes() { self.number(r.over, element, true) } else { 0 }
    }
    fn number(&self, over: Axes, [g, m, n]: [u64; 3], reduced: bool) -> u64 {
        let digits = self.digits(over);
        let [_, (_, groups), _, (_, rows), _, (_, columns)] = digits;
        let digits = digits.into_iter().zip([g / groups, g % groups, m / rows, m % rows, n / columns, n % columns]);
        digits.filter(|((over, _), _)| *over == reduced).fold(0, |at, ((_, extent), i)| at * extent + i)
    }
    /// The element with a number among those of the value of another.
    pub fn element(&self, over: Axes, [g, m, n]: [u64; 3], mut number: u64) -> [u64; 3] {
        let digits = self.digits(over);
        let [_, (_, groups), _, (_, rows), _, (_, columns)] = digits;
        let mut at = [g / groups, g % groups, m / rows, m % rows, n / columns, n % columns];
        for (i, (_, extent)) in digits.into_iter().enumerate().rev().filter(|(_, (over, _))| *over) {
            at[i] = number % extent;
            number /= extent;
        }
        [at[0] * groups + at[1], at[2] * rows + at[3], at[4] * columns + at[5]]
    }
}

/// Refuses what no result of this type of sums can have: its reductions, stored or not.
pub(crate) fn check_all(
    all: &[Reduction],
    drop_c: bool,
    (accumulator, shape): (Scalar, ResultShape),
) -> Result<(), ProblemError> {
    let count = all.len();
    if count > MOST_REDUCTIONS {
        let reason = format!("at most {MOST_REDUCTIONS} can be");
        return Err(ProblemError::value("reduce", format!("{count} reductions"), reason));
    }
    if drop_c && count == 0 {
        let reason = "nothing is left of a product without C; add a reduction, or store C";
        return Err(ProblemError::value("reduce", "none", reason));
    }
    all.iter().try_for_each(|r| r.check(accumulator, shape))
}

/// `b`, `m` and `n` of those that are meant: `mn`; behind an axis the size of its blocks: `mn10`.
impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.g, "b", 0), (self.m, "m", self.blocks[0]), (self.n, "n", self.blocks[1])];
        all.iter().filter(|a| a.0).try_for_each(|(_, name, block)| match block {
            0 => f.write_str(name),
            _ => write!(f, "{name}{block}"),
        })
    }
}

impl FromStr for Axes {
    type Err = String;

    fn from_str(axes: &str) -> Result<Axes, String> {
        let mut over = Axes::default();
        let mut rest = axes;
        while let Some(axis) = rest.chars().next() {
            let behind = &rest[axis.len_utf8()..];
            let end = behind.find(|ch: char| !ch.is_ascii_digit()).unwrap_or(behind.len());
            let (digits, further) = behind.split_at(end);
            let (slot, block) = match axis {
                'b' => (&mut over.g, None),
                'm' => (&mut over.m, Some(0)),
                'n' => (&mut over.n, Some(1)),
                _ => return Err(format!("`{axis}` is no axis; the axes are b (batch), m (rows) and n (columns)")),
            };
            if std::mem::replace(slot, true) {
                return Err(format!("axis {axis} is there twice"));
            }
            match (digits, block) {
                ("", _) => {}
                (_, None) => {
                    return Err(format!("`{axis}{digits}`: the batch has no blocks; those of m and n are m{digits}, n{digits}"));
                }
                (_, Some(axis)) => match text::number(digits)? {
                    0 => return Err(format!("`{axes}`: a block has one element at least")),
                    size => over.blocks[axis] = size,
                },
            }
            rest = further;
        }
        Ok(over)
    }
}

/// One reduction of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reduction {
    /// What is computed.
    pub operator: Operator,
    /// Axes that are reduced.
    pub over: Axes,
    /// Of the result rounded to C's type, instead of as it is computed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stored: bool,
    /// Type of the values where it is not that of the sums, or i64 for indices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Scalar>,
}

impl Reduction {
    /// An operator over some axes, of the result as it is computed, in the type of the sums.
    pub const fn new(operator: Operator, over: Axes) -> Reduction {
        Reduction { operator, over, stored: false, dtype: None }
    }
    /// Type of the values beside sums of a type.
    pub fn scalar(&self, accumulator: Scalar) -> Scalar {
        self.dtype.unwrap_or(if self.operator.indexes() { Scalar::I64 } else { accumulator })
    }
    /// Refuses what no result of this shape with this type of sums has.
    fn check(&self, accumulator: Scalar, shape: ResultShape) -> Result<(), ProblemError> {
        let refuse = |reason: &str| Err(ProblemError::value("reduce", self, reason));
        if self.over == Axes::default() {
            return refuse("names no axis; give some of b (batch), m (rows) and n (columns)");
        }
        if !self.over.m && !self.over.n {
            return Err(ProblemError::Unsupported {
                what: format!("a reduction over the batch alone ({self})"),
                remedy: "reduce over m or n as well".into(),
            });
        }
        for ((block, extent), axis) in
            self.over.blocks.into_iter().zip([shape.extents.m, shape.extents.n]).zip([Along::M, Along::N])
        {
            let kept = block > 0 && !if axis == Along::M { self.over.m } else { self.over.n };
            if kept || (block > 0 && !extent.is_multiple_of(block)) {
                let rest = if kept { "which is not reduced".into() } else { format!("of which there are {extent}") };
                return Err(ProblemError::value(
                    "reduce",
                    self,
                    format!("blocks of {block} do not divide {}, {rest}", axis.name()),
                ));
            }
        }
        let dtype = self.scalar(accumulator);
        if self.operator.indexes() {
            return match dtype {
                Scalar::I64 => Ok(()),
                Scalar::I32 if shape.count(self.over) <= i32::MAX as u64 + 1 => Ok(()),
                Scalar::I32 => refuse("i32 does not hold the indices of so many elements; leave the type out, which is i64 then"),
                _ => refuse("an index is i64 or i32"),
            };
        }
        if !accumulator.is_float() {
            return match (self.operator, dtype) {
                (Operator::Sum | Operator::Max | Operator::Min, Scalar::I32 | Scalar::I64) => Ok(()),
                (Operator::Sum | Operator::Max | Operator::Min, _) => refuse("its type must be i64 or i32 beside sums in i64"),
                _ => refuse("integers have sum, max, min, argmax and argmin; give the tensor as f32"),
            };
        }
        if !dtype.is_float() || dtype.is_float8() || (dtype == Scalar::F64) != (accumulator == Scalar::F64) {
            return refuse("its type must be f32, f16 or bf16 beside sums in f32, and f64 beside sums in f64");
        }
        Ok(())
    }
}

/// `max:n`, `absmax:n128`, `sum:bm:stored:bf16`: operator, axes with the sizes of their blocks, what is reduced where it is not the result as computed, type where it is not that of
/// the sums.
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.operator, self.over)?;
        if self.stored {
            f.write_str(":stored")?;
        }
        self.dtype.map_or(Ok(()), |dtype| write!(f, ":{dtype}"))
    }
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(whole: &str) -> Result<Reduction, String> {
        let mut parts = whole.split(':');
        let name = parts.next().unwrap_or_default();
        let operator = Operator::from_name(name)
            .ok_or_else(|| format!("`{whole}`: `{name}` is no operator; the operators are {}", Operator::names()))?;
        let axes =
            parts.next().ok_or_else(|| format!("`{whole}`: the axes are missing; write {name}:n for one value per row"))?;
        let over = axes.parse().map_err(|reason| format!("`{whole}`: {reason}"))?;
        let mut found = Reduction::new(operator, over);
        for part in parts {
            let index = [Scalar::I32, Scalar::I64].into_iter().find(|s| s.name() == part);
            match (part, text::dtype(part).or(index)) {
                ("stored", _) if !found.stored => found.stored = true,
                (_, Some(dtype)) if found.dtype.is_none() => found.dtype = Some(dtype),
                _ => return Err(format!("`{whole}`: `{part}` is neither `stored` nor an element type, or is there twice")),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_bad_ones_are_named() {
        let blocks = ["absmax:n128", "sum:m4n10", "argmax:bmn10:i32"];
        let all = ["max:n", "sum:bm:stored:bf16", "absmax:bmn:f16", "mean:mn", "argmax:n:i32", "logsumexp:n", "var:bm"];
        for text in all.into_iter().chain(blocks) {
            assert_eq!(text.parse::<Reduction>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("median:n", "the operators are sum"),
            ("sum", "axes are missing"),
            ("sum:k", "`k` is no axis"),
            ("sum:nn", "twice"),
            ("sum:n4n8", "twice"),
            ("sum:n0", "one element at least"),
            ("sum:b4n", "the batch has no blocks"),
            ("sum:n99999999999999999999", "99999999999999999999"),
            ("sum:n:f8", "f8"),
            ("sum:n:f32:f32", "twice"),
        ] {
            let message = text.parse::<Reduction>().unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn nan_reaches_every_operator_and_identities_change_nothing() {
        for operator in Operator::ALL {
            for x in [-3.0, 0.0, 5.5, f64::NEG_INFINITY] {
                if operator == Operator::Var && x.is_infinite() {
                    continue;
                }
                let state = operator.element(x, 3);
                assert_eq!(operator.combine(state, operator.identity()), state, "{operator}");
                assert_eq!(operator.combine(operator.identity(), state), state, "{operator}");
                for nan in [1, 5] {
                    let nan = operator.element(f64::NAN, nan);
                    for both in [operator.combine(state, nan), operator.combine(nan, state)] {
                        match operator.indexes() {
                            true => assert_eq!(both[1], nan[1], "{operator}"),
                            false => assert!(operator.finish(both, 2).is_nan(), "{operator}"),
                        }
                    }
                }
            }
        }
    }

    fn of(operator: Operator, values: &[f64]) -> f64 {
        let state = (0..).zip(values).fold(operator.identity(), |s, (i, x)| operator.combine(s, operator.element(*x, i)));
        operator.finish(state, values.len() as u64)
    }

    #[test]
    fn operators_of_several_components() {
        let (nan, most) = (f64::NAN, f64::INFINITY);
        for (values, first, last) in [
            (&[1.0, 3.0, -2.0, 3.0, -2.0][..], 1.0, 2.0),
            (&[-most, -most], 0.0, 0.0),
            (&[0.0, -0.0], 0.0, 0.0),
            (&[5.0, nan, most, nan], 1.0, 1.0),
        ] {
            assert_eq!((of(Operator::ArgMax, values), of(Operator::ArgMin, values)), (first, last), "{values:?}");
        }
        for (values, result) in
            [(&[0.0; 8][..], 8f64.ln()), (&[1e4, 1e4, -1e4], 1e4 + 2f64.ln()), (&[-most; 3], -most), (&[-most, most, 1.0], most)]
        {
            assert_eq!(of(Operator::LogSumExp, values), result, "{values:?}");
        }
        assert!((of(Operator::Var, &[1e6, 1e6 + 2.0, 1e6, 1e6 + 2.0]) - 1.0).abs() < 1e-9);
        assert!(of(Operator::Var, &[1.0, most, 2.0]).is_nan());
        assert!(of(Operator::Var, &[most]).is_nan());
    }

    #[test]
    fn numbers_of_elements_are_read_back() {
        let shape = ResultShape { extents: Extents { g: 6, m: 4, n: 5 }, groups: 2 };
        for over in ["bm", "n", "mn", "m2", "bm2n5"].map(|axes| axes.parse::<Axes>().unwrap()) {
            for element @ [g, m, n] in [[0, 0, 0], [5, 3, 4], [3, 1, 2]] {
                let [rows, columns] = shape.each(over);
                // What is kept of it, and the rest by its number.
                let kept = [if over.g { g % 2 } else { g }, m / rows * rows, n / columns * columns];
                let number = shape.within(&Reduction::new(Operator::ArgMax, over), element);
                assert_eq!(shape.element(over, kept, number), element, "{over}");
                assert!(number < shape.count(over) && shape.index(over, element) < shape.left(over), "{over}");
            }
        }
        let (rows, blocks) = ("n".parse().unwrap(), "n5".parse().unwrap());
        assert_eq!((shape.index(rows, [5, 3, 4]), shape.left(blocks), shape.index(blocks, [5, 3, 4])), (23, 24, 23));
    }
}
