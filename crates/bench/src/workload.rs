//! One problem on one device: buffers that all sides work on, and the judgement of what they leave there.

use crate::error::BenchError;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use tilewright_check::reference::{Exact, Reference, Samples, TestData, Verdict};
use tilewright_check::run::{Buffers, Factors};
use tilewright_device::{Buffer, CacheState, Device, Native};
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Along, Math, Problem, Quant, Role};

/// A problem with its data on a device.
pub struct Workload<'a> {
    device: &'a Arc<dyn Device>,
    native: &'a dyn Native,
    cache: CacheState,
    data: TestData,
    reference: Reference,
    /// The same problem on small integers.
    exact: Exact,
    buffers: Buffers,
    /// Which data the buffers hold: 0, the random ones; 1, those of small integers.
    on_device: Cell<usize>,
    /// As read back, kept to spare allocations for each side.
    after: RefCell<After>,
}

/// What a run left in C, in pre-activations and in the values of reductions, with what lies around them.
#[derive(Default)]
struct After {
    c: Vec<u8>,
    preactivations: Vec<u8>,
    reductions: Vec<Vec<u8>>,
}

/// Seed of all benchmark data.
const SEED: u64 = 0x7115;

impl<'a> Workload<'a> {
    /// Makes random data for a problem (alpha = 1, beta = 0) and computes the reference of a sample of the result. Copies the
    /// data to the device. All sides are timed with caches in this state.
    ///
    /// # Errors
    /// Where memory of host or device does not suffice.
    pub fn new(device: &'a Arc<dyn Device>, problem: &Problem, cache: CacheState) -> Result<Self, BenchError> {
        let native = native(device.as_ref())?;
        let data = TestData::new(problem, SEED, 1.0, 0.0)?;
        let reference = Reference::new(&data, Samples::Budget(1 << 26));
        let exact = Exact::new(problem, SEED, data.factors)?;
        let buffers = Buffers::upload(device.as_ref(), &data)?;
        let after = RefCell::default();
        Ok(Workload { device, native, cache, data, reference, exact, buffers, on_device: Cell::new(0), after })
    }
    /// The device.
    pub fn device(&self) -> &'a Arc<dyn Device> {
        self.device
    }
    /// Its native side.
    pub fn native(&self) -> &'a dyn Native {
        self.native
    }
    /// What timed runs find in the last-level cache.
    pub fn cache(&self) -> CacheState {
        self.cache
    }
    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.data.problem
    }
    /// With what precision f32 products are computed.
    pub fn math(&self) -> Math {
        self.data.problem.math()
    }
    /// The factor of A * B.
    pub fn alpha(&self) -> f64 {
        self.data.factors.alpha
    }
    /// Factor of the old result.
    pub fn beta(&self) -> f64 {
        self.data.factors.beta
    }
    /// Both factors.
    pub fn factors(&self) -> Factors {
        self.data.factors
    }

    fn parts(&self, operand: Operand) -> (&Buffer, &tilewright_check::reference::Buffer) {
        match operand {
            Operand::A => (&self.buffers.a, &self.data.a),
            Operand::B => (&self.buffers.b, &self.data.b),
            Operand::C => (&self.buffers.c, &self.data.c),
        }
    }
    /// Position of an operand's element 0 in its buffer, in elements.
    pub fn start(&self, operand: Operand) -> u64 {
        self.parts(operand).1.start
    }
    /// Device address of an operand's element 0 (CUDA).
    ///
    /// # Errors
    /// None for the workload's own buffers on their device.
    pub fn address(&self, operand: Operand) -> Result<usize, BenchError> {
        let (buffer, data) = self.parts(operand);
        Ok(self.native.memory(buffer)? + data.scalar.bytes_of(data.start) as usize)
    }
    /// Memory object of an operand (OpenCL); its element 0 is [`Workload::start`] elements after its start.
    ///
    /// # Errors
    /// As [`Workload::address`].
    pub fn object(&self, operand: Operand) -> Result<usize, BenchError> {
        Ok(self.native.memory(self.parts(operand).0)?)
    }
    /// Device address of the bias vector's element 0 (CUDA), where there is one.
    ///
    /// # Errors
    /// As [`Workload::address`].
    pub fn bias_address(&self) -> Result<Option<usize>, BenchError> {
        self.buffers.get(Role::Bias).map(|buffer| Ok(self.native.memory(buffer)?)).transpose()
    }
    /// Device address of the residual's element 0 (CUDA), where there is one.
    ///
    /// # Errors
    /// As [`Workload::address`].
    pub fn residual_address(&self) -> Result<Option<usize>, BenchError> {
        self.buffers.get(Role::Residual).map(|buffer| Ok(self.native.memory(buffer)?)).transpose()
    }
    /// Where the groups of a grouped product end: in the random data, and in those of small integers.
    pub fn ends(&self) -> [Option<Vec<u64>>; 2] {
        [self.data.ends(), self.exact.data().ends()]
    }
    /// Which of these two data the buffers hold now.
    pub fn on_device(&self) -> usize {
        self.on_device.get()
    }
    /// The buffers for a generated program.
    pub fn buffers(&self, workspace: Option<Buffer>) -> Buffers {
        Buffers { workspace, ..self.buffers.clone() }
    }

    /// Poisons C and the values of reductions, runs once, and judges both. Then does the same on small integers with exact sums:
    /// no term of any sum may be missing or count twice.
    ///
    /// # Errors
    /// Those of `run` and of the device.
    pub fn check(&self, run: &mut dyn FnMut() -> Result<(), BenchError>) -> Result<Judgement, BenchError> {
        let judgement = self.check_on(&self.data, run, |after| {
            let stored = self.stored(|| self.reference.check(&after.c));
            let stored = stored.and(self.reference.check_preactivations(&after.preactivations));
            stored.and(self.reference.check_reductions(&self.data, &after.reductions))
        })?;
        if !judgement.correct {
            return Ok(judgement);
        }
        self.buffers.write_inputs(self.device.as_ref(), self.exact.data())?;
        self.on_device.set(1);
        let exact = self.check_on(self.exact.data(), run, |after| {
            let stored = self.stored(|| self.exact.check_terms(&after.c));
            let stored = stored.and(self.exact.check_preactivations(&after.preactivations));
            stored.and(self.exact.check_reductions(&after.reductions))
        });
        // Whatever came of it: times are those of random data.
        self.buffers.write_inputs(self.device.as_ref(), &self.data)?;
        self.on_device.set(0);
        let exact = exact?;
        Ok(if exact.correct { judgement } else { exact.on_small_integers() })
    }

    /// The judgement of C, where the problem stores it.
    fn stored(&self, judge: impl FnOnce() -> Verdict) -> Verdict {
        if self.problem().keeps_c() { judge() } else { Verdict::default() }
    }

    fn check_on(
        &self,
        data: &TestData,
        run: &mut dyn FnMut() -> Result<(), BenchError>,
        judge: impl Fn(&After) -> Verdict,
    ) -> Result<Judgement, BenchError> {
        let stored = self.buffers.get(Role::Preactivations).zip(data.ungated.as_ref().map(|wide| &wide.c));
        let written = std::iter::once((&self.buffers.c, &data.c)).chain(stored);
        let written = written.chain(self.buffers.reductions.iter().zip(&data.reductions));
        for (buffer, poison) in written {
            self.device.write(buffer, 0, &poison.bytes)?;
        }
        run()?;
        let mut after = self.after.borrow_mut();
        let After { c, preactivations, reductions } = &mut *after;
        reductions.resize_with(data.reductions.len(), Vec::new);
        let reduced =
            self.buffers.reductions.iter().zip(&data.reductions).zip(reductions).map(|((x, poison), after)| (x, poison, after));
        let read = std::iter::once((&self.buffers.c, &data.c, c));
        let stored = stored.map(|(x, poison)| (x, poison, preactivations));
        for (buffer, poison, after) in read.chain(stored).chain(reduced) {
            after.resize(poison.bytes.len(), 0);
            self.device.read(buffer, 0, after)?;
        }
        let verdict = judge(&after);
        let damage = data.check_untouched(Operand::C, &after.c).and_then(|()| data.check_around_reductions(&after.reductions));
        let damage = damage.and_then(|()| data.check_around_preactivations(&after.preactivations));
        let damage = damage.err().map(|d| d.to_string());
        let close = verdict.passed();
        Ok(Judgement {
            correct: close && damage.is_none(),
            max_error: verdict.max_error,
            failure: damage.or_else(|| (!close).then(|| verdict.to_string())),
        })
    }

    /// Fewest bytes that must move: every input read once, the result written once.
    pub fn bytes(&self) -> f64 {
        least_bytes(self.problem())
    }
}

