//! Sums in fewer bits than f32 has, as NVIDIA's units for 8-bit floats keep them.

use crate::simd::Level;
use tilewright_ir::Mma;

/// Adds the product of operand A (row by row) and operand B (n values for each k) to accumulators. It rounds once per addition in the order
/// of k, or as the instruction does.
pub(super) fn multiply(level: Level, row: &Mma, acc: &mut [u32], left: &[f32], right: &[f32], n: usize) {
    // NaN and infinity propagate independently of the number of kept bits.
    let finite = |acc: &[u32]| acc.iter().all(|s| f32::from_bits(*s).is_finite());
    match row.fraction() {
        Some(fraction) if finite(acc) && left.iter().chain(right).all(|x| x.is_finite()) => {
            aligned(acc, left, right, n, fraction as i32);
        }
        _ => level.multiply(acc, left, right, n, row.sum),
    }
}

/// All products and the sum so far are aligned to the largest of them, and cut off so many bits below its leading one.
fn aligned(acc: &mut [u32], left: &[f32], right: &[f32], n: usize, fraction: i32) {
    let depth = right.len() / n.max(1);
    let (mut scales, mut totals) = (vec![0f32; n], vec![0i32; n]);
    for (acc, left) in acc.chunks_exact_mut(n.max(1)).zip(left.chunks_exact(depth.max(1))) {
        scales.iter_mut().zip(&*acc).for_each(|(most, s)| *most = f32::from_bits(*s).abs());
        for (&a, right) in left.iter().zip(right.chunks_exact(n)) {
            scales.iter_mut().zip(right).for_each(|(most, &b)| *most = most.max((a * b).abs()));
        }
        for ((scale, total), s) in scales.iter_mut().zip(&mut totals).zip(&*acc) {
            let exponent = ((scale.to_bits() >> 23) as i32 - 127).max(-100);
            *scale = f32::from_bits(((fraction - exponent + 127) as u32) << 23);
            *total = (f32::from_bits(*s) * *scale) as i32;
        }
        for (&a, right) in left.iter().zip(right.chunks_exact(n)) {
            for ((total, scale), &b) in totals.iter_mut().zip(&scales).zip(right) {
                *total += (a * b * scale) as i32;
            }
        }
        acc.iter_mut().zip(totals.iter().zip(&scales)).for_each(|(s, (total, scale))| *s = (*total as f32 / scale).to_bits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::{MathUnit, MatrixType};

    fn sum(unit: MathUnit, first: f32, products: &[f32]) -> f32 {
        let row = Mma::find(unit, MatrixType::E4M3).expect("an instruction");
        let mut acc = [first.to_bits()];
        multiply(Level::detect(), row, &mut acc, &vec![1.0; products.len()], products, 1);
        f32::from_bits(acc[0])
    }

    #[test]
    fn what_lies_below_the_largest_is_cut_off() {
        let (wgmma, mfma) = (MathUnit::Warpgroup, MathUnit::Mfma);
        assert_eq!(sum(wgmma, 8192.0, &[1.0, 0.75, -0.75]), 8193.0);
        // The last bit of 16384 is 2: each term is truncated separately, towards zero.
        assert_eq!(sum(wgmma, 16384.0, &[1.0, 1.0, 3.0, -3.0, -1.5]), 16384.0);
        assert_eq!(sum(mfma, 16384.0, &[1.0, 1.0, 3.0, -3.0, -1.5]), 16384.5);
        assert_eq!(sum(wgmma, 0.0, &[0.001, 448.0, -448.0]), 0.0);
        assert_eq!(sum(wgmma, 0.0, &[0.0, 0.0]), 0.0);
        assert!(sum(wgmma, 1.0, &[f32::NAN, 1.0]).is_nan());
    }
}
