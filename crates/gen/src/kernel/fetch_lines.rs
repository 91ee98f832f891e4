//! A fetched tile of plain strides of 16-bit elements, read in aligned vectors wherever its lines begin, and shifted into place.
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
//! The vectors of the next k-tile are on their way while those of this one are shifted: a register is asked for again as
//! soon as it is stored. Where k ends within a tile, lines beyond it become zeros instead of being read, and vectors along k are
//! trimmed before they are shifted. Only tiles at the very end of the operand, whose vectors would leave its memory, are
//! another matter: what may be is read vector by vector, the rest element by element.

use super::fetch_tile::FetchTile;
use super::index::Coord;
use super::word_copy;
use crate::plan::{FETCH_CHUNK as CHUNK, FetchShape, LINE_CLASSES as CLASSES, lines_aligned};
use crate::view::{COL, G, ROW};
use tilewright_ir::*;

/// Lanes that share a row of 128 bytes.
const ROW_LANES: u32 = 8;
/// Vectors that are shifted and stored together, before their registers are asked for again.
const TOGETHER: u32 = 4;
/// Vectors that are asked for together where not all of them may be read.
const EDGE_TOGETHER: u32 = 8;

/// How one operand's tiles are fetched by lines.
pub(super) struct Lines<'a> {
    tile: &'a FetchTile<'a>,
    words: ArgId,
    strides: [i64; 3],
    shape: FetchShape,
    aligned: bool,
}

/// What a role knows of an operand while it walks along k for one result tile.
pub(super) struct Stream {
    /// First element of the next tile, and how many elements more its vectors could reach before they left the operand's memory.
    start: VarId,
    left: VarId,
    /// One past the operand's last element.
    end: ExprId,
    row: ExprId,
    rows: Option<ExprId>,
    own: RegId,
    near: Option<RegId>,
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

/// How far a class is shifted.
#[derive(Clone, Copy)]
struct Shift {
    /// Whole words, 0 to 3.
    words: ExprId,
    /// The rest: 0 or 16 bits.
    bits: ExprId,
}

/// Where a vector is.
struct Spot {
    line: ExprId,
    /// First element along the line.
    along: ExprId,
    /// Word of a buffer where it belongs.
    to: ExprId,
    /// False in threads that have no such vector.
    exists: Option<ExprId>,
}

fn divisor(of: u32, most: u32) -> u32 {
    (1..=most.min(of).max(1)).rev().find(|d| of.is_multiple_of(*d)).unwrap_or(1)
}

impl<'a> Lines<'a> {
    /// `None` where the operand is not read in aligned vectors.
    pub fn new(tile: &'a FetchTile<'a>) -> Option<Lines<'a>> {
        let words = tile.source.words?;
        let plain = tile.input.tensor.view.is_affine_box()?;
        let shape = FetchShape::new(tile.tile.columns, tile.lines(), tile.threads);
        let aligned = lines_aligned(&tile.input.tensor, tile.fast());
        Some(Lines { tile, words, strides: plain.strides, shape, aligned })
    }

    const fn k_contiguous(&self) -> bool {
        self.tile.tile.k_contiguous
    }
    /// Elements between neighbouring lines.
    const fn apart(&self) -> i64 {
        self.strides[ROW + COL - self.tile.fast()]
    }
    fn extent(&self, axis: usize) -> i64 {
        self.tile.input.tensor.view.extent[axis] as i64
    }
    /// Lines of the tile may lie beyond the operand's rows.
    fn overruns(&self) -> bool {
        let rows = self.tile.input.tensor.view.extent[ROW];
        self.k_contiguous() && (self.tile.input.rows.is_some() || !rows.is_multiple_of(u64::from(self.tile.lines())))
    }
    /// The last k-tile is not whole.
    fn ends_within(&self) -> bool {
        self.extent(COL) % i64::from(self.tile.k_tile) != 0
    }
    /// Some threads have vectors that are not asked for.
    fn guarded(&self) -> bool {
        let s = &self.shape;
        let classes = if s.waves <= CLASSES { CLASSES.is_multiple_of(s.waves) } else { s.waves == s.parts * CLASSES };
        self.overruns() || self.ragged() || !classes
    }
    /// Some threads have fewer vectors in a round than others.
    fn ragged(&self) -> bool {
        let s = &self.shape;
        let even = (s.column_blocks * s.line_blocks).is_multiple_of(s.parts);
        !even || !(self.tile.lines() / CLASSES).is_multiple_of(s.lines)
    }
    fn name(&self, what: &str) -> String {
        let operand = if self.tile.input.operand == crate::contraction::Operand::A { "a" } else { "b" };
        format!("{operand}_{what}")
    }
    fn wave(&self, b: &mut Builder) -> ExprId {
        b.div(self.tile.thread, 32)
    }

