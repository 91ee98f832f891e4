//! What multiplies: fragments and accumulators of multiply-adds and of each matrix instruction.

pub mod math;
pub mod mfma;
pub mod mma;
pub mod row_fragments;
pub mod wgmma;

use crate::kernel::stages::schedule::MathPart;
use math::Fma;
use tilewright_ir::{Builder, ExprId};
use wgmma::Warpgroup;

/// Work to spread between the k-steps: called after the math of each.
pub(crate) type Between<'a> = &'a mut dyn FnMut(&mut Builder, u32);

/// One k-tile of both operands.
#[derive(Clone, Copy)]
pub(crate) struct KTile {
    /// The stage of shared memory that it is in.
    pub stage: ExprId,
    /// Its number within the result tile; `None` outside of the loop.
    pub number: Option<ExprId>,
}

/// What multiplies: the share of a thread, wave or warpgroup in the math of a result tile.
pub(crate) trait Unit {
    /// Before the first k-tile of a result tile: accumulators are cleared.
    fn start(&self, b: &mut Builder);
    /// The fragments of this stage that are read before the math of its k-tile starts.
    fn first_fragments(&self, _: &mut Builder, _stage: ExprId) {}
    /// Some k-steps of a k-tile. Of the last ones ([`MathPart::Tail`]) the stage is the next tile's, whose first fragments are read
    /// meanwhile.
    fn k_tile(&self, b: &mut Builder, tile: KTile, part: MathPart, between: Option<Between>);
    /// Waits until the instructions of at most this many k-tiles are unfinished.
    fn drain(&self, _: &mut Builder, _k_tiles: u32) {}
    /// What is stored.
    fn results(&self) -> Results<'_>;
}

/// Accumulators as the ways to memory take them.
pub(crate) enum Results<'a> {
    /// A thread's micro tile.
    Micro(&'a Fma),
    /// Runs of neighbours along n.
    Runs(&'a dyn Accumulators),
    /// Bands of single warps.
    Bands(&'a dyn Bands),
    /// Of a warpgroup.
    Warpgroup(&'a Warpgroup),
}

/// Takes a run of neighbours along n: row and column of the first within the macro tile, and the values.
pub(crate) type Put<'a> = &'a mut dyn FnMut(&mut Builder, ExprId, ExprId, &[ExprId]);

/// Accumulators of a matrix unit.
pub(crate) trait Accumulators {
    /// Calls `put(row, column, values)` for every run of neighbours along n that this thread holds; rows and columns count within
    /// the macro tile.
    fn runs(&self, b: &mut Builder, put: Put);
}

/// Accumulators of NVIDIA's matrix instructions: a warp holds bands of 16 rows, and each thread pairs of neighbours along n in two rows
/// of every band.
pub(crate) trait Bands: Accumulators {
    /// Bands of a warp, and its columns.
    fn shape(&self) -> (u32, u32);
    /// Rows from one band of a warp to the next.
    fn apart(&self) -> u32;
    /// The warp's first row and column within the macro tile, and the thread's lane.
    fn wave(&self, b: &mut Builder) -> ([ExprId; 2], ExprId);
    /// The pair in columns `8 j + 2 (lane % 4)` of row `lane / 4 + 8 half` of a band.
    fn pair(&self, b: &mut Builder, band: u32, j: u32, half: u32) -> [ExprId; 2];
}
