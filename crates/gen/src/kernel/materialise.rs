//! Helper kernels that copy an operand, seen through its view, into its workspace layout.
//!
//! Stores are coalesced: threads walk in the order of the copy. Where the original is contiguous in the other direction, tiles
//! are turned round in shared memory so that loads are coalesced too.

use super::Input;
use super::helpers::{self, THREADS, digits, elements};
use super::index::{Coord, Part, affine, in_range};
use super::position::Ints;
use crate::contraction::{Operand, Tensor};
use crate::view::{COL, G, ROW, View};
use tilewright_ir::*;

/// Tile of a transposing copy: one wave's width along k, two along the rows.
const TILE_K: u32 = 32;
const TILE_ROWS: u32 = 64;

/// True if threads that walk along the copy would stride through the original.
fn transposes(source: &Tensor, to: &View) -> bool {
    let row_fast = to.stride(ROW) == Some(1) || to.stride(ROW).is_none();
    row_fast && source.view.stride(COL) == Some(1) && source.view.stride(ROW) != Some(1)
}

/// Work-groups of the copy of `entries` batch entries.
pub(super) fn groups(source: &Tensor, to: &Input, entries: u64) -> u128 {
    let [_, rows, k] = to.tensor.view.extent;
    if transposes(source, &to.tensor.view) {
        u128::from(rows.div_ceil(TILE_ROWS.into())) * u128::from(k.div_ceil(TILE_K.into())) * u128::from(entries)
    } else {
        helpers::groups(rows * k * entries)
    }
}

struct Copy<'a> {
    source: &'a Tensor,
    to: &'a Input,
    from: ArgId,
    offset: ExprId,
    dest: ArgId,
    /// First batch entry and number of entries, of a chunked batch.
    chunk: Option<(ExprId, ExprId)>,
    ints: Ints,
}

/// Copies an operand into its workspace layout. Elements that do not exist become zero.
///
/// Arguments: source buffer, source offset, destination, and with a chunked batch the first batch entry and how many.
pub(super) fn materialise(source: &Tensor, to: &Input, chunked: bool) -> Kernel {
    let operand = if to.operand == Operand::A { "a" } else { "b" };
    let mut b = Builder::new(format!("tw_materialise_{operand}"), THREADS);
    let b = &mut b;
    let view = &to.tensor.view;
    let entries = if to.chunk_local { view.extent[G] } else { 1 };
    b.doc(format!(
        "copies operand {operand} into workspace: {} rows x {} k x {entries} batch entries",
        view.extent[ROW], view.extent[COL]
    ));
    let from = b.buffer(operand, source.scalar, Access::Read, "source operand");
    let offset = b.scalar_arg("offset", Scalar::I64, "first element of the source in its buffer");
    let dest = b.buffer("to", source.scalar, Access::Write, "workspace");
    let chunk = (chunked && to.chunk_local).then(|| {
        let first = b.scalar_arg("g_first", Scalar::I64, "first batch entry of this launch");
        (first, b.scalar_arg("entries", Scalar::I64, "batch entries of this launch"))
    });
    let ints = Ints::new(false, &[to.tensor.len, source.len], &[to.tensor.len, source.len]);
    let copy = Copy { source, to, from, offset, dest, chunk, ints };
    if transposes(source, view) {
        copy.transposed(b);
    } else {
        copy.straight(b, entries);
    }
    std::mem::replace(b, Builder::new("", 0)).finish()
}

