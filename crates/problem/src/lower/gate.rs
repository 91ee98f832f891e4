//! A gated product as one product of twice as many columns. The columns of the gate and of the other half alternate in granules.
//! For a granule of neighbouring results the gate's columns come first, then as many of the other half. So a thread or an
//! instruction has both accumulators of a result.
//!
//! `column = (j / granule * 2 + part) * granule + j % granule` for result column `j` and part 0 (gate) or 1. The last granule may have columns
//! beyond the last; of B they do not exist.

use crate::contraction::{EpilogueOp, Pairs, Tensor};
use crate::gate::Gate;
use crate::gemm::Gemm;
use crate::view::ViewBuilder;

/// The gate of a product with the columns of a granule side by side.
#[derive(Clone, Copy)]
pub(super) struct Halves {
    gate: Gate,
    /// Columns of the result.
    n: u64,
    granule: u64,
}

impl Halves {
    pub(super) fn of(gemm: &Gemm, granule: u64) -> Option<Halves> {
        gemm.gate.map(|gate| Halves { gate, n: gemm.n, granule: granule.max(1) })
    }
    /// Granules that cover the result's columns.
    const fn granules(&self) -> u64 {
        self.n.div_ceil(self.granule)
    }
    /// Columns of the product.
    pub(super) const fn columns(&self) -> u64 {
        2 * self.granule * self.granules()
    }
    /// Dimensions of memory in the place of a dimension of `2 n` lines that are `apart` elements apart. With `of_b` they are columns of B.
    /// Its halves may be two tensors, and then have the same places in them.
    pub(super) fn dims(&self, apart: i64, of_b: bool) -> [(&'static str, u64, i64); 2] {
        let times = |count: u64| apart.saturating_mul(i64::try_from(count).unwrap_or(i64::MAX));
        let [half, line] = match self.gate {
            Gate { interleaved: true, .. } => [apart, times(2)],
            Gate { separate_up: true, .. } if of_b => [0, apart],
            _ => [times(self.n), apart],
        };
        [("half", 2, half), ("line", self.n, line)]
    }
    /// Makes one of them, in the product's order.
    pub(super) fn join(&self, builder: ViewBuilder, to: &str) -> ViewBuilder {
        let (granules, granule) = (self.granules(), self.granule);
        let builder = if self.gate.up_first { builder.reverse("half") } else { builder };
        let builder = match granules * granule - self.n {
            0 => builder,
            more => builder.pad("line", 0, more),
        };
        builder.unmerge("line", &[("granule", granules), ("within", granule)]).merge(&["granule", "half", "within"], to)
    }
    /// Puts the gate in the place of the old result, which such a product does not add: a sum has no result of its own.
    /// Ahead of it sums are stored, where there is a tensor for them.
    pub(super) fn into_epilogue(self, epilogue: &mut Vec<EpilogueOp>, stored: Option<Tensor>) {
        let pairs = Pairs { gate: self.gate, granule: self.granule, columns: self.n };
        let Some(at) = epilogue.iter().position(|op| *op == EpilogueOp::AddOld) else { return };
        epilogue.splice(at..=at, stored.map(EpilogueOp::Store).into_iter().chain([EpilogueOp::Gate(pairs)]));
    }
}
