//! Complex matrices: what a factor is beside its matrix, and the names of the types.
//!
//! An element is two numbers side by side, its real and its imaginary part, as BLAS, numpy and torch have them. Sizes, leading dimensions, batch
//! strides and offsets of a [`Gemm`](crate::gemm::Gemm) count elements; what lies below (tensors of contractions, buffers of test data, offsets of launches) counts
//! numbers, of which an element has [`Gemm::parts`](crate::gemm::Gemm::parts).

use crate::math::Math;
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// A product's elements are complex numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Complex {
    /// The conjugates of A's elements are multiplied: with A transposed, its conjugate transpose.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conj_a: bool,
    /// The same of B's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conj_b: bool,
    /// Alpha is a complex number, whose imaginary part launches give: without this it is 0, and costs nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alpha_im: bool,
    /// The same of beta.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beta_im: bool,
}

/// The types of complex elements, each with the type of its parts and how these are multiplied.
const NAMED: [(&str, Scalar, Math); 6] = [
    ("complex64", Scalar::F32, Math::Exact),
    ("complex64tf32", Scalar::F32, Math::Tf32),
    ("complex64tf32x3", Scalar::F32, Math::Tf32x3),
    ("complex64bf16x3", Scalar::F32, Math::Bf16x3),
    ("complex64bf16x6", Scalar::F32, Math::Bf16x6),
    ("complex128", Scalar::F64, Math::Exact),
];

impl Complex {
    /// Element types as texts name them, for messages.
    pub const NAMES: &'static str = "complex64 (also followed by `tf32`, `tf32x3`, `bf16x3` or `bf16x6`), complex128";

    /// The type of the parts of a named type of elements, and how they are multiplied.
    pub fn of_name(name: &str) -> Option<(Scalar, Math)> {
        NAMED.into_iter().find(|(known, ..)| *known == name).map(|(_, scalar, math)| (scalar, math))
    }
    /// The name of elements with parts of this type, under this math.
    pub fn dtype_name(scalar: Scalar, math: Math) -> &'static str {
        NAMED.into_iter().find(|(_, s, m)| (*s, *m) == (scalar, math)).map_or("complex", |(name, ..)| name)
    }
    /// What is said beside the type of the elements, by the names that texts have for it.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let all = Complex::KEYS.into_iter().zip([self.conj_a, self.conj_b, self.alpha_im, self.beta_im]);
        all.filter_map(|(name, is)| is.then_some(name))
    }
    /// Those names.
    pub(crate) const KEYS: [&'static str; 4] = ["conja", "conjb", "alphaim", "betaim"];
    /// The field of a name.
    pub(crate) fn field(&mut self, name: &str) -> Option<&mut bool> {
        let Complex { conj_a, conj_b, alpha_im, beta_im } = self;
        Complex::KEYS.iter().zip([conj_a, conj_b, alpha_im, beta_im]).find(|(known, _)| **known == name).map(|(_, is)| is)
    }
    /// Whether the conjugates of matrix 0 = A, 1 = B are multiplied.
    pub const fn conj(&self, matrix: usize) -> bool {
        if matrix == 0 { self.conj_a } else { self.conj_b }
    }
    /// What a letter says of a factor, as BLAS has it: not transposed, transposed, conjugate transpose; and `r`: the conjugates of what is not
    /// transposed. (transposed, conjugated)
    pub fn letter(letter: char) -> Option<(bool, bool)> {
        match letter {
            'n' => Some((false, false)),
            't' => Some((true, false)),
            'c' => Some((true, true)),
            'r' => Some((false, true)),
            _ => None,
        }
    }
}
