//! MIOpenGEMM's geometry string, read and printed, with tilewright's further keys.
//!
//! `tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32` has all twelve keys of MIOpenGEMM, in any order. `ws` is the workspace
//! in elements. tilewright's further keys are printed only where they differ from their default:
//!
//! | key | meaning |
//! |---|---|
//! | `f16`, `bf16`, ... | element type |
//! | `tf32`, `tf32x3`, `bf16x3`, `bf16x6` | f32 in memory, multiplied as TF32, as three products of TF32, as three or six of bf16 |
//! | `complex64`, `complex128` | complex elements; all sizes but `ws` count complex elements. `complex64tf32` and so on name the product |
//! | `conja`, `conjb` | the conjugate of A, of B is multiplied |
//! | `alphaim`, `betaim` | alpha, beta is complex |
//! | `outf32` | type of C, where it differs |
//! | `zeroa`, `zerob` | one zero point for A, for B |
//! | `zerom`, `zeron` | a zero point for each row of A, each column of B |
//! | `scalem`, `scalen` | vectors of scales |
//! | `scalem1x128`, `scalen128x128` | scales of blocks of rows or columns and of 128 terms |
//! | `b` with `sa`, `sb`, `sc` | batch and batch strides; tight where left out |
//! | `oa`, `ob`, `oc` | offsets |
//! | `biasm`, `biasn` with `sbias` | bias and its batch stride; 0 where left out |
//! | `actrelu`, `actgelu`, `actgelutanh`, `actsilu`, `acthardswish` | activation |
//! | `ldr` with `sr` | leading dimension of a residual and its batch stride; C's where left out |
//! | `groupm`, `groupn`, `groupk` | batch entries are groups of rows, columns or terms; `b1` is printed as well |
//! | `redmax:n`, `redsum:bm:stored` | reductions ([`crate::Reduction`]) |
//! | `noc` | C is not stored |
//! | `dynm`, `dynn`, `dynb` | m, n or the batch is known only at launch; the string holds the largest value |
//!
//! In a grouped product only the matrix that each group has of its own has a batch stride other than 0.

use crate::complex::Complex;
use crate::epilogue::{Activation, Along};
use crate::error::{ProblemError, names_out_dtype};
use crate::extent::Dynamic;
use crate::gemm::{Gemm, GemmBuilder, Order};
use crate::math::Math;
use crate::quant::{Scales, ZeroPoints};
use crate::ragged::Ragged;
use crate::reduction::Reduction;
use crate::text::{dtype, number, parse_activation};
use std::fmt::Write;
use tilewright_ir::Scalar;

/// The twelve keys of MIOpenGEMM; the last is the element type.
const REQUIRED: [&str; 11] = ["tC", "tA", "tB", "colMaj", "m", "n", "k", "lda", "ldb", "ldc", "ws"];
const OPTIONAL: [&str; 10] = ["b", "sa", "sb", "sc", "oa", "ob", "oc", "sbias", "ldr", "sr"];

impl Gemm {
    /// The geometry string; MIOpenGEMM's own where it can say it all.
    pub fn geometry(&self) -> String {
        let bit = u8::from;
        let mut s = format!(
            "tC{}_tA{}_tB{}_colMaj{}_m{}_n{}_k{}_lda{}_ldb{}_ldc{}_ws{}_{}",
            bit(self.c.trans),
            bit(self.a.trans),
            bit(self.b.trans),
            bit(self.order == Order::Col),
            self.m,
            self.n,
            self.k,
            self.a.ld,
            self.b.ld,
            self.c.ld,
            self.workspace / u64::from(self.dtype.bytes()),
            self.dtype_name()
        );
        for name in self.complex.iter().flat_map(Complex::names) {
            let _ = write!(s, "_{name}");
        }
        // Writing to a String cannot fail.
        if let Some(b) = self.b_dtype {
            let _ = write!(s, "_b{b}");
        }
        if names_out_dtype(self.multiplied(), self.out_dtype) {
            let _ = write!(s, "_out{}", self.out_dtype);
        }
        if self.batch > 1 || self.grouped.is_some() {
            let strides = [self.a.batch_stride, self.b.batch_stride, self.c.batch_stride];
            let _ = write!(s, "_b{}_sa{}_sb{}_sc{}", self.batch, strides[0], strides[1], strides[2]);
        }
        for (name, x) in ["oa", "ob", "oc"].iter().zip(self.matrices()) {
            if x.offset > 0 {
                let _ = write!(s, "_{name}{}", x.offset);
            }
        }
        for name in self.zero_points.names() {
            let _ = write!(s, "_zero{name}");
        }
        for name in self.scales.names() {
            let _ = write!(s, "_scale{name}");
        }
        if let Some(bias) = self.bias {
            let _ = write!(s, "_bias{}", bias.along.name());
            if bias.batch_stride > 0 {
                let _ = write!(s, "_sbias{}", bias.batch_stride);
            }
        }
        if let Some(activation) = self.activation {
            let _ = write!(s, "_act{activation}");
        }
        if let Some(residual) = self.residual {
            let _ = write!(s, "_ldr{}", residual.ld);
            if self.batch > 1 {
                let _ = write!(s, "_sr{}", residual.batch_stride);
            }
        }
        for reduction in &self.reductions {
            let _ = write!(s, "_red{reduction}");
        }
        if self.drop_c {
            s += "_noc";
        }
        if let Some(of) = self.grouped {
            let _ = write!(s, "_group{}", of.name());
        }
        for (name, is) in [("dynm", self.dynamic.m), ("dynn", self.dynamic.n), ("dynb", self.dynamic.g)] {
            if is {
                let _ = write!(s, "_{name}");
            }
        }
        s
    }

