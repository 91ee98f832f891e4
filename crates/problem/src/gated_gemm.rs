//! Gated products: the columns of B, the runs in which a product may take them, and the fields that exclude a gate.

use crate::error::{ProblemError, computed_in};
use crate::gate::{GRANULES, Gate, GateFunction};
use crate::gemm::{Gemm, GemmBuilder, Matrix, Order};
use crate::ragged::Ragged;
use crate::real::Real;

impl Gemm {
    /// Columns of the product: twice those of C where there is a gate.
    pub const fn product_columns(&self) -> u64 {
        if self.gate.is_some() { self.n.saturating_mul(2) } else { self.n }
    }
    /// Columns of B: those of the product, or half of them where the other half is a tensor of its own.
    pub const fn b_columns(&self) -> u64 {
        if self.has_up() { self.n } else { self.product_columns() }
    }
    /// The other factor's columns of a gated product are a tensor of their own.
    pub(crate) const fn has_up(&self) -> bool {
        matches!(self.gate, Some(Gate { separate_up: true, .. }))
    }
    /// Elements of the tensor of the other factor's columns, which is as long as B; 0 without one.
    pub fn up_len(&self) -> u64 {
        if self.has_up() { self.span(1) } else { 0 }
    }

    /// The product without its gate. Its result is the pre-activations: `2 n` columns in C's type and storage order, without gaps.
    /// Two tensors of weights are one B of both, without gaps.
    pub fn ungated(&self) -> Option<Gemm> {
        self.gate?;
        let n = self.product_columns();
        let wide = Gemm { gate: None, preactivations: false, residual: None, n, ..self.clone() };
        let tight = |index: usize, apart: bool| {
            let (line, lines) = wide.lines(index);
            let batch_stride = if apart { line.saturating_mul(lines) } else { 0 };
            Matrix { ld: line, batch_stride, offset: 0, ..*wide.matrices()[index] }
        };
        let c = tight(2, self.batch > 1 && self.grouped.is_none());
        let b = if self.has_up() { tight(1, self.b.batch_stride > 0) } else { wide.b };
        Some(Gemm { b, c, ..wide })
    }
    /// The product that [`Gemm::ungated`] gives, where its result is stored.
    pub fn stored_ungated(&self) -> Option<Gemm> {
        self.ungated().filter(|_| self.preactivations)
    }
    /// Elements of the buffer of pre-activations; 0 without them.
    pub fn preactivations_len(&self) -> u64 {
        self.stored_ungated().map_or(0, |wide| wide.span(2))
    }

    /// Granules of a gated product's columns.
    pub(crate) fn granules(&self) -> impl Iterator<Item = u64> {
        let columns = self.gate.map_or(1, |_| self.n);
        GRANULES.into_iter().filter(move |granule| *granule <= columns)
    }

    /// Refuses fields that exclude a gate.
    pub(crate) fn validate_gate(&self) -> Result<(), ProblemError> {
        let Some(gate) = self.gate else {
            let reason = "there is no gate; give one, or drop this";
            return if self.preactivations { Err(ProblemError::value("preactivations", 1, reason)) } else { Ok(()) };
        };
        let integers = !computed_in(self.multiplied(), self.out_dtype)[1].is_float();
        let packed_along_n = self.scalar(1).is_int4() && self.b.trans == (self.order == Order::Col);
        let lacks = [
            (integers, "sums of integers as its result", "give a result in f32, f16, bf16, i8 or u8"),
            (self.activation.is_some(), "an activation", "leave it out: the gate has the function"),
            (!self.reductions.is_empty(), "reductions", "store the result and reduce it in a second call"),
            (!self.zero_points.is_none(), "zero points", "quantise without them, or make the product and the gate in two calls"),
            (self.scales.of_blocks(), "scales of blocks of k", "scale rows (m) and columns (n)"),
            (self.dynamic.n, "n known only at launch", "make an operation for each n"),
            (self.grouped == Some(Ragged::N), "groups of columns", "use groups of rows (m)"),
            (self.grouped == Some(Ragged::K), "groups of terms", "use groups of rows (m)"),
            (packed_along_n, "4-bit weights packed along n", "pack them along k (transpose B)"),
            (gate.separate_up && gate.up_first, "separate_up and up_first", "pass the gate's weights as B and drop up_first"),
            (
                gate.separate_up && gate.interleaved,
                "separate_up and interleaved",
                "drop one: columns of two tensors take no turns",
            ),
        ];
        // Where they lie would depend on the launch.
        let by_rows = self.c.trans == (self.order == Order::Col);
        let moves = self.preactivations && self.dynamic.m && (self.batch > 1 || !by_rows);
        let of_launch = (
            moves,
            "pre-activations, m known only at launch, and a batch or a result by columns",
            "make an operation for each m",
        );
        match lacks.into_iter().chain([of_launch]).find(|(has, ..)| *has) {
            Some((_, what, remedy)) => Err(ProblemError::Unsupported {
                what: format!("a gated product ({}) with {what}", gate.function),
                remedy: remedy.into(),
            }),
            None => self.stored_ungated().map_or(Ok(()), |wide| wide.validate()),
        }
    }
}

