//! The fields of matrix products.

use super::Key::{Always, Optional, Unsaid};
use super::Kind::{Bit, Decimal, Dtype as Type, Extent, Flag, Names, Number, Words};
use super::{
    Access, C, COLUMN, Field, Get, Kind, NOWHERE_ELSE, RARE, REQUIRED, Set, dtype, field, flag, named, one, put, reductions,
    stored, told, words,
};
use crate::complex::Complex;
use crate::epilogue::{Activation, Along, BiasVector};
use crate::error::{ProblemError, names_out_dtype};
use crate::extent;
use crate::gate::{Gate, GateFunction};
use crate::gemm::{Gemm, GemmBuilder, Order};
use crate::math::Math;
use crate::names::{Name, number};
use crate::problem::Problem;
use crate::quant::{Quant, Scale, Scales, ZeroPoint, ZeroPoints};
use crate::ragged::Ragged;
use crate::real::Real;
use crate::reduction::Reduction;
use tilewright_ir::Scalar;

/// A field that problems hold.
const fn row(name: &'static str, kind: Kind, meaning: &'static str, set: Set<GemmBuilder>, get: Get<Gemm>) -> Field {
    field(name, kind, meaning, Access::Gemm { set, get })
}

/// Another spelling of fields that other rows print.
const fn other(name: &'static str, kind: Kind, meaning: &'static str, set: Set<GemmBuilder>) -> Field {
    row(name, kind, meaning, set, |_| Vec::new())
}

