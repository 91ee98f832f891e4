//! `tune` by several processes: one for each device of a host, and any number of hosts that share a run.
//!
//! The process that the user starts is the parent: it deals out cores, starts a child for each device and restarts one that dies.
//! A child leases problems and searches them.

mod bars;
mod child;
mod gpu;
mod news;
mod overall;
mod parent;
mod server;

pub use child::run as child;
#[cfg(feature = "fleet")]
pub use child::{class_begins, import, journal_name};
pub use gpu::lock_alone;
pub use news::News;
pub use parent::run as parent;
#[cfg(not(feature = "fleet"))]
pub use server::ABSENT;

use crate::args::{Search, TuneArgs};
use crate::error::CliError;
use crate::problem::Cases;
use serde_json::json;
use tilewright_bench::values::Budget;
use tilewright_fleet::{FleetError, NewTask, RunSpec};

/// Exit code of a child whose device is gone for its process: a new one goes on.
const AGAIN: i32 = 75;
/// Exit code of a child whose device fails a known problem: a new one looks at it later.
const RETIRED: i32 = 76;

/// True if this command is the parent of others.
pub fn several(args: &TuneArgs) -> bool {
    let devices = args.place.device.as_deref().unwrap_or_default();
    args.fleet.fleet.is_some() || args.fleet.run.is_some() || devices == "all" || devices.contains(',')
}

/// The problems of a run, each once.
fn tasks(cases: &Cases) -> Vec<NewTask> {
    let mut tasks: Vec<NewTask> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for case in &cases.list {
        let problem = case.problem.key();
        if seen.insert(problem.clone()) {
            tasks.push(NewTask { problem, work: case.problem.flop() });
        }
    }
    tasks
}

/// The run that the command line names. Equal options give equal texts.
fn spec(args: &TuneArgs, name: &str) -> RunSpec {
    let budget = match args.budget {
        Budget::Trials(trials) => json!({ "trials": trials }),
        Budget::Time(time) => json!({ "seconds": time.as_secs_f64() }),
    };
    let search = match args.search {
        Search::Descent => "descent",
        Search::Random => "random",
        Search::Exhaustive => "exhaustive",
    };
    let options = json!({
        "budget": budget, "search": search, "seed": args.seed, "cache": args.cache.name(), "plan": args.plan.plan,
        "workspace": args.plan.workspace, "atomics": args.plan.atomics, "ieee": args.plan.ieee,
    });
    RunSpec { name: name.into(), options: options.to_string(), lease: args.fleet.lease, extend: args.fleet.extend }
}

/// What the user can do about an error of a queue.
pub fn classify(e: FleetError) -> CliError {
    match e {
        FleetError::Wrong(reason) => CliError::usage(reason),
        other => CliError::failed(other),
    }
}
