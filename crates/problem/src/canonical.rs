//! Canonical form of a matrix product: column-major, C not transposed. Plans and records are kept in this frame.

use crate::contraction::Operand;
use crate::gemm::{Gemm, Order};
use crate::ragged::Ragged;

/// A problem in canonical form and how it got there.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::contraction::Operand;
/// use tilewright_problem::{Gemm, Order};
///
/// // Row-major C = A B is column-major C' = B' A': the operands and m, n change places.
/// let canonical = Gemm::new(Scalar::F32, 2, 3, 4).order(Order::Row).build()?.canonical();
/// assert_eq!((canonical.gemm.order, canonical.gemm.m, canonical.gemm.n), (Order::Col, 3, 2));
/// assert_eq!(canonical.factors, [Operand::B, Operand::A]);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// The same computation on the same memory, column-major, C not transposed. NN, NT, TN and TT remain distinct.
    pub gemm: Gemm,
    /// What the problem calls the two factors. Where they changed places, m and n did as well: a plan for the canonical problem fits the original
    /// after A/B reflection.
    pub factors: [Operand; 2],
}

impl Gemm {
    /// The canonical form (MIOpenGEMM's rules). A row-major product is the column-major product of the transposes with the
    /// factors swapped; so is one with C stored transposed. Both together swap twice, which is no swap.
    pub fn canonical(&self) -> Canonical {
        let mut gemm = self.clone();
        let mut factors = [Operand::A, Operand::B];
        if gemm.gate.is_some() {
            // Its pairs of columns are no pairs of rows.
            return Canonical { gemm, factors };
        }
        if gemm.order == Order::Row {
            gemm = gemm.in_other_order();
            factors.reverse();
        }
        if gemm.c.trans {
            gemm.c.trans = false;
            gemm.swap_factors();
            gemm.a.trans = !gemm.a.trans;
            gemm.b.trans = !gemm.b.trans;
            factors.reverse();
        }
        Canonical { gemm, factors }
    }

    /// The same computation on the same memory, told in the other storage order: C transposed is B transposed times A transposed. Not for a
    /// gated product, whose B alone has both factors.
    pub fn in_other_order(&self) -> Gemm {
        let mut gemm = self.clone();
        gemm.order = if self.order == Order::Row { Order::Col } else { Order::Row };
        gemm.swap_factors();
        gemm
    }

    fn swap_factors(&mut self) {
        std::mem::swap(&mut self.a, &mut self.b);
        std::mem::swap(&mut self.m, &mut self.n);
        if let Some(b) = &mut self.b_dtype {
            std::mem::swap(b, &mut self.dtype);
        }
        if let Some(complex) = &mut self.complex {
            std::mem::swap(&mut complex.conj_a, &mut complex.conj_b);
        }
        if let Some(second) = &mut self.second {
            std::mem::swap(&mut second.lda, &mut second.ldb);
        }
        std::mem::swap(&mut self.zero_points.a, &mut self.zero_points.b);
        std::mem::swap(&mut self.scales.m, &mut self.scales.n);
        if let Some(bias) = &mut self.bias {
            bias.along = bias.along.other();
        }
        self.reductions.iter_mut().for_each(|r| r.over = r.over.turned());
        std::mem::swap(&mut self.dynamic.m, &mut self.dynamic.n);
        self.grouped = self.grouped.map(Ragged::turned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contraction::Contraction;
    use crate::epilogue::Along;
    use crate::lower::{ConvForm, lower};
    use crate::problem::Problem;

    /// The canonical problem multiplies the same elements into the same elements.
    fn parsed(text: &str) -> Gemm {
        match Problem::parse(text) {
            Ok(Problem::Gemm(gemm)) => gemm,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn canonical_form_addresses_the_same_memory() {
        for bits in 0..16u32 {
            let bit = |i: u32| bits >> i & 1 == 1;
            let gemm = Gemm::new(tilewright_ir::Scalar::F32, 3, 4, 5)
                .order(if bit(0) { Order::Row } else { Order::Col })
                .trans(bit(1), bit(2))
                .trans_c(bit(3))
                .lda(11)
                .ldb(13)
                .ldc(17)
                .batch(2)
                .bias_strided(Along::M, 8)
                .ldr(19)
                .stride_r(0)
                .build()
                .unwrap();
            assert_eq!(gemm.in_other_order().in_other_order(), gemm);
            let canonical = gemm.canonical();
            assert!(canonical.gemm.order == Order::Col && !canonical.gemm.c.trans);
            let swapped = bit(0) != bit(3);
            assert_eq!(canonical.factors, if swapped { [Operand::B, Operand::A] } else { [Operand::A, Operand::B] });
            canonical.gemm.validate().unwrap();
            let x = lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead;
            let y = lower(&Problem::Gemm(canonical.gemm), ConvForm::PER_SAMPLE).unwrap().lead;
            let (ya, yb) = if swapped { (&y.b, &y.a) } else { (&y.a, &y.b) };
            for g in 0..2 {
                for i in 0..5 {
                    for k in 0..5 {
                        if i < 3 {
                            assert_eq!(x.a.view.access.at([g, i, k]), ya.view.access.at([g, i, k]));
                        }
                        if i < 4 {
                            assert_eq!(x.b.view.access.at([g, i, k]), yb.view.access.at([g, i, k]));
                        }
                        if i < 3 && k < 4 {
                            let point = if swapped { [g, k, i] } else { [g, i, k] };
                            assert_eq!(x.c.view.access.at([g, i, k]), y.c.view.access.at(point));
                            let added = |c: &Contraction, [g, i, j]: [i64; 3]| {
                                let (bias, residual) = (c.bias().unwrap(), c.residual().unwrap());
                                let index = if bias.along_n { j } else { i };
                                (bias.view.access.at([g, index, 0]), residual.view.access.at([g, i, j]))
                            };
                            assert_eq!(added(&x, [g, i, k]), added(&y, point));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn factors_keep_their_types() {
        let gemm = parsed("tC0_tA0_tB1_colMaj0_m5_n6_k7_lda7_ldb7_ldc6_ws0_e4m3_be5m2_outbf16");
        let canonical = gemm.canonical().gemm;
        assert_eq!([0, 1].map(|i| gemm.scalar(i)), [1, 0].map(|i| canonical.scalar(i)));
        assert_ne!(canonical.scalar(0), canonical.scalar(1));
    }

    #[test]
    fn row_major_swaps_and_a_transposed_result_swaps_and_flips() {
        let gemm = |text| parsed(text).canonical();
        let row = gemm("tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32");
        assert_eq!(row.gemm.geometry(), "tC0_tA1_tB0_colMaj1_m65_n55_k122_lda124_ldb123_ldc69_ws0_f32");
        assert_eq!(row.factors, [Operand::B, Operand::A]);
        let trans = gemm("tC1_tA0_tB1_colMaj1_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32");
        assert_eq!(trans.gemm.geometry(), "tC0_tA0_tB1_colMaj1_m65_n55_k122_lda124_ldb123_ldc69_ws0_f32");
        assert_eq!(trans.factors, [Operand::B, Operand::A]);
    }
}
