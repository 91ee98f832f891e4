//! Helper kernels over the elements of the result: scaling C, and summing the splits of k.

use super::arguments::{Arguments, Bound, BoundKernel};
use super::elements::{THREADS, digits, elements, groups};
use super::exit::out;
use crate::kernel::exit::operations::{Applied, Before, Operations, Piece, Run, Start, pieces, stored};
use crate::kernel::exit::pairs::FinishedPairs;
use crate::kernel::input::{Ints, Shape, exists};
use crate::program::{Binding, Factor, Groups};
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::*;
use tilewright_problem::Extent;
use tilewright_problem::contraction::{Contraction, Operand};

/// Threads that a device wants to be busy with a split-k reduction.
const BUSY: u64 = 1 << 16;

/// Threads that share the splits of one element: one where there are elements enough to keep a device busy.
pub fn split_lanes(elements: u64, splits: u32) -> u32 {
    let most = (splits / 4).clamp(1, THREADS / 8);
    let wanted = BUSY.div_ceil(elements.max(1)).min(u64::from(most)) as u32;
    // A power of two, not above the most.
    1 << wanted.ilog2()
}

/// The same for the splits of so many batch entries; both sums of a pair are one thread's.
pub fn lanes(c: &Contraction, entries: u64, splits: u32) -> u32 {
    if c.pairs().is_some() { 1 } else { split_lanes(entries * c.m * c.n, splits) }
}

/// Work-groups of the kernel that reduces splits of so many elements with so many threads each.
pub(super) fn sum_groups(elements: Vec<Factor>, lanes: u32) -> Groups {
    match lanes {
        1 => groups(elements),
        lanes => Groups { factors: elements, per: u64::from(THREADS / lanes), most: None },
    }
}

/// Rows, columns and batch entries of the result, the contiguous direction first.
fn result_extents(c: &Contraction, [m, n]: &[Ex; 2]) -> [Ex; 3] {
    let (fast, slow) = if out::columns_contiguous(c) { (n, m) } else { (m, n) };
    [fast.clone(), slow.clone(), c.g.into()]
}

/// Neighbours of one thread of the kernel ahead: 2 for the parts of a complex number, because each part needs the other's old value.
fn together(c: &Contraction) -> u32 {
    if c.turns_old() { 2 } else { 1 }
}

/// Work-groups of the kernel that multiplies C ahead of others, over so many elements.
pub(super) fn groups_ahead(c: &Contraction, elements: Vec<Factor>) -> Groups {
    let of = groups(elements);
    Groups { per: of.per * u64::from(together(c)), ..of }
}

/// Where the first of an element's partial sums is: they lie as those of the largest result, elements count those of this launch.
fn partial_of(b: &mut Builder, c: &Contraction, sizes: &[Ex; 2], element: ExprId) -> ExprId {
    if [Extent::M, Extent::N].into_iter().all(|extent| !c.dynamic().has(extent)) {
        return b.value(element.cast(Scalar::I64));
    }
    let by_column = out::columns_contiguous(c);
    let d = digits(b, element, &result_extents(c, sizes));
    let (row, col) = if by_column { (d[1], d[0]) } else { (d[0], d[1]) };
    let within = out::partial_index(b, c, row, col, Scalar::I64);
    b.value(d[2].cast(Scalar::I64) * ((c.m * c.n) as i64) + within)
}

/// Adds the partial sum at this place.
fn add_part(b: &mut Builder, sum: VarId, from: Base, at: ExprId) {
    let part = b.load("part", from, at, 1, None);
    b.set(sum, sum + part);
}

/// Partial sums whose splits several threads share.
struct SharedSplits {
    partials: ArgId,
    splits: u32,
    /// Elements of memory from one split to the next.
    apart: u64,
    /// Threads that share the splits of one element.
    lanes: u32,
    /// Elements of the result.
    total: ExprId,
    /// Type of the numbers of elements, and of the sums.
    ty: Scalar,
    acc: Scalar,
}

