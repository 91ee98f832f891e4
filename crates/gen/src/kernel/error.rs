//! Errors of program generation from a derived plan.

use thiserror::Error;

/// Reason why generation fails. Plans that passed `derive` and `fits` do not cause these errors, apart from bugs.
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
