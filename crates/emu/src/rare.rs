//! The operations of [`crate::alu`] that kernels rarely spend time in, compiled once for every machine.

use crate::lanes::{B32, B64, View};
use crate::map::{checked2, f, g, map1, map2};
use crate::op::{Alu, FaultKind, Faults, Op};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use tilewright_ir::{F8E4M3Fnuz, F8E5M2Fnuz};

macro_rules! un {
    ($o:ident, $from:ident -> $to:ident, $f:expr) => {
        map1($to.get($o.d), $from.get($o.a), $f)
    };
}
macro_rules! bin {
    ($o:ident, $from:ident -> $to:ident, $f:expr) => {
        map2($to.get($o.d), $from.get($o.a), $from.get($o.b), $f)
    };
}
macro_rules! checked {
    ($o:ident, $file:ident, $kind:ident, $f:expr) => {
        if let Some(lanes) = checked2($file.get($o.d), $file.get($o.a), $file.get($o.b), $f) {
            return Err(Faults { kind: FaultKind::$kind, lanes });
        }
    };
}

/// Runs one operation. Those that [`crate::alu`] runs itself do nothing here.
#[inline(never)]
pub(crate) fn step(r: View<'_, B32>, w: View<'_, B64>, o: &Alu) -> Result<(), Faults> {
    match o.op {
        Op::MinU32 => bin!(o, r -> r, |x: u32, y| x.min(y)),
        Op::MaxU32 => bin!(o, r -> r, |x: u32, y| x.max(y)),
        Op::Shl32 => bin!(o, r -> r, |x: u32, y| x.wrapping_shl(y)),
        Op::ShrI32 => bin!(o, r -> r, |x, y| (x as i32).wrapping_shr(y) as u32),
        Op::ShrU32 => bin!(o, r -> r, |x: u32, y| x.wrapping_shr(y)),
        Op::LtU32 => bin!(o, r -> r, |x, y| (x < y) as u32),
        Op::LeU32 => bin!(o, r -> r, |x, y| (x <= y) as u32),
        Op::MinI64 => bin!(o, w -> w, |x, y| (x as i64).min(y as i64) as u64),
        Op::MaxI64 => bin!(o, w -> w, |x, y| (x as i64).max(y as i64) as u64),
        Op::And64 => bin!(o, w -> w, |x, y| x & y),
        Op::Or64 => bin!(o, w -> w, |x, y| x | y),
        Op::Xor64 => bin!(o, w -> w, |x, y| x ^ y),
        Op::Shl64 => bin!(o, w -> w, |x: u64, y| x.wrapping_shl(y as u32)),
        Op::ShrI64 => bin!(o, w -> w, |x, y| (x as i64).wrapping_shr(y as u32) as u64),
        Op::LeI64 => bin!(o, w -> r, |x, y| (x as i64 <= y as i64) as u32),
        Op::Eq64 => bin!(o, w -> r, |x, y| (x == y) as u32),
        Op::Ne64 => bin!(o, w -> r, |x, y| (x != y) as u32),
        Op::CheckedSubI64 => checked!(o, w, OverflowI64, |x, y| {
            let (v, overflows) = (x as i64).overflowing_sub(y as i64);
            (v as u64, overflows)
        }),
        Op::DivU32 => checked!(o, r, DivideByZero, |x: u32, y| (x.checked_div(y).unwrap_or(0), y == 0)),
        Op::RemU32 => checked!(o, r, DivideByZero, |x: u32, y| (x.checked_rem(y).unwrap_or(0), y == 0)),
        Op::DivI64 => {
            checked!(o, w, DivideByZero, |x, y| if y == 0 {
                (0, true)
            } else {
                ((x as i64).wrapping_div(y as i64) as u64, false)
            })
        }
        Op::RemI64 => {
            checked!(o, w, DivideByZero, |x, y| if y == 0 {
                (0, true)
            } else {
                ((x as i64).wrapping_rem(y as i64) as u64, false)
            })
        }
        Op::NearTf32 => un!(o, r -> r, |x| x.wrapping_add(0x1000) & 0xFFFF_E000),
        Op::RoundTf32 => un!(o, r -> r, |x| if f(x).is_finite() { x.wrapping_add(0x1000) & 0xFFFF_E000 } else { x }),
        _ => float(r, w, o),
    }
    Ok(())
}

