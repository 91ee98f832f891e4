//! The circular buffer of stages of bulk copies: transaction barriers that say which buffers are full and which are free, and the walks
//! around it.

use crate::kernel::tile::cluster::ClusterPlace;
use crate::plan::{BulkTile, KernelSpec, SplitSum, Tiling, sum_bytes};
use tilewright_ir::*;

/// The buffers of both operands and their barriers, in shared memory.
#[derive(Clone)]
pub(crate) struct Ring {
    /// Tiles of A and of B, all buffers of one operand behind each other.
    pub arrays: [SharedId; 2],
    pub tiles: [BulkTile; 2],
    full: TxId,
    free: TxId,
    buffers: u32,
    /// The work-group's place in its cluster, and how the cluster is cut.
    pub place: Option<(ClusterPlace, Tiling)>,
    /// One for each team of math waves where they alternate between result tiles, and how many there are.
    pub turns: Option<(TxId, u32)>,
    /// Where load waves shift from staging: a barrier for each wave and slot, and how many there are.
    staged: Option<(TxId, u32)>,
}

/// A walk around the circular buffer: the buffer, and the parity of the phase its barriers are in.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    buffer: VarId,
    phase: VarId,
}

impl Ring {
    /// Declares buffers and barriers.
    pub fn new(b: &mut Builder, tiles: [BulkTile; 2], spec: &KernelSpec, place: Option<ClusterPlace>) -> Ring {
        let (buffers, teams) = (spec.schedule.buffers, spec.teams());
        let place = place.map(|place| (place, spec.tiling.clone()));
        let mut at = 0;
        let arrays = [0, 1].map(|i| {
            let t = &tiles[i];
            let array = b.shared(["a_tile", "b_tile"][i], t.map.scalar, t.bytes / t.map.scalar.bytes() * buffers, at);
            at += t.bytes * buffers;
            array
        });
        if spec.epilogue.split_sum == SplitSum::Cluster {
            at = at.max(sum_bytes(&spec.tiling) as u32);
        }
        let full = b.tx_barriers("full", buffers, at);
        let free = b.tx_barriers("free", buffers, at + 8 * buffers);
        let turns = (teams > 1).then(|| (b.tx_barriers("turn", teams, at + 16 * buffers), teams));
        let slots = spec.schedule.slots();
        let staged = (slots > 0).then(|| {
            let count = slots * spec.load_threads() / spec.tiling.wave_lanes.max(1);
            let at = b.kernel().shared_bytes();
            (b.tx_barriers("staged", count, at), count)
        });
        Ring { arrays, tiles, full, free, buffers, place, turns, staged }
    }

    /// Barriers of the slots of staging: of each wave one behind the other.
    pub fn staged_barriers(&self) -> TxId {
        self.staged.map_or(self.full, |(staged, _)| staged)
    }

    /// One thread sets the barriers up; all meet behind it. A buffer is full after this many arrivals, and the bytes of bulk copies
    /// if there are any.
    pub fn init(&self, b: &mut Builder, local: ExprId, (full, copied): (u32, bool), math_waves: u32) {
        let sharers = self.place.as_ref().map_or(1, |(_, t)| t.cluster.sharers());
        b.if_then(local.equals(0), |b| {
            for i in 0..self.buffers {
                let index = b.int(i64::from(i), Scalar::I32);
                b.bulk(BulkOp::Init { barrier: TxRef { barriers: self.full, index }, arrivals: full });
                b.bulk(BulkOp::Init { barrier: TxRef { barriers: self.free, index }, arrivals: math_waves * sharers });
            }
            if let Some((turn, teams)) = self.turns {
                for i in 0..teams {
                    let index = b.int(i64::from(i), Scalar::I32);
                    b.bulk(BulkOp::Init { barrier: TxRef { barriers: turn, index }, arrivals: math_waves });
                }
            }
            if let Some((staged, count)) = self.staged {
                for i in 0..count {
                    let index = b.int(i64::from(i), Scalar::I32);
                    b.bulk(BulkOp::Init { barrier: TxRef { barriers: staged, index }, arrivals: 1 });
                }
            }
            if copied || self.staged.is_some() {
                b.bulk(BulkOp::InitFence);
            }
        });
        match self.place {
            // Others arrive at these and copy into the buffers.
            Some(_) => b.push(Stmt::Barrier(BarrierScope::ClusterStart)),
            None => b.barrier(),
        }
    }

