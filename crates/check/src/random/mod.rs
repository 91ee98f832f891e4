//! Random legal pairs of plan and problem, and their verification: what tests and `verify-random` run by the thousand.
//!
//! A pair is drawn from one seed and a [`Recipe`]:
//!
//! - a problem of modest size with awkward properties: offsets, padded leading dimensions, shared batch operands, tails,
//!   dilation, asymmetric padding, groups of rows or columns. Extents may be known only at launch, and are then mostly smaller
//!   than the largest;
//! - a plan with tile shapes that suit the problem;
//! - where the plan needs workspace, at times a budget that cuts the batch into chunks.

mod chains;
mod complex;
mod groups;
mod plan;
mod problem;
mod units;
mod wave_units;

pub use chains::Chain;
pub use problem::{epilogue, out_dtype, reduced, tensor};
pub use wave_units::wave_unit_plan;

use crate::reference::Samples;
use crate::run::compile;
use crate::verify::{Case, Depth, Verification, VerifyError, test_factors};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;
use std::sync::Arc;
use tilewright_device::{Device, DeviceError};
use tilewright_gen::kernel::GenerateError;
use tilewright_gen::plan::{Derived, Keys, Plan, workspace_per_entry};
use tilewright_gen::space::Space;
use tilewright_ir::mma::{FAMILIES, Family, Reads};
use tilewright_ir::{Scalar, Target};
use tilewright_problem::contraction::{Contraction, Operand};
use tilewright_problem::{Extent, Extents, Factors};
use tilewright_problem::{Problem, ProblemError};

/// Draws of a problem before a pair is given up.
const TRIES: u64 = 50;

/// What kinds of pairs are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Plans with a main loop that runs ahead, in all its forms; without it such plans are a minority.
    pub schedules: bool,
    /// Plans for warpgroup matrix instructions (sm_90a), those only, and products of 16-bit numbers and of TF32.
    pub units: bool,
    /// Factors of these types alone, where there are any.
    pub types: &'static [Scalar],
    /// Most rows and columns of a matrix; sums and images are smaller in proportion.
    pub extent: u64,
    /// Most threads that compute in a work-group.
    pub threads: u32,
    /// Most results per thread (`A_MIC * B_MIC`).
    pub micro: u32,
    /// Most elements of both factors' tiles that one thread loads per k-tile.
    pub loads: u32,
    /// Most multiply-adds of one thread over all work-groups it is emulated in: work-groups * k * micro tile.
    pub work: u64,
    /// Loops that compilers unroll to long code (`UKL`, fragments ahead over deep k-tiles) are drawn as well.
    pub long_code: bool,
    /// Problems have reductions of their results, or are standalone reductions.
    pub reductions: bool,
    /// Convolutions alone, each direction as often, by every unit that the target has.
    pub convolutions: bool,
    /// Operands of every type and in every accuracy mode, each as often, by every unit that the target has. Operands of f32 and
    /// f64 are also parts of complex numbers.
    pub formats: bool,
    /// All products that can be are grouped; without it some are.
    pub grouped: bool,
    /// Which products are links of chains.
    pub chain: Chain,
    /// Work-groups of a cluster share the accumulators of each tile; most clusters have 3, 5 or 6 work-groups. Many results have
    /// planes with an odd number of vectors, tiles that are pulled back, and stores of every width.
    pub shares: bool,
    /// The last tiles of every plan are split along k; problems and types as for `formats`.
    pub tails: bool,
}

impl Recipe {
    /// Every kind of plan, at a size that takes the emulator with all its checks about ten milliseconds.
    pub const fn emulated() -> Recipe {
        Recipe {
            schedules: false,
            units: false,
            types: &[],
            extent: 240,
            threads: 512,
            micro: 96,
            loads: 1 << 10,
            work: 100_000,
            long_code: true,
            reductions: false,
            convolutions: false,
            formats: false,
            grouped: false,
            chain: Chain::Seldom,
            shares: false,
            tails: false,
        }
    }

    /// Work-groups of a cluster that share a tile's results, small enough for some hundreds on the emulator.
    pub const fn shares() -> Recipe {
        Recipe { shares: true, extent: 160, threads: 256, micro: 64, loads: 1 << 9, work: 16_000, ..Recipe::emulated() }
    }

    /// Persistent work-groups whose last tiles are split along k, of every number format and unit.
    pub const fn tails() -> Recipe {
        Recipe { tails: true, extent: 240, micro: 24, ..Recipe::formats() }
    }

