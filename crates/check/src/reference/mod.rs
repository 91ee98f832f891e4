//! The reference: straight loops in f64 over the problem's definition, independent of views, and the judgement of a result.
//!
//! ```text
//! let data = TestData::new(&problem, seed, alpha, beta)?;   // what to put into the device's buffers
//! let reference = Reference::new(&data, Samples::default()); // once per problem
//! // run: data.a.bytes, data.b.bytes, data.c.bytes, launched with the offsets data.a.start, ...
//! let verdict = reference.check(&c_bytes_after);            // once per candidate
//! data.check_untouched(Operand::C, &c_bytes_after)?;        // guards
//! ```
//!
//! [`Exact`] is the same for operands of small integers, whose sums are exact: it finds a single term that is missing or added twice.
//!
//! # Values beyond a type
//!
//! Results follow IEEE 754. A value that rounds beyond the largest of C's type is the infinity of its sign, and a finite result
//! in its place is wrong. A scaled sum, or a sum with an added term, may leave the accumulator's type. The result is then what
//! IEEE gives in the order `activation(alpha * sum + beta * C + bias) + residual`, each step rounded to that type. It is
//! infinity, or NaN where infinities of opposite sign are added or a smooth activation multiplies one by 0. Alpha and beta
//! themselves must be finite in the accumulator's type. `alpha = 0` multiplies the product by 0 as any other factor does: a NaN
//! or an infinity in A or B reaches C. The reference BLAS does not read A and B then. Leaving them out would take a second kernel
//! or a test in every epilogue, for a call that scales C.

mod buffer;
mod convolution;
mod data;
mod element;
mod exact;
mod groups;
mod integers;
mod oracle;
mod reduced;
mod reductions;
mod special;
mod tensor;
mod tolerance;
mod turned;

use buffer::Pieces;
pub use buffer::{Buffer, Damage, GUARD_BYTES, Margins, check_workspace, workspace_guard};
pub use data::TestData;
pub use exact::Exact;
pub use special::{Classes, Special};
pub use tolerance::Tolerance;

use element::{count_nan, hash, rounded, value};
use oracle::Oracle;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;
use tilewright_problem::{Activation, Along, Factors, Reduction};
use turned::turned;

/// Which result elements are recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Samples {
    /// All of them.
    All,
    /// All, if that takes at most this many multiply-adds. Else two sets of elements:
    ///
    /// - all crossings of some rows and columns. They are spread evenly over the result: a random one in each of equal ranges,
    ///   and always the first and the last;
    /// - elements along the diagonal of each batch entry, one in each [`STRIPES`] rows and in each as many columns. Every row and
    ///   every column of tiles has at least one of them, in at most 64 batch entries.
    ///
    /// A budget of 0 recomputes a few elements and no diagonal.
    Budget(u64),
}

/// Rows and columns of which at least one element is recomputed: the least of these that takes no longer than the budget, else the
/// greatest.
pub const STRIPES: [u64; 4] = [8, 16, 32, 64];

impl Default for Samples {
    /// About a tenth of a second of work.
    fn default() -> Samples {
        Samples::Budget(1 << 27)
    }
}

/// Expected values of result elements.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_check::reference::{Reference, Samples, TestData};
/// use tilewright_problem::{Gemm, Problem};
///
/// let problem = Problem::Gemm(Gemm::new(Scalar::F32, 4, 3, 2).build()?);
/// let data = TestData::new(&problem, 1, 1.0, 0.0)?;
/// let reference = Reference::new(&data, Samples::All);
/// assert_eq!(reference.len(), 12);
/// // C as it was before the run is no product.
/// assert!(!reference.check(&data.c.bytes).passed());
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reference {
    scalar: Scalar,
    pieces: Pieces,
    entries: Vec<Entry>,
    tolerance: Tolerance,
    /// Values of the reductions.
    reduced: Vec<reductions::Expected>,
    /// Reference of the pre-activations.
    ungated: Option<Box<Reference>>,
    /// Each entry has the sum that its value is made of. No entry has it where results are made of two sums: with a complex
    /// alpha, and with a gate.
    of_one_sum: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    index: [u64; 3],
    at: u64,
    expected: f64,
    scale: f64,
    /// The value with each step rounded to the type of the sums; differs from `expected` where one of them leaves that type.
    stepwise: f64,
    /// Its sum of products.
    sum: Sum,
    /// The error bound leaves its class open: an infinity is multiplied by a factor of either sign.
    open: bool,
}

