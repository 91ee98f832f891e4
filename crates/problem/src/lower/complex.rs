//! A product of complex matrices as one product of real matrices, with as many multiplications as its definition has. A complex
//! term is two real terms, and a complex result is two real results.
//!
//! With C's rows contiguous, `C[m, (n, i)] = sum over (k, j) of A[m, (k, j)] * B[(k, j), (n, i)]`, where i and j count parts (0
//! real, 1 imaginary). A and C are the matrices as they lie in memory, two numbers for each element. B is expanded: at ((k, j),
//! (n, i)) is the part `i xor j` of its element (k, n). The part is negated where a product of two imaginary parts makes a real
//! one, and where conjugates are multiplied ([`Signs`]). A complex alpha is multiplied into the elements of B as well, because
//! both parts are at hand there, and not in results. Where C's columns are contiguous A is expanded instead, so that parts are
//! always neighbours of C's lines.

use crate::complex::Complex;
use crate::contraction::{EpilogueOp, Signs};
use crate::error::ProblemError;
use crate::gemm::Gemm;
use crate::view::{Access, COL, G, ROW, View, ViewBuilder};
use tilewright_ir::affine::Affine;

/// Rows, columns and terms of the real product.
pub(super) fn sizes(gemm: &Gemm) -> [u64; 3] {
    match (gemm.complex, gemm.c_by_rows()) {
        (None, _) => [gemm.m, gemm.n, gemm.k],
        (Some(_), true) => [gemm.m, 2 * gemm.n, 2 * gemm.k],
        (Some(_), false) => [2 * gemm.m, gemm.n, 2 * gemm.k],
    }
}

/// Neighbours along one coordinate of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Neighbours {
    /// How many there are.
    pub count: u64,
    /// Elements of memory from one to the next; any value if there is only one.
    pub apart: u64,
}

impl Neighbours {
    /// Numbers from one to the next.
    fn numbers(self) -> i64 {
        i64::try_from(self.apart).unwrap_or(i64::MAX).saturating_mul(2)
    }
}

/// A matrix of elements for each batch entry.
#[derive(Clone, Copy)]
pub(super) struct Elements {
    pub batch: Neighbours,
    pub rows: Neighbours,
    pub cols: Neighbours,
}

impl Elements {
    /// Rows and columns exchanged.
    fn turned(self) -> Elements {
        Elements { rows: self.cols, cols: self.rows, ..self }
    }
    /// The same numbers as they lie in memory, those of an element neighbours along its columns.
    fn along_columns(self) -> Result<View, ProblemError> {
        let [g, row, col] =
            [("g", self.batch), ("row", self.rows), ("col", self.cols)].map(|(name, x)| (name, x.count, x.numbers()));
        let numbers = [g, row, col, ("part", 2, 1)];
        Ok(ViewBuilder::tensor(&numbers).merge(&["col", "part"], "parts").view("g", "row", "parts")?)
    }
    /// Both rows and columns count parts, and the part is 0 where both have the same.
    fn expanded(self) -> View {
        let extent = [self.batch.count, 2 * self.rows.count, 2 * self.cols.count];
        let element = |axis: usize| Affine::axis(axis).digit(2, None, &extent);
        let offset = Affine::default()
            .plus(&Affine::axis(G), self.batch.numbers())
            .plus(&element(ROW), self.rows.numbers())
            .plus(&element(COL), self.cols.numbers())
            .plus(&Affine::axis(ROW).plus(&Affine::axis(COL), 1).digit(1, Some(2), &extent), 1);
        View { extent, access: Access { offset: offset.simplified(&extent), bounds: Vec::new() } }
    }
}

/// The view of matrix 0 = A, 1 = B, 2 = C of a complex product, and the signs of its elements where it is expanded.
pub(super) fn view(gemm: &Gemm, complex: Complex, matrix: usize, x: Elements) -> Result<(View, Option<Signs>), ProblemError> {
    let by_rows = gemm.c_by_rows();
    // B is addressed by (g, n, k).
    match (matrix, by_rows) {
        (0, true) => Ok((x.along_columns()?, None)),
        (1, false) => Ok((x.turned().along_columns()?, None)),
        (0, false) => Ok((x.expanded(), Some(signs([complex.conj_a, complex.conj_b], complex.alpha_im)))),
        (1, true) => Ok((x.turned().expanded(), Some(signs([complex.conj_b, complex.conj_a], complex.alpha_im)))),
        (_, true) => Ok((x.along_columns()?, None)),
        (_, false) => Ok((x.turned().along_columns()?.transposed(), None)),
    }
}

/// The signs of the expanded factor u + v i beside the other one x + y i. With t and s, -1 where this and the other are conjugated and 1 elsewhere:
/// `(x + s y i)(u + t v i) = (x u - s t y v) + (x t v + y s u) i`, whose terms have the other's parts. With a complex alpha p + q i in u's and v's places are
/// those of `alpha (u + t v i) = (p u - q t v) + (p t v + q u) i`.
fn signs([this, other]: [bool; 2], alpha_im: bool) -> Signs {
    let turned = [[!this, !other], [false, this == other]];
    Signs { negative: [[false, this == other], [this, other]], other: alpha_im.then_some(turned) }
}

