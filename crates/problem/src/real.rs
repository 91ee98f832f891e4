//! Positive numbers as parameters of functions: the limit of a softcap, limit and slope of a clamped gate.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A positive number of f32, which all types of sums have.
///
/// ```
/// use tilewright_problem::Real;
///
/// let slope = Real::parse("1.702")?;
/// assert_eq!(slope.value(), f64::from(1.702f32));
/// assert_eq!(Real::parse("-1").unwrap_err(), "must be a positive number of f32, such as 7 or 1.702");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "f32", try_from = "f32")]
pub struct Real(u32);

impl Real {
    /// The nearest f32 of a decimal number.
    ///
    /// # Errors
    /// The reason, of what is no positive number of f32's normal range.
    pub fn parse(text: &str) -> Result<Real, String> {
        text.parse::<f32>().ok().and_then(|value| value.try_into().ok()).ok_or_else(|| Real::REFUSAL.into())
    }
    /// Of a constant, which is to be positive and normal.
    pub(crate) const fn constant(value: f32) -> Real {
        Real(value.to_bits())
    }
    const REFUSAL: &str = "must be a positive number of f32, such as 7 or 1.702";
    /// Its value.
    pub const fn value(self) -> f64 {
        f32::from_bits(self.0) as f64
    }
}

impl TryFrom<f32> for Real {
    type Error = String;
    fn try_from(value: f32) -> Result<Real, String> {
        if value.is_normal() && value > 0.0 { Ok(Real(value.to_bits())) } else { Err(Real::REFUSAL.into()) }
    }
}

impl From<Real> for f32 {
    fn from(real: Real) -> f32 {
        f32::from_bits(real.0)
    }
}

impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f32::from(*self))
    }
}
