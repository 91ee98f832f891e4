//! Reduction of partial sums of a tile through shared memory: the splits of a cluster (`SKS2`), or the slices of a work-group (`LSU`).
//! It needs no workspace and no second kernel, and its order is fixed.
//!
//! Every peer (split or slice) writes its accumulators to shared memory, over the operands' tiles. After a barrier, each peer takes a part
//! of the tile, adds the partial sums of all peers in order, and stores the results. A thread adds the accumulators of the threads with
//! its own number.

use super::out::{Out, Target};
use super::owners::Owners;
use super::{Epilogue, Staged};
use crate::kernel::tile::position::TilePosition;
use crate::kernel::unit::accumulators::Accumulators;
use crate::kernel::unit::{AccumulatorSet, in_slices};
use crate::plan::ExchangeShape;
use std::ops::Range;
use tilewright_ir::*;

/// The exchange of a tile's sums, and the array that it goes through.
struct Exchange<'a> {
    math: &'a Accumulators,
    array: SharedId,
    thread: ExprId,
    threads: u32,
    shape: ExchangeShape,
    /// Who adds up which accesses, and stores what they give.
    owners: Owners,
    reach: Reach,
}

/// How peers reach each other's sums.
#[derive(Clone, Copy)]
enum Reach {
    /// In the array of the work-group of their number, counted from this rank of the cluster.
    Cluster(ExprId),
    /// In one array, one after the other.
    Array,
}

impl Epilogue<'_> {
    /// Reduces the partial sums after the last k-tile. All consumer threads must call it. In a cluster, the producer warps take part in
    /// both cluster barriers ([`Epilogue::meet`]), before and after the reads.
    pub(super) fn sum_parts(&self, b: &mut Builder, acc: &AccumulatorSet, at: &TilePosition, staged: Option<&Staged>) {
        let math = &self.accumulators(b, acc);
        let Some(exchange) = self.exchange(b, math) else { return };
        for (number, round) in exchange.rounds().enumerate() {
            if number > 0 || matches!(exchange.reach, Reach::Cluster(_)) {
                // Other waves may still read the operands that these lie over, or the sums of the last round.
                self.sync_math(b);
            }
            for access in round.clone() {
                exchange.put(b, access);
            }
            exchange.sync(b);
            exchange.owners.each(b, Some(&round), |b, share| {
                let ours = share.accesses.iter().cloned().flatten().filter(|access| round.contains(access));
                ours.for_each(|access| exchange.sum(b, access));
            });
        }
        if let Reach::Cluster(_) = exchange.reach {
            if self.piped && self.spec.tiling.persistent > 0 {
                // Bulk copies of the next tile follow in the same place.
                b.bulk(BulkOp::ProxyFence);
            }
            // Ahead of the stores, whose end it would wait for.
            exchange.sync(b);
        }
        let reduced = !self.args.reducers.is_empty();
        if reduced {
            exchange.owners.each(b, None, |b, share| {
                let out = Out::new(b, self, at);
                out.by_beta(b, |b, old| share.registers().for_each(|ours| out.apply_in_registers(b, math, ours, old)));
            });
            self.reduce_shares(b, &exchange, at);
        }
        if matches!(self.args.target, Target::Nowhere) {
            return;
        }
        let out = |b: &mut Builder| {
            let out = Out::new(b, self, at);
            if reduced { out.applied_already() } else { out }
        };
        if self.staged_columns().is_some() {
            let out = reduced.then(|| out(b));
            return self.store(b, acc, at, out, Some(&exchange.owners), staged);
        }
        exchange.owners.each(b, None, |b, share| {
            let out = out(b);
            out.by_beta(b, |b, old| out.runs_of(b, math, share, old));
        });
    }

    /// Who has parts of the tile, and what they meet in.
    fn exchange<'m>(&self, b: &mut Builder, math: &'m Accumulators) -> Option<Exchange<'m>> {
        let t = &self.spec.tiling;
        let (threads, shape) = (t.math_threads(), self.spec.exchange(math.scalar)?);
        let area = self.shared.exchange;
        let array = b.shared("partial_acc", math.scalar, area.bytes as u32 / math.scalar.bytes(), area.first());
        let (thread, number, peers, reach) = match t.slices {
            1 => {
                b.comment("the splits of the tile exchange their sums");
                let place = self.place?;
                let first_rank = b.value((place.n * t.cluster.m + place.m) * t.cluster.splits);
                (self.thread, place.split, t.cluster.splits, Reach::Cluster(first_rank))
            }
            slices => {
                b.comment("the slices of the work-group exchange their sums");
                let (thread, slice) = in_slices(b, t, self.thread);
                (thread, slice, slices, Reach::Array)
            }
        };
        let owners = Owners::new(number, peers, &shape, &self.staging(math));
        Some(Exchange { math, array, thread, threads, shape, owners, reach })
    }

    /// Each peer's share of the tile is reduced: what it has of others is a part of their sums only.
    fn reduce_shares(&self, b: &mut Builder, exchange: &Exchange, at: &TilePosition) {
        let (owners, width) = (&exchange.owners, exchange.shape.width);
        let ours: Vec<ExprId> = (0..owners.peers()).map(|peer| b.bind("ours", owners.number.equals(peer))).collect();
        let counts = |element: u32| owners.of(element / width).map(|peer| ours[peer as usize]);
        let out = Out::new(b, self, at);
        self.reduce(b, exchange.math, at, &out, &counts);
    }
}

