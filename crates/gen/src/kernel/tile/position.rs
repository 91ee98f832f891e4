//! Where a work-group stands: its result tile, its batch entry, and its share of k.

use super::cluster::ClusterPlace;
use super::groups::{Groups, Terms};
use crate::kernel::input::Ints;
use crate::kernel::input::{Input, Shape};
use crate::plan::{Edge, GroupOrder, Tiling};
use tilewright_ir::affine::Coord;
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

/// Rows and columns of C in this launch, where they are known only at launch: arguments, as coordinates.
pub(crate) type Sizes = [Option<ExprId>; 2];

/// Tiles of this size that cover rows or columns of C.
fn tiles_of(b: &mut Builder, size: Option<ExprId>, of: u32, tiles: u64) -> Ex {
    let Some(size) = size else { return tiles.into() };
    b.bind("tiles", ((size + (of - 1)) / of).cast(Scalar::I32)).into()
}

/// The tile scheduler: the result tiles of a launch in the order in which work-groups take them, with their shares of k.
///
/// A piece of work is a result tile of a batch entry and a split of it. Work-groups take one each, or several (persistent); clusters
/// count as one work-group.
#[derive(Clone, Copy)]
pub(crate) struct TileWalk<'a> {
    pub c: &'a Contraction,
    pub tiling: &'a Tiling,
    pub inputs: [&'a Input; 2],
    pub shape: &'a Shape,
    pub ints: Ints,
    /// First batch entry of this launch, where the batch is cut.
    pub g_first: Option<ExprId>,
    /// Rows and columns of C, where they are known only at launch.
    pub sizes: Sizes,
    /// Where batch entries are groups of rows or columns.
    pub groups: Option<Groups>,
    /// Where they are sums over ranges of k.
    pub terms: Option<Terms>,
    /// Pieces of work of this launch, where launches differ.
    pub work: Option<ExprId>,
    /// The work-group's place in its cluster.
    pub place: Option<ClusterPlace>,
    /// Pieces of work of the parts of the problem before this one, clusters as one; and whether there are other parts.
    pub before: u64,
    pub more: bool,
}

/// Which result tile a work-group computes.
pub(crate) struct TilePosition {
    pub tile_m: ExprId,
    pub tile_n: ExprId,
    /// First row and column.
    pub m_start: Coord,
    pub n_start: Coord,
    pub split: ExprId,
    /// Batch coordinate within the chunk and in the whole problem.
    pub g_local: ExprId,
    pub g: ExprId,
    /// Rows and columns of C where they are known only at launch; of groups, the end of the tile's.
    pub sizes: Sizes,
    /// False where there is no tile for the work-group, if it may pass over that.
    pub exists: Option<ExprId>,
}

/// The k-tiles of a work-group.
pub(crate) struct KRange {
    pub tiles: ExprId,
    pub begin: ExprId,
    pub limit: ExprId,
    pub step: i64,
    /// Tiles begin at multiples of this.
    pub every: i64,
    /// Where the sum ends, if only the device knows.
    pub end: Option<ExprId>,
    /// Some tile may be partly or wholly outside 0..k element by element.
    pub ragged: bool,
    /// First tile may start below zero.
    pub staggered: bool,
}

/// A work-group's tile of C, and its range of k.
#[derive(Clone, Copy)]
pub(crate) struct TileWork<'a> {
    pub at: &'a TilePosition,
    pub range: &'a KRange,
}

