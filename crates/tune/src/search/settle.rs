//! Judging candidates within a search: test data, timing buffers, and the last word on the winner.

use super::build::{Ready, build};
use super::session::{Best, Session};
use super::{Options, TuneError};
use crate::records::{State, TimeKind, Trial};
use crate::reduce::for_emulator;
use crate::run::{Factors, bind};
use crate::space::Space;
use crate::verify::{Case, Depth, Verification, VerifyError, sizes, test_factors};
use std::collections::HashMap;
use std::sync::Arc;
use tilewright_device::{Buffer, Device, DeviceError, Launch};
use tilewright_gen::plan::{KernelSpec, Plan, SplitSum};
use tilewright_problem::reference::Samples;

/// Bytes of operands beyond which the last verification of a winner spares copies over the bus: with beta it runs on a
/// reduced problem.
const BULKY: u64 = 256 << 20;
/// Candidates looked at when the best turns out wrong.
const SECOND_LOOKS: usize = 12;

/// Verifies and prepares timing for the candidates of one search.
pub(super) struct Judge {
    device: Arc<dyn Device>,
    space: Space,
    seed: u64,
    timing: Factors,
    emulated: bool,
    /// Data of the problem itself, without and with beta; made when first needed.
    cases: [Option<Case>; 2],
    /// Spaces and data of reduced problems, by key and whether there is a beta.
    reduced: HashMap<(String, bool), (Space, Case)>,
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
            cases: [None, None],
            reduced: HashMap::new(),
            workspace: None,
        };
        if !emulated {
            judge.case(false)?;
        }
        Ok(judge)
    }

    /// Data of the whole problem.
    fn case(&mut self, with_beta: bool) -> Result<&Case, VerifyError> {
        let slot = &mut self.cases[usize::from(with_beta)];
        let case = match slot.take() {
            Some(case) => case,
            None => {
                let factors = test_factors(self.seed, with_beta);
                Case::new(&self.device, self.space.problem(), self.seed, factors, Samples::default())?
            }
        };
        Ok(slot.insert(case))
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
        let buffers = self.case(false)?.buffers(workspace);
        let contraction = self.space.contraction(&ready.plan);
        Ok(bind(&ready.program, &ready.compiled, contraction, &buffers, timing, &contraction.extents())?)
    }

    /// Operands of more bytes than that together.
    fn is_beyond(&self, most: u64) -> bool {
        let c = self.space.contraction(&Plan::default());
        let bytes = [&c.a, &c.b, &c.c].map(|t| t.len.saturating_mul(u64::from(t.scalar.bytes())));
        bytes.iter().fold(0u64, |sum, b| sum.saturating_add(*b)) > most
    }

    /// The smaller problem on which a candidate is verified, where the problem itself is too large for the device.
    fn reduced_space(&self, plan: &Plan, spec: &KernelSpec) -> Option<Space> {
        if self.emulated { for_emulator(&self.space, plan, spec) } else { None }
    }

    /// The smaller problem on which a candidate is verified with a beta, where its data would take minutes to make.
    fn reduced_for_beta(&self, plan: &Plan, spec: &KernelSpec) -> Option<Space> {
        if self.is_beyond(BULKY) { for_emulator(&self.space, plan, spec) } else { None }
    }

    /// Where a plan was verified on less than the problem itself: the key of the reduced problem, and what of the verification it
    /// was used for.
    pub fn reduced_for(&self, plan: &Plan) -> Option<String> {
        let spec = self.space.resolve(plan).ok()?.spec;
        if let Some(space) = self.reduced_space(plan, &spec) {
            return Some(space.problem().key());
        }
        let space = self.reduced_for_beta(plan, &spec)?;
        let whole = if self.is_beyond(4 * BULKY) { "quickly" } else { "thoroughly" };
        Some(format!("{} with a beta; the problem itself {whole}, without one", space.problem().key()))
    }

    /// Runs a candidate on test data and judges the result.
    pub fn verify(&mut self, ready: &Ready, depth: Depth, with_beta: bool) -> Result<Verification, VerifyError> {
        let repeatable = ready.spec.tiling.split_k.ways <= 1 || ready.spec.epilogue.split_sum != SplitSum::Atomic;
        if let Some(space) = self.reduced_space(&ready.plan, &ready.spec) {
            return self.verify_reduced(ready, space, depth, with_beta, repeatable);
        }
        if with_beta && let Some(space) = self.reduced_for_beta(&ready.plan, &ready.spec) {
            return self.verify_reduced(ready, space, depth, with_beta, repeatable);
        }
        // Without beta the whole problem runs thoroughly all the same, unless even that takes seconds.
        let depth = if self.is_beyond(4 * BULKY) { Depth::Quick } else { depth };
        let contraction = self.space.contraction(&ready.plan).clone();
        let verdict = self.case(with_beta)?.verify(&ready.program, &ready.compiled, &contraction, depth, repeatable)?;
        self.at_sizes(ready, &self.space, verdict, depth, with_beta, repeatable)
    }

    /// Where extents are known only at launch: the verdict on the largest, and with a thorough look those on several others.
    fn at_sizes(
        &self,
        ready: &Ready,
        space: &Space,
        mut verdict: Verification,
        depth: Depth,
        with_beta: bool,
        repeatable: bool,
    ) -> Result<Verification, VerifyError> {
        if depth == Depth::Quick || !verdict.passed {
            return Ok(verdict);
        }
        let contraction = space.contraction(&ready.plan);
        for at in sizes(contraction, &ready.spec) {
            let factors = test_factors(self.seed, with_beta);
            let case = Case::at(&self.device, space.problem(), at, self.seed, factors, Samples::default())?;
            verdict = verdict.and(case.verify(&ready.program, &ready.compiled, contraction, depth, repeatable)?.at(at));
        }
        Ok(verdict)
    }

    fn verify_reduced(
        &mut self,
        ready: &Ready,
        space: Space,
        depth: Depth,
        with_beta: bool,
        repeatable: bool,
    ) -> Result<Verification, VerifyError> {
        let key = (space.problem().key(), with_beta);
        if !self.reduced.contains_key(&key) {
            let factors = test_factors(self.seed, with_beta);
            let case = Case::new(&self.device, space.problem(), self.seed, factors, Samples::default())?;
            // Candidates of many shapes each have their own: keep a few.
            if self.reduced.len() >= 8 {
                self.reduced.clear();
            }
            self.reduced.insert(key.clone(), (space, case));
        }
        let Some((space, case)) = self.reduced.get(&key) else {
            return Err(VerifyError::Problem(tilewright_problem::ProblemError::Text { text: key.0, reason: "lost".into() }));
        };
        match build(self.device.as_ref(), space, &ready.plan) {
            Ok(small) => {
                let contraction = space.contraction(&ready.plan);
                let verdict = case.verify(&small.program, &small.compiled, contraction, depth, repeatable)?;
                self.at_sizes(&small, space, verdict, depth, with_beta, repeatable)
            }
            Err(reject) => Ok(Verification {
                passed: false,
                max_error: f64::INFINITY,
                checked: 0,
                race: false,
                reason: Some(format!("on the reduced problem {}: {}", key.0, reject.reason)),
            }),
        }
    }
}

