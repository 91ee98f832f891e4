//! What the fields of a [`Gemm`] may be, one by one and together.

use super::{Gemm, Matrix, Order};
use crate::epilogue::Activation;
use crate::error::{MOST_BYTES, ProblemError, TOO_FAR, check_dtype, check_out_dtype, check_positive, computed_in};
use crate::extent::Extent;
use crate::quant::multiplied;
use crate::reduction::{ResultShape, check_all, check_integers};
use tilewright_ir::Scalar;

pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

/// Leading dimensions between the first line and the furthest that a kernel computes with: one even of a single line.
fn steps(lines: u64) -> u64 {
    (lines - 1).max(1)
}

/// Refuses types of operand A that are none, unless that has small weights, which are converted to operand B's type.
pub(super) fn check_left(a: Scalar, b: Scalar) -> Result<(), ProblemError> {
    if multiplied(a, b).is_some_and(|multiplied| multiplied != a) { Ok(()) } else { check_dtype("dtype", a) }
}

impl Gemm {
    /// Checks every field.
    ///
    /// # Errors
    /// [`ProblemError::Value`] with the field, its value and what it may be.
    pub fn validate(&self) -> Result<(), ProblemError> {
        check_left(self.dtype, self.scalar(1))?;
        if let Some(b) = self.b_dtype.filter(|b| *b == self.dtype || multiplied(self.dtype, *b).is_none()) {
            let reason = format!(
                "of two types only e4m3 and e5m2, e4m3fnuz and e5m2fnuz, i8 and u8, and i8, u8, i4 and u4 with f16, bf16 or f32 are multiplied, and A is {}; leave it out",
                self.dtype
            );
            return Err(ProblemError::value("b_dtype", b, reason));
        }
        self.math.check(self.multiplied())?;
        self.validate_weights()?;
        check_out_dtype(self.multiplied(), self.out_dtype)?;
        for (name, value) in [("batch", self.batch), ("m", self.m), ("n", self.n), ("k", self.k)] {
            check_positive(name, value)?;
        }
        for extent in [Extent::G, Extent::M, Extent::N] {
            let (name, most) = (extent.name(), self.extents().of(extent));
            if self.dynamic.has(extent) && most > i32::MAX as u64 {
                return Err(ProblemError::value(name, most, format!("a run-time {name} counts to 2^31 - 1")));
            }
        }
        if self.dynamic.g && self.batch == 1 {
            return Err(ProblemError::value("batch", 1, "a run-time batch needs its largest value, 2 or more"));
        }
        for (index, x) in self.matrices().into_iter().enumerate() {
            self.validate_matrix(index, x)?;
        }
        self.validate_complex_types()?;
        self.validate_fields()?;
        self.validate_gate()?;
        self.validate_second()?;
        self.validate_groups()?;
        self.validate_zero_points()?;
        self.validate_epilogue()?;
        self.validate_reductions()?;
        let bytes = u64::from(self.multiplied().bytes());
        if !self.workspace.is_multiple_of(bytes) || self.workspace > i64::MAX as u64 {
            let reason = format!("must be a multiple of {bytes} bytes (one element) and less than 2^63");
            return Err(ProblemError::value("workspace", self.workspace, reason));
        }
        Ok(())
    }

    fn validate_epilogue(&self) -> Result<(), ProblemError> {
        self.validate_scales()?;
        let strides = [
            ("sbias", self.bias.map_or(0, |b| b.batch_stride), "bias vector"),
            ("sr", self.residual.map_or(0, |r| r.batch_stride), "residual"),
        ];
        if let Some((name, stride, _)) = strides.into_iter().find(|(_, stride, _)| self.batch == 1 && *stride != 0) {
            return Err(ProblemError::value(name, stride, "must be 0 where there is no batch"));
        }
        let (line, lines) = self.lines(2);
        let ld = self.residual.map_or(line, |r| r.ld);
        if ld < line {
            let reason = format!("the residual lies as C does, whose lines have {line} elements: it needs at least {line}");
            return Err(ProblemError::value("ldr", ld, reason));
        }
        for ((_, stride, what), one) in
            strides.into_iter().zip([Some(self.m.max(self.product_columns())), steps(lines).checked_mul(ld)])
        {
            let end =
                one.zip((self.batch - 1).checked_mul(stride)).and_then(|(one, all)| one.checked_add(all)?.checked_add(line));
            if end.and_then(|e| e.checked_mul(self.parts() * u64::from(self.out_dtype.bytes()))).is_none_or(|b| b > MOST_BYTES) {
                let reason = format!("{TOO_FAR}; make a size, leading dimension or stride smaller");
                return Err(ProblemError::value(what, format!("{} x {lines} x {line} elements", self.batch), reason));
            }
        }
        Ok(())
    }

