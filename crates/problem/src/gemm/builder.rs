//! The builder of a [`Gemm`]: what is not given is tight.

use super::validate::check_left;
use super::{Gemm, Matrix, Order};
use crate::complex::Complex;
use crate::epilogue::{Activation, Along, BiasVector, Residual};
use crate::error::{DEFAULT_WORKSPACE, ProblemError, default_out};
use crate::extent::Dynamic;
use crate::gate::{Gate, GateFunction};
use crate::math::Math;
use crate::quant::{Scale, Scales, ZeroPoint, ZeroPoints, multiplied};
use crate::ragged::Ragged;
use crate::reduction::Reduction;
use tilewright_ir::Scalar;

/// Collects a [`Gemm`]. What is not set is tight: smallest leading dimensions, batch entries one after the other, no offsets.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Activation, Along, Gemm, ProblemError};
///
/// // Eight products of the rows of A and a shared, transposed B.
/// let gemm = Gemm::new(Scalar::BF16, 64, 32, 16).trans(false, true).batch(8).stride_b(0);
/// let gemm = gemm.out_dtype(Scalar::F32).bias(Along::N).activation(Activation::Gelu).build()?;
/// assert_eq!((gemm.b.ld, gemm.c.ld), (16, 32));
///
/// // A builder refuses a problem that cannot be.
/// let refused = Gemm::new(Scalar::F32, 64, 32, 16).lda(8).build();
/// assert!(refused.is_err_and(|e| e.to_string().contains("lda")));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GemmBuilder {
    pub(crate) dtype: Scalar,
    pub(crate) complex: Option<Complex>,
    pub(crate) b_dtype: Option<Scalar>,
    pub(crate) math: Math,
    pub(crate) out_dtype: Option<Scalar>,
    pub(crate) order: Order,
    pub(crate) batch: u64,
    pub(crate) size: [u64; 3],
    pub(crate) trans: [bool; 3],
    pub(crate) ld: [Option<u64>; 3],
    pub(crate) batch_stride: [Option<u64>; 3],
    pub(crate) offset: [u64; 3],
    pub(crate) zero_points: ZeroPoints,
    pub(crate) scales: Scales,
    pub(crate) bias: Option<BiasVector>,
    pub(crate) activation: Option<Activation>,
    pub(crate) gate: Option<GateFunction>,
    pub(crate) up_first: bool,
    /// Leading dimension and batch stride, where they are given.
    pub(crate) residual: Option<(Option<u64>, Option<u64>)>,
    pub(crate) reductions: Vec<Reduction>,
    pub(crate) drop_c: bool,
    pub(crate) workspace: u64,
    pub(crate) dynamic: Dynamic,
    pub(crate) grouped: Option<Ragged>,
}

impl Gemm {
    /// Starts a row-major, untransposed, tight `m x n x k` product of the given element type.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(dtype: Scalar, m: u64, n: u64, k: u64) -> GemmBuilder {
        GemmBuilder {
            dtype,
            complex: None,
            b_dtype: None,
            math: Math::Exact,
            out_dtype: None,
            order: Order::default(),
            batch: 1,
            size: [m, n, k],
            trans: [false; 3],
            ld: [None; 3],
            batch_stride: [None; 3],
            offset: [0; 3],
            zero_points: ZeroPoints::default(),
            scales: Scales::default(),
            bias: None,
            activation: None,
            gate: None,
            up_first: false,
            residual: None,
            reductions: Vec::new(),
            drop_c: false,
            workspace: DEFAULT_WORKSPACE,
            dynamic: Dynamic::NONE,
            grouped: None,
        }
    }
}

