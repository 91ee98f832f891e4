//! Test data of a problem on a device, and programs run on them.

use super::{Depth, Verification, VerifyError};
use crate::reduce::Reduced;
use crate::reference::{Exact, Margins, Reference, Samples, Special, TestData, Verdict, check_workspace, workspace_guard};
use crate::room;
use crate::run::{Buffers, Factors, bind};
use crate::spread::Spread;
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_device::{Buffer, Compiled, Device, DeviceError, DeviceKind, Launch};
use tilewright_gen::plan::special::Contract;
use tilewright_gen::program::Program;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::{Contraction, Operand};
use tilewright_problem::{Complex, Extents, Problem, Role};

/// Bytes of operands beyond which data of small integers are made again for each verification instead of being kept.
const KEPT: usize = 256 << 20;
/// Bytes of a buffer that are read back at a time where they are only compared.
const PART: usize = 32 << 20;
/// Gaps between C's elements that are written one by one, beside poison that the device writes itself.
const GAPS: usize = 64;

/// Test data of one problem on one device, with references: made once, used for every candidate.
pub struct Case {
    device: Arc<dyn Device>,
    first: Side,
    other: Option<Side>,
    /// Of the launch.
    extents: Option<Extents>,
    buffers: Buffers,
    /// Where the data lie in buffers of another problem.
    spread: Option<Spread>,
    seed: u64,
    samples: Samples,
    /// What a run left, kept because memory is slow when it is new; held while a program is verified.
    after: Mutex<After>,
}

/// Results as read back.
#[derive(Default)]
struct After {
    c: Vec<u8>,
    preactivations: Vec<u8>,
    reductions: Vec<Vec<u8>>,
}

/// Data and reference of one pair of factors. All sides of a case share A, B, bias and residual.
struct Side {
    /// As they were asked for.
    factors: Factors,
    data: TestData,
    reference: Reference,
    /// The same problem on small integers; made when first needed.
    exact: Mutex<Option<Arc<Exact>>>,
}

impl Side {
    fn new(factors: Factors, data: TestData, reference: Reference) -> Side {
        Side { factors, data, reference, exact: Mutex::default() }
    }

    /// Small integers of the same problem, A and B those of `like`.
    fn exact(&self, seed: u64, like: Option<&Exact>) -> Result<Arc<Exact>, VerifyError> {
        let mut kept = self.exact.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exact) = kept.as_ref() {
            return Ok(exact.clone());
        }
        let problem = &self.data.problem;
        let factors = Exact::factors(problem, self.data.factors.reads_old());
        let new = || Exact::within(problem, seed, factors, self.data.margins);
        let exact = like.map_or_else(new, |like| like.with_factors(factors));
        let exact = Arc::new(exact?);
        if self.keeps_exact() {
            *kept = Some(exact.clone());
        }
        Ok(exact)
    }

    /// Small integers are kept, unless they take too much memory.
    fn keeps_exact(&self) -> bool {
        [&*self.data.a, &*self.data.b, &self.data.c].map(|b| b.bytes.len()).iter().sum::<usize>() <= KEPT
    }
}

/// A program that is verified.
struct Candidate<'a> {
    program: &'a Program,
    compiled: &'a [Arc<Compiled>],
    contraction: &'a Contraction,
    /// With a guard after it.
    workspace: Option<Buffer>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("problem", &self.problem().key()).field("factors", &self.factors()).finish_non_exhaustive()
    }
}

/// Factors for a problem's test data: of 8-bit integers of all sizes products are so large that results of 16 bits
/// would not hold them. Where alpha or beta is complex, and only its real part was given, the imaginary one is another.
fn test_scalars(problem: &Problem, factors: Factors) -> Factors {
    let scale = match (problem.multiplied().is_int8(), problem.out_dtype().is_int8()) {
        (false, _) => 1.0,
        (true, false) => 2f64.powi(-16),
        // Some results lie beyond the ends of the type.
        (true, true) => 2f64.powi(-11),
    };
    let complex = if let Problem::Gemm(gemm) = problem { gemm.complex.unwrap_or_default() } else { Complex::default() };
    let imaginary = |is: bool, given: f64, real: f64| if is && given == 0.0 { -0.625 * real } else { given };
    let (alpha_im, beta_im) =
        (imaginary(complex.alpha_im, factors.alpha_im, factors.alpha), imaginary(complex.beta_im, factors.beta_im, factors.beta));
    Factors { alpha: factors.alpha * scale, alpha_im, beta_im, ..factors }
}

