//! An operand's k-tiles in shared memory: an array of stages, and where an element lies in one.
//!
//! Copies write through this and every unit reads through it. Lines run along rows or along k; they are padded, or cut into the swizzled
//! panels of 128 bytes that bulk copies write and warpgroup instructions read.

use crate::plan::{Along, BulkTile, OperandTiling, Transport, gcd};
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::*;

/// The stages of one operand.
#[derive(Clone)]
pub(crate) struct SharedTile {
    pub array: SharedId,
    /// (row, k) to the element's position in a stage.
    layout: Layout,
    /// Direction of a line.
    pub along: Along,
    /// Elements from one line to the next.
    pub pitch: u32,
    /// Elements from one stage to the next.
    pub stage: u32,
    /// The panels, where lines are cut into them.
    pub panels: Option<BulkTile>,
}

impl SharedTile {
    /// Declares the stages from this byte of shared memory on.
    pub fn new(
        b: &mut Builder,
        name: &str,
        scalar: Scalar,
        (o, copy): (&OperandTiling, &Transport),
        (k_tile, stages, at): (u32, u32, u32),
    ) -> SharedTile {
        let panels = copy.tile().cloned();
        let (along, pitch, stage, layout) = match &panels {
            Some(tile) => {
                let along = if tile.k_contiguous { Along::K } else { Along::Row };
                (along, tile.row, tile.bytes / scalar.bytes(), tile.layout())
            }
            None => {
                let (lines, pitch) = o.lines(k_tile);
                (o.shared_along, pitch, pitch * lines, o.shared(k_tile))
            }
        };
        let array = b.shared(name, scalar, stage * stages, at);
        SharedTile { array, layout, along, pitch, stage, panels }
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
        if self.panels.is_some() {
            return self.layout.emit(b, Axis::Position, &[(Axis::Row, row), (Axis::K, k)], Scalar::I32);
        }
        let (row_stride, k_stride) = self.strides();
        b.value(row * row_stride + k * k_stride)
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

    /// A position, of a k below `depth`, this many times `depth` further along k.
    pub fn steps(&self, b: &mut Builder, at: ExprId, steps: ExprId, depth: u32) -> ExprId {
        match &self.panels {
            Some(tile) if tile.k_contiguous => {
                // Steps within a line are bits of the chunk's number that the position's own does not have.
                let of_line = (tile.row / depth).max(1);
                let column = self.stage / tile.columns * (depth / tile.row).max(1);
                let within = b.value(steps % of_line * depth);
                let within = if of_line == 1 { at } else { b.binary(BinaryOp::Xor, at, within) };
                b.value(within + steps / of_line * column)
            }
            _ => b.value(at + steps * (depth * self.strides().1)),
        }
    }

    /// Positions of rows `every` (a multiple of 8) apart, from this (row, k) on, as distances from the first of them, which comes with
    /// them. Where distances follow from the row, the first is 0.
    pub fn blocks(&self, b: &mut Builder, row: ExprId, k: ExprId, (count, every): (u32, u32)) -> (ExprId, Vec<ExprId>) {
        let additive = self.panels.is_none() || self.along == Along::K;
        if additive {
            let distances = (0..count).map(|i| b.int((i * every * self.strides().0).into(), Scalar::I32)).collect();
            return (self.at(b, row, k), distances);
        }
        let zero = b.int(0, Scalar::I32);
        let place = |b: &mut Builder, i: u32| {
            let row = b.value(row + i * every);
            let at = self.at(b, row, k);
            b.bind("block_at", at)
        };
        (zero, (0..count).map(|i| place(b, i)).collect())
    }
}
