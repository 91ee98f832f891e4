//! What a search knows: its trials, its best plan, the time it has left. [`Live`] drives it.

mod live;
mod settle;

pub(super) use live::Live;
pub(super) use settle::Judge;

use super::build::{Builders, Built, Ready};
use super::expect::Expectation;
use super::measure::{Reference, beats, measure};
use super::slice::Slice;
use super::{
    Cancel, Ended, Event, GENERATOR, Options, Outcome, Phase, Proposal, Searcher, Spent, Step, Strategy, Tally, TuneError,
    device_key,
};
use crate::key::ProblemKey;
use crate::records::{DeviceKey, Records, State, TimeKind, Trial};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewright_check::verify::{Depth, VerifyError};
use tilewright_device::{Device, DeviceError, Launch, Timing};
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_problem::Problem;

/// Seconds beyond the budget in which a search that has found nothing yet goes on. One candidate may take longer to compile and
/// verify than a small budget.
const FIRST_PLAN: f64 = 30.0;
/// How long to wait for a builder before looking after budget and cancellation.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Candidates that the searcher wanted first: without them a search is not under way. They take longer to compile than small ones.
const FAVOURITES: u64 = 8;
/// How long they are waited for once another can run.
const FAVOURITES_WAIT: Duration = Duration::from_secs(5);
/// Recorded plans of near problems that a search starts from.
const NEAR: usize = 3;
/// Recorded plans of the same problem, from another driver or other sources, that a search starts from.
const STALE: usize = 8;

/// A time that is a gain is below this share of the one before.
const GAIN: f64 = 0.99;
/// Trials without a gain before a search may end early.
const PATIENCE: u64 = 200;
/// Trials without a gain that end a search of modelled times whatever its budget: each is a thousandth of a second.
const PATIENCE_MODELLED: u64 = 1000;

/// The last gain of a search.
#[derive(Clone, Copy, Debug)]
struct Gain {
    time_us: f64,
    trial: u64,
    seconds: f64,
}

/// A plan with a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub plan: Plan,
    pub time_us: f64,
    /// How deeply its result was verified and found right.
    pub verified: Option<Depth>,
    pub max_error: Option<f64>,
}

impl Timed {
    fn of(plan: Plan, trial: &Trial) -> Option<Timed> {
        let time_us = trial.time_us?;
        Some(Timed { plan, time_us, verified: trial.verified, max_error: trial.max_error })
    }
}

/// The fastest plan found whose result was right, as deeply as that was looked at.
pub(super) struct Best {
    pub timed: Timed,
    /// At hand when it was found in this run.
    pub ready: Option<Ready>,
    pub launches: Option<Vec<Launch>>,
}

impl Best {
    pub const fn recorded(timed: Timed) -> Best {
        Best { timed, ready: None, launches: None }
    }
}

/// How a candidate did on the device.
struct Tried {
    trial: Trial,
    best: Option<Best>,
    /// The device cannot be used any more.
    lost: Option<String>,
}

/// Hears what a search tells.
pub(super) type Heard<'h> = dyn FnMut(&Event) + 'h;

pub(super) struct Session<'a> {
    pub device: &'a Arc<dyn Device>,
    pub space: &'a Space,
    records: Option<&'a Records>,
    pub options: &'a Options,
    pub cancel: &'a Cancel,
    key: ProblemKey,
    name: String,
    device_key: DeviceKey,
    /// What the search does now, and since when.
    slice: Slice,
    start: Instant,
    /// Seconds of earlier slices.
    before: f64,
    /// No slice runs.
    rests: bool,
    /// Worker processes that were replaced.
    restarts: u32,
    /// When the budget's clock started: the candidates wanted first have been tried.
    under_way: Option<Instant>,
    pub tally: Tally,
    resumed: u64,
    pub best: Option<Best>,
    /// Plans with a time, whether verified or not: where the best turns out wrong, the next of them is looked at.
    pub timed: Vec<Timed>,
    expectation: Expectation<'a>,
    pub history: Vec<Step>,
    gain: Option<Gain>,
    reasons: Vec<String>,
    pub spent: Spent,
    phase: Option<Phase>,
}

