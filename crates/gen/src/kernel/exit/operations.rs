//! The epilogue operations of a contraction, applied to sums: one interpreter for every exit, and for the kernel that sums splits.
//!
//! Operations ([`tilewright_problem::contraction::EpilogueOp`]) come in the order of their list, and see runs of neighbouring results
//! with their row and column.

use super::functions::activate;
use super::zero_points::ZeroPoints;
use crate::kernel::arguments::Arguments;
use crate::kernel::input::{Ints, entry_start};
use crate::plan::Split;
use crate::plan::reach::{gap_width, vector_width};
use crate::program::Binding;
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::*;
use tilewright_problem::contraction::{Contraction, EpilogueOp, Tensor, Vector};
use tilewright_problem::view::{COL, G, ROW};
use tilewright_problem::{Activation, Gate, Quant};

/// The operations that a kernel applies, and the arguments that they read.
#[derive(Clone)]
pub(crate) struct Operations<'a> {
    c: &'a Contraction,
    all: Vec<Operation<'a>>,
}

/// The operations of a gated product, around its gate.
pub(crate) struct AroundGate<'a> {
    pub on_sums: Operations<'a>,
    pub gate: Gate,
    pub on_results: Operations<'a>,
}

/// The addition of old results to sums, ahead of the other operations.
pub(crate) struct OldAhead<'a> {
    /// Whether old results are read.
    pub read: ExprId,
    /// Alpha times the sum plus beta times the old result.
    pub addition: Operations<'a>,
    /// The operations that follow, in either case.
    pub rest: Operations<'a>,
}

