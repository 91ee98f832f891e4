//! Expected values of a tensor reduction, computed from the elements in place.
//!
//! A tensor may be a single row of a GiB. So all cores take rows and pieces of rows, and no list of positions is made. Test data
//! of small integers has few different values, so a count of each value is enough.

use super::data::TestData;
use super::element::{Element, bits, with_element};
use super::reduced::{AsReduced, Elements, Seen};
use super::{Tolerance, entry_of};
use rayon::prelude::*;
use std::ops::Range;
use tilewright_ir::Scalar;
use tilewright_problem::{Operator, Reduce, Reduction};

/// Elements that are taken at a time.
const PIECE: u64 = 1 << 16;
/// The greatest of the small integers.
const MOST: i64 = 2;
/// How many different ones there are, with 0.
const DIFFERENT: usize = 2 * MOST as usize + 1;

/// Elements of a row at equal distances in memory.
struct Run {
    /// Number of the first.
    first: u64,
    /// Where it lies in the buffer.
    at: u64,
    count: u64,
    step: u64,
}

/// A tensor in its buffer.
#[derive(Clone, Copy)]
struct Tensor<'a> {
    data: &'a TestData,
    reduce: &'a Reduce,
}

impl Tensor<'_> {
    /// Some of the elements of a row.
    fn runs(&self, row: u64, columns: Range<u64>) -> impl Iterator<Item = Run> {
        let reduce = self.reduce;
        let start = self.data.a.start + reduce.position(false, row);
        let (length, step) = reduce.over.last().map_or((1, 0), |axis| (reduce.shape[*axis], reduce.strides[*axis]));
        let mut next = columns.start;
        std::iter::from_fn(move || {
            (next < columns.end).then(|| {
                let count = (length - next % length).min(columns.end - next);
                let run = Run { first: next, at: start + reduce.position(true, next), count, step };
                next += count;
                run
            })
        })
    }

    /// The elements of a piece of a row with their numbers.
    fn each<E: Element>(&self, row: u64, columns: Range<u64>, mut then: impl FnMut(f64, u64)) {
        for Run { first, at, count, step } in self.runs(row, columns) {
            for i in 0..count {
                then(E::value(bits::<E>(&self.data.a.bytes, (at + i * step) as usize)), first + i);
            }
        }
    }

    /// What is known of rows from what is known of their pieces, which are joined in their order.
    fn rows<T: Send>(
        &self,
        rows: &[u64],
        piece: impl Fn(u64, Range<u64>) -> T + Sync,
        none: impl Fn() -> T + Sync,
        join: impl Fn(T, T) -> T + Sync,
    ) -> Vec<T> {
        let columns = self.reduce.result_shape().extents.n;
        let row = |row: &u64| {
            let pieces = (0..columns.div_ceil(PIECE)).into_par_iter();
            let of_row = pieces.map(|i| piece(*row, i * PIECE..((i + 1) * PIECE).min(columns)));
            of_row.reduce(&none, &join)
        };
        let together = (PIECE / columns.max(1)).max(1);
        rows.par_iter().with_min_len(together as usize).map(row).collect()
    }
}

/// What is known of some values of a reduction.
pub(super) fn known(data: &TestData, reduce: &Reduce, reduction: &Reduction, rows: &[u64]) -> Vec<Elements> {
    let (tensor, operator) = (Tensor { data, reduce }, reduction.operator);
    let (seen, t) = (AsReduced::new(data, reduction), Tolerance::of(&data.problem));
    let one = |all: &mut Elements, x: f64, index: u64| {
        let (expected, scale) = entry_of(data, x);
        let off = if data.c.scalar.is_float() { t.accumulate * scale + t.floor } else { 0.0 };
        all.add(operator, seen.of(expected, off), index);
    };
    let piece = |row: u64, columns: Range<u64>| {
        let mut all = Elements::none(operator);
        with_element!(reduce.dtype, E => tensor.each::<E>(row, columns, |x, index| one(&mut all, x, index)), ());
        all
    };
    tensor.rows(rows, piece, || Elements::none(operator), |x, y| x.joined(operator, &y))
}

/// How often each small integer is there, and which element is the first of them.
type Counts = [(u64, u64); DIFFERENT];

