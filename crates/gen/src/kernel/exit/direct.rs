//! Results of multiply-adds: each thread stores its own micro tile, or the tile goes through shared memory part by part, through a staging buffer.

use super::out::{Out, columns_contiguous};
use super::owners::Owners;
use crate::kernel::unit::AccumulatorSet;
use crate::kernel::unit::math::{micro_distance, micro_first};
use crate::plan::OperandTiling;
use tilewright_ir::*;

impl Out<'_> {
    /// Each thread stores its own micro tile.
    pub fn direct(&self, b: &mut Builder, math: &AccumulatorSet, old: bool) {
        let t = &self.e.spec.tiling;
        let unroll = if self.e.spec.style.pragma_unroll { Unroll::Full } else { Unroll::Silent };
        let width = self.e.spec.epilogue.exit.width();
        let by_column = columns_contiguous(self.e.c);
        let (step_row, step_col) = if by_column { (1, width) } else { (width, 1) };
        let cols = t.b.micro / t.math_width;
        let (unit_a, unit_b) = (t.a.fragment_width, t.b.fragment_width.max(t.math_width));
        let apart = |o: &OperandTiling, unit: u32| if o.micro_interleave { o.macro_tile / o.micro * unit } else { unit };
        let rows = |b: &mut Builder, body: &mut dyn FnMut(&mut Builder, ExprId, u32, ExprId)| {
            b.for_range("i", 0, t.a.micro / unit_a, unroll, |b, i| {
                for lane in (0..unit_a).step_by(step_row as usize) {
                    let row = b.value(math.first[0] + i * apart(&t.a, unit_a) + lane);
                    body(b, i, lane, row);
                }
            });
        };
        rows(b, &mut |b, i, row_lane, row| {
            b.for_range("j", 0, t.b.micro / unit_b, unroll, |b, j| {
                for lane in (0..unit_b).step_by(step_col as usize) {
                    let col = b.value(math.first[1] + j * apart(&t.b, unit_b) + lane);
                    let values: Vec<ExprId> = (0..width)
                        .map(|w| {
                            let (rl, cl) = if by_column { (row_lane, lane + w) } else { (row_lane + w, lane) };
                            b.value(
                                Ex::reg(
                                    math.regs,
                                    (i * unit_a + rl) * cols + (j * (unit_b / t.math_width) + (cl / t.math_width)),
                                )
                                .extract(cl % t.math_width),
                            )
                        })
                        .collect();
                    self.put(b, row, col, &values, old);
                }
            });
        });
    }

    /// The tile goes part by part through a staging buffer in shared memory: one micro row or column of every thread at a time.
    /// Adjacent threads store adjacent elements. Where several have shares of the tile, each its own rows or columns.
    pub fn staged(&self, b: &mut Builder, math: &AccumulatorSet, owners: Option<&Owners>) {
        let t = &self.e.spec.tiling;
        let by_column = columns_contiguous(self.e.c);
        // `major` is the direction C is contiguous in.
        let (major, minor, minor_threads) = if by_column { (&t.b, &t.a, t.threads_a) } else { (&t.a, &t.b, t.threads_b) };
        let (major_first, minor_first) = if by_column { (math.first[1], math.first[0]) } else { (math.first[0], math.first[1]) };
        let width = self.e.spec.epilogue.exit.width();
        let pitch = major.macro_tile + width.max(4);
        let (each, teams) = (pitch * minor_threads, self.e.spec.teams());
        let staging = self.e.staging_array(b, self.e.c.accumulator());
        let (thread, first) = match teams {
            1 => (b.value(Builtin::LocalId), b.int(0, Scalar::I32)),
            _ => (math.thread, b.bind("staging_first", self.e.thread / t.math_threads() * each)),
        };
        let unit = if minor.micro_interleave { minor.fragment_width } else { minor.micro };
        let cols = t.b.micro / t.math_width;
        for e in 0..minor.micro {
            let ours = owners.and_then(|owners| owners.fills(b, e));
            self.e.sync_math(b);
            b.if_given(ours, |b| {
                for x in 0..major.micro {
                    let (row, col) = if by_column { (e, x) } else { (x, e) };
                    b.store(
                        Base::Shared(staging),
                        first + minor_first / unit * pitch + major_first + micro_distance(major, x),
                        Ex::reg(math.regs, row * cols + col / t.math_width).extract(col % t.math_width),
                        None,
                    );
                }
            });
            self.e.sync_math(b);
            let drain = |b: &mut Builder, old: bool| {
                for s in 0..major.micro / width {
                    let element = b.value(thread * width + (s * t.math_threads() * width));
                    let id = b.value(element / major.macro_tile);
                    let along = b.value(element % major.macro_tile);
                    let value = b.load("out", Base::Shared(staging), first + id * pitch + along, width, None);
                    let values: Vec<ExprId> = (0..width).map(|w| b.value(value.extract(w))).collect();
                    let across = micro_first(b, minor, id);
                    let across = b.value(across + micro_distance(minor, e));
                    let (row, col) = if by_column { (across, along) } else { (along, across) };
                    self.put(b, row, col, &values, old);
                }
            };
            b.if_given(ours, |b| self.by_beta(b, drain));
        }
    }
}
