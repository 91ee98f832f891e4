//! One factor's tiling: its macro tile, the tile each thread loads, and the vectors it is moved in.

use super::frame::{Frame, OperandFrame, Rows, fragment_sets};
use super::grid::load_tile;
use super::keys::{Chiral, Side};
use super::materialised::materialised;
use super::reach;
use super::refusal::Refusal;
use super::tile::*;
use super::transport::{TiledOperand, Transport};
use super::value::Plan;
use super::windows::{RAW_ROW, ROW_BYTES as BULK_ROW};
use std::borrow::Cow;
use tilewright_ir::affine::gcd;
use tilewright_ir::mma::{Family, Lines, Reads};
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{COL, ROW};

/// Bytes at whose multiples lines of shared memory start for a matrix unit.
const UNIT_VECTOR: u32 = 16;

/// Most elements of a vector in registers.
const VECTOR: u32 = 16;

/// Bytes that instructions read of lines along k at least.
const WORD: u32 = 4;

/// Derives the tilings and the transports of both operands.
pub(super) fn derive_both<'a>(
    plan: &Plan,
    a: &OperandFrame<'a>,
    b: &OperandFrame<'a>,
    frame: &Frame,
) -> Result<[TiledOperand<'a>; 2], Refusal> {
    let (left, right) = (derive(plan, a, frame)?, derive(plan, b, frame)?);
    let right = Transport::fit_to_weights(plan, frame, &left, right, b.tensor)?;
    Ok([left, right])
}

/// Derives the tiling and the transport of one operand.
fn derive<'a>(plan: &Plan, operand: &OperandFrame<'a>, frame: &Frame) -> Result<TiledOperand<'a>, Refusal> {
    let (tensor, owners, side) = (operand.tensor, operand.owners, operand.side);
    let own = plan.of(side);
    Transport::converts(plan, side, tensor)?;
    let mic = side.key(Chiral::Mic);
    let step = if side == Side::A { frame.family.block.rows } else { frame.family.block.columns };
    let (k_tile, micro) = (frame.k_tile, own.micro * step);
    let macro_tile = owners.checked_mul(micro).filter(|t| *t <= 1 << 16);
    let macro_tile = macro_tile.ok_or(Refusal::TileTooLarge { mic, micro, threads: owners })?;
    let rows = Rows { micro, macro_tile };
    let panels = plan.has_panels();
    if plan.has_pipeline() && !matches!(own.copy, 1 | 4) {
        return in_pipeline(plan, operand, rows, frame);
    }
    if !frame.predicate && operand.extent < macro_tile as u64 {
        return Err(Refusal::TileOverEdge { mic, macro_tile, extent: operand.extent });
    }
    if own.copy == 4 {
        return windows(plan, operand, rows, frame);
    }
    // Loads of single elements know from one k-tile to the next in which half of a byte theirs is.
    if !k_tile.is_multiple_of(tensor.scalar.numbers()) {
        return Err(Refusal::UnitDepth { k_tile, unit: tensor.scalar.numbers() });
    }
    let tile = macro_tile * k_tile;
    let load_threads = frame.load_threads;
    let share = if frame.loads { load_tile(macro_tile, k_tile, load_threads, own.load_along_k == 1) } else { Some((1, 1)) };
    let (load_row, load_k) = share.ok_or(Refusal::LoadShare { mic, macro_tile, k_tile, threads: load_threads })?;
    let lines = frame.family.lines(tensor.factor().bytes(), false);
    let along_k = tensor.factor().bytes() == 1 && lines == Lines::K;
    let source = match source(plan, side) {
        Source::Copy if along_k => Source::CopyAlongK,
        source => source,
    };
    let read = read(operand, source, macro_tile)?;
    if source == Source::Packed && tile % 64 != 0 {
        return Err(Refusal::PackShare { wos: side.key(Chiral::Wos), macro_tile, k_tile });
    }
    let mut tiling = OperandTiling {
        micro,
        macro_tile,
        pad: 0,
        raw: Transport::raw(plan, side, tensor),
        load_row,
        load_k,
        load_interleave: own.interleave_loads == 1,
        load_order: if own.load_rows_first == 1 { Along::Row } else { Along::K },
        load_width: 1,
        load_along: Along::Row,
        store_width: 1,
        fragment_width: 1,
        micro_interleave: frame.family.reads == Reads::Vectors && own.interleave_micro == 1,
        shared_along: Along::Row,
        source,
        fragment_sets: 0,
        split: frame.split,
        shared_parts: frame.shared_parts(0),
    };
    load_vectors(plan, operand, &read, &mut tiling, frame)?;
    // Vectors stay whole where the unit reads lines of either direction, as it does of panels.
    tiling.shared_along = match (lines, tiling.load_width) {
        _ if along_k => Along::K,
        (_, 1) if panels => Along::K,
        (_, 1) => Along::Row,
        (Lines::Rows, _) if !panels => Along::Row,
        _ => tiling.load_along,
    };
    tiling.store_width = if tiling.load_along == tiling.shared_along { tiling.load_width } else { 1 };
    tiling.fragment_width = fragment_width(plan, operand, micro, frame.family)?;
    // Whole vectors, so that every row of shared memory starts where vectors may start.
    let whole = if along_k { WORD } else { 1 };
    tiling.pad = if panels { 0 } else { tiling.fragment_width.max(tiling.store_width).max(whole) * own.pad };
    let copy = match own.copy {
        _ if panels => Transport::panels(plan, side, &read, &tiling, frame)?,
        1 => Transport::Async,
        _ => Transport::Registers,
    };
    Ok(TiledOperand { tiling, copy, read })
}

