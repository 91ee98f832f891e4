//! Our side: choosing a plan for a workload, and its program bound to the workload's buffers.

use crate::error::{BenchError, Lost};
use crate::record::{SearchCounts, Side, Workspace};
use crate::workload::Workload;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewright_check::run::{Buffers, bind, compile};
use tilewright_device::{Buffer, CacheState, Compiled, Device, Launch, Resources, Timing};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::program::Program;
use tilewright_gen::space::Space;
use tilewright_problem::contraction::Contraction;
use tilewright_tune::model::Picker;
use tilewright_tune::records::{DeviceKey, RecordsError, State, Trial};
use tilewright_tune::search;
use tilewright_tune::{ProblemKey, Records};

/// How the plan is chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Choose {
    /// The cost model's best, unmeasured.
    Pick,
    /// By tuning for this long; trials are kept in the file, where one is given, and found there again.
    Tune {
        /// Wall time of the search.
        budget: Duration,
        /// Records file.
        records: Option<PathBuf>,
        /// What an earlier process has lost on the first case that is tuned.
        lost: RefCell<Lost>,
    },
    /// The best plan recorded in a file.
    Recorded(PathBuf),
}

/// A program ready to run on a workload.
pub struct Ours {
    /// The plan.
    pub plan: Plan,
    program: Program,
    contraction: Contraction,
    compiled: Vec<Arc<Compiled>>,
    workspace: Option<Buffer>,
    launches: Vec<Launch>,
    resources: Option<Resources>,
    groups_per_unit: u32,
    modelled_us: Option<f64>,
    workspace_limit: u64,
    /// What the search did.
    pub search: Option<SearchCounts>,
    /// Seconds spent choosing and compiling.
    pub prepare_s: f64,
}

impl Ours {
    /// Chooses a plan under a constraint and makes it ready.
    ///
    /// # Errors
    /// [`BenchError::Plan`] where no plan is found.
    pub fn choose(workload: &Workload<'_>, how: &Choose, constraint: &Constraint) -> Result<Ours, BenchError> {
        let start = Instant::now();
        let space = Space::new(workload.problem(), &workload.device().info().target)?.constrained(constraint);
        let (plan, search) = match how {
            Choose::Pick => (pick(workload, &space)?, None),
            Choose::Tune { budget, records, lost } => {
                let tuning = Tuning { budget: *budget, records: records.as_deref(), cache: workload.cache() };
                let outcome = searched(workload.device(), &space, &tuning, &lost.take())?;
                (outcome.plan, Some(SearchCounts::of(&outcome.tally, outcome.seconds)))
            }
            Choose::Recorded(path) => (recorded(workload, &space, path)?, None),
        };
        let mut ours = Ours::with_plan(workload, &space, &plan)?;
        (ours.search, ours.prepare_s) = (search, start.elapsed().as_secs_f64());
        Ok(ours)
    }

    /// Makes a given plan ready.
    ///
    /// # Errors
    /// [`BenchError::Plan`] with the refusal; what generating, compiling and binding give.
    pub fn with_plan(workload: &Workload<'_>, space: &Space, plan: &Plan) -> Result<Ours, BenchError> {
        let start = Instant::now();
        let bad = |e: String| BenchError::Plan(format!("{e} (plan {plan})"));
        let resolved = space.resolve(plan).map_err(|e| bad(e.to_string()))?;
        let program = resolved.generate(space.env().workspace_bytes).map_err(|e| bad(e.to_string()))?;
        let device = workload.device();
        let compiled = compile(device.as_ref(), &program)?;
        let workspace = match program.workspace_bytes {
            0 => None,
            bytes => Some(device.alloc(bytes)?),
        };
        // The main kernel is the one that takes most registers: helpers copy and add.
        let resources = compiled.iter().map(|c| *c.resources()).max_by_key(|r| r.registers.unwrap_or(0));
        let mut ours = Ours {
            plan: *plan,
            contraction: resolved.contraction.clone(),
            program,
            compiled,
            workspace,
            launches: Vec::new(),
            resources,
            groups_per_unit: resolved.footprint.groups_per_unit,
            modelled_us: Picker::new(space).estimate(plan).map(|e| e.total_us),
            workspace_limit: space.env().workspace_bytes,
            search: None,
            prepare_s: 0.0,
        };
        ours.launches = ours.bind(&workload.buffers(ours.workspace()), workload)?;
        // Where a driver compiles only when a kernel first runs, that may take long: not on the device's own time.
        device.rehearse(&ours.launches)?;
        ours.prepare_s = start.elapsed().as_secs_f64();
        Ok(ours)
    }

    /// The workspace the program needs, if any.
    pub fn workspace(&self) -> Option<Buffer> {
        self.workspace.clone()
    }

    /// The program's launches on some buffers.
    ///
    /// # Errors
    /// [`BenchError::Plan`] where the plan does not suit these buffers.
    pub fn bind(&self, buffers: &Buffers, workload: &Workload<'_>) -> Result<Vec<Launch>, BenchError> {
        bind(&self.program, &self.compiled, &self.contraction, buffers, workload.factors(), &self.contraction.extents())
            .map_err(|e| BenchError::Plan(format!("{e} (plan {})", self.plan)))
    }

