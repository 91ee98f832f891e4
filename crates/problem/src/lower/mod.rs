//! Lowering: every problem becomes contractions of views, its parts. A convolution reaches the generator only here, as chains of
//! transforms (`conv`).

mod complex;
mod conv;
mod form;
mod gate;
mod operand;
mod phases;
mod second;

use self::complex::Neighbours;
use self::gate::Halves;
use crate::contraction::{
    Centre, Centred, Contraction, Elements, EpilogueOp, GroupEnds, LaunchExtents, Operand, OperandValues, Reduce, ResultSource,
    Signs, Tensor, Vector,
};
use crate::epilogue::{Activation, Along};
use crate::error::{ProblemError, computed_in};
use crate::extent::Extents;
use crate::gemm::{Gemm, Order};
use crate::math::Math;
use crate::problem::Problem;
use crate::quant::{Quant, Scale, ZeroPoint};
use crate::ragged::Ragged;
use crate::reduce::{MOST_AXES, Reduce as ReduceProblem};
use crate::reduction::{Operator, Reduction};
use crate::view::{Access, COL, View, ViewBuilder};
use tilewright_ir::Scalar;

pub use form::{ConvForm, GroupForm, KOrder, Padding, Samples};

/// Alignment of a buffer's start that plans may count on, in bytes; asked again at launch with the real pointers.
pub const BUFFER_ALIGN: u32 = 256;

/// The contractions that compute a problem, each a region of the result of its own; together they write every element once. There is
/// one, but for input gradients of strided convolutions.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// The part with most work: plans are chosen for it.
    pub lead: Contraction,
    /// The others, by falling work.
    pub rest: Vec<Contraction>,
    /// Reductions of operands over k: the operand's elements in the place of a result.
    pub operands: Vec<Contraction>,
}

impl Parts {
    /// All of them, the one with most work first.
    pub fn iter(&self) -> impl Iterator<Item = &Contraction> {
        std::iter::once(&self.lead).chain(&self.rest)
    }
}

/// The parts of a problem.
///
/// # Errors
/// [`ProblemError`] of [`Problem::validate`]; [`ProblemError::Unsupported`] for more parts than a program can have, and for a form that the
/// convolution does not have.
pub fn lower(problem: &Problem, form: ConvForm) -> Result<Parts, ProblemError> {
    problem.validate()?;
    let one = |lead| Parts { lead, rest: Vec::new(), operands: Vec::new() };
    let parts = match problem {
        Problem::Gemm(gemm) => one(lower_gemm(gemm, form)?),
        Problem::Conv(conv) => conv::lower(conv, form)?,
        Problem::Reduce(reduce) => return Ok(one(lower_reduce(reduce, Operand::A)?)),
    };
    let own = problem.reductions().len();
    let totals = if let Problem::Gemm(gemm) = problem { operand_totals(gemm) } else { Vec::new() };
    let all: Vec<&Reduction> = problem.reductions().iter().chain(&totals).collect();
    let operands = all.into_iter().enumerate().filter_map(|(number, r)| {
        let tensor = match problem {
            Problem::Gemm(gemm) => gemm.reduced_operand(r)?,
            Problem::Conv(conv) => conv.reduced_operand(r)?,
            Problem::Reduce(_) => return None,
        };
        let operand = if r.operand == Some(Along::N) { Operand::B } else { Operand::A };
        Some(tensor.and_then(|tensor| Ok(of_operand(lower_reduce(&tensor, operand)?, number))))
    });
    let operands: Vec<Contraction> = operands.collect::<Result<_, _>>()?;
    let values = |c: &Contraction| {
        let of = |r: &Reduce| {
            let over = problem.reductions().get(r.number).map_or(r.over, |given| given.over);
            let reduce = Reduce { over, operand: true, ..r.clone() };
            OperandValues { reduce, len: c.result_shape(r).left(r.over), count: c.count(r) }
        };
        c.reductions().map(of).collect::<Vec<_>>()
    };
    let given = operands.iter().flat_map(values).filter(|x| x.reduce.number < own);
    let lead = Contraction { operand_values: given.collect(), ..parts.lead };
    Ok(Parts { lead, operands, ..parts })
}

/// The sums over k that zero points are multiplied by, in the order of their numbers after the problem's own reductions.
fn operand_totals(gemm: &Gemm) -> Vec<Reduction> {
    let of = Along::ALL.into_iter().filter(|of| gemm.totals_len(*of) > 0);
    of.map(|of| Reduction { dtype: Some(Scalar::I32), ..Reduction::of_operand(Operator::Sum, of) }).collect()
}

