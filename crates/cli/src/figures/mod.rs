//! Figures of a plan, drawn from what the generator made of it: the grid, a work-group and its roles, accumulators, shared memory,
//! copies, and the schedule in time. [`facts`] says the same in numbers and sentences.

mod copies;
mod events;
pub mod facts;
mod fragments;
mod grid;
mod group;
pub mod instructions;
mod operands;
mod shared;
mod svg;
#[cfg(test)]
mod tests;
mod timeline;

use facts::{Facts, Subject};
use svg::{Anchor, Svg};

const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 24.0;

/// The whole page of figures as one SVG document, under two lines: the problem, and the plan with its device.
pub fn page(subject: &Subject, facts: &Facts, title: &str, subtitle: &str) -> String {
    let mut page = Svg::default();
    page.text((MARGIN, 40.0), 21.0, Anchor::Start, "h1", title);
    let mut y = 62.0;
    for line in wrap(subtitle, 150) {
        page.text((MARGIN, y), 11.5, Anchor::Start, "dim mono", &line);
        y += 16.0;
    }
    y += 4.0;
    let inner = WIDTH - 4.0 * MARGIN;
    let [rows, columns, depth] = subject.tile();
    let word = facts.wave;
    let cards: [(String, (Svg, f64)); 7] = [
        ("1  The grid: which work-group computes which tile of C".into(), grid::draw(subject, facts)),
        (
            format!("2  One work-group: {word}s, their roles, and a tile of C ({rows} × {columns}, k-tiles of {depth})"),
            group::draw(subject, facts),
        ),
        (
            format!("3  Accumulators of one {word}: which lane holds which element, in which register"),
            fragments::draw(subject, facts),
        ),
        ("4  Copies: how one k-tile of A and of B comes to shared memory".into(), copies::draw(subject, facts)),
        ("5  Shared memory: stages, and how a tile lies".into(), shared::draw(subject, facts)),
        ("6  The main loop in time".into(), timeline::draw(subject, facts, inner)),
        ("7  Epilogue: what happens to the accumulators".into(), sentences(&facts.epilogue)),
    ];
    for (title, (drawing, height)) in &cards {
        page.card(MARGIN, y, WIDTH - 2.0 * MARGIN, height + 66.0);
        page.text((2.0 * MARGIN, y + 30.0), 15.0, Anchor::Start, "h2", title);
        page.place(2.0 * MARGIN, y + 54.0, drawing);
        y += height + 66.0 + 18.0;
    }
    page.document(WIDTH, y + 4.0, title)
}

fn sentences(all: &[String]) -> (Svg, f64) {
    let mut svg = Svg::default();
    let mut y = 6.0;
    for (i, text) in all.iter().enumerate() {
        for line in wrap(text, 140) {
            svg.text((0.0, y), 12.5, Anchor::Start, if i == 0 { "mono" } else { "" }, &line);
            y += 18.0;
        }
    }
    (svg, y - 6.0)
}

/// Breaks a line at `_` or blanks so that no part is longer than `most` characters where that can be had.
fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in text.split_inclusive(['_', ' ']) {
        if let Some(last) = lines.last_mut()
            && (last.is_empty() || last.chars().count() + part.chars().count() <= most)
        {
            last.push_str(part);
            continue;
        }
        lines.push(part.to_string());
    }
    lines
}
