//! Operators of reductions: what is known of no element, of one, of the elements of two states, and the result. And functions of elements
//! that come before them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What is computed of many values.
///
/// ```
/// use tilewright_problem::Operator;
///
/// let operator = Operator::from_name("mean").expect("an operator");
/// // Each thread has the state of some values. States are combined, and the last one gives the result.
/// let [x, y] = [1.0, 4.0].map(|x| operator.element(x, 0));
/// assert_eq!(operator.finish(operator.combine(x, y), 2), 2.5);
/// ```
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
    /// Euclidean norm: the square root of the sum of squares.
    Norm2,
}

/// What an operator knows of some values: components, those that it does not have are 0. Most operators have one. `argmax` and
/// `argmin` have the value and its index. `logsumexp` has the largest value and the sum of exponentials relative to it. `var` has
/// the mean, the count and the sum of squared differences from the mean.
///
/// ```
/// use tilewright_problem::{Operator, State};
///
/// // The largest value and its index.
/// let state: State = Operator::ArgMax.element(2.5, 7);
/// assert_eq!(state, [2.5, 7.0, 0.0]);
/// assert_eq!(Operator::ArgMax.combine(Operator::ArgMax.identity(), state), state);
/// ```
pub type State = [f64; 3];

impl Operator {
    /// All of them.
    pub const ALL: [Operator; 11] = [
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
        Operator::Norm2,
    ];

    /// In a word: `sum`, `mean`, `sumsq`, `max`, `min`, `absmax`, `argmax`, `argmin`, `logsumexp`, `var`, `norm2`.
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
            Operator::Norm2 => "norm2",
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
        matches!(self, Operator::Sum | Operator::Mean | Operator::SumSq | Operator::Norm2)
    }
    /// The result is an index.
    pub const fn indexes(self) -> bool {
        matches!(self, Operator::ArgMax | Operator::ArgMin)
    }
    /// The state of no value.
    pub const fn identity(self) -> State {
        match self {
            Operator::Sum | Operator::Mean | Operator::SumSq | Operator::AbsMax | Operator::Var | Operator::Norm2 => [0.0; 3],
            Operator::Max | Operator::LogSumExp => [f64::NEG_INFINITY, 0.0, 0.0],
            Operator::Min => [f64::INFINITY, 0.0, 0.0],
            Operator::ArgMax => [f64::NEG_INFINITY, f64::INFINITY, 0.0],
            Operator::ArgMin => [f64::INFINITY, f64::INFINITY, 0.0],
        }
    }
    /// The state of one value, which has this index.
    pub fn element(self, x: f64, index: u64) -> State {
        match self {
            Operator::SumSq | Operator::Norm2 => [x * x, 0.0, 0.0],
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
            Operator::Sum | Operator::Mean | Operator::SumSq | Operator::Norm2 => [x[0] + y[0], 0.0, 0.0],
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
            Operator::Norm2 => x[0].sqrt(),
            _ => x[0],
        }
    }
}

/// A function of each element, before an operator sees it.
///
/// ```
/// use tilewright_problem::{Function, Operator, Reduction};
///
/// // An L1 norm of each row: the sum of magnitudes.
/// let norm = Reduction::new(Operator::Sum, "n".parse()?).of(Function::Abs);
/// assert_eq!((norm.function, Function::Abs.apply(-2.0)), (Some(Function::Abs), 2.0));
/// // A sum of squares is an operator of its own.
/// assert_eq!(Reduction::new(Operator::Sum, "n".parse()?).of(Function::Square).operator, Operator::SumSq);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// Magnitude.
    Abs,
    /// Square.
    Square,
    /// Exponential.
    Exp,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 3] = [Function::Abs, Function::Square, Function::Exp];

    /// In a word: `abs`, `square`, `exp`.
    pub const fn name(self) -> &'static str {
        match self {
            Function::Abs => "abs",
            Function::Square => "square",
            Function::Exp => "exp",
        }
    }
    /// The words of all, with commas between them.
    pub fn names() -> String {
        Function::ALL.map(Function::name).join(", ")
    }
    /// The function of a word.
    pub fn from_name(name: &str) -> Option<Function> {
        Function::ALL.into_iter().find(|f| f.name() == name)
    }
    /// Of an element.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Function::Abs => x.abs(),
            Function::Square => x * x,
            Function::Exp => x.exp(),
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((of(Operator::Norm2, &[3.0, 0.0, -4.0]), of(Operator::Norm2, &[-most, 1.0])), (5.0, most));
    }
}
