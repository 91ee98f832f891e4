//! Tiles that load waves of a matrix unit fetch themselves (`ACP0`): in what pieces, how many of them at once, and what a piece costs.

use super::bulk::BulkTile;
use super::fetch_shape::{FETCH_CHUNK, FetchShape, fetch_width, fetched_by_lines, lines_aligned};
use super::spec::KernelSpec;
use super::tile::OperandTiling;
use super::transport::Transport;
use crate::plan::materialised;
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, ROW};

/// Registers of a load thread that are not free for pieces: addresses, counters, predicates.
const TAKEN: u32 = 36;
/// Likewise where it reads lines, besides what each operand takes.
const TAKEN_BY_LINES: u32 = 20;
/// Registers of a load thread below which compilers were seen to spill at the edges, however little it fetches.
const LEAST: u32 = 72;
/// What a thread takes for addresses of an operand whose lines it shifts from staging.
const SHIFTED: u32 = 16;
/// Registers of a vector of a line that begins anywhere, until it is stored: with the half of its neighbour.
const UNALIGNED: u32 = 6;
/// Most pieces that a thread asks for at once.
const MOST: u32 = 8;

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
    fn new(tensor: &Tensor, o: &OperandTiling, tile: &BulkTile, threads: u32) -> Option<LineFetch> {
        let tensor = materialised(tensor, o.source, o.macro_tile);
        let axis = if tile.k_contiguous { COL } else { ROW };
        let shape = FetchShape::new(tile.columns, tile.map.tile[1] * tile.lines, threads);
        fetched_by_lines(&tensor, axis).then(|| LineFetch { shape, aligned: lines_aligned(&tensor, axis) })
    }
    /// Registers of a vector until it is stored: with the half of its neighbour where it is shifted.
    const fn each(&self) -> u32 {
        if self.aligned { 4 } else { UNALIGNED }
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

/// Vectors of each operand that a load thread with so many registers keeps in flight: all of a k-tile's, or of both operands the same
/// share.
pub fn fetch_in_flight(registers: u32, operands: [Option<LineFetch>; 2]) -> [u32; 2] {
    let taken: u32 = operands.iter().flatten().map(LineFetch::besides).sum();
    let free = registers.saturating_sub(TAKEN_BY_LINES + taken);
    let needed: u32 = operands.iter().flatten().map(LineFetch::all).sum();
    operands.map(|o| o.map_or(0, |o| (o.shape.count() * free.min(needed) / needed.max(1)).max(1)))
}

/// How each operand comes that the load waves fetch by lines. The contraction's operands are swapped as the plan says.
pub fn lines_fetched(spec: &KernelSpec, c: &Contraction) -> [Option<LineFetch>; 2] {
    let (t, [copy_a, copy_b]) = (&spec.tiling, &spec.schedule.copies);
    [(&c.a, &t.a, copy_a), (&c.b, &t.b, copy_b)].map(|(tensor, o, copy)| match copy {
        Transport::Written(tile) => LineFetch::new(tensor, o, tile, spec.load_threads()),
        _ => None,
    })
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

/// Vectors that a load thread with so many registers shifts from staging at once, of one operand after the other.
pub(crate) fn shifted_together(registers: u32, operands: u32) -> u32 {
    (registers.saturating_sub(TAKEN_BY_LINES + SHIFTED * operands) / UNALIGNED).clamp(1, MOST)
}

/// Registers of a load thread that k-tiles of the operands fill that it fetches.
pub(super) fn fetch_wanted(operands: [(&Tensor, &OperandTiling, &Transport); 2], threads: u32) -> u32 {
    let one = |(tensor, o, copy): (&Tensor, &OperandTiling, &Transport)| match copy {
        Transport::Shifted(_) => SHIFTED,
        Transport::Written(tile) => match LineFetch::new(tensor, o, tile, threads) {
            Some(lines) => lines.all() + lines.besides(),
            None => 8 * MOST + TAKEN - TAKEN_BY_LINES,
        },
        _ => 0,
    };
    let shifts = operands.iter().any(|(.., copy)| copy.shifted().is_some());
    let vectors = if shifts { MOST * UNALIGNED } else { 0 };
    (TAKEN_BY_LINES + vectors + operands.map(one).iter().sum::<u32>()).max(LEAST)
}

/// The work of fetching operand 0 (A) or 1 (B) of a contraction whose operands are swapped as the plan says; `None` if it comes in bulk.
pub fn fetch_work(spec: &KernelSpec, c: &Contraction, which: usize) -> Option<FetchWork> {
    let copy = spec.schedule.copies.get(which).filter(|copy| copy.is_written())?;
    let (t, tile) = (&spec.tiling, copy.tile()?);
    let (tensor, o) = if which == 0 { (&c.a, &t.a) } else { (&c.b, &t.b) };
    let tensor = materialised(tensor, o.source, o.macro_tile);
    let axis = if tile.k_contiguous { COL } else { ROW };
    let registers = spec.load_registers();
    if copy.shifted().is_some() {
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
