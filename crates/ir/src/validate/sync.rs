//! Rules of cooperation: who must come to a barrier together, how often each role comes, who may leave.

use super::Path;
use super::uniform::{Spread, Uniformity};
use crate::*;
use std::collections::BTreeMap;

/// Threads of a warpgroup.
const WARPGROUP: u32 = 128;

/// Loops around a barrier, as their bounds and step.
type Nest = Vec<(ExprId, ExprId, i64)>;
/// How often a block comes to the work-group's barrier: times per nest of loops whose trips are not known. `None` where
/// it depends on a branch.
type Count = Option<BTreeMap<Nest, u64>>;

/// Checks a body that `flow` has accepted. An error leaves the path at the statement.
pub(super) fn check(kernel: &Kernel, target: &Target, path: &mut Path) -> Result<(), String> {
    let wave = if kernel.wave > 0 { kernel.wave } else { target.wave };
    let sync = Sync { kernel, uniform: Uniformity::new(kernel, wave) };
    sync.block(&kernel.body, Spread::Group, path)?;
    sync.check_returns(&kernel.body, false)?;
    super::cluster::check(kernel)
}

struct Sync<'k> {
    kernel: &'k Kernel,
    uniform: Uniformity<'k>,
}

impl Sync<'_> {
    fn block(&self, block: &Block, control: Spread, path: &mut Path) -> Result<(), String> {
        path.each(block, |path, s| self.stmt(s, control, path))
    }

    fn stmt(&self, s: &Stmt, control: Spread, path: &mut Path) -> Result<(), String> {
        match s {
            Stmt::Barrier(BarrierScope::WorkGroup) if control > Spread::Group => {
                Err("a work-group barrier is in a branch that depends on the thread, so not all threads may reach it; move it out of the branch".into())
            }
            Stmt::Barrier(scope) if scope.of_cluster() && control > Spread::Group => {
                Err("a cluster barrier is in a branch that depends on the thread, so not all threads may reach it; move it out of the branch".into())
            }
            s if of_whole_waves(s) && control > Spread::Wave => {
                Err("an operation of whole waves is in a branch that depends on the lane, so only a part of a wave may reach it"
                    .into())
            }
            Stmt::For { start, end, body, .. } => {
                self.block(body, control.max(self.uniform.of(*start)).max(self.uniform.of(*end)), path)
            }
            Stmt::If { cond, then, otherwise } => {
                let control = control.max(self.uniform.of(*cond));
                self.block(then, control, path)?;
                self.block(otherwise, control, path)
            }
            Stmt::Roles(roles) => {
                for r in roles {
                    if (r.first_thread % WARPGROUP != 0 || r.threads % WARPGROUP != 0) && of_warpgroups(&r.body) {
                        return Err(format!(
                            "role `{}`, threads {} .. {}, must be whole warpgroups, because it has warpgroup instructions or a register budget",
                            r.name,
                            r.first_thread,
                            r.first_thread.saturating_add(r.threads)
                        ));
                    }
                    self.block(&r.body, control, path)?;
                }
                self.roles(roles, BarrierScope::WorkGroup)?;
                self.roles(roles, BarrierScope::Cluster)
            }
            _ => Ok(()),
        }
    }

    /// Each role must come to the barrier of the work-group (or cluster) equally often, as far as that can be told.
    fn roles(&self, roles: &[Role], scope: BarrierScope) -> Result<(), String> {
        let counts: Vec<(&Role, BTreeMap<Nest, u64>)> =
            roles.iter().filter_map(|r| Some((r, self.count(&r.body, scope)?))).collect();
        let whose = if scope == BarrierScope::Cluster { "cluster" } else { "work-group" };
        for pair in counts.windows(2) {
            if let [(a, x), (b, y)] = pair {
                // Two different loops may still make the same number of trips; only numbers can contradict each other.
                let counted = x.keys().chain(y.keys()).all(Vec::is_empty);
                let (n, m) = (x.values().sum::<u64>(), y.values().sum::<u64>());
                if x != y && (counted || n == 0 || m == 0) {
                    let times = |n, counted: bool| if counted { format!("{n} times") } else { "in a loop".into() };
                    return Err(format!(
                        "role `{}` reaches the {whose}'s barrier {}, role `{}` {}: the group would hang",
                        a.name,
                        times(n, x.keys().all(Vec::is_empty)),
                        b.name,
                        times(m, y.keys().all(Vec::is_empty)),
                    ));
                }
            }
        }
        Ok(())
    }

    fn count(&self, block: &Block, scope: BarrierScope) -> Count {
        let mut total = BTreeMap::new();
        for s in block {
            let part = match s {
                Stmt::Barrier(s) if *s == scope => BTreeMap::from([(Nest::new(), 1)]),
                Stmt::If { then, otherwise, .. } => {
                    let (then, otherwise) = (self.count(then, scope)?, self.count(otherwise, scope)?);
                    if then != otherwise {
                        return None;
                    }
                    then
                }
                Stmt::For { start, end, step, body, .. } => {
                    let inner = self.count(body, scope)?;
                    match (self.kernel.as_int(*start), self.kernel.as_int(*end)) {
                        (Some(s), Some(e)) => {
                            let trips = u64::try_from(e.saturating_sub(s)).unwrap_or(0).div_ceil((*step).max(1) as u64);
                            inner.into_iter().map(|(nest, n)| (nest, n.saturating_mul(trips))).collect()
                        }
                        _ => {
                            let longer = |mut nest: Nest| {
                                nest.push((*start, *end, *step));
                                nest
                            };
                            inner.into_iter().map(|(nest, n)| (longer(nest), n)).collect()
                        }
                    }
                }
                _ => continue,
            };
            for (nest, n) in part {
                let sum: &mut u64 = total.entry(nest).or_default();
                *sum = sum.saturating_add(n);
            }
        }
        total.retain(|_, n| *n > 0);
        Some(total)
    }

    /// No thread may leave where others would wait for it: no barrier, shuffle, matrix instruction or
    /// launch wait may follow a return.
    fn check_returns(&self, block: &Block, mut followed: bool) -> Result<(), String> {
        for s in block.iter().rev() {
            match s {
                Stmt::Return if followed => {
                    return Err("a thread returns before a possible barrier, shuffle, matrix instruction or launch wait; use a branch instead".into());
                }
                Stmt::For { body, .. } => self.check_returns(body, followed || waits(body))?,
                Stmt::If { then, otherwise, .. } => {
                    self.check_returns(then, followed)?;
                    self.check_returns(otherwise, followed)?;
                }
                Stmt::Roles(roles) => roles.iter().try_for_each(|r| self.check_returns(&r.body, followed))?,
                _ => {}
            }
            followed = followed || waits(std::slice::from_ref(s));
        }
        Ok(())
    }
}