/// The fields, in the order of a product's text.
pub(super) const FIELDS: &[Field] = &[
    row("trans_c", Bit, "C is stored transposed", |b, v| put(&mut b.gemm.c.trans, flag(v)), |g| one(u8::from(g.c.trans))).spelled(Always("tC"), "", NOWHERE_ELSE),
    row("trans_a", Bit, "A is stored transposed", |b, v| put(&mut b.gemm.a.trans, flag(v)), |g| one(u8::from(g.a.trans))).spelled(Always("tA"), "", COLUMN | C),
    row("trans_b", Bit, "B is stored transposed", |b, v| put(&mut b.gemm.b.trans, flag(v)), |g| one(u8::from(g.b.trans))).spelled(Always("tB"), "", COLUMN | C),
    row(
        "col_major",
        Bit,
        "columns are contiguous",
        |b, v| put(&mut b.gemm.order, flag(v).map(|is| if is { Order::Col } else { Order::Row })),
        |g| one(u8::from(g.order == Order::Col)),
    ).spelled(Always("colMaj"), "", NOWHERE_ELSE),
    row("m", Extent, "rows of C", |b, v| put(&mut b.gemm.m, number(v)), |g| one(g.m)).spelled(Always("m"), "m", COLUMN | C | REQUIRED)
        .detail("A range gives several problems: 1024:4096:1024 is from:to:step"),
    row("n", Extent, "columns of C", |b, v| put(&mut b.gemm.n, number(v)), |g| one(g.n)).spelled(Always("n"), "n", COLUMN | C | REQUIRED),
    row("k", Extent, "columns of A and rows of B: length of the sums", |b, v| put(&mut b.gemm.k, number(v)), |g| one(g.k)).spelled(Always("k"), "k", COLUMN | C | REQUIRED),
    row("lda", Number(1), "leading dimension of A", |b, v| put(&mut b.ld[0], number(v).map(Some)), |g| one(g.a.ld)).spelled(Always("lda"), "lda", COLUMN | C)
        .default("tight"),
    row("ldb", Number(1), "leading dimension of B", |b, v| put(&mut b.ld[1], number(v).map(Some)), |g| one(g.b.ld)).spelled(Always("ldb"), "ldb", COLUMN | C | RARE)
        .default("tight"),
    row("ldc", Number(1), "leading dimension of C", |b, v| put(&mut b.ld[2], number(v).map(Some)), |g| one(g.c.ld)).spelled(Always("ldc"), "ldc", COLUMN | C | RARE)
        .default("tight"),
    row("k2", Extent, "length of a second pair of factors: A2 B2 is added", |b, v| put(&mut b.k2, number(v).map(Some)), |g| {
        g.second.map_or_else(Vec::new, |pair| one(pair.k))
    }).spelled(Optional("second"), "k2", COLUMN | C | RARE)
    .default("none")
    .detail("As of a linear layer with a low-rank update (LoRA). A2 and B2 are transposed as A and B are")
    .title(", and k {}"),
    row("lda2", Number(1), "leading dimension of A2", |b, v| put(&mut b.ld2[0], number(v).map(Some)), |g| {
        g.second.map_or_else(Vec::new, |pair| one(pair.lda))
    }).spelled(Optional("secondlda"), "lda2", COLUMN | C | RARE)
    .requires("k2")
    .default("tight"),
    row("ldb2", Number(1), "leading dimension of B2", |b, v| put(&mut b.ld2[1], number(v).map(Some)), |g| {
        g.second.map_or_else(Vec::new, |pair| one(pair.ldb))
    }).spelled(Optional("secondldb"), "ldb2", COLUMN | C | RARE)
    .requires("k2")
    .default("tight"),
    row("workspace", Number(0), "workspace budget in elements of A", workspace, |g| {
        one(g.workspace / u64::from(g.dtype.bytes()))
    }).spelled(Always("ws"), "", NOWHERE_ELSE)
    .default("1 GiB"),
    row("dtype", Type, "element type of A, B and C", element, |g| one(g.dtype_name())).spelled(Always(""), "dtype", COLUMN | C)
        .default("f32"),
    other("math", Names(Math::NAMES), "precision of products and sums", |b, v| {
        if v == Math::Exact.name() { Ok(()) } else { put(&mut b.gemm.math, named!(Math, v)) }
    }).spelled(Unsaid, "", C)
    .python("math")
    .default("exact"),
    row("conj_a", Flag, "conjugate of A", |b, v| conjugate(b, v, |c| &mut c.conj_a), |g| complex(g, |c| c.conj_a)).spelled(Optional("conja"), "", COLUMN | C),
    row("conj_b", Flag, "conjugate of B", |b, v| conjugate(b, v, |c| &mut c.conj_b), |g| complex(g, |c| c.conj_b)).spelled(Optional("conjb"), "", COLUMN | C),
    other("trans", Words, "a letter for A and one for B", letters).spelled(Unsaid, "trans", NOWHERE_ELSE)
        .default("nn")
        .detail("n (not transposed), t (transposed); complex types also c (conjugate transpose), r (conjugate)"),
    other("order", Names(Order::NAMES), "storage order of all matrices", |b, v| put(&mut b.gemm.order, named!(Order, v))).spelled(Unsaid, "order", COLUMN | C)
        .default("row"),
    row("alpha_im", Flag, "alpha is complex at launch", |b, v| imaginary(b, v, |c| &mut c.alpha_im), |g| complex(g, |c| c.alpha_im)).spelled(Optional("alphaim"), "", COLUMN | C)
        .python("imaginary")
        .title(", complex alpha"),
    row("beta_im", Flag, "beta is complex at launch", |b, v| imaginary(b, v, |c| &mut c.beta_im), |g| complex(g, |c| c.beta_im)).spelled(Optional("betaim"), "", COLUMN | C)
        .python("imaginary")
        .title(", complex beta"),
    row(
        "b_dtype",
        Type,
        "element type of B, if it differs",
        |b, v| stored(v, parts(b)).map(|scalar| b.gemm.b_dtype = Some(scalar)),
        |g| g.b_dtype.map_or_else(Vec::new, one),
    ).spelled(Optional("b"), "b-dtype", COLUMN | C | RARE)
    .python("b_dtype")
    .detail("Another 8-bit float or integer type, or i8, u8, i4, u4 weights with A in f16, bf16 or f32"),
    row(
        "out_dtype",
        Type,
        "element type of result, bias and residual, if it differs",
        |b, v| stored(v, parts(b)).map(|scalar| b.out_dtype = Some(scalar)),
        |g| told(names_out_dtype(g.multiplied(), g.out_dtype), g.out_dtype),
    ).spelled(Optional("out"), "out-dtype", COLUMN | C | RARE)
    .python("out_dtype")
    .detail("8-bit floats saturate"),
    row("batch", Extent, "number of products", |b, v| put(&mut b.gemm.batch, number(v)), |g| told(batched(g), g.batch)).spelled(Optional("b"), "batch", COLUMN | C)
        .default("1"),
    other("groups", Number(1), "number of groups of a grouped product (mixture of experts)", |b, v| {
        b.gemm.grouped.get_or_insert(Ragged::M);
        put(&mut b.gemm.batch, number(v))
    }).spelled(Unsaid, "groups", COLUMN)
    .excludes(&["batch", "stride_a"])
    .default("none")
    .detail(
        "The groups divide the m rows of A and C, and each has its own B. A vector on the device holds the end of each group",
    ),
    row("stride_a", Number(0), "elements from one A to the next; 0 shares it", |b, v| strides(b, 0, v), |g| {
        told(batched(g), g.a.batch_stride)
    }).spelled(Optional("sa"), "stride-a", C | RARE)
    .default("tight"),
    row("stride_b", Number(0), "elements from one B to the next; 0 shares it", |b, v| strides(b, 1, v), |g| {
        told(batched(g), g.b.batch_stride)
    }).spelled(Optional("sb"), "stride-b", C | RARE)
    .default("tight"),
    row("stride_c", Number(1), "elements from one C to the next", |b, v| strides(b, 2, v), |g| told(batched(g), g.c.batch_stride)).spelled(Optional("sc"), "stride-c", C | RARE)
        .default("tight"),
    other("b_operand", Names(&SHARED), "whether each product has its own B", |b, v| {
        if v == "shared" { put(&mut b.batch_stride[1], Ok(Some(0))) } else { Ok(()) }
    }).spelled(Unsaid, "", COLUMN)
    .default("each"),
    row("offset_a", Number(0), "elements of A's buffer before its first element", |b, v| put(&mut b.gemm.a.offset, number(v)), |g| {
        told(g.a.offset > 0, g.a.offset)
    }).spelled(Optional("oa"), "offset-a", RARE)
    .default("0"),
    row("offset_b", Number(0), "elements of B's buffer before its first element", |b, v| put(&mut b.gemm.b.offset, number(v)), |g| {
        told(g.b.offset > 0, g.b.offset)
    }).spelled(Optional("ob"), "offset-b", RARE)
    .default("0"),
    row("offset_c", Number(0), "elements of C's buffer before its first element", |b, v| put(&mut b.gemm.c.offset, number(v)), |g| {
        told(g.c.offset > 0, g.c.offset)
    }).spelled(Optional("oc"), "offset-c", RARE)
    .default("0"),
    row("zero_points", Words, "i32 zero points that are subtracted from 8-bit integers", zero_points, |g| {
        g.zero_points.names().map(String::from).collect()
    }).spelled(Optional("zero"), "zero-points", COLUMN | RARE)
    .python("zero_points")
    .default("none")
    .detail("One of A (a), one per row of A (m), one of B (b), one per column of B (n)")
    .title(", zero points {}")
    .epilogue()
    .not_complex("leave them out; alpha scales all results")
    .not_grouped("make an operation for each group"),
    other("zero_a", Names(ZeroPoint::NAMES), "zero points of A", |b, v| put(&mut b.gemm.zero_points.a, named!(ZeroPoint, v).map(Some))).spelled(Unsaid, "", C),
    other("zero_b", Names(ZeroPoint::NAMES), "zero points of B", |b, v| put(&mut b.gemm.zero_points.b, named!(ZeroPoint, v).map(Some))).spelled(Unsaid, "", C),
    row("scales", Words, "f32 scales that multiply alpha A B", scales, |g| g.scales.names().collect()).spelled(Optional("scale"), "scales", COLUMN | RARE)
        .python("scales")
        .default("none")
        .detail(
            "One per row (m), per column (n), or both (m,n). Types with `promoted` and 4- or 8-bit weights also take one per block of k: \
             m1x128, n1x128, n1x64, n1x32, m128x128, n128x128",
        )
        .title(", scale {}")
        .epilogue()
        .not_complex("leave them out; alpha scales all results"),
    other("scale_m", Names(Scale::NAMES), "scales of rows of A", |b, v| put(&mut b.gemm.scales.m, named!(Scale, v).map(Some))).spelled(Unsaid, "", C),
    other("scale_n", Names(Scale::NAMES), "scales of columns of B", |b, v| put(&mut b.gemm.scales.n, named!(Scale, v).map(Some))).spelled(Unsaid, "", C),
    row(
        "bias",
        Names(Along::NAMES),
        "vector that is added to alpha A B",
        |b, v| {
            let along = named!(Along, v)?;
            b.gemm.bias = Some(BiasVector { along, batch_stride: 0 });
            Ok(())
        },
        |g| g.bias.map_or_else(Vec::new, |bias| one(bias.along.name())),
    ).spelled(Optional("bias"), "bias", COLUMN | C)
    .python("bias")
    .default("none")
    .title(", bias {}")
    .epilogue()
    .not_complex("add it as a residual, a matrix as large as C"),
    row(
        "stride_bias",
        Number(0),
        "elements from one bias to the next; 0 shares it",
        |b, v| {
            let bias = b.gemm.bias.as_mut().ok_or("there is no bias; give one, or drop this")?;
            put(&mut bias.batch_stride, number(v))
        },
        |g| g.bias.filter(|bias| bias.batch_stride > 0).map_or_else(Vec::new, |bias| one(bias.batch_stride)),
    ).spelled(Optional("sbias"), "stride-bias", RARE)
    .requires("bias")
    .default("0"),
    row("activation", Names(Activation::NAMES), "function of alpha A B + bias + beta C", activation, |g| {
        g.activation.filter(|f| !matches!(f, Activation::Softcap(_))).map_or_else(Vec::new, one)
    }).spelled(Optional("act"), "activation", COLUMN | C)
    .python("activation")
    .default("none")
    .title(", {}")
    .epilogue()
    .not_complex("apply it to the stored result"),
    row(
        "softcap",
        Decimal,
        "limit of the result, as an activation: softcap tanh(x / softcap)",
        |b, v| Real::parse(v).and_then(|limit| activate(b, Activation::Softcap(limit))),
        |g| match g.activation {
            Some(Activation::Softcap(limit)) => one(limit),
            _ => Vec::new(),
        },
    ).spelled(Optional("softcap"), "softcap", COLUMN | C | RARE)
    .python("softcap")
    .default("none")
    .title(", softcap {}")
    .epilogue()
    .not_complex("apply it to the stored result"),
    row(
        "gate",
        Names(GateFunction::NAMES),
        "gated product: function of one half of B, times the other half",
        |b, v| put(&mut b.gate, named!(GateFunction, v).map(Some)),
        |g| g.gate.map_or_else(Vec::new, |gate| one(gate.function)),
    ).spelled(Optional("gate"), "gate", COLUMN | C)
    .python("gate")
    .default("none")
    .detail("As in gated MLPs: B, bias and scales along n have both halves, C has n columns")
    .title(", gate {}")
    .epilogue()
    .not_complex("apply it to the stored result"),
    row("up_first", Flag, "the gate's columns come second", |b, v| put(&mut b.up_first, flag(v)), |g| {
        told(g.gate.is_some_and(|gate| gate.up_first), "")
    }).spelled(Optional("upfirst"), "up-first", COLUMN | C | RARE)
        .python("up_first")
        .requires("gate")
        .title(" second"),
    row("interleaved", Flag, "columns of the gate and of the other factor take turns", |b, v| put(&mut b.interleaved, flag(v)), |g| {
        told(g.gate.is_some_and(|gate| gate.interleaved), "")
    }).spelled(Optional("interleaved"), "interleaved", COLUMN | C | RARE)
        .python("interleaved")
        .requires("gate")
        .title(" interleaved"),
    row("separate_up", Flag, "weights of the gate and of the other factor are two tensors", |b, v| put(&mut b.separate_up, flag(v)), |g| {
        told(g.gate.is_some_and(|gate| gate.separate_up), "")
    }).spelled(Optional("separateup"), "separate-up", COLUMN | C | RARE)
        .python("separate_up")
        .requires("gate")
        .detail("B has the gate's n columns, and a tensor of the same layout has the other factor's")
        .title(" of two weights"),
    row("preactivations", Flag, "the sums of both factors are stored, too", |b, v| put(&mut b.gemm.preactivations, flag(v)), |g| {
        told(g.preactivations, "")
    }).spelled(Optional("preact"), "preactivations", COLUMN | C | RARE)
        .python("preactivations")
        .requires("gate")
        .detail("They have 2 n columns in the order of B, and lie as C does, without gaps")
        .title(", pre-activations"),
    row(
        "gate_limit",
        Decimal,
        "limit of the sums of a clamped gate",
        |b, v| put(&mut b.gate_limit, Real::parse(v).map(Some)),
        |g| g.gate.filter(|gate| gate.limit != Gate::LIMIT).map_or_else(Vec::new, |gate| one(gate.limit)),
    ).spelled(Optional("gatelimit"), "gate-limit", COLUMN | C | RARE)
    .python("gate_limit")
    .requires("gate")
    .default("7")
    .title(" up to {}"),
    row(
        "gate_slope",
        Decimal,
        "slope of a clamped gate's sigmoid",
        |b, v| put(&mut b.gate_slope, Real::parse(v).map(Some)),
        |g| g.gate.filter(|gate| gate.slope != Gate::SLOPE).map_or_else(Vec::new, |gate| one(gate.slope)),
    ).spelled(Optional("gateslope"), "gate-slope", COLUMN | C | RARE)
    .python("gate_slope")
    .requires("gate")
    .default("1.702")
    .title(" slope {}"),
    row(
        "residual",
        Flag,
        "matrix of C's size that is added last",
        |b, v| {
            if flag(v)? {
                b.residual.get_or_insert_default();
            }
            Ok(())
        },
        |g| told(g.residual.is_some(), ""),
    ).spelled(Unsaid, "residual", COLUMN | C)
    .python("residual")
    .title(", residual")
    .epilogue(),
    row(
        "ldr",
        Number(1),
        "leading dimension of the residual",
        |b, v| put(&mut b.residual.get_or_insert_default().0, number(v).map(Some)),
        |g| g.residual.map_or_else(Vec::new, |r| one(r.ld)),
    ).spelled(Optional("ldr"), "ldr", COLUMN | C | RARE)
    .requires("residual")
    .default("as C"),
    row(
        "stride_r",
        Number(0),
        "elements from one residual to the next; 0 shares it",
        |b, v| {
            let (ld, _) = b.residual.ok_or("there is no residual; give one, or drop this")?;
            b.residual = Some((ld, Some(within_batch(b, v)?)));
            Ok(())
        },
        |g| g.residual.filter(|_| g.batch > 1).map_or_else(Vec::new, |r| one(r.batch_stride)),
    ).spelled(Optional("sr"), "stride-r", C | RARE)
    .requires("residual")
    .default("as C"),
    row("reduce", Words, "reductions of the result in the same pass: max:n,sum:bm", reduce, |g| g.reductions.iter().map(Reduction::to_string).collect()).spelled(Optional("red"), "reduce", COLUMN | C)
        .python("reduce")
        .default("none")
        .detail(
            "Operators: sum, mean, sumsq, max, min, absmax, argmax, argmin, logsumexp, var, norm2. Axes: b (batch), m (rows), n (columns). \
             sum:n:stored:bf16 reduces C as stored, in bf16. sum:k:a and sum:k:b reduce an operand",
        )
        .title(", {}")
        .not_complex("reduce the stored result's real and imaginary parts")
        .not_grouped("store the result and reduce it in a second call"),
    row("drop_c", Flag, "the result is not stored, only its reductions are", |b, v| put(&mut b.gemm.drop_c, flag(v)), |g| told(g.drop_c, "")).spelled(Optional("noc"), "no-store", C | RARE)
        .python("store")
        .requires("reduce")
        .default("stored")
        .title(", C not stored"),
    other("keep_c", Bit, "the result is stored beside its reductions", |b, v| put(&mut b.gemm.drop_c, flag(v).map(|kept| !kept))).spelled(Unsaid, "", COLUMN).default("1"),
    row(
        "grouped",
        Names(Ragged::NAMES),
        "batch entries are groups of rows, columns or terms",
        |b, v| put(&mut b.gemm.grouped, named!(Ragged, v).map(Some)),
        |g| g.grouped.map_or_else(Vec::new, |of| one(of.name())),
    ).spelled(Optional("group"), "", C)
    .python("offsets")
    .default("none")
    .not_complex("make a product of each group, or a batch of equal ones"),
    other("ragged", Names(Ragged::NAMES), "extent that the groups divide", |b, v| put(&mut b.gemm.grouped, named!(Ragged, v).map(Some))).spelled(Unsaid, "ragged", COLUMN | RARE)
        .requires("groups")
        .default("m")
        .detail("Rows (m), columns (n), or k (weight gradients: each group has its own C)"),
    row("dynamic_m", Flag, "m known only at launch", |b, v| put(&mut b.gemm.dynamic.m, flag(v)), |g| told(g.dynamic.m, "")).spelled(Optional("dynm"), "", C)
        .not_complex(EACH_SIZE)
        .not_grouped(LARGEST),
    row("dynamic_n", Flag, "n known only at launch", |b, v| put(&mut b.gemm.dynamic.n, flag(v)), |g| told(g.dynamic.n, "")).spelled(Optional("dynn"), "", C)
        .not_complex(EACH_SIZE)
        .not_grouped(LARGEST),
    row("dynamic_batch", Flag, "batch known only at launch", |b, v| put(&mut b.gemm.dynamic.g, flag(v)), |g| told(g.dynamic.g, "")).spelled(Optional("dynb"), "", C)
        .not_complex(EACH_SIZE)
        .not_grouped(LARGEST),
    other("dynamic", Words, "extents that each launch gives: m, n, batch", dynamic).spelled(Unsaid, "dynamic", RARE)
        .default("fixed")
        .detail("One kernel serves sizes from 1 to the given one; plans are tuned for the given one"),
];