impl GemmBuilder {
    /// Element type of C; by default that of A and B, f32 beside 8-bit floats. Results in 8-bit floats saturate: what lies beyond the largest
    /// number becomes that.
    pub fn out_dtype(mut self, dtype: Scalar) -> Self {
        self.out_dtype = Some(dtype);
        self
    }
    /// Element type of B where it is not that of A: one is e4m3, the other e5m2; or e4m3fnuz and e5m2fnuz, or i8 and u8; or one is i8 or u8, and
    /// the other f16, bf16 or f32: small weights, each of which becomes the float of its value on the way to shared memory.
    pub fn b_dtype(mut self, dtype: Scalar) -> Self {
        self.b_dtype = Some(dtype);
        self
    }
    /// Elements of all matrices are complex numbers, real and imaginary part side by side: complex64 of f32, complex128 of f64. Sizes, leading
    /// dimensions, strides and offsets count them.
    pub fn complex(mut self) -> Self {
        self.complex = Some(self.complex.unwrap_or_default());
        self
    }
    /// As [`GemmBuilder::complex`], with the conjugates of A's or of B's elements in their place; of a factor that is stored transposed this is its
    /// conjugate transpose.
    pub fn conj(mut self, conj_a: bool, conj_b: bool) -> Self {
        self.complex = Some(Complex { conj_a, conj_b, ..self.complex.unwrap_or_default() });
        self
    }
    /// As [`GemmBuilder::complex`], with a complex alpha or beta, whose imaginary part each launch gives beside the real one. Alpha is multiplied into
    /// the elements of a factor on their way, beta into C by a kernel of its own ahead of the product.
    pub fn imaginary(mut self, alpha_im: bool, beta_im: bool) -> Self {
        self.complex = Some(Complex { alpha_im, beta_im, ..self.complex.unwrap_or_default() });
        self
    }
    /// With what precision f32 factors are multiplied.
    pub fn math(mut self, math: Math) -> Self {
        self.math = math;
        self
    }
    /// Storage order of all matrices; row-major where none is named.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }
    /// Whether A and B are stored transposed.
    pub fn trans(mut self, a: bool, b: bool) -> Self {
        (self.trans[0], self.trans[1]) = (a, b);
        self
    }
    /// Whether C is stored transposed (not in BLAS; MIOpenGEMM `tC1`).
    pub fn trans_c(mut self, c: bool) -> Self {
        self.trans[2] = c;
        self
    }
    /// Number of products.
    pub fn batch(mut self, batch: u64) -> Self {
        self.batch = batch;
        self
    }
    /// Leading dimension of A in elements.
    pub fn lda(mut self, ld: u64) -> Self {
        self.ld[0] = Some(ld);
        self
    }
    /// Leading dimension of B in elements.
    pub fn ldb(mut self, ld: u64) -> Self {
        self.ld[1] = Some(ld);
        self
    }
    /// Leading dimension of C in elements.
    pub fn ldc(mut self, ld: u64) -> Self {
        self.ld[2] = Some(ld);
        self
    }
    /// Distance between batch entries of A in elements; 0: one A for all.
    pub fn stride_a(mut self, stride: u64) -> Self {
        self.batch_stride[0] = Some(stride);
        self
    }
    /// Distance between batch entries of B in elements; 0: one B for all.
    pub fn stride_b(mut self, stride: u64) -> Self {
        self.batch_stride[1] = Some(stride);
        self
    }
    /// Distance between batch entries of C in elements.
    pub fn stride_c(mut self, stride: u64) -> Self {
        self.batch_stride[2] = Some(stride);
        self
    }
    /// Positions of the first elements of A, B and C within their buffers, in elements.
    pub fn offsets(mut self, a: u64, b: u64, c: u64) -> Self {
        self.offset = [a, b, c];
        self
    }
    /// Zero points of A (m) or B (n), of i32, are subtracted from it: one for all, or one for each row of A or column of B.
    pub fn zero_point(mut self, of: Along, how: ZeroPoint) -> Self {
        match of {
            Along::M => self.zero_points.a = Some(how),
            Along::N => self.zero_points.b = Some(how),
        }
        self
    }
    /// Sums are multiplied by the value of a vector of f32: one per row (m) or per column (n), shared by a batch. There may be one of each.
    pub fn scale(self, along: Along) -> Self {
        self.scale_by(along, Scale::Line)
    }
    /// The same by scales of blocks: of so many rows (m) or columns (n), and of so many terms of each sum. [`Scale`] says where each lies. Sums must be
    /// promoted ([`Math::Promoted`]), or one factor have small weights, whose products are then added up in groups.
    pub fn scale_by(mut self, along: Along, scale: Scale) -> Self {
        self.scales.set(along, scale);
        self
    }
    /// A vector is added to the scaled sums: one value per row (m) or per column (n), of C's type, shared by a batch.
    pub fn bias(mut self, along: Along) -> Self {
        self.bias = Some(BiasVector { along, batch_stride: self.bias.map_or(0, |b| b.batch_stride) });
        self
    }
    /// As [`GemmBuilder::bias`], with so many elements from the vector of one batch entry to the next; 0: one for all.
    pub fn bias_strided(mut self, along: Along, batch_stride: u64) -> Self {
        self.bias = Some(BiasVector { along, batch_stride });
        self
    }
    /// A function is applied to the scaled sums with bias and old result.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = Some(activation);
        self
    }
    /// A gated product, as a gated MLP has it: B has `2 n` columns, the first half the gate's, and C is the function of the gate's sums times
    /// the other half's. Bias and scales along n have `2 n` values.
    ///
    /// ```
    /// use tilewright_ir::Scalar;
    /// use tilewright_problem::{Gemm, GateFunction};
    ///
    /// // 64 tokens, weights of 2 x 128 rows as torch stores `gate_up_proj`.
    /// let gemm = Gemm::new(Scalar::BF16, 64, 128, 32).trans(false, true).gate(GateFunction::Silu).build()?;
    /// assert_eq!((gemm.span(1), gemm.span(2)), (256 * 32, 64 * 128));
    /// # Ok::<(), tilewright_problem::ProblemError>(())
    /// ```
    pub fn gate(mut self, function: GateFunction) -> Self {
        self.gate = Some(function);
        self
    }
    /// As [`GemmBuilder::gate`]; the gate's columns are B's second half.
    pub fn up_first(mut self, up_first: bool) -> Self {
        self.up_first = up_first;
        self
    }
    /// A matrix as large as C, and of its type, is added last. It lies as C does: with C's leading dimension and batch stride.
    pub fn residual(mut self) -> Self {
        self.residual = Some(self.residual.unwrap_or_default());
        self
    }
    /// As [`GemmBuilder::residual`], with a leading dimension of its own.
    pub fn ldr(mut self, ld: u64) -> Self {
        self.residual = Some((Some(ld), self.residual.unwrap_or_default().1));
        self
    }
    /// As [`GemmBuilder::residual`], with a distance of its own between batch entries; 0: one residual for all.
    pub fn stride_r(mut self, stride: u64) -> Self {
        self.residual = Some((self.residual.unwrap_or_default().0, Some(stride)));
        self
    }
    /// Values of the result are computed beside it.
    pub fn reduce(mut self, reduction: Reduction) -> Self {
        self.reductions.push(reduction);
        self
    }
    /// C is not stored: there are only its reductions.
    pub fn drop_c(mut self) -> Self {
        self.drop_c = true;
        self
    }
    /// Workspace budget in bytes, rounded down to whole elements.
    pub fn workspace(mut self, bytes: u64) -> Self {
        self.workspace = bytes;
        self
    }
    /// Which extents are known only at launch; the sizes given are then the largest, and leading dimensions and batch strides those
    /// of the largest.
    pub fn dynamic(mut self, dynamic: Dynamic) -> Self {
        self.dynamic = dynamic;
        self
    }
    /// A grouped product (mixture of experts): so many groups of rows (m) of A and C, each multiplied by a matrix B of its own; or of columns (n)
    /// of B and C, each with an A of its own; or of terms (k), each with a C of its own. Which rows are whose is read from device memory:
    /// [`Gemm::grouped`] says how. `m` (`n`, `k`) counts the rows (columns, terms) of all groups.
    pub fn grouped(mut self, of: impl Into<Ragged>, groups: u64) -> Self {
        (self.grouped, self.batch) = (Some(of.into()), groups);
        self
    }
    /// Fills in defaults and validates.
    ///
    /// # Errors
    /// [`ProblemError::Value`] with the field, its value and what it may be.
    pub fn build(self) -> Result<Gemm, ProblemError> {
        let right = self.b_dtype.unwrap_or(self.dtype);
        check_left(self.dtype, right)?;
        if self.up_first && self.gate.is_none() {
            return Err(ProblemError::value("up_first", 1, "there is no gate; give one, or drop this"));
        }
        let [m, n, k] = self.size;
        let multiplied = multiplied(self.dtype, right).unwrap_or(self.dtype);
        let matrix = |index: usize| Matrix { trans: self.trans[index], ld: 0, batch_stride: 0, offset: self.offset[index] };
        let mut gemm = Gemm {
            dtype: self.dtype,
            complex: self.complex,
            b_dtype: self.b_dtype.filter(|b| *b != self.dtype),
            math: self.math,
            out_dtype: self.out_dtype.unwrap_or(default_out(multiplied)),
            order: self.order,
            batch: self.batch,
            m,
            n,
            k,
            a: matrix(0),
            b: matrix(1),
            c: matrix(2),
            zero_points: self.zero_points,
            scales: self.scales,
            bias: self.bias,
            activation: self.activation,
            gate: self.gate.map(|function| Gate { function, up_first: self.up_first }),
            residual: None,
            reductions: self.reductions,
            drop_c: self.drop_c,
            workspace: self.workspace - self.workspace % u64::from(multiplied.bytes()),
            dynamic: self.dynamic,
            grouped: self.grouped,
        };
        let lines = [gemm.lines(0), gemm.lines(1), gemm.lines(2)];
        for (index, x) in [&mut gemm.a, &mut gemm.b, &mut gemm.c].into_iter().enumerate() {
            let (line, count) = lines[index];
            x.ld = self.ld[index].unwrap_or(line);
            // A product that overflows saturates and is refused below as too large.
            let tight = x.ld.saturating_mul(count);
            let one = self.batch == 1 || self.grouped.is_some_and(|of| index != of.owned());
            x.batch_stride = self.batch_stride[index].unwrap_or(if one { 0 } else { tight });
            x.batch_stride = if self.batch == 1 { 0 } else { x.batch_stride };
        }
        gemm.residual = self.residual.map(|(ld, stride)| Residual {
            ld: ld.unwrap_or(gemm.c.ld),
            batch_stride: if self.batch == 1 && stride.is_none() { 0 } else { stride.unwrap_or(gemm.c.batch_stride) },
        });
        gemm.validate()?;
        Ok(gemm)
    }
}

