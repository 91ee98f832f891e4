//! What CUDA C++ and HIP C++ spell alike.

use super::dialect::{Prelude, Text};
use crate::{Scalar, Type, UnaryOp};

/// What stands before the return type of a helper function.
pub(super) const INLINE: &str = "static __device__ __forceinline__";

/// Scalar types. Floats of 16 and 8 bits are held as their bits: no header is needed, and nothing can compute with them by mistake.
pub(super) fn scalar(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::Bool => "bool",
        Scalar::I8 => "signed char",
        Scalar::I32 => "int",
        Scalar::U32 => "unsigned int",
        Scalar::I64 => "long long",
        Scalar::F16 | Scalar::BF16 => "unsigned short",
        Scalar::U8 | Scalar::I4 | Scalar::U4 => "unsigned char",
        Scalar::E4M3 | Scalar::E5M2 | Scalar::E4M3Fnuz | Scalar::E5M2Fnuz => "unsigned char",
        Scalar::F32 => "float",
        Scalar::F64 => "double",
    }
}

/// Name of a vector type: `f32x4`, and `u16x8` for both 16-bit floats, `u8x16` for those of 8 bits and for pairs of integers of 4.
pub(super) fn vector_name(ty: Type) -> String {
    let scalar = match ty.scalar {
        Scalar::F16 | Scalar::BF16 => "u16",
        bits if bits.is_float8() || bits.is_int4() => "u8",
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
        UnaryOp::Sqrt | UnaryOp::Neg | UnaryOp::Not | UnaryOp::Sigmoid | UnaryOp::RoundTf32 | UnaryOp::NearTf32 => "sqrt",
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

/// C++'s unsigned types of 1, 2 and 4 bytes.
pub(super) const UNSIGNED: [&str; 3] = ["unsigned char", "unsigned short", "unsigned int"];

/// A float of 8 bits to `F32` by arithmetic. The format e5m2 is the upper half of a binary16, and `half` names the conversion.
/// Exponents of e4m3 are 120 less than exponents of `F32`, and below its least normal number steps are 2^-9. Of the formats
/// without signed zeros exponents are 119 and 111 less, and the bits of -0 are NaN. `as_float` opens the expression for a float
/// of these bits.
pub(super) fn widen_float8(
    inline: &str,
    [uchar, ushort, uint]: [&str; 3],
    as_float: &str,
    from: Scalar,
    half: &dyn Fn(&mut Prelude) -> String,
    prelude: &mut Prelude,
) -> String {
    let body = match from {
        Scalar::E4M3Fnuz | Scalar::E5M2Fnuz => {
            let (up, exponent, normal, step) = if from == Scalar::E4M3Fnuz {
                (20, "0x3b800000u", 8, "0.0009765625f")
            } else {
                (21, "0x37800000u", 4, "0.00000762939453125f")
            };
            format!(
                "    const {uint} rest = a & 0x7f;\n    \
                 const {uint} bits = a == 0x80 ? 0x7fc00000u : (rest << {up}) + {exponent};\n    \
                 const float value = rest < {normal} && a != 0x80 ? (float)rest * {step} : {as_float}bits);\n    \
                 return a & 0x80 ? -value : value;\n"
            )
        }
        Scalar::E5M2 => format!("    return {}(({ushort})(({uint})a << 8));\n", half(prelude)),
        _ => format!(
            "    const {uint} rest = a & 0x7f;\n    \
             const {uint} bits = rest == 0x7f ? 0x7fc00000u : (rest << 20) + 0x3c000000u;\n    \
             const float value = rest < 8 ? (float)rest * 0.001953125f : {as_float}bits);\n    \
             return a & 0x80 ? -value : value;\n"
        ),
    };
    let name = format!("tw_{from}_to_f32");
    prelude.function(&name, |_| format!("{inline} float {name}({uchar} a) {{\n{body}}}"))
}

/// `F32` to a float of 8 bits by arithmetic, rounding to nearest even and saturating. Below the least normal number a float is added that has
/// the format's smallest step as its last place. `as_bits` is the expression for the bits of `a`, `as_float` opens that of a float of bits.
pub(super) fn narrow_float8(
    inline: &str,
    [uchar, uint]: [&str; 2],
    as_bits: &dyn Fn(&str) -> String,
    as_float: &str,
    to: Scalar,
    prelude: &mut Prelude,
) -> String {
    let (mantissa, bias, most) = match to {
        Scalar::E4M3 => (3, 7, 0x7e_u32),
        Scalar::E5M2 => (2, 15, 0x7b),
        Scalar::E4M3Fnuz => (3, 8, 0x7f),
        _ => (2, 16, 0x7f),
    };
    let (shift, exponent, normal, step) =
        (23 - mantissa, (127_u32 - bias) << 23, (128_u32 - bias) << 23, (127 + 24 - bias - mantissa) << 23);
    let (nan, half) = (if to.is_fnuz() { 0x80 } else { 0x7f }, (1_u32 << (shift - 1)) - 1);
    // Where zero has no sign, the bits of the negative one are NaN.
    let sign = if to.is_fnuz() { "rest == 0 ? 0 : bits >> 24 & 0x80" } else { "bits >> 24 & 0x80" };
    let (bits, low) = (as_bits("a"), as_bits(&format!("({as_float}magnitude) + {as_float}{step:#x}u))")));
    let name = format!("tw_f32_to_{to}");
    prelude.function(&name, |_| {
        format!(
            "{inline} {uchar} {name}(float a) {{\n    \
             const {uint} bits = {bits}, magnitude = bits & 0x7fffffffu;\n    \
             if (magnitude > 0x7f800000u) return {nan:#x};\n    \
             {uint} rest;\n    \
             if (magnitude < {normal:#x}u) rest = {low} - {step:#x}u;\n    \
             else rest = (magnitude - {exponent:#x}u + {half:#x}u + (magnitude >> {shift} & 1)) >> {shift};\n    \
             if (rest > {most:#x}u) rest = {most:#x}u;\n    \
             return ({uchar})(({sign}) | rest);\n}}"
        )
    })
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
