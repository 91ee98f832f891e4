//! The first picks of every problem: built ahead on all cores, timed and verified as soon as they are built.

use super::problem::Problem;
use super::{Begin, Run, Task};
use crate::search::descent::FIRST_PICKS;
use crate::search::order::Order;
use crate::search::session::{Live, TICK};
use crate::search::slice::Slice;
use crate::search::{Budget, Ended, TuneError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Threads that rank the plans of problems ahead; ranking one problem has several threads of its own.
const RANKERS: usize = 4;
/// How long the device waits for the picks of a problem before it takes the heaviest.
const WAIT: Duration = Duration::from_secs(2);

/// A problem whose plans were ranked.
struct Begun<'a> {
    number: usize,
    live: Result<Live<'a>, TuneError>,
}

impl<'a> Run<'a, '_> {
    /// The part of a budget in which a problem gets its first picks.
    pub fn first_slice(&self, own: Budget) -> Slice {
        let left = Some(self.left()).filter(|seconds| seconds.is_finite() && !self.common.reach_all);
        let trials = self.trials_left().min(own.trials.unwrap_or(u64::MAX)).min(FIRST_PICKS as u64);
        Slice::share(Budget { seconds: left, trials: Some(trials) }, self.order())
    }

    /// Why no further problem gets its first picks.
    fn cut(&self) -> Option<Ended> {
        self.over().filter(|ended| !self.common.reach_all || *ended != Ended::Budget)
    }

    /// The first picks of every problem on a device that is the host itself: compilers would disturb its runs.
    pub fn open_one_by_one(&mut self, tasks: &'a [Task<'a>], begin: &Begin<'_, 'a>) -> Result<Option<Ended>, TuneError> {
        for number in heaviest_first(tasks) {
            if let Some(ended) = self.cut() {
                return Ok(Some(ended));
            }
            let Some(task) = tasks.get(number) else { continue };
            let slice = self.first_slice(task.options.budget);
            self.accept(number, begin(task, slice))?;
            if let Some(ended) = self.search(number, slice)? {
                return Ok(Some(ended));
            }
        }
        Ok(None)
    }

    /// The first picks of every problem, built ahead on all cores. Where builds decide the order or seconds end the search, the problem that is built
    /// first is timed first. Otherwise problems are searched in the order of their weights, so that a search repeats.
    pub fn open(&mut self, tasks: &'a [Task<'a>], begin: &Begin<'_, 'a>) -> Result<Option<Ended>, TuneError> {
        let eager = self.order() == Order::Built || self.common.budget.seconds.is_some();
        let (order, next, stop) = (heaviest_first(tasks), AtomicUsize::new(0), AtomicBool::new(false));
        let first = self.first_slice(Budget::default());
        std::thread::scope(|scope| {
            let (send, begun) = channel();
            for _ in 0..RANKERS {
                let (send, order, next, stop) = (send.clone(), &order, &next, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed)
                        && let Some(&number) = order.get(next.fetch_add(1, Ordering::Relaxed))
                        && let Some(task) = tasks.get(number)
                        && send.send(Begun { number, live: begin(task, first.at_most(task.options.budget.trials)) }).is_ok()
                    {
                    }
                });
            }
            drop(send);
            let ended = self.take_first(&begun, eager);
            stop.store(true, Ordering::Relaxed);
            ended
        })
    }

    fn take_first(&mut self, begun: &Receiver<Begun<'a>>, eager: bool) -> Result<Option<Ended>, TuneError> {
        let (mut waiting, mut more, mut idle) = (Vec::new(), true, Instant::now());
        while more || !waiting.is_empty() {
            if let Some(ended) = self.cut() {
                return Ok(Some(ended));
            }
            let chosen = if eager || !more { self.choose(&mut waiting, eager && idle.elapsed() < WAIT) } else { None };
            if let Some(number) = chosen {
                let own = self.problems.get(number).map_or(Budget::default(), |problem| problem.own);
                let slice = self.first_slice(own);
                let next = self.heaviest(&waiting, true).or_else(|| self.heaviest(&waiting, false));
                let next = next.and_then(|place| waiting.get(place).copied());
                if let Some(ended) = self.search_beside(number, slice, next)? {
                    return Ok(Some(ended));
                }
                idle = Instant::now();
            }
            // Those that have come meanwhile, without waiting where there is work.
            let mut wait = if chosen.is_some() { Duration::ZERO } else { TICK };
            while more {
                match begun.recv_timeout(wait) {
                    Ok(Begun { number, live }) => {
                        self.accept(number, live)?;
                        waiting.push(number);
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => more = false,
                }
                wait = Duration::ZERO;
            }
            if !more && chosen.is_none() && eager {
                std::thread::sleep(TICK / 10);
            }
        }
        Ok(None)
    }

    /// Takes the heaviest of the problems that wait, of those alone whose candidates are built if `built`.
    fn choose(&mut self, waiting: &mut Vec<usize>, built: bool) -> Option<usize> {
        let problems = &self.problems;
        waiting.sort_by(|x, y| {
            let weight = |number: &usize| problems.get(*number).map_or(0.0, Problem::weight);
            weight(y).total_cmp(&weight(x)).then(x.cmp(y))
        });
        let place = self.heaviest(waiting, built)?;
        Some(waiting.remove(place))
    }

    /// The first of some problems in the order of their weights. With `built` it must be built. A problem that has test data
    /// comes before others.
    fn heaviest(&mut self, waiting: &[usize], built: bool) -> Option<usize> {
        let mut first = None;
        for (place, number) in waiting.iter().enumerate() {
            let live = self.problems.get_mut(*number).and_then(|problem| problem.live.as_mut());
            let Some(live) = live else { return Some(place) };
            if !built || live.is_built() {
                if live.has_data() {
                    return Some(place);
                }
                first = first.or(Some(place));
            }
        }
        first
    }
}

/// The tasks, heaviest first, as far as that is known before plans are ranked.
fn heaviest_first(tasks: &[Task<'_>]) -> Vec<usize> {
    let timed = tasks.iter().all(|task| task.rival_us.is_some());
    let weight =
        |task: &Task<'_>| task.calls * if timed { task.rival_us.unwrap_or_default() } else { task.space.problem().flop() };
    let mut weighed: Vec<(usize, f64)> = tasks.iter().map(weight).enumerate().collect();
    weighed.sort_by(|x, y| y.1.total_cmp(&x.1));
    weighed.into_iter().map(|(number, _)| number).collect()
}
