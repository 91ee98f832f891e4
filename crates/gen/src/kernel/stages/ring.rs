//! The circular buffer of stages, with transaction barriers that signal full and free stages.

use super::counter::Counter;
use crate::kernel::tile::cluster::ClusterPlace;
use crate::plan::{Area, Barriers, KernelSpec};
use tilewright_ir::*;

/// The barriers of the stages of both operands.
#[derive(Clone)]
pub(crate) struct Ring {
    full: TxId,
    free: TxId,
    buffers: u32,
    /// The work-group's place in its cluster.
    pub place: Option<ClusterPlace>,
    /// With ping-pong: one barrier for each team.
    pub turns: Option<TxArray>,
    /// With shifted rows: one barrier for each producer warp and slot.
    staged: Option<TxArray>,
}

/// An array of transaction barriers.
#[derive(Clone, Copy)]
pub(crate) struct TxArray {
    pub barriers: TxId,
    pub count: u32,
}

/// What makes a stage full.
#[derive(Clone, Copy)]
pub(crate) struct FullStage {
    pub arrivals: u32,
    /// It also waits for the bytes of bulk copies.
    pub copied: bool,
}

impl Ring {
    /// Declares the barriers.
    pub fn new(b: &mut Builder, spec: &KernelSpec, place: Option<ClusterPlace>, barriers: &Barriers) -> Ring {
        let mut declare = |name: &str, area: Area| b.tx_barriers(name, Barriers::count(area), area.first());
        let (full, free) = (declare("full", barriers.full), declare("empty", barriers.free));
        let mut some = |name: &str, area: Area| {
            (area.bytes > 0).then(|| TxArray { barriers: declare(name, area), count: Barriers::count(area) })
        };
        let (turns, staged) = (some("turn", barriers.turns), some("staged", barriers.staged));
        Ring { full, free, buffers: spec.schedule.buffers, place, turns, staged }
    }

    /// Barriers of the staging slots, consecutive for each wave.
    pub fn staged_barriers(&self) -> TxId {
        self.staged.map_or(self.full, |staged| staged.barriers)
    }

    /// One thread initialises the barriers; a barrier of all threads follows.
    pub fn init(&self, b: &mut Builder, local: ExprId, full: FullStage, math_waves: u32) {
        let sharers = self.place.as_ref().map_or(1, |place| place.size.sharers());
        b.if_then(local.equals(0), |b| {
            for i in 0..self.buffers {
                let index = b.int(i64::from(i), Scalar::I32);
                b.bulk(BulkOp::Init { barrier: TxRef { barriers: self.full, index }, arrivals: full.arrivals });
                b.bulk(BulkOp::Init { barrier: TxRef { barriers: self.free, index }, arrivals: math_waves * sharers });
            }
            for (array, arrivals) in [(self.turns, math_waves), (self.staged, 1)] {
                let Some(TxArray { barriers, count }) = array else { continue };
                for i in 0..count {
                    let index = b.int(i64::from(i), Scalar::I32);
                    b.bulk(BulkOp::Init { barrier: TxRef { barriers, index }, arrivals });
                }
            }
            if full.copied || self.staged.is_some() {
                b.bulk(BulkOp::InitFence);
            }
        });
        match self.place {
            // Others arrive at these and copy into the buffers.
            Some(_) => b.push(Stmt::Barrier(BarrierScope::ClusterStart)),
            None => b.barrier(),
        }
    }

    /// In the copying thread, after its last copy. In a cluster, the work-group stays until its buffers have been released for
    /// the last time, because other work-groups release them too. Where accumulators are exchanged, a barrier of all threads
    /// follows anyway.
    pub fn drain(&self, b: &mut Builder, at: Counter) {
        if self.place.as_ref().is_none_or(|place| place.size.sharers() <= 1 || place.size.splits > 1) {
            return;
        }
        b.for_range("last", 0, self.buffers, Unroll::No, |b, _| {
            self.acquire(b, at);
            at.next(b);
        });
    }

    /// Waits until a buffer is free.
    pub fn acquire(&self, b: &mut Builder, at: Counter) {
        let index = at.stage(b);
        let phase = at.phase(b);
        // The first time around nothing is waited for: the phase before the first counts as over.
        let parity = b.value(1 - phase);
        b.bulk(BulkOp::Wait { barrier: TxRef { barriers: self.free, index }, parity });
    }

    /// Waits until the buffer is full.
    pub fn wait(&self, b: &mut Builder, at: Counter) {
        let barrier = self.full(b, at);
        let parity = at.phase(b);
        b.bulk(BulkOp::Wait { barrier, parity });
    }

    /// The barrier that says that the walk's buffer is full.
    pub fn full(&self, b: &mut Builder, at: Counter) -> TxRef {
        TxRef { barriers: self.full, index: at.stage(b) }
    }

    /// The barrier that says that the walk's buffer is free.
    pub fn free(&self, b: &mut Builder, at: Counter) -> TxRef {
        TxRef { barriers: self.free, index: at.stage(b) }
    }
}

/// Waves that compute a tile together, and so read each of its buffers.
pub(crate) fn math_waves(spec: &KernelSpec) -> u32 {
    spec.tiling.math_threads() / spec.tiling.wave_lanes.max(1)
}
