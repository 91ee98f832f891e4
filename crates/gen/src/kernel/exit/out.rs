//! The epilogue: what happens to the accumulators before the store.
//!
//! Results go straight from registers (in vectors where C is contiguous along a thread's own elements), or through a staging buffer of
//! shared memory so that adjacent threads store adjacent elements. A split along k adds atomically or leaves partial sums
//! in workspace.

use crate::kernel::exit::fused::{Added, Run, Start, activate};
use crate::kernel::input::{Input, Ints};
use crate::kernel::tile::position::TilePosition;
use crate::kernel::unit::Accumulators;
use crate::plan::{Edge, KernelSpec};
use tilewright_ir::affine::{Coord, Part, affine, in_range};
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{COL, G, ROW};

/// Where results go.
pub(crate) enum OutArgs {
    /// Into C: `activation(alpha * sum + bias + beta * C) + residual`.
    Store { buffer: ArgId, offset: ExprId, added: Added, alpha: ExprId, beta: ExprId },
    /// Added to C, which another kernel has scaled.
    Atomic { buffer: ArgId, offset: ExprId, alpha: ExprId },
    /// Plain sums into workspace, laid out `[split][chunk entry][partial_index]`.
    Partials { partials: ArgId, chunk: u64 },
}

/// True if C is contiguous along n (else along m, or along neither).
pub(crate) fn columns_contiguous(c: &Contraction) -> bool {
    c.c.view.stride(COL) == Some(1)
}

/// Index of a result element within one m x n block of partial sums: contiguous in the direction C is.
pub(crate) fn partial_index(b: &mut Builder, c: &Contraction, row: ExprId, col: ExprId, ty: Scalar) -> ExprId {
    let row = b.value(row.cast(ty));
    let col = b.value(col.cast(ty));
    let (slow, length, fast) = if columns_contiguous(c) { (row, c.n, col) } else { (col, c.m, row) };
    b.value(slow * (length as i64) + fast)
}

impl OutArgs {
    /// Bytes of a stored result.
    pub fn bytes(&self, c: &Contraction) -> u32 {
        match self {
            OutArgs::Partials { .. } => c.accumulator().bytes(),
            _ => c.c.scalar.bytes(),
        }
    }
}

pub(crate) struct Out<'a> {
    pub c: &'a Contraction,
    pub spec: &'a KernelSpec,
    pub inputs: [&'a Input; 2],
    pub at: &'a TilePosition,
    pub args: &'a OutArgs,
    pub base: Base,
    /// Where residuals of this batch entry start.
    pub residual: Option<Base>,
    pub ints: Ints,
    pub acc: Scalar,
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn out<'a>(
    b: &mut Builder,
    c: &'a Contraction,
    spec: &'a KernelSpec,
    inputs: [&'a Input; 2],
    at: &'a TilePosition,
    args: &'a OutArgs,
    ints: Ints,
) -> Out<'a> {
    b.comment("epilogue");
    let base = match args {
        OutArgs::Store { buffer, offset, .. } | OutArgs::Atomic { buffer, offset, .. } => {
            let zero = b.int(0, ints.coord);
            let nowhere = Coord::plain(b, zero);
            let g = Coord::plain(b, at.g);
            let mut form = c.c.view.access.offset.clone();
            form.terms.retain(|(a, _)| a.uses(G) && !a.uses(ROW) && !a.uses(COL));
            let start = affine(b, &form, &[g, nowhere, nowhere], Part::Whole, Scalar::I64);
            Base::Cursor(b.cursor("c_to", *buffer, *offset + start))
        }
        OutArgs::Partials { partials, chunk } => Base::Cursor(b.cursor(
            "partials_to",
            *partials,
            (at.split.cast(Scalar::I64) * *chunk as i64 + at.g_local.cast(Scalar::I64)) * ((c.m * c.n) as i64),
        )),
    };
    let residual = match args {
        OutArgs::Store { added, .. } => added.residual_base(b, c, at.g),
        _ => None,
    };
    Out { c, spec, inputs, at, args, base, residual, ints, acc: c.accumulator() }
}