impl Case {
    /// Makes data from a seed, computes the reference and copies the data to the device.
    ///
    /// # Errors
    /// [`VerifyError::Problem`], [`VerifyError::Device`].
    pub fn new(
        device: &Arc<dyn Device>,
        problem: &Problem,
        seed: u64,
        factors: Factors,
        samples: Samples,
    ) -> Result<Case, VerifyError> {
        Case::placed(device, problem, seed, factors, samples, None)
    }

    /// The same with the first elements of A, B and C at addresses of just these alignments, in bytes. On a device that does not
    /// see accesses outside of a buffer, guards are as wide as a tile ([`Margins::as_wide_as_a_tile`]). An emulator sees such an
    /// access.
    ///
    /// # Errors
    /// As [`Case::new`].
    pub fn placed(
        device: &Arc<dyn Device>,
        problem: &Problem,
        seed: u64,
        factors: Factors,
        samples: Samples,
        starts: Option<[u64; 3]>,
    ) -> Result<Case, VerifyError> {
        room::check(device.as_ref(), problem)?;
        let factors = test_scalars(problem, factors);
        let sees_all = device.info().kind == DeviceKind::Emulated;
        let wide = if sees_all { Margins::default() } else { Margins::as_wide_as_a_tile(problem) };
        let data = TestData::within(problem, seed, factors, Margins { starts, ..wide })?;
        let reference = Reference::new(&data, samples);
        let first = Side::new(factors, data, reference);
        let buffers = Buffers::upload(device.as_ref(), &first.data)?;
        let (device, after) = (device.clone(), Mutex::default());
        Ok(Case { device, first, other: None, extents: None, buffers, spread: None, seed, samples, after })
    }

    /// Test data of a problem that was reduced for an emulator, or of a launch of it with these extents, as [`Case::at`].
    ///
    /// # Errors
    /// As [`Case::at`].
    pub fn reduced(
        device: &Arc<dyn Device>,
        reduced: &Reduced,
        extents: Option<Extents>,
        seed: u64,
        factors: Factors,
        samples: Samples,
    ) -> Result<Case, VerifyError> {
        let of_launch = |problem: &Problem| extents.map_or_else(|| Ok(problem.clone()), |at| problem.at(at));
        let wide = of_launch(reduced.space.problem())?;
        let compact = reduced.compact.as_ref().map(of_launch).transpose()?;
        let (Some(Problem::Gemm(compact)), Problem::Gemm(wide)) = (compact, &wide) else {
            return Ok(Case { extents, ..Case::new(device, &wide, seed, factors, samples)? });
        };
        let case = Case::new(device, &Problem::Gemm(compact.clone()), seed, factors, samples)?;
        let spread = Spread::new(&case.first.data, &compact, wide)?;
        let buffers = spread.upload(device.as_ref(), &case.first.data)?;
        Ok(Case { extents, buffers, spread: Some(spread), ..case })
    }

    /// Test data of a launch with these extents, for a problem with extents that are known only at launch. Buffers hold what that
    /// launch touches, and what it must not touch.
    ///
    /// # Errors
    /// As [`Case::new`]; [`VerifyError::Problem`] for extents that the problem does not have.
    pub fn at(
        device: &Arc<dyn Device>,
        problem: &Problem,
        extents: Extents,
        seed: u64,
        factors: Factors,
        samples: Samples,
    ) -> Result<Case, VerifyError> {
        let case = Case::new(device, &problem.at(extents)?, seed, factors, samples)?;
        Ok(Case { extents: Some(extents), ..case })
    }

    /// The same, of a launch with these extents, whose data it has.
    #[must_use]
    pub fn launched_at(self, extents: Option<Extents>) -> Case {
        Case { extents, ..self }
    }