    /// Time of one execution in microseconds.
    ///
    /// # Errors
    /// The device's.
    pub fn time(&self, workload: &Workload<'_>) -> Result<f64, BenchError> {
        let times = workload.device().time(&self.launches, &Timing { cache: workload.cache(), repeats: 1 })?;
        times.first().copied().ok_or_else(|| BenchError::Plan("the device gave no time".into()))
    }

    /// Runs once, without timing.
    ///
    /// # Errors
    /// The device's.
    pub fn run(&self, workload: &Workload<'_>) -> Result<(), BenchError> {
        workload.device().launch(&self.launches)?;
        Ok(workload.device().sync()?)
    }

    /// The side of a record, still without times.
    pub fn side(&self, name: &str) -> Side {
        Side {
            name: name.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            plan: Some(self.plan.to_string()),
            workspace: Some(Workspace { limit: self.workspace_limit, used: self.program.workspace_bytes }),
            prepare_s: self.prepare_s,
            search: self.search,
            resources: self.resources,
            groups_per_unit: Some(self.groups_per_unit),
            modelled_us: self.modelled_us,
            ..Side::default()
        }
    }
}

/// The plan of least modelled time.
fn pick(workload: &Workload<'_>, space: &Space) -> Result<Plan, BenchError> {
    search::pick(workload.device().as_ref(), space)
        .ok_or_else(|| BenchError::Plan("no plan fits this problem under the constraint".into()))
}

/// How a plan is tuned.
pub struct Tuning<'a> {
    /// Wall time of the search.
    pub budget: Duration,
    /// File that trials are kept in.
    pub records: Option<&'a Path>,
    /// What timed runs find in the last-level cache.
    pub cache: CacheState,
}

/// A search of a case's plan. `lost` is what an earlier process has lost on this case.
///
/// # Errors
/// [`BenchError::Lost`] where the device is lost; [`BenchError::Plan`] where nothing is found.
pub fn searched(
    device: &Arc<dyn Device>,
    space: &Space,
    tuning: &Tuning<'_>,
    lost: &Lost,
) -> Result<search::Outcome, BenchError> {
    let failed = |e: String| BenchError::Plan(e);
    let (records, spent) = match tuning.records {
        // The file holds the trials of the process before.
        Some(path) => (Some(Records::open(path).map_err(|e| failed(e.to_string()))?), lost.seconds),
        None if lost.plans.is_empty() => (None, 0.0),
        None => (
            Some(
                remembered(space, &search::device_key(device.info(), tuning.cache), &lost.plans)
                    .map_err(|e| failed(e.to_string()))?,
            ),
            0.0,
        ),
    };
    let seconds = (tuning.budget.as_secs_f64() - spent).max(0.05);
    let options = search::Options { budget: search::Budget::seconds(seconds), cache: tuning.cache, ..search::Options::default() };
    let (mut last, mut so_far) = (None, 0.0);
    // In this process: the bench is a process of its own, and goes on in another one after a plan that took the device down.
    let outcome = search::tune(device, space, records.as_ref(), &options, &search::Cancel::default(), &mut |event| {
        if let search::Event::Trial { plan, seconds, .. } = event {
            (last, so_far) = (Some(plan.to_string()), *seconds);
        }
    });
    if let Err(e) = device.sync()
        && e.is_fatal()
    {
        // Later than in its own trial a plan cannot be told from the device's other troubles.
        let in_trial = outcome.as_ref().map_or(true, |o| matches!(o.ended, search::Ended::DeviceLost(_)));
        let lost = Lost { plans: last.filter(|_| in_trial).into_iter().collect(), seconds: so_far };
        return Err(BenchError::Lost { why: format!("a candidate took the device down: {e}"), lost });
    }
    let outcome = outcome.map_err(|e| failed(e.to_string()))?;
    if outcome.verified { Ok(outcome) } else { Err(failed(format!("plan {} could not be verified thoroughly", outcome.plan))) }
}

/// Records that know of nothing but candidates that hung.
fn remembered(space: &Space, device: &DeviceKey, plans: &[String]) -> Result<Records, RecordsError> {
    let records = Records::in_memory()?;
    let key = ProblemKey::of(space);
    for plan in plans {
        let trial = Trial::unmeasured(plan, State::Hung, "took the device down");
        records.add(&key, "", device, search::GENERATOR, &trial)?;
    }
    Ok(records)
}

/// The best plan of a records file.
fn recorded(workload: &Workload<'_>, space: &Space, path: &Path) -> Result<Plan, BenchError> {
    let failed = |e: String| BenchError::Plan(e);
    let records = Records::open_existing(path).map_err(|e| failed(e.to_string()))?;
    let device = search::device_key(workload.device().info(), workload.cache());
    let best = records.best(&ProblemKey::of(space), &device, search::GENERATOR).map_err(|e| failed(e.to_string()))?;
    let best = best
        .ok_or_else(|| failed(format!("{} holds no thoroughly verified plan of this problem on this device", path.display())))?;
    Plan::parse(&best.plan).map_err(|e| failed(format!("{}: plan {}: {e}", path.display(), best.plan)))
}