    /// Reads a geometry string.
    ///
    /// # Errors
    /// [`ProblemError::Text`] for unknown, repeated, missing or malformed keys; [`ProblemError::Value`] for a value that the
    /// problem cannot have.
    pub fn parse_geometry(text: &str) -> Result<Gemm, ProblemError> {
        let fail = |reason: String| ProblemError::text(text, reason);
        let mut keys = Keys::default();
        text.split('_').try_for_each(|token| keys.take(token)).map_err(fail)?;
        keys.builder().map_err(fail)?.build()
    }
}

/// The keys of a geometry string, as far as they are read.
#[derive(Default)]
struct Keys {
    required: [Option<u64>; REQUIRED.len()],
    optional: [Option<u64>; OPTIONAL.len()],
    element: Option<(Scalar, Math)>,
    complex: bool,
    /// What is said of complex elements.
    complex_options: Complex,
    b: Option<Scalar>,
    out: Option<Scalar>,
    zero_points: ZeroPoints,
    scales: Scales,
    bias: Option<Along>,
    activation: Option<Activation>,
    reductions: Vec<Reduction>,
    drop_c: bool,
    dynamic: Dynamic,
    grouped: Option<Ragged>,
}

/// Sets what may be said once.
fn once<T>(slot: &mut Option<T>, value: T, what: impl Fn() -> String) -> Result<(), String> {
    if slot.replace(value).is_some() { Err(format!("{} is given twice", what())) } else { Ok(()) }
}

impl Keys {
    /// Reads one key.
    fn take(&mut self, token: &str) -> Result<(), String> {
        let run_time = match token {
            "dynm" => Some(&mut self.dynamic.m),
            "dynn" => Some(&mut self.dynamic.n),
            "dynb" => Some(&mut self.dynamic.g),
            "noc" => Some(&mut self.drop_c),
            name => self.complex_options.field(name),
        };
        if let Some(is) = run_time {
            return if std::mem::replace(is, true) { Err(format!("`{token}` is given twice")) } else { Ok(()) };
        }
        if let Some(found) = Complex::of_name(token) {
            self.complex = true;
            return once(&mut self.element, found, || format!("`{token}`: the element type"));
        }
        if let Some(found) = Math::of_name(token) {
            return once(&mut self.element, found, || format!("`{token}`: the element type"));
        }
        if let Some(scalar) = token.strip_prefix('b').and_then(dtype) {
            return once(&mut self.b, scalar, || format!("`{token}`: the element type of B"));
        }
        if let Some(scalar) = token.strip_prefix("out").and_then(dtype) {
            return once(&mut self.out, scalar, || format!("`{token}`: the element type of C"));
        }
        if let Some(text) = token.strip_prefix("zero") {
            let (_, along, how) = ZeroPoints::NAMES
                .into_iter()
                .find(|(name, ..)| *name == text)
                .ok_or_else(|| format!("`{token}`: zero points are zeroa or zerom (of A), zerob or zeron (of B)"))?;
            let slot = if along == Along::M { &mut self.zero_points.a } else { &mut self.zero_points.b };
            return once(slot, how, || format!("`{token}`: the zero points of this factor"));
        }
        if let Some(name) = token.strip_prefix("scale") {
            let (along, scale) = Scales::named(name).ok_or_else(|| {
                let blocks = "scalem1x128, scalen1x128 (or x64, x32), scalem128x128 and scalen128x128";
                format!("`{token}`: scales are scalem, scalen (of lines), {blocks} (of blocks of k)")
            })?;
            return match self.scales.set(along, scale) {
                Some(_) => Err(format!("`{token}`: the scales along {} are given twice", along.name())),
                None => Ok(()),
            };
        }
        if let Some(along) = token.strip_prefix("bias") {
            let along = match along {
                "m" => Along::M,
                "n" => Along::N,
                _ => return Err(format!("`{token}`: a bias runs along m or n: biasm or biasn")),
            };
            return once(&mut self.bias, along, || format!("`{token}`: the bias"));
        }
        if let Some(name) = token.strip_prefix("group") {
            let of = Ragged::ALL.into_iter().find(|of| of.name() == name);
            let of =
                of.ok_or_else(|| format!("`{token}`: groups are of rows, of columns or of terms: groupm, groupn or groupk"))?;
            return once(&mut self.grouped, of, || format!("`{token}`: of what groups are"));
        }
        if let Some(name) = token.strip_prefix("act") {
            return once(&mut self.activation, parse_activation(token, name)?, || format!("`{token}`: the activation"));
        }
        if let Some(text) = token.strip_prefix("red") {
            self.reductions.push(text.parse()?);
            return Ok(());
        }
        self.number(token)
    }

