//! The exact reference: operands of small integers ([`super::integers`]), and every element of the result known to the last bit.
//!
//! The bound of random data ([`super::Tolerance`]) admits the rounding of long sums, and so, from some 10^5 terms on, a sum that lacks
//! one. Here nothing rounds before the result is stored: what differs from the exact value by more than that one rounding is wrong.

use super::buffer::Margins;
use super::data::TestData;
use super::element::{hash, rounded, value, values};
use super::integers::{Integers, affordable};
use super::oracle::Oracle;
use super::reduced::{AsReduced, Elements};
use super::reductions;
use super::turned::turned;
use super::{Mismatch, Samples, Tolerance, Verdict, dot_products, picks, spread, tensor, within};
use rayon::prelude::*;
use std::sync::{Arc, OnceLock};
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{
    Activation, Along, Complex, Conv, Direction, Factors, Gate, Gemm, Problem, ProblemError, Ragged, Reduction,
};

/// Multiply-adds to spend on the sums of a convolution.
const BUDGET: u64 = 1 << 28;
/// Rows and columns of the result that are judged together, so that its lines are read whole in either direction.
const BLOCK: usize = 64;

/// Test data whose sums are exact, with the sums.
#[derive(Clone, Debug)]
pub struct Exact {
    data: TestData,
    integers: Integers,
    totals: Arc<Totals>,
    /// Values of the reductions, once asked for.
    reduced: OnceLock<Vec<reductions::Expected>>,
    seed: u64,
}

/// Sums before anything is scaled or added.
#[derive(Clone, Debug)]
enum Totals {
    /// By the patterns of row and column, real and imaginary part of complex ones side by side.
    Gemm { table: Vec<i64>, batched: [bool; 2] },
    /// By the patterns of sample and output channel, by group and output pixel: `[pattern][group][pixel][pattern]`.
    Conv { table: Vec<f64>, pixels: Vec<u64>, groups: u64 },
    /// Elements of A.
    Elements,
    /// At all crossings of some rows and columns of some batch entries: `[g][row][column]`.
    Crossings { table: Vec<f64>, picks: [Vec<u64>; 3] },
}

impl Exact {
    /// Factors under which a run shows every term: alpha 1 and beta 0, or -1 and 2. A smooth activation saturates, so alpha is then so
    /// small a power of two that its arguments are not all beyond that. Complex ones have imaginary parts of other magnitudes.
    pub fn factors(problem: &Problem, with_beta: bool) -> Factors {
        let terms = problem.depth();
        let terms = if problem.out_dtype().bytes() <= 2 || problem.dtype().is_float8() { terms.min(512) } else { terms };
        let smooth = problem.gate().is_some_and(|gate| gate.function.is_smooth());
        let scale = match problem.activation() {
            None if smooth => 2f64.powi(-(((3 * terms).ilog2() / 2) as i32)),
            None | Some(Activation::Relu) => 1.0,
            // The standard deviation of a sum is sqrt(3 k).
            Some(_) => 2f64.powi(-(((3 * terms).ilog2() / 2) as i32)),
        };
        let (alpha, beta) = if with_beta { (-scale, 2.0 * scale) } else { (scale, 0.0) };
        let complex = if let Problem::Gemm(gemm) = problem { gemm.complex.unwrap_or_default() } else { Complex::default() };
        let alpha_im = if complex.alpha_im { -2.0 * alpha } else { 0.0 };
        let beta_im = if complex.beta_im { -0.5 * beta } else { 0.0 };
        Factors { alpha, beta, alpha_im, beta_im }
    }

    /// Test data of a seed and their sums. Parts of alpha are to be powers of two or their negatives, those of beta 0 or so, as [`Exact::factors`] are: else
    /// scaling rounds.
    ///
    /// # Errors
    /// As [`TestData::new`].
    pub fn new(problem: &Problem, seed: u64, factors: Factors) -> Result<Exact, ProblemError> {
        Exact::within(problem, seed, factors, Margins::default())
    }

