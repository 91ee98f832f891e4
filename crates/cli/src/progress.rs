//! Progress of a search on the terminal: trials, time, best so far. Silent where stderr is no terminal.

use crate::output::{human_rate, human_time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tilewright_tune::search::{Budget, Event};

/// A line that follows one search.
pub struct Progress {
    bar: ProgressBar,
    flop: f64,
    seconds: Option<f64>,
}

impl Progress {
    /// Starts a line for a problem of `flop` operations. `shown` is false with `--json` or `--quiet`.
    pub fn new(title: &str, flop: f64, budget: &Budget, shown: bool) -> Self {
        // The bar fills with whatever ends the search: trials, or tenths of a second.
        let length = budget.trials.or_else(|| budget.seconds.map(|s| (s * 10.0) as u64)).unwrap_or(0);
        let target =
            if shown && std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        let style = ProgressStyle::with_template("{prefix} [{bar:24}] {elapsed} {wide_msg}").map(|s| s.progress_chars("=> "));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(title.to_string());
        bar.enable_steady_tick(Duration::from_millis(200));
        let seconds = if budget.trials.is_some() { None } else { budget.seconds };
        Progress { bar, flop, seconds }
    }

    /// Takes in what the search tells.
    pub fn hear(&self, event: &Event) {
        match event {
            Event::Started { resumed: 0 } => {}
            Event::Started { resumed } => self.bar.println(format!("going on from {resumed} recorded trials")),
            Event::Trial { best_us, tally, seconds, .. } => {
                self.bar.set_position(if self.seconds.is_some() { (seconds * 10.0) as u64 } else { tally.trials });
                let best = match best_us {
                    Some(us) => format!("best {} = {}", human_time(*us), human_rate(self.flop, *us)),
                    None => "nothing verified yet".to_string(),
                };
                self.bar.set_message(format!(
                    "{} trials, {} refused, {} failed; {best}",
                    tally.trials,
                    tally.refused,
                    tally.failed + tally.wrong + tally.hung
                ));
            }
        }
    }

    /// Removes the line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