/// How a result compares with the reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Elements compared.
    pub checked: u64,
    /// Elements of these outside of the tolerance, NaN included.
    pub wrong: u64,
    /// Elements of the whole result, compared or not, that are NaN.
    pub not_a_number: u64,
    /// Greatest error relative to the element's scale; infinite if an element compared is NaN or infinite.
    pub max_error: f64,
    /// The element that used most of its tolerance, or exceeded it most.
    pub worst: Option<Mismatch>,
}

/// A result element beside its reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// (g, row, column):
    ///
    /// - GEMM: batch, m, n;
    /// - output or input gradient of a convolution: sample * groups + group, pixel, channel of the group;
    /// - filter gradient: group, output channel of the group, input channel and tap in their order in memory.
    pub index: [u64; 3],
    /// The reduction that it is a value of, at 0 along what is reduced; `None`: an element of the result itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reduction>,
    /// Reference.
    pub expected: f64,
    /// Result.
    pub actual: f64,
    /// Difference allowed.
    pub allowed: f64,
}

impl Mismatch {
    fn excess(&self) -> f64 {
        let excess = (self.actual - self.expected).abs() - self.allowed;
        if excess.is_nan() { f64::INFINITY } else { excess }
    }
}

impl Verdict {
    /// Both: elements of both, the worse of the worst.
    #[must_use]
    pub fn and(self, other: Verdict) -> Verdict {
        let excess = |verdict: &Verdict| verdict.worst.map_or(f64::NEG_INFINITY, |w| w.excess());
        let worst = if excess(&other) > excess(&self) { other.worst } else { self.worst };
        Verdict {
            checked: self.checked + other.checked,
            wrong: self.wrong + other.wrong,
            not_a_number: self.not_a_number + other.not_a_number,
            max_error: self.max_error.max(other.max_error),
            worst,
        }
    }
    /// True if every element compared is within its tolerance and no element anywhere is NaN.
    pub fn passed(&self) -> bool {
        self.checked > 0 && self.wrong == 0 && self.not_a_number == 0
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements checked, max error {:.3e}", self.checked, self.max_error)?;
        if self.wrong > 0 {
            write!(f, ", {} wrong", self.wrong)?;
        }
        if self.not_a_number > 0 {
            write!(f, ", {} NaN (never written, or a NaN from unused memory)", self.not_a_number)?;
        }
        match &self.worst {
            Some(w) if !self.passed() => {
                let [g, row, column] = w.index;
                w.reduction.map_or(Ok(()), |r| write!(f, "; of {r}"))?;
                write!(f, "; worst at (g {g}, row {row}, column {column}): {} instead of {}", w.actual, w.expected)?;
                write!(f, ", allowed difference {:.3e}", w.allowed)
            }
            _ => Ok(()),
        }
    }
}