fn dynamic(b: &mut GemmBuilder, text: &str) -> Result<(), String> {
    let all = [extent::Extent::M, extent::Extent::N, extent::Extent::G];
    for word in words(text) {
        let found = all.into_iter().find(|extent| extent.name() == word);
        b.gemm.dynamic = b.gemm.dynamic.with(found.ok_or_else(|| format!("`{word}` must be one of m, n, batch"))?);
    }
    Ok(())
}

const EACH_SIZE: &str = "make an operation for each size";
const LARGEST: &str = "give the largest size; the ends in device memory say the actual one";

const SHARED: [Name; 2] = [
    Name { spelled: &["each"], number: 0, help: "each product has its own" },
    Name { spelled: &["shared"], number: 1, help: "all products share one" },
];

/// A text tells the batch with its strides.
fn batched(gemm: &Gemm) -> bool {
    gemm.batch > 1 || gemm.grouped.is_some()
}

/// The type of complex elements' parts.
fn parts(b: &GemmBuilder) -> Option<Scalar> {
    b.gemm.complex.map(|_| b.gemm.dtype)
}

fn element(b: &mut GemmBuilder, text: &str) -> Result<(), String> {
    let found = dtype(text)?;
    (b.gemm.dtype, b.gemm.math, b.gemm.complex) = (found.scalar, found.math, found.complex.then(Complex::default));
    Ok(())
}