    /// Position of the thread's row of 128 bytes among those of an instruction: along the columns, and among lines.
    fn sub(&self, b: &mut Builder) -> [ExprId; 2] {
        let lane = b.rem(self.tile.thread, 32);
        let row = b.div(lane, ROW_LANES);
        [b.rem(row, self.shape.columns), b.div(row, self.shape.columns)]
    }

    /// The class of a round, the part of its rows that is this wave's, and whether there is such.
    fn class(&self, b: &mut Builder, round: ExprId) -> (ExprId, ExprId, Option<ExprId>) {
        let wave = self.wave(b);
        let s = &self.shape;
        if s.waves <= CLASSES {
            let further = b.mul(round, s.waves);
            let class = b.add(wave, further);
            let exists = (!CLASSES.is_multiple_of(s.waves)).then(|| b.lt(class, CLASSES));
            let none = b.int(0, Scalar::I32);
            return (class, none, exists);
        }
        let (class, part) = (b.rem(wave, CLASSES), b.div(wave, CLASSES));
        let exists = (s.waves != s.parts * CLASSES).then(|| b.lt(part, s.parts));
        (class, part, exists)
    }

    /// Vector `i` of the thread in a round.
    fn spot(&self, b: &mut Builder, round: ExprId, i: ExprId) -> Spot {
        let s = &self.shape;
        let (class, part, mut exists) = self.class(b, round);
        let [sub_column, sub_line] = self.sub(b);
        let further = b.mul(i, s.parts);
        let block = b.add(further, part);
        let (column, of_class) = match (s.column_blocks, s.line_blocks) {
            (1, _) => (b.int(0, Scalar::I32), block),
            (_, 1) => (block, b.int(0, Scalar::I32)),
            _ => (b.div(block, s.line_blocks), b.rem(block, s.line_blocks)),
        };
        if !(s.column_blocks * s.line_blocks).is_multiple_of(s.parts) {
            let there = b.lt(block, s.column_blocks * s.line_blocks);
            exists = b.and_opt(exists, Some(there));
        }
        let of_class = b.mul(of_class, s.lines);
        let of_class = b.add(of_class, sub_line);
        let line = b.mul(of_class, CLASSES);
        let line = b.add(line, class);
        let all = self.tile.lines();
        if !(all / CLASSES).is_multiple_of(s.lines) {
            let there = b.lt(line, all);
            exists = b.and_opt(exists, Some(there));
        }
        let column = b.mul(column, s.columns);
        let column = b.add(column, sub_column);
        let vector = b.rem(self.tile.thread, ROW_LANES);
        let row = self.tile.tile.row;
        let along = b.mul(column, row);
        let within = b.mul(vector, CHUNK);
        let along = b.add(along, within);
        // The swizzle; a line's number modulo 8 is its class.
        let place = b.binary(BinaryOp::Xor, vector, class);
        let to = b.mul(column, all * row / 2);
        let down = b.mul(line, row / 2);
        let to = b.add(to, down);
        let place = b.mul(place, CHUNK / 2);
        let to = b.add(to, place);
        Spot { line, along, to, exists }
    }

    /// First element of a vector, from the start of the buffer.
    fn index(&self, b: &mut Builder, start: ExprId, spot: &Spot) -> ExprId {
        let line = b.cast(spot.line, Scalar::I64);
        let line = b.mul(line, self.apart());
        let along = b.cast(spot.along, Scalar::I64);
        let index = b.add(start, line);
        b.add(index, along)
    }

    /// False in threads that have no such vector `i` of a round.
    fn exists(&self, b: &mut Builder, round: &Round, (index, i): (u32, u32)) -> Option<ExprId> {
        if !self.ragged() {
            return round.exists;
        }
        let (round, i) = (b.int(i64::from(index), Scalar::I32), b.int(i64::from(i), Scalar::I32));
        self.spot(b, round, i).exists
    }