    /// The same in buffers with other margins.
    ///
    /// # Errors
    /// As [`Exact::new`].
    pub fn within(problem: &Problem, seed: u64, factors: Factors, margins: Margins) -> Result<Exact, ProblemError> {
        problem.validate()?;
        let (patterns, pixels) = match problem {
            Problem::Conv(conv) if conv.direction == Direction::Forward => affordable(conv, BUDGET),
            _ => ([0; 2], 0),
        };
        let integers = Integers::new(problem, hash(seed, 17), patterns);
        let data = TestData::of_integers(problem, &integers, seed, factors, margins)?;
        let totals = match problem {
            // Rows and columns of one pattern have scales of their own.
            Problem::Gemm(gemm) if gemm.scales.of_blocks() => crossed(&data),
            // And a group's sums are of some of a pattern's terms.
            Problem::Gemm(Gemm { grouped: Some(Ragged::K), .. }) => crossed(&data),
            Problem::Gemm(gemm) => {
                Totals::Gemm { table: integers.totals(), batched: [gemm.a.batch_stride != 0, gemm.b.batch_stride != 0] }
            }
            Problem::Conv(conv) if conv.direction == Direction::Forward => convolved(conv, &data, &integers, pixels),
            Problem::Conv(_) => crossed(&data),
            Problem::Reduce(_) => Totals::Elements,
        };
        Ok(Exact { data, integers, totals: Arc::new(totals), reduced: OnceLock::new(), seed })
    }

    /// The same sums for other factors: A and B are shared, C is its own.
    ///
    /// # Errors
    /// As [`Exact::new`].
    pub fn with_factors(&self, factors: Factors) -> Result<Exact, ProblemError> {
        let data = self.data.with_integer_factors(self.seed, factors)?;
        Ok(Exact {
            data,
            integers: self.integers.clone(),
            totals: self.totals.clone(),
            reduced: OnceLock::new(),
            seed: self.seed,
        })
    }

    /// What the buffers hold, and the factors to run with.
    pub const fn data(&self) -> &TestData {
        &self.data
    }

    /// Judges C's buffer after a run. Of a product it compares every element. Of a forward convolution it compares all channels of evenly spread
    /// output pixels, of a gradient all crossings of rows and columns. The time of the reference limits the numbers of pixels, rows and columns.
    pub fn check(&self, after: &[u8]) -> Verdict {
        self.check_within(after, 0.0)
    }

    /// Judges the buffer of the pre-activations after a run: every element. They are made of the same sums.
    pub fn check_preactivations(&self, after: &[u8]) -> Verdict {
        let of_wide = |wide: &TestData| Exact { data: wide.clone(), reduced: OnceLock::new(), ..self.clone() }.check(after);
        self.data.ungated.as_deref().map_or_else(Verdict::default, of_wide)
    }

    /// Judges the buffers of the reductions after a run: every value of a product's.
    pub fn check_reductions(&self, after: &[Vec<u8>]) -> Verdict {
        let expected = self.reduced.get_or_init(|| {
            let oracle = Oracle::new(&self.data);
            let all = self.data.problem.reductions().iter().enumerate();
            all.flat_map(|(number, reduction)| match reduction.operand {
                Some(operand) => reductions::of_operand(&self.data, &oracle, number, operand, Samples::All, true),
                None => reductions::exact(&self.data, number, &self.elements(&oracle, reduction)),
            })
            .collect()
        });
        reductions::check(&self.data, expected, after)
    }