/// Derives the tiling of an operand with its halo of a result tile in shared memory (`ACP4`).
fn windows<'a>(plan: &Plan, operand: &OperandFrame<'a>, rows: Rows, frame: &Frame) -> Result<TiledOperand<'a>, Refusal> {
    let Rows { micro, macro_tile } = rows;
    let source = source(plan, operand.side);
    let read = read(operand, source, macro_tile)?;
    let fragment_width = fragment_width(plan, operand, micro, frame.family)?;
    let tiling = OperandTiling {
        micro,
        macro_tile,
        pad: fragment_width * plan.of(operand.side).pad,
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
        shared_parts: frame.shared_parts(0),
    };
    // Pulled-back tiles end at the edge.
    let grain = if frame.predicate { macro_tile.into() } else { gcd(macro_tile.into(), operand.extent as i64).unsigned_abs() };
    let copy = Transport::windows(plan, operand, &read, &tiling, frame, grain)?;
    Ok(TiledOperand { tiling, copy, read })
}

/// The tiling of a factor whose tiles lie in shared memory as bulk copies bring them.
fn in_pipeline<'a>(plan: &Plan, operand: &OperandFrame<'a>, rows: Rows, frame: &Frame) -> Result<TiledOperand<'a>, Refusal> {
    let (k_tile, family, tensor) = (frame.k_tile, frame.family, operand.tensor);
    let Rows { micro, macro_tile } = rows;
    let raw = Transport::raw(plan, operand.side, tensor);
    let row = raw.map_or(BULK_ROW / tensor.factor().bytes(), |scalar| scalar.numbers_in(RAW_ROW));
    if !k_tile.is_multiple_of(row) {
        return Err(Refusal::UnitDepth { k_tile, unit: row });
    }
    if macro_tile > 1 << 12 {
        return Err(Refusal::TileTooLarge { mic: operand.side.key(Chiral::Mic), micro, threads: macro_tile / micro });
    }
    let fragment_sets = fragment_sets(plan, operand.side);
    let runs = frame.runs.filter(|_| operand.side == Side::B);
    let source = match (plan.of(operand.side).source, runs) {
        (0, _) => Source::InPlace,
        (1, Some(run)) => Source::CopyInRuns(run),
        (1, None) if family.along_k(tensor.factor().bytes(), fragment_sets > 0) => Source::CopyAlongK,
        (1, None) => Source::Copy,
        (3, _) => Source::PaddedRows,
        _ => {
            let why = "packed panels (WOS2) have the layout of multiply-adds".into();
            let acp = operand.side.key(Chiral::Acp);
            return Err(Refusal::BulkBox { acp, value: plan.of(operand.side).copy, why });
        }
    };
    let read = read(operand, source, macro_tile)?;
    let width = UNIT_VECTOR / tensor.factor().bytes();
    let fragment_width = fragment_width(plan, operand, micro, family)?;
    let tiling = OperandTiling {
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
        micro_interleave: family.reads == Reads::Vectors && plan.of(operand.side).interleave_micro == 1,
        shared_along: Along::Row,
        source,
        fragment_sets,
        raw,
        split: frame.split,
        shared_parts: frame.shared_parts(fragment_sets),
    };
    let copy = Transport::in_pipeline_of(plan, operand, &read, &tiling, frame)?;
    Ok(TiledOperand { tiling, copy, read })
}