    /// The same by warpgroup instructions.
    pub const fn unit_tails() -> Recipe {
        Recipe { tails: true, extent: 300, work: 20_000, ..Recipe::units() }
    }

    /// As [`Recipe::emulated`], with the weight on schedules.
    pub const fn schedules() -> Recipe {
        Recipe { schedules: true, extent: 90, threads: 128, micro: 24, loads: 1 << 8, work: 16_000, ..Recipe::emulated() }
    }

    /// Plans for warpgroup matrix instructions, of which every key comes up.
    pub const fn units() -> Recipe {
        Recipe { units: true, extent: 300, work: 50_000, ..Recipe::emulated() }
    }

    /// Convolutions of few pixels, so that tiles hold several of their rows and images.
    pub const fn convolutions() -> Recipe {
        Recipe { convolutions: true, extent: 160, threads: 256, work: 12_000, ..Recipe::emulated() }
    }

    /// Every number format, small enough for some thousand on the emulator.
    pub const fn formats() -> Recipe {
        Recipe { formats: true, extent: 120, threads: 256, micro: 48, loads: 1 << 9, work: 16_000, ..Recipe::emulated() }
    }

    /// Groups of rows or columns, of every number format.
    pub const fn grouped() -> Recipe {
        Recipe { grouped: true, ..Recipe::formats() }
    }

    /// Gated products of every number format.
    pub const fn gated() -> Recipe {
        Recipe { chain: Chain::Gated, ..Recipe::formats() }
    }

    /// Products of linear cross-entropies, of every number format.
    pub const fn losses() -> Recipe {
        Recipe { chain: Chain::Loss, ..Recipe::formats() }
    }

    /// Products of two pairs of factors, of every number format.
    pub const fn two_pairs() -> Recipe {
        Recipe { chain: Chain::Pairs, ..Recipe::formats() }
    }

    /// The same with factors of these types alone.
    pub const fn of(self, types: &'static [Scalar]) -> Recipe {
        Recipe { types, ..self }
    }

    /// Short kernels, for compilers that take their time.
    pub const fn short_code() -> Recipe {
        Recipe { extent: 160, threads: 64, micro: 12, loads: 10, work: 200_000, long_code: false, ..Recipe::emulated() }
    }

    /// Every kind of plan, for devices that run them at full speed.
    pub const fn device() -> Recipe {
        Recipe { extent: 1500, threads: 1024, micro: 160, work: 40_000_000, ..Recipe::emulated() }
    }
}

/// A problem and a plan that is legal for it on the target it was drawn for.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// What it was drawn from.
    pub seed: u64,
    /// The problem, workspace budget included.
    pub problem: Problem,
    /// The plan.
    pub plan: Plan,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: --problem {} --plan {}", self.seed, self.problem, self.plan)
    }
}

/// Why a pair could not be verified. A wrong result is no error but a [`Verification`] that did not pass.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PairError {
    /// The problem does not lower.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The plan is not legal here.
    #[error("not legal: {0}")]
    Refused(String),
    /// No program could be generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// It did not compile.
    #[error(transparent)]
    Compile(#[from] DeviceError),
    /// It did not run.
    #[error(transparent)]
    Verify(#[from] VerifyError),
}

/// The space a pair is drawn from: atomic sums are allowed.
fn space(problem: &Problem, target: &Target) -> Result<Space, ProblemError> {
    Ok(Space::new(problem, target)?.with_atomics(true))
}

/// The unit of a plan: multiply-adds or warpgroup matrix instructions as the recipe says, or any that the target has.
fn unit(rng: &mut ChaCha8Rng, recipe: &Recipe, target: &Target) -> &'static Family {
    let every = recipe.convolutions || recipe.formats || recipe.shares;
    let any: Vec<&Family> = FAMILIES.iter().filter(|family| every && family.unit.available(&target.features)).collect();
    let asked = if recipe.units { Reads::Panels } else { Reads::Vectors };
    let asked = FAMILIES.iter().find(|family| family.reads == asked).unwrap_or(&FAMILIES[0]);
    any.choose(rng).copied().unwrap_or(asked)
}

/// A plan of a unit that is legal in a space, if one was found.
fn of_unit(rng: &mut ChaCha8Rng, recipe: &Recipe, space: &Space, family: &Family) -> Option<Plan> {
    match family.reads {
        Reads::Vectors => plan::draw(rng, recipe, space),
        Reads::Panels => units::draw(rng, recipe, space, family),
        Reads::Fragments => wave_units::draw(rng, recipe, space, family),
    }
}

