//! One factor's tiling: its macro tile, the tile each thread loads, and the vectors it is moved in.

use super::grid::load_tile;
use super::keys::{Chiral, Common, Key};
use super::reach;
use super::refusal::Refusal;
use super::tile::*;
use super::transport::Transport;
use super::value::Plan;
use super::windows::{RAW_ROW, ROW_BYTES as BULK_ROW};
use crate::plan::{materialised, padded_rows};
use tilewright_ir::Mma;
use tilewright_ir::affine::gcd;
use tilewright_ir::mma::Family;
use tilewright_problem::FactorParts;
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{COL, ROW};

/// Bytes at whose multiples lines of shared memory start for a matrix unit.
const UNIT_VECTOR: u32 = 16;

/// Most elements of a vector in registers.
const VECTOR: u32 = 16;

/// Bytes that instructions read of lines along k at least.
const WORD: u32 = 4;

/// What both factors share.
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

/// Derives the tiling and the transport of one operand. It has `threads` owners of micro tiles along its rows and `extent` rows (a dynamic
/// extent: at most `extent`). `shares` work-groups share each of its tiles.
pub(super) fn derive(
    plan: &Plan,
    side: fn(Chiral) -> Key,
    tensor: &Tensor,
    (extent, run_time): (u64, bool),
    (threads, shares): (u32, u32),
    frame: &Frame,
) -> Result<(OperandTiling, Transport), Refusal> {
    let at = |key: Chiral| plan.get(side(key));
    Transport::converts(plan, side, tensor)?;
    let mic = side(Chiral::Mic);
    let step = if mic == Key::A(Chiral::Mic) { frame.family.block.0 } else { frame.family.block.1 };
    let (k_tile, micro) = (frame.k_tile, at(Chiral::Mic) * step);
    let macro_tile = threads.checked_mul(micro).filter(|t| *t <= 1 << 16).ok_or(Refusal::TileTooLarge { mic, micro, threads })?;
    let panels = Transport::uses_panels(plan);
    if Transport::need_pipeline(plan) && !matches!(at(Chiral::Acp), 1 | 4) {
        let o = in_pipeline(plan, side, tensor, (micro, macro_tile), frame)?;
        let copy = Transport::in_pipeline_of(plan, side, tensor, &o, (shares, frame.family), (frame.k, run_time))?;
        return Ok((o, copy));
    }
    if !frame.predicate && extent < macro_tile as u64 {
        return Err(Refusal::TileOverEdge { mic, macro_tile, extent });
    }
    if at(Chiral::Acp) == 4 {
        return windows(plan, side, tensor, (extent, run_time), (micro, macro_tile), frame);
    }
    // Loads of single elements know from one k-tile to the next in which half of a byte theirs is.
    if !k_tile.is_multiple_of(tensor.scalar.numbers()) {
        return Err(Refusal::UnitDepth { k_tile, unit: tensor.scalar.numbers() });
    }
    let tile = macro_tile * k_tile;
    let load_threads = frame.load_threads;
    let share = if frame.loads { load_tile(macro_tile, k_tile, load_threads, at(Chiral::Plu) == 1) } else { Some((1, 1)) };
    let (load_row, load_k) = share.ok_or(Refusal::LoadShare { mic, macro_tile, k_tile, threads: load_threads })?;
    let bytes = tensor.factor().bytes();
    let along_k = bytes == 1 && frame.family.along_k(bytes, false);
    let source = match source(plan, side) {
        Source::Copy if along_k => Source::CopyAlongK,
        source => source,
    };
    paddable(side, tensor, source)?;
    if source == Source::Packed && tile % 64 != 0 {
        return Err(Refusal::PackShare { wos: side(Chiral::Wos), macro_tile, k_tile });
    }
    let from = materialised(tensor, source, macro_tile);
    let (load_width, load_along) =
        load_vectors(plan, side, &from, source, (extent, run_time), (macro_tile, load_row, load_k), frame)?;
    // Multiply-adds read rows; matrix units read lines of either direction, so vectors stay whole.
    let shared_along = match load_width {
        _ if along_k => Along::K,
        1 if panels => Along::K,
        1 => Along::Row,
        _ if frame.family.fragments || panels => load_along,
        _ => Along::Row,
    };
    let store_width = if load_along == shared_along { load_width } else { 1 };
    let fragment_width = fragment_width(plan, side, tensor, micro, frame.family)?;
    // Whole vectors, so that every row of shared memory starts where vectors may start.
    let whole = if along_k { WORD } else { 1 };
    let pad = if panels { 0 } else { fragment_width.max(store_width).max(whole) * at(Chiral::Pad) };
    let o = OperandTiling {
        micro,
        macro_tile,
        pad,
        raw: Transport::raw(plan, side, tensor),
        load_row,
        load_k,
        load_interleave: at(Chiral::Liw) == 1,
        load_order: if at(Chiral::Lor) == 1 { Along::Row } else { Along::K },
        load_width,
        load_along,
        store_width,
        fragment_width,
        micro_interleave: frame.family.lanes == 1 && at(Chiral::Miw) == 1,
        shared_along,
        source,
        fragment_sets: 0,
        split: frame.split,
    };
    let copy = match at(Chiral::Acp) {
        _ if panels => Transport::panels(plan, side, &from, &o, (k_tile, frame.family))?,
        1 => Transport::Async,
        _ => Transport::Registers,
    };
    Ok((o, copy))
}

