//! Operands of small integers, so that sums are exact whatever their order, and every single term shows in every result.
//!
//! Factors are +-1 and +-2 in random order. No product is zero, so a term that is left out or added twice moves the sum by 1, 2
//! or 4. Sums of `k` of them stay far below 2^24: up to `k` = 2^22 whatever their signs, up to 2^38 by 8 standard deviations. So
//! f32 accumulators hold every partial sum of 16-bit and TF32 operands exactly, in any order and any split.
//!
//! Results of 16 bits hold fewer integers (bf16: up to 256). For them all but about [`FREE`] terms form pairs that cancel. A unit of
//! depth is a `k` of a product or a channel of a convolution. Units `u` and `centre - u` (modulo their number) have the same elements of A,
//! and elements of B with opposite signs. Sums then stay below 256 by 7 standard deviations. An error in one term of a pair still shows,
//! because the other term is elsewhere.
//!
//! Rows of A (samples of a convolution's input) and columns of B (output channels) repeat in random order a few patterns. A product
//! therefore has as many different sums as pairs of patterns, which are computed once, and every element of the result is checked.
//!
//! Unsigned factors are the magnitudes of these, so that nothing cancels.
//!
//! The factors of gradients of a convolution have neither pairs nor patterns: sums are those of the elements that are looked at.

use super::element::hash;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Complex, Conv, Direction, Gemm, Layout, Order, Problem};

/// Terms that do not cancel where results have 16 bits: the sum's standard deviation is 24 to 34.
const FREE: u64 = 192;
/// Patterns of rows and of columns.
const PATTERNS: u64 = 16;

/// The factors of one problem, as functions of their coordinates.
#[derive(Clone, Debug)]
pub(super) struct Integers {
    seed: u64,
    depth: Depth,
    left: Shape,
    right: Shape,
    /// Of a second pair of factors, whose terms follow the first pair's from `second_from` on.
    second: Option<[Shape; 2]>,
    second_from: u64,
    /// A and B have no negative numbers.
    unsigned: [bool; 2],
    /// Terms are the parts of complex numbers, two for each.
    complex: Option<Complex>,
}

/// Units of depth and their pairs.
#[derive(Clone, Copy, Debug)]
struct Depth {
    units: u64,
    /// One unit in so many is free; 1: all are.
    every: u64,
    centre: u64,
    seed: u64,
}

impl Depth {
    fn new(seed: u64, units: u64, terms_per_unit: u64, narrow: bool) -> Depth {
        let free = (FREE / terms_per_unit).max(1);
        let every = if narrow { (units / free).max(1) } else { 1 };
        Depth { units, every, centre: hash(seed, 0) % units, seed: hash(seed, 1) }
    }
    /// The unit whose values are used, and whether the elements of B change sign.
    #[inline]
    fn leader(&self, at: u64) -> (u64, bool) {
        if self.every == 1 {
            return (at, false);
        }
        let partner = if at <= self.centre { self.centre - at } else { self.centre + self.units - at };
        let first = at.min(partner);
        let free = hash(self.seed, first).is_multiple_of(self.every);
        if free { (at, false) } else { (first, at != first) }
    }
}

/// How the elements of a factor, counted in the order of memory without gaps, map to (pattern, term).
#[derive(Clone, Debug)]
enum Shape {
    /// All elements are 1: batch entries that overlap in memory have no values of their own.
    Ones,
    /// Every element has a value of its own: a gradient's factors.
    Plain,
    /// Lines of a stored matrix. `rows`: of A, or columns of B, per batch entry.
    /// `parts`: numbers of an element, which lie side by side.
    Matrix { line: u64, lines: u64, along_k: bool, rows: u64, patterns: u64, parts: u64 },
    /// A convolution's input, its patterns by sample.
    Input { channels: u64, per_group: u64, pixels: u64, last: bool, patterns: u64 },
    /// A convolution's filter, its patterns by output channel of a group.
    Filter { channels: u64, per_group: u64, taps: u64, last: bool, patterns: u64 },
}

