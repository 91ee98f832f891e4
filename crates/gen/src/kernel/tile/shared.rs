//! An operand's k-tiles in shared memory: an array of stages, and the position of an element in a stage.
//!
//! Copies write and units read through this module. There are three layouts. A padded tile is contiguous along rows or along k. A
//! tile of swizzled panels of 128 bytes is for bulk copies and warpgroup instructions. A halo ([`Halo`]) has a single stage. The
//! position of an element is the position of its row plus the distance of its k, with permuted chunks.

use crate::plan::{Along, Area, BulkTile, Halo, OperandTiling, Transport, gcd};
use tilewright_ir::affine::{Affine, Coord, Part, affine};
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::*;
use tilewright_problem::view::{COL, ROW};

/// The stages of one operand.
#[derive(Clone)]
pub(crate) struct SharedTile {
    pub array: SharedId,
    /// (row, k) to the element's position in a stage.
    layout: Layout,
    /// Contiguous direction.
    pub along: Along,
    /// Elements from one line to the next; where two of 4 bits are at a position, positions, as everywhere here.
    pub pitch: u32,
    /// Elements from one stage to the next.
    pub stage: u32,
    /// Tiles of a stage: one for each part of its elements.
    pub parts: u32,
    /// The panels, where lines are cut into them.
    pub panels: Option<BulkTile>,
    /// The windows of a whole result tile.
    pub halo: Option<Halo>,
    /// Depth of a k-tile.
    k_tile: u32,
}

impl SharedTile {
    /// Declares the stages in an area of shared memory.
    pub fn new(
        b: &mut Builder,
        name: &str,
        scalar: Scalar,
        o: &OperandTiling,
        copy: &Transport,
        k_tile: u32,
        area: Area,
    ) -> SharedTile {
        let parts = o.shared_parts;
        let (panels, halo) = (copy.tile().cloned(), copy.halo().cloned());
        let (along, pitch, stage, layout) = match (&panels, &halo) {
            (_, Some(halo)) => (Along::K, halo.pitch(), halo.elements(), halo.layout()),
            (Some(tile), _) => {
                let along = if tile.k_contiguous { Along::K } else { Along::Row };
                (along, tile.row, tile.bytes / scalar.bytes(), tile.layout())
            }
            (None, None) => {
                let (lines, pitch) = o.lines(k_tile);
                let pitch = pitch / o.elements();
                (o.shared_along, pitch, pitch * lines * parts, o.shared(k_tile))
            }
        };
        let array = b.shared(name, scalar, area.bytes as u32 / scalar.bytes(), area.first());
        SharedTile { array, layout, along, pitch, stage, parts: parts.max(1), panels, halo, k_tile }
    }

    /// Where the tile of a part begins in a stage.
    pub const fn part(&self, part: u32) -> u32 {
        part * (self.stage / self.parts)
    }

    /// Elements from one row to the next, and from one k to the next, within a line and between lines.
    pub const fn strides(&self) -> (u32, u32) {
        match self.along {
            Along::Row => (1, self.pitch),
            Along::K => (self.pitch, 1),
        }
    }

    /// The same memory under another type.
    pub fn words(&self, b: &mut Builder, name: &str, scalar: Scalar) -> SharedId {
        let (bytes, at) = match b.kernel().shared.get(self.array.index()) {
            Some(array) => (array.len * array.scalar.bytes(), array.byte_offset),
            None => (0, 0),
        };
        b.shared(name, scalar, bytes.div_ceil(scalar.bytes()), at)
    }

    /// Position in a stage.
    pub fn at(&self, b: &mut Builder, row: ExprId, k: ExprId) -> ExprId {
        if self.is_permuted() {
            return self.layout.emit(b, Axis::Position, &[(Axis::Row, row), (Axis::K, k)], Scalar::I32);
        }
        let (row_stride, k_stride) = self.strides();
        b.value(row * row_stride + k * k_stride)
    }

    /// Places are no sums of a row's and a k's: chunks are permuted, or lines cut into panels.
    pub const fn is_permuted(&self) -> bool {
        self.panels.is_some() || self.layout.is_permuted()
    }

    /// Where eight rows are read from, of a place that [`Self::blocks`] and [`Self::steps`] led to.
    pub fn read_from(&self, b: &mut Builder, at: ExprId) -> ExprId {
        if self.halo.is_none() || !self.layout.is_permuted() {
            return at;
        }
        let at = b.bind("read_at", at);
        self.layout.permuted(b, at)
    }

    /// The same of numbers.
    pub fn position(&self, row: u32, k: u32) -> i32 {
        self.layout.at(Axis::Position, &[(Axis::Row, row.into()), (Axis::K, k.into())]) as i32
    }