    /// What is known of each value of a reduction from all its elements; nothing where not all are known.
    fn elements(&self, oracle: &Oracle<'_>, reduction: &Reduction) -> Vec<Elements> {
        let [batch, rows, columns, depth] = oracle.extent;
        let complete = match self.totals.as_ref() {
            Totals::Gemm { .. } | Totals::Elements => true,
            Totals::Conv { pixels, .. } => pixels.len() as u64 == rows,
            Totals::Crossings { table, .. } => table.len() as u64 == batch * rows * columns,
        };
        if !complete {
            return Vec::new();
        }
        let judge = Judge::new(&self.data, &[], depth);
        if let Problem::Reduce(reduce) = &self.data.problem {
            return tensor::counted(&self.data, reduce, reduction, |x| {
                let (argument, _, expected) = judge.expected(oracle, [0; 3], oracle.result_at(0, 0, 0), [x, 0.0]);
                (expected, judge.function * judge.of_argument(argument))
            });
        }
        let seen = AsReduced::new(&self.data, reduction);
        let (shape, over, operator) = (self.data.problem.result_shape(), reduction.over, reduction.operator);
        let none = || vec![Elements::none(operator); shape.left(over) as usize];
        let steps: Vec<Vec<usize>> = (0..batch).map(|g| (0..columns).map(|c| self.step(g, c)).collect()).collect();
        let row = |mut all: Vec<Elements>, i: usize| {
            let (g, row) = (i as u64 / rows, i as u64 % rows);
            let start = self.start(g, row);
            let places = oracle.results_at(g, row, 0..columns);
            for ((column, step), at) in (0..columns).zip(&steps[g as usize]).zip(places) {
                let (argument, residual, expected) = judge.expected(oracle, [g, row, column], at, [self.sum(start + step), 0.0]);
                let off = judge.function * (judge.of_argument(argument) + residual.abs());
                let element = seen.of(expected, off);
                if let Some(one) = all.get_mut(shape.index(over, [g, row, column]) as usize) {
                    one.add(operator, element, shape.within(reduction, [g, row, column]));
                }
            }
            all
        };
        // Few pieces: each has all values.
        let pieces = (batch * rows).div_ceil(rayon::current_num_threads() as u64 * 2).max(1) as usize;
        (0..(batch * rows) as usize)
            .into_par_iter()
            .with_min_len(pieces)
            .fold(none, row)
            .reduce(none, |x, y| reductions::joined(operator, x, y))
    }

    /// Where the sums of a row begin: of a convolution's output the row's number among those that are known.
    fn start(&self, g: u64, row: u64) -> usize {
        let (integers, width) = (&self.integers, (self.integers.patterns(Operand::B) * self.data.problem.parts()) as usize);
        match self.totals.as_ref() {
            Totals::Gemm { batched, .. } => integers.pattern_of_row(Operand::A, batched[0], g, row) as usize * width,
            Totals::Conv { pixels, groups, .. } => {
                let first = integers.pattern(Operand::A, g / groups) * groups + g % groups;
                (first as usize * pixels.len() + row as usize) * width
            }
            Totals::Elements => self.element_at(false, row),
            Totals::Crossings { picks, .. } => (g as usize * picks[1].len() + row as usize) * picks[2].len(),
        }
    }

    /// The sums that a result is made of: its own, and of complex numbers the other part's, of a gate the other factor's.
    fn sums(&self, oracle: &Oracle<'_>, g: u64, start: usize, column: u64) -> [f64; 2] {
        if let Some(pair) = oracle.pair(column) {
            return pair.map(|column| self.sum(start + self.step(g, column)));
        }
        let step = self.step(g, column);
        // The other part of a complex sum is the neighbouring element.
        let other = if self.data.factors.alpha_im == 0.0 { 0.0 } else { self.sum(start + (step ^ 1)) };
        [self.sum(start + step), other]
    }

    /// How far a column's sum is from there.
    fn step(&self, g: u64, column: u64) -> usize {
        match self.totals.as_ref() {
            Totals::Gemm { batched, .. } => {
                let parts = self.data.problem.parts();
                let pattern = self.integers.pattern_of_row(Operand::B, batched[1], g, column / parts);
                (pattern * parts + column % parts) as usize
            }
            Totals::Conv { .. } => self.integers.pattern(Operand::B, column) as usize,
            Totals::Elements => self.element_at(true, column),
            Totals::Crossings { .. } => column as usize,
        }
    }

    /// Where the elements of a row (or column) begin in A.
    fn element_at(&self, reduced: bool, index: u64) -> usize {
        if let Problem::Reduce(reduce) = &self.data.problem { reduce.position(reduced, index) as usize } else { 0 }
    }

    /// The sums of a row at some columns.
    fn row_sums(&self, start: usize, steps: &[usize], out: &mut [f64]) {
        fn each<T: Copy>(table: &[T], start: usize, steps: &[usize], out: &mut [f64], number: impl Fn(T) -> f64) {
            for (out, step) in out.iter_mut().zip(steps) {
                *out = table.get(start + step).map_or(f64::NAN, |sum| number(*sum));
            }
        }
        match self.totals.as_ref() {
            Totals::Gemm { table, .. } => each(table, start, steps, out, |sum| sum as f64),
            Totals::Conv { table, .. } => each(table, start, steps, out, |sum| sum),
            // These are judged one by one.
            Totals::Crossings { .. } | Totals::Elements => out.fill(f64::NAN),
        }
    }

