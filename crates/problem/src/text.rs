//! Words that the texts of several problems share.

use crate::epilogue::Activation;
use tilewright_ir::Scalar;

/// Floating-point types of elements.
pub(crate) const FLOATS: [Scalar; 8] =
    [Scalar::E4M3, Scalar::E5M2, Scalar::E4M3Fnuz, Scalar::E5M2Fnuz, Scalar::F16, Scalar::BF16, Scalar::F32, Scalar::F64];

/// Integer types of elements.
pub(crate) const INTEGERS: [Scalar; 3] = [Scalar::I8, Scalar::U8, Scalar::I32];

/// Types of weights beside floats alone.
pub(crate) const WEIGHTS: [Scalar; 2] = [Scalar::I4, Scalar::U4];

/// A type of elements by name.
pub(crate) fn dtype(name: &str) -> Option<Scalar> {
    FLOATS.into_iter().chain(INTEGERS).chain(WEIGHTS).find(|s| s.name() == name)
}

/// A decimal number below 2^63, digits only.
pub(crate) fn number(digits: &str) -> Result<u64, String> {
    if digits.is_empty() {
        return Err("a number is missing".to_string());
    }
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("`{digits}` is not a plain decimal number"));
    }
    match digits.parse::<u64>() {
        Ok(value) if value <= i64::MAX as u64 => Ok(value),
        _ => Err(format!("{digits} is out of range; it must be less than 2^63")),
    }
}

/// The activation of a word after `act`.
pub(crate) fn parse_activation(token: &str, name: &str) -> Result<Activation, String> {
    Activation::from_name(name).ok_or_else(|| format!("`{token}`: activations are {}", Activation::names()))
}
