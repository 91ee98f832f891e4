//! What becomes of a contraction's sums: operations, and what they read.

use super::{Contraction, Tensor, Vector};
use crate::epilogue::Activation;
use crate::extent::Extents;
use crate::gate::{Gate, GateFunction};
use crate::quant::Quant;
use crate::reduction::{Axes, Function, Operator};
use crate::view::{G, ROW, View, ViewBuilder};
use serde::{Deserialize, Serialize};
use std::fmt;
use tilewright_ir::Scalar;

/// An epilogue operation: what becomes of a sum, in the type of the sums. Operations see values with their row and column, so that one
/// that depends on neighbours or on another tensor is one more variant.
#[derive(Clone, Debug, PartialEq)]
pub enum EpilogueOp {
    /// The sum of products of the factors without their zero points, in integers: before anything else.
    Centre(Box<Centre>),
    /// Times alpha.
    Scale,
    /// Times the element of a vector of its row or column.
    ScaleVector(Vector),
    /// Plus such an element.
    AddVector(Vector),
    /// Plus beta times the old result, which beta 0 never reads. A kernel may add it ahead of a bias.
    AddOld,
    /// The same for complex numbers. The two parts of a number are neighbours where the result is contiguous. A kernel ahead of
    /// the main kernel multiplies them in place, because an epilogue that reads one part may have stored the other.
    AddOldComplex,
    /// A function of it.
    Activate(Activation),
    /// Leaves it as it is, and stores it in its place of a tensor that is addressed as the sums are.
    Store(Tensor),
    /// Of the sums of a pair of columns the result of one: a function of the first times the second.
    Gate(Pairs),
    /// Plus the element in its place of a tensor that is addressed as the result is, of its type, starting its buffer.
    AddTensor(Tensor),
    /// 0 where the element in its place of such a tensor is not above 0.
    Mask(Tensor),
    /// Leaves it as it is, and has part in a value of a reduction.
    Reduce(Reduce),
}

/// Pairs of a product's columns that make one column of the result. Operations ahead see the product's columns, those that follow the result's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pairs {
    /// What makes one result of both.
    pub gate: Gate,
    /// Firsts of so many neighbouring results come before their seconds.
    pub granule: u64,
    /// Columns of the result.
    pub columns: u64,
}

impl Pairs {
    /// The product's column of the first of a result's pair; the second is [`Pairs::granule`] columns further.
    pub const fn first(&self, column: u64) -> u64 {
        column / self.granule * 2 * self.granule + column % self.granule
    }
}

/// The part of the pre-activations that belongs to one factor.
#[derive(Clone, Debug)]
pub struct StoredFactor {
    /// As many rows and columns as the result.
    pub tensor: Tensor,
    /// Its first element in the buffer of both.
    pub first: u64,
}

/// A reduction of the values that reach it. Its results are dense: batch entries outermost, then rows or columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reduce {
    /// What is computed.
    pub operator: Operator,
    /// Of what function of each element, where it is not the element itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// Axes that are reduced.
    pub over: Axes,
    /// Of values rounded to the result's type.
    pub stored: bool,
    /// Type of the results.
    pub scalar: Scalar,
    /// Number among the problem's reductions.
    pub number: usize,
    /// Of the operand whose rows or columns are kept, over k.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub operand: bool,
    /// Batch entries that follow each other and always stay apart: a convolution's groups.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub groups: u64,
    /// Where the elements are among all that are reduced, if the contraction is a part of the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Box<PartOf>>,
}

/// The place of a part's result in the whole result, which is reduced.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PartOf {
    /// Of the whole result.
    pub extents: Extents,
    /// Batch entries of the part in each batch entry of the whole, one after the other.
    pub phases: u64,
    /// Which row of the whole result a row is, in its batch entry.
    pub rows: View,
}

/// Zero points, with the sums over k that they are multiplied by:
/// `sum (A - a)(B - b) = sum A B - b sum A - a (sum B - k b)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Centre {
    /// Zero points of the problem's A, with sums of B.
    pub a: Option<Centred>,
    /// Zero points of its B, with sums of A.
    pub b: Option<Centred>,
    /// Terms of a sum.
    pub k: u64,
}

/// Zero points of a factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Centred {
    /// The zero points.
    pub zero: Vector,
    /// Sums of the other factor over k: in workspace, where a contraction over its elements leaves them.
    pub totals: Vector,
    /// Number of that reduction, after the problem's own.
    pub number: usize,
}

impl Centre {
    /// Both, where there are.
    pub fn iter(&self) -> impl Iterator<Item = &Centred> {
        self.a.iter().chain(&self.b)
    }
}

/// A reduction of an operand, whose values a launch must have memory for besides the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandValues {
    /// What is computed.
    pub reduce: Reduce,
    /// Values.
    pub len: u64,
    /// Elements of each.
    pub count: u64,
}

