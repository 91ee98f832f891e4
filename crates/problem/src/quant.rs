//! Vectors that a matrix product reads beside its matrices. They are quantisation parameters (scales of operands, of whole rows
//! and columns or of blocks, and zero points), and the ends of groups.

use crate::epilogue::Along;
use crate::math::Math;
use crate::names::names;
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// The scales of a matrix product: f32, shared by all batch entries. A result is multiplied by the scale of its row, then by the scale of
/// its column. Each vector begins at the start of its buffer.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Along, Gemm, Math, Scale, Scales};
///
/// // DeepSeek-V3's scales: of 128 terms of a row of A, and of 128 x 128 blocks of B.
/// let gemm = Gemm::new(Scalar::E4M3, 64, 256, 512).math(Math::Promoted);
/// let gemm = gemm.scale_by(Along::M, Scale::LineBlock).scale_by(Along::N, Scale::Block).build()?;
/// assert_eq!(gemm.scales.names().collect::<Vec<_>>(), ["m1x128", "n128x128"]);
/// assert_eq!(Scales::named("m1x128"), Some((Along::M, Scale::LineBlock)));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scales {
    /// Of rows.
    pub m: Option<Scale>,
    /// Of columns.
    pub n: Option<Scale>,
}

/// The elements of an operand that share a scale.
///
/// A *line* is a row of A or a column of B. Block scales are dense, one block of k after the other. The scale of line i and term k is element
/// `k / terms * blocks + i / lines`; `blocks` is the number of blocks of lines. Quantised weights with groups of 32, 64 or 128 terms
/// use [`Scale::Line32`], [`Scale::Line64`] and [`Scale::LineBlock`].
///
/// ```
/// use tilewright_problem::Scale;
///
/// let scale = Scale::named("1x32").expect("a scale");
/// assert_eq!((scale.lines(), scale.terms()), (1, Some(32)));
/// // 256 rows of 128 terms: a scale for each row and each of 4 blocks of k.
/// assert_eq!(scale.blocks(256, 128), [256, 4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scale {
    /// A row of A, or a column of B.
    Line,
    /// 128 terms of a row or column.
    LineBlock,
    /// 128 terms of 128 rows or columns.
    Block,
    /// 64 terms of a row or column.
    Line64,
    /// 32 terms of a row or column.
    Line32,
}

names!(Scale {
    Line = 1, ["line"], "a row or column";
    LineBlock = 2, ["1x128"], "128 terms of a row or column";
    Block = 3, ["128x128"], "128 terms of 128 rows or columns";
    Line64 = 4, ["1x64"], "64 terms of a row or column";
    Line32 = 5, ["1x32"], "32 terms of a row or column";
});

impl Scale {
    /// Rows or columns that share a value.
    pub const fn lines(self) -> u64 {
        if matches!(self, Scale::Block) { 128 } else { 1 }
    }
    /// Terms of a sum that share a value; `None`: all.
    pub const fn terms(self) -> Option<u64> {
        match self {
            Scale::Line => None,
            Scale::LineBlock | Scale::Block => Some(Math::PROMOTED_EVERY as u64),
            Scale::Line64 => Some(64),
            Scale::Line32 => Some(32),
        }
    }
    /// Blocks of so many lines, and of sums of so many terms.
    pub const fn blocks(self, lines: u64, k: u64) -> [u64; 2] {
        let of_k = match self.terms() {
            None => 1,
            Some(terms) => k.div_ceil(terms),
        };
        [lines.div_ceil(self.lines()), of_k]
    }
    /// The text after `m` or `n`.
    pub const fn suffix(self) -> &'static str {
        if matches!(self, Scale::Line) { "" } else { self.name() }
    }
}

/// The type in which operands of two types are multiplied. 8-bit floats of one kind and 8-bit integers stay as they are. Integer weights of 8 or
/// 4 bits become the f16, bf16 or f32 of the other operand, which holds each of their values. `None`: there is no such product.
pub const fn multiplied(a: Scalar, b: Scalar) -> Option<Scalar> {
    match (a, b) {
        _ if a.is_int8() && b.is_int8() => Some(a),
        _ if a.is_float8() && b.is_float8() && a.is_fnuz() == b.is_fnuz() => Some(a),
        (Scalar::F16 | Scalar::BF16 | Scalar::F32, _) if b.is_weight() => Some(a),
        (_, Scalar::F16 | Scalar::BF16 | Scalar::F32) if a.is_weight() => Some(b),
        _ if a as u8 == b as u8 && !a.is_int4() => Some(a),
        _ => None,
    }
}

impl Scales {
    /// True if there are none.
    pub const fn is_none(&self) -> bool {
        self.m.is_none() && self.n.is_none()
    }
    /// Those along a direction.
    pub const fn of(&self, along: Along) -> Option<Scale> {
        match along {
            Along::M => self.m,
            Along::N => self.n,
        }
    }
    /// Sets the scales along a direction and returns the previous ones.
    pub fn set(&mut self, along: Along, scale: Scale) -> Option<Scale> {
        match along {
            Along::M => self.m.replace(scale),
            Along::N => self.n.replace(scale),
        }
    }
    /// True if some differ from block to block of k.
    pub fn of_blocks(&self) -> bool {
        Along::ALL.into_iter().any(|along| self.of(along).is_some_and(|scale| scale.terms().is_some()))
    }
    /// The names of these.
    pub fn names(self) -> impl Iterator<Item = String> {
        Along::ALL.into_iter().filter_map(move |along| Some(format!("{}{}", along.name(), self.of(along)?.suffix())))
    }
    /// The direction and the kind of scale that a name stands for:
    ///
    /// - `m`, `n`: one value per row, per column;
    /// - `m1x128`, `n1x128`: one value for each 128 terms of a row or column (`x64` and `x32`: for each 64 and 32);
    /// - `m128x128`, `n128x128`: one value for each block of 128 rows or columns and 128 terms.
    pub fn named(name: &str) -> Option<(Along, Scale)> {
        let all = Along::ALL.into_iter().flat_map(|along| Scale::ALL.map(|scale| (along, scale)));
        all.into_iter().find(|(along, scale)| name.strip_prefix(along.name()) == Some(scale.suffix()))
    }
    /// The names of all that there may be, for messages.
    pub const NAMES: &str = "m, n, m1x128, n1x128, m1x64, n1x64, m1x32, n1x32, m128x128 and n128x128";
}

