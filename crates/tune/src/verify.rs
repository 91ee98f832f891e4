//! Verification: a program run on known data, its result compared with the f64 reference, everything around it unchanged.
//!
//! Outputs are poisoned with NaN before every run, workspace too; memory around and between tensors must come back bit for
//! bit; with beta = 0 the NaN in C must not leak. An error that moves from one run of the same launches to the next is a race.
//!
//! A thorough look runs twice on random data and once on small integers, whose sums are exact: the bound of random data admits the
//! rounding of long sums, and so a sum that lacks a term; exact sums show it, and every element is compared.

use crate::reduce::Reduced;
use crate::room;
use crate::run::{BindError, Buffers, Factors, bind};
use crate::spread::Spread;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_device::{Buffer, Compiled, Device, DeviceError, Launch};
use tilewright_gen::plan::KernelSpec;
use tilewright_gen::program::Program;
use tilewright_problem::contraction::{Contraction, Operand};
use tilewright_problem::reference::{Exact, GUARD_BYTES, Reference, Samples, TestData, check_workspace, poisoned_workspace};
use tilewright_problem::{Dynamic, Extents};
use tilewright_problem::{Problem, ProblemError};

/// What could not be verified, and why. A wrong result is no error but a [`Verification`] that did not pass.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VerifyError {
    /// The test data could not be made.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The program does not fit the data's buffers.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl VerifyError {
    /// The device's error, where it is one.
    pub const fn device(&self) -> Option<&DeviceError> {
        match self {
            VerifyError::Device(e) | VerifyError::Bind(BindError::Device(e)) => Some(e),
            _ => None,
        }
    }
}

/// Bytes of C beyond which a quick verification, and every one on small integers, spares copying poison over the bus.
const LARGE: usize = 32 << 20;
/// Bytes of operands beyond which data of small integers are made again for each verification instead of being kept.
const KEPT: usize = 256 << 20;

/// How much is looked at, ascending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// One run; the result and the memory around it (the result alone where it is very large).
    #[default]
    Quick,
    /// Also A, B, bias, residual and the end of the workspace; a second run that must give the same bits unless the plan adds
    /// with atomics; and a run on small integers, whose result must be exact.
    Thorough,
}

impl Depth {
    /// The word in records: `quick` or `thorough`.
    pub const fn name(self) -> &'static str {
        match self {
            Depth::Quick => "quick",
            Depth::Thorough => "thorough",
        }
    }
}

/// How a program did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verification {
    /// Everything looked at was right.
    pub passed: bool,
    /// Greatest error relative to `|alpha| |A||B| + |beta||C|` (and what is added); infinite where an element was NaN or infinite.
    pub max_error: f64,
    /// Result elements compared.
    pub checked: u64,
    /// Results differ from run to run although nothing in the plan allows it.
    pub race: bool,
    /// What was wrong.
    pub reason: Option<String>,
}

impl Verification {
    fn failed(max_error: f64, checked: u64, reason: String) -> Self {
        Verification { passed: false, max_error, checked, race: false, reason: Some(reason) }
    }

    /// The greatest error where it is a number: JSON and records have no infinities.
    pub fn finite_error(&self) -> Option<f64> {
        Some(self.max_error).filter(|e| e.is_finite())
    }

    /// The same, its reason saying at which extents.
    #[must_use]
    pub fn at(self, at: Extents) -> Verification {
        let Extents { g, m, n } = at;
        Verification { reason: self.reason.map(|reason| format!("with batch {g}, m {m}, n {n}: {reason}")), ..self }
    }

    /// Both: passed if both passed, the larger error, the first reason.
    #[must_use]
    pub fn and(self, other: Verification) -> Verification {
        Verification {
            passed: self.passed && other.passed,
            max_error: self.max_error.max(other.max_error),
            checked: self.checked + other.checked,
            race: self.race || other.race,
            reason: self.reason.or(other.reason),
        }
    }
}

