//! What the derivation of an operand starts from: the operand itself, and what both operands of a kernel share.

use super::keys::{Keys, Side};
use tilewright_ir::Mma;
use tilewright_ir::mma::{Family, Reads};
use tilewright_problem::FactorParts;
use tilewright_problem::contraction::Tensor;

/// What both operands share.
pub(super) struct Frame {
    pub k: u64,
    /// Sums begin and end at any term.
    pub any_term: bool,
    pub k_tile: u32,
    pub load_threads: u32,
    pub stagger: bool,
    pub predicate: bool,
    /// Tiles come to shared memory; false where there is no product.
    pub loads: bool,
    /// What computes.
    pub family: &'static Family,
    /// The instruction.
    pub row: Option<&'static Mma>,
    /// Parts that operands are split into.
    pub split: Option<FactorParts>,
    /// Length of the runs along k in which lanes hold and convert the weights of operand A; `None` without weights in registers.
    pub runs: Option<u32>,
}

impl Frame {
    /// Tiles of an operand in a stage of shared memory, where the unit reads it through `fragment_sets` sets of fragments. There
    /// is one for each part, if copies split the elements.
    ///
    /// Copies split what no thread has in registers on its way to the unit, and what becomes narrower numbers.
    pub fn shared_parts(&self, fragment_sets: u32) -> u32 {
        match (self.split, self.family.reads) {
            (None, _) => 1,
            (Some(split), _) if !split.as_wide() => split.parts,
            (Some(split), Reads::Panels) if fragment_sets == 0 => split.parts,
            (Some(_), _) => 1,
        }
    }
}

/// One operand of a product.
#[derive(Clone, Copy)]
pub(super) struct OperandFrame<'a> {
    pub side: Side,
    pub tensor: &'a Tensor,
    /// Rows of the result along it; the most of a dynamic extent.
    pub extent: u64,
    /// The number of rows is known only at launch.
    pub run_time: bool,
    /// The number of batch entries is known only at launch.
    pub entries_run_time: bool,
    /// Owners of micro tiles along its rows.
    pub owners: u32,
    /// Work-groups that share each of its tiles.
    pub shares: u32,
}

/// Rows of an operand that one owner of a micro tile computes, and that a work-group does.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub micro: u32,
    pub macro_tile: u32,
}

/// Sets of fragments in registers through which instructions that read panels read operand A instead (`RGA`).
pub(super) fn fragment_sets(plan: &Keys, side: Side) -> u32 {
    match (plan.family().reads, side) {
        (Reads::Panels, Side::A) => plan.register_sets,
        _ => 0,
    }
}
