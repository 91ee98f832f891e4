//! One problem on one device: plan it, tune it, run it, read its source.

use crate::buffer::{Slice, SliceMut};
use crate::element::type_name;
use crate::emit::Emission;
use crate::operands::Operands;
use crate::{Context, Edited, Element, Error, FailedLook, Prepared, SourceError};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tilewright_check::run::{Alignments, Buffers, absent};
use tilewright_check::verify::VerifyError;
use tilewright_device::Device;
use tilewright_gen::graph::remedies;
use tilewright_gen::plan::{Constraint, Keys, Plan, generic};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{ConvBuilder, Extents, GemmBuilder, PerRole, Problem, ReduceBuilder, Role};
use tilewright_tune::ProblemKey;
use tilewright_tune::model::{Candidate, Picker};
use tilewright_tune::records::DeviceKey;
use tilewright_tune::search::{self, Budget, Cancel, Event, GENERATOR, Outcome, TuneError, device_key};

/// What it may take to verify recorded plans again that do not hold any more, when a plan is first asked for.
const AGAIN_TRIALS: u64 = 4;
const AGAIN_SECONDS: f64 = 10.0;

/// Where an operation's plan comes from.
///
/// ```
/// use tilewright::{Budget, Context, Gemm, Options, Origin, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let operation = context.gemm(Gemm::new(Scalar::F32, 4, 4, 4))?;
/// assert_eq!(operation.choice()?.1, Origin::Picked);
/// operation.tune(Budget::trials(2))?;
/// assert_eq!(operation.choice()?.1, Origin::Tuned);
/// operation.set_plan(&operation.plan()?)?;
/// assert_eq!(operation.choice()?.1.name(), "given");
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The fastest thoroughly verified plan in the records for this problem and device.
    Recorded,
    /// Recorded for this problem and device, but with another driver or another version of this program, by somebody else, or
    /// without a thorough verification. Verified and timed again just now.
    VerifiedAgain,
    /// The cost model's pick, looked at before its first use.
    Picked,
    /// Found by [`Operation::tune`] of this operation.
    Tuned,
    /// Set by the user.
    Given,
    /// Of an edited source.
    Edited,
}

impl Origin {
    /// In a word or three: `recorded`, `recorded, verified again`, `picked`, `tuned`, `given`, `edited`.
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Recorded => "recorded",
            Origin::VerifiedAgain => "recorded, verified again",
            Origin::Picked => "picked",
            Origin::Tuned => "tuned",
            Origin::Given => "given",
            Origin::Edited => "edited",
        }
    }
}

impl Context {
    /// A matrix product on this device.
    ///
    /// # Errors
    /// [`Error::Problem`] if the problem is impossible.
    pub fn gemm(&self, gemm: GemmBuilder) -> Result<Operation, Error> {
        self.operation(gemm.build()?)
    }
    /// A convolution on this device.
    ///
    /// # Errors
    /// [`Error::Problem`] if the problem is impossible.
    pub fn conv(&self, conv: ConvBuilder) -> Result<Operation, Error> {
        self.operation(conv.build()?)
    }
    /// A tensor reduction on this device.
    ///
    /// # Errors
    /// [`Error::Problem`] if the problem is impossible.
    pub fn reduce(&self, reduce: ReduceBuilder) -> Result<Operation, Error> {
        self.operation(reduce.build()?)
    }
    /// Any problem on this device.
    ///
    /// # Errors
    /// [`Error::Problem`] if the problem is impossible.
    pub fn operation(&self, problem: impl Into<Problem>) -> Result<Operation, Error> {
        self.operation_for(problem, &self.info().target)
    }
    /// Any problem, planned for another target than this device: for its plan and its source. This device runs it only where it
    /// can do what that target can.
    ///
    /// # Errors
    /// [`Error::Problem`] if the problem is impossible.
    pub fn operation_for(&self, problem: impl Into<Problem>, target: &Target) -> Result<Operation, Error> {
        let mut problem = problem.into();
        if let Some(most) = self.inner.options.workspace {
            problem.set_workspace(problem.workspace().min(most));
        }
        Operation::new(self.clone(), &problem, target)
    }
    /// The problem of an edited source, run by it: [`Operation::verify`], [`Operation::time`] and [`Operation::run`] take its text for
    /// the plan of its head. Nothing of it is recorded.
    ///
    /// # Errors
    /// [`Error::Source`] where the head does not fit this device or the text its head.
    pub fn edited(&self, source: &Edited) -> Result<Operation, Error> {
        self.edited_for(source, &self.info().target)
    }
    /// As [`Context::edited`], planned for another target than this device, for [`Operation::program`].
    ///
    /// # Errors
    /// As [`Context::edited`].
    pub fn edited_for(&self, source: &Edited, target: &Target) -> Result<Operation, Error> {
        if target.dialect != source.dialect {
            let (written, taken) = (source.dialect, target.dialect);
            return Err(SourceError::Dialect { written, device: self.info().id.clone(), taken }.into());
        }
        let space = Space::new(&source.problem, target)?.with_atomics(source.atomics);
        let operation = Operation::of(self.clone(), space, Some(source.clone()));
        match operation.program(&source.plan) {
            Ok(program) => source.check(&program, target)?,
            Err(Error::Refused(refusal)) => return Err(SourceError::Plan(refusal.to_string()).into()),
            Err(other) => return Err(other),
        }
        operation.keep(&source.plan, Origin::Edited);
        Ok(operation)
    }
}

