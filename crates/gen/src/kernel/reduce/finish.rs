//! The kernel that reduces the parts which work-groups left of reductions in workspace, in a fixed order.

use super::{Parts, Reducer, add, get, in_workspace, result, set};
use crate::kernel::arguments::{Arguments, BoundKernel};
use crate::kernel::elements::THREADS;
use crate::plan::Finish;
use crate::program::{Factor, Groups};
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
fn results(reducer: &Reducer) -> u64 {
    reducer.shape.left(reducer.op.over)
}

/// Partial values in workspace, of one contraction or of several in sequence. For each component it has the buffer and the first element
/// of each contraction.
struct Left<'a> {
    of: Vec<(Reducer<'a>, Vec<u64>)>,
    from: Vec<ArgId>,
    first: Vec<u64>,
}

impl<'a> Left<'a> {
    /// What says the same of all parts, and their number.
    fn reducer(&self) -> Option<(&Reducer<'a>, u64)> {
        let parts = self.of.iter().map(|(reducer, _)| reducer.partials.parts).fold(0, u64::saturating_add);
        self.of.first().map(|(reducer, _)| (reducer, parts))
    }
    /// Combines a thread's share of the parts of a value.
    fn add(&self, b: &mut Builder, total: &[VarId], value: ExprId, sharer: Sharer) {
        for (reducer, regions) in self.of.iter().filter(|(_, regions)| !regions.is_empty()) {
            let distance = |((region, first), scalar): ((&u64, &u64), &Scalar)| (region - first) / u64::from(scalar.bytes());
            let distances: Vec<u64> = regions.iter().zip(&self.first).zip(&reducer.state).map(distance).collect();
            let from: Vec<(ArgId, u64)> = self.from.iter().copied().zip(distances).collect();
            add_parts(b, reducer, &from, total, value, sharer);
        }
    }
}

/// What contractions have left for the kernel; parts of a problem that have elements of the same values, together.
fn left<'a>(b: &mut Builder, args: &mut Arguments, jobs: &[(&'a Contraction, &[Parts])]) -> Vec<Left<'a>> {
    let mut all: Vec<Left> = Vec::new();
    for (c, parts) in jobs {
        let all_parts = c.all_reductions().zip(*parts);
        for (op, Parts { partials, regions }) in all_parts.filter(|(_, of)| of.partials.finish == Some(Finish::Kernel)) {
            let of = |left: &&mut Left| left.of.iter().any(|(reducer, _)| reducer.op.number == op.number);
            if let Some(left) = all.iter_mut().find(of).filter(|_| c.shares_values(op)) {
                let reducer = Reducer::new(b, args, c, op, *partials, Vec::new());
                left.of.push((reducer, regions.clone()));
                continue;
            }
            let doc = "parts of its values [g][tile][value]";
            let from = in_workspace(b, args, c, op, regions, Access::Read, doc);
            let to = vec![result(b, args, op, Access::Write)];
            let reducer = Reducer::new(b, args, c, op, *partials, to);
            all.push(Left { of: vec![(reducer, regions.clone())], from, first: regions.clone() });
        }
    }
    all
}

/// The kernel, and its work-groups: those of all reductions of these contractions in sequence. `None` where no reduction leaves
/// parts.
pub(crate) fn finish(jobs: &[(&Contraction, &[Parts])]) -> Option<(BoundKernel, Groups)> {
    let mut b = Builder::new("tw_reduce", THREADS);
    let (b, mut args) = (&mut b, Arguments::default());
    let left = left(b, &mut args, jobs);
    let all: Vec<(&Left, &Reducer, u64)> = left.iter().filter_map(|of| of.reducer().map(|(r, parts)| (of, r, parts))).collect();
    let lanes = all.iter().map(|(_, reducer, parts)| lanes(results(reducer), *parts)).max()?;
    let width = THREADS / lanes;
    let (local, group) = (b.bind("local_id", Builtin::LocalId), b.bind("group", Builtin::GroupId(0)));
    let (own, lane) = (b.value(local % width), b.bind("lane", local / width));
    let (types, used) = variables(all.iter().map(|(_, reducer, _)| reducer.state.as_slice()));
    let mut declared = Vec::new();
    for scalar in &types {
        let zero = b.zero(scalar.vector(1));
        declared.push(b.declare("total", zero));
    }
    let totals: Vec<Vec<VarId>> = used.iter().map(|used| used.iter().map(|i| declared[*i]).collect()).collect();
    let (mut first, mut ours) = (0, Vec::new());
    for ((left, reducer, _), total) in all.iter().zip(&totals) {
        let values = results(reducer);
        let groups = values.div_ceil(width.into());
        let is = group.ge(first as i64).and(group.lt((first + groups) as i64));
        let is = (all.len() > 1).then(|| b.bind("ours", is));
        let value = (group - first as i64).cast(Scalar::I64) * i64::from(width) + own.cast(Scalar::I64);
        let value = b.bind("value", value);
        let results = reducer.results(b);
        let exists = b.value(value.lt(results));
        let exists = b.and_opt(is, Some(exists)).map(|exists| b.bind("exists", exists));
        let identity = reducer.identity(b);
        b.if_given(is, |b| set(b, total, identity));
        if !left.from.is_empty() {
            b.if_given(exists, |b| left.add(b, total, value, Sharer { lane, lanes }));
        }
        ours.push((reducer, total, is, value, exists));
        first += groups;
    }
    if lanes > 1 {
        // Barriers stand outside of what only some work-groups do.
        let mut arrays = Vec::new();
        // All are multiples of the widest element.
        let mut at = 0;
        for (number, scalar) in types.iter().enumerate() {
            arrays.push(b.shared(&Reducer::name("parts", number), *scalar, THREADS, at));
            at += THREADS * scalar.bytes();
        }
        let put = |b: &mut Builder| {
            for (array, total) in arrays.iter().zip(&declared) {
                b.store(Base::Shared(*array), local, *total, None);
            }
        };
        put(b);
        let mut step = lanes / 2;
        while step > 0 {
            b.barrier();
            b.if_then(lane.lt(step), |b| {
                let mut load = |array: &SharedId| b.load("other", Base::Shared(*array), local + step * width, 1, None);
                let others: Vec<ExprId> = arrays.iter().map(&mut load).collect();
                for ((reducer, total, is, ..), used) in ours.iter().zip(&used) {
                    let other: Vec<ExprId> = used.iter().map(|i| others[*i]).collect();
                    b.if_given(*is, |b| add(b, reducer, total, &other));
                }
                put(b);
            });
            step /= 2;
        }
    }
    let last = b.value(lane.equals(0));
    for (reducer, total, _, value, exists) in ours {
        let guard = b.and_opt(exists, (lanes > 1).then_some(last));
        let all = get(b, total);
        let all = reducer.finish(b, &all);
        for to in &reducer.to {
            b.store(Base::Buffer(*to), value, all, guard);
        }
    }
    let kernel = std::mem::replace(b, Builder::new("", 0)).finish();
    Some((BoundKernel { kernel, args }, Groups { factors: vec![Factor::Fixed(first)], per: 1, most: None }))
}