/// The builder is refused, with all of these words.
#[cfg(test)]
pub(crate) fn refused(builder: GemmBuilder, parts: &[&str]) {
    let message = builder.build().expect_err("must be refused").to_string();
    for part in parts {
        assert!(message.contains(part), "`{message}` lacks `{part}`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_tight() {
        let g = Gemm::new(Scalar::F32, 5, 6, 7).order(Order::Col).trans(true, false).batch(3).build().unwrap();
        assert_eq!((g.a.ld, g.b.ld, g.c.ld), (7, 7, 5));
        assert_eq!((g.a.batch_stride, g.b.batch_stride, g.c.batch_stride), (35, 42, 30));
        let g = Gemm::new(Scalar::F32, 5, 6, 7).order(Order::Row).trans_c(true).build().unwrap();
        assert_eq!((g.a.ld, g.b.ld, g.c.ld), (7, 6, 5));
        assert_eq!(g.span(0), 35);
    }

    #[test]
    fn a_residual_has_the_layout_of_c_unless_specified() {
        let base = || Gemm::new(Scalar::F16, 8, 9, 10).order(Order::Col).batch(3).ldc(11).stride_c(200);
        let residual = |builder: GemmBuilder| builder.build().unwrap().residual.unwrap();
        assert_eq!(residual(base().residual()), Residual { ld: 11, batch_stride: 200 });
        assert_eq!(residual(base().ldr(8).residual()), Residual { ld: 8, batch_stride: 200 });
        assert_eq!(residual(base().stride_r(0)), Residual { ld: 11, batch_stride: 0 });
        let gemm = base().ldr(8).stride_r(0).bias_strided(Along::N, 9).build().unwrap();
        assert_eq!((gemm.residual_len(), gemm.bias_len()), (8 * 8 + 8, 27));
    }
}