/// Runs the body for each element with the sum of its splits, which several threads share: each adds every `lanes`-th split, and
/// their sums are added in order.
fn sum_through_shared(
    b: &mut Builder,
    of: SharedSplits,
    group: ExprId,
    place: impl FnOnce(&mut Builder, ExprId) -> ExprId,
    body: impl FnOnce(&mut Builder, ExprId, ExprId),
) {
    let SharedSplits { partials, splits, apart, lanes, total, ty, acc } = of;
    let width = THREADS / lanes;
    let array = b.shared("partial_acc", acc, THREADS, 0);
    let local = b.bind("local_id", Builtin::LocalId);
    let lane = b.bind("lane", local / width);
    let own = b.value(local % width);
    let element = b.bind("element", group.cast(ty) * i64::from(width) + own.cast(ty));
    let exists = b.bind("exists", element.lt(total));
    let zero = b.zero(acc.ty());
    let var = b.declare("sum", zero);
    b.if_then(exists, |b| {
        let at = place(b, element);
        b.for_range("i", 0, ((splits + lanes - 1) - lane) / lanes, Unroll::By(8), |b, i| {
            let at = b.value(at + (i * lanes + lane).cast(Scalar::I64) * (apart as i64));
            add_part(b, var, Base::Buffer(partials), at);
        });
    });
    b.store(Base::Shared(array), local, var, None);
    b.barrier();
    let first = b.value(local.lt(width));
    let last = b.and_opt(Some(first), Some(exists));
    let Some(last) = last else { return };
    b.if_then(last, |b| {
        let total = b.declare("all", zero);
        b.for_range("l", 0, lanes, Unroll::Full, |b, l| {
            let at = b.value(l * width + own);
            add_part(b, total, Base::Shared(array), at);
        });
        let total = b.get(total);
        body(b, element, total);
    });
}

/// Declares C and its offset.
pub(super) fn result(b: &mut Builder, args: &mut Arguments, c: &Contraction) -> (ArgId, ExprId) {
    let buffer = args.buffer(b, "c", c.c.scalar, Access::ReadWrite, "result", Binding::Buffer(Operand::C));
    let doc = "first element of the result in its buffer";
    (buffer, args.scalar(b, "c_offset", Scalar::I64, doc, Binding::Offset(Operand::C)))
}

/// Rows and columns of the result of a launch.
fn sizes(args: &mut Arguments, b: &mut Builder, c: &Contraction, ty: Scalar) -> [Ex; 2] {
    [(Extent::M, c.m), (Extent::N, c.n)].map(|(extent, most)| {
        let size = c
            .dynamic_extent(extent)
            .map(|named| args.scalar(b, named.name(), Scalar::I32, "of this launch", Binding::Extent(named)));
        size.map_or(Ex::from(most), |size| size.cast(ty))
    })
}

/// Loads neighbours of the old result: as a vector, or one by one for parts of complex numbers, which are aligned to one part only.
fn load(b: &mut Builder, from: Base, at: ExprId, length: u32, parts: u32, exists: Option<ExprId>) -> ExprId {
    if parts == 1 {
        return b.load("old", from, at, length, exists);
    }
    let parts: Vec<ExprId> = (0..parts).map(|i| b.load("old", from, at + i, 1, exists)).collect();
    b.vector(&parts)
}

/// Stores neighbours as a vector, or one by one for parts of complex numbers.
fn store(b: &mut Builder, to: Base, at: ExprId, values: &[ExprId], parts: u32, exists: Option<ExprId>) {
    if parts == 1 {
        let value = b.vector(values);
        return b.store(to, at, value, exists);
    }
    for (i, value) in (0..).zip(values) {
        b.store(to, at + i, *value, exists);
    }
}

