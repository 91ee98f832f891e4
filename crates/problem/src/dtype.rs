//! Element types as users name them: one table for every front.

use crate::math::Math;
use crate::names::Name;
use tilewright_ir::Scalar;

/// An element type with how its products are computed.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Dtype, Math};
///
/// // The name has the element type and the precision of products.
/// let dtype = Dtype::named("3xtf32").expect("a type");
/// assert_eq!((dtype.name(), dtype.scalar, dtype.math), ("tf32x3", Scalar::F32, Math::Tf32x3));
/// // numpy's name.
/// assert_eq!(Dtype::scalar("float16"), Some(Scalar::F16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtype {
    /// The type, or that of the real and imaginary parts.
    pub scalar: Scalar,
    /// How factors are multiplied.
    pub math: Math,
    /// Elements are complex numbers.
    pub complex: bool,
    /// The names in this project's texts and those of numpy, torch and others, the number in C, a phrase for help.
    pub spelling: Name,
}

const fn dtype(scalar: Scalar, math: Math, number: i32, spelled: &'static [&'static str], help: &'static str) -> Dtype {
    Dtype { scalar, math, complex: false, spelling: Name { spelled, number, help } }
}

const fn complex(scalar: Scalar, math: Math, number: i32, spelled: &'static [&'static str], help: &'static str) -> Dtype {
    Dtype { scalar, math, complex: true, spelling: Name { spelled, number, help } }
}

/// The number of types that C names by two fields, the type and the math.
const NO: i32 = -1;

use Math::{Bf16x3, Bf16x6, Exact, Promoted, Tf32, Tf32x3};

impl Dtype {
    /// All of them. The first name is that of texts, the second that of arrays in numpy and torch.
    pub const ALL: [Dtype; 27] = [
        dtype(Scalar::F32, Exact, 0, &["f32", "float32", "float", "single", "fp32"], "IEEE binary32"),
        dtype(Scalar::F64, Exact, 1, &["f64", "float64", "double", "fp64"], "IEEE binary64"),
        dtype(Scalar::F16, Exact, 2, &["f16", "float16", "half", "fp16"], "IEEE binary16, accumulated in f32"),
        dtype(Scalar::BF16, Exact, 3, &["bf16", "bfloat16"], "bfloat16, accumulated in f32"),
        dtype(Scalar::F32, Tf32, NO, &["tf32"], "f32 in memory, multiplied as TF32"),
        dtype(Scalar::F32, Tf32x3, NO, &["tf32x3", "3xtf32"], "f32 in memory, three TF32 products: error 2^-21 a product"),
        dtype(Scalar::F32, Bf16x3, NO, &["bf16x3"], "f32 in memory, three bf16 products: error 2^-15 a product"),
        dtype(Scalar::F32, Bf16x6, NO, &["bf16x6"], "f32 in memory, six bf16 products: error 2^-24 a product"),
        dtype(Scalar::E4M3, Exact, 4, &["e4m3", "float8_e4m3fn"], "8-bit float (OCP), accumulated in f32"),
        dtype(Scalar::E5M2, Exact, 5, &["e5m2", "float8_e5m2"], "8-bit float (OCP), accumulated in f32"),
        dtype(Scalar::E4M3Fnuz, Exact, 9, &["e4m3fnuz", "float8_e4m3fnuz"], "8-bit float of AMD's gfx942"),
        dtype(Scalar::E5M2Fnuz, Exact, 10, &["e5m2fnuz", "float8_e5m2fnuz"], "8-bit float of AMD's gfx942"),
        dtype(Scalar::E4M3, Promoted, NO, &["e4m3promoted"], "e4m3, promoted to f32 every 128 of k"),
        dtype(Scalar::E5M2, Promoted, NO, &["e5m2promoted"], "e5m2, promoted to f32 every 128 of k"),
        dtype(Scalar::E4M3Fnuz, Promoted, NO, &["e4m3fnuzpromoted"], "e4m3fnuz, promoted to f32 every 128 of k"),
        dtype(Scalar::E5M2Fnuz, Promoted, NO, &["e5m2fnuzpromoted"], "e5m2fnuz, promoted to f32 every 128 of k"),
        dtype(Scalar::I8, Exact, 7, &["i8", "int8"], "8-bit integer, accumulated exactly in i32"),
        dtype(Scalar::U8, Exact, 8, &["u8", "uint8"], "unsigned 8-bit integer, accumulated exactly in i32"),
        dtype(Scalar::I4, Exact, 11, &["i4", "int4"], "4-bit integer: weights beside f16, bf16 or f32, two in a byte"),
        dtype(Scalar::U4, Exact, 12, &["u4", "uint4"], "unsigned 4-bit integer: weights, two in a byte"),
        dtype(Scalar::I32, Exact, 6, &["i32", "int32"], "32-bit integer: results of 8-bit products, tensors to reduce"),
        complex(Scalar::F32, Exact, 13, &["complex64", "cfloat", "c64"], "two f32 (cgemm), of matrix products"),
        complex(Scalar::F64, Exact, 14, &["complex128", "cdouble", "c128"], "two f64 (zgemm), of matrix products"),
        complex(Scalar::F32, Tf32, NO, &["complex64tf32"], "complex64, parts multiplied as tf32"),
        complex(Scalar::F32, Tf32x3, NO, &["complex64tf32x3"], "complex64, parts multiplied as tf32x3"),
        complex(Scalar::F32, Bf16x3, NO, &["complex64bf16x3"], "complex64, parts multiplied as bf16x3"),
        complex(Scalar::F32, Bf16x6, NO, &["complex64bf16x6"], "complex64, parts multiplied as bf16x6"),
    ];

