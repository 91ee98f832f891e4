//! One work-group: its roles, and which warp (wave) has which part of its tile of C.

use super::svg::{Anchor, Area, Drawing, Point, Svg, hue, point};
use super::{ROOM, SMALL, letters};
use tilewright::explain::facts::{Facts, Rectangle, Span, Subject, plural, say};
use tilewright_ir::MmaShape;
use tilewright_ir::mma::Owner;

/// Most rectangles that are distinguished in one picture.
const MOST: usize = 96;
/// Most waves that are listed.
const LISTED: usize = 16;
const DEEP: f64 = 84.0;
const LEFT: f64 = 30.0;

/// Colour of waves that only copy.
const COPIES: &str = "#5b6675";

/// Draws it. Gives the drawing and its height.
pub fn draw(subject: &Subject, facts: &Facts) -> Drawing {
    let mut svg = Svg::default();
    let y = roles(&mut svg, subject, facts);
    let [rows, columns, depth] = subject.tile();
    // Long tiles are drawn with rows and columns of different size.
    let scale = (490.0 / f64::from(columns)).min(300.0 / f64::from(rows)).min(40.0);
    let (wide, high) = ((f64::from(columns) * scale).max(110.0), (f64::from(rows) * scale).max(110.0));
    let (sx, sy) = (wide / f64::from(columns), high / f64::from(rows));
    let top = y + 30.0;
    let (cx, cy) = (LEFT + DEEP + 16.0, top + DEEP + 16.0);
    for (x, y, w, h) in [(LEFT, cy, DEEP, high), (cx, top, wide, DEEP)] {
        svg.rect(x, y, w, h, "soft");
        svg.rect(x, y, w, h, "frame");
    }
    svg.rect(cx, cy, wide, high, "soft");
    steps(&mut svg, subject, point(LEFT, top), Area { x: cx, y: cy, w: wide, h: high });
    let all: usize = facts.waves.iter().map(|w| w.rectangles.len()).sum();
    let shown = if all <= MOST { facts.waves.len() } else { 1 };
    for wave in facts.waves.iter().take(shown) {
        let opacity = [0.95, 0.72, 0.95, 0.72][wave.waves.first().map_or(0, |w| *w as usize % 4)];
        for (index, Rectangle { rows, columns }) in wave.rectangles.iter().enumerate() {
            let (x, y) = (cx + f64::from(columns.first) * sx, cy + f64::from(rows.first) * sy);
            let count = |span: &Span| f64::from(span.last + 1 - span.first);
            let (w, h) = (count(columns) * sx, count(rows) * sy);
            svg.fill(x, y, w, h, hue(wave.owner as usize), opacity);
            svg.outline(x, y, w, h, "#ffffff", 0.6);
            // The name, or where it has no room the numbers.
            let numbers: Vec<String> = wave.waves.iter().map(u32::to_string).collect();
            let labels = [name(facts, &wave.waves), numbers.join(", ")];
            let label = labels.iter().find(|label| label.len() < letters(w, SMALL) && h > SMALL);
            if let Some(label) = label.filter(|_| index == 0 || wave.rectangles.len() <= 4) {
                svg.text(point(x + w / 2.0, y + h / 2.0 + 4.2), SMALL, Anchor::Middle, "onhue h2", label);
            }
        }
    }
    svg.rect(cx, cy, wide, high, "frame");
    svg.text(point(cx, top - 8.0), 12.0, Anchor::Start, "h2", &format!("{}: k {depth} × n {columns}", facts.operands[1].name));
    svg.text_up(point(LEFT - 10.0, cy + high / 2.0), 12.0, "h2", &format!("{}: m {rows} × k {depth}", facts.operands[0].name));
    svg.text(point(cx, cy + high + 18.0), 12.0, Anchor::Start, "h2", &format!("C: m {rows} × n {columns}"));
    let end = legend(&mut svg, subject, facts, shown, cy + high + 46.0);
    Drawing { svg, height: end }
}

/// k-steps of the operands' tiles, which lie to the left of C and above it from this corner on.
fn steps(svg: &mut Svg, subject: &Subject, corner: Point, c: Area) {
    let count = subject.spec.tiling.k_steps().max(1);
    for step in (1..count).filter(|_| count <= 16) {
        let at = DEEP * f64::from(step) / f64::from(count);
        svg.line(point(corner.x + at, c.y), point(corner.x + at, c.y + c.h), "rule");
        svg.line(point(c.x, corner.y + at), point(c.x + c.w, corner.y + at), "rule");
    }
}

