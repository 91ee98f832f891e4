//! Fragments of operand A in registers for warpgroup instructions. Sets of registers alternate: one set is read from shared memory while
//! instructions still read the set of the previous k-step.
//!
//! A lane reads the elements that the instruction's fragment assigns to it. There are three cases:
//!
//! - 16-bit elements, and TF32 along k: `ldmatrix` reads four 8 x 8 matrices, transposed if the tile is contiguous along rows. Four TF32
//!   elements count as eight halves.
//! - TF32 along rows: word by word. Four rows of k cover half of the banks. So the lower lanes read the first four rows of a
//!   k-step while the upper lanes read the last four. Then they swap, and each lane puts its words in order.
//! - Weights of 8 or 4 bits: a lane reads whole runs of neighbours along k and converts them. Each k-step of a run takes four
//!   registers. Operand B is stored in the matching order of k ([`BulkTile::runs`]).

use super::{LANES_OF_ROW, Registers, matrix_row, slice, split};
use crate::kernel::tile::shared::SharedTile;
use crate::plan::Along;
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// How a lane's elements are found: positions in a stage, for the first k-step and the first of the warpgroup's instructions.
enum Reads {
    /// `ldmatrix`: where this lane's row of a matrix starts.
    Matrices(ExprId),
    /// Words: the places of this lane's elements of the rows in the upper and in the lower half. Each half has a place in the
    /// lines that the lane reads first and one in the lines that it reads second. `in_order`: whether the first lines are the
    /// lower ones.
    Words { words: SharedId, lanes: [[ExprId; 2]; 2], in_order: ExprId },
    /// Runs of weights: where this lane's first begins, and how many weights there are at a position.
    Runs { lane: ExprId, weights: WeightRuns, numbers: u32 },
}

/// Weights that a lane reads and converts.
#[derive(Clone, Copy)]
pub(crate) struct WeightRuns {
    /// The type that they are converted to.
    pub factor: Scalar,
    /// Neighbours along k that a lane reads at once.
    pub run: u32,
}

