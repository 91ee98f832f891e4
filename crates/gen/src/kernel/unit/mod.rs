//! Math units: fragments and accumulators of multiply-adds and of each matrix instruction.

pub mod accumulators;
pub mod idle;
mod k_order;
pub mod math;
pub mod mfma;
pub mod mma;
pub mod own;
pub mod row_fragments;
pub mod scales;
pub mod wgmma;

use crate::kernel::stages::schedule::MathPart;
use crate::plan::{Along, KernelSpec, Tiling};
use scales::TileScales;
use tilewright_ir::layout::Axis;
use tilewright_ir::mma::Fragment;
use tilewright_ir::{Builder, ExprId, Mma, RegId, RegSlice, Scalar, Type, UnaryOp, Unroll};

/// Lanes that share a row of an instruction's fragments.
pub(crate) const LANES_OF_ROW: u32 = 4;

/// Work between the k-steps: called after the math of each k-step.
pub(crate) type Between<'a> = &'a mut dyn FnMut(&mut Builder, u32);

/// One k-tile of both operands.
#[derive(Clone, Copy)]
pub(crate) struct KTile<'a> {
    /// The stage of shared memory that it is in.
    pub stage: ExprId,
    /// Its number within the result tile; `None` outside of the loop.
    pub number: Option<ExprId>,
    /// Its first k.
    pub k: ExprId,
    /// Scales of its accumulators at their promotion.
    pub scales: Option<&'a TileScales<'a>>,
}

/// A math unit: the share of a thread, wave or warpgroup in the math of a result tile.
pub(crate) trait Unit {
    /// Clears the accumulators before the first k-tile of a result tile.
    fn start(&self, b: &mut Builder);
    /// Reads the fragments that must precede the math of a k-tile.
    fn first_fragments(&self, _: &mut Builder, _tile: KTile) {}
    /// Computes some k-steps of a k-tile. For the last k-steps ([`MathPart::Tail`]), `tile` is the next k-tile, and its first fragments are
    /// read meanwhile.
    fn k_tile(&self, b: &mut Builder, tile: KTile, part: MathPart, between: Option<Between>);
    /// Waits until the instructions of at most this many k-tiles are unfinished.
    fn drain(&self, _: &mut Builder, _k_tiles: u32) {}
    /// Two-level accumulation: adds the accumulators to the f32 totals, times their scales, and restarts them.
    fn promote(&self, _: &mut Builder, _: Option<&TileScales>) {}
    /// Returns whether whole waves share their first row and column. Such waves may stay idle if their rows or columns do not exist.
    fn may_idle(&self) -> bool {
        false
    }
    /// The accumulators of a tile.
    fn accumulators(&self) -> AccumulatorSet;
}

/// The accumulators of a tile: registers of the micro tile that begins at `first`, in owner thread number `thread`.
#[derive(Clone, Copy)]
pub(crate) struct AccumulatorSet {
    pub regs: RegId,
    pub first: [ExprId; 2],
    pub thread: ExprId,
}

/// Position of a thread in its slice of the work-group, and the number of the slice.
pub(crate) fn in_slices(b: &mut Builder, t: &Tiling, thread: ExprId) -> (ExprId, ExprId) {
    match t.slices {
        1 => (thread, b.int(0, Scalar::I32)),
        _ => (b.bind("slice_thread", thread % t.math_threads()), b.bind("slice", thread / t.math_threads())),
    }
}

/// First row and column of the micro tile of consumer thread `thread`'s wave, and the thread's lane.
fn wave(b: &mut Builder, t: &Tiling, row: &Mma, thread: ExprId) -> ([ExprId; 2], ExprId) {
    let (lanes, along_m) = (row.lanes(), t.a.macro_tile / t.a.micro);
    let wave = b.bind("consumer_wave", thread / lanes);
    let first = [b.bind("wave_row", wave % along_m * t.a.micro), b.bind("wave_col", wave / along_m * t.b.micro)];
    (first, b.bind("lane", thread % lanes))
}

/// Sets `count` accumulators to zero.
fn clear(b: &mut Builder, ty: Type, acc: RegId, count: u32) {
    let zero = b.zero(ty);
    b.for_range("i", 0, count, Unroll::Full, |b, i| b.set_reg(acc, i, zero));
}

/// Registers of the totals of two-level accumulation; `None` without it.
fn promoted(b: &mut Builder, spec: &KernelSpec, ty: Type, count: u32) -> Option<RegId> {
    spec.schedule.promoted.map(|_| b.regs("promoted", ty, count))
}

/// Accumulators that are added to the totals of two-level accumulation.
#[derive(Clone, Copy)]
pub(crate) struct Promotion {
    /// The accumulators, from their first register on.
    pub acc: RegId,
    pub totals: RegId,
    /// The total that the first of them is added to.
    pub first: u32,
    pub count: u32,
}

/// Adds accumulators to their totals, times their scales.
fn promote(b: &mut Builder, of: Promotion, scales: Option<&TileScales>) {
    if let Some(scales) = scales {
        return scales.add(b, of);
    }
    let Promotion { acc, totals: to, first, count } = of;
    b.for_range("i", 0, count, Unroll::Full, |b, i| {
        let (sum, more) = (b.reg(to, i + first), b.reg(acc, i));
        b.set_reg(to, i + first, sum + more);
    });
}

/// Registers of an array, from one whose number is a constant on.
#[derive(Clone, Copy)]
struct Registers {
    regs: RegId,
    first: u32,
}

/// Registers from this one on.
fn slice(b: &mut Builder, regs: RegId, first: u32) -> RegSlice {
    RegSlice { regs, first: b.int(first.into(), Scalar::I32) }
}

/// Splits `count` registers into two TF32 numbers each: first all nearest numbers, then all remainders. The unit drops the last bit of remainders.
fn split(b: &mut Builder, from: Registers, to: Registers, count: u32) {
    for i in 0..count {
        let value = b.reg(from.regs, from.first + i);
        b.set_reg(to.regs, to.first + i, value.unary(UnaryOp::NearTf32));
        let near = b.reg(to.regs, to.first + i);
        b.set_reg(to.regs, to.first + count + i, value - near);
    }
}

/// Row and k at which a lane's row of `ldmatrix` starts in lines along rows or along k. Matrices of 8 x 8 follow each other as
/// the registers of the fragments do. Matrices of several instructions are `side` rows apart.
fn matrix_row(b: &mut Builder, of: &Fragment, side: u32, lane: ExprId, along: Along) -> [ExprId; 2] {
    let (within, matrix) = (b.value(lane % 8), b.value(lane / 8));
    let several = of.registers < 4;
    let register = if several { b.value(matrix % of.registers) } else { matrix };
    let places = of.layout(1, of.registers);
    let [row, k] = [Axis::Row, Axis::K].map(|to| places.emit(b, to, &[(Axis::Register, register)], Scalar::I32));
    let row = if several { b.value(row + matrix / of.registers * side) } else { row };
    match along {
        Along::Row => [row, b.value(k + within)],
        Along::K => [b.value(row + within), k],
    }
}
