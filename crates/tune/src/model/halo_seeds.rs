//! Plans worth a look before anything is known whose work-groups copy the windows of a whole result tile once (`ACP4`).

use tilewright_gen::plan::{Chiral, Common, Key, Keys, Transport};
use tilewright_gen::space::Space;
use tilewright_ir::ASYNC_COPY_BYTES;
use tilewright_ir::mma::FAMILIES;
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, ROW};

/// Tilings with all columns, or 64 of them, in each wave, so that rows are copied once; empty where rows are no windows, or the device or the
/// types have no instruction that reads them. They need not be legal.
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
    let base = Keys::default()
        .with_each([(Common::Uni, family.number), (Common::Bim, form), (Common::Edg, 1), (Common::Cst, 1)])
        .with_each([(Common::Sks, u32::from(!space.env().allow_atomics)), (Common::Gal, 1)])
        .with(Key::A(Chiral::Acp), 4)
        .with_both(Chiral::Pad, 1)
        // Without padding the chunks of lines are permuted, where lines are a power of two.
        .with(Key::A(Chiral::Pad), u32::from(!channels.is_power_of_two()));
    let filters = filters(&base, &c.b);
    let columns = u32::try_from(c.n.div_ceil(family.block.columns.into())).unwrap_or(u32::MAX).min(8);
    let mut plans = Vec::new();
    for (waves, rows) in [(4, 1), (4, 2), (4, 3), (4, 4), (8, 1), (8, 2), (8, 3), (16, 1), (16, 2)] {
        let shape = base.with_each([(Common::Mac, 32 * waves), (Common::Skw, 9)]).with(Key::A(Chiral::Mic), rows);
        let shape = shape.with(Key::B(Chiral::Mic), columns);
        for depth in [1, 3, taps].into_iter().filter(|n| taps.is_multiple_of(*n)).map(|n| n.saturating_mul(channels)) {
            for filter in &filters {
                for (ahead, fragments) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
                    plans.push(
                        keys(&shape, filter)
                            .with_each([(Common::Unr, depth), (Common::Pfg, ahead), (Common::Buf, ahead + 1)])
                            .with_each([(Common::Fra, fragments), (Common::Ukl, 1)]),
                    );
                }
            }
        }
    }
    plans
}

/// The keys of B in these plans: in place, in vectors along its neighbours where copies can be, and from a padded copy.
fn filters(base: &Keys, b: &Tensor) -> Vec<Keys> {
    let bytes = b.scalar.bytes();
    let [along_k, across] =
        [COL, ROW].map(|axis| b.view.vector_width(axis, (ASYNC_COPY_BYTES[2] / bytes).max(1), b.align / bytes.max(1)));
    let width = along_k.max(across);
    let vectors = base
        .with(Key::B(Chiral::Glw), width)
        .with(Key::B(Chiral::Plu), u32::from(along_k >= across))
        .with(Key::B(Chiral::Lor), u32::from(along_k < across));
    let copied = u32::from(width * bytes >= ASYNC_COPY_BYTES[0]);
    let padded = vectors.with(Key::B(Chiral::Glw), (ASYNC_COPY_BYTES[2] / bytes).max(1)).with(Key::B(Chiral::Wos), 1);
    vec![vectors.with(Key::B(Chiral::Acp), copied), padded.with(Key::B(Chiral::Acp), 1)]
}

/// A plan with the B of another.
fn keys(plan: &Keys, of: &Keys) -> Keys {
    [Chiral::Glw, Chiral::Plu, Chiral::Lor, Chiral::Acp, Chiral::Wos]
        .into_iter()
        .map(Key::B)
        .fold(*plan, |p, key| p.with(key, of.get(key)))
}