impl Copy<'_> {
    /// Loads the original's element (g, row, k), g counted from the chunk's first.
    fn load(&self, b: &mut Builder, g: ExprId, row: ExprId, k: ExprId) -> ExprId {
        let g = match self.chunk {
            Some((first, _)) => {
                let first = b.cast(first, self.ints.coord);
                b.add(first, g)
            }
            None => g,
        };
        let at = [Coord::plain(b, g), Coord::plain(b, row), Coord::plain(b, k)];
        let exists = valid(b, &self.source.view, &at, self.ints);
        let index = affine(b, &self.source.view.access.offset, &at, Part::Whole, Scalar::I64);
        let index = b.add(self.offset, index);
        b.load("value", Base::Buffer(self.from), index, 1, exists)
    }

    fn store(&self, b: &mut Builder, g: ExprId, row: ExprId, k: ExprId, value: ExprId, guard: Option<ExprId>) {
        let at = [Coord::plain(b, g), Coord::plain(b, row), Coord::plain(b, k)];
        let index = affine(b, &self.to.tensor.view.access.offset, &at, Part::Whole, self.ints.offset);
        b.store(Base::Buffer(self.dest), index, value, guard);
    }

    /// Element by element in the order of the copy.
    fn straight(&self, b: &mut Builder, entries: u64) {
        let view = &self.to.tensor.view;
        let extents = [view.extent[ROW], view.extent[COL], entries];
        let ty = self.ints.coord;
        let total = match self.chunk {
            Some((_, entries)) => {
                let entries = b.cast(entries, ty);
                let total = b.mul(entries, (extents[0] * extents[1]) as i64);
                b.bind("total", total)
            }
            None => b.int((extents[0] * extents[1] * extents[2]) as i64, ty),
        };
        elements(b, total, ty, |b, element| {
            let macro_tile = u64::from(self.to.tiling.macro_tile);
            let (row, k, g) = if view.stride(ROW).is_none() {
                let d = digits(b, element, &[macro_tile, extents[1], extents[0] / macro_tile, extents[2]]);
                let panel = b.mul(d[2], macro_tile as i64);
                (b.add(panel, d[0]), d[1], d[3])
            } else if view.stride(ROW) == Some(1) {
                let d = digits(b, element, &[extents[0], extents[1], extents[2]]);
                (d[0], d[1], d[2])
            } else {
                let d = digits(b, element, &[extents[1], extents[0], extents[2]]);
                (d[1], d[0], d[2])
            };
            let row = b.bind("row", row);
            let k = b.bind("k", k);
            let value = self.load(b, g, row, k);
            self.store(b, g, row, k, value, None);
        });
    }

    /// Tile by tile: read along k, written along the rows.
    fn transposed(&self, b: &mut Builder) {
        let view = &self.to.tensor.view;
        let ty = self.ints.coord;
        // One element more per line keeps both directions free of bank conflicts.
        let pitch = TILE_ROWS + 1;
        let tile = b.shared("tile", self.source.scalar, pitch * TILE_K, 0);
        let blocks = [view.extent[COL].div_ceil(TILE_K.into()), view.extent[ROW].div_ceil(TILE_ROWS.into()), u64::MAX];
        let group = b.builtin(Builtin::GroupId(0));
        let group = b.cast(group, ty);
        let d = digits(b, group, &blocks);
        let first_k = b.mul(d[0], i64::from(TILE_K));
        let first_k = b.bind("first_k", first_k);
        let first_row = b.mul(d[1], i64::from(TILE_ROWS));
        let first_row = b.bind("first_row", first_row);
        let g = b.bind("g", d[2]);
        let local = b.builtin(Builtin::LocalId);
        let passes = TILE_K * TILE_ROWS / THREADS;
        let (lane, line) = (b.rem(local, TILE_K), b.div(local, TILE_K));
        for pass in 0..passes {
            let within = b.add(line, pass * (THREADS / TILE_K));
            let (x, y) = (b.cast(within, ty), b.cast(lane, ty));
            let (row, k) = (b.add(first_row, x), b.add(first_k, y));
            let value = self.load(b, g, row, k);
            let at = b.mul(lane, pitch);
            let at = b.add(at, within);
            b.store(Base::Shared(tile), at, value, None);
        }
        b.barrier();
        let (lane, line) = (b.rem(local, TILE_ROWS), b.div(local, TILE_ROWS));
        for pass in 0..passes {
            let within = b.add(line, pass * (THREADS / TILE_ROWS));
            let at = b.mul(within, pitch);
            let at = b.add(at, lane);
            let value = b.load("turned", Base::Shared(tile), at, 1, None);
            let (x, y) = (b.cast(lane, ty), b.cast(within, ty));
            let (row, k) = (b.add(first_row, x), b.add(first_k, y));
            let mut guard = None;
            for (position, axis, size) in [(row, ROW, TILE_ROWS), (k, COL, TILE_K)] {
                if !view.extent[axis].is_multiple_of(size.into()) {
                    let inside = b.lt(position, view.extent[axis] as i64);
                    guard = b.and_opt(guard, Some(inside));
                }
            }
            self.store(b, g, row, k, value, guard);
        }
    }
}

/// Condition under which an element of a view exists; `None` where it always does within the extents.
fn valid(b: &mut Builder, view: &View, at: &[Coord; 3], ints: Ints) -> Option<ExprId> {
    let mut guard = None;
    for bound in &view.access.bounds {
        let value = affine(b, &bound.value, at, Part::Whole, ints.coord);
        let inside = in_range(b, value, bound.low, bound.high);
        guard = b.and_opt(guard, Some(inside));
    }
    for axis in [ROW, COL] {
        // The copy may have more rows (whole panels) or more k (whole vectors) than the source.
        let value = at[axis].value(b);
        let inside = b.lt(value, view.extent[axis] as i64);
        guard = b.and_opt(guard, Some(inside));
    }
    guard
}
