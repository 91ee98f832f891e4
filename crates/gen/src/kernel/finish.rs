//! Helper kernels over the elements of the result: scaling C, and summing the splits of k.

use super::arguments::{Arguments, Bound, BoundKernel};
use super::elements::{THREADS, digits, elements, groups};
use super::exit::out;
use crate::kernel::exit::operations::{Applied, Before, Operations, Piece, Run, Start, largest_added, pieces, stored};
use crate::kernel::exit::pairs::FinishedPairs;
use crate::kernel::input::{Ints, Rows, Shape, exists};
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

/// The same for the splits of so many rows and batch entries; both sums of a pair are one thread's.
pub fn lanes(c: &Contraction, rows: u64, entries: u64, splits: u32) -> u32 {
    if c.pairs().is_some() { 1 } else { split_lanes(entries * rows * c.n, splits) }
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

/// Partial sums in workspace, which lie as those of the largest result.
#[derive(Clone, Copy)]
struct Partials {
    buffer: ArgId,
    splits: u32,
    /// Elements of memory from one split to the next.
    apart: u64,
}

/// Elements that work-groups of the kernel visit.
#[derive(Clone, Copy)]
struct Visited {
    group: ExprId,
    total: ExprId,
    /// Type of their numbers.
    ty: Scalar,
}

/// Where an element of the result is.
struct Place {
    g: ExprId,
    row: ExprId,
    col: ExprId,
    /// Batch entry among those of this launch.
    entry: ExprId,
}

/// The kernel's result, and what is declared of it.
struct Finisher<'a> {
    c: &'a Contraction,
    /// C and its first element.
    result: ArgId,
    offset: ExprId,
    operations: &'a Operations<'a>,
    /// Of a gated product, whose elements are made of two sums each.
    paired: Option<&'a FinishedPairs<'a>>,
    /// The first batch entry of this launch.
    first: Option<ExprId>,
    /// Its rows that are finished.
    rows: Rows,
    /// Rows and columns of this launch.
    sizes: [Ex; 2],
    /// Numbers of what is visited in each direction, the contiguous one first.
    extents: [Ex; 3],
    /// Neighbours of one thread.
    together: u32,
    /// Whether the old result is not read, where only that may be left to do.
    unread: Option<ExprId>,
    ints: Ints,
}

