//! Gated products, as the first half of a gated MLP computes: `C = f(A B_gate + b_gate) * (A B_up + b_up)`.
//!
//! The clamped gate of gpt-oss is of both factors: `h(min(x, limit)) * (min(max(y, -limit), limit) + 1)`, with `h(x) = x / (1 + exp(-slope x))`.
//!
//! B is one matrix whose columns are those of both factors: one half after the other, as torch stores `gate_up_proj`, or alternating, as gpt-oss
//! does. Bias and scales along n have a value for each of these columns.

use crate::epilogue::Activation;
use crate::names::names;
use crate::real::Real;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The function of a gate.
///
/// ```
/// use tilewright_problem::{Gate, GateFunction};
///
/// // SwiGLU multiplies silu(gate) by up.
/// let function = GateFunction::named("silu").expect("a function");
/// let gate = Gate::new(function);
/// assert!((gate.of_gate(1.0) * gate.of_up(3.0) - 3.0 / (1.0 + (-1.0f64).exp())).abs() < 1e-15);
/// // The sigmoid of a GLU is no activation of its own.
/// assert_eq!(GateFunction::Sigmoid.activation(), None);
/// ```
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
    /// Clamped SwiGLU, as gpt-oss has it: see [`Gate::limit`] and [`Gate::slope`].
    Clamped,
}

names!(GateFunction {
    Relu = 1, ["relu"], "ReGLU";
    Gelu = 2, ["gelu"], "GEGLU by the error function";
    GeluTanh = 3, ["gelutanh", "gelu-tanh", "gelu_tanh"], "GEGLU approximated by tanh";
    Silu = 4, ["silu"], "SwiGLU";
    HardSwish = 5, ["hardswish", "hard-swish", "hard_swish"], "by hardswish";
    Sigmoid = 6, ["sigmoid"], "GLU";
    Linear = 7, ["linear"], "the product of both halves";
    Clamped = 8, ["clamped"], "clamped SwiGLU of gpt-oss";
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
            GateFunction::Sigmoid | GateFunction::Linear | GateFunction::Clamped => None,
        }
    }
    /// A bound of the error of evaluating the function, in unit roundoffs of its argument's scale: as [`Activation::rounding`]. A sigmoid is the
    /// quotient that Silu multiplies by its argument. The argument times the slope rounds once more.
    pub const fn rounding(self) -> f64 {
        match (self, self.activation()) {
            (_, Some(activation)) => activation.rounding(),
            (GateFunction::Sigmoid, None) => 12.0,
            (GateFunction::Clamped, None) => Activation::Silu.rounding() + 1.0,
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
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gate, GateFunction, Gemm};
///
/// // C has 8 columns, B has 16: gate and up alternate.
/// let gemm = Gemm::new(Scalar::BF16, 4, 8, 32).gate(GateFunction::Silu).interleaved(true).build()?;
/// let gate = gemm.gate.expect("a gated product");
/// assert_eq!(gate.columns(3, gemm.n), [6, 7]);
/// assert_eq!(Gate::new(GateFunction::Silu).columns(3, gemm.n), [3, 11]);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gate {
    /// What is applied to the gate's half.
    pub function: GateFunction,
    /// The gate's columns are the second half of B, or the second of each pair.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub up_first: bool,
    /// Columns of both factors take turns: pairs of neighbours instead of halves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interleaved: bool,
    /// The columns of the other factor are a tensor of their own ([`Role::Up`](crate::Role::Up)), which lies as B does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub separate_up: bool,
    /// Of [`GateFunction::Clamped`]: sums of the gate are at most this, those of the other half between this and its negative.
    #[serde(default = "Gate::default_limit", skip_serializing_if = "Gate::is_default_limit")]
    pub limit: Real,
    /// Of [`GateFunction::Clamped`]: the factor of the sigmoid's argument.
    #[serde(default = "Gate::default_slope", skip_serializing_if = "Gate::is_default_slope")]
    pub slope: Real,
}

impl Gate {
    /// The limit of gpt-oss.
    pub const LIMIT: Real = Real::constant(7.0);
    /// The slope of gpt-oss, with which the function is near GELU.
    pub const SLOPE: Real = Real::constant(1.702);

    /// With the gate's columns first.
    pub const fn new(function: GateFunction) -> Gate {
        Gate { function, up_first: false, interleaved: false, separate_up: false, limit: Gate::LIMIT, slope: Gate::SLOPE }
    }
    const fn default_limit() -> Real {
        Gate::LIMIT
    }
    const fn default_slope() -> Real {
        Gate::SLOPE
    }
    fn is_default_limit(limit: &Real) -> bool {
        *limit == Gate::LIMIT
    }
    fn is_default_slope(slope: &Real) -> bool {
        *slope == Gate::SLOPE
    }
    /// The columns of the product, of `2 n`, that result column `column` comes from: the gate's and the other factor's.
    pub const fn columns(self, column: u64, n: u64) -> [u64; 2] {
        let [first, second] = if self.interleaved { [2 * column, 2 * column + 1] } else { [column, n + column] };
        if self.up_first { [second, first] } else { [first, second] }
    }
    /// What the gate's sum becomes, in f64. NaN stays NaN.
    pub fn of_gate(self, x: f64) -> f64 {
        match (self.function, self.function.activation()) {
            (_, Some(activation)) => activation.apply(x),
            (GateFunction::Sigmoid, None) => 1.0 / (1.0 + (-x).exp()),
            (GateFunction::Clamped, None) => {
                let x = if x > self.limit.value() { self.limit.value() } else { x };
                x / (1.0 + (-self.slope.value() * x).exp())
            }
            _ => x,
        }
    }
    /// What the other factor's sum becomes, by which that is multiplied.
    pub fn of_up(self, y: f64) -> f64 {
        let limit = self.limit.value();
        if self.function == GateFunction::Clamped { y.clamp(-limit, limit) + 1.0 } else { y }
    }
    /// How much an error of the gate's sum, relative to a scale of it, may change [`Gate::of_gate`]. The error of the evaluation
    /// is within as much of it. The sigmoid's slope is at most 1/4, and its own value at most 1. `x / (1 + exp(-slope x))` is as
    /// steep as Silu, whatever the slope.
    pub fn gate_scale(self, scale: f64) -> f64 {
        match (self.function, self.function.activation()) {
            (_, Some(activation)) => activation.slope(0.0) * scale,
            (GateFunction::Sigmoid, None) => 0.25 * scale + 1.0,
            (GateFunction::Clamped, None) => Activation::Silu.slope(0.0) * scale,
            _ => scale,
        }
    }
    /// The same of [`Gate::of_up`]: the addition rounds, too.
    pub fn up_scale(self, scale: f64) -> f64 {
        if self.function == GateFunction::Clamped { scale + 1.0 } else { scale }
    }
}
