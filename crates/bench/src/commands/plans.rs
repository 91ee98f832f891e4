//! A list of plans for one problem, measured alternately: for studies of schedules and tilings.

use super::unless_fatal;
use crate::args::{Common, PlansArgs};
use crate::compare::{Contender, Title, compare};
use crate::error::BenchError;
use crate::ours::Ours;
use crate::rivals::Rivals;
use crate::session::Session;
use crate::workload::Workload;
use std::path::Path;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;

/// `plans`: the first plan is what the others are compared with.
///
/// # Errors
/// Bad arguments, missing libraries, a lost device.
pub fn plans(common: Common, args: PlansArgs) -> Result<(), BenchError> {
    const EXPERIMENT: &str = "plans";
    let mut named = Vec::new();
    let base = parse(&args.base, &Plan::default()).map_err(BenchError::Usage)?;
    if let Some(path) = &args.plans_file {
        named.extend(read(path, &base)?);
    }
    for text in &args.plans {
        named.push((format!("plan {}", named.len() + 1), parse(text, &base).map_err(BenchError::Usage)?));
    }
    if named.is_empty() {
        return Err(BenchError::Usage("give plans with --plan or --plans-file".into()));
    }
    let mut session = Session::begin(EXPERIMENT, common)?;
    let cases = session.cases(&args.cases)?;
    let device = session.device()?;
    let (limits, cache) = (session.limits(), session.cache());
    let rivals = Rivals::open(&args.rivals, &device, session.measuring())?;
    session.each(&cases, |case| {
        let workload = Workload::new(&device, &case.problem, cache)?;
        let space = Space::new(&case.problem, &device.info().target)?.with_atomics(args.atomics);
        let mut ready = Vec::new();
        for (name, plan) in &named {
            eprintln!("  building {name}");
            ready.push((name, unless_fatal(Ours::with_plan(&workload, &space, plan))?));
        }
        let mut contenders: Vec<_> = ready.iter().map(|(name, ours)| Contender::ours(&workload, ours.as_ref(), name)).collect();
        for library in rivals.libraries() {
            contenders.push(Contender::library(&workload, library)?);
        }
        let title = Title { experiment: EXPERIMENT.into(), set: case.set.clone(), case: case.name.clone() };
        let record = compare(&title, contenders, &limits)?;
        Ok(vec![record])
    })?;
    session.finish()
}

/// A plan whose keys that are left out are those of another.
fn parse(text: &str, base: &Plan) -> Result<Plan, String> {
    let keys = Constraint::parse(text).map_err(|e| format!("plan `{text}`: {e}"))?;
    Ok(keys.apply(base).into())
}

/// Reads `NAME = PLAN` or `PLAN` per line.
fn read(path: &Path, base: &Plan) -> Result<Vec<(String, Plan)>, BenchError> {
    let text = std::fs::read_to_string(path).map_err(|e| BenchError::unreadable(path, &e))?;
    let mut plans = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (name, plan) = match line.split_once('=') {
            Some((name, plan)) => (name.trim().to_string(), plan.trim()),
            None => (format!("line {}", n + 1), line),
        };
        let plan = parse(plan, base).map_err(|e| BenchError::file(path, format!("line {}: {e}", n + 1)))?;
        plans.push((name, plan));
    }
    Ok(plans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_files_name_their_plans() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plans");
        std::fs::write(&path, "# a study\n\nsingle buffer = C_BUF1\nC_PFG1_BUF2 # ahead\n").unwrap();
        let base = Plan::from(Plan::default().but(|keys| keys.k_tile = 8));
        let plans = read(&path, &base).unwrap();
        assert_eq!(plans[1].1, base.but(|keys| (keys.ahead, keys.buffers) = (1, 2)).into());
        assert_eq!(plans.iter().map(|p| p.0.as_str()).collect::<Vec<_>>(), ["single buffer", "line 4"]);
        std::fs::write(&path, "\nA_XYZ1\n").unwrap();
        let error = read(&path, &base).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("XYZ"), "{error}");
    }
}
