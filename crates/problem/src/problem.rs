//! Problems: what the user wants computed, in the user's words, as plain validated values.
//!
//! A [`Gemm`], [`Conv`] or [`Reduce`] comes out of its builder validated, with tight defaults filled in. [`Problem::key`] is its canonical
//! text, which [`Problem::parse`] reads back; for a GEMM it is MIOpenGEMM's geometry string with optional further keys.

use crate::contraction::Operand;
use crate::conv::Conv;
use crate::dtype::Dtype;
use crate::epilogue::Activation;
use crate::error::ProblemError;
use crate::extent::{Dynamic, Extents};
use crate::gate::Gate;
use crate::gemm::Gemm;
use crate::math::Math;
use crate::quant::Quant;
use crate::ragged::Ragged;
use crate::reduce::Reduce;
use crate::reduction::{Reduction, ResultShape};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use tilewright_ir::Scalar;

/// Something to compute.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Operator, Problem, Reduce};
///
/// let product: Problem = Gemm::new(Scalar::F32, 4, 3, 2).build()?.into();
/// let sums: Problem = Reduce::new(Scalar::F32, &[4, 3], &[0]).op(Operator::Sum).build()?.into();
/// for problem in [product, sums] {
///     // The canonical text holds the whole problem.
///     assert_eq!(Problem::parse(&problem.key())?, problem);
/// }
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Problem {
    /// A (batched) matrix product.
    Gemm(Gemm),
    /// A convolution.
    Conv(Conv),
    /// A standalone reduction.
    Reduce(Reduce),
}

/// The same of either kind; of a standalone reduction as well, or what is given for it.
macro_rules! of {
    ($problem:expr, $p:ident => $value:expr) => {
        of!($problem, $p => $value, $p => $value)
    };
    ($problem:expr, $p:ident => $value:expr, $r:ident => $of_reduce:expr) => {
        match $problem {
            Problem::Gemm($p) => $value,
            Problem::Conv($p) => $value,
            Problem::Reduce($r) => $of_reduce,
        }
    };
}

