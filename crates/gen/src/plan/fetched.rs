//! Tiles that load waves of a matrix unit fetch themselves (`ACP0`): in what pieces, how many of them at once, and what a piece costs.

use super::bulk::fetched_tile;
use super::{KernelSpec, OperandTiling, reach};
use crate::plan::materialised;
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, G, ROW};

/// Elements of a piece: 16 bytes.
pub const FETCH_CHUNK: u32 = 8;
/// Registers of a load thread that are not free for pieces: addresses, counters, predicates.
const TAKEN: u32 = 36;
/// Likewise where it reads lines, besides what each operand takes.
const TAKEN_BY_LINES: u32 = 20;
/// Registers of a load thread below which compilers were seen to spill at the edges, however little it fetches.
const LEAST: u32 = 72;
/// What a thread takes for lines that it shifts from staging: eight vectors, of one operand after the other, and addresses of each.
const SHIFT_REGISTERS: (u32, u32) = (48, 16);
/// Most pieces that a thread asks for at once.
const MOST: u32 = 8;

/// Lines so many apart begin at the same place of a vector.
pub const LINE_CLASSES: u32 = 8;
/// Rows of 128 bytes that an instruction of a wave moves.
const WAVE_ROWS: u32 = 4;

/// How load threads share a tile of lines among them: each wave takes lines of one class modulo [`LINE_CLASSES`], round by round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchShape {
    /// Waves.
    pub waves: u32,
    /// Waves that share a class.
    pub parts: u32,
    /// Classes of a wave, one after the other.
    pub rounds: u32,
    /// Rows of an instruction beside each other along a line, in columns of 128 bytes.
    pub columns: u32,
    /// Rows of an instruction in different lines of the class.
    pub lines: u32,
    /// Instructions side by side.
    pub column_blocks: u32,
    /// Instructions below each other.
    pub line_blocks: u32,
    /// Vectors of a thread in a round.
    pub per_round: u32,
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl FetchShape {
    /// Of so many columns of 128 bytes and lines (a multiple of 8).
    pub fn new(columns: u32, lines: u32, threads: u32) -> FetchShape {
        let waves = (threads / 32).max(1);
        let beside = gcd(columns, WAVE_ROWS);
        let below = WAVE_ROWS / beside;
        let column_blocks = columns / beside;
        let line_blocks = (lines / LINE_CLASSES).div_ceil(below).max(1);
        let parts = (waves / LINE_CLASSES).max(1);
        // Each part takes blocks of its own, the same distance apart in every direction.
        let parts = if column_blocks > 1 && line_blocks > 1 { gcd(parts, line_blocks) } else { parts };
        FetchShape {
            waves,
            parts,
            rounds: LINE_CLASSES.div_ceil(waves),
            columns: beside,
            lines: below,
            column_blocks,
            line_blocks,
            per_round: (column_blocks * line_blocks).div_ceil(parts),
        }
    }
    /// Vectors of a thread.
    pub const fn count(&self) -> u32 {
        self.rounds * self.per_round
    }
    /// Vectors that a thread keeps on their way, of at most so many: always the same registers for the same vectors.
    pub fn window(&self, most: u32) -> u32 {
        let count = self.count();
        (1..=most.min(count)).rev().find(|w| count.is_multiple_of(*w)).unwrap_or(1)
    }
}

/// What fetching an operand's lines takes of a load thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineFetch {
    /// How the threads share the tile.
    pub shape: FetchShape,
    /// Lines begin at 16 bytes.
    pub aligned: bool,
}

impl LineFetch {
    /// Of an operand's tiles; `None` where they are fetched otherwise.
    fn new(tensor: &Tensor, o: &OperandTiling, k_tile: u32, threads: u32) -> Option<LineFetch> {
        let tensor = materialised(tensor, o.source, o.macro_tile);
        let tile = fetched_tile(&tensor, o, k_tile).ok()?;
        let axis = if tile.k_contiguous { COL } else { ROW };
        let shape = FetchShape::new(tile.columns, tile.map.tile[1] * tile.lines, threads);
        fetched_by_lines(&tensor, axis).then(|| LineFetch { shape, aligned: lines_aligned(&tensor, axis) })
    }
    /// Registers of a vector until it is stored: with the half of its neighbour where it is shifted.
    const fn each(&self) -> u32 {
        if self.aligned { 4 } else { 6 }
    }
    /// Registers of all vectors of a k-tile.
    const fn all(&self) -> u32 {
        self.shape.count() * self.each()
    }
    /// Registers of addresses and amounts.
    const fn besides(&self) -> u32 {
        6 + self.shape.rounds * if self.aligned { 4 } else { 6 }
    }
}

