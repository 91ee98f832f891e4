//! How f32 factors are split into numbers of fewer bits, for units that multiply nothing wider.

use serde::Serialize;
use tilewright_ir::{MatrixType, Scalar};

/// What a factor is split into, and which products of parts are added up.
///
/// The first part is the number of the type nearest to the factor, the second the nearest to what that leaves, and so on. What a nearest
/// number leaves of an f32 is an f32: subtractions are exact.
///
/// ```
/// use tilewright_ir::MatrixType;
/// use tilewright_problem::Math;
///
/// // Three of the four products: the one of both second parts is dropped.
/// let split = Math::Bf16x3.split().expect("operands are split");
/// assert_eq!((split.input, split.parts, split.products), (MatrixType::BF16, 2, &[[1, 0], [0, 1], [0, 0]][..]));
/// assert!(!split.adds_up());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FactorParts {
    /// What units take the parts in.
    pub input: MatrixType,
    /// Parts of a factor.
    pub parts: u32,
    /// The products: which part of A, and which of B. The smallest come first, so that the last sum has all of them.
    pub products: &'static [[u32; 2]],
}

impl FactorParts {
    /// Two TF32 numbers. Units drop the last bit of the second.
    pub(crate) const TF32_TWICE: FactorParts =
        FactorParts { input: MatrixType::TF32, parts: 2, products: &[[1, 0], [0, 1], [0, 0]] };
    /// Two bf16 numbers.
    pub(crate) const BF16_TWICE: FactorParts = FactorParts { input: MatrixType::BF16, ..FactorParts::TF32_TWICE };
    /// Three bf16 numbers.
    pub(crate) const BF16_THRICE: FactorParts =
        FactorParts { input: MatrixType::BF16, parts: 3, products: &[[2, 0], [0, 2], [1, 1], [1, 0], [0, 1], [0, 0]] };

    /// Parts are as wide as the factor: registers that have read it take its parts as well. Narrower ones are written to shared memory, whose tiles
    /// have their type.
    pub const fn as_wide(&self) -> bool {
        matches!(self.input.storage(), Scalar::F32)
    }
    /// True if the parts in shared memory add up to the operand. Three bf16 numbers have the 24 bits of an f32. Of two parts as
    /// wide as the operand, the second holds all that remains after the first.
    pub const fn adds_up(&self) -> bool {
        self.as_wide() || self.parts > 2
    }
}
