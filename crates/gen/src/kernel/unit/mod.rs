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
