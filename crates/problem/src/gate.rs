//! Gated products, as the first half of a gated MLP computes: `C = f(A B_gate + b_gate) * (A B_up + b_up)`.
//!
//! B is one matrix whose columns are those of both factors, one half after the other, as torch stores `gate_up_proj`. Bias and scales along n
//! have a value for each of these columns.

use crate::epilogue::Activation;
use crate::names::names;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateFunction {
    /// ReGLU (Shazeer 2020).
    Relu,
    /// GEGLU, by the error function.
    Gelu,
    /// GEGLU, by the usual approximation.
    GeluTanh,
    /// SwiGLU.
    Silu,
    /// Of [`Activation::HardSwish`].
    HardSwish,
    /// The gated linear unit (Dauphin et al. 2017): `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The bilinear form: the product of both halves.
    Linear,
}

names!(GateFunction {
    Relu = 1, ["relu"], "ReGLU";
    Gelu = 2, ["gelu"], "GEGLU by the error function";
    GeluTanh = 3, ["gelutanh", "gelu-tanh", "gelu_tanh"], "GEGLU approximated by tanh";
    Silu = 4, ["silu"], "SwiGLU";
    HardSwish = 5, ["hardswish", "hard-swish", "hard_swish"], "by hardswish";
    Sigmoid = 6, ["sigmoid"], "GLU";
    Linear = 7, ["linear"], "the product of both halves";
});

impl GateFunction {
    /// The activation that it is, if it is one.
    pub const fn activation(self) -> Option<Activation> {
        match self {
            GateFunction::Relu => Some(Activation::Relu),
            GateFunction::Gelu => Some(Activation::Gelu),
            GateFunction::GeluTanh => Some(Activation::GeluTanh),
            GateFunction::Silu => Some(Activation::Silu),
            GateFunction::HardSwish => Some(Activation::HardSwish),
            GateFunction::Sigmoid | GateFunction::Linear => None,
        }
    }
    /// The function in f64.
    pub fn apply(self, x: f64) -> f64 {
        match (self, self.activation()) {
            (_, Some(activation)) => activation.apply(x),
            (GateFunction::Sigmoid, None) => 1.0 / (1.0 + (-x).exp()),
            _ => x,
        }
    }
    /// How much an error of the argument, relative to a scale of it, may change the value; what evaluation adds is within as much of it.
    /// The sigmoid's slope is at most 1/4, and its own value at most 1.
    pub fn scale(self, argument: f64) -> f64 {
        match (self, self.activation()) {
            (_, Some(activation)) => activation.slope() * argument,
            (GateFunction::Sigmoid, None) => 0.25 * argument + 1.0,
            _ => argument,
        }
    }
    /// A bound of the error of evaluating the function, in unit roundoffs of that scale: as [`Activation::rounding`]. A sigmoid is the quotient
    /// that Silu multiplies by its argument.
    pub const fn rounding(self) -> f64 {
        match (self, self.activation()) {
            (_, Some(activation)) => activation.rounding(),
            (GateFunction::Sigmoid, None) => 12.0,
            _ => 0.0,
        }
    }
    /// It is neither linear nor in pieces: what is added to its argument shows in its value only where it does not saturate.
    pub const fn is_smooth(self) -> bool {
        !matches!(self, GateFunction::Relu | GateFunction::Linear)
    }
}

impl fmt::Display for GateFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many results' gate columns may lie side by side in a product's order of columns, by the number of the form (`BIM`).
pub(crate) const GRANULES: [u64; 5] = [1, 8, 32, 64, 128];

/// The gate of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gate {
    /// What is applied to the gate's half.
    pub function: GateFunction,
    /// The gate's columns are the second half of B.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub up_first: bool,
}

impl Gate {
    /// The columns of B, of `2 n`, that result column `column` comes from: the gate's and the other factor's.
    pub const fn columns(self, column: u64, n: u64) -> [u64; 2] {
        if self.up_first { [n + column, column] } else { [column, n + column] }
    }
}