impl<'a> Session<'a> {
    pub fn new(
        device: &'a Arc<dyn Device>,
        space: &'a Space,
        records: Option<&'a Records>,
        options: &'a Options,
        cancel: &'a Cancel,
    ) -> Self {
        Session {
            device,
            space,
            records,
            options,
            cancel,
            key: ProblemKey::of(space),
            name: space.problem().key(),
            device_key: device_key(device.info(), options.cache),
            slice: Slice::whole(options.budget, device.info().is_measured()),
            start: Instant::now(),
            before: 0.0,
            rests: true,
            restarts: 0,
            under_way: None,
            tally: Tally::default(),
            resumed: 0,
            best: None,
            timed: Vec::new(),
            expectation: Expectation::new(space),
            history: Vec::new(),
            gain: None,
            reasons: Vec::new(),
            spent: Spent::default(),
            phase: None,
        }
    }

    fn is_measured(&self) -> bool {
        self.device.info().is_measured()
    }

    pub fn kind(&self) -> TimeKind {
        if self.is_measured() { TimeKind::Measured } else { TimeKind::Modelled }
    }

    /// Seconds of the search so far.
    fn seconds(&self) -> f64 {
        self.before + if self.rests { 0.0 } else { self.start.elapsed().as_secs_f64() }
    }

    fn spent(&self) -> bool {
        let Slice { budget, shared, .. } = self.slice;
        let since = self.under_way.unwrap_or(self.start).elapsed().as_secs_f64();
        let over = |seconds: f64| {
            let found = shared || self.best.is_some() && (self.under_way.is_some() || seconds == 0.0);
            since >= if found { seconds } else { seconds + FIRST_PLAN }
        };
        budget.seconds.is_some_and(over) || budget.trials.is_some_and(|t| self.slice.trials(&self.tally) >= t)
    }

    /// True once more trials are not worth their time: see [`Ended::Converged`].
    fn converged(&mut self) -> bool {
        let Some(best_us) = self.best.as_ref().map(|b| b.timed.time_us) else { return false };
        let measured = self.is_measured();
        let empty = matches!(self.space.problem(), Problem::Reduce(r) if r.is_empty());
        if empty || (!measured && GAIN * best_us < self.space.target().rates.launch_us) {
            return true;
        }
        let seconds = self.under_way.unwrap_or(self.start).elapsed().as_secs_f64();
        // Who shares a budget says when another search is worth more.
        if self.options.strategy == Strategy::Exhaustive || self.slice.shared {
            return false;
        }
        let trials = self.tally.trials;
        let gain = self.gain.filter(|gain| best_us >= GAIN * gain.time_us);
        let Gain { trial, seconds: then, .. } =
            *self.gain.insert(gain.unwrap_or(Gain { time_us: best_us, trial: trials, seconds }));
        let (trials, seconds, budget) = (trials - trial, seconds - then, self.slice.budget);
        let long = match (budget.trials, budget.seconds) {
            (None, None) => return false,
            (most, limit) => most.is_none_or(|most| 4 * trials >= most) && limit.is_none_or(|limit| 4.0 * seconds >= limit),
        };
        trials >= PATIENCE && (long || (!measured && trials >= PATIENCE_MODELLED))
    }

    /// After the device was lost: goes on with the next worker process, where it runs in one; else gives what lost it.
    fn restart_worker(&mut self, lost: String, judge: &mut Judge) -> Result<(), String> {
        if !self.device.revives() {
            return Err(lost);
        }
        // They hold memory of the worker that is gone.
        if let Some(best) = &mut self.best {
            best.launches = None;
        }
        self.restarts += 1;
        judge.renew().map_err(|e| format!("{lost}; then {e}"))
    }

    /// Tells what is done from now on, where that is something else.
    fn say(&mut self, phase: Phase, heard: &mut Heard<'_>) {
        if self.phase.replace(phase) != Some(phase) {
            heard(&Event::Phase { phase });
        }
    }

