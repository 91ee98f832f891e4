//! Many problems on one device, such as the layers of a model, under one budget.
//!
//! First the best picks of every problem are compiled on all cores, in the order of the problems' weights, and timed and verified as soon as they are
//! built. Then the rest of the budget goes in slices to the problem whose search promises most: its weight, times the time that the search may still
//! save. The gap between the best time and the model's floor counts at first by half, and by half as much after each slice without a gain.
//! Problems share what they find: a slice starts from the winners of the nearest problems.
//!
//! A budget for each problem leaves nothing to share: the problems are searched one after the other, each with all of its budget.

use super::build::Pool;
use super::descent::FIRST_PICKS;
use super::session::{Judge, Live, TICK};
use super::slice::Slice;
use super::{Budget, Cancel, Ended, Event, Options, Outcome, THRESHOLD, TuneError, prepared};
use crate::records::Records;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tilewright_device::{Device, DeviceKind};
use tilewright_gen::space::Space;

/// Threads that rank the plans of problems ahead; ranking one problem has several threads of its own.
const RANKERS: usize = 4;
/// Least seconds of a slice, and least share of the seconds that are left.
const SLICE_SECONDS: f64 = 1.0;
const SLICE_SHARE: f64 = 0.05;
/// A slice is so many times as long as making its test data takes.
const SLICE_OVER_DATA: f64 = 4.0;
/// Trials of a slice where times are modelled and the budget is in trials.
const SLICE_TRIALS: u64 = 16;
/// Share of the gap to the model's floor that a search is expected to close at first.
const HOPE: f64 = 0.5;
/// What saves time only beyond a rival's counts by this share.
const BEYOND: f64 = 0.1;
/// A gain below this share halves the hope.
const GAIN: f64 = 0.01;
/// How long the device waits for the picks of a problem before it takes the heaviest.
const WAIT: Duration = Duration::from_secs(2);

/// One problem of a campaign.
#[derive(Debug)]
pub struct Task<'a> {
    /// Its plans.
    pub space: &'a Space,
    /// How often it is computed: the weight of its time.
    pub calls: f64,
    /// Microseconds of a rival that computes it unless a plan is faster; `None` without one, or while it was not timed.
    pub rival_us: Option<f64>,
    /// How it is searched. Its own budget ends its search, with a common budget as well.
    pub options: Options,
}

/// How far a campaign is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Problems with a verified winner.
    pub reached: usize,
    /// All problems.
    pub problems: usize,
    /// Share of the time in all problems that the reached ones take.
    pub share: f64,
    /// Time of all problems by rivals, or else by picks, over the time now.
    pub gain: f64,
}

/// Who started a campaign: hears of it, and may time rivals.
pub trait Audience {
    /// A search of one problem tells something.
    fn hear(&mut self, number: usize, event: &Event, standing: &Standing);
    /// A problem has a winner, its first or a faster one, or no plan was found. Gives the microseconds of a rival, where they are known now.
    fn settled(&mut self, number: usize, result: &Result<Outcome, TuneError>, standing: &Standing) -> Option<f64>;
}

/// A budget that problems share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedBudget {
    /// Seconds from the call, or trials of all problems.
    pub budget: Budget,
    /// Every problem gets its first picks, although that may take longer.
    pub reach_all: bool,
}

/// What came of a campaign.
#[derive(Debug)]
pub struct Campaign {
    /// In the order of the tasks; `None` for a problem that was not reached.
    pub outcomes: Vec<Option<Result<Outcome, TuneError>>>,
    /// Why it ended.
    pub ended: Ended,
}

/// A problem within a running campaign.
struct Problem<'a> {
    calls: f64,
    rival_us: Option<f64>,
    /// Of the best pick.
    modelled_us: f64,
    /// What math or memory alone takes by the model.
    floor_us: f64,
    live: Option<Live<'a>>,
    result: Option<Result<Outcome, TuneError>>,
    /// Share of the gap to the floor that the next slice is expected to close.
    hope: f64,
    /// What its own search may take.
    own: Budget,
    /// Nothing is left to try.
    exhausted: bool,
}

