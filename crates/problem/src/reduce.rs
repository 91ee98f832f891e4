//! Standalone reductions: values computed of a strided tensor over some of its axes.
//!
//! A [`Reduce`] becomes a result that is read instead of computed, with the reductions of products over its columns. Rows are the
//! axes of the tensor that are kept, and columns are the axes that are reduced.

use crate::epilogue::Activation;
use crate::error::{DEFAULT_WORKSPACE, ProblemError, check_elements};
use crate::extent::Extents;
use crate::reduction::{Axes, Operator, Reduction, ResultShape, check_all};
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// Most axes of a tensor.
pub const MOST_AXES: usize = 8;
/// The axes that operators reduce: columns.
pub(crate) const OVER: Axes = Axes { g: false, m: false, n: true, blocks: [0; 2] };

/// Values of a tensor's elements over some of its axes. They are dense, the axes that are kept in the tensor's order.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Operator, Problem, Reduce};
///
/// // The mean of each channel of a batch of images (N, C, H, W).
/// let reduce = Reduce::new(Scalar::F32, &[8, 3, 4, 4], &[0, 2, 3]).op(Operator::Mean).build()?;
/// assert_eq!((reduce.axes(false), &reduce.strides[..]), (vec![1], &[48, 16, 4, 1][..]));
/// assert_eq!(Problem::from(reduce).result_shape().extents.m, 3);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Reduce {
    /// Element type of the tensor.
    pub dtype: Scalar,
    /// Its sizes, outermost first.
    pub shape: Vec<u64>,
    /// Stride of each axis in elements; 0 repeats the element.
    pub strides: Vec<u64>,
    /// Elements of its buffer before the first.
    pub offset: u64,
    /// Axes that are reduced, ascending.
    pub over: Vec<usize>,
    /// Applied to the scaled elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// What is computed, all in one pass, over columns.
    pub reductions: Vec<Reduction>,
    /// Workspace budget in bytes.
    pub workspace: u64,
}

/// Collects a [`Reduce`].
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Operator, Reduce};
///
/// // Two values of each row of 3 numbers, in one pass.
/// let reduce = Reduce::new(Scalar::F32, &[16, 3], &[1]).op(Operator::Max).op_in(Operator::ArgMax, Scalar::I32).build()?;
/// assert_eq!((reduce.len(), reduce.reductions.len()), (48, 2));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReduceBuilder(pub(crate) Reduce);

crate::error::validated_serde!(Reduce);