/// An operation with what it reads.
#[derive(Clone, Copy)]
enum Operation<'a> {
    Centre(ZeroPoints<'a>),
    Times(ExprId),
    ScaleVector(&'a Vector, ArgId),
    AddVector(&'a Vector, ArgId),
    AddOld(ExprId),
    /// The old result of complex numbers, parts side by side, and both parts of its factor: multiplied, or multiplied already.
    TurnOld([ExprId; 2]),
    AddTurned([ExprId; 2]),
    Activate(Activation),
    /// Values are stored as they are; of the batch entry's start, once that is known.
    Store(&'a Tensor, ArgId, Option<Base>),
    /// Two sums become one result, between operations on sums and those on results.
    Gate(Gate),
    /// What is done with it; of the batch entry's start, once that is known.
    Tensor(Use, &'a Tensor, ArgId, Option<Base>),
}

/// What becomes of a result and a tensor's element in its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Add,
    Mask,
}

/// Which of a contraction's operations a kernel applies: what splits of k leave to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// All, to complete sums.
    All,
    /// What is linear in the sum, to a part of it that is added to others.
    Linear,
    /// Ahead of kernels that apply all to the sums: what is multiplied in place, into what those add.
    Ahead,
    /// The rest, to 0, before parts of sums are added: those would count as arguments of an activation, which such plans do not have.
    Rest,
    /// None, to partial sums.
    None,
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
    /// Offset in elements from the result's position, for a run of adjacent memory within one result (one row and column).
    pub piece: Option<u32>,
    pub start: Start,
    /// Numbers of rows and columns, where a run may extend past the last row or column.
    pub overruns: [Option<Ex>; 2],
}

/// Values of one store.
pub(crate) struct Piece {
    /// The store's offset in elements from the result's position.
    pub offset: Option<u32>,
    pub values: Vec<ExprId>,
}

/// Splits consecutive values into stores. A result with gaps is stored with the zeros around it, in vectors as wide as memory allows.
/// Atomic additions store only the value: another kernel has written the zeros.
pub(crate) fn pieces(b: &mut Builder, c: &Contraction, accumulators: &[ExprId], atomic: bool) -> Vec<Piece> {
    let (Some(gaps), [sum]) = (c.gaps, accumulators) else {
        return vec![Piece { offset: None, values: accumulators.to_vec() }];
    };
    if atomic {
        return vec![Piece { offset: Some(gaps.before), values: vec![*sum] }];
    }
    let ty = b.ty(*sum);
    let zero = b.zero(ty);
    let all: Vec<ExprId> = (0..gaps.of).map(|i| if i == gaps.before { *sum } else { zero }).collect();
    let width = gap_width(c);
    let parts = (0..).step_by(width as usize).zip(all.chunks(width as usize));
    parts.map(|(offset, values)| Piece { offset: Some(offset), values: values.to_vec() }).collect()
}

/// Alignment of the start of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At a multiple of its length, counted along the result.
    Multiple,
    /// At a multiple of its length, counted in the result's memory: rows may begin anywhere.
    InMemory,
}

/// Loads the results that a run replaces.
pub(crate) type Before<'l> = &'l dyn Fn(&mut Builder) -> ExprId;

impl<'a> Operations<'a> {
    /// Declares the arguments: tensors, then the arguments of `between`, then scalars.
    pub fn declare<T>(
        b: &mut Builder,
        args: &mut Arguments,
        c: &'a Contraction,
        applied: Applied,
        between: impl FnOnce(&mut Builder, &mut Arguments) -> T,
    ) -> (Operations<'a>, T) {
        let ops: Vec<&EpilogueOp> = c.epilogue.iter().filter(|op| applied.takes(op)).collect();
        let (mut tensors, mut centre) = (Vec::new(), None);
        for op in &ops {
            let (name, scalar, doc, to) = match op {
                EpilogueOp::Centre(x) => {
                    centre = Some(ZeroPoints::declare(b, args, x));
                    tensors.push(None);
                    continue;
                }
                EpilogueOp::ScaleVector(x) => {
                    let name = if x.along_n { "scale_n" } else { "scale_m" };
                    (name, x.scalar, "factors of the product", Binding::Quant(Quant::scale(c.along(x))))
                }
                EpilogueOp::AddVector(x) => ("bias", x.scalar, "added to the result", Binding::Bias),
                EpilogueOp::AddTensor(x) => ("residual", x.scalar, "added last, as large as the result", Binding::Residual),
                EpilogueOp::Mask(x) => ("residual", x.scalar, "results are 0 where this is not above 0", Binding::Residual),
                EpilogueOp::Store(x) => ("preactivations", x.scalar, "sums of both factors of the gate", Binding::Preactivations),
                _ => {
                    tensors.push(None);
                    continue;
                }
            };
            let access = if matches!(op, EpilogueOp::Store(_)) { Access::Write } else { Access::Read };
            tensors.push(Some(args.buffer(b, name, scalar, access, doc, to)));
        }
        let between = between(b, args);
        let acc = c.result_scalar();
        let read = ops.into_iter().zip(tensors).filter_map(|(op, tensor)| {
            Some(match op {
                EpilogueOp::Centre(_) => Operation::Centre(centre?),
                EpilogueOp::Scale => Operation::Times(args.scalar(b, "alpha", acc, "factor of the product", Binding::Alpha)),
                EpilogueOp::ScaleVector(x) => Operation::ScaleVector(x, tensor?),
                EpilogueOp::AddVector(x) => Operation::AddVector(x, tensor?),
                EpilogueOp::AddOld => {
                    Operation::AddOld(args.scalar(b, "beta", acc, "factor of the old result; 0 never reads it", Binding::Beta))
                }
                EpilogueOp::AddOldComplex => {
                    let doc = "factor of the old result, its real part; where both are 0 it is never read";
                    let re = args.scalar(b, "beta", acc, doc, Binding::Beta);
                    let both = [re, args.scalar(b, "beta_im", acc, "and its imaginary part", Binding::BetaIm)];
                    if applied == Applied::All { Operation::AddTurned(both) } else { Operation::TurnOld(both) }
                }
                EpilogueOp::Activate(f) => Operation::Activate(*f),
                EpilogueOp::Store(x) => Operation::Store(x, tensor?, None),
                EpilogueOp::Gate(x) => Operation::Gate(x.gate),
                EpilogueOp::AddTensor(x) => Operation::Tensor(Use::Add, x, tensor?, None),
                EpilogueOp::Mask(x) => Operation::Tensor(Use::Mask, x, tensor?, None),
                EpilogueOp::Reduce(_) => return None,
            })
        });
        let all = read.collect();
        (Operations { c, all }, between)
    }

    /// No operation: results as they are.
    pub const fn none(c: &'a Contraction) -> Operations<'a> {
        Operations { c, all: Vec::new() }
    }

    /// Code with and without reading the old result, whichever its factor asks for.
    pub fn by_beta(&self, b: &mut Builder, write: impl Fn(&mut Builder, bool)) {
        let Some(unread) = self.old_unread(b) else { return write(b, false) };
        b.if_else(unread, |b| write(b, false), |b| write(b, true));
    }

    /// Whether the old result's factor is 0, where there is one.
    pub fn old_unread(&self, b: &mut Builder) -> Option<ExprId> {
        let zero = b.zero(self.c.result_scalar().ty());
        self.all.iter().find_map(|op| match op {
            Operation::AddOld(beta) => Some(b.value(beta.equals(zero))),
            Operation::TurnOld([re, im]) | Operation::AddTurned([re, im]) => Some(b.value(re.equals(zero).and(im.equals(zero)))),
            _ => None,
        })
    }

    /// The operations in two steps, where old results may be added ahead of the others. The first step is the addition. The
    /// second multiplies by alpha only where nothing was added.
    pub fn old_ahead(&self, b: &mut Builder) -> Option<OldAhead<'a>> {
        let [Operation::Times(alpha), after @ ..] = self.all.as_slice() else { return None };
        let at = after.iter().position(|op| matches!(op, Operation::AddOld(_)))?;
        let (between, [old, last @ ..]) = after.split_at(at) else { return None };
        if !between.iter().all(|op| matches!(op, Operation::AddVector(..))) {
            return None;
        }
        let unread = self.old_unread(b)?;
        let one = b.float(1.0, self.c.result_scalar());
        let factor = b.bind("factor", unread.select(*alpha, one));
        let of = |all: Vec<Operation<'a>>| Operations { c: self.c, all };
        Some(OldAhead {
            read: b.value(unread.unary(UnaryOp::Not)),
            addition: of(vec![Operation::Times(*alpha), *old]),
            rest: of([&[Operation::Times(factor)], between, last].concat()),
        })
    }

    /// Whether some operation reads a tensor as large as the result, and so must know which results there are.
    pub fn reads(&self) -> bool {
        self.all.iter().any(|op| matches!(op, Operation::Tensor(..)))
    }

    /// Whether an operation stores sums. It then needs a guard for rows and columns that do not exist.
    pub fn stores(&self) -> bool {
        self.all.iter().any(|op| matches!(op, Operation::Store(..)))
    }

    /// The same without stores of sums.
    pub fn storing_nothing(&self) -> Operations<'a> {
        let kept = self.all.iter().filter(|op| !matches!(op, Operation::Store(..)));
        Operations { c: self.c, all: kept.copied().collect() }
    }

    /// The operations on batch entry `g`.
    pub fn of_entry(&self, b: &mut Builder, g: ExprId) -> Operations<'a> {
        let mut entry = self.clone();
        for op in &mut entry.all {
            let (name, x, buffer, base) = match op {
                Operation::Tensor(_, x, buffer, base) => ("residual_from", x, buffer, base),
                Operation::Store(x, buffer, base) => ("preactivations_to", x, buffer, base),
                _ => continue,
            };
            let g = Coord::plain(b, g);
            let start = entry_start(b, x, g);
            *base = Some(Base::Cursor(b.cursor(name, *buffer, start)));
        }
        entry
    }

    /// The operations around a gate, on sums of this contraction and on results of the other.
    pub fn around_gate<'r>(&self, results: &'r Contraction) -> Option<AroundGate<'r>>
    where
        'a: 'r,
    {
        let at = self.all.iter().position(|op| matches!(op, Operation::Gate(_)))?;
        let (ahead, [Operation::Gate(gate), after @ ..]) = self.all.split_at(at) else { return None };
        let of = |all: &[Operation<'r>]| Operations { c: results, all: all.to_vec() };
        Some(AroundGate { on_sums: of(ahead), gate: *gate, on_results: of(after) })
    }

    /// The results of a run of sums that exists where the guard holds; `old` loads what they replace, where that is read.
    pub fn apply(
        &self,
        b: &mut Builder,
        run: &Run,
        guard: Option<ExprId>,
        ints: Ints,
        old: Option<Before>,
        accumulators: &[ExprId],
    ) -> Vec<ExprId> {
        let acc = self.c.result_scalar();
        let centred = match self.all.first() {
            Some(Operation::Centre(zero)) => zero.apply(b, accumulators, |b, name, x, buffer| vector(b, name, x, buffer, run)),
            _ => accumulators.to_vec(),
        };
        // Partial sums, and what has been computed, stay as they are.
        let computed = |sum: &ExprId| if self.all.is_empty() { *sum } else { b.value(sum.cast(acc)) };
        let mut values: Vec<ExprId> = centred.iter().map(computed).collect();
        for op in &self.all {
            let added = match op {
                // Pairs are combined between two lists of operations.
                Operation::Centre(_) | Operation::Gate(_) => continue,
                Operation::Times(factor) => {
                    values.iter_mut().for_each(|value| *value = b.value(*factor * *value));
                    continue;
                }
                Operation::AddOld(beta) => {
                    let Some(before) = old.map(|load| load(b)) else { continue };
                    for (i, value) in (0..).zip(&mut values) {
                        *value = b.value((*beta).fma(before.extract(i).cast(acc), *value));
                    }
                    continue;
                }
                Operation::TurnOld([re, im]) => {
                    let Some(before) = old.map(|load| load(b)) else { continue };
                    for (i, pair) in (0..).step_by(2).zip(values.chunks_exact_mut(2)) {
                        let [x, y] = [i, i + 1].map(|i| b.value(before.extract(i).cast(acc)));
                        pair[0] = b.value(re.fma(x, pair[0]) - *im * y);
                        pair[1] = b.value(re.fma(y, pair[1]) + *im * x);
                    }
                    continue;
                }
                Operation::AddTurned(_) => {
                    let Some(before) = old.map(|load| load(b)) else { continue };
                    for (i, value) in (0..).zip(&mut values) {
                        *value = b.value(*value + before.extract(i).cast(acc));
                    }
                    continue;
                }
                Operation::Activate(f) => {
                    values.iter_mut().for_each(|value| *value = activate(b, *f, *value));
                    continue;
                }
                Operation::ScaleVector(x, buffer) => {
                    let factors = vector(b, "scale", x, *buffer, run);
                    for (value, factor) in values.iter_mut().zip(factors) {
                        *value = b.value(*value * factor.cast(acc));
                    }
                    continue;
                }
                Operation::AddVector(x, buffer) => vector(b, "bias_value", x, *buffer, run),
                Operation::Tensor(.., None) | Operation::Store(.., None) => continue,
                Operation::Store(x, _, Some(base)) => {
                    store_run(b, x, *base, run, guard, ints, &values);
                    continue;
                }
                Operation::Tensor(how, x, _, Some(base)) => {
                    let elements = tensor(b, x, *base, self.c, run, guard, ints);
                    if *how == Use::Mask {
                        let zero = b.zero(acc.ty());
                        for (value, element) in values.iter_mut().zip(elements) {
                            *value = b.value(zero.lt(element.cast(acc)).select(*value, zero));
                        }
                        continue;
                    }
                    elements
                }
            };
            for (value, added) in values.iter_mut().zip(added) {
                *value = b.value(*value + added.cast(acc));
            }
        }
        values
    }
}