impl Integers {
    /// The factors of a problem. `patterns`: most of samples and output channels of a convolution.
    pub(super) fn new(problem: &Problem, seed: u64, patterns: [u64; 2]) -> Integers {
        let narrow = problem.out_dtype().bytes() <= 2 || problem.dtype().is_float8();
        let (depth, left, right) = match problem {
            Problem::Gemm(gemm) => {
                let depth = Depth::new(hash(seed, 2), gemm.terms() * gemm.parts(), 1, narrow);
                (depth, matrix(gemm, 0), matrix(gemm, 1))
            }
            Problem::Conv(conv) if conv.direction != Direction::Forward => {
                (Depth::new(0, 1, 1, false), Shape::Plain, Shape::Plain)
            }
            Problem::Reduce(_) => (Depth::new(0, 1, 1, false), Shape::Plain, Shape::Plain),
            Problem::Conv(conv) => {
                let taps = conv.filter.iter().product();
                let depth = Depth::new(hash(seed, 2), conv.c_per_group(), taps, narrow);
                let last = conv.layout == Layout::Nhwc;
                let (per_group, pixels) = (conv.c_per_group(), conv.input.iter().product());
                let left = Shape::Input { channels: conv.c, per_group, pixels, last, patterns: patterns[0] };
                let channels = conv.k_per_group();
                (depth, left, Shape::Filter { channels, per_group, taps, last, patterns: patterns[1] })
            }
        };
        // The signs of B make pairs cancel.
        let depth = if matches!(right, Shape::Ones) { Depth { every: 1, ..depth } } else { depth };
        let unsigned = [problem.dtype(), problem.b_dtype()].map(|scalar| matches!(scalar, Scalar::U8 | Scalar::U4));
        let complex = if let Problem::Gemm(gemm) = problem { gemm.complex } else { None };
        let (second, second_from) = match problem {
            Problem::Gemm(gemm) => (gemm.second_product().map(|second| [0, 1].map(|index| matrix(&second, index))), gemm.k),
            _ => (None, 0),
        };
        Integers { seed, depth, left, right, second, second_from, unsigned, complex }
    }

    fn shape(&self, operand: Operand) -> &Shape {
        if operand == Operand::A { &self.left } else { &self.right }
    }
    fn seed(&self, operand: Operand, pattern: u64) -> u64 {
        hash(hash(self.seed, 3 + u64::from(operand == Operand::A)), pattern)
    }
    /// Patterns of an operand.
    pub(super) fn patterns(&self, operand: Operand) -> u64 {
        match *self.shape(operand) {
            Shape::Ones | Shape::Plain => 1,
            Shape::Matrix { patterns, .. } | Shape::Input { patterns, .. } | Shape::Filter { patterns, .. } => patterns,
        }
    }
    /// The pattern of a row of A or column of B (counted on from batch entry to batch entry). For a convolution: of a sample, or
    /// of an output channel of a group.
    #[inline]
    pub(super) fn pattern(&self, operand: Operand, index: u64) -> u64 {
        match self.patterns(operand) {
            1 => 0,
            many => hash(hash(self.seed, 5 + u64::from(operand == Operand::A)), index) % many,
        }
    }
    /// The pattern of a row of A or a column of B of a product, where its batch entries differ.
    #[inline]
    pub(super) fn pattern_of_row(&self, operand: Operand, batched: bool, g: u64, row: u64) -> u64 {
        let Shape::Matrix { rows, .. } = *self.shape(operand) else { return 0 };
        self.pattern(operand, if batched { g * rows + row } else { row })
    }