/// Derives the tiling of an operand with its halo of a result tile in shared memory (`ACP4`).
fn windows(
    plan: &Plan,
    side: fn(Chiral) -> Key,
    tensor: &Tensor,
    (extent, run_time): (u64, bool),
    (micro, macro_tile): (u32, u32),
    frame: &Frame,
) -> Result<(OperandTiling, Transport), Refusal> {
    let source = source(plan, side);
    paddable(side, tensor, source)?;
    let fragment_width = fragment_width(plan, side, tensor, micro, frame.family)?;
    let o = OperandTiling {
        micro,
        macro_tile,
        pad: fragment_width * plan.get(side(Chiral::Pad)),
        load_row: macro_tile,
        load_k: frame.k_tile,
        load_interleave: false,
        load_order: Along::K,
        load_width: fragment_width,
        load_along: Along::K,
        store_width: fragment_width,
        fragment_width,
        micro_interleave: false,
        shared_along: Along::K,
        source,
        fragment_sets: 0,
        raw: None,
        split: frame.split,
    };
    // Pulled-back tiles end at the edge.
    let grain = if frame.predicate { macro_tile.into() } else { gcd(macro_tile.into(), extent as i64).unsigned_abs() };
    let from = materialised(tensor, source, macro_tile);
    let grain = (!run_time).then_some(grain);
    let copy = Transport::windows(plan, side, &from, &o, (frame.family, frame.row), (frame.load_threads, grain))?;
    Ok((o, copy))
}

/// The tiling of a factor whose tiles lie in shared memory as bulk copies bring them.
fn in_pipeline(
    plan: &Plan,
    side: fn(Chiral) -> Key,
    tensor: &Tensor,
    (micro, macro_tile): (u32, u32),
    frame: &Frame,
) -> Result<OperandTiling, Refusal> {
    let (k_tile, family) = (frame.k_tile, frame.family);
    let raw = Transport::raw(plan, side, tensor);
    let row = raw.map_or(BULK_ROW / tensor.factor().bytes(), |scalar| scalar.numbers_in(RAW_ROW));
    if !k_tile.is_multiple_of(row) {
        return Err(Refusal::UnitDepth { k_tile, unit: row });
    }
    if macro_tile > 1 << 12 {
        return Err(Refusal::TileTooLarge { mic: side(Chiral::Mic), micro, threads: macro_tile / micro });
    }
    let fragment_sets = if side(Chiral::Mic) == Key::A(Chiral::Mic) { plan.common(Common::Rga) } else { 0 };
    let runs = frame.runs.filter(|_| side(Chiral::Mic) == Key::B(Chiral::Mic));
    let source = match (plan.get(side(Chiral::Wos)), runs) {
        (0, _) => Source::InPlace,
        (1, Some(run)) => Source::CopyInRuns(run),
        (1, None) if family.along_k(tensor.factor().bytes(), fragment_sets > 0) => Source::CopyAlongK,
        (1, None) => Source::Copy,
        (3, _) => Source::PaddedRows,
        _ => {
            let why = "packed panels (WOS2) have the layout of multiply-adds".into();
            let acp = side(Chiral::Acp);
            return Err(Refusal::BulkBox { acp, value: plan.get(acp), why });
        }
    };
    paddable(side, tensor, source)?;
    let width = UNIT_VECTOR / tensor.factor().bytes();
    let fragment_width = fragment_width(plan, side, tensor, micro, family)?;
    Ok(OperandTiling {
        micro,
        macro_tile,
        pad: 0,
        load_row: macro_tile,
        load_k: k_tile,
        load_interleave: false,
        load_order: Along::K,
        load_width: width,
        load_along: Along::Row,
        store_width: width,
        fragment_width,
        micro_interleave: family.lanes == 1 && plan.get(side(Chiral::Miw)) == 1,
        shared_along: Along::Row,
        source,
        fragment_sets,
        raw,
        split: frame.split,
    })
}

