//! A work-group's position in its cluster. It determines the part of a shared tile that the work-group copies, the receivers of the copy,
//! and the work-groups that it signals when it releases a buffer.
//!
//! Work-groups side by side along m share B's tile, and work-groups along n share A's tile. Each work-group copies its part by multicast:
//! the copy engine writes it to the shared memory of every sharer and counts its bytes at the sharer's barrier. A buffer is free when
//! every reader has released it. Therefore every wave arrives at the barriers of its whole row and column of the cluster.
//! All work-groups take part in every k-tile, even if their own tile of C is outside of the result.

use crate::plan::Tiling;
use tilewright_ir::*;

/// Position in the cluster: `rank = split + splits (m + extent_m n)`.
#[derive(Clone, Copy)]
pub(crate) struct ClusterPlace {
    pub m: ExprId,
    pub n: ExprId,
    pub split: ExprId,
    /// Which cluster this is.
    pub cluster: ExprId,
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
        })
    }

    /// Rank of the work-group at (m, n) that has this one's split.
    fn rank(&self, b: &mut Builder, t: &Tiling, m: ExprId, n: ExprId) -> ExprId {
        b.value((n * t.cluster.m + m) * t.cluster.splits + self.split)
    }

    /// Who receives what this work-group copies of an operand (0: A, 1: B), as bits of ranks; `None`: itself alone.
    pub fn receivers(&self, b: &mut Builder, t: &Tiling, operand: usize) -> Option<ExprId> {
        let c = t.cluster;
        let zero = b.int(0, Scalar::I32);
        let (count, apart, first) = match operand {
            0 => (c.n, c.splits * c.m, self.rank(b, t, self.m, zero)),
            _ => (c.m, c.splits, self.rank(b, t, zero, self.n)),
        };
        (count > 1).then(|| {
            let ranks = (0..count).fold(0i64, |bits, i| bits | 1 << (i * apart));
            b.value(Ex::int(ranks, Scalar::I32) << first)
        })
    }

    /// Of how many parts of an operand's tile this work-group copies which one; `None`: all of it.
    pub fn part(&self, t: &Tiling, operand: usize) -> Option<(u32, ExprId)> {
        let (count, index) = if operand == 0 { (t.cluster.n, self.n) } else { (t.cluster.m, self.m) };
        (count > 1).then_some((count, index))
    }

    /// Which lanes of a wave release a buffer, and at which rank each does: all that copy into this work-group's buffers.
    pub fn releases(&self, b: &mut Builder, t: &Tiling, lane: ExprId) -> Option<(ExprId, ExprId)> {
        let c = t.cluster;
        if c.sharers() <= 1 {
            return None;
        }
        let releases = b.bind("releases", lane.lt(c.sharers()));
        // Those along n first, then the others along m.
        let row = self.rank(b, t, self.m, lane);
        let rank = if c.m == 1 {
            row
        } else {
            let further = b.value(lane - c.n);
            let m = b.value(further + self.m.le(further).select(Ex::int(1, Scalar::I32), 0));
            let column = self.rank(b, t, m, self.n);
            b.value(lane.lt(c.n).select(row, column))
        };
        Some((releases, b.bind("release_rank", rank)))
    }
}
