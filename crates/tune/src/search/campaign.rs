//! Many problems on one device, such as the layers of a model, under one budget.
//!
//! First the best picks of every problem are compiled on all cores, in the order of the problems' weights. They are timed and
//! verified as soon as they are built. Then the rest of the budget goes in slices to the problem with the most promising search.
//! The promise is its weight, times the time that the search may still save. The gap between the best time and the model's floor
//! counts at first by half. After each slice without a gain it counts by half as much. Problems share what they find: a slice
//! starts from the winners of the nearest problems.
//!
//! A budget for each problem leaves nothing to share: the problems are searched one after the other, each with all of its budget.

mod opening;
mod problem;

use super::build::Pool;
use super::order::Order;
use super::session::{Judge, Live};
use super::slice::Slice;
use super::{Budget, Cancel, Ended, Event, Options, Outcome, THRESHOLD, TuneError, prepared};
use crate::records::Records;
use problem::{HOPE, Problem};
use std::sync::Arc;
use std::time::Instant;
use tilewright_device::{Device, DeviceKind};
use tilewright_gen::space::Space;

/// Least seconds of a slice, and least share of the seconds that are left.
const SLICE_SECONDS: f64 = 1.0;
const SLICE_SHARE: f64 = 0.05;
/// A slice is so many times as long as making its test data takes.
const SLICE_OVER_DATA: f64 = 4.0;
/// Trials of a slice where times are modelled and the budget is in trials.
const SLICE_TRIALS: u64 = 16;
/// A gain below this share halves the hope.
const GAIN: f64 = 0.01;

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
///
/// ```
/// use tilewright_tune::search::Standing;
///
/// // 3 of 8 problems have a plan. They take half of the time. All problems took 1.5 times as long before.
/// let standing = Standing { reached: 3, problems: 8, share: 0.5, gain: 1.5 };
/// let line = format!("{} of {} problems, {:.0} % of the time", standing.reached, standing.problems, 100.0 * standing.share);
/// assert_eq!(line, "3 of 8 problems, 50 % of the time");
/// ```
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

/// What a rival takes for a problem.
///
/// ```
/// use tilewright_tune::search::{Audience, Event, Outcome, RivalTime, Standing, TuneError};
///
/// /// Times a library after each problem.
/// struct Timer;
/// impl Audience for Timer {
///     fn hear(&mut self, _: usize, _: &Event, _: &Standing) {}
///     fn settled(&mut self, number: usize, _: &Result<Outcome, TuneError>, _: &Standing) -> Vec<RivalTime> {
///         vec![RivalTime { number, us: 40.0 }]
///     }
/// }
/// let nothing = Err(TuneError::Budget { seconds: -1.0 });
/// assert_eq!(Timer.settled(2, &nothing, &Standing::default()), [RivalTime { number: 2, us: 40.0 }]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RivalTime {
    /// The problem's place among the tasks.
    pub number: usize,
    /// Microseconds.
    pub us: f64,
}

/// Who started a campaign: hears of it, and may time rivals.
///
/// ```
/// # use tilewright_device::open;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::Gemm;
/// use tilewright_tune::search::{Audience, Event, Outcome, RivalTime, Standing, TuneError};
/// use tilewright_tune::search::{Budget, Cancel, Options, Task, tune_all};
///
/// /// Counts the problems with a plan.
/// #[derive(Default)]
/// struct Count(usize);
/// impl Audience for Count {
///     fn hear(&mut self, _: usize, _: &Event, _: &Standing) {}
///     fn settled(&mut self, _: usize, _: &Result<Outcome, TuneError>, standing: &Standing) -> Vec<RivalTime> {
///         self.0 = standing.reached;
///         Vec::new()
///     }
/// }
///
/// # let device = open("emu")?;
/// # let space = Space::new(&Gemm::new(Scalar::F32, 8, 8, 8).build()?.into(), &device.info().target)?;
/// let options = Options { budget: Budget::trials(2), ..Options::default() };
/// let task = Task { space: &space, calls: 1.0, rival_us: None, options };
/// let mut count = Count::default();
/// tune_all(&device, &[task], None, None, &Cancel::default(), &mut count)?;
/// assert_eq!(count.0, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Audience {
    /// A search of one problem tells something.
    fn hear(&mut self, number: usize, event: &Event, standing: &Standing);
    /// A problem has a winner, its first or a faster one, or no plan was found. Gives the rivals that were timed now, of this
    /// problem or of earlier ones.
    fn settled(&mut self, number: usize, result: &Result<Outcome, TuneError>, standing: &Standing) -> Vec<RivalTime>;
}

