//! Scalar and vector types, memory access and operation kinds of the kernel language.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of one lane's scalar value.
///
/// `F16`, `BF16` and the types of 8 bits and less are storage types. Their values may be loaded, stored, selected and cast, never
/// computed with. Arithmetic happens in `F32`, of integers in `I32`, as on the hardware's accumulators.
///
/// ```
/// use tilewright_ir::Scalar;
///
/// // 16-bit floats are stored so and summed in f32.
/// assert_eq!((Scalar::BF16.bytes(), Scalar::BF16.accumulator()), (2, Scalar::F32));
/// assert!(Scalar::F32.is_arithmetic() && !Scalar::BF16.is_arithmetic());
/// // Two weights of 4 bits share a byte.
/// assert_eq!(Scalar::U4.bytes_of(5), 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    /// One bit of truth; lives in registers only.
    Bool,
    /// 8-bit signed integer, storage only.
    I8,
    /// 8-bit unsigned integer, storage only.
    U8,
    /// Two signed integers of 4 bits in a byte, the one with the even index in its lower half; storage only. Memory and vectors have bytes of them, of
    /// which a cast makes twice as many numbers.
    I4,
    /// Likewise unsigned.
    U4,
    /// 32-bit signed integer, the usual index type.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit signed integer, the index type of large tensors.
    I64,
    /// IEEE binary16, storage only.
    F16,
    /// bfloat16, storage only.
    BF16,
    /// 8 bits with 4 of exponent and 3 of mantissa (OCP OFP8: no infinity, one NaN of each sign, up to 448), storage only. What is
    /// rounded to it saturates: beyond the largest number, infinities included, it becomes that; NaN stays NaN. So with all of 8 bits.
    E4M3,
    /// 8 bits with 5 of exponent and 2 of mantissa (OCP OFP8: the upper half of a binary16), storage only.
    E5M2,
    /// Like `E4M3` with exponents one less, no sign of zero and a single NaN, in place of -0: up to 240. Of CDNA 3 ([`crate::F8E4M3Fnuz`]).
    E4M3Fnuz,
    /// The same for `E5M2`, without infinities: up to 57344.
    E5M2Fnuz,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
}