/// Where a factor is read from.
pub(super) fn source(plan: &Plan, side: Side) -> Source {
    match plan.of(side).source {
        0 => Source::InPlace,
        1 => Source::Copy,
        2 => Source::Packed,
        _ => Source::PaddedRows,
    }
}

/// The factor as the kernel reads it.
pub(super) fn read<'a>(operand: &OperandFrame<'a>, source: Source, macro_tile: u32) -> Result<Cow<'a, Tensor>, Refusal> {
    let refused = |why| Refusal::PaddedRows { wos: operand.side.key(Chiral::Wos), why };
    // The planes and rows of this copy are the tensor's in memory, whatever a launch says of the operand's.
    if source == Source::PaddedRows && (operand.run_time || operand.entries_run_time) {
        return Err(refused("its rows or batch entries are known only at launch; use WOS1"));
    }
    materialised(operand.tensor, source, macro_tile).map_err(refused)
}

/// Elements of a read from shared memory into registers, which divide a micro tile unless they lie along k.
fn fragment_width(plan: &Plan, operand: &OperandFrame, micro: u32, family: &Family) -> Result<u32, Refusal> {
    let (tensor, raw) = (operand.tensor, Transport::raw(plan, operand.side, operand.tensor));
    let (width, along_k) = match family.reads {
        Reads::Panels => (1, false),
        Reads::Fragments => {
            let along_k = family.along_k(tensor.factor().bytes(), false) || raw.is_some();
            (raw.unwrap_or(tensor.factor()).numbers_in(UNIT_VECTOR), along_k)
        }
        Reads::Vectors => (plan.of(operand.side).fragment_width(), false),
    };
    if along_k || micro.is_multiple_of(width) {
        return Ok(width);
    }
    let key = operand.side.key(if plan.of(operand.side).read_width == 0 { Chiral::Vew } else { Chiral::Frw });
    Err(Refusal::FragmentWidth { key, width, mic: operand.side.key(Chiral::Mic), micro })
}

/// Chooses width and direction of global loads of a load thread's share.
fn load_vectors(plan: &Plan, operand: &OperandFrame, from: &Tensor, o: &mut OperandTiling, frame: &Frame) -> Result<(), Refusal> {
    let own = plan.of(operand.side).load_width != 0;
    let key = operand.side.key(if own { Chiral::Glw } else { Chiral::Vew });
    let width = plan.get(key);
    // VEW is MIOpenGEMM's: across k only. GLW follows the operand.
    let along = if width > 1 && own { reach::contiguous(from, width).unwrap_or(Along::Row) } else { Along::Row };
    Transport::raw_along(plan, operand.side, from, along)?;
    Transport::copies_vectors(plan, operand.side, from, width, along, frame.family)?;
    if width > VECTOR && Transport::raw(plan, operand.side, from).is_none() {
        return Err(Refusal::VectorWide { key, width });
    }
    if width == 1 {
        return Ok(());
    }
    let along_k = along == Along::K;
    let (axis, length) = if along_k { (COL, o.load_k) } else { (ROW, o.load_row) };
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
    let (extent, macro_tile) = (operand.extent, u64::from(o.macro_tile));
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
    } else if o.source != Source::Packed && operand.run_time {
        let dim = if operand.side == Side::A { "m" } else { "n" };
        return Err(Refusal::VectorRunTime { key, width, dim });
    } else if o.source != Source::Packed && !extent.is_multiple_of(macro_tile) && !extent.is_multiple_of(width as u64) {
        let dim = if operand.side == Side::A { "m" } else { "n" };
        return Err(Refusal::VectorEdge { key, width, dim, extent });
    }
    (o.load_width, o.load_along) = (width, along);
    Ok(())
}