/// Where a factor is read from.
pub(super) fn source(plan: &Plan, side: fn(Chiral) -> Key) -> Source {
    match plan.get(side(Chiral::Wos)) {
        0 => Source::InPlace,
        1 => Source::Copy,
        2 => Source::Packed,
        _ => Source::PaddedRows,
    }
}

pub(super) fn paddable(side: fn(Chiral) -> Key, tensor: &Tensor, source: Source) -> Result<(), Refusal> {
    match if source == Source::PaddedRows { padded_rows(tensor).err() } else { None } {
        Some(why) => Err(Refusal::PaddedRows { wos: side(Chiral::Wos), why }),
        None => Ok(()),
    }
}

/// Elements of a read of fragments from shared memory, which divide a micro tile.
fn fragment_width(plan: &Plan, side: fn(Chiral) -> Key, tensor: &Tensor, micro: u32, family: &Family) -> Result<u32, Refusal> {
    let width = match (family.asynchronous, family.fragments) {
        (true, _) => 1,
        (_, true) => Transport::raw(plan, side, tensor).unwrap_or(tensor.factor()).numbers_in(UNIT_VECTOR),
        _ => plan.fragment_width(side),
    };
    let key = if plan.get(side(Chiral::Frw)) == 0 { side(Chiral::Vew) } else { side(Chiral::Frw) };
    let along_k = family.along_k(tensor.factor().bytes(), false) || Transport::raw(plan, side, tensor).is_some();
    if micro.is_multiple_of(width) || family.lanes > 1 && along_k {
        Ok(width)
    } else {
        Err(Refusal::FragmentWidth { key, width, mic: side(Chiral::Mic), micro })
    }
}

fn width_key(plan: &Plan, side: fn(Chiral) -> Key) -> Key {
    if plan.get(side(Chiral::Glw)) == 0 { side(Chiral::Vew) } else { side(Chiral::Glw) }
}

/// Width and direction of global loads.
fn load_vectors(
    plan: &Plan,
    side: fn(Chiral) -> Key,
    from: &Tensor,
    source: Source,
    (extent, run_time): (u64, bool),
    (macro_tile, load_row, load_k): (u32, u32, u32),
    frame: &Frame,
) -> Result<(u32, Along), Refusal> {
    let key = width_key(plan, side);
    let width = plan.get(key);
    // VEW is MIOpenGEMM's: across k only. GLW follows the operand.
    let along = match (width, key == side(Chiral::Glw)) {
        (1, _) => Along::Row,
        (_, false) => Along::Row,
        (_, true) => reach::contiguous(from, width).unwrap_or(Along::Row),
    };
    Transport::raw_along(plan, side, from, along)?;
    Transport::copies_vectors(plan, side, from, (width, along), frame.family)?;
    if width > VECTOR && Transport::raw(plan, side, from).is_none() {
        return Err(Refusal::VectorWide { key, width });
    }
    if width == 1 {
        return Ok((1, Along::Row));
    }
    let along_k = along == Along::K;
    let (axis, length) = if along_k { (COL, load_k) } else { (ROW, load_row) };
    if !reach::adjacent(from, axis) {
        return Err(Refusal::NotContiguous { key, width, along_k });
    }
    if length % width != 0 {
        return Err(Refusal::VectorTile { key, width, length, along_k });
    }
    let allowed = reach::vector_width(from, axis, width);
    if allowed < width {
        return Err(Refusal::VectorAlign { key, width, allowed });
    }
    if along_k {
        if frame.stagger {
            return Err(Refusal::VectorStagger { key, width });
        }
        if frame.any_term {
            return Err(Refusal::VectorRunTime { key, width, dim: "k" });
        }
        // A tail of k that ends inside a vector would need half a load.
        if !frame.k.is_multiple_of(width as u64) && !frame.k.is_multiple_of(frame.k_tile as u64) {
            return Err(Refusal::VectorEdge { key, width, dim: "k", extent: frame.k });
        }
    } else if source != Source::Packed && run_time {
        let dim = if key.part() == super::keys::Part::A { "m" } else { "n" };
        return Err(Refusal::VectorRunTime { key, width, dim });
    } else if source != Source::Packed && !extent.is_multiple_of(macro_tile as u64) && !extent.is_multiple_of(width as u64) {
        let dim = if key.part() == super::keys::Part::A { "m" } else { "n" };
        return Err(Refusal::VectorEdge { key, width, dim, extent });
    }
    Ok((width, along))
}