    /// Other factors, with which a thorough look runs as well. Those given last stand.
    ///
    /// # Errors
    /// [`VerifyError::Problem`].
    pub fn also_with(&mut self, factors: Factors) -> Result<(), VerifyError> {
        let factors = test_scalars(self.problem(), factors);
        let useful = !factors.reads_old() || self.problem().adds_old();
        if useful && self.other.as_ref().is_none_or(|side| side.factors != factors) {
            let data = self.first.data.with_factors(self.seed, factors)?;
            let reference = self.first.reference.with_factors(&data, self.samples);
            self.other = Some(Side::new(factors, data, reference));
        }
        Ok(())
    }

    /// Makes the small integers of a thorough look before it is taken, where they are kept.
    ///
    /// # Errors
    /// [`VerifyError::Problem`].
    pub fn make_integers(&self) -> Result<(), VerifyError> {
        let mut last = None::<Arc<Exact>>;
        for side in std::iter::once(&self.first).chain(&self.other).filter(|side| side.keeps_exact()) {
            last = Some(side.exact(self.seed, last.as_deref())?);
        }
        Ok(())
    }

    /// The problem.
    pub const fn problem(&self) -> &Problem {
        &self.first.data.problem
    }

    /// Alpha and beta of the first look.
    pub const fn factors(&self) -> Factors {
        self.first.data.factors
    }

    /// The data's buffers with a workspace, to run or time on.
    pub fn buffers(&self, workspace: Option<Buffer>) -> Buffers {
        Buffers { workspace, ..self.buffers.clone() }
    }

    /// Launches of a program on the data.
    ///
    /// # Errors
    /// [`VerifyError::Bind`].
    pub fn bind(
        &self,
        program: &Program,
        compiled: &[Arc<Compiled>],
        contraction: &Contraction,
        workspace: Option<Buffer>,
    ) -> Result<Vec<Launch>, VerifyError> {
        self.launches(&Candidate { program, compiled, contraction, workspace }, self.factors())
    }

    fn launches(&self, candidate: &Candidate<'_>, factors: Factors) -> Result<Vec<Launch>, VerifyError> {
        let Candidate { program, compiled, contraction, workspace } = candidate;
        let at = self.extents.unwrap_or(contraction.extents());
        Ok(bind(program, compiled, contraction, &self.buffers(workspace.clone()), factors, &at)?)
    }

    /// Runs a compiled program and judges what it did. `repeatable` says that two runs must agree to the last bit.
    ///
    /// # Errors
    /// [`VerifyError::Device`] where the program could not run to its end, [`VerifyError::Bind`] where it does not fit.
    pub fn verify(
        &self,
        program: &Program,
        compiled: &[Arc<Compiled>],
        contraction: &Contraction,
        depth: Depth,
        repeatable: bool,
    ) -> Result<Verification, VerifyError> {
        let mut after = self.after.lock().unwrap_or_else(PoisonError::into_inner);
        let candidate = Candidate { program, compiled, contraction, workspace: self.workspace(program)? };
        let mut result = self.verify_random(&candidate, &self.first, depth, repeatable, &mut after)?;
        if depth == Depth::Quick {
            return Ok(result);
        }
        if result.passed
            && let Some(other) = &self.other
        {
            result = result.and(self.verify_random(&candidate, other, depth, repeatable, &mut after)?);
        }
        // What changes its own inputs gives other results the next time, and is no race.
        if (result.passed || result.race)
            && let Some(reason) = self.damage(program, candidate.workspace.as_ref())?
        {
            return Ok(Verification::new(result.max_error, result.checked, Some(reason)));
        }
        if result.passed {
            result = result.and(self.verify_integers(&candidate, &mut after)?);
        }
        Ok(result)
    }

