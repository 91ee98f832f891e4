//! Reductions of a result: one value per row, column or batch entry, or one of all, computed where the result is.
//!
//! A problem has a list of reductions, each an operator over some of the result's axes. By default a reduction reads the result in the
//! accumulator's type, after bias, activation and residual. With `stored` it reads the result rounded to C's type. The values of a
//! reduction are dense and begin at the start of their buffer: batch entries outermost, then rows or columns, without reduced axes.
//!
//! Rows, columns and batch of a convolution's result are pixels, channels of a group, and samples; its groups always stay apart.
//!
//! Rows or columns may be reduced in blocks: `absmax:n128` is the largest magnitude of each 128 columns of a row. A block's values stand
//! where those of its row or column would, in the order of blocks.
//!
//! Where extents are known only at launch, values are those of the launch's result, and as dense.
//!
//! Elements may be replaced by a function of them first: `sum.abs:n`, `mean.square:n`, `sum.exp:n`.
//!
//! An operand of a product may be reduced over k, too. `sum:k:a` has a value for each row of A, `sum:k:b` one for each column of
//! B. Such sums are used with zero points. In a filter gradient the operand `a` is the output's gradient, so `sum:k:a` is the
//! gradient of the bias. Values stand where those of the result's rows or columns would. A plan says whether the product's main
//! loop computes them or a pass of its own over the operand.
//!
//! NaN reaches every reduction that it takes part in. Zeros compare equal. Sums and squares are accumulated in the type of the sums
//! and rounded once; a mean is the sum times the reciprocal of the count. A variance is the mean of squared differences from the mean
//! (population variance), whose parts are merged by their means; an infinity makes it NaN. The logarithm of a sum of exponentials is
//! computed relative to the largest: -infinity of nothing but -infinity, infinity where there is one.
//!
//! Sums of integers are exact in i64 (modulo 2^64); results of another type keep their low bits. Those of 8-bit integers are i32, of up to
//! 2^23 elements, unless i64 is asked for (`sum:i64`). Integers have `sum`, `max`, `min`, `argmax`
//! and `argmin` alone, and no factor.
//!
//! The value of an axis without elements is the operator's value for none: 0, -infinity or infinity (of integers the ends of
//! i32). A mean or variance is NaN. An index is refused.
//!
//! `argmax` and `argmin` give the index of the first of the largest or smallest elements, or of the first NaN if there is one.
//! Along one axis the index is a coordinate. Along several axes it counts elements as values are counted (batch entries
//! outermost, then rows). Indices are i64, or i32 where that is asked for and holds them.

mod axes;
mod operator;

pub use axes::{Axes, ResultShape};
pub use operator::{Function, Operator, State};

use crate::dtype::Dtype;
use crate::epilogue::{Activation, Along};
use crate::error::ProblemError;
use crate::extent::Dynamic;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use tilewright_ir::Scalar;

/// Most reductions of a problem: each is an argument of its kernels.
pub const MOST_REDUCTIONS: usize = 8;

/// Refuses what products of integers do not have.
pub(crate) fn check_integers(
    dtype: Scalar,
    out: Scalar,
    activation: Option<Activation>,
    reductions: &[Reduction],
) -> Result<(), ProblemError> {
    if let Some(activation) = activation.filter(|_| out == Scalar::I32) {
        return Err(ProblemError::value("activation", activation, "i32 results have none; give a result in f32, f16 or bf16"));
    }
    match reductions.first().filter(|_| dtype.is_int8()) {
        None => Ok(()),
        Some(one) => Err(ProblemError::Unsupported {
            what: format!("a reduction ({one}) of a product of integers"),
            remedy: "store the product and reduce it in a second call".into(),
        }),
    }
}

/// Elements of 8 bits whose sum i32 holds, signed or unsigned.
const MOST_IN_I32: u64 = 1 << 23;

