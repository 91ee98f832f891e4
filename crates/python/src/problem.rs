//! From keyword arguments to problems, told as their text.

use crate::errors::{ProblemError, raised};
use pyo3::prelude::*;
use tilewright::{
    Activation, Along, Complex, Conv, ConvBuilder, Direction, Dtype, Gemm, GemmBuilder, Layout, Math, Problem, Ragged, Reduce,
    ReduceBuilder, Reduction, Scalar, Scales, ZeroPoints, operator,
};

fn named<T: Copy>(what: &str, name: &str, values: &[(&str, T)]) -> PyResult<T> {
    let found = values.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let all: Vec<&str> = values.iter().map(|(n, _)| *n).collect();
        ProblemError::new_err(format!("{what} = {name:?}: one of {}", all.join(", ")))
    })
}

/// What 64-bit integers are called; they are values of reductions alone.
const INT64: [&str; 2] = ["int64", "i64"];

/// Element types of real numbers, multiplied exactly.
fn plain() -> impl Iterator<Item = Dtype> {
    Dtype::ALL.into_iter().filter(|dtype| dtype.math == Math::Exact && !dtype.complex)
}

/// The name that arrays have for a type.
fn array_name(scalar: Scalar) -> &'static str {
    if scalar == Scalar::I64 {
        return INT64[0];
    }
    plain().find(|dtype| dtype.scalar == scalar).and_then(|dtype| dtype.aliases().first().copied()).unwrap_or_default()
}

/// The name that arrays have for a type of any spelling; a name that is none is given back.
#[pyfunction]
pub fn array_dtype(name: &str) -> String {
    let found = Dtype::named(name).filter(|dtype| dtype.math == Math::Exact);
    match found {
        Some(dtype) if dtype.complex => dtype.name().into(),
        Some(dtype) => array_name(dtype.scalar).into(),
        None => name.into(),
    }
}

fn dtype(name: &str) -> PyResult<Scalar> {
    if Complex::of_name(name).is_some() {
        return Err(ProblemError::new_err(format!(
            "dtype = {name:?}: complex numbers are the elements of gemm's matrices, all three of them"
        )));
    }
    if INT64.contains(&name) {
        return Ok(Scalar::I64);
    }
    let found = plain().find(|dtype| dtype.name() == name || dtype.aliases().contains(&name));
    found.map(|dtype| dtype.scalar).ok_or_else(|| {
        let all: Vec<&str> = plain().map(|dtype| array_name(dtype.scalar)).collect();
        ProblemError::new_err(format!("dtype = {name:?}: one of {}", all.join(", ")))
    })
}

fn math(name: &str) -> PyResult<Math> {
    Math::from_name(name).map_or_else(|| named("math", name, &Math::ALL.map(|math| (math.name(), math))), Ok)
}

fn activation(name: &str) -> PyResult<Activation> {
    Activation::from_name(name)
        .ok_or_else(|| ProblemError::new_err(format!("activation = {name:?}: one of {}", Activation::names())))
}

