//! The strided-batched matrix product `C = alpha * op(A) * op(B) + beta * C`, as BLAS and MIOpenGEMM state it, with what
//! [`crate::epilogue`] adds: its description, and the builder of one.

mod memory;
mod quant;
mod validate;

use crate::complex::Complex;
use crate::epilogue::{Activation, Along, BiasVector, Residual};
use crate::error::{DEFAULT_WORKSPACE, ProblemError, default_out};
use crate::extent::Dynamic;
use crate::gate::{Gate, GateFunction};
use crate::math::Math;
use crate::names::names;
use crate::quant::{Scale, Scales, ZeroPoint, ZeroPoints};
use crate::ragged::Ragged;
use crate::real::Real;
use crate::reduction::{Axes, Operator, Reduction};
use crate::second_pair::SecondPair;
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;
use validate::check_left;

/// Which direction of a stored matrix is contiguous.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Order};
///
/// // A is 2 x 8. Its leading dimension is the length of a row, or of a column.
/// let lda = |order| Ok::<_, tilewright_problem::ProblemError>(Gemm::new(Scalar::F32, 2, 3, 8).order(order).build()?.a.ld);
/// assert_eq!((lda(Order::Row)?, lda(Order::Col)?), (8, 2));
/// assert_eq!(Order::named("col"), Some(Order::Col));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Column-major: elements of a column are adjacent (Fortran, BLAS, MIOpenGEMM `colMaj1`).
    Col,
    /// Row-major: elements of a row are adjacent (C, `colMaj0`); the default everywhere.
    #[default]
    Row,
}

names!(Order {
    Row = 101, ["row"], "rows are contiguous (C)";
    Col = 102, ["col"], "columns are contiguous (BLAS, Fortran)";
});

/// How one matrix of a [`Gemm`] is stored. Distances are in elements.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Matrix};
///
/// // One B for all batch entries, stored transposed (n x k), from element 16 of its buffer on.
/// let gemm = Gemm::new(Scalar::F32, 2, 3, 8).batch(4).trans(false, true).stride_b(0).offsets(0, 16, 0).build()?;
/// assert_eq!(gemm.b, Matrix { trans: true, ld: 8, batch_stride: 0, offset: 16 });
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Matrix {
    /// Stored transposed: A as k x m, B as n x k, C as n x m.
    pub trans: bool,
    /// Leading dimension: distance between adjacent columns (column-major) or rows (row-major) as stored.
    pub ld: u64,
    /// Distance between the matrices of adjacent batch entries; 0 with a batch: one matrix shared by all (A and B only).
    /// Always 0 without a batch.
    pub batch_stride: u64,
    /// Position of the first element within the buffer.
    pub offset: u64,
}

/// A strided-batched matrix product. Built and validated by [`Gemm::new`] ... [`GemmBuilder::build`].
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Problem};
///
/// let gemm = Gemm::new(Scalar::F16, 64, 32, 128).out_dtype(Scalar::F32).batch(4).build()?;
/// assert_eq!((gemm.a.batch_stride, gemm.span(2)), (64 * 128, 4 * 64 * 32));
/// // Its text has all of it.
/// assert_eq!(Problem::parse(&Problem::from(gemm.clone()).key())?, Problem::Gemm(gemm));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Gemm {
    /// Element type of A and B; of complex elements that of their parts.
    pub dtype: Scalar,
    /// Elements are complex numbers, with parts of these types. What counts elements counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complex: Option<Complex>,
    /// Element type of B if it differs from A's: the other 8-bit float of the same kind, or the other 8-bit integer. Or one operand has integer
    /// weights of 8 or 4 bits, and the other is f16, bf16 or f32, in which both are multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b_dtype: Option<Scalar>,
    /// With what precision f32 factors are multiplied.
    #[serde(default, skip_serializing_if = "Math::is_exact")]
    pub math: Math,
    /// Element type of C. With f64 operands: f64. With other floats: f32, f16, bf16 or an 8-bit float. With two operands of 8-bit integers: i32,
    /// f32, f16, bf16, i8 or u8.
    pub out_dtype: Scalar,
    /// Storage order of all three matrices.
    pub order: Order,
    /// Number of products.
    pub batch: u64,
    /// Rows of op(A) and C.
    pub m: u64,
    /// Columns of C, and of op(B) but for gated products.
    pub n: u64,
    /// Columns of op(A), rows of op(B).
    pub k: u64,
    /// Operand A, m x k.
    pub a: Matrix,
    /// Operand B, k x n; k x 2 n of a gated product.
    pub b: Matrix,
    /// Result, m x n.
    pub c: Matrix,
    /// Further terms of the sums: a second A and a second B.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<SecondPair>,
    /// Subtracted from the factors.
    #[serde(default, skip_serializing_if = "ZeroPoints::is_none")]
    pub zero_points: ZeroPoints,
    /// Multiplied by the scaled sums.
    #[serde(default, skip_serializing_if = "Scales::is_none")]
    pub scales: Scales,
    /// Added to the scaled sums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<BiasVector>,
    /// Applied to the scaled sums with bias and old result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// A gated product: B has the columns of two factors of n columns each, and C their product after a function of the gate's. Bias and scales
    /// along n, and alpha, are those of both factors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// The sums of both factors of the gate, scaled and with the bias, are stored too: [`Gemm::ungated`] says where.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preactivations: bool,
    /// Added last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<Residual>,
    /// Values of the result that are computed beside it, in the order of their buffers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reductions: Vec<Reduction>,
    /// C is not stored: there are only its reductions, and it is never read either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_c: bool,
    /// Workspace budget in bytes, a multiple of the size of an element of A.
    pub workspace: u64,
    /// Extents known only at launch (`g` is the batch). One kernel computes every size from 1 to the size given here, and plans are tuned
    /// for the size given here. Leading dimensions and batch strides do not change.
    #[serde(default, skip_serializing_if = "Dynamic::is_none")]
    pub dynamic: Dynamic,
    /// A grouped product: batch entries are groups of rows (m), of columns (n) or of terms (k).
    ///
    /// Groups of rows have their own B and share A and C. Groups of columns have their own A and share B and C. Groups of terms have their own
    /// C and share A and B, as in weight gradients.
    ///
    /// A vector of i32 in device memory ([`Quant::Ends`](crate::Quant::Ends)) holds the end of each group, ascending, at most `m` (`n`, `k`). A group with the same
    /// end as its predecessor is empty; its sums are 0. Rows and columns after the last end are not written, terms after it are not added.
    /// `m` (`n`, `k`) is the largest size, and plans are tuned for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grouped: Option<Ragged>,
}

