//! How one k-tile of each operand gets to shared memory: boxes of bulk copies, or the vectors of each thread.

use super::svg::{Anchor, Drawing, Point, Svg, hue, point};
use super::{ROOM, SMALL, letters};
use tilewright::explain::facts::{Facts, Subject, TileSize};
use tilewright_gen::plan::{BulkTile, Transport};
use tilewright_ir::layout::Axis;

/// Sides of the picture of a tile that comes in boxes.
const BOXES: (f64, f64) = (600.0, 200.0);
/// Elements that are drawn of a tile that threads fetch: of a line, and lines.
const ACROSS: u32 = 20;
const DOWN: u32 = 10;
const CELL: (f64, f64) = (30.0, 18.0);

/// Draws it. Gives the drawing and its height.
pub fn draw(subject: &Subject, facts: &Facts) -> Drawing {
    let mut svg = Svg::default();
    let mut top = 0.0;
    for (which, operand) in facts.operands.iter().enumerate() {
        let x = 22.0;
        let TileSize { rows, depth } = operand.tile;
        let title = format!("{}: {} {rows} × k {depth}, {} bytes", operand.name, ["m", "n"][which], operand.bytes_per_stage);
        svg.text(point(x - 22.0, top + 6.0), 12.5, Anchor::Start, "h2", &title);
        let mut y = match &subject.spec.schedule.copies[which] {
            Transport::Bulk(tile) => boxes(&mut svg, tile, operand.tile, point(x, top + 38.0), which),
            Transport::Registers | Transport::Async | Transport::Panels { .. } => {
                threads(&mut svg, subject, which, point(x, top + 38.0))
            }
            Transport::Halo(_) | Transport::Own(_) | Transport::Written(_) | Transport::Shifted(_) => top + 10.0,
        };
        y += 20.0;
        for text in operand.copy.iter().flat_map(|text| super::wrap(text, letters(ROOM, SMALL))) {
            svg.text(point(x - 22.0, y), 12.0, Anchor::Start, "", &text);
            y += 17.0;
        }
        top = y + 12.0;
    }
    Drawing { svg, height: top - 12.0 }
}

/// First element along the contiguous direction and across it of each box, in the order of the boxes in shared memory.
pub fn box_starts(tile: &BulkTile) -> Vec<(u32, u32)> {
    let (wide, high) = (tile.map.tile[0], tile.map.tile[1]);
    (0..tile.columns).flat_map(|column| (0..tile.lines).map(move |line| (column * wide, line * high))).collect()
}

/// A tile cut into boxes: its contiguous direction across the page.
fn boxes(svg: &mut Svg, tile: &BulkTile, size: TileSize, corner: Point, which: usize) -> f64 {
    let (TileSize { rows, depth }, Point { x, y }) = (size, corner);
    let (along, across) = if tile.k_contiguous { (depth, rows) } else { (rows, depth) };
    let dim = ["m", "n"][which];
    let (fast, slow) = if tile.k_contiguous { ("k", dim) } else { (dim, "k") };
    let (wide, high) = (tile.map.tile[0], tile.map.tile[1]);
    let (sx, sy) = (BOXES.0 / f64::from(along), BOXES.1 / f64::from(across));
    for (number, (first, line)) in box_starts(tile).into_iter().enumerate() {
        let (bx, by) = (x + f64::from(first) * sx, y + f64::from(line) * sy);
        let (w, h) = (f64::from(wide) * sx, f64::from(high) * sy);
        svg.fill(bx + 1.0, by + 1.0, w - 2.0, h - 2.0, hue(number), 0.5);
        let lines = [
            format!("box {number}"),
            format!("{fast} {first}-{}", first + wide - 1),
            format!("{slow} {line}-{}", line + high - 1),
        ];
        for (i, text) in lines.iter().enumerate().filter(|(i, _)| *i == 0 || (w > 70.0 && h > 52.0)) {
            svg.text(
                point(bx + w / 2.0, by + h / 2.0 + 15.0 * i as f64 - 8.0),
                SMALL,
                Anchor::Middle,
                if i == 0 { "h2" } else { "" },
                text,
            );
        }
    }
    svg.rect(x, y, BOXES.0, BOXES.1, "frame");
    svg.text(
        point(x, y - 8.0),
        SMALL,
        Anchor::Start,
        "dim",
        &format!("{fast} 0-{} → (contiguous in memory; a colour per box)", along - 1),
    );
    svg.text_up(point(x - 9.0, y + BOXES.1 / 2.0), SMALL, "dim", &format!("← {slow} 0-{}", across - 1));
    y + BOXES.1
}