    /// Term `k` of a pattern of a product's factor.
    #[inline]
    fn term(&self, operand: Operand, seed: u64, k: u64) -> i8 {
        let (first, negative) = self.depth.leader(k);
        let value = if matches!(self.shape(operand), Shape::Ones) { 1 } else { small(hash(seed, first)) };
        self.held(operand, if negative && operand == Operand::B { -value } else { value })
    }
    /// A value as the factor's type holds it.
    #[inline]
    fn held(&self, operand: Operand, value: i8) -> i8 {
        if self.unsigned[usize::from(operand != Operand::A)] { value.abs() } else { value }
    }
    /// Terms of a pattern of a product's factor from `first` on.
    fn terms(&self, operand: Operand, pattern: u64, first: u64, out: &mut [i8]) {
        let seed = self.seed(operand, pattern);
        for (k, out) in (first..).zip(out) {
            *out = self.term(operand, seed, k);
        }
    }
    /// The sums of a product: one per pattern of A and of B, those of B fastest; of complex numbers the two parts of each.
    pub(super) fn totals(&self) -> Vec<i64> {
        use rayon::prelude::*;
        let (left, right) = (self.patterns(Operand::A), self.patterns(Operand::B));
        let block = |first: u64| {
            let depth = (self.depth.units - first).min(BLOCK) as usize;
            let terms = |operand, count: u64| {
                let mut all = vec![0i8; count as usize * depth];
                all.chunks_exact_mut(depth).enumerate().for_each(|(p, out)| self.terms(operand, p as u64, first, out));
                all
            };
            let (x, y) = (terms(Operand::A, left), terms(Operand::B, right));
            if let Some(complex) = self.complex {
                let pairs = x.chunks_exact(depth).flat_map(|x| y.chunks_exact(depth).map(move |y| (x, y)));
                return pairs.flat_map(|(x, y)| complex_dot(complex, x, y)).collect();
            }
            let dot = |x: &[i8], y: &[i8]| x.iter().zip(y).map(|(x, y)| i32::from(*x) * i32::from(*y)).sum::<i32>();
            x.chunks_exact(depth).flat_map(|x| y.chunks_exact(depth).map(move |y| i64::from(dot(x, y)))).collect::<Vec<i64>>()
        };
        let add = |x: Vec<i64>, y: Vec<i64>| x.into_iter().zip(y).map(|(x, y)| x + y).collect();
        let blocks = self.depth.units.div_ceil(BLOCK);
        (0..blocks)
            .into_par_iter()
            .map(|b| block(b * BLOCK))
            .reduce(|| vec![0; (left * right) as usize * if self.complex.is_some() { 2 } else { 1 }], add)
    }

    /// Values of a factor from element `first` on, counted in the order of memory without gaps.
    pub(super) fn elements(&self, operand: Operand, first: u64, out: &mut [i8]) {
        match *self.shape(operand) {
            Shape::Ones | Shape::Matrix { .. } => self.matrix_elements(operand, self.shape(operand), 0, first, out),
            Shape::Plain => {
                let seed = self.seed(operand, 0);
                (first..).zip(out).for_each(|(at, out)| *out = self.held(operand, small(hash(seed, at))));
            }
            Shape::Input { channels, per_group, pixels, last, .. } => {
                // Divisions once for a line, which are channels of a pixel or pixels of a channel.
                let line = if last { channels } else { pixels };
                let (mut number, mut from, mut rest) = (first / line, first % line, out);
                while !rest.is_empty() {
                    let (part, tail) = rest.split_at_mut(((line - from) as usize).min(rest.len()));
                    let lines = channels * pixels / line;
                    let (sample, fixed) = (number / lines, number % lines);
                    let seed = self.seed(operand, self.pattern(operand, sample));
                    for (at, out) in (from..).zip(part) {
                        let (channel, pixel) = if last { (at, fixed) } else { (fixed, at) };
                        let within = channel % per_group;
                        let (unit, _) = self.depth.leader(within);
                        *out = self.held(operand, small(hash(seed, (channel - within + unit) * pixels + pixel)));
                    }
                    (rest, number, from) = (tail, number + 1, 0);
                }
            }
            Shape::Filter { channels, per_group, taps, last, .. } => {
                for (at, out) in (first..).zip(out) {
                    let (channel, tap) =
                        if last { (at % per_group, at / per_group % taps) } else { (at / taps % per_group, at % taps) };
                    let filter = at / (per_group * taps);
                    let seed = self.seed(operand, self.pattern(operand, filter % channels));
                    let (unit, negative) = self.depth.leader(channel);
                    let value = small(hash(seed, (filter / channels * per_group + unit) * taps + tap));
                    *out = self.held(operand, if negative { -value } else { value });
                }
            }
        }
    }

    /// The same of a gated product's up weights, which lie as operand B does. Their columns follow those of B.
    pub(super) fn up_elements(&self, first: u64, out: &mut [i8]) {
        let of_b = match self.right {
            Shape::Matrix { line, lines, parts, .. } => line * lines * parts,
            _ => 0,
        };
        self.elements(Operand::B, of_b + first, out);
    }

