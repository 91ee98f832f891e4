//! Why no program can be made of a derived plan.

use thiserror::Error;
use tilewright_problem::contraction::Operand;

/// Why no program can be made. Plans that passed `derive` and `fits` do not meet these.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GenerateError {
    /// More work-groups than a grid dimension holds.
    #[error(
        "the launch needs {groups} work-groups, more than the {max} a grid dimension holds; use larger macro tiles or a smaller batch"
    )]
    GridTooLarge {
        /// Needed.
        groups: u128,
        /// Available.
        max: u64,
    },
    /// The workspace budget does not hold what one batch entry needs.
    #[error(
        "one batch entry needs {needed} bytes of workspace and the budget is {budget}; raise the workspace or choose WOS0 and SKS0"
    )]
    Workspace {
        /// Bytes for one entry.
        needed: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// An operand is no box that bulk copies move.
    #[error("{operand:?} is not what bulk copies move: {why}; choose WOS1 or UNI0")]
    Bulk {
        /// Which.
        operand: Operand,
        /// What it lacks.
        why: String,
    },
    /// Two roles would wait for each other at different barriers: the work-group would hang. A bug of the generator.
    #[error(
        "role `{first}` meets {meets} barriers of the work-group as written, role `{second}` {other}, or under other loops or \
         conditions; this is a bug of the generator, report the plan and use LWV0"
    )]
    Barriers {
        /// One role.
        first: String,
        /// Its barriers.
        meets: usize,
        /// The other role.
        second: String,
        /// Its barriers.
        other: usize,
    },
}
