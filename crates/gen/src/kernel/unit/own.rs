//! Multiply-adds for contractions with a separate operand A for each column (`BIM4`): each thread loads its operands to registers.
//!
//! The k loop of a k-tile is unrolled. A load precedes the first multiply-add that uses it. With `PFG1` it precedes the multiply-adds of
//! the previous k-tile. Elements are converted once.

use super::math::micro_first;
use super::{AccumulatorSet, Between, KTile, Unit, in_slices};
use crate::kernel::copy::copies::{Operands, Source};
use crate::kernel::input::Ints;
use crate::kernel::stages::schedule::MathPart;
use crate::kernel::tile::position::TileWork;
use crate::plan::{OwnLoads, Source as Origin};
use tilewright_ir::affine::{Coord, Part, affine, in_range};
use tilewright_ir::layout::Axis;
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::View;

/// The sums of a thread, and what it loads for them.
pub(crate) struct Own {
    acc: RegId,
    first: [ExprId; 2],
    thread: ExprId,
    /// Both factors; none of sums without terms.
    factors: Option<[Factor; 2]>,
    micro: [u32; 2],
    accumulator: Scalar,
    mad: bool,
    /// k-tiles of the work-group, where each is loaded while the one before is multiplied.
    ahead: Option<ExprId>,
}

/// One factor.
struct Factor {
    name: &'static str,
    loads: OwnLoads,
    view: View,
    from: Base,
    /// Batch entry and row of the thread's first element.
    at: [Coord; 2],
    k: ThreadK,
    /// What the thread has of it exists.
    guard: Option<ExprId>,
    ints: Ints,
    accumulator: Scalar,
    /// What is loaded ahead.
    held: Option<RegId>,
}

/// The k of a thread.
#[derive(Clone, Copy)]
struct ThreadK {
    /// The first.
    begin: ExprId,
    /// From one k-tile to the next.
    step: i64,
    /// How many the thread takes of each k-tile.
    depth: i64,
}

/// A factor's elements at a k-tile, as far as they are loaded.
struct Loaded<'a> {
    of: &'a Factor,
    from: Elements,
    elements: Vec<Option<Vec<ExprId>>>,
}

/// Where a k-tile's elements are.
enum Elements {
    Memory(Start),
    /// In registers: the loads.
    Registers(Vec<ExprId>),
}

/// The first element of a k-tile: where it is, and the values of the view's conditions; and the condition under which there is one.
struct Start {
    at: ExprId,
    bounds: Vec<ExprId>,
    guard: Option<ExprId>,
}

impl Own {
    /// Of the thread at this position among those that compute, of all slices.
    pub fn new(b: &mut Builder, c: &Contraction, operands: &Operands, thread: ExprId, tile: Option<TileWork>) -> Own {
        let spec = operands.spec;
        let t = &spec.tiling;
        let grid = t.grid();
        let (thread, slice) = in_slices(b, t, thread);
        let sides = [(Axis::Row, &t.a, "micro_row"), (Axis::Col, &t.b, "micro_col")];
        let first = sides.map(|(to, tiling, name)| {
            let id = grid.emit(b, to, &[(Axis::Thread, thread)], Scalar::I32);
            let first = micro_first(b, tiling, id);
            b.bind(name, first)
        });
        let micro = [t.a.micro, t.b.micro];
        let acc = b.regs("acc", c.accumulator().vector(1), micro[0] * micro[1]);
        let factors = tile.and_then(|work| Factor::both(b, c, operands, first, slice, work));
        let ahead = tile.map(|work| work.range.tiles).filter(|_| spec.schedule.fetch_ahead > 0);
        Own { acc, first, thread, factors, micro, accumulator: c.accumulator(), mad: spec.style.mad, ahead }
    }
}

