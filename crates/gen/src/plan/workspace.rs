//! Workspace that a kernel needs: copies of operands and partial sums of split k.

use super::derived::Derived;
use super::reduction::partials_bytes;
use super::spec::*;
use super::tile::*;
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::G;

/// Workspace in bytes for the copies and partial sums of a single batch entry, and for the parts of reductions of all entries.
/// With less workspace than the whole batch needs, the batch is cut into chunks.
pub fn workspace_per_entry(Derived { spec, c, copies }: &Derived) -> u64 {
    let copy = |copied: &Option<Tensor>, tiling: &OperandTiling| {
        let Some(copied) = copied else { return 0 };
        let entries = if tiling.source.gathers() && copied.view.uses(G) { c.g.max(1) } else { 1 };
        copied.len.saturating_mul(copied.scalar.bytes() as u64) / entries + u64::from(WORKSPACE_ALIGN)
    };
    let split = spec.split_rows(c);
    let partials = if spec.epilogue.split == Split::Workspace || spec.tiling.tail.is_some() {
        let result = split.rows.saturating_mul(c.n).saturating_mul(c.accumulator().bytes() as u64);
        result.saturating_mul(split.splits.into()).saturating_add(u64::from(WORKSPACE_ALIGN))
    } else {
        0
    };
    let reduced = partials_bytes(spec, c, WORKSPACE_ALIGN.into());
    copy(&copies[0], &spec.tiling.a)
        .saturating_add(copy(&copies[1], &spec.tiling.b))
        .saturating_add(partials)
        .saturating_add(reduced)
}
