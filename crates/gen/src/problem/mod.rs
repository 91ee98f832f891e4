//! Problems: what the user wants computed, in the user's words, as plain validated values.
//!
//! A [`Gemm`] or [`Conv`] comes out of its builder validated, with tight defaults filled in. [`Problem::key`] is its canonical
//! text, which [`Problem::parse`] reads back; for a GEMM it is MIOpenGEMM's geometry string with optional further keys.

/// Serialisation of a problem type derived with `#[serde(remote = "Self")]`, validating what is read.
macro_rules! validated_serde {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, serializer)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let value = $name::deserialize(deserializer)?;
                value.validate().map_err(serde::de::Error::custom)?;
                Ok(value)
            }
        }
    };
}
use validated_serde;

mod canonical;
pub mod cases;
mod conv;
pub mod epilogue;
mod gemm;
mod geometry;
mod math;

pub use canonical::Canonical;
pub use conv::{Conv, ConvBuilder, Direction, Layout};
pub use epilogue::{Activation, Along, BiasVector, Residual};
pub use gemm::{Gemm, GemmBuilder, Matrix, Order};
pub use math::Math;

use crate::contraction::{Dynamic, Extent, Extents};
use crate::view::ViewError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use tilewright_ir::Scalar;

/// Workspace a problem may use unless it says otherwise, in bytes.
pub const DEFAULT_WORKSPACE: u64 = 1 << 30;

/// Something to compute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Problem {
    /// A (batched) matrix product.
    Gemm(Gemm),
    /// A convolution.
    Conv(Conv),
}

