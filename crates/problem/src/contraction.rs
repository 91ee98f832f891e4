//! The contraction `C[g,m,n] = act(alpha * sum_k A[g,m,k] * B[g,k,n] + bias + beta * C[g,m,n]) + residual`: what every problem
//! becomes.

use crate::epilogue::Activation;
use crate::extent::{Dynamic, Extent, Extents};
use crate::math::Math;
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use tilewright_ir::{MatrixType, Scalar};

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
    /// With what precision f32 factors are multiplied.
    #[serde(default, skip_serializing_if = "Math::is_exact")]
    pub math: Math,
    /// Added to the scaled sums.
    pub bias: Option<Bias>,
    /// Applied to the scaled sums with bias and old result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// Added last: addressed as the result is, of its type, starting its buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<Tensor>,
    /// Extents that are known only at launch; `g`, `m`, `n` are then the largest, and strides are those of the largest.
    #[serde(default, skip_serializing_if = "Dynamic::is_none")]
    pub dynamic: Dynamic,
    /// This is the transposed product of what was asked for: `a` is its B and m its n.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub swapped: bool,
}

impl Tensor {
    /// Elements from element 0 to behind the last that a launch with these extents touches.
    pub fn len_at(&self, extent: [u64; 3]) -> u64 {
        let Some(shape) = self.view.is_affine_box() else { return self.len };
        let steps = shape.strides.iter().zip(extent).map(|(s, e)| s.unsigned_abs().saturating_mul(e.saturating_sub(1)));
        steps.fold(shape.base.unsigned_abs().saturating_add(1), u64::saturating_add).min(self.len)
    }
}

impl Contraction {
    /// The largest extents.
    pub const fn extents(&self) -> Extents {
        Extents { g: self.g, m: self.m, n: self.n }
    }
    /// Elements of the residual that a launch with these extents reads.
    pub fn residual_len_at(&self, at: &Extents) -> u64 {
        let len = |r: &Tensor| if *at == self.extents() { r.len } else { r.len_at([at.g, at.m, at.n]) };
        self.residual.as_ref().map_or(0, len)
    }
    /// Elements of the bias vector that a launch with these extents reads.
    pub fn bias_len_at(&self, at: &Extents) -> u64 {
        let Some(bias) = &self.bias else { return 0 };
        if *at == self.extents() {
            return bias.len;
        }
        let tensor = Tensor { scalar: bias.scalar, view: bias.view.clone(), align: 1, len: bias.len };
        tensor.len_at([at.g, if bias.along_n { at.n } else { at.m }, 1])
    }
    /// The extents in words: `g 1 m 64 n 32 k 7`, `up to` where one is the largest of a launch.
    pub fn sizes(&self) -> String {
        let of = |name: &str, value: u64, run_time: bool| format!("{name} {}{value}", if run_time { "up to " } else { "" });
        let Dynamic { g, m, n } = self.dynamic;
        [of("g", self.g, g), of("m", self.m, m), of("n", self.n, n), of("k", self.k, false)].join(" ")
    }
    /// Elements of an operand that a launch with these extents touches, from its element 0 on.
    pub fn len_at(&self, operand: Operand, at: &Extents) -> u64 {
        let tensor = self.tensor(operand);
        if *at == self.extents() {
            return tensor.len;
        }
        let [rows, cols] = match operand {
            Operand::A => [at.m, self.k],
            Operand::B => [at.n, self.k],
            Operand::C => [at.m, at.n],
        };
        tensor.len_at([at.g, rows, cols])
    }
    /// Type of the partial sums.
    pub fn accumulator(&self) -> Scalar {
        self.c.scalar.accumulator()
    }
    /// Type that matrix units may take the factors in; `None` where there is none.
    pub fn matrix_input(&self) -> Option<MatrixType> {
        match (self.a.scalar, self.math) {
            (a, _) if a != self.b.scalar => None,
            (Scalar::F64, _) if self.accumulator() == Scalar::F64 => Some(MatrixType::F64),
            _ if self.accumulator() != Scalar::F32 => None,
            (Scalar::F16, _) => Some(MatrixType::F16),
            (Scalar::BF16, _) => Some(MatrixType::BF16),
            (Scalar::F32, Math::Tf32) => Some(MatrixType::TF32),
            _ => None,
        }
    }
    /// Floating-point operations: 2 g m n k.
    pub fn flop(&self) -> f64 {
        2.0 * self.g as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }
    /// The transposed product: A and B, m and n exchanged.
    fn transposed(&self) -> Contraction {
        let turned = |t: &Tensor| Tensor { view: t.view.transposed(), ..t.clone() };
        let bias = self.bias.as_ref().map(|b| Bias { along_n: !b.along_n, ..b.clone() });
        let dynamic = Dynamic { m: self.dynamic.n, n: self.dynamic.m, ..self.dynamic };
        Contraction {
            g: self.g,
            m: self.n,
            n: self.m,
            k: self.k,
            a: self.b.clone(),
            b: self.a.clone(),
            c: turned(&self.c),
            math: self.math,
            bias,
            activation: self.activation,
            residual: self.residual.as_ref().map(turned),
            dynamic,
            swapped: !self.swapped,
        }
    }
    /// What is computed, as a formula: `relu(alpha * sum_k A[g,m,k] * B[g,k,n] + bias[n] + beta * C[g,m,n])`.
    pub fn formula(&self) -> String {
        let bias = self.bias.as_ref().map_or("", |b| if b.along_n { " + bias[n]" } else { " + bias[m]" });
        let sum = format!("alpha * sum_k A[g,m,k] * B[g,k,n]{bias} + beta * C[g,m,n]");
        let sum = self.activation.map_or(sum.clone(), |f| format!("{f}({sum})"));
        if self.residual.is_some() { sum + " + residual[g,m,n]" } else { sum }
    }
    /// What was asked for, or the transposed product of it, whichever this is.
    pub fn oriented(&self, swapped: bool) -> Cow<'_, Contraction> {
        if swapped == self.swapped { Cow::Borrowed(self) } else { Cow::Owned(self.transposed()) }
    }
    /// What the problem calls the two factors.
    pub const fn factors(&self) -> [Operand; 2] {
        if self.swapped { [Operand::B, Operand::A] } else { [Operand::A, Operand::B] }
    }
    /// What the problem calls an extent, where that is known only at launch.
    pub fn dynamic_extent(&self, extent: Extent) -> Option<Extent> {
        self.dynamic.has(extent).then(|| if self.swapped { extent.turned() } else { extent })
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
