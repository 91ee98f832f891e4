//! Reductions of an operand over k in the main loop. The consumer threads read each k-tile in shared memory and combine its elements in
//! registers. After the last k-tile they store their values in the same way as the values of a result tile.
//!
//! Only work-groups of the first column of tiles (of the first row, for B) do so: others have the same rows.

use super::Reducer;
use super::tile::{FreeShared, HeldTile, Kept, Values};
use crate::kernel::exit::Epilogue;
use crate::kernel::exit::out::Out;
use crate::kernel::tile::position::{KRange, TilePosition, TileWork};
use crate::kernel::tile::shared::SharedTile;
use crate::plan::{Along, OperandTile, OperandVector, TileReduction, gcd};
use tilewright_ir::affine::Coord;
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// Bytes of a vector of shared memory, and elements of one at most.
const VECTOR: (u32, u32) = (16, 8);

/// An operand's reductions in the main loop of a result tile.
pub(crate) struct OperandLoop<'a> {
    e: &'a Epilogue<'a>,
    at: &'a TilePosition,
    range: &'a KRange,
    shared: &'a SharedTile,
    kept: usize,
    held: OperandTile,
    reducers: Vec<(&'a Reducer<'a>, TileReduction)>,
    /// What the thread has so far of each.
    states: Vec<Kept>,
    thread: ExprId,
    /// What the thread adds to row and column.
    place: [ExprId; 2],
    /// This thread of this work-group takes part.
    takes_part: ExprId,
}