/// The elements (row, k) of each fetch of a thread.
pub fn loads(subject: &Subject, which: usize, thread: u32) -> Vec<Vec<(u32, u32)>> {
    let share = subject.tiling(which).share(subject.spec.tiling.k_tile);
    if u64::from(thread) >= share.extent(Axis::Thread) {
        return Vec::new();
    }
    let element = |vector: u64, element: u64| {
        let point = [(Axis::Thread, thread.into()), (Axis::Vector, vector as i64), (Axis::Element, element as i64)];
        (share.at(Axis::Row, &point) as u32, share.at(Axis::K, &point) as u32)
    };
    let load = |vector: u64| (0..share.extent(Axis::Element)).map(|e| element(vector, e)).collect();
    (0..share.extent(Axis::Vector)).map(load).collect()
}

/// The corner of a tile with the thread that fetches each element; the direction of the fetches across the page.
fn threads(svg: &mut Svg, subject: &Subject, which: usize, corner: Point) -> f64 {
    let Point { x, y } = corner;
    let o = subject.tiling(which);
    let (rows, depth) = (o.macro_tile, subject.spec.tiling.k_tile);
    let by_k = o.load_along == tilewright_gen::plan::Along::K;
    let dim = ["m", "n"][which];
    let (along, across) = if by_k { (depth, rows) } else { (rows, depth) };
    // Whole fetches only.
    let width = o.load_width.max(1);
    let (wide, high) = (along.min(ACROSS / width * width), across.min(DOWN));
    for thread in 0..subject.spec.load_threads() {
        for access in loads(subject, which, thread) {
            let places = access.iter().map(|&(row, k)| if by_k { (k, row) } else { (row, k) });
            let inside: Vec<(u32, u32)> = places.filter(|&(a, b)| a < wide && b < high).collect();
            let (Some(first), Some(last)) = (inside.first(), inside.last()) else { continue };
            let (x0, y0) = (x + f64::from(first.0) * CELL.0, y + f64::from(first.1) * CELL.1);
            let w = f64::from(last.0 + 1 - first.0) * CELL.0;
            svg.fill(x0 + 1.0, y0 + 1.0, w - 2.0, CELL.1 - 2.0, hue(thread as usize), 0.35);
            let label = if w >= 3.0 * CELL.0 { format!("thread {thread}") } else { thread.to_string() };
            if label.len() <= letters(w, SMALL) {
                svg.text(point(x0 + w / 2.0, y0 + CELL.1 / 2.0 + 4.2), SMALL, Anchor::Middle, "", &label);
            }
        }
    }
    let (w, h) = (f64::from(wide) * CELL.0, f64::from(high) * CELL.1);
    svg.rect(x, y, w, h, "frame");
    if wide < along {
        svg.text(point(x + w + 5.0, y + h / 2.0), 15.0, Anchor::Start, "dim", "…");
    }
    if high < across {
        svg.text(point(x + w / 2.0, y + h + 12.0), 15.0, Anchor::Middle, "dim", "⋮");
    }
    let (fast, slow) = if by_k { ("k", dim) } else { (dim, "k") };
    let part = |shown: u32, all: u32| if shown < all { format!("0-{} of {all}", shown - 1) } else { format!("0-{}", all - 1) };
    svg.text(
        point(x, y - 8.0),
        SMALL,
        Anchor::Start,
        "dim",
        &format!("{fast} {} → (a box: one fetch of a thread; colours repeat after 8)", part(wide, along)),
    );
    svg.text_up(point(x - 9.0, y + h / 2.0), SMALL, "dim", &format!("← {slow} {}", part(high, across)));
    y + h
}