impl Problem<'_> {
    /// A budget within its own.
    fn within(&self, Budget { seconds, trials }: Budget) -> Budget {
        let least = |x: Option<f64>, y: Option<f64>| x.map_or(y, |x| Some(y.map_or(x, |y| x.min(y))));
        let (made, took) = self.live.as_ref().map_or((0, 0.0), |live| (live.trials(), live.seconds()));
        let own = self.own.trials.map(|trials| trials.saturating_sub(made).max(1));
        let trials = trials.map_or(own, |trials| Some(own.map_or(trials, |own| own.min(trials))));
        Budget { seconds: least(seconds, self.own.seconds.map(|s| (s - took).max(0.0))), trials }
    }

    fn best_us(&self) -> Option<f64> {
        self.result.as_ref().and_then(|result| Some(result.as_ref().ok()?.time_us))
    }

    /// Microseconds per call that the problem takes where nobody has searched it.
    fn base_us(&self) -> f64 {
        self.rival_us.or_else(|| self.live.as_ref()?.first_us()).unwrap_or(self.modelled_us)
    }

    /// Time of all calls.
    fn weight(&self) -> f64 {
        self.calls * self.base_us()
    }

    /// Microseconds that another slice may save, by all calls.
    fn promise(&self) -> f64 {
        let Some(best) = self.best_us() else { return self.weight() * self.hope };
        let gap = (best - self.floor_us).max(0.0) * self.hope;
        let rival = self.rival_us.unwrap_or(f64::INFINITY);
        let useful = best.min(rival) - (best - gap).min(rival);
        self.calls * useful.max(BEYOND * gap)
    }
}

/// A running campaign.
struct Run<'a, 'h> {
    problems: Vec<Problem<'a>>,
    audience: &'h mut dyn Audience,
    cancel: &'a Cancel,
    start: Instant,
    common: SharedBudget,
    trials: u64,
    /// Seconds that the last verification and its audience took: so many are kept for the next.
    closing: f64,
}

/// Begins the search of a task.
type Begin<'b, 'a> = dyn Fn(&'a Task<'a>, Slice) -> Result<Live<'a>, TuneError> + Sync + 'b;

/// What came of a slice, and the test data that were made meanwhile.
struct Both {
    ended: Result<Option<Ended>, TuneError>,
    data: Option<Judge>,
}

/// A problem whose plans were ranked.
struct Begun<'a> {
    number: usize,
    live: Result<Live<'a>, TuneError>,
}