impl Finisher<'_> {
    /// Adds the partial sum at this place.
    fn add_part(b: &mut Builder, sum: VarId, from: Base, at: ExprId) {
        let part = b.load("part", from, at, 1, None);
        b.set(sum, sum + part);
    }

    fn zero(&self, b: &mut Builder) -> ExprId {
        b.zero(self.c.accumulator().ty())
    }

    /// Where the first of an element's partial sums is; elements count those of this launch.
    fn partial_of(&self, b: &mut Builder, element: ExprId) -> ExprId {
        let c = self.c;
        if [Extent::M, Extent::N].into_iter().all(|extent| !c.dynamic().has(extent)) {
            return b.value(element.cast(Scalar::I64));
        }
        let d = digits(b, element, &result_extents(c, &self.sizes));
        let (row, col) = if out::columns_contiguous(c) { (d[1], d[0]) } else { (d[0], d[1]) };
        self.partial_at(b, d[2], [row, col])
    }

    /// Where the first of the partial sums of this row and column of the product is.
    fn partial_at(&self, b: &mut Builder, entry: ExprId, [row, col]: [ExprId; 2]) -> ExprId {
        let within = out::partial_index(b, self.c, self.rows, [row, col], Scalar::I64);
        b.value(entry.cast(Scalar::I64) * ((self.rows.count * self.c.n) as i64) + within)
    }

    /// The sum of the splits that begin here, by one thread.
    fn sum_of_splits(&self, b: &mut Builder, partials: Partials, at: ExprId) -> ExprId {
        let zero = self.zero(b);
        let var = b.declare("sum", zero);
        b.for_range("s", 0, partials.splits, Unroll::By(8), |b, s| {
            let at = b.value(at + s.cast(Scalar::I64) * (partials.apart as i64));
            Self::add_part(b, var, Base::Buffer(partials.buffer), at);
        });
        b.get(var)
    }

    /// The gate's result of the sums of a pair.
    fn sum_of_pair(&self, b: &mut Builder, paired: &FinishedPairs<'_>, partials: Partials, place: &Place) -> ExprId {
        let first = paired.first(b, place.col);
        let sums = [0, 1].map(|part| {
            let col = b.value(first + part * paired.pairs.granule as i64);
            let at = self.partial_at(b, place.entry, [place.row, col]);
            let at = b.bind("at_sum", at);
            self.sum_of_splits(b, partials, at)
        });
        let [row, col] = [place.row, first].map(|x| Coord::plain(b, x));
        let run = self.run(place.g, [row, col], 1, None);
        paired.combine(b, &run, self.ints, sums)
    }

    /// A run of neighbours of the product from this row and column on.
    fn run(&self, g: ExprId, [row, col]: [Coord; 2], length: u32, piece: Option<u32>) -> Run {
        let by_column = out::columns_contiguous(self.c);
        Run { g, row, col, by_column, length, piece, start: Start::Multiple, overruns: [None, None] }
    }

    /// The place of the element with this number.
    fn place(&self, b: &mut Builder, element: ExprId) -> Place {
        let d = digits(b, element, &self.extents);
        let fast = if self.together > 1 { b.value(d[0] * self.together) } else { d[0] };
        let (row, col) = if out::columns_contiguous(self.c) { (d[1], fast) } else { (fast, d[1]) };
        let row = if self.rows.first == 0 { row } else { b.value(row + self.rows.first as i64) };
        let (row, col) = (b.bind("row", row), b.bind("col", col));
        let g = self.first.map_or(d[2], |first| b.value(first.cast(self.ints.coord) + d[2]));
        Place { g, row, col, entry: d[2] }
    }

    /// Applies the operations to the sum of the element here, and stores it.
    fn write(&self, b: &mut Builder, place: &Place, sum: ExprId) {
        let (c, result) = (self.c, Base::Buffer(self.result));
        let point = [place.g, place.row, place.col].map(|x| Coord::plain(b, x));
        let operations = self.operations.of_entry(b, place.g);
        let at = affine(b, &c.c.view.access.offset, &point, Part::Whole, Scalar::I64);
        let at = b.bind("at", self.offset + at);
        // Blocks of a block-diagonal result.
        let exists = exists(b, &c.c.view, &point, Scalar::I64, None);
        let store_pieces = |b: &mut Builder, old: bool| {
            for Piece { offset: piece, values: accumulators } in pieces(b, c, &vec![sum; self.together as usize], false) {
                let length = accumulators.len() as u32;
                let at = piece.map_or(at, |distance| b.value(at + distance));
                let before = |b: &mut Builder| load(b, result, at, length, self.together, exists);
                let before: Option<Before> = if old { Some(&before) } else { None };
                let run = self.run(place.g, [point[1], point[2]], length, piece);
                let values = operations.apply(b, &run, exists, self.ints, before, &accumulators);
                let values: Vec<ExprId> = values.into_iter().map(|value| stored(b, value, c.c.scalar)).collect();
                store(b, result, at, &values, self.together, exists);
            }
        };
        match self.unread {
            Some(_) => store_pieces(b, true),
            None => operations.by_beta(b, store_pieces),
        }
    }

    /// Finishes each element by one thread, from the sum of its splits, or from 0.
    fn each(&self, b: &mut Builder, partials: Option<Partials>, of: Visited) {
        elements(b, of.group, of.total, of.ty, |b, element| {
            let place = self.place(b, element);
            let sum = match (partials, self.paired) {
                (None, _) => self.zero(b),
                (Some(partials), Some(paired)) => self.sum_of_pair(b, paired, partials, &place),
                (Some(partials), None) => {
                    let at = self.partial_of(b, element);
                    self.sum_of_splits(b, partials, at)
                }
            };
            self.write(b, &place, sum);
        });
    }

    /// Finishes each element from the sum of its splits, which several threads share: each adds every `lanes`-th split, and their sums
    /// are added in order.
    fn each_through_shared(&self, b: &mut Builder, partials: Partials, of: Visited, lanes: u32) {
        let width = THREADS / lanes;
        let array = b.shared("partial_acc", self.c.accumulator(), THREADS, 0);
        let local = b.bind("local_id", Builtin::LocalId);
        let lane = b.bind("lane", local / width);
        let own = b.value(local % width);
        let element = b.bind("element", of.group.cast(of.ty) * i64::from(width) + own.cast(of.ty));
        let exists = b.bind("exists", element.lt(of.total));
        let zero = self.zero(b);
        let var = b.declare("sum", zero);
        b.if_then(exists, |b| {
            let at = self.partial_of(b, element);
            b.for_range("i", 0, ((partials.splits + lanes - 1) - lane) / lanes, Unroll::By(8), |b, i| {
                let at = b.value(at + (i * lanes + lane).cast(Scalar::I64) * (partials.apart as i64));
                Self::add_part(b, var, Base::Buffer(partials.buffer), at);
            });
        });
        b.store(Base::Shared(array), local, var, None);
        b.barrier();
        let first = b.value(local.lt(width));
        let Some(last) = b.and_opt(Some(first), Some(exists)) else { return };
        b.if_then(last, |b| {
            let total = b.declare("all", zero);
            b.for_range("l", 0, lanes, Unroll::Full, |b, l| {
                let at = b.value(l * width + own);
                Self::add_part(b, total, Base::Shared(array), at);
            });
            let total = b.get(total);
            let place = self.place(b, element);
            self.write(b, &place, total);
        });
    }
}

