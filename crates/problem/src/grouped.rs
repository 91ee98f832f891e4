//! Grouped products: what a product whose batch entries are groups of rows, columns or terms may be ([`Gemm::grouped`]).

use crate::error::ProblemError;
use crate::gemm::Gemm;
use crate::ragged::Ragged;

impl Gemm {
    /// Batch entries that have results of their own: groups of rows or columns share one.
    pub const fn entries(&self) -> u64 {
        if matches!(self.grouped, Some(Ragged::M | Ragged::N)) { 1 } else { self.batch }
    }
    /// What the groups of a grouped product cut, and how much there is of it.
    pub const fn ragged(&self) -> Option<(Ragged, u64)> {
        match self.grouped {
            None => None,
            Some(of) => Some((of, [self.m, self.n, self.k][of as usize])),
        }
    }

    /// Checks what goes with groups.
    pub(crate) fn validate_groups(&self) -> Result<(), ProblemError> {
        let Some((of, lines)) = self.ragged() else { return Ok(()) };
        let unsupported = |what: String, remedy: &str| Err(ProblemError::Unsupported { what, remedy: remedy.into() });
        // Ends, and the numbers of tiles of all groups, are counted in 32 bits.
        if lines.saturating_add(self.batch) > i32::MAX as u64 {
            let reason = format!("a grouped product counts {} and groups to 2^31 - 1 together", of.name());
            return Err(ProblemError::value(of.name(), lines, reason));
        }
        let line = self.bias.filter(|bias| of == bias.along.into()).map_or(0, |bias| bias.batch_stride);
        let shared = [("sa", self.a.batch_stride), ("sb", self.b.batch_stride), ("sc", self.c.batch_stride)];
        let shared = (0..).zip(shared).filter(|(index, _)| *index != of.owned()).map(|(_, stride)| stride);
        let residual = ("sr", self.residual.filter(|_| of.owned() != 2).map_or(0, |r| r.batch_stride));
        if let Some((name, stride)) = shared.chain([residual, ("sbias", line)]).find(|(_, stride)| *stride != 0) {
            return Err(ProblemError::value(name, stride, format!("the {} of all groups lie in one matrix; use 0", of.lines())));
        }
        if of == Ragged::K && [0, 1].into_iter().any(|matrix| self.scalar(matrix).is_int4()) {
            return unsupported(
                "4-bit weights in groups of terms (a group may begin in the middle of a byte)".into(),
                "use weights of 8 bits",
            );
        }
        if self.scales.of_blocks() {
            return unsupported(
                "scales of blocks of k of a grouped product".into(),
                "scale rows (m) and columns (n), or make an operation for each group",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Along;
    use crate::extent::Dynamic;
    use crate::gemm::refused;
    use crate::math::Math;
    use crate::quant::{Scale, ZeroPoint};
    use tilewright_ir::Scalar;

    #[test]
    fn groups_of_terms_have_results_of_their_own() {
        let grouped = || Gemm::new(Scalar::F32, 8, 9, 10).grouped(Ragged::K, 3);
        let gemm = grouped().bias_strided(Along::N, 9).residual().build().unwrap();
        assert_eq!([gemm.a.batch_stride, gemm.b.batch_stride, gemm.c.batch_stride, gemm.entries()], [0, 0, 72, 3]);
        assert_eq!(gemm.residual.unwrap().batch_stride, 72);
        refused(grouped().stride_a(80), &["sa = 80", "terms of all groups lie in one matrix"]);
        refused(grouped().reduce("max:n".parse().unwrap()), &["max:n", "a grouped product with", "second call"]);
        refused(Gemm::new(Scalar::F32, 8, 9, 1 << 31).grouped(Ragged::K, 3), &["k = 2147483648", "2^31 - 1"]);
        assert_eq!(Gemm { m: 9, n: 8, ..gemm.clone() }.canonical().gemm.grouped, Some(Ragged::K));
    }

    #[test]
    fn what_does_not_go_with_groups_is_refused_by_name() {
        let grouped = || Gemm::new(Scalar::F32, 8, 9, 10).grouped(Along::M, 3);
        assert_eq!(grouped().build().unwrap().b.batch_stride, 90);
        refused(grouped().stride_a(80), &["sa = 80", "rows of all groups lie in one matrix"]);
        refused(grouped().residual().stride_r(72), &["sr = 72", "use 0"]);
        refused(grouped().bias_strided(Along::M, 8), &["sbias = 8", "use 0"]);
        assert!(grouped().bias_strided(Along::N, 9).build().is_ok());
        refused(Gemm::new(Scalar::F32, 1 << 31, 9, 10).grouped(Along::M, 3), &["m = 2147483648", "2^31 - 1"]);
        refused(Gemm::new(Scalar::F32, 8, 9, 10).grouped(Along::N, 0), &["batch = 0"]);
        refused(
            grouped().dynamic(Dynamic { m: true, ..Dynamic::NONE }),
            &["grouped product with m known only at launch", "give the largest size"],
        );
        refused(grouped().reduce("max:n".parse().unwrap()), &["max:n", "a grouped product with", "second call"]);
        let bytes = Gemm::new(Scalar::I8, 8, 9, 10).grouped(Along::M, 3).zero_point(Along::N, ZeroPoint::Tensor);
        refused(bytes, &["grouped product with zero points b", "for each group"]);
        let promoted = Gemm::new(Scalar::E4M3, 8, 9, 256).math(Math::Promoted).grouped(Along::M, 3);
        refused(promoted.scale_by(Along::M, Scale::LineBlock), &["scales of blocks of k of a grouped product", "scale rows"]);
    }
}