fn workspace(b: &mut GemmBuilder, text: &str) -> Result<(), String> {
    let bytes = number(text)?.checked_mul(u64::from(b.gemm.dtype.bytes())).filter(|&bytes| bytes <= i64::MAX as u64);
    put(&mut b.gemm.workspace, bytes.ok_or_else(|| format!("that many {} elements take 2^63 bytes or more", b.gemm.dtype)))
}

/// What a complex product says, none of another one.
fn complex(gemm: &Gemm, is: fn(&Complex) -> bool) -> Vec<String> {
    told(gemm.complex.is_some_and(|complex| is(&complex)), "")
}

fn conjugate(b: &mut GemmBuilder, text: &str, place: fn(&mut Complex) -> &mut bool) -> Result<(), String> {
    match (&mut b.gemm.complex, flag(text)?) {
        (Some(complex), is) => *place(complex) = is,
        (None, true) => {
            return Err(format!("elements of type {} are their own conjugates; give a complex dtype, or drop it", b.gemm.dtype));
        }
        (None, false) => {}
    }
    Ok(())
}

fn imaginary(b: &mut GemmBuilder, text: &str, place: fn(&mut Complex) -> &mut bool) -> Result<(), String> {
    match (&mut b.gemm.complex, flag(text)?) {
        (Some(complex), is) => *place(complex) = is,
        (None, true) => {
            return Err(format!(
                "alpha and beta of a product of type {} are real; give a complex dtype (complex64, complex128), or drop it",
                b.gemm.dtype
            ));
        }
        (None, false) => {}
    }
    Ok(())
}