    fn validate_reductions(&self) -> Result<(), ProblemError> {
        let shape = ResultShape { extents: self.extents(), groups: 1 };
        Activation::check(self.activation)?;
        check_integers(self.multiplied(), self.out_dtype, self.activation, &self.reductions)?;
        check_all(&self.reductions, self.drop_c, computed_in(self.multiplied(), self.out_dtype)[1], shape)?;
        self.reductions.iter().try_for_each(|r| r.check_dynamic(self.dynamic))?;
        for operand in self.reductions.iter().filter_map(|r| self.reduced_operand(r)) {
            operand?;
        }
        match self.reductions.iter().find(|r| r.over.g && self.batch == 1) {
            Some(r) => Err(ProblemError::value("reduce", r, "there is no batch to reduce over; leave b out")),
            None => Ok(()),
        }
    }

    fn validate_matrix(&self, index: usize, x: &Matrix) -> Result<(), ProblemError> {
        let name = NAMES[index];
        let (line, lines) = self.lines(index);
        if x.ld < line {
            let order = if self.order == Order::Col { "column-major" } else { "row-major" };
            let trans = if x.trans { "transposed" } else { "not transposed" };
            let reason = format!("the {order} matrix {} ({trans}) needs at least {line}", name.to_uppercase());
            return Err(ProblemError::value(format!("ld{name}"), x.ld, reason));
        }
        if self.batch == 1 && x.batch_stride != 0 {
            return Err(ProblemError::value(format!("s{name}"), x.batch_stride, "must be 0 where there is no batch"));
        }
        let span = steps(lines).checked_mul(x.ld).and_then(|s| s.checked_add(line));
        let batches = (self.batch - 1).checked_mul(x.batch_stride);
        let end = span.zip(batches).and_then(|(s, b)| s.checked_add(b)).and_then(|s| s.checked_add(x.offset));
        let bytes = end.and_then(|e| e.checked_mul(self.parts() * u64::from(self.scalar(index).bytes())));
        self.validate_pairs(index, x)?;
        if bytes.is_none_or(|b| b > MOST_BYTES) {
            let value = format!("{} x {lines} x {line} elements, ld {}, batch stride {}", self.batch, x.ld, x.batch_stride);
            let reason = format!("{TOO_FAR}; make a size, stride or offset smaller");
            return Err(ProblemError::value(format!("matrix {}", name.to_uppercase()), value, reason));
        }
        if index == 2 && self.entries() > 1 {
            // Results of two batch entries must not share an element. Distances in rising order must each clear all that smaller
            // distances span. This admits interleaved batches, too.
            let mut axes = [(1, line), (x.ld, lines), (x.batch_stride, self.batch)];
            axes.sort_unstable();
            let mut reach = 0u64;
            for (stride, extent) in axes {
                if extent > 1 && stride <= reach {
                    let enough = (lines - 1) * x.ld + line;
                    let reason = format!("batch entries of C overlap; use at least {enough}");
                    return Err(ProblemError::value("sc", x.batch_stride, reason));
                }
                reach = reach.saturating_add((extent - 1).saturating_mul(stride));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::refused;
    use super::*;
    use crate::conv::Conv;
    use crate::epilogue::Along;
    use crate::extent::Dynamic;
    use crate::math::Math;
    use crate::quant::ZeroPoint;
    use crate::real::Real;
    use crate::reduce::Reduce;
    use crate::reduction::Operator;

    #[test]
    fn impossible_values_are_refused_by_name() {
        let base = || Gemm::new(Scalar::F32, 8, 9, 10).order(Order::Col);
        refused(Gemm::new(Scalar::F32, 0, 9, 10).order(Order::Col), &["m = 0", "at least 1"]);
        refused(Gemm::new(Scalar::F32, 8, 9, 0).order(Order::Col), &["k = 0", "at least 1"]);
        refused(base().batch(0), &["batch = 0"]);
        refused(base().lda(7), &["lda = 7", "at least 8"]);
        refused(base().order(Order::Row).ldb(8), &["ldb = 8", "at least 9"]);
        refused(base().trans(false, true).ldb(8), &["ldb = 8", "transposed", "at least 9"]);
        refused(base().batch(2).stride_c(71), &["sc = 71", "overlap", "at least 72"]);
        refused(base().batch(2).stride_c(0), &["sc = 0", "overlap"]);
        refused(Gemm::new(Scalar::I32, 8, 9, 10).order(Order::Col), &["dtype = i32", "f32"]);
        refused(base().out_dtype(Scalar::F64), &["out_dtype = f64", "f32, f16 or bf16"]);
        refused(Gemm::new(Scalar::F64, 8, 9, 10).order(Order::Col).out_dtype(Scalar::F32), &["out_dtype = f32", "f64"]);
        refused(base().b_dtype(Scalar::E5M2), &["b_dtype = e5m2", "A is f32"]);
        refused(Gemm::new(Scalar::E4M3, 8, 9, 10).b_dtype(Scalar::F16), &["b_dtype = f16", "e4m3 and e5m2"]);
        refused(Gemm::new(Scalar::F64, 8, 9, 10).out_dtype(Scalar::E4M3), &["out_dtype = e4m3", "f64"]);
        refused(Gemm::new(Scalar::I8, 8, 9, 10).out_dtype(Scalar::E5M2), &["out_dtype = e5m2", "summed in i32"]);
        assert!(base().out_dtype(Scalar::E4M3Fnuz).build().is_ok());
        refused(Gemm::new(Scalar::I8, 8, 9, 10).out_dtype(Scalar::F64), &["out_dtype = f64", "summed in i32"]);
        refused(Gemm::new(Scalar::F32, 8, 9, 10).out_dtype(Scalar::I32), &["out_dtype = i32", "f32, f16 or bf16"]);
        refused(Gemm::new(Scalar::BF16, 8, 9, 10).out_dtype(Scalar::I8), &["out_dtype = i8", "f32, f16 or bf16"]);
        refused(Gemm::new(Scalar::U8, 8, 9, 10).b_dtype(Scalar::E4M3), &["b_dtype = e4m3", "i8 and u8"]);
        refused(Gemm::new(Scalar::I8, 8, 9, 10).activation(Activation::Relu), &["activation = relu", "a result in f32"]);
        for wrong in [1e7, 1e-7] {
            let limit = Real::try_from(wrong).unwrap();
            refused(Gemm::new(Scalar::F32, 8, 9, 10).softcap(limit), &["softcap = ", "from 0.000001 to 1000000"]);
        }
        let softcap = Activation::Softcap(Real::try_from(30.0).unwrap());
        let conv = Conv::new(Scalar::F32, 2, 8, 6, &[9], &[3]).activation(softcap).build().unwrap_err().to_string();
        let reduce = Reduce::new(Scalar::F32, &[4], &[0]).op(Operator::Sum).activation(softcap).build().unwrap_err().to_string();
        for refusal in [conv, reduce] {
            assert!(refusal.contains("softcap = 30: only matrix products have it"), "{refusal}");
        }
        refused(Gemm::new(Scalar::U8, 8, 9, 10).reduce("max:n".parse().unwrap()), &["max:n", "second call"]);
        refused(
            Gemm::new(Scalar::E4M3, 8, 9, 10).out_dtype(Scalar::F64),
            &["out_dtype = f64", "e4m3 operands are summed in f32"],
        );
        let weights = |float, b| Gemm::new(float, 8, 9, 10).b_dtype(b);
        refused(weights(Scalar::F64, Scalar::I8), &["b_dtype = i8", "f16, bf16 or f32", "A is f64"]);
        refused(weights(Scalar::E4M3, Scalar::U8), &["b_dtype = u8", "A is e4m3"]);
        refused(weights(Scalar::F16, Scalar::BF16), &["b_dtype = bf16", "A is f16"]);
        // Two of 4 bits share a byte, along n of a row-major B and along k of a transposed one.
        let pairs = |n, k| Gemm::new(Scalar::BF16, 8, n, k).b_dtype(Scalar::I4);
        refused(pairs(9, 10), &["n = 9", "two numbers of i4 share a byte along n", "must be even", "pad with zeros"]);
        refused(pairs(10, 9).trans(false, true), &["k = 9", "along k"]);
        refused(pairs(10, 10).trans(false, true).ldb(11), &["ldb = 11", "must be even"]);
        refused(pairs(10, 10).batch(2).stride_b(101), &["sb = 101", "must be even"]);
        refused(pairs(10, 10).offsets(1, 3, 1), &["offset of B = 3", "must be even"]);
        refused(pairs(10, 10).dynamic(Dynamic { n: true, ..Dynamic::NONE }), &["i4 weights packed along n", "transpose B"]);
        assert!(pairs(9, 10).trans(false, true).dynamic(Dynamic { n: true, ..Dynamic::NONE }).build().is_ok());
        refused(Gemm::new(Scalar::I4, 8, 10, 10), &["dtype = i4", "beside", "b_dtype"]);
        refused(Gemm::new(Scalar::I4, 8, 10, 10).b_dtype(Scalar::U4), &["dtype = i4", "beside f16"]);
        refused(Gemm::new(Scalar::I8, 8, 10, 10).b_dtype(Scalar::I4), &["b_dtype = i4", "A is i8"]);
        refused(weights(Scalar::F32, Scalar::I8).math(Math::Tf32), &["math = tf32", "multiplied in f32 itself", "leave it out"]);
        refused(weights(Scalar::BF16, Scalar::I8).out_dtype(Scalar::I32), &["out_dtype = i32", "bf16 operands"]);
        refused(weights(Scalar::I8, Scalar::F16).zero_point(Along::M, ZeroPoint::Each), &["zero_points = m", "B is f16"]);
        refused(
            weights(Scalar::F16, Scalar::U8).reduce("sum:k:b".parse().unwrap()),
            &["sum:k:b", "reduce the tensor in a call of its own"],
        );
        assert_eq!(weights(Scalar::I8, Scalar::F16).build().unwrap().out_dtype, Scalar::F16);
        refused(base().ldr(7), &["ldr = 7", "at least 8"]);
        refused(base().stride_r(72), &["sr = 72", "no batch"]);
        refused(Gemm::new(Scalar::F16, 8, 9, 10).zero_point(Along::M, ZeroPoint::Each), &["zero_points = m", "A is f16"]);
        let centred = || Gemm::new(Scalar::I8, 8, 9, 10).zero_point(Along::N, ZeroPoint::Tensor);
        refused(centred().workspace(1000), &["workspace = 1000", "1056 bytes"]);
        for (reduction, part) in [
            ("sum:k:a", "reduce the operand's tensor"),
            ("absmax:m4", "blocks of a result"),
            ("argmax:bm", "an index over several axes"),
        ] {
            let reduced = Gemm::new(Scalar::F32, 8, 8, 8).batch(2).reduce(reduction.parse().unwrap());
            refused(reduced.dynamic(Dynamic { m: true, ..Dynamic::NONE }), &[reduction, "known only at launch", part]);
        }
        refused(centred().dynamic(Dynamic { m: true, ..Dynamic::NONE }), &["zero points", "an operation for each size"]);
        refused(Gemm::new(Scalar::I8, 8, 9, 10).scale(Along::N), &["scales = n", "i32 results", "give a result in f32"]);
        refused(Gemm::new(Scalar::F64, 8, 9, 10).scale(Along::M), &["scales = m", "scales are f32"]);
        refused(base().bias_strided(Along::M, 8), &["sbias = 8", "no batch"]);
        refused(base().batch(1 << 20).bias_strided(Along::M, 1 << 60), &["bias vector", "64-bit"]);
        refused(base().ldr(1 << 62), &["residual", "64-bit"]);
        refused(Gemm::new(Scalar::F64, u64::MAX, 9, 10).order(Order::Col), &["matrix A", "64-bit"]);
        refused(Gemm::new(Scalar::F64, 1 << 40, 1 << 40, 10).order(Order::Col), &["matrix C", "64-bit"]);
        refused(base().offsets(0, 1 << 62, 0), &["matrix B", "64-bit"]);
        refused(base().batch(1 << 60), &["matrix A", "64-bit"]);
    }

    #[test]
    fn interleaved_batches_do_not_overlap() {
        let g = Gemm::new(Scalar::F32, 8, 9, 10).order(Order::Col).batch(4).ldc(32).stride_c(8).build().unwrap();
        assert_eq!(g.span(2), 3 * 8 + 8 * 32 + 8);
        assert!(Gemm::new(Scalar::F32, 8, 9, 10).order(Order::Col).batch(5).ldc(32).stride_c(8).build().is_err());
    }
}
