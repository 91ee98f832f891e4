//! Shared memory: what lies where, and how one tile of each operand lies.

use super::svg::{Anchor, Drawing, Point, Svg, hue, point};
use super::{ROOM, SMALL, letters};
use std::collections::BTreeMap;
use tilewright::explain::facts::{Facts, Region, Subject};
use tilewright_ir::layout::{Axis, BANKS};

const BAR: f64 = 30.0;
/// Bytes of a chunk: what one lane moves at most, and what a swizzle moves as a whole.
const CHUNK: u32 = 16;
/// Lines and chunks of a line that are drawn of a tile.
const LINES: u32 = 8;
const CHUNKS: u32 = 8;

/// Draws it. Gives the drawing and its height.
pub fn draw(subject: &Subject, facts: &Facts) -> Drawing {
    let mut svg = Svg::default();
    let mut y = map(&mut svg, facts);
    for (which, operand) in facts.operands.iter().enumerate() {
        svg.text(
            point(0.0, y + 16.0),
            12.5,
            Anchor::Start,
            "h2",
            &format!("{}: its tile in stage 0 (colours: parts of a row)", operand.name),
        );
        let below = tile(&mut svg, subject, which, point(0.0, y + 46.0));
        let mut at = below + 18.0;
        for text in operand.layout.iter().flat_map(|text| super::wrap(text, letters(ROOM, SMALL))) {
            svg.text(point(0.0, at), SMALL, Anchor::Start, "", &text);
            at += 17.0;
        }
        y = at + 8.0;
    }
    Drawing { svg, height: y - 8.0 }
}

/// The bytes of a work-group from first to last; regions that lie over others in a row of their own.
fn map(svg: &mut Svg, facts: &Facts) -> f64 {
    let total = facts.shared.iter().map(|r| r.first_byte + r.bytes).max().unwrap_or(1).max(1);
    let mut bars: Vec<Vec<&Region>> = Vec::new();
    for region in &facts.shared {
        let free = |bar: &&mut Vec<&Region>| bar.iter().all(|r| r.first_byte + r.bytes <= region.first_byte);
        match bars.iter_mut().find(free) {
            Some(bar) => bar.push(region),
            None => bars.push(vec![region]),
        }
    }
    let scale = ROOM / f64::from(total);
    let mut y = 22.0;
    svg.text(point(0.0, 6.0), 12.5, Anchor::Start, "h2", &format!("{total} bytes of a work-group"));
    let mut small: Vec<(&str, String)> = Vec::new();
    for (index, bar) in bars.iter().enumerate() {
        for region in bar {
            let part = f64::from(region.bytes) / f64::from(region.parts) * scale;
            for number in 0..region.parts {
                let x = f64::from(region.first_byte) * scale + f64::from(number) * part;
                svg.fill(x, y, (part - 1.0).max(1.0), BAR, colour(region), 0.55 + 0.35 * f64::from(number % 2));
                let label = match region.name.as_str() {
                    "A tiles" => format!("A {number}"),
                    "B tiles" => format!("B {number}"),
                    name => name.to_string(),
                };
                if label.len() < letters(part, SMALL) {
                    svg.text(point(x + part / 2.0, y + BAR / 2.0 + 4.2), SMALL, Anchor::Middle, "onhue h2", &label);
                }
            }
            let parts = if region.parts > 1 {
                format!("{} × {}", region.parts, region.bytes / region.parts)
            } else {
                region.bytes.to_string()
            };
            let over = if index > 0 { ", in the bytes of the tiles once these have been read" } else { "" };
            small.push((colour(region), format!("{}: {parts} bytes from byte {}{over}", region.name, region.first_byte)));
        }
        y += BAR + 4.0;
    }
    svg.key(point(0.0, y + 12.0), ROOM, &small) + 10.0
}

/// One for each operand, whatever the stage.
fn colour(region: &Region) -> &'static str {
    match region.name.as_str() {
        "A tiles" => hue(0),
        "B tiles" => hue(1),
        name if name.ends_with("barriers") => hue(4),
        _ => hue(2),
    }
}

