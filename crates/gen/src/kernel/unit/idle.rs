//! Idle warpgroups: all their rows or columns of a tile are past the edge of the result. They wait for stages and release them with the
//! other warpgroups but issue no math, so the tensor cores are free for the others. Ends of groups can be anywhere in a tile.

use super::{AccumulatorSet, Between, KTile, Unit, clear};
use crate::kernel::stages::schedule::MathPart;
use tilewright_ir::Builder;

/// In place of a unit, whose sums are zeros.
pub(crate) struct Idle(pub AccumulatorSet);

impl Unit for Idle {
    fn start(&self, b: &mut Builder) {
        let (regs, array) = (self.0.regs, b.kernel().regs[self.0.regs.index()].clone());
        clear(b, array.ty, regs, array.len);
    }

    fn k_tile(&self, _: &mut Builder, _: KTile, _: MathPart, _: Option<Between>) {}

    fn accumulators(&self) -> AccumulatorSet {
        self.0
    }
}