/// "warp 3", or "warps 3, 7 (in alternate tiles)".
fn name(facts: &Facts, waves: &[u32]) -> String {
    let numbers: Vec<String> = waves.iter().map(u32::to_string).collect();
    let many = if numbers.len() > 1 { "s" } else { "" };
    let turns = if numbers.len() > 1 { " (in alternate tiles)" } else { "" };
    format!("{}{many} {}{turns}", facts.wave, numbers.join(", "))
}

/// A strip of all waves, and what each role does. Gives where it ends.
fn roles(svg: &mut Svg, subject: &Subject, facts: &Facts) -> f64 {
    let wave = facts.wave;
    let count = facts.roles.iter().map(|r| r.waves.last + 1).max().unwrap_or(1);
    let threads = facts.roles.iter().map(|r| r.threads.last + 1).max().unwrap_or(1);
    let box_w = (ROOM / f64::from(count)).min(44.0);
    svg.text(
        point(0.0, 6.0),
        12.5,
        Anchor::Start,
        "h2",
        &format!("{} of the work-group ({threads} threads)", plural(count.into(), wave)),
    );
    let colour = |number: u32, copies: bool| {
        let owner = facts.waves.iter().find(|w| w.waves.contains(&number)).map_or(0, |w| w.owner);
        let team = number / facts.waves.len().max(1) as u32;
        if copies { COPIES } else { hue((owner + team) as usize) }
    };
    for role in &facts.roles {
        for number in role.waves.first..=role.waves.last {
            let x = f64::from(number) * box_w;
            svg.fill(x + 0.5, 14.0, box_w - 1.5, 24.0, colour(number, role.role == "copy"), 0.85);
            if number.to_string().len() < letters(box_w, SMALL) {
                svg.text(point(x + box_w / 2.0, 30.5), SMALL, Anchor::Middle, "onhue h2", &number.to_string());
            }
        }
    }
    let mut y = 58.0;
    for role in &facts.roles {
        let Span { first, last } = role.waves;
        let which = if first == last { format!("{wave} {first}") } else { format!("{wave}s {first}-{last}") };
        let registers = role.registers.map_or(String::new(), |r| format!(", {r} registers per thread"));
        let threads = if first == last && subject.target.wave <= 1 {
            String::new()
        } else {
            format!(" (threads {}-{})", role.threads.first, role.threads.last)
        };
        svg.text(point(0.0, y), 12.5, Anchor::Start, "h2", &role.role);
        for part in super::wrap(&format!("{which}{threads}{registers}: {}", role.does), letters(ROOM - 44.0, 12.5)) {
            svg.text(point(44.0, y), 12.5, Anchor::Start, "", &part);
            y += 19.0;
        }
    }
    y
}

/// Rows and columns of each wave. Gives where the next line would stand.
fn legend(svg: &mut Svg, subject: &Subject, facts: &Facts, shown: usize, top: f64) -> f64 {
    let mut y = top;
    let mut line = |svg: &mut Svg, class: &str, text: &str| {
        svg.text(point(0.0, y), SMALL, Anchor::Start, class, text);
        y += 17.5;
    };
    let family = subject.spec.tiling.unit.family();
    line(svg, "h2", "Who has which part of the tile of C");
    let most = letters(ROOM, SMALL);
    for wave in facts.waves.iter().take(LISTED) {
        let text = format!("{}: rows {}; columns {}", name(facts, &wave.waves), say(&wave.rows), say(&wave.columns));
        for (i, part) in super::wrap(&text, most).iter().enumerate() {
            line(svg, if i == 0 { "" } else { "dim" }, part);
        }
    }
    if facts.waves.len() > LISTED {
        line(svg, "dim", &format!("... and so on to {} {}", facts.wave, facts.waves.len() - 1));
    }
    if shown < facts.waves.len() {
        line(svg, "dim", &format!("drawn: {} 0; the others' parts lie between", facts.wave));
    }
    let micro = (subject.spec.tiling.a.micro, subject.spec.tiling.b.micro);
    line(svg, "dim", &format!("each {} owns {} × {} accumulators", subject.owner(), micro.0, micro.1));
    if let Some(row) = subject.spec.tiling.instruction {
        let MmaShape { m, k, .. } = row.shape;
        let n = row.columns(micro.1);
        line(svg, "dim", &format!("in instructions of {m} × {n} × {k} ({})", family.name));
    }
    line(svg, "dim", "lines in A and B: k-steps of a k-tile");
    let copies = if facts.roles.iter().any(|r| r.role == "copy") { "; grey: no part of C, only copies" } else { "" };
    let colours = match family.owner {
        Owner::Warpgroup => format!("colours: {}s, shades: their {}s{copies}", subject.owner(), facts.wave),
        Owner::Thread | Owner::Wave => format!("colours: {}s{copies}", facts.wave),
    };
    super::wrap(&colours, most).iter().for_each(|part| line(svg, "dim", part));
    y
}
