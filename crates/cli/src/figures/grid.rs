//! Order of result tiles over the grid, edges of the result, and the split along k.

use super::Shape;
use super::svg::{Anchor, Svg, hue};
use super::who;
use tilewright_gen::plan::{Edge, GroupOrder, KernelSpec};

const MOST: u64 = 14;

/// Where the grid lies and how large it is.
struct Grid {
    tiles_m: u64,
    tiles_n: u64,
    /// Rows and columns of tiles that are drawn.
    rows: u64,
    cols: u64,
    cell_w: f64,
    cell_h: f64,
    /// Work-groups of a cluster.
    along_m: u64,
    along_n: u64,
    /// Work-groups of the launch without splits of k, and those that run at a time.
    total: u64,
    together: u64,
}

const LEFT: f64 = 30.0;
const TOP: f64 = 24.0;

impl Grid {
    fn new(spec: &KernelSpec, shape: &Shape) -> Grid {
        let tiling = &spec.tiling;
        let (mt_a, mt_b) = macro_tiles(spec);
        let (tiles_m, tiles_n) = (shape.m.div_ceil(mt_a).max(1), shape.n.div_ceil(mt_b).max(1));
        let (rows, cols) = (tiles_m.min(MOST), tiles_n.min(MOST));
        let (along_m, along_n) = (u64::from(tiling.cluster.m.max(1)), u64::from(tiling.cluster.n.max(1)));
        Grid {
            tiles_m,
            tiles_n,
            rows,
            cols,
            cell_w: (430.0 / cols as f64).min(64.0),
            cell_h: (430.0 / rows as f64).min(40.0),
            along_m,
            along_n,
            total: tiles_m.next_multiple_of(along_m) * tiles_n.next_multiple_of(along_n),
            together: (shape.concurrent / u64::from(tiling.split_k.ways.max(1))).max(1),
        }
    }
    fn wide(&self) -> f64 {
        self.cols as f64 * self.cell_w
    }
    fn high(&self) -> f64 {
        self.rows as f64 * self.cell_h
    }
    /// The tile (row, column) that has a place in the order.
    fn tile(&self, order: GroupOrder, place: u64) -> (u64, u64) {
        // Clusters take their places in the order, m first within each.
        let (cluster, rank) = (place / (self.along_m * self.along_n), place % (self.along_m * self.along_n));
        let (a, b) = who::tile_at(order, self.tiles_m.div_ceil(self.along_m), self.tiles_n.div_ceil(self.along_n), cluster);
        (a * self.along_m + rank % self.along_m, b * self.along_n + rank / self.along_m)
    }
}

fn macro_tiles(spec: &KernelSpec) -> (u64, u64) {
    (u64::from(spec.tiling.a.macro_tile.max(1)), u64::from(spec.tiling.b.macro_tile.max(1)))
}

/// Draws the grid of result tiles with their places in the order. Gives the drawing and its height.
pub fn draw(spec: &KernelSpec, shape: &Shape) -> (Svg, f64) {
    let mut svg = Svg::default();
    let grid = Grid::new(spec, shape);
    cells(&mut svg, spec, shape, &grid);
    frame(&mut svg, spec, shape, &grid);
    let at = words(&mut svg, spec, shape, &grid);
    (svg, (TOP + grid.high() + 22.0).max(at + 40.0))
}

/// The tiles with their places, and an arrow along the first of them.
fn cells(svg: &mut Svg, spec: &KernelSpec, shape: &Shape, grid: &Grid) {
    let (mt_a, mt_b) = macro_tiles(spec);
    let (cell_w, cell_h) = (grid.cell_w, grid.cell_h);
    let centre = |(a, b): (u64, u64)| (LEFT + (b as f64 + 0.28) * cell_w, TOP + (a as f64 + 0.3) * cell_h);
    // Places far out of the window are not drawn; the order is cheap to walk for every grid worth drawing.
    let mut path = Vec::new();
    for place in 0..grid.total.min(1 << 16) {
        let (a, b) = grid.tile(spec.tiling.order, place);
        if a >= grid.rows || b >= grid.cols {
            continue;
        }
        let (x, y) = (LEFT + b as f64 * cell_w, TOP + a as f64 * cell_h);
        let round = (place / grid.together) as usize;
        svg.fill(x, y, cell_w, cell_h, hue(round), if round == 0 { 0.55 } else { 0.28 });
        let partial =
            (a + 1 == grid.tiles_m && !shape.m.is_multiple_of(mt_a)) || (b + 1 == grid.tiles_n && !shape.n.is_multiple_of(mt_b));
        svg.outline(x, y, cell_w, cell_h, "#8893a0", 0.6);
        if partial && cell_h > 12.0 {
            svg.outline(x + 2.5, y + 2.5, cell_w - 5.0, cell_h - 5.0, "#47525f", 1.0);
        }
        if cell_w >= 18.0 && cell_h >= 14.0 {
            let size = if cell_w < 26.0 { 8.0 } else { 11.0 };
            svg.text((x + cell_w / 2.0, y + cell_h - 5.0), size, Anchor::Middle, "", &place.to_string());
        }
        if path.len() < 24 {
            path.push(centre((a, b)));
        }
    }
    if path.len() > 1 {
        svg.arrow(&path, "#47525f");
    }
}

