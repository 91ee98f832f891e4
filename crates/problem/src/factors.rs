//! Alpha and beta: what launches of a product multiply it and the old result by.

use crate::error::ProblemError;
use crate::problem::Problem;

/// Factors of `C = alpha * A * B + beta * C`.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Factors, Gemm, Problem};
///
/// let factors = Factors::real(2.0, 1.0);
/// assert!(factors.reads_old());
/// let gemm = Problem::from(Gemm::new(Scalar::F32, 2, 2, 2).build()?);
/// factors.check(&gemm)?;
/// // Elements are real, so alpha must be real.
/// let error = Factors { alpha_im: 0.5, ..factors }.check(&gemm).unwrap_err();
/// assert!(error.to_string().starts_with("alpha_im = 5e-1: "));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Multiplies the product; the real part of a complex alpha. A factor of 0 multiplies as any other number, so a NaN or an
    /// infinity in A or B reaches C. (The reference BLAS does not read A and B then. That needs a separate kernel, or a test in
    /// each epilogue.)
    pub alpha: f64,
    /// Of the old result; 0 never reads it. The real part of a complex one.
    pub beta: f64,
    /// The imaginary part of alpha; 0 unless the complex product is made for one ([`Complex::alpha_im`](crate::Complex::alpha_im)). Such an alpha is
    /// multiplied into the elements of an operand, so a value beyond their type becomes infinite or NaN. If a part of alpha is infinite or NaN,
    /// every result may be NaN.
    pub alpha_im: f64,
    /// The same of beta ([`Complex::beta_im`](crate::Complex::beta_im)).
    pub beta_im: f64,
}

impl Default for Factors {
    fn default() -> Self {
        Factors::real(1.0, 0.0)
    }
}

impl Factors {
    /// Real numbers.
    pub const fn real(alpha: f64, beta: f64) -> Factors {
        Factors { alpha, beta, alpha_im: 0.0, beta_im: 0.0 }
    }
    /// Whether the old result is read: beta is not 0.
    pub fn reads_old(&self) -> bool {
        self.beta != 0.0 || self.beta_im != 0.0
    }
    /// All four with the names that messages have for them.
    pub const fn named(&self) -> [(&'static str, f64); 4] {
        [("alpha", self.alpha), ("beta", self.beta), ("alpha_im", self.alpha_im), ("beta_im", self.beta_im)]
    }
    /// Refuses imaginary parts where a problem is not made for them, with what to do about it.
    ///
    /// # Errors
    /// [`ProblemError::Value`].
    pub fn check(&self, problem: &Problem) -> Result<(), ProblemError> {
        let complex = if let Problem::Gemm(gemm) = problem { gemm.complex } else { None };
        let made_for = [complex.is_some_and(|c| c.alpha_im), complex.is_some_and(|c| c.beta_im)];
        for ((name, value), made_for) in [("alpha_im", self.alpha_im), ("beta_im", self.beta_im)].into_iter().zip(made_for) {
            if value != 0.0 && !made_for {
                return Err(ProblemError::value(name, format!("{value:e}"), Factors::refusal(name, complex.is_some())));
            }
        }
        Ok(())
    }
    /// The message for a factor with an imaginary part that the problem does not take, with the remedy. `complex`: the problem's elements are
    /// complex.
    pub fn refusal(name: &str, complex: bool) -> String {
        match complex {
            true => format!("this problem takes a real factor; make it with {name} (in its text: {})", name.replace('_', "")),
            false => "only products of complex matrices (complex64, complex128) have a complex alpha and beta; use 0".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::Gemm;
    use tilewright_ir::Scalar;

    #[test]
    fn imaginary_parts_are_those_of_products_made_for_them() {
        let factors = Factors { alpha_im: 0.5, beta_im: -2.0, ..Factors::default() };
        let gemm = || Gemm::new(Scalar::F32, 2, 3, 4);
        let message =
            |builder: crate::GemmBuilder| factors.check(&Problem::Gemm(builder.build().unwrap())).unwrap_err().to_string();
        assert!(message(gemm()).contains("alpha_im = 5e-1") && message(gemm()).contains("complex64"));
        assert!(message(gemm().complex()).contains("(in its text: alphaim)"));
        let beta = message(gemm().imaginary(true, false));
        assert!(beta.contains("beta_im = -2e0") && beta.contains("betaim"), "{beta}");
        assert_eq!(factors.check(&Problem::Gemm(gemm().imaginary(true, true).build().unwrap())), Ok(()));
        assert_eq!(Factors::real(2.0, 3.0).check(&Problem::Gemm(gemm().build().unwrap())), Ok(()));
    }
}
