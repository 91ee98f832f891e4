//! Helper kernels: materialising an operand in workspace, scaling C, and summing the splits of k.

use super::index::{Coord, Part, affine, in_range};
use super::position::Ints;
use super::{Input, Shape, epilogue};
use crate::contraction::{Contraction, Operand, Tensor};
use crate::view::{COL, G, ROW, View};
use tilewright_ir::*;

const THREADS: u32 = 256;
/// Elements per thread, a stride of the whole work-group apart so that stores stay coalesced.
const PER_THREAD: u32 = 4;

/// Work-groups of a helper kernel over this many elements.
pub(super) fn groups(elements: u64) -> u128 {
    (elements as u128).div_ceil((THREADS * PER_THREAD) as u128)
}

fn elements(b: &mut Builder, total: ExprId, ty: Scalar, mut body: impl FnMut(&mut Builder, ExprId)) {
    let group = b.builtin(Builtin::GroupId(0));
    let group = b.cast(group, ty);
    let first = b.mul(group, (THREADS * PER_THREAD) as i64);
    let local = b.builtin(Builtin::LocalId);
    let local = b.cast(local, ty);
    let first = b.add(first, local);
    let first = b.bind("first", first);
    b.for_range("i", 0, PER_THREAD, Unroll::Full, |b, i| {
        let i = b.cast(i, ty);
        let distance = b.mul(i, THREADS as i64);
        let element = b.add(first, distance);
        let element = b.bind("element", element);
        let exists = b.lt(element, total);
        b.if_then(exists, |b| body(b, element));
    });
}

/// Mixed-radix digits of a linear index, fastest first.
fn digits(b: &mut Builder, mut index: ExprId, extents: &[u64]) -> Vec<ExprId> {
    let mut out = Vec::new();
    for (i, &extent) in extents.iter().enumerate() {
        if i + 1 == extents.len() {
            out.push(index);
        } else {
            out.push(b.rem(index, extent as i64));
            index = b.div(index, extent as i64);
        }
    }
    out
}

/// Copies an operand, seen through its view, into its workspace layout. Elements that do not exist become zero.
///
/// Arguments: source buffer, source offset, destination, and with a chunked batch the first batch entry and how many.
pub(super) fn materialise(source: &Tensor, to: &Input, chunked: bool) -> Kernel {
    let operand = if to.operand == Operand::A { "a" } else { "b" };
    let mut b = Builder::new(format!("tw_materialise_{operand}"), THREADS);
    let b = &mut b;
    let view = &to.tensor.view;
    let extents = [view.extent[ROW], view.extent[COL], if to.chunk_local { view.extent[G] } else { 1 }];
    b.doc(format!(
        "copies operand {operand} into workspace: {} rows x {} k x {} batch entries",
        extents[0], extents[1], extents[2]
    ));
    let from = b.buffer(operand, source.scalar, Access::Read, "source operand");
    let offset = b.scalar_arg("offset", Scalar::I64, "first element of the source in its buffer");
    let dest = b.buffer("to", source.scalar, Access::Write, "workspace");
    let chunk = (chunked && to.chunk_local).then(|| {
        let first = b.scalar_arg("g_first", Scalar::I64, "first batch entry of this launch");
        (first, b.scalar_arg("entries", Scalar::I64, "batch entries of this launch"))
    });
    let ints = Ints::new(false, &[to.tensor.len, source.len], &[to.tensor.len, source.len]);
    let total = match chunk {
        Some((_, entries)) => {
            let entries = b.cast(entries, ints.coord);
            let total = b.mul(entries, (extents[0] * extents[1]) as i64);
            b.bind("total", total)
        }
        None => b.int((extents[0] * extents[1] * extents[2]) as i64, ints.coord),
    };
    let row_fast = view.stride(ROW) == Some(1) || view.stride(ROW).is_none();
    elements(b, total, ints.coord, |b, element| {
        // Walk in the order of the destination so that stores are coalesced.
        let macro_tile = to.tiling.macro_tile as u64;
        let (row, k, g) = if view.stride(ROW).is_none() {
            let d = digits(b, element, &[macro_tile, extents[1], extents[0] / macro_tile, extents[2]]);
            let panel = b.mul(d[2], macro_tile as i64);
            (b.add(panel, d[0]), d[1], d[3])
        } else if row_fast {
            let d = digits(b, element, &[extents[0], extents[1], extents[2]]);
            (d[0], d[1], d[2])
        } else {
            let d = digits(b, element, &[extents[1], extents[0], extents[2]]);
            (d[1], d[0], d[2])
        };
        let row = b.bind("row", row);
        let k = b.bind("k", k);
        let g_from = match chunk {
            Some((first, _)) => {
                let first = b.cast(first, ints.coord);
                b.add(first, g)
            }
            None => g,
        };
        let point = |b: &mut Builder, g: ExprId| [Coord::plain(b, g), Coord::plain(b, row), Coord::plain(b, k)];
        let at = point(b, g_from);
        let exists = valid(b, &source.view, &at, ints);
        let index = affine(b, &source.view.access.offset, &at, Part::Whole, Scalar::I64);
        let index = b.add(offset, index);
        let value = b.load("value", Base::Buffer(from), index, 1, exists);
        let at = point(b, g);
        let index = affine(b, &view.access.offset, &at, Part::Whole, ints.offset);
        b.store(Base::Buffer(dest), index, value, None);
    });
    std::mem::replace(b, Builder::new("", 0)).finish()
}

