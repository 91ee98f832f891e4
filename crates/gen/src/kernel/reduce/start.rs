//! The kernel before the reducing kernels. It sets results of atomics to the state of no element, and tickets to 0.

use super::{Parts, Reducer, result};
use crate::kernel::arguments::{Arguments, BoundKernel};
use crate::kernel::elements::{THREADS, elements, groups};
use crate::plan::Finish;
use crate::program::{Binding, Factor, Groups};
use std::collections::BTreeSet;
use tilewright_ir::*;
use tilewright_problem::Extents;
use tilewright_problem::contraction::{Contraction, Reduce};

/// Declares the tickets of a reduction.
pub(super) fn tickets(b: &mut Builder, args: &mut Arguments, op: &Reduce, region: u64) -> ArgId {
    let doc = "work-groups that have left their parts";
    args.buffer(b, &format!("tickets_{}", op.number), Scalar::I32, Access::ReadWrite, doc, Binding::Workspace(region))
}

/// Builds the kernel for all reductions of these contractions, with its number of work-groups. `None` if no reduction needs a first value.
pub(crate) fn start(jobs: &[(&Contraction, &[Parts])]) -> Option<(BoundKernel, Groups)> {
    let mut b = Builder::new("tw_reduce_start", THREADS);
    let (b, mut args) = (&mut b, Arguments::default());
    let (mut all, mut begun) = (Vec::new(), BTreeSet::new());
    let ops = jobs.iter().flat_map(|(c, parts)| c.all_reductions().zip(*parts).map(move |(op, parts)| (*c, op, parts)));
    for (c, op, Parts { partials, regions }) in ops {
        match (partials.finish, regions.last()) {
            (Some(Finish::Ticket), Some(region)) => {
                let zero = b.int(0, Scalar::I32);
                let total = b.int(partials.tickets() as i64, Scalar::I64);
                all.push((tickets(b, &mut args, op, *region), (partials.tickets(), total), zero));
            }
            // Parts of a problem have elements of the same values.
            (Some(Finish::Atomic(_)), _) if begun.insert(op.number) => {
                let to = result(b, &mut args, op, Access::Write);
                let reducer = Reducer::new(b, &mut args, c, op, *partials, Vec::new());
                let (identity, total) = (reducer.identity(b), reducer.results(b));
                all.push((to, (c.result_shape(op).left(op.over), total), identity[0]));
            }
            _ => {}
        }
    }
    let group = b.value(Builtin::GroupId(0).cast(Scalar::I64));
    let mut first = 0u64;
    let several = all.len() > 1;
    for (to, (count, total), value) in all {
        let many = u64::try_from(groups(vec![Factor::Fixed(count)]).count(&Extents::default())).unwrap_or(u64::MAX);
        let is = group.ge(first as i64).and(group.lt(first.saturating_add(many) as i64));
        let is = several.then(|| b.bind("ours", is));
        let own = b.value(group - first as i64);
        b.if_given(is, |b| elements(b, own, total, Scalar::I64, |b, element| b.store(Base::Buffer(to), element, value, None)));
        first = first.saturating_add(many);
    }
    let kernel = std::mem::replace(b, Builder::new("", 0)).finish();
    (first > 0).then_some((BoundKernel { kernel, args }, Groups { factors: vec![Factor::Fixed(first)], per: 1, most: None }))
}
