//! How tiles of an operand lie in shared memory, and how they come there, in sentences.

use super::{Subject, plural};
use tilewright_gen::plan::{Along, BulkTile, Source, Transport, fetch_work};
use tilewright_ir::layout::{Axis, bank_cycles};
use tilewright_ir::mma::Reads;

impl Subject<'_> {
    /// How tiles of an operand lie.
    pub(super) fn layout(&self, which: usize) -> Vec<String> {
        let (o, schedule, [_, _, depth]) = (self.tiling(which), &self.spec.schedule, self.tile());
        let what = ["row", "column"][which];
        let along = |along_k: bool| if along_k { "k".to_string() } else { format!("{what}s") };
        if schedule.own() {
            return vec!["not in shared memory".into()];
        }
        let mut out = Vec::new();
        match (schedule.copies[which].tile(), schedule.copies[which].halo()) {
            (_, Some(halo)) => out.push(format!(
                "{} lines, one for each position, of {} channels{}",
                halo.lines(),
                halo.channels,
                match halo.tile.pad {
                    _ if halo.layout().is_permuted() => ", 16-byte chunks swizzled".to_string(),
                    0 => String::new(),
                    pad => format!(" and {pad} elements of padding"),
                }
            )),
            (Some(tile), None) => out.push(format!(
                "panels of 128-byte lines along {}, 16-byte chunks swizzled by the line's number modulo 8",
                along(tile.k_contiguous)
            )),
            (None, None) => {
                let (lines, pitch) = o.lines(depth);
                let pad = if o.pad == 0 { "no padding".to_string() } else { format!("{} of them padding", o.pad) };
                let along_k = o.shared_along == Along::K;
                let each = if along_k { what } else { "k" };
                out.push(format!("{lines} lines, one for each {each}, of {pitch} elements along {}, {pad}", along(along_k)));
                if o.load_along != o.shared_along {
                    let from = along(o.load_along == Along::K);
                    out.push(format!(
                        "transposed on the way: fetched in vectors along {from}, which are stored element by element"
                    ));
                }
            }
        }
        for (what, (cycles, least)) in self.conflicts(which) {
            out.push(match cycles.cmp(&least) {
                std::cmp::Ordering::Greater => {
                    format!("{what}: bank conflicts, {cycles} passes of a {}'s access where {least} would do", self.wave())
                }
                _ => format!("{what}: no bank conflicts"),
            });
        }
        out
    }

    /// Passes over the banks of shared memory that reading and writing tiles takes, and the fewest.
    fn conflicts(&self, which: usize) -> Vec<(String, (u64, u64))> {
        let (o, shared, bytes) = (self.tiling(which), self.shared(which), self.scalar(which).bytes());
        let lanes = self.target.wave.max(1);
        let place = |row: i64, k: i64| shared.at(Axis::Position, &[(Axis::Row, row), (Axis::K, k)]) * i64::from(bytes);
        let mut out = Vec::new();
        let along_k = self.spec.schedule.copies[which].tile().map_or(o.shared_along == Along::K, |tile| tile.k_contiguous);
        let unit = self.spec.tiling.unit.family();
        match unit.reads {
            Reads::Vectors if lanes > 1 => {
                let (layout, to) = (self.accumulators(), [Axis::Row, Axis::Col][which]);
                let rows = (0..lanes.min(self.spec.tiling.math_threads())).map(|l| layout.at(to, &[(Axis::Thread, l.into())]));
                let read: Vec<(usize, i64)> = rows.enumerate().map(|(lane, row)| (lane, place(row, 0))).collect();
                out.push(("reading fragments".into(), bank_cycles(&read, (o.fragment_width.max(1) * bytes) as usize)));
            }
            reads if unit.read_as_matrices() && bytes == 2 => {
                let across = if along_k { Axis::Row } else { Axis::K };
                let what = match reads {
                    Reads::Panels => "reading by wgmma",
                    Reads::Vectors | Reads::Fragments => "reading fragments (ldmatrix)",
                };
                let passes = match self.spec.schedule.copies[which].halo() {
                    Some(halo) => halo.passes(),
                    None => shared.bank_cycles(across, 8, &[], 8, bytes),
                };
                out.push((format!("{what}, 8 lines of 16 bytes at a time"), passes));
            }
            _ => {}
        }
        let copy = &self.spec.schedule.copies[which];
        if copy.tile().is_none() && copy.halo().is_none() && lanes > 1 {
            let share = o.share(self.spec.tiling.k_tile);
            let width = if o.load_along == o.shared_along { o.store_width.max(1) } else { 1 };
            let at = |to: Axis, lane: u32| share.at(to, &[(Axis::Thread, lane.into())]);
            let threads = lanes.min(share.extent(Axis::Thread) as u32);
            let stored: Vec<(usize, i64)> = (0..threads).map(|l| (l as usize, place(at(Axis::Row, l), at(Axis::K, l)))).collect();
            out.push(("storing what was fetched".into(), bank_cycles(&stored, (width * bytes) as usize)));
        }
        out
    }

    /// How tiles of an operand come.
    pub(super) fn copy(&self, which: usize) -> Vec<String> {
        let (o, copy) = (self.tiling(which), &self.spec.schedule.copies[which]);
        let (dim, word) = (["m", "n"][which], self.wave());
        let tensor = if which == 0 { &self.c.a } else { &self.c.b };
        let mut out = vec![match o.source {
            Source::InPlace if tensor.view.is_affine_box().is_none() => {
                "read in place: the matrix of the convolution's windows is nowhere stored, its elements are found in the tensor"
                    .to_string()
            }
            Source::InPlace => "read in place".to_string(),
            Source::Copy => "read from a copy in workspace with padded lines".to_string(),
            Source::CopyAlongK => "read from a copy in workspace with padded lines along k".to_string(),
            Source::CopyInRuns(run) => {
                format!("read from a copy in workspace with padded lines along k, in the order of runs of {run} weights")
            }
            Source::PaddedRows => "read through its view of a copy of its tensor in workspace with padded rows".to_string(),
            Source::Packed => "read from packed panels in workspace".to_string(),
        }];
        match copy {
            Transport::Bulk(tile) => out.push(self.boxes(which, tile)),
            Transport::Written(_) => {
                let threads = self.spec.load_threads();
                out.push(format!(
                    "{} write it through registers{}",
                    plural((threads / self.target.wave.max(1)).into(), &format!("producer {word}")),
                    match o.split.filter(|_| o.shared_parts > 1) {
                        Some(split) if split.as_wide() => ", in two parts: the nearest TF32 numbers, and what they leave",
                        Some(split) if split.parts == 2 => ", in two parts: the bf16 numbers nearest to elements, and to what these leave",
                        Some(_) => ", in three parts: the bf16 numbers nearest to elements, to what these leave, and to what those leave",
                        None => "",
                    }
                ));
                out.extend(fetch_work(self.spec, which).map(|work| {
                    format!(
                        "each of their {threads} threads: {} of 16 bytes, {} at a time",
                        plural(work.chunks.into(), "piece"),
                        work.at_once
                    )
                }));
            }
            Transport::Shifted(of) => {
                out.push(format!(
                    "TMA copies bring aligned spans of its lines to staging ({}, {} bytes each)",
                    plural(of.slots.into(), "k-tile"),
                    of.spans.slot_bytes()
                ));
                out.push(format!("producer {word}s shift the lines from there into the tile"));
            }
            Transport::Halo(halo) => out.push(format!(
                "asynchronous copies (cp.async) bring the windows of a whole result tile once: at most {} of {}, read at shifted places by each k-tile",
                plural(halo.lines().into(), "position"),
                plural(halo.channels.into(), "channel")
            )),
            Transport::Own(loads) => out.push(format!(
                "each thread loads what it multiplies straight to registers: {} of {} per k-tile, for {} x {} elements of rows or columns and k",
                plural(loads.places.len() as u64, "load"),
                plural(loads.width.into(), "element"),
                o.micro,
                self.spec.tiling.k_tile
            )),
            Transport::Registers | Transport::Async | Transport::Panels { .. } => {
                let along = if o.load_along == Along::K { "k" } else { dim };
                let bytes = self.loaded(which).bytes_of(o.load_width.into());
                let count = o.load_row * o.load_k / o.load_width.max(1);
                let how = match (copy.is_async(), count) {
                    (true, 1) => "asynchronous copy (cp.async)",
                    (true, _) => "asynchronous copies (cp.async)",
                    (false, 1) => "fetch into registers",
                    (false, _) => "fetches into registers",
                };
                out.push(format!(
                    "each of {} threads: {count} {how}, {bytes} bytes ({} along {along}) each; in all {} along {dim} x {} along k per thread",
                    self.spec.load_threads(),
                    plural(o.load_width.into(), "element"),
                    o.load_row,
                    o.load_k
                ));
            }
        }
        out
    }

    /// How boxes of a tensor map make a tile, and who copies them.
    fn boxes(&self, which: usize, tile: &BulkTile) -> String {
        let dim = ["m", "n"][which];
        let (boxes, cluster) = (tile.columns * tile.lines, self.spec.tiling.cluster);
        let (across, sharers) =
            if tile.k_contiguous { (dim, [cluster.n, cluster.m][which]) } else { ("k", [cluster.n, cluster.m][which]) };
        let along = if tile.k_contiguous { "k" } else { dim };
        let all = plural(boxes.into(), "box").replace("boxs", "boxes");
        let shape = format!(
            "{} along {along} x {} along {across}, {} bytes",
            tile.map.tile[0],
            tile.map.tile[1],
            tile.bytes / boxes.max(1)
        );
        match sharers {
            0 | 1 => format!("one thread copies {all} by TMA, each {shape}"),
            _ => {
                let (each, beside) = (boxes / sharers, ["n", "m"][which]);
                let own = match each {
                    1 => "box i".to_string(),
                    _ if tile.columns.is_multiple_of(sharers) || tile.columns == 1 => {
                        format!("boxes {each} i to {each} i + {}", each - 1)
                    }
                    _ => format!("{each} of them"),
                };
                format!(
                    "{all}, each {shape}; of {sharers} work-groups of the cluster side by side along {beside}, number i copies {own} \
                     by TMA, into the shared memory of all {sharers} (multicast)"
                )
            }
        }
    }
}