/// A budget that problems share.
///
/// ```
/// # use tilewright_device::open;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::Gemm;
/// # use tilewright_tune::search::{Audience, Cancel, Event, Options, Outcome, RivalTime, Standing, Task, TuneError, tune_all};
/// use tilewright_tune::search::{Budget, SharedBudget};
///
/// # struct Silent;
/// # impl Audience for Silent {
/// #     fn hear(&mut self, _: usize, _: &Event, _: &Standing) {}
/// #     fn settled(&mut self, _: usize, _: &Result<Outcome, TuneError>, _: &Standing) -> Vec<RivalTime> {
/// #         Vec::new()
/// #     }
/// # }
/// # let device = open("emu")?;
/// # let space = Space::new(&Gemm::new(Scalar::F32, 8, 8, 8).build()?.into(), &device.info().target)?;
/// # let options = Options { budget: Budget::default(), ..Options::default() };
/// # let task = |calls| Task { space: &space, calls, rival_us: None, options: options.clone() };
/// # let (device, tasks) = (&device, [task(1.0), task(2.0)]);
/// // 4 trials of all problems together. Each gets its first picks, even if they are more.
/// let common = SharedBudget { budget: Budget::trials(4), reach_all: true };
/// let campaign = tune_all(device, &tasks, None, Some(common), &Cancel::default(), &mut Silent)?;
/// assert!(campaign.outcomes.iter().all(Option::is_some));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// A running campaign.
struct Run<'a, 'h> {
    problems: Vec<Problem<'a>>,
    audience: &'h mut dyn Audience,
    cancel: &'a Cancel,
    start: Instant,
    common: SharedBudget,
    is_measured: bool,
    trials: u64,
    /// Seconds that the last verification and its audience took: so many are kept for the next.
    closing: f64,
}

/// What came of a slice, and the test data that were made meanwhile.
struct Both {
    ended: Result<Option<Ended>, TuneError>,
    data: Option<Judge>,
}

/// The problem that is searched next, and for how long.
#[derive(Clone, Copy)]
struct Turn {
    number: usize,
    slice: Slice,
}

/// Begins the search of a task.
type Begin<'b, 'a> = dyn Fn(&'a Task<'a>, Slice) -> Result<Live<'a>, TuneError> + Sync + 'b;

