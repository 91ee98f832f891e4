//! The fields of convolutions.

use super::Key::{Always, Optional, Unsaid};
use super::Kind::{Bit, Dtype as Type, Extent, Flag, Names, Number, Sizes, Words};
use super::{
    Access, C, COLUMN, Field, Get, Kind, NOWHERE_ELSE, RARE, REQUIRED, Set, dtype, field, flag, joined, named, one, put,
    reductions, sizes, stored, told,
};
use crate::conv::{Conv, ConvBuilder, Direction, Layout};
use crate::dtype::Dtype;
use crate::epilogue::Activation;
use crate::error::{default_out, names_out_dtype};
use crate::math::Math;
use crate::names::number;
use crate::reduction::Reduction;

const fn row(name: &'static str, kind: Kind, meaning: &'static str, set: Set<ConvBuilder>, get: Get<Conv>) -> Field {
    field(name, kind, meaning, Access::Conv { set, get })
}

/// Another spelling of fields that other rows print.
const fn other(name: &'static str, kind: Kind, meaning: &'static str, set: Set<ConvBuilder>) -> Field {
    row(name, kind, meaning, set, |_| Vec::new())
}

/// The short name in texts.
fn short(direction: Direction) -> &'static str {
    Direction::NAMES.get(direction as usize).and_then(|name| name.aliases().first()).copied().unwrap_or_default()
}

/// The fields, in the order of a convolution's text.
pub(super) const FIELDS: &[Field] = &[
    row(
        "direction",
        Names(Direction::NAMES),
        "tensor that is computed",
        |b, v| put(&mut b.0.direction, named!(Direction, v)),
        |c| one(short(c.direction)),
    )
    .spelled(Always(""), "direction", COLUMN | C)
    .python("direction")
    .default("forward")
    .detail("Sizes are always those of the forward convolution"),
    row(
        "layout",
        Names(Layout::NAMES),
        "layout of input and output",
        |b, v| put(&mut b.0.layout, named!(Layout, v)),
        |c| one(c.layout.name()),
    )
    .spelled(Always(""), "layout", COLUMN | C)
    .python("layout")
    .default("nchw")
    .detail("The filter follows it"),
    row("n", Extent, "images", |b, v| put(&mut b.0.n, number(v)), |c| one(c.n))
        .spelled(Always("n"), "n", COLUMN | C | REQUIRED)
        .detail("A range gives several problems: 16:64:16 is from:to:step"),
    row("groups", Number(1), "groups of channels that do not mix", |b, v| put(&mut b.0.groups, number(v)), |c| one(c.groups))
        .spelled(Optional("g"), "groups", COLUMN | C)
        .python("groups")
        .default("1"),
    row("c", Extent, "input channels, all groups together", |b, v| put(&mut b.0.c, number(v)), |c| one(c.c)).spelled(
        Always("c"),
        "c",
        COLUMN | C | REQUIRED,
    ),
    row("k", Extent, "output channels, all groups together", |b, v| put(&mut b.0.k, number(v)), |c| one(c.k)).spelled(
        Always("k"),
        "k",
        COLUMN | C | REQUIRED,
    ),
    row("input", Sizes(1), "spatial size of the input: 28, 56x56 or 8x32x32", input, |c| one(joined(&c.input))).spelled(
        Always("in"),
        "size",
        COLUMN | C | REQUIRED,
    ),
    row("filter", Sizes(1), "spatial size of the filter", |b, v| spread(b, v, |c| &mut c.filter), |c| one(joined(&c.filter)))
        .spelled(Always("fil"), "filter", COLUMN | C | REQUIRED)
        .detail("One value for all dimensions, or one each"),
    row("stride", Sizes(1), "step of the window", |b, v| spread(b, v, |c| &mut c.stride), |c| one(joined(&c.stride)))
        .spelled(Optional("st"), "stride", COLUMN | C)
        .python("stride")
        .default("1"),
    row(
        "dilation",
        Sizes(1),
        "distance between filter taps",
        |b, v| spread(b, v, |c| &mut c.dilation),
        |c| one(joined(&c.dilation)),
    )
    .spelled(Optional("dil"), "dilation", COLUMN | C)
    .python("dilation")
    .default("1"),
    other("pad", Words, "zeros around the input", pad)
        .spelled(Unsaid, "pad", COLUMN)
        .excludes(&["pad_begin", "pad_end"])
        .default("0")
        .detail("1 on all sides, 1:2 before:after, 1x0:1 per dimension"),
    row(
        "pad_begin",
        Sizes(0),
        "zeros before the input",
        |b, v| spread(b, v, |c| &mut c.pad_begin),
        |c| one(joined(&c.pad_begin)),
    )
    .spelled(Optional("pb"), "", COLUMN | C)
    .python("padding")
    .default("0"),
    row("pad_end", Sizes(0), "zeros after the input", |b, v| spread(b, v, |c| &mut c.pad_end), |c| one(joined(&c.pad_end)))
        .spelled(Optional("pe"), "", COLUMN | C)
        .python("padding")
        .default("0"),
    row(
        "bias",
        Bit,
        "a value per channel that is added to the result",
        |b, v| put(&mut b.0.bias, flag(v)),
        |c| one(u8::from(c.bias)),
    )
    .spelled(Optional("bias"), "bias", COLUMN | C)
    .python("bias")
    .default("none")
    .title(", bias")
    .epilogue(),
    row("workspace", Number(0), "workspace budget in bytes", |b, v| put(&mut b.0.workspace, number(v)), |c| one(c.workspace))
        .spelled(Optional("ws"), "", NOWHERE_ELSE)
        .default("1 GiB"),
    row("dtype", Type, "element type", element, |c| one(Dtype::name_of(c.dtype, c.math, false)))
        .spelled(Always(""), "dtype", COLUMN | C)
        .default("f32"),
    other("math", Names(Math::NAMES), "precision of products and sums", |b, v| {
        if v == Math::Exact.name() { Ok(()) } else { put(&mut b.0.math, named!(Math, v)) }
    })
    .spelled(Unsaid, "", C)
    .python("math")
    .default("exact"),
    row(
        "out_dtype",
        Type,
        "element type of result, bias and residual, if it differs",
        |b, v| put(&mut b.0.out_dtype, stored(v, None)),
        |c| told(names_out_dtype(c.dtype, c.out_dtype), c.out_dtype),
    )
    .spelled(Optional("out"), "out-dtype", COLUMN | C | RARE)
    .python("out_dtype"),
    row(
        "activation",
        Names(Activation::NAMES),
        "function of the result with its bias",
        |b, v| put(&mut b.0.activation, named!(Activation, v).map(Some)),
        |c| c.activation.map_or_else(Vec::new, one),
    )
    .spelled(Optional("act"), "activation", COLUMN | C)
    .python("activation")
    .default("none")
    .title(", {}")
    .epilogue(),
    row(
        "residual",
        Bit,
        "tensor of the result's size that is added last",
        |b, v| added(b, v, false),
        |c| told(c.residual && !c.mask, 1),
    )
    .spelled(Optional("res"), "residual", COLUMN | C)
    .python("residual")
    .title(", residual")
    .epilogue(),
    row("mask", Bit, "the result is 0 where this tensor is not above 0", |b, v| added(b, v, true), |c| told(c.mask, 1))
        .spelled(Optional("mask"), "mask", COLUMN | C)
        .python("mask")
        .excludes(&["residual"])
        .detail("It is the gradient of a ReLU")
        .title(", mask")
        .epilogue(),
    row("reduce", Words, "reductions of the result in the same pass: max:n,sum:bm", reduce, |c| {
        c.reductions.iter().map(Reduction::to_string).collect()
    })
    .spelled(Optional("red"), "reduce", COLUMN | C)
    .python("reduce")
    .default("none")
    .detail(
        "As for a matrix product. Axes: b (samples), m (pixels), n (channels of a group). sum:bm,sumsq:bm are the sums of batch \
         normalisation. Groups are never reduced together. With a filter's gradient, sum:k:a is the gradient of the bias",
    )
    .title(", {}"),
    row(
        "drop_c",
        Flag,
        "the result is not stored, only its reductions are",
        |b, v| put(&mut b.0.drop_c, flag(v)),
        |c| told(c.drop_c, ""),
    )
    .spelled(Optional("noc"), "no-store", C | RARE)
    .python("store")
    .requires("reduce")
    .default("stored")
    .title(", C not stored"),
    other("keep_c", Bit, "the result is stored beside its reductions", |b, v| put(&mut b.0.drop_c, flag(v).map(|kept| !kept)))
        .spelled(Unsaid, "", COLUMN)
        .default("1"),
];

