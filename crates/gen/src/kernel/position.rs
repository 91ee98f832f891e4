//! Where a work-group stands: its result tile, its batch entry, and its share of k.

use super::cluster::ClusterPlace;
use super::{Input, Shape};
use crate::plan::{Edge, GroupOrder, Tiling};
use tilewright_ir::affine::Coord;
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

/// Elements of an operand from which on offsets within it take 64 bits. Leaves room for tiles that overrun the edge.
pub const WIDE_OFFSETS: u64 = (1 << 31) - (1 << 16);

/// Integer types of index arithmetic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ints {
    /// Coordinates.
    pub coord: Scalar,
    /// Element offsets within a tensor.
    pub offset: Scalar,
}

impl Ints {
    /// The narrowest types that hold every coordinate and offset of the launch.
    pub fn new(wide: bool, extents: &[u64], lens: &[u64]) -> Ints {
        let ty = |values: &[u64]| if wide || values.iter().any(|&v| v >= WIDE_OFFSETS) { Scalar::I64 } else { Scalar::I32 };
        let offset = ty(lens);
        Ints { coord: if offset == Scalar::I64 && wide { Scalar::I64 } else { ty(extents) }, offset }
    }
}

/// Rows and columns of C in this launch, where they are known only at launch: arguments, as coordinates.
pub(super) type Sizes = [Option<ExprId>; 2];

/// Tiles of this size that cover rows or columns of C.
fn tiles_of(b: &mut Builder, size: Option<ExprId>, of: u32, tiles: u64) -> Ex {
    let Some(size) = size else { return tiles.into() };
    b.bind("tiles", ((size + (of - 1)) / of).cast(Scalar::I32)).into()
}

/// Which result tile a work-group computes.
pub(super) struct TilePosition {
    pub tile_m: ExprId,
    pub tile_n: ExprId,
    /// First row and column.
    pub m_start: Coord,
    pub n_start: Coord,
    pub split: ExprId,
    /// Batch coordinate within the chunk and in the whole problem.
    pub g_local: ExprId,
    pub g: ExprId,
    /// Rows and columns of C where they are known only at launch.
    pub sizes: Sizes,
}

/// The k-tiles of a work-group.
pub(super) struct KRange {
    pub tiles: ExprId,
    pub begin: ExprId,
    pub limit: ExprId,
    pub step: i64,
    /// Some tile may be partly or wholly outside 0..k element by element.
    pub ragged: bool,
    /// First tile may start below zero.
    pub staggered: bool,
}

/// Ids of a work-group's tile; `group` counts tiles and splits, or clusters of them.
#[allow(clippy::too_many_arguments)]
pub(super) fn position(
    b: &mut Builder,
    t: &Tiling,
    shape: &Shape,
    inputs: [&Input; 2],
    g_first: Option<ExprId>,
    ints: Ints,
    c: &Contraction,
    group: ExprId,
    sizes: Sizes,
    cluster: Option<ClusterPlace>,
) -> TilePosition {
    let ways = t.split_k.ways / t.cluster.splits;
    let split = match cluster {
        Some(place) if t.cluster.splits > 1 => place.split,
        _ => b.bind("split", group % ways),
    };
    let tile = b.value(group / ways);
    let tm = tiles_of(b, sizes[0], t.a.macro_tile, shape.tiles_m / u64::from(t.cluster.m));
    let tn = tiles_of(b, sizes[1], t.b.macro_tile, shape.tiles_n / u64::from(t.cluster.n));
    let tiles = &tm * &tn;
    let batched = shape.chunk > 1;
    let zero = b.int(0, Scalar::I32);
    let (g_local, tile) = if batched { (b.value(tile / &tiles), b.value(tile % &tiles)) } else { (zero, tile) };
    let tile = b.bind("tile", tile);
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
    let tile_m = b.bind("tile_m", tile_m);
    let tile_n = b.bind("tile_n", tile_n);
    let start = |b: &mut Builder, name: &str, tile: ExprId, input: &Input, extent: u64| {
        let size = input.tiling.macro_tile as i64;
        let value = b.value(tile.cast(ints.coord) * size);
        let divides = extent as i64 % size == 0;
        let (value, unit) = match input.edge {
            Edge::PullBack if !divides => (b.value(value.min(extent as i64 - size)), 1),
            _ => (value, size),
        };
        let aligned = b.bind(name, value);
        let zero = b.int(0, ints.coord);
        if unit == 1 { Coord::plain(b, aligned) } else { Coord { aligned, unit, local: zero } }
    };
    let m_start = start(b, "m_start", tile_m, inputs[0], c.m);
    let n_start = start(b, "n_start", tile_n, inputs[1], c.n);
    let g_local = b.value(g_local.cast(ints.coord));
    let g = match g_first {
        Some(first) => b.bind("g", first.cast(ints.coord) + g_local),
        None => g_local,
    };
    TilePosition { tile_m, tile_n, m_start, n_start, split, g_local, g, sizes }
}

/// The work-group's share of k.
pub(super) fn k_range(b: &mut Builder, c: &Contraction, t: &Tiling, at: &TilePosition, shape: &Shape, ints: Ints) -> KRange {
    let depth = t.k_tile as i64;
    let k = c.k as i64;
    let ways = t.split_k.ways as i64;
    let shift = t.k_stagger.then(|| {
        // Work-groups start at different k to spread over memory channels (MIOpenGEMM's unroll-for-offset).
        b.bind("k_shift", ((at.tile_m * 13 + at.tile_n * 7) % depth).cast(ints.coord))
    });
    let total = match shift {
        None => b.int(shape.k_tiles as i64, ints.coord),
        Some(shift) => b.bind("k_tiles", (shift + (k + depth - 1)) / depth),
    };
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
    let begin = b.bind("k_begin", begin);
    let limit =
        if ways == 1 || t.split_k.interleave { b.int(k, ints.coord) } else { b.bind("k_limit", (begin + tiles * depth).min(k)) };
    KRange { tiles, begin, limit, step: t.k_stride(), ragged: k % depth != 0 || t.k_stagger, staggered: t.k_stagger }
}