    /// In the copying thread, behind its last copy: in a cluster the work-group stays until its buffers have been released for the
    /// last time, which others do too. Where sums are exchanged, all meet behind that anyway.
    pub fn drain(&self, b: &mut Builder, walk: Walk) {
        if self.place.as_ref().is_none_or(|(_, t)| t.cluster.sharers() <= 1 || t.cluster.splits > 1) {
            return;
        }
        b.for_range("last", 0, self.buffers, Unroll::No, |b, _| {
            self.acquire(b, walk);
            self.next(b, walk);
        });
    }

    /// Waits until a buffer is free.
    pub fn acquire(&self, b: &mut Builder, walk: Walk) {
        let buffer = b.get(walk.buffer);
        let phase = b.get(walk.phase);
        // The first time around nothing is waited for: the phase before the first counts as over.
        let parity = b.value(1 - phase);
        b.bulk(BulkOp::Wait { barrier: TxRef { barriers: self.free, index: buffer }, parity });
    }

    /// Waits until the buffer is full.
    pub fn wait(&self, b: &mut Builder, walk: Walk) {
        let barrier = self.full(b, walk);
        let parity = b.get(walk.phase);
        b.bulk(BulkOp::Wait { barrier, parity });
    }

    /// The barrier that says that the walk's buffer is full.
    pub fn full(&self, b: &mut Builder, walk: Walk) -> TxRef {
        TxRef { barriers: self.full, index: b.get(walk.buffer) }
    }

    /// The barrier that says that the walk's buffer is free.
    pub fn free(&self, b: &mut Builder, walk: Walk) -> TxRef {
        TxRef { barriers: self.free, index: b.get(walk.buffer) }
    }

    /// A walk that starts at the first buffer.
    pub fn walk(&self, b: &mut Builder, name: &str) -> Walk {
        let zero = b.int(0, Scalar::I32);
        Walk { buffer: b.declare(&format!("{name}_buffer"), zero), phase: b.declare(&format!("{name}_phase"), zero) }
    }

    /// Passes over buffers that others read.
    pub fn skip(&self, b: &mut Builder, walk: Walk, tiles: ExprId) {
        let sum = b.bind("skipped", walk.buffer + tiles.cast(Scalar::I32));
        b.set(walk.phase, (walk.phase + sum / self.buffers) % 2);
        b.set(walk.buffer, sum % self.buffers);
    }

    pub fn next(&self, b: &mut Builder, walk: Walk) {
        walk.turn(b, self.buffers);
    }
}

impl Walk {
    /// The buffer.
    pub fn buffer(self, b: &mut Builder) -> ExprId {
        b.get(self.buffer)
    }
    /// The parity of its phase.
    pub fn phase(self, b: &mut Builder) -> ExprId {
        b.get(self.phase)
    }

    /// On to the next of so many buffers.
    pub fn turn(self, b: &mut Builder, buffers: u32) {
        let more = b.bind("next_buffer", self.buffer + 1);
        let around = b.bind("around", more.equals(buffers));
        b.set(self.buffer, around.select(0, more));
        let phase = b.get(self.phase);
        let turned = b.value(1 - phase);
        b.set(self.phase, around.select(turned, phase));
    }
}

/// Waves that compute a tile together, and so read each of its buffers.
pub(crate) fn math_waves(spec: &KernelSpec) -> u32 {
    spec.tiling.math_threads() / spec.tiling.wave_lanes.max(1)
}