impl Applied {
    /// By the main kernel.
    pub const fn in_main(split: Split) -> Applied {
        match split {
            Split::None | Split::Cluster => Applied::All,
            Split::Atomic => Applied::Linear,
            Split::Workspace => Applied::None,
        }
    }
    fn takes(self, op: &EpilogueOp) -> bool {
        match self {
            Applied::All => true,
            Applied::None => false,
            Applied::Ahead => matches!(op, EpilogueOp::AddOldComplex),
            Applied::Linear => matches!(op, EpilogueOp::Scale | EpilogueOp::ScaleVector(_) | EpilogueOp::Mask(_)),
            Applied::Rest => {
                !matches!(op, EpilogueOp::Centre(_) | EpilogueOp::Scale | EpilogueOp::ScaleVector(_) | EpilogueOp::Activate(_))
            }
        }
    }
}

/// Converts a value to the type of C. Conversion to 8-bit integers rounds to nearest even and saturates.
pub(crate) fn stored(b: &mut Builder, value: ExprId, to: Scalar) -> ExprId {
    let (least, most) = match (b.ty(value).scalar, to) {
        (Scalar::F32, Scalar::I8) => (i8::MIN.into(), i8::MAX.into()),
        (Scalar::F32, Scalar::U8) => (u8::MIN.into(), u8::MAX.into()),
        _ => return b.value(value.cast(to)),
    };
    // Floats from 1.5 * 2^23 on have a distance of 1, so the addition rounds.
    let [least, most, apart] = [least, most, 1.5 * 2f64.powi(23)].map(|x| b.float(x, Scalar::F32));
    let nearest = b.value(value.max(least).min(most) + apart - apart);
    b.value(nearest.cast(Scalar::I32).cast(to))
}

