//! The epilogue: what happens to the accumulators before the store.
//!
//! Results go straight from registers (in vectors where C is contiguous along a thread's own elements), or through a staging
//! buffer of shared memory. Adjacent threads then store adjacent elements. A split along k adds atomically or leaves partial sums
//! in workspace.

use super::Epilogue;
use crate::kernel::exit::operations::{Before, OldAhead, Operations, Piece, Run, Start, pieces, stored};
use crate::kernel::input::{Rows, entry_start, exists};
use crate::kernel::reduce::Reducer;
use crate::kernel::tile::position::TilePosition;
use crate::kernel::unit::accumulators::{self, Accumulators};
use crate::plan::reach::vector_width;
use crate::plan::{Edge, Exit};
use std::ops::Range;
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::layout::Axis;
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{COL, G, ROW};

/// Where results go, and what becomes of sums before.
pub(crate) struct OutArgs<'a> {
    pub target: Target,
    pub operations: Operations<'a>,
    pub reducers: Vec<Reducer<'a>>,
    /// Reductions of operands that the main loop computes.
    pub operands: Vec<Reducer<'a>>,
}

/// Where results go.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// Into C, or added to it, which another kernel has prepared.
    C { buffer: ArgId, offset: ExprId, atomic: bool },
    /// Into workspace, laid out `[split][chunk entry][partial_index]`: plain sums of these rows.
    Partials { partials: ArgId, chunk: u64, rows: Rows },
    /// Only their reductions leave.
    Nowhere,
}

/// True if C is contiguous along n (else along m, or along neither).
pub(crate) fn columns_contiguous(c: &Contraction) -> bool {
    c.c.view.stride(COL) == Some(1)
}

/// Index of a result element within one block of partial sums of all columns and of these rows: contiguous in the direction C is.
pub(crate) fn partial_index(b: &mut Builder, c: &Contraction, rows: Rows, [row, col]: [ExprId; 2], ty: Scalar) -> ExprId {
    let row = if rows.first == 0 { b.value(row.cast(ty)) } else { b.value(row.cast(ty) - rows.first as i64) };
    let col = b.value(col.cast(ty));
    let (slow, length, fast) = if columns_contiguous(c) { (row, c.n, col) } else { (col, rows.count, row) };
    b.value(slow * (length as i64) + fast)
}

/// Where consecutive results are.
struct Place {
    row: Coord,
    col: Coord,
    /// Condition under which they are this tile's.
    guard: Option<ExprId>,
    /// Their place in C, counted from the batch entry's start.
    at: Option<ExprId>,
}

/// Results that are made right before they are stored.
#[derive(Clone, Copy)]
pub(super) struct Made<'a> {
    /// Makes the results of these runs, or all, in the registers that exits read.
    pub make: &'a dyn Fn(&mut Builder, Option<&[accumulators::Run]>),
    /// Values beside the results of the same runs, which leave by the same bulk stores through maps of their own.
    pub preactivations: &'a [Accumulators],
}

/// The epilogue of one tile.
pub(crate) struct Out<'a> {
    pub e: &'a Epilogue<'a>,
    pub at: &'a TilePosition,
    /// Start of the batch entry, where results go to memory.
    base: Option<Base>,
    /// Those on the tile's batch entry.
    operations: Operations<'a>,
    /// Makes results right before they are stored, where they are not in registers yet.
    made: Option<Made<'a>>,
    /// Adds old results to sums right before they are staged.
    old: Option<OldAhead<'a>>,
}

