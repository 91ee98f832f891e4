//! Says whether a kernel is well formed and whether a target can run it, before anything is printed or run.

use crate::{Kernel, Target};

/// Why a kernel is refused: which kernel, which statement, and what is wrong there.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("kernel `{kernel}`, {at}: {fault}")]
pub struct Invalid {
    /// Name of the kernel.
    pub kernel: String,
    /// The statement, as a path from the body down (`body[3] for k[1] load`).
    pub at: String,
    /// What is wrong.
    pub fault: Fault,
}

/// What can be wrong with a kernel.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// A rule of the kernel language is broken: a bug of whoever built the kernel, on every target.
    #[error("{0}")]
    Malformed(String),
    /// The kernel needs an ability this target lacks; it may run elsewhere.
    #[error("{target} has no {feature}: {remedy}")]
    Missing {
        /// Architecture that lacks it.
        target: String,
        /// The ability.
        feature: &'static str,
        /// What to use instead.
        remedy: &'static str,
    },
    /// The kernel exceeds a hard limit of this target; it may run elsewhere.
    #[error("{what}: {used} is over the {limit} that {target} has")]
    Limit {
        /// Architecture whose limit it is.
        target: String,
        /// What is counted.
        what: &'static str,
        /// What the kernel uses.
        used: u64,
        /// What the target has.
        limit: u64,
    },
}

impl Fault {
    /// True if the kernel is fine as such and only this target cannot run it.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Fault::Missing { .. } | Fault::Limit { .. })
    }
}

/// Checks a kernel against the rules of the language and the abilities and limits of a target.
///
/// # Errors
/// The first violation found, in statement order.
pub fn validate(kernel: &Kernel, target: &Target) -> Result<(), Invalid> {
    let _ = target;
    Err(Invalid {
        kernel: kernel.name.clone(),
        at: "body".into(),
        fault: Fault::Malformed("the validator is not built yet".into()),
    })
}
