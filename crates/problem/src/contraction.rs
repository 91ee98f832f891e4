//! The contraction `C[g,m,n] = epilogue(sum_k A[g,m,k] * B[g,k,n])`: what every problem becomes.

mod epilogue;
mod tensor;

pub use epilogue::{Centre, Centred, EpilogueOp, OperandValues, Pairs, PartOf, Reduce, StoredFactor};
pub use tensor::{Operand, Signs, Tensor, Vector};

use crate::epilogue::Along;
use crate::extent::{Dynamic, Extent, Extents};
use crate::factor_parts::FactorParts;
use crate::math::Math;
use crate::ragged::Ragged;
use crate::reduction::{Operator, ResultShape};
use crate::role::Role;
use crate::view::{ROW, View};
use serde::{Deserialize, Serialize};
use tilewright_ir::affine::Affine;
use tilewright_ir::mma::Family;
use tilewright_ir::{MathUnit, MatrixType, Mma, Scalar};

/// Where a result is among neighbours in memory whose sums have no terms: they leave with it, so that memory is written without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gaps {
    /// Neighbours, the result among them.
    pub of: u32,
    /// Those before it.
    pub before: u32,
}

/// Where the results of a contraction come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultSource {
    /// Sums of products of A's and B's elements: all columns share A, all rows share B.
    Product,
    /// The same where each column (n) has its own operand A, addressed by (g * n + column, m, k). Or each row (m) has its own
    /// operand B.
    OwnOperands(Along),
    /// A tensor's elements: there is no product.
    Elements(Elements),
}

/// Elements that are read in place of a product's results. The contraction's `a` has their type and memory; its view, `b` and `k` say nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Elements {
    /// The operand of the problem that they are of.
    pub of: Operand,
    /// Where the element at (g, row, column) lives.
    pub view: View,
}

/// Who decides the extents of a launch.
#[derive(Clone, Debug, PartialEq)]
pub enum LaunchExtents {
    /// Nobody: every launch has the contraction's.
    Fixed,
    /// Each launch decides these.
    AtLaunch(Dynamic),
    /// Memory of the device: batch entries are groups of rows, of columns or of terms.
    Grouped(GroupEnds),
}

/// Groups of rows, columns or terms of one product: see [`crate::Gemm::grouped`]. Coordinates count rows (columns, terms) through all groups.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupEnds {
    /// What the groups cut.
    pub of: Ragged,
    /// Group g runs from the end of the one before to the element at (g, 0, 0) of this vector of i32.
    pub ends: Vector,
}

/// The operands of the last terms of a product of two pairs of factors. Their views have all of the contraction's terms, and elements at those from
/// `first` on. Views of A and B have elements at terms before it.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondOperands {
    /// Their first term, a multiple of [`SECOND_STEP`].
    pub first: u64,
    /// Operand A.
    pub a: Tensor,
    /// Operand B.
    pub b: Tensor,
}

/// Terms of a second pair of factors begin at a multiple of this, so that a k-tile reads one pair.
pub const SECOND_STEP: u64 = 128;

impl LaunchExtents {
    /// The extents that each launch decides, if there are any.
    pub fn of_dynamic(dynamic: Dynamic) -> LaunchExtents {
        if dynamic.is_none() { LaunchExtents::Fixed } else { LaunchExtents::AtLaunch(dynamic) }
    }
    /// The groups.
    const fn groups(&self) -> Option<&GroupEnds> {
        if let LaunchExtents::Grouped(groups) = self { Some(groups) } else { None }
    }
}

