//! Lowering: every problem becomes one contraction of views.
//!
//! A convolution reaches the generator only here, as chains of transforms: output pixels are the rows, output channels of a
//! group the columns, and (channel, filter taps) the sum, in the order they lie in memory so that vector access survives.

use crate::contraction::{Bias, Contraction, Tensor};
use crate::conv::{Conv, Layout};
use crate::epilogue::Along;
use crate::error::ProblemError;
use crate::extent::Dynamic;
use crate::gemm::{Gemm, Order};
use crate::problem::Problem;
use crate::view::{View, ViewBuilder};
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// What runs along the batch (g) of a convolution's contraction. Has no effect on other problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvForm {
    /// g = (sample, group), rows = pixels of one sample: a strided-batched product whose weights have batch stride 0 (SOFIE).
    #[default]
    PerSample,
    /// g = group, rows = (sample, pixel): one product per group (rocMLIR).
    Merged,
}

/// Alignment of a buffer's start that plans may count on, in bytes; asked again at launch with the real pointers.
pub const BUFFER_ALIGN: u32 = 256;

/// The contraction that computes a problem.
///
/// # Errors
/// [`ProblemError`] of [`Problem::validate`].
pub fn lower(problem: &Problem, form: ConvForm) -> Result<Contraction, ProblemError> {
    problem.validate()?;
    match problem {
        Problem::Gemm(gemm) => lower_gemm(gemm),
        Problem::Conv(conv) => lower_conv(conv, form),
    }
}

/// Known alignment of the element at `offset` of a buffer, in bytes.
fn alignment(offset: u64, scalar: Scalar) -> u32 {
    let bytes = offset.wrapping_mul(u64::from(scalar.bytes()));
    if bytes == 0 { BUFFER_ALIGN } else { BUFFER_ALIGN.min(1 << bytes.trailing_zeros().min(8)) }
}

fn lower_gemm(gemm: &Gemm) -> Result<Contraction, ProblemError> {
    let matrix = |(rows, cols): (u64, u64), trans: bool, ld: u64, batch_stride: u64| {
        let ld = ld as i64;
        let (row_stride, col_stride) = if trans == (gemm.order == Order::Col) { (ld, 1) } else { (1, ld) };
        ViewBuilder::tensor(&[("g", gemm.batch, batch_stride as i64), ("row", rows, row_stride), ("col", cols, col_stride)])
    };
    let tensor = |index: usize| -> Result<Tensor, ProblemError> {
        let x = gemm.matrices()[index];
        let size = [(gemm.m, gemm.k), (gemm.k, gemm.n), (gemm.m, gemm.n)][index];
        let builder = matrix(size, x.trans, x.ld, x.batch_stride);
        // B is addressed by (g, n, k).
        let view = if index == 1 { builder.view("g", "col", "row")? } else { builder.view("g", "row", "col")? };
        let scalar = gemm.scalar(index);
        Ok(Tensor { scalar, view, align: alignment(x.offset, scalar), len: gemm.span(index) })
    };
    let bias = match gemm.bias {
        None => None,
        Some(x) => {
            let length = if x.along == Along::M { gemm.m } else { gemm.n };
            let values = ViewBuilder::tensor(&[("g", gemm.batch, x.batch_stride as i64), ("index", length, 1)]);
            let view = values.broadcast("one", 1).view("g", "index", "one")?;
            Some(Bias { scalar: gemm.out_dtype, along_n: x.along == Along::N, view, len: gemm.bias_len() })
        }
    };
    let residual = match gemm.residual {
        None => None,
        Some(x) => {
            let view = matrix((gemm.m, gemm.n), gemm.c.trans, x.ld, x.batch_stride).view("g", "row", "col")?;
            Some(Tensor { scalar: gemm.out_dtype, view, align: BUFFER_ALIGN, len: gemm.residual_len() })
        }
    };
    Ok(Contraction {
        g: gemm.batch,
        m: gemm.m,
        n: gemm.n,
        k: gemm.k,
        a: tensor(0)?,
        b: tensor(1)?,
        c: tensor(2)?,
        math: gemm.math,
        bias,
        activation: gemm.activation,
        residual,
        dynamic: gemm.dynamic,
    })
}

/// Names of the spatial dimensions in the stages of a convolution's chains: input, output, filter.
const SPATIAL: [(&str, &str, &str); 3] = [("d", "do", "t"), ("h", "ho", "r"), ("w", "wo", "s")];

