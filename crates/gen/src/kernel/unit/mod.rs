//! What multiplies: fragments and accumulators of multiply-adds and of each matrix instruction.

pub mod math;
pub mod mfma;
pub mod mma;
pub mod row_fragments;
pub mod wgmma;

use tilewright_ir::{Builder, ExprId};

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