impl Scalar {
    /// Size in memory, in bytes: of what memory counts, which is two integers of 4 bits. `Bool` never lives in memory and counts as one byte.
    pub const fn bytes(self) -> u32 {
        match self {
            Scalar::Bool | Scalar::I8 | Scalar::U8 | Scalar::I4 | Scalar::U4 => 1,
            Scalar::E4M3 | Scalar::E5M2 | Scalar::E4M3Fnuz | Scalar::E5M2Fnuz => 1,
            Scalar::F16 | Scalar::BF16 => 2,
            Scalar::I32 | Scalar::U32 | Scalar::F32 => 4,
            Scalar::I64 | Scalar::F64 => 8,
        }
    }
    /// Numbers in what memory counts: two of 4 bits, else one.
    pub const fn numbers(self) -> u32 {
        if self.is_int4() { 2 } else { 1 }
    }
    /// Bytes of so many numbers side by side.
    pub const fn bytes_of(self, numbers: u64) -> u64 {
        numbers.div_ceil(self.numbers() as u64).saturating_mul(self.bytes() as u64)
    }
    /// Numbers in so many bytes.
    pub const fn numbers_in(self, bytes: u32) -> u32 {
        bytes / self.bytes() * self.numbers()
    }
    /// True for the integer types that arithmetic is defined on.
    pub const fn is_int(self) -> bool {
        matches!(self, Scalar::I32 | Scalar::U32 | Scalar::I64)
    }
    /// True for the integer types of 8 bits, which are loaded, stored and cast alone.
    pub const fn is_int8(self) -> bool {
        matches!(self, Scalar::I8 | Scalar::U8)
    }
    /// True for the integer types of 4 bits, two of which share a byte.
    pub const fn is_int4(self) -> bool {
        matches!(self, Scalar::I4 | Scalar::U4)
    }
    /// True for the integer types that weights beside floats may have.
    pub const fn is_weight(self) -> bool {
        self.is_int8() || self.is_int4()
    }
    /// True for every floating-point type, storage-only ones included.
    pub const fn is_float(self) -> bool {
        self.is_storage() || matches!(self, Scalar::F32 | Scalar::F64)
    }
    /// True for floating-point types that are loaded, stored and cast to and from `F32` alone.
    pub const fn is_storage(self) -> bool {
        matches!(self, Scalar::F16 | Scalar::BF16) || self.is_float8()
    }
    /// True for the floating-point types of 8 bits.
    pub const fn is_float8(self) -> bool {
        matches!(self, Scalar::E4M3 | Scalar::E5M2) || self.is_fnuz()
    }
    /// True for those without infinities and signed zeros, which CDNA 3 has in place of OCP's.
    pub const fn is_fnuz(self) -> bool {
        matches!(self, Scalar::E4M3Fnuz | Scalar::E5M2Fnuz)
    }
    /// True for types that arithmetic is defined on.
    pub const fn is_arithmetic(self) -> bool {
        matches!(self, Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::F32 | Scalar::F64)
    }
    /// The type partial sums of this type are kept in.
    pub const fn accumulator(self) -> Scalar {
        match self {
            storage if storage.is_storage() => Scalar::F32,
            Scalar::I8 | Scalar::U8 | Scalar::I4 | Scalar::U4 => Scalar::I32,
            Scalar::I32 => Scalar::I64,
            other => other,
        }
    }
    /// The field's short name: `f32`, `bf16`, `i32`.
    pub const fn name(self) -> &'static str {
        match self {
            Scalar::Bool => "bool",
            Scalar::I8 => "i8",
            Scalar::U8 => "u8",
            Scalar::I4 => "i4",
            Scalar::U4 => "u4",
            Scalar::I32 => "i32",
            Scalar::U32 => "u32",
            Scalar::I64 => "i64",
            Scalar::F16 => "f16",
            Scalar::BF16 => "bf16",
            Scalar::E4M3 => "e4m3",
            Scalar::E5M2 => "e5m2",
            Scalar::E4M3Fnuz => "e4m3fnuz",
            Scalar::E5M2Fnuz => "e5m2fnuz",
            Scalar::F32 => "f32",
            Scalar::F64 => "f64",
        }
    }
    /// This scalar as a one-lane type.
    pub const fn ty(self) -> Type {
        Type { scalar: self, lanes: 1 }
    }
    /// A vector of this scalar.
    pub const fn vector(self, lanes: u8) -> Type {
        Type { scalar: self, lanes }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A scalar or a short vector held by one thread. Legal `lanes`: 1, 2, 4, 8, 16.
///
/// ```
/// use tilewright_ir::Scalar;
///
/// let vector = Scalar::F16.vector(8);
/// assert_eq!((vector.bytes(), vector.to_string()), (16, "f16x8".to_string()));
/// assert_eq!(vector.with_scalar(Scalar::F32).bytes(), 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Type {
    /// Element type.
    pub scalar: Scalar,
    /// Number of elements, 1 for a scalar.
    pub lanes: u8,
}

impl Type {
    /// Size in memory, in bytes; also the alignment a vector access needs.
    pub const fn bytes(self) -> u32 {
        self.scalar.bytes() * self.lanes as u32
    }
    /// The same shape with another element type.
    pub const fn with_scalar(self, scalar: Scalar) -> Type {
        Type { scalar, lanes: self.lanes }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lanes == 1 { write!(f, "{}", self.scalar) } else { write!(f, "{}x{}", self.scalar, self.lanes) }
    }
}