    fn sum(&self, at: usize) -> f64 {
        match self.totals.as_ref() {
            Totals::Elements => value(self.data.a.scalar, &self.data.a.bytes, self.data.a.start + at as u64),
            Totals::Gemm { table, .. } => table.get(at).map_or(f64::NAN, |sum| *sum as f64),
            Totals::Conv { table, .. } | Totals::Crossings { table, .. } => table.get(at).copied().unwrap_or(f64::NAN),
        }
    }

    /// As [`Exact::check`] for algorithms that round on the way (Winograd's): an element is wrong from 0.4 of the least term on.
    pub fn check_terms(&self, after: &[u8]) -> Verdict {
        self.check_within(after, 0.4 * self.data.factors.alpha.abs())
    }

    fn check_within(&self, after: &[u8], slack: f64) -> Verdict {
        let oracle = Oracle::new(&self.data);
        let [batch, rows, columns, depth] = oracle.extent;
        let judge = Judge { slack, ..Judge::new(&self.data, after, depth) };
        let listed = match self.totals.as_ref() {
            Totals::Gemm { .. } | Totals::Elements => rows as usize,
            Totals::Conv { pixels, .. } => pixels.len(),
            Totals::Crossings { table, picks: [gs, rows, columns] } => {
                let crossings = table.par_iter().enumerate().with_min_len(1 << 10).map(|(i, sum)| {
                    let (row, mut verdict) = (i / columns.len(), Verdict::default());
                    let index = [gs[row / rows.len()], rows[row % rows.len()], columns[i % columns.len()]];
                    judge.element(&oracle, index, oracle.result_at(index[0], index[1], index[2]), [*sum, 0.0], &mut verdict);
                    verdict
                });
                return crossings.reduce(Verdict::default, Verdict::and);
            }
        };
        let blocks = [listed.div_ceil(BLOCK), (columns as usize).div_ceil(BLOCK)];
        let block = |i: usize| {
            let (g, i) = (i / (blocks[0] * blocks[1]), i % (blocks[0] * blocks[1]));
            let rows = i / blocks[1] * BLOCK..(i / blocks[1] * BLOCK + BLOCK).min(listed);
            let columns = i % blocks[1] * BLOCK..(i % blocks[1] * BLOCK + BLOCK).min(columns as usize);
            self.judge_block(&judge, &oracle, g as u64, rows, columns)
        };
        (0..batch as usize * blocks[0] * blocks[1]).into_par_iter().map(block).reduce(Verdict::default, Verdict::and)
    }

    fn judge_block(
        &self,
        judge: &Judge<'_>,
        oracle: &Oracle<'_>,
        g: u64,
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
    ) -> Verdict {
        let [rows, columns] = [rows, columns].map(|lines| lines.map(|line| line as u64).collect::<Vec<u64>>());
        let mut verdict = Verdict::default();
        for (g, rows, columns) in oracle.blocks(g, &rows, &columns) {
            let steps: Vec<usize> = columns.iter().map(|column| self.step(g, *column)).collect();
            let mut plain = judge.plain(oracle, g, columns);
            for &row in rows {
                let start = self.start(g, row);
                let number = if let Totals::Conv { pixels, .. } = self.totals.as_ref() { pixels[row as usize] } else { row };
                // Positions of a convolution's pixels take divisions: once for a row.
                let places = || oracle.results_at(g, number, columns[0]..columns[0] + columns.len() as u64);
                if let Some(plain) = &mut plain {
                    self.row_sums(start, &steps, &mut plain.sums);
                    if plain.are_right(judge, places()) {
                        verdict.checked += columns.len() as u64;
                        continue;
                    }
                }
                for (column, at) in columns.iter().zip(places()) {
                    judge.element(oracle, [g, number, *column], at, self.sums(oracle, g, start, *column), &mut verdict);
                }
            }
        }
        verdict
    }
}

