//! A search that runs, can be left, and goes on: candidates from the searcher to the builders to the device to the records.

use super::settle::Judge;
use super::{FAVOURITES, FAVOURITES_WAIT, Heard, Session, TICK};
use crate::model::Estimate;
use crate::records::Records;
use crate::search::build::{Builders, Built, Pool};
use crate::search::order::Order;
use crate::search::slice::Slice;
use crate::search::{Cancel, Descent, Ended, Event, Exhaustive, Options, Outcome, Phase, Random, Searcher, Strategy, TuneError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewright_check::verify::Depth;
use tilewright_device::{Device, DeviceKind};
use tilewright_gen::space::Space;

/// One search under way.
pub(in crate::search) struct Live<'a> {
    session: Session<'a>,
    searcher: Box<dyn Searcher + Send + 'a>,
    builders: Builders,
    /// Test data and memory of the device, while the search runs.
    judge: Option<Judge>,
    /// Built candidates that wait for the device.
    waiting: VecDeque<Built>,
    first_tried: Option<Instant>,
    /// The searcher has nothing more.
    done: bool,
    threads: usize,
    stale: u64,
    told: bool,
}

/// Test data that wait to be made.
#[derive(Clone, Copy)]
pub(in crate::search) struct DataAhead<'a> {
    device: &'a Arc<dyn Device>,
    space: &'a Space,
    options: &'a Options,
}

impl DataAhead<'_> {
    /// Makes them. `None` where that fails: the search meets the same error and says so.
    pub fn make(self) -> Option<Judge> {
        Judge::thorough(self.device, self.space, self.options).ok()
    }
}

