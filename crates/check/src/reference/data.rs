//! Test data: seeded inputs, poisoned outputs, and memory around and between tensors that must come back untouched.

use super::buffer::{Buffer, Damage, Fill, Lines, Margins, Place};
use super::element::hash;
use super::groups::{Groups, drawn};
use super::integers::Integers;
use std::sync::Arc;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Factors, PerRole, Problem, ProblemError, Role, RoleMemory};

/// What the buffers of one problem hold before a run, and the factors to run with.
#[derive(Clone, Debug, PartialEq)]
pub struct TestData {
    /// The problem.
    pub problem: Problem,
    /// alpha and beta, exact in the accumulator's type.
    pub factors: Factors,
    /// Places of A, B and C in their buffers.
    pub margins: Margins,
    /// Operand A; a convolution's input or output gradient.
    pub a: Arc<Buffer>,
    /// Operand B; a convolution's filter, or the input that a filter gradient is computed from.
    pub b: Arc<Buffer>,
    /// Result: NaN everywhere if beta is 0, random otherwise.
    pub c: Buffer,
    /// Tensors that are read beside the operands, each starting at element 0 of its buffer.
    pub added: PerRole<Option<Arc<Buffer>>>,
    /// Values of the reductions, NaN everywhere, each starting at element 0 of its buffer.
    pub reductions: Vec<Buffer>,
    /// The product without its gate, where pre-activations are stored: with the same A and the columns of the same B.
    /// Its C starts its buffer.
    pub ungated: Option<Box<TestData>>,
}

/// The number of a role's random values: 0 to 2 are those of A, B and C.
fn tag(role: Role) -> Option<u64> {
    match role {
        Role::Bias => Some(3),
        Role::Residual => Some(4),
        Role::Up => Some(10),
        Role::A2 => Some(11),
        Role::B2 => Some(12),
        other => other.quant().map(|quant| 5 + quant as u64),
    }
}

impl TestData {
    /// Buffers for a problem. The seed decides every input value: uniform in [-1, 1), exact in the element type. `alpha` and
    /// `beta` are rounded to the accumulator's type.
    ///
    /// # Errors
    /// [`ProblemError`] of [`Problem::validate`], or if the buffers do not fit this machine's memory.
    pub fn new(problem: &Problem, seed: u64, alpha: f64, beta: f64) -> Result<TestData, ProblemError> {
        TestData::with(problem, seed, Factors::real(alpha, beta))
    }
    /// The same with factors that may be complex.
    ///
    /// # Errors
    /// As [`TestData::new`], and those of [`Factors::check`].
    pub fn with(problem: &Problem, seed: u64, factors: Factors) -> Result<TestData, ProblemError> {
        TestData::within(problem, seed, factors, Margins::default())
    }
    /// The same in buffers with other margins.
    ///
    /// # Errors
    /// As [`TestData::with`].
    pub fn within(problem: &Problem, seed: u64, factors: Factors, margins: Margins) -> Result<TestData, ProblemError> {
        TestData::filled(problem, factors, margins, |tag| Fill::Random(hash(seed, tag)))
    }
    /// The same of small integers: those of `integers` in A and B, +-1 and +-2 in C (if beta is not 0), bias and residual.
    pub(super) fn of_integers(
        problem: &Problem,
        integers: &Integers,
        seed: u64,
        factors: Factors,
        margins: Margins,
    ) -> Result<TestData, ProblemError> {
        TestData::filled(problem, factors, margins, |tag| match tag {
            0 => Fill::Integers(integers, Operand::A),
            1 => Fill::Integers(integers, Operand::B),
            10 => Fill::UpIntegers(integers),
            11 => Fill::SecondIntegers(integers, Operand::A),
            12 => Fill::SecondIntegers(integers, Operand::B),
            _ => Fill::Added(hash(seed, tag)),
        })
    }
    /// The same inputs for other factors, with a C of its own: what [`TestData::with`] makes of these arguments.
    ///
    /// # Errors
    /// As [`TestData::with`].
    pub fn with_factors(&self, seed: u64, factors: Factors) -> Result<TestData, ProblemError> {
        self.with_result(factors, Fill::Random(hash(seed, 2)))
    }
    /// The same of small integers.
    pub(super) fn with_integer_factors(&self, seed: u64, factors: Factors) -> Result<TestData, ProblemError> {
        self.with_result(factors, Fill::Added(hash(seed, 2)))
    }
    fn with_result(&self, factors: Factors, fill: Fill<'_>) -> Result<TestData, ProblemError> {
        let problem = &self.problem;
        let factors = exact(problem, factors)?;
        let c = Buffer::result(problem, factors.reads_old(), fill, self.margins)?;
        let c = match self.groups() {
            Some(groups) => c.within_groups(problem, &groups, 2),
            None => c,
        };
        let ungated = self.ungated.clone().map(|wide| Box::new(TestData { factors, ..*wide }));
        Ok(TestData { factors, c, ungated, ..self.clone() })
    }

