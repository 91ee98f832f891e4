//! The contraction `C[g,m,n] = act(alpha * sum_k A[g,m,k] * B[g,k,n] + bias + beta * C[g,m,n]) + residual`: what every problem
//! becomes.

use crate::problem::Activation;
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use tilewright_ir::Scalar;

/// Which operand of a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operand {
    /// Left factor, addressed by (g, m, k).
    A,
    /// Right factor, addressed by (g, n, k).
    B,
    /// Result, addressed by (g, m, n).
    C,
}

/// An operand: element type, view, and what is known of its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Element type in memory.
    pub scalar: Scalar,
    /// Where element (g, row, col) lives. A: (g, m, k); B: (g, n, k); C: (g, m, n).
    pub view: View,
    /// Known alignment of element 0 (buffer base plus the problem's offset), in bytes; a power of two.
    pub align: u32,
    /// Elements from element 0 to the end of the tensor's memory.
    pub len: u64,
}

/// A vector added to the result, one value per row (m) or column (n).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bias {
    /// Element type in memory.
    pub scalar: Scalar,
    /// True: indexed by n; false: indexed by m.
    pub along_n: bool,
    /// Distance from one group (g) of the contraction's bias values to the next within the bias vector, as a view of
    /// (g, index, 0).
    pub view: View,
    /// Elements of the bias vector.
    pub len: u64,
}

/// A batched matrix product over views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contraction {
    /// Batch extent.
    pub g: u64,
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Length of the sum.
    pub k: u64,
    /// Left factor.
    pub a: Tensor,
    /// Right factor.
    pub b: Tensor,
    /// Result.
    pub c: Tensor,
    /// Added to the scaled sums.
    pub bias: Option<Bias>,
    /// Applied to the scaled sums with bias and old result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// Added last: addressed as the result is, of its type, starting its buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<Tensor>,
}

impl Contraction {
    /// Type of the partial sums.
    pub fn accumulator(&self) -> Scalar {
        self.c.scalar.accumulator()
    }
    /// Floating-point operations: 2 g m n k.
    pub fn flop(&self) -> f64 {
        2.0 * self.g as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }
    /// The transposed product: A and B, m and n exchanged.
    pub fn exchanged(&self) -> Contraction {
        let turned = |t: &Tensor| Tensor { view: t.view.transposed(), ..t.clone() };
        let bias = self.bias.as_ref().map(|b| Bias { along_n: !b.along_n, ..b.clone() });
        Contraction {
            g: self.g,
            m: self.n,
            n: self.m,
            k: self.k,
            a: self.b.clone(),
            b: self.a.clone(),
            c: turned(&self.c),
            bias,
            activation: self.activation,
            residual: self.residual.as_ref().map(turned),
        }
    }
    /// What is computed, as a formula: `relu(alpha * sum_k A[g,m,k] * B[g,k,n] + bias[n] + beta * C[g,m,n])`.
    pub fn formula(&self) -> String {
        let bias = self.bias.as_ref().map_or("", |b| if b.along_n { " + bias[n]" } else { " + bias[m]" });
        let sum = format!("alpha * sum_k A[g,m,k] * B[g,k,n]{bias} + beta * C[g,m,n]");
        let sum = self.activation.map_or(sum.clone(), |f| format!("{f}({sum})"));
        if self.residual.is_some() { sum + " + residual[g,m,n]" } else { sum }
    }
    /// This, or the transposed product.
    pub fn oriented(&self, exchanged: bool) -> Cow<'_, Contraction> {
        if exchanged { Cow::Owned(self.exchanged()) } else { Cow::Borrowed(self) }
    }
    /// An operand by name.
    pub fn tensor(&self, operand: Operand) -> &Tensor {
        match operand {
            Operand::A => &self.a,
            Operand::B => &self.b,
            Operand::C => &self.c,
        }
    }
}
