//! What happens behind the scaled sums, wherever results are stored: bias, activation, residual.
//!
//! `out = activation(alpha * sum + bias + beta * C) + residual` (see [`tilewright_problem::epilogue`]). The main kernel's epilogue does it
//! for runs of neighbouring results, `helpers` for one at a time.

use crate::kernel::input::Ints;
use crate::plan::reach::vector_width;
use crate::program::Binding;
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::*;
use tilewright_problem::Activation;
use tilewright_problem::contraction::{Bias, Contraction, Tensor};
use tilewright_problem::epilogue::GELU_CUBE;
use tilewright_problem::view::{COL, G, ROW};

/// The arguments of what is added.
#[derive(Clone, Copy, Default)]
pub(crate) struct Added {
    bias: Option<ArgId>,
    residual: Option<ArgId>,
}

/// A run of neighbouring results: where it starts, and along which of row and column it goes on.
#[derive(Clone)]
pub(crate) struct Run {
    pub g: ExprId,
    pub row: Coord,
    pub col: Coord,
    /// Neighbours differ in their column.
    pub by_column: bool,
    pub length: u32,
    pub start: Start,
    /// How many rows and columns there are, where those of a run may lie behind the last.
    pub overruns: [Option<Ex>; 2],
}

/// What is known of where a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At a multiple of its length, counted along the result.
    Multiple,
    /// At a multiple of its length, counted in the result's memory: rows may begin anywhere.
    InMemory,
}

impl Added {
    /// Declares the arguments.
    pub fn declare(b: &mut Builder, c: &Contraction) -> Added {
        Added {
            bias: c.bias.as_ref().map(|x| b.buffer("bias", x.scalar, Access::Read, "added to the result")),
            residual: c
                .residual
                .as_ref()
                .map(|x| b.buffer("residual", x.scalar, Access::Read, "added last, as large as the result")),
        }
    }

    /// What the arguments are bound to, in their order.
    pub fn bindings(c: &Contraction) -> impl Iterator<Item = Binding> {
        let bias = c.bias.as_ref().map(|_| Binding::Bias);
        bias.into_iter().chain(c.residual.as_ref().map(|_| Binding::Residual))
    }

    /// Where residuals of batch entry `g` start.
    pub fn residual_base(&self, b: &mut Builder, c: &Contraction, g: ExprId) -> Option<Base> {
        let (residual, buffer) = c.residual.as_ref().zip(self.residual)?;
        let zero = b.int(0, b.ty(g).scalar);
        let nowhere = Coord::plain(b, zero);
        let g = Coord::plain(b, g);
        let mut form = residual.view.access.offset.clone();
        form.terms.retain(|(a, _)| a.uses(G) && !a.uses(ROW) && !a.uses(COL));
        let start = affine(b, &form, &[g, nowhere, nowhere], Part::Whole, Scalar::I64);
        Some(Base::Cursor(b.cursor("residual_from", buffer, start)))
    }

    /// Bias values of a run, in the type of the sums; none without a bias.
    pub fn bias(&self, b: &mut Builder, c: &Contraction, run: &Run, acc: Scalar) -> Option<Vec<ExprId>> {
        let (bias, buffer) = c.bias.as_ref().zip(self.bias)?;
        let (along, overruns) = if bias.along_n { (run.col, &run.overruns[1]) } else { (run.row, &run.overruns[0]) };
        let moves = bias.along_n == run.by_column;
        let (width, parts) = match moves {
            false => (1, 1),
            true if run.start == Start::Multiple && bias_width(bias, run.length) == run.length => (run.length, 1),
            true => (1, run.length),
        };
        let along = along.value(b);
        let mut values = Vec::new();
        for part in 0..parts {
            let index = b.value(along + part);
            // Edge elements beyond the result have no bias value: they are not stored either.
            let index = match overruns {
                None => index,
                Some(extent) => b.value(index.min(extent - width)),
            };
            let zero = b.int(0, b.ty(index).scalar);
            let point = [Coord::plain(b, run.g), Coord::plain(b, index), Coord::plain(b, zero)];
            let at = affine(b, &bias.view.access.offset, &point, Part::Whole, Scalar::I64);
            let value = b.load("bias_value", Base::Buffer(buffer), at, width, None);
            for lane in 0..width {
                values.push(b.value(value.extract(lane).cast(acc)));
            }
        }
        values.resize(run.length as usize, values[0]);
        Some(values)
    }