/// The elements of a vector that belong to a run.
fn vector(b: &mut Builder, name: &str, x: &Vector, buffer: ArgId, run: &Run) -> Vec<ExprId> {
    let (along, overruns) = if x.along_n { (run.col, &run.overruns[1]) } else { (run.row, &run.overruns[0]) };
    let moves = x.along_n == run.by_column && x.view.uses(ROW) && run.piece.is_none();
    let (width, parts) = match moves {
        false => (1, 1),
        true if run.start == Start::Multiple && width_at_once(x, run.length) == run.length => (run.length, 1),
        true => (1, run.length),
    };
    let along = along.value(b);
    let mut values = Vec::new();
    for part in 0..parts {
        let index = b.value(along + part);
        // Edge elements beyond the result have no value: they are not stored either.
        let index = match overruns {
            None => index,
            Some(extent) => b.value(index.min(extent - width)),
        };
        let zero = b.int(0, b.ty(index).scalar);
        let point = [Coord::plain(b, run.g), Coord::plain(b, index), Coord::plain(b, zero)];
        let at = affine(b, &x.view.access.offset, &point, Part::Whole, Scalar::I64);
        let value = b.load(name, Base::Buffer(buffer), at, width, None);
        values.extend((0..width).map(|lane| b.value(value.extract(lane))));
    }
    values.resize(run.length as usize, values[0]);
    values
}