    /// Buffers with A, B, C, bias, residual, quantisation parameters, up weights and second pair filled by `fill` of 0 to 12.
    fn filled<'a>(
        problem: &Problem,
        factors: Factors,
        margins: Margins,
        fill: impl Fn(u64) -> Fill<'a>,
    ) -> Result<TestData, ProblemError> {
        problem.validate()?;
        let factors = exact(problem, factors)?;
        let c = Buffer::result(problem, factors.reads_old(), fill(2), margins)?;
        let (a, b) = match problem {
            Problem::Gemm(gemm) => {
                let matrix = |index: usize| {
                    let (offset, fill) = (gemm.matrices()[index].offset * gemm.parts(), fill(index as u64));
                    let scalar = gemm.scalar(index);
                    let place = margins.place(index, scalar, offset);
                    Buffer::new(["A", "B"][index], scalar, place, Lines::matrix(gemm, index), fill)
                };
                (matrix(0)?, matrix(1)?)
            }
            Problem::Conv(conv) => {
                let tensor = |operand, fill| {
                    let (name, len) = conv.operand(operand);
                    let place = margins.place(operand as usize, problem.dtype(), 0);
                    Buffer::new(name, problem.dtype(), place, Lines::dense(len), fill)
                };
                (tensor(Operand::A, fill(0))?, tensor(Operand::B, fill(1))?)
            }
            Problem::Reduce(reduce) => {
                let [a, b] = [(0, reduce.offset), (1, 0)].map(|(index, offset)| margins.place(index, reduce.dtype, offset));
                let a = Buffer::new("A", reduce.dtype, a, Lines::dense(reduce.len()), fill(0))?;
                (a, Buffer::new("B", reduce.dtype, b, Lines::dense(1), fill(1))?)
            }
        };
        let (a, b) = (Arc::new(a), Arc::new(b));
        let mut data = TestData {
            problem: problem.clone(),
            factors,
            margins,
            a,
            b,
            c,
            added: PerRole::default(),
            reductions: Vec::new(),
            ungated: None,
        };
        for RoleMemory { role, scalar, .. } in problem.memories() {
            let Some(tag) = tag(role) else { continue };
            let fill = role.quant().map_or(fill(tag), |quant| fill(tag).of(quant));
            let mut values = Buffer::new(role.words(), scalar, Place::FIRST, Lines::added(problem, role), fill)?;
            if let (Role::Ends, Problem::Gemm(gemm)) = (role, problem) {
                let (seed, random) = fill.seed();
                let ends = drawn(gemm, seed, random);
                values.bytes.chunks_exact_mut(4).zip(ends).for_each(|(bytes, end)| bytes.copy_from_slice(&end.to_le_bytes()));
            }
            data.added.set(role, Some(Arc::new(values)));
        }
        if let Some(groups) = data.groups() {
            let beyond =
                |buffer: &Arc<Buffer>, index: usize| Arc::new(Buffer::clone(buffer).within_groups(problem, &groups, index));
            (data.a, data.b) = (beyond(&data.a, 0), beyond(&data.b, 1));
            data.c = data.c.within_groups(problem, &groups, 2);
        }
        for (number, reduction) in problem.reductions().iter().enumerate() {
            let (scalar, lines) = (reduction.scalar(problem.accumulator()), Lines::dense(data.reduction_len(number)));
            data.reductions.push(Buffer::new("reduction", scalar, Place::FIRST, lines, Fill::Poison)?);
        }
        data.ungated = data.of_ungated()?.map(Box::new);
        Ok(data)
    }
    /// The product whose result is stored as pre-activations.
    fn of_ungated(&self) -> Result<Option<TestData>, ProblemError> {
        let Problem::Gemm(gemm) = &self.problem else { return Ok(None) };
        let Some(wide) = gemm.stored_ungated() else { return Ok(None) };
        let b = match self.added.given_to(Role::Up) {
            Some(up) => Arc::new(self.b.joined(up, gemm, &wide)?),
            None => self.b.clone(),
        };
        let c = Buffer::new(Role::Preactivations.words(), wide.out_dtype, Place::FIRST, Lines::matrix(&wide, 2), Fill::Poison)?;
        let problem = Problem::Gemm(wide);
        let c = match self.groups() {
            Some(groups) => c.within_groups(&problem, &groups, 2),
            None => c,
        };
        let added = self.added.clone().with(Role::Residual, None).with(Role::Up, None);
        Ok(Some(TestData { problem, b, c, added, ..self.clone() }))
    }
    /// Where the groups of a grouped product end.
    pub fn ends(&self) -> Option<Vec<u64>> {
        self.groups().map(|groups| groups.ends().to_vec())
    }
    /// Where rows or columns belong to groups.
    pub(super) fn groups(&self) -> Option<Groups> {
        let ends = self.added.given_to(Role::Ends);
        Groups::new(&self.problem, ends.map(|buffer| &*buffer.bytes))
    }
    /// Values of the reduction with this number.
    pub(super) fn reduction_len(&self, number: usize) -> u64 {
        self.problem.reductions().get(number).map_or(0, |reduction| self.problem.result_shape().left(reduction.over))
    }
    /// The buffer of an operand.
    pub fn buffer(&self, operand: Operand) -> &Buffer {
        match operand {
            Operand::A => &self.a,
            Operand::B => &self.b,
            Operand::C => &self.c,
        }
    }
    /// Checks that an operand's buffer is as a kernel must leave it: A and B unchanged, C unchanged outside of its elements.
    ///
    /// # Errors
    /// [`Damage`] names the first byte that changed.
    pub fn check_untouched(&self, operand: Operand, after: &[u8]) -> Result<(), Damage> {
        let buffer = self.buffer(operand);
        match operand {
            Operand::A => buffer.check_equal("A", after),
            Operand::B => buffer.check_equal("B", after),
            Operand::C if !self.problem.keeps_c() => buffer.check_equal("C, which is not to be stored", after),
            Operand::C => buffer.check_guards("C", after),
        }
    }
    /// Checks that the memory around pre-activations is unchanged; trivially true without them.
    ///
    /// # Errors
    /// [`Damage`] names the first byte that changed.
    pub fn check_around_preactivations(&self, after: &[u8]) -> Result<(), Damage> {
        self.ungated.as_ref().map_or(Ok(()), |wide| wide.c.check_guards(Role::Preactivations.words(), after))
    }
    /// Checks that the memory around the values of reductions is unchanged.
    ///
    /// # Errors
    /// [`Damage`] names the first byte that changed.
    pub fn check_around_reductions(&self, after: &[Vec<u8>]) -> Result<(), Damage> {
        self.reductions.iter().zip(after).try_for_each(|(buffer, after)| buffer.check_guards("reduction", after))
    }
    /// Checks that a buffer that is read beside the operands is unchanged; trivially true without one.
    ///
    /// # Errors
    /// [`Damage`] names the first byte that changed.
    pub fn check_added_untouched(&self, role: Role, after: &[u8]) -> Result<(), Damage> {
        self.added.given_to(role).map_or(Ok(()), |buffer| buffer.check_equal(role.words(), after))
    }
}

