//! Judging candidates within a search: test data, timing buffers, and the last word on the winner.

use super::{Best, Heard, Session, device_loss, state_of};
use crate::records::{State, Trial};
use crate::search::build::{Ready, Reject, build};
use crate::search::{Options, TuneError};
use std::collections::HashMap;
use std::sync::Arc;
use tilewright_check::reduce::{Reduced, for_emulator};
use tilewright_check::reference::Samples;
use tilewright_check::run::{Factors, bind};
use tilewright_check::verify::{Case, Depth, Verification, VerifyError, sizes, test_factors};
use tilewright_device::{Buffer, Device, DeviceError, Launch};
use tilewright_gen::plan::{Derived, Plan};
use tilewright_gen::space::Space;
use tilewright_problem::Extents;
use tilewright_problem::contraction::Contraction;

/// Candidates that may fail a thorough look before the search gives up; this many times as many may fail already a quick one.
const SECOND_LOOKS: usize = 12;

/// Verifies and prepares timing for the candidates of one search.
pub(in crate::search) struct Judge {
    device: Arc<dyn Device>,
    space: Space,
    seed: u64,
    timing: Factors,
    emulated: bool,
    /// Data of the problem itself; made when first needed.
    case: Option<Case>,
    /// Data of reduced problems, by key.
    reduced: HashMap<String, Case>,
    workspace: Option<Buffer>,
}

impl Judge {
    pub fn new(device: &Arc<dyn Device>, space: &Space, options: &Options) -> Result<Judge, VerifyError> {
        let emulated = !device.info().is_measured();
        let mut judge = Judge {
            device: device.clone(),
            space: space.clone(),
            seed: options.seed,
            timing: options.factors,
            emulated,
            case: None,
            reduced: HashMap::new(),
            workspace: None,
        };
        if !emulated {
            judge.case(Depth::Quick)?;
        }
        Ok(judge)
    }

    /// As [`Judge::new`], also with what a thorough look needs.
    pub fn thorough(device: &Arc<dyn Device>, space: &Space, options: &Options) -> Result<Judge, VerifyError> {
        let mut judge = Judge::new(device, space, options)?;
        if !judge.emulated {
            judge.case(Depth::Thorough)?.make_integers()?;
        }
        Ok(judge)
    }

    /// Makes the data anew: the memory of the device is gone.
    pub fn renew(&mut self) -> Result<(), VerifyError> {
        (self.case, self.workspace) = (None, None);
        self.reduced.clear();
        if !self.emulated {
            self.case(Depth::Quick)?;
        }
        Ok(())
    }

    /// Data of the whole problem, with a beta too where that is looked at.
    fn case(&mut self, depth: Depth) -> Result<&Case, VerifyError> {
        let case = match self.case.take() {
            Some(case) => case,
            None => {
                let factors = test_factors(self.seed, false);
                Case::new(&self.device, self.space.problem(), self.seed, factors, Samples::default())?
            }
        };
        let case = self.case.insert(case);
        if depth == Depth::Thorough {
            case.also_with(test_factors(self.seed, true))?;
        }
        Ok(case)
    }

    /// Workspace of at least so many bytes, kept between candidates.
    fn workspace(&mut self, bytes: u64) -> Result<Option<Buffer>, DeviceError> {
        if bytes == 0 {
            return Ok(None);
        }
        if self.workspace.as_ref().is_none_or(|w| w.bytes() < bytes) {
            self.workspace = None;
            self.workspace = Some(self.device.alloc(bytes)?);
        }
        Ok(self.workspace.clone())
    }

    /// Launches of a candidate for timing.
    pub fn launches(&mut self, ready: &Ready) -> Result<Vec<Launch>, VerifyError> {
        let workspace = self.workspace(ready.program.workspace_bytes)?;
        let timing = self.timing;
        let buffers = self.case(Depth::Quick)?.buffers(workspace);
        let contraction = self.space.contraction(&ready.plan);
        Ok(bind(&ready.program, &ready.compiled, contraction, &buffers, timing, &contraction.extents())?)
    }

    /// The smaller problem on which a candidate is verified, where the problem itself is too large for the device.
    fn reduced_problem(&self, plan: &Plan, spec: &Derived) -> Option<Reduced> {
        if self.emulated { for_emulator(&self.space, plan, spec) } else { None }
    }