impl GemmBuilder {
    /// What limits the sums of a clamped gate, in the place of [`Gate::LIMIT`].
    pub const fn gate_limit(mut self, limit: Real) -> Self {
        self.gate_limit = Some(limit);
        self
    }
    /// The factor of the sigmoid's argument in a clamped gate, in the place of [`Gate::SLOPE`].
    pub const fn gate_slope(mut self, slope: Real) -> Self {
        self.gate_slope = Some(slope);
        self
    }
    /// The gate, or the refusal of a field that belongs to another one.
    pub(crate) fn checked_gate(&self) -> Result<Option<Gate>, ProblemError> {
        let flags = [("up_first", self.up_first), ("interleaved", self.interleaved), ("separate_up", self.separate_up)];
        for (name, given) in flags {
            if given && self.gate.is_none() {
                return Err(ProblemError::value(name, 1, "there is no gate; give one, or drop this"));
            }
        }
        for (name, value) in [("gate_limit", self.gate_limit), ("gate_slope", self.gate_slope)] {
            if let Some(value) = value.filter(|_| self.gate != Some(GateFunction::Clamped)) {
                return Err(ProblemError::value(name, value, "only a clamped gate has it; take that function, or drop this"));
            }
        }
        let [limit, slope] = [self.gate_limit.unwrap_or(Gate::LIMIT), self.gate_slope.unwrap_or(Gate::SLOPE)];
        let GemmBuilder { up_first, interleaved, separate_up, .. } = *self;
        Ok(self.gate.map(|function| Gate { function, up_first, interleaved, separate_up, limit, slope }))
    }
}

#[cfg(test)]
mod tests {
    use crate::contraction::{EpilogueOp, Tensor};
    use crate::epilogue::{Activation, Along};
    use crate::extent::Dynamic;
    use crate::gate::{Gate, GateFunction};
    use crate::gemm::{Gemm, GemmBuilder, Order};
    use crate::lower::{ConvForm, lower};
    use crate::problem::Problem;
    use crate::quant::{Scale, ZeroPoint};
    use crate::ragged::Ragged;
    use crate::real::Real;
    use tilewright_ir::Scalar;

    fn gated() -> GemmBuilder {
        Gemm::new(Scalar::F32, 8, 6, 4).gate(GateFunction::Silu)
    }

