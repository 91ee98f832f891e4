//! What the cost model picks: by which unit and copies, whether it compiles for each architecture, and whether it computes right where
//! tensors are too large, too far apart or too odd for random problems.

mod architectures;
mod convolutions;
#[path = "../../../gen/tests/support/inspected.rs"]
mod inspected;
mod known_errors;
mod large_convolutions;
mod large_results;
mod launch_waits;
mod long_reductions;
#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
mod products;
#[path = "../../../gen/tests/support/mod.rs"]
mod support;
mod tensors;
mod wide_offsets;

use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_problem::Problem;
use tilewright_tune::model::{Candidate, Picker};

/// All plans of a problem for an architecture.
fn space(problem: &Problem, arch: &str) -> Space {
    Space::new(problem, &Target::by_arch(arch).unwrap()).unwrap()
}

/// The first pick of a space.
fn picked(space: &Space) -> Candidate {
    Picker::new(space).pick(1).remove(0)
}
