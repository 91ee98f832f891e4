//! The fields of reductions of tensors.

use super::Key::{Always, Optional};
use super::Kind::{Dtype as Type, Names, Number, Sizes, Words};
use super::{
    Access, C, Field, Get, Kind, NOWHERE_ELSE, RARE, REQUIRED, Set, field, joined, named, one, put, sizes, stored, words,
};
use crate::epilogue::Activation;
use crate::names::number;
use crate::reduce::{Reduce, ReduceBuilder, operator};
use crate::reduction::Reduction;

const fn row(name: &'static str, kind: Kind, meaning: &'static str, set: Set<ReduceBuilder>, get: Get<Reduce>) -> Field {
    field(name, kind, meaning, Access::Reduce { set, get })
}

/// The fields, in the order of a reduction's text.
pub(super) const FIELDS: &[Field] = &[
    row("shape", Sizes(0), "sizes of the tensor, outermost first: 65536x1024", shape, |r| one(joined(&r.shape))).spelled(Always("in"), "shape", C | REQUIRED),
    row("over", Sizes(0), "axes to reduce, counted from 0", over, |r| {
        one(joined(&r.over.iter().map(|axis| *axis as u64).collect::<Vec<_>>()))
    }).spelled(Always("over"), "over", C | REQUIRED)
    .python("axis"),
    row("strides", Sizes(0), "stride of each axis in elements; 0 repeats it", |b, v| put(&mut b.0.strides, sizes(0, v)), |r| {
        one(joined(&r.strides))
    }).spelled(Optional("st"), "strides", C | RARE)
    .default("dense"),
    row("offset", Number(0), "elements of the buffer before the tensor's first", |b, v| put(&mut b.0.offset, number(v)), |r| one(r.offset)).spelled(Optional("o"), "offset", RARE)
        .default("0"),
    row("ops", Words, "operators, all in one pass", ops, |r| r.reductions.iter().map(named_operator).collect()).spelled(Optional("op"), "op", C | REQUIRED)
        .python("op")
        .detail(
            "sum, mean, sumsq, max, min, absmax, argmax, argmin, logsumexp, var, norm2. A type after a colon replaces the accumulator's type, \
             or i64 for indices: sum:bf16, argmax:i32",
        )
        .title(", {}"),
    row(
        "activation",
        Names(Activation::NAMES),
        "function of the scaled elements",
        |b, v| put(&mut b.0.activation, named!(Activation, v).map(Some)),
        |r| r.activation.map_or_else(Vec::new, one),
    ).spelled(Optional("act"), "activation", C)
    .python("activation")
    .default("none")
    .title(", {}")
    .epilogue(),
    row("workspace", Number(0), "workspace budget in bytes", |b, v| put(&mut b.0.workspace, number(v)), |r| one(r.workspace)).spelled(Optional("ws"), "", NOWHERE_ELSE)
        .default("1 GiB"),
    row("dtype", Type, "element type of the tensor", |b, v| put(&mut b.0.dtype, stored(v, None)), |r| one(r.dtype)).spelled(Always(""), "dtype", C)
        .default("f32"),
];

/// Sizes of a dense tensor.
fn shape(b: &mut ReduceBuilder, text: &str) -> Result<(), String> {
    *b = Reduce::new(b.0.dtype, &sizes(0, text)?, &[]);
    Ok(())
}

fn over(b: &mut ReduceBuilder, text: &str) -> Result<(), String> {
    b.0.over = sizes(0, text)?.into_iter().map(|axis| axis as usize).collect();
    b.0.over.sort_unstable();
    Ok(())
}

fn ops(b: &mut ReduceBuilder, text: &str) -> Result<(), String> {
    for word in words(text) {
        b.0.reductions.push(operator(word)?);
    }
    Ok(())
}

/// An operator without the axes, which are the tensor's.
fn named_operator(reduction: &Reduction) -> String {
    let function = reduction.function.map_or_else(String::new, |function| format!(".{function}"));
    let dtype = reduction.dtype.map_or_else(String::new, |dtype| format!(":{dtype}"));
    format!("{}{function}{dtype}", reduction.operator)
}
