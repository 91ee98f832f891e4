//! Tiles that producer warps of a matrix unit fetch through registers (`ACP0`): the size, the number in flight and the cost of a piece.

use super::derived::Derived;
use super::fetch_shape::{FetchShape, fetch_width};
use super::transport::Transport;
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{COL, ROW};

/// Registers of a producer thread for addresses, counters and predicates, which are not free for pieces.
const TAKEN: u32 = 36;
/// The same for a producer thread that shifts rows from the staging buffer, without the registers of each operand.
const TAKEN_BY_LINES: u32 = 20;
/// Least registers of a producer thread: with fewer, compilers were seen to spill at the edges.
const LEAST: u32 = 72;
/// Registers of a thread for the addresses of one shifted operand.
const SHIFTED: u32 = 16;
/// Registers of a vector of a misaligned row until it is stored, with the half of its neighbour.
const UNALIGNED: u32 = 6;
/// Most pieces that a thread loads at once.
const MOST: u32 = 8;

/// How one operand's k-tile is fetched.
///
/// ```
/// use tilewright_gen::plan::{Plan, fetch_work};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// // Rows of A are 513 elements apart: no bulk copy can begin there, so producer warps load them.
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).lda(513).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, registers+tma, 4 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// let work = fetch_work(&derived, 0).expect("A is written by producer warps");
/// assert_eq!((work.chunks, work.staged), (8, false));
/// assert_eq!(fetch_work(&derived, 1), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FetchWork {
    /// Pieces of 16 bytes of each thread in a k-tile.
    pub chunks: u32,
    /// Pieces that a thread loads at once.
    pub at_once: u32,
    /// Instructions for each, as compilers were seen to make them.
    pub instructions: u32,
    /// Instructions for each k-tile besides.
    pub besides: u32,
    /// Pieces come from staging in shared memory, where bulk copies brought them long before.
    pub staged: bool,
}

/// Instructions for the four pairs of a piece.
const PAIRS: u32 = 12;

/// Instructions for a vector that is shifted from staging, and of a k-tile for the copies into it.
const SHIFT_INSTRUCTIONS: u32 = 8;
const COPY_BESIDES: u32 = 120;

/// Pieces that a thread with so many registers asks for at once, where each takes this many of them until it is stored.
pub fn fetch_batch(registers: u32, per_chunk: u32) -> u32 {
    (registers.saturating_sub(TAKEN) / per_chunk.max(1)).clamp(2, MOST)
}

/// Registers of a chunk of 16 bytes of shared memory in `pieces` pieces, until it is stored. For f32 that becomes bf16 there are
/// twice as many.
pub fn chunk_registers(tensor: &Tensor, pieces: u32) -> u32 {
    4 * pieces.min(2) * (tensor.scalar.bytes() / tensor.factor().bytes()).max(1)
}

/// Vectors that a load thread with so many registers shifts from staging at once, of one operand after the other.
pub(crate) fn shifted_together(registers: u32, operands: u32) -> u32 {
    (registers.saturating_sub(TAKEN_BY_LINES + SHIFTED * operands) / UNALIGNED).clamp(1, MOST)
}

/// Registers of a load thread that k-tiles of the operands fill that it fetches.
pub(super) fn fetch_wanted(copies: &[Transport; 2]) -> u32 {
    let one = |copy: &Transport| match copy {
        Transport::Shifted(_) => SHIFTED,
        Transport::Written(_) => 8 * MOST + TAKEN - TAKEN_BY_LINES,
        _ => 0,
    };
    let shifts = copies.iter().any(|copy| copy.shifted().is_some());
    let vectors = if shifts { MOST * UNALIGNED } else { 0 };
    (TAKEN_BY_LINES + vectors + copies.iter().map(one).sum::<u32>()).max(LEAST)
}

/// The work of fetching operand 0 (A) or 1 (B); `None` if it comes in bulk.
pub fn fetch_work(derived: &Derived, which: usize) -> Option<FetchWork> {
    let spec = &derived.spec;
    let copy = spec.schedule.copies.get(which).filter(|copy| copy.is_written())?;
    let (t, tile) = (&spec.tiling, copy.tile()?);
    let (tensor, o) = (derived.read(which), if which == 0 { &t.a } else { &t.b });
    let axis = if tile.k_contiguous { COL } else { ROW };
    let registers = spec.load_registers();
    if copy.shifted().is_some() {
        let chunks = FetchShape::new(tile.columns, tile.map.tile[1], spec.load_threads()).count();
        let (at_once, instructions, besides) = (chunks, SHIFT_INSTRUCTIONS, COPY_BESIDES);
        return Some(FetchWork { chunks, at_once, instructions, besides, staged: true });
    }
    let chunk = 16 / tensor.factor().bytes();
    let pieces = chunk / fetch_width(tensor, axis);
    Some(FetchWork {
        chunks: (o.macro_tile * t.k_tile / chunk).div_ceil(spec.load_threads().max(1)),
        at_once: fetch_batch(registers, chunk_registers(tensor, pieces)),
        // Where it is split, three for each element of a part, and a store. In the order of runs of weights, a store with its
        // place for each pair.
        instructions: 12 + 24 * pieces + (o.shared_parts - 1) * (3 * chunk + 1) + if tile.runs.is_some() { PAIRS } else { 0 },
        besides: 0,
        staged: false,
    })
}
