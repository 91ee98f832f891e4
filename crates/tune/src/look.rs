//! A look at a plan before its result is first used on a device.
//!
//! # What runs
//!
//! A quick verification of the plan, once without and once with beta. The first elements of the operands lie at addresses of just
//! the alignments that the plan is for. A problem within the [`Effort`] runs itself. Of a larger one a smaller problem of the
//! same kind runs:
//!
//! - the same plan, so the same tiles, instructions, copies, pipeline and epilogue;
//! - the same types, layouts, epilogue and remainders. Extents lose whole tiles, and leading dimensions keep their remainder by
//!   64 elements, so that edges and widths of accesses stay as they are;
//! - enough tiles and k-tiles, as far as the effort admits. Each buffer of the pipeline is used three times, and each persistent
//!   work-group takes a second tile. An emulator runs fewer persistent work-groups.
//!
//! Extents that are known only at launch are run at the largest and at 1.
//!
//! # What it takes
//!
//! On a GPU a second beyond compiling, and 64 MiB of operands with their guards. That is enforced by work, not by a clock: whatever else runs on the
//! device must fail no plan. A plan whose smallest problem takes more than [`LIMIT`] is refused. An emulator takes a few million multiply-adds, or those
//! of its few tiles where a tile is larger.
//!
//! # What it does not see
//!
//! Offsets of 64 bits, errors that only many tiles or long sums show, and races that do not happen in one run. The thorough
//! verification of a search is for these.

use crate::records::{Look, State};
use crate::search::state_of;
use std::borrow::Cow;
use std::sync::Arc;
use tilewright_check::reduce::{Effort, Reduced, bytes, flop, within};
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Verification, VerifyError, sizes, test_factors};
use tilewright_device::{Device, DeviceError, DeviceKind};
use tilewright_gen::plan::{Derived, Plan, generic};
use tilewright_gen::program::Program;
use tilewright_gen::space::Space;
use tilewright_problem::{Conv, Extents, Gemm, Problem, Role};

/// Bytes of A, B and C together.
const BYTES: u64 = 64 << 20;
/// Elements after which alignments repeat: 256 bytes of numbers of 4 bits.
const ALIGNED: u64 = 512;
/// The most that a run of a look takes on a GPU. There are four runs, or eight of a plan that fails. A plan of 200 GFLOP/s, a
/// thousandth of a GPU's rate, takes less than a second for four. The reference takes a tenth of one for its [`Samples`].
pub const LIMIT: Cost = Cost { flop: 4e10, bytes: 1 << 30 };
/// Decides the test data.
const SEED: u64 = 30;

/// What a look may take on a device, and how many multiply-adds of the reference.
fn effort(kind: DeviceKind) -> (Effort, Samples) {
    let of = |flop: f64, most: f64, persistent: bool| Effort { flop, most, bytes: BYTES, persistent };
    match kind {
        DeviceKind::Emulated => (of(8e6, 3.2e7, false), Samples::Budget(1 << 22)),
        DeviceKind::Cpu => (of(1e8, 4e8, false), Samples::Budget(1 << 24)),
        DeviceKind::Gpu | DeviceKind::Accelerator => (of(1e9, 2e10, true), Samples::Budget(1 << 25)),
    }
}

/// True if an error says nothing of the plan: the device, its worker process or memory cannot be had.
fn is_of_device(e: &DeviceError) -> bool {
    matches!(
        e,
        DeviceError::Missing { .. }
            | DeviceError::NoSuchDevice { .. }
            | DeviceError::OutOfMemory { .. }
            | DeviceError::NoWorker { .. }
            | DeviceError::Poisoned { .. }
            | DeviceError::Io { .. }
    )
}