/// Extents at which a kernel for extents known only at launch is verified besides the largest: 1, those around a tile (of C, as the
/// plan cuts it) and around a chunk of the batch. Empty where no extent is.
pub fn sizes(contraction: &Contraction, spec: &KernelSpec) -> Vec<Extents> {
    let largest = contraction.extents();
    let (rows, columns) = spec.tiling.macro_tile();
    let Dynamic { g, m, n } = contraction.dynamic;
    let mut all: Vec<Extents> = Vec::new();
    // Smallest and then sizes around tiles, all run-time extents at once: they are cut independently of each other.
    for step in 0..4 {
        let around = |tile: u32| [1, u64::from(tile).saturating_sub(1), tile.into(), u64::from(tile) + 1][step];
        let pick = |is: bool, wanted: u64, most: u64| if is { wanted.clamp(1, most) } else { most };
        let of = Extents {
            m: pick(m, around(rows), largest.m),
            n: pick(n, around(columns), largest.n),
            g: pick(g, [1, 2, largest.g.div_ceil(2), largest.g - 1][step], largest.g),
        };
        if of != largest && !all.contains(&of) {
            all.push(of);
        }
    }
    all
}

/// Factors for testing, repeatable from a seed: alpha of magnitude 0.5 to 1.5; beta 0, or of magnitude 0.25 to 1.
pub fn test_factors(seed: u64, with_beta: bool) -> Factors {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let mut draw = |low: f64, high: f64| {
        let magnitude = rng.random_range(low..high);
        if rng.random_bool(0.5) { magnitude } else { -magnitude }
    };
    let alpha = draw(0.5, 1.5);
    let beta = draw(0.25, 1.0);
    Factors { alpha, beta: if with_beta { beta } else { 0.0 } }
}

