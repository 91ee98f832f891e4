//! Layouts against what brute force says of them.

use super::*;
use proptest::prelude::*;

/// All points of a layout.
fn points(layout: &Layout) -> Vec<Vec<(Axis, i64)>> {
    layout.coordinates().iter().fold(vec![Vec::new()], |points, (axis, extent)| {
        let with = |p: &Vec<(Axis, i64)>, v: i64| p.iter().copied().chain([(*axis, v)]).collect();
        points.iter().flat_map(|p| (0..*extent as i64).map(move |v| with(p, v))).collect()
    })
}

fn of(point: &[(Axis, i64)], axis: Axis) -> i64 {
    point.iter().find(|(a, _)| *a == axis).map_or(0, |(_, v)| *v)
}

fn along() -> impl Strategy<Value = Axis> {
    prop_oneof![Just(Axis::Row), Just(Axis::K)]
}

/// Shared memory: padded lines, or swizzled panels.
fn shared() -> impl Strategy<Value = Layout> {
    let padded = (1u32..20, 1u32..20, along(), 0u32..9).prop_map(|(rows, depth, along, pad)| {
        Layout::padded(rows, depth, along, pad + if along == Axis::Row { rows } else { depth })
    });
    let swizzle = prop_oneof![Just(Swizzle::B32), Just(Swizzle::B64), Just(Swizzle::B128), Just(Swizzle::None)];
    let scalar = prop_oneof![Just(Scalar::F16), Just(Scalar::F32), Just(Scalar::F64)];
    let panels = (1u32..3, 1u32..3, along(), swizzle, scalar).prop_map(|(x, y, along, swizzle, scalar)| {
        let wide = swizzle.row_bytes() / scalar.bytes() * x;
        let (rows, depth) = if along == Axis::Row { (wide, 8 * y) } else { (8 * y, wide) };
        Layout::panels(rows, depth, along, swizzle, scalar)
    });
    prop_oneof![padded, panels].prop_flat_map(|tile| {
        let size = 1 + points(&tile).iter().map(|p| tile.at(Axis::Position, p)).max().unwrap_or(0);
        (Just(tile), 1u32..4, 0i64..3).prop_map(move |(tile, stages, gap)| {
            // Patterns of a swizzle repeat after 1024 bytes.
            let apart = (size + gap + 1023) / 1024 * 1024;
            if stages > 1 { tile.in_stages(stages, apart) } else { tile }
        })
    })
}

/// A thread's share of a tile: (thread, vector, element) -> (row, k), contiguous or strided.
fn share() -> impl Strategy<Value = Layout> {
    (1i64..6, 1i64..6, 1i64..4, 1i64..4, 1i64..5, any::<bool>()).prop_map(|(down, across, rows, ks, wide, strided)| {
        let (thread, vector, element) = (Affine::axis(0), Affine::axis(1), Affine::axis(2));
        let (own, next) = if strided { (wide, across * wide) } else { (ks * wide, wide) };
        let k = Affine::default()
            .plus(&thread.digit_of(1, Some(across)), own)
            .plus(&vector.digit_of(rows, None), next)
            .plus(&element, 1);
        let row = Affine::default().plus(&thread.digit_of(across, None), rows).plus(&vector.digit_of(1, Some(rows)), 1);
        let from = [(Axis::Thread, (down * across) as u64), (Axis::Vector, (rows * ks) as u64), (Axis::Element, wide as u64)];
        Layout::new(&from, &[(Axis::Row, row), (Axis::K, k)])
    })
}

