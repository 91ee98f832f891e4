//! Which thread owns, loads and computes what, read from a derived plan for the figures.

use tilewright_gen::plan::{GroupOrder, OperandTiling, SplitK, Tiling};
use tilewright_ir::layout::Axis;

/// Rows and columns of the result tile that a thread computes. Threads count from the first that computes.
pub fn micro_tile(tiling: &Tiling, thread: u32) -> (Vec<u32>, Vec<u32>) {
    let (ta, tb) = grid_position(tiling, thread);
    (micro_line(&tiling.a, ta), micro_line(&tiling.b, tb))
}

/// Position of a thread in the work-group's thread grid, along m and along n.
pub fn grid_position(tiling: &Tiling, thread: u32) -> (u32, u32) {
    let grid = tiling.grid();
    let at = |axis: Axis| grid.at(axis, &[(Axis::Thread, thread.into())]) as u32;
    (at(Axis::Row), at(Axis::Col))
}

/// Elements along one operand that the thread at a grid position computes.
fn micro_line(operand: &OperandTiling, position: u32) -> Vec<u32> {
    let own = operand.micro_tile();
    let at = |e: u32| own.at(Axis::Row, &[(Axis::Thread, position.into()), (Axis::Element, e.into())]) as u32;
    (0..operand.micro).map(at).collect()
}

/// One global load of a thread: the elements (row, k) that move together.
pub type Access = Vec<(u32, u32)>;

/// What a loading thread fetches of an operand's tile, load by load.
pub fn loads(operand: &OperandTiling, k_tile: u32, thread: u32) -> Vec<Access> {
    let share = operand.share(k_tile);
    if u64::from(thread) >= share.extent(Axis::Thread) {
        return Vec::new();
    }
    let element = |vector: u64, element: u64| {
        let point = [(Axis::Thread, thread.into()), (Axis::Vector, vector as i64), (Axis::Element, element as i64)];
        (share.at(Axis::Row, &point) as u32, share.at(Axis::K, &point) as u32)
    };
    let access = |vector: u64| (0..share.extent(Axis::Element)).map(|e| element(vector, e)).collect();
    (0..share.extent(Axis::Vector)).map(access).collect()
}

/// Position (along m, along n) of the result tile that comes at a place in the grid's order.
pub fn tile_at(order: GroupOrder, tiles_m: u64, tiles_n: u64, place: u64) -> (u64, u64) {
    let (tiles_m, tiles_n) = (tiles_m.max(1), tiles_n.max(1));
    match order {
        GroupOrder::ColumnsFastest => (place / tiles_n, place % tiles_n),
        GroupOrder::RowsFastest => (place % tiles_m, place / tiles_m),
        GroupOrder::Strips(width) => {
            let width = u64::from(width.max(1));
            let strip = place / (width * tiles_m);
            let here = width.min(tiles_n.saturating_sub(strip * width)).max(1);
            let within = place - strip * width * tiles_m;
            (within / here, strip * width + within % here)
        }
    }
}

/// Which of the split's work-groups sums a k-tile.
pub fn way_of(split: SplitK, k_tiles: u64, tile: u64) -> u64 {
    let ways = u64::from(split.ways.max(1));
    if split.interleave {
        return tile % ways;
    }
    let (each, more) = (k_tiles / ways, k_tiles % ways);
    let long = more * (each + 1);
    if tile < long { tile / (each + 1) } else { more + (tile - long) / each.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_gen::plan::{Along, Source};

    fn operand(micro: u32, threads: u32) -> OperandTiling {
        OperandTiling {
            micro,
            macro_tile: micro * threads,
            pad: 1,
            load_row: 4,
            load_k: 1,
            load_interleave: false,
            load_order: Along::K,
            load_width: 1,
            load_along: Along::Row,
            store_width: 1,
            fragment_width: 1,
            micro_interleave: false,
            shared_along: Along::Row,
            source: Source::InPlace,
            fragment_sets: 0,
        }
    }

    #[test]
    fn every_element_is_loaded_once() {
        for (interleave, order, width, along) in [
            (false, Along::K, 1, Along::Row),
            (true, Along::Row, 2, Along::Row),
            (true, Along::K, 1, Along::Row),
            (false, Along::Row, 4, Along::Row),
            (true, Along::Row, 2, Along::K),
        ] {
            let mut a = operand(8, 16);
            (a.load_interleave, a.load_order, a.load_width, a.load_along) = (interleave, order, width, along);
            if along == Along::K {
                (a.load_row, a.load_k) = (2, 2);
            }
            let mut seen = std::collections::BTreeSet::new();
            for thread in 0..256 {
                for access in loads(&a, 8, thread) {
                    for element in access {
                        assert!(seen.insert(element), "{element:?} twice");
                    }
                }
            }
            assert_eq!(seen.len(), 128 * 8);
        }
    }

    #[test]
    fn strips_visit_every_tile_once() {
        for order in [GroupOrder::ColumnsFastest, GroupOrder::RowsFastest, GroupOrder::Strips(3)] {
            let seen: std::collections::BTreeSet<_> = (0..35).map(|i| tile_at(order, 5, 7, i)).collect();
            assert_eq!(seen.len(), 35);
            assert!(seen.iter().all(|&(a, b)| a < 5 && b < 7));
        }
    }

    #[test]
    fn contiguous_ways_are_balanced() {
        let split = SplitK { ways: 3, interleave: false };
        let ways: Vec<u64> = (0..8).map(|t| way_of(split, 8, t)).collect();
        assert_eq!(ways, [0, 0, 0, 1, 1, 1, 2, 2]);
    }
}
