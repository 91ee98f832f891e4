//! Bars of several workers on a terminal: one for all problems, one for each device. Lines of the workers stay above them.

use super::news::News;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tilewright_fleet::Counted;

/// Steps of the bar of all problems.
const STEPS: u64 = 1000;
/// How long lines of workers that have ended may take to arrive.
const REST: Duration = Duration::from_secs(2);

/// What a worker sent.
enum Heard {
    News { worker: usize, news: News },
    Out(Vec<u8>),
    Err(Vec<u8>),
}

/// The bars.
pub struct Bars {
    multi: MultiProgress,
    all: ProgressBar,
    devices: Vec<ProgressBar>,
    /// Taken when no worker starts any more.
    sender: Option<Sender<Heard>>,
    heard: Receiver<Heard>,
    start: Instant,
    gains: Vec<f64>,
    counted: Option<Counted>,
    /// Done before this command.
    before: Option<i64>,
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("=> "))
}

impl Bars {
    /// Draws bars for these devices on standard error.
    pub fn new(devices: &[String]) -> Bars {
        let multi = MultiProgress::new();
        let all = multi.add(ProgressBar::new(STEPS).with_style(style("[{bar:8}] {elapsed} {wide_msg}")));
        let width = devices.iter().map(String::len).max().unwrap_or_default();
        let bar = |device: &String| {
            let bar = ProgressBar::new(1).with_style(style("[{bar:8}] {prefix} {wide_msg}"));
            multi.add(bar.with_prefix(format!("{device:width$}")).with_message("starting"))
        };
        let devices: Vec<ProgressBar> = devices.iter().map(bar).collect();
        let (sender, heard) = channel();
        let bars = Bars {
            multi,
            all,
            devices,
            sender: Some(sender),
            heard,
            start: Instant::now(),
            gains: Vec::new(),
            counted: None,
            before: None,
        };
        bars.show();
        bars.all.enable_steady_tick(Duration::from_millis(500));
        bars
    }

    /// Hears a worker whose outputs are pipes.
    pub fn listen(&self, worker: usize, child: &mut Child) {
        let Some(sender) = &self.sender else { return };
        if let Some(out) = child.stdout.take() {
            forward(out, sender.clone(), Heard::Out);
        }
        if let Some(err) = child.stderr.take() {
            forward(err, sender.clone(), move |line| {
                let news = line.starts_with(b"\x01").then(|| News::read(&String::from_utf8_lossy(&line))).flatten();
                news.map_or(Heard::Err(line), |news| Heard::News { worker, news })
            });
        }
    }

    /// A line that stays above the bars.
    pub fn say(&self, text: &str) {
        self.multi.suspend(|| eprintln!("{text}"));
    }

    /// Draws what workers have sent.
    pub fn draw(&mut self) {
        while let Ok(heard) = self.heard.try_recv() {
            self.take(heard);
        }
        self.show();
    }

    /// Takes in how far all problems are.
    pub fn count(&mut self, counted: Counted) {
        self.before.get_or_insert(counted.left.done + counted.left.failed);
        self.counted = Some(counted);
    }

    fn take(&mut self, heard: Heard) {
        match heard {
            Heard::Out(line) => self.multi.suspend(|| {
                let mut out = std::io::stdout().lock();
                let _ = out.write_all(&line).and_then(|()| out.flush());
            }),
            Heard::Err(line) => self.multi.suspend(|| {
                let _ = std::io::stderr().write_all(&line);
            }),
            Heard::News { worker, news } => {
                let Some(bar) = self.devices.get(worker) else { return };
                match news {
                    News::Search { position, length, text } => {
                        bar.set_length(length.unwrap_or(1).max(1));
                        bar.set_position(position);
                        bar.set_message(text);
                    }
                    News::Ended { gain } => {
                        bar.set_position(0);
                        bar.set_message("waiting");
                        self.gains.extend(gain);
                    }
                }
            }
        }
    }

    fn show(&self) {
        let in_work = self.devices.iter().map(|bar| (bar.position() as f64 / bar.length().unwrap_or(1) as f64).min(1.0)).sum();
        let overall = Overall {
            tuned: self.gains.len(),
            gain: (!self.gains.is_empty()).then(|| self.gains.iter().sum::<f64>() / self.gains.len() as f64),
            counted: self.counted,
            before: self.before.unwrap_or_default(),
            in_work,
            seconds: self.start.elapsed().as_secs_f64(),
        };
        let share = self.counted.map_or(0.0, |counted| counted.share);
        self.all.set_position((share * STEPS as f64) as u64);
        self.all.set_message(overall.text());
    }

    /// Prints the last lines of workers that have ended, and removes the bars.
    pub fn finish(mut self) {
        self.sender = None;
        let start = Instant::now();
        while start.elapsed() < REST {
            match self.heard.recv_timeout(Duration::from_millis(100)) {
                Ok(heard) => self.take(heard),
                Err(RecvTimeoutError::Disconnected) => break,
                // A process of a worker may live longer than it.
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        let _ = self.multi.clear();
    }
}

/// Sends each line of a pipe, until it ends.
fn forward(from: impl Read + Send + 'static, to: Sender<Heard>, heard: impl Fn(Vec<u8>) -> Heard + Send + 'static) {
    let read = move || {
        let mut from = BufReader::new(from);
        loop {
            let mut line = Vec::new();
            match from.read_until(b'\n', &mut line) {
                Ok(1..) if to.send(heard(line)).is_ok() => {}
                _ => return,
            }
        }
    };
    // Without a thread the worker's lines are lost, not its work.
    let _ = std::thread::Builder::new().name("worker's lines".into()).spawn(read);
}

/// How far all problems are.
#[derive(Clone, Copy, Debug, Default)]
struct Overall {
    /// Problems that these workers tuned.
    tuned: usize,
    /// How many times faster their best plans are than their first: the mean.
    gain: Option<f64>,
    /// Tasks of the host; `None` where they are on a server.
    counted: Option<Counted>,
    before: i64,
    /// Problems that are searched, each by the share of its budget that is spent.
    in_work: f64,
    seconds: f64,
}

impl Overall {
    fn text(&self) -> String {
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
        let made = (left.done + left.failed - self.before) as f64 + self.in_work;
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
        let overall = Overall { tuned: 15, gain: Some(1.118), counted, before: 10, in_work: 2.0, seconds: 90.0 };
        assert_eq!(overall.text(), "25 of 60 problems, 61 % of the work, 1.12 times faster, 1 failed, 3 min left");
        let begun = Overall { counted: Some(Counted::default()), ..Overall::default() };
        assert_eq!(begun.text(), "0 of 0 problems, 0 % of the work");
        let fleet = Overall { tuned: 7, gain: Some(1.5), ..Overall::default() };
        assert_eq!(fleet.text(), "7 problems tuned here, 1.50 times faster");
    }

    #[test]
    fn times_are_short() {
        assert_eq!([90.0, 600.0, 9000.0].map(human_seconds), ["90 s", "10 min", "2.5 h"]);
    }
}