impl Problem {
    /// Checks every field; only problems edited by hand have not passed yet.
    pub fn validate(&self) -> Result<(), ProblemError> {
        of!(self, p => p.validate())
    }
    /// Element type of the inputs.
    pub fn dtype(&self) -> Scalar {
        of!(self, p => p.dtype)
    }
    /// Element type of B, where it is another.
    pub fn b_dtype(&self) -> Scalar {
        if let Problem::Gemm(gemm) = self { gemm.scalar(1) } else { self.dtype() }
    }
    /// The type in which the factors are multiplied: that of the inputs, or of the float beside small weights.
    pub fn multiplied(&self) -> Scalar {
        if let Problem::Gemm(gemm) = self { gemm.multiplied() } else { self.dtype() }
    }
    /// With what precision f32 factors are multiplied.
    pub fn math(&self) -> Math {
        of!(self, p => p.math, _r => Math::Exact)
    }
    /// Name of the inputs' type under the problem's math: `tf32`, `tf32x3`, `bf16x3` or `bf16x6` where that is allowed.
    pub fn dtype_name(&self) -> &'static str {
        match self {
            Problem::Gemm(gemm) => gemm.dtype_name(),
            _ => Dtype::name_of(self.dtype(), self.math(), false),
        }
    }
    /// Numbers that each element has: 2 of complex ones.
    pub const fn parts(&self) -> u64 {
        if let Problem::Gemm(gemm) = self { gemm.parts() } else { 1 }
    }
    /// Element type of the result.
    pub fn out_dtype(&self) -> Scalar {
        of!(self, p => p.out_dtype, r => r.dtype)
    }
    /// The type that results are computed in from the sums, and reduced.
    pub fn accumulator(&self) -> Scalar {
        of!(self, p => crate::error::computed_in(self.multiplied(), p.out_dtype)[1], r => r.accumulator())
    }
    /// The element type of the bias.
    pub fn bias_dtype(&self) -> Scalar {
        Activation::bias_dtype(self.activation(), self.accumulator(), self.out_dtype())
    }
    /// What is applied to the scaled sums with bias and old result.
    pub fn activation(&self) -> Option<Activation> {
        of!(self, p => p.activation)
    }
    /// What makes results of pairs of sums, in a gated product.
    pub const fn gate(&self) -> Option<Gate> {
        if let Problem::Gemm(gemm) = self { gemm.gate } else { None }
    }
    /// Values of the result that are computed beside it.
    pub fn reductions(&self) -> &[Reduction] {
        match self {
            Problem::Gemm(gemm) => &gemm.reductions,
            Problem::Conv(conv) => &conv.reductions,
            Problem::Reduce(reduce) => &reduce.reductions,
        }
    }
    /// The result itself is stored.
    pub const fn keeps_c(&self) -> bool {
        match self {
            Problem::Gemm(gemm) => !gemm.drop_c,
            Problem::Conv(conv) => !conv.drop_c,
            Problem::Reduce(_) => false,
        }
    }
    /// A launch may add the old result: it is stored, and each of its elements comes of one sum.
    pub const fn adds_old(&self) -> bool {
        self.keeps_c() && self.gate().is_none()
    }
    /// What its reductions reduce.
    pub fn result_shape(&self) -> ResultShape {
        match self {
            Problem::Gemm(gemm) => ResultShape { extents: gemm.extents(), groups: 1 },
            Problem::Conv(conv) => conv.result_shape(),
            Problem::Reduce(reduce) => reduce.result_shape(),
        }
    }
    /// Elements of a vector of quantisation parameters, or of the ends of groups; 0 without one.
    pub const fn quant_len(&self, quant: Quant) -> u64 {
        match self {
            Problem::Gemm(gemm) => gemm.quant_len(quant),
            _ => 0,
        }
    }
    /// An operand's elements fill its memory, so that what overlaps its memory overlaps elements. Of matrices with gaps another may lie there.
    pub fn is_packed(&self, operand: Operand) -> bool {
        match self {
            Problem::Gemm(gemm) => gemm.is_packed(operand as usize),
            Problem::Conv(_) => true,
            Problem::Reduce(_) => false,
        }
    }
    /// Elements of the bias vector's buffer; 0 without one.
    pub fn bias_len(&self) -> u64 {
        of!(self, p => p.bias_len(), _r => 0)
    }
    /// Elements of the residual's buffer; 0 without one.
    pub fn residual_len(&self) -> u64 {
        match self {
            Problem::Gemm(gemm) => gemm.residual_len(),
            Problem::Conv(conv) => u64::from(conv.residual) * conv.operand(Operand::C).1,
            Problem::Reduce(_) => 0,
        }
    }
    /// Elements of the tensor of a gated product's other factor; 0 without one.
    pub fn up_len(&self) -> u64 {
        if let Problem::Gemm(gemm) = self { gemm.up_len() } else { 0 }
    }
    /// Elements of the buffer of pre-activations; 0 without them.
    pub fn preactivations_len(&self) -> u64 {
        if let Problem::Gemm(gemm) = self { gemm.preactivations_len() } else { 0 }
    }
    /// Extents that are known only at launch.
    pub const fn dynamic(&self) -> Dynamic {
        match self {
            Problem::Gemm(gemm) => gemm.dynamic,
            Problem::Conv(_) | Problem::Reduce(_) => Dynamic::NONE,
        }
    }
    /// The problem that a launch with these extents computes.
    ///
    /// # Errors
    /// As [`Gemm::at`]; [`ProblemError::Unsupported`] for others.
    pub fn at(&self, at: Extents) -> Result<Problem, ProblemError> {
        match self {
            Problem::Gemm(gemm) => gemm.at(at).map(Problem::Gemm),
            Problem::Conv(_) | Problem::Reduce(_) => Err(ProblemError::Unsupported {
                what: "a convolution or reduction with extents known only at launch".into(),
                remedy: "make an operation for each size".into(),
            }),
        }
    }
    /// Workspace budget in bytes.
    pub fn workspace(&self) -> u64 {
        of!(self, p => p.workspace)
    }
    /// Sets the workspace budget in bytes, of a product rounded down to whole elements.
    pub fn set_workspace(&mut self, bytes: u64) {
        let element = if let Problem::Gemm(gemm) = self { u64::from(gemm.multiplied().bytes()) } else { 1 };
        of!(self, p => p.workspace = bytes - bytes % element);
    }
    /// Terms of a result's sum; of each part of a complex one.
    pub fn depth(&self) -> u64 {
        match self {
            Problem::Gemm(gemm) => gemm.terms().saturating_mul(gemm.parts()),
            Problem::Conv(conv) => conv.depth(),
            Problem::Reduce(_) => 1,
        }
    }
    /// Terms of the shortest sum. A group of terms may be a single one. A window may lie outside of its tensor but for one
    /// position.
    pub fn fewest_terms(&self) -> u64 {
        match self {
            Problem::Gemm(gemm) if gemm.grouped == Some(Ragged::K) => 1,
            Problem::Conv(conv) => conv.fewest_terms(),
            _ => self.depth(),
        }
    }
    /// Floating-point operations of the plain algorithm: two per multiply and add; of a reduction one per element and operator.
    pub fn flop(&self) -> f64 {
        match self {
            Problem::Gemm(g) => {
                // All groups together have so many rows, columns or terms.
                let products = if g.grouped.is_some() { 1 } else { g.batch };
                // Four real products and as many additions for each complex one and its addition.
                let of_parts = (g.parts() * g.parts()) as f64;
                2.0 * of_parts * products as f64 * g.m as f64 * g.product_columns() as f64 * g.terms() as f64
            }
            Problem::Conv(c) => c.flop(),
            Problem::Reduce(r) => {
                let Extents { m, n, .. } = r.result_shape().extents;
                m as f64 * n as f64 * r.reductions.len() as f64
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key())
    }
}

impl FromStr for Problem {
    type Err = ProblemError;
    fn from_str(text: &str) -> Result<Problem, ProblemError> {
        Problem::parse(text)
    }
}

impl From<Gemm> for Problem {
    fn from(gemm: Gemm) -> Problem {
        Problem::Gemm(gemm)
    }
}

impl From<Conv> for Problem {
    fn from(conv: Conv) -> Problem {
        Problem::Conv(conv)
    }
}

impl From<Reduce> for Problem {
    fn from(reduce: Reduce) -> Problem {
        Problem::Reduce(reduce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::Order;

    #[test]
    fn what_is_deserialised_is_validated() {
        let gemm = Gemm::new(Scalar::F32, 3, 4, 5).order(Order::Col).build().unwrap();
        let conv = Conv::new(Scalar::F32, 2, 8, 6, &[9, 7], &[3, 2]).build().unwrap();
        for problem in [Problem::Gemm(gemm), Problem::Conv(conv)] {
            let text = serde_json::to_string(&problem).unwrap();
            assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
            let broken = text.replace("\"k\":5", "\"k\":0").replace("\"filter\":[3,2]", "\"filter\":[0,2]");
            let message = serde_json::from_str::<Problem>(&broken).unwrap_err().to_string();
            assert!(message.contains("at least 1"), "{message}");
        }
    }
}
