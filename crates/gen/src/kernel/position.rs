//! Where a work-group stands: its result tile, its batch entry, and its share of k.

use super::cluster::ClusterPlace;
use super::helpers::times;
use super::{Input, Shape};
use crate::plan::{Edge, GroupOrder, Tiling};
use tilewright_ir::affine::Coord;
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

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
        // Room for tiles that overrun the edge.
        let limit = (1u64 << 31) - (1 << 16);
        let ty = |values: &[u64]| if wide || values.iter().any(|&v| v >= limit) { Scalar::I64 } else { Scalar::I32 };
        let offset = ty(lens);
        Ints { coord: if offset == Scalar::I64 && wide { Scalar::I64 } else { ty(extents) }, offset }
    }
}

/// Rows and columns of C in this launch, where they are known only at launch: arguments, as coordinates.
pub(super) type Sizes = [Option<ExprId>; 2];

/// Tiles of this size that cover rows or columns of C.
fn tiles_of(b: &mut Builder, size: Option<ExprId>, of: u32, tiles: u64) -> Operand {
    let Some(size) = size else { return Operand::Int(tiles as i64) };
    let reach = b.add(size, of - 1);
    let reach = b.div(reach, of);
    let tiles = b.cast(reach, Scalar::I32);
    b.bind("tiles", tiles).into()
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
        _ => {
            let split = b.rem(group, ways);
            b.bind("split", split)
        }
    };
    let tile = b.div(group, ways);
    let tm = tiles_of(b, sizes[0], t.a.macro_tile, shape.tiles_m / u64::from(t.cluster.m));
    let tn = tiles_of(b, sizes[1], t.b.macro_tile, shape.tiles_n / u64::from(t.cluster.n));
    let tiles = times(b, tm, tn);
    let batched = shape.chunk > 1;
    let zero = b.int(0, Scalar::I32);
    let (g_local, tile) = if batched { (b.div(tile, tiles), b.rem(tile, tiles)) } else { (zero, tile) };
    let tile = b.bind("tile", tile);
    let g_local = b.bind("g_local", g_local);
    let (tile_m, tile_n) = match t.order {
        GroupOrder::ColumnsFastest => (b.div(tile, tn), b.rem(tile, tn)),
        GroupOrder::RowsFastest => (b.rem(tile, tm), b.div(tile, tm)),
        GroupOrder::Strips(width) => {
            let width = match tn {
                Operand::Int(tn) => Operand::Int(i64::from(width).min(tn)),
                Operand::Expr(tn) => b.binary(BinaryOp::Min, tn, width).into(),
            };
            let area = times(b, width, tm);
            let strip = b.div(tile, area);
            let strip = b.bind("strip", strip);
            let within = b.rem(tile, area);
            let first = b.mul(strip, width);
            let first = b.bind("strip_first", first);
            // The last strip may be narrower.
            let here = match (tn, width) {
                (Operand::Int(tn), Operand::Int(width)) if tn % width == 0 => b.int(width, Scalar::I32),
                _ => {
                    let left = b.sub(tn, first);
                    b.binary(BinaryOp::Min, left, width)
                }
            };
            let col = b.rem(within, here);
            (b.div(within, here), b.add(first, col))
        }
    };
    let within = |b: &mut Builder, tile: ExprId, along: u32, place: Option<ExprId>| match place {
        Some(place) if along > 1 => {
            let first = b.mul(tile, along);
            b.add(first, place)
        }
        _ => tile,
    };
    let tile_m = within(b, tile_m, t.cluster.m, cluster.map(|p| p.m));
    let tile_n = within(b, tile_n, t.cluster.n, cluster.map(|p| p.n));
    let tile_m = b.bind("tile_m", tile_m);
    let tile_n = b.bind("tile_n", tile_n);
    let start = |b: &mut Builder, name: &str, tile: ExprId, input: &Input, extent: u64| {
        let size = input.tiling.macro_tile as i64;
        let tile = b.cast(tile, ints.coord);
        let value = b.mul(tile, size);
        let divides = extent as i64 % size == 0;
        let (value, unit) = match input.edge {
            Edge::PullBack if !divides => (b.binary(BinaryOp::Min, value, extent as i64 - size), 1),
            _ => (value, size),
        };
        let aligned = b.bind(name, value);
        let zero = b.int(0, ints.coord);
        if unit == 1 { Coord::plain(b, aligned) } else { Coord { aligned, unit, local: zero } }
    };
    let m_start = start(b, "m_start", tile_m, inputs[0], c.m);
    let n_start = start(b, "n_start", tile_n, inputs[1], c.n);
    let g_local = b.cast(g_local, ints.coord);
    let g = match g_first {
        Some(first) => {
            let first = b.cast(first, ints.coord);
            let g = b.add(first, g_local);
            b.bind("g", g)
        }
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
        let m = b.mul(at.tile_m, 13);
        let n = b.mul(at.tile_n, 7);
        let sum = b.add(m, n);
        let shift = b.rem(sum, depth);
        let shift = b.cast(shift, ints.coord);
        b.bind("k_shift", shift)
    });
    let total = match shift {
        None => b.int(shape.k_tiles as i64, ints.coord),
        Some(shift) => {
            let reach = b.add(shift, k + depth - 1);
            let total = b.div(reach, depth);
            b.bind("k_tiles", total)
        }
    };
    let split = b.cast(at.split, ints.coord);
    let (tiles, first) = if ways == 1 {
        (total, b.int(0, ints.coord))
    } else {
        let each = b.div(total, ways);
        let rest = b.rem(total, ways);
        let more = b.lt(split, rest);
        let one = b.int(1, ints.coord);
        let zero = b.int(0, ints.coord);
        let extra = b.select(more, one, zero);
        let tiles = b.add(each, extra);
        let tiles = b.bind("my_k_tiles", tiles);
        let first = if t.split_k.interleave {
            split
        } else {
            let even = b.mul(split, each);
            let uneven = b.binary(BinaryOp::Min, split, rest);
            b.add(even, uneven)
        };
        (tiles, first)
    };
    let mut begin = b.mul(first, depth);
    if let Some(shift) = shift {
        begin = b.sub(begin, shift);
    }
    let begin = b.bind("k_begin", begin);
    let limit = if ways == 1 || t.split_k.interleave {
        b.int(k, ints.coord)
    } else {
        let mine = b.mul(tiles, depth);
        let end = b.add(begin, mine);
        let end = b.binary(BinaryOp::Min, end, k);
        b.bind("k_limit", end)
    };
    KRange { tiles, begin, limit, step: t.k_stride(), ragged: k % depth != 0 || t.k_stagger, staggered: t.k_stagger }
}