impl<'a> Run<'a, '_> {
    fn standing(&self) -> Standing {
        let mut standing = Standing { problems: self.problems.len(), ..Standing::default() };
        let (mut all, mut reached, mut now) = (0.0, 0.0, 0.0);
        // Problems whose plans are not ranked yet count by their operations.
        let ranked = self.problems.iter().filter(|problem| problem.weight() > 0.0);
        let (us, flop) = ranked.fold((0.0, 0.0), |(us, flop), problem| (us + problem.weight(), flop + problem.flop));
        let us_per_flop = if flop > 0.0 { us / flop } else { 0.0 };
        for problem in &self.problems {
            let weight = problem.weight();
            let base = if weight > 0.0 { weight } else { problem.flop * us_per_flop };
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

    /// In which order candidates are tried under the common budget.
    const fn order(&self) -> Order {
        Order::of(self.common.budget, self.is_measured)
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
            (before, after) => before.is_none() && after.is_some(),
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
            let settled = since.elapsed();
            let stops = match &result {
                Ok(Outcome { ended: lost @ Ended::DeviceLost(_), .. }) => Some(lost.clone()),
                _ => stops,
            };
            live.rest();
            self.trials += trials;
            problem.result = Some(result);
            let asked = Instant::now();
            let rivals = self.tell(number).max(1);
            // An audience may catch up with many rivals at once.
            self.closing = settled.as_secs_f64() + asked.elapsed().as_secs_f64() / rivals as f64;
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
            let slice = Slice::whole(task.options.budget, self.is_measured);
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

    /// Gives the rest of the budget to the problems that promise most. `ahead`: the next one is prepared while one is searched.
    fn share(&mut self, ahead: bool) -> Result<Ended, TuneError> {
        loop {
            if let Some(ended) = self.over() {
                return Ok(ended);
            }
            let Some(Turn { number, slice }) = self.next(None) else { return Ok(Ended::Exhausted) };
            let next = if ahead { self.next(Some(number)) } else { None };
            let kept = [Some(number), next.map(|next| next.number)];
            for (at, problem) in self.problems.iter_mut().enumerate() {
                let Some(live) = &mut problem.live else { continue };
                if kept.contains(&Some(at)) {
                    live.start_from_near()?;
                } else {
                    live.drop_data();
                }
            }
            if let Some(Turn { number, slice }) = next
                && let Some(live) = self.problems.get_mut(number).and_then(|problem| problem.live.as_mut())
            {
                live.build_ahead(slice);
            }
            if let Some(ended) = self.search_beside(number, slice, next.map(|next| next.number))? {
                return Ok(ended);
            }
        }
    }

    /// Searches one problem for a slice while the test data of the next are made: the device need not wait for them.
    fn search_beside(&mut self, number: usize, slice: Slice, next: Option<usize>) -> Result<Option<Ended>, TuneError> {
        let live = next.and_then(|next| self.problems.get(next)?.live.as_ref());
        let ahead = live.and_then(Live::data_ahead);
        let restarts = |run: &Self| run.problems.get(number).and_then(|problem| Some(problem.live.as_ref()?.restarts()));
        let before = restarts(self);
        let both = std::thread::scope(|scope| {
            let data = ahead.map(|ahead| scope.spawn(move || ahead.make()));
            let ended = self.search(number, slice);
            Both { ended, data: data.and_then(|data| data.join().ok().flatten()) }
        });
        // A worker process that ended may have held the test data.
        let lost = restarts(self) != before;
        for (at, problem) in self.problems.iter_mut().enumerate() {
            let Some(live) = &mut problem.live else { continue };
            if lost {
                live.drop_data();
            } else if Some(at) == next && both.data.is_some() {
                live.take_data(both.data);
                break;
            }
        }
        both.ended
    }

    /// Tells of a problem's winner. Gives the number of rivals that were timed meanwhile.
    fn tell(&mut self, number: usize) -> usize {
        let standing = self.standing();
        let Some(result) = self.problems.get(number).and_then(|problem| problem.result.as_ref()) else { return 0 };
        let rivals = self.audience.settled(number, result, &standing);
        for RivalTime { number, us } in &rivals {
            if let Some(problem) = self.problems.get_mut(*number) {
                problem.rival_us = Some(*us);
            }
        }
        rivals.len()
    }

    /// The problem whose next slice promises most, and that slice.
    fn next(&self, without: Option<usize>) -> Option<Turn> {
        let open = self.problems.iter().enumerate().filter(|(_, problem)| !problem.exhausted && problem.live.is_some());
        let open = open.filter(|(number, _)| Some(*number) != without);
        let (number, problem) = open.max_by(|(_, x), (_, y)| x.promise().total_cmp(&y.promise()))?;
        let data = problem.live.as_ref().map_or(0.0, Live::data_seconds);
        let left = self.left();
        let seconds = (SLICE_SHARE * left).max(SLICE_SECONDS).max(SLICE_OVER_DATA * data).min(left);
        let budget = match self.common.budget.trials {
            Some(_) => Budget { seconds: Some(left), trials: Some(SLICE_TRIALS.min(self.trials_left())) },
            None => Budget::seconds(seconds),
        };
        let budget = Budget { seconds: budget.seconds.filter(|s| s.is_finite()), ..budget };
        Some(Turn { number, slice: Slice::share(problem.within(budget), self.order()) })
    }
}

/// Searches the fastest verified plans of many problems.
///
/// With a `common` budget, in seconds from this call or in trials of all problems, every problem gets its first picks. Then the
/// search goes where most time may be saved. Without one, each task is searched with its own budget, in order.
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
        flop: task.calls * task.space.problem().flop(),
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
    let is_measured = device.info().is_measured();
    let mut run = Run { problems, audience, cancel, start, common: shared, is_measured, trials: 0, closing: 0.0 };
    let begin = |task: &'a Task<'a>, slice| Live::begin(device, task.space, records, &task.options, cancel, &pool, slice);
    let ended = match common {
        None => run.each(tasks, &begin)?,
        Some(_) => {
            let ended = if device.info().kind == DeviceKind::Cpu {
                run.open_one_by_one(tasks, &begin)?
            } else {
                run.open(tasks, &begin)?
            };
            match ended {
                Some(ended) => ended,
                None => run.share(device.info().kind == DeviceKind::Gpu)?,
            }
        }
    };
    Ok(Campaign { outcomes: run.problems.into_iter().map(|problem| problem.result).collect(), ended })
}
