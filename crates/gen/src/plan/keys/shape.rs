//! The shape of a plan: what decides which keys a kernel reads, before a contraction is known.

use super::{Keys, OperandKeys, Side};
use tilewright_ir::Mma;
use tilewright_ir::mma::{FAMILIES, Family, Owner, Reads};

/// `ACP`: threads copy asynchronously.
const ASYNC: u32 = 1;
/// `ACP`: the windows of a result tile are copied once.
pub(in super::super) const HALO: u32 = 4;

/// What decides which keys a product reads, as far as its plan says.
pub(in super::super) struct Shape<'a> {
    pub(super) keys: &'a Keys,
    /// Keys of the operand asked for.
    pub(super) own: &'a OperandKeys,
    pub(super) family: &'static Family,
    /// Stages of shared memory have transaction barriers.
    pub(super) pipeline: bool,
    /// Tiles lie in panels.
    pub(super) panels: bool,
}

impl<'a> Shape<'a> {
    pub(in super::super) fn new(keys: &'a Keys, side: Side) -> Shape<'a> {
        let (family, own) = (keys.family(), keys.of(side));
        Shape { keys, own, family, pipeline: keys.has_pipeline(), panels: keys.has_panels() }
    }
    pub(super) fn reads(&self, reads: Reads) -> bool {
        self.family.reads == reads
    }
    /// Threads load or copy the operand in vectors of their own. Windows of a whole result tile (`ACP4`) are copied in a way of their own.
    pub(super) fn copied_by_threads(&self) -> bool {
        self.own.copy != HALO && (!self.pipeline || self.own.copy == ASYNC)
    }
    /// Waves stage whole rows, which choose their own vectors; atomic additions go element by element.
    pub(super) fn stages_rows(&self) -> bool {
        self.keys.staged == 1 && !(self.keys.splits > 1 && self.keys.split_sum == 0)
    }
    pub(super) fn stores_vectors(&self) -> bool {
        let staged = self.family.owner != Owner::Thread && self.keys.staged == 1;
        !staged && (self.keys.splits == 1 || self.keys.split_sum != 0)
    }
    /// Where to store is a question only under three conditions. There are fetched tiles, room to store them into while others
    /// are read, and waves that both store and multiply.
    pub(super) fn stores_fetched(&self) -> bool {
        let keys = self.keys;
        let ahead = keys.ahead != 0 && keys.buffers != 1 && keys.producers == 0;
        ahead && !self.pipeline && !keys.all_copied()
    }
    /// Fences separate loads ahead from the math, and precede the tail of a carried schedule.
    pub(super) fn fences_separate(&self) -> bool {
        let keys = self.keys;
        let carried = keys.buffers > 1 && keys.fragments_ahead > 0;
        !self.panels && keys.ahead != 0 && (carried || !keys.all_copied())
    }
    /// Fragments ahead and spread stores lay the k-steps out one by one anyway.
    pub(super) fn loops_over_k_steps(&self) -> bool {
        let keys = self.keys;
        let spread = keys.store_point == 2 && self.stores_fetched();
        let steps = self.family.reads != Reads::Panels && keys.k_tile > Mma::least_step(self.family.unit);
        steps && keys.fragments_ahead == 0 && !spread
    }
}

impl Keys {
    /// What the instructions that `UNI` names have in common.
    pub fn family(&self) -> &'static Family {
        Family::numbered(self.unit).unwrap_or(&FAMILIES[0])
    }
    /// Stages that the math holds: the one it reads, and one more for each k-tile of unfinished instructions.
    pub(crate) fn held_stages(&self) -> u32 {
        1 + self.fragments_ahead.min(self.family().in_flight)
    }
    /// Stages that transaction barriers need at least: producers run as far ahead as there are stages, other waves as far as `PFG` says.
    pub(crate) fn least_stages(&self) -> u32 {
        let ahead = if self.producers > 0 && self.has_pipeline() { 1 } else { self.ahead.max(1) };
        self.held_stages() + ahead
    }
    /// Returns whether both operands are copied asynchronously by threads.
    pub(in super::super) fn all_copied(&self) -> bool {
        [self.a.copy, self.b.copy].iter().all(|copy| matches!(*copy, ASYNC | HALO))
    }
    /// Returns whether transaction barriers signal copies: bulk copies, and copies of producer warps into panels.
    pub(crate) fn has_pipeline(&self) -> bool {
        let written = self.producers > 0 && !self.all_copied();
        self.in_bulk() || written && self.has_panels()
    }
    /// Whether bulk copies bring one of the operands.
    fn in_bulk(&self) -> bool {
        [self.a.copy, self.b.copy].iter().any(|copy| matches!(copy, 2 | 3))
    }
    /// Whether tiles lie in swizzled panels: for units that read nothing else, and where bulk copies bring one of the operands.
    pub(in super::super) fn has_panels(&self) -> bool {
        match self.family().reads {
            Reads::Panels => true,
            Reads::Vectors | Reads::Fragments => self.in_bulk(),
        }
    }
}

impl OperandKeys {
    /// Elements per read from shared memory: `FRW`, or `VEW` where that is 0.
    pub(in super::super) const fn fragment_width(&self) -> u32 {
        match self.read_width {
            0 => self.vector,
            width => width,
        }
    }
}
