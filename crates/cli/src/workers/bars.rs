//! Bars of several workers on a terminal: one for all problems, one for each device. Lines of the workers stay above them.

use super::news::News;
use super::overall::Overall;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tilewright_fleet::Counted;

/// Steps of the bar of all problems.
const STEPS: u64 = 1000;
/// How long lines of workers that have ended may take to arrive.
const REST: Duration = Duration::from_secs(2);

/// Time between the first two counts of all problems: workers add them when they have started.
const SOON: Duration = Duration::from_millis(250);

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
    overall: Overall,
    /// The last count, by a thread: a server may take long to answer.
    counted: Arc<Mutex<Option<Counted>>>,
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
        let mut bars = Bars {
            multi,
            all,
            devices,
            sender: Some(sender),
            heard,
            start: Instant::now(),
            gains: Vec::new(),
            overall: Overall::default(),
            counted: Arc::default(),
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

    /// Counts all problems now and then, at first more often, until the bars end. A count that fails is made again later.
    pub fn follow(&self, every: Duration, mut count: impl FnMut() -> Option<Counted> + Send + 'static) {
        let counted = Arc::downgrade(&self.counted);
        let follow = move || {
            let mut wait = SOON;
            loop {
                let found = count();
                let Some(counted) = counted.upgrade() else { return };
                if found.is_some() {
                    *counted.lock().unwrap_or_else(PoisonError::into_inner) = found;
                }
                drop(counted);
                std::thread::sleep(wait);
                wait = (2 * wait).min(every);
            }
        };
        // Without a thread the first bar says what these workers did.
        let _ = std::thread::Builder::new().name("count".into()).spawn(follow);
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

    fn show(&mut self) {
        let share_spent = |bar: &ProgressBar| (bar.position() as f64 / bar.length().unwrap_or(1) as f64).min(1.0);
        let overall = &mut self.overall;
        overall.in_work = self.devices.iter().map(share_spent).sum();
        overall.tuned = self.gains.len();
        overall.gain = (!self.gains.is_empty()).then(|| self.gains.iter().sum::<f64>() / self.gains.len() as f64);
        overall.seconds = self.start.elapsed().as_secs_f64();
        if let Some(counted) = self.counted.lock().unwrap_or_else(PoisonError::into_inner).take() {
            overall.count(counted);
        }
        let share = overall.counted.map_or(0.0, |counted| counted.share);
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