impl Reference {
    /// Computes the expected values of the sampled elements, on all cores.
    pub fn new(data: &TestData, samples: Samples) -> Reference {
        let oracle = Oracle::new(data);
        let reduced = reductions::sampled(data, &oracle, samples);
        let picks = if data.problem.keeps_c() { picks(oracle.extent, samples) } else { [const { Vec::new() }; 3] };
        let mut entries: Vec<Entry> =
            picks[0].par_iter().flat_map_iter(|&g| crossings(data, &oracle, g, &picks[1], &picks[2])).collect();
        if let Samples::Budget(budget @ 1..) = samples
            && data.problem.keeps_c()
        {
            let spots = diagonal(oracle.extent, &picks, budget);
            let of = |&[g, row, column]: &[u64; 3]| crossings(data, &oracle, g, &[row], &[column]);
            entries.par_extend(spots.par_iter().flat_map_iter(of));
        }
        Reference {
            scalar: data.c.scalar,
            pieces: data.c.pieces(),
            entries,
            tolerance: Tolerance::of(&data.problem),
            reduced,
            ungated: data.ungated.as_ref().map(|wide| Box::new(Reference::new(wide, samples))),
            of_one_sum: data.factors.alpha_im == 0.0 && data.problem.gate().is_none(),
        }
    }
    /// The expected values of the same elements for data with the same A and B and other factors ([`TestData::with_factors`]).
    /// The sums of products are computed once. `samples` are those of [`Reference::new`].
    #[must_use]
    pub fn with_factors(&self, data: &TestData, samples: Samples) -> Reference {
        if !self.of_one_sum || data.factors.alpha_im != 0.0 {
            return Reference::new(data, samples);
        }
        let oracle = Oracle::new(data);
        let reduced = reductions::sampled(data, &oracle, samples);
        let again = |old: &Entry| entry(data, &oracle, old.index, [old.sum, Sum::default()]);
        let entries = self.entries.par_iter().with_min_len(1 << 10).map(again).collect();
        let tolerance = Tolerance::of(&data.problem);
        Reference { scalar: data.c.scalar, pieces: data.c.pieces(), entries, tolerance, reduced, ungated: None, of_one_sum: true }
    }
    /// About how many bytes the reference of a result of so many elements takes, each a sum of `k` terms: crossings and diagonals.
    pub fn bytes(elements: u64, k: u64, samples: Samples) -> u64 {
        let compared = match samples {
            Samples::All => elements,
            Samples::Budget(budget) => elements.min(2 * (budget / k.max(1)).max(4096)),
        };
        compared.saturating_mul(size_of::<Entry>() as u64)
    }
    /// Elements that are compared.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// True if nothing is compared; does not happen for valid problems.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Judges the buffers of the data's reductions after a run, guards included in the bytes.
    pub fn check_reductions(&self, data: &TestData, after: &[Vec<u8>]) -> Verdict {
        reductions::check(data, &self.reduced, after)
    }
    /// Judges the buffer of the pre-activations after a run, guards included in the bytes.
    pub fn check_preactivations(&self, after: &[u8]) -> Verdict {
        self.ungated.as_ref().map_or_else(Verdict::default, |wide| wide.check(after))
    }
    /// Judges C's buffer after a run, guards included in the bytes. A buffer that is too short counts as NaN.
    pub fn check(&self, after: &[u8]) -> Verdict {
        let judge = |entry: &Entry| {
            let actual = value(self.scalar, after, entry.at);
            let expected = within(self.scalar, entry.expected);
            let (allowed, difference) = self.distance(entry, expected, actual);
            let error = if difference == 0.0 { 0.0 } else { difference / entry.scale.max(self.tolerance.floor) };
            let mismatch = Mismatch { index: entry.index, reduction: None, expected, actual, allowed };
            (u64::from(difference > allowed), error, difference / allowed, Some(mismatch))
        };
        let (wrong, max_error, _, worst) = self.entries.par_iter().with_min_len(1 << 12).map(judge).reduce(
            || (0, 0.0, -1.0, None),
            |x, y| {
                let worst = if y.2 > x.2 { (y.2, y.3) } else { (x.2, x.3) };
                (x.0 + y.0, f64::max(x.1, y.1), worst.0, worst.1)
            },
        );
        // Where IEEE gives NaN for some elements, it may for others that are not compared.
        let may_be_nan = self.entries.iter().any(|e| e.stepwise.is_nan());
        let not_a_number = if may_be_nan { 0 } else { self.nan_in(after) };
        Verdict { checked: self.entries.len() as u64, wrong, not_a_number, max_error, worst }
    }

