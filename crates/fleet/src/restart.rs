//! How a parent keeps its workers going: cores dealt out, and restarts that end where they do not help.

use std::time::{Duration, Instant};

/// A worker that ends so soon has done nothing.
const SOON: Duration = Duration::from_secs(10);
/// Ends in a row, each soon after its start, that make a further one pointless.
const IN_A_ROW: u32 = 5;

/// A worker whose device works has lived so long.
const WORKED: Duration = Duration::from_secs(60);
/// Looks at a device that stays sick, each after twice the pause before it: a quarter of an hour in all.
const LOOKS: u32 = 10;

/// Restarts of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    started: Instant,
    soon: u32,
    retired: u32,
}

impl Restarts {
    /// Of a worker that was just started.
    pub fn new() -> Self {
        Restarts { started: Instant::now(), soon: 0, retired: 0 }
    }

    /// True if the worker, which has just died, is to be started again.
    pub fn again(&mut self) -> bool {
        self.died_after(self.started.elapsed())
    }

    /// The pause before a worker is started again that left because its device is sick; `None` for a device that stays so.
    pub fn after_retirement(&mut self) -> Option<Duration> {
        let pause = self.retired_after(self.started.elapsed())?;
        self.started = Instant::now() + pause;
        Some(pause)
    }

    fn retired_after(&mut self, lived: Duration) -> Option<Duration> {
        self.retired = if lived < WORKED { self.retired + 1 } else { 1 };
        (self.retired <= LOOKS).then(|| Duration::from_secs(1 << (self.retired - 1)))
    }

    fn died_after(&mut self, lived: Duration) -> bool {
        self.soon = if lived < SOON { self.soon + 1 } else { 0 };
        self.started = Instant::now();
        self.soon < IN_A_ROW
    }
}

impl Default for Restarts {
    fn default() -> Self {
        Restarts::new()
    }
}

/// Reads a list of cores as Linux writes it: `0-3,8`.
fn parse(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Cores that this process may use, dealt out to so many workers in runs of neighbours. `None` where there are fewer cores than
/// workers, or the system does not tell.
pub fn cores(workers: usize) -> Option<Vec<Vec<u32>>> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    deal(&parse(list), workers)
}

fn deal(cores: &[u32], workers: usize) -> Option<Vec<Vec<u32>>> {
    let each = cores.len().checked_div(workers).filter(|each| *each > 0)?;
    let more = cores.len() % workers;
    let first = |worker: usize| worker * each + worker.min(more);
    Some((0..workers).map(|worker| cores.iter().copied().take(first(worker + 1)).skip(first(worker)).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_is_dealt_out_once() {
        assert_eq!(parse("0-3, 8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        let dealt = deal(&parse("0-3,8,10-11"), 3).unwrap();
        assert_eq!(dealt, [vec![0, 1, 2], vec![3, 8], vec![10, 11]]);
        assert_eq!(deal(&[1, 2], 3), None);
        assert_eq!(deal(&[1, 2], 0), None);
    }

    #[test]
    fn a_worker_that_keeps_dying_is_left_alone() {
        let mut restarts = Restarts::new();
        assert!((1..IN_A_ROW).all(|_| restarts.died_after(Duration::ZERO)));
        assert!(!restarts.died_after(Duration::ZERO));
        assert!(restarts.died_after(SOON) && restarts.died_after(Duration::ZERO));
    }

    #[test]
    fn a_device_that_stays_sick_is_looked_at_ever_less_often() {
        let mut restarts = Restarts::new();
        let pauses: Vec<u64> =
            std::iter::from_fn(|| restarts.retired_after(Duration::ZERO)).map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(restarts.retired_after(WORKED), Some(Duration::from_secs(1)), "it was well in between");
        assert_eq!(restarts.after_retirement(), Some(Duration::from_secs(2)));
        // Its time counts from the end of the pause.
        assert_eq!(restarts.started.elapsed(), Duration::ZERO);
    }
}
