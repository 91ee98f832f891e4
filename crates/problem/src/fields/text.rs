//! The texts of problems: MIOpenGEMM's geometry string with tilewright's further keys for a product, and texts of the same kind for
//! convolutions and reductions.
//!
//! `tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32` has all twelve keys of MIOpenGEMM, in any order. `ws` is the workspace
//! in elements. Further keys are printed only where they differ from their default, and the batch with its strides. The reference page of
//! problems lists all keys. In a grouped product only the matrix that each group has of its own has a batch stride other than 0.

use super::{Draft, Field, Given, Key, Kind, Of};
use crate::dtype::Dtype;
use crate::error::ProblemError;
use crate::names::Name;
use crate::problem::Problem;

impl Problem {
    /// The canonical text of this problem: equal problems, and only those, have equal keys. Read back by [`Problem::parse`].
    pub fn key(&self) -> String {
        let of = self.of();
        let mut text = if of == Of::Gemm { String::new() } else { of.name().to_string() };
        for (field, key) in of.fields().iter().filter_map(|field| Some((field, field.text()?))) {
            for value in field.values(self) {
                if !text.is_empty() {
                    text.push('_');
                }
                text.push_str(key);
                text.push_str(&value);
            }
        }
        text
    }
    /// Reads a key: a MIOpenGEMM geometry string (with tilewright's further keys), a convolution's or a reduction's.
    ///
    /// # Errors
    /// [`ProblemError::Text`] for unknown, repeated, missing or malformed keys; [`ProblemError::Value`] for a value that the
    /// problem cannot have.
    pub fn parse(text: &str) -> Result<Problem, ProblemError> {
        draft(text).map_err(|reason| ProblemError::text(text, reason))?.build()
    }
}

/// The problem of a text, not yet validated.
fn draft(text: &str) -> Result<Draft, String> {
    let mut tokens = text.split('_').peekable();
    let of = match text {
        _ if text.starts_with("conv") => Of::Conv,
        _ if text.starts_with("reduce") => Of::Reduce,
        _ => Of::Gemm,
    };
    if of != Of::Gemm {
        tokens.next_if_eq(&of.name()).ok_or_else(|| format!("must start with {}", of.name()))?;
    }
    let mut given: Vec<Given> = Vec::new();
    for token in tokens {
        let (field, value) = field_of(of, token).ok_or_else(|| unknown(of, token))?;
        if !matches!(field.kind, Kind::Words) && given.iter().any(|x| x.field.name == field.name) {
            return Err(format!("`{token}`: {} is given twice", field.words()));
        }
        given.push(Given { field, value: value.to_string() });
    }
    for field in of.fields() {
        let Key::Always(key) = field.key else { continue };
        if given.iter().any(|x| x.field.name == field.name) {
            continue;
        }
        return Err(match (key, field.kind) {
            ("", Kind::Dtype) => format!("the element type is missing ({})", Dtype::names(|_| true)),
            ("", _) => "must start with conv_DIRECTION_LAYOUT, e.g. conv_fwd_nchw or conv_fwd_nhwc".to_string(),
            _ => format!("key `{key}` is missing"),
        });
    }
    Draft::of(of, given).map_err(|refused| {
        let key = refused.given.field.text().unwrap_or_default();
        format!("`{key}{}`: {}", refused.given.value, refused.reason)
    })
}

/// The field that a token names, and its value.
fn field_of(of: Of, token: &str) -> Option<(&'static Field, &str)> {
    let word = token.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(token.len());
    let value = |field: &'static Field| {
        let key = field.text()?;
        match field.kind {
            Kind::Dtype if key.is_empty() => Dtype::in_text(token).map(|_| token),
            Kind::Names(names) if key.is_empty() => Name::find(names, token).map(|_| token),
            Kind::Flag => (token == key).then_some(""),
            Kind::Bit | Kind::Number(_) | Kind::Extent | Kind::Sizes(_) | Kind::Decimal => {
                (token[..word] == *key).then(|| &token[word..])
            }
            // A type after `b`, or another key that begins with it.
            Kind::Dtype if key.len() == 1 => token.strip_prefix(key).filter(|value| Dtype::in_text(value).is_some()),
            Kind::Dtype | Kind::Names(_) | Kind::Words => token.strip_prefix(key),
        }
    };
    let found = of.fields().iter().filter_map(|field| Some((field, value(field)?)));
    // The shortest value has the longest key.
    found.min_by_key(|(field, value)| (!matches!(field.kind, Kind::Dtype) || field.text() != Some(""), value.len()))
}

