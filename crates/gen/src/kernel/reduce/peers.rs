//! Combination of values within a cluster, before they are stored. Each work-group writes its values to its shared memory. Then it takes a
//! share of the values and reads them from all work-groups in the order of their ranks.

use super::tile::HeldTile;
use super::{PeerValues, State, bind};
use crate::kernel::tile::cluster::ClusterPlace;
use tilewright_ir::*;

impl HeldTile<'_> {
    /// Combines the values of the cluster. All threads of the cluster must call it, after the stores of their own values.
    pub(super) fn reduce_peers<'m>(&self, b: &mut Builder, all: impl Iterator<Item = PeerValues<'m>>) {
        let mut all = all.peekable();
        let Some(place) = self.cluster.filter(|_| all.peek().is_some()) else { return };
        b.comment("work-groups of the cluster combine their values");
        b.push(Stmt::Barrier(BarrierScope::Cluster));
        all.for_each(|own_values| self.combine_shares(b, &own_values, place));
        // Nobody writes, or ends, before all have read.
        b.push(Stmt::Barrier(BarrierScope::Cluster));
    }

    /// The work-group's share of the values.
    fn combine_shares(&self, b: &mut Builder, own_values: &PeerValues, place: ClusterPlace) {
        let (reducer, how) = (own_values.reducer, own_values.how);
        let [m, n, splits] = reducer.partials.peers.map(|peers| peers as u32);
        let count = m * n * splits;
        let mut own = b.int(0, Scalar::I32);
        for (peers, at) in [(m, place.m), (n, place.n), (splits, place.split)].into_iter().filter(|(peers, _)| *peers > 1) {
            own = b.value(own * peers + at);
        }
        let own = b.bind("own_share", own);
        for step in 0..how.values.div_ceil(self.threads * count) {
            let value = b.bind("value", (self.thread + step * self.threads) * count + own);
            let body = |b: &mut Builder| {
                let mut states: Vec<State> = Vec::new();
                for number in 0..count {
                    let of = [number / splits / n, number / splits % n, number % splits];
                    let rank = peer_rank(b, place, [m, n, splits], of);
                    let mut load = |array: &SharedId| b.load_peer("theirs", Base::Shared(*array), value, 1, rank);
                    states.push(own_values.arrays.iter().map(&mut load).collect());
                }
                let total = reducer.all(b, &states);
                let total = bind(b, "total", total);
                let at = self.places(b, reducer, how, value);
                self.put(b, reducer, at, &total, None);
            };
            let partly = (step + 1) * self.threads * count > how.values;
            if partly { b.if_then(value.lt(how.values), body) } else { body(b) }
        }
    }
}

/// Rank of one of those that combine values, by its place among them; elsewhere it is this work-group's.
fn peer_rank(b: &mut Builder, place: ClusterPlace, peers: [u32; 3], of: [u32; 3]) -> ExprId {
    let mut at = |axis: usize, own: ExprId| if peers[axis] > 1 { b.int(of[axis].into(), Scalar::I32) } else { own };
    let to = [at(0, place.m), at(1, place.n), at(2, place.split)];
    place.rank(b, to)
}