/// The same for all values of a tensor of small integers. `expected` gives an element before it is reduced, and how far that may
/// be off.
pub(super) fn counted(
    data: &TestData,
    reduce: &Reduce,
    reduction: &Reduction,
    expected: impl Fn(f64) -> (f64, f64),
) -> Vec<Elements> {
    let (tensor, operator) = (Tensor { data, reduce }, reduction.operator);
    let rows: Vec<u64> = (0..reduce.result_shape().extents.m).collect();
    let none = || [(0, u64::MAX); DIFFERENT];
    let piece = |row: u64, columns: Range<u64>| {
        let mut counts: Counts = none();
        let mut one = |x: f64, index: u64| {
            let (count, first) = &mut counts[(x as i64 + MOST).clamp(0, 2 * MOST) as usize];
            *count += 1;
            *first = index.min(*first);
        };
        with_element!(reduce.dtype, E => tensor.each::<E>(row, columns, &mut one), ());
        counts
    };
    let join = |x: Counts, y: Counts| -> Counts { std::array::from_fn(|i| (x[i].0 + y[i].0, x[i].1.min(y[i].1))) };
    let seen = AsReduced::new(data, reduction);
    let different: [Seen; DIFFERENT] = std::array::from_fn(|i| {
        let (x, off) = expected(i as f64 - MOST as f64);
        seen.of(x, off)
    });
    let all = |counts: Counts| {
        let mut all = Elements::none(operator);
        for ((count, first), element) in counts.into_iter().zip(different) {
            all = all.joined(operator, &repeated(operator, element, first, count));
        }
        all
    };
    tensor.rows(&rows, piece, none, join).into_par_iter().map(all).collect()
}

/// The same element `count` times, the first of them with the number `first`.
fn repeated(operator: Operator, element: Seen, first: u64, mut count: u64) -> Elements {
    let (mut all, mut part) = (Elements::none(operator), Elements::none(operator));
    part.add(operator, element, first);
    while count > 0 {
        if count & 1 == 1 {
            all = all.joined(operator, &part);
        }
        part = part.joined(operator, &part);
        count >>= 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::element::{put, value};
    use super::super::{Exact, Reference, Samples};
    use super::*;
    use tilewright_problem::{Factors, Problem};

    /// Values of all elements but one of each row, one after the other.
    fn without(data: &TestData, reduce: &Reduce, left_out: u64) -> Vec<Vec<u8>> {
        let shape = reduce.result_shape().extents;
        let mut all: Vec<Vec<u8>> = data.reductions.iter().map(|buffer| buffer.bytes.clone()).collect();
        for ((bytes, buffer), r) in all.iter_mut().zip(&data.reductions).zip(&reduce.reductions) {
            for row in 0..shape.m {
                let start = data.a.start + reduce.position(false, row);
                let element =
                    |i: u64| r.operator.element(value(reduce.dtype, &data.a.bytes, start + reduce.position(true, i)), i);
                let columns = (0..shape.n).filter(|i| *i != left_out);
                let state = columns.fold(r.operator.identity(), |state, i| r.operator.combine(state, element(i)));
                let result = r.operator.finish(state, shape.n);
                with_element!(buffer.scalar, E => put::<E>(&mut bytes[row as usize * E::BYTES..][..E::BYTES], E::of(result)), ());
            }
        }
        all
    }

    /// Rows of several pieces, each of many runs: the outermost and the innermost of three axes are reduced.
    #[test]
    fn pieces_of_rows_are_whole_rows() {
        let shape = [500, 3, 300];
        for dtype in [Scalar::F32, Scalar::BF16] {
            // As many as one problem may have.
            let left_out = [Operator::Mean, Operator::AbsMax, Operator::SumSq];
            let all = Operator::ALL.into_iter().filter(|o| !left_out.contains(o));
            let reduce = all.fold(Reduce::new(dtype, &shape, &[0, 2]), tilewright_problem::ReduceBuilder::op).build().unwrap();
            assert!(reduce.result_shape().extents.n > 2 * PIECE);
            let problem = Problem::Reduce(reduce.clone());
            let data = TestData::new(&problem, 5, 1.0, 0.0).unwrap();
            let verdict = Reference::new(&data, Samples::All).check_reductions(&data, &without(&data, &reduce, u64::MAX));
            assert!(verdict.passed() && verdict.checked == 8 * 3, "{dtype}: {verdict}");
            let exact = Exact::new(&problem, 7, Factors::default()).unwrap();
            let verdict = exact.check_reductions(&without(exact.data(), &reduce, u64::MAX));
            assert!(verdict.passed() && verdict.checked == 8 * 3, "{dtype}: {verdict}");
            // Sums lack the element, norms too; extremes are there many times.
            let verdict = exact.check_reductions(&without(exact.data(), &reduce, 100_000));
            assert!(verdict.wrong >= 6, "{dtype}: {verdict}");
        }
    }
}
