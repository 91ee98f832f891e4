//! What the library can refuse, in one type, and the plans that it passed over.

use tilewright_check::run::BindError;
use tilewright_check::verify::VerifyError;
use tilewright_device::DeviceError;
use tilewright_gen::kernel::GenerateError;
use tilewright_gen::plan::{GrammarError, Plan, Refusal};
use tilewright_ir::{Invalid, Scalar};
use tilewright_problem::ProblemError;
use tilewright_tune::records::RecordsError;
use tilewright_tune::search::TuneError;

/// Why an operation cannot be planned, tuned or run. Every message names the input and, where there is one, the remedy.
///
/// ```
/// use tilewright::{Context, Error, Gemm, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let operation = context.gemm(Gemm::new(Scalar::F32, 2, 2, 2))?;
/// let (a, mut c) = (context.upload(&[1.0f32; 4])?, context.alloc::<f64>(4)?);
/// let error = operation.run(&a, &a, &mut c, 1.0, 0.0).unwrap_err();
/// assert!(matches!(error, Error::Dtype { operand: "C", have: Scalar::F64, need: Scalar::F32 }));
/// assert!(error.to_string().ends_with("upload it as f32, or change the problem's dtype"));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem is impossible.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A plan's text is malformed.
    #[error("plan {0}")]
    Plan(#[from] GrammarError),
    /// The plan does not suit the problem or the device.
    #[error("the plan does not fit: {0}")]
    Refused(#[from] Refusal),
    /// No plan was found that satisfies the constraints.
    #[error("no legal plan {}for {problem} on {device}{}: {reason}{}", found(*.proven), satisfying(.constraint), hint(.nearest, .constraint))]
    NoPlan {
        /// The problem's key.
        problem: Box<str>,
        /// Device id.
        device: Box<str>,
        /// The constraint's text; empty without one.
        constraint: Box<str>,
        /// There is none: every key that could lift the refusal is demanded. Else none was found, which need not mean that.
        proven: bool,
        /// What refuses the otherwise best plan under the constraint.
        reason: Box<str>,
        /// A legal plan near that one.
        nearest: Option<Box<Plan>>,
    },
    /// A plan computed a wrong result, crashed or hung when it was looked at before its first use, and no other may take its place.
    #[error(
        "{problem} on {device}: plan {plan} failed its look before the first use: {reason}; tune the problem, or leave the plan out"
    )]
    Look {
        /// The problem's key.
        problem: Box<str>,
        /// Device id.
        device: Box<str>,
        /// The plan's text.
        plan: Box<str>,
        /// What was wrong.
        reason: Box<str>,
    },
    /// The kernels cannot be generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The target cannot run a kernel.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// An edited source cannot be used.
    #[error("the edited source: {0}")]
    Source(#[from] crate::SourceError),
    /// There is no host code for this.
    #[error("host code of `{name}`: {reason}")]
    Host {
        /// The function's name.
        name: Box<str>,
        /// Why.
        reason: Box<str>,
    },
    /// Buffers do not suit the program.
    #[error(transparent)]
    Bind(BindError),
    /// The device failed or is not there.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The search found nothing, or could not start.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// The records cannot be used.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// An operand's element type is not the problem's.
    #[error("operand {operand} holds {have}, the problem has {need}: upload it as {need}, or change the problem's dtype")]
    Dtype {
        /// Which operand.
        operand: &'static str,
        /// The buffer's.
        have: Scalar,
        /// The problem's.
        need: Scalar,
    },
    /// An operand of complex numbers where the problem has real ones, or the other way round.
    #[error(
        "operand {operand} holds {have}, the problem has {need}: a complex number is a real and an imaginary part side by side, [f32; 2] or [f64; 2]; upload it as {need}, or change the problem"
    )]
    Parts {
        /// Which operand.
        operand: &'static str,
        /// The buffer's elements.
        have: &'static str,
        /// The problem's.
        need: &'static str,
    },
    /// There is no kernel with a main loop to explain.
    #[error("an axis of size 0 leaves no element to read: one kernel writes the operators' identities (see tilewright emit)")]
    NoMainLoop,
    /// An operand in another context's memory.
    #[error(
        "operand {operand} lies in memory of another context: upload it through the context of this operation, or a clone of that"
    )]
    OtherContext {
        /// Which operand.
        operand: &'static str,
    },
    /// An operand that the problem does not have.
    #[error("{what} is given and {problem} has none: ask for it when building the problem, or leave it out")]
    Unwanted {
        /// Which operand.
        what: &'static str,
        /// The problem's key.
        problem: String,
    },
    /// Too few or too many elements.
    #[error("{what}: {need} elements are needed and there are {have}")]
    Length {
        /// What is too short.
        what: String,
        /// Elements there are.
        have: u64,
        /// Elements needed.
        need: u64,
    },
    /// More elements than memory can be addressed for.
    #[error("{elements} elements of {dtype} are more than can be addressed")]
    TooLarge {
        /// Their number.
        elements: u64,
        /// Their type.
        dtype: Scalar,
    },
}

const fn found(proven: bool) -> &'static str {
    if proven { "" } else { "was found " }
}

fn satisfying(constraint: &str) -> String {
    if constraint.is_empty() { String::new() } else { format!(" with `{constraint}`") }
}

fn hint(nearest: &Option<Box<Plan>>, constraint: &str) -> String {
    match nearest {
        Some(plan) => format!("; the nearest plan that fits is {plan}"),
        None if constraint.is_empty() => String::new(),
        None => "; leave out some of its keys".to_string(),
    }
}

impl From<VerifyError> for Error {
    fn from(e: VerifyError) -> Self {
        match e {
            VerifyError::Problem(e) => Error::Problem(e),
            VerifyError::Bind(e) => e.into(),
            VerifyError::Device(e) => Error::Device(e),
        }
    }
}

impl From<BindError> for Error {
    fn from(e: BindError) -> Self {
        match e {
            BindError::Device(e) => Error::Device(e),
            other => Error::Bind(other),
        }
    }
}

/// A plan that is not used because it failed its look.
///
/// ```
/// use tilewright::{Context, Gemm, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let operation = context.gemm(Gemm::new(Scalar::F32, 4, 4, 4))?;
/// operation.prepare()?;
/// for failed in operation.failed_looks() {
///     println!("passed over {}: {}", failed.plan, failed.reason);
/// }
/// assert!(operation.failed_looks().is_empty());
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedLook {
    /// The plan's text form.
    pub plan: String,
    /// What was wrong.
    pub reason: String,
}