fn unknown(of: Of, token: &str) -> String {
    let known: Vec<&str> = of.fields().iter().filter_map(Field::text).filter(|key| !key.is_empty()).collect();
    format!("unknown key in `{token}`; the keys are {}; element types are {}", known.join(", "), Dtype::names(|_| true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::{Conv, ConvBuilder, Layout};
    use crate::epilogue::Activation;
    use crate::extent::Extents;
    use crate::gemm::Order;
    use crate::reduce::{Reduce, operator};
    use crate::reduction::Operator;
    use tilewright_ir::Scalar;

    fn base() -> ConvBuilder {
        Conv::new(Scalar::F32, 2, 8, 6, &[9, 7], &[3, 2])
    }
    fn key(conv: &Conv) -> String {
        Problem::from(conv.clone()).key()
    }
    fn read(text: &str) -> Result<Conv, ProblemError> {
        let Problem::Conv(conv) = Problem::parse(text)? else { panic!("a convolution") };
        Ok(conv)
    }
    fn reduce(text: &str) -> Result<Reduce, ProblemError> {
        let Problem::Reduce(reduce) = Problem::parse(text)? else { panic!("a reduction") };
        Ok(reduce)
    }

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
            let gemm = Problem::parse(text).unwrap();
            assert_eq!(gemm.key(), text);
            assert_eq!(Problem::parse(&gemm.key()).unwrap(), gemm);
        }
    }

    #[test]
    fn keys_may_stand_in_any_order() {
        let text = "f32_ws0_ldc69_ldb124_lda123_k122_n65_m55_colMaj0_tB1_tA0_tC0";
        let gemm = Problem::parse(text).unwrap();
        assert_eq!(gemm.key(), "tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32");
    }

    #[test]
    fn values_mean_what_they_say() {
        let problem = Problem::parse("tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws10_f64").unwrap();
        let Problem::Gemm(g) = problem else { panic!("a product") };
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
            ("_m55", "_m55_m56", "m is given twice"),
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
            ("_f32", "_f32_biask", "`biask`: `k` must be one of m, n"),
            ("_f32", "_f32_scalem_scalem", "given twice"),
            ("_f32", "_i8_outi8_zeroa_zerom", "given twice"),
            ("_f32", "_f32_zerok", "none of a, b, m, n"),
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
            ("_f32", "_f32_dynm_dynm", "dynamic m is given twice"),
            ("_f32", "_f32_dynm4", "unknown key"),
            ("_f32", "_f32_dynb", "run-time batch needs"),
            ("_f32", "_f32_b2_groupg", "`groupg`: `g` must be one of m, n, k"),
            ("_f32", "_f32_b2_groupm_groupn", "given twice"),
            ("_f32", "_f32_b2_sc5_groupm", "sc = 5"),
            ("_f32", "_f32_b2_groupm_dynn", "grouped product with n known only at launch"),
        ] {
            let text = good.replace(from, to);
            let message = Problem::parse(&text).expect_err(&text).to_string();
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }

    #[test]
    fn texts_of_convolutions_round_trip() {
        let conv = base().layout(Layout::Nhwc).groups(2).pad(&[1, 0], &[0, 2]).bias().workspace(77).build().unwrap();
        assert_eq!(key(&conv), "conv_fwd_nhwc_n2_g2_c8_k6_in9x7_fil3x2_st1x1_dil1x1_pb1x0_pe0x2_bias1_ws77_f32");
        assert_eq!(read(&key(&conv)).unwrap(), conv);
        let short = read("conv_fwd_nchw_n2_c8_k6_in9x7_fil3x2_bf16").unwrap();
        assert_eq!(short, Conv::new(Scalar::BF16, 2, 8, 6, &[9, 7], &[3, 2]).build().unwrap());
        let masked = base().mask().build().unwrap();
        assert!(key(&masked).ends_with("_mask1") && read(&key(&masked)) == Ok(masked.clone()), "{}", key(&masked));
        assert!(read(&format!("{}_res1", key(&masked))).unwrap_err().to_string().contains("one tensor"));
        let all = base().out_dtype(Scalar::BF16).activation(Activation::GeluTanh).residual().build().unwrap();
        assert!(key(&all).ends_with("_bias0_ws1073741824_f32_outbf16_actgelutanh_res1"), "{}", key(&all));
        assert_eq!(read(&key(&all)).unwrap(), all);
        for out in [Scalar::I8, Scalar::I32, Scalar::F16] {
            let bytes = Conv::new(Scalar::I8, 2, 8, 6, &[9, 7], &[3, 2]).out_dtype(out).build().unwrap();
            assert_eq!(read(&key(&bytes)).unwrap(), bytes);
        }
        let statistics =
            base().reduce("sum:bm".parse().unwrap()).reduce("sumsq:bm:stored".parse().unwrap()).drop_c().build().unwrap();
        assert!(key(&statistics).ends_with("_f32_redsum:bm_redsumsq:bm:stored_noc"), "{}", key(&statistics));
        assert_eq!(read(&key(&statistics)).unwrap(), statistics);
    }

    #[test]
    fn malformed_convolutions_are_refused() {
        for (key, part) in [
            ("conv_fwd", "must start with"),
            ("conv_fwd_nchw_n2_c8_k6_fil3_f32", "`in` is missing"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3", "element type is missing"),
            ("conv_fwd_nchw_n2_n2_c8_k6_in9_fil3_f32", "n is given twice"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_f64", "given twice"),
            ("conv_fwd_nchw_n2_c8_k6_in9x_fil3_f32", "in9x"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_q5_f32", "unknown key"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_bias2_f32", "must be 0 or 1"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_res2_f32", "`res2`: must be 0 or 1"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_actelu", "relu, gelu, gelutanh, silu"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_outf64", "out_dtype = f64"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_redsum:q", "`q` is no axis"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_noc", "nothing is left"),
            ("conv_bwdw_nchw_n2_c8_k6_in9_fil3_f32_redsum:bm", "leave b out"),
            ("conv_bwdd_nchw_n2_c8_k6_in9_fil3_st2_f32_redsum:bn", "computed in separate parts"),
            ("conv_bwdd_nchw_n2_c8_k6_in10_fil3_st2_f32_redmax:m5", "reduce over all pixels (m)"),
        ] {
            let message = read(key).expect_err(key).to_string();
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }

    #[test]
    fn texts_of_reductions_round_trip() {
        let problem = Reduce::new(Scalar::BF16, &[4, 5, 6], &[2, 0]).op(Operator::Sum).op_in(Operator::Max, Scalar::F16);
        let problem =
            problem.reduction(operator("min.exp").unwrap()).activation(Activation::Silu).offset(3).workspace(64).build().unwrap();
        assert_eq!(
            Problem::from(problem.clone()).key(),
            "reduce_in4x5x6_over0x2_st30x6x1_o3_opsum_opmax:f16_opmin.exp_actsilu_ws64_bf16"
        );
        assert_eq!(reduce(&Problem::from(problem.clone()).key()).unwrap(), problem);
        assert_eq!(problem.result_shape().extents, Extents { g: 1, m: 5, n: 24 });
        assert_eq!((problem.position(false, 4), problem.position(true, 13)), (24, 61));
        for (key, accumulator) in [("opsum_i8", Scalar::I32), ("opsum_opmax:i64_u8", Scalar::I64), ("opargmax_i8", Scalar::I32)] {
            let problem = reduce(&format!("reduce_in9_over0_{key}")).unwrap();
            assert_eq!(problem.accumulator(), accumulator);
            assert_eq!(reduce(&Problem::from(problem.clone()).key()).unwrap(), problem);
        }
    }

    #[test]
    fn axes_of_reductions_may_be_empty() {
        for (key, [m, n]) in [("in4x0_over1_st1x1", [4, 0]), ("in4x0_over0_st1x1_o7", [0, 4]), ("in0_over0_st1", [1, 0])] {
            let problem = reduce(&format!("reduce_{key}_opsum_opmax_f32")).unwrap();
            assert_eq!((problem.result_shape().extents, problem.len()), (Extents { g: 1, m, n }, 0), "{key}");
            assert_eq!(reduce(&Problem::from(problem.clone()).key()).unwrap(), problem);
        }
        // Values without an axis that is empty are none, whatever they are.
        reduce("reduce_in4x0_over0_opargmax_f32").unwrap();
    }

    #[test]
    fn malformed_reductions_are_refused() {
        for (key, part) in [
            ("reduce_in4_over0_f32", "say what is computed"),
            ("reduce_in4_opsum_f32", "`over` is missing"),
            ("reduce_in4_over1_opsum_f32", "axes are 0 to 0"),
            ("reduce_in4x4_over1x1_opsum_f32", "twice"),
            ("reduce_in4x0_over1_opsum_opargmin_f32", "an empty axis (shape 4x0) has no element to name; leave argmin out"),
            ("reduce_in4000000000x0x4000000000_over1_opsum_f32", "64-bit address space"),
            ("reduce_in4x4_over1_opmedian_f32", "the operators are sum"),
            ("reduce_in4x4_over1_opsum:f64_f32", "must be f32"),
            ("reduce_in4x4_over1_st4_opsum_f32", "strides = 1 values"),
            ("reduce_in4x4_over1_opsum", "element type is missing"),
            ("reduce_in4x4_over1_opmean_i32", "integer tensors have sum"),
            ("reduce_in4x4_over1_opsum.abs_i32", "functions of elements need a float tensor"),
            ("reduce_in4x4_over1_opsum.root_f32", "the functions are abs"),
            ("reduce_in4x4_over1_opsum:f32_i32", "i64 or i32"),
            ("reduce_in4x4_over1_opsum:i8_i8", "i64 or i32"),
            ("reduce_in4x4_over1_opabsmax_u8", "integer tensors have sum"),
            ("reduce_in16777216_over0_opsum_i8", "write sum:i64"),
            ("reduce_in4x4_over1_opsum_i16", "unknown key"),
            ("reduce_in4x4_over1_opsum_actrelu_i32", "integers have none"),
            ("reduce_in4x4_over1_opsum_q4_f32", "unknown key"),
            ("reduce_in4000000000x4000000000_over1_opsum_f32", "64-bit address space"),
        ] {
            let message = reduce(key).expect_err(key).to_string();
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }
}
