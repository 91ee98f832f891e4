//! Fragments of a warpgroup's left operand: read from the tile in shared memory into registers, in sets that alternate, so that those of
//! one k-step are read while instructions still read those of the step before.
//!
//! A lane asks for the elements that the instruction's fragment gives it, wherever the tile has them. Four 8 x 8 matrices of 16-bit
//! elements are a fragment (`ldmatrix`, transposed where lines run along rows); so are they of TF32 along k, a chunk of four elements
//! counting as one of eight halves. TF32 along rows comes word by word: four lines of k lie in half of the banks, so the lower lanes read
//! the first four lines of a step while the upper ones read the last four, then the other way round, and each lane puts what it has in
//! order.

use super::{matrix_row, slice, split};
use crate::kernel::tile::shared::SharedTile;
use crate::plan::Along;
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// How a lane's elements are found: positions in a stage, for the first k-step and the first of the warpgroup's instructions.
enum Reads {
    /// `ldmatrix`: where this lane's row of a matrix starts.
    Matrices(ExprId),
    /// Words: where this lane's elements of the rows in the upper and in the lower half are, in the lines that it reads first and in those
    /// that it reads then; and whether the first are the lower ones.
    Words { words: SharedId, lanes: [[ExprId; 2]; 2], in_order: ExprId },
}

/// The fragments of one warpgroup's rows.
pub(crate) struct RowFragments {
    regs: RegId,
    /// Both parts of each set's fragments, where they are split: `regs` hold those of a k-step as they are read.
    split: Option<RegId>,
    /// Sets of fragments, one per k-step on its way.
    pub sets: u32,
    /// Instructions along m.
    rows: u32,
    /// The instruction.
    row: &'static Mma,
    shared: SharedTile,
    reads: Reads,
}

impl RowFragments {
    /// Declares the registers of so many sets for as many instructions along m. `first` is the warpgroup's first row in the tile, `thread`
    /// the position among its threads.
    pub fn new(
        b: &mut Builder,
        shared: &SharedTile,
        row: &'static Mma,
        (sets, rows, split): (u32, u32, bool),
        (first, thread): (ExprId, ExprId),
    ) -> Self {
        let (scalar, kept) = if split { (Scalar::F32, 1) } else { (Scalar::U32, sets) };
        let regs = b.regs("row_fragments", scalar.ty(), kept * rows * row.a.registers);
        let split = split.then(|| b.regs("row_parts", scalar.ty(), 2 * sets * rows * row.a.registers));
        let lane = b.value(thread % WARP);
        let of_wave = row.a.at(Axis::Row, WARP, 0, 0);
        let first = b.value(first + thread / WARP * of_wave);
        let reads = if shared.along == Along::Row && row.a.elements == 1 {
            words(b, shared, (row, scalar), first, lane)
        } else {
            let [own, k] = matrix_row(b, (&row.a, row.shape.0), lane, shared.along);
            let (own, k) = (b.bind("fragment_row", first + own), b.bind("fragment_k", k));
            let at = shared.at(b, own, k);
            Reads::Matrices(b.bind("fragment_at", at))
        };
        RowFragments { regs, split, sets, rows, row, shared: shared.clone(), reads }
    }

    /// Slices of registers for each instruction along m.
    pub const fn parts(&self) -> usize {
        if self.split.is_some() { 2 } else { 1 }
    }

    /// Reads a k-step's fragments from a stage into its set: one for each instruction along m, or its nearest numbers and what they leave.
    pub fn load(&self, b: &mut Builder, stage: ExprId, k_step: u32) -> Vec<RegSlice> {
        let base = b.value(stage * self.shared.stage);
        let (set, len) = (k_step % self.sets * self.rows, self.row.a.registers);
        let Some(parts) = self.split else {
            return (0..self.rows).map(|row| self.load_one(b, base, row, k_step, (set + row) * len)).collect();
        };
        let read: Vec<RegSlice> = (0..self.rows).map(|row| self.load_one(b, base, row, k_step, row * len)).collect();
        let of = |row: u32| 2 * (set + row) * len;
        (0..).zip(&read).for_each(|(row, _)| split(b, (self.regs, row * len), (parts, of(row)), len));
        (0..self.rows).flat_map(|row| [of(row), of(row) + len]).map(|first| slice(b, parts, first)).collect()
    }

    fn load_one(&self, b: &mut Builder, base: ExprId, row: u32, k_step: u32, first: u32) -> RegSlice {
        let slice = RegSlice { regs: self.regs, first: b.int(first.into(), Scalar::I32) };
        let (height, _, depth) = self.row.shape;
        let rows = self.shared.position(row * height, 0);
        let step = b.int(k_step.into(), Scalar::I32);
        let place = |b: &mut Builder, lane: ExprId| match self.shared.along {
            Along::Row => {
                let lane = b.value(base + lane);
                self.shared.steps(b, lane, step, depth) + rows
            }
            // Apart from the stage, which varies from k-tile to k-tile.
            Along::K => base + self.shared.steps(b, lane, step, depth) + rows,
        };
        match &self.reads {
            Reads::Matrices(lane) => {
                let at = place(b, *lane);
                let from = b.mem(Base::Shared(self.shared.array), at);
                b.matrix(MatrixOp::LoadMatrix { to: slice, count: 4, trans: self.shared.along == Along::Row, from });
            }
            Reads::Words { words, lanes, in_order } => {
                for (half, lanes) in (0..).zip(lanes) {
                    let [now, then] = lanes.map(|lane| {
                        let at = place(b, lane);
                        b.load("word", Base::Shared(*words), at, 1, None)
                    });
                    b.set_reg(self.regs, first + half, (*in_order).select(now, then));
                    b.set_reg(self.regs, first + half + 2, (*in_order).select(then, now));
                }
            }
        }
        slice
    }
}

/// Where a lane's words are, of a wave whose rows begin at `first`. Registers count the upper and the lower half of the rows, then k.
fn words(b: &mut Builder, shared: &SharedTile, (row, scalar): (&Mma, Scalar), first: ExprId, lane: ExprId) -> Reads {
    let words = if scalar == Scalar::F32 { shared.array } else { shared.words(b, "row_words", scalar) };
    let places = row.a.layout(WARP, row.a.registers);
    let further = row.a.at(Axis::K, 0, 2, 0);
    let upper = b.value(lane / (WARP / 2));
    let in_order = b.bind("lower_lanes", upper.equals(0));
    let [own, k] = [Axis::Row, Axis::K].map(|to| places.emit(b, to, &[(Axis::Lane, lane)], Scalar::I32));
    let lanes = [0, 1].map(|half| {
        [0, 1].map(|then| {
            let k = b.value((k + upper * further) ^ i64::from(then * further));
            let row = b.bind("word_row", first + own + row.a.at(Axis::Row, 0, half, 0));
            let k = b.bind("word_k", k);
            let at = shared.at(b, row, k);
            b.bind("word_at", at)
        })
    });
    Reads::Words { words, lanes, in_order }
}
