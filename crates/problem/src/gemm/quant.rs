//! Quantised factors of a [`Gemm`]: small weights, zero points and scales.

use super::validate::NAMES;
use super::{Gemm, Matrix, Order};
use crate::epilogue::Along;
use crate::error::{ProblemError, computed_in};
use crate::extent::Extent;
use crate::math::Math;
use crate::quant::{Quant, ZeroPoint, multiplied};
use tilewright_ir::Scalar;

impl Gemm {
    /// Elements of a vector of quantisation parameters; 0 without one.
    pub const fn quant_len(&self, quant: Quant) -> u64 {
        let (zero, each) = match quant {
            Quant::Ends => return if self.grouped.is_some() { self.batch } else { 0 },
            Quant::ScaleM => return self.scales_len(Along::M),
            Quant::ScaleN => return self.scales_len(Along::N),
            Quant::ZeroA => (self.zero_points.a, self.m),
            Quant::ZeroB => (self.zero_points.b, self.n),
        };
        match zero {
            None => 0,
            Some(ZeroPoint::Tensor) => 1,
            Some(ZeroPoint::Each) => each,
        }
    }
    /// Scales along a direction.
    const fn scales_len(&self, along: Along) -> u64 {
        let lines = if matches!(along, Along::M) { self.m } else { self.product_columns() };
        match self.scales.of(along) {
            None => 0,
            Some(scale) => {
                let [lines, terms] = scale.blocks(lines, self.k);
                lines * terms
            }
        }
    }
    /// Sums over k that zero points are multiplied by, in i32: of B where A has zero points, and the other way round.
    pub const fn totals_len(&self, of: Along) -> u64 {
        let (other, lines) = match of {
            Along::M => (Along::N, self.m),
            Along::N => (Along::M, self.n),
        };
        if self.zero_points.of(other).is_some() { self.batch * lines } else { 0 }
    }
    /// The type in which factors are multiplied: A's, or B's where A has the small weights.
    pub fn multiplied(&self) -> Scalar {
        multiplied(self.dtype, self.scalar(1)).unwrap_or(self.dtype)
    }
    /// One factor has small weights: integers of 8 or 4 bits, which become the other's float on their way.
    pub fn has_weights(&self) -> bool {
        [0, 1].into_iter().any(|matrix| self.scalar(matrix).is_weight()) && !self.multiplied().is_weight()
    }

    /// What a product of small weights has not.
    pub(super) fn validate_weights(&self) -> Result<(), ProblemError> {
        if !self.has_weights() {
            return Ok(());
        }
        let float = self.multiplied();
        if self.math != Math::Exact {
            let reason = format!("small weights beside {float} are multiplied in {float} itself; leave it out");
            return Err(ProblemError::value("math", self.math.name(), reason));
        }
        match self.reductions.iter().find(|r| r.operand.is_some()) {
            Some(r) => Err(ProblemError::value(
                "reduce",
                r,
                "an operand of 4- or 8-bit weights has no reductions in the pass of the product; reduce the tensor in a call of its own",
            )),
            None => Ok(()),
        }
    }

    /// Two integers of 4 bits share a byte: no byte belongs to two lines, or to none in part.
    pub(super) fn validate_pairs(&self, index: usize, x: &Matrix) -> Result<(), ProblemError> {
        let scalar = self.scalar(index);
        if !scalar.is_int4() {
            return Ok(());
        }
        let (name, line) = (NAMES[index], self.lines(index).0);
        let along_k = (x.trans == (self.order == Order::Col)) == (index == 0);
        let dim = if along_k { "k" } else { ["m", "n"][index.min(1)] };
        let distances = [
            (dim.to_string(), line),
            (format!("ld{name}"), x.ld),
            (format!("s{name}"), x.batch_stride),
            (format!("offset of {}", name.to_uppercase()), x.offset),
        ];
        if let Some((what, value)) = distances.into_iter().find(|(_, value)| !value.is_multiple_of(2)) {
            let reason = format!("two numbers of {scalar} share a byte along {dim}: it must be even; pad with zeros");
            return Err(ProblemError::value(what, value, reason));
        }
        let extent = if index == 0 { Extent::M } else { Extent::N };
        let own = if index == 0 { Along::M } else { Along::N };
        if !along_k && (self.dynamic.has(extent) || self.grouped == Some(own.into())) {
            return Err(ProblemError::Unsupported {
                what: format!("{scalar} weights packed along {dim}, whose size is known only at launch and may be odd"),
                remedy: format!(
                    "pack them along k (transpose {}), or give {dim} when the operation is made",
                    name.to_uppercase()
                ),
            });
        }
        Ok(())
    }

    pub(super) fn validate_zero_points(&self) -> Result<(), ProblemError> {
        let Some(name) = self.zero_points.names().next() else { return Ok(()) };
        if !self.multiplied().is_int8() {
            let float = if self.dtype.is_weight() { "B" } else { "A" };
            let reason = format!("8-bit integers have zero points, and {float} is {}; leave it out", self.multiplied());
            return Err(ProblemError::value("zero_points", name, reason));
        }
        if !self.dynamic.is_none() {
            return Err(ProblemError::Unsupported {
                what: "zero points of a product with extents known only at launch".into(),
                remedy: "make an operation for each size".into(),
            });
        }
        // As many bytes as sums of them surely hold in 31 bits.
        if self.k > 1 << 23 {
            return Err(ProblemError::value("k", self.k, "sums over k of a factor with zero points fit i32 up to 2^23; split k"));
        }
        let needed = Along::ALL.into_iter().map(|of| 4 * self.totals_len(of) + 512).sum::<u64>();
        if self.workspace < needed {
            let reason = format!("the sums over k that zero points are multiplied by take {needed} bytes; give at least as many");
            return Err(ProblemError::value("workspace", self.workspace, reason));
        }
        Ok(())
    }

    pub(super) fn validate_scales(&self) -> Result<(), ProblemError> {
        let Some(name) = self.scales.names().next() else { return Ok(()) };
        let refused = |reason: &str| Err(ProblemError::value("scales", &name, reason));
        match computed_in(self.multiplied(), self.out_dtype)[1] {
            Scalar::I32 => return refused("i32 results are sums as they are; give a result in f32, f16, bf16, i8 or u8"),
            Scalar::F64 => return refused("scales are f32, and these results f64; scale rows of A or columns of B"),
            _ => {}
        }
        if !self.scales.of_blocks() {
            return Ok(());
        }
        if self.math != Math::Promoted && !self.has_weights() {
            return Err(ProblemError::value(
                "scales",
                self.scales.names().collect::<Vec<_>>().join(" "),
                "scales of blocks of k are multiplied where sums of 8-bit floats are promoted to f32, and beside small weights; give A's type as e4m3promoted, e5m2promoted, e4m3fnuzpromoted or e5m2fnuzpromoted, or B's as i8, u8, i4 or u4",
            ));
        }
        if !self.dynamic.is_none() {
            return Err(ProblemError::Unsupported {
                what: "scales of blocks of k of a product with extents known only at launch".into(),
                remedy: "make an operation for each size".into(),
            });
        }
        Ok(())
    }
}
