//! Values while lowering: constants where known, else slots; folding of constants; which operation a typed operator is.

use crate::lanes::Slot;
use crate::op::Op;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use tilewright_ir::{BinaryOp, F8E4M3Fnuz, F8E5M2Fnuz, Scalar, UnaryOp};

/// One component of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Comp {
    /// Integer or truth value, in the range of its type.
    Int(i64),
    /// Float, exactly representable in its type.
    Float(f64),
    Slot(Slot),
}

impl Comp {
    pub(crate) fn is_uniform(self) -> bool {
        !matches!(self, Comp::Slot(s) if !s.is_uniform())
    }
}

/// An evaluated expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    /// One per vector lane.
    pub(crate) comps: Vec<Comp>,
    /// Innermost scope it depends on; `None` if it depends on something that may change.
    pub(crate) since: Option<usize>,
}

impl Value {
    pub(crate) fn constant(comp: Comp) -> Value {
        Value { comps: vec![comp], since: Some(0) }
    }
}

/// What a value depends on that depends on both.
pub(crate) fn joined(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    Some(a?.max(b?))
}

/// True for the types of 64-bit slots.
pub(crate) const fn is_wide(s: Scalar) -> bool {
    matches!(s, Scalar::I64 | Scalar::F64)
}

/// The bit pattern of a constant in a slot.
pub(crate) fn bits(comp: Comp, s: Scalar) -> Option<u64> {
    let float = match comp {
        Comp::Slot(_) => return None,
        Comp::Int(v) => v as f64,
        Comp::Float(v) => v,
    };
    let int = match comp {
        Comp::Int(v) => v,
        _ => float as i64,
    };
    Some(match s {
        Scalar::Bool => (int != 0) as u64,
        Scalar::I8 | Scalar::U8 | Scalar::I4 | Scalar::U4 => int as u8 as u64,
        Scalar::I32 | Scalar::U32 => int as u32 as u64,
        Scalar::I64 => int as u64,
        Scalar::F16 => f16::from_f64(float).to_bits() as u64,
        Scalar::BF16 => bf16::from_f64(float).to_bits() as u64,
        Scalar::E4M3 => F8E4M3::from_f64(float).to_bits() as u64,
        Scalar::E5M2 => F8E5M2::from_f64(float).to_bits() as u64,
        Scalar::E4M3Fnuz => F8E4M3Fnuz::from_f64(float).to_bits() as u64,
        Scalar::E5M2Fnuz => F8E5M2Fnuz::from_f64(float).to_bits() as u64,
        Scalar::F32 => (float as f32).to_bits() as u64,
        Scalar::F64 => float.to_bits(),
    })
}

/// An integer as its type holds it: wrapped.
pub(crate) fn wrap(v: i64, s: Scalar) -> i64 {
    match s {
        Scalar::Bool => (v != 0) as i64,
        Scalar::I8 => v as i8 as i64,
        Scalar::U8 | Scalar::I4 | Scalar::U4 => v as u8 as i64,
        Scalar::I32 => v as i32 as i64,
        Scalar::U32 => v as u32 as i64,
        _ => v,
    }
}

/// Rounds a float constant to its type.
pub(crate) fn round(v: f64, s: Scalar) -> f64 {
    match s {
        Scalar::F16 => f16::from_f64(v).to_f64(),
        Scalar::BF16 => bf16::from_f64(v).to_f64(),
        Scalar::E4M3 => F8E4M3::from_f64(v).to_f64(),
        Scalar::E5M2 => F8E5M2::from_f64(v).to_f64(),
        Scalar::E4M3Fnuz => F8E4M3Fnuz::from_f64(v).to_f64(),
        Scalar::E5M2Fnuz => F8E5M2Fnuz::from_f64(v).to_f64(),
        Scalar::F32 => v as f32 as f64,
        _ => v,
    }
}

/// Folds integer arithmetic; `None` where the run has to decide (division by zero, overflow).
pub(crate) fn fold(op: BinaryOp, s: Scalar, x: i64, y: i64) -> Option<i64> {
    let width = if s == Scalar::I64 { 64 } else { 32 };
    if matches!(op, BinaryOp::Shl | BinaryOp::Shr) && !(0..width).contains(&y) {
        return None;
    }
    let r = tilewright_ir::fold(op, x, y)?;
    match (op, s) {
        (BinaryOp::Shl, _) | (_, Scalar::U32) => Some(wrap(r, s)),
        _ => (wrap(r, s) == r).then_some(r),
    }
}