    /// How far a value may be from an entry's, and how far it is. The distance is 0 for what IEEE makes of a value beyond the
    /// type, and infinity for NaN.
    fn distance(&self, entry: &Entry, expected: f64, actual: f64) -> (f64, f64) {
        let t = &self.tolerance;
        let allowed = t.accumulate * entry.scale + t.round * expected.abs() + t.floor;
        let difference = (actual - expected).abs();
        if difference <= allowed && difference.is_finite() {
            return (allowed, difference);
        }
        // A step on the way may have left the type of the sums.
        let left = entry.scale.is_nan() || entry.scale > largest(self.scalar.accumulator());
        let stepwise = rounded(self.scalar, entry.stepwise);
        let beyond = left && (actual == stepwise || (actual.is_nan() && stepwise.is_nan()));
        // Infinity is right where a value that is near enough rounds to it.
        let overflown = actual.is_infinite() && rounded(self.scalar, expected + allowed.copysign(actual)) == actual;
        if beyond || overflown {
            return (allowed, 0.0);
        }
        (allowed, if difference.is_nan() { f64::INFINITY } else { difference })
    }

    /// Elements of the result that are NaN.
    fn nan_in(&self, after: &[u8]) -> u64 {
        let scalar = self.scalar;
        let nan_in = |piece: &[u8]| piece.par_chunks(1 << 16).map(|part| count_nan(scalar, part)).sum::<u64>();
        self.pieces.ranges().filter_map(|r| after.get(r)).par_bridge().map(nan_in).sum()
    }
}

/// A value as far as types of 8 bits reach, where results are such.
pub(super) fn within(scalar: Scalar, value: f64) -> f64 {
    if scalar.is_int8() || scalar.is_float8() { value.clamp(rounded(scalar, f64::MIN), rounded(scalar, f64::MAX)) } else { value }
}

/// The largest finite value of a type of sums.
fn largest(accumulator: Scalar) -> f64 {
    if accumulator == Scalar::F64 { f64::MAX } else { f64::from(f32::MAX) }
}

/// One random index in each of `count` equal ranges of `0..extent`, the first and the last index always among them.
fn spread(extent: u64, count: u64, seed: u64) -> Vec<u64> {
    let count = count.max(1).min(extent);
    if count == extent {
        return (0..extent).collect();
    }
    let edge = |i: u64| (u128::from(extent) * u128::from(i) / u128::from(count)) as u64;
    (0..count)
        .map(|i| match i {
            0 => 0,
            i if i == count - 1 => extent - 1,
            i => edge(i) + hash(seed, i) % (edge(i + 1) - edge(i)),
        })
        .collect()
}

/// Indices along g, rows and columns to recompute.
fn picks([g, rows, columns, k]: [u64; 4], samples: Samples) -> [Vec<u64>; 3] {
    let counts = match samples {
        Samples::All => [g, rows, columns],
        Samples::Budget(budget) => {
            let all = [g, rows, columns, k].iter().try_fold(1u64, |p, &e| p.checked_mul(e));
            if all.is_some_and(|all| all <= budget) {
                [g, rows, columns]
            } else {
                let elements = (budget / k).max(16);
                // A few thousand elements per batch entry, then more entries.
                let gs = (elements / 4096).clamp(g.min(2), 64).min(g);
                let per = (elements / gs).max(4);
                let r = per.isqrt().max(2).min(rows);
                let c = (per / r).max(2).min(columns);
                [gs, (per / c).max(2).min(rows), c]
            }
        }
    };
    [spread(g, counts[0], 1), spread(rows, counts[1], 2), spread(columns, counts[2], 3)]
}