/// The text of a row-major product. `strides`: leading dimensions of A, B, C and residual, then their batch strides; None is tight.
#[pyfunction]
#[pyo3(signature = (m, n, k, dtype="float32", *, b_dtype=None, out_dtype=None, trans=(false, false, false), batch=1, strides=[None; 8], zero_points=Vec::new(),
                    scales=Vec::new(), bias=None, bias_stride=0, activation=None, residual=false, math="exact", reduce=Vec::new(), drop_c=false, grouped=None, conj=(false, false), imaginary=(false, false)))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn gemm(
    m: u64,
    n: u64,
    k: u64,
    dtype: &str,
    b_dtype: Option<&str>,
    out_dtype: Option<&str>,
    trans: (bool, bool, bool),
    batch: u64,
    strides: [Option<u64>; 8],
    zero_points: Vec<String>,
    scales: Vec<String>,
    bias: Option<&str>,
    bias_stride: u64,
    activation: Option<&str>,
    residual: bool,
    math: &str,
    reduce: Vec<String>,
    drop_c: bool,
    grouped: Option<&str>,
    conj: (bool, bool),
    imaginary: (bool, bool),
) -> PyResult<String> {
    let name = dtype;
    // The types of arrays say nothing of how their parts are multiplied.
    let complex = Complex::of_name(name).map(|(parts, _)| parts);
    let dtype = complex.map_or_else(|| self::dtype(name), Ok)?;
    let mut gemm = Gemm::new(dtype, m, n, k).trans(trans.0, trans.1).trans_c(trans.2).batch(batch).math(self::math(math)?);
    if complex.is_some() {
        gemm = gemm.conj(conj.0, conj.1).imaginary(imaginary.0, imaginary.1);
    } else if imaginary.0 || imaginary.1 {
        let (field, reason) = (if imaginary.0 { "alpha" } else { "beta" }, "only complex arrays take complex factors");
        return Err(ProblemError::new_err(format!("imaginary = {imaginary:?}: {field} is real here, {reason}")));
    }
    // All matrices of a complex product have its type.
    let other = |given: &&str| complex.is_none() || *given != name;
    gemm = gemm.out_dtype(out_dtype.filter(other).map_or(Ok(dtype), self::dtype)?);
    if complex.is_some() && out_dtype.is_some_and(|out| out != name) {
        return Err(ProblemError::new_err(format!(
            "out_dtype = {:?}: results of {name} products are {name}",
            out_dtype.unwrap_or_default()
        )));
    }
    if let Some(b) = b_dtype.filter(other) {
        gemm = gemm.b_dtype(self::dtype(b)?);
    }
    let along = |what, name: &str| named(what, name, &Along::ALL.map(|along| (along.name(), along)));
    if let Some(name) = grouped {
        gemm = gemm.grouped(named("grouped", name, &Ragged::ALL.map(|of| (of.name(), of)))?, batch);
    }
    for name in zero_points {
        let (of, how) = named("zero_points", &name, &ZeroPoints::NAMES.map(|(name, of, how)| (name, (of, how))))?;
        gemm = gemm.zero_point(of, how);
    }
    for name in scales {
        let (of, scale) =
            Scales::named(&name).ok_or_else(|| ProblemError::new_err(format!("scales = {name:?}: one of {}", Scales::NAMES)))?;
        gemm = gemm.scale_by(of, scale);
    }
    if let Some(name) = bias {
        gemm = gemm.bias_strided(along("bias", name)?, bias_stride);
    }
    if let Some(activation) = activation {
        gemm = gemm.activation(self::activation(activation)?);
    }
    if residual {
        gemm = gemm.residual();
    }
    gemm = reductions(reduce)?.into_iter().fold(gemm, GemmBuilder::reduce);
    if drop_c {
        gemm = gemm.drop_c();
    }
    type Set = fn(GemmBuilder, u64) -> GemmBuilder;
    let set: [Set; 8] = [
        GemmBuilder::lda,
        GemmBuilder::ldb,
        GemmBuilder::ldc,
        GemmBuilder::ldr,
        GemmBuilder::stride_a,
        GemmBuilder::stride_b,
        GemmBuilder::stride_c,
        GemmBuilder::stride_r,
    ];
    for (value, set) in strides.into_iter().zip(set) {
        if let Some(value) = value {
            gemm = set(gemm, value);
        }
    }
    Ok(Problem::from(gemm.build().map_err(|e| raised(e.into()))?).key())
}

fn reductions(texts: Vec<String>) -> PyResult<Vec<Reduction>> {
    let parse = |text: String| text.parse().map_err(|e| ProblemError::new_err(format!("reduce = {text:?}: {e}")));
    texts.into_iter().map(parse).collect()
}

