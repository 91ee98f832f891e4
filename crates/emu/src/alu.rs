//! Arithmetic over all lanes: one function runs a straight line of operations on the register files.
//!
//! Semantics: integers wrap (the `Checked` forms also report the lanes that left their type); division by zero is reported and gives
//! 0; float arithmetic is IEEE with one rounding per operation; `Min`/`Max` are `fmin`/`fmax`; conversions to narrower floats
//! round to nearest even; float to integer truncates, saturates and sends NaN to 0; shift counts count modulo the width.

use crate::lanes::{B32, B64, Files, LANES, Slot, View};
use crate::rare;
use half::{bf16, f16};
use std::cell::Cell;

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
    AddF32, SubF32, MulF32, DivF32, RemF32, MinF32, MaxF32, LtF32, LeF32, EqF32, NeF32,
    AddF64, SubF64, MulF64, DivF64, RemF64, MinF64, MaxF64, LtF64, LeF64, EqF64, NeF64,
    CheckedAddI32, CheckedSubI32, CheckedMulI32, CheckedAddI64, CheckedSubI64, CheckedMulI64,
    NegF32, NegF64, NotBool,
    ExpF32, TanhF32, ErfF32, SqrtF32, SigmoidF32, RoundTf32, ExpF64, TanhF64, ErfF64, SqrtF64, SigmoidF64,
    BoolFrom32, BoolFrom64, BoolFromF32, BoolFromF64,
    I32FromI64, I64FromI32, I64FromU32,
    F32FromI32, F32FromU32, F32FromI64, F64FromI32, F64FromU32, F64FromI64,
    I32FromF32, U32FromF32, I64FromF32, I32FromF64, U32FromF64, I64FromF64,
    F32FromF64, F64FromF32, F32FromF16, F32FromBF16, F16FromF32, BF16FromF32, F16FromF64, BF16FromF64,
}

/// What went wrong in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    OverflowI32,
    OverflowI64,
    DivideByZero,
}

/// An operation that faulted in some lanes. Its result is stored; running may go on behind it.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Position in the operations run.
    pub(crate) op: usize,
    pub(crate) kind: FaultKind,
    /// Lanes concerned, whether they count or not.
    pub(crate) lanes: Vec<usize>,
}

/// A block type of a register file, lane by lane.
pub(crate) trait Block: Copy {
    type Word: Copy + Default;
    fn lanes(self) -> [Self::Word; LANES];
    fn from_lanes(lanes: [Self::Word; LANES]) -> Self;
}
impl Block for B32 {
    type Word = u32;
    #[inline(always)]
    fn lanes(self) -> [u32; LANES] {
        self.0
    }
    #[inline(always)]
    fn from_lanes(lanes: [u32; LANES]) -> B32 {
        B32(lanes)
    }
}
impl Block for B64 {
    type Word = u64;
    #[inline(always)]
    fn lanes(self) -> [u64; LANES] {
        self.0
    }
    #[inline(always)]
    fn from_lanes(lanes: [u64; LANES]) -> B64 {
        B64(lanes)
    }
}

#[inline(always)]
fn lanes1<A: Block, D: Block>(a: A, f: impl Fn(A::Word) -> D::Word) -> D {
    let (a, mut d) = (a.lanes(), [D::Word::default(); LANES]);
    for l in 0..LANES {
        d[l] = f(a[l]);
    }
    D::from_lanes(d)
}
#[inline(always)]
fn lanes2<A: Block, B: Block, D: Block>(a: A, b: B, f: impl Fn(A::Word, B::Word) -> D::Word) -> D {
    let (a, b, mut d) = (a.lanes(), b.lanes(), [D::Word::default(); LANES]);
    for l in 0..LANES {
        d[l] = f(a[l], b[l]);
    }
    D::from_lanes(d)
}
#[inline(always)]
fn lanes3<A: Block, B: Block>(a: A, b: B, c: B, f: impl Fn(A::Word, B::Word, B::Word) -> B::Word) -> B {
    let (a, b, c, mut d) = (a.lanes(), b.lanes(), c.lanes(), [B::Word::default(); LANES]);
    for l in 0..LANES {
        d[l] = f(a[l], b[l], c[l]);
    }
    B::from_lanes(d)
}