/// Operations that all lanes of a wave must come to.
const fn of_whole_waves(s: &Stmt) -> bool {
    matches!(
        s,
        Stmt::Barrier(BarrierScope::Named { .. } | BarrierScope::Wave)
            | Stmt::Shuffle { .. }
            | Stmt::Matrix(_)
            | Stmt::Bulk(BulkOp::Registers { .. })
    )
}

/// True if whole warpgroups run something together.
fn of_warpgroups(block: &[Stmt]) -> bool {
    block.iter().any(|s| match s {
        Stmt::Bulk(BulkOp::Registers { .. }) => true,
        Stmt::Matrix(op) => !matches!(op, MatrixOp::Mma { .. } | MatrixOp::LoadMatrix { .. } | MatrixOp::Mfma { .. }),
        Stmt::For { body, .. } => of_warpgroups(body),
        Stmt::If { then, otherwise, .. } => of_warpgroups(then) || of_warpgroups(otherwise),
        _ => false,
    })
}

fn waits(block: &[Stmt]) -> bool {
    block.iter().any(|s| match s {
        Stmt::Barrier(_) | Stmt::LaunchWait => true,
        s if of_whole_waves(s) => true,
        Stmt::For { body, .. } => waits(body),
        Stmt::If { then, otherwise, .. } => waits(then) || waits(otherwise),
        Stmt::Roles(roles) => roles.iter().any(|r| waits(&r.body)),
        _ => false,
    })
}
