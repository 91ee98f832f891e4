//! AMD's matrix instructions (MFMA): fragments that lanes read from the tiles of the ordinary loaders, and the positions of accumulators in C.
//!
//! The instructions of a micro tile are interleaved ([`Tiling::interleave`](crate::plan::Tiling)): position x of instruction p is row
//! `P x + p`. In a tile that is contiguous along rows, a word of shared memory holds neighbouring rows, so one read serves `P`
//! instructions. A lane holds `P` neighbouring columns of C.

use super::math::Steps;
use super::scales::TileScales;
use crate::kernel::tile::shared::SharedTile;
use crate::kernel::unit::{AccumulatorSet, KTile, Promotion, clear, promote, promoted, slice, wave};
use crate::plan::{Along, KernelSpec};
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// Registers that one read of shared memory fills at most.
const WIDEST: usize = 4;

/// One operand's fragments.
struct Fragments {
    regs: RegId,
    /// Registers of a k-step, for one part of its elements.
    len: u32,
    shared: SharedTile,
    /// The same tile as registers hold its elements: words of two, or single ones.
    words: SharedId,
    /// Where this lane reads, from the start of a buffer: elements.
    lane: ExprId,
    /// Bits to shift a word by for this lane's element, where no interleaving makes both halves its own.
    shift: Option<ExprId>,
    /// Instructions along this operand, and how many lie interleaved.
    blocks: u32,
    interleave: u32,
}

impl Fragments {
    /// The first register of a set's fragments of a part.
    const fn first(&self, set: u32, part: u32) -> u32 {
        (set * self.shared.parts + part) * self.len
    }
}

/// The math of one wave.
pub(crate) struct MfmaUnit {
    acc: RegId,
    /// Accumulators of a lane.
    acc_count: u32,
    /// Totals of two-level accumulation; `None` without it.
    promoted: Option<RegId>,
    fragments: [Fragments; 2],
    /// The instruction.
    row: &'static Mma,
    /// The products in place of each product: part of A and part of B.
    products: &'static [[u32; 2]],
    /// The wave's first row and column within the macro tile.
    first: [ExprId; 2],
    lane: ExprId,
    a_first: bool,
}

impl MfmaUnit {
    /// Declares fragments and accumulators for the wave of consumer thread `thread`, and clears the accumulators.
    pub fn new(b: &mut Builder, spec: &KernelSpec, row: &'static Mma, shared: &[SharedTile], thread: ExprId) -> Self {
        let t = &spec.tiling;
        // k between what neighbouring groups of lanes hold.
        let (lanes, side) = (row.lanes(), row.shape.m);
        let held = row.a.at(Axis::K, side, 0, 0);
        let (first, lane) = wave(b, t, row, thread);
        let sets = spec.schedule.fragments_ahead + 1;
        let fragments = [(0, "a", t.a.micro), (1, "b", t.b.micro)].map(|(i, name, micro)| {
            let (blocks, interleave) = (micro / side, t.interleave(micro));
            let len = micro * row.step / lanes / row.a.elements;
            let scalar = if row.a.elements == 1 { row.input.storage() } else { Scalar::U32 };
            let regs = b.regs(&format!("{name}_frag"), scalar.ty(), sets * shared[i].parts * len);
            let words = if row.a.elements == 1 { shared[i].array } else { shared[i].words(b, &format!("{name}_words"), scalar) };
            let (row_stride, k_stride) = shared[i].strides();
            let place = b.value(lane % side);
            let at = b.value(first[i] + place * interleave);
            let odd = interleave == 1 && row.a.elements == 2 && shared[i].along == Along::Row;
            // A word starts at an even row.
            let (at, shift) = if odd {
                let half = b.value(place % 2);
                (b.value(at - half), Some(b.bind(&format!("{name}_shift"), (half * 16).cast(Scalar::U32))))
            } else {
                (at, None)
            };
            let at = b.value(at * row_stride + lane / side * (held * k_stride));
            let lane = b.bind(&format!("{name}_lane_at"), at);
            Fragments { regs, len, shared: shared[i].clone(), words, lane, shift, blocks, interleave }
        });
        let acc_count = t.a.micro * t.b.micro / lanes;
        let acc = b.regs("acc", row.sum.ty(), acc_count);
        let promoted = promoted(b, spec, row.sum.ty(), acc_count);
        MfmaUnit { acc, acc_count, promoted, fragments, row, products: t.a.products(), first, lane, a_first: spec.style.a_first }
    }

    /// Lines along k: what a lane holds of an instruction stands together.
    fn whole(&self, b: &mut Builder, f: &Fragments, at: ExprId, to: u32) {
        let (elements, registers) = (self.row.a.elements, self.row.a.registers);
        for p in 0..f.interleave {
            for first in (0..registers).step_by(WIDEST) {
                let (run, further) = (registers.min(WIDEST as u32), self.row.a.at(Axis::K, 0, first, 0));
                let at = (at + (p * f.shared.pitch + further)) / elements;
                let value = b.load("fragment", Base::Shared(f.words), at, run, None);
                (0..run).for_each(|r| b.set_reg(f.regs, to + registers * p + first + r, value.extract(r)));
            }
        }
    }

