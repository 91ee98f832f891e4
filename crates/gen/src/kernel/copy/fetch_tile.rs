//! Tiles that producer warps copy through registers, from global to shared memory, into the layout that warpgroup instructions read.
//! Operands that bulk copies cannot reach (misaligned rows, windows of convolutions) then need no copy in workspace.
//!
//! A tile is cut into chunks of 16 bytes along its contiguous direction. Neighbouring lanes load neighbouring chunks of a row, in the
//! vectors that the view allows. The swizzle spreads the eight chunks of a row over all banks. A thread loads as many chunks at once as
//! its registers hold.
//!
//! Rows past the operand contribute only to results that are never stored, so their values are arbitrary. Elements past the end of k
//! must be zeros.

use super::load::{converted, split};
use super::memory::Memory;
use crate::kernel::change::Change;
use crate::kernel::input::{Input, Ints, entry_start, exists, in_memory};
use crate::kernel::tile::position::{KRange, TilePosition};
use crate::kernel::unit::LANES_OF_ROW;
use crate::plan::{BulkTile, chunk_registers, fetch_batch, fetch_width};
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::*;
use tilewright_problem::view::{COL, G, ROW};

/// Elements that one access to an operand in place moves, where its view decides.
pub(crate) fn width(input: &Input, tile: &BulkTile) -> u32 {
    let axis = if tile.k_contiguous { COL } else { ROW };
    // Lines may begin or end anywhere.
    if axis == ROW && input.ends_anywhere() || axis == COL && input.any_term {
        return 1;
    }
    fetch_width(&input.tensor, axis)
}

/// One operand's tiles as a role of threads fetches them.
pub(crate) struct FetchTile<'a> {
    pub input: &'a Input,
    /// Its rows are rows (0) or columns (1) of the result.
    pub axis: usize,
    pub source: Memory,
    /// The circular buffer's array.
    pub array: SharedId,
    pub tile: BulkTile,
    /// Position among the producer threads, and their number.
    pub thread: ExprId,
    pub threads: u32,
    /// Elements are rounded to TF32.
    pub round: bool,
    /// Tiles that are written: one for each part where elements are split.
    pub parts: u32,
    /// Registers of a load thread.
    pub registers: u32,
    pub k_tile: u32,
    /// Whole tiles may lie beyond the operand's rows: clusters are whole.
    pub beyond: bool,
    pub ints: Ints,
}

/// Where a chunk is: its line and its number within, and where it belongs in the buffer.
struct Place {
    line: ExprId,
    chunk: ExprId,
    to: ExprId,
    /// False in threads that have no such chunk.
    exists: Option<ExprId>,
}

/// The coordinates at which a chunk starts.
#[derive(Clone, Copy)]
struct ChunkStart {
    line: ExprId,
    /// The position along the line.
    along: ExprId,
}

