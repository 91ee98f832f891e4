//! Precision of products and accumulators, where the element type leaves a choice.

use crate::error::ProblemError;
use crate::factor_parts::FactorParts;
use crate::names::names;
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// Precision of products, where the type of the operands leaves a choice. It changes the bound of the error, so the user says it; a
/// plan never does.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Math};
///
/// // f32 operands on TF32 units, with three products for almost all of f32's accuracy.
/// let math = Math::named("tf32x3").expect("a precision");
/// assert_eq!(Gemm::new(Scalar::F32, 64, 64, 64).math(math).build()?.math, math);
/// let error = Gemm::new(Scalar::F16, 64, 64, 64).math(math).build().unwrap_err();
/// assert_eq!(error.to_string(), "math = tf32x3: it is a way to multiply f32, the operands are f16");
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Math {
    /// In the type itself; 16-bit types are summed in f32.
    #[default]
    Exact,
    /// f32 factors may lose the lower 13 bits of their mantissa before they are multiplied: units for TF32 may be used. Sums and
    /// results are f32.
    Tf32,
    /// Each f32 element is split into two TF32 numbers: the nearest one and the remainder. TF32 units add three of the four products; the
    /// smallest is dropped. Almost all of f32's accuracy is kept (Markidis et al. 2018, Ootomo and Yokota 2022). Infinities in A or B, and values within 2^-11 of f32's largest, give NaN.
    Tf32x3,
    /// Each f32 element is split into two bf16 numbers, and three of the four products are added: 16 of f32's 24 bits are kept. Infinities in A
    /// or B, and values from 2^128 (1 - 2^-9) on, which bf16 rounds to infinity, give NaN.
    Bf16x3,
    /// Each f32 element is split into three bf16 numbers, which hold all of f32's 24 bits. Matrix units for bf16 add six of the
    /// nine products. The three smallest are dropped (Henry, Tang and Heinecke 2019). Infinities and the largest values give NaN
    /// as well.
    Bf16x6,
    /// Two-level accumulation of 8-bit floats: after [`Math::PROMOTED_EVERY`] terms the matrix unit's accumulator is added to an f32 total and
    /// cleared. The error of a unit that keeps fewer bits than f32 does not grow with k (DeepSeek-V3, arXiv 2412.19437, section 3.3.2;
    /// cuBLASLt without fast accumulation).
    Promoted,
}

names!(Math {
    Exact = 0, ["exact"], "in the type itself";
    Tf32 = 1, ["tf32"], "f32 rounded to TF32";
    Tf32x3 = 2, ["tf32x3", "3xtf32"], "three products of TF32";
    Bf16x3 = 4, ["bf16x3"], "three products of bf16";
    Bf16x6 = 5, ["bf16x6"], "six products of bf16";
    Promoted = 3, ["promoted"], "sums of 8-bit floats in two levels";
});

impl Math {
    /// Terms of a sum after which it is promoted to f32.
    pub const PROMOTED_EVERY: u32 = 128;

