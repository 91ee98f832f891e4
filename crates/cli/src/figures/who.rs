//! Which thread owns, loads and computes what, read from a derived plan for the figures.

use tilewright_gen::plan::{Along, GroupOrder, OperandTiling, SplitK, Tiling};

/// Rows and columns of the result tile that a thread computes. Threads count from the first that computes.
pub fn micro_tile(tiling: &Tiling, thread: u32) -> (Vec<u32>, Vec<u32>) {
    let (ta, tb) = grid_position(tiling, thread);
    (micro_line(&tiling.a, tiling.threads_a, ta), micro_line(&tiling.b, tiling.threads_b, tb))
}

/// Position of a thread in the work-group's thread grid, along m and along n.
pub fn grid_position(tiling: &Tiling, thread: u32) -> (u32, u32) {
    let (na, nb) = (tiling.threads_a.max(1), tiling.threads_b.max(1));
    let place = |index: u32, a: u32, b: u32| if tiling.micro_b_fastest { (index / b, index % b) } else { (index % a, index / a) };
    let (wave_a, lanes) = (tiling.wave_a, tiling.wave_lanes);
    if wave_a == 0 || lanes < wave_a {
        return place(thread, na, nb);
    }
    // A wave covers wave_a x wave_b micro tiles; waves cover the thread grid, along m first.
    let wave_b = lanes / wave_a;
    let (wave, waves_a) = (thread / lanes, (na / wave_a).max(1));
    let (lane_a, lane_b) = place(thread % lanes, wave_a, wave_b);
    (wave % waves_a * wave_a + lane_a, wave / waves_a * wave_b + lane_b)
}

/// Elements along one operand that the thread at a grid position computes.
fn micro_line(operand: &OperandTiling, threads: u32, position: u32) -> Vec<u32> {
    let width = operand.fragment_width.max(1);
    (0..operand.micro)
        .map(|i| {
            if operand.micro_interleave {
                (i / width * threads + position) * width + i % width
            } else {
                position * operand.micro + i
            }
        })
        .collect()
}

/// One global load of a thread: the elements (row, k) that move together.
pub type Access = Vec<(u32, u32)>;

/// What a loading thread fetches of an operand's tile, load by load.
pub fn loads(operand: &OperandTiling, k_tile: u32, thread: u32) -> Vec<Access> {
    let (per_row, per_k) = (operand.load_row.max(1), operand.load_k.max(1));
    let (across, deep) = ((operand.macro_tile / per_row).max(1), (k_tile / per_k).max(1));
    let (row_id, k_id) = match operand.load_order {
        Along::K => (thread / deep, thread % deep),
        Along::Row => (thread % across, thread / across),
    };
    if row_id >= across || k_id >= deep {
        return Vec::new();
    }
    let width = operand.load_width.max(1);
    let (width_row, width_k) = match operand.load_along {
        Along::Row => (width, 1),
        Along::K => (1, width),
    };
    let line = |index: u32, count: u32, tiles: u32, width: u32| -> Vec<u32> {
        (0..count / width)
            .map(|i| if operand.load_interleave { (i * tiles + index) * width } else { index * count + i * width })
            .collect()
    };
    let rows = line(row_id, per_row, across, width_row);
    let ks = line(k_id, per_k, deep, width_k);
    let mut accesses = Vec::new();
    for &k in &ks {
        for &row in &rows {
            accesses.push(match operand.load_along {
                Along::Row => (0..width).map(|v| (row + v, k)).collect(),
                Along::K => (0..width).map(|v| (row, k + v)).collect(),
            });
        }
    }
    accesses
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
    use tilewright_gen::plan::Source;

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