impl FetchTile<'_> {
    fn lines(&self) -> u32 {
        self.tile.map.tile[1] * self.tile.lines
    }
    const fn chunk(&self) -> u32 {
        self.tile.row / 8
    }
    const fn chunks(&self) -> u32 {
        self.tile.columns * 8
    }
    /// Chunks of a thread.
    fn count(&self) -> u32 {
        (self.lines() * self.chunks()).div_ceil(self.threads)
    }
    /// Lines from one chunk of a thread to its next, where it stays in its column.
    fn step(&self) -> Option<u32> {
        self.threads.is_multiple_of(self.chunks()).then(|| self.threads / self.chunks())
    }

    /// The thread's chunk `i` (an `I32`).
    fn place(&self, b: &mut Builder, i: ExprId, buffer: ExprId) -> Place {
        let chunks = self.chunks();
        let (line, chunk) = match self.step() {
            Some(step) => (b.value(self.thread / chunks + i * step), b.value(self.thread % chunks)),
            None => {
                let index = b.bind("chunk_index", self.thread + i * self.threads);
                (b.value(index / chunks), b.value(index % chunks))
            }
        };
        let all = self.lines() * chunks;
        let exists = (!all.is_multiple_of(self.threads)).then(|| b.value(line.lt(self.lines())));
        Place { line, chunk, to: self.at(b, line, chunk, buffer), exists }
    }

    /// Where a line's chunk with this number begins.
    fn at(&self, b: &mut Builder, line: ExprId, chunk: ExprId, buffer: ExprId) -> ExprId {
        let per_row = 8;
        let to = b.value(
            buffer * (self.tile.bytes / self.input.tensor.factor().bytes()) + chunk / per_row * (self.lines() * self.tile.row),
        );
        b.value(to + line * self.tile.row + ((chunk % per_row) ^ (line % 8)) * self.chunk())
    }

    /// What is written of a vector, one value for each part. TF32 elements are rounded here (bulk copies do so on the way), or
    /// f32 is split.
    fn written(&self, b: &mut Builder, value: ExprId, width: u32) -> Vec<ExprId> {
        if let Some(of) = self.input.tiling.split.filter(|_| self.parts > 1) {
            return split(b, &of, value, width);
        }
        if !self.round {
            return vec![value];
        }
        let rounded: Vec<ExprId> = (0..width).map(|i| b.value(value.extract(i).unary(UnaryOp::RoundTf32))).collect();
        vec![b.vector(&rounded)]
    }

    /// Chunks of so many pieces that a thread asks for at once; `twice`: two elements are read for each.
    fn each(&self, pieces: u32, twice: bool) -> u32 {
        let room = fetch_batch(self.registers, chunk_registers(&self.input.tensor, pieces)) / if twice { 2 } else { 1 };
        (room / pieces.min(4)).clamp(1, self.count())
    }

    /// Stores a chunk, of all parts of its elements, in pieces of so many.
    fn store_parts(&self, b: &mut Builder, place: &Place, buffer: ExprId, vectors: &[Vec<ExprId>], width: u32) {
        let apart = self.tile.bytes / self.parts / self.input.tensor.factor().bytes();
        for part in 0..self.parts {
            let of_part = vectors.iter().filter_map(|vector| vector.get(part as usize).copied()).collect::<Vec<ExprId>>();
            let to = b.value(place.to + part * apart);
            if let Some(run) = self.tile.runs {
                self.store_pairs(b, place, buffer, run, &of_part, width);
                continue;
            }
            if width == 1 {
                let value = b.vector(&of_part);
                b.store(Base::Shared(self.array), to, value, place.exists);
                continue;
            }
            for (piece, value) in of_part.into_iter().enumerate() {
                b.store(Base::Shared(self.array), to + (piece as u32 * width), value, place.exists);
            }
        }
    }

    /// Stores a chunk's pairs in the k order of operand A's runs, each pair in a different chunk.
    fn store_pairs(&self, b: &mut Builder, place: &Place, buffer: ExprId, run: u32, vectors: &[ExprId], width: u32) {
        // Chunks of a run, and k-steps of one: of a chunk's eight numbers two k-steps have four each, and each half of a k-step two.
        let of_run = run / self.chunk();
        let lane = b.value(place.chunk / of_run % LANES_OF_ROW);
        let step = b.value(place.chunk % of_run * 2 + place.chunk / (of_run * LANES_OF_ROW) * (run / LANES_OF_ROW));
        let first = b.bind("first_pair", step * 2);
        for pair in 0..self.chunk() / 2 {
            let chunk = b.value(first + pair);
            let to = self.at(b, place.line, chunk, buffer);
            let to = b.value(to + lane * 2);
            let piece = vectors[(pair * 2 / width) as usize];
            let within = pair * 2 % width;
            let parts = [within, within + 1].map(|i| b.extract(piece, i));
            let value = b.vector(&parts);
            b.store(Base::Shared(self.array), to, value, place.exists);
        }
    }

    /// Runs the body for each batch of chunks: with the number of the first, and how many.
    fn batches(&self, b: &mut Builder, each: u32, mut body: impl FnMut(&mut Builder, ExprId, u32)) {
        let (count, each) = (self.count(), each.min(self.count()));
        let (whole, rest) = (count / each, count % each);
        b.for_range("batch", 0, whole, Unroll::No, |b, batch| {
            let first = b.bind("first_chunk", batch * each);
            body(b, first, each);
        });
        if rest > 0 {
            let first = b.int(i64::from(whole * each), Scalar::I32);
            body(b, first, rest);
        }
    }

    /// Writes the tile of a range that starts at `k` into this stage of the circular buffer. Each access asks where its elements
    /// are and whether they exist.
    pub fn emit(&self, b: &mut Builder, buffer: ExprId, at: &TilePosition, row_start: Coord, k: ExprId, range: &KRange) {
        let (g, rows) = (if self.input.chunk_local { at.g_local } else { at.g }, at.sizes[self.axis]);
        let tensor = &self.input.tensor;
        let width = width(self.input, &self.tile);
        let pieces = self.chunk() / width;
        let change = self.source.change;
        let others = change.filter(Change::reads_other);
        let each = self.each(pieces, others.is_some());
        let name = if self.input.operand == tilewright_problem::contraction::Operand::A { "a" } else { "b" };
        let stage =
            b.regs(&format!("{name}_stage"), tensor.scalar.vector((width / tensor.scalar.numbers()) as u8), each * pieces);
        let others = others.map(|_| b.regs(&format!("{name}_others"), tensor.scalar.vector(1), each * pieces));
        let (access, extent) = (&tensor.view.access, tensor.view.extent);
        let g = Coord::plain(b, g);
        let entry = entry_start(b, tensor, g);
        let start = self.source.offset.map_or(entry, |offset| b.value(offset + entry));
        let start = in_memory(b, tensor, start);
        let cursor = b.cursor(&format!("{name}_from"), self.source.buffer, start);
        let up = self.source.up.map(|buffer| {
            let start = in_memory(b, tensor, entry);
            b.cursor("up_from", buffer, start)
        });
        let k_start = b.value(k.cast(self.ints.coord));
        // A chunk's line, and where it begins along that; row and k of a piece of it.
        let chunk = |b: &mut Builder, place: &Place| {
            let line = b.bind("line", place.line.cast(self.ints.coord));
            ChunkStart { line, along: b.bind("along", place.chunk.cast(self.ints.coord) * i64::from(self.chunk())) }
        };
        let point = |b: &mut Builder, chunk: ChunkStart, piece: u32| {
            let along = b.value(chunk.along + i64::from(piece * width));
            let (row, kk) = if self.tile.k_contiguous { (chunk.line, along) } else { (along, chunk.line) };
            let row = Coord { local: b.value(row_start.local + row), ..row_start };
            (row, Coord { aligned: k_start, every: range.every, local: kk })
        };
        self.batches(b, each, |b, first, count| {
            for j in 0..count {
                let i = b.value(first + j);
                let place = self.place(b, i, buffer);
                let lines = chunk(b, &place);
                for piece in 0..pieces {
                    let (row, kk) = point(b, lines, piece);
                    let at = [g, row, kk];
                    let mut guard = place.exists;
                    let rows_of = u64::from(self.input.tiling.macro_tile);
                    let sides = [(row, ROW, rows_of, rows), (kk, COL, u64::from(self.k_tile), range.end)];
                    for (coord, axis, unit, end) in sides {
                        if let Some(end) = end {
                            let value = coord.value(b);
                            b.and_also(&mut guard, value.lt(end));
                        } else if !extent[axis].is_multiple_of(unit) || (axis == ROW && self.beyond) {
                            let value = coord.value(b);
                            b.and_also(&mut guard, value.lt(extent[axis] as i64));
                        }
                    }
                    let guard = exists(b, &tensor.view, &at, self.ints.coord, guard);
                    let index = affine(b, &access.offset, &at, Part::Beyond(G), self.ints.offset);
                    if let (Some(change), Some(others)) = (change, others)
                        && let Some(apart) = change.at(b, &at, self.ints.coord).other
                    {
                        let other = b.value(index + apart.cast(self.ints.offset));
                        let to = b.reg_place(others, j * pieces + piece);
                        b.load_to(to, Base::Cursor(cursor), other, guard);
                    }
                    let index = in_memory(b, tensor, index);
                    let to = b.reg_place(stage, j * pieces + piece);
                    let load = |b: &mut Builder, cursor| b.load_to(to, Base::Cursor(cursor), index, guard);
                    match (up, &self.input.up) {
                        (Some(up), Some(form)) => {
                            let second = affine(b, form, &at, Part::Whole, self.ints.coord);
                            b.if_else(second.equals(0), |b| load(b, cursor), |b| load(b, up));
                        }
                        _ => load(b, cursor),
                    }
                }
            }
            for j in 0..count {
                let i = b.value(first + j);
                let place = self.place(b, i, buffer);
                let vectors: Vec<Vec<ExprId>> = (0..pieces)
                    .map(|piece| {
                        let value = b.reg(stage, j * pieces + piece);
                        let mut value = converted(b, tensor, value, self.parts);
                        if let Some(change) = change {
                            let lines = chunk(b, &place);
                            let (row, kk) = point(b, lines, piece);
                            let changed = change.at(b, &[g, row, kk], self.ints.coord);
                            let other = others.map(|others| b.reg(others, j * pieces + piece));
                            value = change.apply(b, changed.bits, value, other);
                        }
                        self.written(b, value, width)
                    })
                    .collect();
                self.store_parts(b, &place, buffer, &vectors, width);
            }
        });
    }
}