/// A device's native side.
///
/// # Errors
/// [`BenchError::Usage`] for the emulator.
pub fn native(device: &dyn Device) -> Result<&dyn Native, BenchError> {
    device.native().ok_or_else(|| {
        BenchError::Usage(format!("{} has no vendor libraries and no clock; choose cuda:0 or opencl:0", device.info().id))
    })
}

/// What a side left in C.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Everything is as it must be.
    pub correct: bool,
    /// Greatest error relative to the sum of magnitudes.
    pub max_error: f64,
    /// What is wrong.
    pub failure: Option<String>,
}

impl Judgement {
    fn on_small_integers(self) -> Judgement {
        let failure = self.failure.map(|what| format!("on small integers, whose sums are exact: {what}"));
        Judgement { failure, ..self }
    }
}

/// Fewest bytes that a problem must move.
pub fn least_bytes(problem: &Problem) -> f64 {
    let [input, right, output] =
        [problem.dtype(), problem.b_dtype(), problem.out_dtype()].map(|scalar| scalar.bytes_of(2) as f64 / 2.0);
    let words = |quant: Quant| problem.quant_len(quant) as f64 * f64::from(quant.scalar().bytes());
    let quants: f64 = Quant::ALL.into_iter().map(words).sum();
    quants
        + match problem {
            Problem::Gemm(g) => {
                let [input, right, output] = [input, right, output].map(|bytes| bytes * g.parts() as f64);
                let batch = |stride: u64| if stride == 0 { 1.0 } else { g.batch as f64 };
                let (m, n, k) = (g.m as f64, g.n as f64, g.k as f64);
                let columns = g.product_columns() as f64;
                let bias = g.bias.map_or(0.0, |x| batch(x.batch_stride) * if x.along == Along::M { m } else { columns });
                let residual = g.residual.map_or(0.0, |x| batch(x.batch_stride) * m * n);
                let factors = input * batch(g.a.batch_stride) * m * k + right * batch(g.b.batch_stride) * k * columns;
                factors + output * (g.entries() as f64 * m * n + bias + residual + g.preactivations_len() as f64)
            }
            Problem::Conv(c) => {
                let [a, b, result] = [Operand::A, Operand::B, Operand::C].map(|operand| c.operand(operand).1);
                let results = result + problem.bias_len() + problem.residual_len();
                input * (a as f64 + b as f64) + output * results as f64
            }
            Problem::Reduce(r) => input * r.len() as f64,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::Scalar;
    use tilewright_problem::{Conv, GateFunction, Gemm, Order};

    #[test]
    fn shared_operands_are_read_once() {
        let gemm = |b: u64| Gemm::new(Scalar::F16, 2, 3, 5).order(Order::Col).batch(7).stride_b(b).build().unwrap().into();
        assert_eq!(least_bytes(&gemm(15)), 2.0 * 7.0 * (10.0 + 15.0 + 6.0));
        assert_eq!(least_bytes(&gemm(0)), 2.0 * (70.0 + 15.0 + 42.0));
        let added = Gemm::new(Scalar::F16, 2, 3, 5).order(Order::Col).batch(7).out_dtype(Scalar::F32).bias(Along::N).residual();
        assert_eq!(least_bytes(&added.build().unwrap().into()), 2.0 * 7.0 * 25.0 + 4.0 * (42.0 + 3.0 + 42.0));
        let gated = Gemm::new(Scalar::F16, 2, 3, 5).gate(GateFunction::Silu).bias(Along::N).preactivations();
        assert_eq!(least_bytes(&gated.build().unwrap().into()), 2.0 * (10.0 + 30.0 + 6.0 + 6.0 + 12.0));
        let conv = Conv::new(Scalar::F32, 2, 3, 4, &[5, 5], &[3, 3]).build().unwrap();
        assert_eq!(least_bytes(&conv.into()), 4.0 * (150.0 + 108.0 + 72.0));
    }
}