impl Factor {
    fn both(
        b: &mut Builder,
        c: &Contraction,
        operands: &Operands,
        first: [ExprId; 2],
        slice: ExprId,
        work: TileWork,
    ) -> Option<[Factor; 2]> {
        let TileWork { at, range } = work;
        let (t, ints, shape) = (&operands.spec.tiling, operands.tiles.ints, operands.tiles.shape);
        let [row, col] = [(at.m_start, first[0], t.a.micro), (at.n_start, first[1], t.b.micro)].map(|(start, first, micro)| {
            let start = start.value(b);
            let value = b.bind("own", start + first.cast(ints.coord));
            Coord::start(b, value, micro.into())
        });
        // Rows and columns of a thread all exist, or none does.
        let guards = [(row, shape.tiles_m, &t.a, c.m), (col, shape.tiles_n, &t.b, c.n)].map(|(coord, tiles, o, extent)| {
            (tiles * u64::from(o.macro_tile) > extent).then(|| {
                let value = coord.value(b);
                b.value(value.lt(extent as i64))
            })
        });
        let g = [0, 1].map(|i| operands.entry(at, i));
        let column = col.value(b);
        let entry = b.value(g[0] * (c.n as i64) + column);
        let entry = Coord::start(b, entry, t.b.micro.into());
        let plain = Coord::plain(b, g[1]);
        let inside = b.and_opt(guards[0], guards[1]);
        let depth = i64::from(t.slice_depth());
        let begin = if t.slices > 1 { b.bind("slice_begin", range.begin + slice.cast(ints.coord) * depth) } else { range.begin };
        // Panels are filled to their ends.
        let packed = operands.input(1).tiling.source == Origin::Packed;
        let mut factor = |i: usize, name: &'static str, at: [Coord; 2], guard: Option<ExprId>| {
            let (Source::Memory(source), Some(loads)) = (&operands.sources[i], operands.spec.schedule.copies[i].own()) else {
                return None;
            };
            let offset = match source.offset {
                Some(offset) => b.value(offset),
                None => b.int(0, Scalar::I64),
            };
            let (scalar, places) = (operands.input(i).tensor.scalar, loads.places.len() as u32);
            let ahead = operands.spec.schedule.fetch_ahead > 0;
            let held = ahead.then(|| b.regs(&format!("{name}_ahead"), scalar.vector(loads.width as u8), places));
            Some(Factor {
                name,
                loads: loads.clone(),
                view: operands.input(i).tensor.view.clone(),
                from: Base::Cursor(b.cursor(name, source.buffer, offset)),
                at,
                k: ThreadK { begin, step: range.step, depth },
                guard,
                ints,
                accumulator: c.accumulator(),
                held,
            })
        };
        let a = factor(0, "a_from", [entry, row], inside)?;
        Some([a, factor(1, "b_from", [plain, col], guards[1].filter(|_| !packed))?])
    }

    /// The start of a k-tile that exists under a condition.
    fn start(&self, b: &mut Builder, number: ExprId, exists: Option<ExprId>) -> Start {
        let ThreadK { begin, step, depth } = self.k;
        let k = b.value(begin + number.cast(self.ints.coord) * step);
        let point = [self.at[0], self.at[1], Coord::start(b, k, depth)];
        let at = affine(b, &self.view.access.offset, &point, Part::Whole, self.ints.offset);
        let at = b.bind("first_at", at);
        let bounds = self.view.access.bounds.iter().map(|bound| {
            let value = affine(b, &bound.value, &point, Part::Whole, self.ints.coord);
            b.bind("first_in", value)
        });
        let bounds = bounds.collect();
        let guard = b.and_opt(self.guard, exists);
        Start { at, bounds, guard }
    }

    /// Its elements at a k-tile: in memory, or in the registers that hold what was loaded ahead.
    fn open(&self, b: &mut Builder, number: ExprId) -> Loaded<'_> {
        let count = self.loads.places.len();
        let from = match self.held {
            None => Elements::Memory(self.start(b, number, None)),
            Some(held) => Elements::Registers((0..count as u32).map(|i| b.bind("now", Ex::reg(held, i))).collect()),
        };
        Loaded { of: self, from, elements: vec![None; count] }
    }

    /// Loads the elements of a k-tile that exists under a condition into those registers.
    fn fetch(&self, b: &mut Builder, number: ExprId, exists: ExprId) {
        let Some(held) = self.held else { return };
        let start = self.start(b, number, Some(exists));
        for i in 0..self.loads.places.len() {
            if let Some(loaded) = self.load(b, &start, i) {
                b.set_reg(held, i as u32, loaded);
            }
        }
    }

    /// A load of the k-tile that starts there.
    fn load(&self, b: &mut Builder, start: &Start, number: usize) -> Option<ExprId> {
        let place = self.loads.places.get(number)?;
        let bounds = self.view.access.bounds.iter().zip(&start.bounds).zip(&place.bounds);
        let inside = bounds.fold(start.guard, |guard, ((bound, first), by)| {
            let value = b.value(*first + *by);
            let inside = in_range(b, value, bound.low, bound.high);
            b.and_opt(guard, Some(inside))
        });
        let at = b.value(start.at + place.offset);
        Some(b.load(self.name, self.from, at, self.loads.width, inside))
    }
}