/// Elements that meet every stripe of rows and of columns; none where all rows, columns or batch entries are picked anyway.
fn diagonal([g, rows, columns, k]: [u64; 4], picks: &[Vec<u64>; 3], budget: u64) -> Vec<[u64; 3]> {
    let all = [g, rows, columns].iter().zip(picks).all(|(extent, picked)| *extent == picked.len() as u64);
    if all {
        return Vec::new();
    }
    let entries = spread(g, g.min(64), 4);
    let count = |stripe: u64| rows.max(columns).div_ceil(stripe);
    let work = |stripe: u64| count(stripe).saturating_mul(k).saturating_mul(entries.len() as u64);
    let stripe = STRIPES.into_iter().find(|stripe| work(*stripe) <= budget).unwrap_or(STRIPES[STRIPES.len() - 1]);
    let (of_rows, of_columns) = (rows.div_ceil(stripe), columns.div_ceil(stripe));
    let at = |extent: u64, i: u64, seed: u64| (i * stripe + hash(seed, i) % stripe).min(extent - 1);
    let spots = entries.iter().flat_map(|&g| {
        // The shorter side is gone through again and again, from another begin in each batch entry.
        (0..count(stripe)).map(move |i| [g, at(rows, i % of_rows, g), at(columns, (i + g) % of_columns, g ^ 1)])
    });
    spots.collect()
}

/// Expected values at all crossings of some rows and columns of one batch entry.
fn crossings(data: &TestData, oracle: &Oracle<'_>, g: u64, rows: &[u64], columns: &[u64]) -> Vec<Entry> {
    let blocks = oracle.blocks(g, rows, columns).into_iter().flat_map(|(g, rows, columns)| {
        if oracle.pair(0).is_some() {
            return gated(data, oracle, g, rows, columns);
        }
        // With a complex alpha a part of a result has something of the other part's sum.
        let others: Vec<u64> = columns.iter().map(|column| column ^ 1).collect();
        let others = if data.factors.alpha_im == 0.0 { Vec::new() } else { dot_products(data, oracle, g, rows, &others) };
        let sums = dot_products(data, oracle, g, rows, columns).into_iter().enumerate();
        let entries = sums.map(|(i, sum)| {
            let index = [g, rows[i / columns.len()], columns[i % columns.len()]];
            entry(data, oracle, index, [sum, others.get(i).copied().unwrap_or_default()])
        });
        entries.collect::<Vec<_>>()
    });
    blocks.collect()
}

/// The sums of products at all crossings of some rows and columns of one batch entry, columns fastest.
fn dot_products(data: &TestData, oracle: &Oracle<'_>, g: u64, rows: &[u64], columns: &[u64]) -> Vec<Sum> {
    if let Some(elements) = oracle.elements(rows, columns) {
        return elements.into_iter().map(|value| Sum { value, lost: 0.0, magnitude: value.abs() }).collect();
    }
    let terms = oracle.terms(g);
    // Columns' factors are kept for all rows: bound their memory.
    let block = (1 << 22) / columns.len().max(1) as u64;
    let block = block.clamp(1024, 1 << 16) as usize;
    let exact = data.c.scalar != Scalar::F64;
    let mut totals = vec![Sum::default(); rows.len() * columns.len()];
    let mut first = terms.start;
    while first < terms.end {
        let depth = block.min((terms.end - first) as usize);
        let mut right = vec![0.0; depth * columns.len()];
        right.par_chunks_mut(depth).zip(columns).for_each(|(out, &column)| {
            oracle.right(g, column, first, out);
            oracle.scale_terms(Along::N, column, first, out);
        });
        totals.par_chunks_mut(columns.len()).zip(rows).for_each(|(totals, &row)| {
            let mut left = vec![0.0; depth];
            oracle.left(g, row, first, &mut left);
            oracle.scale_terms(Along::M, row, first, &mut left);
            for (sum, right) in totals.iter_mut().zip(right.chunks_exact(depth)) {
                if exact { sum.add(&left, right) } else { sum.add_compensated(&left, right) }
            }
        });
        first += depth as u64;
    }
    totals
}

