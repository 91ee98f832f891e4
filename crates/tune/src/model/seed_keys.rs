//! Keys of a seed that follow from where operands lie and how many work-groups there are.

use tilewright_gen::plan::{Chiral, Key, Keys};
use tilewright_problem::contraction::{Contraction, Operand};
use tilewright_problem::view::{COL, ROW, View};

/// True if neighbours in memory are neighbours along k, and not along the rows.
pub(super) fn along_k(view: &View) -> bool {
    view.stride(COL) == Some(1) && view.stride(ROW) != Some(1)
}

/// Load keys of one operand that suit its layout.
pub(super) fn layout(
    plan: Keys,
    side: fn(Chiral) -> Key,
    contraction: &Contraction,
    operand: Operand,
    widest_bytes: u32,
) -> Keys {
    let tensor = contraction.tensor(operand);
    // Vectors whose elements fill 16 bytes of shared memory.
    let size = tensor.factor().bytes();
    let widest = (widest_bytes / size).max(1);
    let along_k = along_k(&tensor.view);
    let fragments = (16 / size).max(1);
    plan.with(side(Chiral::Glw), widest.min(fragments.max(8)))
        .with(side(Chiral::Plu), u32::from(along_k))
        .with(side(Chiral::Lor), u32::from(!along_k))
        .with(side(Chiral::Frw), fragments)
        .with(side(Chiral::Vew), fragments.min(8))
        .with(side(Chiral::Pad), u32::from(along_k))
        .with(side(Chiral::Miw), 1)
        .with(side(Chiral::Liw), 1)
}

/// Numbers of k splits that bring a launch of `groups` work-groups to about `wanted`, sums of at least `deep` k-tiles each.
pub(super) fn splits(groups: u64, wanted: u64, k_tiles: u64) -> Vec<u32> {
    let mut ways = vec![1];
    if groups < wanted {
        let full = (wanted / groups.max(1)).max(1);
        for w in [full, full * 2, full / 2, full * 4] {
            let w = w.min(k_tiles / 4).min(256);
            if w > 1 && !ways.contains(&(w as u32)) {
                ways.push(w as u32);
            }
        }
    }
    ways
}