/// The elements of a tensor, from its batch entry's start on, that belong to a run of the result.
fn tensor(b: &mut Builder, x: &Tensor, base: Base, c: &Contraction, run: &Run, guard: Option<ExprId>, ints: Ints) -> Vec<ExprId> {
    // Pieces of memory are of a tensor that lies as the result does.
    let width = if run.piece.is_some() { run.length } else { residual_width(x, &c.c, run) };
    let mut values = Vec::new();
    for part in 0..run.length / width {
        let mut point = [Coord::plain(b, run.g), run.row, run.col];
        if width < run.length {
            // A residual of single elements need not be contiguous where the result is.
            let axis = if run.by_column { COL } else { ROW };
            let value = point[axis].value(b);
            let value = b.value(value + part);
            point[axis] = Coord::plain(b, value);
        }
        let at = affine(b, &x.view.access.offset, &point, Part::Beyond(G), ints.offset);
        let at = run.piece.map_or(at, |distance| b.value(at + distance));
        let value = b.load("residual_value", base, at, width, guard);
        values.extend((0..width).map(|lane| b.value(value.extract(lane))));
    }
    values
}

/// Stores a run in its place of a tensor, from its batch entry's start on: in one vector where the run is one in memory.
fn store_run(b: &mut Builder, x: &Tensor, base: Base, run: &Run, guard: Option<ExprId>, ints: Ints, values: &[ExprId]) {
    let axis = if run.by_column { COL } else { ROW };
    let width = if vector_width(x, axis, run.length) == run.length { run.length } else { 1 };
    for (part, values) in (0..).step_by(width as usize).zip(values.chunks(width as usize)) {
        let mut point = [Coord::plain(b, run.g), run.row, run.col];
        if part > 0 {
            let value = point[axis].value(b);
            let value = b.value(value + part);
            point[axis] = Coord::plain(b, value);
        }
        let at = affine(b, &x.view.access.offset, &point, Part::Beyond(G), ints.offset);
        let cast: Vec<ExprId> = values.iter().map(|&value| stored(b, value, x.scalar)).collect();
        let value = b.vector(&cast);
        b.store(base, at, value, guard);
    }
}

/// Elements of the largest tensor that results are added to, or stored in beside C.
pub(crate) fn largest_added(c: &Contraction) -> u64 {
    c.residual().into_iter().chain(c.preactivations()).map(|x| x.len).max().unwrap_or(0)
}

/// The run's length, or 1: how many values of a vector are read at once.
fn width_at_once(x: &Vector, length: u32) -> u32 {
    let align = tilewright_problem::lower::BUFFER_ALIGN / x.scalar.bytes();
    if x.view.vector_width(ROW, length, align) == length { length } else { 1 }
}

/// The run's length, or 1: how many residuals are read at once.
fn residual_width(residual: &Tensor, result: &Tensor, run: &Run) -> u32 {
    let axis = if run.by_column { COL } else { ROW };
    let fits = match run.start {
        Start::Multiple => vector_width(residual, axis, run.length) == run.length,
        // Where rows begin as those of the result do, its runs begin as those of the result do.
        Start::InMemory => match (residual.view.is_affine_box(), result.view.is_affine_box()) {
            (Some(x), Some(y)) => {
                let length = i64::from(run.length);
                x.strides[axis] == 1 && [G, ROW, COL].iter().all(|&d| (x.strides[d] - y.strides[d]) % length == 0)
            }
            // Runs of rows that are no plain stride apart begin at multiples of their length.
            _ => [residual, result].iter().all(|x| vector_width(x, axis, run.length) == run.length),
        },
    };
    if fits { run.length } else { 1 }
}
