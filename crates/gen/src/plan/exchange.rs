//! Sizes of the reduction of partial sums through shared memory: the splits of a cluster (`SKS2`), or the slices of a work-group (`LSU`).

use super::spec::{KernelSpec, Split};
use tilewright_ir::Scalar;
use tilewright_ir::layout::Axis;

/// Bytes that one shared access moves.
const ACCESS: u32 = 16;
/// Most bytes of shared memory for the partial sums of slices in one round, unless one access needs more. The rest stays first-level cache.
const ROUND: u32 = 16 << 10;

/// The exchange of a tile's sums.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// // Two splits of k are a cluster of two work-groups.
/// let space = Space::new(&Gemm::new(Scalar::F32, 64, 64, 4096).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 32x32x32 on 8x8, 2 splits, split-sum=2")?;
/// let derived = space.resolve(&plan)?.spec;
/// // A thread has 16 accumulators: 4 accesses of 16 bytes. All of them are in shared memory at once.
/// let exchange = derived.exchange(Scalar::F32).expect("partial sums are reduced");
/// assert_eq!((exchange.accesses, exchange.width, exchange.bytes), (4, 4, 64 * 16 * 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeShape {
    /// Accesses of a thread.
    pub accesses: u32,
    /// Registers of one access.
    pub registers: u32,
    /// Its elements.
    pub width: u32,
    /// Accesses whose sums are in shared memory at a time: round after round.
    pub at_once: u32,
    /// Bytes of shared memory.
    pub bytes: u64,
}

impl KernelSpec {
    /// Returns whether partial sums of a tile are reduced through shared memory, of the work-group or of its cluster.
    pub const fn exchanges_parts(&self) -> bool {
        matches!(self.epilogue.split, Split::Cluster) || self.tiling.slices > 1
    }

    /// How sums of this type meet, where they are parts.
    pub fn exchange(&self, sum: Scalar) -> Option<ExchangeShape> {
        if !self.exchanges_parts() {
            return None;
        }
        let t = &self.tiling;
        let vector = t.math_width.max(1);
        let count = t.accumulators().extent(Axis::Register) as u32 / vector;
        let most = (ACCESS / sum.bytes() / vector).max(1);
        let registers = (0..=most.ilog2()).rev().map(|log| 1 << log).find(|r| count.is_multiple_of(*r)).unwrap_or(1);
        let (accesses, width) = (count / registers, registers * vector);
        let each = t.math_threads() * t.slices * width * sum.bytes();
        // Work-groups of a cluster hand over all at once.
        let rounds = if t.slices > 1 { accesses.div_ceil((ROUND / each.max(1)).max(1)) } else { 1 };
        let at_once = accesses.div_ceil(rounds.max(1));
        Some(ExchangeShape { accesses, registers, width, at_once, bytes: u64::from(at_once) * u64::from(each) })
    }
}