/// A problem on a context's device.
///
/// ```
/// use tilewright::{Budget, Context, Gemm, Options, Origin, RecordsAt, Scalar, Target};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let operation = context.gemm(Gemm::new(Scalar::F32, 32, 32, 32))?;
/// assert_eq!(operation.choice()?.1, Origin::Picked);
/// let found = operation.tune(Budget::trials(5))?;
/// assert!(found.verified);
/// assert_eq!(operation.choice()?, (found.plan.clone(), Origin::Tuned));
///
/// // The kernels of a plan, for another device.
/// let target = Target::by_arch("sm_80").expect("a known architecture");
/// assert!(operation.source_of(&found.plan, &target)?.contains("__global__"));
/// # Ok::<(), tilewright::Error>(())
/// ```
pub struct Operation {
    context: Context,
    space: Space,
    /// A source that takes the place of the kernels of its plan.
    edited: Option<Edited>,
    chosen: Mutex<Option<(Plan, Origin)>>,
    /// The model's first choices, once asked for.
    picks: OnceLock<Vec<Plan>>,
    /// Plans that failed their look.
    pub(crate) failed: Mutex<Vec<FailedLook>>,
    /// What was prepared, by plan and alignments of the operands: a handful.
    pub(crate) prepared: Mutex<Vec<((Plan, Alignments), Prepared)>>,
}

/// Plans that are looked at for one near another.
const NEAREST: usize = 2000;

impl Operation {
    pub(crate) fn new(context: Context, problem: &Problem, target: &Target) -> Result<Operation, Error> {
        let options = &context.inner.options;
        let space = Space::new(problem, target)?.with_atomics(options.allow_atomics).with_ieee(options.ieee);
        Ok(Operation::of(context, space, None))
    }
    pub(crate) fn of(context: Context, space: Space, edited: Option<Edited>) -> Operation {
        let (chosen, failed, prepared) = (Mutex::new(None), Mutex::default(), Mutex::default());
        Operation { context, space, edited, chosen, picks: OnceLock::new(), failed, prepared }
    }
    /// The edited source's text, where this is its plan.
    pub(crate) fn text_of(&self, plan: &Plan) -> Option<Arc<str>> {
        self.edited.as_ref().filter(|edited| edited.plan == *plan).map(|edited| edited.text.clone())
    }
    /// The same with values demanded of some keys of the plan.
    #[must_use]
    pub fn constrained(self, constraint: &Constraint) -> Operation {
        Operation::of(self.context, self.space.constrained(constraint), self.edited)
    }
    /// The context.
    pub const fn context(&self) -> &Context {
        &self.context
    }
    /// The problem as records know it.
    pub fn key(&self) -> tilewright_tune::ProblemKey {
        tilewright_tune::ProblemKey::of(&self.space)
    }
    /// The problem.
    pub const fn problem(&self) -> &Problem {
        self.space.problem()
    }
    /// The plans in question.
    pub const fn space(&self) -> &Space {
        &self.space
    }

