//! Fragments of a warpgroup's left operand: read from the tile in shared memory into registers, in sets that alternate, so that those of
//! one k-step are read while instructions still read those of the step before.
//!
//! A lane asks for the elements that the instruction's layout gives it ([`MatrixOp::Mma`], for the 16 rows of its wave), wherever they
//! lie: 128-byte lines run along k or along rows, their 16-byte chunks xor-ed with the line's number in its pattern of eight
//! ([`Swizzle::B128`]). Four 8 x 8 matrices of 16-bit elements are a fragment (`ldmatrix`, transposed where lines run along rows); so are
//! they of TF32 along k, a chunk of four elements counting as one of eight halves. TF32 along rows comes word by word: four lines
//! of k lie in half of the banks, so the lower lanes read the first four lines of a step while the upper ones read the last four,
//! then the other way round, and each lane puts what it has in order.

use crate::kernel::tile::shared::SharedTile;
use crate::plan::BulkTile;
use tilewright_ir::*;

/// Registers of a fragment.
const FRAGMENT: u32 = 4;
/// 16-byte chunks of a line.
const CHUNKS: u32 = 8;
/// Bytes of a line.
const LINE: u32 = 128;
/// Instructions along k that a line holds where it runs along k.
const STEPS: u32 = 4;

/// How a lane's elements are found.
enum Reads {
    /// `ldmatrix`: where this lane's row of a matrix starts, in elements, and whether matrices are transposed.
    Matrices { lane: ExprId, transposed: bool },
    /// Words: where this lane's elements of the rows in the upper and in the lower half start, in the lines that it reads first and
    /// in those that it reads then; and whether the first are the lower ones.
    Words { words: SharedId, lanes: [[ExprId; 2]; 2], in_order: ExprId },
}

/// The fragments of one warpgroup's rows.
pub(crate) struct RowFragments {
    regs: RegId,
    /// Sets of fragments, one per k-step on its way.
    pub sets: u32,
    /// Instructions along m.
    rows: u32,
    /// Elements of a line, and of a k-step.
    line: u32,
    depth: u32,
    /// Elements between columns of lines, and of a buffer.
    column: u32,
    buffer: u32,
    array: SharedId,
    reads: Reads,
}

impl RowFragments {
    /// Declares the registers. `first` is the warpgroup's first row in the tile, a multiple of 64, `lane` the position among its threads.
    pub fn new(
        b: &mut Builder,
        shared: &SharedTile,
        t: &BulkTile,
        (sets, rows): (u32, u32),
        first: ExprId,
        lane: ExprId,
    ) -> Self {
        let bytes = t.map.scalar.bytes();
        let regs = b.regs("row_fragments", Scalar::U32.ty(), sets * rows * FRAGMENT);
        let column = t.map.tile[1] * t.lines * t.row;
        let wave = b.value(lane / 32);
        let lane = b.value(lane % 32);
        let reads = match (t.k_contiguous, bytes) {
            (false, 4) => {
                let words = shared.words(b, "row_words", Scalar::U32);
                word_lanes(b, words, column, first, wave, lane)
            }
            _ => {
                let lane = matrix_lane(b, t, column, first, wave, lane);
                Reads::Matrices { lane: b.bind("fragment_at", lane), transposed: !t.k_contiguous }
            }
        };
        RowFragments {
            regs,
            sets,
            rows,
            line: t.row,
            depth: 32 / bytes,
            column,
            buffer: shared.stage,
            array: shared.array,
            reads,
        }
    }

    /// Reads a k-step's fragments from a buffer into its set: one for each 64 rows.
    pub fn load(&self, b: &mut Builder, buffer: ExprId, k_step: u32) -> Vec<RegSlice> {
        let base = b.value(buffer * self.buffer);
        let set = k_step % self.sets * self.rows;
        (0..self.rows).map(|row| self.load_one(b, base, row, k_step, (set + row) * FRAGMENT)).collect()
    }

    fn load_one(&self, b: &mut Builder, base: ExprId, row: u32, k_step: u32, first: u32) -> RegSlice {
        let slice = RegSlice { regs: self.regs, first: b.int(first.into(), Scalar::I32) };
        match &self.reads {
            Reads::Matrices { lane, transposed } => {
                let (at, further) = if *transposed {
                    (*lane, row * 64 / self.line * self.column + k_step * self.depth * self.line)
                } else {
                    // Chunks of a further step: a bit of the chunk's number that the lane's own does not have.
                    let chunk = k_step % STEPS * (CHUNKS / STEPS) * (self.line / CHUNKS);
                    let at = b.value(*lane ^ i64::from(chunk));
                    (at, row * 64 * self.line + k_step / STEPS * self.column)
                };
                let from = b.mem(Base::Shared(self.array), base + at + further);
                b.matrix(MatrixOp::LoadMatrix { to: slice, count: 4, trans: *transposed, from });
            }
            Reads::Words { words, lanes, in_order } => {
                let further = row * 64 / self.line * self.column + k_step * self.depth * self.line;
                for (half, [now, then]) in lanes.iter().enumerate() {
                    let [now, then] =
                        [now, then].map(|lane| b.load("word", Base::Shared(*words), base + *lane + further, 1, None));
                    b.set_reg(self.regs, first + half as u32, (*in_order).select(now, then));
                    b.set_reg(self.regs, first + half as u32 + 2, (*in_order).select(then, now));
                }
            }
        }
        slice
    }
}

/// Element at which a lane's row of `ldmatrix` starts in a buffer, for the first k-step and the first 64 rows. Matrices follow each other
/// along m first.
fn matrix_lane(b: &mut Builder, t: &BulkTile, column: u32, first: ExprId, wave: ExprId, lane: ExprId) -> ExprId {
    let within = b.value(lane % 8);
    let matrix = b.value(lane / 8);
    let down = b.value(matrix % 2);
    let along = b.value(matrix / 2);
    let chunk_elements = t.row / CHUNKS;
    if t.k_contiguous {
        b.value((first + wave * 16 + down * 8 + within) * t.row + (along ^ within) * chunk_elements)
    } else {
        // A line holds the 64 rows of a warpgroup.
        b.value(first / t.row * column + (along * 8 + within) * t.row + ((wave * 2 + down) ^ within) * chunk_elements)
    }
}

/// Where a lane's words lie whose lines run along rows: 32 of them to a line, two waves' rows.
fn word_lanes(b: &mut Builder, words: SharedId, column: u32, first: ExprId, wave: ExprId, lane: ExprId) -> Reads {
    let line_words = LINE / 4;
    let quad = b.value(lane / 4);
    let upper = b.value(quad / 4);
    let in_order = b.bind("lower_lanes", upper.equals(0));
    let chunk = b.value(wave % 2 * 4 + upper);
    let k = b.value(lane % 4 + upper * 4);
    let lanes = [0, 1].map(|half| {
        [0, 1].map(|then| {
            let k = b.value(k ^ (4 * then));
            let at =
                b.value((first / line_words + wave / 2) * column + quad % 4 + k * line_words + ((chunk + (2 * half)) ^ k) * 4);
            b.bind("word_at", at)
        })
    });
    Reads::Words { words, lanes, in_order }
}
