//! Progress on the terminal, what matters most first, so that 80 columns show it: best time, share of the roofline, case, phase.
//! Silent where stderr is no terminal.

use crate::output::{human_rate, human_time};
use crate::problem::Case;
use crate::workers::News;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tilewright::{DeviceInfo, Problem};
use tilewright_bench::{Roof, least_bytes};
use tilewright_tune::search::{Budget, Event, Standing, Tally};

/// A line that follows the work on one case.
pub struct Progress {
    bar: ProgressBar,
    shown: bool,
    seconds: Option<f64>,
    line: RefCell<Line>,
    parent: Option<Parent>,
}

/// A parent process that draws bars of several workers.
struct Parent {
    /// Time and phase of the last news.
    last: Cell<Option<(Instant, &'static str)>>,
}

/// Shortest time between two news of one phase.
const NEWS: Duration = Duration::from_millis(200);

/// Which case of a run is worked on.
#[derive(Clone, Copy, Debug)]
pub struct CaseNumber {
    /// From 1.
    pub nth: usize,
    /// How many there are.
    pub of: usize,
}

/// Which of the cases a line stands for.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// One, of so many.
    Case(CaseNumber),
    /// One of those that share a budget.
    Shared(Standing),
}

/// What the line says.
#[derive(Clone, Debug)]
struct Line {
    title: String,
    place: Place,
    phase: &'static str,
    flop: f64,
    /// Microseconds that no kernel of the device beats, by its description.
    roof_us: f64,
    best_us: Option<f64>,
    tally: Option<Tally>,
}

impl Line {
    fn text(&self) -> String {
        let mut parts = Vec::new();
        if let Some(us) = self.best_us {
            let share = 100.0 * self.roof_us / us;
            parts.push(format!("best {}, {}, {share:.0} % of roof", human_time(us), human_rate(self.flop, us)));
        }
        match self.place {
            Place::Case(CaseNumber { nth, of }) if of > 1 => parts.push(format!("case {nth}/{of}")),
            Place::Case(_) => {}
            // What was found for all matters more than one of them.
            Place::Shared(Standing { reached, problems, share, gain }) => parts
                .insert(0, format!("{reached} of {problems} shapes, {:.0} % of the time, {gain:.2} times faster", 100.0 * share)),
        }
        parts.push(self.phase.to_string());
        if let Some(t) = self.tally {
            let failed = t.failed + t.wrong + t.hung;
            parts.push(format!("{} trials, {} refused, {failed} failed", t.trials, t.refused));
        }
        parts.push(self.title.clone());
        parts.join("; ")
    }
}

/// Microseconds that no kernel for a problem beats on a device, by its description: operations or bytes.
pub fn roof_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let roof = Roof::of(&device.target, problem.multiplied(), problem.math());
    (problem.flop() / roof.tflops * 1e-6).max(least_bytes(problem) / roof.dram_gbs * 1e-3)
}

impl Progress {
    /// Starts a line for a case. `shown` is false with `--json` or `--quiet`. With a budget it has a bar.
    pub fn new(case: &Case, number: CaseNumber, device: &DeviceInfo, budget: Option<&Budget>, shown: bool) -> Self {
        // The bar fills with whatever ends the search: trials, or tenths of a second.
        let tenths = |budget: &Budget| budget.trials.or_else(|| budget.seconds.map(|s| (s * 10.0) as u64));
        let target =
            if shown && std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(budget.and_then(tenths), target);
        let template = if budget.is_some() { "[{bar:8}] {elapsed} {wide_msg}" } else { "{spinner} {elapsed} {wide_msg}" };
        let style = ProgressStyle::with_template(template).map(|s| s.progress_chars("=> "));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        let seconds = budget.filter(|b| b.trials.is_none()).and_then(|b| b.seconds);
        let line = Line {
            title: case.title.clone(),
            place: Place::Case(number),
            phase: "preparing",
            flop: case.problem.flop(),
            roof_us: roof_us(&case.problem, device),
            best_us: None,
            tally: None,
        };
        let progress = Progress { bar, shown, seconds, line: RefCell::new(line), parent: None };
        progress.show();
        progress
    }

    /// Tells the parent process instead of drawing: workers share its terminal.
    pub fn for_parent(mut self) -> Self {
        self.parent = Some(Parent { last: Cell::new(None) });
        self.show();
        self
    }

    fn show(&self) {
        let line = self.line.borrow();
        let Some(parent) = &self.parent else { return self.bar.set_message(line.text()) };
        if parent.last.get().is_none_or(|(then, phase)| phase != line.phase || then.elapsed() >= NEWS) {
            parent.last.set(Some((Instant::now(), line.phase)));
            News::Search { position: self.bar.position(), length: self.bar.length(), text: line.text() }.tell();
        }
    }

    /// Says how far all cases are that share a budget.
    pub fn stand(&self, standing: &Standing) {
        self.line.borrow_mut().place = Place::Shared(*standing);
    }

    /// What is done from now on.
    pub fn phase(&self, phase: &'static str) {
        self.line.borrow_mut().phase = phase;
        self.show();
    }

    /// A line that stays, on a terminal above the line of progress.
    fn say(&self, text: &str) {
        if self.shown {
            self.bar.suspend(|| eprintln!("{text}"));
        }
    }

    /// Takes in what a search tells.
    pub fn hear(&self, event: &Event) {
        match event {
            Event::Started { resumed, stale } => {
                if *resumed > 0 {
                    self.say(&format!("{resumed} trials are recorded: trying other plans"));
                }
                if *stale > 0 {
                    self.say(&format!(
                        "{stale} recorded plans are stale (another driver or tilewright): they are verified and timed first"
                    ));
                }
            }
            Event::Phase { phase } => self.phase(phase.name()),
            Event::Trial { best_us, tally, seconds, .. } => {
                self.bar.set_position(if self.seconds.is_some() { (seconds * 10.0) as u64 } else { tally.trials });
                let mut line = self.line.borrow_mut();
                (line.best_us, line.tally) = (*best_us, Some(*tally));
                drop(line);
                self.show();
            }
        }
    }

    /// Removes the line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_stands_in_the_first_62_characters() {
        let line = Line {
            title: "gemm 4096x4096x4096 bf16 nt row to f32, bias n, gelu, residual".into(),
            place: Place::Case(CaseNumber { nth: 13, of: 47 }),
            phase: "verifying",
            flop: 2.0 * 4096f64.powi(3),
            roof_us: 139.0,
            best_us: Some(196.5),
            tally: Some(Tally { trials: 1200, refused: 30, failed: 2, wrong: 0, hung: 0 }),
        };
        // 80 columns less bar and clock.
        let seen: String = line.text().chars().take(62).collect();
        for part in ["best 196.5 us", "699.4 TFLOP/s", "71 % of roof", "case 13/47", "verif"] {
            assert!(seen.contains(part), "{part} is not in `{seen}`");
        }
        let first = Line { best_us: None, tally: None, place: Place::Case(CaseNumber { nth: 1, of: 1 }), ..line.clone() };
        assert!(first.text().starts_with("verifying; gemm"), "{}", first.text());
        let standing = Standing { reached: 73, problems: 163, share: 0.914, gain: 1.118 };
        let shared = Line { place: Place::Shared(standing), ..line };
        assert!(
            shared.text().starts_with("73 of 163 shapes, 91 % of the time, 1.12 times faster; best 196.5 us"),
            "{}",
            shared.text()
        );
    }
}