/// The i-th block of a slot; a uniform slot has one block that stands for all.
#[inline(always)]
fn nth<B: Copy>(x: &[Cell<B>], i: usize) -> B {
    x[if x.len() == 1 { 0 } else { i }].get()
}

#[inline(always)]
pub(crate) fn map1<A: Block, D: Block>(d: &[Cell<D>], a: &[Cell<A>], f: impl Fn(A::Word) -> D::Word) {
    for (i, d) in d.iter().enumerate() {
        d.set(lanes1(nth(a, i), &f));
    }
}

/// Written out for the usual operand kinds, so that the loop over blocks carries no test.
#[inline(always)]
pub(crate) fn map2<A: Block, D: Block>(d: &[Cell<D>], a: &[Cell<A>], b: &[Cell<A>], f: impl Fn(A::Word, A::Word) -> D::Word) {
    if a.len() == d.len() && b.len() == d.len() {
        for ((d, a), b) in d.iter().zip(a).zip(b) {
            d.set(lanes2(a.get(), b.get(), &f));
        }
    } else if b.len() == 1 && a.len() == d.len() {
        let b = b[0].get();
        for (d, a) in d.iter().zip(a) {
            d.set(lanes2(a.get(), b, &f));
        }
    } else {
        for (i, d) in d.iter().enumerate() {
            d.set(lanes2(nth(a, i), nth(b, i), &f));
        }
    }
}
#[inline(always)]
fn map3<A: Block, B: Block>(
    d: &[Cell<B>],
    a: &[Cell<A>],
    b: &[Cell<B>],
    c: &[Cell<B>],
    f: impl Fn(A::Word, B::Word, B::Word) -> B::Word,
) {
    let n = d.len();
    if a.len() == n && b.len() == n && c.len() == n {
        for (((d, a), b), c) in d.iter().zip(a).zip(b).zip(c) {
            d.set(lanes3(a.get(), b.get(), c.get(), &f));
        }
    } else {
        for (i, d) in d.iter().enumerate() {
            d.set(lanes3(nth(a, i), nth(b, i), nth(c, i), &f));
        }
    }
}

/// As [`map2`], collecting the lanes whose second result is set.
#[inline(always)]
pub(crate) fn checked2<A: Block>(
    d: &[Cell<A>],
    a: &[Cell<A>],
    b: &[Cell<A>],
    f: impl Fn(A::Word, A::Word) -> (A::Word, bool),
) -> Option<Vec<usize>> {
    let mut faulty: Option<Vec<usize>> = None;
    for (i, d) in d.iter().enumerate() {
        let (a, b, mut out) = (nth(a, i).lanes(), nth(b, i).lanes(), [A::Word::default(); LANES]);
        let mut bad = [0u32; LANES];
        for l in 0..LANES {
            let (r, fault) = f(a[l], b[l]);
            out[l] = r;
            bad[l] = fault as u32;
        }
        d.set(A::from_lanes(out));
        if bad.iter().fold(0, |x, y| x | y) != 0 {
            faulty.get_or_insert_default().extend((0..LANES).filter(|&l| bad[l] != 0).map(|l| i * LANES + l));
        }
    }
    faulty
}

#[inline(always)]
pub(crate) fn f(x: u32) -> f32 {
    f32::from_bits(x)
}
#[inline(always)]
pub(crate) fn g(x: u64) -> f64 {
    f64::from_bits(x)
}
#[inline(always)]
pub(crate) fn divide32(x: i32, y: i32) -> i32 {
    // Exact: a quotient of 32-bit integers that is no integer lies further from one than a double's rounding reaches. Vectorises.
    (x as f64 / y as f64) as i64 as i32
}

/// Runs operations in order; stops behind the first one that faults.
#[inline(always)]
pub(crate) fn run(files: &mut Files, ops: &[Alu], from: usize) -> Option<Fault> {
    let (r, w) = (files.r32.view(), files.r64.view());
    for (i, o) in ops.iter().enumerate().skip(from) {
        if let Err((kind, lanes)) = step(r, w, o) {
            return Some(Fault { op: i, kind, lanes });
        }
    }
    None
}

/// Lanes in which an operation faulted, and how.
pub(crate) type Faults = (FaultKind, Vec<usize>);

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
                return Err((FaultKind::$kind, lanes));
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
    use crate::lanes::File;
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
    fn faults_name_their_lanes_and_running_goes_on_behind_them() {
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
