//! Sums of a tile's splits over a cluster: no workspace, no second kernel, always in the same order.
//!
//! Every work-group puts its sums where the operands' tiles were. When all have, each takes a part of the tile, reads it from all
//! of them in the order of the splits, and stores it. A thread's sums keep their place: what it adds up are the sums of the
//! threads with its number.

use crate::kernel::unit::wgmma::Warpgroup;
use crate::kernel::unit::{Accumulators, Bands, Put};
use crate::plan::Tiling;
use tilewright_ir::*;

/// Sums that one shared access moves.
const VECTOR: u32 = 4;

/// The exchange, and the array that it goes through.
pub(crate) struct ClusterSum<'a> {
    math: &'a Warpgroup,
    sums: SharedId,
    threads: u32,
    thread: ExprId,
    ways: u32,
    /// Rank of the first split, and this work-group's split.
    first_rank: ExprId,
    split: ExprId,
}

/// The part of the sums that one split stores.
struct Share<'a> {
    math: &'a Warpgroup,
    /// Vectors of sums.
    from: u32,
    to: u32,
}

impl Accumulators for Share<'_> {
    fn runs(&self, b: &mut Builder, put: Put) {
        self.math.pairs_within(b, self.from..self.to, |b, row, col, values| put(b, row, col, &values));
    }
}

impl<'a> ClusterSum<'a> {
    /// `place` is the work-group's split, `first_rank` the rank of the first split of its tile.
    pub fn new(b: &mut Builder, math: &'a Warpgroup, t: &Tiling, thread: ExprId, place: (ExprId, ExprId)) -> Self {
        let sums = b.shared("sums", Scalar::F32, t.a.macro_tile * t.b.macro_tile, 0);
        let (split, first_rank) = place;
        ClusterSum { math, sums, threads: t.math_threads(), thread, ways: t.split_k.ways, first_rank, split }
    }

    fn vectors(&self) -> u32 {
        let (rows, columns) = self.math.shape();
        rows * columns / 2 / VECTOR
    }

    fn at(&self, b: &mut Builder, vector: u32) -> ExprId {
        b.value(self.thread * VECTOR + (vector * self.threads * VECTOR))
    }

    /// Behind the last k-tile; `store` puts results out. All math threads come here, and all threads to the cluster barriers: one
    /// before the sums are read, one behind.
    pub fn emit(&self, b: &mut Builder, store: impl Fn(&mut Builder, &dyn Accumulators)) {
        b.comment("the splits of the tile exchange their sums");
        // Other waves may still read the operands that these lie over.
        b.push(Stmt::Barrier(BarrierScope::Named { id: 1, threads: self.threads }));
        for v in 0..self.vectors() {
            let values: Vec<ExprId> = (0..VECTOR).map(|i| b.reg(self.math.acc, v * VECTOR + i)).collect();
            let value = b.vector(&values);
            let at = self.at(b, v);
            b.store(Base::Shared(self.sums), at, value, None);
        }
        b.push(Stmt::Barrier(BarrierScope::Cluster));
        self.shares(b, |b, share| (share.from..share.to).for_each(|v| self.sum(b, v)));
        // Ahead of the stores, whose end it would wait for.
        b.push(Stmt::Barrier(BarrierScope::Cluster));
        self.shares(b, |b, share| store(b, share));
    }

    /// What each split does with its share.
    fn shares(&self, b: &mut Builder, each: impl Fn(&mut Builder, &Share)) {
        let bound = |s: u32| (u64::from(self.vectors()) * u64::from(s) / u64::from(self.ways)) as u32;
        for split in 0..self.ways {
            let share = Share { math: self.math, from: bound(split), to: bound(split + 1) };
            if share.from < share.to {
                b.if_then(self.split.equals(split), |b| each(b, &share));
            }
        }
    }

    /// Adds up a vector of sums.
    fn sum(&self, b: &mut Builder, vector: u32) {
        let at = self.at(b, vector);
        let mut total: Option<Vec<ExprId>> = None;
        for split in 0..self.ways {
            let theirs = b.load_peer("theirs", Base::Shared(self.sums), at, VECTOR, self.first_rank + split);
            let theirs: Vec<ExprId> = (0..VECTOR).map(|i| b.value(theirs.extract(i))).collect();
            total = Some(match total {
                None => theirs,
                Some(sum) => sum.iter().zip(&theirs).map(|(&a, &t)| b.value(a + t)).collect(),
            });
        }
        for (i, value) in (0..).zip(total.unwrap_or_default()) {
            b.set_reg(self.math.acc, vector * VECTOR + i, value);
        }
    }
}
