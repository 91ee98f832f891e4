//! Problems as C structures.

use crate::grown::{self, Grown};
use crate::status::Failure;
use crate::text::read;
use std::ffi::c_char;
use tilewright::fields::{Draft, Field, Given, Kind, Of, Refused};
use tilewright::{Dtype, Name, Problem};

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
    /// As wide as its alignment, so that it begins after the padding of version 0.1.0.
    pub gate: i64,
    pub up_first: i64,
    pub gate_limit: f64,
    pub gate_slope: f64,
    pub interleaved: i64,
    pub preactivations: i64,
    pub separate_up: i64,
    pub softcap: f64,
    pub k2: i64,
    pub lda2: i64,
    pub ldb2: i64,
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
        gate: 0,
        up_first: 0,
        gate_limit: 0.0,
        gate_slope: 0.0,
        interleaved: 0,
        preactivations: 0,
        separate_up: 0,
        softcap: 0.0,
        k2: 0,
        lda2: TIGHT,
        ldb2: TIGHT,
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

/// The problem of a structure: fields by the names of its attributes.
struct Attributes {
    of: Of,
    given: Vec<Given>,
}

impl Attributes {
    fn field(&self, name: &str) -> Result<&'static Field, Failure> {
        self.of.field(name).ok_or_else(|| Failure::argument(format!("{name}: {} has no such field", self.of.name())))
    }
    fn give(&mut self, field: &'static Field, value: impl Into<String>) {
        self.given.push(Given { field, value: value.into() });
    }
    /// A number: a size, a truth, or a value of an enumeration of the header.
    fn number(&mut self, name: &str, value: i64) -> Result<(), Failure> {
        let field = self.field(name)?;
        let nothing = || Failure::argument(format!("{name} = {value} names nothing: see the enumeration in tilewright.h"));
        let is = |known: &Name| i64::from(known.number) == value;
        match field.kind {
            Kind::Dtype => {
                let found = Dtype::ALL.into_iter().find(|dtype| dtype.is_one_number() && is(&dtype.spelling));
                self.give(field, found.ok_or_else(nothing)?.name());
            }
            Kind::Names(names) => match names.iter().find(|known| is(known)) {
                Some(found) => self.give(field, found.name()),
                None if value == 0 && ["", "none"].contains(&field.default) => {}
                None => return Err(nothing()),
            },
            Kind::Flag | Kind::Bit => self.give(field, if value == 0 { "0" } else { "1" }),
            _ if value < 0 => return Err(Failure::argument(format!("{name} = {value} is negative"))),
            _ => self.give(field, value.to_string()),
        }
        Ok(())
    }
    /// One number for each dimension.
    fn list(&mut self, name: &str, values: &[i64]) -> Result<(), Failure> {
        if let Some(value) = values.iter().find(|value| **value < 0) {
            return Err(Failure::argument(format!("{name} = {value} is negative")));
        }
        let values: Vec<String> = values.iter().map(i64::to_string).collect();
        let field = self.field(name)?;
        self.give(field, values.join("x"));
        Ok(())
    }
    /// Words, joined by spaces.
    ///
    /// # Safety
    /// The pointer is null, or points to a text that ends with a zero.
    unsafe fn words(&mut self, name: &'static str, text: *const c_char) -> Result<(), Failure> {
        // SAFETY: the caller's.
        let text = unsafe { read(text, name) }?.unwrap_or_default();
        let field = self.field(name)?;
        // No words: the field is not given.
        if field.required || !text.is_empty() {
            self.give(field, text);
        }
        Ok(())
    }
    fn build(self) -> Result<Problem, Failure> {
        let refused =
            |Refused { given, reason }: Refused| Failure::argument(format!("{} = {}: {reason}", given.field.name, given.value));
        Ok(Draft::of(self.of, self.given).map_err(refused)?.build().map_err(tilewright::Error::from)?)
    }
}