    /// How far what begins at this element is shifted.
    fn shift(&self, b: &mut Builder, index: ExprId) -> Option<Shift> {
        if self.aligned {
            return None;
        }
        let low = b.cast(index, Scalar::I32);
        let low = b.binary(BinaryOp::And, low, i64::from(CHUNK) - 1);
        let words = b.binary(BinaryOp::Shr, low, 1);
        let words = b.bind("shift_words", words);
        let half = b.rem(low, 2);
        let bits = b.mul(half, 16);
        let bits = b.cast(bits, Scalar::I64);
        let bits = b.bind("shift_bits", bits);
        Some(Shift { words, bits })
    }

    /// Words at which the vector that most of an output lies in begins, and the half of its neighbour.
    fn sources(&self, b: &mut Builder, index: ExprId, shift: Option<Shift>) -> [ExprId; 2] {
        let whole = b.binary(BinaryOp::And, index, -i64::from(CHUNK));
        let word = b.binary(BinaryOp::Shr, whole, 1);
        let Some(shift) = shift else { return [word; 2] };
        let far = b.le(2, shift.words);
        let (four, two) = (b.int(4, Scalar::I64), b.int(2, Scalar::I64));
        let none = b.int(0, Scalar::I64);
        let own = b.select(far, four, none);
        let near = b.select(far, two, four);
        [b.add(word, own), b.add(word, near)]
    }