/// Vectors of each operand that a load thread with so many registers keeps on their way: all of a k-tile's, or of both operands the same
/// share.
pub fn fetch_in_flight(registers: u32, operands: [Option<LineFetch>; 2]) -> [u32; 2] {
    let taken: u32 = operands.iter().flatten().map(LineFetch::besides).sum();
    let free = registers.saturating_sub(TAKEN_BY_LINES + taken);
    let needed: u32 = operands.iter().flatten().map(LineFetch::all).sum();
    operands.map(|o| o.map_or(0, |o| (o.shape.count() * free.min(needed) / needed.max(1)).max(1)))
}

/// How each operand comes that the load waves fetch by lines. The contraction is turned as the plan says.
pub fn lines_fetched(spec: &KernelSpec, c: &Contraction) -> [Option<LineFetch>; 2] {
    let t = &spec.tiling;
    let by_loads = |i: usize| spec.schedule.fetched[i] && !spec.schedule.shifted[i];
    [(&c.a, &t.a, by_loads(0)), (&c.b, &t.b, by_loads(1))]
        .map(|(tensor, o, fetched)| LineFetch::new(tensor, o, t.k_tile, spec.load_threads()).filter(|_| fetched))
}

/// How one operand's k-tile is fetched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FetchWork {
    /// Pieces of 16 bytes of each thread in a k-tile.
    pub chunks: u32,
    /// Pieces that a thread asks for at once.
    pub at_once: u32,
    /// Instructions for each, as compilers were seen to make them.
    pub instructions: u32,
    /// Instructions for each k-tile besides.
    pub besides: u32,
    /// Pieces of the next k-tile are asked for while those of this one are stored.
    pub ahead: bool,
    /// Pieces come from staging in shared memory, where bulk copies brought them long before.
    pub staged: bool,
}

/// Instructions for a vector of a line, where lines begin at 16 bytes and where they begin anywhere: loads, shifts, a store.
const LINE_INSTRUCTIONS: (u32, u32) = (2, 7);
/// Instructions of a k-tile for addresses, edges and the case of a shift.
const LINE_BESIDES: u32 = 50;

/// Instructions for a vector that is shifted from staging, and of a k-tile for the copies into it.
const SHIFT_INSTRUCTIONS: u32 = 8;
const COPY_BESIDES: u32 = 70;

/// Pieces that a thread with so many registers asks for at once, where each takes this many of them until it is stored.
pub fn fetch_batch(registers: u32, per_chunk: u32) -> u32 {
    (registers.saturating_sub(TAKEN) / per_chunk.max(1)).clamp(2, MOST)
}

/// True if every line of the tensor along this axis begins at 16 bytes.
pub fn lines_aligned(tensor: &Tensor, axis: usize) -> bool {
    reach::vector_width(tensor, axis, FETCH_CHUNK) >= FETCH_CHUNK
}