/// Factors as a kernel gets them, of a problem that is made for such.
fn exact(problem: &Problem, factors: Factors) -> Result<Factors, ProblemError> {
    factors.check(problem)?;
    let Factors { alpha, beta, alpha_im, beta_im } = factors;
    let [alpha_im, beta_im] = [factor(problem, "alpha_im", alpha_im)?, factor(problem, "beta_im", beta_im)?];
    Ok(Factors { alpha: factor(problem, "alpha", alpha)?, beta: factor(problem, "beta", beta)?, alpha_im, beta_im })
}

/// A factor as a kernel gets it: rounded to the type of the sums, which must hold it.
fn factor(problem: &Problem, name: &str, value: f64) -> Result<f64, ProblemError> {
    if name == "beta" && value != 0.0 && !problem.adds_old() {
        let reason = match problem.gate() {
            Some(_) => "a gated product adds no old result; use 0, or give it as a residual",
            None => "C is neither stored nor read; use 0, or store C",
        };
        return Err(ProblemError::value(name, value, reason));
    }
    let accumulator = problem.accumulator();
    if !accumulator.is_float() {
        // Integers are not scaled.
        return Ok(if name == "alpha" { 1.0 } else { 0.0 });
    }
    let rounded = if accumulator == Scalar::F32 { f64::from(value as f32) } else { value };
    if rounded.is_finite() {
        return Ok(rounded);
    }
    let reason = if value.is_finite() {
        format!("does not fit {accumulator}, the type that sums are scaled in; the largest is {:e}", f32::MAX)
    } else {
        "a result cannot be verified with a factor that is no number; give a finite one".into()
    };
    Err(ProblemError::value(name, format!("{value:e}"), reason))
}

