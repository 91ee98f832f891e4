//! Epilogue options of a problem: zero points, vectors of scales, a bias vector, an activation, a residual.
//!
//! Every problem applies them in this order:
//!
//! ```text
//! out = activation(alpha * scale_m[m] * scale_n[n] * sum + bias + beta * C) + residual
//! ```
//!
//! Zero points are subtracted from the elements of A and B before they are multiplied. Scales of blocks of k multiply the partial
//! sum of their block ([`Quant`](crate::Quant)). The old result is added before the activation, as in cuBLASLt: `beta = 1` with
//! the shortcut in C gives a residual block's `relu(x + shortcut)`. The residual is added after the activation. It is a separate
//! operand that is only read: a transformer's `x + gelu(...)`, as in CUTLASS's residual-block epilogue. Bias and residual have
//! C's element type, except for the bias of an exponential. That bias has the accumulator's type, because its rounding to 16 bits
//! would be an error of the result's magnitude. All options change the result, so they belong to the problem and not to the plan.

use crate::error::ProblemError;
use crate::names::names;
use crate::real::Real;
use serde::{Deserialize, Serialize};
use std::fmt;
use tilewright_ir::Scalar;

/// A function of one result element. Computed in the type of the sums.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Activation, Gemm};
///
/// let activation = Activation::named("hard-swish").expect("an activation");
/// assert_eq!(activation.apply(1.0), 4.0 / 6.0);
/// let gemm = Gemm::new(Scalar::F32, 2, 2, 2).activation(activation).build()?;
/// assert_eq!(gemm.activation, Some(Activation::HardSwish));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `x / 2 * (1 + erf(x / sqrt 2))` (Hendrycks, Gimpel 2016), the exact form: PyTorch's default.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, the usual approximation: cuBLASLt's GELU, PyTorch's
    /// `approximate="tanh"`.
    GeluTanh,
    /// `x / (1 + exp(-x))`, also called swish.
    Silu,
    /// `x * min(max(x + 3, 0), 6) / 6` (Howard et al. 2019): MobileNet's piecewise form of swish.
    HardSwish,
    /// `exp(x)`: with `-logsumexp` of the row as its bias a product gives probabilities.
    Exp,
    /// `limit * tanh(x / limit)`: Gemma 2's limit of the logits (arXiv 2408.00118, section 2). The field `softcap` holds the limit, from
    /// [`Activation::CAPS`].
    Softcap(Real),
}

names!(Activation {
    Relu = 1, ["relu"], "max(x, 0)";
    Gelu = 2, ["gelu"], "GELU by the error function";
    GeluTanh = 3, ["gelutanh", "gelu-tanh", "gelu_tanh"], "GELU approximated by tanh";
    Silu = 4, ["silu"], "x sigmoid(x)";
    HardSwish = 5, ["hardswish", "hard-swish", "hard_swish"], "x min(max(x + 3, 0), 6) / 6";
    Exp = 6, ["exp"], "exp(x)";
} with Softcap = "softcap");

/// Coefficient of the cube in [`Activation::GeluTanh`].
pub const GELU_CUBE: f64 = 0.044_715;

impl Activation {
    /// The least and the largest limit of [`Activation::Softcap`]: quotients by others may be subnormal, which devices flush to 0.
    pub const CAPS: [f64; 2] = [1e-6, 1e6];

