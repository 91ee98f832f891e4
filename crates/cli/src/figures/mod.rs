//! Figures of a plan, drawn from the generator's result. They show the grid, a work-group and its roles, accumulators, shared
//! memory, copies, and the schedule in time. [`tilewright::explain`] says the same in numbers and sentences.

mod copies;
mod events;
mod fragments;
mod grid;
mod group;
pub mod instructions;
pub mod search;
mod shared;
mod svg;
#[cfg(test)]
mod tests;
mod timeline;
pub mod view;

use svg::{Anchor, Drawing, Svg, point};
use tilewright::explain::facts::{Facts, Subject};

/// A page is as wide as the text of a document, so that its letters keep their size there.
const WIDTH: f64 = 700.0;
const MARGIN: f64 = 12.0;
/// Width inside of a card.
const ROOM: f64 = WIDTH - 4.0 * MARGIN;
/// Size of the smallest letters, in pixels.
const SMALL: f64 = 12.0;

/// Letters of this size that fit in a width.
fn letters(width: f64, size: f64) -> usize {
    (width.max(0.0) / (0.6 * size)) as usize
}

/// A figure: the name of its file, its title, and what is drawn.
pub struct Figure {
    pub name: &'static str,
    title: String,
    drawing: Drawing,
}

impl Figure {
    pub fn new(name: &'static str, title: impl Into<String>, drawing: Drawing) -> Figure {
        Figure { name, title: title.into(), drawing }
    }

    /// Puts it on a page. Gives where the next one begins.
    fn card(&self, page: &mut Svg, y: f64) -> f64 {
        let Drawing { svg, height } = &self.drawing;
        page.card(MARGIN, y, WIDTH - 2.0 * MARGIN, height + 66.0);
        page.text(point(2.0 * MARGIN, y + 30.0), 15.0, Anchor::Start, "h2", &self.title);
        page.place(2.0 * MARGIN, y + 54.0, svg);
        y + height + 66.0 + 18.0
    }

    /// The figure as a document of its own.
    pub fn document(&self) -> String {
        let mut page = Svg::default();
        let end = self.card(&mut page, MARGIN);
        page.document(WIDTH, end - 18.0 + MARGIN, &self.title)
    }
}

/// The figures of a plan.
pub fn figures(subject: &Subject, facts: &Facts) -> Vec<Figure> {
    let word = facts.wave;
    vec![
        Figure::new("grid", "The grid: which work-group computes which tile of C", grid::draw(subject, facts)),
        Figure::new(
            "work-group",
            format!("One work-group: its {word}s, their roles, and its tile of C"),
            group::draw(subject, facts),
        ),
        Figure::new(
            "accumulators",
            format!("Accumulators of one {word}: which lane holds which element"),
            fragments::draw(subject, facts),
        ),
        Figure::new("copies", "Copies: how one k-tile of A and of B reaches shared memory", copies::draw(subject, facts)),
        Figure::new("shared-memory", "Shared memory: stages, and the layout of a tile", shared::draw(subject, facts)),
        Figure::new("timeline", "The main loop in time", timeline::draw(subject, facts)),
        Figure::new("epilogue", "Epilogue: the way of the accumulators to C", sentences(&facts.epilogue)),
    ]
}

/// All figures as one SVG document, under two lines: the problem, and the plan with its device.
pub fn page(figures: &[Figure], title: &str, subtitle: &str) -> String {
    let mut page = Svg::default();
    let mut y = head(&mut page, title, subtitle);
    for figure in figures {
        y = figure.card(&mut page, y);
    }
    page.document(WIDTH, y + 4.0, title)
}

/// Title and subtitle of a page. Gives where the cards begin.
fn head(page: &mut Svg, title: &str, subtitle: &str) -> f64 {
    let mut y = 14.0;
    for line in wrap(title, letters(ROOM, 18.0)) {
        y += 23.0;
        page.text(point(MARGIN, y), 18.0, Anchor::Start, "h1", &line);
    }
    y += 4.0;
    for line in wrap(subtitle, letters(ROOM, SMALL)) {
        y += 17.0;
        page.text(point(MARGIN, y), SMALL, Anchor::Start, "dim mono", &line);
    }
    y + 14.0
}

fn sentences(all: &[String]) -> Drawing {
    let mut svg = Svg::default();
    let mut y = 6.0;
    for (i, text) in all.iter().enumerate() {
        for line in wrap(text, letters(ROOM - 52.0, SMALL)) {
            svg.text(point(0.0, y), SMALL, Anchor::Start, if i == 0 { "mono" } else { "" }, &line);
            y += 18.0;
        }
    }
    Drawing { svg, height: y - 6.0 }
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