/// Looks at a plan of a space on a device: a worker process's where a crash is possible.
///
/// # Errors
/// Where the device, its worker process or memory for the test data cannot be had. A plan that fails is no error.
pub fn look(device: &Arc<dyn Device>, space: &Space, plan: &Plan) -> Result<Look, VerifyError> {
    let found = verify(device, &near_the_start(space, plan), plan);
    let (state, reason) = match found {
        Ok(Ok(v)) if v.passed => (State::Ok, None),
        Ok(Ok(v)) => (State::Wrong, Some(v.reason.unwrap_or_else(|| "wrong result".into()))),
        Ok(Err(refused)) => (State::Refused, Some(refused)),
        Err(e) if e.device().is_some_and(is_of_device) => return Err(e),
        Err(e) => (state_of(&e), Some(e.to_string())),
    };
    Ok(Look { plan: plan.to_string(), state, reason })
}

/// What a run of a look takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Floating-point operations, tiles counted whole.
    pub flop: f64,
    /// Bytes of A, B and C together.
    pub bytes: u64,
}

impl Cost {
    /// Of the problem that a look at a plan runs on such a device.
    ///
    /// # Errors
    /// Why the plan does not apply.
    pub fn of(space: &Space, plan: &Plan, kind: DeviceKind) -> Result<Cost, String> {
        Ok(Subject::new(&near_the_start(space, plan), plan, &effort(kind).0)?.cost)
    }

    /// Why a look does not run what takes so much, on such a device.
    fn refusal(self, kind: DeviceKind) -> Option<String> {
        let is_bound = matches!(kind, DeviceKind::Gpu | DeviceKind::Accelerator);
        let Cost { flop, bytes } = self;
        (is_bound && (flop > LIMIT.flop || bytes > LIMIT.bytes)).then(|| {
            let (most, room) = (LIMIT.flop, LIMIT.bytes);
            format!("a look would take {flop:.1e} operations and {bytes} bytes, at most {most:.0e} and {room} are allowed")
        })
    }
}

/// A plan on the problem that is run.
struct Subject {
    /// The smaller problem, where the problem itself is beyond the effort.
    reduced: Option<Reduced>,
    spec: Derived<'static>,
    program: Program,
    cost: Cost,
}

impl Subject {
    fn new(space: &Space, plan: &Plan, effort: &Effort) -> Result<Subject, String> {
        let spec = space.resolve(plan).map_err(|refusal| refusal.to_string())?.spec;
        let reduced = within(space, plan, &spec, effort);
        let (space, plan) = reduced.as_ref().map_or((space, plan), |reduced| (&reduced.space, &reduced.plan));
        let resolved = space.resolve(plan).map_err(|refusal| refusal.to_string())?;
        let program = resolved.generate(space.env().workspace_bytes).map_err(|e| e.to_string())?;
        let spec = resolved.spec.into_owned();
        let cost = Cost { flop: flop(&spec), bytes: bytes(space, plan) };
        Ok(Subject { reduced, spec, program, cost })
    }
}

/// The space of the same problem whose operands begin early in their buffers. Memory before an operand's first element is the caller's, so a look need
/// not have it; alignments stay.
fn near_the_start<'a>(space: &'a Space, plan: &Plan) -> Cow<'a, Space> {
    let mut problem = space.problem().clone();
    match &mut problem {
        Problem::Gemm(gemm) => [&mut gemm.a, &mut gemm.b, &mut gemm.c].into_iter().for_each(|matrix| matrix.offset %= ALIGNED),
        Problem::Conv(_) => {}
        Problem::Reduce(reduce) => reduce.offset %= ALIGNED,
    }
    let near = (problem != *space.problem()).then(|| space.of(&problem).ok()).flatten();
    near.filter(|near| near.resolve(plan).is_ok()).map_or(Cow::Borrowed(space), Cow::Owned)
}

