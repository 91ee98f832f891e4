//! Plans worth a look before anything is known whose work-groups copy the windows of a whole result tile once (`ACP4`).

use tilewright_gen::plan::{Keys, OperandKeys, Transport};
use tilewright_gen::space::Space;
use tilewright_ir::ASYNC_COPY_BYTES;
use tilewright_ir::mma::FAMILIES;
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, ROW};

/// Tilings with all columns, or 64 of them, in each wave, so that rows are copied once. Empty where rows are no windows, or where
/// the device or the types have no instruction that reads windows. They need not be legal.
pub(super) fn seeds(space: &Space, form: u32, c: &Contraction) -> Vec<Keys> {
    let features = &space.target().features;
    let Some(family) = FAMILIES.iter().find(|family| Transport::reads_halos(family)) else { return Vec::new() };
    let available = family.unit.available(features) && features.async_copy;
    let Some(row) = c.instruction(family.unit).filter(|row| available && row.takes(features) && row.a.elements > 1) else {
        return Vec::new();
    };
    // Channels under a tap are neighbours, and taps overlap.
    let dims = if c.a.view.is_affine_box().is_some() { None } else { c.a.view.dims() };
    let channels = dims.and_then(|dims| dims.digits.iter().find(|digit| digit.axis == COL && digit.div == 1).map(|d| d.extent));
    let channels = channels.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    if channels == 0 || !channels.is_multiple_of(row.step) || !c.k.is_multiple_of(channels.into()) {
        return Vec::new();
    }
    let taps = u32::try_from(c.k / u64::from(channels)).unwrap_or(u32::MAX);
    // Without padding the chunks of lines are permuted, where lines are a power of two.
    let pad = u32::from(!channels.is_power_of_two());
    let base = Keys {
        a: OperandKeys { copy: 4, pad, ..OperandKeys::default() },
        unit: family.number,
        form,
        predicate: 1,
        staged: 1,
        split_sum: u32::from(!space.env().allow_atomics),
        order: 1,
        skew: 9,
        unroll_k: 1,
        ..Keys::default()
    };
    let columns = u32::try_from(c.n.div_ceil(family.block.columns.into())).unwrap_or(u32::MAX).min(8);
    let mut plans = Vec::new();
    for [waves, rows] in TILES {
        let shape = Keys { a: OperandKeys { micro: rows, ..base.a }, threads: 32 * waves, ..base };
        for k_tile in [1, 3, taps].into_iter().filter(|n| taps.is_multiple_of(*n)).map(|n| n.saturating_mul(channels)) {
            for filter in filters(&c.b) {
                let b = OperandKeys { micro: columns, ..filter };
                for [ahead, fragments_ahead] in STAGES {
                    plans.push(Keys { b, k_tile, ahead, buffers: ahead + 1, fragments_ahead, ..shape });
                }
            }
        }
    }
    plans
}

/// Waves, and rows of instructions of each.
const TILES: [[u32; 2]; 9] = [[4, 1], [4, 2], [4, 3], [4, 4], [8, 1], [8, 2], [8, 3], [16, 1], [16, 2]];

/// K-tiles that copies run ahead, k-steps that fragments are read ahead.
const STAGES: [[u32; 2]; 4] = [[1, 0], [1, 1], [2, 0], [2, 1]];

/// The keys of B in these plans: in place, in vectors along its neighbours where copies can be, and from a padded copy.
fn filters(b: &Tensor) -> [OperandKeys; 2] {
    let bytes = b.scalar.bytes();
    let widest = (ASYNC_COPY_BYTES[2] / bytes).max(1);
    let [along_k, across] = [COL, ROW].map(|axis| b.view.vector_width(axis, widest, b.align / bytes.max(1)));
    let load_width = along_k.max(across);
    let vectors = OperandKeys {
        load_width,
        load_along_k: u32::from(along_k >= across),
        load_rows_first: u32::from(along_k < across),
        copy: u32::from(load_width * bytes >= ASYNC_COPY_BYTES[0]),
        pad: 1,
        ..OperandKeys::default()
    };
    [vectors, OperandKeys { load_width: widest, source: 1, copy: 1, ..vectors }]
}