    /// Runs a candidate on test data and judges the result; a thorough look is one without and with a beta.
    pub fn verify(&mut self, ready: &Ready, depth: Depth) -> Result<Verification, VerifyError> {
        let repeatable = ready.spec.repeatable();
        if let Some(reduced) = self.reduced_problem(&ready.plan, &ready.spec) {
            return self.verify_reduced(reduced, depth, repeatable);
        }
        let contraction = self.space.contraction(&ready.plan).clone();
        let verdict = verdict(self.case(depth)?, ready, &contraction, depth, repeatable)?;
        let case = |at| {
            let factors = test_factors(self.seed, false);
            Case::at(&self.device, self.space.problem(), at, self.seed, factors, Samples::default())
        };
        self.at_sizes(ready, &self.space, verdict, depth, repeatable, case)
    }

    fn verify_reduced(&mut self, reduced: Reduced, depth: Depth, repeatable: bool) -> Result<Verification, VerifyError> {
        let key = format!("{} {}", reduced.space.problem().key(), reduced.compact.is_some());
        let factors = test_factors(self.seed, false);
        let mut case = match self.reduced.remove(&key) {
            Some(case) => case,
            None => Case::reduced(&self.device, &reduced, None, self.seed, factors, Samples::default())?,
        };
        if depth == Depth::Thorough {
            case.also_with(test_factors(self.seed, true))?;
        }
        // Candidates of many shapes each have their own: keep a few.
        if self.reduced.len() >= 8 {
            self.reduced.clear();
        }
        let case = self.reduced.entry(key).insert_entry(case);
        // Of this candidate: others on the same problem have plans of their own.
        let Reduced { space, plan, .. } = &reduced;
        match build(self.device.as_ref(), space, plan) {
            Ok(small) => {
                let verdict = verdict(case.get(), &small, space.contraction(plan), depth, repeatable)?;
                let case = |at| Case::reduced(&self.device, &reduced, Some(at), self.seed, factors, Samples::default());
                self.at_sizes(&small, space, verdict, depth, repeatable, case)
            }
            Err(reject) => {
                let place = space.problem().key();
                Ok(Verification::failed(format!("on the reduced problem {place}: {}", reject.reason)))
            }
        }
    }

    /// Where extents are known only at launch: the verdict on the largest, and with a thorough look those on several others.
    fn at_sizes(
        &self,
        ready: &Ready,
        space: &Space,
        mut verdict: Verification,
        depth: Depth,
        repeatable: bool,
        case: impl Fn(Extents) -> Result<Case, VerifyError>,
    ) -> Result<Verification, VerifyError> {
        if depth == Depth::Quick || !verdict.passed {
            return Ok(verdict);
        }
        let contraction = space.contraction(&ready.plan);
        for at in sizes(contraction, &ready.spec) {
            let mut case = case(at)?;
            case.also_with(test_factors(self.seed, true))?;
            let again = case.verify(&ready.program, &ready.compiled, contraction, depth, repeatable)?;
            verdict = verdict.and(again.at(at));
        }
        Ok(verdict)
    }
}

/// Where a plan was verified on less than the problem itself: the reduced problem, and what of the whole one did not run.
pub(super) fn reduced_for(device: &dyn Device, space: &Space, plan: &Plan) -> Option<String> {
    if device.info().is_measured() {
        return None;
    }
    let spec = space.resolve(plan).ok()?.spec;
    for_emulator(space, plan, &spec).map(|reduced| reduced.title())
}

/// The verdict on a candidate. One that read operands which an earlier candidate had overwritten is judged anew.
fn verdict(
    case: &Case,
    ready: &Ready,
    contraction: &Contraction,
    depth: Depth,
    repeatable: bool,
) -> Result<Verification, VerifyError> {
    let verdict = case.verify(&ready.program, &ready.compiled, contraction, depth, repeatable)?;
    if verdict.passed || !case.restore(&ready.program)? {
        return Ok(verdict);
    }
    case.verify(&ready.program, &ready.compiled, contraction, depth, repeatable)
}

/// What a look at a candidate for winner found.
enum Look {
    /// Right, thoroughly looked at, with and without beta; the largest error.
    Passed(Option<f64>),
    /// Not the winner. `early` says that already a quick look failed.
    Failed { state: State, reason: String, max_error: Option<f64>, early: bool },
    /// The device cannot be used any more.
    Lost { state: State, reason: String },
}