/// Draws a pair for a target; the same seed gives the same pair. `None` if none was found, which target and recipe of
/// any use do not let happen.
pub fn pair(target: &Target, recipe: &Recipe, seed: u64) -> Option<Pair> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Short sums and small results have no tail to split.
    let tries = if recipe.tails { 64 * TRIES } else { TRIES };
    for tried in 0..tries {
        let family = unit(&mut rng, recipe, target);
        let recipe = &Recipe { units: family.reads == Reads::Panels, ..*recipe };
        let Ok(mut drawn) = problem::draw(&mut rng, recipe, target) else { continue };
        if recipe.reductions {
            drawn = match rng.random_range(0..4) {
                0 if !recipe.units && !recipe.convolutions => tensor(&mut rng, recipe.extent).unwrap_or(drawn),
                _ => reduced(&mut rng, &drawn),
            };
            if drawn.reductions().is_empty() {
                continue;
            }
        }
        if recipe.formats && !recipe.grouped && recipe.chain == Chain::Seldom {
            drawn = complex::complex(drawn, seed);
        }
        // Some links suit no unit of the target, or no tail: where one is asked for, each try draws another.
        let one_link = recipe.chain == Chain::Seldom && !recipe.tails;
        let of_link = if one_link { seed } else { seed ^ (tried << 40) };
        let drawn = groups::grouped(drawn, of_link, recipe.grouped);
        let linked = if recipe.reductions { Some(drawn) } else { chains::linked(drawn, of_link, recipe.chain) };
        let Some(drawn) = linked else { continue };
        let Ok(space) = space(&drawn, target) else { continue };
        let Some(plan) = of_unit(&mut rng, recipe, &space, family) else { continue };
        let plan = if recipe.shares { plan::shared(&mut rng, &plan, &space).unwrap_or(plan) } else { plan };
        let plan = if recipe.tails { plan::with_tail(&mut rng, &plan, &space) } else { Some(plan) };
        let Some(plan) = plan else { continue };
        let plan = finished(&plan, &space, seed);
        let Ok(resolved) = space.resolve(&plan) else { continue };
        let problem = budgeted(&mut rng, &drawn, &resolved.spec, &space, &plan);
        return Some(Pair { seed, problem, plan });
    }
    None
}

/// The plan with a way of finishing reductions drawn for it, where that is legal.
fn finished(plan: &Plan, space: &Space, seed: u64) -> Plan {
    if space.problem().reductions().is_empty() {
        return *plan;
    }
    // Clusters, and atomics after a reduction over waves, are legal least often.
    let ways = [5, 5, 5, 2, 2, 2, 3, 4, 1, 0];
    let first = ChaCha8Rng::seed_from_u64(seed ^ 0xf1).random_range(0..ways.len());
    let mut drawn = ways.iter().cycle().skip(first).take(ways.len()).map(|rdf| Plan::from(Keys { finish: *rdf, ..**plan }));
    let plan = drawn.find(|plan| space.resolve(plan).is_ok()).unwrap_or(*plan);
    // Half of those that can add up their own tiles do.
    space.carrying(&plan).filter(|_| seed.is_multiple_of(2)).unwrap_or(plan)
}

/// Draws a plan that is legal in a space; the same seed gives the same plan. `None` if none was found.
pub fn plan(space: &Space, recipe: &Recipe, seed: u64) -> Option<Plan> {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let unit = unit(rng, recipe, space.target());
    of_unit(rng, recipe, space, unit).map(|plan| finished(&plan, space, seed))
}

/// The problem with a budget that just holds some entries of the batch, half of the times where there is a choice.
fn budgeted(rng: &mut ChaCha8Rng, problem: &Problem, spec: &Derived, space: &Space, plan: &Plan) -> Problem {
    let contraction = space.contraction(plan);
    let entry = workspace_per_entry(spec);
    // Sums of factors take room whatever the batch, and so do other parts' of reductions.
    let parts = space.parts(plan).iter().count() > 1 && contraction.reductions().next().is_some();
    if parts || entry == 0 || contraction.g < 2 || contraction.centre().is_some() || rng.random_bool(0.5) {
        return problem.clone();
    }
    let budget = (entry + rng.random_range(0..entry * contraction.g)).next_multiple_of(8);
    let mut tight = problem.clone();
    match &mut tight {
        Problem::Gemm(gemm) => gemm.workspace = budget,
        Problem::Conv(conv) => conv.workspace = budget,
        Problem::Reduce(reduce) => reduce.workspace = budget,
    }
    tight
}

