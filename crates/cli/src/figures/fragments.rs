//! The accumulators of one warp (wave): which lane holds which element, in which register.

use super::svg::{Anchor, Drawing, Svg, hue, point};
use super::{ROOM, SMALL, letters};
use tilewright::explain::facts::{Facts, Subject, plural, say};

const LEFT: f64 = 40.0;
const TOP: f64 = 36.0;

/// Draws them. Gives the drawing and its height.
pub fn draw(subject: &Subject, facts: &Facts) -> Drawing {
    let mut svg = Svg::default();
    let held = subject.holders();
    let ([rows, columns], shown) = subject.shown(&held);
    // Two lines in a cell: the lane, and below it the register.
    let (cell_w, cell_h) = (38.0, 30.0);
    for (j, column) in shown[1].iter().enumerate() {
        let x = LEFT + (j as f64 + 0.5) * cell_w;
        svg.text(point(x, TOP - 6.0), SMALL, Anchor::Middle, "dim", &column.to_string());
    }
    for (i, row) in shown[0].iter().enumerate() {
        let y = TOP + i as f64 * cell_h;
        svg.text(point(LEFT - 14.0, y + cell_h / 2.0 + 4.0), SMALL, Anchor::Middle, "dim", &row.to_string());
        for (j, column) in shown[1].iter().enumerate() {
            let Some((lane, register)) = held.get(&(*row, *column)) else { continue };
            let x = LEFT + j as f64 * cell_w;
            let followed = facts.lanes.iter().position(|l| l.lane == *lane);
            let (colour, opacity) = followed.map_or(("#8893a0", 0.12 + 0.1 * f64::from(lane % 4)), |i| (hue(i), 0.95));
            svg.fill(x + 0.5, y + 0.5, cell_w - 1.0, cell_h - 1.0, colour, opacity);
            let class = if followed.is_some() { "onhue h2" } else { "" };
            svg.text(point(x + cell_w / 2.0, y + 12.5), SMALL, Anchor::Middle, class, &lane.to_string());
            svg.text(point(x + cell_w / 2.0, y + 25.5), SMALL, Anchor::Middle, class, &format!("r{register}"));
        }
    }
    let (wide, high) = (shown[1].len() as f64 * cell_w, shown[0].len() as f64 * cell_h);
    svg.rect(LEFT, TOP, wide, high, "frame");
    svg.text(point(LEFT, TOP - 22.0), SMALL, Anchor::Start, "h2", "column of the tile →");
    svg.text_up(point(LEFT - 28.0, TOP + high / 2.0), SMALL, "h2", "← row of the tile");
    if shown[1].len() < columns {
        svg.text(point(LEFT + wide + 5.0, TOP + high / 2.0), 15.0, Anchor::Start, "dim", "…");
    }
    if shown[0].len() < rows {
        svg.text(point(LEFT + wide / 2.0, TOP + high + 14.0), 15.0, Anchor::Middle, "dim", "⋮");
    }
    let end = legend(&mut svg, facts, [rows, columns], &shown, TOP + high + 36.0);
    Drawing { svg, height: end }
}

fn legend(svg: &mut Svg, facts: &Facts, [rows, columns]: [usize; 2], shown: &[Vec<u32>; 2], top: f64) -> f64 {
    let (x, mut y) = (0.0, top);
    let most = letters(ROOM, SMALL);
    let title = if facts.wave == "thread" { "thread 0".to_string() } else { format!("{} 0", facts.wave) };
    let part = |all: usize, shown: usize| if shown < all { format!("{shown} of its {all}") } else { all.to_string() };
    let what = format!("{title}: {} rows, {} columns", part(rows, shown[0].len()), part(columns, shown[1].len()));
    let mut lines =
        vec![("h2", what), ("dim", "each cell: lane, and below it the register of that lane; grey: other lanes".to_string())];
    if facts.waves.first().is_some_and(|w| w.waves.len() > 1) {
        lines.push(("dim", format!("{} {} holds the same of its own tiles", facts.wave, facts.waves[0].waves[1])));
    }
    lines.extend(facts.instructions.iter().map(|text| ("dim", text.clone())));
    for (class, text) in lines {
        for part in super::wrap(&text, most) {
            svg.text(point(x, y), 12.0, Anchor::Start, class, &part);
            y += 18.0;
        }
    }
    for (i, lane) in facts.lanes.iter().enumerate() {
        svg.fill(x, y - 10.0, 11.0, 11.0, hue(i), 0.95);
        let text = format!(
            "lane {}: {}; rows {}; columns {}",
            lane.lane,
            plural(lane.registers.into(), "accumulator"),
            say(&lane.rows),
            say(&lane.columns)
        );
        for part in super::wrap(&text, most.saturating_sub(4)) {
            svg.text(point(x + 19.0, y), 12.0, Anchor::Start, "", &part);
            y += 17.0;
        }
        y += 3.0;
    }
    y
}