/// The zero points of a product with what they are multiplied by, if it has some.
fn lower_zero_points(gemm: &Gemm) -> Result<Option<EpilogueOp>, ProblemError> {
    if gemm.zero_points.is_none() {
        return Ok(None);
    }
    let vector = |along: Along, apart: u64, step: i64, len: u64| {
        let lines = if along == Along::M { gemm.m } else { gemm.n };
        let values = ViewBuilder::tensor(&[("g", gemm.batch, apart as i64), ("index", lines, step)]);
        let view = values.broadcast("one", 1).view("g", "index", "one")?;
        Ok::<_, ProblemError>(Vector { scalar: Scalar::I32, along_n: along == Along::N, view, len })
    };
    let totals = operand_totals(gemm);
    let centred = |along: Along| {
        let Some(how) = gemm.zero_points.of(along) else { return Ok(None) };
        let other = along.other();
        let zero = vector(along, 0, i64::from(how == ZeroPoint::Each), gemm.quant_len(Quant::zero(along)))?;
        let lines = if other == Along::M { gemm.m } else { gemm.n };
        let totals_of = vector(other, lines, 1, gemm.totals_len(other))?;
        let index = totals.iter().position(|r| r.operand == Some(other)).unwrap_or(0);
        Ok::<_, ProblemError>(Some(Centred { zero, totals: totals_of, number: gemm.reductions.len() + index }))
    };
    Ok(Some(EpilogueOp::Centre(Box::new(Centre { a: centred(Along::M)?, b: centred(Along::N)?, k: gemm.k }))))
}

/// A standalone reduction as the problem's reduction with this number.
fn of_operand(mut c: Contraction, number: usize) -> Contraction {
    for op in &mut c.epilogue {
        if let EpilogueOp::Reduce(r) = op {
            r.number = number;
        }
    }
    // Factors of the sums have no part in it.
    c.epilogue.retain(|op| matches!(op, EpilogueOp::Reduce(_)));
    c
}

/// Reductions of a result whose batch entries are those of so many groups.
fn reduce_ops(all: &[Reduction], accumulator: Scalar, groups: u64) -> impl Iterator<Item = EpilogueOp> {
    all.iter().enumerate().filter(|(_, r)| r.operand.is_none()).map(move |(number, r)| {
        let scalar = r.scalar(accumulator);
        EpilogueOp::Reduce(Reduce {
            operator: r.operator,
            function: r.function,
            over: r.over,
            stored: r.stored,
            scalar,
            number,
            operand: false,
            groups,
            part: None,
        })
    })
}

/// Removes epilogue operations that results of this type do not have: integer results are neither scaled nor added to the old C.
fn retain_scaling(epilogue: &mut Vec<EpilogueOp>, results: Scalar, drop_c: bool) {
    let integers = !results.is_float();
    epilogue.retain(|op| match op {
        EpilogueOp::Scale => !integers,
        EpilogueOp::AddOld => !integers && !drop_c,
        _ => true,
    });
}

/// Known alignment of the element at `offset` of a buffer, in bytes.
fn alignment(offset: u64, scalar: Scalar) -> u32 {
    let bytes = scalar.bytes_of(offset);
    if bytes == 0 { BUFFER_ALIGN } else { BUFFER_ALIGN.min(1 << bytes.trailing_zeros().min(8)) }
}

/// Names of a tensor's axes.
const AXES: [&str; MOST_AXES] = ["0", "1", "2", "3", "4", "5", "6", "7"];

/// What is kept of the tensor are rows, what is reduced columns of a result that is read instead of computed. The tensor is this operand.
fn lower_reduce(reduce: &ReduceProblem, of: Operand) -> Result<Contraction, ProblemError> {
    let dims = AXES.iter().zip(&reduce.shape).zip(&reduce.strides);
    let dims: Vec<(&str, u64, i64)> = dims.map(|((name, size), stride)| (*name, *size, *stride as i64)).collect();
    let mut builder = ViewBuilder::tensor(&dims).broadcast("g", 1);
    for (reduced, name) in [(false, "row"), (true, "col")] {
        let axes: Vec<&str> = reduce.axes(reduced).into_iter().map(|axis| AXES[axis]).collect();
        builder = match axes.as_slice() {
            [] => builder.broadcast(name, 1),
            [one] => builder.pass_through(one, name),
            all => builder.merge(all, name),
        };
    }
    // What stands for factors and result of a product, and for elements where there are none: nothing of them is read or written.
    let one = |extent| View { extent, access: Access::default() };
    let Extents { g, m, n } = reduce.result_shape().extents;
    let elements = if reduce.is_empty() { one([g, m, n]) } else { builder.view("g", "row", "col")? };
    let tensor = |view, len| Tensor {
        scalar: reduce.dtype,
        factor: None,
        signs: None,
        view,
        align: alignment(reduce.offset, reduce.dtype),
        len,
    };
    let mut epilogue = EpilogueOp::list(Vec::new(), None, reduce.activation, None);
    retain_scaling(&mut epilogue, reduce.accumulator(), true);
    epilogue.extend(reduce_ops(&reduce.reductions, reduce.accumulator(), 1));
    Ok(Contraction {
        g: 1,
        m,
        n,
        k: 1,
        a: tensor(one([1, m, 1]), reduce.len()),
        b: tensor(one([1, n, 1]), 0),
        c: tensor(elements.clone(), 0),
        accumulator: reduce.accumulator(),
        math: Math::Exact,
        block_scales: Vec::new(),
        epilogue,
        launch: LaunchExtents::Fixed,
        source: ResultSource::Elements(Elements { of, view: elements }),
        operand_values: Vec::new(),
        gaps: None,
        merged_groups: 1,
        drop_c: true,
        second: None,
        transposed: false,
    })
}