    /// Proposals to the builders until they have `room` of them; true when there are no more.
    fn fill(&mut self, builders: &mut Builders, searcher: &mut dyn Searcher, room: usize) -> bool {
        let left = self.slice.budget.trials.map_or(u64::MAX, |t| t.saturating_sub(self.slice.trials(&self.tally)));
        let room = room.min(usize::try_from(left).unwrap_or(usize::MAX));
        while builders.outstanding() < room {
            match searcher.propose() {
                Proposal::Try(plan) => builders.submit(plan),
                Proposal::Wait => return false,
                Proposal::Done => return true,
            }
        }
        false
    }

    /// Takes what was built on a device that needs a quiet host for its runs. A candidate waits for its turn once it has run in a
    /// worker.
    fn take_quiet(builders: &mut Builders, waiting: &mut VecDeque<Built>, judge: &mut Judge) {
        let Some(built) = builders.take(TICK) else { return };
        match built.result {
            Ok(ready) if !built.rehearsed => match judge.launches(&ready) {
                Ok(launches) => builders.rehearse(built.number, ready, launches),
                // Timing it meets the same.
                Err(_) => waiting.push_back(Built { result: Ok(ready), ..built }),
            },
            _ => waiting.push_back(built),
        }
    }

    /// What the records hold of this problem on this device.
    fn recorded(&self) -> Result<Vec<Trial>, TuneError> {
        let Some(records) = self.records else { return Ok(Vec::new()) };
        let hung = records.recover()?;
        if hung > 0 {
            tracing::info!(
                "{hung} candidates were running when their process crashed or the machine went down: they count as hung"
            );
        }
        Ok(records.trials(&self.key, &self.device_key, GENERATOR)?)
    }

    /// Plans to begin with: the caller's, then plans of the same problem with stale records, then plans of the nearest recorded
    /// problems. Also the number of stale plans.
    fn starts(&self, recorded: &[Trial]) -> Result<(Vec<Plan>, u64), TuneError> {
        let (mut starts, mut stale) = (self.options.starts.clone(), 0);
        if let Some(records) = self.records {
            let known: HashSet<&str> = recorded.iter().map(|t| t.plan.as_str()).collect();
            let candidates = records.candidates(&self.key, &self.device_key, STALE)?;
            let unknown = candidates.iter().filter(|text| !known.contains(text.as_str()));
            starts.extend(unknown.filter_map(|text| Plan::parse(text).ok()).inspect(|_| stale += 1));
        }
        starts.extend(self.near()?);
        Ok((starts, stale))
    }

    /// The best plans of the nearest recorded problems.
    fn near(&self) -> Result<Vec<Plan>, TuneError> {
        let Some(records) = self.records else { return Ok(Vec::new()) };
        let follows = |other: &str| self.options.lineup.as_ref().is_none_or(|lineup| lineup.follows(&self.name, other));
        let near = records.nearest_of(&self.key, &self.device_key, GENERATOR, NEAR, &follows)?;
        Ok(near.iter().filter_map(|n| Plan::parse(&n.plan).ok()).collect())
    }

    /// Recorded trials as if they had just been made. The best of them is what was verified at all: [`Session::settle`] looks at it
    /// thoroughly where that was not done.
    fn resume(&mut self, trials: Vec<Trial>, searcher: &mut dyn Searcher) {
        let kind = self.kind();
        let constraint = self.space.constraint();
        // Most of the time that many records take.
        let parsed = |trial: Trial| Plan::parse(&trial.plan).ok().filter(|p| constraint.allows(p)).map(|plan| (plan, trial));
        let trials: Vec<(Plan, Trial)> = trials.into_par_iter().filter_map(parsed).collect();
        let mut known: Vec<(Plan, Trial)> = Vec::with_capacity(trials.len());
        let mut places: HashMap<Plan, usize> = HashMap::with_capacity(trials.len());
        for (plan, trial) in trials {
            let place = *places.entry(plan).or_insert(known.len());
            match known.get_mut(place) {
                Some((_, before)) => *before = follow(before, trial),
                None => known.push((plan, trial)),
            }
        }
        self.resumed = known.len() as u64;
        for (plan, trial) in known {
            let timed = Timed::of(plan, &trial).filter(|_| trial.time_kind == Some(kind));
            if trial.state == State::Ok && timed.is_none() {
                continue;
            }
            self.timed.extend(timed);
            searcher.report(&plan, timed.map(|t| t.time_us));
        }
        self.expectation.learn(self.timed.iter().map(|t| (t.plan, t.time_us)));
        let mut verified: Vec<&Timed> = self.timed.iter().filter(|t| t.verified.is_some()).collect();
        verified.sort_by(|x, y| x.time_us.total_cmp(&y.time_us));
        // A recorded plan may be illegal under this session's constraint.
        let best = verified.into_iter().find(|t| self.space.resolve(&t.plan).is_ok());
        self.best = best.map(|timed| Best::recorded(*timed));
    }