impl TileWalk<'_> {
    /// Ids of a work-group's tile; `group` counts tiles and splits, or clusters of them.
    pub(crate) fn position(&self, b: &mut Builder, group: ExprId) -> TilePosition {
        let &TileWalk { c, tiling: t, inputs, shape, ints, g_first, sizes, groups, place: cluster, .. } = self;
        let ways = t.split_k.ways / t.cluster.splits;
        let split = match cluster {
            Some(place) if t.cluster.splits > 1 => place.split,
            _ => b.bind("split", group % ways),
        };
        let tile = b.value(group / ways);
        let [tm, tn] = self.tiles_along(b);
        let tiles = &tm * &tn;
        let batched = shape.chunk > 1;
        let zero = b.int(0, Scalar::I32);
        // The last launch of a batch that is cut has fewer entries: there they are consecutive.
        let fastest = t.entries_fastest && shape.chunk == c.g;
        let (g_local, tile) = match (batched, i64::try_from(shape.chunk)) {
            (false, _) => (zero, tile),
            (true, Ok(entries)) if fastest => (b.value(tile % entries), b.value(tile / entries)),
            (true, _) => (b.value(tile / &tiles), b.value(tile % &tiles)),
        };
        let tile = b.bind("tile", tile);
        // With counted groups, a launch has tile numbers past the last tile.
        let counted = groups.filter(|groups| groups.table.is_some()).map(|_| b.value(tile.lt(&tiles)));
        let tile = if counted.is_some() { b.bind("some_tile", tile.min(&tiles - 1)) } else { tile };
        let g_local = b.bind("g_local", g_local);
        let (tile_m, tile_n) = match t.order {
            GroupOrder::ColumnsFastest => (b.value(tile / &tn), b.value(tile % &tn)),
            GroupOrder::RowsFastest => (b.value(tile % &tm), b.value(tile / &tm)),
            GroupOrder::Strips(width) => {
                let width = tn.clone().min(width);
                let area = &width * &tm;
                let strip = b.bind("strip", tile / &area);
                let within = b.value(tile % area);
                let first = b.bind("strip_first", strip * &width);
                // The last strip may be narrower.
                let here = match (tn.as_int(), width.as_int()) {
                    (Some(tn), Some(width)) if tn % width == 0 => b.int(width, Scalar::I32),
                    _ => b.value((tn - first).min(width)),
                };
                (b.value(within / here), b.value(first + within % here))
            }
        };
        let within = |b: &mut Builder, tile: ExprId, along: u32, place: Option<ExprId>| match place {
            Some(place) if along > 1 => b.value(tile * along + place),
            _ => tile,
        };
        let tile_m = within(b, tile_m, t.cluster.m, cluster.map(|p| p.m));
        let tile_n = within(b, tile_n, t.cluster.n, cluster.map(|p| p.n));
        let tile_m = if shape.rows.first_tile == 0 { tile_m } else { b.value(tile_m + shape.rows.first_tile as i64) };
        let tile_m = b.bind("tile_m", tile_m);
        let tile_n = b.bind("tile_n", tile_n);
        let start = |b: &mut Builder, name: &str, tile: ExprId, input: &Input, extent: u64| {
            let size = input.tiling.macro_tile as i64;
            let value = b.value(tile.cast(ints.coord) * size);
            let divides = extent as i64 % size == 0;
            let (value, every) = match input.edge {
                Edge::PullBack if !divides => (b.value(value.min(extent as i64 - size)), 1),
                _ => (value, size),
            };
            let aligned = b.bind(name, value);
            Coord::start(b, aligned, every)
        };
        let m_start = start(b, "m_start", tile_m, inputs[0], c.m);
        let n_start = start(b, "n_start", tile_n, inputs[1], c.n);
        let g_local = b.value(g_local.cast(ints.coord));
        let g = match g_first {
            Some(first) => b.bind("g", first.cast(ints.coord) + g_local),
            None => g_local,
        };
        let mut at = TilePosition { tile_m, tile_n, m_start, n_start, split, g_local, g, sizes, exists: None };
        if let Some(groups) = groups {
            let (number, start) = if groups.axis == 0 { (tile_m, &mut at.m_start) } else { (tile_n, &mut at.n_start) };
            let found = groups.find(b, number, inputs[groups.axis].tiling.macro_tile);
            let own = b.value(found.start.cast(ints.coord));
            *start = Coord::start(b, own, 1);
            at.sizes[groups.axis] = Some(b.value(found.end.cast(ints.coord)));
            at.g = b.value(found.group.cast(ints.coord));
            at.exists = b.and_opt(groups.skip.then_some(found.exists), counted);
        }
        at
    }

    /// Tiles along m and n, clusters as one.
    fn tiles_along(&self, b: &mut Builder) -> [Ex; 2] {
        let &TileWalk { tiling: t, shape, sizes, groups, .. } = self;
        let along = [(t.a.macro_tile, shape.tiles_m, t.cluster.m), (t.b.macro_tile, shape.tiles_n, t.cluster.n)];
        [0, 1].map(|axis| {
            let (size, tiles, cluster) = along[axis];
            let counted = groups.filter(|groups| groups.axis == axis).and_then(|groups| groups.tiles(b));
            match counted {
                Some(all) => b.bind("tiles", (all + i64::from(cluster - 1)) / i64::from(cluster)).into(),
                None => tiles_of(b, sizes[axis], size, tiles / u64::from(cluster)),
            }
        })
    }

    /// The work-group's share of k.
    pub(crate) fn k_range(&self, b: &mut Builder, at: &TilePosition) -> KRange {
        let &TileWalk { c, tiling: t, shape, ints, terms, .. } = self;
        let depth = t.k_tile as i64;
        let k = c.k as i64;
        let ways = t.split_k.ways as i64;
        let shift = t.k_stagger.then(|| {
            // Work-groups start at different k to spread over memory channels (MIOpenGEMM's unroll-for-offset).
            b.bind("k_shift", ((at.tile_m * 13 + at.tile_n * 7) % depth).cast(ints.coord))
        });
        let own = terms.map(|terms| terms.of(b, at.g, ints.coord));
        let total = match (own, shift) {
            (Some([first, end]), _) => b.bind("k_tiles", ((end - first).max(0) + (depth - 1)) / depth),
            (None, None) => b.int(shape.k_tiles as i64, ints.coord),
            (None, Some(shift)) => b.bind("k_tiles", (shift + (k + depth - 1)) / depth),
        };
        let k = own.map_or_else(|| b.int(k, ints.coord), |[_, end]| end);
        let split = b.value(at.split.cast(ints.coord));
        let (tiles, first) = if ways == 1 {
            (total, b.int(0, ints.coord))
        } else {
            let each = b.value(total / ways);
            let rest = b.value(total % ways);
            let tiles = b.bind("my_k_tiles", each + split.lt(rest).select(Ex::int(1, ints.coord), 0));
            let first = if t.split_k.interleave { split } else { b.value(split * each + split.min(rest)) };
            (tiles, first)
        };
        let mut begin = b.value(first * depth);
        if let Some(shift) = shift {
            begin = b.value(begin - shift);
        }
        if let Some([first, _]) = own {
            begin = b.value(first + begin);
        }
        let begin = b.bind("k_begin", begin);
        let limit = if ways == 1 || t.split_k.interleave { k } else { b.bind("k_limit", (begin + tiles * depth).min(k)) };
        let anywhere = t.k_stagger || own.is_some();
        KRange {
            tiles,
            begin,
            limit,
            step: t.k_stride(),
            every: if anywhere { 1 } else { depth },
            end: own.map(|[_, end]| end),
            ragged: c.k as i64 % depth != 0 || anywhere,
            staggered: t.k_stagger,
        }
    }

    /// Work-groups, or clusters, that walk over all tiles.
    pub fn stay(&self) -> i64 {
        i64::from(self.tiling.persistent / self.tiling.cluster.size())
    }

    /// The work-group's first piece of work: clusters count as one, and walk as one.
    pub fn first_work(&self, b: &mut Builder) -> ExprId {
        match &self.place {
            Some(place) => place.cluster,
            None => b.bind("group_id", Builtin::GroupId(0)),
        }
    }

    /// Pieces of work of the largest launch.
    pub fn pieces(&self) -> u64 {
        let (t, shape) = (self.tiling, self.shape);
        u64::from(t.split_k.ways) * shape.tiles_m * shape.tiles_n * shape.chunk / u64::from(t.cluster.size().max(1))
    }

    /// Pieces of work of a launch, where work-groups are persistent.
    pub fn all_work(&self, b: &mut Builder) -> ExprId {
        if self.groups.is_some_and(|groups| groups.table.is_some()) {
            let [tm, tn] = self.tiles_along(b);
            return b.bind("all_tiles", tm * tn);
        }
        // The last chunk of a batch may be shorter: as many tiles as its launch says.
        self.work.unwrap_or_else(|| b.int(self.pieces() as i64, Scalar::I32))
    }

    /// How many k-tiles a piece of work has.
    pub fn k_tiles(&self, b: &mut Builder, work: ExprId) -> ExprId {
        let ways = u64::from(self.tiling.split_k.ways.max(1));
        let (each, rest) = (self.shape.k_tiles / ways, self.shape.k_tiles % ways);
        let each = b.int(each as i64, Scalar::I32);
        if rest == 0 {
            return each;
        }
        // The first splits have one more.
        b.value(each + (work % (ways as i64)).lt(rest as i64).select(Ex::int(1, Scalar::I32), 0))
    }
}