impl<'a> Live<'a> {
    /// Ranks plans, reads the records, and gives the candidates of a first slice to the builders.
    pub fn begin(
        device: &'a Arc<dyn Device>,
        space: &'a Space,
        records: Option<&'a Records>,
        options: &'a Options,
        cancel: &'a Cancel,
        pool: &Arc<Pool>,
        slice: Slice,
    ) -> Result<Live<'a>, TuneError> {
        let mut session = Session::new(device, space, records, options, cancel);
        session.slice = slice;
        let recorded = session.recorded()?;
        let (starts, stale) = session.starts(&recorded)?;
        let mut searcher: Box<dyn Searcher + Send + 'a> = match options.strategy {
            Strategy::Descent => Box::new(Descent::new(space, options.seed, &starts)),
            Strategy::Random => Box::new(Random::new(space, options.seed)),
            Strategy::Exhaustive => Box::new(Exhaustive::new(space)),
        };
        if slice.shared {
            searcher.picks_first();
        }
        session.resume(recorded, searcher.as_mut());
        // Where a batch is built before it is timed, the batch is sorted.
        let order = if device.info().kind == DeviceKind::Cpu { Order::Built } else { slice.order };
        let builders = Builders::new(pool, device, space, options.build_limit, order);
        let (judge, waiting) = (None, VecDeque::new());
        let threads = options.threads();
        let mut live =
            Live { session, searcher, builders, judge, waiting, first_tried: None, done: false, threads, stale, told: false };
        // Compiling a batch takes long where compilers are slow: a first plan is wanted before.
        let first = if live.quiet() && live.session.best.is_none() { 1 } else { live.room() };
        // Builders get to work while the test data is made.
        if !(slice.shared && live.is_settled()) {
            live.done = live.session.fill(&mut live.builders, live.searcher.as_mut(), first);
        }
        live.session.spent.preparing = live.session.start.elapsed().as_secs_f64();
        Ok(live)
    }

    /// Timing on the host's own cores wants them quiet: build a batch, then time it.
    fn quiet(&self) -> bool {
        self.session.device.info().kind == DeviceKind::Cpu
    }

    fn room(&self) -> usize {
        if self.quiet() {
            return self.threads;
        }
        let Slice { order, budget, .. } = self.session.slice;
        order.window(self.threads, budget.trials)
    }

    /// The best plan was verified thoroughly.
    pub fn is_settled(&self) -> bool {
        self.session.best.as_ref().is_some_and(|best| best.timed.verified == Some(Depth::Thorough))
    }

    /// What was given to the builders is built.
    pub fn is_built(&mut self) -> bool {
        self.builders.is_built()
    }

    /// Microseconds of the best plan so far.
    pub fn best_us(&self) -> Option<f64> {
        self.session.best.as_ref().map(|best| best.timed.time_us)
    }

    /// Microseconds of the first plan that had a time.
    pub fn first_us(&self) -> Option<f64> {
        self.session.timed.first().map(|timed| timed.time_us)
    }

    /// The model's estimate of the plan that the search begins with.
    pub fn estimate(&self) -> Option<Estimate> {
        let first = self.builders.first_plan().or_else(|| Some(self.session.best.as_ref()?.timed.plan))?;
        self.session.expectation.estimate(&first)
    }

    /// Candidates of heavier searches are built first.
    pub fn weigh(&self, weight: f64) {
        self.builders.weigh(weight);
    }

    /// Trials so far.
    pub const fn trials(&self) -> u64 {
        self.session.tally.trials
    }

    /// Seconds of its slices so far.
    pub fn seconds(&self) -> f64 {
        self.session.seconds()
    }

    /// Seconds that the test data took to make.
    pub fn data_seconds(&self) -> f64 {
        self.session.spent.data
    }

    /// Test data that the next slice needs, to be made while another search runs.
    pub fn data_ahead(&self) -> Option<DataAhead<'a>> {
        let Session { device, space, options, .. } = &self.session;
        let wanted = self.judge.is_none() && self.session.is_measured() && self.builders.outstanding() > 0;
        wanted.then_some(DataAhead { device, space, options })
    }

    /// Takes test data that were made ahead.
    pub fn take_data(&mut self, data: Option<Judge>) {
        self.judge = data.or_else(|| self.judge.take());
    }

    /// Worker processes that a candidate took down: what was made in them is gone.
    pub const fn restarts(&self) -> u32 {
        self.session.restarts
    }

    /// Forgets test data: the memory of the device is gone.
    pub fn drop_data(&mut self) {
        self.judge = None;
    }

    /// Its test data are made.
    pub const fn has_data(&self) -> bool {
        self.judge.is_some()
    }

    /// Tries the best plans of the nearest problems first, those that other searches of the run have found as well.
    pub fn start_from_near(&mut self) -> Result<(), TuneError> {
        let near = self.session.near()?;
        self.searcher.start_from(&near);
        Ok(())
    }

    /// Gives the candidates of a slice to the builders while another search runs.
    pub fn build_ahead(&mut self, slice: Slice) {
        self.session.slice = slice.after(&self.session.tally);
        if !self.done {
            let room = self.room();
            self.done = self.session.fill(&mut self.builders, self.searcher.as_mut(), room);
        }
    }

    /// Goes on until a slice is spent or nothing is left. What was proposed and not tried waits for the next slice.
    pub fn advance(&mut self, slice: Slice, heard: &mut Heard<'_>) -> Result<Ended, TuneError> {
        self.session.slice = slice.after(&self.session.tally);
        let (quiet, room) = (self.quiet(), self.room());
        if !std::mem::replace(&mut self.told, true) {
            heard(&Event::Started { resumed: self.session.resumed, stale: self.stale });
        }
        self.builders.first();
        let slice_began = Instant::now();
        let mut judge = self.take_judge()?;
        // Nor this. Ranking plans takes a second, data of tensors of gigabytes several, the first compilations one or two. A
        // short budget would end before the second candidate. Who shares a budget keeps it.
        self.session.rests = false;
        self.session.start = if slice.shared { slice_began } else { Instant::now() };
        if slice.shared {
            self.session.under_way = Some(slice_began);
        }
        let ended = loop {
            let session = &mut self.session;
            if session.cancel.is_cancelled() {
                break Ended::Cancelled;
            }
            if session.spent() {
                break Ended::Budget;
            }
            if session.converged() {
                break Ended::Converged;
            }
            if !self.done && (!quiet || (self.waiting.is_empty() && self.builders.outstanding() == 0)) {
                self.done = session.fill(&mut self.builders, self.searcher.as_mut(), room);
            }
            if self.builders.outstanding() == 0 && self.waiting.is_empty() {
                if self.done {
                    break Ended::Exhausted;
                }
                continue;
            }
            if quiet && self.builders.outstanding() > 0 {
                session.say(Phase::Compiling, heard);
                let since = Instant::now();
                Session::take_quiet(&mut self.builders, &mut self.waiting, &mut judge);
                session.spent.waiting += since.elapsed().as_secs_f64();
                continue;
            }
            let since = Instant::now();
            if self.waiting.is_empty() && self.builders.outstanding() > 0 {
                session.say(Phase::Compiling, heard);
            }
            if !quiet && slice.order == Order::Built {
                self.waiting.extend(std::iter::from_fn(|| self.builders.take(Duration::ZERO)));
            }
            // Of all that are built, those that the searcher wanted first go first.
            self.waiting.make_contiguous().sort_by_key(|built| built.number);
            let built = self.waiting.pop_front().or_else(|| self.builders.take(TICK));
            session.spent.waiting += since.elapsed().as_secs_f64();
            let Some(built) = built else { continue };
            session.say(Phase::Timing, heard);
            if let Some(lost) = session.handle(built, self.searcher.as_mut(), &mut judge, heard)?
                && let Err(lost) = session.restart_worker(lost, &mut judge)
            {
                break Ended::DeviceLost(lost);
            }
            let waited = *self.first_tried.get_or_insert_with(Instant::now);
            if session.under_way.is_none() && (waited.elapsed() > FAVOURITES_WAIT || !self.builders.is_building(FAVOURITES)) {
                session.under_way = Some(Instant::now());
            }
        };
        self.judge = Some(judge);
        Ok(ended)
    }

    fn take_judge(&mut self) -> Result<Judge, TuneError> {
        if let Some(judge) = self.judge.take() {
            return Ok(judge);
        }
        let since = Instant::now();
        let judge = Judge::new(self.session.device, self.session.space, self.session.options).map_err(TuneError::Prepare)?;
        self.session.spent.data += since.elapsed().as_secs_f64();
        Ok(judge)
    }

    /// Verifies the best plan thoroughly, and reports.
    pub fn settle(&mut self, mut ended: Ended, heard: &mut Heard<'_>) -> Result<Outcome, TuneError> {
        // A device that is lost cannot be asked again: the outcome says whether its plan was verified before.
        if !matches!(ended, Ended::DeviceLost(_)) && !self.is_settled() {
            self.session.say(Phase::Verifying, heard);
            let mut judge = self.take_judge()?;
            let since = Instant::now();
            if let Some(lost) = self.session.settle(&mut judge, heard)? {
                ended = Ended::DeviceLost(lost);
            }
            self.session.spent.settling += since.elapsed().as_secs_f64();
            self.judge = Some(judge);
        }
        self.session.outcome(ended)
    }

    /// Gives memory of the device back until the next slice.
    pub fn rest(&mut self) {
        self.judge = None;
        let session = &mut self.session;
        session.before = session.seconds();
        session.start = Instant::now();
        session.rests = true;
        if let Some(best) = &mut session.best {
            best.launches = None;
        }
    }
}
