//! Arithmetic on integers that are known when a kernel is built or lowered.

use crate::{BinaryOp, Scalar};

/// What an integer type keeps of a value: the low bits.
pub(super) fn wrapped(v: i64, scalar: Scalar) -> i64 {
    match scalar {
        Scalar::I32 => i64::from(v as i32),
        Scalar::U32 => i64::from(v as u32),
        _ => v,
    }
}

/// An operation on integers, before its result is cut to a type; `None` where there is none: division by zero, overflow of 64 bits.
pub fn fold(op: BinaryOp, x: i64, y: i64) -> Option<i64> {
    use BinaryOp::*;
    Some(match op {
        Add => x.checked_add(y)?,
        Sub => x.checked_sub(y)?,
        Mul => x.checked_mul(y)?,
        Div => x.checked_div(y)?,
        Rem => x.checked_rem(y)?,
        Min | Minimum => x.min(y),
        Max | Maximum => x.max(y),
        And => x & y,
        Or => x | y,
        Xor => x ^ y,
        Shl => x.checked_shl(u32::try_from(y).ok()?)?,
        Shr => x.checked_shr(u32::try_from(y).ok()?)?,
        Lt => (x < y) as i64,
        Le => (x <= y) as i64,
        Eq => (x == y) as i64,
        Ne => (x != y) as i64,
    })
}