    /// Runs a compiled program once with each of the factors, and judges the results and the memory around them.
    ///
    /// # Errors
    /// As [`Case::verify`].
    pub fn glance(
        &self,
        program: &Program,
        compiled: &[Arc<Compiled>],
        contraction: &Contraction,
        repeatable: bool,
    ) -> Result<Verification, VerifyError> {
        let mut after = self.after.lock().unwrap_or_else(PoisonError::into_inner);
        let candidate = Candidate { program, compiled, contraction, workspace: self.workspace(program)? };
        let mut verify = |side| self.verify_random(&candidate, side, Depth::Quick, repeatable, &mut after);
        let result = verify(&self.first)?;
        match &self.other {
            Some(other) if result.passed => Ok(result.and(verify(other)?)),
            _ => Ok(result),
        }
    }

    /// The case's data with NaN, infinities and large magnitudes in an operand, where results with these have a contract.
    pub fn special(&self, operand: Operand, contract: Contract) -> Option<Special> {
        Special::of(&self.first.data, operand, contract, self.seed, self.samples)
    }

    /// Runs a compiled program once on data with special values, and judges the result by its contract.
    ///
    /// # Errors
    /// As [`Case::verify`].
    pub fn verify_special(
        &self,
        special: &Special,
        program: &Program,
        compiled: &[Arc<Compiled>],
        contraction: &Contraction,
    ) -> Result<Verification, VerifyError> {
        let mut after = self.after.lock().unwrap_or_else(PoisonError::into_inner);
        let candidate = Candidate { program, compiled, contraction, workspace: self.workspace(program)? };
        self.write_inputs(special.data())?;
        let ran = self.run(&candidate, special.data(), &mut after);
        // Whatever came of it: the case's own data again.
        self.write_inputs(&self.first.data)?;
        ran?;
        let verdict = special.check(&after.c);
        if verdict.checked == 0 {
            return Ok(Verification::new(0.0, 0, None));
        }
        let verdict = judged(special.data(), &verdict, &after);
        let title = |reason| format!("with NaN, infinities and large magnitudes in an operand: {reason}");
        Ok(Verification { reason: verdict.reason.map(title), max_error: 0.0, ..verdict })
    }

    /// Runs a candidate on random data, a second time for a thorough look.
    fn verify_random(
        &self,
        candidate: &Candidate<'_>,
        Side { data, reference, .. }: &Side,
        depth: Depth,
        repeatable: bool,
        after: &mut After,
    ) -> Result<Verification, VerifyError> {
        let launches = self.run(candidate, data, after)?;
        let stored = if data.problem.keeps_c() { reference.check(&after.c) } else { Verdict::default() };
        let stored = stored.and(reference.check_preactivations(&after.preactivations));
        let mut result = judged(data, &stored.and(reference.check_reductions(data, &after.reductions)), after);
        // A second run tells a wrong program from a racing one.
        if repeatable && (depth == Depth::Thorough || !result.passed) {
            self.start(candidate, data, &launches)?;
            let same = self.holds(Operand::C, &after.c)? && self.read_preactivations(data)? == after.preactivations;
            if !same || self.read_reductions(data)? != after.reductions {
                let what = "race: two runs of the same launches gave different results";
                result.reason = Some(result.reason.map_or(what.into(), |reason| format!("{what}; {reason}")));
                (result.passed, result.race) = (false, true);
            }
        }
        Ok(result)
    }

    /// Runs a candidate on small integers, whose sums are exact, and compares every element: no term of any sum may be missing or count
    /// twice. Factors are [`Exact::factors`].
    fn verify_integers(&self, candidate: &Candidate<'_>, after: &mut After) -> Result<Verification, VerifyError> {
        let mut verify = || {
            let (mut result, mut last) = (Verification::new(0.0, 0, None), None::<Arc<Exact>>);
            for side in std::iter::once(&self.first).chain(&self.other) {
                let exact = side.exact(self.seed, last.as_deref())?;
                let data = exact.data();
                if last.is_none() {
                    self.write_inputs(data)?;
                }
                self.run(candidate, data, after)?;
                let stored = if data.problem.keeps_c() { exact.check(&after.c) } else { Verdict::default() };
                let stored = stored.and(exact.check_preactivations(&after.preactivations));
                let verdict = judged(data, &stored.and(exact.check_reductions(&after.reductions)), after);
                let Factors { alpha, beta, alpha_im, beta_im } = data.factors;
                let whole = |re: f64, im: f64| if im == 0.0 { re.to_string() } else { format!("{re}{im:+}i") };
                let (alpha, beta) = (whole(alpha, alpha_im), whole(beta, beta_im));
                let title = |reason| format!("on small integers, with alpha {alpha}, beta {beta} and exact sums: {reason}");
                // The rounding of a right result is no error of the sums.
                let max_error = if verdict.passed { 0.0 } else { verdict.max_error };
                result = result.and(Verification { max_error, reason: verdict.reason.map(title), ..verdict });
                last = Some(exact);
            }
            Ok::<_, VerifyError>(result)
        };
        let result = verify();
        // Whatever came of it: the case's own data again.
        self.write_inputs(&self.first.data)?;
        result
    }