/// Operations on floats, and conversions.
fn float(r: View<'_, B32>, w: View<'_, B64>, o: &Alu) {
    match o.op {
        Op::DivF32 => bin!(o, r -> r, |x, y| (f(x) / f(y)).to_bits()),
        Op::RemF32 => bin!(o, r -> r, |x, y| (f(x) % f(y)).to_bits()),
        Op::MinF32 => bin!(o, r -> r, |x, y| f(x).min(f(y)).to_bits()),
        Op::LtF32 => bin!(o, r -> r, |x, y| (f(x) < f(y)) as u32),
        Op::LeF32 => bin!(o, r -> r, |x, y| (f(x) <= f(y)) as u32),
        Op::EqF32 => bin!(o, r -> r, |x, y| (f(x) == f(y)) as u32),
        Op::NeF32 => bin!(o, r -> r, |x, y| (f(x) != f(y)) as u32),
        Op::DivF64 => bin!(o, w -> w, |x, y| (g(x) / g(y)).to_bits()),
        Op::RemF64 => bin!(o, w -> w, |x, y| (g(x) % g(y)).to_bits()),
        Op::MinF64 => bin!(o, w -> w, |x, y| g(x).min(g(y)).to_bits()),
        Op::MaxF64 => bin!(o, w -> w, |x, y| g(x).max(g(y)).to_bits()),
        Op::LtF64 => bin!(o, w -> r, |x, y| (g(x) < g(y)) as u32),
        Op::LeF64 => bin!(o, w -> r, |x, y| (g(x) <= g(y)) as u32),
        Op::EqF64 => bin!(o, w -> r, |x, y| (g(x) == g(y)) as u32),
        Op::NeF64 => bin!(o, w -> r, |x, y| (g(x) != g(y)) as u32),
        Op::MinimumF32 => bin!(o, r -> r, |x, y| if f(x) < f(y) || f(x).is_nan() { x } else { y }),
        Op::MaximumF32 => bin!(o, r -> r, |x, y| if f(x) > f(y) || f(x).is_nan() { x } else { y }),
        Op::MinimumF64 => bin!(o, w -> w, |x, y| if g(x) < g(y) || g(x).is_nan() { x } else { y }),
        Op::MaximumF64 => bin!(o, w -> w, |x, y| if g(x) > g(y) || g(x).is_nan() { x } else { y }),
        Op::AbsF32 => un!(o, r -> r, |x| f(x).abs().to_bits()),
        Op::AbsF64 => un!(o, w -> w, |x| g(x).abs().to_bits()),
        Op::NegF64 => un!(o, w -> w, |x| (-g(x)).to_bits()),
        Op::ExpF32 => un!(o, r -> r, |x| f(x).exp().to_bits()),
        Op::Exp2F32 => un!(o, r -> r, |x| f(x).exp2().to_bits()),
        Op::Log2F32 => un!(o, r -> r, |x| f(x).log2().to_bits()),
        Op::TanhF32 => un!(o, r -> r, |x| f(x).tanh().to_bits()),
        Op::ErfF32 => un!(o, r -> r, |x| libm::erff(f(x)).to_bits()),
        Op::SqrtF32 => un!(o, r -> r, |x| f(x).sqrt().to_bits()),
        Op::SigmoidF32 => un!(o, r -> r, |x| ((1.0 / (1.0 + (-f64::from(f(x))).exp())) as f32).to_bits()),
        Op::SigmoidF64 => un!(o, w -> w, |x| (1.0 / (1.0 + (-g(x)).exp())).to_bits()),
        Op::ExpF64 => un!(o, w -> w, |x| g(x).exp().to_bits()),
        Op::Exp2F64 => un!(o, w -> w, |x| g(x).exp2().to_bits()),
        Op::Log2F64 => un!(o, w -> w, |x| g(x).log2().to_bits()),
        Op::TanhF64 => un!(o, w -> w, |x| g(x).tanh().to_bits()),
        Op::ErfF64 => un!(o, w -> w, |x| libm::erf(g(x)).to_bits()),
        Op::SqrtF64 => un!(o, w -> w, |x| g(x).sqrt().to_bits()),
        Op::BoolFrom32 => un!(o, r -> r, |x| (x != 0) as u32),
        Op::BoolFrom64 => un!(o, w -> r, |x| (x != 0) as u32),
        Op::BoolFromF32 => un!(o, r -> r, |x| (f(x) != 0.0) as u32),
        Op::BoolFromF64 => un!(o, w -> r, |x| (g(x) != 0.0) as u32),
        Op::I32FromI64 => un!(o, w -> r, |x| x as u32),
        Op::I64FromU32 => un!(o, r -> w, |x| x as u64),
        Op::I32FromI8 => un!(o, r -> r, |x| x as u8 as i8 as i32 as u32),
        Op::U8FromI32 => un!(o, r -> r, |x| x & 0xff),
        Op::F32FromU32 => un!(o, r -> r, |x| (x as f32).to_bits()),
        Op::F32FromI64 => un!(o, w -> r, |x| (x as i64 as f32).to_bits()),
        Op::F64FromI32 => un!(o, r -> w, |x| (x as i32 as f64).to_bits()),
        Op::F64FromU32 => un!(o, r -> w, |x| (x as f64).to_bits()),
        Op::F64FromI64 => un!(o, w -> w, |x| (x as i64 as f64).to_bits()),
        Op::I32FromF32 => un!(o, r -> r, |x| f(x) as i32 as u32),
        Op::U32FromF32 => un!(o, r -> r, |x| f(x) as u32),
        Op::I64FromF32 => un!(o, r -> w, |x| f(x) as i64 as u64),
        Op::I32FromF64 => un!(o, w -> r, |x| g(x) as i32 as u32),
        Op::U32FromF64 => un!(o, w -> r, |x| g(x) as u32),
        Op::I64FromF64 => un!(o, w -> w, |x| g(x) as i64 as u64),
        Op::F32FromF64 => un!(o, w -> r, |x| (g(x) as f32).to_bits()),
        Op::F64FromF32 => un!(o, r -> w, |x| (f(x) as f64).to_bits()),
        Op::F32FromE4M3 => un!(o, r -> r, |x| F8E4M3::from_bits(x as u8).to_f32().to_bits()),
        Op::F32FromE5M2 => un!(o, r -> r, |x| F8E5M2::from_bits(x as u8).to_f32().to_bits()),
        Op::F32FromE4M3Fnuz => un!(o, r -> r, |x| F8E4M3Fnuz::from_bits(x as u8).to_f32().to_bits()),
        Op::F32FromE5M2Fnuz => un!(o, r -> r, |x| F8E5M2Fnuz::from_bits(x as u8).to_f32().to_bits()),
        Op::E4M3FromF32 => un!(o, r -> r, |x| F8E4M3::from_f32(f(x)).to_bits().into()),
        Op::E5M2FromF32 => un!(o, r -> r, |x| F8E5M2::from_f32(f(x)).to_bits().into()),
        Op::E4M3FnuzFromF32 => un!(o, r -> r, |x| F8E4M3Fnuz::from_f32(f(x)).to_bits().into()),
        Op::E5M2FnuzFromF32 => un!(o, r -> r, |x| F8E5M2Fnuz::from_f32(f(x)).to_bits().into()),
        Op::F16FromF64 => un!(o, w -> r, |x| f16::from_f64(g(x)).to_bits() as u32),
        Op::BF16FromF64 => un!(o, w -> r, |x| bf16::from_f64(g(x)).to_bits() as u32),

        _ => {}
    }
}
