//! Several problems tuned under one budget, such as the layers of a model.

use crate::{Context, Error, Operation};
use tilewright_tune::search::{
    self, Audience, Cancel, Ended, Event, Options as SearchOptions, Outcome, RivalTime, SharedBudget, Standing, TuneError,
};

/// A problem of [`Context::tune_all`].
///
/// ```
/// use tilewright::{Context, Gemm, Options, RecordsAt, Scalar, Wanted};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let layer = context.gemm(Gemm::new(Scalar::F32, 16, 16, 16))?;
/// // A model calls it 12 times, and its library takes 40 us.
/// let wanted = Wanted { calls: 12.0, rival_us: Some(40.0), ..Wanted::new(&layer) };
/// assert_eq!(wanted.options.budget, tilewright::Budget::default());
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The problem.
    pub operation: &'a Operation,
    /// How often it is computed: the weight of its time.
    pub calls: f64,
    /// Microseconds of a rival, such as a library, that computes it unless a plan is faster.
    pub rival_us: Option<f64>,
    /// How it is searched. Its own budget ends its search, with a common budget as well.
    pub options: SearchOptions,
}

impl<'a> Wanted<'a> {
    /// An operation that is computed once, without a rival and a limit of its own.
    pub fn new(operation: &'a Operation) -> Wanted<'a> {
        let options = SearchOptions { budget: search::Budget::default(), ..SearchOptions::default() };
        Wanted { operation, calls: 1.0, rival_us: None, options }
    }
}

/// What came of [`Context::tune_all`].
///
/// ```
/// use tilewright::{Budget, Cancel, Context, Gemm, Options, RecordsAt, Scalar, Wanted};
/// # use tilewright::{Audience, Event, Outcome, RivalTime, Standing, TuneError};
///
/// # struct Silent;
/// # impl Audience for Silent {
/// #     fn hear(&mut self, _: usize, _: &Event, _: &Standing) {}
/// #     fn settled(&mut self, _: usize, _: &Result<Outcome, TuneError>, _: &Standing) -> Vec<RivalTime> {
/// #         Vec::new()
/// #     }
/// # }
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let layers = [context.gemm(Gemm::new(Scalar::F32, 4, 4, 4))?, context.gemm(Gemm::new(Scalar::F32, 8, 4, 4))?];
/// let mut wanted: Vec<Wanted<'_>> = layers.iter().map(Wanted::new).collect();
/// wanted.iter_mut().for_each(|w| w.options.budget = Budget::trials(2));
/// let campaign = context.tune_all(&wanted, None, &Cancel::default(), &mut Silent)?;
/// assert!(campaign.outcomes.iter().flatten().all(Result::is_ok));
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Debug)]
pub struct Campaign {
    /// In the order of the problems; `None` for one that was not reached.
    pub outcomes: Vec<Option<Result<Outcome, Error>>>,
    /// Why it ended.
    pub ended: Ended,
}

/// Lets operations run with what was found before the audience hears of it.
struct Keeping<'a, 'h> {
    wanted: &'a [Wanted<'a>],
    audience: &'h mut dyn Audience,
}

impl Audience for Keeping<'_, '_> {
    fn hear(&mut self, number: usize, event: &Event, standing: &Standing) {
        self.audience.hear(number, event, standing);
    }
    fn settled(&mut self, number: usize, result: &Result<Outcome, TuneError>, standing: &Standing) -> Vec<RivalTime> {
        if let (Ok(outcome), Some(wanted)) = (result, self.wanted.get(number)) {
            wanted.operation.found(outcome);
        }
        self.audience.settled(number, result, standing)
    }
}

impl Context {
    /// Searches the fastest verified plans of several operations of this context, records every trial, and runs with the best from now on.
    ///
    /// With a common budget, the model's best picks of every operation are compiled on all cores, timed and verified first. The rest goes to the
    /// operations whose searches may save most time. Without one, each is searched with its own budget, in order.
    ///
    /// # Errors
    /// [`Error::Tune`] where the device cannot be prepared, [`Error::Records`]. An operation without a plan is no error of the others.
    pub fn tune_all(
        &self,
        wanted: &[Wanted<'_>],
        common: Option<SharedBudget>,
        cancel: &Cancel,
        audience: &mut dyn Audience,
    ) -> Result<Campaign, Error> {
        let mut tasks = Vec::with_capacity(wanted.len());
        for Wanted { operation, calls, rival_us, options } in wanted {
            let options = operation.search_options(options)?;
            tasks.push(search::Task { space: operation.space(), calls: *calls, rival_us: *rival_us, options });
        }
        let device = self.inner.trial_device()?;
        let mut keeping = Keeping { wanted, audience };
        let found = search::tune_all(&device, &tasks, Some(&self.inner.records), common, cancel, &mut keeping)?;
        let explained = |(result, wanted): (Option<Result<Outcome, TuneError>>, &Wanted<'_>)| {
            result.map(|result| result.map_err(|e| wanted.operation.explained(e)))
        };
        let outcomes = found.outcomes.into_iter().zip(wanted).map(explained).collect();
        Ok(Campaign { outcomes, ended: found.ended })
    }
}
