//! Plans that compare as equal are the same kernel: keys that are called inert change nothing.

use crate::support;

use rayon::prelude::*;
use support::draws;
use support::trace::trace_with;
use tilewright_check::random::{Recipe, pair};
use tilewright_gen::plan::{Key, Plan};
use tilewright_gen::program::{Binding, Program};
use tilewright_gen::space::Space;
use tilewright_ir::{Block, Stmt, Target};
use tilewright_problem::Extents;

fn program(space: &Space, plan: &Plan) -> Result<Program, String> {
    let r = space.resolve(plan).map_err(|refusal| refusal.to_string())?;
    r.generate(space.env().workspace_bytes).map_err(|e| e.to_string())
}

/// Bulk copies and matrix instructions, which traces of threads do not show, are among the statements.
fn collective(block: &Block) -> bool {
    block.iter().any(|s| match s {
        Stmt::Bulk(_) | Stmt::Matrix(_) => true,
        Stmt::For { body, .. } => collective(body),
        Stmt::If { then, otherwise, .. } => collective(then) || collective(otherwise),
        Stmt::Roles(roles) => roles.iter().any(|r| collective(&r.body)),
        _ => false,
    })
}

/// The first difference between two programs: launches, sources, or, where sources differ, what threads do.
fn difference(x: &Program, y: &Program, largest: Extents) -> Option<String> {
    if (&x.launches, x.workspace_bytes, &x.alignments) != (&y.launches, y.workspace_bytes, &y.alignments) {
        return Some("launches".into());
    }
    // Extents known only at launch: the largest.
    let extents = |n: usize| -> Vec<(usize, i64)> {
        let Some(launch) = x.launches.iter().find(|l| l.kernel == n) else { return Vec::new() };
        let extent = |(i, b): (usize, &Binding)| match b {
            Binding::Extent(extent) => Some((i, largest.of(*extent) as i64)),
            _ => None,
        };
        launch.args.iter().enumerate().filter_map(extent).collect()
    };
    let launched = |n: usize| x.launches.iter().find(|l| l.kernel == n).map_or(0, |l| l.grid[0]);
    for (n, (k, l)) in x.kernels.iter().zip(&y.kernels).enumerate().filter(|(_, (k, l))| k != l) {
        if (&k.args, k.threads, k.min_groups, &k.shared) != (&l.args, l.threads, l.min_groups, &l.shared) {
            return Some(format!("head of {}", k.name));
        }
        if collective(&k.body) || collective(&l.body) {
            return Some(format!("statements of {}", k.name));
        }
        let groups = launched(n);
        for group in [0, 1, groups / 2, groups.saturating_sub(1)].into_iter().filter(|g| *g < groups) {
            for thread in [0, 1, 5, k.threads / 2, k.threads - 1].into_iter().filter(|t| *t < k.threads) {
                let (first, second) = (trace_with(k, group, thread, &extents(n)), trace_with(l, group, thread, &extents(n)));
                if let Some(step) = (0..first.len().max(second.len())).find(|i| first.get(*i) != second.get(*i)) {
                    let (a, b) = (first.get(step), second.get(step));
                    return Some(format!("{}, work-group {group}, thread {thread}, step {step}: {a:?}, {b:?}", k.name));
                }
            }
        }
    }
    None
}

#[test]
fn plans_that_compare_as_equal_are_the_same_kernel() {
    let target = Target::by_arch("sm_90a").unwrap();
    let pairs = draws(300);
    let tried: Vec<(usize, Vec<String>)> = (0..pairs)
        .into_par_iter()
        .map(|seed| {
            let recipe = [Recipe::emulated(), Recipe::schedules(), Recipe::units()][seed as usize % 3];
            let pair = pair(&target, &recipe, seed).unwrap();
            let space = Space::new(&pair.problem, &target).unwrap().with_atomics(true);
            let normal = |plan: &Plan| plan.normalised(space.contraction(plan));
            let (home, own) = (normal(&pair.plan), program(&space, &pair.plan).unwrap());
            let (mut count, mut wrong) = (0, Vec::new());
            for key in Key::all() {
                for value in key.info().values() {
                    let plan = Plan::from(pair.plan.with(key, value));
                    if plan == pair.plan || normal(&plan) != home {
                        continue;
                    }
                    count += 1;
                    let what = match program(&space, &plan) {
                        Ok(other) => difference(&own, &other, space.contraction(&plan).extents()),
                        Err(refusal) => Some(refusal),
                    };
                    wrong.extend(what.map(|what| format!("{pair}\n    {key}{value}: {what}")));
                }
            }
            (count, wrong)
        })
        .collect();
    let count: usize = tried.iter().map(|(count, _)| count).sum();
    let wrong: Vec<String> = tried.into_iter().flat_map(|(_, wrong)| wrong).collect();
    assert!(count as u64 > pairs / 2, "{count} changes without effect of {pairs} plans");
    assert!(wrong.is_empty(), "{} of {count} changes that should have no effect have one:\n{}", wrong.len(), wrong.join("\n"));
}