    /// Runs a candidate with the factors and the C of some data, whose inputs the device has, and reads C back.
    fn run(&self, candidate: &Candidate<'_>, data: &TestData, after: &mut After) -> Result<Vec<Launch>, VerifyError> {
        let launches = self.launches(candidate, data.factors)?;
        self.start(candidate, data, &launches)?;
        after.c.resize(data.c.bytes.len(), 0);
        self.read(Operand::C, &mut after.c)?;
        after.preactivations = self.read_preactivations(data)?;
        after.reductions = self.read_reductions(data)?;
        Ok(launches)
    }

    /// What the buffer of the pre-activations holds.
    fn read_preactivations(&self, data: &TestData) -> Result<Vec<u8>, DeviceError> {
        let (Some(buffer), Some(ungated)) = (self.buffers.get(Role::Preactivations), &data.ungated) else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; ungated.c.bytes.len()];
        self.device.read(buffer, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// What the buffers of the reductions hold.
    fn read_reductions(&self, data: &TestData) -> Result<Vec<Vec<u8>>, DeviceError> {
        let buffers = self.buffers.reductions.iter().zip(&data.reductions).map(|(buffer, data)| {
            let mut bytes = vec![0; data.bytes.len()];
            self.device.read(buffer, 0, &mut bytes)?;
            Ok(bytes)
        });
        buffers.collect()
    }

    /// Starts launches on a fresh C and workspace, and fresh reductions.
    fn start(&self, candidate: &Candidate<'_>, data: &TestData, launches: &[Launch]) -> Result<(), DeviceError> {
        // What must not change is written as it is compared.
        let poisoned = !data.factors.reads_old() && self.spread.is_none() && data.problem.keeps_c();
        let gaps = if poisoned { data.c.gaps() } else { Vec::new() };
        // All ones are NaN in floating-point types but these two and no integer that says it was never written: there the data's own poison.
        let scalar = data.problem.out_dtype();
        let ones = scalar.is_float() && !matches!(scalar, Scalar::E4M3Fnuz | Scalar::E5M2Fnuz);
        if gaps.is_empty() || gaps.len() > GAPS || !ones {
            self.write(Operand::C, &data.c.bytes)?;
        } else {
            self.device.fill(&self.buffers.c, 0xff)?;
            for gap in gaps {
                self.device.write(&self.buffers.c, gap.start as u64, data.c.bytes.get(gap).unwrap_or_default())?;
            }
        }
        if let (Some(buffer), Some(ungated)) = (self.buffers.get(Role::Preactivations), &data.ungated) {
            self.device.write(buffer, 0, &ungated.c.bytes)?;
        }
        for (buffer, poison) in self.buffers.reductions.iter().zip(&data.reductions) {
            self.device.write(buffer, 0, &poison.bytes)?;
        }
        if let Some(workspace) = &candidate.workspace {
            self.device.fill(&workspace.slice(0, candidate.program.workspace_bytes)?, 0xff)?;
        }
        self.device.launch(launches)
    }

    /// Other inputs: all but C.
    fn write_inputs(&self, data: &TestData) -> Result<(), DeviceError> {
        self.write(Operand::A, &data.a.bytes)?;
        self.write(Operand::B, &data.b.bytes)?;
        self.buffers.write_added(self.device.as_ref(), data)
    }

    fn write(&self, operand: Operand, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = self.buffers.operand(operand);
        match &self.spread {
            Some(spread) => spread.write(self.device.as_ref(), operand, buffer, bytes),
            None => self.device.write(buffer, 0, bytes),
        }
    }

    fn read(&self, operand: Operand, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let buffer = self.buffers.operand(operand);
        match &self.spread {
            Some(spread) => spread.read(self.device.as_ref(), operand, buffer, bytes),
            None => self.device.read(buffer, 0, bytes),
        }
    }

    /// True if the device has these bytes of an operand.
    fn holds(&self, operand: Operand, bytes: &[u8]) -> Result<bool, DeviceError> {
        if self.spread.is_some() {
            let mut found = vec![0; bytes.len()];
            self.read(operand, &mut found)?;
            return Ok(found == bytes);
        }
        let mut found = vec![0; bytes.len().min(PART)];
        for (n, expected) in bytes.chunks(PART).enumerate() {
            let found = &mut found[..expected.len()];
            self.device.read(self.buffers.operand(operand), (n * PART) as u64, found)?;
            if !found.par_chunks(1 << 20).zip(expected.par_chunks(1 << 20)).all(|(found, expected)| found == expected) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Workspace with a guard after it, where the program needs some.
    fn workspace(&self, program: &Program) -> Result<Option<Buffer>, DeviceError> {
        if program.workspace_bytes == 0 {
            return Ok(None);
        }
        let guard = self.first.data.margins.guard;
        let buffer = self.device.alloc(program.workspace_bytes.saturating_add(guard))?;
        self.device.write(&buffer, program.workspace_bytes, &workspace_guard(guard))?;
        Ok(Some(buffer))
    }

    /// Puts back what earlier runs changed of A, B, bias and residual; true if there was anything.
    ///
    /// # Errors
    /// The device's.
    pub fn restore(&self, program: &Program) -> Result<bool, DeviceError> {
        let mut changed = false;
        // Each round finds one operand and writes it anew.
        while self.damage(program, None)?.is_some() {
            changed = true;
        }
        Ok(changed)
    }

    /// What a program changed that it had no right to, C apart. One operand is put back.
    fn damage(&self, program: &Program, workspace: Option<&Buffer>) -> Result<Option<String>, DeviceError> {
        let data = &self.first.data;
        for operand in [Operand::A, Operand::B] {
            let expected = &data.buffer(operand).bytes;
            if self.holds(operand, expected)? {
                continue;
            }
            let mut found = vec![0; expected.len()];
            self.read(operand, &mut found)?;
            self.write(operand, expected)?;
            if let Err(damage) = data.check_untouched(operand, &found) {
                return Ok(Some(damage.to_string()));
            }
        }
        let read = |buffer: &Buffer, from: u64, len: usize| -> Result<Vec<u8>, DeviceError> {
            let mut bytes = vec![0; len];
            self.device.read(buffer, from, &mut bytes)?;
            Ok(bytes)
        };
        for (role, buffer) in self.buffers.added.given() {
            let Some(values) = data.added.given_to(role) else { continue };
            if let Err(damage) = data.check_added_untouched(role, &read(buffer, 0, values.bytes.len())?) {
                self.device.write(buffer, 0, &values.bytes)?;
                return Ok(Some(damage.to_string()));
            }
        }
        let Some(buffer) = workspace else { return Ok(None) };
        let wide = data.margins.guard;
        let guard = read(buffer, program.workspace_bytes, wide as usize)?;
        Ok(check_workspace(program.workspace_bytes, wide, &guard).err().map(|damage| damage.to_string()))
    }
}

/// What a run left in C, in pre-activations and in the reductions.
fn judged(data: &TestData, verdict: &Verdict, after: &After) -> Verification {
    let around = data.check_untouched(Operand::C, &after.c).and_then(|()| data.check_around_reductions(&after.reductions));
    let around = around.and_then(|()| data.check_around_preactivations(&after.preactivations));
    let damage = around.err().map(|damage| damage.to_string());
    let reason = damage.or_else(|| (!verdict.passed()).then(|| verdict.to_string()));
    Verification::new(verdict.max_error, verdict.checked, reason)
}
