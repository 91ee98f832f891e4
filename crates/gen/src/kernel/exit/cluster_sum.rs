//! Sums of a tile's splits over a cluster: no workspace, no second kernel, always in the same order.
//!
//! Every work-group puts its sums where the operands' tiles were. When all have, each takes a part of the tile, reads it from all
//! of them in the order of the splits, and stores it. A thread's sums keep their place: what it adds up are the sums of the
//! threads with its number.

use super::Epilogue;
use super::out::{Out, Target, columns_contiguous};
use crate::kernel::tile::position::TilePosition;
use crate::kernel::unit::Sums;
use crate::kernel::unit::accumulators::Accumulators;
use std::ops::Range;
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// Bytes that one shared access moves.
const ACCESS: u32 = 16;

/// The exchange of a tile's sums, and the array that it goes through.
struct Exchange<'a> {
    math: &'a Accumulators,
    array: SharedId,
    thread: ExprId,
    threads: u32,
    /// Registers of one access, and its elements.
    registers: u32,
    width: u32,
}

impl Epilogue<'_> {
    /// Behind the last k-tile. All math threads come here, and all threads to the cluster barriers: one before the sums are read, one
    /// behind.
    pub(super) fn sum_over_cluster(&self, b: &mut Builder, sums: &Sums, at: &TilePosition) {
        let t = &self.spec.tiling;
        let math = &self.accumulators(b, sums);
        let array = b.shared("sums", math.scalar, t.a.macro_tile * t.b.macro_tile, 0);
        let most = (ACCESS / math.scalar.bytes() / math.width).max(1);
        let registers = (0..=most.ilog2()).rev().map(|log| 1 << log).find(|r| math.count().is_multiple_of(*r)).unwrap_or(1);
        let exchange =
            Exchange { math, array, thread: self.thread, threads: t.math_threads(), registers, width: registers * math.width };
        b.comment("the splits of the tile exchange their sums");
        // Other waves may still read the operands that these lie over.
        self.meet_math(b);
        for access in 0..exchange.count() {
            exchange.put(b, access);
        }
        b.push(Stmt::Barrier(BarrierScope::Cluster));
        self.shares(b, &exchange, |b, from, to| (from..to).for_each(|access| self.sum(b, &exchange, access)));
        if self.piped && t.persistent > 0 {
            // Bulk copies of the next tile follow in the same place.
            b.bulk(BulkOp::ProxyFence);
        }
        // Ahead of the stores, whose end it would wait for.
        b.push(Stmt::Barrier(BarrierScope::Cluster));
        let reduced = !self.args.reducers.is_empty();
        if reduced {
            self.shares(b, &exchange, |b, from, to| {
                let out = Out::new(b, self, at);
                out.by_beta(b, |b, old| out.apply_in_registers(b, math, from * registers..to * registers, old));
            });
            self.reduce_shares(b, &exchange, at);
        }
        if matches!(self.args.target, Target::Nowhere) {
            return;
        }
        self.shares(b, &exchange, |b, from, to| {
            let out = Out::new(b, self, at);
            let out = if reduced { out.applied_already() } else { out };
            let width = self.spec.epilogue.exit.width();
            let along = if width > 1 && !columns_contiguous(self.c) { Axis::Row } else { Axis::Col };
            out.by_beta(b, |b, old| {
                let ours = from * registers..to * registers;
                math.runs(b, (along, width), ours, &mut |b, row, col, values| out.put(b, row, col, values, old));
            });
        });
    }

    /// Each split's share of the tile is reduced: what it has of others is a part of their sums only.
    fn reduce_shares(&self, b: &mut Builder, exchange: &Exchange, at: &TilePosition) {
        let (Some(place), ways) = (self.place, self.spec.tiling.split_k.ways) else { return };
        let ours: Vec<ExprId> = (0..ways).map(|split| b.bind("ours", place.split.equals(split))).collect();
        let share = |access: u32| (0..ways).find(|split| exchange.share(*split, ways).contains(&access));
        let counts = |element: u32| share(element / exchange.width).map(|split| ours[split as usize]);
        let out = Out::new(b, self, at);
        self.reduce(b, exchange.math, at, &out, &counts);
    }

    /// What each split does with its share of the accesses.
    fn shares(&self, b: &mut Builder, exchange: &Exchange, each: impl Fn(&mut Builder, u32, u32)) {
        let (Some(place), ways) = (self.place, self.spec.tiling.split_k.ways) else { return };
        for split in 0..ways {
            let Range { start: from, end: to } = exchange.share(split, ways);
            if from < to {
                b.if_then(place.split.equals(split), |b| each(b, from, to));
            }
        }
    }

    /// Adds up the sums of an access.
    fn sum(&self, b: &mut Builder, exchange: &Exchange, access: u32) {
        let Some(place) = self.place else { return };
        let cluster = self.spec.tiling.cluster;
        let first_rank = b.value((place.n * cluster.m + place.m) * cluster.splits);
        let at = exchange.at(b, access);
        let mut total: Option<Vec<ExprId>> = None;
        for split in 0..cluster.splits {
            let theirs = b.load_peer("theirs", Base::Shared(exchange.array), at, exchange.width, first_rank + split);
            let theirs: Vec<ExprId> = (0..exchange.width).map(|i| b.value(theirs.extract(i))).collect();
            total = Some(match total {
                None => theirs,
                Some(sum) => sum.iter().zip(&theirs).map(|(&a, &t)| b.value(a + t)).collect(),
            });
        }
        let total = total.unwrap_or_default();
        for (i, values) in (0..).zip(total.chunks(exchange.math.width as usize)) {
            let value = b.vector(values);
            b.set_reg(exchange.math.regs, access * exchange.registers + i, value);
        }
    }
}

impl Exchange<'_> {
    /// Accesses of a thread.
    fn count(&self) -> u32 {
        self.math.count() / self.registers
    }

    /// The accesses that one of the splits sums up.
    fn share(&self, split: u32, ways: u32) -> Range<u32> {
        let bound = |s: u32| (u64::from(self.count()) * u64::from(s) / u64::from(ways)) as u32;
        bound(split)..bound(split + 1)
    }

    fn at(&self, b: &mut Builder, access: u32) -> ExprId {
        b.value(self.thread * self.width + (access * self.threads * self.width))
    }

    fn put(&self, b: &mut Builder, access: u32) {
        let values: Vec<ExprId> = (0..self.width).map(|i| self.math.value(b, access * self.width + i)).collect();
        let value = b.vector(&values);
        let at = self.at(b, access);
        b.store(Base::Shared(self.array), at, value, None);
    }
}
