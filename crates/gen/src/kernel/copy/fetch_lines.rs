//! A fetched tile of plain strides of 16-bit elements, read in aligned vectors whatever their alignment, and shifted into place.
//!
//! Lines eight apart begin at the same place of a vector, whatever the leading dimension is. So each wave takes the lines of one
//! class modulo 8 (of several, one after the other, where there are fewer than eight waves): how far it shifts is the same
//! for all its lanes and for every k-tile. An output vector of eight elements takes the aligned vector that most of it lies in and the
//! nearer half of a neighbour: two loads, four shifts and a store. Which words are paired is one of four cases; the half word is
//! an amount in a register.
//!
//! Eight lanes share a row of 128 bytes of the tile, in memory as in shared memory, where the swizzle spreads them over all
//! banks. The four rows of a wave's instruction are neighbours along a line as far as the tile has columns, else lines of the class.
//!
//! The vectors of the next k-tile are in flight while those of this one are shifted: a register is asked for again as
//! soon as it is stored. Where k ends within a tile, lines beyond it become zeros instead of being read, and vectors along k are
//! trimmed before they are shifted. Only tiles at the very end of the operand, whose vectors would leave its memory, are
//! another matter ([`super::fetch_edge`]): what may be is read vector by vector, the rest element by element.
//!
//! As compiled for sm_90a a vector takes 7 instructions of its thread, 8 where lines of the tile may lie beyond the operand's rows (2
//! and 3 where lines begin at 16 bytes), and a k-tile some 50 besides. Compilers have one scoreboard for all loads that are waited for in
//! another iteration: a k-tile takes the latency of its last load and the time to store all vectors, so that a second warpgroup of load
//! waves (`LWV8`) hides more than a larger share of the registers does. Loads, stores and the unit's own reads share the
//! 128 bytes per cycle of shared memory: of 128 x 256 x 64 instructions read 80 KB, and a fetched operand of 256 rows moves 32 KB three
//! times, in 1024 cycles of the unit.

use super::fetch_layout::{Lines, Shift};
use crate::plan::{FETCH_CHUNK as CHUNK, LINE_CLASSES as CLASSES};
use tilewright_ir::affine::Coord;
use tilewright_ir::*;
use tilewright_problem::view::{COL, G, ROW};

/// Vectors that are shifted and stored together, before their registers are asked for again.
const TOGETHER: u32 = 4;

/// What a role knows of an operand while it walks along k for one result tile.
pub(crate) struct Stream {
    /// First element of the next tile, and how many elements more its vectors could reach before they left the operand's memory.
    pub start: VarId,
    pub left: VarId,
    /// One past the operand's last element.
    pub end: ExprId,
    pub row: ExprId,
    pub rows: Option<ExprId>,
    pub own: RegId,
    pub near: Option<RegId>,
    rounds: Vec<Round>,
}

/// One class of lines of a wave.
struct Round {
    shift: Option<Shift>,
    /// Where its first row goes within a buffer, in words.
    to: ExprId,
    exists: Option<ExprId>,
    /// Its first line, and how many from that on are the operand's where not all of a tile's may be.
    line: ExprId,
    lines: Option<ExprId>,
    /// At the vector that most of an output lies in, and at its neighbour's half.
    from: [CursorId; 2],
}

/// A vector in registers, and where it goes.
pub(crate) struct Slot {
    pub slot: u32,
    pub to: ExprId,
    pub exists: Option<ExprId>,
    pub masks: Option<[ExprId; 4]>,
}