    /// Refuses a limit that is too small or too large.
    pub(crate) fn check(this: Option<Activation>) -> Result<(), ProblemError> {
        match this {
            Some(Activation::Softcap(limit)) if !(Self::CAPS[0]..=Self::CAPS[1]).contains(&limit.value()) => {
                Err(ProblemError::value("softcap", limit, "must be from 0.000001 to 1000000"))
            }
            _ => Ok(()),
        }
    }
    /// The function without its parameter, a constant that plans do not depend on: a softcap of 1.
    pub const fn kind(self) -> Activation {
        match self {
            Activation::Softcap(_) => Activation::Softcap(Real::constant(1.0)),
            other => other,
        }
    }
    /// The function in f64, without cancellation for negative arguments.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Activation::Relu if x < 0.0 => 0.0,
            Activation::Relu => x,
            Activation::Gelu => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            // 1 + tanh(y) = 2 / (1 + exp(-2 y)).
            Activation::GeluTanh => {
                let y = (2.0 / std::f64::consts::PI).sqrt() * (x + GELU_CUBE * x * x * x);
                x / (1.0 + (-2.0 * y).exp())
            }
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
            Activation::Exp => x.exp(),
            Activation::Softcap(limit) => limit.value() * (x / limit.value()).tanh(),
        }
    }
    /// The element type of a bias before it, from those of the sums and of the result.
    pub(crate) fn bias_dtype(this: Option<Activation>, accumulator: Scalar, out: Scalar) -> Scalar {
        if this == Some(Activation::Exp) { accumulator } else { out }
    }
    /// Refuses a function that only products have.
    pub(crate) fn check_outside_of_products(this: Option<Activation>) -> Result<(), ProblemError> {
        match this {
            Some(Activation::Softcap(limit)) => Err(ProblemError::value("softcap", limit, "only matrix products have it")),
            _ => Ok(()),
        }
    }
    /// A bound of the slope near an argument: how much an error of the argument may grow. Of exp that is for errors of at most 0.1.
    pub fn slope(self, x: f64) -> f64 {
        match self {
            Activation::Relu | Activation::Softcap(_) => 1.0,
            // 1.1290 at x = sqrt 2; the approximation's greatest is 1.1297.
            Activation::Gelu | Activation::GeluTanh => 1.13,
            // 1.0998 at x = 2.3994.
            Activation::Silu => 1.1,
            // (2 x + 3) / 6 at x = 3.
            Activation::HardSwish => 1.5,
            Activation::Exp => 1.06 * x.exp(),
        }
    }
    /// The scale of errors of the value. `scale` is that of the argument, no less than its magnitude: the argument's error is at most `bound` times it.
    pub fn scale(self, x: f64, scale: f64, bound: f64) -> f64 {
        if self != Activation::Exp {
            return self.slope(x) * scale;
        }
        // An exponential rounds relative to its value, however small its argument is.
        self.slope(x) * (1.0 + if bound * scale > 0.1 { (bound * scale).exp_m1() / bound } else { scale })
    }
    /// A bound of the error of evaluating the function, in unit roundoffs times `|x|`. Of erf half the error counts: 16 where
    /// that is the 16 ulp that OpenCL allows (an ulp is two roundoffs). Of exp at most a quarter of the error counts. The error
    /// is 6 (OpenCL) or 4 (ex2.approx) roundoffs, and some that grow with the argument z. The latter count as sigmoid (1 -
    /// sigmoid) |z| < 0.23 admits. The quotient rounds by 5 (OpenCL), the reciprocal by 2. The factor of hardswish, below 1,
    /// rounds by 2 and the product by 1. An exponential's argument is scaled by log2 e, which rounds twice relative to it, and it
    /// rounds by 6 (OpenCL) relative to its value. The argument of tanh rounds by 2, tanh by 10 (OpenCL) and the product by 1,
    /// all relative to values no greater than x.
    pub const fn rounding(self) -> f64 {
        match self {
            Activation::Relu => 0.0,
            Activation::Gelu => 20.0,
            Activation::GeluTanh | Activation::Silu => 10.0,
            Activation::HardSwish => 3.0,
            Activation::Exp => 8.0,
            Activation::Softcap(_) => 13.0,
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Activation::Softcap(limit) = self { write!(f, " {limit}") } else { Ok(()) }
    }
}

/// Which direction of the result a vector runs along.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Along, Gemm};
///
/// // A bias along n has one value per column, as a layer's bias does in row-major order.
/// let gemm = Gemm::new(Scalar::F32, 32, 10, 64).bias(Along::N).build()?;
/// assert_eq!(gemm.bias_len(), 10);
/// assert_eq!(Along::N.other(), Along::M);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Along {
    /// One value per row.
    M,
    /// One value per column.
    N,
}

names!(Along {
    M = 1, ["m"], "one value per row";
    N = 2, ["n"], "one value per column";
});

impl Along {
    /// The other direction.
    pub const fn other(self) -> Along {
        match self {
            Along::M => Along::N,
            Along::N => Along::M,
        }
    }
}

