//! Expected values of a problem's reductions, and the judgement of what a run left in their buffers.
//!
//! On random data as many values are recomputed as the budget admits, each from all its elements. A value of more elements than
//! [`MOST_WORK`] admits only has to be a number. On small integers ([`super::Exact`]) every value is known.
//!
//! # How far a value may be off
//!
//! A sum may differ by the sum of its elements' tolerances, plus `u (256 + sqrt(count))` times the sum of their magnitudes. No thread
//! adds more than 256 terms in sequence, and the rounding errors of the later additions have random signs. A maximum, a minimum or a
//! magnitude differs by at most the largest tolerance of an element. The rounding of the result is added.
//!
//! A logarithm of a sum of exponentials moves as a maximum does, and by the relative error of that sum. Each of its terms is
//! computed to 8 u. A standard deviation moves by no more than the element that moves most, to which the rounding of the mean is
//! added. An index is right if the element there is the first of the largest, or as large as far as both are known.

use super::element::{rounded, value};
use super::oracle::Oracle;
use super::reduced::{AsReduced, Elements, Seen};
use super::{Mismatch, Samples, Sum, TestData, Tolerance, Verdict, dot_products, entry, spread, tensor};
use rayon::prelude::*;
use tilewright_problem::{Along, Operator, Problem, Reduction};

/// Most multiply-adds that one value of a reduction may take.
const MOST_WORK: u64 = 1 << 33;
/// Number of multiply-adds that take as long as one element of a tensor reduction.
const ELEMENT_WORK: u64 = 16;
/// Rows of the result that are summed at a time.
const BLOCK: usize = 64;

/// A value of a reduction beside where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Number of the reduction.
    number: usize,
    /// Position in its buffer.
    at: u64,
    index: [u64; 3],
    expected: f64,
    allowed: f64,
    /// What errors are relative to.
    scale: f64,
    /// Of an index: the element there. It may be off as far as another that is as good.
    element: Seen,
}

impl Expected {
    /// From all `count` elements of a value; `exact`: small integers.
    fn new(data: &TestData, number: usize, index: [u64; 3], elements: &Elements, count: u64, exact: bool) -> Expected {
        let (reduction, shape) = (&data.problem.reductions()[number], data.problem.result_shape());
        let (expected, allowed) = elements.finish(reduction, count, data.problem.accumulator(), exact);
        let scale = elements.scale(reduction.operator, expected, count);
        Expected { number, at: shape.index(reduction.over, index), index, expected, allowed, scale, element: elements.indexed() }
    }
}

/// Expected values on random data.
pub(super) fn sampled(data: &TestData, oracle: &Oracle<'_>, samples: Samples) -> Vec<Expected> {
    let operands = data.problem.reductions().iter().map(|reduction| reduction.operand).enumerate();
    let expected = operands.flat_map(|(number, operand)| match operand {
        Some(operand) => of_operand(data, oracle, number, operand, samples, false),
        None => values(data, oracle, number, samples),
    });
    expected.collect()
}

/// Values of a reduction of an operand over k; `exact`: of small integers.
pub(super) fn of_operand(
    data: &TestData,
    oracle: &Oracle<'_>,
    number: usize,
    operand: Along,
    samples: Samples,
    exact: bool,
) -> Vec<Expected> {
    let reduction = &data.problem.reductions()[number];
    let [entries, rows, columns, depth] = oracle.extent;
    let extent = if operand == Along::M { rows } else { columns };
    let most = match samples {
        Samples::All => u64::MAX,
        Samples::Budget(budget) => (budget / depth.max(1)).max(1),
    };
    let gs = spread(entries, most.min(8).max(if samples == Samples::All { entries } else { 1 }), 5);
    let kept = spread(extent, (most / gs.len().max(1) as u64).max(1), 6);
    let each = gs.iter().flat_map(|g| kept.iter().map(move |at| (*g, *at))).collect::<Vec<_>>();
    let seen = AsReduced::new(data, reduction);
    let values = each.into_par_iter().map(|(g, at)| {
        let (mut all, mut block) = (Elements::none(reduction.operator), vec![0.0; BLOCK]);
        for first in (0..depth).step_by(BLOCK) {
            let block = &mut block[..(depth - first).min(BLOCK as u64) as usize];
            match operand {
                Along::M => oracle.left(g, at, first, block),
                Along::N => oracle.right(g, at, first, block),
            }
            for x in block {
                all.add(reduction.operator, seen.of(*x, 0.0), 0);
            }
        }
        let index = if operand == Along::M { [g, at, 0] } else { [g, 0, at] };
        Expected::new(data, number, index, &all, depth, exact)
    });
    values.collect()
}