/// `max over n`, `sum of exp over n`.
impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operator)?;
        self.function.map_or(Ok(()), |function| write!(f, " of {function}"))?;
        match (self.operand, self.over.m) {
            (false, _) => write!(f, " over {}", self.over),
            (true, false) => f.write_str(" over k of rows"),
            (true, true) => f.write_str(" over k of columns"),
        }
    }
}

const fn one() -> u64 {
    1
}

const fn is_one(groups: &u64) -> bool {
    *groups == 1
}

impl EpilogueOp {
    /// What happens to an element, in words.
    pub fn words(&self) -> String {
        match self {
            EpilogueOp::Scale => "scale by alpha".into(),
            EpilogueOp::Centre(_) => {
                "take zero points, times sums of the other factor over k that kernels ahead leave in workspace".into()
            }
            EpilogueOp::ScaleVector(x) => format!("multiply by the scales along {}", if x.along_n { "n" } else { "m" }),
            EpilogueOp::AddVector(x) => format!("add the bias along {}", if x.along_n { "n" } else { "m" }),
            EpilogueOp::AddOld => "add beta * C (C is not read where beta is 0)".into(),
            EpilogueOp::AddOldComplex => "add beta * C, which a kernel ahead leaves in C (it is not read where beta is 0)".into(),
            EpilogueOp::Activate(f) => format!("apply {f}"),
            EpilogueOp::Store(_) => "store the pre-activation".into(),
            EpilogueOp::Gate(x) => format!("multiply {} of a gate's column by the column of its pair", x.gate.function),
            EpilogueOp::AddTensor(_) => "add the residual".into(),
            EpilogueOp::Mask(_) => "0 where the residual is not above 0".into(),
            EpilogueOp::Reduce(x) => format!("take part in {x}"),
        }
    }
    /// `activation(alpha * scales * sum + bias + beta * C) + residual`, of what there is.
    pub fn list(
        scales: Vec<Vector>,
        bias: Option<Vector>,
        activation: Option<Activation>,
        residual: Option<Tensor>,
    ) -> Vec<EpilogueOp> {
        let mut all = vec![EpilogueOp::Scale];
        all.extend(scales.into_iter().map(EpilogueOp::ScaleVector));
        all.extend(bias.map(EpilogueOp::AddVector));
        all.push(EpilogueOp::AddOld);
        all.extend(activation.map(EpilogueOp::Activate));
        all.extend(residual.map(EpilogueOp::AddTensor));
        all
    }
    /// The operation on a value, as a formula.
    pub(super) fn formula(&self, value: &str) -> String {
        match self {
            EpilogueOp::Scale => format!("alpha * {value}"),
            EpilogueOp::Centre(x) => {
                let of = |x: &Option<Centred>, name: &str| {
                    let index = |v: &Vector| if v.along_n { "n" } else { "m" };
                    x.as_ref().map(|x| {
                        let zero = if x.zero.view.uses(ROW) { format!("[{}]", index(&x.zero)) } else { String::new() };
                        (format!("zero_{name}{zero}"), format!("sums[g,{}]", index(&x.totals)))
                    })
                };
                let (a, b) = (of(&x.a, "a"), of(&x.b, "b"));
                let value = b.iter().fold(value.to_string(), |value, (zero, totals)| format!("{value} - {zero} * {totals}"));
                let less = b.map_or(String::new(), |(zero, _)| format!(" - {} * {zero}", x.k));
                let value = a.iter().fold(value, |value, (zero, totals)| format!("{value} - {zero} * ({totals}{less})"));
                format!("({value})")
            }
            EpilogueOp::ScaleVector(x) => format!("scale[{}] * {value}", if x.along_n { "n" } else { "m" }),
            EpilogueOp::AddVector(x) => format!("{value} + bias[{}]", if x.along_n { "n" } else { "m" }),
            EpilogueOp::AddOld => format!("{value} + beta * C[g,m,n]"),
            EpilogueOp::AddOldComplex => format!("{value} + (beta * C)[g,m,n]"),
            EpilogueOp::Activate(Activation::Softcap(limit)) => format!("{limit} * tanh({value} / {limit})"),
            EpilogueOp::Activate(f) => format!("{f}({value})"),
            EpilogueOp::Gate(Pairs { gate: Gate { function: GateFunction::Clamped, limit, slope, .. }, .. }) => {
                let range = format!("gate at most {limit}, up from -{limit} to {limit}");
                format!("(gate * sigmoid({slope} * gate) * (up + 1) of pairs of {value}, {range})")
            }
            EpilogueOp::Gate(x) => format!("({}(gate) * up of pairs of {value})", x.gate.function),
            EpilogueOp::AddTensor(_) => format!("{value} + residual[g,m,n]"),
            EpilogueOp::Mask(_) => format!("(residual[g,m,n] > 0 ? {value} : 0)"),
            EpilogueOp::Store(_) | EpilogueOp::Reduce(_) => value.into(),
        }
    }
}