/// How a kernel uses a global buffer.
///
/// ```
/// use tilewright_ir::{Access, Builder, Scalar, Target, print};
///
/// let mut b = Builder::new("example", 32);
/// b.buffer("x", Scalar::F32, Access::Read, "input");
/// b.buffer("y", Scalar::F32, Access::ReadWrite, "result");
/// let source = print(&b.finish(), &Target::by_arch("sm_80").expect("a known architecture"))?;
/// // A buffer that is only read may go through the read-only cache.
/// assert!(source.text.contains("const float* __restrict__ x"), "{}", source.text);
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Never written while the kernel runs: `const __restrict__`, may go through read-only caches.
    Read,
    /// Written, never read.
    Write,
    /// Read and written.
    ReadWrite,
    /// Written by work-groups and read by others of the same launch, which fences order ([`crate::Stmt::Fence`]): loads go past the
    /// caches of a compute unit.
    Exchange,
}

/// One-operand operations.
///
/// ```
/// use tilewright_ir::{Access, Base, Builder, Builtin, Scalar, UnaryOp};
///
/// // y = sigmoid(x)
/// let mut b = Builder::new("example", 32);
/// let x = b.buffer("x", Scalar::F32, Access::ReadWrite, "elements");
/// let value = b.load("value", Base::Buffer(x), Builtin::LocalId, 1, None);
/// b.store(Base::Buffer(x), Builtin::LocalId, value.unary(UnaryOp::Sigmoid), None);
/// assert!(tilewright_ir::well_formed(&b.finish()).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnaryOp {
    /// Arithmetic negation.
    Neg,
    /// Logical not of a `Bool`.
    Not,
    /// e to the x (floats).
    Exp,
    /// 2 to the x (floats); 0 may stand for what is below the least normal number.
    Exp2,
    /// Logarithm to the base 2 (floats): -infinity of 0, NaN of what is below.
    Log2,
    /// Hyperbolic tangent (floats).
    Tanh,
    /// Gauss error function (floats).
    Erf,
    /// Square root (floats).
    Sqrt,
    /// Magnitude (floats).
    Abs,
    /// Logistic function `1 / (1 + exp(-x))` (floats), from 0 to 1 also where exp overflows. Accurate to a few roundoffs, and
    /// `|x|` times as many for negative x: what a GPU's own exponential and reciprocal give.
    Sigmoid,
    /// Nearest number with 10 bits of mantissa, ties away from zero (`F32`): what TF32 units take. They drop what lies below
    /// themselves, which errs twice as far and always towards zero.
    RoundTf32,
    /// The same for numbers and infinities, in half as many instructions. The result for NaN is unspecified. It is for splits into two
    /// numbers, where the other number is NaN then.
    NearTf32,
}

/// Two-operand operations. Both operands and the result have one type, except comparisons, which give `Bool`.
///
/// ```
/// use tilewright_ir::{BinaryOp, Builder, Builtin, Scalar};
///
/// let mut b = Builder::new("example", 32);
/// // Comparisons give `bool`, others the type of their operands.
/// let small = b.binary(BinaryOp::Lt, Builtin::LocalId, 16);
/// let odd = b.binary(BinaryOp::And, Builtin::LocalId, 1);
/// assert_eq!((b.ty(small).scalar, b.ty(odd).scalar), (Scalar::Bool, Scalar::I32));
/// assert!(BinaryOp::Lt.is_comparison());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BinaryOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; integers truncate toward zero, dividing by zero is an error the emulator reports.
    Div,
    /// Remainder of the truncating quotient.
    Rem,
    /// Smaller.
    Min,
    /// Larger. NaN handling is that of `fmax`.
    Max,
    /// Smaller; NaN where either is (floats: IEEE 754's `minimum`, but for the order of zeros).
    Minimum,
    /// Larger; NaN where either is.
    Maximum,
    /// Bitwise or logical and.
    And,
    /// Bitwise or logical or.
    Or,
    /// Bitwise exclusive or (integers).
    Xor,
    /// Shift left (integers).
    Shl,
    /// Shift right, arithmetic for signed (integers).
    Shr,
    /// Less than.
    Lt,
    /// Less than or equal.
    Le,
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
}