fn values(data: &TestData, oracle: &Oracle<'_>, number: usize, samples: Samples) -> Vec<Expected> {
    let (reduction, shape) = (&data.problem.reductions()[number], data.problem.result_shape());
    // Elements of a value along each axis; the batch is reduced as a whole.
    let [rows_each, columns_each] = shape.each(reduction.over);
    let each_of = [1, rows_each, columns_each];
    let each = if matches!(data.problem, Problem::Reduce(_)) { ELEMENT_WORK } else { oracle.extent[3] };
    let work = shape.count(reduction.over).saturating_mul(each);
    if work > MOST_WORK {
        return Vec::new();
    }
    let most = match samples {
        Samples::All => u64::MAX,
        Samples::Budget(budget) => (budget / work.max(1)).max(1),
    };
    let expected =
        |index: [u64; 3], elements: &Elements| Expected::new(data, number, index, elements, shape.count(reduction.over), false);
    if let Problem::Reduce(reduce) = &data.problem {
        let rows = spread(shape.extents.m, most, 6);
        let known = tensor::known(data, reduce, reduction, &rows);
        return rows.iter().zip(&known).map(|(row, elements)| expected([0, *row, 0], elements)).collect();
    }
    let entries = shape.extents.g;
    let most_entries = most.min(if samples == Samples::All { entries } else { 8 });
    let limit = [most_entries, most / most_entries.min(entries), most / most_entries.min(entries)];
    let lists = [0, 1, 2].map(|axis| {
        let (extent, each) = (oracle.extent[axis], each_of[axis].max(1));
        let values = spread(extent / each, if axis == 0 && reduction.over.g { extent } else { limit[axis] }, 5 + axis as u64);
        values.into_iter().flat_map(|value| value * each..(value + 1) * each).collect::<Vec<u64>>()
    });
    let [gs, rows, columns] = &lists;
    // Of a batch that is reduced its groups are left.
    let groups = shape.groups as usize;
    let values = |list: &[u64], each: u64| list.len() / each.max(1) as usize;
    let size = [if reduction.over.g { groups } else { gs.len() }, values(rows, rows_each), values(columns, columns_each)];
    let none = || vec![Elements::none(reduction.operator); size.iter().product()];
    let (t, seen) = (Tolerance::of(&data.problem), AsReduced::new(data, reduction));
    let block = |mut found: Vec<Elements>, start: BlockStart| {
        let BlockStart { ig, first } = start;
        let (g, rows) = (gs[ig], &rows[first..rows.len().min(first + BLOCK)]);
        for (i, sum) in dot_products(data, oracle, g, rows, columns).into_iter().enumerate() {
            let (row, column) = (i / columns.len(), i % columns.len());
            let element = entry(data, oracle, [g, rows[row], columns[column]], [sum, Sum::default()]);
            let off = if data.c.scalar.is_float() { t.accumulate * element.scale + t.floor } else { 0.0 };
            let reduced = seen.of(element.expected, off);
            let place = |i: usize, each: u64| i / each.max(1) as usize;
            let row = place(first + row, rows_each);
            let entry = if reduction.over.g { ig % groups } else { ig };
            let at = (entry * size[1] + row) * size[2] + place(column, columns_each);
            found[at].add(reduction.operator, reduced, shape.within(reduction, element.index));
        }
        found
    };
    let starts = |ig: usize| (0..rows.len()).step_by(BLOCK).map(move |first| BlockStart { ig, first });
    let blocks: Vec<BlockStart> = (0..gs.len()).flat_map(starts).collect();
    // Few pieces: each has all values.
    let pieces = blocks.len().div_ceil(rayon::current_num_threads() * 2).max(1);
    let found =
        blocks.into_par_iter().with_min_len(pieces).fold(none, block).reduce(none, |x, y| joined(reduction.operator, x, y));
    let pick = |list: &[u64], i: usize, each: u64| list[i * each as usize];
    let each = found.iter().enumerate().map(|(i, elements)| {
        let (ig, row, column) = (i / size[2] / size[1], i / size[2] % size[1], i % size[2]);
        let entry = if reduction.over.g { ig as u64 } else { gs[ig] };
        let index = [entry, pick(rows, row, rows_each), pick(columns, column, columns_each)];
        expected(index, elements)
    });
    each.collect()
}

