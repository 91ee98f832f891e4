//! With what precision the factors of f32 products are multiplied.

use crate::error::ProblemError;
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// Precision of products, where the type of the operands leaves a choice. It changes the bound of the error, so the user says it; a
/// plan never does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Math {
    /// In the type itself; 16-bit types are summed in f32.
    #[default]
    Exact,
    /// f32 factors may lose the lower 13 bits of their mantissa before they are multiplied: units for TF32 may be used. Sums and
    /// results are f32.
    Tf32,
    /// f32 factors are multiplied as sums of two TF32 numbers each: the nearest one, and what it leaves. Of the four products the least is
    /// left out, and units for TF32 add the other three, so that almost all of f32's accuracy is kept (Markidis et al. 2018, Ootomo
    /// and Yokota 2022). Infinities in A or B, and values within 2^-11 of f32's largest, give NaN.
    Tf32x3,
}

/// Element types as texts name them, for messages.
pub(crate) const NAMES: &str = "i8, u8, e4m3, e5m2, e4m3fnuz, e5m2fnuz, f16, bf16, tf32, tf32x3, f32 or f64";

impl Math {
    /// All of them.
    pub const ALL: [Math; 3] = [Math::Exact, Math::Tf32, Math::Tf32x3];

    /// As options and errors spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Math::Exact => "exact",
            Math::Tf32 => "tf32",
            Math::Tf32x3 => "tf32x3",
        }
    }
    /// True if nothing is lost: what keys and records leave out.
    pub fn is_exact(&self) -> bool {
        *self == Math::Exact
    }
    /// Name of a type under this math, as geometry strings and case files spell it: `tf32`, or the type's own.
    pub const fn dtype_name(self, dtype: Scalar) -> &'static str {
        match self {
            Math::Exact => dtype.name(),
            other => other.name(),
        }
    }
    /// The element type and math of a name.
    pub fn of_name(name: &str) -> Option<(Scalar, Math)> {
        match Math::ALL.into_iter().find(|math| !math.is_exact() && math.name() == name) {
            Some(math) => Some((Scalar::F32, math)),
            None => crate::text::dtype(name).map(|scalar| (scalar, Math::Exact)),
        }
    }
    /// Refuses ways to multiply f32 for other types than f32.
    pub(crate) fn check(self, dtype: Scalar) -> Result<(), ProblemError> {
        if self.is_exact() || dtype == Scalar::F32 {
            return Ok(());
        }
        Err(ProblemError::value("math", self.name(), format!("it is a way to multiply f32, the operands are {dtype}")))
    }
    /// Largest relative error of a product of two factors. TF32: each loses at most 2^-10 of itself where a unit drops bits, half of that
    /// where it rounds. Three products: a factor's smaller part is at most 2^-11 of it, so the product of both, which is left out, is
    /// at most 2^-22; and units drop the last bit of a smaller part, 2^-23 of each factor. (The larger part is rounded to the nearest: were
    /// it cut off, the smaller one would have two bits more than units take, and both errors together would reach 2^-19.)
    pub fn product_error(self) -> f64 {
        match self {
            Math::Exact => 0.0,
            Math::Tf32 => 2.0 * 2f64.powi(-10),
            Math::Tf32x3 => 2f64.powi(-21),
        }
    }
    /// What truncated sums of k terms may lose, in unit roundoffs of their scale and relative to sqrt(k): three instructions add to a
    /// sum where others need one, or one of twice the depth.
    pub(crate) fn truncation(self) -> f64 {
        if self == Math::Tf32x3 { 0.75 } else { 0.125 }
    }
}
