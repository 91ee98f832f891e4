//! Complex matrices: what a factor is beside its matrix, and the names of the types.
//!
//! An element is two numbers side by side, its real and its imaginary part, as BLAS, numpy and torch have them. Sizes, leading
//! dimensions, batch strides and offsets of a [`Gemm`](crate::gemm::Gemm) count elements. The layers below (tensors of
//! contractions, buffers of test data, offsets of launches) count numbers. An element has
//! [`Gemm::parts`](crate::gemm::Gemm::parts) numbers.

use serde::{Deserialize, Serialize};

/// A product's elements are complex numbers.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Complex, Gemm};
///
/// // complex64: BLAS' cgemm with A conjugated and transposed.
/// let gemm = Gemm::new(Scalar::F32, 2, 3, 4).complex().trans(true, false).conj(true, false).build()?;
/// assert_eq!(gemm.complex, Some(Complex { conj_a: true, ..Complex::default() }));
/// assert_eq!(Complex::letter('c'), Some((true, true)));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
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

impl Complex {
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
