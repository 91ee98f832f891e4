//! The kernel of a standalone reduction: the elements of a tensor replace a product's results.
//!
//! A work-group has the plan's tile of rows and walks over its share of the columns. Each thread combines its loaded elements in
//! registers. After the last step, partial values are reduced across lanes, waves and work-groups as those of a product are.

use super::tile::{FreeShared, HeldTile, Values};
use super::{Parts, Reducer, add, get, set};
use crate::kernel::arguments::{Arguments, BoundKernel};
use crate::kernel::elements::digits;
use crate::kernel::exit::operations::{Applied, Operations, Run, Start};
use crate::kernel::input::Ints;
use crate::kernel::tile::cluster::ClusterPlace;
use crate::plan::{ELEMENT_BLOCK, ElementLoads, ElementSteps, Finish, KernelSpec, Stage};
use crate::program::Binding;
use std::collections::{BTreeMap, BTreeSet};
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::*;
use tilewright_problem::contraction::{Contraction, Elements};
use tilewright_problem::view::{COL, ROW};

/// Work-groups of the kernel: tiles along m, shares of the columns.
pub(crate) fn grid(c: &Contraction, spec: &KernelSpec) -> [u64; 2] {
    [c.m.div_ceil(spec.tiling.a.macro_tile.into()), c.n.div_ceil(spec.share_of_columns(c))]
}

/// A work-group's share of the tensor.
struct Share<'a> {
    c: &'a Contraction,
    elements: &'a Elements,
    layout: Layout,
    loads: ElementLoads,
    operations: Operations<'a>,
    ints: Ints,
    from: Base,
    thread: ExprId,
    /// The work-group's place among those that share the columns, where they are a cluster.
    cluster: Option<ClusterPlace>,
    /// The work-group's tile and share, and their first row and column.
    number: [ExprId; 2],
    start: [ExprId; 2],
    /// Rows and columns of a step.
    size: [u32; 2],
    /// Shares of the columns, and the steps of each.
    shares: u64,
    steps: ElementSteps,
}

/// The kernel.
pub(crate) fn build(c: &Contraction, elements: &Elements, spec: &KernelSpec, parts: &[Parts]) -> BoundKernel {
    let t = &spec.tiling;
    let threads = t.math_threads();
    let mut b = Builder::new(crate::kernel::MAIN, threads);
    let (b, mut args) = (&mut b, Arguments::default());
    b.min_groups(spec.style.min_groups);
    b.doc(format!("{}   {}", c.formula(), c.sizes()));
    b.doc(format!("tile {} x {} of {threads} threads, {} columns", t.a.macro_tile, t.b.macro_tile, spec.share_of_columns(c)));
    let buffer = args.buffer(b, "a", c.a.scalar, Access::Read, "elements", Binding::Buffer(elements.of));
    let offset = args.scalar(b, "a_offset", Scalar::I64, "first element in its buffer", Binding::Offset(elements.of));
    let (operations, ()) = Operations::declare(b, &mut args, c, Applied::All, |_, _| ());
    let reducers = Reducer::declare(b, &mut args, c, false, parts);
    let columns = spec.share_of_columns(c);
    let [_, shares] = grid(c, spec);
    let ints = Ints::new(spec.style.wide_index, &[c.m + u64::from(t.a.macro_tile), columns * shares], &[c.a.len]);
    let ways = spec.tile_reductions(c);
    if ways.iter().any(|way| !way.lane_bits.is_empty()) {
        b.wave(t.wave_lanes);
    }
    let (thread, group) = (b.bind("local_id", Builtin::LocalId), b.value(Builtin::GroupId(0).cast(ints.coord)));
    let d = digits(b, group, &[shares.into(), 0u64.into()]);
    let number = [b.bind("tile_m", d[1]), b.bind("share", d[0])];
    let start = [b.value(number[0] * i64::from(t.a.macro_tile)), b.value(number[1] * (columns as i64))];
    let start = [b.bind("first_row", start[0]), b.bind("first_column", start[1])];
    let cluster = ClusterPlace::new(b, t);
    let share = Share {
        c,
        cluster,
        elements,
        layout: t.accumulators(),
        loads: spec.element_loads(c),
        operations,
        ints,
        from: Base::Cursor(b.cursor("from", buffer, offset)),
        thread,
        number,
        start,
        size: [t.a.macro_tile, t.b.macro_tile],
        shares,
        steps: spec.element_steps(c),
    };
    share.reduce(b, &reducers.iter().zip(ways).collect::<Vec<_>>());
    BoundKernel { kernel: std::mem::replace(b, Builder::new("", 0)).finish(), args }
}

