//! Positions of a problem's operands and results in memory, computed from the problem's definition. Views are deliberately not used.

use super::buffer::Buffer;
use super::convolution::Convolution;
use super::data::TestData;
use super::element::value;
use super::groups::Groups;
use rayon::prelude::*;
use std::ops::Range;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Along, Extents, Gemm, Order, Problem, Quant, Ragged, Reduce, Role, Scale};

/// Result elements as (g, row, column), each a sum of k products. The coordinates are those of the GEMM, or of [`Convolution`]. In a complex
/// product, real and imaginary parts of results are alternating columns, and each is a sum of 2k real products.
pub(super) struct Oracle<'a> {
    data: &'a TestData,
    kind: Kind<'a>,
    /// Extents of g, row, column and k.
    pub extent: [u64; 4],
    /// With zero points: the sums over k of rows of A and of columns of B.
    totals: Option<[Vec<f64>; 2]>,
    /// Where rows, columns or terms belong to groups.
    groups: Option<Groups>,
}

enum Kind<'a> {
    Gemm(&'a Gemm),
    Conv(Convolution<'a>),
    /// Results are elements of A.
    Reduce(&'a Reduce),
}

impl<'a> Oracle<'a> {
    pub(super) fn new(data: &'a TestData) -> Oracle<'a> {
        match &data.problem {
            Problem::Gemm(gemm) => {
                let parts = gemm.parts();
                let extent = [gemm.entries(), gemm.m, gemm.n * parts, gemm.terms() * parts];
                let groups = data.groups();
                let mut oracle = Oracle { data, kind: Kind::Gemm(gemm), extent, totals: None, groups };
                oracle.totals = Along::ALL.into_iter().any(|of| gemm.totals_len(of) > 0).then(|| oracle.factor_totals());
                oracle
            }
            Problem::Conv(conv) => {
                let conv = Convolution::new(conv);
                Oracle { data, extent: conv.extent(), kind: Kind::Conv(conv), totals: None, groups: None }
            }
            Problem::Reduce(reduce) => {
                let Extents { g, m, n } = reduce.result_shape().extents;
                Oracle { data, kind: Kind::Reduce(reduce), extent: [g, m, n, 1], totals: None, groups: None }
            }
        }
    }
    /// The columns of the product whose sums make the result of a column of a gated one: the gate's and the other factor's.
    pub(super) fn pair(&self, column: u64) -> Option<[u64; 2]> {
        let Kind::Gemm(gemm) = &self.kind else { return None };
        gemm.gate.map(|gate| gate.columns(column, gemm.n))
    }
    /// Splits rows and columns (ascending) of a batch entry into pieces. With groups, each piece lies in one group.
    pub(super) fn blocks<'r>(&self, g: u64, rows: &'r [u64], columns: &'r [u64]) -> Vec<(u64, &'r [u64], &'r [u64])> {
        match &self.groups {
            Some(groups) if groups.of == Ragged::M => groups.parts(rows).map(|(g, rows)| (g, rows, columns)).collect(),
            Some(groups) if groups.of == Ragged::N => groups.parts(columns).map(|(g, columns)| (g, rows, columns)).collect(),
            _ => vec![(g, rows, columns)],
        }
    }
    /// The terms of a batch entry's sums.
    pub(super) fn terms(&self, g: u64) -> Range<u64> {
        self.groups.as_ref().and_then(|groups| groups.terms(g)).unwrap_or(0..self.extent[3])
    }
    /// Position of a result element in C's buffer.
    pub(super) fn result_at(&self, g: u64, row: u64, column: u64) -> u64 {
        self.data.c.start
            + match &self.kind {
                Kind::Gemm(gemm) => {
                    let parts = gemm.parts();
                    at(gemm, 2, g, row, column / parts) * parts + column % parts
                }
                Kind::Conv(conv) => conv.result(g, row, column),
                Kind::Reduce(_) => 0,
            }
    }
    /// Where the results of a row and these neighbouring columns lie in C's buffer: at equal distances, but for the parts of complex ones.
    pub(super) fn results_at(&self, g: u64, row: u64, columns: Range<u64>) -> impl Iterator<Item = u64> {
        let parts = self.data.problem.parts();
        let first = self.result_at(g, row, columns.start - columns.start % parts);
        let apart = if self.extent[2] < 2 * parts { 0 } else { self.result_at(0, 0, parts) - self.result_at(0, 0, 0) };
        columns.clone().map(move |column| first + (column / parts - columns.start / parts) * apart + column % parts)
    }
    /// The elements of a tensor reduction at all pairs of row and column, columns fastest; `None` for a product.
    pub(super) fn elements(&self, rows: &[u64], columns: &[u64]) -> Option<Vec<f64>> {
        let Kind::Reduce(reduce) = &self.kind else { return None };
        let a = &self.data.a;
        let further: Vec<u64> = columns.iter().map(|column| reduce.position(true, *column)).collect();
        let starts = rows.iter().map(|row| a.start + reduce.position(false, *row));
        Some(starts.flat_map(|start| further.iter().map(move |at| value(a.scalar, &a.bytes, start + at))).collect())
    }
    /// The values that a scaled sum is multiplied by: of its row and of its column.
    pub(super) fn scales(&self, row: u64, column: u64) -> [f64; 2] {
        let of = |along, at| if self.block_scale(along).is_some() { None } else { self.quant(Quant::scale(along), at) };
        [(Along::M, row), (Along::N, column)].map(|(along, at)| of(along, at).unwrap_or(1.0))
    }
    /// Scales along a direction that differ from block to block of k.
    fn block_scale(&self, along: Along) -> Option<Scale> {
        let Kind::Gemm(gemm) = &self.kind else { return None };
        gemm.scales.of(along).filter(|scale| scale.terms().is_some())
    }
    /// Multiplies factors of a row (m) or column (n), for k from `first` on, by the scales of their blocks.
    pub(super) fn scale_terms(&self, along: Along, line: u64, first: u64, factors: &mut [f64]) {
        let Some((scale, terms)) = self.block_scale(along).and_then(|scale| Some((scale, scale.terms()?))) else { return };
        let blocks = self.extent[if along == Along::M { 1 } else { 2 }].div_ceil(scale.lines());
        for (k, x) in (first..).zip(factors) {
            *x *= self.quant(Quant::scale(along), k / terms * blocks + line / scale.lines()).unwrap_or(1.0);
        }
    }
    /// The quantisation parameter of a row or column, where the problem has such.
    fn quant(&self, quant: Quant, at: u64) -> Option<f64> {
        let x = self.data.added.given_to(quant.into())?;
        let at = if self.data.problem.quant_len(quant) == 1 { 0 } else { at };
        Some(value(x.scalar, &x.bytes, x.start + at))
    }
    /// What zero points add to a sum, and how large what is added is.
    pub(super) fn centred(&self, g: u64, row: u64, column: u64) -> [f64; 2] {
        let Some([of_rows, of_columns]) = &self.totals else { return [0.0; 2] };
        let [_, m, n, k] = self.extent;
        let a = self.quant(Quant::ZeroA, row).unwrap_or(0.0);
        let b = self.quant(Quant::ZeroB, column).unwrap_or(0.0);
        let of = |totals: &[f64], at: u64| totals.get(at as usize).copied().unwrap_or(0.0);
        let terms = [-b * of(of_rows, g * m + row), -a * of(of_columns, g * n + column), a * b * k as f64];
        [terms.iter().sum(), terms.iter().map(|term| term.abs()).sum()]
    }
    /// Sums over k of each row of A and each column of B.
    fn factor_totals(&self) -> [Vec<f64>; 2] {
        let [batch, m, n, k] = self.extent;
        let lines = |count: u64, read: &(dyn Fn(u64, u64, &mut [f64]) + Sync)| {
            let one = |line: u64| {
                let mut values = vec![0.0; k as usize];
                read(line / count, line % count, &mut values);
                values.iter().sum()
            };
            (0..batch * count).into_par_iter().map(one).collect()
        };
        [lines(m, &|g, row, out| self.left(g, row, 0, out)), lines(n, &|g, column, out| self.right(g, column, 0, out))]
    }
    /// The value added to a scaled sum.
    pub(super) fn bias(&self, g: u64, row: u64, column: u64) -> f64 {
        let Some(bias) = self.data.added.given_to(Role::Bias) else { return 0.0 };
        let at = match &self.kind {
            Kind::Gemm(gemm) => match gemm.bias {
                Some(x) => g * x.batch_stride + if x.along == Along::M { row } else { column },
                None => return 0.0,
            },
            Kind::Conv(conv) => conv.bias(g, column),
            Kind::Reduce(_) => return 0.0,
        };
        value(bias.scalar, &bias.bytes, bias.start + at)
    }
    /// The result of what the activation leaves and the residual.
    pub(super) fn last(&self, value: f64, residual: f64) -> f64 {
        match self.masks() {
            true if residual > 0.0 => value,
            true => 0.0,
            false => value + residual,
        }
    }
    /// The residual is not added.
    pub(super) fn masks(&self) -> bool {
        matches!(&self.data.problem, Problem::Conv(conv) if conv.mask)
    }
    /// The value added last, or that says whether the result is kept.
    pub(super) fn residual(&self, g: u64, row: u64, column: u64) -> f64 {
        let Some(residual) = self.data.added.given_to(Role::Residual) else { return 0.0 };
        let at = match &self.kind {
            Kind::Gemm(gemm) => match gemm.residual {
                Some(x) => {
                    let parts = gemm.parts();
                    (g * x.batch_stride + within(gemm, gemm.c.trans, x.ld, row, column / parts)) * parts + column % parts
                }
                None => return 0.0,
            },
            Kind::Conv(conv) => conv.result(g, row, column),
            Kind::Reduce(_) => return 0.0,
        };
        value(residual.scalar, &residual.bytes, residual.start + at)
    }
    /// Elements of A in a row, for k from `first` on.
    pub(super) fn left(&self, g: u64, row: u64, first: u64, out: &mut [f64]) {
        if let Kind::Gemm(Gemm { complex: Some(complex), .. }) = &self.kind {
            // Of term k the real part comes first, then the imaginary one.
            return self.parts(Operand::A, first, out, |gemm, k| {
                let part = k % 2;
                (at(gemm, 0, g, row, k / 2), part, complex.conj_a && part == 1)
            });
        }
        let out = self.without_second(Role::A2, first, out, |pair, k| at(pair, 0, g, row, k));
        factors(&self.data.a, first, out, |k| match &self.kind {
            Kind::Gemm(gemm) => Some(at(gemm, 0, g, row, k)),
            Kind::Conv(conv) => conv.left(g, row, k),
            Kind::Reduce(_) => None,
        });
    }
    /// Elements of B in a column, for k from `first` on.
    pub(super) fn right(&self, g: u64, column: u64, first: u64, out: &mut [f64]) {
        if let Kind::Gemm(Gemm { complex: Some(complex), .. }) = &self.kind {
            // A result's real part is x u - y v, its imaginary part x v + y u.
            return self.parts(Operand::B, first, out, |gemm, k| {
                let (of_result, of_left) = (column % 2, k % 2);
                let part = if of_result == of_left { 0 } else { 1 };
                let minus = (of_result == 0 && of_left == 1) != (complex.conj_b && part == 1);
                (at(gemm, 1, g, k / 2, column / 2), part, minus)
            });
        }
        if let (Kind::Gemm(gemm), Some(up)) = (&self.kind, self.data.added.given_to(Role::Up))
            && let Some(column) = column.checked_sub(gemm.n)
        {
            return factors(up, first, out, |k| Some(at(gemm, 1, g, k, column)));
        }
        let out = self.without_second(Role::B2, first, out, |pair, k| at(pair, 1, g, k, column));
        factors(&self.data.b, first, out, |k| match &self.kind {
            Kind::Gemm(gemm) => Some(at(gemm, 1, g, k, column)),
            Kind::Conv(conv) => conv.right(g, column, k),
            Kind::Reduce(_) => None,
        });
    }
    /// Reads the terms of the second pair of factors, if there is one, and gives those of the first.
    fn without_second<'o>(&self, role: Role, first: u64, out: &'o mut [f64], of: impl Fn(&Gemm, u64) -> u64) -> &'o mut [f64] {
        let Kind::Gemm(gemm) = &self.kind else { return out };
        let Some((pair, buffer)) = gemm.second_product().zip(self.data.added.given_to(role)) else { return out };
        let own = (gemm.k.saturating_sub(first) as usize).min(out.len());
        let (own, rest) = out.split_at_mut(own);
        factors(buffer, first.max(gemm.k) - gemm.k, rest, |k| Some(of(&pair, k)));
        own
    }
    /// Parts of an operand's complex elements: of which element, which part, and whether it is the negative of that.
    fn parts(&self, operand: Operand, first: u64, out: &mut [f64], of: impl Fn(&Gemm, u64) -> (u64, u64, bool)) {
        let Kind::Gemm(gemm) = &self.kind else { return };
        let buffer = self.data.buffer(operand);
        for (k, x) in (first..).zip(out) {
            let (element, part, negative) = of(gemm, k);
            let part = value(buffer.scalar, &buffer.bytes, buffer.start + 2 * element + part);
            *x = if negative { -part } else { part };
        }
    }
}

/// Values of an operand, 0 where there is none.
fn factors(buffer: &Buffer, first: u64, out: &mut [f64], at: impl Fn(u64) -> Option<u64>) {
    for (k, x) in (first..).zip(out) {
        *x = at(k).map_or(0.0, |at| value(buffer.scalar, &buffer.bytes, buffer.start + at));
    }
}

/// Position of element (i, j) of op(A), op(B) or C of a product.
fn at(gemm: &Gemm, matrix: usize, g: u64, i: u64, j: u64) -> u64 {
    let x = gemm.matrices()[matrix];
    g * x.batch_stride + within(gemm, x.trans, x.ld, i, j)
}

/// Position of element (i, j) within a matrix that is stored transposed or not.
fn within(gemm: &Gemm, trans: bool, ld: u64, i: u64, j: u64) -> u64 {
    let (stored_row, stored_column) = if trans { (j, i) } else { (i, j) };
    match gemm.order {
        Order::Col => stored_column * ld + stored_row,
        Order::Row => stored_row * ld + stored_column,
    }
}