/// Test data of one problem on one device, with its reference: made once, used for every candidate.
pub struct Case {
    device: Arc<dyn Device>,
    data: TestData,
    /// Of the launch.
    extents: Option<Extents>,
    reference: Reference,
    buffers: Buffers,
    /// Where the data lie in buffers of another problem.
    spread: Option<Spread>,
    seed: u64,
    /// Data whose sums are exact, without and with a beta; made when first needed.
    exact: [Mutex<Option<Arc<Exact>>>; 2],
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("problem", &self.data.problem.key()).field("beta", &self.data.beta).finish_non_exhaustive()
    }
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
        room::check(device.as_ref(), problem)?;
        let data = TestData::new(problem, seed, factors.alpha, factors.beta)?;
        let reference = Reference::new(&data, samples);
        let buffers = Buffers::upload(device.as_ref(), &data)?;
        let (device, exact) = (device.clone(), Default::default());
        Ok(Case { device, data, extents: None, reference, buffers, spread: None, seed, exact })
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
        let spread = Spread::new(&case.data, &compact, wide)?;
        let buffers = spread.upload(device.as_ref(), &case.data)?;
        Ok(Case { extents, buffers, spread: Some(spread), ..case })
    }

    fn write(&self, operand: Operand, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = self.buffers.operand(operand);
        match &self.spread {
            Some(spread) => spread.write(self.device.as_ref(), operand, buffer, bytes),
            None => self.device.write(buffer, 0, bytes),
        }
    }

    fn read(&self, operand: Operand) -> Result<Vec<u8>, DeviceError> {
        let (buffer, mut bytes) = (self.buffers.operand(operand), vec![0; self.data.buffer(operand).bytes.len()]);
        match &self.spread {
            Some(spread) => spread.read(self.device.as_ref(), operand, buffer, &mut bytes)?,
            None => self.device.read(buffer, 0, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// Other inputs: all but C.
    fn write_inputs(&self, data: &TestData) -> Result<(), DeviceError> {
        self.write(Operand::A, &data.a.bytes)?;
        self.write(Operand::B, &data.b.bytes)?;
        self.buffers.write_added(self.device.as_ref(), data)
    }

    /// Test data of a launch with these extents of a problem whose extents are known only at launch: buffers hold what that launch
    /// touches, and what it must not touch.
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

    /// The problem.
    pub const fn problem(&self) -> &Problem {
        &self.data.problem
    }

    /// Alpha and beta of the reference.
    pub const fn factors(&self) -> Factors {
        Factors { alpha: self.data.alpha, beta: self.data.beta }
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
        self.bind_with(program, compiled, contraction, workspace, self.factors())
    }

    fn bind_with(
        &self,
        program: &Program,
        compiled: &[Arc<Compiled>],
        contraction: &Contraction,
        workspace: Option<Buffer>,
        factors: Factors,
    ) -> Result<Vec<Launch>, VerifyError> {
        let at = self.extents.unwrap_or(contraction.extents());
        Ok(bind(program, compiled, contraction, &self.buffers(workspace), factors, &at)?)
    }

    /// Poison that the device writes itself (all ones are NaN in every floating-point type) instead of the data's own:
    /// memory around C is then not checked.
    fn poisons_itself(&self, depth: Depth) -> bool {
        depth == Depth::Quick && self.data.beta == 0.0 && self.data.c.bytes.len() > LARGE
    }

    /// Runs a program once on fresh data and gives C's bytes.
    fn run(&self, launches: &[Launch], workspace: Option<(&Buffer, &[u8])>, depth: Depth) -> Result<Vec<u8>, DeviceError> {
        let fresh = (!self.poisons_itself(depth)).then_some(&self.data);
        self.run_on(fresh, launches, workspace)
    }

    /// The same with C from other data; with poison that the device writes where there are none.
    fn run_on(
        &self,
        fresh: Option<&TestData>,
        launches: &[Launch],
        workspace: Option<(&Buffer, &[u8])>,
    ) -> Result<Vec<u8>, DeviceError> {
        match fresh {
            Some(data) => self.write(Operand::C, &data.c.bytes)?,
            None => self.device.fill(&self.buffers.c, 0xff)?,
        }
        if let Some((buffer, poison)) = workspace {
            self.device.write(buffer, 0, poison)?;
        }
        self.device.launch(launches)?;
        self.read(Operand::C)
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
        let workspace = self.workspace(program)?;
        let buffer = workspace.as_ref().map(|(buffer, _)| buffer.clone());
        let launches = self.bind(program, compiled, contraction, buffer)?;
        let fresh = workspace.as_ref().map(|(buffer, poison)| (buffer, poison.as_slice()));
        let after = self.run(&launches, fresh, depth)?;
        let verdict = self.reference.check(&after);
        let judged = |reason| Verification::failed(verdict.max_error, verdict.checked, reason);
        let damage = if self.poisons_itself(depth) { Ok(()) } else { self.data.check_untouched(Operand::C, &after) };
        let mut result = if let Err(damage) = damage {
            judged(damage.to_string())
        } else if verdict.passed() {
            Verification { passed: true, max_error: verdict.max_error, checked: verdict.checked, race: false, reason: None }
        } else {
            judged(verdict.to_string())
        };
        if depth == Depth::Thorough
            && result.passed
            && let Some(reason) = self.damage(program, workspace.as_ref().map(|(buffer, _)| buffer))?
        {
            result = judged(reason);
        }
        // A second run tells a wrong program from a racing one.
        if repeatable && (depth == Depth::Thorough || !result.passed) && self.run(&launches, fresh, depth)? != after {
            let what = "two runs of the same launches gave different results";
            result.reason = Some(match result.reason {
                Some(reason) => format!("race: {what}; {reason}"),
                None => format!("race: {what}"),
            });
            (result.passed, result.race) = (false, true);
        }
        if depth == Depth::Thorough && result.passed {
            let exact = self.verify_exactly(program, compiled, contraction, self.data.beta != 0.0)?;
            result = result.and(exact);
        }
        Ok(result)
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

    /// Runs a compiled program on small integers, whose sums are exact, and compares every element: no term of any sum may be missing
    /// or count twice. Factors are [`Exact::factors`], of the one kind or the other whatever those of the case are.
    ///
    /// # Errors
    /// As [`Case::verify`].
    pub fn verify_exactly(
        &self,
        program: &Program,
        compiled: &[Arc<Compiled>],
        contraction: &Contraction,
        with_beta: bool,
    ) -> Result<Verification, VerifyError> {
        let exact = self.exact(with_beta)?;
        let data = exact.data();
        let workspace = self.workspace(program)?;
        let buffer = workspace.as_ref().map(|(buffer, _)| buffer.clone());
        let factors = Factors { alpha: data.alpha, beta: data.beta };
        let launches = self.bind_with(program, compiled, contraction, buffer, factors)?;
        let fresh = workspace.as_ref().map(|(buffer, poison)| (buffer, poison.as_slice()));
        let spared = data.beta == 0.0 && data.c.bytes.len() > LARGE;
        self.write_inputs(data)?;
        let after = self.run_on((!spared).then_some(data), &launches, fresh);
        // Whatever came of it: the case's own data again.
        self.write_inputs(&self.data)?;
        let after = after?;
        let verdict = exact.check(&after);
        let damage = if spared { None } else { data.check_untouched(Operand::C, &after).err() };
        let (alpha, beta) = (data.alpha, data.beta);
        let reason = match damage {
            None if verdict.passed() => None,
            None => Some(verdict.to_string()),
            Some(damage) => Some(damage.to_string()),
        };
        let reason = reason.map(|reason| format!("on small integers, with alpha {alpha}, beta {beta} and exact sums: {reason}"));
        // The rounding of a right result is no error of the sums.
        let max_error = if reason.is_none() { 0.0 } else { verdict.max_error };
        Ok(Verification { passed: reason.is_none(), max_error, checked: verdict.checked, race: false, reason })
    }

    fn exact(&self, with_beta: bool) -> Result<Arc<Exact>, VerifyError> {
        let mut kept = self.exact[usize::from(with_beta)].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exact) = kept.as_ref() {
            return Ok(exact.clone());
        }
        let problem = &self.data.problem;
        let (alpha, beta) = Exact::factors(problem, with_beta);
        let exact = Arc::new(Exact::new(problem, self.seed, alpha, beta)?);
        if [&self.data.a, &self.data.b, &self.data.c].map(|b| b.bytes.len()).iter().sum::<usize>() <= KEPT {
            *kept = Some(exact.clone());
        }
        Ok(exact)
    }

    /// A poisoned workspace with a guard behind it, where the program needs one.
    fn workspace(&self, program: &Program) -> Result<Option<(Buffer, Vec<u8>)>, DeviceError> {
        if program.workspace_bytes == 0 {
            return Ok(None);
        }
        let poison = poisoned_workspace(program.workspace_bytes);
        Ok(Some((self.device.alloc(poison.len() as u64)?, poison)))
    }

    /// What a program changed that it had no right to.
    fn damage(&self, program: &Program, workspace: Option<&Buffer>) -> Result<Option<String>, DeviceError> {
        let read = |buffer: &Buffer, len: usize| -> Result<Vec<u8>, DeviceError> {
            let mut bytes = vec![0; len];
            self.device.read(buffer, 0, &mut bytes)?;
            Ok(bytes)
        };
        for operand in [Operand::A, Operand::B] {
            if let Err(damage) = self.data.check_untouched(operand, &self.read(operand)?) {
                self.write(operand, &self.data.buffer(operand).bytes)?;
                return Ok(Some(damage.to_string()));
            }
        }
        if let (Some(buffer), Some(data)) = (&self.buffers.bias, &self.data.bias)
            && let Err(damage) = self.data.check_bias_untouched(&read(buffer, data.bytes.len())?)
        {
            self.device.write(buffer, 0, &data.bytes)?;
            return Ok(Some(damage.to_string()));
        }
        if let (Some(buffer), Some(data)) = (&self.buffers.residual, &self.data.residual)
            && let Err(damage) = self.data.check_residual_untouched(&read(buffer, data.bytes.len())?)
        {
            self.device.write(buffer, 0, &data.bytes)?;
            return Ok(Some(damage.to_string()));
        }
        if let Some(buffer) = workspace {
            let after = read(buffer, (program.workspace_bytes + GUARD_BYTES) as usize)?;
            if let Err(damage) = check_workspace(program.workspace_bytes, &after) {
                return Ok(Some(damage.to_string()));
            }
        }
        Ok(None)
    }
}
