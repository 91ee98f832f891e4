//! TMA loads of misaligned rows (`ACP3`). TMA copies the aligned enclosing spans of rows into a staging buffer, far ahead. Producer warps
//! then shift the rows from the staging buffer into the operand's tile.
//!
//! Each producer warp owns some classes of rows (row number modulo 8) of every shifted operand. It copies their aligned spans
//! ([`crate::plan::Spans`]) into its part of a slot and waits for its own barrier of the slot. Then it reads the slot, and starts
//! the next copy into it. So producer warps synchronise only at the circular buffer. [`super::fetch_layout`] assigns vectors to
//! lanes and computes the shift. The copy engine writes zeros past the end of rows, of k and of the operand.
//!
//! The copies walk over the work-group's result tiles separately, ahead by as many k-tiles as there are slots. In persistent work-groups,
//! the first k-tiles of the next result tile arrive while the last k-tiles of this result tile are computed.

use super::fetch_layout::{ROW_WORDS, Shift, Spread, VECTOR_WORDS};
use crate::kernel::stages::counter::Counter;
use crate::kernel::stages::ring::Ring;
use crate::kernel::tile::position::TileWalk;
use crate::kernel::tile::shared::SharedTile;
use crate::plan::KernelSpec;
use crate::plan::{BulkTile, FetchShape, LINE_CLASSES as CLASSES, Spans, shifted_together};
use std::ops::Range;
use tilewright_ir::*;

/// The staging of a shifted operand: its spans, and their tensor maps by class of rows.
pub(crate) struct Staged<'a> {
    pub spans: &'a Spans,
    pub maps: &'a [ArgId],
}

/// A thread of the producer warps.
#[derive(Clone, Copy)]
pub(crate) struct Producer {
    /// Its position among them.
    pub thread: ExprId,
    /// True in one lane of each warp.
    pub first_lane: ExprId,
}

/// One shifted operand.
struct Part {
    tile: BulkTile,
    spans: Spans,
    /// By class.
    maps: Vec<ArgId>,
    /// Staging, and the same memory as words.
    staging: [SharedId; 2],
    /// The stages of the circular buffer as words.
    to: SharedId,
    spread: Spread,
    rounds: Vec<Round>,
    /// Vectors in registers, and the halves of their neighbours.
    regs: [RegId; 2],
    group: u32,
}

/// One class of rows of a producer warp.
struct Round {
    shift: Shift,
    /// Position of its first vector within a buffer, in words.
    to: ExprId,
    /// Positions of the vector and of its neighbour's half within a slot, in words.
    from: [ExprId; 2],
}

/// The next k-tile to copy.
struct Ahead {
    /// The next piece of work, where there are several.
    work: VarId,
    /// Number of k-tiles of the present piece without a copy, and the first k of the next k-tile.
    left: VarId,
    k: VarId,
    /// First row and column of the result, and batch entry.
    start: [VarId; 2],
    g: VarId,
}

/// The producer warps' share of the work on shifted operands.
pub(crate) struct Shifter<'a> {
    tiles: TileWalk<'a>,
    k_stride: i64,
    ring: &'a Ring,
    parts: [Option<Part>; 2],
    slots: u32,
    waves: u32,
    wave: ExprId,
    first_lane: ExprId,
    slot: Counter,
    ahead: Ahead,
}

