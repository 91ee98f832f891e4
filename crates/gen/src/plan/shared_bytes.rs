//! How much shared memory each array of the main kernel takes.

use super::bulk::store_buffers;
use super::pairs::OfResults;
use super::shared_map::{Area, BARRIER, Barriers, SharedMap};
use super::spec::{Exit, KernelSpec};
use super::tile::OperandTiling;
use super::transport::Transport;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::{Contraction, ResultSource, Tensor};
use tilewright_problem::view::COL;

/// The map of a derived plan's kernel.
pub(super) fn shared_map(spec: &KernelSpec, c: &Contraction) -> SharedMap {
    let whole = |bytes: u64| Area { at: 0, bytes };
    let reductions = whole(spec.tile_reduction_bytes(c));
    let carried = whole(spec.carried_reduction_bytes(c));
    if let ResultSource::Elements(_) = c.source {
        return SharedMap { reductions, carried, ..SharedMap::default() };
    }
    let (t, copies) = (&spec.tiling, &spec.schedule.copies);
    let a = whole(operand_bytes(spec, &t.a, &copies[0], &c.a));
    let b = operand_bytes(spec, &t.b, &copies[1], &c.b);
    let b = Area::after(a.end(), shared_align(&t.b, t.b.shared_scalar(&c.b)).into(), b);
    let span = |copy: &Transport| copy.shifted().map_or(0, |x| u64::from(x.slots) * u64::from(x.spans.slot_bytes()));
    let map = SharedMap {
        operands: [a, b],
        exchange: whole(spec.exchange(c.accumulator()).map_or(0, |exchange| exchange.bytes)),
        barriers: spec.schedule.in_pipeline().then(|| barriers(spec)),
        groups: whole(4 * u64::from(spec.counted_groups(c).unwrap_or(0))),
        results: whole({
            let OfResults { spec, contraction: c } = spec.of_results(c);
            result_bytes(&spec, &c)
        }),
        reductions,
        carried,
        spans: [whole(span(&copies[0])), whole(span(&copies[1]))],
    };
    SharedMap::together(&[&map]).pop().unwrap_or(map)
}

/// The transaction barriers of a pipeline.
fn barriers(spec: &KernelSpec) -> Barriers {
    let some = |count: u32| Area { at: 0, bytes: BARRIER * u64::from(count) };
    let stages = some(spec.schedule.buffers);
    let turns = if spec.teams() > 1 { spec.teams() } else { 0 };
    let waves = spec.load_threads() / spec.tiling.wave_lanes.max(1);
    Barriers { full: stages, free: stages, turns: some(turns), staged: some(spec.schedule.slots() * waves) }
}

/// Bytes of an operand's stages.
fn operand_bytes(spec: &KernelSpec, o: &OperandTiling, copy: &Transport, tensor: &Tensor) -> u64 {
    match (copy, copy.tile()) {
        (Transport::Own(_), _) => 0,
        (Transport::Halo(halo), _) => u64::from(halo.elements() * tensor.scalar.bytes()),
        (_, Some(tile)) => u64::from(tile.bytes) * u64::from(spec.schedule.buffers),
        (_, None) => {
            let (lines, pitch) = o.lines(spec.tiling.k_tile);
            let tiles = u64::from(spec.schedule.buffers * o.shared_parts);
            o.shared_scalar(tensor).bytes_of(u64::from(pitch) * u64::from(lines) * tiles)
        }
    }
}

/// Alignment of an operand's tiles in shared memory, in bytes: that of the widest access to them, 16 at least.
pub fn shared_align(t: &OperandTiling, scalar: Scalar) -> u32 {
    (t.fragment_width.max(t.store_width) * scalar.bytes()).max(16)
}

/// Bytes of the staging buffers of results: the buffers of every wave. Multiply-adds have one, for a micro row or column of every
/// thread, with room to keep vectors apart.
fn result_bytes(spec: &KernelSpec, c: &Contraction) -> u64 {
    let t = &spec.tiling;
    let waves = spec.teams() * t.math_threads() / t.wave_lanes.max(1);
    match &spec.epilogue.exit {
        Exit::Direct { .. } => 0,
        Exit::Bulk { tile, .. } => u64::from(waves * store_buffers(spec.teams()) * tile.staging_bytes()),
        Exit::Rows => u64::from(waves * spec.row_staging(c).bytes()),
        Exit::Staged { width } => {
            let (major, minor_threads) = if c.c.view.stride(COL) == Some(1) { (&t.b, t.threads_a) } else { (&t.a, t.threads_b) };
            let each = u64::from(major.macro_tile + (*width).max(4)) * u64::from(minor_threads);
            each * u64::from(spec.teams() * c.accumulator().bytes())
        }
    }
}