/// Declares C and its offset.
pub(super) fn result(b: &mut Builder, args: &mut Arguments, c: &Contraction) -> (ArgId, ExprId) {
    let buffer = args.buffer(b, "c", c.c.scalar, Access::ReadWrite, "result", Binding::Buffer(Operand::C));
    let doc = "first element of the result in its buffer";
    (buffer, args.scalar(b, "c_offset", Scalar::I64, doc, Binding::Offset(Operand::C)))
}

/// Rows and columns of the result of a launch.
fn sizes(args: &mut Arguments, b: &mut Builder, c: &Contraction, rows: Rows, ty: Scalar) -> [Ex; 2] {
    [(Extent::M, rows.count), (Extent::N, c.n)].map(|(extent, most)| {
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
    let mut b = Builder::new(if partials.is_some() { "tw_sum_splits" } else { "tw_scale_c" }, THREADS);
    let (b, mut args) = (&mut b, Arguments::default());
    let (result, offset) = result(b, &mut args, c);
    let (operations, partials) = Operations::declare(b, &mut args, c, applied, |b, args| {
        let doc = "partial sums [split][g][result]";
        partials.map(|region| args.buffer(b, "partials", acc, Access::Read, doc, Binding::Workspace(region)))
    });
    let entries = args.scalar(b, "entries", Scalar::I64, "batch entries of this launch", Bound::Entries);
    let first = args.first(b, shape.chunks);
    let rows = shape.rows;
    let (all, mn) = (c.m * c.n, rows.count * c.n);
    let ints = Ints::new(false, &[all * c.g], &[c.c.len, mn * c.g * splits.max(1) as u64, largest_added(c)]);
    let ty = ints.coord;
    let paired = FinishedPairs::of(c, &results, &operations);
    let operations = paired.as_ref().map_or(&operations, FinishedPairs::on_results);
    // Elements are those of the result.
    let of = if paired.is_some() { &results } else { c };
    let sizes = sizes(&mut args, b, of, rows, ty);
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
    let visited = Visited { group: b.builtin(Builtin::GroupId(0)), total, ty };
    let (paired, extents) = (paired.as_ref(), [fast, slow, batch]);
    let finisher = Finisher { c, result, offset, operations, paired, first, rows, sizes, extents, together, unread, ints };
    let partials = partials.map(|buffer| Partials { buffer, splits, apart: shape.chunk * mn });
    match (partials, lanes(c, rows.count, shape.chunk, splits)) {
        (Some(partials), lanes @ 2..) => finisher.each_through_shared(b, partials, visited, lanes),
        _ => finisher.each(b, partials, visited),
    }
    BoundKernel { kernel: std::mem::replace(b, Builder::new("", 0)).finish(), args }
}