    /// One candidate from the builders: tried, recorded, reported. Gives what lost the device, if it is lost.
    fn handle(
        &mut self,
        built: Built,
        searcher: &mut dyn Searcher,
        judge: &mut Judge,
        heard: &mut Heard<'_>,
    ) -> Result<Option<String>, TuneError> {
        let plan = built.plan;
        let text = plan.to_string();
        let tried = match built.result {
            Err(reject) => Tried { trial: Trial::unmeasured(&text, reject.state, &reject.reason), best: None, lost: None },
            Ok(ready) => {
                self.begin(&text)?;
                self.attempt(&text, ready, judge)
            }
        };
        let Tried { trial, best, lost } = tried;
        let is_best = best.is_some();
        self.tally.count(trial.state);
        if let Some(timed) = Timed::of(plan, &trial) {
            self.timed.push(timed);
            self.expectation.learn([(plan, timed.time_us)].into_iter());
        }
        if let Some(best) = best {
            let seconds = self.seconds();
            self.history.push(Step { trial: self.tally.trials, seconds, time_us: best.timed.time_us, plan });
            self.best = Some(best);
        }
        self.record(&trial)?;
        searcher.report(&plan, trial.time_us);
        self.report_trial(plan, trial, is_best, heard);
        Ok(lost)
    }

    /// Tells of a trial.
    pub fn report_trial(&mut self, plan: Plan, trial: Trial, is_best: bool, heard: &mut Heard<'_>) {
        self.reasons.extend(trial.reason.clone());
        tracing::debug!("{}: {} {plan}", trial.state.name(), trial.time_us.map_or("no time".into(), |us| format!("{us:.2} us")));
        heard(&Event::Trial {
            plan,
            state: trial.state,
            time_us: trial.time_us,
            reason: trial.reason,
            is_best,
            best_us: self.best.as_ref().map(|b| b.timed.time_us),
            tally: self.tally,
            seconds: self.seconds(),
        });
    }

    /// Marks a plan as about to run.
    pub fn begin(&self, plan: &str) -> Result<(), TuneError> {
        if let Some(records) = self.records {
            records.begin(&self.key, &self.name, &self.device_key, GENERATOR, plan)?;
        }
        Ok(())
    }

    /// Records that a plan with a time was verified more deeply.
    pub fn record_depth(&self, trial: &Trial) -> Result<(), TuneError> {
        if let Some(records) = self.records {
            records.record_depth(&self.key, &self.name, &self.device_key, GENERATOR, trial)?;
        }
        Ok(())
    }

    /// Records a trial and takes back the mark of its plan.
    pub fn record(&self, trial: &Trial) -> Result<(), TuneError> {
        if let Some(records) = self.records {
            records.add(&self.key, &self.name, &self.device_key, GENERATOR, trial)?;
        }
        Ok(())
    }

