//! What happens to the accumulators: scaling, bias, activation and residual before they are stored, and the ways to memory.

pub mod bulk;
pub mod cluster_sum;
mod direct;
pub mod fused;
pub mod out;
pub mod rows;

use super::input::{Input, Ints};
use super::tile::position::TilePosition;
use super::unit::math::Fma;
use super::unit::wgmma::Warpgroup;
use super::unit::{Accumulators, Bands};
use crate::plan::KernelSpec;
use bulk::StagedStore;
use out::{OutArgs, out};
use rows::RowStore;
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

/// Emits the epilogue; returns the number of work-group barriers each thread meets in it.
#[allow(clippy::too_many_arguments)]
pub(crate) fn emit(
    b: &mut Builder,
    c: &Contraction,
    spec: &KernelSpec,
    inputs: [&Input; 2],
    math: &Fma,
    first: [ExprId; 2],
    at: &TilePosition,
    args: &OutArgs,
    ints: Ints,
) -> u32 {
    let out = out(b, c, spec, inputs, at, args, ints);
    if spec.epilogue.staged {
        return out.staged(b, math, first);
    }
    out.by_beta(b, |b, old| out.direct(b, math, first, old));
    0
}

/// The epilogue of a matrix unit: neighbours along n, stored together as far as `CVW` says so.
#[allow(clippy::too_many_arguments)]
pub(crate) fn emit_unit(
    b: &mut Builder,
    c: &Contraction,
    spec: &KernelSpec,
    inputs: [&Input; 2],
    math: &dyn Accumulators,
    at: &TilePosition,
    args: &OutArgs,
    ints: Ints,
) {
    let out = out(b, c, spec, inputs, at, args, ints);
    out.by_beta(b, |b, old| out.runs(b, math, old));
}

/// How results of warpgroups leave that go through shared memory.
pub(crate) enum Staged {
    /// By bulk stores.
    Bulk(StagedStore),
    /// By plain stores of whole rows.
    Rows(RowStore),
}

/// The epilogue of warpgroups whose results go through shared memory. Bulk stores serve only where C is only written: those do not
/// read what they replace.
#[allow(clippy::too_many_arguments)]
pub(crate) fn emit_staged(
    b: &mut Builder,
    c: &Contraction,
    spec: &KernelSpec,
    inputs: [&Input; 2],
    math: &Warpgroup,
    at: &TilePosition,
    args: &OutArgs,
    ints: Ints,
    staged: &Staged,
) {
    let out = out(b, c, spec, inputs, at, args, ints);
    out.by_beta(b, |b, old| match staged {
        Staged::Rows(rows) => out.in_rows(b, math, rows, old),
        Staged::Bulk(_) if old => out.runs(b, math, old),
        Staged::Bulk(staged) => out.in_bulk(b, math, staged),
    });
}

/// The epilogue of matrix instructions of single warps whose results leave in whole rows: through staging buffers that lie over the operands'
/// tiles. Returns the number of work-group barriers each thread meets in it.
#[allow(clippy::too_many_arguments)]
pub(crate) fn emit_rows(
    b: &mut Builder,
    c: &Contraction,
    spec: &KernelSpec,
    inputs: [&Input; 2],
    math: &dyn Bands,
    at: &TilePosition,
    args: &OutArgs,
    ints: Ints,
    thread: ExprId,
) -> u32 {
    // Nobody reads the tiles any more.
    b.barrier();
    let rows = RowStore::new(b, spec, args.bytes(c), 0, thread);
    let out = out(b, c, spec, inputs, at, args, ints);
    out.by_beta(b, |b, old| out.in_rows(b, math, &rows, old));
    1
}