/// Rows of a batch entry that are summed at a time.
#[derive(Clone, Copy)]
struct BlockStart {
    /// Number of the batch entry in the list of entries.
    ig: usize,
    /// Number of the first row in the list of rows.
    first: usize,
}

/// Expected values on small integers, from all elements of each.
pub(super) fn exact(data: &TestData, number: usize, found: &[Elements]) -> Vec<Expected> {
    let (reduction, shape) = (&data.problem.reductions()[number], data.problem.result_shape());
    let count = shape.count(reduction.over);
    let [rows, columns] = shape.each(reduction.over).map(|each| each.max(1));
    let (m, n) = ((shape.extents.m / rows).max(1), (shape.extents.n / columns).max(1));
    let each = found.iter().enumerate().map(|(i, elements)| {
        let at = i as u64;
        let index = [at / n / m, at / n % m * rows, at % n * columns];
        Expected::new(data, number, index, elements, count, true)
    });
    each.collect()
}

/// Judges what a run left in the buffers of the reductions, guards included in the bytes.
pub(super) fn check(data: &TestData, all: &[Expected], after: &[Vec<u8>]) -> Verdict {
    let mut verdict = Verdict::default();
    for (number, buffer) in data.reductions.iter().enumerate() {
        let bytes = after.get(number).map_or(&[][..], |bytes| bytes);
        let len = data.reduction_len(number);
        // A NaN that belongs there would be expected.
        let may_be_nan = all.iter().any(|e| e.number == number && e.expected.is_nan());
        let is_nan = |at: u64| value(buffer.scalar, bytes, at).is_nan();
        verdict.not_a_number += if may_be_nan { 0 } else { (0..len).filter(|at| is_nan(*at)).count() as u64 };
    }
    for e in all {
        let Some(buffer) = data.reductions.get(e.number) else { continue };
        let actual = value(buffer.scalar, after.get(e.number).map_or(&[], |bytes| bytes), e.at);
        let same = actual == e.expected || (actual.is_nan() && e.expected.is_nan());
        let as_good = || {
            let reduction = data.problem.reductions().get(e.number).filter(|r| r.operator.indexes() && e.element.off > 0.0)?;
            let (shape, number) = (data.problem.result_shape(), actual as u64);
            let exists = actual >= 0.0 && number < shape.count(reduction.over);
            let element = exists.then(|| element(data, reduction, shape.element(reduction.over, e.index, number)))?;
            Some((element - e.element.value).abs() <= e.element.off)
        };
        let same = same || as_good().unwrap_or(false);
        // Infinity is right where a value that is near enough rounds to it.
        let overflown = actual.is_infinite() && rounded(buffer.scalar, e.expected + e.allowed.copysign(actual)) == actual;
        let difference = if same || overflown { 0.0 } else { (actual - e.expected).abs() };
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        let wrong = difference > e.allowed;
        let reduction = data.problem.reductions().get(e.number).copied();
        let worst = Mismatch { index: e.index, reduction, expected: e.expected, actual, allowed: e.allowed };
        // For a product, the errors of its elements are reported instead: they are relative to a larger scale.
        let reported = difference > 0.0 && (wrong || matches!(data.problem, Problem::Reduce(_)));
        let max_error = if reported { difference / e.scale } else { 0.0 };
        verdict = verdict.and(Verdict { checked: 1, wrong: wrong.into(), not_a_number: 0, max_error, worst: Some(worst) });
    }
    if all.is_empty() && !data.reductions.is_empty() && !data.problem.keeps_c() {
        // Nothing could be recomputed: that there are numbers is all that was asked.
        verdict.checked += 1;
    }
    verdict
}

/// What is known of the same values from other elements as well.
pub(super) fn joined(operator: Operator, mut all: Vec<Elements>, others: Vec<Elements>) -> Vec<Elements> {
    all.iter_mut().zip(others).for_each(|(one, other)| one.join(operator, other));
    all
}

/// An element of the result as it is reduced.
fn element(data: &TestData, reduction: &Reduction, index: [u64; 3]) -> f64 {
    let (oracle, [g, row, column]) = (Oracle::new(data), index);
    let sum = dot_products(data, &oracle, g, &[row], &[column]).into_iter().next().unwrap_or_default();
    AsReduced::new(data, reduction).of(entry(data, &oracle, index, [sum, Sum::default()]).expected, 0.0).value
}