impl Share<'_> {
    /// What the threads hold in a step that begins at a column; values are those of the registers.
    fn held<'h>(
        &'h self,
        b: &mut Builder,
        column: ExprId,
        value: &'h dyn Fn(&mut Builder, u32) -> ExprId,
        owned: &'h dyn Fn(&mut Builder, Coord, usize) -> Option<ExprId>,
    ) -> HeldTile<'h> {
        HeldTile {
            layout: &self.layout,
            thread: self.thread,
            threads: self.layout.extent(Axis::Thread) as u32,
            value,
            overwrite: None,
            counts: &|_| None,
            cluster: self.cluster,
            share: None,
            stored: self.c.c.scalar,
            g: b.int(0, self.ints.coord),
            tile: self.number,
            start: [Coord::plain(b, self.start[0]), Coord::plain(b, column)],
            owned,
            sync: &|b| b.barrier(),
            ints: self.ints,
            walk: None,
            shift: None,
        }
    }

    /// Column shift of the row `further` rows after the thread's first row. It counts elements from the previous multiple of a
    /// load's width to the first element of the row.
    fn shift(&self, b: &mut Builder, further: u32) -> ExprId {
        let zero = b.int(0, self.ints.coord);
        let of_thread = self.layout.emit(b, Axis::Row, &[(Axis::Thread, self.thread)], Scalar::I32);
        let row = b.value(self.start[0] + of_thread.cast(self.ints.coord) + further);
        let point = [zero, row, zero].map(|at| Coord::plain(b, at));
        let start = affine(b, &self.elements.view.access.offset, &point, Part::Whole, self.ints.offset);
        let shift = b.value((start % i64::from(self.loads.width())).cast(self.ints.coord));
        b.bind("shift", shift)
    }

    /// Condition that a row (0) or column (1) exists, where some do not.
    fn owned(&self, b: &mut Builder, at: Coord, axis: usize) -> Option<ExprId> {
        let (extent, whole) = [(self.c.m, u64::from(self.size[0])), (self.c.n, u64::from(self.size[1]))][axis];
        (!extent.is_multiple_of(whole)).then(|| {
            let at = at.value(b);
            b.value(at.lt(extent as i64))
        })
    }

    fn reduce(&self, b: &mut Builder, all: &[(&Reducer, crate::plan::TileReduction)]) {
        let owned = |b: &mut Builder, at: Coord, axis: usize| self.owned(b, at, axis);
        let nothing = |b: &mut Builder, _: u32| b.zero(self.c.accumulator().vector(1));
        let whole = self.held(b, self.start[1], &nothing, &owned);
        let place = whole.place(b);
        // Values of each reduction, as far as the thread has come.
        let shape = |reducer: &Reducer, way: &crate::plan::TileReduction| match reducer.partials.finish {
            // No element remains after a step.
            Some(Finish::Atomic(Stage::Element)) => Vec::new(),
            _ => whole.values(way),
        };
        let shapes: Vec<Vec<[u32; 2]>> = all.iter().map(|(reducer, way)| shape(reducer, way)).collect();
        let steps = self.steps.whole[0].max(self.steps.whole[1]) as i64;
        let mut declare = |name: &str, reducer: &Reducer, shape: &[[u32; 2]]| {
            let identity = reducer.identity(b);
            let mut one = |_| identity.iter().map(|value| b.declare(name, *value)).collect();
            shape.iter().map(&mut one).collect::<Vec<Vec<VarId>>>()
        };
        let totals: Vec<_> = all.iter().zip(&shapes).map(|((reducer, _), shape)| declare("total", reducer, shape)).collect();
        // Long sums are added up in blocks: rounding errors grow with the number of terms in a row.
        let long = |reducer: &Reducer| steps > ELEMENT_BLOCK && reducer.op.operator.adds();
        let blocks =
            all.iter().zip(&shapes).map(|((reducer, _), shape)| long(reducer).then(|| declare("blocks", reducer, shape)));
        let blocks: Vec<_> = blocks.collect();
        // What each row's columns are shifted by, where they are.
        let rows = self.layout.extent(Axis::Register) as u32;
        let rows: BTreeSet<u32> = (0..rows).map(|register| self.row_of(register)).filter(|_| self.loads.shifted).collect();
        let shifts: BTreeMap<u32, ExprId> = rows.into_iter().map(|row| (row, self.shift(b, row))).collect();
        let shift = |_: &mut Builder, row: u32| shifts[&row];
        let step = |b: &mut Builder, step: ExprId, ragged: bool| {
            let column = b.bind("column", self.start[1] + step * i64::from(self.size[1]));
            let (elements, exist) = self.elements(b, column, &owned, &shifts, ragged);
            let value = |_: &mut Builder, register: u32| elements[register as usize];
            // Lines that are shifted say by element what there is of them.
            let all_columns = |b: &mut Builder, at: Coord, axis: usize| {
                if axis == 1 && !(ragged && shifts.is_empty()) { None } else { owned(b, at, axis) }
            };
            let counts = |register: u32| exist.get(register as usize).copied();
            let held = self.held(b, column, &value, &all_columns);
            let held = HeldTile { counts: &counts, shift: (!shifts.is_empty()).then_some(&shift), ..held };
            for ((reducer, way), totals) in all.iter().zip(&totals) {
                let values = held.in_registers(b, reducer, way, place, &mut Default::default());
                if totals.is_empty() {
                    held.put_all(b, reducer, way, &values);
                }
                for (total, (_, state)) in totals.iter().zip(values.held) {
                    add(b, reducer, total, &state);
                }
            }
        };
        let [first, whole_end, ends] = self.steps_of_share(b);
        let known = [first, whole_end].iter().all(|bound| b.kernel().as_int(*bound).is_some());
        let unroll = match (steps > 1, known) {
            (true, _) => Unroll::By(2),
            (false, true) => Unroll::Full,
            (false, false) => Unroll::No,
        };
        b.for_range("step", first, whole_end, unroll, |b, i| {
            step(b, i, false);
            if blocks.iter().any(Option::is_some) {
                let ends = b.value((i % ELEMENT_BLOCK).equals(ELEMENT_BLOCK - 1));
                b.if_then(ends, |b| {
                    for (((reducer, _), totals), blocks) in all.iter().zip(&totals).zip(&blocks) {
                        for (total, block) in totals.iter().zip(blocks.iter().flatten()) {
                            let state = get(b, total);
                            add(b, reducer, block, &state);
                            let none = reducer.identity(b);
                            set(b, total, none);
                        }
                    }
                });
            }
        });
        if self.steps.ragged() {
            // The first, and those after the whole ones.
            let zero = b.int(0, self.ints.coord);
            b.for_range("end", zero, ends, Unroll::No, |b, i| {
                let after = b.value(whole_end + i - first);
                let at = if self.steps.first > 0 { b.value(i.lt(first).select(i, after)) } else { after };
                step(b, at, true);
            });
        }
        for (((reducer, _), totals), blocks) in all.iter().zip(&totals).zip(&blocks) {
            for (total, block) in totals.iter().zip(blocks.iter().flatten()) {
                let state = get(b, block);
                add(b, reducer, total, &state);
            }
        }
        let all: Vec<_> = all.iter().map(|(reducer, way)| (*reducer, way.clone())).collect();
        whole.reduce_across_threads(b, &all, FreeShared::ALL, &mut |b, number| {
            let held = shapes[number].iter().zip(&totals[number]).map(|(place, total)| (*place, get(b, total))).collect();
            Values { held, thread: place, guard: None }
        });
    }

    /// The first whole step of the share, the first after those, and the number of all others.
    fn steps_of_share(&self, b: &mut Builder) -> [ExprId; 3] {
        let ElementSteps { first, whole, all } = self.steps;
        let others = [0, 1].map(|last| all[last] - whole[last]);
        let int = |b: &mut Builder, value: u64| b.int(value as i64, self.ints.coord);
        if self.shares == 1 {
            return [first, whole[1], first + others[1]].map(|value| int(b, value));
        }
        let last = b.value(self.number[1].equals(self.shares as i64 - 1));
        let mut by_share = |of: [u64; 2]| {
            if of[0] == of[1] {
                int(b, of[0])
            } else {
                b.value(last.select(Ex::int(of[1] as i64, self.ints.coord), Ex::int(of[0] as i64, self.ints.coord)))
            }
        };
        let (whole, others) = (by_share(whole), by_share(others));
        let zero = int(b, 0);
        let first = if first > 0 { b.value(self.number[1].equals(0).select(Ex::int(1, self.ints.coord), zero)) } else { zero };
        let ends = b.value(first + others);
        [b.bind("first_step", first), b.bind("steps", whole), b.bind("ends", ends)]
    }

    /// The row of a register, relative to the thread's first.
    fn row_of(&self, register: u32) -> u32 {
        self.layout.at(Axis::Row, &[(Axis::Register, register.into())]) as u32
    }

    /// The elements of a step that the thread has, by register, scaled and with the activation applied: loads first, all together. Where lines
    /// are shifted and the step is ragged, the conditions that they exist as well.
    fn elements(
        &self,
        b: &mut Builder,
        column: ExprId,
        owned: Owned,
        shifts: &BTreeMap<u32, ExprId>,
        ragged: bool,
    ) -> (Vec<ExprId>, Vec<ExprId>) {
        let start = [self.start[0], column];
        let registers = self.layout.extent(Axis::Register) as usize;
        let mut of_step = StepElements::default();
        for run in &self.loads.runs {
            let mut point = [Coord::plain(b, column); 3];
            let mut inside = None;
            let shift = shifts.get(&self.row_of(run[0]));
            for (axis, (to, at)) in [(0, (Axis::Row, ROW)), (1, (Axis::Col, COL))] {
                let of_thread = self.layout.emit(b, to, &[(Axis::Thread, self.thread)], Scalar::I32);
                let further = self.layout.at(to, &[(Axis::Register, run[0].into())]);
                let value = b.value(start[axis] + of_thread.cast(self.ints.coord) + further);
                let value = match shift.filter(|_| axis == 1) {
                    Some(shift) => b.value(value - *shift),
                    None => value,
                };
                point[at] = Coord::plain(b, value);
                let exists = if axis == 0 || (ragged && shift.is_none()) { owned(b, point[at], axis) } else { None };
                inside = b.and_opt(inside, exists);
            }
            let zero = b.int(0, self.ints.coord);
            point[0] = Coord::plain(b, zero);
            let at = affine(b, &self.elements.view.access.offset, &point, Part::Whole, self.ints.offset);
            if shift.is_none() || !ragged {
                let loaded = b.load("loaded", self.from, at, run.len() as u32, inside);
                let lanes = (0..).zip(run);
                let found = lanes.map(|(lane, register)| Found {
                    register: *register,
                    point,
                    value: Loaded::Lane { vector: loaded, lane },
                });
                of_step.found.extend(found);
                continue;
            }
            of_step.exist.resize(registers, at);
            self.at_end(b, run, point, at, inside, &mut of_step);
        }
        let mut values = vec![column; registers];
        for Found { register, point: [g, row, col], value } in of_step.found {
            let x = match value {
                Loaded::Element(x) => b.value(x.cast(self.c.accumulator())),
                Loaded::Lane { vector, lane } => b.value(vector.extract(lane).cast(self.c.accumulator())),
            };
            let run = Run {
                g: g.local,
                row,
                col,
                by_column: true,
                length: 1,
                piece: None,
                start: Start::Multiple,
                overruns: [None, None],
            };
            let applied = self.operations.apply(b, &run, None, self.ints, None, &[x])[0];
            values[register as usize] = b.bind("element", applied);
        }
        (values, of_step.exist)
    }

    /// A vector that may reach beyond a line's ends, from this place on. It is one load, or single loads of its elements that
    /// exist.
    fn at_end(&self, b: &mut Builder, run: &[u32], point: [Coord; 3], at: ExprId, inside: Option<ExprId>, to: &mut StepElements) {
        let (first, columns) = (point[COL].local, self.c.n as i64);
        let whole = b.value(first.ge(0).and((first + (run.len() as i64 - 1)).lt(columns)));
        let whole = b.bind("whole", whole);
        let guard = b.and_opt(inside, Some(whole));
        let vector = b.load("loaded", self.from, at, run.len() as u32, guard);
        let partly = b.unary(UnaryOp::Not, whole);
        for (i, register) in (0..).zip(run) {
            let column = b.value(first + i64::from(i));
            let exists = b.value(column.ge(0).and(column.lt(columns)));
            let exists = b.bind("exists", exists);
            to.exist[*register as usize] = exists;
            let guard = b.and(partly, exists);
            let guard = b.and_opt(inside, Some(guard));
            let one = b.load("one", self.from, at + i64::from(i), 1, guard);
            let x = b.value(whole.select(vector.extract(i), one));
            to.found.push(Found { register: *register, point, value: Loaded::Element(x) });
        }
    }
}

/// Condition that a row (0) or column (1) exists, where some do not.
type Owned<'a> = &'a dyn Fn(&mut Builder, Coord, usize) -> Option<ExprId>;

/// The elements of a step that a thread has.
#[derive(Default)]
struct StepElements {
    found: Vec<Found>,
    /// The conditions that they exist, by register, where lines are shifted and the step is ragged.
    exist: Vec<ExprId>,
}

/// The element of a register.
struct Found {
    register: u32,
    /// Its place in the tensor.
    point: [Coord; 3],
    value: Loaded,
}

/// A loaded element.
enum Loaded {
    Element(ExprId),
    Lane { vector: ExprId, lane: u32 },
}
