//! The kernel that adds the splits of k tile by tile, applies the epilogue operations, stores the results and reduces the tiles. Without
//! partial sums it applies the remaining operations to 0, which prepares C for atomic additions.

use super::Reducer;
use super::at_launch::AtLaunch;
use super::tile::{FreeShared, HeldTile};
use crate::kernel::arguments::{Arguments, BoundKernel};
use crate::kernel::elements::digits;
use crate::kernel::exit::operations::{Applied, Before, Operations, Run, Start};
use crate::kernel::exit::out;
use crate::kernel::finish::result;
use crate::kernel::input::{Ints, Regions, Rows, Shape};
use crate::plan::{ELEMENT_THREADS, ElementTile, KernelSpec};
use crate::program::{Binding, Factor, Groups};
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::layout::Axis;
use tilewright_ir::*;
use tilewright_problem::Extent;
use tilewright_problem::contraction::Contraction;

/// Tiles of a batch entry along m and n.
fn tiles(c: &Contraction, tile: &ElementTile) -> [u64; 2] {
    [c.m.div_ceil(tile.size[0].into()), c.n.div_ceil(tile.size[1].into())]
}

/// Work-groups of the kernel for these batch entries.
pub(crate) fn groups(c: &Contraction, entries: Factor) -> Groups {
    let tile = ElementTile::new(c);
    let all = tiles(c, &tile);
    let along = |axis: usize, extent: Extent| match c.dynamic_extent(extent) {
        Some(extent) => Factor::Steps { extent, more: 0, of: tile.size[axis].into() },
        None => Factor::Fixed(all[axis]),
    };
    Groups { factors: vec![entries, along(0, Extent::M), along(1, Extent::N)], per: 1, most: None }
}

/// The results of a tile that a work-group takes.
struct Elements<'a> {
    c: &'a Contraction,
    tile: ElementTile,
    /// Partial sums: their number for each element, and the memory.
    splits: u32,
    partials: Option<ArgId>,
    /// Batch entries of a launch.
    chunk: u64,
    /// Rows and columns where they are known only at launch.
    sizes: [Option<ExprId>; 2],
    ints: Ints,
    /// Batch entry, in the whole batch and in the launch; the tile's number and first coordinates along m and n.
    g: [ExprId; 2],
    number: [ExprId; 2],
    start: [Coord; 2],
    thread: ExprId,
}

/// The kernel.
pub(crate) fn finish(c: &Contraction, spec: &KernelSpec, shape: &Shape, regions: &Regions) -> BoundKernel {
    let acc = c.accumulator();
    let summed = regions.partials.is_some();
    let mut b = Builder::new(if summed { "tw_sum_splits" } else { "tw_scale_c" }, ELEMENT_THREADS);
    let (b, mut args) = (&mut b, Arguments::default());
    let to = (!c.drop_c).then(|| result(b, &mut args, c));
    let (operations, partials) =
        Operations::declare(b, &mut args, c, if summed { Applied::All } else { Applied::Rest }, |b, args| {
            let doc = "partial sums [split][g][result]";
            regions.partials.map(|region| args.buffer(b, "partials", acc, Access::Read, doc, Binding::Workspace(region)))
        });
    let reducers = Reducer::declare(b, &mut args, c, false, &regions.reductions);
    let first = args.first(b, shape.chunks);
    let (mn, splits) = (c.m * c.n, spec.tiling.split_k.ways);
    let residual = c.residual().map_or(0, |r| r.len);
    let ints = Ints::new(false, &[mn * c.g], &[c.c.len, mn * c.g * u64::from(splits), residual]);
    let tile = ElementTile::new(c);
    let ways = spec.element_reductions(c);
    if ways.iter().any(|way| !way.lane_bits.is_empty()) {
        b.wave(spec.tiling.wave_lanes);
    }
    let (thread, group) = (b.bind("local_id", Builtin::LocalId), b.value(Builtin::GroupId(0).cast(ints.coord)));
    let at_launch = AtLaunch::declare(b, &mut args, c);
    let sizes = [0, 1].map(|axis| at_launch.along(axis).map(|size| b.value(size.cast(ints.coord))));
    let fixed = tiles(c, &tile);
    let [m, n] = [0, 1].map(|axis| {
        let size = i64::from(tile.size[axis]);
        sizes[axis].map_or(Ex::from(fixed[axis]), |extent| (extent + (size - 1)) / size)
    });
    let d = digits(b, group, &[n, m, c.g.into()]);
    let number = [b.bind("tile_m", d[1]), b.bind("tile_n", d[0])];
    let local = b.bind("g_local", d[2]);
    let g = match first {
        Some(first) => b.bind("g", first.cast(ints.coord) + local),
        None => local,
    };
    let start = [0, 1].map(|axis| {
        let start = b.value(number[axis] * i64::from(tile.size[axis]));
        Coord::plain(b, start)
    });
    let elements = Elements { c, tile, splits, partials, chunk: shape.chunk, sizes, ints, g: [g, local], number, start, thread };
    let values = elements.sum(b);
    let operations = operations.of_entry(b, g);
    operations.by_beta(b, |b, old| elements.apply(b, &operations, values, to, old));
    let ways: Vec<_> = reducers.iter().zip(ways).collect();
    elements.reduce(b, values, &ways);
    BoundKernel { kernel: std::mem::replace(b, Builder::new("", 0)).finish(), args }
}