/// A batched matrix product over views.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Activation, Conv, Problem};
///
/// // Rows are pixels, columns are output channels, k runs over channels and the filter.
/// let conv = Conv::new(Scalar::F32, 2, 8, 16, &[10, 10], &[3, 3]).activation(Activation::Relu).build()?;
/// let product = lower(&Problem::Conv(conv), ConvForm::PER_SAMPLE)?.lead;
/// assert_eq!((product.g, product.m, product.n, product.k), (2, 64, 16, 72));
/// assert_eq!(product.activation(), Some(Activation::Relu));
/// assert_eq!(product.flop(), 2.0 * (2 * 16 * 64 * 72) as f64);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Contraction {
    /// Batch extent.
    pub g: u64,
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Length of the sum; 0: there is none, and its factors are not read.
    pub k: u64,
    /// Operand A.
    pub a: Tensor,
    /// Operand B.
    pub b: Tensor,
    /// Result.
    pub c: Tensor,
    /// Operands that the last terms are read from, where there are two pairs.
    pub second: Option<Box<SecondOperands>>,
    /// Type of the partial sums.
    pub accumulator: Scalar,
    /// With what precision f32 factors are multiplied.
    pub math: Math,
    /// Scales that the sums of [`Contraction::promoted_every`] terms are multiplied by where they are promoted: at (g, row or column, k).
    pub block_scales: Vec<Vector>,
    /// What becomes of the sums before they are stored in C's type, in this order.
    pub epilogue: Vec<EpilogueOp>,
    /// Who decides the extents. `g`, `m` and `n` are the largest, and strides are those of the largest.
    pub launch: LaunchExtents,
    /// Where its results come from.
    pub source: ResultSource,
    /// Reductions of operands. Contractions of their own over the operands' elements compute them, unless a plan does so in its main loop.
    pub operand_values: Vec<OperandValues>,
    /// Each result leaves with neighbours that have no sum. Views of C, and of tensors like it, then say where the first of these is.
    pub gaps: Option<Gaps>,
    /// Groups of a convolution whose elements a sum has, those of other groups than its own times zeros. 1: its own alone.
    pub merged_groups: u64,
    /// The result is not stored: there are only its reductions.
    pub drop_c: bool,
    /// This is the transposed product of the problem's: `a` is its B and m its n. Only the methods of [`crate::Oriented`]'s file ask.
    pub(crate) transposed: bool,
}