impl BinaryOp {
    /// True if the result is `Bool` whatever the operands are.
    pub const fn is_comparison(self) -> bool {
        matches!(self, BinaryOp::Lt | BinaryOp::Le | BinaryOp::Eq | BinaryOp::Ne)
    }
}

/// Read-modify-write operations on memory. For floats, the larger and the smaller are the results of [`BinaryOp::Maximum`] and
/// [`BinaryOp::Minimum`]. NaN stays, and -0 is below +0, so that the result does not depend on the order of updates.
///
/// ```
/// use tilewright_ir::{Access, AtomicOp, Base, Builder, Scalar, Stmt};
///
/// // All threads add to one element.
/// let mut b = Builder::new("example", 32);
/// let sum = b.buffer("sum", Scalar::F32, Access::ReadWrite, "one element");
/// let one = b.float(1.0, Scalar::F32);
/// b.atomic(AtomicOp::Add, Base::Buffer(sum), 0, one, None);
/// assert!(matches!(b.finish().body[..], [Stmt::Atomic { op: AtomicOp::Add, .. }]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AtomicOp {
    /// Memory becomes memory + value.
    Add,
    /// Memory becomes the larger of memory and value.
    Max,
    /// Memory becomes the smaller of memory and value.
    Min,
}

/// Values every thread is born with, all `I32`.
///
/// ```
/// use tilewright_ir::{Builder, Builtin, Scalar};
///
/// let mut b = Builder::new("example", 128);
/// // The element of this thread, in work-groups of 128 threads.
/// let i = b.bind("i", Builtin::GroupId(0) * 128 + Builtin::LocalId);
/// assert_eq!(b.ty(i), Scalar::I32.ty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Builtin {
    /// Position of the thread in its work-group, 0 .. threads.
    LocalId,
    /// Position of the work-group in the grid along a dimension (0, 1 or 2).
    GroupId(u8),
}

/// How lanes of a wave exchange values in [`crate::Stmt::Shuffle`].
///
/// ```
/// use tilewright_ir::{Access, Base, Builder, Builtin, Scalar, ShuffleKind, Target, validate};
///
/// // The sum of a wave of 32: five exchanges, after which every lane has it.
/// let mut b = Builder::new("example", 32);
/// b.wave(32);
/// let x = b.buffer("x", Scalar::F32, Access::ReadWrite, "32 elements");
/// let mut sum = b.load("value", Base::Buffer(x), Builtin::LocalId, 1, None);
/// for mask in [16, 8, 4, 2, 1] {
///     let other = b.shuffle("other", sum, ShuffleKind::Xor(mask));
///     sum = b.bind("sum", sum + other);
/// }
/// b.store(Base::Buffer(x), Builtin::LocalId, sum, None);
/// validate(&b.finish(), &Target::by_arch("sm_80").expect("a known architecture"))?;
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ShuffleKind {
    /// Lane `i` receives from lane `i ^ mask`.
    Xor(u32),
    /// Lane `i` receives from lane `i + delta`, its own value where that leaves the wave.
    Down(u32),
    /// Every lane receives from the given lane.
    Broadcast(u32),
}

/// The extents of the product that an instruction computes.
///
/// ```
/// use tilewright_ir::{MathUnit, MatrixType, Mma, MmaShape};
///
/// // AMD's units multiply blocks of 16 x 16 or 32 x 32.
/// let shape = MmaShape { m: 32, n: 32, k: 2 };
/// assert!(Mma::shaped(MathUnit::Mfma, MatrixType::F32, shape).is_some());
/// assert_eq!(shape.to_string(), "32 x 32 x 2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MmaShape {
    /// Rows of A and C.
    pub m: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Depth: columns of A and rows of B.
    pub k: u32,
}

impl fmt::Display for MmaShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} x {}", self.m, self.n, self.k)
    }
}
