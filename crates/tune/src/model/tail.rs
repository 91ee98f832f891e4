//! Rounds of persistent work-groups, with and without a split tail.

use tilewright_gen::plan::{Keys, Tiling, first_split_row};
use tilewright_problem::contraction::Contraction;

/// What the busiest work-group does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Busiest {
    /// Its tiles; a split counts as its share of one.
    pub tiles: f64,
    /// How often it stores results or partial sums.
    pub stores: f64,
}

/// The busiest of `stay` persistent work-groups, which take `whole` tiles in turn and then the splits of `tail` tiles.
pub(super) fn busiest(whole: f64, tail: f64, splits: u32, stay: f64) -> Busiest {
    let splits = f64::from(splits.max(1));
    let of = |group: f64| {
        let own = ((whole - group) / stay).ceil();
        let pieces = ((whole + tail * splits - group) / stay).ceil() - own;
        Busiest { tiles: own + pieces / splits, stores: own + pieces }
    };
    // The first of those that begin with a whole tile of the last round, and the first that does not.
    let (first, next) = (of(0.0), of(whole % stay));
    if first.tiles >= next.tiles { first } else { next }
}

/// The same for a launch of so many tiles under a plan.
pub(super) fn of_plan(t: &Tiling, tiles: f64, tail: f64) -> Busiest {
    busiest(tiles - tail, tail, t.tail.map_or(1, |tail| tail.splits), f64::from(t.persistent.max(1)))
}

/// Splits that leave the busiest work-group least to do, of those that have at least four k-tiles each, where that is worth a second kernel.
pub(super) fn worthwhile(whole: f64, tail: f64, stay: f64, k_tiles: u64) -> Option<u32> {
    /// Least share of the time that a split tail saves.
    const SAVED: f64 = 0.01;
    let unsplit = ((whole + tail) / stay).ceil();
    let found = [2, 3, 4, 5, 6, 8, 10, 12, 16].into_iter().filter(|splits| u64::from(*splits) * 4 <= k_tiles);
    let found = found.map(|splits| (splits, busiest(whole, tail, splits, stay).tiles));
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
        assert_eq!(busiest(800.0, 0.0, 1, 132.0).tiles, 7.0);
        let split = busiest(780.0, 20.0, 6, 132.0);
        assert!(split.tiles > 6.0 && split.tiles < 6.2, "{split:?}");
        assert_eq!(worthwhile(780.0, 20.0, 132.0, 79), Some(6));
        // Sums too short to split.
        assert_eq!(worthwhile(780.0, 20.0, 132.0, 7), None);
    }
}
