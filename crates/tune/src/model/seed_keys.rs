//! Keys of a seed that follow from where operands lie and how many work-groups there are.

use tilewright_gen::plan::{Keys, OperandKeys};
use tilewright_ir::affine::Affine;
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{Bound, COL, ROW, View};

/// True if neighbours in memory are neighbours along k, and not along the rows.
pub(super) fn along_k(view: &View) -> bool {
    // Terms of the other pair of factors are the only ones that do not exist, where there are two.
    let ends = matches!(view.access.bounds.as_slice(), [Bound { value, .. }] if value.terms == Affine::axis(COL).terms);
    let along = if ends { view.access.offset.stride(COL) } else { view.stride(COL) };
    along == Some(1) && view.stride(ROW) != Some(1)
}

/// Load keys of an operand that suit its layout, in vectors of at most so many bytes.
pub(super) fn layout(tensor: &Tensor, widest_bytes: u32) -> OperandKeys {
    // Vectors whose elements fill 16 bytes of shared memory.
    let size = tensor.factor().bytes();
    let widest = (widest_bytes / size).max(1);
    let along_k = along_k(&tensor.view);
    let fragments = (16 / size).max(1);
    OperandKeys {
        load_width: widest.min(fragments.max(8)),
        load_along_k: u32::from(along_k),
        load_rows_first: u32::from(!along_k),
        read_width: fragments,
        vector: fragments.min(8),
        pad: u32::from(along_k),
        interleave_micro: 1,
        interleave_loads: 1,
        ..OperandKeys::default()
    }
}

/// A plan with a number of threads, the skew of their grid, and micro tiles of A and B.
pub(super) fn tiled(plan: Keys, threads: u32, skew: u32, micro: [u32; 2]) -> Keys {
    let (a, b) = (OperandKeys { micro: micro[0], ..plan.a }, OperandKeys { micro: micro[1], ..plan.b });
    Keys { a, b, threads, skew, ..plan }
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
