//! Runs work on lanes compiled for the best instruction set of this machine. With `gather`, the only unsafe code of the
//! crate.

use crate::alu::run;
use crate::lanes::Files;
use crate::op::{Alu, Fault};
use crate::quick::{self, Quick};
use crate::shadow::{Clocks, SharedShadow};
use tilewright_ir::Scalar;

/// An instruction set that this machine has: values come from [`Level::detect`] and [`Level::all`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn run_avx2(files: &mut Files, ops: &[Alu], from: usize) -> Option<Fault> {
    run(files, ops, from)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")]
fn run_avx512(files: &mut Files, ops: &[Alu], from: usize) -> Option<Fault> {
    run(files, ops, from)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn load_avx2(f: &mut Files, words: &[u32], shadow: Option<(&mut SharedShadow, &Clocks)>, q: &Quick<'_>, from: usize) -> usize {
    quick::load(f, words, shadow, q, from)
}

/// `acc[row][column] += left[row][k] * right[k][column]` over all k in order, `n` columns, of the bits of floats, or of integers, which
/// wrap.
#[inline(always)]
fn multiply(acc: &mut [u32], left: &[f32], right: &[f32], n: usize, sum: Scalar) {
    match sum {
        Scalar::I32 => accumulate(acc, left, right, n, |s, product| s.wrapping_add(product as i32 as u32)),
        _ => accumulate(acc, left, right, n, |s, product| (f32::from_bits(s) + product).to_bits()),
    }
}

#[inline(always)]
fn accumulate(acc: &mut [u32], left: &[f32], right: &[f32], n: usize, add: impl Fn(u32, f32) -> u32) {
    let depth = right.len() / n.max(1);
    for (acc, left) in acc.chunks_exact_mut(n).zip(left.chunks_exact(depth.max(1))) {
        for (&a, right) in left.iter().zip(right.chunks_exact(n)) {
            for (s, &b) in acc.iter_mut().zip(right) {
                *s = add(*s, a * b);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn multiply_avx2(acc: &mut [u32], left: &[f32], right: &[f32], n: usize, sum: Scalar) {
    multiply(acc, left, right, n, sum)
}

impl Level {
    /// The best there is.
    pub(crate) fn detect() -> Level {
        let mut best = Level(Set::Baseline);
        for level in Level::all() {
            best = level;
        }
        best
    }
    /// Everything there is, from the plainest to the best.
    pub(crate) fn all() -> impl Iterator<Item = Level> {
        let sets = [
            Some(Set::Baseline),
            #[cfg(target_arch = "x86_64")]
            has_avx2().then_some(Set::Avx2),
            #[cfg(target_arch = "x86_64")]
            (has_avx2() && has_avx512()).then_some(Set::Avx512),
        ];
        sets.into_iter().flatten().map(Level)
    }
    /// Runs operations from position `from` on; stops after the first one that faults.
    pub(crate) fn run(self, files: &mut Files, ops: &[Alu], from: usize) -> Option<Fault> {
        match self.0 {
            Set::Baseline => run(files, ops, from),
            // SAFETY: an `Avx2` value is made by `all` only after detecting every feature that `run_avx2` enables.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { run_avx2(files, ops, from) },
            // SAFETY: an `Avx512` value is made by `all` only after detecting every feature that `run_avx512` enables.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => unsafe { run_avx512(files, ops, from) },
        }
    }
    /// Multiplies matrices: rows of `n` accumulators of type `sum`, as many rows of `left`, `right` by rows of `n`.
    pub(crate) fn multiply(self, acc: &mut [u32], left: &[f32], right: &[f32], n: usize, sum: Scalar) {
        match self.0 {
            Set::Baseline => multiply(acc, left, right, n, sum),
            // SAFETY: as in `run`; every CPU with AVX-512 here has AVX2 too, as `all` demands.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 | Set::Avx512 => unsafe { multiply_avx2(acc, left, right, n, sum) },
        }
    }
    /// Loads blocks from `from` on until one needs care; its number, or the number of blocks.
    pub(crate) fn load(
        self,
        files: &mut Files,
        words: &[u32],
        shadow: Option<(&mut SharedShadow, &Clocks)>,
        q: &Quick<'_>,
        from: usize,
    ) -> usize {
        match self.0 {
            Set::Baseline => quick::load(files, words, shadow, q, from),
            // SAFETY: as in `run`; every CPU with AVX-512 here has AVX2 too, as `all` demands. With AVX-512 the compiler would make gather
            // instructions, which are slower than sixteen loads.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 | Set::Avx512 => unsafe { load_avx2(files, words, shadow, q, from) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    use std::is_x86_feature_detected as has;
    has!("avx2") && has!("fma") && has!("f16c") && has!("bmi2")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    use std::is_x86_feature_detected as has;
    has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl")
}
