//! Arithmetic over all lanes: one function runs a straight line of operations on the register files.
//!
//! Semantics:
//!
//! - Integers wrap. The `Checked` forms also report the lanes that left their type.
//! - Division by zero is reported and gives 0.
//! - Float arithmetic is IEEE with one rounding per operation.
//! - `Min`/`Max` are `fmin`/`fmax`.
//! - Conversions to narrower floats round to nearest even.
//! - Float to integer truncates, saturates and sends NaN to 0.
//! - Shift counts count modulo the width.

use crate::lanes::{B32, B64, Files, View};
use crate::map::{checked2, divide32, f, g, map1, map2, map3};
use crate::op::{Alu, Fault, FaultKind, Faults, Op};
use crate::rare;
use half::{bf16, f16};

/// Runs operations in order; stops after the first one that faults.
#[inline(always)]
pub(crate) fn run(files: &mut Files, ops: &[Alu], from: usize) -> Option<Fault> {
    let (r, w) = (files.r32.view(), files.r64.view());
    for (i, o) in ops.iter().enumerate().skip(from) {
        if let Err(Faults { kind, lanes }) = step(r, w, o) {
            return Some(Fault { op: i, kind, lanes });
        }
    }
    None
}

/// The operations that kernels spend their time in; the others are in [`rare`].
#[inline(always)]
fn step(r: View<'_, B32>, w: View<'_, B64>, o: &Alu) -> Result<(), Faults> {
    let (d, a, b, c) = (o.d, o.a, o.b, o.c);
    macro_rules! un {
        ($from:ident -> $to:ident, $f:expr) => {
            map1($to.get(d), $from.get(a), $f)
        };
    }
    macro_rules! bin {
        ($from:ident -> $to:ident, $f:expr) => {
            map2($to.get(d), $from.get(a), $from.get(b), $f)
        };
    }
    macro_rules! checked {
        ($file:ident, $kind:ident, $f:expr) => {
            if let Some(lanes) = checked2($file.get(d), $file.get(a), $file.get(b), $f) {
                return Err(Faults { kind: FaultKind::$kind, lanes });
            }
        };
    }
    macro_rules! checked_i32 {
        ($f:ident) => {
            checked!(r, OverflowI32, |x, y| {
                let (v, o) = (x as i32).$f(y as i32);
                (v as u32, o)
            })
        };
    }
    macro_rules! checked_i64 {
        ($f:ident) => {
            checked!(w, OverflowI64, |x, y| {
                let (v, o) = (x as i64).$f(y as i64);
                (v as u64, o)
            })
        };
    }
    match o.op {
        Op::Nop => {}
        Op::FmaF32 => map3(r.get(d), r.get(a), r.get(b), r.get(c), |x, y, z| f(x).mul_add(f(y), f(z)).to_bits()),
        Op::MulAddF32 => map3(r.get(d), r.get(a), r.get(b), r.get(c), |x, y, z| (f(x) * f(y) + f(z)).to_bits()),
        Op::FmaF64 => map3(w.get(d), w.get(a), w.get(b), w.get(c), |x, y, z| g(x).mul_add(g(y), g(z)).to_bits()),
        Op::MulAddF64 => map3(w.get(d), w.get(a), w.get(b), w.get(c), |x, y, z| (g(x) * g(y) + g(z)).to_bits()),
        Op::Mov32 => un!(r -> r, |x| x),
        Op::Mov64 => un!(w -> w, |x| x),
        Op::Select32 => map3(r.get(d), r.get(a), r.get(b), r.get(c), |m, x, y| if m != 0 { x } else { y }),
        Op::Select64 => map3(w.get(d), r.get(a), w.get(b), w.get(c), |m, x, y| if m != 0 { x } else { y }),
        Op::AddI32 => bin!(r -> r, |x: u32, y| x.wrapping_add(y)),
        Op::SubI32 => bin!(r -> r, |x: u32, y| x.wrapping_sub(y)),
        Op::MulI32 => bin!(r -> r, |x: u32, y| x.wrapping_mul(y)),
        Op::MinI32 => bin!(r -> r, |x, y| (x as i32).min(y as i32) as u32),
        Op::MaxI32 => bin!(r -> r, |x, y| (x as i32).max(y as i32) as u32),
        Op::And32 => bin!(r -> r, |x, y| x & y),
        Op::Or32 => bin!(r -> r, |x, y| x | y),
        Op::Xor32 => bin!(r -> r, |x, y| x ^ y),
        Op::AndNot32 => bin!(r -> r, |x, y| x & !y),
        Op::LtI32 => bin!(r -> r, |x, y| ((x as i32) < y as i32) as u32),
        Op::LeI32 => bin!(r -> r, |x, y| (x as i32 <= y as i32) as u32),
        Op::Eq32 => bin!(r -> r, |x, y| (x == y) as u32),
        Op::Ne32 => bin!(r -> r, |x, y| (x != y) as u32),
        Op::AddI64 => bin!(w -> w, |x: u64, y| x.wrapping_add(y)),
        Op::SubI64 => bin!(w -> w, |x: u64, y| x.wrapping_sub(y)),
        Op::MulI64 => bin!(w -> w, |x: u64, y| x.wrapping_mul(y)),
        Op::LtI64 => bin!(w -> r, |x, y| ((x as i64) < y as i64) as u32),
        Op::AddF32 => bin!(r -> r, |x, y| (f(x) + f(y)).to_bits()),
        Op::SubF32 => bin!(r -> r, |x, y| (f(x) - f(y)).to_bits()),
        Op::MulF32 => bin!(r -> r, |x, y| (f(x) * f(y)).to_bits()),
        Op::MaxF32 => bin!(r -> r, |x, y| f(x).max(f(y)).to_bits()),
        Op::AddF64 => bin!(w -> w, |x, y| (g(x) + g(y)).to_bits()),
        Op::SubF64 => bin!(w -> w, |x, y| (g(x) - g(y)).to_bits()),
        Op::MulF64 => bin!(w -> w, |x, y| (g(x) * g(y)).to_bits()),
        Op::CheckedAddI32 => checked_i32!(overflowing_add),
        Op::CheckedSubI32 => checked_i32!(overflowing_sub),
        Op::CheckedMulI32 => checked_i32!(overflowing_mul),
        Op::CheckedAddI64 => checked_i64!(overflowing_add),
        Op::CheckedMulI64 => checked_i64!(overflowing_mul),
        Op::DivI32 => {
            checked!(r, DivideByZero, |x, y| if y == 0 { (0, true) } else { (divide32(x as i32, y as i32) as u32, false) })
        }
        Op::RemI32 => checked!(r, DivideByZero, |x, y| {
            let (x, y) = (x as i32, y as i32);
            if y == 0 { (0, true) } else { (x.wrapping_sub(divide32(x, y).wrapping_mul(y)) as u32, false) }
        }),
        Op::NegF32 => un!(r -> r, |x| (-f(x)).to_bits()),
        Op::NotBool => un!(r -> r, |x| x ^ 1),
        Op::I64FromI32 => un!(r -> w, |x| x as i32 as i64 as u64),
        Op::F32FromI32 => un!(r -> r, |x| (x as i32 as f32).to_bits()),
        Op::F32FromF16 => un!(r -> r, |x| f16::from_bits(x as u16).to_f32().to_bits()),
        Op::F32FromBF16 => un!(r -> r, |x| bf16::from_bits(x as u16).to_f32().to_bits()),
        Op::F16FromF32 => un!(r -> r, |x| f16::from_f32(f(x)).to_bits() as u32),
        Op::BF16FromF32 => un!(r -> r, |x| bf16::from_f32(f(x)).to_bits() as u32),
        _ => return rare::step(r, w, o),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{File, LANES, Slot};
    use crate::simd::Level;

    fn files() -> Files {
        Files { r32: File::new(2, 4, 3, B32([0; LANES])), r64: File::new(2, 4, 3, B64([0; LANES])), blocks: 3 }
    }
    fn v(n: u32) -> Slot {
        Slot::varying(n)
    }
    fn one(op: Op, x: u32, y: u32) -> (u32, Option<FaultKind>) {
        let mut results = Vec::new();
        for level in Level::all() {
            let mut fs = files();
            fs.r32.get_mut(v(0)).fill(B32([x; LANES]));
            fs.r32.get_mut(v(1)).fill(B32([y; LANES]));
            let fault = level.run(&mut fs, &[Alu { op, d: v(2), a: v(0), b: v(1), c: Slot::NONE }], 0);
            let d = fs.r32.get_mut(v(2));
            assert!(d.iter().flat_map(|b| b.0).all(|z| z == d[0].0[0]));
            results.push((d[0].0[0], fault.map(|f| f.kind)));
        }
        assert!(results.iter().all(|r| *r == results[0]), "instruction sets disagree on {op:?}");
        results[0]
    }

    #[test]
    fn integer_edges() {
        let m = i32::MIN as u32;
        assert_eq!(one(Op::AddI32, i32::MAX as u32, 1), (m, None));
        assert_eq!(one(Op::CheckedAddI32, i32::MAX as u32, 1), (m, Some(FaultKind::OverflowI32)));
        assert_eq!(one(Op::CheckedMulI32, 1 << 16, 1 << 15), (m, Some(FaultKind::OverflowI32)));
        assert_eq!(one(Op::CheckedSubI32, 5, 7), (-2i32 as u32, None));
        assert_eq!(one(Op::DivI32, -7i32 as u32, 2), (-3i32 as u32, None));
        assert_eq!(one(Op::RemI32, -7i32 as u32, 2), (-1i32 as u32, None));
        assert_eq!(one(Op::DivI32, m, -1i32 as u32), (m, None));
        assert_eq!(one(Op::RemI32, m, -1i32 as u32), (0, None));
        assert_eq!(one(Op::DivI32, 7, 0), (0, Some(FaultKind::DivideByZero)));
        assert_eq!(one(Op::RemU32, 7, 0), (0, Some(FaultKind::DivideByZero)));
        assert_eq!(one(Op::DivU32, u32::MAX, 2), (u32::MAX / 2, None));
        assert_eq!(one(Op::ShrI32, m, 31), (u32::MAX, None));
        assert_eq!(one(Op::LtI32, m, 0), (1, None));
        assert_eq!(one(Op::LtU32, m, 0), (0, None));
    }

    #[test]
    fn division_is_exact_over_a_spread() {
        let edge = [i32::MIN, i32::MIN + 1, -65537, -3, -1, 1, 2, 3, 7, 65535, 46341, i32::MAX - 1, i32::MAX];
        for x in edge {
            for y in edge {
                assert_eq!(one(Op::DivI32, x as u32, y as u32).0, x.wrapping_div(y) as u32, "{x} / {y}");
                assert_eq!(one(Op::RemI32, x as u32, y as u32).0, x.wrapping_rem(y) as u32, "{x} % {y}");
            }
        }
    }

    #[test]
    fn float_edges() {
        let nan = f32::NAN.to_bits();
        assert_eq!(one(Op::MaxF32, nan, 1f32.to_bits()).0, 1f32.to_bits());
        assert_eq!(one(Op::LtF32, nan, 1f32.to_bits()).0, 0);
        assert_eq!(one(Op::NeF32, nan, nan).0, 1);
        assert_eq!(one(Op::I32FromF32, 3e9f32.to_bits(), 0).0, i32::MAX as u32);
        assert_eq!(one(Op::I32FromF32, nan, 0).0, 0);
        // Ties to even: 2049 lies between 2048 and 2050 in binary16.
        assert_eq!(one(Op::F16FromF32, 2049f32.to_bits(), 0).0, f16::from_f32(2048.0).to_bits() as u32);
        assert_eq!(one(Op::BF16FromF32, 257f32.to_bits(), 0).0, bf16::from_f32(256.0).to_bits() as u32);
    }

    #[test]
    fn fma_rounds_once_and_mul_add_twice() {
        let x = 1.0 + f32::EPSILON;
        for level in Level::all() {
            let mut fs = files();
            fs.r32.get_mut(v(0)).fill(B32([x.to_bits(); LANES]));
            fs.r32.get_mut(v(1)).fill(B32([(-(x * x)).to_bits(); LANES]));
            let op = |op, d| Alu { op, d: v(d), a: v(0), b: v(0), c: v(1) };
            assert!(level.run(&mut fs, &[op(Op::FmaF32, 2), op(Op::MulAddF32, 3)], 0).is_none());
            assert_eq!(f32::from_bits(fs.r32.get_mut(v(2))[0].0[0]), f32::EPSILON * f32::EPSILON);
            assert_eq!(f32::from_bits(fs.r32.get_mut(v(3))[0].0[0]), 0.0);
        }
    }

    #[test]
    fn uniform_operands_stand_for_every_lane() {
        let mut fs = files();
        let u = Slot::uniform(1);
        fs.r32.get_mut(u).fill(B32([7; LANES]));
        for (i, b) in fs.r32.get_mut(v(0)).iter_mut().enumerate() {
            *b = B32([i as u32; LANES]);
        }
        let op = |a, b| Alu { op: Op::SubI32, d: v(1), a, b, c: Slot::NONE };
        for (a, b, want) in [(v(0), u, [-7, -6, -5]), (u, v(0), [7, 6, 5]), (u, u, [0, 0, 0])] {
            assert!(Level::detect().run(&mut fs, &[op(a, b)], 0).is_none());
            assert_eq!(fs.r32.get_mut(v(1)).iter().map(|b| b.0[15] as i32).collect::<Vec<_>>(), want);
        }
    }

    #[test]
    fn faults_name_their_lanes_and_running_continues_after_them() {
        let mut fs = files();
        fs.r32.get_mut(v(0)).fill(B32([1; LANES]));
        fs.r32.get_mut(v(0))[1].0[3] = i32::MAX as u32;
        let add = Alu { op: Op::CheckedAddI32, d: v(1), a: v(0), b: v(0), c: Slot::NONE };
        let ops = [add, Alu { op: Op::AddI32, d: v(2), ..add }];
        let fault = Level::detect().run(&mut fs, &ops, 0).unwrap();
        assert_eq!((fault.op, fault.lanes.as_slice()), (0, &[LANES + 3][..]));
        assert!(Level::detect().run(&mut fs, &ops, fault.op + 1).is_none());
        assert_eq!(fs.r32.get_mut(v(2))[0].0[0], 2);
    }
}
