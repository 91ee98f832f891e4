//! How far the problems of a run are, in words.

use tilewright_fleet::Counted;

/// How far all problems are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overall {
    /// Problems that these workers tuned.
    pub tuned: usize,
    /// How many times faster their best plans are than their first: the mean.
    pub gain: Option<f64>,
    /// All tasks of the run; `None` until they are counted.
    pub counted: Option<Counted>,
    /// Ended when they were counted first.
    pub before: Option<i64>,
    /// Problems that are searched, each by the share of its budget that is spent.
    pub in_work: f64,
    /// Since this command began.
    pub seconds: f64,
}

impl Overall {
    /// Takes in how far all tasks are.
    pub fn count(&mut self, counted: Counted) {
        self.counted = Some(counted);
        self.before.get_or_insert(self.ended());
    }

    /// Tasks that have ended.
    pub fn ended(&self) -> i64 {
        self.counted.map_or(0, |Counted { left, .. }| left.done + left.failed)
    }

    /// One line, the most important part first.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        match self.counted {
            None => parts.push(format!("{} problems tuned here", self.tuned)),
            Some(Counted { left, share }) => {
                parts.push(format!("{} of {} problems, {:.0} % of the work", left.done, left.all(), 100.0 * share));
            }
        }
        parts.extend(self.gain.map(|gain| format!("{gain:.2} times faster")));
        let failed = self.counted.map_or(0, |counted| counted.left.failed);
        if failed > 0 {
            parts.push(format!("{failed} failed"));
        }
        parts.extend(self.seconds_left().map(|seconds| format!("{} left", human_seconds(seconds))));
        parts.join(", ")
    }

    /// By the pace of this command.
    fn seconds_left(&self) -> Option<f64> {
        let left = self.counted?.left;
        let made = (self.ended() - self.before.unwrap_or_default()) as f64 + self.in_work;
        let rest = (left.open + left.leased) as f64 - self.in_work;
        (made > 0.0).then(|| (rest / made * self.seconds).max(0.0))
    }
}

fn human_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_fleet::Left;

    #[test]
    fn the_first_bar_says_share_gain_and_time_left() {
        let left = Left { open: 30, refused: 0, leased: 4, done: 25, failed: 1 };
        let counted = Some(Counted { left, share: 0.613 });
        let overall = Overall { tuned: 15, gain: Some(1.118), counted, before: Some(10), in_work: 2.0, seconds: 90.0 };
        assert_eq!(overall.text(), "25 of 60 problems, 61 % of the work, 1.12 times faster, 1 failed, 3 min left");
        let begun = Overall { counted: Some(Counted::default()), ..Overall::default() };
        assert_eq!(begun.text(), "0 of 0 problems, 0 % of the work");
        // A server that does not answer.
        let away = Overall { tuned: 7, gain: Some(1.5), ..Overall::default() };
        assert_eq!(away.text(), "7 problems tuned here, 1.50 times faster");
    }

    #[test]
    fn the_pace_is_that_of_this_command() {
        let mut overall = Overall { seconds: 30.0, ..Overall::default() };
        overall.count(Counted { left: Left { open: 30, done: 50, ..Left::default() }, share: 0.5 });
        assert!(overall.text().ends_with("% of the work"), "{}", overall.text());
        overall.count(Counted { left: Left { open: 20, done: 59, failed: 1, ..Left::default() }, share: 0.7 });
        assert!(overall.text().ends_with("1 failed, 60 s left"), "{}", overall.text());
    }

    #[test]
    fn times_are_short() {
        assert_eq!([90.0, 600.0, 9000.0].map(human_seconds), ["90 s", "10 min", "2.5 h"]);
    }
}
