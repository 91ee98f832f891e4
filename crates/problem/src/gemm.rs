//! The strided-batched matrix product `C = alpha * op(A) * op(B) + beta * C`, as BLAS and MIOpenGEMM state it, with what
//! [`crate::epilogue`] adds.

use crate::complex::Complex;
use crate::epilogue::{Activation, Along, BiasVector, Residual};
use crate::error::{
    DEFAULT_WORKSPACE, MOST_BYTES, ProblemError, TOO_FAR, check_dtype, check_extents, check_out_dtype, check_positive,
    computed_in, default_out,
};
use crate::extent::{Dynamic, Extent, Extents};
use crate::gate::{Gate, GateFunction};
use crate::math::Math;
use crate::names::names;
use crate::quant::{Quant, Scale, Scales, ZeroPoint, ZeroPoints, multiplied};
use crate::ragged::Ragged;
use crate::reduction::{Reduction, ResultShape, check_all, check_integers};
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// Which direction of a stored matrix is contiguous.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Gemm {
    /// Element type of A and B; of complex elements that of their parts.
    pub dtype: Scalar,
    /// Elements are complex numbers, with parts of these types. What counts elements counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complex: Option<Complex>,
    /// Element type of B where it is another: the other of two 8-bit floats of a kind, or of the two 8-bit integers. Or one of the two has small
    /// weights, 8-bit integers, and the other f16, bf16 or f32, in which they are multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b_dtype: Option<Scalar>,
    /// With what precision f32 factors are multiplied.
    #[serde(default, skip_serializing_if = "Math::is_exact")]
    pub math: Math,
    /// Element type of C: f64 beside f64; f32, f16, bf16 or an 8-bit float beside each of these and beside 8-bit floats; beside 8-bit integers f32, f16, bf16, i32, i8 or u8
    /// as well.
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
    /// A vector of i32 in device memory ([`Quant::Ends`]) holds the end of each group, ascending, at most `m` (`n`, `k`). A group with the same
    /// end as its predecessor is empty; its sums are 0. Rows and columns after the last end are not written, terms after it are not added.
    /// `m` (`n`, `k`) is the largest size, and plans are tuned for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grouped: Option<Ragged>,
}

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

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Leading dimensions between the first line and the furthest that a kernel computes with: one even of a single line.
fn steps(lines: u64) -> u64 {
    (lines - 1).max(1)
}

/// Refuses types of operand A that are none, unless that has small weights, which are converted to operand B's type.
fn check_left(a: Scalar, b: Scalar) -> Result<(), ProblemError> {
    if multiplied(a, b).is_some_and(|multiplied| multiplied != a) { Ok(()) } else { check_dtype("dtype", a) }
}