/// Of the first bytes of stage 0: the (row, k) of each element by its place.
pub fn places(subject: &Subject, which: usize, most: i64) -> BTreeMap<i64, (u32, u32)> {
    let (shared, [.., depth]) = (subject.shared(which), subject.tile());
    let rows = subject.tiling(which).macro_tile;
    let at = |row: u32, k: u32| shared.at(Axis::Position, &[(Axis::Row, row.into()), (Axis::K, k.into())]);
    let all = (0..rows).flat_map(|row| (0..depth).map(move |k| (row, k)));
    all.map(|(row, k)| (at(row, k), (row, k))).filter(|(at, _)| *at < most).collect()
}

/// The first lines of a tile, chunk by chunk: what each holds.
fn tile(svg: &mut Svg, subject: &Subject, which: usize, corner: Point) -> f64 {
    let Point { x, y } = corner;
    let (o, copy, bytes) = (subject.tiling(which), &subject.spec.schedule.copies[which], subject.scalar(which).bytes());
    let pitch = copy.tile().map_or(o.lines(subject.spec.tiling.k_tile).1, |tile| tile.row);
    let per_chunk = (CHUNK / bytes).max(1);
    let chunks = pitch.div_ceil(per_chunk);
    // The end of a line, where the padding is, is always shown.
    let columns: Vec<u32> = if chunks <= CHUNKS { (0..chunks).collect() } else { (0..CHUNKS - 2).chain([chunks - 1]).collect() };
    let found = places(subject, which, i64::from(LINES * pitch));
    let swizzled = copy.tile().is_some();
    // Unswizzled lines begin at any bank: each chunk says its own.
    let (cell_w, cell_h) = (79.0, if swizzled { 20.0 } else { 31.0 });
    for (j, chunk) in columns.iter().enumerate() {
        let gap = if *chunk == chunks - 1 && chunks > CHUNKS { 16.0 } else { 0.0 };
        let cx = x + j as f64 * cell_w + gap;
        if swizzled {
            let bank = chunk * CHUNK / 4 % BANKS as u32;
            svg.text(point(cx + cell_w / 2.0, y - 6.0), SMALL, Anchor::Middle, "dim", &format!("banks {bank}-{}", bank + 3));
        } else if j == 0 {
            svg.text(point(cx, y - 6.0), SMALL, Anchor::Start, "dim", "16 bytes each; below: the first bank");
        }
        if gap > 0.0 {
            svg.text(point(cx - 13.0, y + 12.0), 13.0, Anchor::Start, "dim", "…");
        }
        for line in 0..LINES {
            let cy = y + f64::from(line) * cell_h;
            let first = i64::from(line * pitch + chunk * per_chunk);
            let held: Vec<&(u32, u32)> = found.range(first..first + i64::from(per_chunk)).map(|(_, e)| e).collect();
            let (Some((row, k)), Some((last_row, last_k))) = (held.first(), held.last()) else {
                let there = first < i64::from((line + 1) * pitch);
                if there {
                    svg.fill(cx + 0.5, cy + 0.5, cell_w - 1.0, cell_h - 1.0, "#8893a0", 0.35);
                    svg.text(point(cx + cell_w / 2.0, cy + 14.0), SMALL, Anchor::Middle, "dim", "padding");
                }
                continue;
            };
            let dim = ["m", "n"][which];
            let text = if row == last_row { format!("{dim}{row} k{k}-{last_k}") } else { format!("{dim}{row}-{last_row} k{k}") };
            // Chunks of the same part of a line share a hue, so that a swizzle shows.
            let part = if row == last_row { k / per_chunk } else { row / per_chunk };
            svg.fill(cx + 0.5, cy + 0.5, cell_w - 1.0, cell_h - 1.0, hue(part as usize), 0.28);
            svg.text(point(cx + cell_w / 2.0, cy + if swizzled { 14.2 } else { 13.0 }), SMALL, Anchor::Middle, "", &text);
            if !swizzled {
                let bank = first * i64::from(bytes) / 4 % BANKS as i64;
                svg.text(point(cx + cell_w / 2.0, cy + 26.0), SMALL, Anchor::Middle, "dim", &format!("bank {bank}"));
            }
        }
    }
    y + f64::from(LINES) * cell_h
}
