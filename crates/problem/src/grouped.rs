//! Grouped products: what a product whose batch entries are groups of rows or columns may be ([`Gemm::grouped`]).

use crate::epilogue::Along;
use crate::error::ProblemError;
use crate::gemm::{Gemm, owned};

impl Gemm {
    /// Batch entries that have results of their own: the groups of a grouped product share one.
    pub const fn entries(&self) -> u64 {
        if self.grouped.is_some() { 1 } else { self.batch }
    }

    /// Checks what goes with groups.
    pub(crate) fn validate_groups(&self) -> Result<(), ProblemError> {
        let Some(along) = self.grouped else { return Ok(()) };
        let unsupported = |what: String, remedy: &str| Err(ProblemError::Unsupported { what, remedy: remedy.into() });
        let (lines, groups) = (if along == Along::M { self.m } else { self.n }, self.batch);
        // Ends, and the numbers of tiles of all groups, are counted in 32 bits.
        if lines.saturating_add(groups) > i32::MAX as u64 {
            let reason = format!("a grouped product counts {} and groups to 2^31 - 1 together", along.name());
            return Err(ProblemError::value(along.name(), lines, reason));
        }
        let line = self.bias.filter(|bias| bias.along == along).map_or(0, |bias| bias.batch_stride);
        let shared = [("sa", self.a.batch_stride), ("sb", self.b.batch_stride), ("sc", self.c.batch_stride)];
        let shared = (0..).zip(shared).filter(|(index, _)| *index != owned(along)).map(|(_, stride)| stride);
        let residual = ("sr", self.residual.map_or(0, |r| r.batch_stride));
        if let Some((name, stride)) = shared.chain([residual, ("sbias", line)]).find(|(_, stride)| *stride != 0) {
            let what = if along == Along::M { "rows" } else { "columns" };
            return Err(ProblemError::value(name, stride, format!("the {what} of all groups lie in one matrix; use 0")));
        }
        if !self.dynamic.is_none() {
            let remedy = "give the most rows there may be: the ends say in device memory how many there are";
            return unsupported("a grouped product with extents known only at launch".into(), remedy);
        }
        if let Some(reduction) = self.reductions.first() {
            return unsupported(format!("{reduction} beside a grouped product"), "reduce the result by itself");
        }
        if !self.zero_points.is_none() {
            return unsupported("zero points of a grouped product".into(), "make an operation for each group");
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
    use crate::extent::Dynamic;
    use crate::gemm::GemmBuilder;
    use crate::math::Math;
    use crate::quant::{Scale, ZeroPoint};
    use tilewright_ir::Scalar;

    fn refused(builder: GemmBuilder, parts: &[&str]) {
        let message = builder.build().expect_err("must be refused").to_string();
        for part in parts {
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
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
        refused(grouped().dynamic(Dynamic { m: true, ..Dynamic::NONE }), &["grouped product with extents", "the most rows"]);
        refused(grouped().reduce("max:n".parse().unwrap()), &["max:n", "beside a grouped product", "by itself"]);
        let bytes = Gemm::new(Scalar::I8, 8, 9, 10).grouped(Along::M, 3).zero_point(Along::N, ZeroPoint::Tensor);
        refused(bytes, &["zero points of a grouped product", "for each group"]);
        let promoted = Gemm::new(Scalar::E4M3, 8, 9, 256).math(Math::Promoted).grouped(Along::M, 3);
        refused(promoted.scale_by(Along::M, Scale::LineBlock), &["scales of blocks of k of a grouped product", "scale rows"]);
    }
}
