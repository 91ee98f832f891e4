//! One round of a compiled loop, instruction by instruction: a strip of everything, a row per class, and how long loads fly.

use super::svg::{Anchor, Drawing, Svg, hue, point};
use super::{MARGIN, ROOM, SMALL, WIDTH, head, letters, wrap};
use tilewright_device::inspect::{Class, Inspection, LoopReport, Role};

/// Rows of the picture, in order, each with its hue.
const ROWS: [(Class, usize); 11] = [
    (Class::GlobalLoad, 1),
    (Class::Copy, 5),
    (Class::Wait, 4),
    (Class::SharedStore, 3),
    (Class::Barrier, 6),
    (Class::SharedRead, 2),
    (Class::SharedWait, 7),
    (Class::Math, 0),
    (Class::MathWait, 7),
    (Class::GlobalStore, 1),
    (Class::Scratch, 4),
];
const LEFT: f64 = 170.0;
const LANE: f64 = 20.0;
const GAP: f64 = 7.0;

/// The page: a card for each loop.
pub fn page(inspection: &Inspection, title: &str, subtitle: &str, occupancy: &str) -> String {
    let mut page = Svg::default();
    let mut y = head(&mut page, title, subtitle);
    for report in &inspection.loops {
        let Drawing { svg, height } = draw(report);
        let name = match report.role {
            Role::Main => "The main loop in the order of its instructions",
            Role::Load => "The loop of the producer waves",
        };
        page.card(MARGIN, y, WIDTH - 2.0 * MARGIN, height + 66.0);
        page.text(point(2.0 * MARGIN, y + 30.0), 15.0, Anchor::Start, "h2", name);
        page.place(2.0 * MARGIN, y + 54.0, &svg);
        y += height + 66.0 + 18.0;
    }
    let u = &inspection.usage;
    let facts = format!(
        "{} registers, {} bytes of spills, {} bytes of shared memory, {occupancy}",
        u.registers, u.spill_bytes, u.shared_bytes
    );
    for line in wrap(&facts, letters(ROOM, SMALL)) {
        page.text(point(2.0 * MARGIN, y + 8.0), SMALL, Anchor::Start, "dim", &line);
        y += 17.0;
    }
    page.document(WIDTH, y + 11.0, title)
}

fn draw(report: &LoopReport) -> Drawing {
    let width = ROOM;
    let mut svg = Svg::default();
    let length = report.order.len().max(1) as f64;
    let scale = (width - LEFT - 12.0) / length;
    let x = |at: f64| LEFT + at * scale;
    let colour = |class: Class| ROWS.iter().find(|(c, _)| *c == class).map(|(_, h)| hue(*h));
    // A single instruction must not vanish.
    let mark = |svg: &mut Svg, y: f64, height: f64, at: f64, count: f64, colour: &str| {
        svg.fill(x(at), y, (count * scale).max(1.2), height, colour, 0.95);
    };
    let mut y = 0.0;
    svg.text(point(0.0, y + 17.0), 13.0, Anchor::Start, "h2", "all");
    svg.rect(LEFT, y, width - LEFT - 12.0, LANE + 6.0, "soft");
    for (class, at, count) in stretches(&report.order) {
        if let Some(colour) = colour(class) {
            mark(&mut svg, y, LANE + 6.0, at, count, colour);
        }
    }
    y += LANE + 6.0 + 2.0 * GAP;
    for (class, hue_index) in ROWS.into_iter().filter(|(class, _)| report.count(*class) > 0) {
        svg.text(point(0.0, y + 14.0), 12.0, Anchor::Start, "h2", class.name());
        svg.text(point(LEFT - 22.0, y + 14.0), SMALL, Anchor::Middle, "dim", &report.count(class).to_string());
        svg.rect(LEFT, y, width - LEFT - 12.0, LANE, "soft");
        if class.is_load() {
            for flight in &report.flights {
                latency_bar(&mut svg, flight.at, flight.wait_at, length, y, hue(hue_index), &x);
            }
        }
        for (_, at, count) in stretches(&report.order).into_iter().filter(|(c, ..)| *c == class) {
            mark(&mut svg, y, LANE, at, count, hue(hue_index));
        }
        if class == Class::Wait {
            for at in report.flights.iter().filter_map(|f| f.wait_at) {
                mark(&mut svg, y, LANE, f64::from(at), 1.0, hue(hue_index));
            }
        }
        y += LANE + GAP;
    }
    let least = report.least_math_to_wait();
    let math = report.count(Class::Math);
    let fact = match least {
        _ if report.flights.is_empty() => "no loads".to_string(),
        Some(least) => {
            format!("at least {least} of {math} math instructions between a load and its wait (pale: loads in flight)")
        }
        None => "some load is never waited for".to_string(),
    };
    svg.text(point(LEFT, y + 8.0), SMALL, Anchor::Start, "dim", "instructions of one round, from the first load on →");
    for line in wrap(&fact, letters(ROOM, SMALL)) {
        svg.text(point(0.0, y + 30.0), SMALL, Anchor::Start, "dim", &line);
        y += 17.0;
    }
    Drawing { svg, height: y + 22.0 }
}

/// A pale bar from a load to its wait, over the end of the round if need be.
fn latency_bar(svg: &mut Svg, from: u32, to: Option<u32>, length: f64, y: f64, colour: &str, x: &dyn Fn(f64) -> f64) {
    let mut bar = |a: f64, b: f64| svg.fill(x(a), y + 5.0, (x(b) - x(a)).max(0.0), LANE - 10.0, colour, 0.12);
    match to {
        Some(to) if to > from => bar(f64::from(from), f64::from(to)),
        Some(to) => {
            bar(f64::from(from), length);
            bar(0.0, f64::from(to));
        }
        None => bar(from.into(), length),
    }
}

/// Neighbours of one class: class, position, number.
fn stretches(order: &[Class]) -> Vec<(Class, f64, f64)> {
    let mut at = 0;
    order
        .chunk_by(|a, b| a == b)
        .filter_map(|part| {
            let start = at;
            at += part.len();
            part.first().map(|class| (*class, start as f64, part.len() as f64))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        use Class::*;
        let order = [Math, Math, Other, Math];
        assert_eq!(stretches(&order), [(Math, 0.0, 2.0), (Other, 2.0, 1.0), (Math, 3.0, 1.0)]);
    }
}
