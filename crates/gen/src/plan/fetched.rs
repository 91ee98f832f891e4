//! Tiles that load waves of a matrix unit fetch themselves (`ACP0`): in what pieces, how many of them at once, and what a piece costs.

use super::bulk::fetched_tile;
use super::{KernelSpec, Source, reach};
use crate::contraction::{Contraction, Tensor};
use crate::view::{COL, ROW, materialised};

/// Elements of a piece: 16 bytes.
pub const FETCH_CHUNK: u32 = 8;
/// Registers of a load thread that are not free for pieces: addresses, counters, predicates.
const TAKEN: u32 = 36;
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

/// Vectors of each operand that a load thread with so many registers keeps on their way: all of a k-tile's, or of both operands the same
/// share. Operands as their vectors and the registers of one.
pub fn fetch_in_flight(registers: u32, operands: [Option<(u32, u32)>; 2]) -> [u32; 2] {
    let free = registers.saturating_sub(TAKEN);
    let needed: u32 = operands.iter().flatten().map(|(vectors, each)| vectors * each).sum();
    operands.map(|o| o.map_or(0, |(vectors, _)| (vectors * free.min(needed) / needed.max(1)).max(1)))
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
}

/// Pieces that a thread with so many registers asks for at once, where each takes this many of them until it is stored.
pub fn fetch_batch(registers: u32, per_chunk: u32) -> u32 {
    (registers.saturating_sub(TAKEN) / per_chunk.max(1)).clamp(2, MOST)
}

/// Registers that a piece takes until it is stored.
pub const fn fetch_registers(aligned: bool) -> u32 {
    if aligned { 4 } else { 6 }
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

/// The work of fetching operand 0 (A) or 1 (B) of a contraction that is turned as the plan says; `None` if it comes in bulk.
pub fn fetch_work(spec: &KernelSpec, c: &Contraction, which: usize) -> Option<FetchWork> {
    if !spec.schedule.fetched[which] {
        return None;
    }
    let t = &spec.tiling;
    let (tensor, o) = if which == 0 { (&c.a, &t.a) } else { (&c.b, &t.b) };
    let tensor = if o.source == Source::InPlace { tensor.clone() } else { materialised(tensor, o.source, o.macro_tile) };
    let tile = fetched_tile(&tensor, o, t.k_tile).ok()?;
    let axis = if tile.k_contiguous { COL } else { ROW };
    let (per_chunk, instructions) = match (tensor.view.is_affine_box().is_some(), lines_aligned(&tensor, axis)) {
        (true, true) => (4, 14),
        (true, false) => (8, 32),
        (false, _) => {
            let pieces = FETCH_CHUNK / fetch_width(&tensor, axis);
            (4 * pieces.min(2), 12 + 24 * pieces)
        }
    };
    let elements = o.macro_tile * t.k_tile;
    Some(FetchWork {
        chunks: (elements / FETCH_CHUNK).div_ceil(spec.load_threads().max(1)),
        at_once: fetch_batch(spec.load_registers(), per_chunk),
        instructions,
    })
}
