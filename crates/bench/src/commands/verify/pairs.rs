//! Which pairs are verified when, over the processes that a run may take.
//!
//! Many pairs are under way at once, since compiling takes most of the time. Where the device is lost, any of them may have done
//! it. All of these are suspects, and a new process verifies them first, one by one. The one that loses the device again is the
//! one that hangs.

use crate::error::BenchError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

/// Pairs that may take the device down before the run is given up.
const MOST_HUNG: u64 = 16;
/// The outcome of a pair that hung or crashed the device when it ran alone.
pub const HUNG: &str = "hung";
/// The outcome of a pair that is right.
pub const PASSED: &str = "passed";

/// How one pair went: one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Device id.
    pub device: String,
    /// What the pair was drawn from.
    pub seed: u64,
    /// The problem's text.
    pub problem: String,
    /// The plan's text.
    pub plan: String,
    /// `passed`, `hung`, `wrong`, or what failed.
    pub outcome: &'static str,
    /// Largest error, relative to `|alpha| |A||B| + |beta||C|`; none where it is not finite.
    pub max_error: Option<f64>,
    /// Why it did not pass.
    pub reason: Option<String>,
    /// Kind of problem, instruction and type; none of a plan that is not legal.
    pub cell: Option<String>,
}

impl Line {
    /// It is right.
    pub fn passed(&self) -> bool {
        self.outcome == PASSED
    }
}

/// What verifying a pair gave.
pub enum Judged {
    /// The outcome.
    Line(Line),
    /// The device was lost while it was under way, as the line's reason says.
    Lost(Line),
    /// There is no pair of this number.
    None,
}

/// How far a run has come: what a process leaves to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pairs {
    /// Number of the first pair that nobody has begun.
    next: u64,
    /// Pairs that were under way when the device was lost.
    suspects: Vec<u64>,
    /// Losses of the device that no suspect has explained yet.
    unexplained: u64,
    /// Pairs by outcome.
    counts: BTreeMap<String, u64>,
    /// Pairs that passed, by kind of problem, instruction and type.
    covered: BTreeMap<String, u64>,
    /// Seconds since the run began.
    pub seconds: f64,
}

/// How the pairs of a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All are judged, or time is up.
    Done,
    /// The device is lost: another process may go on.
    Lost,
}