/// Condition under which an element of a view exists; `None` where it always does within the extents.
fn valid(b: &mut Builder, view: &View, at: &[Coord; 3], ints: Ints) -> Option<ExprId> {
    let mut guard = None;
    for bound in &view.access.bounds {
        let value = affine(b, &bound.value, at, Part::Whole, ints.coord);
        let inside = in_range(b, value, bound.low, bound.high);
        guard = b.and_opt(guard, Some(inside));
    }
    for axis in [ROW, COL] {
        // The copy may have more rows (whole panels) or more k (whole vectors) than the source.
        let value = at[axis].value(b);
        let inside = b.lt(value, view.extent[axis] as i64);
        guard = b.and_opt(guard, Some(inside));
    }
    guard
}

/// `C = alpha * (sum of partials) + beta * C + bias`, element by element; without partials `C = beta * C + bias`, which
/// prepares C for atomic additions.
///
/// Arguments: C, its offset, the bias if there is one, partials and alpha if there are splits, beta, the number of
/// batch entries, and with a chunked batch the first of them. `beta` 0 never reads C.
pub(super) fn finish(c: &Contraction, splits: u32, shape: &Shape) -> Kernel {
    let chunked = shape.chunks > 1;
    let acc = c.accumulator();
    let mut b = Builder::new(if splits > 0 { "tw_sum_splits" } else { "tw_scale_c" }, THREADS);
    let b = &mut b;
    let buffer = b.buffer("c", c.c.scalar, Access::ReadWrite, "result");
    let offset = b.scalar_arg("c_offset", Scalar::I64, "first element of the result in its buffer");
    let bias = c.bias.as_ref().map(|x| (x, b.buffer("bias", x.scalar, Access::Read, "added to the result")));
    let partials = (splits > 0).then(|| b.buffer("partials", acc, Access::Read, "partial sums [split][g][result]"));
    let alpha = (splits > 0).then(|| b.scalar_arg("alpha", acc, "factor of the product"));
    let beta = b.scalar_arg("beta", acc, "factor of the old result; 0 never reads it");
    let entries = b.scalar_arg("entries", Scalar::I64, "batch entries of this launch");
    let first = chunked.then(|| b.scalar_arg("g_first", Scalar::I64, "first batch entry of this launch"));
    let mn = c.m * c.n;
    let ints = Ints::new(false, &[mn * c.g], &[c.c.len, mn * c.g * splits.max(1) as u64]);
    let ty = ints.coord;
    let entries = b.cast(entries, ty);
    let total = b.mul(entries, mn as i64);
    let total = b.bind("total", total);
    elements(b, total, ty, |b, element| {
        let extents = if epilogue::columns_contiguous(c) { [c.n, c.m, c.g] } else { [c.m, c.n, c.g] };
        let d = digits(b, element, &extents);
        let (row, col) = if epilogue::columns_contiguous(c) { (d[1], d[0]) } else { (d[0], d[1]) };
        let row = b.bind("row", row);
        let col = b.bind("col", col);
        let g = match first {
            Some(first) => {
                let first = b.cast(first, ty);
                b.add(first, d[2])
            }
            None => d[2],
        };
        let mut sum = b.float(0.0, acc);
        if let (Some(partials), Some(alpha)) = (partials, alpha) {
            let at = b.cast(element, Scalar::I64);
            let var = b.declare("sum", sum);
            b.for_range("s", 0, splits, Unroll::By(4), |b, s| {
                let s = b.cast(s, Scalar::I64);
                let skip = b.mul(s, (shape.chunk * mn) as i64);
                let at = b.add(at, skip);
                let part = b.load("part", Base::Buffer(partials), at, 1, None);
                let before = b.get(var);
                let after = b.add(before, part);
                b.set(var, after);
            });
            let value = b.get(var);
            sum = b.mul(alpha, value);
        }
        if let Some((bias, buffer)) = bias {
            let value = epilogue::bias_value(b, bias, buffer, g, row, col, acc);
            sum = b.add(sum, value);
        }
        let point = [Coord::plain(b, g), Coord::plain(b, row), Coord::plain(b, col)];
        let at = affine(b, &c.c.view.access.offset, &point, Part::Whole, Scalar::I64);
        let at = b.add(offset, at);
        let at = b.bind("at", at);
        let zero = b.float(0.0, acc);
        let overwrite = b.eq(beta, zero);
        let store = |b: &mut Builder, value: ExprId| {
            let value = b.cast(value, c.c.scalar);
            b.store(Base::Buffer(buffer), at, value, None);
        };
        b.if_else(
            overwrite,
            |b| store(b, sum),
            |b| {
                let old = b.load("old", Base::Buffer(buffer), at, 1, None);
                let old = b.cast(old, acc);
                let value = b.fma(beta, old, sum);
                store(b, value);
            },
        );
    });
    std::mem::replace(b, Builder::new("", 0)).finish()
}