fn element(b: &mut ConvBuilder, text: &str) -> Result<(), String> {
    let found = dtype(text)?;
    if found.complex {
        let refused = stored(text, None).map(drop);
        return refused.map_err(|reason| format!("{reason}; convolve real and imaginary parts separately"));
    }
    (b.0.dtype, b.0.math, b.0.out_dtype) = (found.scalar, found.math, default_out(found.scalar));
    Ok(())
}

/// The input gives the number of spatial dimensions.
fn input(b: &mut ConvBuilder, text: &str) -> Result<(), String> {
    b.0.input = sizes(0, text)?;
    let dims = b.0.input.len();
    (b.0.stride, b.0.dilation) = (vec![1; dims], vec![1; dims]);
    (b.0.pad_begin, b.0.pad_end) = (vec![0; dims], vec![0; dims]);
    Ok(())
}

/// One size for all spatial dimensions, or one each.
fn each(list: Vec<u64>, dims: usize) -> Result<Vec<u64>, String> {
    match list.as_slice() {
        [one] => Ok(vec![*one; dims]),
        all if all.len() == dims => Ok(list),
        all => Err(format!("has {} dimensions and the input {dims}: give one value, or one per dimension", all.len())),
    }
}

fn spread(b: &mut ConvBuilder, text: &str, list: fn(&mut Conv) -> &mut Vec<u64>) -> Result<(), String> {
    let values = each(sizes(0, text)?, b.0.dims())?;
    *list(&mut b.0) = values;
    Ok(())
}

/// `1`, `1:2` (before:after), `1x0:1` (per dimension).
fn pad(b: &mut ConvBuilder, text: &str) -> Result<(), String> {
    let side = |part: &str, end: bool| {
        let (before, after) = part.split_once(':').unwrap_or((part, part));
        number(if end { after } else { before }).map_err(|reason| format!("{reason} (write 1, 1:2 or 1x0:1)"))
    };
    let sides = |end| text.split('x').map(|part| side(part, end)).collect::<Result<Vec<_>, _>>();
    let dims = b.0.dims();
    (b.0.pad_begin, b.0.pad_end) = (each(sides(false)?, dims)?, each(sides(true)?, dims)?);
    Ok(())
}

/// The tensor that is added, or that masks.
fn added(b: &mut ConvBuilder, text: &str, mask: bool) -> Result<(), String> {
    match (flag(text)?, mask, b.0.residual) {
        (true, true, true) => {
            return Err("residual and mask are one tensor: it is added, or masks; leave one of them out".into());
        }
        (true, ..) => (b.0.residual, b.0.mask) = (true, mask),
        _ => {}
    }
    Ok(())
}

fn reduce(b: &mut ConvBuilder, text: &str) -> Result<(), String> {
    b.0.reductions.extend(reductions(text)?);
    Ok(())
}
