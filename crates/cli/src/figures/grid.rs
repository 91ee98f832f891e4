//! Which work-group takes which tile of C, in which order; edges; and the sum over k.

use super::svg::{Anchor, Drawing, Point, Svg, hue, point};
use super::{ROOM, SMALL, letters};
use std::collections::BTreeMap;
use tilewright::explain::facts::{Facts, Subject, plural};
use tilewright_gen::kernel::Work;
use tilewright_gen::plan::{Edge, GroupOrder};
use tilewright_problem::contraction::LaunchExtents;
use tilewright_problem::{Extent, Ragged};

const MOST: u64 = 14;
const LEFT: f64 = 30.0;
const TOP: f64 = 24.0;
/// Most k-tiles that have boxes of their own.
const BOXES: u64 = 32;

/// Draws the tiles of C with their work-groups. Gives the drawing and its height.
pub fn draw(subject: &Subject, facts: &Facts) -> Drawing {
    let mut svg = Svg::default();
    let [rows, columns, _] = subject.tile().map(u64::from);
    let [along_m, along_n, _] = subject.c.tiles([rows, columns]);
    let tiles = [along_m.max(1), along_n.max(1)];
    let shown = tiles.map(|tiles| tiles.min(MOST));
    let (cell_w, cell_h) = ((590.0 / shown[1] as f64).min(64.0), (430.0 / shown[0] as f64).min(34.0));
    // The first batch entry; of a split sum, its first part.
    let here = |w: &&Work| w.g == 0 && w.split == 0 && w.tile[0] < shown[0] && w.tile[1] < shown[1];
    let works: Vec<&Work> = subject.works.iter().filter(here).collect();
    let t = &subject.spec.tiling;
    let mut path = Vec::new();
    for w in &works {
        let (x, y) = (LEFT + w.tile[1] as f64 * cell_w, TOP + w.tile[0] as f64 * cell_h);
        let round = round(subject, w);
        svg.fill(x, y, cell_w, cell_h, hue(round as usize), if round == 0 { 0.55 } else { 0.3 });
        svg.outline(x, y, cell_w, cell_h, "#8893a0", 0.6);
        let number = w.group.to_string();
        if number.len() <= letters(cell_w, SMALL) && cell_h >= 14.0 {
            svg.text(point(x + cell_w / 2.0, y + cell_h - 4.0), SMALL, Anchor::Middle, "", &number);
        }
        if path.len() < 20 {
            path.push(point(x + 0.28 * cell_w, y + 0.3 * cell_h));
        }
    }
    if path.len() > 1 {
        svg.arrow(&path);
    }
    // Clusters.
    let [cm, cn] = [t.cluster.m, t.cluster.n].map(u64::from);
    for (i, j) in
        (0..shown[0]).step_by(cm.max(1) as usize).flat_map(|i| (0..shown[1]).step_by(cn.max(1) as usize).map(move |j| (i, j)))
    {
        if cm * cn > 1 {
            let (h, w) = (cm.min(shown[0] - i) as f64 * cell_h, cn.min(shown[1] - j) as f64 * cell_w);
            svg.rect(LEFT + j as f64 * cell_w, TOP + i as f64 * cell_h, w, h, "cluster");
        }
    }
    let (wide, high) = (shown[1] as f64 * cell_w, shown[0] as f64 * cell_h);
    svg.rect(LEFT, TOP, wide, high, "frame");
    let [m, n] = [Extent::M, Extent::N].map(|extent| match subject.c.problem_extent(extent) {
        same if same == extent => extent.name().to_string(),
        other => format!("{} (the problem's {})", extent.name(), other.name()),
    });
    svg.text(
        point(LEFT, TOP - 8.0),
        12.0,
        Anchor::Start,
        "h2",
        &format!("{n} = {}: {} of {columns}", subject.c.n, plural(tiles[1], "tile")),
    );
    svg.text_up(
        point(LEFT - 10.0, TOP + high / 2.0),
        12.0,
        "h2",
        &format!("{m} = {}: {} of {rows}", subject.c.m, plural(tiles[0], "tile")),
    );
    if tiles[1] > shown[1] {
        svg.text(point(LEFT + wide + 6.0, TOP + high / 2.0), 16.0, Anchor::Start, "dim", "…");
    }
    if tiles[0] > shown[0] {
        svg.text(point(LEFT + wide / 2.0, TOP + high + 14.0), 16.0, Anchor::Middle, "dim", "⋮");
    }
    let end = words(&mut svg, subject, facts, tiles, &works, TOP + high + 34.0);
    Drawing { svg, height: end }
}