/// Scales at (g, row or column, k).
fn lower_scale(gemm: &Gemm, along: Along, scale: Scale, halves: Option<Halves>) -> Result<Vector, ProblemError> {
    let len = gemm.quant_len(Quant::scale(along));
    if let Some(halves) = halves.filter(|_| along == Along::N) {
        let [half, line] = halves.dims(1, false);
        let values = halves.join(ViewBuilder::tensor(&[("g", gemm.batch, 0), half, line]), "index").broadcast("k", gemm.k);
        return Ok(Vector { scalar: Scalar::F32, along_n: true, view: values.view("g", "index", "k")?, len });
    }
    let lines = if along == Along::M { gemm.m } else { gemm.n };
    let [blocks, of_k] = scale.blocks(lines, gemm.k);
    let values = ViewBuilder::tensor(&[("g", gemm.batch, 0), ("block", blocks, 1), ("block_of_k", of_k, blocks as i64)]);
    let values = values.broadcast("term", scale.terms().unwrap_or(gemm.k)).merge(&["block_of_k", "term"], "k");
    let values = match scale.lines() {
        1 => values.pass_through("block", "index"),
        many => values.broadcast("line", many).merge(&["block", "line"], "index"),
    };
    Ok(Vector { scalar: Scalar::F32, along_n: along == Along::N, view: values.view("g", "index", "k")?, len })
}

/// The result of a product of both factors' columns, addressed in the order of a gate's pairs.
fn lower_preactivations(wide: &Gemm, halves: Halves) -> Result<Tensor, ProblemError> {
    let ld = wide.c.ld as i64;
    let (row_stride, col_stride) = if wide.c.trans == (wide.order == Order::Col) { (ld, 1) } else { (1, ld) };
    let [half, line] = halves.dims(col_stride, false);
    let dims = [("g", wide.batch, wide.c.batch_stride as i64), ("row", wide.m, row_stride), half, line];
    let view = halves.join(ViewBuilder::tensor(&dims), "col").view("g", "row", "col")?;
    Ok(Tensor { scalar: wide.out_dtype, factor: None, signs: None, view, align: BUFFER_ALIGN, len: wide.span(2) })
}

/// Where each group ends, of a product whose groups cut this.
fn lower_ends(gemm: &Gemm, of: Ragged) -> Result<Vector, ProblemError> {
    let values = ViewBuilder::tensor(&[("g", gemm.batch, 1)]).broadcast("index", 1).broadcast("one", 1);
    let view = values.view("g", "index", "one")?;
    Ok(Vector { scalar: Quant::Ends.scalar(), along_n: of == Ragged::N, view, len: gemm.quant_len(Quant::Ends) })
}

/// The bias vector, if the product has one.
fn lower_bias(gemm: &Gemm, halves: Option<Halves>) -> Result<Option<Vector>, ProblemError> {
    let Some(x) = gemm.bias else { return Ok(None) };
    let length = if x.along == Along::M { gemm.m } else { gemm.n };
    let values = match halves.filter(|_| x.along == Along::N) {
        None => ViewBuilder::tensor(&[("g", gemm.batch, x.batch_stride as i64), ("index", length, 1)]),
        Some(halves) => {
            let [half, line] = halves.dims(1, false);
            halves.join(ViewBuilder::tensor(&[("g", gemm.batch, x.batch_stride as i64), half, line]), "index")
        }
    };
    let view = values.broadcast("one", 1).view("g", "index", "one")?;
    let accumulator = crate::error::computed_in(gemm.multiplied(), gemm.out_dtype)[1];
    let scalar = Activation::bias_dtype(gemm.activation, accumulator, gemm.out_dtype);
    Ok(Some(Vector { scalar, along_n: x.along == Along::N, view, len: gemm.bias_len() }))
}

