//! What a context keeps of a plan: its program, compiled for its device.

use std::sync::Arc;
use tilewright_device::Compiled;
use tilewright_gen::plan::Plan;
use tilewright_gen::program::Program;
use tilewright_problem::contraction::Contraction;

/// Alignments, in bytes, of the first elements of A, B and C that a program was made for; `None`: the problem's own.
pub(crate) type Starts = Option<[u32; 3]>;

/// What names a program of a context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReadyKey {
    pub problem: String,
    pub plan: String,
    pub starts: Starts,
    /// The plan may add with atomics.
    pub atomics: bool,
    /// The text of an edited source.
    pub source: Option<Arc<str>>,
}

/// A compiled program.
pub(crate) struct Ready {
    pub plan: Plan,
    pub contraction: Contraction,
    pub program: Program,
    pub compiled: Vec<Arc<Compiled>>,
}
