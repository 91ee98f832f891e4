//! Products of two pairs of factors: what a [`Gemm`] with a [`SecondPair`] has and lacks, and the parts of its builder for it.

use crate::contraction::SECOND_STEP;
use crate::error::{MOST_BYTES, ProblemError, TOO_FAR, check_positive};
use crate::gemm::{Gemm, GemmBuilder, Matrix};
use crate::second_pair::SecondPair;

impl Gemm {
    /// The product of the second pair alone, into the same C.
    pub fn second_product(&self) -> Option<Gemm> {
        let pair = self.second?;
        let matrix = |x: Matrix, ld: u64| Matrix { ld, offset: 0, ..x };
        Some(Gemm { k: pair.k, a: matrix(self.a, pair.lda), b: matrix(self.b, pair.ldb), second: None, ..self.clone() })
    }
    /// Elements of A2's (0) or B2's (1) buffer; 0 without a second pair.
    pub fn second_len(&self, matrix: usize) -> u64 {
        self.second_product().map_or(0, |second| second.span(matrix.min(1)))
    }
    /// Terms of each sum.
    pub fn terms(&self) -> u64 {
        self.k.saturating_add(self.second.map_or(0, |pair| pair.k))
    }

    /// Refuses fields that exclude a second pair, and distances that it cannot have.
    pub(crate) fn validate_second(&self) -> Result<(), ProblemError> {
        let Some(pair) = self.second else { return Ok(()) };
        check_positive("k2", pair.k)?;
        let lacks = [
            (self.batch > 1 || self.grouped.is_some(), "a batch or groups", "make an operation for each product"),
            (self.complex.is_some(), "complex elements", "add the second product with beta = 1"),
            (self.gate.is_some(), "a gate", "make the product and the gate in two calls"),
            (self.has_weights(), "weights of 8 or 4 bits", "add the second product with beta = 1"),
            (!self.zero_points.is_none(), "zero points", "quantise without them"),
            (self.scales.of_blocks(), "scales of blocks of k", "scale rows (m) and columns (n)"),
            (self.reductions.iter().any(|r| r.operand.is_some()), "reductions of an operand", "reduce it in a call of its own"),
        ];
        if let Some((_, what, remedy)) = lacks.into_iter().find(|(has, ..)| *has) {
            let what = format!("a product of two pairs of factors (k2 = {}) with {what}", pair.k);
            return Err(ProblemError::Unsupported { what, remedy: remedy.into() });
        }
        let Some(second) = self.second_product() else { return Ok(()) };
        for (index, (name, x)) in [("lda2", second.a), ("ldb2", second.b)].into_iter().enumerate() {
            let (line, lines) = second.lines(index);
            if x.ld < line {
                let reason = format!("a line of {} has {line} elements; it must be at least that", ["A2", "B2"][index]);
                return Err(ProblemError::value(name, x.ld, reason));
            }
            let end = lines.checked_mul(x.ld).and_then(|all| all.checked_mul(u64::from(self.scalar(index).bytes())));
            if end.is_none_or(|bytes| bytes > MOST_BYTES) {
                return Err(ProblemError::value(name, x.ld, format!("{TOO_FAR}; make a size or leading dimension smaller")));
            }
        }
        // Kernels count the terms of the second pair from those of the first on.
        let terms = self.k.checked_next_multiple_of(SECOND_STEP).and_then(|first| first.checked_add(pair.k));
        let bytes = u64::from(self.multiplied().bytes());
        let reach = terms.and_then(|terms| terms.checked_mul(pair.lda.max(pair.ldb))).and_then(|all| all.checked_mul(bytes));
        match reach.is_none_or(|bytes| bytes > MOST_BYTES) {
            true => Err(ProblemError::value("k2", pair.k, format!("{TOO_FAR}; make k, k2, lda2 or ldb2 smaller"))),
            false => Ok(()),
        }
    }
}

impl GemmBuilder {
    /// A second pair of factors, of this length: `A2 B2` is added to `A B` before anything else. A2 has the rows, type, storage order and
    /// transposition of A, and B2 the columns of B ([`Role::A2`](crate::Role::A2), [`Role::B2`](crate::Role::B2)).
    pub const fn k2(mut self, k: u64) -> Self {
        self.k2 = Some(k);
        self
    }
    /// Leading dimension of A2 in elements.
    pub const fn lda2(mut self, ld: u64) -> Self {
        self.ld2[0] = Some(ld);
        self
    }
    /// Leading dimension of B2 in elements.
    pub const fn ldb2(mut self, ld: u64) -> Self {
        self.ld2[1] = Some(ld);
        self
    }
    /// The second pair of this product, or the refusal of a field that belongs to one.
    pub(crate) fn checked_second(&self, gemm: &Gemm) -> Result<Option<SecondPair>, ProblemError> {
        let Some(k) = self.k2 else {
            let given = ["lda2", "ldb2"].into_iter().zip(self.ld2).find_map(|(name, ld)| Some((name, ld?)));
            return match given {
                Some((name, ld)) => Err(ProblemError::value(name, ld, "there is no second pair; give k2, or drop this")),
                None => Ok(None),
            };
        };
        let tight = Gemm { k, ..gemm.clone() };
        let [lda, ldb] = [0, 1].map(|index| self.ld2[index].unwrap_or(tight.lines(index).0));
        Ok(Some(SecondPair { k, lda, ldb }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::refused;
    use crate::{Activation, GateFunction, Order, Problem, Role};
    use tilewright_ir::Scalar;

    fn pairs() -> GemmBuilder {
        Gemm::new(Scalar::F16, 8, 6, 4).k2(3)
    }

    #[test]
    fn what_goes_with_no_second_pair_is_refused() {
        refused(pairs().k2(0), &["k2 = 0"]);
        refused(pairs().lda2(2), &["lda2 = 2", "A2 has 3 elements"]);
        refused(pairs().trans(false, true).ldb2(2), &["ldb2 = 2", "B2 has 3 elements"]);
        refused(pairs().batch(2), &["a batch or groups", "each product"]);
        refused(pairs().gate(GateFunction::Silu), &["a gate", "two calls"]);
        refused(pairs().b_dtype(Scalar::I8), &["weights of 8 or 4 bits", "beta = 1"]);
        refused(pairs().k2(u64::MAX - 2).lda2(u64::MAX), &["lda2"]);
        refused(Gemm::new(Scalar::F32, 8, 6, 4).lda2(9), &["lda2 = 9", "there is no second pair"]);
    }

    #[test]
    fn a_text_has_the_second_pair() {
        let gemm = pairs().activation(Activation::Relu).lda2(5).build().unwrap();
        assert_eq!(gemm.second, Some(SecondPair { k: 3, lda: 5, ldb: 6 }));
        assert_eq!((gemm.second_len(0), gemm.second_len(1), gemm.terms()), (7 * 5 + 3, 18, 7));
        assert_eq!(Problem::parse(&gemm.geometry()).unwrap(), gemm.clone().into());
        let roles: Vec<Role> = Problem::from(gemm.clone()).memories().map(|x| x.role).collect();
        assert_eq!(roles, [Role::A, Role::B, Role::C, Role::A2, Role::B2]);
        // The other storage order exchanges the pairs' factors.
        let other = gemm.in_other_order();
        assert_eq!((other.order, other.second), (Order::Col, Some(SecondPair { k: 3, lda: 6, ldb: 5 })));
        assert_eq!(other.in_other_order(), gemm);
    }
}