fn lower_gemm(gemm: &Gemm, form: ConvForm) -> Result<Contraction, ProblemError> {
    let halves = Halves::of(gemm, form.granule);
    let view = |index: usize, ld: u64, batch_stride: u64| -> Result<(View, Option<Signs>), ProblemError> {
        let (rows, cols) = [(gemm.m, gemm.k), (gemm.k, gemm.n), (gemm.m, gemm.n)][index];
        let (row_stride, col_stride) = if gemm.matrices()[index].trans == (gemm.order == Order::Col) { (ld, 1) } else { (1, ld) };
        if let Some(complex) = gemm.complex {
            let elements = complex::Elements {
                batch: Neighbours { count: gemm.batch, apart: batch_stride },
                rows: Neighbours { count: rows, apart: row_stride },
                cols: Neighbours { count: cols, apart: col_stride },
            };
            return complex::view(gemm, complex, index, elements);
        }
        if let Some(halves) = halves.filter(|_| index == 1) {
            let [half, line] = halves.dims(col_stride as i64, true);
            let dims = [("g", gemm.batch, batch_stride as i64), ("row", rows, row_stride as i64), half, line];
            return Ok((halves.join(ViewBuilder::tensor(&dims), "col").view("g", "col", "row")?, None));
        }
        let dims = [("g", gemm.batch, batch_stride), ("row", rows, row_stride), ("col", cols, col_stride)];
        let builder = ViewBuilder::tensor(&dims.map(|(name, count, apart)| (name, count, apart as i64)));
        let builder = second::without_second(gemm, index, builder);
        // B is addressed by (g, n, k).
        Ok((if index == 1 { builder.view("g", "col", "row")? } else { builder.view("g", "row", "col")? }, None))
    };
    let tensor = |index: usize| -> Result<Tensor, ProblemError> {
        let x = gemm.matrices()[index];
        let (view, signs) = view(index, x.ld, x.batch_stride)?;
        let scalar = gemm.scalar(index);
        let factor = Some(gemm.multiplied()).filter(|factor| index < 2 && gemm.has_weights() && *factor != scalar);
        let align = alignment(x.offset * gemm.parts(), scalar);
        Ok(Tensor { scalar, factor, signs, view, align, len: gemm.span(index) * gemm.parts() })
    };
    let (mut scales, mut block_scales) = (Vec::new(), Vec::new());
    for (along, scale) in Along::ALL.into_iter().filter_map(|along| Some((along, gemm.scales.of(along)?))) {
        let to = if scale.terms().is_some() { &mut block_scales } else { &mut scales };
        to.push(lower_scale(gemm, along, scale, halves)?);
    }
    let bias = lower_bias(gemm, halves)?;
    let residual = match gemm.residual {
        None => None,
        Some(x) => {
            let (view, _) = view(2, x.ld, x.batch_stride)?;
            let len = gemm.residual_len() * gemm.parts();
            Some(Tensor { scalar: gemm.out_dtype, factor: None, signs: None, view, align: BUFFER_ALIGN, len })
        }
    };
    let launch = match gemm.grouped {
        Some(of) => LaunchExtents::Grouped(GroupEnds { of, ends: lower_ends(gemm, of)? }),
        None => LaunchExtents::of_dynamic(gemm.dynamic),
    };
    let mut epilogue = EpilogueOp::list(scales, bias, gemm.activation, residual);
    if let Some(halves) = halves {
        let stored = gemm.stored_ungated().map(|wide| lower_preactivations(&wide, halves)).transpose()?;
        halves.into_epilogue(&mut epilogue, stored);
    }
    let [accumulator, results] = computed_in(gemm.multiplied(), gemm.out_dtype);
    retain_scaling(&mut epilogue, results, gemm.drop_c);
    epilogue.splice(0..0, lower_zero_points(gemm)?);
    epilogue.extend(reduce_ops(&gemm.reductions, results, 1));
    if let Some(complex) = gemm.complex {
        epilogue = complex::epilogue(complex, epilogue);
    }
    let [m, n, k] = complex::sizes(gemm);
    let second = second::operands(gemm)?;
    let k = second.as_ref().map_or(k, |second| second.a.view.extent[COL]);
    let n = halves.map_or(n, |halves| halves.columns());
    Ok(Contraction {
        g: gemm.batch,
        m,
        n,
        k,
        a: tensor(0)?,
        b: tensor(1)?,
        c: tensor(2)?,
        accumulator,
        math: gemm.math,
        block_scales,
        epilogue,
        launch,
        source: ResultSource::Product,
        operand_values: Vec::new(),
        gaps: None,
        merged_groups: 1,
        drop_c: gemm.drop_c,
        second,
        transposed: false,
    })
}