/// The operation of a binary operator on a type. `checked`: signed overflow is reported.
pub(crate) fn binary(op: BinaryOp, s: Scalar, checked: bool) -> Option<Op> {
    use BinaryOp::*;
    Some(match (s, op) {
        (Scalar::I32, Add) if checked => Op::CheckedAddI32,
        (Scalar::I32, Sub) if checked => Op::CheckedSubI32,
        (Scalar::I32, Mul) if checked => Op::CheckedMulI32,
        (Scalar::I64, Add) if checked => Op::CheckedAddI64,
        (Scalar::I64, Sub) if checked => Op::CheckedSubI64,
        (Scalar::I64, Mul) if checked => Op::CheckedMulI64,
        (Scalar::I32 | Scalar::U32, Add) => Op::AddI32,
        (Scalar::I32 | Scalar::U32, Sub) => Op::SubI32,
        (Scalar::I32 | Scalar::U32, Mul) => Op::MulI32,
        (Scalar::I32, Div) => Op::DivI32,
        (Scalar::I32, Rem) => Op::RemI32,
        (Scalar::I32, Min) => Op::MinI32,
        (Scalar::I32, Max) => Op::MaxI32,
        (Scalar::I32, Shr) => Op::ShrI32,
        (Scalar::I32, Lt) => Op::LtI32,
        (Scalar::I32, Le) => Op::LeI32,
        (Scalar::U32, Div) => Op::DivU32,
        (Scalar::U32, Rem) => Op::RemU32,
        (Scalar::U32, Min) => Op::MinU32,
        (Scalar::U32, Max) => Op::MaxU32,
        (Scalar::U32, Shr) => Op::ShrU32,
        (Scalar::U32, Lt) => Op::LtU32,
        (Scalar::U32, Le) => Op::LeU32,
        (Scalar::I32 | Scalar::U32 | Scalar::Bool, And) => Op::And32,
        (Scalar::I32 | Scalar::U32 | Scalar::Bool, Or) => Op::Or32,
        (Scalar::I32 | Scalar::U32 | Scalar::Bool, Xor) => Op::Xor32,
        (Scalar::I32 | Scalar::U32, Shl) => Op::Shl32,
        (Scalar::I32 | Scalar::U32 | Scalar::Bool, Eq) => Op::Eq32,
        (Scalar::I32 | Scalar::U32 | Scalar::Bool, Ne) => Op::Ne32,
        (Scalar::I64, Add) => Op::AddI64,
        (Scalar::I64, Sub) => Op::SubI64,
        (Scalar::I64, Mul) => Op::MulI64,
        (Scalar::I64, Div) => Op::DivI64,
        (Scalar::I64, Rem) => Op::RemI64,
        (Scalar::I64, Min) => Op::MinI64,
        (Scalar::I64, Max) => Op::MaxI64,
        (Scalar::I64, And) => Op::And64,
        (Scalar::I64, Or) => Op::Or64,
        (Scalar::I64, Xor) => Op::Xor64,
        (Scalar::I64, Shl) => Op::Shl64,
        (Scalar::I64, Shr) => Op::ShrI64,
        (Scalar::I64, Lt) => Op::LtI64,
        (Scalar::I64, Le) => Op::LeI64,
        (Scalar::I64, Eq) => Op::Eq64,
        (Scalar::I64, Ne) => Op::Ne64,
        (Scalar::F32, Add) => Op::AddF32,
        (Scalar::F32, Sub) => Op::SubF32,
        (Scalar::F32, Mul) => Op::MulF32,
        (Scalar::F32, Div) => Op::DivF32,
        (Scalar::F32, Rem) => Op::RemF32,
        (Scalar::F32, Min) => Op::MinF32,
        (Scalar::F32, Max) => Op::MaxF32,
        (Scalar::F32, Minimum) => Op::MinimumF32,
        (Scalar::F32, Maximum) => Op::MaximumF32,
        (Scalar::F32, Lt) => Op::LtF32,
        (Scalar::F32, Le) => Op::LeF32,
        (Scalar::F32, Eq) => Op::EqF32,
        (Scalar::F32, Ne) => Op::NeF32,
        (Scalar::F64, Add) => Op::AddF64,
        (Scalar::F64, Sub) => Op::SubF64,
        (Scalar::F64, Mul) => Op::MulF64,
        (Scalar::F64, Div) => Op::DivF64,
        (Scalar::F64, Rem) => Op::RemF64,
        (Scalar::F64, Min) => Op::MinF64,
        (Scalar::F64, Max) => Op::MaxF64,
        (Scalar::F64, Minimum) => Op::MinimumF64,
        (Scalar::F64, Maximum) => Op::MaximumF64,
        (Scalar::F64, Lt) => Op::LtF64,
        (Scalar::F64, Le) => Op::LeF64,
        (Scalar::F64, Eq) => Op::EqF64,
        (Scalar::F64, Ne) => Op::NeF64,
        _ => return None,
    })
}