/// Refuses what no result of this type of sums can have: its reductions, stored or not.
pub(crate) fn check_all(all: &[Reduction], drop_c: bool, accumulator: Scalar, shape: ResultShape) -> Result<(), ProblemError> {
    let count = all.len();
    if count > MOST_REDUCTIONS {
        let reason = format!("at most {MOST_REDUCTIONS} can be");
        return Err(ProblemError::value("reduce", format!("{count} reductions"), reason));
    }
    if drop_c && all.iter().all(|r| r.operand.is_some()) {
        let reason = "nothing is left of a product without C; add a reduction, or store C";
        return Err(ProblemError::value("reduce", "none", reason));
    }
    all.iter().try_for_each(|r| r.check(accumulator, shape))
}

/// One reduction of a result.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Operator, Reduction};
///
/// // The largest value of each row of C, computed with the product.
/// let reduction: Reduction = "max:n".parse().expect("a reduction");
/// assert_eq!(reduction, Reduction::new(Operator::Max, "n".parse().expect("axes")));
/// let gemm = Gemm::new(Scalar::F32, 4, 6, 8).reduce(reduction).build()?;
/// assert_eq!(gemm.reductions[0].to_string(), "max:n");
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reduction {
    /// What is computed.
    pub operator: Operator,
    /// Of what function of each element, where it is not the element itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// Axes that are reduced.
    pub over: Axes,
    /// Of an operand over k, instead of the result: that of the rows (m) or of the columns (n), which are what is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operand: Option<Along>,
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
        Reduction { operator, function: None, over, operand: None, stored: false, dtype: None }
    }
    /// An operator over k of the operand of the rows (A, along m) or of the columns (B, along n).
    pub fn of_operand(operator: Operator, operand: Along) -> Reduction {
        let over = Axes { m: operand == Along::N, n: operand == Along::M, ..Axes::default() };
        Reduction { operand: Some(operand), ..Reduction::new(operator, over) }
    }
    /// The same of a function of each element.
    #[must_use]
    pub const fn of(self, function: Function) -> Reduction {
        // These operators have their functions.
        match (self.operator, function) {
            (Operator::Sum, Function::Square) => Reduction { operator: Operator::SumSq, ..self },
            (Operator::Max, Function::Abs) => Reduction { operator: Operator::AbsMax, ..self },
            _ => Reduction { function: Some(function), ..self },
        }
    }
    /// Type of the values beside sums of a type.
    pub fn scalar(&self, accumulator: Scalar) -> Scalar {
        self.dtype.unwrap_or(if self.operator.indexes() { Scalar::I64 } else { accumulator })
    }
    /// Refuses what has no meaning, or no kernel, with extents known only at launch.
    pub(crate) fn check_dynamic(&self, dynamic: Dynamic) -> Result<(), ProblemError> {
        let refuse = |what: &str, remedy: &str| {
            let what = format!("{self}, {what} known only at launch,");
            Err(ProblemError::Unsupported { what, remedy: remedy.into() })
        };
        let Axes { g, m, n, blocks } = self.over;
        if self.operand.is_some() && !dynamic.is_none() {
            return refuse("of an operand of a product with extents", "reduce the operand's tensor in a call of its own");
        }
        if (self.over.in_blocks() && dynamic.n) || (blocks[0] > 0 && dynamic.m) {
            return refuse("blocks of a result with columns (or their rows)", "make an operation for each size");
        }
        // Indices count along the last axis first: those of axes before it are multiples of its extent.
        let inner = [(m && g, dynamic.m), (n && (g || m), dynamic.n)];
        if self.operator.indexes() && inner.into_iter().any(|(combined, dynamic)| combined && dynamic) {
            return refuse("an index over several axes, the last of them", "reduce one axis, or make an operation for each size");
        }
        Ok(())
    }
    /// Refuses what no result of this shape with this type of sums has.
    fn check(&self, accumulator: Scalar, shape: ResultShape) -> Result<(), ProblemError> {
        let refuse = |reason: &str| Err(ProblemError::value("reduce", self, reason));
        if self.over == Axes::default() {
            return refuse("names no axis; give one or more of b (batch), m (rows) and n (columns)");
        }
        if self.operand.is_some() && (self.stored || self.operator.indexes()) {
            return refuse(
                "a reduction of an operand has neither indices nor `stored`; leave them out, or reduce the operand's tensor in a call of its own",
            );
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
                Scalar::I32 => refuse("i32 cannot hold the indices of so many elements; leave the type out, then it is i64"),
                _ => refuse("an index is i64 or i32"),
            };
        }
        if !accumulator.is_float() && self.function.is_some() {
            return refuse("functions of elements need a float tensor; give the tensor as f32");
        }
        if !accumulator.is_float() {
            return match (self.operator, dtype) {
                (Operator::Sum, _) if accumulator == Scalar::I32 && shape.count(self.over) > MOST_IN_I32 => {
                    refuse("sums of so many integers of 8 bits may not fit i32; write sum:i64")
                }
                (Operator::Sum | Operator::Max | Operator::Min, Scalar::I32 | Scalar::I64) => Ok(()),
                (Operator::Sum | Operator::Max | Operator::Min, _) => refuse("its type must be i64 or i32"),
                _ => refuse("integer tensors have sum, max, min, argmax and argmin only; give the tensor as f32"),
            };
        }
        if !dtype.is_float() || dtype.is_float8() || (dtype == Scalar::F64) != (accumulator == Scalar::F64) {
            return refuse("its type must be f32, f16 or bf16 for f32 accumulators, and f64 for f64 accumulators");
        }
        Ok(())
    }
}

