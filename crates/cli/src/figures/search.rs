//! A search as it went: the time of each trial, and the best time so far.

use super::svg::{Anchor, Drawing, Point, Svg, hue, point};
use super::{MARGIN, ROOM, SMALL, WIDTH, head, letters, wrap};
use crate::output::human_time;
use tilewright_tune::search::Event;

const LEFT: f64 = 76.0;
const HIGH: f64 = 200.0;

/// A trial of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Trial {
    /// From 1.
    number: u64,
    us: Option<f64>,
    best_us: Option<f64>,
}

/// The trials of one problem's search.
#[derive(Clone, Debug, Default)]
pub struct Search {
    title: String,
    trials: Vec<Trial>,
}

impl Search {
    pub fn new(title: &str) -> Search {
        Search { title: title.into(), trials: Vec::new() }
    }

    /// Takes in an event of the search.
    pub fn hear(&mut self, event: &Event) {
        if let Event::Trial { time_us, best_us, tally, .. } = event {
            self.trials.push(Trial { number: tally.trials, us: *time_us, best_us: *best_us });
        }
    }

    /// Draws it. Gives the drawing and its height.
    fn draw(&self) -> Drawing {
        let mut svg = Svg::default();
        let times: Vec<f64> = self.trials.iter().filter_map(|t| t.us).filter(|us| *us > 0.0).collect();
        let (low, high) = times.iter().fold((f64::INFINITY, 0.0f64), |(low, high), us| (low.min(*us), high.max(*us)));
        let Some(last) = self.trials.last().filter(|_| high > 0.0) else {
            svg.text(point(0.0, 6.0), SMALL, Anchor::Start, "dim", "no trial has a time");
            return Drawing { svg, height: 12.0 };
        };
        // A search that finds nothing better is a line in the middle.
        let (low, high) = (low / 1.08, high * 1.08);
        let x = |number: u64| LEFT + (ROOM - LEFT) * number as f64 / last.number.max(1) as f64;
        let y = |us: f64| HIGH * (1.0 - (us / low).ln() / (high / low).ln());
        svg.rect(LEFT, 0.0, ROOM - LEFT, HIGH, "soft");
        for us in ticks(low, high) {
            svg.line(point(LEFT, y(us)), point(ROOM, y(us)), "rule");
            svg.text(point(0.0, y(us) + 4.0), SMALL, Anchor::Start, "dim", &human_time(us));
        }
        for trial in &self.trials {
            if let Some(us) = trial.us.filter(|us| *us > 0.0) {
                svg.fill(x(trial.number) - 2.5, y(us) - 2.5, 5.0, 5.0, "#8893a0", 0.8);
            }
        }
        let mut line: Vec<Point> = Vec::new();
        for trial in &self.trials {
            let Some(best) = trial.best_us.filter(|us| *us > 0.0) else { continue };
            if let Some(before) = line.last().copied() {
                line.push(point(x(trial.number), before.y));
            }
            line.push(point(x(trial.number), y(best)));
        }
        svg.path(&line, hue(0), 2.5);
        svg.rect(LEFT, 0.0, ROOM - LEFT, HIGH, "frame");
        for number in [1, last.number.div_ceil(2), last.number] {
            let at = x(number).min(ROOM - 12.0);
            svg.text(point(at, HIGH + 18.0), SMALL, Anchor::Middle, "dim", &number.to_string());
        }
        svg.text(point(0.0, HIGH + 18.0), SMALL, Anchor::Start, "dim", "trial");
        let end = svg.key(
            point(0.0, HIGH + 42.0),
            ROOM,
            &[("#8893a0", "time of a trial".into()), (hue(0), "best verified time so far".into())],
        );
        let best = self.trials.iter().filter_map(|t| t.best_us).fold(f64::INFINITY, f64::min);
        let within = self.trials.iter().find(|t| t.best_us.is_some_and(|us| us <= 1.05 * best)).map_or(0, |t| t.number);
        let text =
            format!("{} trials; the best takes {}; trial {within} is the first within 5 % of it", last.number, human_time(best));
        svg.text(point(0.0, end), SMALL, Anchor::Start, "", &text);
        Drawing { svg, height: end + 4.0 }
    }
}

/// 1, 2 and 5 times powers of ten; the ends where there are fewer than two.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = powers.flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
    let inside: Vec<f64> = all.filter(|us| (low..=high).contains(us)).collect();
    if inside.len() < 2 { vec![low * 1.08, high / 1.08] } else { inside }
}

/// A page with a card for each search.
pub fn page(searches: &[Search], title: &str, subtitle: &str) -> String {
    let mut page = Svg::default();
    let mut y = head(&mut page, title, subtitle);
    for search in searches {
        let Drawing { svg, height } = search.draw();
        let names = wrap(&search.title, letters(ROOM, 15.0));
        let above = 34.0 + 19.0 * names.len() as f64;
        page.card(MARGIN, y, WIDTH - 2.0 * MARGIN, height + above + 12.0);
        for (i, name) in names.iter().enumerate() {
            page.text(point(2.0 * MARGIN, y + 30.0 + 19.0 * i as f64), 15.0, Anchor::Start, "h2", name);
        }
        page.place(2.0 * MARGIN, y + above, &svg);
        y += height + above + 12.0 + 18.0;
    }
    page.document(WIDTH, y, title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_falls_and_every_time_is_a_point() {
        let times = [Some(40.0), None, Some(20.0), Some(30.0), Some(10.0)];
        let mut search = Search::new("gemm 1x1x1");
        let mut best = None;
        for (i, us) in times.into_iter().enumerate() {
            best = us.map(|us: f64| best.map_or(us, |b: f64| b.min(us))).or(best);
            search.trials.push(Trial { number: i as u64 + 1, us, best_us: best });
        }
        let text = page(&[search], "title", "subtitle");
        assert_eq!(text.matches("width=\"5\" height=\"5\"").count(), 4);
        assert!(text.contains("5 trials; the best takes 10.0 us; trial 5 is the first within 5 % of it"), "{text}");
        let path = text.lines().find(|line| line.contains("stroke-width=\"2.5\"")).expect("the line");
        let heights: Vec<f64> =
            path.split([' ', 'M', 'L', '"']).filter_map(|n| n.parse().ok()).skip(1).step_by(2).take(8).collect();
        assert!(heights.windows(2).all(|w| w[0] <= w[1]), "the line rises: {path}");
        assert!(page(&[Search::new("none")], "t", "s").contains("no trial has a time"));
    }

    #[test]
    fn ticks_lie_within() {
        assert_eq!(ticks(3.0, 60.0), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(ticks(11.0, 12.0).len(), 2);
    }
}