/// Shape and type of the values of each of a problem's reductions; `batched`: batch entries are an axis.
#[pyfunction]
pub fn values(problem: &str, batched: bool) -> PyResult<Vec<(Vec<u64>, &'static str)>> {
    let problem = Problem::parse(problem).map_err(|e| raised(e.into()))?;
    let shape = problem.result_shape();
    let (of, groups) = (shape.extents, shape.groups.max(1));
    let listed = problem.reductions().iter().map(|r| {
        let ([rows, columns], [no_m, no_n]) = (shape.each(r.over), r.over.whole());
        let left = |gone: bool, extent: u64, block: u64| (!gone).then(|| extent / block.max(1));
        let (m, n) = (left(no_m, of.m, rows), left(no_n, of.n, columns));
        // Channels of all groups form one dimension if nothing separates them.
        let channels = if m.is_none() { n.map(|n| n * groups) } else { None };
        let apart = (groups > 1 && channels.is_none()).then_some(groups);
        let batch = (batched && !r.over.g).then_some(of.g / groups);
        let sizes = [batch, apart, m, channels.or(n)].into_iter().flatten().collect();
        Ok((sizes, array_name(r.scalar(problem.accumulator()))))
    });
    listed.collect()
}

/// The text of a convolution.
#[pyfunction]
#[pyo3(signature = (n, c, k, input, filter, dtype="float32", *, out_dtype=None, direction="forward", layout="nchw", groups=1,
                    stride=None, dilation=None, pad_begin=None, pad_end=None, bias=false, activation=None, residual=false,
                    mask=false, math="exact", reduce=Vec::new(), drop_c=false))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn conv(
    n: u64,
    c: u64,
    k: u64,
    input: Vec<u64>,
    filter: Vec<u64>,
    dtype: &str,
    out_dtype: Option<&str>,
    direction: &str,
    layout: &str,
    groups: u64,
    stride: Option<Vec<u64>>,
    dilation: Option<Vec<u64>>,
    pad_begin: Option<Vec<u64>>,
    pad_end: Option<Vec<u64>>,
    bias: bool,
    activation: Option<&str>,
    residual: bool,
    mask: bool,
    math: &str,
    reduce: Vec<String>,
    drop_c: bool,
) -> PyResult<String> {
    let dtype = self::dtype(dtype)?;
    let directions = [
        ("forward", Direction::Forward),
        ("backward-data", Direction::BackwardData),
        ("backward-weight", Direction::BackwardWeight),
    ];
    let filled = |given: Option<Vec<u64>>, other: u64| given.unwrap_or_else(|| vec![other; input.len()]);
    let pad_begin = filled(pad_begin, 0);
    let pad_end = pad_end.unwrap_or_else(|| pad_begin.clone());
    let mut conv = Conv::new(dtype, n, c, k, &input, &filter)
        .out_dtype(out_dtype.map_or(Ok(dtype), self::dtype)?)
        .direction(named("direction", direction, &directions)?)
        .layout(named("layout", layout, &[("nchw", Layout::Nchw), ("nhwc", Layout::Nhwc)])?)
        .groups(groups)
        .stride(&filled(stride, 1))
        .dilation(&filled(dilation, 1))
        .pad(&pad_begin, &pad_end)
        .math(self::math(math)?);
    if bias {
        conv = conv.bias();
    }
    if let Some(activation) = activation {
        conv = conv.activation(self::activation(activation)?);
    }
    if residual {
        conv = conv.residual();
    }
    if mask {
        conv = conv.mask();
    }
    conv = reductions(reduce)?.into_iter().fold(conv, ConvBuilder::reduce);
    if drop_c {
        conv = conv.drop_c();
    }
    Ok(Problem::from(conv.build().map_err(|e| raised(e.into()))?).key())
}

/// The text of a tensor reduction. Operators are written as `sum` or `argmax:i32`.
#[pyfunction]
#[pyo3(signature = (shape, strides, over, ops, dtype="float32", *, activation=None))]
pub fn reduce(
    shape: Vec<u64>,
    strides: Vec<u64>,
    over: Vec<usize>,
    ops: Vec<String>,
    dtype: &str,
    activation: Option<&str>,
) -> PyResult<String> {
    let mut reduce = Reduce::new(self::dtype(dtype)?, &shape, &over).strides(&strides);
    for text in ops {
        let refused = |e| ProblemError::new_err(format!("op = {text:?}: {e}"));
        reduce = ReduceBuilder::reduction(reduce, operator(&text).map_err(refused)?);
    }
    if let Some(activation) = activation {
        reduce = reduce.activation(self::activation(activation)?);
    }
    Ok(Problem::from(reduce.build().map_err(|e| raised(e.into()))?).key())
}