impl<'a> Out<'a> {
    /// Finds where the tile's batch entry starts.
    pub fn new(b: &mut Builder, e: &'a Epilogue<'a>, at: &'a TilePosition) -> Out<'a> {
        b.comment("epilogue");
        let c = e.c;
        let base = match e.args.target {
            Target::C { buffer, offset, .. } => {
                let g = Coord::plain(b, at.g);
                let start = entry_start(b, &c.c, g);
                Some(Base::Cursor(b.cursor("c_base", buffer, offset + start)))
            }
            Target::Nowhere => None,
            Target::Partials { partials, chunk, rows } => Some(Base::Cursor(b.cursor(
                "partials_to",
                partials,
                (at.split.cast(Scalar::I64) * chunk as i64 + at.g_local.cast(Scalar::I64)) * ((rows.count * c.n) as i64),
            ))),
        };
        Out { e, at, base, operations: e.args.operations.of_entry(b, at.g), made: None, old: None }
    }
}

impl<'a> Out<'a> {
    /// Only the ownership test of a tile: nothing is stored through this value.
    pub fn owner(e: &'a Epilogue<'a>, at: &'a TilePosition) -> Out<'a> {
        Out { e, at, base: None, operations: Operations::none(e.c), made: None, old: None }
    }

    /// The same with results that are made right before they are stored.
    pub(super) fn of_made(self, made: Made<'a>) -> Out<'a> {
        Out { made: Some(made), ..self }
    }
}

impl Out<'_> {
    /// Makes the results of these runs, or all, where they are not in registers yet.
    pub fn make(&self, b: &mut Builder, math: &Accumulators, runs: Option<&[accumulators::Run]>) {
        if let Some(made) = self.made {
            (made.make)(b, runs);
        }
        if let (Some(old), Some(runs)) = (&self.old, runs) {
            b.if_then(old.read, |b| self.add_old(b, math, &old.addition, runs));
        }
    }

    /// Adds the old results to the sums of these runs.
    fn add_old(&self, b: &mut Builder, math: &Accumulators, operations: &Operations, runs: &[accumulators::Run]) {
        let wanted: Vec<u32> = runs.iter().flat_map(accumulators::Run::elements).collect();
        let out = Out { operations: operations.clone(), old: None, ..*self };
        let along = if columns_contiguous(self.e.c) { Axis::Col } else { Axis::Row };
        math.pieces(b, along, self.e.spec.epilogue.exit.width(), 0..math.count(), &mut |b, row, col, elements| {
            if !wanted.contains(&elements[0]) {
                return;
            }
            let values: Vec<ExprId> = elements.iter().map(|&element| math.value(b, element)).collect();
            let place = out.place(b, [row, col]);
            let (_, values) = out.applied(b, &place, &Piece { offset: None, values }, true, Start::Multiple);
            for (&element, value) in elements.iter().zip(values) {
                b.set_reg(math.regs, element, value);
            }
        });
    }

    /// Values that are stored beside the results.
    pub(super) fn preactivations(&self) -> &[Accumulators] {
        self.made.map_or(&[], |made| made.preactivations)
    }

    /// Stores with and without reading the old result, whichever beta asks for.
    pub fn by_beta(&self, b: &mut Builder, write: impl Fn(&mut Builder, bool)) {
        self.operations.by_beta(b, write);
    }

    /// Each thread stores its runs of neighbours along n of a unit's accumulators.
    pub fn runs(&self, b: &mut Builder, math: &Accumulators, old: bool) {
        let width = self.e.spec.epilogue.exit.width();
        math.runs(b, Axis::Col, width, 0..math.count(), &mut |b, row, col, values| self.put(b, row, col, values, old));
    }

    /// The results of a tile with sums that have no terms. The tile's threads store vectors of neighbouring columns side by side,
    /// or of neighbouring rows where rows are neighbours in memory.
    pub fn without_terms(&self, b: &mut Builder, old: bool) {
        let (c, [rows, columns]) = (self.e.c, self.e.inputs.map(|x| x.tiling.macro_tile));
        let by_column = columns_contiguous(c);
        let (axis, extent, major, minor) = if by_column { (COL, c.n, columns, rows) } else { (ROW, c.m, rows, columns) };
        // Partial sums and additions go one by one.
        let stored = matches!(self.e.args.target, Target::C { atomic: false, .. });
        let widest = if stored { (16 / c.c.scalar.bytes()).min(major & major.wrapping_neg()) } else { 1 };
        let whole = |width: &u32| extent.is_multiple_of((*width).into());
        let width = [widest, widest / 2].into_iter().map(|most| vector_width(&c.c, axis, most)).find(whole).unwrap_or(1);
        let (along, threads) = (major / width, self.e.spec.tiling.math_threads());
        let (thread, zero) = (self.e.thread_of_tile(b), b.zero(c.accumulator().ty()));
        b.for_range("i", 0, (minor * along).div_ceil(threads), Unroll::By(4), |b, i| {
            let vector = b.bind("vector", i * threads + thread);
            let (line, place) = (b.bind("vector_line", vector / along), b.bind("vector_place", vector % along * width));
            let (row, col) = if by_column { (line, place) } else { (place, line) };
            let store = |b: &mut Builder| self.put(b, row, col, &vec![zero; width as usize], old);
            match (minor * along).is_multiple_of(threads) {
                true => store(b),
                false => b.if_then(line.lt(i64::from(minor)), store),
            }
        });
    }

    /// What is outside of rows and columns: the batch entry, with partial sums the split and the entry.
    pub fn outer(&self, b: &mut Builder) -> ExprId {
        match self.e.args.target {
            Target::Partials { chunk, .. } => b.value(self.at.split.cast(self.e.ints.coord) * chunk as i64 + self.at.g_local),
            Target::C { .. } | Target::Nowhere => self.at.g,
        }
    }

    /// What replaces C without reading it, for consecutive results that start at this coordinate; partial sums as they are.
    pub fn results(&self, b: &mut Builder, row: Coord, col: Coord, values: &[ExprId]) -> Vec<ExprId> {
        let run = self.run(row, col, values, Start::Multiple);
        let guard = self.operations.reads().then(|| {
            let guard = self.owned(b, row, 0);
            let other = self.owned(b, col, 1);
            b.and_opt(guard, other)
        });
        self.operations.apply(b, &run, guard.flatten(), self.e.ints, None, values)
    }

    fn run(&self, row: Coord, col: Coord, values: &[ExprId], start: Start) -> Run {
        let overruns = [0, 1].map(|axis| {
            let extent = [self.e.c.m, self.e.c.n][axis];
            let may = self.e.inputs[axis].edge == Edge::Predicate && self.overruns(axis);
            self.at.sizes[axis].map(Ex::from).or(may.then_some(extent.into()))
        });
        Run {
            g: self.at.g,
            row,
            col,
            by_column: columns_contiguous(self.e.c),
            length: values.len() as u32,
            piece: None,
            start,
            overruns,
        }
    }

    /// Stores consecutive results that start at (row, col) of the macro tile.
    pub fn put(&self, b: &mut Builder, row: ExprId, col: ExprId, values: &[ExprId], old: bool) {
        self.put_from(b, [row, col], values, old, Start::Multiple);
    }

    /// The same as [`Out::put`], with the alignment `start` of the first result.
    pub fn put_from(&self, b: &mut Builder, at: [ExprId; 2], values: &[ExprId], old: bool, start: Start) {
        let Some(base) = self.base else { return };
        let place = self.place(b, at);
        let atomic = match self.e.args.target {
            Target::C { atomic, .. } => atomic,
            Target::Nowhere => return,
            Target::Partials { rows, .. } => {
                let at = [place.row.value(b), place.col.value(b)];
                let at = partial_index(b, self.e.c, rows, at, self.e.ints.offset);
                let value = b.vector(values);
                return b.store(base, at, value, place.guard);
            }
        };
        for piece in pieces(b, self.e.c, values, atomic) {
            let (place, values) = self.applied(b, &place, &piece, old, start);
            let Some(at) = place.at else { return };
            if atomic {
                for (i, value) in values.into_iter().enumerate() {
                    let mem = b.mem(base, at + i);
                    b.push(Stmt::Atomic { op: AtomicOp::Add, mem, value, guard: place.guard });
                }
                continue;
            }
            let cast: Vec<ExprId> = values.iter().map(|&p| stored(b, p, self.e.c.c.scalar)).collect();
            let value = b.vector(&cast);
            b.store(base, at, value, place.guard);
        }
    }

    /// Where consecutive results that start at (row, col) of the macro tile are, as far as tiles say.
    fn place(&self, b: &mut Builder, [row, col]: [ExprId; 2]) -> Place {
        let coord = |b: &mut Builder, first: Coord, x: ExprId| {
            let local = b.value(first.local + x.cast(self.e.ints.coord));
            Coord { local, ..first }
        };
        let row = coord(b, self.at.m_start, row);
        let col = coord(b, self.at.n_start, col);
        let guard_m = self.owned(b, row, 0);
        let guard_n = self.owned(b, col, 1);
        Place { row, col, guard: b.and_opt(guard_m, guard_n), at: None }
    }

    /// The results of consecutive sums, with where they are in C.
    fn applied(&self, b: &mut Builder, place: &Place, piece: &Piece, old: bool, start: Start) -> (Place, Vec<ExprId>) {
        let Piece { offset, values } = piece;
        let Place { row, col, guard, .. } = *place;
        let g = Coord::plain(b, self.at.g);
        let point = [g, row, col];
        let view = &self.e.c.c.view;
        let guard = exists(b, view, &point, self.e.ints.coord, guard);
        // The base has the start of the batch entry.
        let at = self.base.is_some().then(|| {
            let at = affine(b, &view.access.offset, &point, Part::Beyond(G), self.e.ints.offset);
            offset.map_or(at, |distance| b.value(at + distance))
        });
        let run = Run { piece: *offset, ..self.run(row, col, values, start) };
        let load = |b: &mut Builder| match (self.base, at) {
            (Some(base), Some(at)) => b.load("before", base, at, run.length, guard),
            _ => b.zero(self.e.c.c.scalar.vector(run.length as u8)),
        };
        let before: Option<Before> = if old { Some(&load) } else { None };
        let values = self.operations.apply(b, &run, guard, self.e.ints, before, values);
        (Place { row, col, guard, at }, values)
    }

    /// What becomes of the sums, in these registers of them: what reductions take, and what is stored then as it is.
    pub fn apply_in_registers(&self, b: &mut Builder, math: &Accumulators, of: Range<u32>, old: bool) {
        // A register of several elements is set as a whole.
        let most = match self.e.spec.epilogue.exit {
            Exit::Staged { .. } => 1,
            _ if math.width > 1 => 1,
            _ => self.e.spec.epilogue.exit.width(),
        };
        let along = if columns_contiguous(self.e.c) { Axis::Col } else { Axis::Row };
        let registers = if math.width > 1 { 1 } else { of.end - of.start };
        for first in of.step_by(registers.max(1) as usize) {
            let mut results = Vec::new();
            math.pieces(b, along, most, first..first + registers, &mut |b, row, col, elements| {
                let values: Vec<ExprId> = elements.iter().map(|&element| math.value(b, element)).collect();
                let place = self.place(b, [row, col]);
                let (_, values) = self.applied(b, &place, &Piece { offset: None, values }, old, Start::Multiple);
                for (&element, value) in elements.iter().zip(values) {
                    match math.width {
                        1 => b.set_reg(math.regs, element, value),
                        _ => results.push((element, b.bind("result", value))),
                    }
                }
            });
            results.sort_unstable_by_key(|(element, _)| *element);
            if !results.is_empty() {
                let values: Vec<ExprId> = results.into_iter().map(|(_, value)| value).collect();
                let value = b.vector(&values);
                b.set_reg(math.regs, first, value);
            }
        }
    }

    /// Bulk stores: each staging buffer's sums take the old results in registers, under a condition, before they are staged. The code that
    /// follows then exists once, not with and without old results.
    ///
    /// Results that several tiles store, that need more than one step, or whose sums have another type, keep both versions of the code.
    pub fn adding_old_ahead(self, b: &mut Builder, math: &Accumulators) -> Self {
        let c = self.e.c;
        let own = self.e.inputs.iter().all(|input| input.edge == Edge::Predicate);
        let in_place = math.width == 1 && math.scalar == c.result_scalar() && c.gaps.is_none();
        let stored = matches!(self.e.args.target, Target::C { atomic: false, .. });
        if !(self.e.spec.epilogue.exit.bulk().is_some() && own && in_place && stored && self.made.is_none()) {
            return self;
        }
        match self.operations.old_ahead(b) {
            Some(old) => Out { operations: old.rest.clone(), old: Some(old), ..self },
            None => self,
        }
    }

    /// The same stores, for registers that have passed all operations already.
    pub fn applied_already(self) -> Self {
        Out { operations: Operations::none(self.e.c), ..self }
    }

    /// Tiles, of whole clusters, reach beyond the result along an axis.
    pub fn overruns(&self, axis: usize) -> bool {
        let cluster = self.e.spec.tiling.cluster;
        let tiles = u64::from(self.e.inputs[axis].tiling.macro_tile) * u64::from([cluster.m, cluster.n][axis]);
        ![self.e.c.m, self.e.c.n][axis].is_multiple_of(tiles)
    }

    /// Condition under which this work-group stores a row (axis 0) or column (axis 1); `None` where it always does.
    pub fn owned(&self, b: &mut Builder, position: Coord, axis: usize) -> Option<ExprId> {
        let tile = [self.at.tile_m, self.at.tile_n][axis];
        let extent = [self.e.c.m, self.e.c.n][axis] as i64;
        let size = self.e.inputs[axis].tiling.macro_tile as i64;
        let run_time = self.at.sizes[axis];
        if !self.overruns(axis) && run_time.is_none() {
            return None;
        }
        let value = position.value(b);
        if let Some(extent) = run_time {
            return Some(b.value(value.lt(extent)));
        }
        Some(match self.e.inputs[axis].edge {
            // The pulled-back tile leaves what its neighbour owns alone.
            Edge::PullBack => b.value((tile.cast(self.e.ints.coord) * size).le(value)),
            Edge::Predicate => b.value(value.lt(extent)),
        })
    }
}
