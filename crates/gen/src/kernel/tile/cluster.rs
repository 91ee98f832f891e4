//! A work-group's position in its cluster. It determines the part of a shared tile that the work-group copies and the receivers
//! of the copy. It also determines the work-groups that it signals when it releases a buffer.
//!
//! Work-groups side by side along m share B's tile, and work-groups along n share A's tile. Each work-group copies its part by
//! multicast. The copy engine writes it to the shared memory of every sharer and counts its bytes at the sharer's barrier. A
//! buffer is free when every reader has released it. Therefore every wave arrives at the barriers of its whole row and column of
//! the cluster. All work-groups take part in every k-tile, even if their own tile of C is outside of the result.

use crate::plan::{Cluster, Tiling};
use tilewright_ir::*;

/// Position in the cluster: `rank = split + splits (m + extent_m n)`.
#[derive(Clone, Copy)]
pub(crate) struct ClusterPlace {
    pub m: ExprId,
    pub n: ExprId,
    pub split: ExprId,
    /// Which cluster this is.
    pub cluster: ExprId,
    /// The work-groups of a cluster.
    pub size: Cluster,
}

/// The part of an operand's tile that a work-group copies.
#[derive(Clone, Copy)]
pub(crate) struct CopyPart {
    /// Number of parts.
    pub parts: u32,
    /// Which part.
    pub index: ExprId,
}

/// Release of a buffer to all work-groups that copy into it.
#[derive(Clone, Copy)]
pub(crate) struct Release {
    /// Condition of the lanes that release it.
    pub lanes: ExprId,
    /// The rank at which each lane does.
    pub rank: ExprId,
}

impl ClusterPlace {
    /// Declares it; `None` for work-groups without a cluster.
    pub fn new(b: &mut Builder, t: &Tiling) -> Option<ClusterPlace> {
        if t.cluster.size() > 1 {
            b.cluster(t.cluster.size());
        }
        let group = b.builtin(Builtin::GroupId(0));
        ClusterPlace::of(b, t, group)
    }

    /// Of the work-group with this number.
    pub fn of(b: &mut Builder, t: &Tiling, group: ExprId) -> Option<ClusterPlace> {
        let c = t.cluster;
        if c.size() <= 1 {
            return None;
        }
        let rank = b.bind("cluster_rank", group % c.size());
        let cluster = b.bind("cluster_id", group / c.size());
        let tile = b.value(rank / c.splits);
        Some(ClusterPlace {
            m: b.bind("cluster_m", tile % c.m),
            n: b.bind("cluster_n", tile / c.m),
            split: b.bind("cluster_split", rank % c.splits),
            cluster,
            size: c,
        })
    }

    /// Rank of the work-group at (m, n, split).
    pub fn rank(&self, b: &mut Builder, [m, n, split]: [ExprId; 3]) -> ExprId {
        b.value((n * self.size.m + m) * self.size.splits + split)
    }

    /// Who receives what this work-group copies of an operand (0: A, 1: B), as bits of ranks; `None`: itself alone.
    pub fn receivers(&self, b: &mut Builder, operand: usize) -> Option<ExprId> {
        let c = self.size;
        let zero = b.int(0, Scalar::I32);
        let (count, apart, first) = match operand {
            0 => (c.n, c.splits * c.m, self.rank(b, [self.m, zero, self.split])),
            _ => (c.m, c.splits, self.rank(b, [zero, self.n, self.split])),
        };
        (count > 1).then(|| {
            let ranks = (0..count).fold(0i64, |bits, i| bits | 1 << (i * apart));
            b.value(Ex::int(ranks, Scalar::I32) << first)
        })
    }

    /// The part of an operand's tile that this work-group copies; `None`: all of it.
    pub fn part(&self, operand: usize) -> Option<CopyPart> {
        let (parts, index) = if operand == 0 { (self.size.n, self.n) } else { (self.size.m, self.m) };
        (parts > 1).then_some(CopyPart { parts, index })
    }

    /// How the lanes of a wave release a buffer: one lane for each work-group that copies into this work-group's buffers.
    pub fn release(&self, b: &mut Builder, lane: ExprId) -> Option<Release> {
        let c = self.size;
        if c.sharers() <= 1 {
            return None;
        }
        let lanes = b.bind("releases", lane.lt(c.sharers()));
        // Those along n first, then the others along m.
        let row = self.rank(b, [self.m, lane, self.split]);
        let rank = if c.m == 1 {
            row
        } else {
            let further = b.value(lane - c.n);
            let m = b.value(further + self.m.le(further).select(Ex::int(1, Scalar::I32), 0));
            let column = self.rank(b, [m, self.n, self.split]);
            b.value(lane.lt(c.n).select(row, column))
        };
        Some(Release { lanes, rank: b.bind("release_rank", rank) })
    }
}
