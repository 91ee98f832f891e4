//! With what precision factors are multiplied and their products added up, where their type leaves a choice.

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
    /// Sums of 8-bit floats in two levels: what a matrix unit has added up of [`Math::PROMOTED_EVERY`] terms is added in f32, and it begins
    /// anew. Units that keep fewer bits than f32 lose no more in a long sum than in one of so many terms (DeepSeek-V3, arXiv 2412.19437,
    /// section 3.3.2; cuBLASLt without fast accumulation).
    Promoted,
}

/// Element types as texts name them, for messages.
pub(crate) const NAMES: &str = "i8, u8, e4m3, e5m2, e4m3fnuz, e5m2fnuz (each of these four with `promoted` behind it as well), f16, bf16, tf32, tf32x3, f32 or f64";

impl Math {
    /// All of them.
    pub const ALL: [Math; 4] = [Math::Exact, Math::Tf32, Math::Tf32x3, Math::Promoted];
    /// Terms of a sum after which it is promoted to f32.
    pub const PROMOTED_EVERY: u32 = 128;

    /// As options and errors spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Math::Exact => "exact",
            Math::Tf32 => "tf32",
            Math::Tf32x3 => "tf32x3",
            Math::Promoted => "promoted",
        }
    }
    /// True if nothing is lost: what keys and records leave out.
    pub fn is_exact(&self) -> bool {
        *self == Math::Exact
    }
    /// Types of factors that can be multiplied so, other than exactly.
    const fn types(self) -> &'static [Scalar] {
        match self {
            Math::Exact => &[],
            Math::Tf32 | Math::Tf32x3 => &[Scalar::F32],
            Math::Promoted => &[Scalar::E4M3, Scalar::E5M2, Scalar::E4M3Fnuz, Scalar::E5M2Fnuz],
        }
    }
    /// Name of a type under this math, as geometry strings and case files spell it: `tf32`, `e4m3promoted`, or the type's own.
    pub const fn dtype_name(self, dtype: Scalar) -> &'static str {
        match (self, dtype) {
            (Math::Exact, _) => dtype.name(),
            (Math::Promoted, Scalar::E4M3) => "e4m3promoted",
            (Math::Promoted, Scalar::E5M2) => "e5m2promoted",
            (Math::Promoted, Scalar::E4M3Fnuz) => "e4m3fnuzpromoted",
            (Math::Promoted, Scalar::E5M2Fnuz) => "e5m2fnuzpromoted",
            (other, _) => other.name(),
        }
    }
    /// The element type and math of a name.
    pub fn of_name(name: &str) -> Option<(Scalar, Math)> {
        let ways = Math::ALL.into_iter().flat_map(|math| math.types().iter().map(move |scalar| (*scalar, math)));
        let mut ways = ways.filter(|(scalar, math)| math.dtype_name(*scalar) == name);
        ways.next().or_else(|| crate::text::dtype(name).map(|scalar| (scalar, Math::Exact)))
    }
    /// True if factors of this type can be multiplied so.
    pub fn suits(self, dtype: Scalar) -> bool {
        self.is_exact() || self.types().contains(&dtype)
    }
    /// Refuses ways to multiply one type for others.
    pub(crate) fn check(self, dtype: Scalar) -> Result<(), ProblemError> {
        if self.suits(dtype) {
            return Ok(());
        }
        let what = if self == Math::Promoted { "add up products of 8-bit floats" } else { "multiply f32" };
        Err(ProblemError::value("math", self.name(), format!("it is a way to {what}, the operands are {dtype}")))
    }
    /// Largest relative error of a product of two factors. TF32: each loses at most 2^-10 of itself where a unit drops bits, half of that
    /// where it rounds. Three products: a factor's smaller part is at most 2^-11 of it, so the product of both, which is left out, is
    /// at most 2^-22; and units drop the last bit of a smaller part, 2^-23 of each factor. (The larger part is rounded to the nearest: were
    /// it cut off, the smaller one would have two bits more than units take, and both errors together would reach 2^-19.)
    pub fn product_error(self) -> f64 {
        match self {
            Math::Exact | Math::Promoted => 0.0,
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