/// Elements of a view that one access moves, along this axis.
pub fn fetch_width(tensor: &Tensor, axis: usize) -> u32 {
    let extent = tensor.view.extent[axis];
    let fits = |w: &u32| extent.is_multiple_of(u64::from(*w)) && reach::vector_width(tensor, axis, *w) >= *w;
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// True if the load waves read the lines of a tensor along this axis in aligned vectors, wherever they begin.
pub fn fetched_by_lines(tensor: &Tensor, axis: usize) -> bool {
    let Some(shape) = tensor.view.is_affine_box() else { return false };
    let extent = tensor.view.extent;
    tensor.scalar.bytes() == 2
        && shape.base == 0
        && (0..3).all(|i| shape.valid[i] == (0, extent[i] as i64) && shape.strides[i] >= 0)
        && shape.strides[axis] == 1
        && axis != G
}

/// Registers of a load thread that k-tiles of the operands fill that it fetches; `Some(true)`: shifted from staging.
pub(super) fn fetch_wanted(operands: [(&Tensor, &OperandTiling, Option<bool>); 2], k_tile: u32, threads: u32) -> u32 {
    let one = |(tensor, o, shifted): (&Tensor, &OperandTiling, Option<bool>)| match LineFetch::new(tensor, o, k_tile, threads) {
        _ if shifted.is_none() => 0,
        _ if shifted == Some(true) => SHIFT_REGISTERS.1,
        Some(lines) => lines.all() + lines.besides(),
        None => 8 * MOST + TAKEN - TAKEN_BY_LINES,
    };
    let shifts = operands.iter().any(|(_, _, shifted)| *shifted == Some(true));
    let vectors = if shifts { SHIFT_REGISTERS.0 } else { 0 };
    (TAKEN_BY_LINES + vectors + operands.map(one).iter().sum::<u32>()).max(LEAST)
}

/// The work of fetching operand 0 (A) or 1 (B) of a contraction that is turned as the plan says; `None` if it comes in bulk.
pub fn fetch_work(spec: &KernelSpec, c: &Contraction, which: usize) -> Option<FetchWork> {
    if !spec.schedule.fetched[which] {
        return None;
    }
    let t = &spec.tiling;
    let (tensor, o) = if which == 0 { (&c.a, &t.a) } else { (&c.b, &t.b) };
    let tensor = materialised(tensor, o.source, o.macro_tile);
    let tile = fetched_tile(&tensor, o, t.k_tile).ok()?;
    let axis = if tile.k_contiguous { COL } else { ROW };
    let registers = spec.load_registers();
    if spec.schedule.shifted[which] {
        let chunks = FetchShape::new(tile.columns, tile.map.tile[1], spec.load_threads()).count();
        let besides = LINE_BESIDES + COPY_BESIDES;
        return Some(FetchWork { chunks, at_once: chunks, instructions: SHIFT_INSTRUCTIONS, besides, ahead: true, staged: true });
    }
    let lines = lines_fetched(spec, c);
    if let Some(LineFetch { shape, aligned }) = lines[which] {
        let at_once = shape.window(fetch_in_flight(registers, lines)[which]);
        let instructions = if aligned { LINE_INSTRUCTIONS.0 } else { LINE_INSTRUCTIONS.1 };
        return Some(FetchWork {
            chunks: shape.count(),
            at_once,
            instructions,
            besides: LINE_BESIDES,
            ahead: true,
            staged: false,
        });
    }
    let pieces = FETCH_CHUNK / fetch_width(&tensor, axis);
    Some(FetchWork {
        chunks: (o.macro_tile * t.k_tile / FETCH_CHUNK).div_ceil(spec.load_threads().max(1)),
        at_once: fetch_batch(registers, 4 * pieces.min(2)),
        instructions: 12 + 24 * pieces,
        besides: 0,
        ahead: false,
        staged: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Rows of 128 bytes that the threads' vectors lie in, as (line, column), each counted by how many threads have it.
    fn rows(shape: &FetchShape, columns: u32, lines: u32) -> Vec<(u32, u32)> {
        let mut rows = Vec::new();
        for (wave, round) in (0..shape.waves).flat_map(|wave| (0..shape.rounds).map(move |round| (wave, round))) {
            let (class, part) = if shape.waves <= LINE_CLASSES {
                (wave + round * shape.waves, 0)
            } else {
                (wave % LINE_CLASSES, wave / LINE_CLASSES)
            };
            for (i, row) in (0..shape.per_round).flat_map(|i| (0..WAVE_ROWS).map(move |row| (i, row))) {
                let block = i * shape.parts + part;
                let line = class + LINE_CLASSES * (block % shape.line_blocks * shape.lines + row / shape.columns);
                let column = block / shape.line_blocks * shape.columns + row % shape.columns;
                if class < LINE_CLASSES && part < shape.parts && line < lines && column < columns {
                    rows.push((line, column));
                }
            }
        }
        rows
    }

    #[test]
    fn each_row_of_a_tile_is_fetched_once() {
        for (columns, lines, waves) in (1..=6)
            .flat_map(|columns| [8, 24, 64, 80, 128, 192, 256].map(|lines| (columns, lines)))
            .flat_map(|(columns, lines)| (1..=16).map(move |waves| (columns, lines, waves)))
        {
            let shape = FetchShape::new(columns, lines, 32 * waves);
            let rows = rows(&shape, columns, lines);
            let different: HashSet<_> = rows.iter().collect();
            assert_eq!(rows.len(), different.len(), "{columns} {lines} {shape:?}");
            assert_eq!(different.len() as u32, columns * lines, "{columns} {lines} {shape:?}");
        }
    }

    #[test]
    fn a_window_is_the_same_part_of_every_tile() {
        let shape = FetchShape::new(4, 64, 128);
        assert_eq!((shape.rounds, shape.per_round, shape.count()), (2, 8, 16));
        assert_eq!([20, 16, 15, 7, 3, 0].map(|most| shape.window(most)), [16, 16, 8, 4, 2, 1]);
        let line = LineFetch { shape, aligned: false };
        // 16 vectors of 6 registers and what is taken besides.
        assert_eq!(fetch_in_flight(136, [None, Some(line)]), [0, 16]);
        let [a, b] = fetch_in_flight(136, [Some(line), Some(line)]);
        assert!(a == b && (4..8).contains(&a), "{a}");
    }
}