#[cfg(test)]
mod tests {
    use super::super::buffer::{check_workspace, workspace_guard};
    use super::super::element::value;
    use super::*;
    use std::ops::Range;
    use tilewright_problem::{Gemm, Order};

    fn data(beta: f64) -> TestData {
        let gemm = Gemm::new(Scalar::F16, 5, 4, 3)
            .order(Order::Col)
            .ldc(7)
            .batch(2)
            .stride_c(40)
            .stride_a(0)
            .offsets(1, 2, 3)
            .build()
            .unwrap();
        TestData::new(&Problem::Gemm(gemm), 11, 0.5, beta).unwrap()
    }

    #[test]
    fn buffers_hold_data_where_elements_are_and_nan_elsewhere() {
        let data = data(0.3);
        assert_eq!(data.factors.beta, f64::from(0.3f32));
        assert_eq!((data.a.start, data.b.start, data.c.start), (129, 130, 131));
        let finite: Vec<u64> =
            (0..data.c.bytes.len() as u64 / 2).filter(|&i| value(Scalar::F16, &data.c.bytes, i).is_finite()).collect();
        let expected: Vec<u64> =
            (0..2).flat_map(|b| (0..4).flat_map(move |l| (0..5).map(move |i| 131 + 40 * b + 7 * l + i))).collect();
        assert_eq!(finite, expected);
        assert_eq!(data, super::tests::data(0.3));
    }

    #[test]
    fn outputs_are_poisoned_where_beta_is_zero() {
        let data = data(0.0);
        assert!((0..data.c.bytes.len() as u64 / 2).all(|i| value(Scalar::F16, &data.c.bytes, i).is_nan()));
        assert!((0..15).all(|i| value(Scalar::F16, &data.a.bytes, 129 + i).is_finite()));
    }

    #[test]
    fn damage_is_found() {
        let data = data(0.0);
        let inside = |element: u64| {
            let mut bytes = data.c.bytes.clone();
            bytes[((data.c.start + element) * 2) as usize] ^= 1;
            data.check_untouched(Operand::C, &bytes)
        };
        assert_eq!(inside(0), Ok(()));
        assert_eq!(inside(40 + 7 + 4), Ok(()));
        assert_eq!(inside(5).unwrap_err().element, 5);
        assert_eq!(inside(40 + 3 * 7 + 5).unwrap_err().element, 66);
        let mut bytes = data.c.bytes.clone();
        bytes[0] ^= 1;
        assert_eq!(data.check_untouched(Operand::C, &bytes).unwrap_err().element, -131);
        let mut bytes = data.a.bytes.clone();
        bytes[260] ^= 1;
        assert!(data.check_untouched(Operand::A, &bytes).unwrap_err().to_string().contains("A: byte 260"));
        assert!(data.check_untouched(Operand::B, &data.b.bytes[2..]).is_err());
    }