/// Beta times C's element at a place of its buffer, and the magnitude of its terms. For complex numbers the element is a part of
/// a column's number. Beta 0 never reads C, whatever C holds.
fn old(data: &TestData, column: u64, at: u64) -> (f64, f64) {
    let Factors { beta, beta_im, .. } = data.factors;
    if !data.factors.reads_old() {
        return (0.0, 0.0);
    }
    let read = |at: u64| value(data.c.scalar, &data.c.bytes, at);
    let (own, part) = (read(at), column % 2);
    let other = if beta_im == 0.0 { 0.0 } else { read(if part == 0 { at + 1 } else { at - 1 }) };
    (turned([beta, beta_im], part, own, other), (beta * own).abs() + (beta_im * other).abs())
}

/// The expected value of one element, from its sum of products and, where alpha is complex, that of the other part of its number.
fn entry(data: &TestData, oracle: &Oracle<'_>, index: [u64; 3], [sum, other]: [Sum; 2]) -> Entry {
    let [g, row, column] = index;
    let at = oracle.result_at(g, row, column);
    let Factors { alpha, alpha_im, .. } = data.factors;
    let (old, of_old) = old(data, column, at);
    let (bias, residual) = (oracle.bias(g, row, column), oracle.residual(g, row, column));
    let [by_row, by_column] = oracle.scales(row, column);
    let [centred, moved] = oracle.centred(g, row, column);
    let (total, scales) = (sum.value + sum.lost + centred, by_row * by_column);
    let scaled = turned([alpha, alpha_im], column % 2, total, other.value + other.lost);
    let product = scaled * scales;
    let scale = (alpha * scales).abs() * (sum.magnitude + moved) + alpha_im.abs() * other.magnitude + of_old + bias.abs();
    let activation = data.problem.activation();
    let apply = |x: f64| activation.map_or(x, |f| f.apply(x));
    let of_value = activation.map_or(scale, |f| f.scale(product + old + bias, scale, Tolerance::of(&data.problem).accumulate));
    // Errors of the order of 1 leave the class of an exponential open.
    let exponential = activation == Some(Activation::Exp) && scale.is_finite();
    let open = exponential && (!of_value.is_finite() || Tolerance::of_any_data(&data.problem).accumulate * scale > 0.1);
    let accumulator = data.problem.accumulator();
    let step = |x: f64| rounded(accumulator, x);
    let scaled = step(step(step(scaled) * by_row) * by_column);
    Entry {
        index,
        at,
        expected: oracle.last(apply(product + old + bias), residual),
        scale: of_value + if oracle.masks() { 0.0 } else { residual.abs() },
        stepwise: step(oracle.last(step(apply(step(step(scaled + step(old)) + bias))), residual)),
        sum,
        open,
    }
}

/// Whether a factor between these ends may be of either sign, or 0 where it is not surely 0. Magnitudes up to the error may round to 0.
fn of_either_sign(ends: [f64; 2], error: f64) -> bool {
    let vanishes = ends.iter().all(|x| *x == 0.0);
    let one_sign = ends[0].signum() == ends[1].signum() && ends.iter().all(|x| x.abs() > error);
    !ends.iter().any(|x| x.is_nan()) && !vanishes && !one_sign
}

