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
    if aligned { 4 } else { 8 }
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