/// Types of the variables in which states are kept, one state at a time, and which of them each state takes.
fn variables<'a>(states: impl Iterator<Item = &'a [Scalar]>) -> (Vec<Scalar>, Vec<Vec<usize>>) {
    let mut types: Vec<Scalar> = Vec::new();
    let mut used = Vec::new();
    for state in states {
        let mut taken: Vec<usize> = Vec::new();
        for scalar in state {
            let free = (0..types.len()).find(|i| types[*i] == *scalar && !taken.contains(i));
            taken.push(free.unwrap_or(types.len()));
            if free.is_none() {
                types.push(*scalar);
            }
        }
        used.push(taken);
    }
    (types, used)
}

/// A thread among those that share the parts of a value.
#[derive(Clone, Copy)]
pub(super) struct Sharer {
    /// Its number.
    pub lane: ExprId,
    /// How many there are.
    pub lanes: u32,
}

/// Combines a thread's share of the parts of a value, which lie in memory from so many elements on.
pub(super) fn add_parts(
    b: &mut Builder,
    reducer: &Reducer,
    from: &[(ArgId, u64)],
    total: &[VarId],
    value: ExprId,
    sharer: Sharer,
) {
    let Sharer { lane, lanes } = sharer;
    let partials = &reducer.partials;
    // Values of a batch entry are neighbours, followed by those of its next tile.
    let (each, results) = (partials.values as i64, reducer.values(b));
    let entry = (partials.tiles[0] * partials.tiles[1] * partials.shares * partials.phases * partials.values) as i64;
    // Blocks have some of these values each, side by side along m and n.
    let [beside, down] = partials.inner.map(|inner| inner as i64);
    let inner = down * beside;
    let start = match inner {
        1 => b.value(value / results * entry + value % results),
        _ => {
            let across = partials.across as i64;
            let row = b.value(value % results / (across / beside));
            b.value(value / results * entry + row * (down * across) + value % (across / beside) * beside)
        }
    };
    let start = b.bind("start", start);
    // Where the batch is reduced, its groups lie between parts of one value.
    let within = (partials.parts / partials.outer) as i64 / inner;
    let apart = if partials.outer > 1 { partials.groups as i64 * entry - within * each } else { 0 };
    let most = Ex::int(partials.parts as i64 + i64::from(lanes) - 1, Scalar::I64);
    let count = b.value((most - lane.cast(Scalar::I64)) / i64::from(lanes));
    let zero = b.int(0, Scalar::I64);
    b.for_range("i", zero, count, Unroll::By(8), |b, i| {
        let number = b.value(i * i64::from(lanes) + lane.cast(Scalar::I64));
        let part = if inner == 1 { number } else { b.value(number / inner) };
        let mut at = b.value(start + part * each);
        if inner > 1 {
            let of_block = b.value(number % inner);
            at = b.value(at + of_block / beside * (partials.across as i64) + of_block % beside);
        }
        if apart > 0 {
            at = b.value(at + part / within * apart);
        }
        let exists = reducer.part_exists(b, part, within);
        b.if_given(exists, |b| {
            let mut load = |(from, first): &(ArgId, u64)| {
                let at = if *first > 0 { b.value(at + *first) } else { at };
                b.load("part", Base::Buffer(*from), at, 1, None)
            };
            let part: Vec<ExprId> = from.iter().map(&mut load).collect();
            add(b, reducer, total, &part);
        });
    });
}
