//! What every part of a kernel is built from: its operands, the sizes of its launch, the types of its index arithmetic.

use crate::kernel::reduce::Parts;
use crate::plan::{Edge, Halo, OperandTiling, PaddedRows, Source, in_runs, padded_rows};
use tilewright_ir::affine::{Affine, Coord, Part, affine, in_range};
use tilewright_ir::{Builder, ExprId, Scalar};
use tilewright_problem::Extent;
use tilewright_problem::contraction::{Contraction, Operand, Tensor};
use tilewright_problem::view::{G, ROW, View};

/// What the main kernel reads an operand through: its own view, or a copy in workspace.
#[derive(Clone)]
pub(crate) struct Input {
    pub operand: Operand,
    pub tensor: Tensor,
    pub tiling: OperandTiling,
    /// Which extent its rows are, where that is known only at launch.
    pub rows: Option<Extent>,
    /// They are those of groups, whose ends are known on the device alone.
    pub grouped: bool,
    /// Sums begin and end at any term, which is known on the device alone.
    pub any_term: bool,
    /// How many batch entries there are is known only at launch.
    pub run_time_batch: bool,
    /// The copy is indexed by the position within the chunk, not by the batch coordinate.
    pub chunk_local: bool,
    pub edge: Edge,
    /// Of two tensors the one that has a row: see [`Contraction::up`]. None: there is one.
    pub up: Option<Affine>,
}

/// Rows of C that a part computes: all, the rows before a split tail, or the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// The first row, and the row of tiles that begins there.
    pub first: u64,
    pub first_tile: u64,
    /// Their number.
    pub count: u64,
}

impl Rows {
    /// All rows of C.
    pub fn all(c: &Contraction) -> Rows {
        Rows { first: 0, first_tile: 0, count: c.m }
    }
}

/// Sizes of the launch shared by the modules.
pub(crate) struct Shape {
    pub rows: Rows,
    /// Tiles along m and n, of whole clusters.
    pub tiles_m: u64,
    pub tiles_n: u64,
    pub k_tiles: u64,
    /// Batch entries per launch.
    pub chunk: u64,
    pub chunks: u64,
}

/// Where the workspace holds what: copies of the operands, partial sums, parts of reductions.
pub(crate) struct Regions {
    pub copies: [Option<u64>; 2],
    /// Copies that another part in the launch has as well, and fills.
    pub filled: [bool; 2],
    pub partials: Option<u64>,
    /// The parts of each reduction.
    pub reductions: Vec<Parts>,
}

/// Elements of an operand from which on offsets within it take 64 bits. Leaves room for tiles that overrun the edge.
pub const WIDE_OFFSETS: u64 = (1 << 31) - (1 << 16);

/// Integer types of index arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ints {
    /// Coordinates.
    pub coord: Scalar,
    /// Element offsets within a tensor.
    pub offset: Scalar,
}

impl Ints {
    /// The narrowest types that hold every coordinate and offset of the launch.
    pub fn new(wide: bool, extents: &[u64], lens: &[u64]) -> Ints {
        let ty = |values: &[u64]| if wide || values.iter().any(|&v| v >= WIDE_OFFSETS) { Scalar::I64 } else { Scalar::I32 };
        let offset = ty(lens);
        Ints { coord: if offset == Scalar::I64 && wide { Scalar::I64 } else { ty(extents) }, offset }
    }
}

impl Input {
    /// It is read through a copy in workspace; sums without terms read nothing.
    pub fn copied(&self, c: &Contraction) -> bool {
        self.tiling.source != Source::InPlace && c.k > 0
    }
    /// What the copy of this operand reads and writes, through the same coordinates: the operand's, or rows and channels of its tensor.
    pub fn copy_of(&self, source: &Tensor) -> (Tensor, Input) {
        if let Source::CopyInRuns(run) = self.tiling.source {
            return (in_runs(source, run), self.clone());
        }
        match padded_rows(source) {
            Ok(PaddedRows { copied: [from, to], .. }) if self.tiling.source == Source::PaddedRows => {
                (from, Input { tensor: to, ..self.clone() })
            }
            _ => (source.clone(), self.clone()),
        }
    }
    /// The windows of its result tiles, by position and channel. Positions that do not exist read as zeros.
    pub fn of_halo(&self, halo: &Halo) -> Input {
        let tensor = Tensor { view: halo.view.clone(), ..self.tensor.clone() };
        Input { tensor, tiling: halo.tile.clone(), rows: None, grouped: false, edge: Edge::PullBack, ..self.clone() }
    }
    /// Rows of a copy beyond the operand's last that a copy known only at launch fills as well: to the end of a panel.
    pub fn padding_rows(&self) -> u64 {
        if self.tiling.source == Source::Packed { u64::from(self.tiling.macro_tile) - 1 } else { 0 }
    }
    /// Its last row is known only at launch, or on the device alone.
    pub const fn ends_anywhere(&self) -> bool {
        self.rows.is_some() || self.grouped
    }
    /// The same with other tiles.
    pub fn with_tiling(&self, tiling: OperandTiling) -> Input {
        Input { tiling, ..self.clone() }
    }
    /// Some rows of the last macro tile do not exist in memory.
    pub fn rows_overrun(&self, tiles: u64) -> bool {
        // Panels are filled to their ends.
        if self.ends_anywhere() && self.tiling.source != Source::Packed {
            return true;
        }
        self.edge == Edge::Predicate && tiles * self.tiling.macro_tile as u64 > self.tensor.view.extent[ROW]
    }
}

/// The place in memory of an element, or of the pair that it is half of, by the element's number.
pub(crate) fn in_memory(b: &mut Builder, x: &Tensor, element: ExprId) -> ExprId {
    if x.scalar.numbers() == 1 { element } else { b.value(element >> 1) }
}

/// Whether an element of a view exists at a point, besides what has to hold anyway.
pub(crate) fn exists(b: &mut Builder, x: &View, at: &[Coord; 3], coord: Scalar, guard: Option<ExprId>) -> Option<ExprId> {
    x.access.bounds.iter().fold(guard, |guard, bound| {
        let value = affine(b, &bound.value, at, Part::Whole, coord);
        let inside = in_range(b, value, bound.low, bound.high);
        b.and_opt(guard, Some(inside))
    })
}

/// Where batch entry `g` of a tensor starts, from the tensor's first element.
pub(crate) fn entry_start(b: &mut Builder, x: &Tensor, g: Coord) -> ExprId {
    let zero = b.int(0, b.ty(g.local).scalar);
    let nowhere = Coord::plain(b, zero);
    affine(b, &x.view.access.offset, &[g, nowhere, nowhere], Part::Alone(G), Scalar::I64)
}