/// The bias vector of a matrix product. Its values are contiguous and start its buffer.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Along, BiasVector, Gemm};
///
/// // 4 batch entries with a vector of 10 values each, 16 elements apart.
/// let gemm = Gemm::new(Scalar::F32, 32, 10, 64).batch(4).bias_strided(Along::N, 16).build()?;
/// assert_eq!(gemm.bias, Some(BiasVector { along: Along::N, batch_stride: 16 }));
/// assert_eq!(gemm.bias_len(), 3 * 16 + 10);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BiasVector {
    /// One value per row or per column.
    pub along: Along,
    /// Elements from the vector of one batch entry to the next; 0: one vector for all. Always 0 without a batch.
    pub batch_stride: u64,
}

/// The residual of a matrix product: as large as C and stored the same way round, with distances of its own. It starts its
/// buffer.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Residual};
///
/// // All 4 batch entries add the same matrix, whose rows are 12 elements apart.
/// let gemm = Gemm::new(Scalar::F32, 32, 10, 64).batch(4).residual().ldr(12).stride_r(0).build()?;
/// assert_eq!(gemm.residual, Some(Residual { ld: 12, batch_stride: 0 }));
/// assert_eq!(gemm.residual_len(), 31 * 12 + 10);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Residual {
    /// Leading dimension in elements.
    pub ld: u64,
    /// Elements from one batch entry to the next; 0: one for all. Always 0 without a batch.
    pub batch_stride: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_textbook_ones() {
        for (activation, x, y) in [
            (Activation::Relu, -3.0, 0.0),
            (Activation::Relu, 2.5, 2.5),
            (Activation::Gelu, 1.0, 0.841_344_746_068_543),
            (Activation::Gelu, -1.0, -0.158_655_253_931_457),
            (Activation::GeluTanh, 1.0, 0.841_191_990_608_968_6),
            (Activation::Silu, 1.0, 0.731_058_578_630_004_9),
            (Activation::Silu, -1.0, -0.268_941_421_369_995_1),
            (Activation::HardSwish, 1.5, 1.125),
            (Activation::HardSwish, -1.5, -0.375),
            (Activation::HardSwish, 4.0, 4.0),
            (Activation::Exp, -1.0, 0.367_879_441_171_442_3),
            (Activation::Softcap(Real::constant(2.0)), 1.0, 0.924_234_314_520_019_5),
            (Activation::Softcap(Real::constant(30.0)), -1e4, -30.0),
        ] {
            assert!((activation.apply(x) - y).abs() < 1e-12, "{activation} of {x}: {}", activation.apply(x));
        }
        assert!(Activation::ALL.iter().all(|a| a.apply(f64::NAN).is_nan() && a.apply(-800.0) == 0.0));
        assert!(Activation::Softcap(Real::constant(30.0)).apply(f64::NAN).is_nan());
    }

    #[test]
    fn slopes_are_bounded_as_specified() {
        let softcap = Activation::Softcap(Real::constant(2.0));
        for activation in Activation::ALL.into_iter().filter(|a| *a != Activation::Exp).chain([softcap]) {
            let steepest = (-8000..8000)
                .map(|i| f64::from(i) / 1000.0)
                .map(|x| (activation.apply(x + 1e-3) - activation.apply(x)).abs() / 1e-3)
                .fold(0.0, f64::max);
            let bound = activation.slope(0.0);
            assert!(steepest <= bound + 1e-9 && steepest > bound - 0.01, "{activation}: {steepest}");
        }
        for (x, error) in [(-40.0, 0.1), (0.0, -0.1), (3.0, 0.01)] {
            let change = (Activation::Exp.apply(x + error) - Activation::Exp.apply(x)).abs();
            assert!(change <= Activation::Exp.slope(x) * f64::abs(error), "exp at {x}: {change}");
        }
    }

    #[test]
    fn names_round_trip() {
        assert!(Activation::ALL.iter().all(|a| Activation::named(a.name()) == Some(*a)));
        assert_eq!(Activation::named("tanh"), None);
        assert_eq!(Activation::named("softcap"), None);
        assert_eq!(Activation::Softcap(Real::constant(2.5)).to_string(), "softcap 2.5");
    }
}