/// The expected values of a gated product.
fn gated(data: &TestData, oracle: &Oracle<'_>, g: u64, rows: &[u64], columns: &[u64]) -> Vec<Entry> {
    let Some(gate) = data.problem.gate() else { return Vec::new() };
    let [bound, any] = [Tolerance::of, Tolerance::of_any_data].map(|of| of(&data.problem).accumulate);
    let of_pairs = [0, 1].map(|part| columns.iter().filter_map(|column| Some(oracle.pair(*column)?[part])).collect::<Vec<u64>>());
    let sums = of_pairs.each_ref().map(|columns| dot_products(data, oracle, g, rows, columns));
    let step = |x: f64| rounded(data.problem.accumulator(), x);
    let entries = (0..rows.len() * columns.len()).map(|i| {
        let (row, column) = (rows[i / columns.len()], columns[i % columns.len()]);
        let [(x, s, x_steps), (y, t, y_steps)] = [0, 1].map(|part| {
            let (sum, column) = (sums[part][i], of_pairs[part][i % columns.len()]);
            let ([by_row, by_column], bias) = (oracle.scales(row, column), oracle.bias(g, row, column));
            let (alpha, scales) = (data.factors.alpha, by_row * by_column);
            let scaled = alpha * (sum.value + sum.lost);
            let stepwise = step(step(step(step(scaled) * by_row) * by_column) + bias);
            (scaled * scales + bias, (alpha * scales).abs() * sum.magnitude + bias.abs(), stepwise)
        });
        let (residual, ends) = (oracle.residual(g, row, column), |x: f64, scale: f64| [x - any * scale, x + any * scale]);
        let (gates, ups) = (ends(x, s).map(|x| step(gate.of_gate(x))), ends(y, t).map(|y| gate.of_up(y)));
        let ([value, up], [of_value, of_up]) = ([gate.of_gate(x), gate.of_up(y)], [gate.gate_scale(s), gate.up_scale(t)]);
        let (value_steps, up_steps) = (step(gate.of_gate(x_steps)), step(gate.of_up(y_steps)));
        let infinite = [(up_steps, gates, any * of_value), (value_steps, ups, 0.0)];
        let open = infinite.into_iter().any(|(factor, other, error)| factor.is_infinite() && of_either_sign(other, error))
            // Of a factor that saturates, what is left is the other one with its own error.
            || x_steps.is_infinite() && value.is_finite() && value != 0.0
            || y_steps.is_infinite() && up.is_finite();
        Entry {
            index: [g, row, column],
            at: oracle.result_at(g, row, column),
            expected: value * up + residual,
            scale: value.abs() * of_up + (up.abs() + bound * of_up) * of_value + residual.abs(),
            stepwise: step(step(value_steps * up_steps) + residual),
            sum: Sum::default(),
            open,
        }
    });
    entries.collect()
}

/// The value and scale of an element in a tensor reduction: as [`entry`], with the element in place of a sum of products.
fn entry_of(data: &TestData, x: f64) -> (f64, f64) {
    let alpha = data.factors.alpha;
    let (product, scale) = (alpha * x, alpha.abs() * x.abs());
    data.problem
        .activation()
        .map_or((product, scale), |f| (f.apply(product), f.scale(product, scale, Tolerance::of(&data.problem).accumulate)))
}

/// A sum, and what rounding took from it (Knuth's TwoSum).
fn two_sum(x: f64, y: f64) -> (f64, f64) {
    let sum = x + y;
    if !sum.is_finite() {
        return (sum, 0.0);
    }
    let of_y = sum - x;
    (sum, (x - (sum - of_y)) + (y - of_y))
}

/// A sum of products and of their magnitudes.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    value: f64,
    /// What rounding took from `value` (compensated sums only).
    lost: f64,
    magnitude: f64,
}

impl Sum {
    /// Four partial sums, so that the processor need not wait for each addition.
    fn add(&mut self, left: &[f64], right: &[f64]) {
        let mut lanes = [(0.0, 0.0); 4];
        let (whole, tail) = left.split_at(left.len() & !3);
        for (x, y) in whole.chunks_exact(4).zip(right.chunks_exact(4)) {
            for (lane, (x, y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
                let product: f64 = x * y;
                *lane = (lane.0 + product, lane.1 + product.abs());
            }
        }
        for (x, y) in tail.iter().zip(&right[whole.len()..]) {
            lanes[0] = (lanes[0].0 + x * y, lanes[0].1 + (x * y).abs());
        }
        for lane in lanes {
            self.value += lane.0;
            self.magnitude += lane.1;
        }
    }
    /// Compensated summation, for results that are f64 themselves.
    fn add_compensated(&mut self, left: &[f64], right: &[f64]) {
        for (x, y) in left.iter().zip(right) {
            let product = x * y;
            let (sum, lost) = two_sum(self.value, product);
            self.value = sum;
            self.lost += lost;
            self.magnitude += product.abs();
        }
    }
}

#[cfg(test)]
mod exact_tests;
#[cfg(test)]
mod tests;