/// A letter for each factor.
fn letters(b: &mut GemmBuilder, text: &str) -> Result<(), String> {
    let letters: Option<Vec<_>> = text.chars().map(Complex::letter).collect();
    let Some([a, c]) = letters.as_deref() else {
        return Err("must be two letters, of A and of B: n (as it is), t (transposed), c (conjugate transpose), r (conjugated, not transposed)".into());
    };
    (b.gemm.a.trans, b.gemm.b.trans) = (a.0, c.0);
    match &mut b.gemm.complex {
        Some(complex) => (complex.conj_a, complex.conj_b) = (a.1, c.1),
        None if a.1 || c.1 => {
            return Err(
                "c and r are conjugates, of complex numbers: give the dtype complex64 or complex128, or write t and n".into()
            );
        }
        None => {}
    }
    Ok(())
}

/// A batch stride.
fn within_batch(b: &GemmBuilder, text: &str) -> Result<u64, String> {
    match number(text)? {
        stride if stride > 0 && b.gemm.batch == 1 => {
            Err("a batch stride needs a batch; give a batch of 2 or more, or drop it".into())
        }
        stride => Ok(stride),
    }
}

fn strides(b: &mut GemmBuilder, matrix: usize, text: &str) -> Result<(), String> {
    let stride = within_batch(b, text)?;
    b.batch_stride[matrix] = Some(stride);
    Ok(())
}

