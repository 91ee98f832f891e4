//! Functions of single values run over the blocks of slots.

use crate::lanes::{B32, B64, LANES};
use std::cell::Cell;

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
pub(crate) fn map3<A: Block, B: Block>(
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
