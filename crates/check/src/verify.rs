//! Verification: a program run on known data, its result compared with the f64 reference, everything around it unchanged.
//!
//! Outputs, and the workspace, are poisoned with NaN before every run. Memory around and between tensors must come back bit for
//! bit. With beta = 0 the NaN in C must not leak. An error that moves from one run of the same launches to the next is a race.
//!
//! A thorough look runs twice on random data and once on small integers with exact sums. The bound of random data admits the
//! rounding of long sums, and so a sum that lacks a term. Exact sums show a missing term, and every element is compared. On a GPU
//! the cost is copies between host and device, so none is made that another can replace. C is poisoned on the device. A and B
//! stay there for all factors, and are compared once, after all runs.

mod case;

pub use case::Case;

use crate::run::{BindError, Factors};
use serde::{Deserialize, Serialize};
use tilewright_device::DeviceError;
use tilewright_gen::plan::KernelSpec;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::{Dynamic, Extents, ProblemError};

/// What could not be verified, and why. A wrong result is no error but a [`Verification`] that did not pass.
///
/// ```
/// use tilewright_check::reference::Samples;
/// use tilewright_check::verify::{Case, VerifyError};
/// # use tilewright_device::open;
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::{Factors, Gemm};
///
/// # let device = open("emu")?;
/// // Test data for a complex alpha, which this problem is not made for.
/// let problem = Gemm::new(Scalar::F32, 4, 4, 4).build()?.into();
/// let factors = Factors { alpha_im: 1.0, ..Factors::default() };
/// let error = Case::new(&device, &problem, 1, factors, Samples::default()).err();
/// assert!(matches!(error, Some(VerifyError::Problem(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum VerifyError {
    /// The test data could not be made.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The program does not fit the data's buffers.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl VerifyError {
    /// The device's error, where it is one.
    pub const fn device(&self) -> Option<&DeviceError> {
        match self {
            VerifyError::Device(e) | VerifyError::Bind(BindError::Device(e)) => Some(e),
            _ => None,
        }
    }
}

/// How much is looked at, ascending.
///
/// ```
/// use tilewright_check::verify::Depth;
///
/// // A search looks quickly at each candidate that would win, and thoroughly at the winner.
/// assert!(Depth::Quick < Depth::Thorough);
/// assert_eq!(Depth::Thorough.name(), "thorough");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// One run, of the first factors; the result and the memory around it.
    #[default]
    Quick,
    /// Also:
    ///
    /// - the other factors, if the case has any;
    /// - for each a second run, which must give the same bits unless the plan adds with atomics;
    /// - A, B, bias, residual and the end of the workspace after all of these;
    /// - for each a run on small integers, which must give exact results.
    Thorough,
}

impl Depth {
    /// The word in records: `quick` or `thorough`.
    pub const fn name(self) -> &'static str {
        match self {
            Depth::Quick => "quick",
            Depth::Thorough => "thorough",
        }
    }
}

/// How a program did.
///
/// ```
/// use tilewright_check::verify::Verification;
/// use tilewright_check::random::{Recipe, pair, verify};
/// # use tilewright_device::open;
///
/// # let device = open("emu")?;
/// # let pair = pair(&device.info().target, &Recipe::short_code(), 1).expect("a legal pair");
/// let verdict = verify(&device, &pair)?;
/// assert!(verdict.passed && verdict.checked > 0 && verdict.reason.is_none());
/// // Both runs of a plan must pass.
/// let both = verdict.and(Verification::failed("it hung".into()));
/// assert_eq!((both.passed, both.finite_error(), both.reason.as_deref()), (false, None, Some("it hung")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verification {
    /// Everything looked at was right.
    pub passed: bool,
    /// Greatest error relative to `|alpha| |A||B| + |beta||C|` (and what is added); infinite where an element was NaN or infinite.
    pub max_error: f64,
    /// Result elements compared.
    pub checked: u64,
    /// Results differ from run to run although nothing in the plan allows it.
    pub race: bool,
    /// What was wrong.
    pub reason: Option<String>,
}

impl Verification {
    pub(crate) fn new(max_error: f64, checked: u64, reason: Option<String>) -> Self {
        Verification { passed: reason.is_none(), max_error, checked, race: false, reason }
    }

    /// A program that could not even be run, and why.
    pub fn failed(reason: String) -> Self {
        Verification::new(f64::INFINITY, 0, Some(reason))
    }

    /// The greatest error where it is a number: JSON and records have no infinities.
    pub fn finite_error(&self) -> Option<f64> {
        Some(self.max_error).filter(|e| e.is_finite())
    }

    /// The same, its reason saying at which extents.
    #[must_use]
    pub fn at(self, at: Extents) -> Verification {
        let Extents { g, m, n } = at;
        Verification { reason: self.reason.map(|reason| format!("with batch {g}, m {m}, n {n}: {reason}")), ..self }
    }

    /// Both: passed if both passed, the larger error, the first reason.
    #[must_use]
    pub fn and(self, other: Verification) -> Verification {
        Verification {
            passed: self.passed && other.passed,
            max_error: self.max_error.max(other.max_error),
            checked: self.checked + other.checked,
            race: self.race || other.race,
            reason: self.reason.or(other.reason),
        }
    }
}

/// Extents at which a kernel for extents known only at launch is verified besides the largest. They are 1, extents around a tile
/// (of C, as the plan cuts it) and around a chunk of the batch. Empty where no extent is.
pub fn sizes(contraction: &Contraction, spec: &KernelSpec) -> Vec<Extents> {
    let largest = contraction.extents();
    let (rows, columns) = spec.tiling.macro_tile();
    let Dynamic { g, m, n } = contraction.dynamic();
    let mut all: Vec<Extents> = Vec::new();
    // Smallest and then sizes around tiles, all run-time extents at once: they are cut independently of each other.
    for step in 0..4 {
        let around = |tile: u32| [1, u64::from(tile).saturating_sub(1), tile.into(), u64::from(tile) + 1][step];
        let pick = |is: bool, wanted: u64, most: u64| if is { wanted.clamp(1, most) } else { most };
        let of = Extents {
            m: pick(m, around(rows), largest.m),
            n: pick(n, around(columns), largest.n),
            g: pick(g, [1, 2, largest.g.div_ceil(2), largest.g - 1][step], largest.g),
        };
        if of != largest && !all.contains(&of) {
            all.push(of);
        }
    }
    // And each alone, beside the largest of the others.
    for least in [true, false] {
        let now = |wanted: u64, most: u64| if least { 1 } else { wanted.clamp(1, most.max(1)) };
        let alone = [
            m.then(|| Extents { m: now(u64::from(rows) + 1, largest.m), ..largest }),
            n.then(|| Extents { n: now(u64::from(columns) + 1, largest.n), ..largest }),
            g.then(|| Extents { g: now(largest.g.saturating_sub(1), largest.g), ..largest }),
        ];
        for of in alone.into_iter().flatten() {
            if of != largest && !all.contains(&of) {
                all.push(of);
            }
        }
    }
    all
}

/// Factors for testing, repeatable from a seed: alpha of magnitude 0.5 to 1.5; beta 0, or of magnitude 0.25 to 1.
pub fn test_factors(seed: u64, with_beta: bool) -> Factors {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let mut draw = |low: f64, high: f64| {
        let magnitude = rng.random_range(low..high);
        if rng.random_bool(0.5) { magnitude } else { -magnitude }
    };
    let alpha = draw(0.5, 1.5);
    let beta = draw(0.25, 1.0);
    Factors::real(alpha, if with_beta { beta } else { 0.0 })
}