/// The verdict of the runs, or why the plan does not apply.
fn verify(device: &Arc<dyn Device>, space: &Space, plan: &Plan) -> Result<Result<Verification, String>, VerifyError> {
    let kind = device.info().kind;
    let (effort, samples) = effort(kind);
    let Subject { reduced, spec, program, cost } = match Subject::new(space, plan, &effort) {
        Ok(subject) => subject,
        Err(refused) => return Ok(Err(refused)),
    };
    if let Some(refused) = cost.refusal(kind) {
        return Ok(Err(refused));
    }
    let (space, plan) = reduced.as_ref().map_or((space, plan), |reduced| (&reduced.space, &reduced.plan));
    let compiled = compile(device.as_ref(), &program)?;
    let contraction = space.contraction(plan);
    let starts = space.starts().map(|starts| starts.map(u64::from));
    let repeatable = spec.repeatable();
    let glance = |at: Option<Extents>| {
        let problem = at.map_or_else(|| Ok(space.problem().clone()), |at| space.problem().at(at))?;
        let mut case = Case::placed(device, &problem, SEED, test_factors(SEED, false), samples, starts)?.launched_at(at);
        case.also_with(test_factors(SEED, true))?;
        case.glance(&program, &compiled, contraction, repeatable)
    };
    let mut verdict = glance(None)?;
    if let Some(at) = sizes(contraction, &spec).first().filter(|_| verdict.passed) {
        verdict = verdict.and(glance(Some(*at))?.at(*at));
    }
    let title = |reason: String| match &reduced {
        Some(reduced) => format!("on the smaller problem {}: {reason}", reduced.space.problem().key()),
        None => reason,
    };
    Ok(Ok(Verification { reason: verdict.reason.map(title), ..verdict }))
}

/// The space in which a plan is looked at. The scalar kernel, the last fallback, is the same for all problems of a kind with the
/// same types. It is looked at on a small problem of these types, once for a device.
pub fn subject<'a>(space: &'a Space, plan: &Plan) -> Cow<'a, Space> {
    let is_scalar = *plan == generic(space.contraction(&Plan::default()));
    let small = is_scalar.then(|| small(space.problem())).flatten().and_then(|small| space.of(&small).ok());
    small.filter(|small| small.resolve(plan).is_ok()).map_or(Cow::Borrowed(space), Cow::Owned)
}

/// Whether a problem has memories beside operands and workspace.
fn reads_more(problem: &Problem) -> bool {
    problem.memories().any(|memory| !matches!(memory.role, Role::A | Role::B | Role::C | Role::Workspace))
}

/// A small problem of the same kind and types. `None` where a problem computes more than a product: it stands for itself.
fn small(problem: &Problem) -> Option<Problem> {
    match problem {
        Problem::Gemm(g) => {
            if g.drop_c || reads_more(problem) {
                return None;
            }
            let plain = Gemm::new(g.dtype, 132, 68, 40).order(g.order).build().ok()?;
            let (complex, b_dtype, math, out_dtype) = (g.complex, g.b_dtype, g.math, g.out_dtype);
            let typed = Gemm { complex, b_dtype, math, out_dtype, workspace: g.workspace, ..plain };
            typed.validate().is_ok().then_some(Problem::Gemm(typed))
        }
        Problem::Conv(c) => {
            let more = c.drop_c || c.activation.is_some() || reads_more(problem);
            let (input, three, one) = (vec![9; c.dims()], vec![3; c.dims()], vec![1; c.dims()]);
            let plain = Conv::new(c.dtype, 2, 5, 7, &input, &three).pad(&one, &one).direction(c.direction).layout(c.layout);
            let typed = plain.math(c.math).out_dtype(c.out_dtype).workspace(c.workspace).build().ok()?;
            (!more).then_some(Problem::Conv(typed))
        }
        Problem::Reduce(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_more_than_the_limit_is_refused_on_a_gpu() {
        let Cost { flop, bytes } = LIMIT;
        assert_eq!(LIMIT.refusal(DeviceKind::Gpu), None);
        for cost in [Cost { flop: 1.1 * flop, bytes }, Cost { flop, bytes: bytes + 1 }] {
            let refusal = cost.refusal(DeviceKind::Gpu).expect("a refusal");
            assert!(refusal.contains("4e10 and 1073741824 are allowed"), "{refusal}");
            // What takes a processor long harms no other.
            assert_eq!([DeviceKind::Cpu, DeviceKind::Emulated].map(|kind| cost.refusal(kind)), [None, None]);
        }
    }
}
