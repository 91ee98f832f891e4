//! What an operand's memory allows: the direction in which elements are adjacent, and vectors in that direction.

use super::tile::Along;
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, ROW};

/// Largest vector up to `max` elements that may be moved at once along an axis, start alignment included.
pub(crate) fn vector_width(tensor: &Tensor, axis: usize, max: u32) -> u32 {
    tensor.view.vector_width(axis, max, tensor.scalar.numbers_in(tensor.align))
}

/// Elements of the widest piece of a result with gaps that one store may take.
pub(crate) fn gap_width(c: &Contraction) -> u32 {
    let (bytes, offset) = (c.c.scalar.bytes(), &c.c.view.access.offset);
    let starts = |width: i64| offset.terms.iter().map(|(_, stride)| stride).chain([&offset.constant]).all(|s| s % width == 0);
    let fits = |width: &u32| {
        width * bytes <= 16 && c.stored_together().is_multiple_of(*width) && (c.c.align / bytes).is_multiple_of(*width)
    };
    [8, 4, 2].into_iter().filter(fits).find(|width| starts(i64::from(*width))).unwrap_or(1)
}

/// True if elements along an axis are adjacent in memory, padding aside.
pub(super) fn adjacent(tensor: &Tensor, axis: usize) -> bool {
    tensor.view.stride(axis) == Some(1) || tensor.view.vector_width(axis, 2, 1 << 12) > 1
}

/// The direction in which an operand's elements can be loaded as vectors. It is the one that allows `width`, else the one in
/// which they are adjacent at all.
pub(super) fn contiguous(tensor: &Tensor, width: u32) -> Option<Along> {
    let allows = |axis| vector_width(tensor, axis, width) >= width.max(2);
    let tests: [(bool, Along); 4] = [
        (allows(ROW), Along::Row),
        (allows(COL), Along::K),
        (adjacent(tensor, ROW), Along::Row),
        (adjacent(tensor, COL), Along::K),
    ];
    tests.into_iter().find(|(holds, _)| *holds).map(|(_, along)| along)
}

/// True if the tensor is addressed by plain strides and all of it exists.
pub(super) fn is_plain(tensor: &Tensor) -> bool {
    tensor.view.access.bounds.is_empty() && tensor.view.is_affine_box().is_some()
}