impl Contraction {
    /// Columns of the result: one for each pair of columns of the product.
    pub fn result_columns(&self) -> u64 {
        self.pairs().map_or(self.n, |pairs| pairs.columns)
    }
    /// Which of two tensors has a row of B, where B is two: 0 the tensor itself, 1 the one of the gate's other factor. In both the row is at the
    /// place that B's view gives.
    pub fn up(&self) -> Option<Affine> {
        let pairs = self.pairs().filter(|pairs| pairs.gate.separate_up)?;
        Some(Affine::axis(ROW).digit_of(pairs.granule as i64, Some(2)))
    }
    /// The operands of the second pair of factors, as the problem names them.
    pub fn second_operands(&self) -> impl Iterator<Item = (Role, &Tensor)> {
        let roles = if self.transposed { [Role::B2, Role::A2] } else { [Role::A2, Role::B2] };
        self.second.iter().flat_map(move |second| roles.into_iter().zip([&second.a, &second.b]))
    }
    /// Elements of an operand of the second pair that a launch with these extents touches; 0 without one.
    pub fn second_len_at(&self, role: Role, at: &Extents) -> u64 {
        let rows = if (role == Role::A2) != self.transposed { at.m } else { at.n };
        let found = self.second_operands().find(|(found, _)| *found == role);
        found.map_or(0, |(_, x)| if *at == self.extents() { x.len } else { x.len_at([at.g, rows, self.k]) })
    }
    /// The contraction with the pairs' results in the place of its sums: what is left to do with them.
    pub fn of_pairs(&self) -> Contraction {
        let after = self.epilogue.iter().skip_while(|op| !matches!(op, EpilogueOp::Gate(_))).skip(1);
        let accumulator = self.result_scalar();
        Contraction { n: self.result_columns(), accumulator, epilogue: after.cloned().collect(), ..self.clone() }
    }
    /// The product's columns of a launch.
    fn columns_at(&self, at: &Extents) -> u64 {
        if self.pairs().is_some() { self.n } else { at.n }
    }
    /// A factor is multiplied by a complex alpha.
    pub fn turns_factor(&self) -> bool {
        [&self.a, &self.b].iter().any(|x| x.signs.is_some_and(|signs| signs.other.is_some()))
    }
    /// Elements of each value of a reduction.
    pub fn count(&self, r: &Reduce) -> u64 {
        if r.operand { self.k } else { self.result_shape(r).count(r.over) }
    }
    /// Types of the components of what a reduction knows of some elements.
    pub fn state(&self, r: &Reduce) -> Vec<Scalar> {
        let sum = self.accumulator();
        match r.operator {
            Operator::ArgMax | Operator::ArgMin => {
                // Tiles reach beyond the result, whose indices are computed as well.
                let reach = |over: bool, extent: u64| if over { extent.saturating_mul(2).saturating_add(1 << 12) } else { 1 };
                let reach =
                    [(r.over.g, self.g), (r.over.m, self.m), (r.over.n, self.n)].map(|(over, extent)| reach(over, extent));
                // A part's tiles may reach further beyond the whole result.
                let narrow = r.part.is_none() && reach.into_iter().fold(1, u64::saturating_mul) <= i32::MAX as u64;
                vec![sum, if narrow { Scalar::I32 } else { Scalar::I64 }]
            }
            Operator::LogSumExp => vec![sum; 2],
            Operator::Var => vec![sum; 3],
            _ => vec![sum],
        }
    }
    /// What a reduction reduces.
    pub fn result_shape(&self, r: &Reduce) -> ResultShape {
        self.result_shape_at(r, &self.extents())
    }
    /// The same of a launch with these extents.
    pub fn result_shape_at(&self, r: &Reduce, at: &Extents) -> ResultShape {
        ResultShape { extents: r.part.as_ref().map_or(*at, |part| part.extents), groups: r.groups }
    }
    /// The largest extents of the result.
    pub fn extents(&self) -> Extents {
        Extents { g: self.g, m: self.m, n: self.result_columns() }
    }
    /// Elements of the residual that a launch with these extents reads.
    pub fn residual_len_at(&self, at: &Extents) -> u64 {
        let len = |r: &Tensor| if *at == self.extents() { r.len } else { r.len_at([at.g, at.m, at.n]) };
        self.residual().map_or(0, len)
    }
    /// Elements of the pre-activations that a launch with these extents stores.
    pub fn preactivations_len_at(&self, at: &Extents) -> u64 {
        let len = |x: &Tensor| if *at == self.extents() { x.len } else { x.len_at([at.g, at.m, self.n]) };
        self.preactivations().map_or(0, len)
    }
    /// Elements of the bias vector that a launch with these extents reads.
    pub fn bias_len_at(&self, at: &Extents) -> u64 {
        self.bias().map_or(0, |bias| self.vector_len_at(bias, at))
    }
    /// Elements of a vector that a launch with these extents reads.
    pub fn vector_len_at(&self, x: &Vector, at: &Extents) -> u64 {
        if *at == self.extents() {
            return x.len;
        }
        let tensor = Tensor { scalar: x.scalar, factor: None, signs: None, view: x.view.clone(), align: 1, len: x.len };
        tensor.len_at([at.g, if x.along_n { self.columns_at(at) } else { at.m }, 1])
    }
    /// The extents in words: `g 1 m 64 n 32 k 7`, `up to` where one is the largest of a launch.
    pub fn sizes(&self) -> String {
        let of = |name: &str, value: u64, run_time: bool| format!("{name} {}{value}", if run_time { "up to " } else { "" });
        let Dynamic { g, m, n } = self.dynamic();
        [of(self.batch_name(), self.g, g), of("m", self.m, m), of("n", self.n, n), of("k", self.k, false)].join(" ")
    }
    /// Elements of an operand that a launch with these extents touches, from its element 0 on.
    pub fn len_at(&self, operand: Operand, at: &Extents) -> u64 {
        let tensor = self.tensor(operand);
        if *at == self.extents() {
            return tensor.len;
        }
        let [rows, cols] = match operand {
            Operand::A => [at.m, self.k],
            Operand::B => [self.columns_at(at), self.k],
            Operand::C => [at.m, at.n],
        };
        tensor.len_at([at.g, rows, cols])
    }
    /// Type of the partial sums.
    pub const fn accumulator(&self) -> Scalar {
        self.accumulator
    }
    /// Type that results are computed in from the sums: floats of what integers give for a result that is none in 32 bits.
    pub fn result_scalar(&self) -> Scalar {
        match self.source {
            ResultSource::Elements(_) => self.accumulator,
            _ => crate::error::computed_in(self.a.factor(), self.c.scalar)[1],
        }
    }
    /// The first of a unit's instructions that multiply these factors as accurately as was asked for.
    pub fn instruction(&self, unit: MathUnit) -> Option<&'static Mma> {
        self.matrix_input(unit.family()).and_then(|input| Mma::find(unit, input))
    }
    /// What factors are split into for an instruction, where they are.
    pub fn splits(&self, row: &Mma) -> Option<FactorParts> {
        self.math.split().filter(|split| split.input == row.input)
    }
    /// Whether accumulation has two levels: an instruction's accumulator is added to an f32 total after some terms. This is so where the
    /// accumulator keeps fewer bits than f32, or where blocks of k have scales.
    pub fn promotes(&self, unit: &Family) -> bool {
        self.math == Math::Promoted && unit.lanes > 1 || !self.block_scales.is_empty()
    }
    /// Number of terms of k that an instruction's accumulator holds before it is added to the f32 total. All of them share the block scales;
    /// at most [`Math::PROMOTED_EVERY`].
    pub fn promoted_every(&self) -> u32 {
        let shared = |x: &Vector| {
            let value = |k: u64| x.view.access.at([0, 0, k as i64]);
            (1..self.k.min(Math::PROMOTED_EVERY.into())).find(|k| value(*k) != value(0)).unwrap_or(Math::PROMOTED_EVERY.into())
        };
        self.block_scales.iter().map(shared).min().map_or(Math::PROMOTED_EVERY, |terms| terms as u32)
    }
    /// Type in which a matrix unit takes the factors; `None` where there is none.
    fn matrix_input(&self, unit: &Family) -> Option<MatrixType> {
        match (self.a.factor(), self.math) {
            _ if self.source != ResultSource::Product => None,
            (a, _) if a != self.b.factor() => match (a, self.b.factor()) {
                (Scalar::E4M3, Scalar::E5M2) => Some(MatrixType::E4M3xE5M2),
                (Scalar::E5M2, Scalar::E4M3) => Some(MatrixType::E5M2xE4M3),
                (Scalar::E4M3Fnuz, Scalar::E5M2Fnuz) => Some(MatrixType::E4M3xE5M2Fnuz),
                (Scalar::E5M2Fnuz, Scalar::E4M3Fnuz) => Some(MatrixType::E5M2xE4M3Fnuz),
                (Scalar::I8, Scalar::U8) if unit.lanes > 1 => Some(MatrixType::I8xU8),
                (Scalar::U8, Scalar::I8) if unit.lanes > 1 => Some(MatrixType::U8xI8),
                _ => None,
            },
            (Scalar::F64, _) if self.accumulator() == Scalar::F64 => Some(MatrixType::F64),
            (Scalar::I8, _) => Some(MatrixType::I8),
            (Scalar::U8, _) => Some(MatrixType::U8),
            _ if self.accumulator() != Scalar::F32 => None,
            (Scalar::F16, _) => Some(MatrixType::F16),
            (Scalar::F32, Math::Bf16x3 | Math::Bf16x6) if unit.lanes > 1 => Some(MatrixType::BF16),
            (Scalar::BF16, _) => Some(MatrixType::BF16),
            (Scalar::E4M3, _) => Some(MatrixType::E4M3),
            (Scalar::E5M2, _) => Some(MatrixType::E5M2),
            (Scalar::E4M3Fnuz, _) => Some(MatrixType::E4M3Fnuz),
            (Scalar::E5M2Fnuz, _) => Some(MatrixType::E5M2Fnuz),
            (Scalar::F32, Math::Tf32) => Some(MatrixType::TF32),
            (f32, Math::Tf32x3) if unit.takes_tf32(f32) => Some(MatrixType::TF32),
            (Scalar::F32, _) => Some(MatrixType::F32),
            _ => None,
        }
    }
    /// Elements of C that leave with each sum, its own among them.
    pub fn stored_together(&self) -> u32 {
        self.gaps.map_or(1, |gaps| gaps.of)
    }
    /// How far the results of neighbours along an axis, with what leaves with each, lie side by side in memory, in results: see [`View::run`].
    pub fn stored_run(&self, axis: usize) -> u64 {
        let of = i64::from(self.stored_together());
        let mut view = self.c.view.clone();
        view.access.offset.terms.iter_mut().for_each(|(_, stride)| *stride /= of);
        view.run(axis)
    }
    /// Floating-point operations: 2 g m n k; all groups together have so many rows, columns or terms.
    pub fn flop(&self) -> f64 {
        let terms = if self.any_term() { self.k as f64 / self.g as f64 } else { self.k as f64 };
        2.0 * self.entries() as f64 * self.m as f64 * self.n as f64 * terms
    }
    /// Terms of a sum; of groups of terms the mean.
    pub fn depth(&self) -> u64 {
        if self.any_term() { self.k.div_ceil(self.g.max(1)) } else { self.k }
    }
    /// Extents that each launch decides.
    pub const fn dynamic(&self) -> Dynamic {
        if let LaunchExtents::AtLaunch(dynamic) = self.launch { dynamic } else { Dynamic::NONE }
    }
    /// What batch entries are called: `groups` or `g`.
    pub const fn batch_name(&self) -> &'static str {
        if self.launch.groups().is_some() { "groups" } else { "g" }
    }
    /// Sums begin and end at any term of k, where the device's memory says.
    pub fn any_term(&self) -> bool {
        self.launch.groups().is_some_and(|x| x.of == Ragged::K)
    }
    /// Elements of the result, of groups those that there may be.
    pub fn results(&self) -> f64 {
        self.entries() as f64 * self.m as f64 * self.result_columns() as f64
    }
    /// Batch entries that have results of their own: groups share the rows, or columns, of one.
    pub const fn entries(&self) -> u64 {
        match self.launch {
            LaunchExtents::Grouped(GroupEnds { of: Ragged::M | Ragged::N, .. }) => 1,
            _ => self.g,
        }
    }
    /// Whether batch entries are groups of what runs along an extent.
    pub fn grouped(&self, extent: Extent) -> bool {
        self.launch.groups().is_some_and(|x| matches!((x.of, extent), (Ragged::M, Extent::M) | (Ragged::N, Extent::N)))
    }
    /// Whether the size of a batch entry along an extent is known only at launch, or (with groups) only on the device.
    pub fn varies(&self, extent: Extent) -> bool {
        self.dynamic().has(extent) || self.grouped(extent)
    }
    /// Whether every batch entry has exactly the rows and columns of the contraction: no dynamic extents and no groups.
    pub fn fixed(&self) -> bool {
        !Extent::ALL.into_iter().any(|extent| self.varies(extent))
    }
    /// Numbers of tiles of this size along m and n of a batch entry, and the number of entries with such tiles.
    ///
    /// Tiles of T rows are counted from the first row, and a group may begin and end within a tile. So at most floor(begin(g) / T) + g tiles come
    /// before group g. With G groups of any sizes, floor(m / T) + G tiles are enough.
    pub fn tiles(&self, [rows, columns]: [u64; 2]) -> [u64; 3] {
        let along = |extent: Extent, all: u64, of: u64| match self.grouped(extent) {
            true => (all / of.max(1)).saturating_add(self.g),
            false => all.div_ceil(of.max(1)),
        };
        [along(Extent::M, self.m, rows), along(Extent::N, self.n, columns), self.entries()]
    }
    /// What is computed, as a formula: `relu(alpha * sum_k A[g,m,k] * B[g,k,n] + bias[n] + beta * C[g,m,n])`.
    pub fn formula(&self) -> String {
        let first = match self.source {
            ResultSource::Elements(_) => "A[m,n]",
            ResultSource::OwnOperands(Along::N) => "sum_k A[g,n,m,k] * B[g,k,n]",
            ResultSource::OwnOperands(Along::M) => "sum_k A[g,m,k] * B[g,m,k,n]",
            ResultSource::Product => "sum_k A[g,m,k] * B[g,k,n]",
        };
        let scaled =
            self.block_scales.iter().map(|x| if x.along_n { "scale[n,k] * " } else { "scale[m,k] * " }).collect::<String>();
        let first = first.replacen("A[", &format!("{scaled}A["), 1);
        let first = match &self.second {
            Some(second) => format!("({first} + sum_(k >= {}) A2[g,m,k] * B2[g,k,n])", second.first),
            None => first,
        };
        let signed = |first: String, x: &Tensor, sign: &str, name: &str| match x.signs {
            Some(Signs { other: Some(_), .. }) => {
                let name_of = name.trim_end_matches('[');
                first.replacen(name, &format!("{sign} * (alpha * {name_of})["), 1)
            }
            Some(_) => first.replacen(name, &format!("{sign} * {name}"), 1),
            None => first,
        };
        let first = signed(signed(first, &self.a, "sign[m,k]", "A["), &self.b, "sign[n,k]", "B[");
        self.epilogue.iter().fold(first, |value, op| op.formula(&value))
    }
    /// The view through which A's memory is read: that of the elements where there is no product.
    pub const fn read_view(&self) -> &View {
        match &self.source {
            ResultSource::Elements(x) => &x.view,
            _ => &self.a.view,
        }
    }
    /// An operand by name.
    pub fn tensor(&self, operand: Operand) -> &Tensor {
        match operand {
            Operand::A => &self.a,
            Operand::B => &self.b,
            Operand::C => &self.c,
        }
    }
}
