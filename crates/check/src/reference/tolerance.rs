//! How far a right result may be from the reference.

use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;
use tilewright_problem::{Activation, Math, Problem};

/// How far a result may be from the reference: `accumulate * scale + round * |expected| + floor`, where
/// `scale = |alpha| * sum |a| |b| + |beta| |c| + |bias|` of the element.
///
/// Vectors of scales multiply alpha. Of complex operands, the sum has the magnitudes of all products of parts. An activation multiplies the scale
/// by its slope there, and a residual adds its magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// Rounding of the sum, relative to the scale.
    pub accumulate: f64,
    /// Rounding of the result to its own type, relative to the expected value.
    pub round: f64,
    /// Least magnitude that rounding keeps relative accuracy for (subnormals may be flushed).
    pub floor: f64,
}

impl Tolerance {
    /// The bound for data of random sign, as [`TestData`](super::TestData) makes it.
    ///
    /// It is `u * (32 + t sqrt(k))` of the scale. The accumulator's unit roundoff u is 2^-24 for f32 and the 16-bit types, and 2^-53 for f64. The
    /// factor t is 1/8, or 3/4 for three TF32 or six bf16 products in place of one, or 3/8 for three bf16 products.
    ///
    /// Partial sums of k terms of random sign grow like sqrt(k), the scale like k. So the rounding errors of any order of
    /// summation are about u of the scale for every k. The constant 32 covers the tail over 10^9 elements, alpha, beta, bias and
    /// residual.
    ///
    /// The second term admits units that truncate instead of rounding: their errors add up. Each instruction takes up to 2 u, 0.7 u on average, from
    /// a partial sum. Over k / 16 instructions this is about 0.03 sqrt(k) u of the scale. It is five times as much in the one element of 10^5 with
    /// the greatest partial sums.
    ///
    /// Leaving out one of k terms changes an average element by 1/k of its scale, far more than this up to k of about
    /// 10^5. Data of one sign rounds worse, with sqrt(k) u, and would need a wider bound.
    ///
    /// Operands cut to TF32 add an error of up to [`Math::product_error`] of its magnitude to each product, with the product's random sign. In a sum
    /// of k terms the error is about 0.4 / sqrt(k) of that share of the scale; 4 / sqrt(k) is ten standard deviations. The same holds for the
    /// products of parts that split operands leave out. The shortest sums count. A group of terms may be a single one, whose error nothing
    /// evens out, and windows at an edge have fewer terms than others.
    ///
    /// Units for 8-bit floats accumulate in less than f32. Hopper's units align the 32 products of an instruction and the
    /// accumulator to the largest of them. They keep about 14 bits, and drop lower ones (DeepSeek-V3, arXiv 2412.19437, section
    /// 3.3.2). In a sum of k terms of random sign the sum is truncated k / 32 times. All these truncations are towards zero and
    /// take about 0.03 sqrt(k) 2^-13 of the scale. The truncations of products have random sign and take less than 2^-13.
    /// `2^-13 (4 + sqrt(k) / 8)` is four times both. Beyond a k of about 1500 a missing term is smaller than this bound; runs on
    /// integers whose sums fit these bits show it.
    ///
    /// With [`Math::Promoted`] a unit accumulates at most 128 terms. Each part of the sum is within the bound of its own scale, so the whole is within
    /// the bound for k = 128. The rounding of the additions in f32 is added as for all types.
    ///
    /// Sums of integers are exact, and so are results in i32.
    ///
    /// A gate multiplies two such sums, `f(x) h(y)`. Let s and t be the scales of f(x) and h(y), which follow from the scales of
    /// x and y ([`Gate::gate_scale`](tilewright_problem::Gate::gate_scale)). Let a be the bound of this type for a sum. Then the
    /// errors are at most `|f(x)| a t + (|h(y)| + a t) a s`, which is a times the scale of the element.
    ///
    /// An activation multiplies the error of its argument by at most [`Activation::slope`], which is in the scale
    /// ([`Activation::scale`]). It adds [`Activation::rounding`] u of its argument, which is no greater than the scale.
    pub fn of(problem: &Problem) -> Tolerance {
        let k = problem.depth() as f64;
        let out = problem.out_dtype();
        if !problem.accumulator().is_float() {
            return Tolerance::EXACT;
        }
        let unit = if problem.accumulator() == Scalar::F64 { 2f64.powi(-53) } else { 2f64.powi(-24) };
        let function = problem.activation().map_or(0.0, Activation::rounding);
        let function = problem.gate().map_or(function, |gate| gate.function.rounding());
        let fewest = problem.fewest_terms() as f64;
        let terms = if problem.math() == Math::Promoted { k.min(Math::PROMOTED_EVERY.into()) } else { k };
        let short = if problem.dtype().is_float8() { 2f64.powi(-13) * (4.0 + terms.sqrt() / 8.0) } else { 0.0 };
        Tolerance {
            accumulate: unit * (32.0 + truncation(problem.math()) * k.sqrt() + function)
                + problem.math().product_error() * (4.0 / fewest.sqrt()).min(1.0)
                + short,
            ..Tolerance::rounding(out)
        }
    }
    /// The bound for data of any magnitudes and signs, relative to each element's own scale: every rounding error of the sum points the same way.
    /// Each addition and each product rounds by u; each part of a split product adds as often. Units for 8-bit floats cut every term and every
    /// partial sum of 32 terms at 2^-13 of the scale.
    pub(super) fn of_any_data(problem: &Problem) -> Tolerance {
        let (k, random) = (problem.depth() as f64, Tolerance::of(problem));
        let unit = if problem.accumulator() == Scalar::F64 { 2f64.powi(-53) } else { 2f64.powi(-24) };
        let parts = problem.math().split().map_or(1, |split| split.products.len()) as f64;
        let short = if problem.dtype().is_float8() { 2f64.powi(-13) * (4.0 + k * 33.0 / 32.0) } else { 0.0 };
        let accumulate = unit * (32.0 + 2.0 * parts * k) + problem.math().product_error() + short;
        Tolerance { accumulate: accumulate.max(random.accumulate), ..random }
    }
    /// Of integers, which are exact.
    pub(super) const EXACT: Tolerance = Tolerance { accumulate: 0.0, round: 0.0, floor: 0.5 };
    /// That of rounding to a type alone.
    pub(super) fn rounding(scalar: Scalar) -> Tolerance {
        let (digits, smallest) = match scalar {
            Scalar::F16 => (11, -24),
            Scalar::BF16 => (8, -126),
            Scalar::E4M3 => (4, -9),
            Scalar::E4M3Fnuz => (4, -10),
            Scalar::E5M2 => (3, -16),
            Scalar::E5M2Fnuz => (3, -17),
            Scalar::F64 => (53, -1022),
            // To the nearest, where a float that is as near to two may lie to either side.
            Scalar::I8 | Scalar::U8 => return Tolerance { accumulate: 0.0, round: 2f64.powi(-22), floor: 0.5 },
            _ => (24, -126),
        };
        Tolerance { accumulate: 0.0, round: 2f64.powi(-digits) * 1.001, floor: 2f64.powi(smallest) }
    }
}

/// What truncated sums of k terms may lose, in unit roundoffs of their scale and relative to sqrt(k). It is an eighth where one
/// instruction adds 16 terms, with room for 8. Three or six of them add to a sum where factors are split, and those of TF32 have
/// half the depth.
fn truncation(math: Math) -> f64 {
    match math {
        Math::Tf32x3 | Math::Bf16x6 => 0.75,
        Math::Bf16x3 => 0.375,
        Math::Exact | Math::Tf32 | Math::Promoted => 0.125,
    }
}
