//! Fetched tiles at the very end of an operand: what aligned vectors may read of them, and the rest element by element.

use super::fetch_layout::{Lines, Spot};
use super::fetch_lines::{Slot, Stream};
use crate::plan::FETCH_CHUNK as CHUNK;
use tilewright_ir::*;
use tilewright_problem::view::{COL, ROW};

/// Vectors that are asked for together.
const TOGETHER: u32 = 8;

fn divisor(of: u32, most: u32) -> u32 {
    (1..=most.min(of).max(1)).rev().find(|d| of.is_multiple_of(*d)).unwrap_or(1)
}

impl Lines<'_> {
    /// Vectors at the edges that are asked for at once. At least two such parts: of a single one compilers compute all addresses
    /// ahead, and hold them in registers along all of k.
    pub fn edge_group(&self) -> u32 {
        let most = TOGETHER.min(self.shape.count() / 2).max(1);
        divisor(self.shape.per_round, most)
    }

    /// A tile at the end of k or of the operand's memory.
    pub fn edge(&self, b: &mut Builder, stream: &Stream, first: ExprId, k: ExprId) {
        let s = &self.shape;
        let group = self.edge_group();
        let per_round = s.per_round / group;
        let start = b.bind("start_now", stream.start);
        b.for_range("part", 0, s.rounds * per_round, Unroll::By(1), |b, part| {
            let round = b.bind("class_round", part / per_round);
            let i = b.bind("first_vector", part % per_round * group);
            let mut shift = None;
            let slots: Vec<Slot> = (0..group)
                .map(|j| {
                    let i = b.value(i + j);
                    let spot = self.spread.spot(b, round, i);
                    let index = self.index(b, start, &spot);
                    let index = b.bind("vector_at", index);
                    // That of all vectors of the class.
                    if j == 0 {
                        shift = self.shift(b, index);
                    }
                    let sources = self.sources(b, index, shift);
                    let (readable, some) = self.judge(b, stream, &spot, index, k);
                    let whole = b.value(readable.and(some));
                    let guard = b.and_opt(spot.exists, Some(whole));
                    let guard = guard.map(|g| b.bind("read", g));
                    let to = b.reg_place(stream.own, j);
                    b.load_to(to, Base::Buffer(self.words), sources[0], guard);
                    if let Some(near) = stream.near {
                        let to = b.reg_place(near, j);
                        b.load_to(to, Base::Buffer(self.words), sources[1], guard);
                    }
                    let masks = self.masks(b, &spot, k);
                    let to = b.value(first + spot.to);
                    Slot { slot: j, to, exists: spot.exists, masks }
                })
                .collect();
            self.store(b, stream, shift, &slots);
        });
        b.if_then(stream.left.lt(0), |b| self.leftovers(b, stream, first, start, k));
    }

    /// Of a vector at the edges: whether the aligned vectors that it lies in are the operand's, and whether any of it exists.
    fn judge(&self, b: &mut Builder, stream: &Stream, spot: &Spot, index: ExprId, k: ExprId) -> (ExprId, ExprId) {
        let readable = b.value((index + i64::from(2 * CHUNK)).le(stream.end));
        let (row, along_k) = if self.k_contiguous() { (spot.line, spot.along) } else { (spot.along, spot.line) };
        let along_k = b.value(along_k.cast(b.ty(k).scalar));
        let row = b.value(stream.row + row.cast(b.ty(stream.row).scalar));
        let in_rows = match stream.rows {
            Some(rows) => b.value(row.lt(rows)),
            None => b.value(row.lt(self.extent(ROW))),
        };
        let some = b.value((k + along_k).lt(self.extent(COL)).and(in_rows));
        (readable, some)
    }

    /// Masks of a vector's words, where k may end within it.
    fn masks(&self, b: &mut Builder, spot: &Spot, k: ExprId) -> Option<[ExprId; 4]> {
        (self.k_contiguous() && self.extent(COL) % i64::from(CHUNK) != 0).then(|| {
            let valid = self.valid(b, spot, k);
            [0, 2, 4, 6].map(|before| self.mask(b, valid, before))
        })
    }

    /// Vectors that exist and that aligned vectors would read beyond the operand's memory, element by element.
    fn leftovers(&self, b: &mut Builder, stream: &Stream, first: ExprId, start: ExprId, k: ExprId) {
        let s = &self.shape;
        b.for_range("left", 0, s.count(), Unroll::By(1), |b, q| {
            let round = b.value(q / s.per_round);
            let i = b.value(q % s.per_round);
            let spot = self.spread.spot(b, round, i);
            let index = self.index(b, start, &spot);
            let index = b.bind("vector_at", index);
            let (readable, some) = self.judge(b, stream, &spot, index, k);
            let part = b.value(readable.unary(UnaryOp::Not).and(some));
            let Some(part) = b.and_opt(spot.exists, Some(part)) else { return };
            b.if_then(part, |b| {
                let axis = if self.k_contiguous() { COL } else { ROW };
                let from = if self.k_contiguous() { k } else { stream.row };
                let along = b.value(spot.along.cast(b.ty(from).scalar));
                let values: Vec<ExprId> = (0..CHUNK)
                    .map(|e| {
                        let here = b.value(from + along + i64::from(e));
                        let exists = match stream.rows {
                            Some(rows) if axis == ROW => b.value(here.lt(rows)),
                            _ => b.value(here.lt(self.extent(axis))),
                        };
                        b.load("value", Base::Buffer(self.tile.source.buffer), index + i64::from(e), 1, Some(exists))
                    })
                    .collect();
                let value = b.vector(&values);
                b.store(Base::Shared(self.tile.arrays[0]), (first + spot.to) * 2, value, None);
            });
        });
    }
}