/// How many tiles a persistent work-group has taken before this one; of others, whether they wait for the first to end.
fn round(subject: &Subject, w: &Work) -> u64 {
    if subject.spec.tiling.persistent > 0 { w.round } else { w.group / subject.concurrent.max(1) }
}

/// The sentences below the grid, from `top` on. Gives where they end.
fn words(svg: &mut Svg, subject: &Subject, facts: &Facts, tiles: [u64; 2], works: &[&Work], top: f64) -> f64 {
    let t = &subject.spec.tiling;
    let (x, mut y) = (0.0, top);
    let most = letters(ROOM, 12.5);
    let mut say = |svg: &mut Svg, class: &str, text: &str| {
        for part in super::wrap(text, most) {
            svg.text(point(x, y), 12.5, Anchor::Start, class, &part);
            y += 18.0;
        }
        y
    };
    say(svg, "h2", "Numbers are work-groups");
    say(
        svg,
        "",
        &match t.order {
            GroupOrder::ColumnsFastest => "n fastest: along a row of tiles, then the next row".to_string(),
            GroupOrder::RowsFastest => "m fastest: down a column of tiles, then the next column".to_string(),
            GroupOrder::Strips(width) => format!("strips {width} tiles wide in n, walked row by row down m"),
        },
    );
    for text in &facts.grid {
        say(svg, "", text);
    }
    if t.split_k.ways > 1 || t.tail.is_some() {
        say(svg, "", "of the work-groups that share a tile's sum over k the first is shown");
    }
    let tiles = plural(tiles[0] * tiles[1], "tile");
    let g = subject.c.g;
    let where_tiles = match &subject.c.launch {
        LaunchExtents::Grouped(x) if x.of == Ragged::K => format!("{tiles} for each of {g} groups; the first is shown"),
        LaunchExtents::Grouped(_) => format!("{tiles} for {g} groups: those of a group begin where it does"),
        _ if g == 1 => tiles,
        _ => format!("{tiles} in each of {g} batch entries; the first is shown"),
    };
    say(svg, "", &where_tiles);
    let sides = [(Extent::M, subject.c.m, t.a.macro_tile, t.edge_m), (Extent::N, subject.c.n, t.b.macro_tile, t.edge_n)];
    for (along, extent, tile, edge) in sides {
        let dim = along.name();
        let over = extent % u64::from(tile.max(1));
        let text = match edge {
            _ if subject.c.grouped(along) => {
                format!("{dim}: a group's last tile ends where the group does; tiles that no group has are passed over")
            }
            _ if over == 0 => format!("{dim}: tiles divide {extent} exactly"),
            Edge::PullBack => format!(
                "{dim}: the last tile is pulled back to end at the edge; {} of its {tile} are computed a second time, but not stored again (so beta * C is added once)",
                u64::from(tile) - over
            ),
            Edge::Predicate => format!("{dim}: {over} of the last tile's {tile} are inside C"),
        };
        say(svg, "", &text);
    }
    let depth = u64::from(t.k_tile.max(1));
    if !t.k_stagger {
        let text = match subject.c.k % depth {
            0 => format!("k: k-tiles divide {} exactly", subject.c.k),
            over => format!("k: {over} of the last k-tile's {depth} are inside of k = {}, the rest are zeros", subject.c.k),
        };
        say(svg, "", &text);
    }
    let mut at = say(svg, "", "");
    let of_round = |which: u64| plural(subject.works.iter().filter(|w| round(subject, w) == which).count() as u64, "work-group");
    for round in works.iter().map(|w| round(subject, w)).collect::<std::collections::BTreeSet<u64>>().into_iter().take(6) {
        let who = match (t.persistent > 0, subject.spec.teams()) {
            (false, _) if round == 0 => format!("the first {}, which run together", of_round(round)),
            (false, _) => format!("the {} after them", of_round(round)),
            (true, 1) => format!("round {round}: each work-group's tile {round}"),
            (true, teams) => format!("round {round}: by warpgroup {} of each work-group", round % u64::from(teams)),
        };
        svg.fill(x, at - 10.0, 11.0, 11.0, hue(round as usize), if round == 0 { 0.55 } else { 0.3 });
        svg.text(point(x + 19.0, at), SMALL, Anchor::Start, "", &who);
        at += 18.0;
    }
    split(svg, subject, point(x, at + 14.0))
}