/// The operation of a unary operator on a type. Integer negation is a subtraction and not here.
pub(crate) fn unary(op: UnaryOp, s: Scalar) -> Option<Op> {
    use UnaryOp::*;
    Some(match (s, op) {
        (Scalar::Bool, Not) => Op::NotBool,
        (Scalar::F32, Neg) => Op::NegF32,
        (Scalar::F32, Exp) => Op::ExpF32,
        (Scalar::F32, Exp2) => Op::Exp2F32,
        (Scalar::F32, Log2) => Op::Log2F32,
        (Scalar::F32, Tanh) => Op::TanhF32,
        (Scalar::F32, Erf) => Op::ErfF32,
        (Scalar::F32, Sqrt) => Op::SqrtF32,
        (Scalar::F32, Abs) => Op::AbsF32,
        (Scalar::F32, Sigmoid) => Op::SigmoidF32,
        (Scalar::F32, RoundTf32) => Op::RoundTf32,
        (Scalar::F32, NearTf32) => Op::NearTf32,
        (Scalar::F64, Neg) => Op::NegF64,
        (Scalar::F64, Exp) => Op::ExpF64,
        (Scalar::F64, Exp2) => Op::Exp2F64,
        (Scalar::F64, Log2) => Op::Log2F64,
        (Scalar::F64, Tanh) => Op::TanhF64,
        (Scalar::F64, Erf) => Op::ErfF64,
        (Scalar::F64, Sqrt) => Op::SqrtF64,
        (Scalar::F64, Abs) => Op::AbsF64,
        (Scalar::F64, Sigmoid) => Op::SigmoidF64,
        _ => return None,
    })
}

/// How one type becomes another: one operation, or two through the type in between.
pub(crate) enum Conversion {
    /// The bits stay.
    Same,
    One(Op),
    Through(Scalar),
}

/// The conversion between two types.
pub(crate) fn conversion(from: Scalar, to: Scalar) -> Conversion {
    use Conversion::*;
    use Scalar::*;
    match (from, to) {
        (x, y) if x == y => Same,
        (I8, I32) => One(Op::I32FromI8),
        (I32, I8 | U8) => One(Op::U8FromI32),
        (I32, U32) | (U32, I32) | (U8, I32) | (Bool, I32 | U32) => Same,
        (I32 | U32, Bool) => One(Op::BoolFrom32),
        (I64, Bool) => One(Op::BoolFrom64),
        (F32, Bool) => One(Op::BoolFromF32),
        (F64, Bool) => One(Op::BoolFromF64),
        (I64, I32 | U32) => One(Op::I32FromI64),
        (I32, I64) => One(Op::I64FromI32),
        (U32 | Bool, I64) => One(Op::I64FromU32),
        (I32, F32) => One(Op::F32FromI32),
        (U32 | Bool, F32) => One(Op::F32FromU32),
        (I64, F32) => One(Op::F32FromI64),
        (I32, F64) => One(Op::F64FromI32),
        (U32 | Bool, F64) => One(Op::F64FromU32),
        (I64, F64) => One(Op::F64FromI64),
        (F32, I32) => One(Op::I32FromF32),
        (F32, U32) => One(Op::U32FromF32),
        (F32, I64) => One(Op::I64FromF32),
        (F64, I32) => One(Op::I32FromF64),
        (F64, U32) => One(Op::U32FromF64),
        (F64, I64) => One(Op::I64FromF64),
        (F64, F32) => One(Op::F32FromF64),
        (F32, F64) => One(Op::F64FromF32),
        (F16, F32) => One(Op::F32FromF16),
        (BF16, F32) => One(Op::F32FromBF16),
        (E4M3, F32) => One(Op::F32FromE4M3),
        (E5M2, F32) => One(Op::F32FromE5M2),
        (E4M3Fnuz, F32) => One(Op::F32FromE4M3Fnuz),
        (E5M2Fnuz, F32) => One(Op::F32FromE5M2Fnuz),
        (F32, F16) => One(Op::F16FromF32),
        (F32, BF16) => One(Op::BF16FromF32),
        (F32, E4M3) => One(Op::E4M3FromF32),
        (F32, E5M2) => One(Op::E5M2FromF32),
        (F32, E4M3Fnuz) => One(Op::E4M3FnuzFromF32),
        (F32, E5M2Fnuz) => One(Op::E5M2FnuzFromF32),
        (F64, F16) => One(Op::F16FromF64),
        (F64, BF16) => One(Op::BF16FromF64),
        // Integers of 8 bits widen exactly, and so do floats of 16 and 8.
        (I8 | U8, _) | (_, I8 | U8) => Through(I32),
        (F16 | BF16 | E4M3 | E5M2 | E4M3Fnuz | E5M2Fnuz, _) => Through(F32),
        // A double holds every 32-bit integer, and 64-bit ones closer than a 16-bit float can tell.
        (_, F16 | BF16) => Through(F64),
        _ => Same,
    }
}