impl Pairs {
    /// Verifies the pairs below `count` on so many threads until all are judged, `is_late` says so or the device is lost. `tell` hears of
    /// each line in the order in which they come.
    ///
    /// # Errors
    /// Those of `tell`; [`BenchError::Plan`] where pair after pair hangs.
    pub fn run(
        &mut self,
        count: u64,
        threads: usize,
        is_late: &(dyn Fn() -> bool + Sync),
        judge: &(dyn Fn(u64) -> Judged + Sync),
        tell: &mut dyn FnMut(&Line, &Pairs) -> Result<(), BenchError>,
    ) -> Result<Ended, BenchError> {
        if self.alone(is_late, judge, tell)? == Ended::Lost {
            return Ok(Ended::Lost);
        }
        if !self.suspects.is_empty() {
            // Time is up.
            return Ok(Ended::Done);
        }
        let (next, stop) = (AtomicU64::new(self.next), AtomicBool::new(false));
        let mut failure = Ok(());
        std::thread::scope(|scope| {
            let (send, judged) = mpsc::channel();
            for _ in 0..threads {
                let (send, next, stop) = (send.clone(), &next, &stop);
                scope.spawn(move || {
                    while !is_late() && !stop.load(Ordering::Relaxed) {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= count {
                            return;
                        }
                        let result = judge(n);
                        if matches!(result, Judged::Lost(_)) {
                            stop.store(true, Ordering::Relaxed);
                        }
                        if send.send((n, result)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            for (n, result) in judged {
                match result {
                    Judged::Line(line) => {
                        if let Err(e) = self.count(&line, tell) {
                            stop.store(true, Ordering::Relaxed);
                            failure = Err(e);
                        }
                    }
                    Judged::Lost(_) => self.suspects.push(n),
                    Judged::None => {}
                }
            }
        });
        self.next = next.into_inner().min(count);
        failure?;
        if self.suspects.is_empty() {
            return Ok(Ended::Done);
        }
        self.unexplained += 1;
        self.suspects.sort_unstable();
        Ok(Ended::Lost)
    }

    /// Verifies the suspects, one by one.
    fn alone(
        &mut self,
        is_late: &(dyn Fn() -> bool + Sync),
        judge: &(dyn Fn(u64) -> Judged + Sync),
        tell: &mut dyn FnMut(&Line, &Pairs) -> Result<(), BenchError>,
    ) -> Result<Ended, BenchError> {
        while let Some(n) = self.suspects.first().copied().filter(|_| !is_late()) {
            self.suspects.remove(0);
            match judge(n) {
                Judged::Line(line) => self.count(&line, tell)?,
                Judged::None => {}
                Judged::Lost(line) => {
                    self.unexplained = self.unexplained.saturating_sub(1);
                    self.count(&Line { outcome: HUNG, ..line }, tell)?;
                    return match self.of(HUNG) {
                        MOST_HUNG.. => {
                            Err(BenchError::Plan(format!("{MOST_HUNG} pairs have taken the device down: the run ends")))
                        }
                        _ => Ok(Ended::Lost),
                    };
                }
            }
        }
        Ok(Ended::Done)
    }

    fn count(&mut self, line: &Line, tell: &mut dyn FnMut(&Line, &Pairs) -> Result<(), BenchError>) -> Result<(), BenchError> {
        *self.counts.entry(line.outcome.into()).or_default() += 1;
        if let Some(cell) = line.cell.as_ref().filter(|_| line.passed()) {
            *self.covered.entry(cell.clone()).or_default() += 1;
        }
        tell(line, self)
    }

    /// Pairs judged.
    pub fn done(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Pairs with an outcome.
    pub fn of(&self, outcome: &str) -> u64 {
        self.counts.get(outcome).copied().unwrap_or(0)
    }

    /// Pairs that passed, by kind of problem, instruction and type.
    pub const fn covered(&self) -> &BTreeMap<String, u64> {
        &self.covered
    }

    /// The outcomes in words.
    pub fn summary(&self) -> String {
        let mut parts: Vec<String> = self.counts.iter().map(|(what, n)| format!("{n} {what}")).collect();
        if self.unexplained > 0 {
            parts.push(format!("losses of the device that no pair alone explains: {}", self.unexplained));
        }
        parts.join(", ")
    }

    /// Whether all is well.
    ///
    /// # Errors
    /// [`BenchError::Plan`] where a pair did not pass or the device was lost; [`BenchError::Usage`] where none was verified.
    pub fn verdict(&self, seed: u64) -> Result<(), BenchError> {
        match self.done() - self.of(PASSED) {
            0 if self.unexplained > 0 => {
                Err(BenchError::Plan(format!("losses of the device that no pair alone explains: {}", self.unexplained)))
            }
            0 if self.done() > 0 => Ok(()),
            0 => Err(BenchError::Usage("no pair was verified: allow more time (--limit) or more pairs (--count)".into())),
            bad => Err(BenchError::Plan(format!("{bad} pairs did not pass; `--seed {seed} --first N --count 1` repeats one"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn line(n: u64) -> Line {
        Line {
            device: "d".into(),
            seed: n,
            problem: String::new(),
            plan: String::new(),
            outcome: if n % 10 == 3 { "wrong" } else { PASSED },
            max_error: None,
            reason: None,
            cell: Some(["GEMM, fma, f32", "GEMM, wgmma, bf16"][n as usize % 2].into()),
        }
    }

    /// Judges a pair on a device that some pairs take down; what is under way beside them finds it lost, too.
    fn judge(n: u64, lost: &AtomicBool, hanging: fn(u64) -> bool) -> Judged {
        if hanging(n) {
            lost.store(true, Ordering::SeqCst);
        }
        match (lost.load(Ordering::SeqCst), n % 7) {
            (true, _) => Judged::Lost(line(n)),
            (_, 6) => Judged::None,
            _ => Judged::Line(line(n)),
        }
    }

    /// A run over as many processes as it takes; what came of it and the lines told.
    fn run(count: u64, threads: usize, hanging: fn(u64) -> bool) -> (Result<Pairs, BenchError>, Vec<Line>) {
        let (mut lines, mut pairs) = (Vec::new(), Pairs::default());
        for _ in 0..1000 {
            let lost = AtomicBool::new(false);
            // As a file would carry it.
            pairs = serde_json::from_str(&serde_json::to_string(&pairs).unwrap()).unwrap();
            let ended = pairs.run(count, threads, &|| false, &|n| judge(n, &lost, hanging), &mut |line, _| {
                lines.push(line.clone());
                Ok(())
            });
            match ended {
                Ok(Ended::Done) => return (Ok(pairs), lines),
                Ok(Ended::Lost) => {}
                Err(e) => return (Err(e), lines),
            }
        }
        panic!("it never ends");
    }

    #[test]
    fn every_pair_is_judged_once_whatever_hangs() {
        for threads in [1, 4] {
            let (pairs, lines) = run(60, threads, |n| n == 17 || n == 19 || n == 59);
            let pairs = pairs.unwrap();
            let judged: BTreeSet<u64> = lines.iter().map(|l| l.seed).collect();
            assert_eq!((judged.len(), lines.len()), (60 - 8, 60 - 8));
            let hung: BTreeSet<u64> = lines.iter().filter(|l| l.outcome == HUNG).map(|l| l.seed).collect();
            assert_eq!(hung, [17, 19, 59].into());
            assert_eq!((pairs.done(), pairs.of(HUNG), pairs.unexplained), (52, 3, 0));
            assert_eq!((pairs.covered().len(), pairs.covered().values().sum()), (2, pairs.of(PASSED)));
            assert!(pairs.verdict(1).unwrap_err().to_string().contains("pairs did not pass"));
        }
    }

    #[test]
    fn a_run_without_losses_passes() {
        let (pairs, lines) = run(3, 2, |_| false);
        assert_eq!(lines.len(), 3);
        assert!(pairs.unwrap().verdict(1).is_ok());
        assert!(Pairs::default().verdict(1).unwrap_err().to_string().contains("--limit"));
    }

    #[test]
    fn a_loss_that_no_pair_explains_is_reported() {
        // Only in the process that has not seen it before.
        let (mut pairs, lost) = (Pairs::default(), AtomicBool::new(false));
        let judge =
            |n: u64| if n == 1 && !lost.swap(true, Ordering::SeqCst) { Judged::Lost(line(n)) } else { Judged::Line(line(n)) };
        assert_eq!(pairs.run(3, 1, &|| false, &judge, &mut |_, _| Ok(())).unwrap(), Ended::Lost);
        assert_eq!(pairs.run(3, 1, &|| false, &judge, &mut |_, _| Ok(())).unwrap(), Ended::Done);
        assert_eq!((pairs.done(), pairs.of(PASSED)), (3, 3));
        assert!(pairs.verdict(1).unwrap_err().to_string().contains("no pair alone explains"));
    }

    #[test]
    fn a_device_that_is_lost_for_good_ends_the_run() {
        let (pairs, lines) = run(1000, 3, |_| true);
        assert!(pairs.unwrap_err().to_string().contains("taken the device down"));
        assert_eq!(lines.len() as u64, MOST_HUNG);
    }

    #[test]
    fn time_that_is_up_leaves_the_rest() {
        let mut pairs = Pairs { suspects: vec![1], unexplained: 1, next: 5, ..Pairs::default() };
        let ended = pairs.run(9, 2, &|| true, &|n| Judged::Line(line(n)), &mut |_, _| Ok(())).unwrap();
        assert_eq!((ended, pairs.done(), pairs.suspects.len()), (Ended::Done, 0, 1));
        assert!(pairs.verdict(1).is_err());
    }
}
