//! Rules of clusters: another work-group's shared memory may be accessed only after its set-up and before its end.
//!
//! The static part of it. Whether a work-group waits for the last arrival of its peers is the emulator's business.

use crate::kernel::any;
use crate::*;

/// What matters of a statement, in the order of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// All work-groups of the cluster meet: barriers are set up.
    Start,
    /// All work-groups of the cluster meet: what they wrote can be read.
    Meet,
    /// Another work-group's barrier or shared memory is written.
    Write,
    /// Another work-group's shared memory is read.
    Read,
}

/// Checks a body that `flow` has accepted.
pub(super) fn check(kernel: &Kernel) -> Result<(), String> {
    if kernel.cluster <= 1 {
        return match any(&kernel.body, &|s| matches!(s, Stmt::Barrier(scope) if scope.of_cluster())) {
            true => Err("a cluster barrier needs a kernel with clusters; set the cluster size".into()),
            false => Ok(()),
        };
    }
    if any(&kernel.body, &|s| matches!(s, Stmt::Return)) {
        return Err("a thread returns in a kernel with clusters, and its peers may still use its shared memory; end the branch without return".into());
    }
    // Every role also runs the statements before and after the branch.
    let mut ways = vec![Vec::new()];
    walk(&kernel.body, &mut ways);
    for way in ways {
        let early = |remote: Event, required: &[Event]| {
            way.iter().position(|e| *e == remote).is_some_and(|first| !way[..first].iter().any(|e| required.contains(e)))
        };
        if early(Event::Write, &[Event::Start, Event::Meet]) || early(Event::Read, &[Event::Meet]) {
            return Err(
                "another work-group's shared memory is used before a cluster barrier; add a cluster barrier before the first use"
                    .into(),
            );
        }
        if let Some(last) = way.iter().rposition(|e| *e == Event::Read)
            && !way[last..].contains(&Event::Meet)
        {
            return Err("another work-group's shared memory is read without a later cluster barrier, and the work-group may end before the read; add a cluster barrier after the read".into());
        }
    }
    Ok(())
}

fn walk(block: &[Stmt], ways: &mut Vec<Vec<Event>>) {
    for s in block {
        let event = match s {
            Stmt::Barrier(BarrierScope::Cluster) => Event::Meet,
            Stmt::Barrier(BarrierScope::ClusterStart) => Event::Start,
            Stmt::LoadPeer { .. } => Event::Read,
            Stmt::Bulk(BulkOp::ArriveAt { .. } | BulkOp::Load { peers: Some(_), .. }) => Event::Write,
            Stmt::For { body, .. } => {
                walk(body, ways);
                continue;
            }
            Stmt::If { then, otherwise, .. } => {
                walk(then, ways);
                walk(otherwise, ways);
                continue;
            }
            Stmt::Roles(roles) => {
                let before = std::mem::take(ways);
                for r in roles {
                    let mut own = before.clone();
                    walk(&r.body, &mut own);
                    ways.extend(own);
                }
                continue;
            }
            _ => continue,
        };
        ways.iter_mut().for_each(|w| w.push(event));
    }
}
