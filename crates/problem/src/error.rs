//! Why a problem is refused, and the checks that several problems share.

use crate::extent::{Dynamic, Extent, Extents};
use crate::view::ViewError;
use std::fmt;
use tilewright_ir::Scalar;

/// Workspace a problem may use unless it says otherwise, in bytes.
pub const DEFAULT_WORKSPACE: u64 = 1 << 30;

/// Why something is not a problem that can be computed. Every message names the field, its value and the remedy.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Problem, ProblemError};
///
/// // A row of A has 8 elements: rows 7 elements apart overlap.
/// let error = Gemm::new(Scalar::F32, 4, 4, 8).lda(7).build().unwrap_err();
/// assert!(matches!(&error, ProblemError::Value { field, value, .. } if field == "lda" && value == "7"));
/// let error = Problem::parse("gemm 4 4 8").unwrap_err();
/// assert!(error.to_string().starts_with("problem `gemm 4 4 8`: "));
/// ```
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
    /// A field with an impossible value, with what is wrong and what would be right.
    pub fn value(field: impl Into<String>, value: impl fmt::Display, reason: impl Into<String>) -> ProblemError {
        ProblemError::Value { field: field.into(), value: value.to_string(), reason: reason.into() }
    }
    pub(crate) fn text(text: &str, reason: impl Into<String>) -> ProblemError {
        ProblemError::Text { text: text.to_string(), reason: reason.into() }
    }
}

/// `cases.csv, line 3, column n`, as far as it is known.
fn place(file: &str, line: u64, column: &str) -> String {
    let line = if line == 0 { String::new() } else { format!(", line {line}") };
    let column = if column.is_empty() { String::new() } else { format!(", column {column}") };
    format!("{file}{line}{column}")
}

/// Refuses element types that tilewright has no arithmetic for.
pub(crate) fn check_dtype(field: &str, dtype: Scalar) -> Result<(), ProblemError> {
    if dtype.is_float() || dtype.is_int8() {
        return Ok(());
    }
    if dtype.is_int4() {
        return Err(ProblemError::value(
            field,
            dtype,
            "4-bit integers are weights beside f16, bf16 or f32; give b_dtype as one of these",
        ));
    }
    Err(ProblemError::value(field, dtype, "must be i8, u8, e4m3, e5m2, e4m3fnuz, e5m2fnuz, f16, bf16, f32 or f64"))
}

/// Element type of C where none is named.
pub(crate) const fn default_out(dtype: Scalar) -> Scalar {
    match dtype {
        _ if dtype.is_float8() => Scalar::F32,
        _ if dtype.is_int8() => Scalar::I32,
        other => other,
    }
}

/// True where a problem's text names the element type of C: it is another than that of the factors, or than what they have without.
pub(crate) fn names_out_dtype(dtype: Scalar, out: Scalar) -> bool {
    out != dtype || out != default_out(dtype)
}

/// Types of the sums of products of these factors, and of what is computed from them before it is stored as `out`.
pub(crate) const fn computed_in(dtype: Scalar, out: Scalar) -> [Scalar; 2] {
    match (dtype.is_int8(), out) {
        (false, _) => [out.accumulator(); 2],
        (true, Scalar::I32) => [Scalar::I32; 2],
        (true, _) => [Scalar::I32, Scalar::F32],
    }
}

/// Refuses element types of C that the sums of `dtype` are not rounded to: f64 goes with f64 alone, the others with each other.
pub(crate) fn check_out_dtype(dtype: Scalar, out: Scalar) -> Result<(), ProblemError> {
    let suits = match dtype.is_int8() {
        true => [Scalar::I8, Scalar::U8, Scalar::I32, Scalar::F32, Scalar::F16, Scalar::BF16].contains(&out),
        false => out.is_float() && (dtype == Scalar::F64) == (out == Scalar::F64),
    };
    if suits {
        return Ok(());
    }
    let reason = match dtype {
        Scalar::F64 => "f64 operands have an f64 result".to_string(),
        _ if dtype.is_int8() => format!("{dtype} operands are summed in i32: the result can be i32, i8, u8, f32, f16 or bf16"),
        _ => format!("{dtype} operands are summed in f32: the result can be f32, f16 or bf16, or an 8-bit float"),
    };
    Err(ProblemError::value("out_dtype", out, reason))
}

/// Refuses extents of a launch that a problem with these largest ones does not have.
pub(crate) fn check_extents(largest: Extents, dynamic: Dynamic, at: Extents) -> Result<(), ProblemError> {
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
pub(crate) fn check_positive(field: &str, value: u64) -> Result<(), ProblemError> {
    if value == 0 { Err(ProblemError::value(field, 0, "must be at least 1")) } else { Ok(()) }
}

/// Most bytes that a tensor spans. Devices address no more. Kernels compute positions up to a tile past the end, which fit 64 bits with room to spare.
pub(crate) const MOST_BYTES: u64 = 1 << 48;

/// Why a tensor is refused whose elements lie further apart.
pub(crate) const TOO_FAR: &str = "does not fit the 2^48 bytes of a device's 64-bit address space";

/// `offset + product of extents` elements of a type, refused above [`MOST_BYTES`].
pub(crate) fn check_elements(field: &str, extents: &[u64], offset: u64, dtype: Scalar) -> Result<u64, ProblemError> {
    let elements = extents.iter().try_fold(1u64, |product, &e| product.checked_mul(e)).and_then(|p| p.checked_add(offset));
    let bytes = elements.and_then(|e| e.checked_mul(u64::from(dtype.bytes())));
    match (elements, bytes) {
        (Some(elements), Some(bytes)) if bytes <= MOST_BYTES => Ok(elements),
        _ => {
            let product = extents.iter().map(u64::to_string).collect::<Vec<_>>().join(" * ");
            Err(ProblemError::value(
                field,
                format!("{product} elements from element {offset}"),
                format!("{TOO_FAR} ({} bytes per element); make a size smaller", dtype.bytes()),
            ))
        }
    }
}

/// Serialisation of a problem type derived with `#[serde(remote = "Self")]`. Deserialisation validates the problem.
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
pub(crate) use validated_serde;
