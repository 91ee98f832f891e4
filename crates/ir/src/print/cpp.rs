//! What CUDA C++ and HIP C++ spell alike.

use super::dialect::{Prelude, Text};
use crate::{Scalar, Type, UnaryOp};

/// What stands before the return type of a helper function.
pub(super) const INLINE: &str = "static __device__ __forceinline__";

/// Scalar types. 16-bit floats are held as their bits: no header is needed, and nothing can compute with them by mistake.
pub(super) fn scalar(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::Bool => "bool",
        Scalar::I32 => "int",
        Scalar::U32 => "unsigned int",
        Scalar::I64 => "long long",
        Scalar::F16 | Scalar::BF16 => "unsigned short",
        Scalar::F32 => "float",
        Scalar::F64 => "double",
    }
}

/// Name of a vector type: `f32x4`, and `u16x8` for both 16-bit floats.
pub(super) fn vector_name(ty: Type) -> String {
    let scalar = match ty.scalar {
        Scalar::F16 | Scalar::BF16 => "u16",
        other => other.name(),
    };
    format!("{scalar}x{}", ty.lanes)
}

/// A pointer type; C++ compilers infer the address space.
pub(super) fn pointer(constant: bool, pointee: &str) -> String {
    format!("{}{pointee}*", if constant { "const " } else { "" })
}

/// C's name of a math function: `expf` for `F32`, `exp` for `F64`.
pub(super) fn math(op: UnaryOp, scalar: Scalar) -> String {
    let stem = match op {
        UnaryOp::Exp => "exp",
        UnaryOp::Exp2 => "exp2",
        UnaryOp::Log2 => "log2",
        UnaryOp::Tanh => "tanh",
        UnaryOp::Erf => "erf",
        UnaryOp::Abs => "fabs",
        // Negations are operators, and C has neither a logistic function nor TF32; the printers never ask for theirs.
        UnaryOp::Sqrt | UnaryOp::Neg | UnaryOp::Not | UnaryOp::Sigmoid | UnaryOp::RoundTf32 => "sqrt",
    };
    format!("{stem}{}", suffix(scalar))
}

/// Suffix of C's math functions for a type.
pub(super) fn suffix(scalar: Scalar) -> &'static str {
    if scalar == Scalar::F64 { "" } else { "f" }
}

/// A vector value in braces.
pub(super) fn braces(ty: &str, parts: &[String]) -> Text {
    Text::atom(format!("{ty}{{{}}}", parts.join(", ")))
}

/// `F32` to bfloat16 by integer arithmetic, rounding to nearest even; NaN stays NaN. `as_bits` is the expression for the
/// bits of `a`.
pub(super) fn narrow_bf16(inline: &str, ushort: &str, uint: &str, as_bits: &str, prelude: &mut Prelude) -> String {
    prelude.function("tw_f32_to_bf16", |_| {
        format!(
            "{inline} {ushort} tw_f32_to_bf16(float a) {{\n    \
             {uint} bits = {as_bits};\n    \
             if ((bits & 0x7fffffffu) > 0x7f800000u) return ({ushort})((bits >> 16) | 0x40u);\n    \
             return ({ushort})((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);\n}}"
        )
    })
}
