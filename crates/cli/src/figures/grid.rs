//! Order of result tiles over the grid, edges of the result, and the split along k.

use super::Shape;
use super::svg::{Anchor, Svg, hue};
use super::who;
use tilewright_gen::plan::{Edge, GroupOrder, KernelSpec};

const MOST: u64 = 14;

/// Draws the grid of result tiles with their places in the order. Gives the drawing and its height.
pub fn draw(spec: &KernelSpec, shape: &Shape) -> (Svg, f64) {
    let mut svg = Svg::default();
    let tiling = &spec.tiling;
    let (mt_a, mt_b) = (u64::from(tiling.a.macro_tile.max(1)), u64::from(tiling.b.macro_tile.max(1)));
    let (tiles_m, tiles_n) = (shape.m.div_ceil(mt_a).max(1), shape.n.div_ceil(mt_b).max(1));
    let (rows, cols) = (tiles_m.min(MOST), tiles_n.min(MOST));
    let (cell_w, cell_h) = ((430.0 / cols as f64).min(64.0), (430.0 / rows as f64).min(40.0));
    let (left, top) = (30.0, 24.0);
    let (along_m, along_n) = (u64::from(tiling.cluster.m.max(1)), u64::from(tiling.cluster.n.max(1)));
    let total = tiles_m.next_multiple_of(along_m) * tiles_n.next_multiple_of(along_n);
    let together = (shape.concurrent / u64::from(tiling.split_k.ways.max(1))).max(1);
    let centre = |(a, b): (u64, u64)| (left + (b as f64 + 0.28) * cell_w, top + (a as f64 + 0.3) * cell_h);
    // Places far out of the window are not drawn; the order is cheap to walk for every grid worth drawing.
    let mut path = Vec::new();
    for place in 0..total.min(1 << 16) {
        // Clusters take their places in the order, m first within each.
        let (cluster, rank) = (place / (along_m * along_n), place % (along_m * along_n));
        let (a, b) = who::tile_at(tiling.order, tiles_m.div_ceil(along_m), tiles_n.div_ceil(along_n), cluster);
        let (a, b) = (a * along_m + rank % along_m, b * along_n + rank / along_m);
        if a >= rows || b >= cols {
            continue;
        }
        let (x, y) = (left + b as f64 * cell_w, top + a as f64 * cell_h);
        let round = (place / together) as usize;
        svg.fill(x, y, cell_w, cell_h, hue(round), if round == 0 { 0.55 } else { 0.28 });
        let partial = (a + 1 == tiles_m && !shape.m.is_multiple_of(mt_a)) || (b + 1 == tiles_n && !shape.n.is_multiple_of(mt_b));
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
    let (wide, high) = (cols as f64 * cell_w, rows as f64 * cell_h);
    svg.rect(left, top, wide, high, "frame");
    let (at, anchor) = if wide < 200.0 { (left, Anchor::Start) } else { (left + wide / 2.0, Anchor::Middle) };
    svg.text((at, top - 8.0), 12.0, anchor, "h2", &format!("n = {} → {tiles_n} tiles of {mt_b}", shape.n));
    svg.text_up((left - 10.0, top + high / 2.0), 12.0, "h2", &format!("m = {} → {tiles_m} tiles of {mt_a}", shape.m));
    if tiles_n > cols {
        svg.text((left + wide + 6.0, top + high / 2.0), 16.0, Anchor::Start, "dim", "…");
    }
    if tiles_m > rows {
        svg.text((left + wide / 2.0, top + high + 14.0), 16.0, Anchor::Middle, "dim", "⋮");
    }

    let x = left + wide.max(240.0) + 44.0;
    let mut y = top + 12.0;
    let mut say = |svg: &mut Svg, class: &str, text: &str| {
        svg.text((x, y), 12.5, Anchor::Start, class, text);
        y += 19.0;
        y
    };
    say(&mut svg, "h2", "Order of tiles");
    say(
        &mut svg,
        "",
        &match tiling.order {
            GroupOrder::ColumnsFastest => "n fastest: along a row of tiles, then the next row".to_string(),
            GroupOrder::RowsFastest => "m fastest: down a column of tiles, then the next column".to_string(),
            GroupOrder::Strips(width) => format!("strips {width} tiles wide in n, walked row by row down m"),
        },
    );
    say(&mut svg, "", &format!("{total} result tiles per batch member, {} in the batch", shape.g));
    if total <= together {
        say(&mut svg, "", &format!("all of them run together (room for {together})"));
    } else {
        say(&mut svg, "", &format!("{together} run together; {} rounds, one hue each", total.div_ceil(together)));
    }
    for (dim, extent, tile, edge) in [("m", shape.m, mt_a, tiling.edge_m), ("n", shape.n, mt_b, tiling.edge_n)] {
        let text = if extent.is_multiple_of(tile) {
            format!("{dim}: tiles divide {extent} exactly")
        } else {
            let over = extent % tile;
            match edge {
                Edge::PullBack => format!("{dim}: last tile ({over} new) is pulled back to end at the edge"),
                Edge::Predicate => format!("{dim}: last tile ({over} of {tile}) checks bounds"),
            }
        };
        say(&mut svg, "", &text);
    }
    say(&mut svg, "", "");
    say(&mut svg, "h2", "Sum over k");
    let k_tiles = shape.k.div_ceil(u64::from(tiling.k_tile.max(1)));
    let ways = tiling.split_k.ways.max(1);
    let split = if ways == 1 {
        format!("one work-group walks all {k_tiles} k-tiles of {}", tiling.k_tile)
    } else {
        let how = if tiling.split_k.interleave { "round-robin" } else { "in contiguous ranges" };
        format!("{ways} work-groups share {k_tiles} k-tiles of {}, {how}", tiling.k_tile)
    };
    let at = say(&mut svg, "", &split);
    let room = (1010.0 - x).max(200.0);
    let whole = k_tiles.max(1);
    let note = if whole <= 32 || tiling.split_k.interleave || ways == 1 {
        let shown = whole.min(32);
        let step = (room / shown as f64).min(26.0);
        for tile in 0..shown {
            let way = who::way_of(tiling.split_k, whole, tile);
            svg.fill(x + tile as f64 * step, at - 10.0, step - 1.5, 22.0, hue(way as usize), 0.8);
            if step >= 11.0 {
                let label = if ways == 1 { tile } else { way };
                svg.text((x + (tile as f64 + 0.5) * step - 0.75, at + 5.0), 9.0, Anchor::Middle, "onhue", &label.to_string());
            }
        }
        if whole > shown {
            svg.text((x + shown as f64 * step + 5.0, at + 4.0), 14.0, Anchor::Start, "dim", "…");
        }
        if ways == 1 { "each box is one k-tile" } else { "each box is a k-tile, numbered by the work-group that sums it" }
    } else {
        // Too many k-tiles for boxes of their own: one box per range, in proportion.
        let mut start = 0;
        for way in 0..u64::from(ways) {
            let length = whole / u64::from(ways) + u64::from(way < whole % u64::from(ways));
            let (from, wide) = (x + room * start as f64 / whole as f64, room * length as f64 / whole as f64);
            svg.fill(from, at - 10.0, wide - 1.5, 22.0, hue(way as usize), 0.8);
            let label = if wide > 60.0 { format!("{way}: {length} k-tiles") } else { way.to_string() };
            svg.text((from + wide / 2.0, at + 5.0), 10.5, Anchor::Middle, "onhue", &label);
            start += length;
        }
        "each box is the range of one work-group"
    };
    svg.text((x, at + 29.0), 11.0, Anchor::Start, "dim", note);
    (svg, (top + high + 22.0).max(at + 40.0))
}
