//! What an operand's memory allows: the direction in which elements are adjacent, and vectors in that direction.

use super::spec::{Along, Source};
use crate::contraction::Tensor;
use crate::view::{Access, Affine, Atom, COL, G, ROW, View};

/// The direction in which the elements that a main kernel loads are adjacent in memory; `None` if in neither.
pub(super) fn contiguous(tensor: &Tensor, source: Source) -> Option<Along> {
    if source == Source::Packed || adjacent(tensor, ROW) {
        Some(Along::Row)
    } else if adjacent(tensor, COL) {
        Some(Along::K)
    } else {
        None
    }
}

/// True if elements along an axis are adjacent in memory.
pub(super) fn adjacent(tensor: &Tensor, axis: usize) -> bool {
    stride(&tensor.view, axis) == Some(1)
}

fn stride(view: &View, axis: usize) -> Option<i64> {
    let mut total = 0;
    for (atom, c) in &view.access.offset.terms {
        match atom {
            Atom::Axis(a) if *a == axis => total += c,
            other if other.uses(axis) => return None,
            _ => {}
        }
    }
    Some(total)
}

/// Largest power of two up to `max` such that, from every multiple of it along `axis`, that many elements are adjacent,
/// aligned to their total size, and all valid or all not.
pub(super) fn vector_width(tensor: &Tensor, axis: usize, max: u32) -> u32 {
    let fits = |w: u32| {
        let aligned = tensor.align.is_multiple_of(w * tensor.scalar.bytes());
        let access = &tensor.view.access;
        aligned && moves(&access.offset, axis, w as i64) == Some(1) && access.bounds.iter().all(|b| whole(b, axis, w as i64))
    };
    let mut width = 1;
    while width * 2 <= max && fits(width * 2) {
        width *= 2;
    }
    width
}

/// How far the form moves per step within an aligned vector along the axis, if it starts at a multiple of `w` and moves
/// evenly.
fn moves(form: &Affine, axis: usize, w: i64) -> Option<i64> {
    let mut step = 0;
    for (atom, c) in &form.terms {
        match atom {
            Atom::Axis(a) if *a == axis => step += c,
            Atom::Digit { of, div, modulo } if of.uses(axis) => {
                let inner = moves(of, axis, w)?;
                let along = if *div == 1 && inner == 1 && modulo.is_none_or(|m| m % w == 0) {
                    1
                } else if (inner == 0 || inner == 1) && div % w == 0 {
                    0
                } else {
                    return None;
                };
                step += c * along;
                if along == 0 && c % w != 0 {
                    return None;
                }
            }
            _ if c % w != 0 => return None,
            _ => {}
        }
    }
    (form.constant % w == 0).then_some(step)
}

/// True if an aligned vector along the axis is wholly inside or wholly outside a bound.
fn whole(bound: &crate::view::Bound, axis: usize, w: i64) -> bool {
    !bound.value.uses(axis) || (moves(&bound.value, axis, w) == Some(1) && bound.low % w == 0 && bound.high % w == 0)
}

/// The tensor a main kernel reads when an operand is copied to workspace.
pub(super) fn materialised(tensor: &Tensor, source: Source, macro_tile: u32) -> Tensor {
    let [g, rows, cols] = tensor.view.extent;
    let batched = tensor.view.access.offset.uses(G);
    let (entry, mut offset) = match source {
        Source::InPlace => return tensor.clone(),
        Source::Packed => {
            let tile = macro_tile.max(1) as i64;
            let row = |div, modulo| Atom::Digit { of: Box::new(Affine::axis(ROW)), div, modulo };
            let panel = tile * cols as i64;
            let terms = vec![(Atom::Axis(COL), tile), (row(1, Some(tile)), 1), (row(tile, None), panel)];
            (panel as u64 * rows.div_ceil(tile as u64), Affine { terms, constant: 0 })
        }
        Source::Copy => {
            let k_first = contiguous(tensor, Source::InPlace) == Some(Along::K);
            let (fast, fast_len, slow, slow_len) = if k_first { (COL, cols, ROW, rows) } else { (ROW, rows, COL, cols) };
            let ld = fast_len.next_multiple_of(16) + 4;
            (ld * slow_len, Affine { terms: vec![(Atom::Axis(fast), 1), (Atom::Axis(slow), ld as i64)], constant: 0 })
        }
    };
    if batched {
        offset.terms.push((Atom::Axis(G), entry as i64));
    }
    let view = View { extent: [g, rows, cols], access: Access { offset, bounds: Vec::new() } };
    Tensor { scalar: tensor.scalar, view, align: 256, len: entry * if batched { g } else { 1 } }
}

/// True if the tensor is addressed by plain strides and all of it exists.
pub(super) fn is_plain(tensor: &Tensor) -> bool {
    let access = &tensor.view.access;
    access.bounds.is_empty() && access.offset.terms.iter().all(|(a, _)| matches!(a, Atom::Axis(_)))
}