    /// The same of an operand of the second pair of factors, whose rows have the patterns of the first one's.
    pub(super) fn second_elements(&self, operand: Operand, first: u64, out: &mut [i8]) {
        if let Some(shapes) = &self.second {
            self.matrix_elements(operand, &shapes[usize::from(operand != Operand::A)], self.second_from, first, out);
        }
    }

    /// Elements of a matrix whose terms are those of the sums from `term` on.
    fn matrix_elements(&self, operand: Operand, shape: &Shape, term: u64, first: u64, out: &mut [i8]) {
        let Shape::Matrix { line, lines, along_k, rows, parts, .. } = *shape else {
            return out.fill(1);
        };
        let line = line * parts;
        let (mut number, mut at) = (first / line, first % line);
        let mut rest = out;
        while !rest.is_empty() {
            let now = ((line - at) as usize).min(rest.len());
            let (part, tail) = rest.split_at_mut(now);
            if along_k {
                let pattern = self.pattern(operand, number);
                self.terms(operand, pattern, term + at, part);
            } else {
                let (k, from) = (number % lines, number / lines * rows);
                for (at, out) in (at..).zip(part) {
                    let seed = self.seed(operand, self.pattern(operand, from + at / parts));
                    *out = self.term(operand, seed, term + k * parts + at % parts);
                }
            }
            (rest, number, at) = (tail, number + 1, 0);
        }
    }
}

/// The real and imaginary part of a sum of products of complex numbers, whose parts follow each other.
fn complex_dot(complex: Complex, x: &[i8], y: &[i8]) -> [i64; 2] {
    let of = |pair: &[i8], conj: bool| (i64::from(pair[0]), if conj { -i64::from(pair[1]) } else { i64::from(pair[1]) });
    x.chunks_exact(2).zip(y.chunks_exact(2)).fold([0, 0], |[re, im], (x, y)| {
        let ((a, b), (c, d)) = (of(x, complex.conj_a), of(y, complex.conj_b));
        [re + a * c - b * d, im + a * d + b * c]
    })
}

/// Terms summed at a time.
const BLOCK: u64 = 1 << 14;

/// -2, -1, 1 or 2 of random bits; a 2 one time in four.
#[inline]
fn small(bits: u64) -> i8 {
    let value = if bits & 6 == 0 { 2 } else { 1 };
    if bits & 1 == 0 { value } else { -value }
}

/// The same for elements that are added.
pub(super) fn added(seed: u64, position: u64) -> i8 {
    small(hash(seed, position))
}

fn matrix(gemm: &Gemm, index: usize) -> Shape {
    let x = gemm.matrices()[index];
    let (line, lines) = gemm.lines(index);
    // Distances in rising order must each clear what smaller ones span.
    let mut axes = [(1, line), (x.ld, lines), (x.batch_stride, if x.batch_stride == 0 { 1 } else { gemm.batch })];
    axes.sort_unstable();
    let mut reach = 0u64;
    for (stride, extent) in axes {
        if extent > 1 && stride <= reach {
            return Shape::Ones;
        }
        reach = reach.saturating_add((extent - 1).saturating_mul(stride));
    }
    let across = x.trans == (gemm.order == Order::Col);
    let along_k = across == (index == 0);
    let rows = if along_k { lines } else { line };
    Shape::Matrix { line, lines, along_k, rows, patterns: PATTERNS, parts: gemm.parts() }
}

/// Patterns of samples and output channels of a convolution, and the number of output pixels that are looked at. The reference
/// then takes at most about `budget` multiply-adds.
pub(super) fn affordable(conv: &Conv, budget: u64) -> ([u64; 2], u64) {
    let pixels: u64 = conv.output().iter().product();
    let terms = conv.c_per_group().saturating_mul(conv.filter.iter().product());
    let one = conv.groups.saturating_mul(terms);
    let channels = conv.k_per_group();
    // Gathering a term costs about as much as multiplying it by eight others.
    let cost = |[n, k]: [u64; 2]| one.saturating_mul(n * (k + 8));
    let choices = [[2, 8], [2, 4], [1, 4], [1, 2]];
    let fits = choices.into_iter().find(|c| cost(*c).saturating_mul(pixels) <= budget);
    let [n, k] = fits.unwrap_or([1, 2]);
    let patterns = [n.min(conv.n), k.min(channels)];
    (patterns, (budget / cost(patterns).max(1)).clamp(pixels.min(64), pixels))
}
