//! Errors of program generation from a derived plan.

use thiserror::Error;

/// Reason why generation fails. Plans that passed `derive` and `fits` do not cause these errors, apart from bugs.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 64, 64, 4096).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, 4 splits, split-sum=1")?;
/// let derived = space.resolve(&plan)?.spec;
/// // Partial sums of the splits have no room in a workspace of 16 bytes.
/// let error = tilewright_gen::kernel::generate(&derived, 16).unwrap_err();
/// assert!(error.to_string().contains("16"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GenerateError {
    /// More work-groups than a grid dimension holds.
    #[error(
        "the launch needs {groups} work-groups, and a grid dimension has at most {max}; use larger macro tiles or a smaller batch"
    )]
    GridTooLarge {
        /// Needed.
        groups: u128,
        /// Available.
        max: u64,
    },
    /// The workspace budget is too small for one batch entry.
    #[error(
        "one batch entry needs {needed} bytes of workspace and the budget is {budget}; raise the budget, or use WOS0 and ICE1"
    )]
    Workspace {
        /// Bytes for one entry.
        needed: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// Two roles would wait for each other at different barriers: the work-group would hang. A bug of the generator.
    #[error(
        "role `{first}` has {barriers} barriers of the work-group, and role `{second}` has {other}, or under other loops or \
         conditions; this is a bug of the generator: report the plan and use LWV0"
    )]
    Barriers {
        /// One role.
        first: String,
        /// Its barriers.
        barriers: usize,
        /// The other role.
        second: String,
        /// Its barriers.
        other: usize,
    },
}