impl Session<'_> {
    /// The last word: the winner is verified thoroughly, with and without beta. One that fails is recorded as wrong, and the
    /// next fastest takes its place if it is right.
    pub(super) fn settle(&mut self, judge: &mut Judge) -> Result<(), TuneError> {
        for _ in 0..SECOND_LOOKS {
            let Some(best) = self.best.take() else { return Ok(()) };
            let Some(ready) = &best.ready else {
                // From the records: thoroughly verified when it was found.
                self.best = Some(best);
                return Ok(());
            };
            let plain = judge.verify(ready, Depth::Thorough, false);
            let verdict = plain.and_then(|plain| Ok(plain.and(judge.verify(ready, Depth::Thorough, true)?)));
            let (reason, lost) = match verdict {
                Ok(v) if v.passed => {
                    self.best = Some(Best { max_error: Some(v.max_error), ..best });
                    return Ok(());
                }
                Ok(v) => (v.reason.unwrap_or_else(|| "wrong result".into()), false),
                Err(e) => (e.to_string(), e.device().is_some_and(DeviceError::is_fatal)),
            };
            tracing::warn!("the best plan {} failed its last verification: {reason}", best.plan);
            self.record(&Trial::unmeasured(&best.plan.to_string(), State::Wrong, &reason))?;
            self.tally.wrong += 1;
            self.timed.retain(|(plan, _)| *plan != best.plan);
            if lost {
                return Ok(());
            }
            self.best = self.next_best(judge, best.kind)?;
        }
        Ok(())
    }

    /// The fastest timed plan that verifies.
    fn next_best(&mut self, judge: &mut Judge, kind: TimeKind) -> Result<Option<Best>, TuneError> {
        self.timed.sort_by(|x, y| x.1.total_cmp(&y.1));
        for (plan, time_us) in self.timed.clone().into_iter().take(SECOND_LOOKS) {
            let Ok(ready) = build(self.device.as_ref(), self.space, &plan) else { continue };
            match judge.verify(&ready, Depth::Quick, false) {
                Ok(v) if v.passed => {
                    let max_error = Some(v.max_error);
                    let trial = Trial { verified: true, max_error, ..Trial::timed(&plan.to_string(), time_us, kind) };
                    self.record(&trial)?;
                    return Ok(Some(Best { plan, time_us, kind, max_error, ready: Some(ready), launches: None }));
                }
                Ok(v) => {
                    let reason = v.reason.unwrap_or_else(|| "wrong result".into());
                    self.record(&Trial::unmeasured(&plan.to_string(), State::Wrong, &reason))?;
                    self.timed.retain(|(p, _)| *p != plan);
                }
                Err(e) if e.device().is_some_and(DeviceError::is_fatal) => return Ok(None),
                Err(_) => {}
            }
        }
        Ok(None)
    }
}