/// `max:n`, `absmax:n128`, `sum.exp:n`, `sum:bm:stored:bf16`, `sum:k:a`. The parts are: operator, function of each element, axes
/// with the sizes of their blocks, source, type. The source is left out for the result as computed, and the type for the
/// accumulator's type.
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operator)?;
        self.function.map_or(Ok(()), |function| write!(f, ".{function}"))?;
        match self.operand {
            None => write!(f, ":{}", self.over)?,
            Some(operand) => f.write_str(if operand == Along::M { ":k:a" } else { ":k:b" })?,
        }
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
        let (name, function) = name.split_once('.').map_or((name, None), |(name, function)| (name, Some(function)));
        let operator = Operator::from_name(name)
            .ok_or_else(|| format!("`{whole}`: `{name}` is no operator; the operators are {}", Operator::names()))?;
        let named = |name| {
            Function::from_name(name)
                .ok_or_else(|| format!("`{whole}`: `{name}` is no function; the functions are {}", Function::names()))
        };
        let function = function.map(named).transpose()?;
        let axes =
            parts.next().ok_or_else(|| format!("`{whole}`: the axes are missing; write {name}:n for one value per row"))?;
        let found = match axes {
            "k" => match parts.next() {
                Some("a") => Reduction::of_operand(operator, Along::M),
                Some("b") => Reduction::of_operand(operator, Along::N),
                _ => return Err(format!("`{whole}`: k is an axis of the operands; write {name}:k:a or {name}:k:b")),
            },
            _ => Reduction::new(operator, axes.parse().map_err(|reason| format!("`{whole}`: {reason}"))?),
        };
        let mut found = function.map_or(found, |function| found.of(function));
        for part in parts {
            let index = (part == Scalar::I64.name()).then_some(Scalar::I64);
            match (part, Dtype::scalar(part).or(index)) {
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
        let blocks = [
            "sum:k:a",
            "absmax:k:b:bf16",
            "absmax:n128",
            "sum:m4n10",
            "argmax:bmn10:i32",
            "sum.abs:n",
            "mean.square:m:stored:bf16",
            "argmin.exp:n4",
        ];
        let all = ["max:n", "sum:bm:stored:bf16", "absmax:bmn:f16", "mean:mn", "argmax:n:i32", "logsumexp:n", "var:bm"];
        for text in all.into_iter().chain(blocks) {
            assert_eq!(text.parse::<Reduction>().unwrap().to_string(), text);
        }
        for (text, same) in [("sum.square:n", "sumsq:n"), ("max.abs:m:f16", "absmax:m:f16")] {
            assert_eq!(text.parse::<Reduction>().unwrap(), same.parse().unwrap());
        }
        for (text, part) in [
            ("median:n", "the operators are sum"),
            ("sum", "axes are missing"),
            ("sum:k", "write sum:k:a or sum:k:b"),
            ("sum:k:c", "write sum:k:a or sum:k:b"),
            ("sum:x", "`x` is no axis"),
            ("sum:nn", "twice"),
            ("sum:n4n8", "twice"),
            ("sum.root:n", "the functions are abs, square, exp"),
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
}
