//! One plan tried without a search: verified against the f64 reference, timed on random data.

use crate::{Error, Operation, Plan};
use tilewright_check::reduce::for_emulator;
use tilewright_check::reference::Samples;
use tilewright_check::run::Factors;
use tilewright_check::verify::{Case, Depth, Verification, VerifyError, sizes};
use tilewright_device::Timing;
use tilewright_gen::plan::Split;
use tilewright_problem::Extents;
use tilewright_tune::model::Picker;
use tilewright_tune::records::TimeKind;

/// Times of one plan.
///
/// ```
/// use tilewright::{Context, Factors, Gemm, Options, RecordsAt, Scalar, TimeKind};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let operation = context.gemm(Gemm::new(Scalar::F32, 64, 64, 64))?;
/// let times = operation.time(&operation.plan()?, Factors::default(), 10)?;
/// // A GPU gives ten measured times; the emulator gives one time of the cost model.
/// assert_eq!((times.kind, times.samples.len()), (TimeKind::Modelled, 1));
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// Microseconds of all kernels of the program, one per repeat, ascending. One modelled time on an emulator.
    pub samples: Vec<f64>,
    /// Measured or modelled.
    pub kind: TimeKind,
}

/// What a verification looked at, and what it found.
///
/// ```
/// use tilewright::{Context, Depth, Factors, Gemm, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let operation = context.gemm(Gemm::new(Scalar::F32, 8, 8, 8))?;
/// let verified = operation.verify(&operation.plan()?, 1, Factors::default(), Depth::Thorough, false)?;
/// assert!(verified.verification.passed);
/// // The whole problem is small enough for the emulator.
/// assert_eq!(verified.on, None);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// How the plan did.
    pub verification: Verification,
    /// The smaller problem of the same kind that was run instead, where an emulator would take too long.
    pub on: Option<String>,
}

impl Operation {
    /// Runs a plan on random operands and compares its result with the f64 reference. A wrong result is no error but a
    /// [`Verification`] that did not pass. An emulator runs a problem of more than
    /// [`EMULATED_FLOP`](tilewright_check::reduce::EMULATED_FLOP) operations reduced to a few tiles, unless `whole`. Where extents are
    /// known only at launch, the same kernels run at the largest and at several others ([`sizes`]).
    ///
    /// # Errors
    /// [`Error::Refused`] for a plan that does not fit, [`Error::Device`] where it could not run.
    pub fn verify(&self, plan: &Plan, seed: u64, factors: Factors, depth: Depth, whole: bool) -> Result<Verified, Error> {
        let spec = self.space().resolve(plan)?.spec;
        if !whole
            && !self.context().info().is_measured()
            && let Some(reduced) = for_emulator(self.space(), plan, &spec)
        {
            let small = self.context().operation(reduced.space.problem().clone())?;
            let case = |at| Case::reduced(self.context().device(), &reduced, at, seed, factors, Samples::default());
            let verification = small.verify_on(&reduced.plan, case, depth)?;
            return Ok(Verified { verification, on: Some(reduced.title()) });
        }
        let (device, problem) = (self.context().device(), self.problem());
        let case = |at: Option<Extents>| match at {
            Some(at) => Case::at(device, problem, at, seed, factors, Samples::default()),
            None => Case::new(device, problem, seed, factors, Samples::default()),
        };
        Ok(Verified { verification: self.verify_on(plan, case, depth)?, on: None })
    }

    /// Verifies a plan on test data of the largest extents, and of others where extents are known only at launch.
    fn verify_on(
        &self,
        plan: &Plan,
        case: impl Fn(Option<Extents>) -> Result<Case, VerifyError>,
        depth: Depth,
    ) -> Result<Verification, Error> {
        let spec = self.space().resolve(plan)?.spec;
        let repeatable = spec.epilogue.split != Split::Atomic;
        let ready = self.ready(plan, None)?;
        let verify = |at| case(at)?.verify(&ready.program, &ready.compiled, &ready.contraction, depth, repeatable);
        let mut verdict = verify(None)?;
        for at in sizes(&ready.contraction, &spec) {
            verdict = verdict.and(verify(Some(at))?.at(at));
        }
        Ok(verdict)
    }

    /// Times a plan on random operands, with cold or warm caches as the context says: one run to warm up, then `repeats`. On an emulator the one time is the
    /// cost model's.
    ///
    /// # Errors
    /// As [`Operation::verify`].
    pub fn time(&self, plan: &Plan, factors: Factors, repeats: u32) -> Result<Times, Error> {
        let context = self.context();
        if !context.info().is_measured() {
            self.space().resolve(plan)?;
            let estimate = Picker::new(self.space()).estimate(plan).unwrap_or_default();
            return Ok(Times { samples: vec![estimate.total_us], kind: TimeKind::Modelled });
        }
        let ready = self.ready(plan, None)?;
        // No element is compared here.
        let case = Case::new(context.device(), self.problem(), 1, factors, Samples::Budget(0))?;
        let workspace = context.workspace(ready.program.workspace_bytes)?;
        let launches = case.bind(&ready.program, &ready.compiled, &ready.contraction, workspace)?;
        let cache = context.inner.options.cache;
        context.device().time(&launches, &Timing { cache, repeats: 1 })?;
        let mut samples = context.device().time(&launches, &Timing { cache, repeats: repeats.max(1) })?;
        samples.sort_by(f64::total_cmp);
        Ok(Times { samples, kind: TimeKind::Measured })
    }
}