    /// Lines along rows: a word holds two rows of one k, and two of them make a register of each row.
    fn across(&self, b: &mut Builder, f: &Fragments, at: ExprId, to: u32) {
        let (elements, registers) = (self.row.a.elements, self.row.a.registers);
        let wide = (f.interleave / elements).max(1);
        let lines: Vec<ExprId> = (0..registers * elements)
            .map(|k| b.load("fragment", Base::Shared(f.words), (at + (k * f.shared.pitch)) / elements, wide, None))
            .collect();
        if elements == 1 {
            return (0..f.interleave).for_each(|p| b.set_reg(f.regs, to + p, lines[0].extract(p)));
        }
        let (low, high) = (0xffff_i64, 0xffff_0000_i64);
        for p in 0..f.interleave {
            for (pair, lines) in lines.chunks_exact(2).enumerate() {
                let [mut x, mut y] = [0, 1].map(|i| b.value(lines[i].extract(p / 2)));
                if let Some(shift) = f.shift {
                    x = b.value(x >> shift);
                    y = b.value(y >> shift);
                }
                let (x, y) =
                    if p % 2 == 0 { (b.value(x & low), b.value(y << 16)) } else { (b.value(x >> 16), b.value(y & high)) };
                b.set_reg(f.regs, to + registers * p + pair as u32, x | y);
            }
        }
    }
}

impl Steps for MfmaUnit {
    fn start(&self, b: &mut Builder) {
        let all = std::iter::once(self.acc).chain(self.promoted);
        all.for_each(|regs| clear(b, self.row.sum.ty(), regs, self.acc_count));
    }

    fn read_at(&self, b: &mut Builder, tile: KTile) -> [ExprId; 2] {
        let at = |b: &mut Builder, f: &Fragments, name: &str| b.bind(name, tile.stage * f.shared.stage + f.lane);
        let a = at(b, &self.fragments[0], "a_read_at");
        [a, at(b, &self.fragments[1], "b_read_at")]
    }

    /// Fragments of a k-step into a set of registers: those of instruction `n` of block `i` are number `n blocks + i`.
    fn load(&self, b: &mut Builder, from: [ExprId; 2], step: ExprId, set: u32) {
        let (MmaShape { m: side, k: depth, .. }, step_depth) = (self.row.shape, self.row.step);
        for which in if self.a_first { [0, 1] } else { [1, 0] } {
            let f = &self.fragments[which];
            let (row, k) = f.shared.strides();
            let at = b.value(from[which] + step * (step_depth * k));
            let instructions = (0..step_depth / depth).flat_map(|n| (0..f.shared.parts).map(move |part| (n, part)));
            for (n, part) in instructions {
                let at = b.value(at + (n * depth * k + f.shared.part(part)));
                for chunk in 0..f.blocks / f.interleave {
                    let block = chunk * f.interleave;
                    let at = b.value(at + (block * side * row));
                    let to = f.first(set, part) + self.row.a.registers * (n * f.blocks + block);
                    match f.shared.along {
                        Along::K => self.whole(b, f, at, to),
                        Along::Row => self.across(b, f, at, to),
                    }
                }
            }
        }
    }

    fn multiply(&self, b: &mut Builder, _: ExprId, set: u32) {
        let [left, right] = &self.fragments;
        let (row, registers) = (self.row, self.row.a.registers);
        let instructions = (0..row.step / row.shape.k).flat_map(|n| self.products.iter().map(move |products| (n, products)));
        for (n, &[part_of_a, part_of_b]) in instructions {
            for i in 0..left.blocks {
                for j in 0..right.blocks {
                    let a = slice(b, left.regs, left.first(set, part_of_a) + registers * (n * left.blocks + i));
                    let other = slice(b, right.regs, right.first(set, part_of_b) + registers * (n * right.blocks + j));
                    let acc = slice(b, self.acc, (i * right.blocks + j) * row.c.registers);
                    b.matrix(MatrixOp::Mfma { input: row.input, shape: row.shape, a, b: other, acc });
                }
            }
        }
    }

    fn promote(&self, b: &mut Builder, scales: Option<&TileScales>) {
        if let Some(totals) = self.promoted {
            promote(b, Promotion { acc: self.acc, totals, first: 0, count: self.acc_count }, scales);
            clear(b, self.row.sum.ty(), self.acc, self.acc_count);
        }
    }

    fn accumulators(&self) -> AccumulatorSet {
        AccumulatorSet { regs: self.promoted.unwrap_or(self.acc), first: self.first, thread: self.lane }
    }
}