/// Zero points of a product of 8-bit integers, of i32 and shared by a batch: they are subtracted from the factors, exactly. Each starts
/// its buffer.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Along, Gemm, ZeroPoint};
///
/// // Asymmetric activations: one zero point for A, none for B.
/// let gemm = Gemm::new(Scalar::U8, 8, 8, 64).b_dtype(Scalar::I8).zero_point(Along::M, ZeroPoint::Tensor).build()?;
/// assert!(gemm.zero_points.of(Along::M).is_some() && gemm.zero_points.of(Along::N).is_none());
/// assert_eq!(gemm.zero_points.names().collect::<Vec<_>>(), ["a"]);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ZeroPoints {
    /// Of A: one value, or one per row.
    pub a: Option<ZeroPoint>,
    /// Of B: one value, or one per column.
    pub b: Option<ZeroPoint>,
}

/// How many zero points a factor has.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Along, Gemm, Quant, ZeroPoint};
///
/// let len = |how| Ok::<_, tilewright_problem::ProblemError>(
///     Gemm::new(Scalar::I8, 8, 16, 64).zero_point(Along::N, how).build()?.quant_len(Quant::ZeroB),
/// );
/// assert_eq!((len(ZeroPoint::Tensor)?, len(ZeroPoint::Each)?), (1, 16));
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ZeroPoint {
    /// One.
    Tensor,
    /// One for each of its rows (A) or columns (B).
    Each,
}

names!(ZeroPoint {
    Tensor = 1, ["tensor"], "one for the operand";
    Each = 2, ["each"], "one for each row of A or column of B";
});

impl ZeroPoints {
    /// True if there are none.
    pub const fn is_none(&self) -> bool {
        self.a.is_none() && self.b.is_none()
    }
    /// Their names in texts: `a` and `b` for one value, `m` and `n` for one per row and per column.
    pub const NAMES: [(&'static str, Along, ZeroPoint); 4] = [
        ("a", Along::M, ZeroPoint::Tensor),
        ("b", Along::N, ZeroPoint::Tensor),
        ("m", Along::M, ZeroPoint::Each),
        ("n", Along::N, ZeroPoint::Each),
    ];
    /// Those of the factor with the result's rows (m) or columns (n).
    pub const fn of(&self, along: Along) -> Option<ZeroPoint> {
        match along {
            Along::M => self.a,
            Along::N => self.b,
        }
    }
    /// The names of these.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        ZeroPoints::NAMES.into_iter().filter(move |(_, along, how)| self.of(*along) == Some(*how)).map(|(name, ..)| name)
    }
}

/// A vector that a matrix product reads beside its matrices: quantisation parameters, or the ends of groups.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Along, Gemm, Quant};
///
/// // Elements that the caller's buffer holds, and their type.
/// let gemm = Gemm::new(Scalar::I8, 8, 16, 64).out_dtype(Scalar::F32).scale(Along::N).build()?;
/// assert_eq!((gemm.quant_len(Quant::ScaleN), Quant::ScaleN.scalar()), (16, Scalar::F32));
/// assert_eq!(gemm.quant_len(Quant::ScaleM), 0);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Quant {
    /// A scale for each row of the product.
    ScaleM,
    /// A scale for each column.
    ScaleN,
    /// Zero points of A.
    ZeroA,
    /// Zero points of B.
    ZeroB,
    /// Ends of the groups of rows or columns ([`crate::Gemm::grouped`]).
    Ends,
}

impl Quant {
    /// All, by their number.
    pub const ALL: [Quant; 5] = [Quant::ScaleM, Quant::ScaleN, Quant::ZeroA, Quant::ZeroB, Quant::Ends];

    /// Scales along a direction.
    pub const fn scale(along: Along) -> Quant {
        if matches!(along, Along::M) { Quant::ScaleM } else { Quant::ScaleN }
    }
    /// Zero points of the factor with the rows (m) or the columns (n).
    pub const fn zero(along: Along) -> Quant {
        if matches!(along, Along::M) { Quant::ZeroA } else { Quant::ZeroB }
    }
    /// Its name as an argument.
    pub const fn name(self) -> &'static str {
        match self {
            Quant::ScaleM => "scale_m",
            Quant::ScaleN => "scale_n",
            Quant::ZeroA => "zero_a",
            Quant::ZeroB => "zero_b",
            Quant::Ends => "ends",
        }
    }
    /// What it is, in words.
    pub const fn words(self) -> &'static str {
        match self {
            Quant::ScaleM => "scales along m",
            Quant::ScaleN => "scales along n",
            Quant::ZeroA => "zero points of A",
            Quant::ZeroB => "zero points of B",
            Quant::Ends => "ends of groups",
        }
    }
    /// Type of its elements.
    pub const fn scalar(self) -> Scalar {
        match self {
            Quant::ScaleM | Quant::ScaleN => Scalar::F32,
            Quant::ZeroA | Quant::ZeroB | Quant::Ends => Scalar::I32,
        }
    }
}