fn lower_conv(conv: &Conv, form: ConvForm) -> Result<Contraction, ProblemError> {
    let dims = conv.dims();
    let spatial = &SPATIAL[3 - dims..];
    let output = conv.output();
    let (c, k) = (conv.c_per_group(), conv.k_per_group());
    let outs: Vec<&str> = spatial.iter().map(|s| s.1).collect();
    let taps: Vec<&str> = spatial.iter().map(|s| s.2).collect();
    // Order in memory, slowest first: an outer dimension, then channels and spatial dimensions as the layout has them.
    let dense = |outer: (&'static str, u64), channels: (&'static str, u64), names: Vec<&'static str>, sizes: &[u64]| {
        let mut all: Vec<(&str, u64)> = vec![outer];
        let inner = names.into_iter().zip(sizes.iter().copied());
        match conv.layout {
            Layout::Nchw => {
                all.push(channels);
                all.extend(inner);
            }
            Layout::Nhwc => {
                all.extend(inner);
                all.push(channels);
            }
        }
        ViewBuilder::dense(&all)
    };
    let sum: Vec<&str> = match conv.layout {
        Layout::Nchw => ["c"].into_iter().chain(taps.iter().copied()).collect(),
        Layout::Nhwc => taps.iter().copied().chain(["c"]).collect(),
    };
    // (g, rows) of A and C.
    let pixels = |builder: ViewBuilder| match form {
        ConvForm::PerSample => builder.merge(&outs, "m").merge(&["n", "group"], "g"),
        ConvForm::Merged => builder.merge(&[&["n"], outs.as_slice()].concat(), "m").pass_through("group", "g"),
    };
    // g of the operands that all samples share.
    let shared = |builder: ViewBuilder| match form {
        ConvForm::PerSample => builder.broadcast("n", conv.n).merge(&["n", "group"], "g"),
        ConvForm::Merged => builder.pass_through("group", "g"),
    };
    let tensor = |view: View, len: u64| Tensor { scalar: conv.dtype, view, align: BUFFER_ALIGN, len };
    let result = |view: View| Tensor { scalar: conv.out_dtype, view, align: BUFFER_ALIGN, len: conv.output_len() };

    let mut input = dense(("n", conv.n), ("channels", conv.c), spatial.iter().map(|s| s.0).collect(), &conv.input)
        .unmerge("channels", &[("group", conv.groups), ("c", c)]);
    for (d, (name, out, tap)) in spatial.iter().enumerate() {
        // A distance that is never gone may be anything; 1 keeps coefficients small.
        let step = |distance: u64, count: u64| if count == 1 { 1 } else { distance as i64 };
        let windows =
            [(*out, output[d], step(conv.stride[d], output[d])), (*tap, conv.filter[d], step(conv.dilation[d], conv.filter[d]))];
        input = input.pad(name, conv.pad_begin[d], conv.pad_end[d]).embed(name, &windows);
    }
    let a = pixels(input.merge(&sum, "k")).view("g", "m", "k")?;

    let filter = dense(("filters", conv.k), ("c", c), taps.clone(), &conv.filter)
        .unmerge("filters", &[("group", conv.groups), ("column", k)])
        .merge(&sum, "k");
    let b = shared(filter).view("g", "column", "k")?;

    let output = dense(("n", conv.n), ("channels", conv.k), outs.clone(), &output)
        .unmerge("channels", &[("group", conv.groups), ("column", k)]);
    let c_view = pixels(output).view("g", "m", "column")?;

    let bias = if conv.bias {
        let values = ViewBuilder::dense(&[("filters", conv.k)]).unmerge("filters", &[("group", conv.groups), ("column", k)]);
        let view = shared(values).broadcast("one", 1).view("g", "column", "one")?;
        Some(Bias { scalar: conv.out_dtype, along_n: true, view, len: conv.k })
    } else {
        None
    };
    Ok(Contraction {
        g: a.extent[0],
        m: a.extent[1],
        n: b.extent[1],
        k: a.extent[2],
        a: tensor(a, conv.input_len()),
        b: tensor(b, conv.filter_len()),
        residual: conv.residual.then(|| result(c_view.clone())),
        c: result(c_view),
        math: conv.math,
        bias,
        activation: conv.activation,
        dynamic: Dynamic::NONE,
    })
}
