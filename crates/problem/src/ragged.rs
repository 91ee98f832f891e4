//! What the groups of a grouped product are of.

use crate::epilogue::Along;
use crate::names::names;
use serde::{Deserialize, Serialize};

/// Which extent of a grouped product its groups cut.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Ragged};
///
/// // A mixture of experts: at most 512 tokens are split over 8 experts, each with its own B.
/// let gemm = Gemm::new(Scalar::BF16, 512, 64, 128).grouped(Ragged::M, 8).build()?;
/// assert_eq!((gemm.batch, gemm.a.batch_stride, gemm.b.batch_stride), (8, 0, 64 * 128));
/// assert_eq!(Ragged::M.owned(), 1);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ragged {
    /// Rows of A and C: each group has a B of its own.
    M,
    /// Columns of B and C: each group has an A of its own.
    N,
    /// Terms, columns of A and rows of B: each group has a C of its own.
    K,
}

impl From<Along> for Ragged {
    fn from(along: Along) -> Ragged {
        match along {
            Along::M => Ragged::M,
            Along::N => Ragged::N,
        }
    }
}

names!(Ragged {
    M = 1, ["m"], "rows of A and C";
    N = 2, ["n"], "columns of B and C";
    K = 3, ["k"], "terms: columns of A, rows of B";
});

impl Ragged {
    /// What runs along it.
    pub const fn lines(self) -> &'static str {
        match self {
            Ragged::M => "rows",
            Ragged::N => "columns",
            Ragged::K => "terms",
        }
    }
    /// The same extent of the transposed product.
    #[must_use]
    pub const fn turned(self) -> Ragged {
        match self {
            Ragged::M => Ragged::N,
            Ragged::N => Ragged::M,
            Ragged::K => Ragged::K,
        }
    }
    /// The matrix that each group has of its own: 0 = A, 1 = B, 2 = C.
    pub const fn owned(self) -> usize {
        match self {
            Ragged::M => 1,
            Ragged::N => 0,
            Ragged::K => 2,
        }
    }
}