impl Out<'_> {
    /// Stores with and without reading the old result, whichever beta asks for.
    pub fn by_beta(&self, b: &mut Builder, write: impl Fn(&mut Builder, bool)) {
        let OutArgs::Store { beta, .. } = self.args else { return write(b, false) };
        let zero = b.float(0.0, self.acc);
        b.if_else((*beta).equals(zero), |b| write(b, false), |b| write(b, true));
    }

    /// Each thread stores its runs of a unit's accumulators.
    pub fn runs(&self, b: &mut Builder, math: &dyn Accumulators, old: bool) {
        let width = self.spec.epilogue.store_width.max(1) as usize;
        math.runs(b, &mut |b, row, col, values| {
            for (i, part) in values.chunks(width).enumerate() {
                let col = b.value(col + (i * width));
                self.put(b, row, col, part, old);
            }
        });
    }

    /// What is outside of rows and columns: the batch entry, with partial sums the split and the entry.
    pub fn outer(&self, b: &mut Builder) -> ExprId {
        match self.args {
            OutArgs::Partials { chunk, .. } => b.value(self.at.split.cast(self.ints.coord) * *chunk as i64 + self.at.g_local),
            _ => self.at.g,
        }
    }

    /// What replaces C without reading it, for consecutive results that start at this coordinate; partial sums as they are.
    pub fn results(&self, b: &mut Builder, row: Coord, col: Coord, values: &[ExprId]) -> Vec<ExprId> {
        let OutArgs::Store { .. } = self.args else { return values.to_vec() };
        let run = self.run(row, col, values, Start::Multiple);
        let scaled = self.scaled(b, &run, values);
        let guard = match self.residual {
            Some(_) => {
                let guard = self.owned(b, row, self.at.tile_m, 0);
                let other = self.owned(b, col, self.at.tile_n, 1);
                b.and_opt(guard, other)
            }
            None => None,
        };
        self.finished(b, &run, scaled, guard)
    }

    fn run(&self, row: Coord, col: Coord, values: &[ExprId], start: Start) -> Run {
        let overruns = [0, 1].map(|axis| {
            let extent = [self.c.m, self.c.n][axis];
            let may = self.inputs[axis].edge == Edge::Predicate && self.overruns(axis);
            self.at.sizes[axis].map(Ex::from).or(may.then_some(extent.into()))
        });
        Run { g: self.at.g, row, col, by_column: columns_contiguous(self.c), length: values.len() as u32, start, overruns }
    }

    /// Sums times alpha plus bias.
    fn scaled(&self, b: &mut Builder, run: &Run, values: &[ExprId]) -> Vec<ExprId> {
        let OutArgs::Store { added, alpha, .. } = self.args else { return values.to_vec() };
        let mut parts: Vec<ExprId> = values.iter().map(|&v| b.value(*alpha * v)).collect();
        if let Some(bias) = added.bias(b, self.c, run, self.acc) {
            for (part, bias) in parts.iter_mut().zip(bias) {
                *part = b.value(*part + bias);
            }
        }
        parts
    }

    /// Activation and residual.
    fn finished(&self, b: &mut Builder, run: &Run, mut parts: Vec<ExprId>, guard: Option<ExprId>) -> Vec<ExprId> {
        let OutArgs::Store { added, .. } = self.args else { return parts };
        for part in &mut parts {
            *part = activate(b, self.c.activation, *part);
        }
        if let Some(residual) = added.residual(b, self.c, run, self.residual, guard, self.ints, self.acc) {
            for (part, residual) in parts.iter_mut().zip(residual) {
                *part = b.value(*part + residual);
            }
        }
        parts
    }

    /// Stores consecutive results that start at (row, col) of the macro tile.
    pub fn put(&self, b: &mut Builder, row: ExprId, col: ExprId, values: &[ExprId], old: bool) {
        self.put_from(b, [row, col], values, old, Start::Multiple);
    }

    /// As [`Out::put`], for results of which `start` tells where they begin.
    pub fn put_from(&self, b: &mut Builder, [row, col]: [ExprId; 2], values: &[ExprId], old: bool, start: Start) {
        let coord = |b: &mut Builder, first: Coord, x: ExprId| {
            let local = b.value(first.local + x.cast(self.ints.coord));
            Coord { local, ..first }
        };
        let row = coord(b, self.at.m_start, row);
        let col = coord(b, self.at.n_start, col);
        let guard_m = self.owned(b, row, self.at.tile_m, 0);
        let guard_n = self.owned(b, col, self.at.tile_n, 1);
        let mut guard = b.and_opt(guard_m, guard_n);
        let (row_value, col_value) = (row.value(b), col.value(b));
        if let OutArgs::Partials { .. } = self.args {
            let at = partial_index(b, self.c, row_value, col_value, self.ints.offset);
            let value = b.vector(values);
            return b.store(self.base, at, value, guard);
        }
        let g = Coord::plain(b, self.at.g);
        let point = [g, row, col];
        let access = &self.c.c.view.access;
        for bound in &access.bounds {
            let value = affine(b, &bound.value, &point, Part::Whole, self.ints.coord);
            let inside = in_range(b, value, bound.low, bound.high);
            guard = b.and_opt(guard, Some(inside));
        }
        let mut form = access.offset.clone();
        form.terms.retain(|(a, _)| a.uses(ROW) || a.uses(COL));
        // The base has it.
        form.constant = 0;
        let at = affine(b, &form, &point, Part::Whole, self.ints.offset);
        match self.args {
            OutArgs::Atomic { alpha, .. } => {
                for (i, &value) in values.iter().enumerate() {
                    let value = b.value(*alpha * value);
                    let mem = b.mem(self.base, at + i);
                    b.push(Stmt::Atomic { op: AtomicOp::Add, mem, value, guard });
                }
            }
            OutArgs::Store { beta, .. } => {
                let run = self.run(row, col, values, start);
                let mut parts = self.scaled(b, &run, values);
                let width = values.len() as u32;
                if old {
                    let before = b.load("before", self.base, at, width, guard);
                    for (i, part) in parts.iter_mut().enumerate() {
                        *part = b.value((*beta).fma(before.extract(i as u32).cast(self.acc), *part));
                    }
                }
                let parts = self.finished(b, &run, parts, guard);
                let cast: Vec<ExprId> = parts.iter().map(|&p| b.value(p.cast(self.c.c.scalar))).collect();
                let value = b.vector(&cast);
                b.store(self.base, at, value, guard);
            }
            OutArgs::Partials { .. } => {}
        }
    }

    /// Tiles, of whole clusters, reach beyond the result along an axis.
    pub fn overruns(&self, axis: usize) -> bool {
        let cluster = self.spec.tiling.cluster;
        let tiles = u64::from(self.inputs[axis].tiling.macro_tile) * u64::from([cluster.m, cluster.n][axis]);
        ![self.c.m, self.c.n][axis].is_multiple_of(tiles)
    }

    /// Condition under which this work-group stores a row (axis 0) or column (axis 1); `None` where it always does.
    fn owned(&self, b: &mut Builder, position: Coord, tile: ExprId, axis: usize) -> Option<ExprId> {
        let extent = [self.c.m, self.c.n][axis] as i64;
        let size = self.inputs[axis].tiling.macro_tile as i64;
        let run_time = self.at.sizes[axis];
        if !self.overruns(axis) && run_time.is_none() {
            return None;
        }
        let value = position.value(b);
        if let Some(extent) = run_time {
            return Some(b.value(value.lt(extent)));
        }
        Some(match self.inputs[axis].edge {
            // The pulled-back tile leaves what its neighbour owns alone.
            Edge::PullBack => b.value((tile.cast(self.ints.coord) * size).le(value)),
            Edge::Predicate => b.value(value.lt(extent)),
        })
    }
}