impl<'a> OperandLoop<'a> {
    /// Those of the operand whose rows (0) or columns (1) are kept, with no elements yet; `None` where there are none.
    pub fn new(
        b: &mut Builder,
        e: &'a Epilogue<'a>,
        work: TileWork<'a>,
        shared: &'a [SharedTile],
        kept: usize,
    ) -> Option<OperandLoop<'a>> {
        let shared = shared.get(kept)?;
        let ours: Vec<&Reducer> = e.args.operands.iter().filter(|x| !x.op.over.whole()[kept]).collect();
        if ours.is_empty() {
            return None;
        }
        let held = e.spec.operand_tile(kept, OperandVector { along_k: shared.along == Along::K, width: vector(b, shared) });
        let reducers: Vec<_> = ours.into_iter().map(|x| (x, e.spec.operand_reduction(x.op, &held))).collect();
        let thread = e.thread_of_tile(b);
        let states = reducers.iter().map(|(reducer, how)| HeldTile::nothing(&held.layout, b, reducer, how)).collect();
        let place = [Axis::Row, Axis::Col].map(|to| held.layout.emit(b, to, &[(Axis::Thread, thread)], Scalar::I32));
        let place = [b.bind("held_row", place[0]), b.bind("held_col", place[1])];
        let TileWork { at, range } = work;
        let mut first = [at.tile_n, at.tile_m][kept].equals(0);
        if held.threads < e.spec.tiling.math_threads() {
            first = first.and(thread.lt(held.threads));
        }
        let takes_part = b.bind("first_of_operand", first);
        Some(OperandLoop { e, at, range, shared, kept, held, reducers, states, thread, place, takes_part })
    }

    /// Adds a k-tile to what the thread has.
    pub fn add(&self, b: &mut Builder, stage: ExprId, number: ExprId) {
        b.if_then(self.takes_part, |b| {
            let elements = self.elements(b, stage);
            let value = |_: &mut Builder, register: u32| elements[register as usize];
            let k = b.bind("k", self.range.begin + number.cast(self.e.ints.coord) * self.range.step);
            let exists = |b: &mut Builder, at: Coord, _: usize| self.exists(b, at);
            let tile = self.tile(b, k, &value, &exists);
            for ((reducer, how), kept) in self.reducers.iter().zip(&self.states) {
                tile.carry(b, reducer, how, kept, self.place);
            }
        });
    }

    /// Stores the values, or this split's partial values, after the last k-tile.
    pub fn store_values(&self, b: &mut Builder) {
        b.if_then(self.takes_part, |b| {
            let out = Out::new(b, self.e, self.at);
            let nothing = |b: &mut Builder, _: u32| b.zero(self.e.c.accumulator().vector(1));
            let owned = |b: &mut Builder, at: Coord, axis: usize| out.owned(b, at, axis);
            let tile = self.tile(b, self.range.begin, &nothing, &owned);
            tile.reduce_across_threads(b, &self.reducers, FreeShared::ALL, &mut |b, number| -> Values {
                let (reducer, how) = &self.reducers[number];
                tile.kept(b, reducer, how, &self.states[number], self.place)
            });
        });
    }

    /// Condition that an element of k is there and this split's, where some are not.
    fn exists(&self, b: &mut Builder, at: Coord) -> Option<ExprId> {
        self.range.ragged.then(|| {
            let at = at.value(b);
            let below = at.lt(self.range.limit);
            b.value(if self.range.staggered { below.and(at.ge(0)) } else { below })
        })
    }

    /// What the threads hold of a k-tile that begins at this k.
    fn tile<'h>(
        &'h self,
        b: &mut Builder,
        k: ExprId,
        value: &'h dyn Fn(&mut Builder, u32) -> ExprId,
        owned: &'h dyn Fn(&mut Builder, Coord, usize) -> Option<ExprId>,
    ) -> HeldTile<'h> {
        let k = Coord::plain(b, k);
        let [row, col] = [self.at.m_start, self.at.n_start];
        HeldTile {
            layout: &self.held.layout,
            thread: self.thread,
            threads: self.held.threads,
            value,
            overwrite: None,
            counts: &|_| None,
            cluster: None,
            share: Some(self.at.split),
            stored: self.e.c.c.scalar,
            g: self.at.g,
            tile: [self.at.tile_m, self.at.tile_n],
            start: if self.kept == 0 { [row, k] } else { [k, col] },
            owned,
            sync: &|_| {},
            ints: self.e.ints,
            walk: None,
            shift: None,
        }
    }

    /// The elements that the thread has of a stage, by register: loads first, all together.
    fn elements(&self, b: &mut Builder, stage: ExprId) -> Vec<ExprId> {
        let (layout, width) = (&self.held.layout, self.held.width);
        let from = b.bind("operand_at", stage * self.shared.stage);
        let mut loaded = Vec::new();
        for first in (0..layout.extent(Axis::Register) as u32).step_by(width as usize) {
            let [row, col] = [Axis::Row, Axis::Col].map(|to| layout.at(to, &[(Axis::Register, first.into())]));
            let at = [b.value(self.place[0] + row), b.value(self.place[1] + col)];
            let at = self.shared.at(b, at[self.kept], at[1 - self.kept]);
            let mut load = |apart: u32| b.load("of_operand", Base::Shared(self.shared.array), from + at + apart, width, None);
            loaded.push((0..self.shared.parts).map(|part| load(self.shared.part(part))).collect::<Vec<ExprId>>());
        }
        let accumulator = self.e.c.accumulator();
        let mut all = Vec::new();
        for (parts, i) in loaded.iter().flat_map(|parts| (0..width).map(move |i| (parts, i))) {
            // What an element was split into adds up to it.
            let parts: Vec<Ex> = parts.iter().map(|part| part.extract(i).cast(accumulator)).collect();
            all.extend(parts.into_iter().reduce(|sum, part| sum + part).map(|x| b.bind("element", x)));
        }
        all
    }
}

/// Neighbours that one access of shared memory brings, along lines.
fn vector(b: &Builder, shared: &SharedTile) -> u32 {
    let Some(array) = b.kernel().shared.get(shared.array.index()) else { return 1 };
    let most = (VECTOR.0 / array.scalar.bytes()).min(VECTOR.1);
    shared.vector_of_lines(gcd(most, array.byte_offset / array.scalar.bytes()))
}