    /// True if nothing is lost: what keys and records leave out.
    pub fn is_exact(&self) -> bool {
        *self == Math::Exact
    }
    /// Types of factors that can be multiplied so, other than exactly.
    const fn types(self) -> &'static [Scalar] {
        match self {
            Math::Exact => &[],
            Math::Tf32 | Math::Tf32x3 | Math::Bf16x3 | Math::Bf16x6 => &[Scalar::F32],
            Math::Promoted => &[Scalar::E4M3, Scalar::E5M2, Scalar::E4M3Fnuz, Scalar::E5M2Fnuz],
        }
    }
    /// True if factors of this type can be multiplied so.
    pub fn suits(self, dtype: Scalar) -> bool {
        self.is_exact() || self.types().contains(&dtype)
    }
    /// Refuses ways to multiply one type for others.
    pub(crate) fn check(self, dtype: Scalar) -> Result<(), ProblemError> {
        if self.suits(dtype) {
            return Ok(());
        }
        let what = if self == Math::Promoted { "add up products of 8-bit floats" } else { "multiply f32" };
        Err(ProblemError::value("math", self.name(), format!("it is a way to {what}, the operands are {dtype}")))
    }
    /// What factors are split into, where they are.
    pub const fn split(self) -> Option<FactorParts> {
        match self {
            Math::Tf32x3 => Some(FactorParts::TF32_TWICE),
            Math::Bf16x3 => Some(FactorParts::BF16_TWICE),
            Math::Bf16x6 => Some(FactorParts::BF16_THRICE),
            Math::Exact | Math::Tf32 | Math::Promoted => None,
        }
    }
    /// Largest relative error of the product of two elements.
    ///
    /// TF32: each element loses at most 2^-10 of its value if the unit truncates, 2^-11 if it rounds.
    ///
    /// Three products of TF32: the smaller part of an element is at most 2^-11 of it. So the dropped product of two smaller parts
    /// is at most 2^-22. Units also drop the last bit of a smaller part, 2^-23 of each element. The larger part is rounded to
    /// nearest. If it were truncated, the smaller part would need two bits more than units read, and the errors would add to
    /// 2^-19.
    ///
    /// bf16 has 8 bits. Take an element between 2^e and 2^(e + 1). The remainder after the first bf16 number is at most 2^(e - 8). The remainder
    /// after the second is at most 2^(e - 17), because the second is rounded among numbers below 2^(e - 8). That remainder is a multiple of
    /// f32's last bit 2^(e - 23), so it is a bf16 number, and three parts are exact. Relative to the element, the second part is at most
    /// 2^-8 / (1 + 2^-8), and the remainder after it at most 2^-17.
    ///
    /// Two parts of bf16: the dropped product of second parts is below 2^-16, and the remainders of both elements add 2 x 2^-17.
    /// In total this is 2^-15. Three parts: two dropped products of a second and a third part are below 2^-25 each. The product
    /// of third parts is at most 2^-34. In total this is 2^-24, as much as rounding a product to f32. The second part's bound
    /// leaves room for the smallest terms in both cases.
    ///
    /// Parts are multiples of 2^(e - 23): of factors from 2^-103 on none is subnormal, and the bounds hold. Of smaller ones units may read parts as
    /// zero.
    pub fn product_error(self) -> f64 {
        match self {
            Math::Exact | Math::Promoted => 0.0,
            Math::Tf32 => 2.0 * 2f64.powi(-10),
            Math::Tf32x3 => 2f64.powi(-21),
            Math::Bf16x3 => 2f64.powi(-15),
            Math::Bf16x6 => 2f64.powi(-24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use tilewright_ir::MatrixType;

    /// The nearest bf16 numbers to a value, one after the other.
    fn parts(value: f32, count: u32) -> Vec<f64> {
        let mut rest = value;
        let mut next = || {
            let near = bf16::from_f32(rest).to_f32();
            rest -= near;
            f64::from(near)
        };
        (0..count).map(|_| next()).collect()
    }

    /// What a product of split factors loses of itself.
    fn lost(split: &FactorParts, [x, y]: [f32; 2]) -> f64 {
        let [a, b] = [x, y].map(|value| parts(value, split.parts));
        let sum: f64 = split.products.iter().map(|[i, j]| a[*i as usize] * b[*j as usize]).sum();
        let product = f64::from(x) * f64::from(y);
        ((sum - product) / product).abs()
    }

    /// Mantissas at which parts are largest, and many others: within the bound, and near enough to it that half of it would be exceeded.
    #[test]
    fn products_of_bf16_parts_keep_the_bound() {
        for math in [Math::Bf16x3, Math::Bf16x6] {
            let split = math.split().unwrap();
            assert_eq!(split.input, MatrixType::BF16);
            let near_one = (0..1u32 << 18).map(|i| f32::from_bits(0x3f80_0000 + i));
            let spread = (0..1u32 << 16).map(|i| f32::from_bits(0x3f80_0000 + (i.wrapping_mul(0x9e37_79b9) >> 9)));
            let worst = near_one.chain(spread).map(|x| lost(&split, [x, x])).fold(0.0, f64::max);
            assert!(worst <= math.product_error() && 2.0 * worst > math.product_error(), "{}: {worst:e}", math.name());
        }
    }

    #[test]
    fn three_parts_are_the_factor() {
        for i in 0..1u32 << 16 {
            let x = f32::from_bits(0x3f80_0000 + (i.wrapping_mul(0x9e37_79b9) >> 9)) * 2f32.powi(i as i32 % 100 - 50);
            assert_eq!(parts(x, 3).iter().sum::<f64>(), f64::from(x));
        }
    }

    #[test]
    fn smallest_products_come_first() {
        for split in Math::ALL.into_iter().filter_map(Math::split) {
            let orders: Vec<u32> = split.products.iter().map(|[a, b]| a + b).collect();
            assert!(orders.is_sorted_by(|x, y| x >= y) && orders.last() == Some(&0));
            // All but those below the last part of a factor by the first of the other.
            let all = (0..split.parts).flat_map(|a| (0..split.parts).map(move |b| a + b));
            assert_eq!(all.filter(|order| *order < split.parts).count(), orders.len());
        }
    }
}