    /// Elements that one access along rows moves at most, of so many.
    pub fn vector_of_rows(&self, most: u32) -> u32 {
        if self.panels.is_some() { self.layout.vector(Axis::Row, most) } else { most }
    }

    /// Elements that one access along lines moves at most, of so many: a power of two.
    pub fn vector_of_lines(&self, most: u32) -> u32 {
        let axis = if self.along == Along::K { Axis::K } else { Axis::Row };
        match self.panels {
            Some(_) => gcd(self.layout.vector(axis, most), self.stage),
            None => gcd(gcd(most, self.pitch), self.stage),
        }
    }

    /// Where k-tile `k` of a stage is read from, [`Self::steps`] on.
    pub fn from(&self, b: &mut Builder, stage: ExprId, k: ExprId) -> ExprId {
        if self.halo.is_some() { k } else { b.value(stage * self.stage) }
    }

    /// A position, of a k below `depth`, this many times `depth` further along k; of windows the same from the k-tile's first k on.
    pub fn steps(&self, b: &mut Builder, at: ExprId, steps: ExprId, depth: u32) -> ExprId {
        if let Some(halo) = &self.halo {
            let local = b.value((steps * depth).cast(b.ty(at).scalar));
            return at_axis(b, &halo.k, COL, Coord { aligned: at, every: self.k_tile.into(), local });
        }
        match &self.panels {
            Some(tile) if tile.k_contiguous => {
                // Steps within a line are bits of the chunk's number that the position's own does not have.
                let of_line = (tile.row / depth).max(1);
                let column = self.part(1) / tile.columns * (depth / tile.row).max(1);
                let within = b.value(steps % of_line * depth);
                let within = if of_line == 1 { at } else { b.binary(BinaryOp::Xor, at, within) };
                b.value(within + steps / of_line * column)
            }
            _ => b.value(at + steps * (depth * self.strides().1)),
        }
    }

    /// Positions of `count` rows `every` (a multiple of 8) apart, from this (row, k) on. They are distances from the first
    /// position, which comes with them. Where distances follow from the row, the first is 0. Windows are those of a tile whose
    /// rows begin at `start`.
    pub fn blocks(
        &self,
        b: &mut Builder,
        start: Option<Coord>,
        [row, k]: [ExprId; 2],
        count: u32,
        every: u32,
    ) -> (ExprId, Vec<ExprId>) {
        let zero = b.int(0, Scalar::I32);
        if let (Some(halo), Some(start)) = (&self.halo, start) {
            let first = at_axis(b, &halo.row, ROW, start);
            let place = |b: &mut Builder, i: u32| {
                let local = b.value(start.local + (row + i * every).cast(b.ty(start.local).scalar));
                let position = at_axis(b, &halo.row, ROW, Coord { local, ..start });
                b.bind("window_at", (position - first) * self.pitch + k)
            };
            return (zero, (0..count).map(|i| place(b, i)).collect());
        }
        let additive = self.panels.is_none() || self.along == Along::K;
        if additive {
            let distances = (0..count).map(|i| b.int((i * every * self.strides().0).into(), Scalar::I32)).collect();
            return (self.at(b, row, k), distances);
        }
        let place = |b: &mut Builder, i: u32| {
            let row = b.value(row + i * every);
            let at = self.at(b, row, k);
            b.bind("block_at", at)
        };
        (zero, (0..count).map(|i| place(b, i)).collect())
    }

    /// Where the blocks of 8 rows of a panelled tile are, seen from the first block. The first of the `rows` rows is a multiple of `rows`.
    /// `None` without panels, and where a row's number would carry within its panel.
    pub fn apart(&self, rows: u32) -> Option<Vec<Apart>> {
        let wide = match self.along {
            Along::K => 1,
            Along::Row => self.panels.as_ref()?.row,
        };
        let carries = !rows.is_multiple_of(wide) && !wide.is_multiple_of(rows);
        let at = |row: u32| Apart { bits: row % wide, elements: self.position(row - row % wide, 0) as u32 };
        (self.panels.is_some() && !carries).then(|| (0..rows).step_by(8).map(at).collect())
    }
}

/// The place of a block of rows in panels, seen from the first block: bits of the position that differ, and elements to add.
///
/// The bits of a distance along k are below all of the elements. So they are xor-ed in first, and the elements become a constant of the load
/// instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Apart {
    pub bits: u32,
    pub elements: u32,
}

/// A form of one coordinate.
fn at_axis(b: &mut Builder, form: &Affine, axis: usize, coord: Coord) -> ExprId {
    let zero = b.int(0, b.ty(coord.local).scalar);
    let mut point = [Coord::plain(b, zero); 3];
    point[axis] = coord;
    affine(b, form, &point, Part::Whole, Scalar::I32)
}
