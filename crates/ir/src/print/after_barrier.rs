//! Conditions that must not join a barrier: a condition that is the first statement after a barrier.
//!
//! PoCL makes loops over work-items of the code between barriers. It has to find the branches that all work-items take in the
//! same direction. PoCL 3.1 (`ImplicitConditionalBarriers`) ends its search at a barrier's block that ends in a condition. It
//! then puts a barrier of its own into the following branch, and lets one work-item decide for all. It searches only from
//! barriers that may not be reached: those in a loop that may not run, or in a branch. A condition whose operands are computed
//! before the loop leaves no statement between barrier and branch. A dialect may therefore insert a statement there
//! (`Dialect::barrier_separator`).

use crate::{BarrierScope, Base, Kernel, Stmt};

/// Where the printer stands.
#[derive(Default)]
pub(super) struct AfterBarrier {
    /// Loops and branches around it that may not run.
    pub unsure: usize,
    /// The last statement that a compiler cannot move was a barrier.
    pub barrier: bool,
}

impl AfterBarrier {
    /// True if the statement is a condition directly after a barrier that may not be reached.
    pub fn joins(&self, kernel: &Kernel, s: &Stmt) -> bool {
        self.barrier
            && self.unsure > 0
            && match s {
                Stmt::If { .. } => true,
                Stmt::For { .. } => !runs(kernel, s),
                Stmt::Store { guard, .. } | Stmt::Atomic { guard, .. } | Stmt::Load { guard, .. } => guard.is_some(),
                _ => false,
            }
    }

    /// Takes note of a statement that was printed: what reads no shared memory and writes no memory may move over barriers.
    pub fn note(&mut self, s: &Stmt) {
        self.barrier = match s {
            Stmt::Barrier(scope) => *scope != BarrierScope::Wave,
            Stmt::Comment(_) | Stmt::Let(..) | Stmt::Declare(..) | Stmt::Assign(..) => self.barrier,
            Stmt::PlaceCursor(..) | Stmt::AdvanceCursor(..) | Stmt::For { .. } => self.barrier,
            Stmt::Load { mem, guard: None, .. } => self.barrier && !matches!(mem.base, Base::Shared(_)),
            _ => false,
        };
    }
}

/// True for a loop that runs at least once in every launch.
pub(super) fn runs(kernel: &Kernel, s: &Stmt) -> bool {
    let Stmt::For { start, end, .. } = s else { return false };
    matches!((kernel.as_int(*start), kernel.as_int(*end)), (Some(start), Some(end)) if start < end)
}