/// The splits of the first tile's sum over k: (split, first k-tile of it, its k-tiles).
pub fn splits(subject: &Subject) -> BTreeMap<u64, Vec<i64>> {
    let first = |w: &&Work| w.g == 0 && w.tile == [0, 0];
    let tiles = |w: &Work| (0..w.k_tiles as i64).map(|i| w.k_begin + i * w.k_step).collect();
    subject.works.iter().filter(first).map(|w| (w.split, tiles(w))).collect()
}

fn split(svg: &mut Svg, subject: &Subject, corner: Point) -> f64 {
    let Point { x, y } = corner;
    let depth = subject.spec.tiling.k_tile;
    let splits = splits(subject);
    let all: u64 = splits.values().map(|tiles| tiles.len() as u64).sum();
    svg.text(point(x, y), 12.5, Anchor::Start, "h2", "The sum over k of one tile");
    let ways = splits.len() as u64;
    let who = if ways == 1 { "one work-group sums".to_string() } else { format!("{ways} work-groups share") };
    svg.text(point(x, y + 18.0), 12.5, Anchor::Start, "", &format!("{who} {} of {depth}", plural(all, "k-tile")));
    let room = ROOM - x;
    let mut boxes: Vec<(i64, u64)> = splits.iter().flat_map(|(split, tiles)| tiles.iter().map(move |k| (*k, *split))).collect();
    boxes.sort_unstable();
    let at = y + 30.0;
    let shown = all.clamp(1, BOXES);
    let step = ((room - 20.0) / shown as f64).min(26.0);
    if ways == 1 || all <= BOXES || subject.spec.tiling.split_k.interleave {
        for (i, (_, way)) in boxes.iter().take(shown as usize).enumerate() {
            let colour = if ways == 1 { "#5b6675" } else { hue(*way as usize) };
            svg.fill(x + i as f64 * step, at, step - 1.5, 20.0, colour, 0.8);
            let label = if ways == 1 { i as u64 } else { *way };
            if label.to_string().len() <= letters(step, SMALL) {
                svg.text(
                    point(x + (i as f64 + 0.5) * step - 0.75, at + 14.5),
                    SMALL,
                    Anchor::Middle,
                    "onhue",
                    &label.to_string(),
                );
            }
        }
        if all > shown {
            svg.text(point(x + shown as f64 * step + 4.0, at + 14.0), 13.0, Anchor::Start, "dim", "…");
        }
    } else {
        let mut from = x;
        for (way, tiles) in &splits {
            let wide = room * tiles.len() as f64 / all as f64;
            svg.fill(from, at, wide - 1.5, 20.0, hue(*way as usize), 0.8);
            let label = if wide > 90.0 { format!("{way}: {}", plural(tiles.len() as u64, "k-tile")) } else { way.to_string() };
            if label.len() <= letters(wide, SMALL) {
                svg.text(point(from + wide / 2.0, at + 14.5), SMALL, Anchor::Middle, "onhue", &label);
            }
            from += wide;
        }
    }
    let note = if ways == 1 { "boxes are k-tiles" } else { "numbers and colours are splits, each a work-group of its own" };
    svg.text(point(x, at + 36.0), SMALL, Anchor::Start, "dim", note);
    at + 44.0
}