    /// The type of any of its names.
    pub fn named(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.spelling.spelled.contains(&name))
    }
    /// The type of its name in texts.
    pub fn in_text(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
    /// The type of real numbers of any of its names, multiplied exactly.
    pub fn scalar(name: &str) -> Option<Scalar> {
        Dtype::named(name).filter(|dtype| dtype.is_plain()).map(|dtype| dtype.scalar)
    }
    /// The name of a type under a math.
    pub fn name_of(scalar: Scalar, math: Math, complex: bool) -> &'static str {
        let found = Dtype::ALL.into_iter().find(|x| (x.scalar, x.math, x.complex) == (scalar, math, complex));
        found.map_or(scalar.name(), |dtype| dtype.name())
    }
    /// Elements are real numbers, multiplied exactly.
    pub fn is_plain(&self) -> bool {
        self.math == Math::Exact && !self.complex
    }
    /// C names it by one number.
    pub const fn is_one_number(&self) -> bool {
        self.spelling.number != NO
    }
    /// The name in texts: `f32`.
    pub fn name(&self) -> &'static str {
        self.spelling.name()
    }
    /// Its other names: `float32`, `single`. The first is that of arrays in numpy and torch.
    pub fn aliases(&self) -> &'static [&'static str] {
        self.spelling.aliases()
    }
    /// The names of the types that satisfy a condition, with commas between them.
    pub fn names(which: impl Fn(&Dtype) -> bool) -> String {
        Dtype::ALL.iter().filter(|dtype| which(dtype)).map(Dtype::name).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_those_of_one_type_each() {
        let (mut seen, mut numbers, mut types) = (HashSet::new(), HashSet::new(), HashSet::new());
        for dtype in Dtype::ALL {
            assert!(dtype.spelling.spelled.iter().all(|name| seen.insert(*name)), "{dtype:?}");
            assert!(types.insert((dtype.scalar, dtype.math, dtype.complex)), "{dtype:?}");
            assert!(dtype.spelling.number == NO || numbers.insert(dtype.spelling.number), "{dtype:?}");
            assert!(dtype.math.suits(dtype.scalar), "{dtype:?}");
            assert_eq!(Dtype::name_of(dtype.scalar, dtype.math, dtype.complex), dtype.name());
        }
        assert_eq!(Dtype::named("half").map(|d| d.name()), Some("f16"));
        assert_eq!(Dtype::named("F32"), None);
        for math in Math::ALL {
            assert_eq!(Math::named(math.name()), Some(math));
        }
    }
}