/// The extents of the launch, where the problem leaves some to it: drawn from the pair's seed, and mostly smaller than the largest.
fn extents(pair: &Pair, contraction: &Contraction) -> Option<Extents> {
    let mut rng = ChaCha8Rng::seed_from_u64(pair.seed ^ 0xd1a);
    let mut at = contraction.extents();
    for extent in [Extent::G, Extent::M, Extent::N] {
        let most = at.of(extent);
        if contraction.dynamic().has(extent) {
            let now = match rng.random_range(0..8) {
                0 => 1,
                1 => most,
                _ => rng.random_range(1..=most),
            };
            at = at.with(extent, now);
        }
    }
    (!contraction.dynamic().is_none()).then_some(at)
}

/// Those of [`test_factors`]; of some seeds alpha is 0, 1 or -1, and so is beta where there is one.
fn factors(seed: u64, with_beta: bool) -> Factors {
    let plain = [0.0, 1.0, -1.0];
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xfac);
    let mut factors = test_factors(seed, with_beta);
    let mut chosen = |drawn: f64| if rng.random_bool(0.25) { *plain.choose(&mut rng).unwrap_or(&drawn) } else { drawn };
    factors.alpha = chosen(factors.alpha);
    if with_beta {
        factors.beta = chosen(factors.beta);
    }
    factors
}

/// Tests run all their cases: `TILEWRIGHT_FULL` is set and not 0, as CI does.
pub fn whole_run() -> bool {
    std::env::var_os("TILEWRIGHT_FULL").is_some_and(|set| set != "0")
}

/// Generates, compiles and runs a pair on test data drawn from its seed, beta 0 or not. Looks at the result, at all memory around
/// it, and at memory that must not change. On a device that does not check races itself, it also looks at a second run.
///
/// # Errors
/// [`PairError`] where the pair did not run to its end.
pub fn verify(device: &Arc<dyn Device>, pair: &Pair) -> Result<Verification, PairError> {
    let space = space(&pair.problem, &device.info().target)?;
    let resolved = space.resolve(&pair.plan).map_err(|refusal| PairError::Refused(refusal.to_string()))?;
    let program = resolved.generate(space.env().workspace_bytes)?;
    let compiled = compile(device.as_ref(), &program)?;
    let factors = factors(pair.seed, pair.seed & 1 == 1 && pair.problem.adds_old());
    let case = match extents(pair, resolved.contraction) {
        Some(at) => Case::at(device, &pair.problem, at, pair.seed, factors, Samples::default())?,
        None => Case::new(device, &pair.problem, pair.seed, factors, Samples::default())?,
    };
    let again = device.info().is_measured() && resolved.spec.repeatable();
    // The emulator detects illegal writes in every pair. Exact sums are checked for a third of the pairs, to bound the time; for all pairs if
    // TILEWRIGHT_FULL is set.
    let (measured, third) = (device.info().is_measured(), pair.seed.is_multiple_of(3));
    let depth = if measured || third || whole_run() { Depth::Thorough } else { Depth::Quick };
    let verdict = case.verify(&program, &compiled, resolved.contraction, depth, again)?;
    // The other pairs also with special values in one of the operands.
    let operand = if pair.seed.is_multiple_of(2) { Operand::A } else { Operand::B };
    match case.special(operand, resolved.contract()) {
        Some(special) if verdict.passed && (measured || !third) => {
            Ok(verdict.and(case.verify_special(&special, &program, &compiled, resolved.contraction)?))
        }
        _ => Ok(verdict),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_zero_one_and_minus_one_come_up_among_others() {
        let drawn: Vec<Factors> = (0..400).map(|seed| factors(seed, true)).collect();
        for of in [|x: &Factors| x.alpha, |x: &Factors| x.beta] {
            for plain in [0.0, 1.0, -1.0] {
                assert!(drawn.iter().filter(|x| of(x) == plain).count() > 10, "{plain}");
            }
            assert!(drawn.iter().filter(|x| ![0.0, 1.0, -1.0].contains(&of(x))).count() > 200);
        }
        assert!((0..50).all(|seed| factors(seed, false).beta == 0.0));
    }
}