impl<'a> Run<'a, '_> {
    fn standing(&self) -> Standing {
        let mut standing = Standing { problems: self.problems.len(), ..Standing::default() };
        let (mut all, mut reached, mut now) = (0.0, 0.0, 0.0);
        for problem in &self.problems {
            let base = problem.weight();
            all += base;
            if let Some(best) = problem.best_us() {
                standing.reached += 1;
                reached += base;
                now += problem.calls * best.min(problem.rival_us.unwrap_or(f64::INFINITY));
            } else {
                now += base;
            }
        }
        standing.share = if all > 0.0 { reached / all } else { 0.0 };
        standing.gain = if now > 0.0 { all / now } else { 1.0 };
        standing
    }

    /// Seconds until the last plan must have been verified.
    fn left(&self) -> f64 {
        self.common.budget.seconds.map_or(f64::INFINITY, |seconds| seconds - self.closing - self.start.elapsed().as_secs_f64())
    }

    fn trials_left(&self) -> u64 {
        self.common.budget.trials.map_or(u64::MAX, |trials| trials.saturating_sub(self.trials))
    }

    /// Why no further slice begins.
    fn over(&self) -> Option<Ended> {
        if self.cancel.is_cancelled() {
            return Some(Ended::Cancelled);
        }
        (self.left() <= 0.0 || self.trials_left() == 0).then_some(Ended::Budget)
    }

    /// Searches one problem for a slice and verifies what it found. Gives why the campaign cannot go on.
    fn search(&mut self, number: usize, slice: Slice) -> Result<Option<Ended>, TuneError> {
        let standing = self.standing();
        let Some(problem) = self.problems.get_mut(number) else { return Ok(None) };
        let Some(live) = &mut problem.live else { return Ok(None) };
        let (audience, before) = (&mut *self.audience, live.best_us());
        let mut trials = 0;
        let mut heard = |event: &Event| {
            trials += u64::from(matches!(event, Event::Trial { .. }));
            audience.hear(number, event, &standing);
        };
        let first = problem.result.is_none();
        let known = first && slice.shared && live.is_settled();
        let ended = match if known { Ok(Ended::Budget) } else { live.advance(slice, &mut heard) } {
            Ok(ended) => ended,
            Err(e @ TuneError::Records(_)) => return Err(e),
            Err(e) => {
                problem.result.get_or_insert(Err(e));
                problem.exhausted = true;
                self.tell(number);
                return Ok(None);
            }
        };
        problem.exhausted = matches!(ended, Ended::Exhausted | Ended::Converged);
        let spent = problem.own.trials.is_some_and(|trials| live.trials() >= trials)
            || problem.own.seconds.is_some_and(|seconds| live.seconds() >= seconds);
        problem.exhausted |= spent;
        let after = live.best_us();
        let faster = match (before, after) {
            (Some(before), Some(after)) => after < THRESHOLD * before,
            (before, _) => before.is_none(),
        };
        let gained = before.zip(after).is_some_and(|(before, after)| after < (1.0 - GAIN) * before);
        if !first && !gained {
            problem.hope *= 0.5;
        }
        let stops = match &ended {
            Ended::DeviceLost(_) | Ended::Cancelled => Some(ended.clone()),
            _ => None,
        };
        if first || faster {
            let since = Instant::now();
            let result = live.settle(ended, &mut heard);
            let stops = match &result {
                Ok(Outcome { ended: lost @ Ended::DeviceLost(_), .. }) => Some(lost.clone()),
                _ => stops,
            };
            live.rest();
            self.trials += trials;
            problem.result = Some(result);
            self.tell(number);
            self.closing = since.elapsed().as_secs_f64();
            return Ok(stops);
        }
        // The same winner after more trials.
        if live.is_settled() {
            problem.result = Some(live.settle(ended, &mut heard));
        }
        live.rest();
        self.trials += trials;
        Ok(stops)
    }

    /// Searches every problem with all of its own budget.
    fn each(&mut self, tasks: &'a [Task<'a>], begin: &Begin<'_, 'a>) -> Result<Ended, TuneError> {
        for (number, task) in tasks.iter().enumerate() {
            if self.cancel.is_cancelled() {
                return Ok(Ended::Cancelled);
            }
            let slice = Slice::whole(task.options.budget);
            self.accept(number, begin(task, slice))?;
            let ended = self.search(number, slice)?;
            if let Some(problem) = self.problems.get_mut(number) {
                problem.live = None;
            }
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
        Ok(Ended::Budget)
    }

    /// Takes a problem whose plans were ranked and whose first candidates are being built.
    fn accept(&mut self, number: usize, begun: Result<Live<'a>, TuneError>) -> Result<(), TuneError> {
        let Some(problem) = self.problems.get_mut(number) else { return Ok(()) };
        match begun {
            Ok(live) => {
                let estimate = live.estimate().unwrap_or_default();
                (problem.modelled_us, problem.floor_us) = (estimate.total_us, estimate.math_us.max(estimate.dram_us));
                live.weigh(problem.weight());
                problem.live = Some(live);
            }
            Err(e @ TuneError::Records(_)) => return Err(e),
            Err(e) => {
                problem.result = Some(Err(e));
                self.tell(number);
            }
        }
        Ok(())
    }

    /// The part of a budget in which a problem gets its first picks.
    fn first_slice(&self, own: Budget) -> Slice {
        let left = Some(self.left()).filter(|seconds| seconds.is_finite() && !self.common.reach_all);
        let trials = self.trials_left().min(own.trials.unwrap_or(u64::MAX)).min(FIRST_PICKS as u64);
        Slice::share(Budget { seconds: left, trials: Some(trials) })
    }

    /// Why no further problem gets its first picks.
    fn cut(&self) -> Option<Ended> {
        self.over().filter(|ended| !self.common.reach_all || *ended != Ended::Budget)
    }

    /// The first picks of every problem on a device that is the host itself: compilers would disturb its runs.
    fn open_one_by_one(&mut self, tasks: &'a [Task<'a>], begin: &Begin<'_, 'a>) -> Result<Option<Ended>, TuneError> {
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

    /// The first picks of every problem, built ahead on all cores. `eager`: what is built first is timed first; else problems are searched in the order of
    /// their weights, the same in every run.
    fn open(&mut self, tasks: &'a [Task<'a>], begin: &Begin<'_, 'a>, eager: bool) -> Result<Option<Ended>, TuneError> {
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
                // The device need not wait for the test data of the next problem.
                let next = self
                    .heaviest(&waiting, true)
                    .or_else(|| self.heaviest(&waiting, false))
                    .and_then(|n| waiting.get(n).copied());
                let live = next.and_then(|next| self.problems.get(next)?.live.as_ref());
                let ahead = live.and_then(Live::data_ahead);
                let both = std::thread::scope(|scope| {
                    let data = ahead.map(|ahead| scope.spawn(move || ahead.make()));
                    let ended = self.search(number, slice);
                    Both { ended, data: data.and_then(|data| data.join().ok().flatten()) }
                });
                // Some of them may lie in the memory of a worker process that is gone.
                let restarts = |run: &Self| run.problems.get(number).and_then(|p| Some(p.live.as_ref()?.restarts()));
                let lost = restarts(self).is_some_and(|count| count > 0);
                if lost {
                    self.problems.iter_mut().filter_map(|problem| problem.live.as_mut()).for_each(Live::drop_data);
                }
                if let Some(live) = next.and_then(|next| self.problems.get_mut(next)?.live.as_mut()) {
                    live.take_data(both.data.filter(|_| !lost));
                }
                if let Some(ended) = both.ended? {
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

    /// The first of some problems in the order of their weights that is built, if it must be; one whose test data are there before others.
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

    /// Gives the rest of the budget to the problems that promise most.
    fn share(&mut self) -> Result<Ended, TuneError> {
        loop {
            if let Some(ended) = self.over() {
                return Ok(ended);
            }
            let Some((number, slice)) = self.next() else { return Ok(Ended::Exhausted) };
            if let Some(live) = self.problems.get_mut(number).and_then(|problem| problem.live.as_mut()) {
                live.start_from_near()?;
            }
            if let Some(ended) = self.search(number, slice)? {
                return Ok(ended);
            }
        }
    }

    /// Tells of a problem's winner.
    fn tell(&mut self, number: usize) {
        let standing = self.standing();
        let Some(problem) = self.problems.get_mut(number) else { return };
        let Some(result) = &problem.result else { return };
        problem.rival_us = self.audience.settled(number, result, &standing).or(problem.rival_us);
    }

    /// The problem whose next slice promises most, and that slice.
    fn next(&self) -> Option<(usize, Slice)> {
        let open = self.problems.iter().enumerate().filter(|(_, problem)| !problem.exhausted && problem.live.is_some());
        let (number, problem) = open.max_by(|(_, x), (_, y)| x.promise().total_cmp(&y.promise()))?;
        let data = problem.live.as_ref().map_or(0.0, Live::data_seconds);
        let left = self.left();
        let seconds = (SLICE_SHARE * left).max(SLICE_SECONDS).max(SLICE_OVER_DATA * data).min(left);
        let budget = match self.common.budget.trials {
            Some(_) => Budget { seconds: Some(left), trials: Some(SLICE_TRIALS.min(self.trials_left())) },
            None => Budget::seconds(seconds),
        };
        let budget = Budget { seconds: budget.seconds.filter(|s| s.is_finite()), ..budget };
        Some((number, Slice::share(problem.within(budget))))
    }
}

/// Searches the fastest verified plans of many problems.
///
/// With a `common` budget, in seconds from this call or in trials of all problems, every problem gets its first picks and the search goes where most time
/// may be saved. Without one, each task is searched with its own budget, in order.
///
/// # Errors
/// [`TuneError`] where the device cannot be prepared or records cannot be used. A problem without a plan is no error: see [`Campaign::outcomes`].
pub fn tune_all<'a>(
    device: &'a Arc<dyn Device>,
    tasks: &'a [Task<'a>],
    records: Option<&'a Records>,
    common: Option<SharedBudget>,
    cancel: &'a Cancel,
    audience: &mut dyn Audience,
) -> Result<Campaign, TuneError> {
    let budgets = tasks.iter().map(|task| task.options.budget).chain(common.map(|common| common.budget));
    if let Some(seconds) = budgets.filter_map(|budget| budget.seconds).find(|s| s.is_nan() || *s < 0.0) {
        return Err(TuneError::Budget { seconds });
    }
    let start = Instant::now();
    let Some(first) = tasks.first() else { return Ok(Campaign { outcomes: Vec::new(), ended: Ended::Budget }) };
    prepared(device, &first.options)?;
    let pool = Pool::new(first.options.threads());
    let problem = |task: &Task<'a>| Problem {
        calls: task.calls,
        rival_us: task.rival_us,
        modelled_us: 0.0,
        floor_us: 0.0,
        live: None,
        result: None,
        hope: HOPE,
        own: task.options.budget,
        exhausted: false,
    };
    let problems = tasks.iter().map(problem).collect();
    let shared = common.unwrap_or(SharedBudget { budget: Budget::default(), reach_all: true });
    let mut run = Run { problems, audience, cancel, start, common: shared, trials: 0, closing: 0.0 };
    let begin = |task: &'a Task<'a>, slice| Live::begin(device, task.space, records, &task.options, cancel, &pool, slice);
    let ended = match common {
        None => run.each(tasks, &begin)?,
        Some(_) => {
            let measured = device.info().is_measured();
            let ended = if device.info().kind == DeviceKind::Cpu {
                run.open_one_by_one(tasks, &begin)?
            } else {
                run.open(tasks, &begin, measured)?
            };
            match ended {
                Some(ended) => ended,
                None => run.share()?,
            }
        }
    };
    Ok(Campaign { outcomes: run.problems.into_iter().map(|problem| problem.result).collect(), ended })
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