impl<'a> Shifter<'a> {
    /// `staging`: of operands that are shifted, how, and their maps by class.
    pub fn new(
        b: &mut Builder,
        tiles: TileWalk<'a>,
        spec: &KernelSpec,
        ring: &'a Ring,
        shared: &[SharedTile],
        staging: [Option<Staged>; 2],
        producer: Producer,
    ) -> Shifter<'a> {
        let Producer { thread, first_lane } = producer;
        let slots = spec.schedule.slots();
        let waves = spec.load_threads() / spec.tiling.wave_lanes.max(1);
        let wave = b.bind("producer_wave", thread / spec.tiling.wave_lanes);
        let most = shifted_together(spec.load_registers(), staging.iter().flatten().count() as u32);
        let mut index = 0;
        let parts = staging.map(|of| {
            let i = index;
            index += 1;
            let Staged { spans, maps } = of?;
            let tile = shared[i].panels.clone()?;
            let (scalar, area) = (tile.map.scalar, spec.shared.spans[i]);
            let (bytes, at) = (area.bytes as u32, area.first());
            let name = ["a", "b"][i];
            let elements = b.shared(&format!("{name}_staging"), scalar, bytes / scalar.bytes(), at);
            let words = b.shared(&format!("{name}_staging_words"), Scalar::U32, bytes / 4, at);
            let to = shared[i].words(b, &format!("{name}_tile_words"), Scalar::U32);
            let lines = tile.map.tile[1] * tile.lines;
            let shape = FetchShape::new(tile.columns, lines, spec.load_threads());
            let spread = Spread { shape, thread, lines };
            let rounds = (0..shape.rounds).map(|round| Round::new(b, spans, &spread, round, scalar.bytes())).collect();
            let group = (1..=most).rev().find(|g| shape.per_round.is_multiple_of(*g)).unwrap_or(1);
            let own = b.regs(&format!("{name}_own"), Scalar::U32.vector(4), group);
            let near = b.regs(&format!("{name}_near"), Scalar::U32.vector(2), group);
            Some(Part {
                tile,
                spans: spans.clone(),
                maps: maps.to_vec(),
                staging: [elements, words],
                to,
                spread,
                rounds,
                regs: [own, near],
                group,
            })
        });
        let slot = Counter::new(b, "staged", slots, true);
        let ints = tiles.ints.coord;
        let none = b.int(0, ints);
        let ahead = Ahead {
            work: b.declare("tile_ahead", Ex::int(0, Scalar::I32)),
            left: b.declare("left_ahead", none),
            k: b.declare("k_ahead", none),
            start: [b.declare("m_ahead", none), b.declare("n_ahead", none)],
            g: b.declare("g_ahead", none),
        };
        Shifter { tiles, k_stride: spec.tiling.k_stride(), ring, parts, slots, waves, wave, first_lane, slot, ahead }
    }

    /// Before the first result tile: all slots are asked for.
    pub fn begin(&self, b: &mut Builder) {
        b.if_then(self.first_lane, |b| {
            let first = self.tiles.first_work(b);
            b.set(self.ahead.work, first);
            if !self.stays() {
                self.enter(b, first);
            }
            b.for_range("slot", 0, self.slots, Unroll::No, |b, slot| self.prefetch(b, slot));
        });
    }

    fn stays(&self) -> bool {
        self.tiles.tiling.persistent > 0
    }

    /// The walk ahead comes to a piece of work.
    fn enter(&self, b: &mut Builder, work: ExprId) {
        let at = self.tiles.position(b, work);
        let range = self.tiles.k_range(b, &at);
        for (var, start) in self.ahead.start.into_iter().zip([at.m_start, at.n_start]) {
            let start = start.value(b);
            b.set(var, start);
        }
        b.set(self.ahead.g, at.g);
        b.set(self.ahead.k, range.begin);
        b.set(self.ahead.left, range.tiles);
    }

    /// In one lane of the wave: its aligned spans of the next k-tile are copied into this slot, if there is one.
    fn prefetch(&self, b: &mut Builder, slot: ExprId) {
        let ahead = &self.ahead;
        if self.stays() {
            let work = b.get(ahead.work);
            let all = self.tiles.all_work(b);
            let next = b.value(ahead.left.equals(0).and(work.lt(all)));
            b.if_then(next, |b| {
                let work = b.bind("tile_next", ahead.work);
                self.enter(b, work);
                b.set(ahead.work, work + self.tiles.stay());
            });
        }
        let left = b.get(ahead.left);
        b.if_then(left.gt(0), |b| {
            let index = self.barrier(b, slot);
            let barrier = TxRef { barriers: self.ring.staged_barriers(), index };
            let of = |p: &Part| p.spans.boxes * p.spans.copied * CLASSES / self.waves;
            let bytes = self.parts.iter().flatten().map(of).sum();
            b.bulk(BulkOp::Expect { barrier, bytes });
            let places: Vec<Vec<ExprId>> = (0..2).map(|i| self.place(b, i, slot)).collect();
            self.of_wave(b, 0..self.waves, &|b, wave| {
                for (part, place) in self.parts.iter().zip(&places) {
                    let Some(part) = part else { continue };
                    for class in (wave..CLASSES).step_by(self.waves as usize) {
                        part.copy(b, class, place, barrier);
                    }
                }
            });
            b.set(ahead.left, ahead.left - 1);
            b.set(ahead.k, ahead.k + self.k_stride);
        });
    }

    fn barrier(&self, b: &mut Builder, slot: ExprId) -> ExprId {
        b.bind("staged_barrier", self.wave * self.slots + slot)
    }

    /// Coordinates of the copies of an operand's next k-tile, and the first element of the slot.
    fn place(&self, b: &mut Builder, which: usize, slot: ExprId) -> Vec<ExprId> {
        let Some(part) = &self.parts[which] else { return Vec::new() };
        let k = b.get(self.ahead.k);
        let row = b.get(self.ahead.start[which]);
        let (fast, slow) = if part.tile.k_contiguous { (k, row) } else { (row, k) };
        let slow = b.value(slow / CLASSES);
        let g = b.get(self.ahead.g);
        let first = b.value(slot * (part.spans.slot_bytes() / part.tile.map.scalar.bytes()));
        [fast, slow, g, first].map(|value| b.bind("copy_at", value.cast(Scalar::I32))).to_vec()
    }

    /// Runs the body for the number of the wave, which only tensor maps have to know as a constant.
    fn of_wave(&self, b: &mut Builder, waves: Range<u32>, body: &dyn Fn(&mut Builder, u32)) {
        let Range { start, end } = waves;
        if end - start <= 1 {
            return body(b, start);
        }
        let middle = u32::midpoint(start, end);
        b.if_else(self.wave.lt(middle), |b| self.of_wave(b, start..middle, body), |b| self.of_wave(b, middle..end, body));
    }

    /// Shifts the next k-tile into this stage of the circular buffer, once its aligned spans are there.
    pub fn emit(&self, b: &mut Builder, buffer: ExprId) {
        let slot = self.slot.stage(b);
        let index = self.barrier(b, slot);
        let parity = self.slot.phase(b);
        b.bulk(BulkOp::Wait { barrier: TxRef { barriers: self.ring.staged_barriers(), index }, parity });
        self.parts.iter().flatten().for_each(|part| part.shift(b, slot, buffer));
    }

    /// Starts the next copy into the slot that the warp has just read. Call it after a barrier of the warp.
    pub fn next(&self, b: &mut Builder) {
        let slot = self.slot.stage(b);
        let slot = b.bind("slot_read", slot);
        b.if_then(self.first_lane, |b| self.prefetch(b, slot));
        self.slot.next(b);
    }
}

