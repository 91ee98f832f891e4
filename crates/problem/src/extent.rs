//! Extents of a problem that a launch may choose: the batch, the rows and the columns of the result.

use serde::{Deserialize, Serialize};

/// Which extents are known only at launch. What is written as an extent is then the largest a launch may have (its capacity), and
/// the size that is tuned for.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Dynamic, Extent, Gemm};
///
/// // One kernel for 1 to 512 rows.
/// let dynamic = Dynamic::NONE.with(Extent::M);
/// let gemm = Gemm::new(Scalar::F16, 512, 64, 64).dynamic(dynamic).build()?;
/// assert!(gemm.dynamic.has(Extent::M) && !gemm.dynamic.has(Extent::N));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dynamic {
    /// The batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub g: bool,
    /// Rows of the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub m: bool,
    /// Columns of the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub n: bool,
}

impl Dynamic {
    /// No extent is.
    pub const NONE: Dynamic = Dynamic { g: false, m: false, n: false };
    /// True if no extent is.
    pub fn is_none(&self) -> bool {
        *self == Dynamic::NONE
    }
    /// The same, and this extent as well.
    #[must_use]
    pub const fn with(mut self, extent: Extent) -> Dynamic {
        match extent {
            Extent::G => self.g = true,
            Extent::M => self.m = true,
            Extent::N => self.n = true,
        }
        self
    }
    /// Whether one is.
    pub const fn has(&self, extent: Extent) -> bool {
        match extent {
            Extent::G => self.g,
            Extent::M => self.m,
            Extent::N => self.n,
        }
    }
}

/// An extent that may be known only at launch.
///
/// ```
/// use tilewright_problem::Extent;
///
/// assert_eq!(Extent::ALL.map(Extent::name), ["batch", "m", "n"]);
/// // Rows of a product are columns of its transpose.
/// assert_eq!(Extent::M.turned(), Extent::N);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Extent {
    /// The batch.
    G,
    /// Rows of the result.
    M,
    /// Columns of the result.
    N,
}

impl Extent {
    /// All three.
    pub const ALL: [Extent; 3] = [Extent::G, Extent::M, Extent::N];

    /// The same extent of the transposed product.
    #[must_use]
    pub const fn turned(self) -> Extent {
        match self {
            Extent::G => Extent::G,
            Extent::M => Extent::N,
            Extent::N => Extent::M,
        }
    }
    /// As problems and kernels name it: `batch`, `m`, `n`.
    pub const fn name(self) -> &'static str {
        match self {
            Extent::G => "batch",
            Extent::M => "m",
            Extent::N => "n",
        }
    }
}

/// The extents of one launch: those of the contraction, or smaller ones where they are [`Dynamic`].
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Extent, Extents, Gemm};
///
/// let largest = Gemm::new(Scalar::F32, 512, 64, 32).batch(2).build()?.extents();
/// assert_eq!(largest, Extents { g: 2, m: 512, n: 64 });
/// // A launch with 7 rows.
/// assert_eq!(largest.with(Extent::M, 7).of(Extent::M), 7);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Extents {
    /// Batch entries.
    pub g: u64,
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
}

impl Extents {
    /// One of them.
    pub const fn of(&self, extent: Extent) -> u64 {
        match extent {
            Extent::G => self.g,
            Extent::M => self.m,
            Extent::N => self.n,
        }
    }
    /// The same with another value of one.
    #[must_use]
    pub const fn with(mut self, extent: Extent, value: u64) -> Extents {
        match extent {
            Extent::G => self.g = value,
            Extent::M => self.m = value,
            Extent::N => self.n = value,
        }
        self
    }
}
