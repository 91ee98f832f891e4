//! Reductions of a result: one value per row, column or batch entry, or one of all, computed where the result is.
//!
//! A problem has a list of them, each an operator over some of the result's axes. What is reduced is the result as it is computed, in
//! the type of the sums and behind bias, activation and residual, or as it is stored, rounded to C's type. Values of a reduction are
//! dense and start their buffer: batch entries outermost, then rows or columns, axes that are reduced left out.
//!
//! Rows, columns and batch of a convolution's result are pixels, channels of a group, and samples; its groups always stay apart.
//!
//! NaN reaches every reduction that it takes part in. Zeros compare equal. Sums and squares are accumulated in the type of the sums
//! and rounded once; a mean is the sum times the reciprocal of the count.

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
}

impl Operator {
    /// All of them.
    pub const ALL: [Operator; 6] =
        [Operator::Sum, Operator::Mean, Operator::SumSq, Operator::Max, Operator::Min, Operator::AbsMax];

    /// In a word: `sum`, `mean`, `sumsq`, `max`, `min`, `absmax`.
    pub const fn name(self) -> &'static str {
        match self {
            Operator::Sum => "sum",
            Operator::Mean => "mean",
            Operator::SumSq => "sumsq",
            Operator::Max => "max",
            Operator::Min => "min",
            Operator::AbsMax => "absmax",
        }
    }
    /// The operator of a word.
    pub fn from_name(name: &str) -> Option<Operator> {
        Operator::ALL.into_iter().find(|o| o.name() == name)
    }
    /// Adds values up, whose rounding depends on their order; the others pick one of them.
    pub const fn adds(self) -> bool {
        matches!(self, Operator::Sum | Operator::Mean | Operator::SumSq)
    }
    /// What no value changes: the result of none.
    pub const fn identity(self) -> f64 {
        match self {
            Operator::Sum | Operator::Mean | Operator::SumSq | Operator::AbsMax => 0.0,
            Operator::Max => f64::NEG_INFINITY,
            Operator::Min => f64::INFINITY,
        }
    }
    /// What one value contributes.
    pub fn element(self, x: f64) -> f64 {
        match self {
            Operator::SumSq => x * x,
            Operator::AbsMax => x.abs(),
            _ => x,
        }
    }
    /// Two contributions together.
    pub fn combine(self, x: f64, y: f64) -> f64 {
        let largest = |x: f64, y: f64| if x > y || x.is_nan() { x } else { y };
        match self {
            Operator::Sum | Operator::Mean | Operator::SumSq => x + y,
            Operator::Max | Operator::AbsMax => largest(x, y),
            Operator::Min => -largest(-x, -y),
        }
    }
    /// The result of contributions of so many values.
    pub fn finish(self, x: f64, count: u64) -> f64 {
        if self == Operator::Mean { x / count as f64 } else { x }
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
}

impl Axes {
    /// The same axes of the transposed result.
    #[must_use]
    pub const fn turned(self) -> Axes {
        Axes { g: self.g, m: self.n, n: self.m }
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
    /// Extents outside of the groups, of the groups, of rows and of columns, each with whether these axes reduce it.
    const fn digits(&self, over: Axes) -> [(bool, u64); 4] {
        let Extents { g, m, n } = self.extents;
        let groups = if self.groups == 0 { 1 } else { self.groups };
        [(over.g, g / groups), (false, groups), (over.m, m), (over.n, n)]
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
    pub fn index(&self, over: Axes, [g, m, n]: [u64; 3]) -> u64 {
        let groups = self.groups.max(1);
        let digits = self.digits(over).into_iter().zip([g / groups, g % groups, m, n]);
        digits.filter(|((over, _), _)| !over).fold(0, |at, ((_, extent), i)| at * extent + i)
    }
}

/// Refuses what no result of this type of sums can have: its reductions, stored or not.
pub(crate) fn check_all(all: &[Reduction], drop_c: bool, accumulator: Scalar) -> Result<(), ProblemError> {
    let count = all.len();
    if count > MOST_REDUCTIONS {
        let reason = format!("at most {MOST_REDUCTIONS} can be");
        return Err(ProblemError::value("reduce", format!("{count} reductions"), reason));
    }
    if drop_c && count == 0 {
        let reason = "nothing is left of a product without C; add a reduction, or store C";
        return Err(ProblemError::value("reduce", "none", reason));
    }
    all.iter().try_for_each(|r| r.check(accumulator))
}

/// `b`, `m` and `n` of those that are meant: `mn`.
impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        [(self.g, "b"), (self.m, "m"), (self.n, "n")].iter().filter(|a| a.0).try_for_each(|a| f.write_str(a.1))
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
    /// Type of the values where it is not that of the sums.
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
        self.dtype.unwrap_or(accumulator)
    }
    /// Refuses what no result with this type of sums has.
    fn check(&self, accumulator: Scalar) -> Result<(), ProblemError> {
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
        let dtype = self.scalar(accumulator);
        if !dtype.is_float() || (dtype == Scalar::F64) != (accumulator == Scalar::F64) {
            return refuse("its type must be f32, f16 or bf16 beside sums in f32, and f64 beside sums in f64");
        }
        Ok(())
    }
}

/// `max:n`, `sum:bm:stored:bf16`: operator, axes, what is reduced where it is not the result as computed, type where it is not that of
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
        let operator = Operator::from_name(name).ok_or_else(|| {
            let known = Operator::ALL.map(Operator::name).join(", ");
            format!("`{whole}`: `{name}` is no operator; the operators are {known}")
        })?;
        let axes =
            parts.next().ok_or_else(|| format!("`{whole}`: the axes are missing; write {name}:n for one value per row"))?;
        let mut over = Axes::default();
        for axis in axes.chars() {
            let slot = match axis {
                'b' => &mut over.g,
                'm' => &mut over.m,
                'n' => &mut over.n,
                _ => return Err(format!("`{whole}`: `{axis}` is no axis; the axes are b (batch), m (rows) and n (columns)")),
            };
            if std::mem::replace(slot, true) {
                return Err(format!("`{whole}`: axis {axis} is there twice"));
            }
        }
        let mut found = Reduction::new(operator, over);
        for part in parts {
            match (part, text::dtype(part)) {
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
        for text in ["max:n", "sum:bm:stored:bf16", "absmax:bmn:f16", "mean:mn"] {
            assert_eq!(text.parse::<Reduction>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("median:n", "the operators are sum"),
            ("sum", "axes are missing"),
            ("sum:k", "`k` is no axis"),
            ("sum:nn", "twice"),
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
            for x in [-3.0, 0.0, 5.5, f64::INFINITY] {
                let state = operator.element(x);
                assert_eq!(operator.combine(state, operator.identity()), state, "{operator}");
                assert_eq!(operator.combine(operator.identity(), state), state, "{operator}");
                assert!(operator.combine(state, operator.element(f64::NAN)).is_nan(), "{operator}");
                assert!(operator.combine(operator.element(f64::NAN), state).is_nan(), "{operator}");
            }
        }
    }
}