/// Sums of a convolution: for one sample of each pattern, and one output channel of each.
fn convolved(conv: &Conv, data: &TestData, integers: &Integers, pixels: u64) -> Totals {
    let oracle = Oracle::new(data);
    let [_, rows, channels, _] = oracle.extent;
    let pixels = spread(rows, pixels, hash(0, 9));
    let first = |operand: Operand, pattern: u64, of: u64| {
        // A pattern that nobody has is not asked for.
        (0..of).find(|&i| integers.pattern(operand, i) == pattern).unwrap_or(0)
    };
    let columns: Vec<u64> = (0..integers.patterns(Operand::B)).map(|p| first(Operand::B, p, channels)).collect();
    let samples = (0..integers.patterns(Operand::A)).map(|p| first(Operand::A, p, conv.n));
    let table = samples
        .flat_map(|sample| (0..conv.groups).map(move |group| sample * conv.groups + group))
        .flat_map(|g| dot_products(data, &oracle, g, &pixels, &columns).into_iter().map(|sum| sum.value))
        .collect();
    Totals::Conv { table, pixels, groups: conv.groups }
}

/// Sums of a gradient, as many as the budget admits.
fn crossed(data: &TestData) -> Totals {
    let oracle = Oracle::new(data);
    let picks = picks(oracle.extent, Samples::Budget(BUDGET / 8));
    let of = |&g: &u64| dot_products(data, &oracle, g, &picks[1], &picks[2]).into_iter().map(|sum| sum.value).collect::<Vec<_>>();
    let table = picks[0].iter().flat_map(of).collect();
    Totals::Crossings { table, picks }
}

/// What elements are judged by.
struct Judge<'a> {
    data: &'a TestData,
    after: &'a [u8],
    scalar: Scalar,
    activation: Option<Activation>,
    gate: Option<Gate>,
    /// Rounding of the activation, relative to its argument.
    function: f64,
    tolerance: Tolerance,
    /// About `|alpha| |A||B|` of an element.
    scale: f64,
    /// Allowed beside the rounding of the result.
    slack: f64,
}