    #[test]
    fn what_a_gate_does_not_go_with_is_refused_with_a_remedy() {
        let integers = || Gemm::new(Scalar::I8, 8, 6, 4).gate(GateFunction::Relu);
        let n = Dynamic { n: true, ..Dynamic::NONE };
        let int4 = || Gemm::new(Scalar::F16, 8, 6, 64).b_dtype(Scalar::I4).gate(GateFunction::Silu);
        for (builder, input, remedy) in [
            (gated().activation(Activation::Relu), "an activation", "the gate has the function"),
            (gated().reduce("max:n".parse().unwrap()), "reductions", "in a second call"),
            (gated().reduce("sum:mn".parse().unwrap()).drop_c(), "reductions", "store the result"),
            (gated().dynamic(n), "n known only at launch", "an operation for each n"),
            (gated().grouped(Along::N, 2), "groups of columns", "groups of rows"),
            (gated().grouped(Ragged::K, 2), "groups of terms", "groups of rows"),
            (gated().complex(), "complex", "the stored result"),
            (Gemm::new(Scalar::F32, 8, 6, 4).preactivations(), "preactivations", "there is no gate"),
            (
                gated().preactivations().batch(2).dynamic(Dynamic { n: false, m: true, g: false }),
                "pre-activations, m known only at launch",
                "for each m",
            ),
            (
                gated().preactivations().order(Order::Col).dynamic(Dynamic { n: false, m: true, g: false }),
                "by columns",
                "for each m",
            ),
            (gated().ldb(11), "ldb", "at least 12"),
            (integers(), "sums of integers", "give a result in f32"),
            (integers().out_dtype(Scalar::F32).zero_point(Along::M, ZeroPoint::Tensor), "zero points", "quantise without them"),
            (integers().out_dtype(Scalar::F32).zero_point(Along::N, ZeroPoint::Each), "zero points", "in two calls"),
            (
                int4().trans(false, true).scale_by(Along::N, Scale::Line32),
                "scales of blocks of k",
                "scale rows (m) and columns (n)",
            ),
            (int4(), "4-bit weights packed along n", "transpose B"),
            (int4().order(Order::Col).trans(false, true), "4-bit weights packed along n", "pack them along k"),
            (Gemm::new(Scalar::F32, 8, 6, 4).up_first(true), "up_first", "there is no gate"),
            (Gemm::new(Scalar::F32, 8, 6, 4).interleaved(true), "interleaved", "there is no gate"),
            (Gemm::new(Scalar::F32, 8, 6, 4).separate_up(true), "separate_up", "there is no gate"),
            (gated().separate_up(true).up_first(true), "separate_up and up_first", "drop up_first"),
            (gated().separate_up(true).interleaved(true), "separate_up and interleaved", "drop one"),
            (gated().separate_up(true).ldb(5), "ldb", "at least 6"),
            (gated().gate_limit(Gate::LIMIT), "gate_limit = 7", "only a clamped gate"),
            (Gemm::new(Scalar::F32, 8, 6, 4).gate_slope(Gate::SLOPE), "gate_slope = 1.702", "or drop this"),
        ] {
            let message = builder.build().unwrap_err().to_string();
            assert!(message.contains(input) && message.contains(remedy), "`{message}` lacks `{input}` or `{remedy}`");
        }
        assert!(gated().grouped(Along::M, 2).bias(Along::N).residual().build().is_ok());
        assert!(gated().dynamic(Dynamic { g: true, m: true, n: false }).batch(2).build().is_ok());
        assert!(int4().trans(false, true).build().is_ok());
        assert!(integers().out_dtype(Scalar::BF16).scale(Along::M).scale(Along::N).build().is_ok());
    }

    #[test]
    fn texts_round_trip() {
        let gemm = gated().up_first(true).build().unwrap();
        assert!(gemm.geometry().ends_with("_gatesilu_upfirst"), "{}", gemm.geometry());
        assert_eq!(Problem::parse(&gemm.geometry()).unwrap(), gemm.into());
        let gemm = gated().up_first(true).interleaved(true).build().unwrap();
        assert!(gemm.geometry().ends_with("_gatesilu_upfirst_interleaved"), "{}", gemm.geometry());
        assert_eq!(Problem::parse(&gemm.geometry()).unwrap(), gemm.into());
        let gemm = gated().separate_up(true).batch(3).build().unwrap();
        assert!(gemm.geometry().ends_with("_gatesilu_separateup"), "{}", gemm.geometry());
        assert_eq!((gemm.up_len(), gemm.span(1), gemm.b.ld), (3 * 6 * 4, 3 * 6 * 4, 6));
        assert_eq!(Problem::parse(&gemm.geometry()).unwrap(), gemm.into());
        let gemm = gated().preactivations().batch(3).build().unwrap();
        assert!(gemm.geometry().ends_with("_gatesilu_preact"), "{}", gemm.geometry());
        assert_eq!(Problem::parse(&gemm.geometry()).unwrap(), gemm.clone().into());
        assert_eq!((gemm.preactivations_len(), gated().build().unwrap().preactivations_len()), (3 * 8 * 12, 0));
        let clamped = || Gemm::new(Scalar::F32, 8, 6, 4).gate(GateFunction::Clamped).gate_slope(Gate::SLOPE);
        let gemm = clamped().build().unwrap();
        assert!(gemm.geometry().ends_with("_gateclamped"), "{}", gemm.geometry());
        let gemm = clamped().gate_limit(Real::parse("1e-9").unwrap()).gate_slope(Real::parse("2.5").unwrap()).build().unwrap();
        assert!(gemm.geometry().ends_with("_gateclamped_gatelimit0.000000001_gateslope2.5"), "{}", gemm.geometry());
        assert_eq!(Problem::parse(&gemm.geometry()).unwrap(), gemm.into());
    }