/// Letters, with or without commas between them.
fn zero_points(b: &mut GemmBuilder, text: &str) -> Result<(), String> {
    for letter in words(text).flat_map(|word| word.split("")).filter(|letter| !letter.is_empty()) {
        let found = ZeroPoints::NAMES.into_iter().find(|(name, ..)| *name == letter);
        let (_, of, how) = found.ok_or_else(|| {
            format!(
                "`{letter}` is none of a, b, m, n: write a or m for operand A, b or n for operand B, or one of each, as in m,b"
            )
        })?;
        let place = if of == Along::M { &mut b.gemm.zero_points.a } else { &mut b.gemm.zero_points.b };
        if place.replace(how).is_some() {
            return Err(format!("{} are given twice: one (a, b) or one per line (m, n)", Quant::zero(of).words()));
        }
    }
    Ok(())
}

/// Names of scales, with or without commas between those of m and of n.
fn scales(b: &mut GemmBuilder, text: &str) -> Result<(), String> {
    for word in words(text) {
        let (of_m, of_n) = word.split_at(word.find('n').unwrap_or(word.len()));
        for name in [of_m, of_n].into_iter().filter(|name| !name.is_empty()) {
            let (along, scale) = Scales::named(name).ok_or_else(|| {
                format!(
                    "`{name}` must be one of {} (texts: scalem, scalen, ...), or one of m followed by one of n",
                    Scales::NAMES
                )
            })?;
            if b.gemm.scales.set(along, scale).is_some() {
                return Err(format!("{} are given twice: one of {}", Quant::scale(along).words(), Scales::NAMES));
            }
        }
    }
    Ok(())
}