impl Exchange<'_> {
    /// The accesses whose sums are in shared memory at a time.
    fn rounds(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let ExchangeShape { accesses, at_once, .. } = self.shape;
        (0..accesses).step_by(at_once.max(1) as usize).map(move |first| first..(first + at_once).min(accesses))
    }

    /// All peers wait for each other.
    fn sync(&self, b: &mut Builder) {
        match self.reach {
            Reach::Cluster(_) => b.push(Stmt::Barrier(BarrierScope::Cluster)),
            Reach::Array => b.barrier(),
        }
    }

    /// Where an access lies among a peer's sums.
    fn at(&self, b: &mut Builder, access: u32) -> ExprId {
        let ExchangeShape { width, at_once, .. } = self.shape;
        b.value(self.thread * width + (access % at_once.max(1) * self.threads * width))
    }

    /// Elements from the sums of one peer to those of the next in the same array.
    const fn peer_stride(&self) -> u32 {
        self.shape.at_once * self.shape.width * self.threads
    }

    fn put(&self, b: &mut Builder, access: u32) {
        let width = self.shape.width;
        let values: Vec<ExprId> = (0..width).map(|i| self.math.value(b, access * width + i)).collect();
        let value = b.vector(&values);
        let at = self.at(b, access);
        let at = match self.reach {
            Reach::Cluster(_) => at,
            Reach::Array => b.value(at + self.owners.number * self.peer_stride()),
        };
        b.store(Base::Shared(self.array), at, value, None);
    }

    /// Adds up the sums of an access.
    fn sum(&self, b: &mut Builder, access: u32) {
        let (at, width) = (self.at(b, access), self.shape.width);
        let mut total: Option<Vec<ExprId>> = None;
        for peer in 0..self.owners.peers() {
            let theirs = match self.reach {
                Reach::Cluster(first) => b.load_peer("theirs", Base::Shared(self.array), at, width, first + peer),
                Reach::Array => b.load("theirs", Base::Shared(self.array), at + peer * self.peer_stride(), width, None),
            };
            let theirs: Vec<ExprId> = (0..width).map(|i| b.value(theirs.extract(i))).collect();
            total = Some(match total {
                None => theirs,
                Some(sum) => sum.iter().zip(&theirs).map(|(&a, &t)| b.value(a + t)).collect(),
            });
        }
        let total = total.unwrap_or_default();
        for (i, values) in (0..).zip(total.chunks(self.math.width as usize)) {
            let value = b.vector(values);
            b.set_reg(self.math.regs, access * self.shape.registers + i, value);
        }
    }
}