/// Gives attributes of a structure to the fields of their names.
macro_rules! numbers {
    ($to:ident, $from:ident: $($name:ident)*) => {
        $($to.number(stringify!($name), $from.$name.into())?;)*
    };
}

pub(crate) fn gemm(x: &TwGemm) -> Result<Problem, Failure> {
    let mut all = Attributes { of: Of::Gemm, given: Vec::new() };
    numbers!(all, x: m n k batch dtype out_dtype order math trans_a trans_b bias activation residual dynamic_m dynamic_n dynamic_batch);
    numbers!(all, x: drop_c scale_m scale_n zero_a zero_b grouped conj_a conj_b alpha_im beta_im gate up_first interleaved preactivations separate_up);
    if x.b_dtype != AS_A {
        numbers!(all, x: b_dtype);
    }
    // 0 is the default.
    let decimals = [("gate_limit", x.gate_limit), ("gate_slope", x.gate_slope), ("softcap", x.softcap)];
    for (name, value) in decimals.into_iter().filter(|(_, value)| *value != 0.0) {
        let field = all.field(name)?;
        all.give(field, value.to_string());
    }
    let strides = [("stride_a", x.stride_a), ("stride_b", x.stride_b), ("stride_c", x.stride_c), ("stride_r", x.stride_r)];
    // A batch of one has no strides; the given ones are ignored.
    let strides = strides.into_iter().filter(|_| x.batch != 1);
    if x.k2 != 0 {
        numbers!(all, x: k2);
    }
    let lines = [("lda", x.lda), ("ldb", x.ldb), ("ldc", x.ldc), ("ldr", x.ldr)];
    // Without a second pair 0 is the default, too.
    let second = [("lda2", x.lda2), ("ldb2", x.ldb2)].into_iter().filter(|(_, ld)| x.k2 != 0 || *ld != 0);
    let given = lines.into_iter().chain(second).chain(strides);
    for (name, value) in given.filter(|(_, value)| *value != TIGHT) {
        all.number(name, value)?;
    }
    // SAFETY: as the header asks.
    unsafe { all.words("reduce", x.reduce) }?;
    all.build()
}

pub(crate) fn conv(x: &TwConv) -> Result<Problem, Failure> {
    let mut all = Attributes { of: Of::Conv, given: Vec::new() };
    let dims = dimensions(x.dims, 3)?;
    numbers!(all, x: n c k groups direction layout dtype out_dtype math bias activation residual mask drop_c);
    let lists = [
        ("input", &x.input),
        ("filter", &x.filter),
        ("stride", &x.stride),
        ("dilation", &x.dilation),
        ("pad_begin", &x.pad_begin),
        ("pad_end", &x.pad_end),
    ];
    for (name, values) in lists {
        all.list(name, &values[..dims])?;
    }
    // SAFETY: as the header asks.
    unsafe { all.words("reduce", x.reduce) }?;
    all.build()
}

pub(crate) fn reduce(x: &TwReduce) -> Result<Problem, Failure> {
    let mut all = Attributes { of: Of::Reduce, given: Vec::new() };
    let dims = dimensions(x.dims, DIMS)?;
    numbers!(all, x: dtype activation);
    let over: Vec<i64> = (0..).zip(&x.over[..dims]).filter(|(_, is)| **is != 0).map(|(axis, _)| axis).collect();
    for (name, values) in [("shape", &x.shape[..dims]), ("strides", &x.strides[..dims]), ("over", &over)] {
        all.list(name, values)?;
    }
    // SAFETY: as the header asks.
    unsafe { all.words("ops", x.ops) }?;
    all.build()
}

/// A number of dimensions.
fn dimensions(dims: i32, most: usize) -> Result<usize, Failure> {
    let count = usize::try_from(dims).ok().filter(|dims| (1..=most).contains(dims));
    count.ok_or_else(|| Failure::argument(format!("dims = {dims}: 1 to {most} are possible")))
}
