//! Kernels that walk over elements one by one: how many a thread takes, and the coordinates of each.

use crate::program::{Factor, Groups};
use tilewright_ir::*;

/// Threads of such a kernel.
pub(crate) const THREADS: u32 = 256;
/// Elements per thread, a stride of the whole work-group apart so that stores stay coalesced.
const PER_THREAD: u32 = 4;

/// Work-groups of a helper kernel over this many elements.
pub(crate) fn groups(elements: Vec<Factor>) -> Groups {
    Groups { factors: elements, per: u64::from(THREADS * PER_THREAD), most: None }
}

/// Runs the body for each element of the work-group with this number that exists.
pub(crate) fn elements(b: &mut Builder, group: ExprId, total: ExprId, ty: Scalar, mut body: impl FnMut(&mut Builder, ExprId)) {
    let first = b.bind("first", group.cast(ty) * ((THREADS * PER_THREAD) as i64) + Builtin::LocalId.cast(ty));
    b.for_range("i", 0, PER_THREAD, Unroll::Full, |b, i| {
        let element = b.bind("element", first + i.cast(ty) * (THREADS as i64));
        b.if_then(element.lt(total), |b| body(b, element));
    });
}

/// Mixed-radix digits of a linear index, fastest first.
pub(crate) fn digits(b: &mut Builder, mut index: ExprId, extents: &[Ex]) -> Vec<ExprId> {
    let mut out = Vec::new();
    for (i, extent) in extents.iter().enumerate() {
        if i + 1 == extents.len() {
            out.push(index);
        } else {
            out.push(b.value(index % extent));
            index = b.value(index / extent);
        }
    }
    out
}