    /// Reads a key with a number.
    fn number(&mut self, token: &str) -> Result<(), String> {
        let split = token.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(token.len());
        let (name, digits) = token.split_at(split);
        let slot = match (REQUIRED.iter().position(|&k| k == name), OPTIONAL.iter().position(|&k| k == name)) {
            (Some(index), _) => &mut self.required[index],
            (None, Some(index)) => &mut self.optional[index],
            (None, None) if matches!(name, "f" | "bf" | "tf" | "complex" | "out" | "outf" | "outbf") => {
                return Err(format!("`{token}`: element types are {}, {}", crate::math::NAMES, Complex::NAMES));
            }
            (None, None) => {
                let known = REQUIRED.iter().chain(&OPTIONAL).copied().collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "unknown key in `{token}`; the keys are {known}, zeroa, zerob, zerom, zeron, scalem, scalen, biasm, biasn, act, red, noc, groupm, groupn, groupk, conja, conjb, alphaim, betaim and the element type, e.g. f32"
                ));
            }
        };
        let value = number(digits).map_err(|reason| format!("`{token}`: {reason}"))?;
        once(slot, value, || format!("key `{name}`"))
    }

    /// The problem that the keys describe, not yet validated.
    fn builder(self) -> Result<GemmBuilder, String> {
        let mut values = [0; REQUIRED.len()];
        for (index, value) in self.required.into_iter().enumerate() {
            values[index] = value.ok_or_else(|| format!("key `{}` is missing", REQUIRED[index]))?;
            if index < 4 && values[index] > 1 {
                return Err(format!("`{}{}`: must be 0 or 1", REQUIRED[index], values[index]));
            }
        }
        let (element, math) = self.element.ok_or_else(|| format!("the element type is missing ({})", crate::math::NAMES))?;
        let [tc, ta, tb, col, m, n, k, lda, ldb, ldc, ws] = values;
        let bytes = ws.checked_mul(u64::from(element.bytes())).filter(|&b| b <= i64::MAX as u64);
        let bytes = bytes.ok_or_else(|| format!("`ws{ws}`: that many {element} elements take 2^63 bytes or more"))?;
        let builder = Gemm::new(element, m, n, k)
            .math(math)
            .order(if col == 1 { Order::Col } else { Order::Row })
            .trans(ta == 1, tb == 1)
            .trans_c(tc == 1)
            .lda(lda)
            .ldb(ldb)
            .ldc(ldc)
            .workspace(bytes)
            .dynamic(self.dynamic);
        let builder = match (self.complex, self.complex_options, self.complex_options.names().next()) {
            (true, Complex { conj_a, conj_b, alpha_im, beta_im }, _) => builder.conj(conj_a, conj_b).imaginary(alpha_im, beta_im),
            (false, _, Some(token)) if token.starts_with("conj") => {
                return Err(format!(
                    "`{token}`: elements of type {element} are their own conjugates; give a complex type, or drop it"
                ));
            }
            (false, _, Some(token)) => {
                return Err(format!(
                    "`{token}`: alpha and beta of a product of type {element} are real; give a complex type, or drop it"
                ));
            }
            (false, _, None) => builder,
        };
        self.with_optional_keys(builder)
    }

    /// Adds what the optional keys say.
    fn with_optional_keys(self, mut builder: GemmBuilder) -> Result<GemmBuilder, String> {
        let [batch, sa, sb, sc, oa, ob, oc, sbias, ldr, sr] = self.optional;
        builder = builder.offsets(oa.unwrap_or(0), ob.unwrap_or(0), oc.unwrap_or(0));
        if let Some(out) = self.out {
            builder = builder.out_dtype(out);
        }
        if let Some(b) = self.b {
            builder = builder.b_dtype(b);
        }
        for along in Along::ALL {
            builder = self.zero_points.of(along).map_or(builder.clone(), |how| builder.zero_point(along, how));
        }
        let scales = Along::ALL.into_iter().filter_map(|along| Some((along, self.scales.of(along)?)));
        builder = scales.fold(builder, |builder, (along, scale)| builder.scale_by(along, scale));
        match (self.bias, sbias) {
            (Some(along), stride) => builder = builder.bias_strided(along, stride.unwrap_or(0)),
            (None, Some(stride)) => {
                return Err(format!("`sbias{stride}`: there is no bias; add biasm or biasn, or drop it"));
            }
            (None, None) => {}
        }
        if let Some(activation) = self.activation {
            builder = builder.activation(activation);
        }
        match (ldr, sr) {
            (Some(ld), _) => builder = builder.ldr(ld),
            (None, Some(stride)) => {
                return Err(format!("`sr{stride}`: there is no residual; add ldr with its leading dimension, or drop it"));
            }
            (None, None) => {}
        }
        builder = self.reductions.into_iter().fold(builder, GemmBuilder::reduce);
        if self.drop_c {
            builder = builder.drop_c();
        }
        let batch = batch.unwrap_or(1);
        builder = self.grouped.map_or(builder.clone().batch(batch), |of| builder.grouped(of, batch));
        for (name, stride) in [("sa", sa), ("sb", sb), ("sc", sc), ("sr", sr)] {
            let Some(stride) = stride else { continue };
            if batch == 1 && stride != 0 {
                return Err(format!("`{name}{stride}`: a batch stride needs a batch; add b2 or more, or drop it"));
            }
            builder = match name {
                "sa" => builder.stride_a(stride),
                "sb" => builder.stride_b(stride),
                "sr" => builder.stride_r(stride),
                _ => builder.stride_c(stride),
            };
        }
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_strings_round_trip() {
        for text in [
            "tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32",
            "tC1_tA1_tB0_colMaj1_m55_n65_k122_lda123_ldb124_ldc69_ws3000000000_f64",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_f16",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_tf32_outbf16",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_tf32x3_actrelu",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_bf16x3_outbf16",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_bf16x6",
            // Without a word of C integers have their sums, not their own type.
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_i8_outi8",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_u8_bi8_outu8",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_i8_outi32",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_bf16_outf32_b3_sa0_sb50_sc31_oa1_oc9",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_f32_outbf16_biasm",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_e4m3_outbf16_scalem_scalen_biasn",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws9000_u8_bi8_outf32_zeroa_zeron_scalen",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_f32_actgelu_ldr9",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_bf16_outf16_b3_sa0_sb50_sc31_biasn_sbias8_actsilu_ldr6_sr0",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_bf16_redmax:n_redsum:m:stored:bf16_noc",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_bf16_dynm",
            "tC0_tA0_tB0_colMaj0_m50_n6_k7_lda7_ldb6_ldc6_ws0_bf16_b4_sa0_sb42_sc0_groupm",
            "tC0_tA0_tB0_colMaj0_m50_n6_k7_lda7_ldb6_ldc6_ws0_bf16_b4_sa400_sb0_sc0_biasm_sbias50_groupn",
            "tC0_tA0_tB0_colMaj0_m50_n6_k7_lda7_ldb6_ldc6_ws0_bf16_b1_sa0_sb0_sc0_groupm",
            "tC0_tA1_tB0_colMaj0_m50_n6_k7_lda50_ldb6_ldc6_ws0_bf16_b4_sa0_sb0_sc300_groupk",
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_f32_b3_sa0_sb50_sc31_oa1_dynm_dynn_dynb",
        ] {
            let gemm = Gemm::parse_geometry(text).unwrap();
            assert_eq!(gemm.geometry(), text);
            assert_eq!(Gemm::parse_geometry(&gemm.geometry()).unwrap(), gemm);
        }
    }

    #[test]
    fn keys_may_stand_in_any_order() {
        let text = "f32_ws0_ldc69_ldb124_lda123_k122_n65_m55_colMaj0_tB1_tA0_tC0";
        let gemm = Gemm::parse_geometry(text).unwrap();
        assert_eq!(gemm.geometry(), "tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32");
    }

    #[test]
    fn values_mean_what_they_say() {
        let g = Gemm::parse_geometry("tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws10_f64").unwrap();
        assert_eq!((g.m, g.n, g.k, g.a.ld, g.b.ld, g.c.ld), (55, 65, 122, 123, 124, 69));
        assert_eq!((g.a.trans, g.b.trans, g.c.trans, g.order), (false, true, false, Order::Row));
        assert_eq!((g.workspace, g.dtype, g.batch), (80, Scalar::F64, 1));
    }

    #[test]
    fn malformed_strings_are_refused_with_a_reason() {
        let good = "tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32";
        for (from, to, part) in [
            ("_f32", "", "element type is missing"),
            ("_f32", "_f8", "element types are"),
            ("_f32", "_f32_f32", "given twice"),
            ("_f32", "_f32_f64", "given twice"),
            ("_f32", "_f32_tf32", "given twice"),
            ("_f32", "_tf16", "element types are"),
            ("_m55", "", "key `m` is missing"),
            ("_m55", "_m55_m56", "`m` is given twice"),
            ("_m55", "_m", "number is missing"),
            ("_m55", "_m-5", "not a plain decimal"),
            ("_m55", "_m5.5", "not a plain decimal"),
            ("_m55", "_m55x", "not a plain decimal"),
            ("_m55", "_m0", "m = 0"),
            ("_m55", "_m9223372036854775808", "less than 2^63"),
            ("_m55", "_m99999999999999999999999", "less than 2^63"),
            ("_m55", "_mm55", "unknown key"),
            ("_m55", "__m55", "unknown key"),
            ("tA0", "tA2", "`tA2`: must be 0 or 1"),
            ("colMaj0", "colMaj3", "must be 0 or 1"),
            ("lda123", "lda121", "lda = 121"),
            ("ws0", "ws9223372036854775807", "2^63 bytes"),
            ("_f32", "_f32_sa5", "needs a batch"),
            ("_f32", "_f32_outf8", "element types are"),
            ("_f32", "_f32_outf64", "out_dtype = f64"),
            ("_f32", "_f32_biask", "biasm or biasn"),
            ("_f32", "_f32_scalem_scalem", "given twice"),
            ("_f32", "_i8_outi8_zeroa_zerom", "given twice"),
            ("_f32", "_f32_zerok", "zeroa or zerom"),
            ("_f32", "_f32_zeroa", "A is f32"),
            ("_f32", "_f32_scalek", "scalem, scalen"),
            ("_f32", "_f32_biasm_biasn", "bias is given twice"),
            ("_f32", "_f32_sbias5", "no bias"),
            ("_f32", "_f32_biasm_sbias5", "sbias = 5"),
            ("_f32", "_f32_acttanh", "relu, gelu, gelutanh, silu"),
            ("_f32", "_f32_actrelu_actgelu", "activation is given twice"),
            ("_f32", "_f32_sr5", "no residual"),
            ("_f32", "_f32_ldr4", "ldr = 4"),
            ("_f32", "_f32_ldr69_sr5", "needs a batch"),
            ("_f32", "_f32_b0", "batch = 0"),
            ("_f32", "_f32_dynm_dynm", "`dynm` is given twice"),
            ("_f32", "_f32_dynm4", "unknown key"),
            ("_f32", "_f32_dynb", "run-time batch needs"),
            ("_f32", "_f32_b2_groupg", "groupm, groupn or groupk"),
            ("_f32", "_f32_b2_groupm_groupn", "given twice"),
            ("_f32", "_f32_b2_sc5_groupm", "sc = 5"),
            ("_f32", "_f32_b2_groupm_dynn", "grouped product with extents known only at launch"),
        ] {
            let text = good.replace(from, to);
            let message = Gemm::parse_geometry(&text).expect_err(&text).to_string();
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }
}