impl<'a> Judge<'a> {
    fn new(data: &'a TestData, after: &'a [u8], depth: u64) -> Judge<'a> {
        let activation = data.problem.activation();
        let unit = if data.problem.accumulator() == Scalar::F64 { 2f64.powi(-53) } else { 2f64.powi(-24) };
        // Beside its own rounding that of the sum of it and the residual.
        let function = activation.filter(|f| *f != Activation::Relu).map_or(0.0, |f| (f.rounding() + 4.0) * unit);
        let gate = data.problem.gate();
        // The product of both factors rounds too.
        let function = gate.map_or(function, |gate| (gate.function.rounding() + 6.0) * unit);
        let (tolerance, scale) = (Tolerance::of(&data.problem), data.factors.alpha.abs() * depth as f64);
        Judge { data, after, scalar: data.c.scalar, activation, gate, function, tolerance, scale, slack: 0.0 }
    }

    /// The activation's input, the residual added after it, and the expected result. `at` is the element's position in C's buffer.
    fn expected(&self, oracle: &Oracle<'_>, [g, row, column]: [u64; 3], at: u64, [sum, other]: [f64; 2]) -> (f64, f64, f64) {
        let Factors { alpha, alpha_im, .. } = self.data.factors;
        let residual = oracle.residual(g, row, column);
        if let Some((gate, pair)) = self.gate.zip(oracle.pair(column)) {
            let [x, y] = [(sum, pair[0]), (other, pair[1])].map(|(sum, column)| {
                let [by_row, by_column] = oracle.scales(row, column);
                alpha * sum * by_row * by_column + oracle.bias(g, row, column)
            });
            // The function's error counts as often as the other factor.
            let y = gate.of_up(y);
            return (gate.gate_scale(x.abs()) * y, residual, gate.of_gate(x) * y + residual);
        }
        let (old, _) = super::old(self.data, column, at);
        let [by_row, by_column] = oracle.scales(row, column);
        let sum = sum + oracle.centred(g, row, column)[0];
        let scaled = turned([alpha, alpha_im], column % 2, sum, other);
        let argument = scaled * by_row * by_column + old + oracle.bias(g, row, column);
        (argument, residual, oracle.last(self.activation.map_or(argument, |f| f.apply(argument)), residual))
    }

    /// Neighbouring columns whose elements are an activated `alpha * sum + beta * old + bias` with a bias of the column. `None` where a result has more
    /// terms.
    fn plain(&self, oracle: &Oracle<'_>, g: u64, columns: &[u64]) -> Option<Plain> {
        let Factors { alpha_im, beta_im, .. } = self.data.factors;
        let simple = match &self.data.problem {
            Problem::Gemm(gemm) => {
                gemm.complex.is_none()
                    && gemm.gate.is_none()
                    && gemm.residual.is_none()
                    && gemm.bias.is_none_or(|bias| bias.along == Along::N)
                    && [Along::M, Along::N].iter().all(|along| gemm.scales.of(*along).is_none() && gemm.totals_len(*along) == 0)
            }
            Problem::Conv(conv) => !conv.mask && !conv.residual,
            Problem::Reduce(_) => false,
        };
        // What rounds or saturates is judged one by one.
        let simple = simple && alpha_im == 0.0 && beta_im == 0.0 && self.function == 0.0 && self.scalar.bytes() > 1;
        simple.then(|| Plain {
            sums: vec![0.0; columns.len()],
            found: vec![0.0; columns.len()],
            old: vec![0.0; columns.len()],
            bias: columns.iter().map(|column| oracle.bias(g, 0, *column)).collect(),
        })
    }

    /// The scale of the function's own error.
    fn of_argument(&self, argument: f64) -> f64 {
        if self.activation == Some(Activation::Exp) {
            Activation::Exp.scale(argument, argument.abs(), self.function)
        } else {
            argument.abs()
        }
    }

    fn element(&self, oracle: &Oracle<'_>, index: [u64; 3], at: u64, totals: [f64; 2], verdict: &mut Verdict) {
        let (argument, residual, expected) = self.expected(oracle, index, at, totals);
        let expected = within(self.scalar, expected);
        let actual = value(self.scalar, self.after, at);
        verdict.checked += 1;
        if actual == expected {
            return;
        }
        let t = &self.tolerance;
        let allowed = self.slack
            + match self.function {
                // Rounded once, to nothing where the type holds the value.
                0.0 => (rounded(self.scalar, expected) - expected).abs(),
                function => function * (self.of_argument(argument) + residual.abs()) + t.round * expected.abs() + t.floor,
            };
        // An exponential is beyond the type for arguments of small integers.
        let beyond = [expected, expected + allowed].into_iter().any(|x| rounded(self.scalar, x) == f64::INFINITY);
        if self.activation == Some(Activation::Exp) && actual == f64::INFINITY && beyond {
            return;
        }
        let difference = (actual - expected).abs();
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        verdict.wrong += u64::from(difference > allowed);
        verdict.not_a_number += u64::from(actual.is_nan());
        verdict.max_error = verdict.max_error.max(difference / self.scale);
        let mismatch = Mismatch { index, reduction: None, expected, actual, allowed };
        if verdict.worst.is_none_or(|worst| worst.excess() < mismatch.excess()) {
            verdict.worst = Some(mismatch);
        }
    }
}

/// Neighbouring elements of a row. Whole rows are judged fast where they are right to the last bit; [`Judge::element`] judges the others.
struct Plain {
    sums: Vec<f64>,
    found: Vec<f64>,
    old: Vec<f64>,
    bias: Vec<f64>,
}

impl Plain {
    /// True if all elements have just the expected values.
    fn are_right(&mut self, judge: &Judge<'_>, mut places: impl Iterator<Item = u64>) -> bool {
        let Some(first) = places.next() else { return true };
        let apart = places.next().map_or(1, |second| second - first);
        let Factors { alpha, beta, .. } = judge.data.factors;
        values(judge.scalar, judge.after, first, apart, &mut self.found);
        if judge.data.factors.reads_old() {
            values(judge.scalar, &judge.data.c.bytes, first, apart, &mut self.old);
        }
        let elements = self.found.iter().zip(&self.sums).zip(self.old.iter().zip(&self.bias));
        let right = elements.map(|((found, sum), (old, bias))| {
            let argument = alpha * sum + beta * old + bias;
            *found == judge.activation.map_or(argument, |f| f.apply(argument))
        });
        right.fold(true, |all, right| all & right)
    }
}
