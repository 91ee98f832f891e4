//! The kernel that reduces the parts which work-groups left of reductions in workspace, in a fixed order.

use super::{Reducer, result};
use crate::kernel::arguments::Arguments;
use crate::kernel::elements::THREADS;
use crate::plan::Partials;
use crate::program::{Binding, Factor, Groups};
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

/// Threads that a device wants to be busy.
const BUSY: u64 = 1 << 16;
/// Neighbouring values that a work-group takes at least: whole sectors of memory.
const NEIGHBOURS: u64 = 8;

/// Threads that share the parts of a value.
fn lanes(values: u64, parts: u64) -> u32 {
    let most = u64::from(THREADS) / NEIGHBOURS.min(values.next_power_of_two());
    let wanted = BUSY.div_ceil(values.max(1)).clamp(1, parts.max(1)).min(most);
    1 << wanted.ilog2()
}

/// Results of a reduction.
fn results(c: &Contraction, reducer: &Reducer) -> u64 {
    c.result_shape(reducer.op).left(reducer.op.over)
}

/// The kernel, and its work-groups: those of all reductions one behind the other. `None` where no reduction leaves parts.
pub(crate) fn finish(c: &Contraction, parts: &[(Partials, Option<u64>)]) -> Option<(Kernel, Arguments, Groups)> {
    let mut b = Builder::new("tw_reduce", THREADS);
    let (b, mut args) = (&mut b, Arguments::default());
    let mut all = Vec::new();
    for (op, (partials, region)) in c.reductions().zip(parts) {
        let Some(region) = region else { continue };
        let doc = "parts of its values [g][tile][value]";
        let kind = (c.accumulator(), Access::Read);
        let from = args.buffer(b, &format!("parts_{}", op.number), kind, doc, Binding::Workspace(*region));
        let to = result(b, &mut args, op);
        let reducer = Reducer { op, partials: *partials, to, acc: c.accumulator(), count: c.result_shape(op).count(op.over) };
        all.push((reducer, from));
    }
    if all.is_empty() {
        return None;
    }
    let (local, group) = (b.bind("local_id", Builtin::LocalId), b.bind("group", Builtin::GroupId(0)));
    let mut first = 0;
    for (reducer, from) in &all {
        let values = results(c, reducer);
        let lanes = lanes(values, reducer.partials.parts);
        let groups = values.div_ceil(u64::from(THREADS / lanes));
        let ours = group.ge(first as i64).and(group.lt((first + groups) as i64));
        let ours = if all.len() == 1 { b.int(1, Scalar::Bool) } else { b.value(ours) };
        b.if_then(ours, |b| {
            let group = b.value(group - first as i64);
            reduce_parts(b, reducer, *from, (local, group), (values, lanes));
        });
        first += groups;
    }
    let kernel = std::mem::replace(b, Builder::new("", 0)).finish();
    Some((kernel, args, Groups { factors: vec![Factor::Fixed(first)], per: 1, most: None }))
}

/// A work-group's values of a reduction.
fn reduce_parts(b: &mut Builder, reducer: &Reducer, from: ArgId, (local, group): (ExprId, ExprId), (values, lanes): (u64, u32)) {
    let (width, partials) = (THREADS / lanes, &reducer.partials);
    let own = b.value(local % width);
    let value = b.bind("value", group.cast(Scalar::I64) * i64::from(width) + own.cast(Scalar::I64));
    let exists = b.bind("exists", value.lt(values as i64));
    let lane = b.bind("lane", local / width);
    let identity = reducer.identity(b);
    let total = b.declare("total", identity);
    b.if_then(exists, |b| {
        // Values of a batch entry are neighbours, and behind them those of its next tile.
        let each = partials.values as i64;
        let entry = (partials.tiles[0] * partials.tiles[1] * partials.shares * partials.values) as i64;
        let start = b.bind("start", value / each * entry + value % each);
        // Where the batch is reduced, its groups lie between parts of one value.
        let within = (partials.parts / partials.outer) as i64;
        let apart = if partials.outer > 1 { partials.groups as i64 * entry - within * each } else { 0 };
        let most = Ex::int(partials.parts as i64 + i64::from(lanes) - 1, Scalar::I64);
        let count = b.value((most - lane.cast(Scalar::I64)) / i64::from(lanes));
        let zero = b.int(0, Scalar::I64);
        b.for_range("i", zero, count, Unroll::By(8), |b, i| {
            let part = b.value(i * i64::from(lanes) + lane.cast(Scalar::I64));
            let mut at = b.value(start + part * each);
            if apart > 0 {
                at = b.value(at + part / within * apart);
            }
            let part = b.load("part", Base::Buffer(from), at, 1, None);
            let sum = b.get(total);
            let sum = reducer.combine(b, sum, part);
            b.set(total, sum);
        });
    });
    let total = if lanes == 1 { b.get(total) } else { across_threads(b, reducer, total, (local, lane), (lanes, width)) };
    let last = b.value(lane.equals(0));
    let last = b.and_opt(Some(exists), (lanes > 1).then_some(last));
    let total = reducer.finish(b, total);
    b.store(Base::Buffer(reducer.to), value, total, last);
}

/// The contributions of the threads that share a value, combined pairwise: the first of them has the whole.
fn across_threads(
    b: &mut Builder,
    reducer: &Reducer,
    total: VarId,
    (local, lane): (ExprId, ExprId),
    (lanes, width): (u32, u32),
) -> ExprId {
    let array = b.shared(&format!("parts_of_{}", reducer.op.number), reducer.acc, THREADS, 0);
    b.store(Base::Shared(array), local, total, None);
    let mut step = lanes / 2;
    while step > 0 {
        b.barrier();
        b.if_then(lane.lt(step), |b| {
            let other = b.load("other", Base::Shared(array), local + step * width, 1, None);
            let own = b.get(total);
            let both = reducer.combine(b, own, other);
            b.set(total, both);
            b.store(Base::Shared(array), local, total, None);
        });
        step /= 2;
    }
    b.get(total)
}