/// Builds the kernel that adds partial sums element by element and applies the epilogue operations.
///
/// Without partial sums it prepares C: for atomic additions it applies the remaining operations to 0, and for [`Applied::Ahead`] it
/// multiplies the old result. `beta` 0 never reads C. `partials` is the start of the partial sums in workspace, if there are any.
pub(super) fn finish(c: &Contraction, applied: Applied, splits: u32, partials: Option<u64>, shape: &Shape) -> BoundKernel {
    let (acc, results) = (c.accumulator(), c.of_pairs());
    // What elements are counted of.
    let of = if c.pairs().is_some() { &results } else { c };
    let mut b = Builder::new(if partials.is_some() { "tw_sum_splits" } else { "tw_scale_c" }, THREADS);
    let (b, mut args) = (&mut b, Arguments::default());
    let (buffer, offset) = result(b, &mut args, c);
    let (operations, partials) = Operations::declare(b, &mut args, c, applied, |b, args| {
        let doc = "partial sums [split][g][result]";
        partials.map(|region| args.buffer(b, "partials", acc, Access::Read, doc, Binding::Workspace(region)))
    });
    let entries = args.scalar(b, "entries", Scalar::I64, "batch entries of this launch", Bound::Entries);
    let first = args.first(b, shape.chunks);
    let mn = c.m * c.n;
    let residual = c.residual().map_or(0, |r| r.len);
    let ints = Ints::new(false, &[mn * c.g], &[c.c.len, mn * c.g * splits.max(1) as u64, residual]);
    let ty = ints.coord;
    let paired = FinishedPairs::of(c, &results, &operations);
    let operations = paired.as_ref().map_or(&operations, FinishedPairs::on_results);
    let sizes = sizes(&mut args, b, of, ty);
    let each = &sizes[0] * &sizes[1];
    let together = if partials.is_some() { 1 } else { together(c) };
    let [mut fast, slow, batch] = result_extents(of, &sizes);
    let mut total = entries.cast(ty) * each;
    if together > 1 {
        (fast, total) = (fast / together, total / together);
    }
    let unread = if applied == Applied::Ahead { operations.old_unread(b) } else { None };
    let total = match unread {
        // There is nothing to multiply.
        Some(unread) => b.bind("total", unread.select(0, total)),
        None => b.bind("total", total),
    };
    let extents = [fast, slow, batch];
    let group = b.builtin(Builtin::GroupId(0));
    let lanes = lanes(c, shape.chunk, splits);
    let apart = shape.chunk * mn;
    let finish_one = |b: &mut Builder, element: ExprId, shared_sum: Option<ExprId>| {
        let d = digits(b, element, &extents);
        let by_column = out::columns_contiguous(c);
        let place = if together > 1 { b.value(d[0] * together) } else { d[0] };
        let (row, col) = if by_column { (d[1], place) } else { (place, d[1]) };
        let row = b.bind("row", row);
        let col = b.bind("col", col);
        let g = match first {
            Some(first) => b.value(first.cast(ty) + d[2]),
            None => d[2],
        };
        let zero = b.zero(acc.ty());
        let sum = match (shared_sum, partials) {
            (Some(sum), _) => sum,
            (None, None) => zero,
            (None, Some(partials)) => {
                let of_splits = |b: &mut Builder, at: ExprId| {
                    let var = b.declare("sum", zero);
                    b.for_range("s", 0, splits, Unroll::By(8), |b, s| {
                        let at = b.value(at + s.cast(Scalar::I64) * (apart as i64));
                        add_part(b, var, Base::Buffer(partials), at);
                    });
                    b.get(var)
                };
                match &paired {
                    None => {
                        let at = partial_of(b, c, &sizes, element);
                        of_splits(b, at)
                    }
                    Some(paired) => {
                        let first = paired.first(b, col);
                        let sums = [0, 1].map(|part| {
                            let col = b.value(first + part * paired.pairs.granule as i64);
                            let within = out::partial_index(b, c, row, col, Scalar::I64);
                            let at = b.bind("at_sum", d[2].cast(Scalar::I64) * (mn as i64) + within);
                            of_splits(b, at)
                        });
                        let [row, col] = [row, first].map(|x| Coord::plain(b, x));
                        let run = Run {
                            g,
                            row,
                            col,
                            by_column,
                            length: 1,
                            piece: None,
                            start: Start::Multiple,
                            overruns: [None, None],
                        };
                        paired.combine(b, &run, ints, sums)
                    }
                }
            }
        };
        let point = [Coord::plain(b, g), Coord::plain(b, row), Coord::plain(b, col)];
        let operations = operations.of_entry(b, g);
        let at = affine(b, &c.c.view.access.offset, &point, Part::Whole, Scalar::I64);
        let at = b.bind("at", offset + at);
        // Blocks of a block-diagonal result.
        let exists = exists(b, &c.c.view, &point, Scalar::I64, None);
        let write = |b: &mut Builder, old: bool| {
            for Piece { offset: piece, values: accumulators } in pieces(b, c, &vec![sum; together as usize], false) {
                let (length, [row, col]) = (accumulators.len() as u32, [point[1], point[2]]);
                let at = piece.map_or(at, |distance| b.value(at + distance));
                let before = |b: &mut Builder| load(b, Base::Buffer(buffer), at, length, together, exists);
                let before: Option<Before> = if old { Some(&before) } else { None };
                let run = Run { g, row, col, by_column, length, piece, start: Start::Multiple, overruns: [None, None] };
                let values = operations.apply(b, &run, exists, ints, before, &accumulators);
                let values: Vec<ExprId> = values.into_iter().map(|value| stored(b, value, c.c.scalar)).collect();
                store(b, Base::Buffer(buffer), at, &values, together, exists);
            }
        };
        match unread {
            Some(_) => write(b, true),
            None => operations.by_beta(b, write),
        }
    };
    match partials {
        Some(partials) if lanes > 1 => {
            let place = |b: &mut Builder, element: ExprId| partial_of(b, c, &sizes, element);
            let of = SharedSplits { partials, splits, apart, lanes, total, ty, acc };
            sum_through_shared(b, of, group, place, |b, element, sum| finish_one(b, element, Some(sum)));
        }
        _ => elements(b, group, total, ty, |b, element| finish_one(b, element, None)),
    }
    BoundKernel { kernel: std::mem::replace(b, Builder::new("", 0)).finish(), args }
}
