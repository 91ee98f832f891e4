//! A second pair of factors of a product, whose terms are added to the same sums: `C = alpha (A B + A2 B2) + beta C`. A product with a low-rank
//! update (LoRA) has one, and so has a product of concatenated inputs.

use serde::{Deserialize, Serialize};

/// The second pair of factors of a [`Gemm`](crate::Gemm). They have the types, the storage order and the transposition of A and B. Each starts at the first
/// element of its buffer.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Problem};
///
/// // A linear layer of 4096 features with an update of rank 16.
/// let gemm = Gemm::new(Scalar::BF16, 512, 4096, 4096).trans(false, true).k2(16).build()?;
/// assert_eq!((gemm.second_len(0), gemm.second_len(1)), (512 * 16, 4096 * 16));
/// assert_eq!(Problem::from(gemm).flop(), 2.0 * 512.0 * 4096.0 * 4112.0);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SecondPair {
    /// Columns of op(A2), rows of op(B2).
    pub k: u64,
    /// Leading dimension of A2, m x k.
    pub lda: u64,
    /// Leading dimension of B2, k x n.
    pub ldb: u64,
}
