//! The last work-group reduces the parts that all work-groups have stored of some values. A ticket identifies the last
//! work-group.
//!
//! It reduces in the order of the parts, so the result does not depend on which work-group is the last. The thread that adds to
//! the ticket executes a fence before and a fence after the addition. These order the reduction after the other work-groups'
//! stores; barriers extend this order to the other threads.

use super::across_threads::declare;
use super::finish::{Sharer, add_parts};
use super::tile::HeldTile;
use super::{Reducer, State, get};
use crate::plan::{ReductionArrays, TileReduction};
use tilewright_ir::*;

/// Values that work-groups leave parts of, and the shared memory through which the last one finishes them.
struct Left<'a> {
    reducer: &'a Reducer<'a>,
    how: &'a TileReduction,
    tickets: ArgId,
    result: ArgId,
    /// Whether the work-group is the last, for its threads.
    last: SharedId,
    /// What threads have of the values, by component, where several share a value's parts.
    arrays: Vec<SharedId>,
    /// The first element of the team's.
    first: Option<ExprId>,
    sharers: u32,
}

impl HeldTile<'_> {
    /// After the stores of the parts: the last work-group finishes the tile's values. `areas` are those of each reduction.
    pub(super) fn finish_last(
        &self,
        b: &mut Builder,
        all: &[(&Reducer, TileReduction)],
        areas: &[ReductionArrays],
        team: Option<ExprId>,
    ) {
        let mut left = Vec::new();
        for ((reducer, how), areas) in all.iter().zip(areas) {
            let Some([tickets, result]) = reducer.ticket else { continue };
            let last = areas.last.bytes as u32 / Scalar::I32.bytes();
            let last = b.shared(&format!("last_{}", reducer.op.number), Scalar::I32, last, areas.last.first());
            let sharers = how.sharers(self.threads, reducer.partials.parts);
            let arrays = declare(b, "shares", reducer, &areas.shares);
            let first = team.map(|team| b.value(team * self.threads));
            left.push(Left { reducer, how, tickets, result, last, arrays, first, sharers });
        }
        if left.is_empty() {
            return;
        }
        b.comment("the last work-group finishes");
        // All of the parts are stored.
        (self.sync)(b);
        let zero = b.int(0, Scalar::I32);
        let team = team.unwrap_or(zero);
        b.if_then(self.thread.equals(0), |b| {
            b.push(Stmt::Fence);
            for left in &left {
                let ticket = self.ticket(b, left.reducer);
                let before = b.fetch_add("before", Base::Buffer(left.tickets), ticket, 1);
                let all = left.reducer.parts(b);
                let is = b.value(before.cast(Scalar::I64).equals(all - 1));
                b.store(Base::Shared(left.last), team, is.cast(Scalar::I32), None);
            }
            b.push(Stmt::Fence);
        });
        (self.sync)(b);
        let mut shared = Vec::new();
        for left in &left {
            let is = b.load("is_last", Base::Shared(left.last), team, 1, None);
            let is = b.bind("last", is.equals(1));
            if left.sharers > 1 {
                shared.push((left, is, self.share(b, left, is)));
            } else {
                b.if_then(is, |b| self.finish_alone(b, left));
            }
        }
        if shared.is_empty() {
            return;
        }
        (self.sync)(b);
        for (left, is, value) in shared {
            let first = b.value(self.thread.lt(left.how.values));
            let ours = b.value(is.and(first));
            b.if_then(ours, |b| {
                let mut leaves: Vec<State> = Vec::new();
                for share in 0..left.sharers {
                    let from = b.value(self.thread + share * left.how.values);
                    let from = left.first.map_or(from, |first| b.value(first + from));
                    let mut load = |array: &SharedId| b.load("share", Base::Shared(*array), from, 1, None);
                    leaves.push(left.arrays.iter().map(&mut load).collect());
                }
                let total = left.reducer.all(b, &leaves);
                self.put_result(b, left, value, &total);
            });
        }
    }

    /// The ticket of the values that the tile has parts of.
    fn ticket(&self, b: &mut Builder, reducer: &Reducer) -> ExprId {
        let (over, partials) = (reducer.op.over.whole(), &reducer.partials);
        let mut ticket = self.entry(b, reducer);
        for axis in (0..2).filter(|axis| !over[*axis]) {
            ticket = b.value(ticket * (partials.strips[axis] as i64) + self.tile[axis].cast(Scalar::I64));
        }
        ticket
    }

    /// Number of a value of the tile in the result, and the condition that it exists and is this tile's.
    fn numbered(&self, b: &mut Builder, left: &Left, value: ExprId) -> (ExprId, Option<ExprId>) {
        let at = self.places(b, left.reducer, left.how, value);
        let (number, exists) = self.value_at(b, left.reducer, at, left.reducer.partials.blocks);
        let entry = self.entry(b, left.reducer);
        let values = left.reducer.values(b);
        (b.value(entry * values + number.cast(Scalar::I64)), exists)
    }

    /// Each thread takes values of its own.
    fn finish_alone(&self, b: &mut Builder, left: &Left) {
        for step in 0..left.how.values.div_ceil(self.threads) {
            let value = b.bind("value", self.thread + step * self.threads);
            let body = |b: &mut Builder| {
                let zero = b.int(0, Scalar::I64);
                let total = self.total(b, left, value, Sharer { lane: zero, lanes: 1 });
                self.put_result(b, left, value, &total);
            };
            let partly = (step + 1) * self.threads > left.how.values;
            if partly { b.if_then(value.lt(left.how.values), body) } else { body(b) }
        }
    }

    /// Threads share the parts of a value: leaves in shared memory what each has, where the work-group is the last. The thread's value.
    fn share(&self, b: &mut Builder, left: &Left, last: ExprId) -> ExprId {
        let value = b.bind("value", self.thread % left.how.values);
        let lane = b.value((self.thread / left.how.values).cast(Scalar::I64));
        let some = b.value(self.thread.lt(left.how.values * left.sharers));
        let ours = b.value(last.and(some));
        b.if_then(ours, |b| {
            let total = self.total(b, left, value, Sharer { lane, lanes: left.sharers });
            let at = left.first.map_or(self.thread, |first| b.value(first + self.thread));
            for (array, value) in left.arrays.iter().zip(total) {
                b.store(Base::Shared(*array), at, value, None);
            }
        });
        value
    }

    /// What one of several threads has of a value of the tile, from all work-groups' parts.
    fn total(&self, b: &mut Builder, left: &Left, value: ExprId, sharer: Sharer) -> State {
        let reducer = left.reducer;
        let identity = reducer.identity(b);
        let total: Vec<VarId> = identity.iter().map(|value| b.declare("total", *value)).collect();
        let (number, exists) = self.numbered(b, left, value);
        let number = b.bind("number", number);
        let from: Vec<(ArgId, u64)> = reducer.to.iter().map(|to| (*to, 0)).collect();
        b.if_given(exists, |b| add_parts(b, reducer, &from, &total, number, sharer));
        get(b, &total)
    }

    fn put_result(&self, b: &mut Builder, left: &Left, value: ExprId, state: &[ExprId]) {
        let (number, exists) = self.numbered(b, left, value);
        let value = left.reducer.finish(b, state);
        b.store(Base::Buffer(left.result), number, value, exists);
    }
}
