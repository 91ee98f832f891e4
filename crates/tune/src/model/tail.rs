//! Rounds of persistent work-groups, with and without a split tail.

use tilewright_gen::plan::{Keys, Tiling, first_split_row};
use tilewright_problem::contraction::Contraction;

/// The busiest work-group: its whole tiles, and its splits of the last tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Busiest {
    /// Whole tiles.
    pub whole: f64,
    /// Splits, each with its share of the k-tiles of a tile.
    pub splits: f64,
    /// The share.
    pub share: f64,
}

impl Busiest {
    /// A work-group with whole tiles alone.
    pub fn of_whole(whole: f64) -> Busiest {
        Busiest { whole, splits: 0.0, share: 1.0 }
    }
    /// Tiles by their k-tiles.
    pub fn tiles(&self) -> f64 {
        self.whole + self.splits * self.share
    }
    /// So many of these one after the other.
    pub fn times(self, count: f64) -> Busiest {
        Busiest { whole: self.whole * count, splits: self.splits * count, ..self }
    }
}

/// The busiest of `stay` persistent work-groups. They take `whole` tiles and then the splits of `tail` tiles.
pub(super) fn busiest(whole: f64, tail: f64, splits: u32, stay: f64) -> Busiest {
    let splits = f64::from(splits.max(1));
    let of = |group: f64| {
        let own = ((whole - group) / stay).ceil();
        Busiest { whole: own, splits: ((whole + tail * splits - group) / stay).ceil() - own, share: 1.0 / splits }
    };
    // The first work-group with a whole tile in the last round, and the first without.
    let (first, next) = (of(0.0), of(whole % stay));
    if first.tiles() >= next.tiles() { first } else { next }
}

/// The same for a launch of so many tiles under a plan.
pub(super) fn of_plan(t: &Tiling, tiles: f64, tail: f64) -> Busiest {
    busiest(tiles - tail, tail, t.tail.map_or(1, |tail| tail.splits), f64::from(t.persistent.max(1)))
}

/// Splits that leave the busiest work-group least to do, where that is worth a second kernel. Each has at least four k-tiles.
pub(super) fn worthwhile(whole: f64, tail: f64, stay: f64, k_tiles: u64) -> Option<u32> {
    /// Least share of the time that a split tail saves.
    const SAVED: f64 = 0.01;
    /// Storing partial sums takes about this share of a tile's time.
    const STORED: f64 = 0.1;
    let unsplit = ((whole + tail) / stay).ceil();
    let found = [2, 3, 4, 5, 6, 8, 10, 12, 16].into_iter().filter(|splits| u64::from(*splits) * 4 <= k_tiles);
    let found = found.map(|splits| {
        let busiest = busiest(whole, tail, splits, stay);
        (splits, busiest.tiles() + STORED * busiest.splits)
    });
    let best = found.min_by(|x, y| x.1.total_cmp(&y.1))?;
    (best.1 < unsplit * (1.0 - SAVED)).then_some(best.0)
}

/// The plan with its last tiles split, where it has persistent work-groups that take these tiles together, and where that pays.
pub(super) fn split(c: &Contraction, tile: [u64; 2], plan: &Keys) -> Option<Keys> {
    let whole_sums = c.drop_c || c.reductions().next().is_some() || c.pairs().is_some();
    if plan.persistent == 0 || plan.ping_pong == 1 || plan.splits > 1 || whole_sums || !c.fixed() {
        return None;
    }
    let cluster = [plan.a.cluster, plan.b.cluster];
    let first = first_split_row(c, tile, cluster, plan.persistent)?;
    let [rows, columns, entries] = c.tiles(tile);
    let [rows, columns] = [(rows, cluster[0]), (columns, cluster[1])].map(|(n, along)| n.next_multiple_of(along.max(1).into()));
    let [whole, tail] = [first, rows - first].map(|rows| (rows * columns * entries) as f64);
    let tail_splits = worthwhile(whole, tail, plan.persistent.into(), c.k.div_ceil(u64::from(plan.k_tile)))?;
    Some(Keys { tail_splits, ..*plan })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_tails_shorten_the_last_round() {
        // 800 tiles on 132 work-groups: seven rounds. Of 780 whole tiles twelve work-groups have five, and begin the tail.
        assert_eq!(busiest(800.0, 0.0, 1, 132.0).tiles(), 7.0);
        let split = busiest(780.0, 20.0, 6, 132.0);
        assert!(split.tiles() > 6.0 && split.tiles() < 6.2 && split.splits == 1.0, "{split:?}");
        assert_eq!(worthwhile(780.0, 20.0, 132.0, 79), Some(6));
        // Many splits are no gain where each stores.
        assert!(worthwhile(130.0, 70.0, 132.0, 40) <= Some(5), "{:?}", worthwhile(130.0, 70.0, 132.0, 40));
        // Sums too short to split.
        assert_eq!(worthwhile(780.0, 20.0, 132.0, 7), None);
    }
}