/// Which fragments a warpgroup holds.
#[derive(Clone, Copy)]
pub(crate) struct FragmentSets {
    /// Sets, one per k-step on its way.
    pub sets: u32,
    /// Instructions along m.
    pub rows: u32,
    /// Each number is split into two of TF32.
    pub split: bool,
    /// How weights are read, where operand A has weights.
    pub weights: Option<WeightRuns>,
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
    /// Declares the registers. `first` is the warpgroup's first row in the tile, `thread` the position among its threads.
    pub fn new(b: &mut Builder, shared: &SharedTile, row: &'static Mma, of: FragmentSets, first: ExprId, thread: ExprId) -> Self {
        let FragmentSets { sets, rows, split, weights } = of;
        let (scalar, kept) = if split { (Scalar::F32, 1) } else { (Scalar::U32, sets) };
        let regs = b.regs("row_fragments", scalar.ty(), kept * rows * row.a.registers);
        let split = split.then(|| b.regs("row_parts", scalar.ty(), 2 * sets * rows * row.a.registers));
        let lane = b.value(thread % WARP);
        let of_wave = row.a.at(Axis::Row, WARP, 0, 0);
        let first = b.value(first + thread / WARP * of_wave);
        let reads = if let Some(weights) = weights {
            runs(b, shared, row, weights, first, lane)
        } else if shared.along == Along::Row && row.a.elements == 1 {
            words(b, shared, row, scalar, first, lane)
        } else {
            let [own, k] = matrix_row(b, &row.a, row.shape.m, lane, shared.along);
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

    /// Reads and converts the runs of weights of a k-tile. Returns words of factors, for the upper and the lower rows of each instruction along m.
    pub fn begin(&self, b: &mut Builder, stage: ExprId, k_tile: u32) -> Vec<ExprId> {
        let Reads::Runs { lane, weights: WeightRuns { factor, run }, numbers } = &self.reads else { return Vec::new() };
        let base = b.value(stage * self.shared.stage);
        let height = self.row.shape.m;
        let mut all = Vec::new();
        for block in 0..k_tile / (LANES_OF_ROW * run) {
            let block = b.int(block.into(), Scalar::I32);
            let at = self.shared.steps(b, *lane, block, LANES_OF_ROW * run / numbers);
            let at = b.value(base + at);
            for (row, half) in (0..self.rows).flat_map(|row| [0, 1].map(|half| (row, half))) {
                let further = self.shared.position(row * height + self.row.a.at(Axis::Row, 0, half, 0), 0);
                let run = b.load("run", Base::Shared(self.shared.array), at + further, run / numbers, None);
                let factors = b.value(run.cast(*factor));
                let words = b.words(factors);
                all.push(b.bind("words", words));
            }
        }
        all
    }

    /// Reads a k-step's fragments from a stage into its set: one for each instruction along m, or its nearest numbers and what they leave. `begun` is what
    /// was read at once.
    pub fn load(&self, b: &mut Builder, stage: ExprId, k_step: u32, begun: &[ExprId]) -> Vec<RegSlice> {
        if let Reads::Runs { weights, .. } = &self.reads {
            return (0..self.rows).map(|row| self.of_runs(b, row, k_step, weights.run, begun)).collect();
        }
        let base = b.value(stage * self.shared.stage);
        let (set, len) = (k_step % self.sets * self.rows, self.row.a.registers);
        let Some(parts) = self.split else {
            return (0..self.rows).map(|row| self.load_one(b, base, row, k_step, (set + row) * len)).collect();
        };
        let read: Vec<RegSlice> = (0..self.rows).map(|row| self.load_one(b, base, row, k_step, row * len)).collect();
        let of = |row: u32| 2 * (set + row) * len;
        for (row, _) in (0..).zip(&read) {
            let from = Registers { regs: self.regs, first: row * len };
            split(b, from, Registers { regs: parts, first: of(row) }, len);
        }
        (0..self.rows).flat_map(|row| [of(row), of(row) + len]).map(|first| slice(b, parts, first)).collect()
    }

    /// A k-step's registers of an instruction: of both halves of its rows two words, the four numbers of a lane's run that are its.
    fn of_runs(&self, b: &mut Builder, row: u32, k_step: u32, run: u32, begun: &[ExprId]) -> RegSlice {
        let first = (k_step % self.sets * self.rows + row) * self.row.a.registers;
        let steps = run / LANES_OF_ROW;
        for half in [0, 1] {
            let words = begun[((k_step / steps * self.rows + row) * 2 + half) as usize];
            for word in [0, 1] {
                let value = b.extract(words, 2 * (k_step % steps) + word);
                b.set_reg(self.regs, first + half + 2 * word, value);
            }
        }
        slice(b, self.regs, first)
    }

    fn load_one(&self, b: &mut Builder, base: ExprId, row: u32, k_step: u32, first: u32) -> RegSlice {
        let slice = RegSlice { regs: self.regs, first: b.int(first.into(), Scalar::I32) };
        let MmaShape { m: height, k: depth, .. } = self.row.shape;
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
            // Registers have them already.
            Reads::Runs { .. } => {}
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
fn words(b: &mut Builder, shared: &SharedTile, row: &Mma, scalar: Scalar, first: ExprId, lane: ExprId) -> Reads {
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

/// Where a lane's first run of weights is, of a wave whose rows begin at `first`.
fn runs(b: &mut Builder, shared: &SharedTile, row: &Mma, weights: WeightRuns, first: ExprId, lane: ExprId) -> Reads {
    let numbers = shared.panels.as_ref().map_or(1, |tile| tile.numbers);
    let own = row.a.layout(WARP, row.a.registers).emit(b, Axis::Row, &[(Axis::Lane, lane)], Scalar::I32);
    let row = b.bind("weight_row", first + own);
    let k = b.bind("weight_k", lane % LANES_OF_ROW * (weights.run / numbers));
    let at = shared.at(b, row, k);
    Reads::Runs { lane: b.bind("weight_at", at), weights, numbers }
}
