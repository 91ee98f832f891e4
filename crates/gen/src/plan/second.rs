//! A second pair of factors: which plans read it, and the bulk copies of its tiles. The tiles have the layout of the first pair's, so that nothing
//! but copies knows of it. A k-tile reads one pair.

use super::bulk::{BulkTile, bulk_tile};
use super::frame::{Frame, OperandFrame};
use super::keys::{Chiral, Common, Key};
use super::reach;
use super::refusal::Refusal;
use super::tile::{Along, Source};
use super::transport::{TiledOperand, Transport};
use super::value::Plan;
use serde::Serialize;
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, ROW};

/// How k-tiles of a second pair of factors get to shared memory: as those of the first one, from other memory.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// // A product of 4096 terms with an update of rank 16.
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 4096).k2(16).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, tma+tma, 4 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// let second = derived.schedule.second.as_ref().expect("a second pair");
/// assert_eq!(second.first, 4096);
/// assert_eq!(second.bulk[0].as_ref().map(|tile| tile.map.extent.clone()), Some(vec![16, 512]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SecondCopies {
    /// The first term of the second pair, a multiple of the k-tile.
    pub first: u64,
    /// Bulk copies of its A and B, where the first pair's tiles come by bulk copies.
    pub bulk: [Option<BulkTile>; 2],
}

/// Derives the copies of a second pair of factors, if the contraction has one.
pub(super) fn derive(
    plan: &Plan,
    c: &Contraction,
    frame: &Frame,
    frames: [&OperandFrame; 2],
    tiled: [&TiledOperand; 2],
) -> Result<Option<SecondCopies>, Refusal> {
    let Some(second) = &c.second else { return Ok(None) };
    let refuse = |key: Key, why| Err(Refusal::TwoTensors { key, value: plan.get(key), why });
    if plan.stagger == 1 {
        return refuse(Key::C(Common::Ufo), "a k-tile reads one pair of factors, and k-tiles start at any k; use UFO0");
    }
    if !second.first.is_multiple_of(plan.k_tile.into()) {
        return refuse(Key::C(Common::Unr), "the second pair of factors begins at a multiple of 128 terms; use a divisor of 128");
    }
    let mut bulk = [None, None];
    for (i, (operand, tiled)) in frames.into_iter().zip(tiled).enumerate() {
        let tensor = [&second.a, &second.b][i];
        let (acp, wos) = (operand.side.key(Chiral::Acp), operand.side.key(Chiral::Wos));
        if tiled.tiling.source != Source::InPlace {
            return refuse(wos, "copies in workspace are of one tensor; use WOS0");
        }
        match &tiled.copy {
            Transport::Bulk(tile) => {
                let own = bulk_tile(tensor, &tiled.tiling, frame.k_tile, frame.family, operand.shares).ok();
                let Some(own) = own.filter(|own| shape(own) == shape(tile)) else {
                    return refuse(acp, "bulk copies need lines of A2 and B2 at multiples of 16 bytes; use ACP0 with LWV");
                };
                bulk[i] = Some(own);
            }
            // Producers ask for each chunk how wide its loads are.
            Transport::Written(_) => {}
            Transport::Registers | Transport::Async | Transport::Panels { .. } => vectors(plan, operand, tiled, tensor)?,
            Transport::Shifted(_) => return refuse(acp, "rows are shifted from one tensor; use ACP0 with LWV"),
            Transport::Halo(_) => return refuse(acp, "a halo is of one tensor; use another ACP"),
            Transport::Own(_) => return refuse(Key::C(Common::Bim), "threads load their operands from one tensor; use BIM0"),
        }
    }
    Ok(Some(SecondCopies { first: second.first, bulk }))
}

/// What tiles have to agree on: everything but where a copy starts, and the map's own extents and strides.
fn shape(tile: &BulkTile) -> BulkTile {
    let mut tile = BulkTile { at: Vec::new(), first: 0, ..tile.clone() };
    (tile.map.extent, tile.map.stride_bytes) = (Vec::new(), Vec::new());
    tile
}

/// Asks whether threads may load the second tensor in the vectors of the first.
fn vectors(plan: &Plan, operand: &OperandFrame, tiled: &TiledOperand, tensor: &Tensor) -> Result<(), Refusal> {
    let width = tiled.tiling.load_width;
    if width == 1 {
        return Ok(());
    }
    let own = plan.of(operand.side).load_width != 0;
    let key = operand.side.key(if own { Chiral::Glw } else { Chiral::Vew });
    let along_k = tiled.tiling.load_along == Along::K;
    let axis = if along_k { COL } else { ROW };
    if !reach::adjacent(tensor, axis) {
        return Err(Refusal::NotContiguous { key, width, along_k });
    }
    let allowed = reach::vector_width(tensor, axis, width);
    if allowed < width { Err(Refusal::VectorAlign { key, width, allowed }) } else { Ok(()) }
}
