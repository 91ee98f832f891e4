//! Problems as C structures.

use crate::grown::{self, Grown};
use crate::status::Failure;
use crate::text::read;
use std::ffi::c_char;
use tilewright::{
    Activation, Along, Conv, ConvBuilder, Direction, Dynamic, Gemm, GemmBuilder, Layout, Math, Order, Ragged, Reduce,
    ReduceBuilder, Reduction, Scalar, Scale, ZeroPoint, operator,
};

/// What stands for a stride or leading dimension that is not given.
const TIGHT: i64 = -1;
/// B's type where it is A's.
const AS_A: i32 = -1;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TwGemm {
    pub size: usize,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub lda: i64,
    pub ldb: i64,
    pub ldc: i64,
    pub ldr: i64,
    pub batch: i64,
    pub stride_a: i64,
    pub stride_b: i64,
    pub stride_c: i64,
    pub stride_r: i64,
    pub dtype: i32,
    pub out_dtype: i32,
    pub order: i32,
    pub math: i32,
    pub trans_a: i32,
    pub trans_b: i32,
    pub bias: i32,
    pub activation: i32,
    pub residual: i32,
    pub dynamic_m: i32,
    pub dynamic_n: i32,
    pub dynamic_batch: i32,
    pub reduce: *const c_char,
    pub drop_c: i32,
    pub scale_m: i32,
    pub scale_n: i32,
    pub zero_a: i32,
    pub zero_b: i32,
    pub grouped: i32,
    pub b_dtype: i32,
    pub conj_a: i32,
    pub conj_b: i32,
    pub alpha_im: i32,
    pub beta_im: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TwConv {
    pub size: usize,
    pub n: i64,
    pub c: i64,
    pub k: i64,
    pub groups: i64,
    pub input: [i64; 3],
    pub filter: [i64; 3],
    pub stride: [i64; 3],
    pub dilation: [i64; 3],
    pub pad_begin: [i64; 3],
    pub pad_end: [i64; 3],
    pub dims: i32,
    pub direction: i32,
    pub layout: i32,
    pub dtype: i32,
    pub out_dtype: i32,
    pub math: i32,
    pub bias: i32,
    pub activation: i32,
    pub residual: i32,
    pub mask: i32,
    pub drop_c: i32,
    pub reduce: *const c_char,
}

/// Most dimensions of a reduction's tensor.
const DIMS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TwReduce {
    pub size: usize,
    pub shape: [i64; DIMS],
    pub strides: [i64; DIMS],
    pub over: [i32; DIMS],
    pub dims: i32,
    pub dtype: i32,
    pub activation: i32,
    pub ops: *const c_char,
}

impl Grown for TwGemm {
    const NAME: &'static str = "tw_gemm";
    const FIRST: usize = 208;
    fn defaults() -> Self {
        tight_gemm(0, [0; 3])
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_gemm_init(gemm: *mut TwGemm, dtype: i32, m: i64, n: i64, k: i64) {
    // SAFETY: as the header asks; a program that calls this function has the structure of version 0.1.0.
    unsafe { grown::write(&tight_gemm(dtype, [m, n, k]), gemm, TwGemm::FIRST) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_gemm_init_sized(gemm: *mut TwGemm, size: usize, dtype: i32, m: i64, n: i64, k: i64) {
    // SAFETY: as the header asks.
    unsafe { grown::write(&tight_gemm(dtype, [m, n, k]), gemm, size) };
}

/// A row-major, untransposed, tight product without epilogue.
fn tight_gemm(dtype: i32, [m, n, k]: [i64; 3]) -> TwGemm {
    TwGemm {
        size: size_of::<TwGemm>(),
        m,
        n,
        k,
        lda: TIGHT,
        ldb: TIGHT,
        ldc: TIGHT,
        ldr: TIGHT,
        batch: 1,
        stride_a: TIGHT,
        stride_b: TIGHT,
        stride_c: TIGHT,
        stride_r: TIGHT,
        dtype,
        out_dtype: dtype,
        order: 101,
        math: 0,
        trans_a: 0,
        trans_b: 0,
        bias: 0,
        activation: 0,
        residual: 0,
        dynamic_m: 0,
        dynamic_n: 0,
        dynamic_batch: 0,
        reduce: std::ptr::null(),
        drop_c: 0,
        scale_m: 0,
        scale_n: 0,
        zero_a: 0,
        zero_b: 0,
        grouped: 0,
        b_dtype: AS_A,
        conj_a: 0,
        conj_b: 0,
        alpha_im: 0,
        beta_im: 0,
    }
}

impl Grown for TwConv {
    const NAME: &'static str = "tw_conv";
    const FIRST: usize = 240;
    fn defaults() -> Self {
        plain_conv(0, [0; 3], 0, [0; 3], [0; 3])
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_conv_init(
    conv: *mut TwConv,
    dtype: i32,
    n: i64,
    c: i64,
    k: i64,
    dims: i32,
    input: *const i64,
    filter: *const i64,
) {
    // SAFETY: as the header asks; a program that calls this function has the structure of version 0.1.0.
    unsafe { tw_conv_init_sized(conv, TwConv::FIRST, dtype, n, c, k, dims, input, filter) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_conv_init_sized(
    conv: *mut TwConv,
    size: usize,
    dtype: i32,
    n: i64,
    c: i64,
    k: i64,
    dims: i32,
    input: *const i64,
    filter: *const i64,
) {
    // SAFETY: as the header asks.
    unsafe { grown::write(&plain_conv(dtype, [n, c, k], dims, sizes(dims, input), sizes(dims, filter)), conv, size) };
}

/// A forward NCHW convolution without stride, dilation, groups, padding or epilogue.
fn plain_conv(dtype: i32, [n, c, k]: [i64; 3], dims: i32, input: [i64; 3], filter: [i64; 3]) -> TwConv {
    TwConv {
        size: size_of::<TwConv>(),
        n,
        c,
        k,
        groups: 1,
        input,
        filter,
        stride: [1; 3],
        dilation: [1; 3],
        pad_begin: [0; 3],
        pad_end: [0; 3],
        dims,
        direction: 0,
        layout: 0,
        dtype,
        out_dtype: dtype,
        math: 0,
        bias: 0,
        activation: 0,
        residual: 0,
        mask: 0,
        drop_c: 0,
        reduce: std::ptr::null(),
    }
}

/// As many numbers as dimensions; null leaves sizes that are refused later.
unsafe fn sizes<const N: usize>(dims: i32, from: *const i64) -> [i64; N] {
    let count = if from.is_null() { 0 } else { usize::try_from(dims).unwrap_or(0).min(N) };
    // SAFETY: the caller's.
    std::array::from_fn(|i| if i < count { unsafe { *from.add(i) } } else { 0 })
}

impl Grown for TwReduce {
    const NAME: &'static str = "tw_reduce";
    const FIRST: usize = 192;
    fn defaults() -> Self {
        dense(0, 0, [0; DIMS], std::ptr::null())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_reduce_init(reduce: *mut TwReduce, dtype: i32, dims: i32, shape: *const i64, ops: *const c_char) {
    // SAFETY: as the header asks; a program that calls this function has the structure of version 0.1.0.
    unsafe { tw_reduce_init_sized(reduce, TwReduce::FIRST, dtype, dims, shape, ops) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_reduce_init_sized(
    reduce: *mut TwReduce,
    size: usize,
    dtype: i32,
    dims: i32,
    shape: *const i64,
    ops: *const c_char,
) {
    // SAFETY: as the header asks.
    let shape: [i64; DIMS] = if shape.is_null() { [-1; DIMS] } else { unsafe { sizes(dims, shape) } };
    // SAFETY: as the header asks.
    unsafe { grown::write(&dense(dtype, dims, shape, ops), reduce, size) };
}

/// A reduction of a dense tensor, over no dimension yet.
fn dense(dtype: i32, dims: i32, shape: [i64; DIMS], ops: *const c_char) -> TwReduce {
    let (mut strides, mut next) = ([0; DIMS], 1_i64);
    for (stride, size) in strides.iter_mut().zip(shape).take(usize::try_from(dims).unwrap_or(0)).rev() {
        *stride = next;
        next = next.saturating_mul(size.max(1));
    }
    TwReduce { size: size_of::<TwReduce>(), shape, strides, over: [0; DIMS], dims, dtype, activation: 0, ops }
}

/// The value that a number names.
fn named<T: Copy>(field: &str, number: i32, values: &[(i32, T)]) -> Result<T, Failure> {
    let found = values.iter().find(|(n, _)| *n == number).map(|(_, value)| *value);
    found.ok_or_else(|| Failure::argument(format!("{field} = {number} names nothing: see the enumeration in tilewright.h")))
}

/// Types of complex numbers, by that of their parts.
const COMPLEX: [(i32, Scalar); 2] = [(13, Scalar::F32), (14, Scalar::F64)];

fn dtype(field: &str, number: i32) -> Result<Scalar, Failure> {
    if COMPLEX.iter().any(|(complex, _)| *complex == number) {
        let message = format!("{field} = {number}: complex numbers are the dtype of tw_gemm, whose B and C have the type of A");
        return Err(Failure::argument(message));
    }
    use Scalar::{BF16, E4M3, E4M3Fnuz, E5M2, E5M2Fnuz, F16, F32, F64, I4, I8, I32, U4, U8};
    let floats = [(0, F32), (1, F64), (2, F16), (3, BF16), (4, E4M3), (5, E5M2), (9, E4M3Fnuz), (10, E5M2Fnuz)];
    named(field, number, &[&floats[..], &[(6, I32), (7, I8), (8, U8), (11, I4), (12, U4)]].concat())
}

fn math(number: i32) -> Result<Math, Failure> {
    let ways = [(0, Math::Exact), (1, Math::Tf32), (2, Math::Tf32x3), (3, Math::Promoted), (4, Math::Bf16x3), (5, Math::Bf16x6)];
    named("math", number, &ways)
}

fn activation(number: i32) -> Result<Option<Activation>, Failure> {
    let [relu, gelu, tanh, silu, hard] = Activation::ALL.map(Some);
    named("activation", number, &[(0, None), (1, relu), (2, gelu), (3, tanh), (4, silu), (5, hard)])
}

fn size(field: &str, value: i64) -> Result<u64, Failure> {
    u64::try_from(value).map_err(|_| Failure::argument(format!("{field} = {value} is negative")))
}

pub(crate) fn gemm(x: &TwGemm) -> Result<GemmBuilder, Failure> {
    let complex = COMPLEX.into_iter().find(|(number, _)| *number == x.dtype).map(|(_, parts)| parts);
    let of_a = complex.map_or_else(|| dtype("dtype", x.dtype), Ok)?;
    let out = match complex {
        Some(parts) if x.out_dtype == x.dtype => parts,
        Some(_) => {
            let message = format!("out_dtype = {}: results of complex products have the type of A, {}", x.out_dtype, x.dtype);
            return Err(Failure::argument(message));
        }
        None => dtype("out_dtype", x.out_dtype)?,
    };
    let mut gemm = Gemm::new(of_a, size("m", x.m)?, size("n", x.n)?, size("k", x.k)?)
        .out_dtype(out)
        .order(named("order", x.order, &[(101, Order::Row), (102, Order::Col)])?)
        .math(math(x.math)?)
        .trans(x.trans_a != 0, x.trans_b != 0)
        .batch(size("batch", x.batch)?)
        .dynamic(Dynamic { m: x.dynamic_m != 0, n: x.dynamic_n != 0, g: x.dynamic_batch != 0 });
    let ragged = [(0, None), (1, Some(Ragged::M)), (2, Some(Ragged::N)), (3, Some(Ragged::K))];
    if let Some(of) = named("grouped", x.grouped, &ragged)? {
        gemm = gemm.grouped(of, size("batch", x.batch)?);
    }
    let (conj_a, conj_b) = (x.conj_a != 0, x.conj_b != 0);
    if complex.is_some() {
        gemm = gemm.conj(conj_a, conj_b).imaginary(x.alpha_im != 0, x.beta_im != 0);
    } else if conj_a || conj_b {
        let field = if conj_a { "conj_a" } else { "conj_b" };
        return Err(Failure::argument(format!("{field} = 1: conjugates are those of TW_COMPLEX64 and TW_COMPLEX128")));
    } else if x.alpha_im != 0 || x.beta_im != 0 {
        let field = if x.alpha_im != 0 { "alpha_im" } else { "beta_im" };
        return Err(Failure::argument(format!("{field} = 1: complex factors are those of TW_COMPLEX64 and TW_COMPLEX128")));
    }
    if x.b_dtype != AS_A && (complex.is_none() || x.b_dtype != x.dtype) {
        gemm = gemm.b_dtype(dtype("b_dtype", x.b_dtype)?);
    }
    for (field, number, of) in [("zero_a", x.zero_a, Along::M), ("zero_b", x.zero_b, Along::N)] {
        let how = named(field, number, &[(0, None), (1, Some(ZeroPoint::Tensor)), (2, Some(ZeroPoint::Each))])?;
        gemm = how.map_or(gemm.clone(), |how| gemm.zero_point(of, how));
    }
    for (field, number, of) in [("scale_m", x.scale_m, Along::M), ("scale_n", x.scale_n, Along::N)] {
        let [line, line_block, block, line_64, line_32] = Scale::ALL.map(Some);
        let known = [(0, None), (1, line), (2, line_block), (3, block), (4, line_64), (5, line_32)];
        let scale = named(field, number, &known)?;
        gemm = scale.map_or(gemm.clone(), |scale| gemm.scale_by(of, scale));
    }
    if let Some(along) = named("bias", x.bias, &[(0, None), (1, Some(Along::M)), (2, Some(Along::N))])? {
        gemm = gemm.bias(along);
    }
    if let Some(activation) = activation(x.activation)? {
        gemm = gemm.activation(activation);
    }
    if x.residual != 0 {
        gemm = gemm.residual();
    }
    // SAFETY: as the header asks.
    gemm = unsafe { reductions("reduce", x.reduce, str::parse) }?.into_iter().fold(gemm, GemmBuilder::reduce);
    if x.drop_c != 0 {
        gemm = gemm.drop_c();
    }
    type Set = fn(GemmBuilder, u64) -> GemmBuilder;
    let fields: [(&str, i64, Set); 8] = [
        ("lda", x.lda, GemmBuilder::lda),
        ("ldb", x.ldb, GemmBuilder::ldb),
        ("ldc", x.ldc, GemmBuilder::ldc),
        ("ldr", x.ldr, GemmBuilder::ldr),
        ("stride_a", x.stride_a, GemmBuilder::stride_a),
        ("stride_b", x.stride_b, GemmBuilder::stride_b),
        ("stride_c", x.stride_c, GemmBuilder::stride_c),
        ("stride_r", x.stride_r, GemmBuilder::stride_r),
    ];
    for (field, value, set) in fields {
        let value = if value == TIGHT { continue } else { size(field, value)? };
        // A batch of one has no strides; the given ones are ignored.
        if x.batch != 1 || !field.starts_with("stride") {
            gemm = set(gemm, value);
        }
    }
    Ok(gemm)
}

pub(crate) fn conv(x: &TwConv) -> Result<ConvBuilder, Failure> {
    let dims = usize::try_from(x.dims).ok().filter(|dims| (1..=3).contains(dims));
    let dims = dims.ok_or_else(|| Failure::argument(format!("dims = {}: 1 to 3 are possible", x.dims)))?;
    let sizes = |field: &str, all: &[i64; 3]| all[..dims].iter().map(|v| size(field, *v)).collect::<Result<Vec<_>, _>>();
    let (input, filter) = (sizes("input", &x.input)?, sizes("filter", &x.filter)?);
    let directions = [(0, Direction::Forward), (1, Direction::BackwardData), (2, Direction::BackwardWeight)];
    let (n, c, k) = (size("n", x.n)?, size("c", x.c)?, size("k", x.k)?);
    let mut conv = Conv::new(dtype("dtype", x.dtype)?, n, c, k, &input, &filter)
        .out_dtype(dtype("out_dtype", x.out_dtype)?)
        .direction(named("direction", x.direction, &directions)?)
        .layout(named("layout", x.layout, &[(0, Layout::Nchw), (1, Layout::Nhwc)])?)
        .math(math(x.math)?)
        .groups(size("groups", x.groups)?)
        .stride(&sizes("stride", &x.stride)?)
        .dilation(&sizes("dilation", &x.dilation)?)
        .pad(&sizes("pad_begin", &x.pad_begin)?, &sizes("pad_end", &x.pad_end)?);
    if x.bias != 0 {
        conv = conv.bias();
    }
    if let Some(activation) = activation(x.activation)? {
        conv = conv.activation(activation);
    }
    conv = match (x.residual != 0, x.mask != 0) {
        (true, true) => {
            return Err(Failure::argument("residual and mask are one tensor: it is added, or masks; leave one of them out"));
        }
        (true, false) => conv.residual(),
        (false, true) => conv.mask(),
        (false, false) => conv,
    };
    // SAFETY: as the header asks.
    conv = unsafe { reductions("reduce", x.reduce, str::parse) }?.into_iter().fold(conv, ConvBuilder::reduce);
    Ok(if x.drop_c != 0 { conv.drop_c() } else { conv })
}

pub(crate) fn reduce(x: &TwReduce) -> Result<ReduceBuilder, Failure> {
    let dims = usize::try_from(x.dims).ok().filter(|dims| (1..=DIMS).contains(dims));
    let dims = dims.ok_or_else(|| Failure::argument(format!("dims = {}: 1 to {DIMS} are possible", x.dims)))?;
    let sizes = |field: &str, all: &[i64]| all[..dims].iter().map(|v| size(field, *v)).collect::<Result<Vec<_>, _>>();
    let over: Vec<usize> = (0..dims).filter(|axis| x.over[*axis] != 0).collect();
    let reduce = Reduce::new(dtype("dtype", x.dtype)?, &sizes("shape", &x.shape)?, &over).strides(&sizes("strides", &x.strides)?);
    // SAFETY: as the header asks.
    let reduce = unsafe { reductions("ops", x.ops, operator) }?.into_iter().fold(reduce, ReduceBuilder::reduction);
    Ok(activation(x.activation)?.into_iter().fold(reduce, ReduceBuilder::activation))
}

/// Reductions in words, joined by spaces.
unsafe fn reductions(
    field: &'static str,
    text: *const c_char,
    parse: impl Fn(&str) -> Result<Reduction, String>,
) -> Result<Vec<Reduction>, Failure> {
    // SAFETY: the caller's.
    let text = unsafe { read(text, field) }?.unwrap_or_default();
    let parsed = |word| parse(word).map_err(|why| Failure::argument(format!("{field} = {text:?}: {why}")));
    text.split_whitespace().map(parsed).collect()
}
