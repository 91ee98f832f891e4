//! The keys that A and B have each.

use super::variant::*;
use crate::support::trace::Event;
use std::collections::BTreeSet;
use tilewright_gen::kernel::MAIN;

#[test]
fn mic_is_the_micro_tile() {
    both(|with, side| {
        for mic in [1, 2, 4, 6] {
            let v = with(&format!("MIC{mic}"));
            // As many rows (columns) of C per thread, fragments per k-step, and 8 threads times as many per work-group.
            let (rows, cols) = v.results(9);
            assert_eq!(if side == "a" { rows.len() } else { cols.len() }, mic);
            assert_eq!(indices(&v.first(9).fragments, &format!("smem_{side}")).len(), 8 * mic);
            let tile = if side == "a" { v.model.tile().0 } else { v.model.tile().1 };
            assert_eq!(tile, 8 * mic as i64);
        }
    });
}

#[test]
fn pad_widens_rows_of_shared_memory_by_vectors() {
    both(|with, side| {
        for (vew, pad) in [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)] {
            let v = with(&format!("PAD{pad}_VEW{vew}"));
            let tile = if side == "a" { 32 } else { 16 };
            let pitch = tile + pad * vew;
            assert_eq!(shared_len(&v, side), pitch * 8);
            // The same fragment of two k-steps is one row apart.
            let at = indices(&v.first(0).fragments, &format!("smem_{side}"));
            let per_step = at.len() / 8;
            assert_eq!(at[per_step] - at[0], i64::from(pitch));
        }
    });
}

/// (row, k) of what a thread loads of a factor in the first k-tile of the first work-group.
fn load_tile(v: &Variant, side: &str, thread: u32) -> (BTreeSet<i64>, BTreeSet<i64>) {
    let at = touches(&v.first(thread).loads, side);
    let each = at.iter().flat_map(|t| (0..i64::from(t.lanes)).map(|l| t.index + l));
    (each.clone().map(|i| i % 1000).collect(), each.map(|i| i / 1000).collect())
}

#[test]
fn plu_turns_the_load_tile() {
    both(|with, side| {
        // 4 (A) or 2 (B) elements each: across k, or along it.
        let each = if side == "a" { 4 } else { 2 };
        let (rows, ks) = load_tile(&with("PLU0"), side, 5);
        assert_eq!((rows.len(), ks.len()), (each, 1));
        let (rows, ks) = load_tile(&with("PLU1"), side, 5);
        assert_eq!((rows.len(), ks.len()), (1, each));
    });
}

#[test]
fn liw_spreads_the_load_tile() {
    both(|with, side| {
        let tile = if side == "a" { 32 } else { 16 };
        let each = if side == "a" { 4 } else { 2 };
        let gap = |v: &Variant, along_k: bool| {
            let (rows, ks) = load_tile(v, side, 5);
            let set = if along_k { ks } else { rows };
            let list: Vec<i64> = set.into_iter().collect();
            list[1] - list[0]
        };
        assert_eq!(gap(&with("LIW0_PLU0"), false), 1);
        assert_eq!(gap(&with("LIW1_PLU0"), false), tile / each);
        assert_eq!(gap(&with("LIW0_PLU1"), true), 1);
        assert_eq!(gap(&with("LIW1_PLU1"), true), 8 / each);
    });
}

#[test]
fn miw_spreads_the_micro_tile() {
    both(|with, side| {
        let lines = |v: &Variant, thread| {
            let (rows, cols) = v.results(thread);
            if side == "a" { rows } else { cols }
        };
        // Thread 9 is second along both sides of the 8 x 8 grid.
        let mic = if side == "a" { 4 } else { 2 };
        assert_eq!(lines(&with("MIW0"), 9), (mic..2 * mic).collect::<Vec<_>>());
        assert_eq!(lines(&with("MIW1"), 9), (0..mic).map(|i| 1 + 8 * i).collect::<Vec<_>>());
        // In vectors, where there are vectors.
        assert_eq!(lines(&with("MIW1_VEW2"), 9), (0..mic / 2).flat_map(|i| [2 + 16 * i, 3 + 16 * i]).collect::<Vec<_>>());
    });
}

#[test]
fn wos_loads_from_a_copy() {
    both(|with, side| {
        let names = |v: &Variant| v.program.kernels.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
        let plain = with("WOS0");
        assert_eq!((names(&plain), plain.program.workspace_bytes), (vec![MAIN.to_string()], 0));
        let (rows, tile) = if side == "a" { (100, 32) } else { (76, 16) };
        for wos in [1, 2] {
            let v = with(&format!("WOS{wos}"));
            assert_eq!(names(&v), [format!("tw_materialise_{side}"), MAIN.to_string()]);
            assert_eq!(v.program.launches.len(), 2);
            // Copies have a leading dimension of their own, panels whole tiles.
            let line = if wos == 1 { v.model.ld[usize::from(side == "b")] } else { (rows as i64 + tile - 1) / tile * tile };
            assert_eq!(v.program.workspace_bytes, line as u64 * 48 * 4);
            // Panels are contiguous: the next k is one tile further.
            let k_stride = if wos == 1 { line } else { tile };
            let at = indices(&v.first(0).loads, side)[0];
            assert_eq!(indices(&v.run(0, 0).0[1].loads, side)[0] - at, 8 * k_stride);
        }
    });
}

#[test]
fn vew_is_the_vector_width() {
    both(|with, side| {
        for vew in [1, 2, 4].into_iter().filter(|v| side == "a" || *v < 4) {
            let v = with(&format!("VEW{vew}"));
            let step = v.first(3);
            let lanes = |events: &[Event], memory: &str| touches(events, memory).iter().map(|t| t.lanes).collect::<BTreeSet<_>>();
            assert_eq!(lanes(&step.loads, side), [vew].into());
            assert_eq!(lanes(&step.shares, &format!("smem_{side}")), [vew].into());
            assert_eq!(lanes(&step.fragments, &format!("smem_{side}")), [vew].into());
            // The other factor and C stay as they are.
            let other = if side == "a" { "b" } else { "a" };
            assert_eq!(lanes(&step.loads, other), [1].into());
            assert_eq!(lanes(&v.run(0, 3).1, "c"), [1].into());
        }
    });
}