/// What a complex product's epilogue has in the places of a real one's: a complex alpha is in the expanded factor already.
pub(super) fn epilogue(complex: Complex, all: Vec<EpilogueOp>) -> Vec<EpilogueOp> {
    let of = |op| match op {
        EpilogueOp::Scale if complex.alpha_im => None,
        EpilogueOp::AddOld if complex.beta_im => Some(EpilogueOp::AddOldComplex),
        op => Some(op),
    };
    all.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contraction::Tensor;
    use crate::gemm::Order;
    use crate::lower::{ConvForm, lower};
    use crate::problem::Problem;
    use tilewright_ir::Scalar;

    /// Both parts of alpha.
    const ALPHA: (i64, i64) = (3, -2);

    /// The number that a tensor has at a point of these memory contents.
    fn read(x: &Tensor, memory: &[i64], point: [i64; 3]) -> i64 {
        let at = x.view.access.at(point).unwrap() as usize;
        let signed = |value: i64, negative: bool| if negative { -value } else { value };
        let value = signed(memory[at], x.signs.is_some_and(|signs| signs.at(point[1], point[2])));
        match x.signs.and_then(|signs| signs.other_at(point[1], point[2])) {
            Some(negative) => ALPHA.0 * value + ALPHA.1 * signed(memory[at ^ 1], negative),
            None => value,
        }
    }

    #[test]
    fn the_real_product_is_the_complex_one() {
        let (m, n, k) = (3, 2, 4);
        for bits in 0..128u32 {
            let bit = |i: u32| bits >> i & 1 == 1;
            let builder = Gemm::new(Scalar::F64, m, n, k).conj(bit(0), bit(1)).trans(bit(2), bit(3)).trans_c(bit(4));
            let order = if bit(5) { Order::Row } else { Order::Col };
            let gemm = builder.order(order).lda(5).ldb(7).ldc(6).batch(2).stride_b(0);
            let gemm = gemm.imaginary(bit(6), false).build().unwrap();
            let of = |gemm: &Gemm| lower(&Problem::Gemm(gemm.clone()), ConvForm::PER_SAMPLE).unwrap().lead;
            let (c, real) = (of(&gemm), of(&Gemm { complex: None, ..gemm.clone() }));
            assert_eq!([&c.a, &c.b, &c.c].map(|x| x.len), [&real.a, &real.b, &real.c].map(|x| 2 * x.len));
            assert_eq!(c.flop(), 4.0 * real.flop());
            let memory = |seed: i64, len: u64| (0..len as i64).map(|i| (i * 37 + seed) % 19 - 9).collect::<Vec<i64>>();
            let (a, b) = (memory(3, c.a.len), memory(11, c.b.len));
            let element = |x: &Tensor, memory: &[i64], point: [i64; 3], conj: bool| {
                let at = 2 * x.view.access.at(point).unwrap() as usize;
                (memory[at], if conj { -memory[at + 1] } else { memory[at + 1] })
            };
            for (g, i, j) in (0..2).flat_map(|g| (0..m as i64).flat_map(move |i| (0..n as i64).map(move |j| (g, i, j)))) {
                let term = |l: i64| {
                    let (x, y) = element(&real.a, &a, [g, i, l], bit(0));
                    let (u, v) = element(&real.b, &b, [g, j, l], bit(1));
                    (x * u - y * v, x * v + y * u)
                };
                let expected = (0..k as i64).map(term).fold((0, 0), |sum, term| (sum.0 + term.0, sum.1 + term.1));
                let ((p, q), (x, y)) = (if bit(6) { ALPHA } else { (1, 0) }, expected);
                let expected = (p * x - q * y, p * y + q * x);
                let at = 2 * real.c.view.access.at([g, i, j]).unwrap();
                for (part, expected) in [(0, expected.0), (1, expected.1)] {
                    let [row, col] = if gemm.c_by_rows() { [i, 2 * j + part] } else { [2 * i + part, j] };
                    assert_eq!(c.c.view.access.at([g, row, col]), Some(at + part), "{bits:06b}");
                    let sum: i64 = (0..c.k as i64).map(|l| read(&c.a, &a, [g, row, l]) * read(&c.b, &b, [g, col, l])).sum();
                    assert_eq!(sum, expected, "{bits:06b} ({g}, {i}, {j}) part {part}");
                }
            }
        }
    }

    #[test]
    fn complex_factors_have_places_of_their_own() {
        for (alpha_im, beta_im) in [(false, false), (true, false), (false, true), (true, true)] {
            let gemm = Gemm::new(Scalar::F64, 4, 4, 4).imaginary(alpha_im, beta_im).build().unwrap();
            let c = lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead;
            assert_eq!((c.turns_factor(), c.turns_old()), (alpha_im, beta_im));
            assert_eq!(c.epilogue.contains(&EpilogueOp::Scale), !alpha_im);
            assert_eq!(c.epilogue.contains(&EpilogueOp::AddOld), !beta_im);
            assert_eq!(c.formula().matches("alpha").count(), 1, "{}", c.formula());
        }
    }

    #[test]
    fn what_is_not_expanded_is_a_plain_matrix() {
        let gemm = Gemm::new(Scalar::F32, 8, 6, 4).complex().trans(false, true).build().unwrap();
        let c = lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead;
        assert_eq!((c.m, c.n, c.k), (8, 12, 8));
        assert_eq!((c.a.view.stride(COL), c.a.view.stride(ROW)), (Some(1), Some(8)));
        assert_eq!((c.c.view.stride(COL), c.c.view.stride(ROW)), (Some(1), Some(12)));
        assert!(c.a.signs.is_none() && c.b.signs.is_some());
        // No two neighbours of the expanded factor are neighbours in memory for all of its rows.
        assert_eq!([ROW, COL].map(|axis| c.b.view.vector_width(axis, 16, 64)), [1, 1]);
    }
}