    #[test]
    fn gaps_are_all_but_the_elements() {
        let data = data(0.0);
        // Lines of 5, 7 apart, matrices 40 apart, from element 131 on; the last line ends at element 131 + 40 + 3 * 7 + 5.
        let of = |elements: Range<usize>| elements.start * 2..elements.end * 2;
        let mut expected = vec![of(0..131)];
        for first in [131, 171] {
            expected.extend((0..3).map(|l| of(first + 7 * l + 5..first + 7 * (l + 1))));
            expected.push(of(first + 26..if first == 131 { 171 } else { 197 + 128 }));
        }
        assert_eq!(data.c.gaps(), expected);
        // Interleaved batch entries leave none between them.
        let gemm = Gemm::new(Scalar::F32, 2, 3, 1).order(Order::Col).ldc(4).batch(2).stride_c(2).build().unwrap();
        let data = TestData::new(&Problem::Gemm(gemm), 1, 1.0, 0.0).unwrap();
        assert_eq!(data.c.gaps(), [0..256, 256 + 48..512 + 48]);
    }

    #[test]
    fn other_factors_share_the_inputs() {
        let (first, other) = (data(0.0), data(0.3));
        let with = first.with_factors(11, Factors::real(0.5, 0.3)).unwrap();
        assert!(Arc::ptr_eq(&with.a, &first.a) && Arc::ptr_eq(&with.b, &first.b));
        assert_eq!(with, other);
    }

    #[test]
    fn the_guard_of_a_workspace() {
        let mut guard = workspace_guard(512);
        assert_eq!(check_workspace(100, 512, &guard), Ok(()));
        guard[303] ^= 1;
        assert_eq!(check_workspace(100, 512, &guard).unwrap_err().byte, 403);
        assert!(check_workspace(100, 512, &workspace_guard(90)).is_err());
    }

    /// Element 0 lies at an address of just the alignment, in all types, wherever the problem's offset is; guards are as wide as asked.
    #[test]
    fn tensors_lie_where_they_are_to() {
        for (scalar, size) in [(Scalar::F64, 8), (Scalar::F32, 4), (Scalar::BF16, 2), (Scalar::E4M3, 1)] {
            for offset in [0, 1, 3, 8, 77] {
                for starts in [[8u64, 16, 64], [256, 8, 128], [32, 256, 8]] {
                    let gemm = Gemm::new(scalar, 9, 7, 5).offsets(offset, offset, offset).build().unwrap();
                    let (problem, factors) = (Problem::Gemm(gemm), Factors::real(1.0, 0.5));
                    let margins = Margins { guard: 1024, starts: Some(starts) };
                    let data = TestData::within(&problem, 3, factors, margins).unwrap();
                    for (operand, align) in [Operand::A, Operand::B, Operand::C].into_iter().zip(starts) {
                        let buffer = data.buffer(operand);
                        let at = buffer.start * u64::from(buffer.scalar.bytes());
                        let found = 1 << at.trailing_zeros().min(8);
                        assert_eq!(found, align, "{scalar} {operand:?} of {size} bytes, offset {offset}");
                        let gaps = buffer.gaps();
                        assert!(gaps[0].len() >= 1024 && gaps[gaps.len() - 1].len() == 1024, "{gaps:?}");
                    }
                    // The values are the same.
                    let plain = TestData::with(&problem, 3, factors).unwrap();
                    let first = |data: &TestData| value(scalar, &data.a.bytes, data.a.start);
                    assert_eq!(first(&data), first(&plain));
                }
            }
        }
    }

    #[test]
    fn guards_are_as_wide_as_a_tile() {
        let guard = |m, n| Margins::as_wide_as_a_tile(&Problem::Gemm(Gemm::new(Scalar::F32, m, n, 5).build().unwrap())).guard;
        assert_eq!(guard(64, 64), 64 << 10);
        assert_eq!(guard(2048, 300), 256 * 4 * 300);
        assert_eq!(guard(1 << 14, 1 << 14), 4 << 20);
        assert_eq!(guard(1, 1 << 20), 1 << 20);
    }
}