    /// Times a candidate, and verifies it if it would win.
    fn attempt(&mut self, text: &str, ready: Ready, judge: &mut Judge) -> Tried {
        let failed = |state, reason: &str| Trial::unmeasured(text, state, reason);
        let broken = |e: &VerifyError| Tried { trial: failed(state_of(e), &e.to_string()), best: None, lost: device_loss(e) };
        let measured = self.is_measured();
        let (time_us, launches) = if measured {
            let launches = match judge.launches(&ready) {
                Ok(launches) => launches,
                Err(e) => return broken(&e),
            };
            let reference = Reference {
                best: self.best.as_ref().map(|b| (b.timed.time_us, b.launches.as_deref())),
                expected_us: self.expectation.of(&ready.plan),
            };
            let cache = self.options.cache;
            let mut sample = |launches: &[Launch], repeats| self.device.time(launches, &Timing { cache, repeats });
            let since = Instant::now();
            let time = measure(&mut sample, &launches, &reference);
            self.spent.timing += since.elapsed().as_secs_f64();
            match time {
                Ok(time) => (time, Some(launches)),
                Err(e) => return broken(&e.into()),
            }
        } else {
            match self.expectation.modelled(&ready.plan) {
                Some(modelled) => (modelled, None),
                None => return Tried { trial: failed(State::Refused, "the cost model refused it"), best: None, lost: None },
            }
        };
        let mut trial = Trial::timed(text, time_us, self.kind());
        if !beats(time_us, self.best.as_ref().map(|b| b.timed.time_us)) {
            return Tried { trial, best: None, lost: None };
        }
        let since = Instant::now();
        let verification = judge.verify(&ready, Depth::Quick);
        self.spent.verifying += since.elapsed().as_secs_f64();
        let verification = match verification {
            Ok(verification) => verification,
            Err(e) => return broken(&e),
        };
        if !verification.passed {
            let reason = verification.reason.as_deref().unwrap_or("wrong result");
            let max_error = verification.finite_error();
            return Tried { trial: Trial { max_error, ..failed(State::Wrong, reason) }, best: None, lost: None };
        }
        trial.verified = Some(Depth::Quick);
        trial.max_error = verification.finite_error();
        let best = Timed::of(ready.plan, &trial).map(|timed| Best { timed, ready: Some(ready), launches });
        Tried { trial, best, lost: None }
    }

    /// The report.
    fn outcome(&self, ended: Ended) -> Result<Outcome, TuneError> {
        let Some(Best { timed: best, .. }) = &self.best else {
            return Err(TuneError::NoPlan { trials: self.tally.trials, hint: self.hint(&ended) });
        };
        Ok(Outcome {
            problem: self.name.clone(),
            device: self.device.info().id.clone(),
            plan: best.plan,
            time_us: best.time_us,
            time_kind: self.kind(),
            verified: best.verified == Some(Depth::Thorough),
            verified_on: settle::reduced_for(self.device.as_ref(), self.space, &best.plan),
            max_error: best.max_error,
            tally: self.tally,
            resumed: self.resumed,
            gflops: self.space.problem().flop() / best.time_us / 1e3,
            seconds: self.seconds(),
            spent: self.spent,
            history: self.history.clone(),
            ended,
        })
    }

    /// The most frequent reason why candidates failed.
    fn hint(&self, ended: &Ended) -> String {
        if let Ended::DeviceLost(why) = ended {
            return why.clone();
        }
        let count = |r: &String| self.reasons.iter().filter(|o| *o == r).count();
        match self.reasons.iter().max_by_key(|r| count(r)) {
            Some(reason) => format!("most often: {reason}"),
            None if self.tally.trials == 0 => "the budget or the constraint left nothing to try; relax them".into(),
            None => "give it a larger budget".into(),
        }
    }
}

/// What two trials of a plan say together, the later one last. A wrong result is not made good by a right one. A thorough look
/// stands although the plan was timed once more.
fn follow(before: &Trial, after: Trial) -> Trial {
    match (before.state, after.state) {
        (State::Wrong, State::Ok) => before.clone(),
        (State::Ok, State::Ok) if before.verified > after.verified => {
            Trial { verified: before.verified, max_error: before.max_error, ..after }
        }
        _ => after,
    }
}

/// How a candidate ended whose run or verification broke off.
pub(crate) fn state_of(e: &VerifyError) -> State {
    match e.device() {
        Some(DeviceError::Hang { .. } | DeviceError::WorkerLost { .. }) => State::Hung,
        Some(DeviceError::Emulation { .. }) => State::Wrong,
        _ => State::Failed,
    }
}

/// Why the device cannot be used any more, if it cannot.
pub(super) fn device_loss(e: &VerifyError) -> Option<String> {
    e.device().filter(|d| d.is_fatal()).map(ToString::to_string)
}
