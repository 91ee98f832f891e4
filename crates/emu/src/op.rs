//! Arithmetic operations on register slots: what there is, which slots each reads and writes, how it can fail.

use crate::lanes::Slot;

/// An operation on whole slots: `d = op(a, b, c)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alu {
    pub(crate) op: Op,
    pub(crate) d: Slot,
    pub(crate) a: Slot,
    pub(crate) b: Slot,
    /// Third operand; for operations that can fault, the mask of lanes that count (or [`Slot::NONE`] for all).
    pub(crate) c: Slot,
}

/// What an operation does. The suffix is the operand type; `32` and `64` are bit patterns.
#[rustfmt::skip]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Nop, Mov32, Mov64, Select32, Select64,
    FmaF32, FmaF64, MulAddF32, MulAddF64,
    AddI32, SubI32, MulI32, DivI32, RemI32, MinI32, MaxI32, DivU32, RemU32, MinU32, MaxU32,
    And32, Or32, Xor32, AndNot32, Shl32, ShrI32, ShrU32, LtI32, LeI32, LtU32, LeU32, Eq32, Ne32,
    AddI64, SubI64, MulI64, DivI64, RemI64, MinI64, MaxI64, And64, Or64, Xor64, Shl64, ShrI64, LtI64, LeI64, Eq64, Ne64,
    AddF32, SubF32, MulF32, DivF32, RemF32, MinF32, MaxF32, MinimumF32, MaximumF32, LtF32, LeF32, EqF32, NeF32,
    AddF64, SubF64, MulF64, DivF64, RemF64, MinF64, MaxF64, MinimumF64, MaximumF64, LtF64, LeF64, EqF64, NeF64,
    CheckedAddI32, CheckedSubI32, CheckedMulI32, CheckedAddI64, CheckedSubI64, CheckedMulI64,
    NegF32, NegF64, AbsF32, AbsF64, NotBool,
    ExpF32, Exp2F32, Log2F32, TanhF32, ErfF32, SqrtF32, SigmoidF32, RoundTf32, NearTf32, ExpF64, Exp2F64, Log2F64, TanhF64, ErfF64, SqrtF64,
    SigmoidF64,
    BoolFrom32, BoolFrom64, BoolFromF32, BoolFromF64,
    I32FromI64, I64FromI32, I64FromU32, I32FromI8, U8FromI32,
    F32FromI32, F32FromU32, F32FromI64, F64FromI32, F64FromU32, F64FromI64,
    I32FromF32, U32FromF32, I64FromF32, I32FromF64, U32FromF64, I64FromF64,
    F32FromF64, F64FromF32, F32FromF16, F32FromBF16, F32FromE4M3, F32FromE5M2, F32FromE4M3Fnuz, F32FromE5M2Fnuz, E4M3FromF32, E5M2FromF32, E4M3FnuzFromF32,
    E5M2FnuzFromF32, F16FromF32, BF16FromF32, F16FromF64, BF16FromF64,
}

/// What went wrong in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    OverflowI32,
    OverflowI64,
    DivideByZero,
}

/// An operation that faulted in some lanes. Its result is stored; running may go on after it.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Position in the operations run.
    pub(crate) op: usize,
    pub(crate) kind: FaultKind,
    /// Lanes concerned, whether they count or not.
    pub(crate) lanes: Vec<usize>,
}

/// Lanes in which an operation faulted, and how.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) kind: FaultKind,
    pub(crate) lanes: Vec<usize>,
}

impl Op {
    /// The result is a 64-bit slot.
    pub(crate) fn writes_wide(self) -> bool {
        use Op::*;
        matches!(
            self,
            Mov64
                | Select64
                | FmaF64
                | MulAddF64
                | AddI64
                | SubI64
                | MulI64
                | DivI64
                | RemI64
                | MinI64
                | MaxI64
                | And64
                | Or64
                | Xor64
                | Shl64
                | ShrI64
                | AddF64
                | SubF64
                | MulF64
                | DivF64
                | RemF64
                | MinF64
                | MaxF64
                | MinimumF64
                | MaximumF64
                | AbsF64
                | CheckedAddI64
                | CheckedSubI64
                | CheckedMulI64
                | NegF64
                | ExpF64
                | Exp2F64
                | Log2F64
                | TanhF64
                | ErfF64
                | SqrtF64
                | SigmoidF64
                | I64FromI32
                | I64FromU32
                | F64FromI32
                | F64FromU32
                | F64FromI64
                | I64FromF32
                | I64FromF64
                | F64FromF32
        )
    }
    /// The operands `a` and `b` are 64-bit slots; of a choice, its two values.
    fn reads_wide(self) -> bool {
        use Op::*;
        match self {
            I64FromI32 | I64FromU32 | F64FromI32 | F64FromU32 | I64FromF32 | F64FromF32 => false,
            LtI64 | LeI64 | Eq64 | Ne64 | LtF64 | LeF64 | EqF64 | NeF64 => true,
            BoolFrom64 | BoolFromF64 | I32FromI64 | F32FromI64 | I32FromF64 | U32FromF64 => true,
            F32FromF64 | F16FromF64 | BF16FromF64 => true,
            _ => self.writes_wide(),
        }
    }
}

impl Alu {
    /// Slots whose values the result is made of, and whether they are 64 bits wide.
    pub(crate) fn operands(&self) -> [(Slot, bool); 3] {
        let wide = self.op.reads_wide();
        match self.op {
            Op::Select32 | Op::Select64 => [(self.a, false), (self.b, wide), (self.c, wide)],
            Op::FmaF32 | Op::FmaF64 | Op::MulAddF32 | Op::MulAddF64 => [(self.a, wide), (self.b, wide), (self.c, wide)],
            _ => [(self.a, wide), (self.b, wide), (Slot::NONE, wide)],
        }
    }
}