impl Reduce {
    /// Starts a reduction of a dense tensor over these axes.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(dtype: Scalar, shape: &[u64], over: &[usize]) -> ReduceBuilder {
        let mut strides: Vec<u64> = shape.iter().map(|_| 1).collect();
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
        }
        let mut over = over.to_vec();
        over.sort_unstable();
        ReduceBuilder(Reduce {
            dtype,
            shape: shape.to_vec(),
            strides,
            offset: 0,
            over,
            activation: None,
            reductions: Vec::new(),
            workspace: DEFAULT_WORKSPACE,
        })
    }
    /// Axes that are kept (false) or reduced (true), in the tensor's order.
    pub fn axes(&self, reduced: bool) -> Vec<usize> {
        (0..self.shape.len()).filter(|axis| self.over.contains(axis) == reduced).collect()
    }
    /// Values of each operator (false), and elements of each value (true).
    fn extent(&self, reduced: bool) -> u64 {
        self.axes(reduced).into_iter().map(|axis| self.shape[axis]).product()
    }
    /// Rows are what is kept, columns what is reduced.
    pub fn result_shape(&self) -> ResultShape {
        ResultShape { extents: Extents { g: 1, m: self.extent(false), n: self.extent(true) }, groups: 1 }
    }
    /// Elements from the tensor's first to just past its last.
    pub fn len(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.shape.iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum::<u64>() + 1
    }
    /// True if there are none: values over an empty axis are what operators know of no element.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
    /// Position of an element, counted from the first, that is the given one of those along the kept or along the reduced axes.
    pub fn position(&self, reduced: bool, mut index: u64) -> u64 {
        let mut at = 0;
        for axis in (0..self.shape.len()).rev().filter(|axis| self.over.contains(axis) == reduced) {
            at += index % self.shape[axis] * self.strides[axis];
            index /= self.shape[axis];
        }
        at
    }
    /// The type that sums are kept in: of 8-bit integers i64 where a value is asked for in that.
    pub fn accumulator(&self) -> Scalar {
        let wide = |r: &Reduction| !r.operator.indexes() && r.dtype == Some(Scalar::I64);
        if self.dtype.is_int8() && self.reductions.iter().any(wide) { Scalar::I64 } else { self.dtype.accumulator() }
    }
    /// Checks every field.
    ///
    /// # Errors
    /// [`ProblemError`] with the field, its value and what it may be.
    pub fn validate(&self) -> Result<(), ProblemError> {
        let integers = self.dtype.is_int8() || self.dtype == Scalar::I32;
        if !integers && (!self.dtype.is_float() || self.dtype.is_float8()) {
            return Err(ProblemError::value("dtype", self.dtype, "must be f16, bf16, f32, f64, i8, u8 or i32"));
        }
        Activation::check_outside_of_products(self.activation)?;
        if let Some(activation) = self.activation.filter(|_| integers) {
            return Err(ProblemError::value("activation", activation, "integers have none; give the tensor as f32"));
        }
        let axes = self.shape.len();
        if !(1..=MOST_AXES).contains(&axes) {
            return Err(ProblemError::value("shape", format!("{axes} sizes"), format!("a tensor has 1 to {MOST_AXES} axes")));
        }
        if self.strides.len() != axes {
            let reason = format!("must have {axes}, one per axis of the tensor");
            return Err(ProblemError::value("strides", format!("{} values", self.strides.len()), reason));
        }
        // Of an empty tensor the other sizes count as well.
        let sizes: Vec<u64> = self.shape.iter().map(|size| (*size).max(1)).collect();
        check_elements("shape", &sizes, 0, self.dtype)?;
        let reach = self.shape.iter().zip(&self.strides).try_fold(self.offset, |sum, (size, stride)| {
            // A kernel computes with the stride of a single element, too.
            size.saturating_sub(1).max(1).checked_mul(*stride).and_then(|reach| sum.checked_add(reach))
        });
        check_elements("strides", &[reach.unwrap_or(u64::MAX)], 1, self.dtype)?;
        if let Some(axis) = self.over.iter().find(|axis| **axis >= axes) {
            return Err(ProblemError::value("over", axis, format!("the tensor's axes are 0 to {}", axes - 1)));
        }
        if self.over.is_empty() {
            return Err(ProblemError::value("over", "none", "names no axis; give some of the tensor's, counted from 0"));
        }
        if let Some(twice) = self.over.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(ProblemError::value("over", twice[0], "the axis is there twice"));
        }
        if self.workspace > i64::MAX as u64 {
            return Err(ProblemError::value("workspace", self.workspace, "must be less than 2^63 bytes"));
        }
        if self.reductions.is_empty() {
            return Err(ProblemError::value("op", "none", "say what is computed: sum, max, ..."));
        }
        if let Some(other) = self.reductions.iter().find(|r| r.over != OVER || r.stored || r.operand.is_some()) {
            return Err(ProblemError::value(
                "op",
                other,
                "the axes are those of the tensor (blocks: axes of a shape of their own); give the operator alone",
            ));
        }
        if let Some(index) = self.reductions.iter().find(|r| r.operator.indexes() && self.extent(true) == 0) {
            let reason =
                format!("an empty axis (shape {}) has no element to name; leave {} out", joined(&self.shape), index.operator);
            return Err(ProblemError::value("op", index, reason));
        }
        check_all(&self.reductions, true, self.accumulator(), self.result_shape())
    }
}

/// `sum`, `sum.exp` or `sum:bf16`: an operator, a function of each element before it, and the type of its values. The type is
/// left out where it is the accumulator's.
///
/// # Errors
/// What is wrong with it, in words.
pub fn operator(text: &str) -> Result<Reduction, String> {
    let (name, dtype) = text.split_once(':').map_or((text, None), |(name, dtype)| (name, Some(dtype)));
    let plain = name.split_once('.').map_or(name, |(operator, _)| operator);
    if !Operator::ALL.iter().any(|operator| operator.name() == plain) {
        return Err(format!("`{plain}` is no operator; the operators are {}", Operator::names()));
    }
    match dtype {
        None => format!("{name}:n").parse(),
        Some(dtype) => format!("{name}:n:{dtype}").parse(),
    }
}

fn joined(list: &[u64]) -> String {
    list.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

impl ReduceBuilder {
    /// Stride of each axis in elements; 0 repeats the element.
    pub fn strides(mut self, strides: &[u64]) -> Self {
        self.0.strides = strides.to_vec();
        self
    }
    /// Elements of the buffer before the tensor's first.
    pub fn offset(mut self, elements: u64) -> Self {
        self.0.offset = elements;
        self
    }
    /// Another operator, whose values have the type of the sums.
    pub fn op(self, operator: Operator) -> Self {
        self.reduction(Reduction::new(operator, OVER))
    }
    /// Another operator, whose values have this type.
    pub fn op_in(self, operator: Operator, dtype: Scalar) -> Self {
        self.reduction(Reduction { dtype: Some(dtype), ..Reduction::new(operator, OVER) })
    }
    /// Another operator as texts have it ([`operator`]).
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.0.reductions.push(reduction);
        self
    }
    /// A function is applied to the scaled elements.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.0.activation = Some(activation);
        self
    }
    /// Workspace budget in bytes.
    pub fn workspace(mut self, bytes: u64) -> Self {
        self.0.workspace = bytes;
        self
    }
    /// Validates.
    ///
    /// # Errors
    /// [`ProblemError`] with the field, its value and what it may be.
    pub fn build(self) -> Result<Reduce, ProblemError> {
        self.0.validate()?;
        Ok(self.0)
    }
}
