//! The grid of work-groups, and what becomes of sums: the epilogue, how results leave, and how reductions are finished.

use super::{Subject, plural};
use tilewright_gen::plan::{ELEMENT_THREADS, ElementTile, Exit, Finish, STORE_ROWS, Split, TileReduction, store_buffers};
use tilewright_problem::Extent;
use tilewright_problem::contraction::{EpilogueOp, Reduce};

impl Subject<'_> {
    /// Who takes which tiles.
    pub(super) fn grid(&self) -> Vec<String> {
        let t = &self.spec.tiling;
        let mut out = Vec::new();
        let groups = self.works.iter().map(|w| w.group + 1).max().unwrap_or(0);
        if t.persistent > 0 {
            let parts = if t.split_k.ways > 1 { "pieces" } else { "tiles" };
            let tail = if t.tail.is_some() { ", then splits of the last rows of tiles" } else { "" };
            out.push(format!(
                "{groups} persistent work-groups: number i computes {parts} i, i + {groups}, ... of this order{tail}"
            ));
        }
        if t.cluster.size() > 1 {
            let splits = if t.cluster.splits > 1 { format!(" x {} splits of k", t.cluster.splits) } else { String::new() };
            out.push(format!("clusters of {} x {} tiles{splits} run together", t.cluster.m, t.cluster.n));
        }
        if self.spec.teams() > 1 {
            out.push(format!("warpgroup i of {} computes the work-group's rounds i, i + {0}, ...", self.spec.teams()));
        }
        if self.c.problem_extent(Extent::M) != Extent::M {
            out.push("operands are swapped: m here is the problem's n, n its m".into());
        }
        out
    }

    /// What happens to the accumulators.
    pub(super) fn epilogue(&self) -> Vec<String> {
        let (t, e, c, word) = (&self.spec.tiling, &self.spec.epilogue, self.c, self.wave());
        let mut out = vec![format!("C[g,m,n] = {}, stored as {}", c.formula(), c.c.scalar)];
        out.push(match &e.exit {
            Exit::Bulk { tile, .. } => format!(
                "bulk: each {word} writes {STORE_ROWS} rows x {} columns at a time into its staging buffer ({} per {word}); one lane stores it by TMA",
                tile.columns,
                plural(store_buffers(self.spec.teams()).into(), "buffer")
            ),
            Exit::Rows => {
                format!("staged: each {word} puts {STORE_ROWS} rows at a time into its staging buffer and stores whole rows from there, 16 bytes per lane where C's alignment allows")
            }
            Exit::Staged { .. } => "staged: the tile passes through shared memory, over the operands' tiles, so that adjacent threads store adjacent elements".into(),
            Exit::Direct { width } => {
                format!("direct: each thread stores its own accumulators, {} at a time", plural((*width).into(), "element"))
            }
        });
        out.extend(self.spec.schedule.promoted.map(|every| {
            let tiles = plural(every.into(), "k-tile");
            let scaled = if c.block_scales.is_empty() { "" } else { ", times the scales of its block" };
            let turns =
                if self.spec.rows_in_turn() { ", one row of instructions after the other in the same accumulators" } else { "" };
            format!("promoted: after every {tiles}, the accumulator is added to an f32 total{scaled} and cleared{turns}")
        }));
        let ways = t.split_k.ways;
        out.extend(match e.split {
            Split::None => None,
            Split::Atomic => Some(format!("{ways} work-groups add their sums to C with atomics, in any order")),
            Split::Workspace => Some(format!(
                "{ways} work-groups write partial sums to workspace; a second kernel adds them in a fixed order and finishes C"
            )),
            Split::Cluster => Some(format!(
                "the {ways} work-groups of a cluster exchange their sums through shared memory; each finishes a part of the tile"
            )),
        });
        out.extend(t.tail.map(|tail| {
            let first = self.spec.whole_rows(c);
            format!(
                "from row {first} on, {} splits of each tile write partial sums to workspace; a second kernel adds them in a fixed order and finishes C",
                tail.splits
            )
        }));
        let fused: Vec<String> = c.epilogue.iter().map(EpilogueOp::words).collect();
        out.push(format!("per element: {}", fused.join(", then ")));
        let ways = [self.spec.tile_reductions(c), self.spec.element_reductions(c)].concat();
        out.extend(c.reductions().zip(ways).map(|(r, how)| self.reduction(r, &how)));
        if c.drop_c {
            out.push("the result itself is not stored".into());
        }
        out
    }

    /// How a reduction is computed, from the registers of a thread on.
    fn reduction(&self, r: &Reduce, how: &TileReduction) -> String {
        let (t, e, word) = (&self.spec.tiling, &self.spec.epilogue, self.wave());
        let (threads, elements) = match e.split {
            // The kernel that sums splits has tiles of its own.
            Split::Workspace => (ELEMENT_THREADS, ElementTile::new(self.c).size.iter().product()),
            _ => (t.math_threads(), t.a.macro_tile * t.b.macro_tile),
        };
        // Values that the tile has, times the lanes and parts that each is spread over.
        let spread = (how.parts.len() as u32) << how.lane_bits.len();
        let each = elements / (how.values * spread).max(1);
        let partials = self.spec.partials(self.c, r);
        let mut steps = vec![format!("{} of each thread", plural(each.into(), "element"))];
        if let Some(carried) = partials.carried {
            let sharers = plural(carried.sharers, "work-group");
            steps.push(format!("those of the tiles that a work-group takes, of which {sharers} share a value, in registers"));
        }
        if !how.lane_bits.is_empty() {
            steps.push(format!("{} of a {word} by shuffles", plural(1 << how.lane_bits.len(), "lane")));
        }
        if how.parts.len() > 1 {
            let teams = if e.split == Split::Workspace { 1 } else { self.spec.teams() };
            let bytes = how.shared() * self.c.state(r).iter().map(|scalar| scalar.bytes()).sum::<u32>() * teams;
            let parts = plural(how.parts.len() as u64, "part");
            steps.push(format!("{parts} of the {threads} threads through {bytes} bytes of shared memory"));
        }
        if partials.cluster_peers() > 1 {
            let peers = plural(partials.cluster_peers(), "work-group");
            steps.push(format!("those of the {peers} of a cluster through their shared memory, in a fixed order"));
        }
        let parts = plural(partials.parts, "part");
        steps.push(match partials.finish {
            None if partials.cluster_peers() > 1 => "stored: one cluster has all of a value".into(),
            None => "stored: one work-group has all of a value".into(),
            Some(Finish::Kernel | Finish::Cluster) => {
                format!("{parts} through workspace, reduced by a second kernel in a fixed order")
            }
            Some(Finish::Ticket) => format!("{parts} through workspace, reduced by the last work-group in a fixed order"),
            Some(Finish::Atomic(_)) if r.operator.adds() => "atomics on the result, whose order varies from run to run".into(),
            Some(Finish::Atomic(_)) => "atomics on the result, whose order changes nothing".into(),
        });
        format!("{r}: {}", steps.join(", then "))
    }
}
