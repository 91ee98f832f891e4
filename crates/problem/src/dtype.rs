//! Element types as users name them: one table for every front.

use crate::math::Math;
use tilewright_ir::Scalar;

/// An element type with how its products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtype {
    /// The type, or that of the real and imaginary parts.
    pub scalar: Scalar,
    /// How factors are multiplied.
    pub math: Math,
    /// Elements are complex numbers.
    pub complex: bool,
    /// The name in this project's texts, then the names that numpy, torch and others have.
    names: &'static [&'static str],
    /// A phrase for help.
    pub help: &'static str,
}

const fn dtype(scalar: Scalar, math: Math, names: &'static [&'static str], help: &'static str) -> Dtype {
    Dtype { scalar, math, complex: false, names, help }
}

const fn complex(scalar: Scalar, math: Math, names: &'static [&'static str], help: &'static str) -> Dtype {
    Dtype { scalar, math, complex: true, names, help }
}

use Math::{Bf16x3, Bf16x6, Exact, Promoted, Tf32, Tf32x3};

impl Dtype {
    /// All of them. The first name is that of texts, the second that of arrays in numpy and torch.
    pub const ALL: [Dtype; 27] = [
        dtype(Scalar::F32, Exact, &["f32", "float32", "float", "single", "fp32"], "IEEE binary32"),
        dtype(Scalar::F64, Exact, &["f64", "float64", "double", "fp64"], "IEEE binary64"),
        dtype(Scalar::F16, Exact, &["f16", "float16", "half", "fp16"], "IEEE binary16, accumulated in f32"),
        dtype(Scalar::BF16, Exact, &["bf16", "bfloat16"], "bfloat16, accumulated in f32"),
        dtype(Scalar::F32, Tf32, &["tf32"], "f32 in memory, multiplied as TF32"),
        dtype(Scalar::F32, Tf32x3, &["tf32x3", "3xtf32"], "f32 in memory, three TF32 products: error 2^-21 a product"),
        dtype(Scalar::F32, Bf16x3, &["bf16x3"], "f32 in memory, three bf16 products: error 2^-15 a product"),
        dtype(Scalar::F32, Bf16x6, &["bf16x6"], "f32 in memory, six bf16 products: error 2^-24 a product"),
        dtype(Scalar::E4M3, Exact, &["e4m3", "float8_e4m3fn"], "8-bit float (OCP), accumulated in f32"),
        dtype(Scalar::E5M2, Exact, &["e5m2", "float8_e5m2"], "8-bit float (OCP), accumulated in f32"),
        dtype(Scalar::E4M3Fnuz, Exact, &["e4m3fnuz", "float8_e4m3fnuz"], "8-bit float of AMD's gfx942"),
        dtype(Scalar::E5M2Fnuz, Exact, &["e5m2fnuz", "float8_e5m2fnuz"], "8-bit float of AMD's gfx942"),
        dtype(Scalar::E4M3, Promoted, &["e4m3promoted"], "e4m3, promoted to f32 every 128 of k"),
        dtype(Scalar::E5M2, Promoted, &["e5m2promoted"], "e5m2, promoted to f32 every 128 of k"),
        dtype(Scalar::E4M3Fnuz, Promoted, &["e4m3fnuzpromoted"], "e4m3fnuz, promoted to f32 every 128 of k"),
        dtype(Scalar::E5M2Fnuz, Promoted, &["e5m2fnuzpromoted"], "e5m2fnuz, promoted to f32 every 128 of k"),
        dtype(Scalar::I8, Exact, &["i8", "int8"], "8-bit integer, accumulated exactly in i32"),
        dtype(Scalar::U8, Exact, &["u8", "uint8"], "unsigned 8-bit integer, accumulated exactly in i32"),
        dtype(Scalar::I4, Exact, &["i4", "int4"], "4-bit integer: weights beside f16, bf16 or f32, two in a byte"),
        dtype(Scalar::U4, Exact, &["u4", "uint4"], "unsigned 4-bit integer: weights, two in a byte"),
        dtype(Scalar::I32, Exact, &["i32", "int32"], "32-bit integer: results of 8-bit products, tensors to reduce"),
        complex(Scalar::F32, Exact, &["complex64", "cfloat", "c64"], "two f32 (cgemm), of matrix products"),
        complex(Scalar::F64, Exact, &["complex128", "cdouble", "c128"], "two f64 (zgemm), of matrix products"),
        complex(Scalar::F32, Tf32, &["complex64tf32"], "complex64, parts multiplied as tf32"),
        complex(Scalar::F32, Tf32x3, &["complex64tf32x3"], "complex64, parts multiplied as tf32x3"),
        complex(Scalar::F32, Bf16x3, &["complex64bf16x3"], "complex64, parts multiplied as bf16x3"),
        complex(Scalar::F32, Bf16x6, &["complex64bf16x6"], "complex64, parts multiplied as bf16x6"),
    ];

    /// The type of any of its names.
    pub fn named(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.names.contains(&name))
    }

    /// The name in texts: `f32`.
    pub fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// Its other names: `float32`, `single`.
    pub fn aliases(&self) -> &'static [&'static str] {
        self.names.get(1..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::complex::Complex;
    use std::collections::HashSet;

    #[test]
    fn names_are_those_of_texts_and_of_one_type_each() {
        let mut seen = HashSet::new();
        for dtype in Dtype::ALL {
            assert!(dtype.names.iter().all(|name| seen.insert(*name)), "{dtype:?}");
            let of_texts = if dtype.complex { Complex::of_name(dtype.name()) } else { Math::of_name(dtype.name()) };
            assert_eq!(of_texts, Some((dtype.scalar, dtype.math)), "{dtype:?}");
        }
        assert_eq!(Dtype::named("half").map(|d| d.name()), Some("f16"));
        assert_eq!(Dtype::named("F32"), None);
        for math in Math::ALL {
            assert_eq!(Math::from_name(math.name()), Some(math));
            assert!(
                math.aliases()
                    .iter()
                    .all(|name| Math::from_name(name) == Some(math) && Dtype::named(name).map(|d| d.math) == Some(math))
            );
        }
    }
}