impl Elements<'_> {
    /// Row and column of a register's element, and the condition that it exists.
    fn place(&self, b: &mut Builder, register: u32) -> ([Coord; 2], Option<ExprId>) {
        let at = [(0, Axis::Row), (1, Axis::Col)].map(|(axis, to)| {
            let of_thread = self.tile.layout.emit(b, to, &[(Axis::Thread, self.thread)], Scalar::I32);
            let further = self.tile.layout.at(to, &[(Axis::Register, register.into())]);
            let at = b.value(self.start[axis].local + of_thread.cast(self.ints.coord) + further);
            Coord::plain(b, at)
        });
        let inside = [self.owned(b, at[0], 0), self.owned(b, at[1], 1)];
        (at, b.and_opt(inside[0], inside[1]))
    }

    /// Rows (0) or columns (1), where tiles reach beyond them.
    fn edge(&self, axis: usize) -> Option<Ex> {
        let extent = [self.c.m, self.c.n][axis];
        let fixed = || (!extent.is_multiple_of(self.tile.size[axis].into())).then_some(Ex::from(extent));
        self.sizes[axis].map(Ex::from).or_else(fixed)
    }

    /// Condition that a row (0) or column (1) exists, where some do not.
    fn owned(&self, b: &mut Builder, at: Coord, axis: usize) -> Option<ExprId> {
        self.edge(axis).map(|edge| {
            let at = at.value(b);
            b.value(at.lt(edge))
        })
    }

    fn registers(&self) -> u32 {
        self.tile.layout.extent(Axis::Register) as u32
    }

    /// The sums of the splits, in registers: loads of all elements of a thread fly together.
    fn sum(&self, b: &mut Builder) -> RegId {
        let (acc, mn) = (self.c.accumulator(), (self.c.m * self.c.n) as i64);
        let totals = b.regs("acc", acc.vector(1), self.registers());
        let mut from = Vec::new();
        for register in 0..self.registers() {
            let zero = b.float(0.0, acc);
            b.set_reg(totals, register, zero);
            let ([row, col], inside) = self.place(b, register);
            let (row, col) = (row.value(b), col.value(b));
            let within = out::partial_index(b, self.c, Rows::all(self.c), [row, col], Scalar::I64);
            let at = b.bind("from", self.g[1].cast(Scalar::I64) * mn + within);
            from.push((at, inside.map(|inside| b.bind("inside", inside))));
        }
        let Some(partials) = self.partials else { return totals };
        b.for_range("s", 0, self.splits, Unroll::By(2), |b, s| {
            let split = b.value(s.cast(Scalar::I64) * (self.chunk as i64 * mn));
            for (register, (at, inside)) in (0..).zip(&from) {
                let part = b.load("part", Base::Buffer(partials), *at + split, 1, *inside);
                b.set_reg(totals, register, Ex::reg(totals, register) + part);
            }
        });
        totals
    }

    /// The results in place of the sums, stored where they are to be.
    fn apply(&self, b: &mut Builder, operations: &Operations, values: RegId, to: Option<(ArgId, ExprId)>, old: bool) {
        let c = self.c;
        for register in 0..self.registers() {
            let ([row, col], inside) = self.place(b, register);
            let overruns = [0, 1].map(|axis| self.edge(axis));
            let by_column = out::columns_contiguous(c);
            let run = Run { g: self.g[0], row, col, by_column, length: 1, piece: None, start: Start::Multiple, overruns };
            let point = [Coord::plain(b, self.g[0]), row, col];
            let place = to.map(|(buffer, offset)| {
                let at = affine(b, &c.c.view.access.offset, &point, Part::Whole, Scalar::I64);
                (buffer, b.bind("at", offset + at))
            });
            let before = |b: &mut Builder| match place {
                Some((buffer, at)) => b.load("old", Base::Buffer(buffer), at, 1, inside),
                None => b.zero(c.c.scalar.vector(1)),
            };
            let before: Option<Before> = if old { Some(&before) } else { None };
            let sum = b.reg(values, register);
            let value = operations.apply(b, &run, inside, self.ints, before, &[sum])[0];
            let value = b.bind("result", value);
            b.set_reg(values, register, value);
            if let Some((buffer, at)) = place {
                b.store(Base::Buffer(buffer), at, value.cast(c.c.scalar), inside);
            }
        }
    }

    fn reduce(&self, b: &mut Builder, values: RegId, ways: &[(&Reducer, crate::plan::TileReduction)]) {
        let held = HeldTile {
            layout: &self.tile.layout,
            thread: self.thread,
            threads: ELEMENT_THREADS,
            value: &|b, register| b.reg(values, register),
            overwrite: None,
            counts: &|_| None,
            cluster: None,
            share: None,
            stored: self.c.c.scalar,
            g: self.g[0],
            tile: self.number,
            start: self.start,
            owned: &|b, at, axis| self.owned(b, at, axis),
            sync: &|b| b.barrier(),
            ints: self.ints,
            walk: None,
            shift: None,
        };
        let place = held.place(b);
        held.reduce(b, ways, place, FreeShared::ALL);
    }
}