impl Part {
    /// Copies of one class.
    fn copy(&self, b: &mut Builder, class: u32, place: &[ExprId], barrier: TxRef) {
        let &[fast, slow, g, first] = place else { return };
        let bytes = self.tile.map.scalar.bytes();
        for i in 0..self.spans.boxes {
            let to =
                b.mem(Base::Shared(self.staging[0]), first + ((class * self.spans.boxes + i) * self.spans.box_bytes / bytes));
            let right = b.value(fast + (i * self.spans.columns * self.tile.row));
            let mut at = vec![right, slow];
            at.extend((self.spans.classes[class as usize].map.tile.len() > 2).then_some(g));
            b.bulk(BulkOp::Load { to, map: self.maps[class as usize], at, barrier, peers: None });
        }
    }

    /// Words between a round's first vector and its `i`th, in staging.
    fn word_offset(&self, i: u32) -> u32 {
        let (s, h) = (&self.spread.shape, &self.spans);
        let (column, line) = (i / s.line_blocks * s.columns, i % s.line_blocks * s.lines);
        column / h.columns * h.box_bytes / 4 + column % h.columns * ROW_WORDS + line * h.pitch * self.tile.map.scalar.bytes() / 4
    }

    fn shift(&self, b: &mut Builder, slot: ExprId, buffer: ExprId) {
        let from = b.bind("slot_start", slot * (self.spans.slot_bytes() / 4));
        let to = b.bind("buffer_start", buffer * (self.tile.bytes / 4));
        let s = &self.spread.shape;
        for (index, round) in (0u32..).zip(&self.rounds) {
            let from = round.from.map(|x| b.value(from + x)).map(|x| b.bind("vector_from", x));
            let to = b.bind("vector_to", to + round.to);
            let exists = |b: &mut Builder, i: u32| {
                let round = b.int(index.into(), Scalar::I32);
                let i = b.int(i.into(), Scalar::I32);
                self.spread.ragged().then(|| self.spread.spot(b, round, i).exists).flatten()
            };
            round.shift.cases(b, |b, shifted| {
                for first in (0..s.per_round).step_by(self.group as usize) {
                    for (j, reg) in (0..self.group).flat_map(|j| self.regs.map(|reg| (j, reg))) {
                        let guard = exists(b, first + j);
                        let place = b.reg_place(reg, j);
                        b.load_to(
                            place,
                            Base::Shared(self.staging[1]),
                            from[usize::from(reg != self.regs[0])] + self.word_offset(first + j),
                            guard,
                        );
                    }
                    for j in 0..self.group {
                        let parts = self.regs.map(|reg| b.reg(reg, j));
                        let value = shifted(b, parts);
                        let guard = exists(b, first + j);
                        b.store(Base::Shared(self.to), to + self.spread.place_of(first + j), value, guard);
                    }
                }
            });
        }
    }
}

impl Round {
    fn new(b: &mut Builder, spans: &Spans, spread: &Spread, round: u32, bytes: u32) -> Round {
        let round = b.int(round.into(), Scalar::I32);
        let zero = b.int(0, Scalar::I32);
        let spot = spread.spot(b, round, zero);
        let to = b.bind("place", spot.to);
        let (class, _, _) = spread.class(b, round);
        let class = b.bind("class", class);
        // That of class 1, as many times.
        let each = spans.classes.get(1).map_or(0, |c| c.shift);
        let elements = b.value(class * each % (16 / bytes));
        let shift = Shift::new(b, elements, bytes);
        let [column, line] = spread.sub(b);
        let first = b.value(class * (spans.boxes * spans.box_bytes / 4));
        let beside = b.value(column / spans.columns * (spans.box_bytes / 4));
        let within = b.value(column % spans.columns * ROW_WORDS);
        let line = b.value(line * (spans.pitch * bytes / 4));
        let vector = spread.vector(b);
        let vector = b.value(vector * VECTOR_WORDS);
        let place = [beside, within, line, vector].into_iter().fold(first, |sum, x| b.value(sum + x));
        let from = shift.sources(b, Scalar::I32).map(|x| b.value(place + x)).map(|x| b.bind("span_at", x));
        Round { shift, to, from }
    }
}