    /// The plan that this operation runs with. The first of these that exists:
    ///
    /// 1. The fastest thoroughly verified plan in the records for this problem and device. A product in the other storage order, on the same
    ///    memory, is the same problem.
    /// 2. The best recorded plan of another driver or version. It is verified and timed again first, which takes seconds, once.
    /// 3. The cost model's pick.
    ///
    /// The choice is made once. [`Operation::tune`] and [`Operation::set_plan`] change it. [`Operation::prepare`] takes the next pick if a plan
    /// that no search verified fails its look.
    ///
    /// # Errors
    /// [`Error::NoPlan`] if none was found that satisfies the constraint; [`Error::Records`].
    pub fn plan(&self) -> Result<Plan, Error> {
        Ok(self.choice()?.0)
    }
    /// The plan with where it comes from.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn choice(&self) -> Result<(Plan, Origin), Error> {
        match self.choice_if(true)? {
            Some(choice) => Ok(choice),
            None => Err(self.no_plan()),
        }
    }
    /// The choice. `None` where it takes a search and `may_search` does not allow one.
    pub(crate) fn choice_if(&self, may_search: bool) -> Result<Option<(Plan, Origin)>, Error> {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        if chosen.is_some() {
            return Ok(*chosen);
        }
        let Some(choice) = self.choose(may_search)? else { return Ok(None) };
        tracing::info!("{} on {}: the plan is {}: {}", self.problem(), self.context.info().id, choice.1.name(), choice.0);
        *chosen = Some(choice);
        Ok(Some(choice))
    }
    /// Chooses anew, unless another plan than this was chosen meanwhile.
    pub(crate) fn pass_over(&self, plan: &Plan) {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        if chosen.is_some_and(|(passed, _)| passed == *plan) {
            *chosen = None;
        }
    }
    fn choose(&self, may_search: bool) -> Result<Option<(Plan, Origin)>, Error> {
        let inner = &self.context.inner;
        // A recorded plan was legal when it was recorded; another constraint or generator may see that otherwise.
        let fits = |p: &Plan| self.space.constraint().allows(p) && self.space.resolve(p).is_ok() && self.may_use(p);
        let recorded = match self.recorded(&self.space)?.filter(fits) {
            Some(plan) => Some(plan),
            None => self.recorded_in_other_order()?.filter(|plan| self.may_use(plan)),
        };
        if let Some(plan) = recorded {
            return Ok(Some((plan, Origin::Recorded)));
        }
        let device = device_key(self.context.info(), inner.options.cache);
        if self.has_candidates(&device)? {
            if !may_search {
                return Ok(None);
            }
            if let Some(plan) = self.verified_again(&device)?.filter(|plan| self.may_use(plan)) {
                return Ok(Some((plan, Origin::VerifiedAgain)));
            }
        }
        let left: Vec<Plan> = self.choices(&device).iter().copied().filter(|plan| self.may_use(plan)).collect();
        if let Some(plan) = search::taken(&*inner.device, &self.space, &left) {
            return Ok(Some((plan, Origin::Picked)));
        }
        let last = self.space.fallback();
        if self.space.constraint().allows(&last) && self.space.resolve(&last).is_ok() && self.may_use(&last) {
            return Ok(Some((last, Origin::Picked)));
        }
        self.whole_constraint().map(Some).map_err(|e| self.last_failed_look().unwrap_or(e))
    }
    /// The model's first choices: those that the records keep of this build, else by ranking plans.
    fn choices(&self, device: &DeviceKey) -> &[Plan] {
        self.picks.get_or_init(|| {
            let free = *self.space.constraint() == Constraint::none() && self.space.target() == &self.context.info().target;
            let (records, key) = (&self.context.inner.records, ProblemKey::of(&self.space));
            if !free {
                return search::choices(&self.space);
            }
            // Picks only save time. An error of the records is reported where a result depends on them.
            let kept = records.picks(&key, device).unwrap_or_default();
            let legal = |text: &String| Plan::parse(text).ok().filter(|plan| self.space.resolve(plan).is_ok());
            if let Some(plans) = kept.iter().map(legal).collect::<Option<Vec<Plan>>>().filter(|plans| !plans.is_empty()) {
                return plans;
            }
            let plans = search::choices(&self.space);
            let texts: Vec<String> = plans.iter().map(Plan::to_string).collect();
            if let Err(e) = records.keep_picks(&key, &self.problem().key(), device, &texts) {
                tracing::debug!("picks of {} are not kept: {e}", self.problem());
            }
            plans
        })
    }
    /// The fastest thoroughly verified plan of a space in the records.
    fn recorded(&self, space: &Space) -> Result<Option<Plan>, Error> {
        let best = self.context.inner.records.best(
            &ProblemKey::of(space),
            &device_key(self.context.info(), self.context.inner.options.cache),
            GENERATOR,
        )?;
        Ok(best.and_then(|t| Plan::parse(&t.plan).ok()))
    }
    /// What the records hold of the same product told in the other storage order, as a plan for this one.
    fn recorded_in_other_order(&self) -> Result<Option<Plan>, Error> {
        match self.space.in_other_order() {
            Some(other) => Ok(self.recorded(&other?)?.and_then(|plan| self.space.from_other_order(&plan))),
            None => Ok(None),
        }
    }
    /// The plans of least modelled time, best first, at most so many: candidates for measuring of one's own.
    pub fn candidates(&self, count: usize) -> Vec<Candidate> {
        Picker::new(&self.space).pick(count)
    }
    /// True if the records hold plans of this problem that were right on this device under other conditions. They were recorded
    /// with another driver or other sources of this program, or stand in somebody else's file.
    fn has_candidates(&self, device: &DeviceKey) -> Result<bool, Error> {
        let here = self.space.target() == &self.context.info().target;
        Ok(here && !self.context.inner.records.candidates(&ProblemKey::of(&self.space), device, 1)?.is_empty())
    }
    /// The best of the recorded candidates. These plans were right and fast here. The driver or the sources of this program have
    /// changed since then, or the search ended before its last verification. Each plan is verified and timed again, and recorded
    /// anew. What records that may not be written hold is verified for this operation alone.
    fn verified_again(&self, device: &DeviceKey) -> Result<Option<Plan>, Error> {
        let inner = &self.context.inner;
        let budget = Budget { seconds: Some(AGAIN_SECONDS), trials: Some(AGAIN_TRIALS) };
        let mut options = search::Options { budget, cache: inner.options.cache, ..search::Options::default() };
        let records = inner.records.is_writable().then_some(&inner.records);
        if records.is_none() {
            let candidates = inner.records.candidates(&ProblemKey::of(&self.space), device, AGAIN_TRIALS as usize)?;
            options.starts.extend(candidates.iter().filter_map(|text| Plan::parse(text).ok()));
        }
        let verified = inner.trial_device().and_then(|device| {
            let nothing = &mut |_: &Event| ();
            Ok(search::tune(&device, &self.space, records, &options, &Cancel::default(), nothing)?)
        });
        match verified {
            Ok(outcome) if outcome.verified => Ok(Some(outcome.plan)),
            Ok(_) | Err(Error::Tune(TuneError::NoPlan { .. })) => Ok(None),
            // Without a worker, or with too little memory beside this process: what the model picks is the plan.
            Err(e @ (Error::Device(_) | Error::Tune(TuneError::Prepare(VerifyError::Device(_))))) => {
                tracing::warn!("{}: recorded plans were not verified again: {e}", self.problem().key());
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
    /// For a failed choice: if the constraint is a whole plan, returns it, so that the caller sees its refusal. Else an error: no plan.
    fn whole_constraint(&self) -> Result<(Plan, Origin), Error> {
        let constraint = self.space.constraint();
        if let Ok(plan) = Plan::parse(&constraint.to_string()) {
            self.space.resolve(&plan)?;
            return Ok((plan, Origin::Given));
        }
        Err(self.no_plan())
    }
    /// Why no plan satisfies the constraint: the refusal of the plan that would be best without it.
    pub(crate) fn no_plan(&self) -> Error {
        let constraint = self.space.constraint();
        let free = self.space.clone().constrained(&Constraint::none());
        let best = Picker::new(&free).pick(1).first().map_or_else(|| generic(free.contraction(&Plan::default())), |c| c.plan);
        let wanted = constraint.apply(&best);
        let (reason, proven) = match free.resolve(&wanted) {
            Ok(_) => ("the search over its other keys ended".to_string(), false),
            // Only these keys could change that.
            Err(refusal) => (refusal.to_string(), remedies(&refusal).into_iter().all(|key| constraint.pins(key))),
        };
        Error::NoPlan {
            problem: self.problem().key().into(),
            device: self.context.info().id.as_str().into(),
            constraint: constraint.to_string().into(),
            proven,
            reason: reason.into(),
            nearest: free.nearest(&wanted, NEAREST).map(Box::new),
        }
    }
    /// A legal plan near one that is not, where the search graph leads to one.
    pub fn nearest(&self, plan: &Keys) -> Option<Plan> {
        self.space.nearest(plan, NEAREST)
    }
    /// Runs with this plan from now on.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not suit the problem or the device; nothing has changed then.
    pub fn set_plan(&self, plan: &Plan) -> Result<(), Error> {
        self.space.resolve(plan)?;
        self.keep(plan, Origin::Given);
        Ok(())
    }
    /// Searches the fastest verified plan, records every trial, and runs with the best from now on. Trials that the records
    /// hold are not repeated.
    ///
    /// # Errors
    /// [`Error::Tune`] if nothing legal was found that ran and was right.
    pub fn tune(&self, budget: Budget) -> Result<Outcome, Error> {
        let options = search::Options { budget, ..search::Options::default() };
        self.tune_with(&options, &Cancel::default(), &mut |_| ())
    }
    /// As [`Operation::tune`] with all options; `cancel` ends it early, `progress` hears of every trial.
    ///
    /// # Errors
    /// As [`Operation::tune`].
    pub fn tune_with(
        &self,
        options: &search::Options,
        cancel: &Cancel,
        progress: &mut dyn FnMut(&Event),
    ) -> Result<Outcome, Error> {
        let inner = &self.context.inner;
        let options = self.search_options(options)?;
        let device = inner.trial_device()?;
        let found = search::tune(&device, &self.space, Some(&inner.records), &options, cancel, progress);
        let outcome = found.map_err(|e| self.explained(e))?;
        self.found(&outcome);
        Ok(outcome)
    }
    /// Options with what this operation and its context add.
    pub(crate) fn search_options(&self, options: &search::Options) -> Result<search::Options, Error> {
        let mut options = search::Options { cache: self.context.inner.options.cache, ..options.clone() };
        options.starts.extend(self.recorded_in_other_order()?);
        Ok(options)
    }
    /// Runs with what a search found, if it is right.
    pub(crate) fn found(&self, outcome: &Outcome) {
        if outcome.verified {
            self.keep(&outcome.plan, Origin::Tuned);
        }
    }
    /// A search's error, which says why there is no plan where nothing could be tried.
    pub(crate) fn explained(&self, e: TuneError) -> Error {
        match e {
            TuneError::NoPlan { trials: 0, .. } => self.no_plan(),
            e => e.into(),
        }
    }
    pub(crate) fn keep(&self, plan: &Plan, origin: Origin) {
        *self.chosen.lock().unwrap_or_else(PoisonError::into_inner) = Some((*plan, origin));
    }

    /// Starts `C = alpha * A * B + beta * C` and returns the plan that runs, without waiting for the result. For a convolution, A is the
    /// input, B the filter and C the output.
    ///
    /// The first run compiles, unless [`Operation::prepare`] did. [`Buffer::download`](crate::Buffer::download) and [`Context::sync`] wait for the result; a
    /// [`Context::mark`] made after this call says when it is there. Operands begin at their slice's offset plus the problem's offset.
    ///
    /// An operand may begin at an address that the plan's wide accesses do not allow. Then the next plan of the fallback order runs.
    ///
    /// # Errors
    /// [`Error::Dtype`], [`Error::Bind`] for operands that are too small, [`Error::OtherContext`]; [`Error::Device`].
    pub fn run<'a, T: Element, U: Element>(
        &self,
        a: impl Into<Slice<'a, T>>,
        b: impl Into<Slice<'a, T>>,
        c: impl Into<SliceMut<'a, U>>,
        alpha: f64,
        beta: f64,
    ) -> Result<Plan, Error> {
        self.run_with(Operands::new(a, b, c).alpha(alpha).beta(beta))
    }
    /// The largest extents of a launch: the problem's own, of a complex one those of the real product that computes it. Where some of them are known only at launch
    /// ([`GemmBuilder::dynamic`](crate::GemmBuilder::dynamic)), smaller ones may be run:
    /// `Operands::new(&a, &b, &mut c).at(operation.extents().with(Extent::M, 17))`.
    pub fn extents(&self) -> Extents {
        self.space.contraction(&Plan::default()).extents()
    }
    /// As [`Operation::run`], with all operands by name: those of a problem with a bias or a residual.
    ///
    /// # Errors
    /// As [`Operation::run`]. [`Error::Bind`] if the problem has a bias or a residual and none is given, or the other way round.
    /// [`Error::Bind`] also for an extent that is 0 or beyond the largest. [`Error::Bind`] also for a smaller extent that the
    /// problem does not declare as known only at launch.
    pub fn run_with<T: Element, U: Element, V: Element>(&self, operands: Operands<'_, T, U, V>) -> Result<Plan, Error> {
        let Operands { a, b, c, others, reductions, factors, at } = operands;
        let problem = self.problem();
        let same =
            |operand, have: Scalar, need: Scalar| if have == need { Ok(()) } else { Err(Error::Dtype { operand, have, need }) };
        let parts = problem.parts();
        let of_parts = |operand, have: Scalar, has: u64, need: Scalar| {
            let [have, need] = [(have, has), (need, parts)].map(|(scalar, parts)| type_name(scalar, parts));
            if has == parts { Ok(()) } else { Err(Error::Parts { operand, have, need }) }
        };
        let dtypes = [("A", (T::SCALAR, T::PARTS), problem.dtype()), ("B", (V::SCALAR, V::PARTS), problem.b_dtype())];
        for (operand, (have, has), need) in dtypes.into_iter().chain([("C", (U::SCALAR, U::PARTS), problem.out_dtype())]) {
            of_parts(operand, have, has, need)?;
            same(operand, have, need)?;
        }
        let unwanted = |what| Err(Error::Unwanted { what, problem: problem.key() });
        if c.is_some() && !problem.keeps_c() {
            return unwanted("memory for C");
        }
        if reductions > problem.reductions().len() {
            return unwanted("memory for so many reductions");
        }
        for (role, memory) in others.given() {
            match problem.memories().find(|has| has.role == role) {
                Some(has) => same(role.words(), memory.scalar, has.scalar)?,
                None => return unwanted(role.words()),
            }
        }
        self.owns([("A", a.buffer.device()), ("B", b.buffer.device())])?;
        self.owns(c.as_ref().map(|c| ("C", c.buffer.device())))?;
        self.owns(others.given().map(|(role, memory)| (role.words(), &memory.device)))?;
        let own = self.offsets();
        // A result that is not stored needs no memory: no kernel touches what stands for it.
        let (memory, start) = match &c {
            Some(c) => (c.buffer.memory(), c.offset),
            None if problem.keeps_c() => return Err(absent(Role::C).into()),
            None => (a.buffer.memory(), a.offset),
        };
        let from = |offset: u64, own: u64| offset.saturating_mul(parts).saturating_add(own);
        let (mut added, mut values) = (PerRole::default(), Vec::new());
        for (role, memory) in others.given() {
            match role {
                Role::Reduction(_) => values.push(memory.memory.clone()),
                _ => added.set(role, Some(memory.memory.clone())),
            }
        }
        let buffers = Buffers {
            a: a.buffer.memory().clone(),
            b: b.buffer.memory().clone(),
            c: memory.clone(),
            added,
            reductions: values,
            workspace: None,
            offsets: [from(a.offset, own[0]), from(b.offset, own[1]), from(start, own[2])],
        };
        let prepared = self.prepare_at(&buffers.alignments(self.space.contraction(&Plan::default())))?;
        prepared.run(buffers, factors, &at.unwrap_or_else(|| prepared.extents()))?;
        Ok(prepared.plan())
    }
    /// Where the problem says that A, B and C begin within their memory, in elements, of complex ones in their parts.
    pub(crate) fn offsets(&self) -> [u64; 3] {
        match self.problem() {
            Problem::Gemm(g) => g.matrices().map(|x| x.offset * g.parts()),
            Problem::Conv(_) => [0; 3],
            Problem::Reduce(r) => [r.offset, 0, 0],
        }
    }

    /// That operands lie in this context's memory: another context, even of the same device, orders its work apart.
    fn owns<'d>(&self, operands: impl IntoIterator<Item = (&'static str, &'d Arc<dyn Device>)>) -> Result<(), Error> {
        let foreign = |(_, device): &(_, &Arc<dyn Device>)| !Arc::ptr_eq(*device, &self.context.inner.device);
        match operands.into_iter().find(foreign) {
            Some((operand, _)) => Err(Error::OtherContext { operand }),
            None => Ok(()),
        }
    }

    /// The plan's kernels as one source file in the device's language, with launch geometry and arguments at its head.
    ///
    /// # Errors
    /// As [`Operation::plan`]; [`Error::Refused`], [`Error::Generate`], [`Error::Invalid`].
    pub fn source(&self) -> Result<String, Error> {
        self.source_of(&self.plan()?, &self.context.info().target)
    }
    /// Any plan's kernels as one source file for any target.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Generate`], [`Error::Invalid`].
    pub fn source_of(&self, plan: &Plan, target: &Target) -> Result<String, Error> {
        if let Some(text) = self.text_of(plan) {
            return Ok(text.to_string());
        }
        let (contraction, program) = self.program_for(plan, None)?;
        let atomics = self.space.env().allow_atomics;
        let emission = Emission { problem: self.problem(), contraction: &contraction, plan, program: &program, target, atomics };
        Ok(emission.source()?)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("problem", &self.problem().key())
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