proptest! {
    #[test]
    fn shared_memory_holds_every_element_once(tile in shared()) {
        let mut seen = std::collections::HashSet::new();
        for p in points(&tile) {
            prop_assert!(seen.insert(tile.at(Axis::Position, &p)), "{p:?} of {tile:?}");
        }
    }

    #[test]
    fn shares_cover_their_tile_once(share in share()) {
        let count = points(&share).len();
        let places: std::collections::HashSet<_> =
            points(&share).iter().map(|p| (share.at(Axis::Row, p), share.at(Axis::K, p))).collect();
        prop_assert_eq!(places.len(), count);
        let (rows, ks) = places.iter().fold((0, 0), |(r, k), (row, at)| (r.max(*row), k.max(*at)));
        prop_assert_eq!(((rows + 1) * (ks + 1)) as usize, count);
    }

    #[test]
    fn expressions_say_what_the_host_says(layout in prop_oneof![shared(), share()]) {
        let mut b = Builder::new("layout", 1);
        for p in points(&layout) {
            let constants: Vec<(Axis, ExprId)> = p.iter().map(|(axis, v)| (*axis, b.int(*v, Scalar::I32))).collect();
            for to in [Axis::Row, Axis::K, Axis::Position] {
                let e = layout.emit(&mut b, to, &constants, Scalar::I32);
                prop_assert_eq!(b.kernel().as_int(e), Some(layout.at(to, &p)), "{:?} at {:?}", to, p);
            }
        }
    }

    #[test]
    fn vectors_are_as_wide_as_neighbours_allow(tile in shared(), axis in prop_oneof![along(), Just(Axis::Stage)]) {
        let width = i64::from(tile.vector(axis, 16));
        let side_by_side = |w: i64| points(&tile).iter().filter(|p| of(p, axis) % w == 0).all(|p| {
            let start = tile.at(Axis::Position, p);
            let next = |i: i64| p.iter().map(|(a, v)| (*a, if *a == axis { v + i } else { *v })).collect::<Vec<_>>();
            // Of groups that lie within the extent alone.
            let whole = of(p, axis) + w <= tile.extent(axis) as i64;
            !whole || (start % w == 0 && (0..w).all(|i| tile.at(Axis::Position, &next(i)) == start + i))
        });
        prop_assert!(side_by_side(width), "{width} of {tile:?}");
        let groups = tile.extent(axis) as i64 / (2 * width) > 0;
        prop_assert!(width == 16 || !groups || !side_by_side(2 * width), "{width} of {tile:?}");
    }

    #[test]
    fn composition_is_one_after_the_other(tile in shared(), share in share()) {
        let both = tile.compose(&share).unwrap();
        for p in points(&share) {
            for stage in 0..tile.extent(Axis::Stage) as i64 {
                let place = [(Axis::Row, share.at(Axis::Row, &p)), (Axis::K, share.at(Axis::K, &p)), (Axis::Stage, stage)];
                let point: Vec<_> = p.iter().copied().chain([(Axis::Stage, stage)]).collect();
                prop_assert_eq!(both.at(Axis::Position, &point), tile.at(Axis::Position, &place));
            }
        }
    }

    #[test]
    fn inverses_lead_back(layout in prop_oneof![shared(), share()]) {
        let swizzled = layout.swizzle.is_some_and(|chunks| chunks.swizzle != Swizzle::None);
        let Some(back) = layout.inverse() else {
            return if swizzled { Ok(()) } else { Err(TestCaseError::fail(format!("no inverse of {layout:?}"))) };
        };
        for p in points(&layout) {
            let place: Vec<_> = [Axis::Row, Axis::K, Axis::Position].map(|to| (to, layout.at(to, &p))).to_vec();
            for (axis, value) in &p {
                prop_assert_eq!(back.at(*axis, &place), *value, "{:?} at {:?}", axis, p);
            }
        }
    }

    #[test]
    fn lanes_conflict_where_their_words_share_a_bank(tile in shared(), share in share(), lanes in 1u32..33, bytes in prop_oneof![Just(2u32), Just(4)]) {
        let both = tile.compose(&share).unwrap();
        let lanes = lanes.min(both.extent(Axis::Thread) as u32);
        let (cycles, turns) = both.bank_cycles(Axis::Thread, lanes, &[], 1, bytes);
        let mut banks = vec![std::collections::HashSet::new(); BANKS];
        for lane in 0..lanes {
            let at = both.at(Axis::Position, &[(Axis::Thread, lane.into())]) * i64::from(bytes);
            banks[(at / 4) as usize % BANKS].insert(at / 4);
        }
        prop_assert_eq!((cycles as usize, turns), (banks.iter().map(|b| b.len()).max().unwrap(), 1));
    }
}

#[test]
fn rows_of_a_swizzle_fall_into_different_banks() {
    let read = |tile: &Layout| tile.bank_cycles(Axis::Row, 8, &[], 8, 2);
    assert_eq!(read(&Layout::panels(64, 64, Axis::K, Swizzle::B128, Scalar::F16)), (1, 1));
    assert_eq!(read(&Layout::padded(64, 64, Axis::K, 64)), (8, 1));
    assert_eq!(read(&Layout::padded(64, 64, Axis::K, 72)), (1, 1));
}

#[test]
fn what_is_read_twice_has_no_inverse() {
    // Both rows of a broadcast stand at the same place, and strides that overlap meet.
    let broadcast = Layout::new(&[(Axis::Row, 2), (Axis::K, 4)], &[(Axis::Position, Affine::axis(1))]);
    assert_eq!(broadcast.inverse(), None);
    assert_eq!(Layout::padded(8, 4, Axis::Row, 6).inverse(), None);
}