/// The operations by what they are.
impl Contraction {
    /// The vector that is added, if one is.
    pub fn bias(&self) -> Option<&Vector> {
        self.epilogue.iter().find_map(|op| if let EpilogueOp::AddVector(x) = op { Some(x) } else { None })
    }
    /// The zero points of its factors, and what they are multiplied by.
    pub fn centre(&self) -> Option<&Centre> {
        self.epilogue.iter().find_map(|op| if let EpilogueOp::Centre(x) = op { Some(&**x) } else { None })
    }
    /// The vectors of scales.
    pub fn scales(&self) -> impl Iterator<Item = &Vector> {
        self.epilogue.iter().filter_map(|op| if let EpilogueOp::ScaleVector(x) = op { Some(x) } else { None })
    }
    /// The vectors of quantisation parameters, and the ends of groups.
    pub fn quants(&self) -> impl Iterator<Item = (Quant, &Vector)> {
        let zero_points = self.centre().into_iter().flat_map(|x| [(Quant::ZeroA, x.a.as_ref()), (Quant::ZeroB, x.b.as_ref())]);
        let zero_points = zero_points.filter_map(|(quant, x)| Some((quant, &x?.zero)));
        let scales = self.scales().chain(&self.block_scales).map(|x| (Quant::scale(self.along(x)), x));
        zero_points.chain(scales).chain(self.launch.groups().map(|x| (Quant::Ends, &x.ends)))
    }
    /// The function that is applied, if one is.
    pub fn activation(&self) -> Option<Activation> {
        self.epilogue.iter().find_map(|op| if let EpilogueOp::Activate(f) = op { Some(*f) } else { None })
    }
    /// The old result is multiplied by a complex beta.
    pub fn turns_old(&self) -> bool {
        self.epilogue.iter().any(|op| matches!(op, EpilogueOp::AddOldComplex))
    }
    /// What makes results of pairs of sums.
    pub fn pairs(&self) -> Option<&Pairs> {
        self.epilogue.iter().find_map(|op| if let EpilogueOp::Gate(x) = op { Some(x) } else { None })
    }
    /// The tensor that the sums of both factors of a gate are stored in, if they are.
    pub fn preactivations(&self) -> Option<&Tensor> {
        self.epilogue.iter().find_map(|op| if let EpilogueOp::Store(x) = op { Some(x) } else { None })
    }
    /// The pre-activations of the gate (0) or of the other factor (1). `None` where its columns are no plain stride apart, or nothing is stored.
    pub fn preactivations_of(&self, factor: usize) -> Option<StoredFactor> {
        let (all, pairs) = (self.preactivations()?, self.pairs()?);
        let further = if factor == 0 { 0 } else { pairs.granule };
        let at = |column: u64| all.view.access.at([0, 0, (pairs.first(column) + further) as i64]);
        let first = at(0)?;
        let apart = if pairs.columns > 1 { at(1)? - first } else { 1 };
        // Within a granule columns are a digit of their own, so its ends say all.
        let ends = (0..pairs.columns).step_by(pairs.granule.max(1) as usize);
        let mut ends = ends.flat_map(|granule| [granule, (granule + pairs.granule - 1).min(pairs.columns - 1)]);
        if ends.any(|column| at(column) != Some(first + apart * column as i64)) {
            return None;
        }
        let [entries, rows, _] = all.view.extent;
        let apart = [all.view.stride(G).unwrap_or(0), all.view.stride(ROW)?, apart];
        let dims = [("g", entries, apart[0]), ("row", rows, apart[1]), ("col", pairs.columns, apart[2])];
        let view = ViewBuilder::tensor(&dims).view("g", "row", "col").ok()?;
        let first = u64::try_from(first).ok()?;
        let start = u64::from(all.scalar.bytes()) * first;
        let align = if start == 0 { all.align } else { all.align.min(1 << start.trailing_zeros().min(8)) };
        Some(StoredFactor { tensor: Tensor { view, align, len: all.len.checked_sub(first)?, ..all.clone() }, first })
    }
    /// The tensor that is added or masks, if there is one.
    pub fn residual(&self) -> Option<&Tensor> {
        self.epilogue.iter().find_map(|op| if let EpilogueOp::AddTensor(x) | EpilogueOp::Mask(x) = op { Some(x) } else { None })
    }
    /// Reductions of the result.
    pub fn reductions(&self) -> impl Iterator<Item = &Reduce> {
        self.epilogue.iter().filter_map(|op| if let EpilogueOp::Reduce(x) = op { Some(x) } else { None })
    }
    /// Reductions of the result, then those of operands.
    pub fn all_reductions(&self) -> impl Iterator<Item = &Reduce> {
        self.reductions().chain(self.operand_values.iter().map(|x| &x.reduce))
    }
}