fn activation(b: &mut GemmBuilder, text: &str) -> Result<(), String> {
    named!(Activation, text).and_then(|function| activate(b, function))
}

fn activate(b: &mut GemmBuilder, function: Activation) -> Result<(), String> {
    match b.gemm.activation.replace(function) {
        Some(_) => Err("activation and softcap are both given; leave one of them out".into()),
        None => Ok(()),
    }
}

fn reduce(b: &mut GemmBuilder, text: &str) -> Result<(), String> {
    b.gemm.reductions.extend(reductions(text)?);
    Ok(())
}

impl Gemm {
    /// Refuses fields that complex or grouped products lack.
    pub(crate) fn validate_fields(&self) -> Result<(), ProblemError> {
        if self.complex.is_none() && self.grouped.is_none() {
            return Ok(());
        }
        for field in FIELDS {
            let refused = [
                (self.complex.is_some(), field.not_complex, "a complex product"),
                (self.grouped.is_some(), field.not_grouped, "a grouped product"),
            ];
            let Some((_, remedy, product)) = refused.into_iter().find(|(is, remedy, _)| *is && !remedy.is_empty()) else {
                continue;
            };
            let Access::Gemm { get, .. } = field.access else { continue };
            if let Some(value) = get(self).first() {
                let lacks = if value.is_empty() { field.meaning.into() } else { format!("{} {value}", field.words()) };
                return Err(ProblemError::Unsupported { what: format!("{product} with {lacks}"), remedy: remedy.into() });
            }
        }
        Ok(())
    }
    /// The geometry string; MIOpenGEMM's own where it can say it all.
    pub fn geometry(&self) -> String {
        Problem::Gemm(self.clone()).key()
    }
}
