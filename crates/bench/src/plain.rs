//! The plain product that a product of a special kind is compared with: the same sizes by an ordinary kernel, ours or a library's.

use tilewright_problem::{Math, Problem, Scales};

/// What the names of its sides end with.
pub const PLAIN: &str = "plain";

/// The plain product of a problem:
///
/// - grouped: the dense product of all rows, columns or terms, with one matrix B (A, C);
/// - integer weights: the product with the dequantised matrix, in the type in which it is multiplied;
/// - 8-bit floats with two-level accumulation or scales: the product with one factor for each tensor.
///
/// `None`: the problem is plain itself.
pub fn plain(problem: &Problem) -> Option<Problem> {
    let Problem::Gemm(gemm) = problem else { return None };
    let mut plain = gemm.clone();
    if plain.grouped.take().is_some() {
        plain.batch = 1;
        [&mut plain.a, &mut plain.b, &mut plain.c].into_iter().for_each(|matrix| matrix.batch_stride = 0);
        plain.bias.iter_mut().for_each(|bias| bias.batch_stride = 0);
        plain.residual.iter_mut().for_each(|residual| residual.batch_stride = 0);
    }
    if gemm.has_weights() {
        (plain.dtype, plain.b_dtype, plain.scales) = (gemm.multiplied(), None, Scales::default());
    }
    if gemm.dtype.is_float8() {
        (plain.math, plain.scales) = (Math::Exact, Scales::default());
    }
    (plain != *gemm && plain.validate().is_ok()).then(|| plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tilewright_problem::cases::{CaseOptions, read};

    fn of(key: &str) -> Option<String> {
        plain(&Problem::parse(key).unwrap()).map(|plain| plain.key())
    }

    /// Each of the files of special products is compared with something in every line.
    #[test]
    fn case_files_of_special_products_have_plain_ones() {
        for name in ["grouped", "weights", "block_scales"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/cases").join(name).with_extension("csv");
            let file = read(&path, &CaseOptions::default()).unwrap();
            assert!(file.skipped.is_empty() && file.cases.len() > 10, "{:?}", file.skipped);
            assert!(file.cases.iter().all(|case| plain(&case.problem).is_some_and(|x| plain(&x).is_none())));
        }
    }

    /// The file of complex products, which are plain themselves.
    #[test]
    fn complex_products_are_what_they_are_compared_as() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/cases/complex.csv");
        let file = read(&path, &CaseOptions::default()).unwrap();
        assert!(file.skipped.is_empty() && file.cases.len() > 10, "{:?}", file.skipped);
        assert!(file.cases.iter().all(|case| case.problem.parts() == 2 && plain(&case.problem).is_none()));
    }

    #[test]
    fn special_products_have_a_plain_one_beside_them() {
        let size = "tC0_tA0_tB0_colMaj0_m64_n48_k128_lda128_ldb48_ldc48_ws1024";
        let dense = of(&format!("{size}_bf16_b8_sa0_sb6144_sc0_groupm"));
        assert_eq!(dense, Some(format!("{size}_bf16")));
        assert_eq!(of(&format!("{size}_bf16_b8_sa0_sb0_sc3072_groupk")), Some(format!("{size}_bf16")));
        assert_eq!(of(&format!("{size}_f16_bi8_scalen1x64")), Some(format!("{size}_f16")));
        let per_tensor = Some(format!("{size}_e4m3_outbf16"));
        assert_eq!(of(&format!("{size}_e4m3promoted_outbf16_scalem1x128_scalen128x128")), per_tensor);
        assert_eq!(of(&format!("{size}_e4m3promoted_outbf16")), per_tensor);
        assert_eq!(of(&format!("{size}_e4m3_outbf16_scalem")), per_tensor);
        for key in ["bf16", "e4m3_outbf16", "i8_outi32", "tf32", "bf16_b2_sa0_sb6144_sc3072"] {
            assert_eq!(of(&format!("{size}_{key}")), None, "{key}");
        }
    }
}
