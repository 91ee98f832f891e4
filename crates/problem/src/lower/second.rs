//! A second pair of factors: further terms of the same sums. Its terms follow those of the first pair, from a multiple of [`SECOND_STEP`] on. So
//! a k-tile that divides the step reads one pair. Terms between both pairs have no elements, which reads as zeros.

use crate::contraction::{SECOND_STEP, SecondOperands, Tensor};
use crate::error::ProblemError;
use crate::gemm::{Gemm, Order};
use crate::view::ViewBuilder;

/// The dimension of A and of B that runs along k.
const K_DIMS: [&str; 2] = ["col", "row"];

/// Alignment of the second pair's memory in bytes, which every launch asks.
const ALIGN: u32 = 16;

/// The first term of the second pair.
const fn first(gemm: &Gemm) -> u64 {
    gemm.k.next_multiple_of(SECOND_STEP)
}

/// A matrix of the first pair, with no elements at the terms of the second.
pub(super) fn without_second(gemm: &Gemm, index: usize, matrix: ViewBuilder) -> ViewBuilder {
    match (gemm.second, K_DIMS.get(index)) {
        (Some(pair), Some(along_k)) => matrix.pad(along_k, 0, first(gemm) - gemm.k + pair.k),
        _ => matrix,
    }
}

/// The second pair, with no elements at the terms of the first.
pub(super) fn operands(gemm: &Gemm) -> Result<Option<Box<SecondOperands>>, ProblemError> {
    let Some(pair) = gemm.second_product() else { return Ok(None) };
    let first = first(gemm);
    let tensor = |index: usize| -> Result<Tensor, ProblemError> {
        let (rows, cols) = [(pair.m, pair.k), (pair.k, pair.n)][index];
        let (x, scalar) = (pair.matrices()[index], pair.scalar(index));
        let ld = x.ld as i64;
        let (row_stride, col_stride) = if x.trans == (pair.order == Order::Col) { (ld, 1) } else { (1, ld) };
        let dims = [("g", 1, 0), ("row", rows, row_stride), ("col", cols, col_stride)];
        let padded = ViewBuilder::tensor(&dims).pad(K_DIMS[index], first, 0);
        let view = if index == 1 { padded.view("g", "col", "row")? } else { padded.view("g", "row", "col")? };
        Ok(Tensor { scalar, factor: None, signs: None, view, align: ALIGN, len: pair.span(index) })
    };
    Ok(Some(Box::new(SecondOperands { first, a: tensor(0)?, b: tensor(1)? })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contraction::Operand;
    use crate::extent::{Dynamic, Extents};
    use crate::lower::{ConvForm, lower};
    use crate::role::Role;
    use tilewright_ir::Scalar;

    /// A launch with fewer rows touches less of both operands A.
    #[test]
    fn fewer_rows_are_less_memory() {
        let dynamic = Dynamic { m: true, ..Dynamic::NONE };
        let gemm = Gemm::new(Scalar::F32, 9, 4, 5).lda(11).k2(6).lda2(17).dynamic(dynamic).build().unwrap();
        let at = Extents { m: 2, ..gemm.extents() };
        let c = lower(&gemm.into(), ConvForm::PER_SAMPLE).unwrap().lead;
        assert_eq!((c.len_at(Operand::A, &at), c.second_len_at(Role::A2, &at)), (11 + 5, 17 + 6));
        assert_eq!((c.len_at(Operand::B, &at), c.second_len_at(Role::B2, &at)), (5 * 4, 6 * 4));
    }

    /// Every term of both pairs has its elements, and no other has.
    #[test]
    fn terms_of_both_pairs_follow_each_other() {
        for bits in 0..8u32 {
            let bit = |i: u32| bits >> i & 1 == 1;
            let order = if bit(2) { Order::Col } else { Order::Row };
            let gemm = Gemm::new(Scalar::F32, 3, 4, 5).order(order).trans(bit(0), bit(1)).lda(11).ldb(13).k2(6).lda2(17).ldb2(19);
            let gemm = gemm.build().unwrap();
            let c = lower(&gemm.into(), ConvForm::PER_SAMPLE).unwrap().lead;
            let second = c.second.as_deref().unwrap();
            assert_eq!((c.k, second.first), (SECOND_STEP + 6, SECOND_STEP));
            // A is transposed as stored, or its columns are contiguous: the row moves by one.
            let at = |by_lines: bool, ld: i64, row: i64, k: i64| if by_lines { ld * row + k } else { row + ld * k };
            let (a, b) = (bit(0) == bit(2), bit(1) != bit(2));
            for k in 0..c.k as i64 {
                let (of_first, of_second) = ((0..5).contains(&k), k >= SECOND_STEP as i64);
                let within = k - SECOND_STEP as i64;
                let expected = [
                    (&c.a, of_first.then(|| at(a, 11, 2, k))),
                    (&c.b, of_first.then(|| at(b, 13, 3, k))),
                    (&second.a, of_second.then(|| at(a, 17, 2, within))),
                    (&second.b, of_second.then(|| at(b, 19, 3, within))),
                ];
                for ((tensor, expected), row) in expected.into_iter().zip([2, 3, 2, 3]) {
                    assert_eq!(tensor.view.access.at([0, row, k]), expected, "{bits} {k}");
                }
            }
        }
    }
}
