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
}

impl Math {
    /// True if nothing is lost: what keys and records leave out.
    pub fn is_exact(&self) -> bool {
        *self == Math::Exact
    }
    /// Name of a type under this math, as geometry strings and case files spell it: `tf32`, or the type's own.
    pub const fn dtype_name(self, dtype: Scalar) -> &'static str {
        match self {
            Math::Exact => dtype.name(),
            Math::Tf32 => "tf32",
        }
    }
    /// The element type and math of a name.
    pub fn of_name(name: &str) -> Option<(Scalar, Math)> {
        if name == "tf32" {
            return Some((Scalar::F32, Math::Tf32));
        }
        crate::text::dtype(name).map(|scalar| (scalar, Math::Exact))
    }
    /// Refuses TF32 for other types than f32.
    pub(crate) fn check(self, dtype: Scalar) -> Result<(), ProblemError> {
        if self == Math::Exact || dtype == Scalar::F32 {
            return Ok(());
        }
        Err(ProblemError::value("math", "tf32", format!("it is a way to multiply f32, the operands are {dtype}")))
    }
    /// Largest relative error of a product of two factors: each loses at most 2^-10 of itself where a unit drops bits, half of that
    /// where it rounds.
    pub fn product_error(self) -> f64 {
        match self {
            Math::Exact => 0.0,
            Math::Tf32 => 2.0 * 2f64.powi(-10),
        }
    }
}