crate::error::validated_serde!(Gemm);

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
    /// The product, but for what the fields below decide: type of C, distances, gate and residual.
    pub(crate) gemm: Gemm,
    pub(crate) out_dtype: Option<Scalar>,
    pub(crate) ld: [Option<u64>; 3],
    pub(crate) batch_stride: [Option<u64>; 3],
    pub(crate) gate: Option<GateFunction>,
    pub(crate) up_first: bool,
    pub(crate) interleaved: bool,
    pub(crate) separate_up: bool,
    pub(crate) gate_limit: Option<Real>,
    pub(crate) gate_slope: Option<Real>,
    /// Length of the second pair of factors, and its leading dimensions where they are given.
    pub(crate) k2: Option<u64>,
    pub(crate) ld2: [Option<u64>; 2],
    /// Leading dimension and batch stride, where they are given.
    pub(crate) residual: Option<(Option<u64>, Option<u64>)>,
}

impl Gemm {
    /// Starts the forward pass of a linear cross-entropy: the logits `X W'` of `rows x k` and `vocabulary x k`, both row-major, which are not stored.
    /// The values are each row's logsumexp and sum. A row's loss is its logsumexp less the logit of its label.
    ///
    /// ```
    /// use tilewright_ir::Scalar;
    /// use tilewright_problem::{Gemm, Problem};
    ///
    /// // The last layer of a network with 128,256 words, for 4,096 tokens.
    /// let loss = Gemm::linear_cross_entropy(Scalar::BF16, 4096, 128_256, 4096).build()?;
    /// let key = Problem::from(loss).key();
    /// assert!(key.contains("tB1") && key.ends_with("bf16_redlogsumexp:n_redsum:n_noc"), "{key}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn linear_cross_entropy(dtype: Scalar, rows: u64, vocabulary: u64, k: u64) -> GemmBuilder {
        let of_rows = Axes { n: true, ..Axes::default() };
        let values = [Operator::LogSumExp, Operator::Sum].map(|operator| Reduction::new(operator, of_rows));
        values.into_iter().fold(Gemm::new(dtype, rows, vocabulary, k).trans(false, true).drop_c(), GemmBuilder::reduce)
    }

    /// Starts a row-major, untransposed, tight `m x n x k` product of the given element type.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(dtype: Scalar, m: u64, n: u64, k: u64) -> GemmBuilder {
        let matrix = Matrix { trans: false, ld: 0, batch_stride: 0, offset: 0 };
        let gemm = Gemm {
            dtype,
            complex: None,
            b_dtype: None,
            math: Math::Exact,
            out_dtype: dtype,
            order: Order::default(),
            batch: 1,
            m,
            n,
            k,
            a: matrix,
            b: matrix,
            c: matrix,
            second: None,
            zero_points: ZeroPoints::default(),
            scales: Scales::default(),
            bias: None,
            activation: None,
            gate: None,
            preactivations: false,
            residual: None,
            reductions: Vec::new(),
            drop_c: false,
            workspace: DEFAULT_WORKSPACE,
            dynamic: Dynamic::NONE,
            grouped: None,
        };
        let (ld, batch_stride) = ([None; 3], [None; 3]);
        GemmBuilder {
            gemm,
            out_dtype: None,
            ld,
            batch_stride,
            gate: None,
            up_first: false,
            interleaved: false,
            separate_up: false,
            gate_limit: None,
            gate_slope: None,
            k2: None,
            ld2: [None; 2],
            residual: None,
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
    /// Element type of B if it differs from A's. Legal pairs are e4m3 and e5m2, e4m3fnuz and e5m2fnuz, i8 and u8. Integer weights of 8 or 4 bits
    /// also go with f16, bf16 or f32: the kernel converts each weight to that float.
    pub fn b_dtype(mut self, dtype: Scalar) -> Self {
        self.gemm.b_dtype = Some(dtype);
        self
    }
    /// Elements of all matrices are complex numbers, real and imaginary part side by side: complex64 of f32, complex128 of f64. Sizes, leading
    /// dimensions, strides and offsets count them.
    pub fn complex(mut self) -> Self {
        self.gemm.complex = Some(self.gemm.complex.unwrap_or_default());
        self
    }
    /// As [`GemmBuilder::complex`], with the conjugates of A's or of B's elements in their place. For an operand that is stored
    /// transposed this is its conjugate transpose.
    pub fn conj(mut self, conj_a: bool, conj_b: bool) -> Self {
        self.gemm.complex = Some(Complex { conj_a, conj_b, ..self.gemm.complex.unwrap_or_default() });
        self
    }
    /// As [`GemmBuilder::complex`], with a complex alpha or beta, whose imaginary part each launch gives beside the real one. Alpha is multiplied into
    /// the elements of a factor on their way, beta into C by a kernel of its own ahead of the product.
    pub fn imaginary(mut self, alpha_im: bool, beta_im: bool) -> Self {
        self.gemm.complex = Some(Complex { alpha_im, beta_im, ..self.gemm.complex.unwrap_or_default() });
        self
    }
    /// With what precision f32 factors are multiplied.
    pub fn math(mut self, math: Math) -> Self {
        self.gemm.math = math;
        self
    }
    /// Storage order of all matrices; row-major where none is named.
    pub fn order(mut self, order: Order) -> Self {
        self.gemm.order = order;
        self
    }
    /// Whether A and B are stored transposed.
    pub fn trans(mut self, a: bool, b: bool) -> Self {
        (self.gemm.a.trans, self.gemm.b.trans) = (a, b);
        self
    }
    /// Whether C is stored transposed (not in BLAS; MIOpenGEMM `tC1`).
    pub fn trans_c(mut self, c: bool) -> Self {
        self.gemm.c.trans = c;
        self
    }
    /// Number of products.
    pub fn batch(mut self, batch: u64) -> Self {
        self.gemm.batch = batch;
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
        (self.gemm.a.offset, self.gemm.b.offset, self.gemm.c.offset) = (a, b, c);
        self
    }
    /// Zero points of A (m) or B (n), of i32, are subtracted from it. There is one for all, or one for each row of A or column of
    /// B.
    pub fn zero_point(mut self, of: Along, how: ZeroPoint) -> Self {
        match of {
            Along::M => self.gemm.zero_points.a = Some(how),
            Along::N => self.gemm.zero_points.b = Some(how),
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
        self.gemm.scales.set(along, scale);
        self
    }
    /// A vector is added to the scaled sums: one value per row (m) or per column (n), of C's type, shared by a batch.
    pub fn bias(mut self, along: Along) -> Self {
        self.gemm.bias = Some(BiasVector { along, batch_stride: self.gemm.bias.map_or(0, |b| b.batch_stride) });
        self
    }
    /// As [`GemmBuilder::bias`], with so many elements from the vector of one batch entry to the next; 0: one for all.
    pub fn bias_strided(mut self, along: Along, batch_stride: u64) -> Self {
        self.gemm.bias = Some(BiasVector { along, batch_stride });
        self
    }
    /// A function is applied to the scaled sums with bias and old result.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.gemm.activation = Some(activation);
        self
    }
    /// As [`GemmBuilder::activation`], with `limit * tanh(x / limit)`, which keeps results below a limit.
    ///
    /// ```
    /// use tilewright_ir::Scalar;
    /// use tilewright_problem::{Activation, Gemm, Real};
    ///
    /// // Logits of Gemma 2.
    /// let gemm = Gemm::new(Scalar::F32, 2, 2, 2).softcap(Real::parse("30")?).build()?;
    /// assert!(gemm.activation.is_some_and(|f| f.apply(1e6) == 30.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn softcap(self, limit: Real) -> Self {
        self.activation(Activation::Softcap(limit))
    }
    /// A gated product, as in a gated MLP. B has `2 n` columns, and the first half belongs to the gate. C is the function of the
    /// gate's sums times the sums of the other half. Bias and scales along n have `2 n` values.
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
    /// As [`GemmBuilder::gate`]; the gate's columns are B's second half, or the second of each pair.
    pub fn up_first(mut self, up_first: bool) -> Self {
        self.up_first = up_first;
        self
    }
    /// As [`GemmBuilder::gate`]; columns of the gate and of the other factor take turns, as in gpt-oss' `gate_up_proj`.
    pub fn interleaved(mut self, interleaved: bool) -> Self {
        self.interleaved = interleaved;
        self
    }
    /// As [`GemmBuilder::gate`]; the weights are two tensors, as `gate_proj` and `up_proj` of a Llama. B has the gate's `n` columns. The other
    /// factor's are in a tensor of the same layout ([`Role::Up`](crate::Role::Up)), which starts at its buffer's first element.
    pub fn separate_up(mut self, separate_up: bool) -> Self {
        self.separate_up = separate_up;
        self
    }
    /// Stores the arguments of the gate beside C, as a backward pass needs them. They are a matrix of `2 n` columns in B's order,
    /// of C's type and in C's storage order, without gaps.
    pub fn preactivations(mut self) -> Self {
        self.gemm.preactivations = true;
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
        self.gemm.reductions.push(reduction);
        self
    }
    /// C is not stored: there are only its reductions.
    pub fn drop_c(mut self) -> Self {
        self.gemm.drop_c = true;
        self
    }
    /// Workspace budget in bytes, rounded down to whole elements.
    pub fn workspace(mut self, bytes: u64) -> Self {
        self.gemm.workspace = bytes;
        self
    }
    /// Which extents are known only at launch; the sizes given are then the largest, and leading dimensions and batch strides those
    /// of the largest.
    pub fn dynamic(mut self, dynamic: Dynamic) -> Self {
        self.gemm.dynamic = dynamic;
        self
    }
    /// A grouped product (mixture of experts) with `groups` groups:
    ///
    /// - [`Ragged::M`]: groups of rows of A and C, each multiplied by its own matrix B;
    /// - [`Ragged::N`]: groups of columns of B and C, each with its own A;
    /// - [`Ragged::K`]: groups of terms, each with its own C.
    ///
    /// The kernel reads the end of each group from device memory: [`Gemm::grouped`] says how. `m` (`n`, `k`) counts the rows (columns, terms)
    /// of all groups.
    pub fn grouped(mut self, of: impl Into<Ragged>, groups: u64) -> Self {
        (self.gemm.grouped, self.gemm.batch) = (Some(of.into()), groups);
        self
    }
    /// Fills in defaults and validates.
    ///
    /// # Errors
    /// [`ProblemError::Value`] with the field, its value and what it may be.
    pub fn build(self) -> Result<Gemm, ProblemError> {
        check_left(self.gemm.dtype, self.gemm.scalar(1))?;
        let gate = self.checked_gate()?;
        let second = self.checked_second(&self.gemm)?;
        let mut gemm = self.gemm;
        gemm.second = second;
        gemm.b_dtype = gemm.b_dtype.filter(|b| *b != gemm.dtype);
        gemm.out_dtype = self.out_dtype.unwrap_or(default_out(gemm.multiplied()));
        gemm.gate = gate;
        gemm.workspace -= gemm.workspace % u64::from(gemm.multiplied().bytes());
        let (batch, owned) = (gemm.batch, gemm.grouped.map(Ragged::owned));
        let lines = [gemm.lines(0), gemm.lines(1), gemm.lines(2)];
        for (index, x) in [&mut gemm.a, &mut gemm.b, &mut gemm.c].into_iter().enumerate() {
            let (line, count) = lines[index];
            x.ld = self.ld[index].unwrap_or(line);
            // A product that overflows saturates and is refused below as too large.
            let tight = x.ld.saturating_mul(count);
            let one = owned.is_some_and(|owned| index != owned);
            let stride = self.batch_stride[index].unwrap_or(if one { 0 } else { tight });
            x.batch_stride = if batch == 1 { 0 } else { stride };
        }
        gemm.residual = self.residual.map(|(ld, stride)| Residual {
            ld: ld.unwrap_or(gemm.c.ld),
            // That of C is 0 where there is no batch.
            batch_stride: stride.unwrap_or(gemm.c.batch_stride),
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