impl Lines<'_> {
    /// False in threads that have no such vector `i` of a round.
    fn exists(&self, b: &mut Builder, round: &Round, (index, i): (u32, u32)) -> Option<ExprId> {
        if !self.spread.ragged() {
            return round.exists;
        }
        let round = b.int(i64::from(index), Scalar::I32);
        let i = b.int(i64::from(i), Scalar::I32);
        self.spread.spot(b, round, i).exists
    }

    /// The walk along k of a result tile begins: the first vectors are asked for.
    pub fn begin(&self, b: &mut Builder, place: (ExprId, Option<ExprId>), row_start: Coord, k: ExprId) -> Stream {
        let (g, rows) = place;
        let s = &self.shape;
        let offset = self.tile.source.offset.unwrap_or_else(|| b.int(0, Scalar::I64));
        let mut first = offset;
        let row = row_start.value(b);
        for (coordinate, stride) in [(g, self.strides[G]), (row, self.strides[ROW]), (k, self.strides[COL])] {
            first = b.value(first + coordinate.cast(Scalar::I64) * stride);
        }
        let first = b.bind("tile_start", first);
        let end = self.tile.end(b, offset, self.strides, g, rows);
        let end = b.bind("tile_end", end);
        let lines = self.tile.lines();
        // Lines from the first one on that are the operand's.
        let inside = self.overruns().then(|| {
            let rows = rows.unwrap_or_else(|| b.int(self.extent(ROW), b.ty(row).scalar));
            b.bind("lines_inside", (rows.cast(b.ty(row).scalar) - row).min(i64::from(lines)).cast(Scalar::I32))
        });
        let last_line = match inside {
            Some(inside) => b.value((inside - 1).cast(Scalar::I64) * self.apart()),
            None => b.int(i64::from(lines - 1) * self.apart(), Scalar::I64),
        };
        let start = b.declare(&self.name("start"), first);
        let left =
            b.declare(&self.name("left"), end - first - (last_line + (i64::from(self.tile.chunks() + 1) * i64::from(CHUNK))));
        let zero = b.int(0, Scalar::I32);
        let rounds = (0..s.rounds).map(|round| {
            let round = b.int(i64::from(round), Scalar::I32);
            let spot = self.spread.spot(b, round, zero);
            let index = self.index(b, first, &spot);
            let index = b.bind("line_start", index);
            let shift = self.shift(b, index);
            let [own, near] = self.sources(b, index, shift);
            let from = [b.cursor(&self.name("from"), self.words, own), b.cursor(&self.name("beside"), self.words, near)];
            let to = b.bind("place", spot.to);
            let lines = inside.map(|inside| b.bind("lines_left", inside - spot.line));
            let (_, _, exists) = self.spread.class(b, round);
            let exists = exists.map(|e| b.bind("line_exists", e));
            // Lines beyond the end of k are counted from it.
            let ends = !self.k_contiguous() && self.ends_within();
            let line = if ends { b.bind("first_line", spot.line) } else { spot.line };
            Round { shift, to, exists, line, lines, from }
        });
        let rounds: Vec<Round> = rounds.collect();
        let own = b.regs(&self.name("own"), Scalar::U32.vector(4), self.window().max(self.edge_group()));
        let near =
            (!self.aligned).then(|| b.regs(&self.name("near"), Scalar::U32.vector(2), self.window().max(self.edge_group())));
        let stream = Stream { start, left, end, row, rows, own, near, rounds };
        if self.pipelined() {
            let safe = self.safe(b, &stream, k, 0);
            let whole = if self.k_contiguous() { None } else { self.whole(b, k, 0) };
            let ask = |b: &mut Builder| {
                (0..self.window()).step_by(self.group() as usize).for_each(|q| self.ask(b, &stream, q, (whole, k)));
            };
            if self.guarded() {
                self.forget(b, &stream);
                b.if_then(safe, ask);
            } else {
                b.if_else(safe, ask, |b| self.forget(b, &stream));
            }
        }
        stream
    }

    /// Vectors of a thread on their way at once.
    fn window(&self) -> u32 {
        self.shape.window(self.tile.in_flight)
    }

    fn group(&self) -> u32 {
        {
            let window = self.window();
            (1..=TOGETHER).rev().find(|g| window.is_multiple_of(*g) && self.shape.per_round.is_multiple_of(*g)).unwrap_or(1)
        }
    }

    /// The code of all of a thread's vectors is laid out one after the other.
    fn pipelined(&self) -> bool {
        self.shape.count() <= 48
    }

    /// True where the k-tile that starts `ahead` elements behind `k` ends within k; `None`: all do.
    fn whole(&self, b: &mut Builder, k: ExprId, ahead: i64) -> Option<ExprId> {
        self.ends_within().then(|| b.bind("whole_tile", (k + (ahead + i64::from(self.tile.k_tile))).le(self.extent(COL))))
    }

    /// True where no vector of the k-tile that starts `ahead` elements behind `k` leaves the operand's memory; lines beyond k are not
    /// read.
    fn safe(&self, b: &mut Builder, stream: &Stream, k: ExprId, ahead: i64) -> ExprId {
        let mut left = b.get(stream.left);
        let tile = i64::from(self.tile.k_tile);
        if !self.k_contiguous() && self.ends_within() {
            left = b.value(left + (k + (ahead + tile - self.extent(COL))).max(0).cast(Scalar::I64) * self.apart());
        }
        b.bind("safe", left.ge(ahead * self.strides[COL]))
    }

    /// Asks for the vectors from the thread's `q`th on, of the k-tile that starts there: all of it within k, or not.
    fn ask(&self, b: &mut Builder, stream: &Stream, q: u32, (whole, k): (Option<ExprId>, ExprId)) {
        match whole.filter(|_| !self.k_contiguous()) {
            None => self.ask_within(b, stream, q, None),
            Some(whole) => {
                b.if_else(whole, |b| self.ask_within(b, stream, q, None), |b| self.ask_within(b, stream, q, Some(k)));
            }
        }
    }

    /// Likewise, with zeros for lines beyond k where the tile starts at this one.
    fn ask_within(&self, b: &mut Builder, stream: &Stream, q: u32, k: Option<ExprId>) {
        let s = &self.shape;
        let index = q / s.per_round;
        let Some(round) = stream.rounds.get(index as usize) else { return };
        let lines_in_k =
            k.map(|k| b.bind("lines_in_k", (Ex::int(self.extent(COL), b.ty(k).scalar) - k).cast(Scalar::I32) - round.line));
        for j in 0..self.group() {
            let (slot, i) = ((q + j) % self.window(), q % s.per_round + j);
            let mut guard = self.exists(b, round, (index, i));
            let line = i64::from(i * s.parts % s.line_blocks * s.lines * CLASSES);
            if let Some(lines) = round.lines {
                let there = b.value(lines.gt(line));
                guard = b.and_opt(guard, Some(there));
            }
            let within = lines_in_k.map(|lines| b.value(lines.gt(line)));
            // In blocks of several parts the part is in the first vector's place.
            let further = self.further(i * s.parts);
            let wide = i32::try_from(further).is_err();
            let further = b.int(further, if wide { Scalar::I64 } else { Scalar::I32 });
            let load = |b: &mut Builder| {
                let to = b.reg_place(stream.own, slot);
                b.load_to(to, Base::Cursor(round.from[0]), further, within);
                if let Some(near) = stream.near {
                    let to = b.reg_place(near, slot);
                    b.load_to(to, Base::Cursor(round.from[1]), further, within);
                }
            };
            // Else what was there stays: nobody looks at it, and zeros would cost as many instructions as the loads.
            match guard {
                Some(guard) => b.if_then(guard, load),
                None => load(b),
            }
        }
    }

    /// Vectors along k lose what lies beyond its end, before they are shifted.
    fn trim(&self, b: &mut Builder, stream: &Stream, q: u32, k: ExprId) {
        let s = &self.shape;
        let index = q / s.per_round;
        let Some(round) = stream.rounds.get(index as usize) else { return };
        let i32 = |value: i64, b: &mut Builder| b.int(value, Scalar::I32);
        // First elements of both pieces, from where an output vector's own first one lies in its vector.
        let (first, starts) = match round.shift {
            None => (i32(0, b), [i32(0, b); 2]),
            Some(shift) => {
                let far = b.value(shift.words.ge(2));
                let (zero, four, eight) = (i32(0, b), i32(4, b), i32(8, b));
                let starts = [b.value(far.select(eight, zero)), b.value(far.select(four, eight))];
                (b.value(shift.words * 2 + (shift.bits.cast(Scalar::I32) >> 4)), starts)
            }
        };
        for j in 0..self.group() {
            let (slot, i) = ((q + j) % self.window(), q % s.per_round + j);
            let (round, i) = (i32(index.into(), b), i32(i.into(), b));
            let spot = self.spread.spot(b, round, i);
            let valid = self.valid(b, &spot, k);
            let valid = b.value(valid + first);
            let pieces = [Some((stream.own, 4)), stream.near.map(|near| (near, 2))];
            for ((reg, words), start) in pieces.into_iter().flatten().zip(starts) {
                let valid = b.value(valid - start);
                let masked: Vec<ExprId> = (0..words)
                    .map(|word| {
                        let mask = self.mask(b, valid, i64::from(word) * 2);
                        b.bind("trimmed", Ex::reg(reg, slot).extract(word) & mask)
                    })
                    .collect();
                let masked = b.vector(&masked);
                b.set_reg(reg, slot, masked);
            }
        }
    }

    /// What the registers hold is not needed any more.
    pub fn forget(&self, b: &mut Builder, stream: &Stream) {
        for slot in 0..self.window() {
            let zero = b.zero(Scalar::U32.vector(4));
            b.set_reg(stream.own, slot, zero);
            if let Some(near) = stream.near {
                let zero = b.zero(Scalar::U32.vector(2));
                b.set_reg(near, slot, zero);
            }
        }
    }

    /// Shifts and stores what these slots hold: in each case of whole words a code of its own.
    pub fn store(&self, b: &mut Builder, stream: &Stream, shift: Option<Shift>, slots: &[Slot]) {
        let Some((shift, near)) = shift.zip(stream.near) else {
            for slot in slots {
                let value = b.reg(stream.own, slot.slot);
                self.put(b, value, slot);
            }
            return;
        };
        shift.cases(b, |b, shifted| {
            for slot in slots {
                let parts = [b.reg(stream.own, slot.slot), b.reg(near, slot.slot)];
                let value = shifted(b, parts);
                self.put(b, value, slot);
            }
        });
    }

    fn put(&self, b: &mut Builder, value: ExprId, slot: &Slot) {
        let value = match slot.masks {
            None => value,
            Some(masks) => {
                let words: Vec<ExprId> = (0..4).map(|i| b.value(value.extract(i) & masks[i as usize])).collect();
                b.vector(&words)
            }
        };
        b.store(Base::Shared(self.tile.arrays[1]), slot.to, value, slot.exists);
    }

    /// Writes the next tile, which starts at `k`, into this stage of the circular buffer.
    pub fn emit(&self, b: &mut Builder, stream: &Stream, buffer: ExprId, k: ExprId, step: i64) {
        let first = b.bind("buffer_start", buffer * (self.tile.tile.bytes / 4));
        if self.pipelined() {
            let safe = self.safe(b, stream, k, 0);
            let edge = |b: &mut Builder| {
                self.edge(b, stream, first, k);
                self.forget(b, stream);
            };
            b.if_else(safe, |b| self.flow(b, stream, first, k, step), edge);
        } else {
            self.edge(b, stream, first, k);
        }
        let further = step * self.strides[COL];
        b.set(stream.start, stream.start + further);
        b.set(stream.left, stream.left - further);
    }

    /// The steady state: what is there is stored, and the same registers are asked for again.
    fn flow(&self, b: &mut Builder, stream: &Stream, first: ExprId, k: ExprId, step: i64) {
        let s = &self.shape;
        // Where the next tile is another matter, this one is read once more, and not looked at.
        let next = self.safe(b, stream, k, step);
        // Along k what is stored is trimmed; lines are not asked for.
        let asks_again = self.window() < s.count();
        let whole = if self.k_contiguous() || asks_again { self.whole(b, k, 0) } else { None };
        let next_whole = if self.k_contiguous() { None } else { self.whole(b, k, step) };
        let next_k = b.value(k + step);
        let words = b.bind("words_on", next.select(Ex::int(step * self.strides[COL] / 2, Scalar::I64), 0));
        let (window, group, count) = (self.window(), self.group(), s.count());
        for q in (0..count).step_by(group as usize) {
            let index = q / s.per_round;
            let Some(round) = stream.rounds.get(index as usize) else { return };
            let slots: Vec<Slot> = (0..group)
                .map(|j| {
                    let i = q % s.per_round + j;
                    let exists = self.exists(b, round, (index, i));
                    let to = b.value(first + round.to + self.spread.place_of(i * s.parts));
                    Slot { slot: (q + j) % window, to, exists, masks: None }
                })
                .collect();
            if let Some(whole) = whole.filter(|_| self.k_contiguous()) {
                b.if_then(whole.unary(UnaryOp::Not), |b| self.trim(b, stream, q, k));
            }
            self.store(b, stream, round.shift, &slots);
            let (ahead, crossed) = ((q + window) % count, q + window >= count);
            if crossed
                && ahead.is_multiple_of(s.per_round)
                && let Some(round) = stream.rounds.get((ahead / s.per_round) as usize)
            {
                self.advance(b, round, words);
            }
            self.ask(b, stream, ahead, if crossed { (next_whole, next_k) } else { (whole, k) });
        }
        // Rounds of which nothing was asked for ahead.
        stream.rounds.iter().skip(window.div_ceil(s.per_round) as usize).for_each(|round| self.advance(b, round, words));
    }

    fn advance(&self, b: &mut Builder, round: &Round, words: ExprId) {
        round.from.iter().take(if self.aligned { 1 } else { 2 }).for_each(|c| b.advance(*c, words));
    }
}