    /// Residuals of a run that exists where the guard holds, in the type of the sums; none without a residual.
    #[allow(clippy::too_many_arguments)]
    pub fn residual(
        &self,
        b: &mut Builder,
        c: &Contraction,
        run: &Run,
        base: Option<Base>,
        guard: Option<ExprId>,
        ints: Ints,
        acc: Scalar,
    ) -> Option<Vec<ExprId>> {
        let (residual, base) = c.residual.as_ref().zip(base)?;
        let point = [Coord::plain(b, run.g), run.row, run.col];
        let mut form = residual.view.access.offset.clone();
        form.terms.retain(|(a, _)| a.uses(ROW) || a.uses(COL));
        // The base has it.
        form.constant = 0;
        let width = residual_width(residual, &c.c, run);
        let mut values = Vec::new();
        for part in 0..run.length / width {
            let at = match width == run.length {
                true => affine(b, &form, &point, Part::Whole, ints.offset),
                // A residual of single elements need not be contiguous where the result is.
                false => {
                    let next = |b: &mut Builder, x: Coord| {
                        let value = x.value(b);
                        let value = b.value(value + part);
                        Coord::plain(b, value)
                    };
                    let point = match run.by_column {
                        true => [point[G], run.row, next(b, run.col)],
                        false => [point[G], next(b, run.row), run.col],
                    };
                    affine(b, &form, &point, Part::Whole, ints.offset)
                }
            };
            let value = b.load("residual_value", base, at, width, guard);
            for lane in 0..width {
                values.push(b.value(value.extract(lane).cast(acc)));
            }
        }
        Some(values)
    }
}

/// The run's length, or 1: how many bias values are read at once.
fn bias_width(bias: &Bias, length: u32) -> u32 {
    let align = tilewright_problem::lower::BUFFER_ALIGN / bias.scalar.bytes();
    if bias.view.vector_width(ROW, length, align) == length { length } else { 1 }
}

/// The run's length, or 1: how many residuals are read at once.
fn residual_width(residual: &Tensor, result: &Tensor, run: &Run) -> u32 {
    let axis = if run.by_column { COL } else { ROW };
    let fits = match run.start {
        Start::Multiple => vector_width(residual, axis, run.length) == run.length,
        // Where rows begin as those of the result do, its runs begin as those of the result do.
        Start::InMemory => residual.view.is_affine_box().zip(result.view.is_affine_box()).is_some_and(|(x, y)| {
            let length = i64::from(run.length);
            x.strides[axis] == 1 && [G, ROW, COL].iter().all(|&d| (x.strides[d] - y.strides[d]) % length == 0)
        }),
    };
    if fits { run.length } else { 1 }
}

/// The activation of a value, in the value's type. NaN stays NaN.
pub(crate) fn activate(b: &mut Builder, activation: Option<Activation>, x: ExprId) -> ExprId {
    let Some(activation) = activation else { return x };
    let ty = b.ty(x).scalar;
    let x = b.bind("x", x);
    let constant = |b: &mut Builder, value: f64| b.float(value, ty);
    match activation {
        Activation::Relu => {
            let zero = constant(b, 0.0);
            b.value(x.lt(zero).select(zero, x))
        }
        Activation::Gelu => {
            let (half, scale) = (constant(b, 0.5), constant(b, std::f64::consts::FRAC_1_SQRT_2));
            let half = b.value(x * half);
            b.value(half.fma((x * scale).unary(UnaryOp::Erf), half))
        }
        // x / 2 * (1 + tanh(y)) = x * sigmoid(2 y), which keeps its accuracy for negative x.
        Activation::GeluTanh => {
            let slope = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
            let (linear, cubic) = (constant(b, slope), constant(b, slope * GELU_CUBE));
            b.value(x * (x * (x * x).fma(cubic, linear)).unary(UnaryOp::Sigmoid))
        }
        Activation::Silu => b.value(x * x.unary(UnaryOp::Sigmoid)),
    }
}