    #[test]
    fn limits_are_positive_numbers() {
        for wrong in ["0", "-1", "inf", "nan", "1e-40", "1e39", "seven", ""] {
            assert!(Real::parse(wrong).is_err_and(|reason| reason.contains("positive")), "{wrong}");
        }
        let gate = Gate { limit: Real::parse("2").unwrap(), ..Gate::new(GateFunction::Clamped) };
        assert_eq!((gate.of_up(-3.0), gate.of_up(0.5), gate.of_up(f64::INFINITY)), (-1.0, 1.5, 3.0));
        assert_eq!((gate.of_gate(5.0), gate.of_gate(0.0)), (gate.of_gate(2.0), 0.0));
        assert!(gate.of_gate(f64::NAN).is_nan() && gate.of_up(f64::NAN).is_nan());
    }

    /// Pairs of the product's columns are the halves' columns of a result, in every form and order of halves.
    #[test]
    fn pairs_are_both_halves_columns() {
        let orders = [
            (false, false, false, 40),
            (true, false, true, 40),
            (false, false, true, 139),
            (false, true, false, 40),
            (true, true, true, 139),
        ];
        for (up_first, interleaved, trans, n) in orders {
            let gemm = Gemm::new(Scalar::F32, 2, n, 5).trans(false, trans).gate(GateFunction::Relu);
            let gemm = gemm.up_first(up_first).interleaved(interleaved);
            let tight = |of: &GemmBuilder| of.clone().up_first(false).interleaved(false).separate_up(true).build().unwrap();
            let problem = Problem::from(gemm.clone().preactivations().bias(Along::N).build().unwrap());
            let gate = Gate { up_first, interleaved, ..Gate::new(GateFunction::Relu) };
            let forms = ConvForm::of(&problem);
            assert!(forms.len() > 2 && forms.iter().all(|form| forms[form.number() as usize] == *form));
            for form in forms {
                let c = lower(&problem, form).unwrap().lead;
                let stored = c.preactivations().unwrap();
                let pairs = *c.pairs().unwrap();
                assert_eq!((c.n, c.result_columns()), (2 * n.next_multiple_of(pairs.granule), n));
                assert!(c.of_pairs().epilogue.is_empty() && c.epilogue.contains(&EpilogueOp::Gate(pairs)));
                let at = |x: &Tensor, column: u64, k: i64| x.view.access.at([0, column as i64, k]);
                for column in 0..n {
                    let first = pairs.first(column);
                    for (part, half) in [first, first + pairs.granule].into_iter().zip(gate.columns(column, n)) {
                        let expected = if trans { half * 5 + 3 } else { 3 * 2 * n + half };
                        assert_eq!(at(&c.b, part, 3), Some(expected as i64), "{form:?} column {column}");
                        assert_eq!(stored.view.access.at([0, 1, part as i64]), Some((2 * n + half) as i64));
                        assert_eq!(c.bias().unwrap().view.access.at([0, part as i64, 0]), Some(half as i64));
                    }
                }
                // Of two tensors each has half of the columns, at the same places.
                let of_two = lower(&tight(&gemm).into(), form).unwrap().lead;
                let half = of_two.up().unwrap();
                for column in 0..n {
                    for (part, up) in [(pairs.first(column), 0), (pairs.first(column) + pairs.granule, 1)] {
                        let expected = if trans { column * 5 + 3 } else { 3 * n + column };
                        assert_eq!((at(&of_two.b, part, 3), half.at(&[0, part as i64, 0])), (Some(expected as i64), up));
                    }
                }
                // Columns of the last granule that the result does not have.
                assert!((n..n.next_multiple_of(pairs.granule)).all(|column| at(&c.b, pairs.first(column), 0).is_none()));
            }
        }
    }
}