crate::error::validated_serde!(Gemm);

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
    /// The largest extents: all there are where nothing is dynamic.
    pub const fn extents(&self) -> Extents {
        Extents { g: self.batch, m: self.m, n: self.n }
    }
    /// The product that a launch with these extents computes: the same matrices in the same memory, fewer rows, columns or batch
    /// entries of them. Nothing of it is dynamic any more.
    ///
    /// # Errors
    /// [`ProblemError::Value`] for an extent that is 0, beyond the largest, or other than it where it is not dynamic.
    pub fn at(&self, at: Extents) -> Result<Gemm, ProblemError> {
        check_extents(self.extents(), self.dynamic, at)?;
        let mut gemm = Gemm { batch: at.g, m: at.m, n: at.n, dynamic: Dynamic::NONE, ..self.clone() };
        if at.g == 1 {
            for x in [&mut gemm.a, &mut gemm.b, &mut gemm.c] {
                x.batch_stride = 0;
            }
            if let Some(bias) = &mut gemm.bias {
                bias.batch_stride = 0;
            }
            if let Some(residual) = &mut gemm.residual {
                residual.batch_stride = 0;
            }
            // A batch of one entry is none, over which nothing can be reduced: the values are the same.
            gemm.reductions.iter_mut().for_each(|r| r.over.g = false);
        }
        Ok(gemm)
    }
    /// The matrices in order A, B, C.
    pub fn matrices(&self) -> [&Matrix; 3] {
        [&self.a, &self.b, &self.c]
    }
    /// (contiguous length of a line, number of lines) of matrix 0 = A, 1 = B, 2 = C as stored.
    pub fn lines(&self, matrix: usize) -> (u64, u64) {
        let (rows, cols) = [(self.m, self.k), (self.k, self.product_columns()), (self.m, self.n)][matrix.min(2)];
        let trans = self.matrices()[matrix.min(2)].trans;
        if trans == (self.order == Order::Col) { (cols, rows) } else { (rows, cols) }
    }
    /// Elements from a matrix's first to just past its last, whole batch; the offset is not counted.
    pub fn span(&self, matrix: usize) -> u64 {
        let (line, lines) = self.lines(matrix);
        let x = self.matrices()[matrix.min(2)];
        (self.batch - 1) * x.batch_stride + (lines - 1) * x.ld + line
    }
    /// No memory lies between the first and the last element of a matrix but its elements.
    pub fn is_packed(&self, matrix: usize) -> bool {
        let (line, lines) = self.lines(matrix);
        let shared = self.grouped.is_some_and(|of| matrix != of.owned());
        self.span(matrix) == (if shared { 1 } else { self.batch }) * lines * line
    }
    /// Elements of a vector of quantisation parameters; 0 without one.
    pub const fn quant_len(&self, quant: Quant) -> u64 {
        let (zero, each) = match quant {
            Quant::Ends => return if self.grouped.is_some() { self.batch } else { 0 },
            Quant::ScaleM => return self.scales_len(Along::M),
            Quant::ScaleN => return self.scales_len(Along::N),
            Quant::ZeroA => (self.zero_points.a, self.m),
            Quant::ZeroB => (self.zero_points.b, self.n),
        };
        match zero {
            None => 0,
            Some(ZeroPoint::Tensor) => 1,
            Some(ZeroPoint::Each) => each,
        }
    }
    /// Scales along a direction.
    const fn scales_len(&self, along: Along) -> u64 {
        let lines = if matches!(along, Along::M) { self.m } else { self.product_columns() };
        match self.scales.of(along) {
            None => 0,
            Some(scale) => {
                let [lines, terms] = scale.blocks(lines, self.k);
                lines * terms
            }
        }
    }
    /// Sums over k that zero points are multiplied by, in i32: of B where A has zero points, and the other way round.
    pub const fn totals_len(&self, of: Along) -> u64 {
        let (other, lines) = match of {
            Along::M => (Along::N, self.m),
            Along::N => (Along::M, self.n),
        };
        if self.zero_points.of(other).is_some() { self.batch * lines } else { 0 }
    }
    /// Elements of the bias vector's buffer, whole batch; 0 without one.
    pub fn bias_len(&self) -> u64 {
        let length = |bias: &BiasVector| if bias.along == Along::M { self.m } else { self.product_columns() };
        self.bias.as_ref().map_or(0, |bias| (self.batch - 1) * bias.batch_stride + length(bias))
    }
    /// Elements of the residual's buffer, whole batch; 0 without one.
    pub fn residual_len(&self) -> u64 {
        let (line, lines) = self.lines(2);
        self.residual.as_ref().map_or(0, |r| (self.batch - 1) * r.batch_stride + (lines - 1) * r.ld + line)
    }
    /// Element type of matrix 0 = A, 1 = B, 2 = C.
    pub fn scalar(&self, matrix: usize) -> Scalar {
        match matrix {
            0 => self.dtype,
            1 => self.b_dtype.unwrap_or(self.dtype),
            _ => self.out_dtype,
        }
    }
    /// The type in which factors are multiplied: A's, or B's where A has the small weights.
    pub fn multiplied(&self) -> Scalar {
        multiplied(self.dtype, self.scalar(1)).unwrap_or(self.dtype)
    }
    /// One factor has small weights: integers of 8 or 4 bits, which become the other's float on their way.
    pub fn has_weights(&self) -> bool {
        [0, 1].into_iter().any(|matrix| self.scalar(matrix).is_weight()) && !self.multiplied().is_weight()
    }
    /// Checks every field.
    ///
    /// # Errors
    /// [`ProblemError::Value`] with the field, its value and what it may be.
    pub fn validate(&self) -> Result<(), ProblemError> {
        check_left(self.dtype, self.scalar(1))?;
        if let Some(b) = self.b_dtype.filter(|b| *b == self.dtype || multiplied(self.dtype, *b).is_none()) {
            let reason = format!(
                "of two types only e4m3 and e5m2, e4m3fnuz and e5m2fnuz, i8 and u8, and i8, u8, i4 and u4 with f16, bf16 or f32 are multiplied, and A is {}; leave it out",
                self.dtype
            );
            return Err(ProblemError::value("b_dtype", b, reason));
        }
        self.math.check(self.multiplied())?;
        self.validate_weights()?;
        check_out_dtype(self.multiplied(), self.out_dtype)?;
        for (name, value) in [("batch", self.batch), ("m", self.m), ("n", self.n), ("k", self.k)] {
            check_positive(name, value)?;
        }
        for extent in [Extent::G, Extent::M, Extent::N] {
            let (name, most) = (extent.name(), self.extents().of(extent));
            if self.dynamic.has(extent) && most > i32::MAX as u64 {
                return Err(ProblemError::value(name, most, format!("a run-time {name} counts to 2^31 - 1")));
            }
        }
        if self.dynamic.g && self.batch == 1 {
            return Err(ProblemError::value("batch", 1, "a run-time batch needs its largest value, 2 or more"));
        }
        for (index, x) in self.matrices().into_iter().enumerate() {
            self.validate_matrix(index, x)?;
        }
        self.validate_complex_types()?;
        self.validate_fields()?;
        self.validate_gate()?;
        self.validate_groups()?;
        self.validate_zero_points()?;
        self.validate_epilogue()?;
        self.validate_reductions()?;
        let bytes = u64::from(self.multiplied().bytes());
        if !self.workspace.is_multiple_of(bytes) || self.workspace > i64::MAX as u64 {
            let reason = format!("must be a multiple of {bytes} bytes (one element) and less than 2^63");
            return Err(ProblemError::value("workspace", self.workspace, reason));
        }
        Ok(())
    }

    /// What a product of small weights has not.
    fn validate_weights(&self) -> Result<(), ProblemError> {
        if !self.has_weights() {
            return Ok(());
        }
        let float = self.multiplied();
        if self.math != Math::Exact {
            let reason = format!("small weights beside {float} are multiplied in {float} itself; leave it out");
            return Err(ProblemError::value("math", self.math.name(), reason));
        }
        match self.reductions.iter().find(|r| r.operand.is_some()) {
            Some(r) => Err(ProblemError::value(
                "reduce",
                r,
                "an operand of 4- or 8-bit weights has no reductions in the pass of the product; reduce the tensor in a call of its own",
            )),
            None => Ok(()),
        }
    }

    /// Two integers of 4 bits share a byte: no byte belongs to two lines, or to none in part.
    fn validate_pairs(&self, index: usize, x: &Matrix) -> Result<(), ProblemError> {
        let scalar = self.scalar(index);
        if !scalar.is_int4() {
            return Ok(());
        }
        let (name, line) = (NAMES[index], self.lines(index).0);
        let along_k = (x.trans == (self.order == Order::Col)) == (index == 0);
        let dim = if along_k { "k" } else { ["m", "n"][index.min(1)] };
        let distances = [
            (dim.to_string(), line),
            (format!("ld{name}"), x.ld),
            (format!("s{name}"), x.batch_stride),
            (format!("offset of {}", name.to_uppercase()), x.offset),
        ];
        if let Some((what, value)) = distances.into_iter().find(|(_, value)| !value.is_multiple_of(2)) {
            let reason = format!("two numbers of {scalar} share a byte along {dim}: it must be even; pad with zeros");
            return Err(ProblemError::value(what, value, reason));
        }
        let extent = if index == 0 { Extent::M } else { Extent::N };
        let own = if index == 0 { Along::M } else { Along::N };
        if !along_k && (self.dynamic.has(extent) || self.grouped == Some(own.into())) {
            return Err(ProblemError::Unsupported {
                what: format!("{scalar} weights packed along {dim}, whose size is known only at launch and may be odd"),
                remedy: format!(
                    "pack them along k (transpose {}), or give {dim} when the operation is made",
                    name.to_uppercase()
                ),
            });
        }
        Ok(())
    }

    fn validate_zero_points(&self) -> Result<(), ProblemError> {
        let Some(name) = self.zero_points.names().next() else { return Ok(()) };
        if !self.multiplied().is_int8() {
            let float = if self.dtype.is_weight() { "B" } else { "A" };
            let reason = format!("8-bit integers have zero points, and {float} is {}; leave it out", self.multiplied());
            return Err(ProblemError::value("zero_points", name, reason));
        }
        if !self.dynamic.is_none() {
            return Err(ProblemError::Unsupported {
                what: "zero points of a product with extents known only at launch".into(),
                remedy: "make an operation for each size".into(),
            });
        }
        // As many bytes as sums of them surely hold in 31 bits.
        if self.k > 1 << 23 {
            return Err(ProblemError::value("k", self.k, "sums over k of a factor with zero points fit i32 up to 2^23; split k"));
        }
        let needed = Along::ALL.into_iter().map(|of| 4 * self.totals_len(of) + 512).sum::<u64>();
        if self.workspace < needed {
            let reason = format!("the sums over k that zero points are multiplied by take {needed} bytes; give at least as many");
            return Err(ProblemError::value("workspace", self.workspace, reason));
        }
        Ok(())
    }

    fn validate_scales(&self) -> Result<(), ProblemError> {
        let Some(name) = self.scales.names().next() else { return Ok(()) };
        let refused = |reason: &str| Err(ProblemError::value("scales", &name, reason));
        match computed_in(self.multiplied(), self.out_dtype)[1] {
            Scalar::I32 => return refused("i32 results are sums as they are; give a result in f32, f16, bf16, i8 or u8"),
            Scalar::F64 => return refused("scales are f32, and these results f64; scale rows of A or columns of B"),
            _ => {}
        }
        if !self.scales.of_blocks() {
            return Ok(());
        }
        if self.math != Math::Promoted && !self.has_weights() {
            return Err(ProblemError::value(
                "scales",
                self.scales.names().collect::<Vec<_>>().join(" "),
                "scales of blocks of k are multiplied where sums of 8-bit floats are promoted to f32, and beside small weights; give A's type as e4m3promoted, e5m2promoted, e4m3fnuzpromoted or e5m2fnuzpromoted, or B's as i8, u8, i4 or u4",
            ));
        }
        if !self.dynamic.is_none() {
            return Err(ProblemError::Unsupported {
                what: "scales of blocks of k of a product with extents known only at launch".into(),
                remedy: "make an operation for each size".into(),
            });
        }
        Ok(())
    }

    fn validate_epilogue(&self) -> Result<(), ProblemError> {
        self.validate_scales()?;
        let strides = [
            ("sbias", self.bias.map_or(0, |b| b.batch_stride), "bias vector"),
            ("sr", self.residual.map_or(0, |r| r.batch_stride), "residual"),
        ];
        if let Some((name, stride, _)) = strides.into_iter().find(|(_, stride, _)| self.batch == 1 && *stride != 0) {
            return Err(ProblemError::value(name, stride, "must be 0 where there is no batch"));
        }
        let (line, lines) = self.lines(2);
        let ld = self.residual.map_or(line, |r| r.ld);
        if ld < line {
            let reason = format!("the residual lies as C does, whose lines have {line} elements: it needs at least {line}");
            return Err(ProblemError::value("ldr", ld, reason));
        }
        for ((_, stride, what), one) in
            strides.into_iter().zip([Some(self.m.max(self.product_columns())), steps(lines).checked_mul(ld)])
        {
            let end =
                one.zip((self.batch - 1).checked_mul(stride)).and_then(|(one, all)| one.checked_add(all)?.checked_add(line));
            if end.and_then(|e| e.checked_mul(self.parts() * u64::from(self.out_dtype.bytes()))).is_none_or(|b| b > MOST_BYTES) {
                let reason = format!("{TOO_FAR}; make a size, leading dimension or stride smaller");
                return Err(ProblemError::value(what, format!("{} x {lines} x {line} elements", self.batch), reason));
            }
        }
        Ok(())
    }

    fn validate_reductions(&self) -> Result<(), ProblemError> {
        let shape = ResultShape { extents: self.extents(), groups: 1 };
        check_integers(self.multiplied(), self.out_dtype, self.activation, &self.reductions)?;
        check_all(&self.reductions, self.drop_c, computed_in(self.multiplied(), self.out_dtype)[1], shape)?;
        self.reductions.iter().try_for_each(|r| r.check_dynamic(self.dynamic))?;
        for operand in self.reductions.iter().filter_map(|r| self.reduced_operand(r)) {
            operand?;
        }
        match self.reductions.iter().find(|r| r.over.g && self.batch == 1) {
            Some(r) => Err(ProblemError::value("reduce", r, "there is no batch to reduce over; leave b out")),
            None => Ok(()),
        }
    }

    fn validate_matrix(&self, index: usize, x: &Matrix) -> Result<(), ProblemError> {
        let name = NAMES[index];
        let (line, lines) = self.lines(index);
        if x.ld < line {
            let order = if self.order == Order::Col { "column-major" } else { "row-major" };
            let trans = if x.trans { "transposed" } else { "not transposed" };
            let reason = format!("the {order} matrix {} ({trans}) needs at least {line}", name.to_uppercase());
            return Err(ProblemError::value(format!("ld{name}"), x.ld, reason));
        }
        if self.batch == 1 && x.batch_stride != 0 {
            return Err(ProblemError::value(format!("s{name}"), x.batch_stride, "must be 0 where there is no batch"));
        }
        let span = steps(lines).checked_mul(x.ld).and_then(|s| s.checked_add(line));
        let batches = (self.batch - 1).checked_mul(x.batch_stride);
        let end = span.zip(batches).and_then(|(s, b)| s.checked_add(b)).and_then(|s| s.checked_add(x.offset));
        let bytes = end.and_then(|e| e.checked_mul(self.parts() * u64::from(self.scalar(index).bytes())));
        self.validate_pairs(index, x)?;
        if bytes.is_none_or(|b| b > MOST_BYTES) {
            let value = format!("{} x {lines} x {line} elements, ld {}, batch stride {}", self.batch, x.ld, x.batch_stride);
            let reason = format!("{TOO_FAR}; make a size, stride or offset smaller");
            return Err(ProblemError::value(format!("matrix {}", name.to_uppercase()), value, reason));
        }
        if index == 2 && self.entries() > 1 {
            // Results of two batch entries must not share an element: distances in rising order must each clear all
            // that smaller distances span (this admits interleaved batches, too).
            let mut axes = [(1, line), (x.ld, lines), (x.batch_stride, self.batch)];
            axes.sort_unstable();
            let mut reach = 0u64;
            for (stride, extent) in axes {
                if extent > 1 && stride <= reach {
                    let enough = (lines - 1) * x.ld + line;
                    let reason = format!("batch entries of C overlap; use at least {enough}");
                    return Err(ProblemError::value("sc", x.batch_stride, reason));
                }
                reach = reach.saturating_add((extent - 1).saturating_mul(stride));
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: GemmBuilder, parts: &[&str]) {
        let message = builder.build().expect_err("must be refused").to_string();
        for part in parts {
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }

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
    fn impossible_values_are_refused_by_name() {
        let base = || Gemm::new(Scalar::F32, 8, 9, 10).order(Order::Col);
        refused(Gemm::new(Scalar::F32, 0, 9, 10).order(Order::Col), &["m = 0", "at least 1"]);
        refused(Gemm::new(Scalar::F32, 8, 9, 0).order(Order::Col), &["k = 0", "at least 1"]);
        refused(base().batch(0), &["batch = 0"]);
        refused(base().lda(7), &["lda = 7", "at least 8"]);
        refused(base().order(Order::Row).ldb(8), &["ldb = 8", "at least 9"]);
        refused(base().trans(false, true).ldb(8), &["ldb = 8", "transposed", "at least 9"]);
        refused(base().batch(2).stride_c(71), &["sc = 71", "overlap", "at least 72"]);
        refused(base().batch(2).stride_c(0), &["sc = 0", "overlap"]);
        refused(Gemm::new(Scalar::I32, 8, 9, 10).order(Order::Col), &["dtype = i32", "f32"]);
        refused(base().out_dtype(Scalar::F64), &["out_dtype = f64", "f32, f16 or bf16"]);
        refused(Gemm::new(Scalar::F64, 8, 9, 10).order(Order::Col).out_dtype(Scalar::F32), &["out_dtype = f32", "f64"]);
        refused(base().b_dtype(Scalar::E5M2), &["b_dtype = e5m2", "A is f32"]);
        refused(Gemm::new(Scalar::E4M3, 8, 9, 10).b_dtype(Scalar::F16), &["b_dtype = f16", "e4m3 and e5m2"]);
        refused(Gemm::new(Scalar::F64, 8, 9, 10).out_dtype(Scalar::E4M3), &["out_dtype = e4m3", "f64"]);
        refused(Gemm::new(Scalar::I8, 8, 9, 10).out_dtype(Scalar::E5M2), &["out_dtype = e5m2", "summed in i32"]);
        assert!(base().out_dtype(Scalar::E4M3Fnuz).build().is_ok());
        refused(Gemm::new(Scalar::I8, 8, 9, 10).out_dtype(Scalar::F64), &["out_dtype = f64", "summed in i32"]);
        refused(Gemm::new(Scalar::F32, 8, 9, 10).out_dtype(Scalar::I32), &["out_dtype = i32", "f32, f16 or bf16"]);
        refused(Gemm::new(Scalar::BF16, 8, 9, 10).out_dtype(Scalar::I8), &["out_dtype = i8", "f32, f16 or bf16"]);
        refused(Gemm::new(Scalar::U8, 8, 9, 10).b_dtype(Scalar::E4M3), &["b_dtype = e4m3", "i8 and u8"]);
        refused(Gemm::new(Scalar::I8, 8, 9, 10).activation(Activation::Relu), &["activation = relu", "a result in f32"]);
        refused(Gemm::new(Scalar::U8, 8, 9, 10).reduce("max:n".parse().unwrap()), &["max:n", "second call"]);
        refused(
            Gemm::new(Scalar::E4M3, 8, 9, 10).out_dtype(Scalar::F64),
            &["out_dtype = f64", "e4m3 operands are summed in f32"],
        );
        let weights = |float, b| Gemm::new(float, 8, 9, 10).b_dtype(b);
        refused(weights(Scalar::F64, Scalar::I8), &["b_dtype = i8", "f16, bf16 or f32", "A is f64"]);
        refused(weights(Scalar::E4M3, Scalar::U8), &["b_dtype = u8", "A is e4m3"]);
        refused(weights(Scalar::F16, Scalar::BF16), &["b_dtype = bf16", "A is f16"]);
        // Two of 4 bits share a byte, along n of a row-major B and along k of a transposed one.
        let pairs = |n, k| Gemm::new(Scalar::BF16, 8, n, k).b_dtype(Scalar::I4);
        refused(pairs(9, 10), &["n = 9", "two numbers of i4 share a byte along n", "must be even", "pad with zeros"]);
        refused(pairs(10, 9).trans(false, true), &["k = 9", "along k"]);
        refused(pairs(10, 10).trans(false, true).ldb(11), &["ldb = 11", "must be even"]);
        refused(pairs(10, 10).batch(2).stride_b(101), &["sb = 101", "must be even"]);
        refused(pairs(10, 10).offsets(1, 3, 1), &["offset of B = 3", "must be even"]);
        refused(pairs(10, 10).dynamic(Dynamic { n: true, ..Dynamic::NONE }), &["i4 weights packed along n", "transpose B"]);
        assert!(pairs(9, 10).trans(false, true).dynamic(Dynamic { n: true, ..Dynamic::NONE }).build().is_ok());
        refused(Gemm::new(Scalar::I4, 8, 10, 10), &["dtype = i4", "beside", "b_dtype"]);
        refused(Gemm::new(Scalar::I4, 8, 10, 10).b_dtype(Scalar::U4), &["dtype = i4", "beside f16"]);
        refused(Gemm::new(Scalar::I8, 8, 10, 10).b_dtype(Scalar::I4), &["b_dtype = i4", "A is i8"]);
        refused(weights(Scalar::F32, Scalar::I8).math(Math::Tf32), &["math = tf32", "multiplied in f32 itself", "leave it out"]);
        refused(weights(Scalar::BF16, Scalar::I8).out_dtype(Scalar::I32), &["out_dtype = i32", "bf16 operands"]);
        refused(weights(Scalar::I8, Scalar::F16).zero_point(Along::M, ZeroPoint::Each), &["zero_points = m", "B is f16"]);
        refused(
            weights(Scalar::F16, Scalar::U8).reduce("sum:k:b".parse().unwrap()),
            &["sum:k:b", "reduce the tensor in a call of its own"],
        );
        assert_eq!(weights(Scalar::I8, Scalar::F16).build().unwrap().out_dtype, Scalar::F16);
        refused(base().ldr(7), &["ldr = 7", "at least 8"]);
        refused(base().stride_r(72), &["sr = 72", "no batch"]);
        refused(Gemm::new(Scalar::F16, 8, 9, 10).zero_point(Along::M, ZeroPoint::Each), &["zero_points = m", "A is f16"]);
        let centred = || Gemm::new(Scalar::I8, 8, 9, 10).zero_point(Along::N, ZeroPoint::Tensor);
        refused(centred().workspace(1000), &["workspace = 1000", "1056 bytes"]);
        for (reduction, part) in [
            ("sum:k:a", "reduce the operand's tensor"),
            ("absmax:m4", "blocks of a result"),
            ("argmax:bm", "an index over several axes"),
        ] {
            let reduced = Gemm::new(Scalar::F32, 8, 8, 8).batch(2).reduce(reduction.parse().unwrap());
            refused(reduced.dynamic(Dynamic { m: true, ..Dynamic::NONE }), &[reduction, "known only at launch", part]);
        }
        refused(centred().dynamic(Dynamic { m: true, ..Dynamic::NONE }), &["zero points", "an operation for each size"]);
        refused(Gemm::new(Scalar::I8, 8, 9, 10).scale(Along::N), &["scales = n", "i32 results", "give a result in f32"]);
        refused(Gemm::new(Scalar::F64, 8, 9, 10).scale(Along::M), &["scales = m", "scales are f32"]);
        refused(base().bias_strided(Along::M, 8), &["sbias = 8", "no batch"]);
        refused(base().batch(1 << 20).bias_strided(Along::M, 1 << 60), &["bias vector", "64-bit"]);
        refused(base().ldr(1 << 62), &["residual", "64-bit"]);
        refused(Gemm::new(Scalar::F64, u64::MAX, 9, 10).order(Order::Col), &["matrix A", "64-bit"]);
        refused(Gemm::new(Scalar::F64, 1 << 40, 1 << 40, 10).order(Order::Col), &["matrix C", "64-bit"]);
        refused(base().offsets(0, 1 << 62, 0), &["matrix B", "64-bit"]);
        refused(base().batch(1 << 60), &["matrix A", "64-bit"]);
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

    #[test]
    fn interleaved_batches_do_not_overlap() {
        let g = Gemm::new(Scalar::F32, 8, 9, 10).order(Order::Col).batch(4).ldc(32).stride_c(8).build().unwrap();
        assert_eq!(g.span(2), 3 * 8 + 8 * 32 + 8);
        assert!(Gemm::new(Scalar::F32, 8, 9, 10).order(Order::Col).batch(5).ldc(32).stride_c(8).build().is_err());
    }
}
