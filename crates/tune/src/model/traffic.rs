//! Traffic with device memory: what is touched at all, and what the last-level cache fails to keep.

use super::Work;
use super::calibration::*;
use tilewright_gen::plan::{Derived, GroupOrder, Source, Split, added_bytes};
use tilewright_ir::Target;
use tilewright_problem::Ragged;
use tilewright_problem::contraction::{Contraction, LaunchExtents, Tensor};
use tilewright_problem::view::G;

/// Bytes the main kernel moves from and to device memory, and the share of operand loads that miss the last-level cache.
pub(super) struct Traffic {
    /// Bytes.
    pub bytes: f64,
    /// Of the operand bytes that the cache delivers, the part that it had to fetch (0 to 1).
    pub miss: f64,
}

/// True if several batch entries have elements within the bytes that TMA fetches at once: groups of channels in channels-last tensors.
pub(super) fn beside_each_other(tensor: &Tensor) -> bool {
    let Some(apart) = tensor.view.stride(G).filter(|apart| *apart > 0) else { return false };
    let farther = tensor.view.access.offset.terms.iter().any(|(_, coefficient)| coefficient.abs() > apart);
    farther && tensor.bytes_of(apart as f64) < BULK_LINE
}

/// Estimates traffic when `running` work-groups run at once.
pub(super) fn traffic(c: &Contraction, spec: &Derived, target: &Target, work: &Work, running: f64) -> Traffic {
    let t = &spec.tiling;
    let size = |s: tilewright_ir::Scalar| f64::from(s.bytes());
    let ways = f64::from(t.split_k.ways.max(1));
    let result = c.results();
    let stored = result * f64::from(c.stored_together());
    let split = spec.split_rows(c);
    let share = split.rows as f64 / c.m.max(1) as f64;
    let out = match spec.epilogue.split {
        Split::None if t.tail.is_some() => {
            let whole = (1.0 - share) * (stored * size(c.c.scalar) + added_bytes(c));
            whole + share * result * f64::from(split.splits) * work.acc_bytes
        }
        Split::Workspace => result * ways * work.acc_bytes,
        Split::Atomic => result * size(c.c.scalar) * 2.0,
        _ => stored * size(c.c.scalar) + added_bytes(c),
    };
    // What exists, once: a copy has its own size.
    let once = |which: usize, tensor: &Tensor, source: Source, rows: u64| {
        let second = c.second.as_ref().map_or(0, |second| if which == 0 { second.a.len } else { second.b.len });
        let touched = if c.k == 0 { 0.0 } else { (tensor.len + second) as f64 };
        let elements = match source {
            Source::InPlace => touched,
            Source::PaddedRows => spec.copied_elements(which),
            _ => (rows * c.g) as f64 * c.k as f64,
        };
        tensor.bytes_of(elements)
    };
    let (once_a, once_b) = (once(0, &c.a, t.a.source, c.m), once(1, &c.b, t.b.source, c.n));
    let (tm, tn) = (work.tiles_m as f64, work.tiles_n as f64);
    let tiles = tm * tn;
    // Results pass through the cache as well and push operands out.
    let cache = target.l2_bytes as f64 * 0.7 / (1.0 + out / (once_a + once_b).max(1.0)).min(3.0);
    // The patch of tiles that is worked on at a time, within one batch entry.
    let running = (running / ways).clamp(1.0, tiles);
    let (patch_m, patch_n) = match t.order {
        GroupOrder::ColumnsFastest => ((running / tn).max(1.0), running.min(tn)),
        GroupOrder::RowsFastest => (running.min(tm), (running / tm).max(1.0)),
        GroupOrder::Strips(w) => {
            let w = f64::from(w).clamp(1.0, tn).min(running);
            ((running / w).clamp(1.0, tm), w)
        }
    };
    let row_bytes = |which: usize, macro_tile: u32, s| {
        let all = f64::from(macro_tile) * c.depth() as f64;
        spec.schedule.copies[which].halo().map_or(all, |halo| f64::from(halo.copied())) * size(s)
    };
    let (row_a, row_b) = (row_bytes(0, t.a.macro_tile, c.a.scalar), row_bytes(1, t.b.macro_tile, c.b.scalar));
    let (all_a, all_b) = (tm * row_a, tn * row_b);
    // Patches per batch entry; one operand is kept from patch to patch if it fits beside the stream of the other.
    let patches = (tiles / (patch_m * patch_n)).max(1.0);
    let (stream_a, stream_b) = if all_a + all_b <= cache {
        (all_a, all_b)
    } else {
        let keeps_a = patch_m * row_a <= cache * 0.5 && !matches!(t.order, GroupOrder::RowsFastest);
        let keeps_b = patch_n * row_b <= cache * 0.5 && !matches!(t.order, GroupOrder::ColumnsFastest);
        let a = if keeps_a && matches!(t.order, GroupOrder::ColumnsFastest) { all_a } else { patches * patch_m * row_a };
        let b = if keeps_b { all_b.max(patches * patch_n * row_b / (tm / patch_m).max(1.0)) } else { patches * patch_n * row_b };
        (a.max(all_a), b.max(all_b))
    };
    let batch = |tensor: &Tensor, stream: f64, all: f64| {
        let own = tensor.view.access.offset.uses(G);
        match &c.launch {
            // Groups of terms read parts of one matrix, each its own.
            LaunchExtents::Grouped(x) if x.of == Ragged::K => c.entries() as f64,
            // Each group's own, however few tiles it has.
            LaunchExtents::Grouped(_) if own => (c.g as f64 * all / stream.max(1.0)).max(1.0),
            _ if own || stream > cache => c.entries() as f64,
            _ => 1.0,
        }
    };
    // Windows overlap: a convolution's operand exists once however often its elements are named.
    let overlap = |once: f64, all: f64| if all > 0.0 { (once / all).min(1.0) } else { 1.0 };
    let (ba, bb) = (batch(&c.a, stream_a, all_a), batch(&c.b, stream_b, all_b));
    let dram_a = (stream_a * ba * overlap(once_a, all_a * ba)).max(once_a.min(stream_a * ba));
    let dram_b = (stream_b * bb * overlap(once_b, all_b * bb)).max(once_b.min(stream_b * bb));
    let delivered = c.entries() as f64 * (tiles * (row_a + row_b));
    // Work-groups far apart in launch order sit on units far apart, which fetch what they share through different parts of the
    // cache.
    let (far_a, far_b) = match t.order {
        GroupOrder::ColumnsFastest => (1.0, tn),
        GroupOrder::RowsFastest => (tm, 1.0),
        GroupOrder::Strips(w) => (1.0, f64::from(w).min(tn)),
    };
    let apart = |distance: f64, sharers: f64| if distance * ways > SPREAD && sharers > 1.0 { FAR } else { 1.0 };
    // Those of a cluster read what they share once.
    let (sharers_a, sharers_b) = (tn / f64::from(t.cluster.n), tm / f64::from(t.cluster.m));
    // TMA fetches whole cache lines. The part that the next entry needs is evicted before that entry runs, unless k is split and entries run concurrently.
    let fetched = |which: usize, tensor: &Tensor| {
        let bulk = spec.schedule.copies[which].is_bulk() && !t.entries_fastest && c.g > 1 && ways == 1.0;
        if bulk && beside_each_other(tensor) { BESIDE } else { 1.0 }
    };
    let (dram_a, dram_b) =
        (dram_a * apart(far_a, sharers_a) * fetched(0, &c.a), dram_b * apart(far_b, sharers_b) * fetched(1, &c.b));
    Traffic { bytes: dram_a + dram_b + out, miss: ((dram_a + dram_b) / delivered.max(1.0)).clamp(0.0, 1.0) }
}