    /// The walk along k of a result tile begins: the first vectors are asked for.
    pub fn begin(&self, b: &mut Builder, place: (ExprId, Option<ExprId>), row_start: Coord, k: ExprId) -> Stream {
        let (g, rows) = place;
        let s = &self.shape;
        let offset = self.tile.source.offset.unwrap_or_else(|| b.int(0, Scalar::I64));
        let mut first = offset;
        let row = row_start.value(b);
        for (coordinate, stride) in [(g, self.strides[G]), (row, self.strides[ROW]), (k, self.strides[COL])] {
            let coordinate = b.cast(coordinate, Scalar::I64);
            let part = b.mul(coordinate, stride);
            first = b.add(first, part);
        }
        let first = b.bind("tile_start", first);
        let end = self.tile.end(b, offset, self.strides, g, rows);
        let end = b.bind("tile_end", end);
        let lines = self.tile.lines();
        // Lines from the first one on that are the operand's.
        let inside = self.overruns().then(|| {
            let rows = rows.unwrap_or_else(|| b.int(self.extent(ROW), b.ty(row).scalar));
            let rows = b.cast(rows, b.ty(row).scalar);
            let inside = b.sub(rows, row);
            let inside = b.binary(BinaryOp::Min, inside, i64::from(lines));
            let inside = b.cast(inside, Scalar::I32);
            b.bind("lines_inside", inside)
        });
        let last_line = match inside {
            Some(inside) => {
                let last = b.sub(inside, 1);
                let last = b.cast(last, Scalar::I64);
                b.mul(last, self.apart())
            }
            None => b.int(i64::from(lines - 1) * self.apart(), Scalar::I64),
        };
        let reach = b.add(last_line, i64::from(self.tile.chunks() + 1) * i64::from(CHUNK));
        let left = b.sub(end, first);
        let left = b.sub(left, reach);
        let start = b.declare(&self.name("start"), first);
        let left = b.declare(&self.name("left"), left);
        let zero = b.int(0, Scalar::I32);
        let rounds = (0..s.rounds).map(|round| {
            let round = b.int(i64::from(round), Scalar::I32);
            let spot = self.spot(b, round, zero);
            let index = self.index(b, first, &spot);
            let index = b.bind("line_start", index);
            let shift = self.shift(b, index);
            let [own, near] = self.sources(b, index, shift);
            let from = [b.cursor(&self.name("from"), self.words, own), b.cursor(&self.name("beside"), self.words, near)];
            let to = b.bind("place", spot.to);
            let lines = inside.map(|inside| {
                let lines = b.sub(inside, spot.line);
                b.bind("lines_left", lines)
            });
            let (_, _, exists) = self.class(b, round);
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
    /// Vectors at the edges that are asked for at once. At least two such parts: of a single one compilers compute all addresses
    /// ahead, and hold them in registers along all of k.
    fn edge_group(&self) -> u32 {
        let most = EDGE_TOGETHER.min(self.shape.count() / 2).max(1);
        divisor(self.shape.per_round, most)
    }
    /// The code of all of a thread's vectors is laid out one after the other.
    fn pipelined(&self) -> bool {
        self.shape.count() <= 48
    }

    /// True where the k-tile that starts `ahead` elements behind `k` ends within k; `None`: all do.
    fn whole(&self, b: &mut Builder, k: ExprId, ahead: i64) -> Option<ExprId> {
        self.ends_within().then(|| {
            let end = b.add(k, ahead + i64::from(self.tile.k_tile));
            let whole = b.le(end, self.extent(COL));
            b.bind("whole_tile", whole)
        })
    }

    /// True where no vector of the k-tile that starts `ahead` elements behind `k` leaves the operand's memory; lines beyond k are not
    /// read.
    fn safe(&self, b: &mut Builder, stream: &Stream, k: ExprId, ahead: i64) -> ExprId {
        let mut left = b.get(stream.left);
        let tile = i64::from(self.tile.k_tile);
        if !self.k_contiguous() && self.ends_within() {
            let beyond = b.add(k, ahead + tile - self.extent(COL));
            let beyond = b.binary(BinaryOp::Max, beyond, 0);
            let beyond = b.cast(beyond, Scalar::I64);
            let beyond = b.mul(beyond, self.apart());
            left = b.add(left, beyond);
        }
        let safe = b.le(ahead * self.strides[COL], left);
        b.bind("safe", safe)
    }

    /// Words between a round's first vector and its `i`th.
    fn further(&self, i: u32) -> i64 {
        let s = &self.shape;
        let (column, line) = (i / s.line_blocks, i % s.line_blocks);
        (i64::from(line * s.lines * CLASSES) * self.apart() + i64::from(column * s.columns * self.tile.tile.row)) / 2
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
        let lines_in_k = k.map(|k| {
            let end = b.int(self.extent(COL), b.ty(k).scalar);
            let lines = b.sub(end, k);
            let lines = b.cast(lines, Scalar::I32);
            let lines = b.sub(lines, round.line);
            b.bind("lines_in_k", lines)
        });
        for j in 0..self.group() {
            let (slot, i) = ((q + j) % self.window(), q % s.per_round + j);
            let mut guard = self.exists(b, round, (index, i));
            let line = i64::from(i * s.parts % s.line_blocks * s.lines * CLASSES);
            if let Some(lines) = round.lines {
                let there = b.lt(line, lines);
                guard = b.and_opt(guard, Some(there));
            }
            let within = lines_in_k.map(|lines| b.lt(line, lines));
            // In blocks of several parts the part is in the first vector's place.
            let further = self.further(i * s.parts);
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
                let far = b.le(2, shift.words);
                let (zero, four, eight) = (i32(0, b), i32(4, b), i32(8, b));
                let starts = [b.select(far, eight, zero), b.select(far, four, eight)];
                let words = b.mul(shift.words, 2);
                let bits = b.cast(shift.bits, Scalar::I32);
                let half = b.binary(BinaryOp::Shr, bits, 4);
                (b.add(words, half), starts)
            }
        };
        for j in 0..self.group() {
            let (slot, i) = ((q + j) % self.window(), q % s.per_round + j);
            let (round, i) = (i32(index.into(), b), i32(i.into(), b));
            let spot = self.spot(b, round, i);
            let valid = self.valid(b, &spot, k);
            let valid = b.add(valid, first);
            let pieces = [Some((stream.own, 4)), stream.near.map(|near| (near, 2))];
            for ((reg, words), start) in pieces.into_iter().flatten().zip(starts) {
                let value = b.reg(reg, slot);
                let valid = b.sub(valid, start);
                let masked: Vec<ExprId> = (0..words)
                    .map(|word| {
                        let mask = self.mask(b, valid, i64::from(word) * 2);
                        let word = b.extract(value, word);
                        let word = b.binary(BinaryOp::And, word, mask);
                        b.bind("trimmed", word)
                    })
                    .collect();
                let masked = b.vector(&masked);
                b.set_reg(reg, slot, masked);
            }
        }
    }

    /// Elements of a vector from its first on that are within k.
    fn valid(&self, b: &mut Builder, spot: &Spot, k: ExprId) -> ExprId {
        let along = b.cast(spot.along, b.ty(k).scalar);
        let k = b.add(k, along);
        let end = b.int(self.extent(COL), b.ty(k).scalar);
        let valid = b.sub(end, k);
        let valid = b.cast(valid, Scalar::I32);
        b.bind("within_k", valid)
    }

    /// Mask of a word with so many elements before it, of which these are valid.
    fn mask(&self, b: &mut Builder, valid: ExprId, before: i64) -> ExprId {
        let (all, one, none) = (b.int(u32::MAX.into(), Scalar::U32), b.int(u16::MAX.into(), Scalar::U32), b.int(0, Scalar::U32));
        let both = b.le(before + 2, valid);
        let first = b.le(before + 1, valid);
        let part = b.select(first, one, none);
        let mask = b.select(both, all, part);
        b.bind("mask", mask)
    }

    /// What the registers hold is not needed any more.
    fn forget(&self, b: &mut Builder, stream: &Stream) {
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
    fn store(&self, b: &mut Builder, stream: &Stream, shift: Option<Shift>, slots: &[Slot]) {
        let Some((shift, near)) = shift.zip(stream.near) else {
            for slot in slots {
                let value = b.reg(stream.own, slot.slot);
                self.put(b, value, slot);
            }
            return;
        };
        let case = |b: &mut Builder, words: u8| {
            for slot in slots {
                let (own, near) = (b.reg(stream.own, slot.slot), b.reg(near, slot.slot));
                let own: Vec<ExprId> = (0..4).map(|i| b.extract(own, i)).collect();
                let near: Vec<ExprId> = (0..2).map(|i| b.extract(near, i)).collect();
                let line = if words < 2 { [own, near].concat() } else { [near, own].concat() };
                // From the neighbour's half on in the one direction, up to it in the other.
                let from = usize::from(words % 2);
                let value = word_copy::halves(b, &line[from..], shift.bits);
                self.put(b, value, slot);
            }
        };
        let far = b.le(2, shift.words);
        let inner = |b: &mut Builder, low: u8| {
            let even = b.eq(shift.words, i64::from(low));
            b.if_else(even, |b| case(b, low), |b| case(b, low + 1));
        };
        b.if_else(far, |b| inner(b, 2), |b| inner(b, 0));
    }

    fn put(&self, b: &mut Builder, value: ExprId, slot: &Slot) {
        let value = match slot.masks {
            None => value,
            Some(masks) => {
                let words: Vec<ExprId> = (0..4)
                    .map(|i| {
                        let word = b.extract(value, i);
                        b.binary(BinaryOp::And, word, masks[i as usize])
                    })
                    .collect();
                b.vector(&words)
            }
        };
        b.store(Base::Shared(self.tile.arrays[1]), slot.to, value, slot.exists);
    }

    /// Writes the next tile, which starts at `k`, into this buffer of the ring.
    pub fn emit(&self, b: &mut Builder, stream: &Stream, buffer: ExprId, k: ExprId, step: i64) {
        let first = b.mul(buffer, self.tile.tile.bytes / 4);
        let first = b.bind("buffer_start", first);
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
        let start = b.get(stream.start);
        let next = b.add(start, further);
        b.set(stream.start, next);
        let left = b.get(stream.left);
        let next = b.sub(left, further);
        b.set(stream.left, next);
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
        let next_k = b.add(k, step);
        let (words, none) = (b.int(step * self.strides[COL] / 2, Scalar::I64), b.int(0, Scalar::I64));
        let words = b.select(next, words, none);
        let words = b.bind("words_on", words);
        let (window, group, count) = (self.window(), self.group(), s.count());
        for q in (0..count).step_by(group as usize) {
            let index = q / s.per_round;
            let Some(round) = stream.rounds.get(index as usize) else { return };
            let slots: Vec<Slot> = (0..group)
                .map(|j| {
                    let i = q % s.per_round + j;
                    let exists = self.exists(b, round, (index, i));
                    let to = b.add(first, round.to);
                    let to = b.add(to, self.place_of(i * s.parts));
                    Slot { slot: (q + j) % window, to, exists, masks: None }
                })
                .collect();
            if let Some(whole) = whole.filter(|_| self.k_contiguous()) {
                let part = b.unary(UnaryOp::Not, whole);
                b.if_then(part, |b| self.trim(b, stream, q, k));
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

    /// Words of a buffer between a round's first vector and its `i`th.
    fn place_of(&self, i: u32) -> i64 {
        let s = &self.shape;
        let (column, line) = (i / s.line_blocks, i % s.line_blocks);
        let row = self.tile.tile.row / 2;
        i64::from(line * s.lines * CLASSES * row + column * s.columns * self.tile.lines() * row)
    }

    /// A tile at the end of k or of the operand's memory.
    fn edge(&self, b: &mut Builder, stream: &Stream, first: ExprId, k: ExprId) {
        let s = &self.shape;
        let group = self.edge_group();
        let per_round = s.per_round / group;
        let start = b.get(stream.start);
        let start = b.bind("start_now", start);
        b.for_range("part", 0, s.rounds * per_round, Unroll::By(1), |b, part| {
            let (round, i) = (b.div(part, per_round), b.rem(part, per_round));
            let round = b.bind("class_round", round);
            let i = b.mul(i, group);
            let i = b.bind("first_vector", i);
            let mut shift = None;
            let slots: Vec<Slot> = (0..group)
                .map(|j| {
                    let i = b.add(i, j);
                    let spot = self.spot(b, round, i);
                    let index = self.index(b, start, &spot);
                    let index = b.bind("vector_at", index);
                    // That of all vectors of the class.
                    if j == 0 {
                        shift = self.shift(b, index);
                    }
                    let sources = self.sources(b, index, shift);
                    let (readable, some) = self.judge(b, stream, &spot, index, k);
                    let whole = b.and(readable, some);
                    let guard = b.and_opt(spot.exists, Some(whole));
                    let guard = guard.map(|g| b.bind("read", g));
                    let to = b.reg_place(stream.own, j);
                    b.load_to(to, Base::Buffer(self.words), sources[0], guard);
                    if let Some(near) = stream.near {
                        let to = b.reg_place(near, j);
                        b.load_to(to, Base::Buffer(self.words), sources[1], guard);
                    }
                    let masks = self.masks(b, &spot, k);
                    let to = b.add(first, spot.to);
                    Slot { slot: j, to, exists: spot.exists, masks }
                })
                .collect();
            self.store(b, stream, shift, &slots);
        });
        let left = b.get(stream.left);
        let beyond = b.lt(left, 0);
        b.if_then(beyond, |b| self.leftovers(b, stream, first, start, k));
    }

    /// Of a vector at the edges: whether the aligned vectors that it lies in are the operand's, and whether any of it exists.
    fn judge(&self, b: &mut Builder, stream: &Stream, spot: &Spot, index: ExprId, k: ExprId) -> (ExprId, ExprId) {
        let reach = b.add(index, i64::from(2 * CHUNK));
        let readable = b.le(reach, stream.end);
        let (row, along_k) = if self.k_contiguous() { (spot.line, spot.along) } else { (spot.along, spot.line) };
        let along_k = b.cast(along_k, b.ty(k).scalar);
        let k = b.add(k, along_k);
        let some = b.lt(k, self.extent(COL));
        let row = b.cast(row, b.ty(stream.row).scalar);
        let row = b.add(stream.row, row);
        let in_rows = match stream.rows {
            Some(rows) => b.lt(row, rows),
            None => b.lt(row, self.extent(ROW)),
        };
        let some = b.and(some, in_rows);
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
            let (round, i) = (b.div(q, s.per_round), b.rem(q, s.per_round));
            let spot = self.spot(b, round, i);
            let index = self.index(b, start, &spot);
            let index = b.bind("vector_at", index);
            let (readable, some) = self.judge(b, stream, &spot, index, k);
            let part = b.unary(UnaryOp::Not, readable);
            let part = b.and(part, some);
            let Some(part) = b.and_opt(spot.exists, Some(part)) else { return };
            b.if_then(part, |b| {
                let axis = if self.k_contiguous() { COL } else { ROW };
                let from = if self.k_contiguous() { k } else { stream.row };
                let along = b.cast(spot.along, b.ty(from).scalar);
                let from = b.add(from, along);
                let values: Vec<ExprId> = (0..CHUNK)
                    .map(|e| {
                        let here = b.add(from, i64::from(e));
                        let exists = match stream.rows {
                            Some(rows) if axis == ROW => b.lt(here, rows),
                            _ => b.lt(here, self.extent(axis)),
                        };
                        let index = b.add(index, i64::from(e));
                        b.load("value", Base::Buffer(self.tile.source.buffer), index, 1, Some(exists))
                    })
                    .collect();
                let value = b.vector(&values);
                let to = b.add(first, spot.to);
                let to = b.mul(to, 2);
                b.store(Base::Shared(self.tile.arrays[0]), to, value, None);
            });
        });
    }
}

/// A vector in registers, and where it goes.
struct Slot {
    slot: u32,
    to: ExprId,
    exists: Option<ExprId>,
    masks: Option<[ExprId; 4]>,
}