impl Loaded<'_> {
    /// An element at a k of the k-tile, in the type of the sums.
    fn value(&mut self, b: &mut Builder, element: u32, k: u32) -> Option<ExprId> {
        let Factor { loads, accumulator, .. } = self.of;
        let (number, lane) = loads.at(element, k);
        let known = self.elements.get_mut(number)?;
        if known.is_none() {
            let loaded = match &self.from {
                Elements::Memory(start) => self.of.load(b, start, number)?,
                Elements::Registers(held) => *held.get(number)?,
            };
            let element = |b: &mut Builder, lane: u32| {
                let value = b.value(loaded.extract(lane).cast(*accumulator));
                b.bind("element", value)
            };
            *known = Some((0..loads.width).map(|lane| element(b, lane)).collect());
        }
        known.as_ref()?.get(lane).copied()
    }
}

impl Unit for Own {
    fn start(&self, b: &mut Builder) {
        let zero = b.zero(self.accumulator.vector(1));
        b.for_range("i", 0, self.micro[0] * self.micro[1], Unroll::Full, |b, i| b.set_reg(self.acc, i, zero));
        if let (Some(factors), Some(tiles)) = (&self.factors, self.ahead) {
            b.comment("the first k-tile is on its way before the loop starts");
            let number = b.int(0, b.ty(tiles).scalar);
            let exists = b.value(number.lt(tiles));
            factors.iter().for_each(|factor| factor.fetch(b, number, exists));
        }
    }

    fn k_tile(&self, b: &mut Builder, tile: KTile, _: MathPart, _: Option<Between>) {
        let (Some([a, factor]), Some(number)) = (&self.factors, tile.number) else { return };
        let (depth, [rows, columns]) = (a.k.depth as u32, self.micro);
        let (mut left, mut right) = (a.open(b, number), factor.open(b, number));
        if let Some(tiles) = self.ahead {
            let next = b.value(number + 1);
            let exists = b.bind("another", next.lt(tiles));
            a.fetch(b, next, exists);
            factor.fetch(b, next, exists);
        }
        for k in 0..depth {
            for row in 0..rows {
                for col in 0..columns {
                    let (x, y) = (left.value(b, row * columns + col, k), right.value(b, col, k));
                    let (Some(x), Some(y)) = (x, y) else { continue };
                    let at = b.int((row * columns + col).into(), Scalar::I32);
                    let old = b.reg(self.acc, at);
                    let sum = if self.mad { b.value(x.fma(y, old)) } else { b.value(old + x * y) };
                    b.set_reg(self.acc, at, sum);
                }
            }
        }
    }

    fn accumulators(&self) -> AccumulatorSet {
        AccumulatorSet { regs: self.acc, first: self.first, thread: self.thread }
    }
}