impl Session<'_> {
    /// The last word: only a plan that was looked at thoroughly, with and without beta, wins. A plan that fails is recorded, and
    /// the next fastest takes its place if it passes. After [`SECOND_LOOKS`] failures only plans with a thorough look in the
    /// records are taken. Gives what lost the device.
    pub(super) fn settle(&mut self, judge: &mut Judge, heard: &mut Heard<'_>) -> Result<Option<String>, TuneError> {
        let (mut looks, mut early_failures, mut lost) = (0, 0, None);
        for mut candidate in self.candidates() {
            let mut timed = candidate.timed;
            // A recorded plan may be illegal under this session's constraint.
            if candidate.ready.is_none() && self.space.resolve(&timed.plan).is_err() {
                continue;
            }
            if timed.verified == Some(Depth::Thorough) {
                self.best = Some(candidate);
                break;
            }
            // Who asks for an end waits for one look at most.
            let impatient = self.cancel.is_cancelled() && looks + early_failures > 0;
            if lost.is_some() || impatient || looks >= SECOND_LOOKS || early_failures >= SECOND_LOOKS * SECOND_LOOKS {
                continue;
            }
            let text = timed.plan.to_string();
            self.begin(&text)?;
            let (state, reason, max_error) = match self.look(judge, &mut candidate) {
                Look::Passed(max_error) => {
                    (timed.verified, timed.max_error) = (Some(Depth::Thorough), max_error);
                    self.record_depth(&Trial {
                        verified: timed.verified,
                        max_error,
                        ..Trial::timed(&text, timed.time_us, self.kind())
                    })?;
                    self.best = Some(Best { timed, ..candidate });
                    break;
                }
                Look::Failed { state, reason, max_error, early } => {
                    looks += usize::from(!early);
                    early_failures += usize::from(early);
                    (state, reason, max_error)
                }
                Look::Lost { state, reason } => {
                    looks += 1;
                    lost = self.restart_worker(reason.clone(), judge).err();
                    (state, reason, None)
                }
            };
            tracing::warn!("{text} failed its last verification: {reason}");
            self.discard(timed.plan, Trial { max_error, ..Trial::unmeasured(&text, state, &reason) }, heard)?;
        }
        Ok(lost)
    }

    /// Plans that may win, in the order in which they are looked at: the best so far, then the other timed plans, fastest first.
    fn candidates(&mut self) -> impl Iterator<Item = Best> + use<> {
        let best = self.best.take();
        let first = best.as_ref().map(|b| b.timed.plan);
        let mut others = self.timed.clone();
        others.retain(|t| Some(t.plan) != first);
        others.sort_by(|x, y| x.time_us.total_cmp(&y.time_us));
        best.into_iter().chain(others.into_iter().map(Best::recorded))
    }

    /// Records a candidate that did not stand its last verification, and forgets its time.
    fn discard(&mut self, plan: Plan, trial: Trial, heard: &mut Heard<'_>) -> Result<(), TuneError> {
        self.record(&trial)?;
        self.timed.retain(|t| t.plan != plan);
        self.history.retain(|step| step.plan != plan);
        self.tally.ended(trial.state);
        self.report_trial(plan, trial, false, heard);
        Ok(())
    }

    /// Looks at a candidate thoroughly, quickly first where that was not done.
    fn look(&self, judge: &mut Judge, candidate: &mut Best) -> Look {
        let ready =
            match candidate.ready.take().map_or_else(|| build(self.device.as_ref(), self.space, &candidate.timed.plan), Ok) {
                Ok(ready) => candidate.ready.insert(ready),
                Err(Reject { state, reason }) => return Look::Failed { state, reason, max_error: None, early: true },
            };
        let mut max_error = None::<f64>;
        for depth in [Depth::Quick, Depth::Thorough].into_iter().filter(|depth| Some(*depth) > candidate.timed.verified) {
            let early = depth == Depth::Quick;
            match judge.verify(ready, depth) {
                Ok(v) if v.passed => max_error = Some(max_error.map_or(v.max_error, |e| e.max(v.max_error))),
                Ok(v) => {
                    let max_error = v.finite_error();
                    let reason = v.reason.unwrap_or_else(|| "wrong result".into());
                    return Look::Failed { state: State::Wrong, reason, max_error, early };
                }
                Err(e) => {
                    let (state, reason) = (state_of(&e), e.to_string());
                    return match device_loss(&e) {
                        Some(_) => Look::Lost { state, reason },
                        None => Look::Failed { state, reason, max_error: None, early },
                    };
                }
            }
        }
        Look::Passed(max_error)
    }
}