/// Why something is not a problem that can be computed. Every message names the field, its value and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A field has an impossible value.
    #[error("{field} = {value}: {reason}")]
    Value {
        /// Field, as the builder or the key spells it.
        field: String,
        /// Its value.
        value: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The problem makes sense, but tilewright cannot do it.
    #[error("{what} is not supported: {remedy}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to do instead.
        remedy: String,
    },
    /// A problem's text cannot be read.
    #[error("problem `{text}`: {reason}")]
    Text {
        /// The whole text.
        text: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A case file cannot be read.
    #[error("{}: {reason}", place(file, *line, column))]
    Case {
        /// Path of the file.
        file: String,
        /// Line, from 1; 0 where the whole file is meant.
        line: u64,
        /// Column by name; empty where the whole line is meant.
        column: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A view could not be built; the problem's validation should have refused it before.
    #[error("lowering: {0}")]
    View(#[from] ViewError),
}

impl ProblemError {
    pub(crate) fn value(field: impl Into<String>, value: impl fmt::Display, reason: impl Into<String>) -> ProblemError {
        ProblemError::Value { field: field.into(), value: value.to_string(), reason: reason.into() }
    }
    pub(crate) fn text(text: &str, reason: impl Into<String>) -> ProblemError {
        ProblemError::Text { text: text.to_string(), reason: reason.into() }
    }
}

impl Problem {
    /// The canonical text of this problem: equal problems, and only those, have equal keys. Read back by [`Problem::parse`].
    pub fn key(&self) -> String {
        match self {
            Problem::Gemm(gemm) => gemm.geometry(),
            Problem::Conv(conv) => conv.key(),
        }
    }
    /// Reads a key: a MIOpenGEMM geometry string (with tilewright's further keys) or a convolution key.
    pub fn parse(text: &str) -> Result<Problem, ProblemError> {
        if text.starts_with("conv") {
            Conv::parse_key(text).map(Problem::Conv)
        } else {
            Gemm::parse_geometry(text).map(Problem::Gemm)
        }
    }
    /// Checks every field; only problems edited by hand have not passed yet.
    pub fn validate(&self) -> Result<(), ProblemError> {
        match self {
            Problem::Gemm(gemm) => gemm.validate(),
            Problem::Conv(conv) => conv.validate(),
        }
    }
    /// Element type of the inputs.
    pub fn dtype(&self) -> Scalar {
        match self {
            Problem::Gemm(gemm) => gemm.dtype,
            Problem::Conv(conv) => conv.dtype,
        }
    }
    /// With what precision f32 factors are multiplied.
    pub fn math(&self) -> Math {
        match self {
            Problem::Gemm(gemm) => gemm.math,
            Problem::Conv(conv) => conv.math,
        }
    }
    /// Name of the inputs' type under the problem's math: `tf32` where that is allowed.
    pub fn dtype_name(&self) -> &'static str {
        self.math().dtype_name(self.dtype())
    }
    /// Element type of the result.
    pub fn out_dtype(&self) -> Scalar {
        match self {
            Problem::Gemm(gemm) => gemm.out_dtype,
            Problem::Conv(conv) => conv.out_dtype,
        }
    }
    /// What is applied to the scaled sums with bias and old result.
    pub fn activation(&self) -> Option<Activation> {
        match self {
            Problem::Gemm(gemm) => gemm.activation,
            Problem::Conv(conv) => conv.activation,
        }
    }
    /// True if results are more than `alpha * sum + beta * C`: with a bias, an activation or a residual.
    pub fn has_epilogue(&self) -> bool {
        match self {
            Problem::Gemm(gemm) => gemm.bias.is_some() || gemm.activation.is_some() || gemm.residual.is_some(),
            Problem::Conv(conv) => conv.bias || conv.activation.is_some() || conv.residual,
        }
    }
    /// The type of the results where it differs, and what happens to the sums, for titles: ` to f32, bias n, gelu, residual`.
    pub fn epilogue_words(&self) -> String {
        let mut words = String::new();
        let (bias, residual) = match self {
            Problem::Gemm(gemm) => (gemm.bias.map(|b| format!(", bias {}", b.along.name())), gemm.residual.is_some()),
            Problem::Conv(conv) => (conv.bias.then(|| ", bias".to_string()), conv.residual),
        };
        if self.out_dtype() != self.dtype() {
            words = format!(" to {}", self.out_dtype());
        }
        words += &bias.unwrap_or_default();
        words += &self.activation().map_or(String::new(), |a| format!(", {a}"));
        words + if residual { ", residual" } else { "" }
    }
    /// Elements of the bias vector's buffer; 0 without one.
    pub fn bias_len(&self) -> u64 {
        match self {
            Problem::Gemm(gemm) => gemm.bias_len(),
            Problem::Conv(conv) => u64::from(conv.bias) * conv.k,
        }
    }
    /// Elements of the residual's buffer; 0 without one.
    pub fn residual_len(&self) -> u64 {
        match self {
            Problem::Gemm(gemm) => gemm.residual_len(),
            Problem::Conv(conv) => u64::from(conv.residual) * conv.output_len(),
        }
    }
    /// Extents that are known only at launch.
    pub const fn dynamic(&self) -> Dynamic {
        match self {
            Problem::Gemm(gemm) => gemm.dynamic,
            Problem::Conv(_) => Dynamic::NONE,
        }
    }
    /// The problem that a launch with these extents computes.
    ///
    /// # Errors
    /// As [`Gemm::at`]; [`ProblemError::Unsupported`] for a convolution.
    pub fn at(&self, at: Extents) -> Result<Problem, ProblemError> {
        match self {
            Problem::Gemm(gemm) => gemm.at(at).map(Problem::Gemm),
            Problem::Conv(_) => Err(ProblemError::Unsupported {
                what: "a convolution with extents known only at launch".into(),
                remedy: "make an operation for each size".into(),
            }),
        }
    }
    /// Workspace budget in bytes.
    pub fn workspace(&self) -> u64 {
        match self {
            Problem::Gemm(gemm) => gemm.workspace,
            Problem::Conv(conv) => conv.workspace,
        }
    }
    /// Floating-point operations of the plain algorithm: two per multiply and add.
    pub fn flop(&self) -> f64 {
        match self {
            Problem::Gemm(g) => 2.0 * g.batch as f64 * g.m as f64 * g.n as f64 * g.k as f64,
            Problem::Conv(c) => c.flop(),
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

/// `cases.csv, line 3, column n`, as far as it is known.
fn place(file: &str, line: u64, column: &str) -> String {
    let line = if line == 0 { String::new() } else { format!(", line {line}") };
    let column = if column.is_empty() { String::new() } else { format!(", column {column}") };
    format!("{file}{line}{column}")
}

/// Refuses element types that tilewright has no arithmetic for.
fn check_dtype(field: &str, dtype: Scalar) -> Result<(), ProblemError> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(ProblemError::value(field, dtype, "must be f16, bf16, f32 or f64"))
}

/// Refuses element types of C that the sums of `dtype` are not rounded to: f64 goes with f64 alone, the others with each other.
fn check_out_dtype(dtype: Scalar, out: Scalar) -> Result<(), ProblemError> {
    check_dtype("out_dtype", out)?;
    if (dtype == Scalar::F64) == (out == Scalar::F64) {
        return Ok(());
    }
    let reason = match dtype {
        Scalar::F64 => "f64 operands have an f64 result".to_string(),
        _ => format!("{dtype} operands are summed in f32: the result can be f32, f16 or bf16"),
    };
    Err(ProblemError::value("out_dtype", out, reason))
}

/// Refuses extents of a launch that a problem with these largest ones does not have.
fn check_extents(largest: Extents, dynamic: Dynamic, at: Extents) -> Result<(), ProblemError> {
    for extent in [Extent::G, Extent::M, Extent::N] {
        let (value, most) = (at.of(extent), largest.of(extent));
        if dynamic.has(extent) && !(1..=most).contains(&value) {
            return Err(ProblemError::value(extent.name(), value, format!("this kernel holds for 1 to {most}")));
        }
        if !dynamic.has(extent) && value != most {
            let name = extent.name();
            let reason = format!("{name} is {most} in this kernel; declare it as run-time to change it at launch");
            return Err(ProblemError::value(name, value, reason));
        }
    }
    Ok(())
}

/// Refuses zero.
fn check_positive(field: &str, value: u64) -> Result<(), ProblemError> {
    if value == 0 { Err(ProblemError::value(field, 0, "must be at least 1")) } else { Ok(()) }
}

/// `offset + product of extents` elements of a type, refused where a byte address would not fit a signed 64-bit integer.
fn check_elements(field: &str, extents: &[u64], offset: u64, dtype: Scalar) -> Result<u64, ProblemError> {
    let elements = extents.iter().try_fold(1u64, |product, &e| product.checked_mul(e)).and_then(|p| p.checked_add(offset));
    let bytes = elements.and_then(|e| e.checked_mul(u64::from(dtype.bytes())));
    match (elements, bytes) {
        (Some(elements), Some(bytes)) if bytes <= i64::MAX as u64 => Ok(elements),
        _ => {
            let product = extents.iter().map(u64::to_string).collect::<Vec<_>>().join(" * ");
            Err(ProblemError::value(
                field,
                format!("{product} elements from element {offset}"),
                format!("does not fit a 64-bit address space ({} bytes per element); make a size smaller", dtype.bytes()),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deserialised_is_validated() {
        let gemm = Gemm::new(Scalar::F32, 3, 4, 5).build().unwrap();
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