/// The frame with what its sides are.
fn frame(svg: &mut Svg, spec: &KernelSpec, shape: &Shape, grid: &Grid) {
    let (mt_a, mt_b) = macro_tiles(spec);
    let (wide, high) = (grid.wide(), grid.high());
    svg.rect(LEFT, TOP, wide, high, "frame");
    let (at, anchor) = if wide < 200.0 { (LEFT, Anchor::Start) } else { (LEFT + wide / 2.0, Anchor::Middle) };
    svg.text((at, TOP - 8.0), 12.0, anchor, "h2", &format!("n = {} → {} tiles of {mt_b}", shape.n, grid.tiles_n));
    svg.text_up((LEFT - 10.0, TOP + high / 2.0), 12.0, "h2", &format!("m = {} → {} tiles of {mt_a}", shape.m, grid.tiles_m));
    if grid.tiles_n > grid.cols {
        svg.text((LEFT + wide + 6.0, TOP + high / 2.0), 16.0, Anchor::Start, "dim", "…");
    }
    if grid.tiles_m > grid.rows {
        svg.text((LEFT + wide / 2.0, TOP + high + 14.0), 16.0, Anchor::Middle, "dim", "⋮");
    }
}

/// What is said beside the grid, and the split of k. Gives where its last line stands.
fn words(svg: &mut Svg, spec: &KernelSpec, shape: &Shape, grid: &Grid) -> f64 {
    let tiling = &spec.tiling;
    let (mt_a, mt_b) = macro_tiles(spec);
    let x = LEFT + grid.wide().max(240.0) + 44.0;
    let mut y = TOP + 12.0;
    let mut say = |svg: &mut Svg, class: &str, text: &str| {
        svg.text((x, y), 12.5, Anchor::Start, class, text);
        y += 19.0;
        y
    };
    say(svg, "h2", "Order of tiles");
    say(
        svg,
        "",
        &match tiling.order {
            GroupOrder::ColumnsFastest => "n fastest: along a row of tiles, then the next row".to_string(),
            GroupOrder::RowsFastest => "m fastest: down a column of tiles, then the next column".to_string(),
            GroupOrder::Strips(width) => format!("strips {width} tiles wide in n, walked row by row down m"),
        },
    );
    let (total, together) = (grid.total, grid.together);
    say(svg, "", &format!("{total} result tiles per batch member, {} in the batch", shape.g));
    if total <= together {
        say(svg, "", &format!("all of them run together (room for {together})"));
    } else {
        say(svg, "", &format!("{together} run together; {} rounds, one hue each", total.div_ceil(together)));
    }
    for (dim, extent, tile, edge) in [("m", shape.m, mt_a, tiling.edge_m), ("n", shape.n, mt_b, tiling.edge_n)] {
        let over = extent % tile;
        let text = match edge {
            _ if over == 0 => format!("{dim}: tiles divide {extent} exactly"),
            Edge::PullBack => format!("{dim}: last tile ({over} new) is pulled back to end at the edge"),
            Edge::Predicate => format!("{dim}: last tile ({over} of {tile}) checks bounds"),
        };
        say(svg, "", &text);
    }
    say(svg, "", "");
    say(svg, "h2", "Sum over k");
    let k_tiles = shape.k.div_ceil(u64::from(tiling.k_tile.max(1)));
    let ways = tiling.split_k.ways.max(1);
    let text = if ways == 1 {
        format!("one work-group walks all {k_tiles} k-tiles of {}", tiling.k_tile)
    } else {
        let how = if tiling.split_k.interleave { "round-robin" } else { "in contiguous ranges" };
        format!("{ways} work-groups share {k_tiles} k-tiles of {}, {how}", tiling.k_tile)
    };
    let at = say(svg, "", &text);
    let note = split(svg, spec, k_tiles.max(1), (x, at));
    svg.text((x, at + 29.0), 11.0, Anchor::Start, "dim", note);
    at
}

/// The k-tiles as boxes with the work-group that sums each; gives what the boxes are.
fn split(svg: &mut Svg, spec: &KernelSpec, k_tiles: u64, (x, at): (f64, f64)) -> &'static str {
    let (split_k, ways) = (spec.tiling.split_k, u64::from(spec.tiling.split_k.ways.max(1)));
    let room = (1010.0 - x).max(200.0);
    if k_tiles <= 32 || split_k.interleave || ways == 1 {
        let shown = k_tiles.min(32);
        let step = (room / shown as f64).min(26.0);
        for tile in 0..shown {
            let way = who::way_of(split_k, k_tiles, tile);
            svg.fill(x + tile as f64 * step, at - 10.0, step - 1.5, 22.0, hue(way as usize), 0.8);
            if step >= 11.0 {
                let label = if ways == 1 { tile } else { way };
                svg.text((x + (tile as f64 + 0.5) * step - 0.75, at + 5.0), 9.0, Anchor::Middle, "onhue", &label.to_string());
            }
        }
        if k_tiles > shown {
            svg.text((x + shown as f64 * step + 5.0, at + 4.0), 14.0, Anchor::Start, "dim", "…");
        }
        return if ways == 1 {
            "each box is one k-tile"
        } else {
            "each box is a k-tile, numbered by the work-group that sums it"
        };
    }
    // Too many k-tiles for boxes of their own: one box per range, in proportion.
    let mut start = 0;
    for way in 0..ways {
        let length = k_tiles / ways + u64::from(way < k_tiles % ways);
        let (from, wide) = (x + room * start as f64 / k_tiles as f64, room * length as f64 / k_tiles as f64);
        svg.fill(from, at - 10.0, wide - 1.5, 22.0, hue(way as usize), 0.8);
        let label = if wide > 60.0 { format!("{way}: {length} k-tiles") } else { way.to_string() };
        svg.text((from + wide / 2.0, at + 5.0), 10.5, Anchor::Middle, "onhue", &label);
        start += length;
    }
    "each box is the range of one work-group"
}
