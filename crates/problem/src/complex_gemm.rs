//! Products of complex matrices: how many numbers an element has, how texts name types and factors, and what such a product has not.

use crate::dtype::Dtype;
use crate::error::ProblemError;
use crate::gemm::{Gemm, Order};
use tilewright_ir::Scalar;

impl Gemm {
    /// Numbers that each element has: 2 of complex ones.
    pub const fn parts(&self) -> u64 {
        if self.complex.is_some() { 2 } else { 1 }
    }
    /// Name of the elements' type under the product's math.
    pub fn dtype_name(&self) -> &'static str {
        Dtype::name_of(self.dtype, self.math, self.complex.is_some())
    }
    /// The letter that says how a factor, 0 = A or 1 = B, is taken: n as stored, t transposed, c conjugated and transposed, r conjugated.
    pub fn letter(&self, matrix: usize) -> char {
        let trans = self.matrices()[matrix.min(1)].trans;
        match (trans, self.complex.is_some_and(|c| c.conj(matrix))) {
            (false, false) => 'n',
            (true, false) => 't',
            (true, true) => 'c',
            (false, true) => 'r',
        }
    }
    /// Rows of C are contiguous.
    pub(crate) fn c_by_rows(&self) -> bool {
        self.c.trans == (self.order == Order::Col)
    }

    /// Refuses types that complex elements do not have. The fields that a complex product lacks say so in their rows.
    pub(crate) fn validate_complex_types(&self) -> Result<(), ProblemError> {
        if self.complex.is_none() {
            return Ok(());
        }
        if !matches!(self.dtype, Scalar::F32 | Scalar::F64) {
            return Err(ProblemError::value(
                "dtype",
                self.dtype,
                "parts of complex numbers are f32 (complex64) or f64 (complex128)",
            ));
        }
        if let Some(b) = self.b_dtype {
            return Err(ProblemError::value("b_dtype", b, "both factors of a complex product have one type; leave it out"));
        }
        if self.out_dtype != self.dtype {
            let reason = format!("results of complex products have the factors' type ({}); leave it out", self.dtype);
            return Err(ProblemError::value("out_dtype", self.out_dtype, reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::complex::Complex;
    use crate::epilogue::{Activation, Along};
    use crate::extent::Dynamic;
    use crate::gemm::GemmBuilder;
    use crate::gemm::refused;
    use crate::problem::Problem;
    use crate::ragged::Ragged;

    fn complex() -> GemmBuilder {
        Gemm::new(Scalar::F32, 4, 6, 8).complex()
    }

    #[test]
    fn texts_round_trip() {
        let texts = [
            ("complex64", "nn"),
            ("complex128_conja", "rn"),
            ("complex64tf32x3_conja_conjb", "rr"),
            ("complex64_conjb_alphaim_betaim", "nr"),
            ("complex64bf16x3_conjb", "nr"),
            ("complex64bf16x6", "nn"),
        ];
        for (end, letters) in texts {
            let text = format!("tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_{end}");
            let problem = Problem::parse(&text).unwrap();
            assert_eq!(problem.key(), text);
            let Problem::Gemm(gemm) = &problem else { panic!("a product") };
            assert_eq!([0, 1].map(|i| gemm.letter(i)).iter().collect::<String>(), letters);
            assert_eq!(problem.dtype_name(), end.split('_').next().unwrap());
            assert_eq!(serde_json::from_str::<Problem>(&serde_json::to_string(&problem).unwrap()).unwrap(), problem);
            assert_eq!(gemm.in_other_order().in_other_order(), *gemm);
        }
        assert_eq!("ntcr".chars().map(|c| Complex::letter(c).unwrap()).filter(|x| x.1).count(), 2);
    }

    #[test]
    fn what_complex_products_have_not_is_refused_by_name() {
        refused(Gemm::new(Scalar::F16, 4, 6, 8).complex(), &["dtype = f16", "complex64", "complex128"]);
        refused(complex().out_dtype(Scalar::BF16), &["out_dtype = bf16", "leave it out"]);
        refused(complex().b_dtype(Scalar::I8), &["b_dtype = i8", "one type"]);
        refused(complex().scale(Along::M), &["scales", "alpha"]);
        refused(complex().bias(Along::N), &["bias", "residual"]);
        refused(complex().activation(Activation::Gelu), &["gelu", "stored result"]);
        refused(complex().reduce("max:n".parse().unwrap()), &["max:n", "real and imaginary"]);
        refused(complex().dynamic(Dynamic { m: true, ..Dynamic::NONE }), &["known only at launch"]);
        refused(complex().grouped(Ragged::M, 3), &["grouped m", "a product of each group"]);
        for (key, parts) in
            [("conja", ["conja", "conjugates"]), ("alphaim", ["alphaim", "are real"]), ("betaim", ["betaim", "complex dtype"])]
        {
            let text = format!("tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_f32_{key}");
            let message = Problem::parse(&text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }

    #[test]
    fn an_element_is_two_numbers() {
        let gemm = complex().build().unwrap();
        assert_eq!((gemm.parts(), gemm.span(0), Problem::Gemm(gemm.clone()).flop()), (2, 32, 8.0 * 4.0 * 6.0 * 8.0));
        assert_eq!(Problem::Gemm(gemm).depth(), 16);
    }
}
