//! Reductions beyond the registers of a work-group's threads: lanes of a wave by shuffles, waves through shared memory, and
//! work-groups of a cluster. Also the stores of the reduced values.

use super::tile::{FreeShared, HeldTile, Values};
use super::{PeerValues, Reducer, State, bind};
use crate::plan::{Area, TileReduction, reduction_arrays};
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// A reduction whose values leave through shared memory: parts of the threads meet there, and work-groups of a cluster.
struct PendingReduction<'a> {
    number: usize,
    reducer: &'a Reducer<'a>,
    how: &'a TileReduction,
    values: Values,
    /// Arrays of the parts, by component, and the first element of the team's; none where lanes have all of a value.
    parts: Vec<SharedId>,
    first: Option<ExprId>,
    /// Arrays of the work-group's values that others of its cluster read; none where none does.
    met: Vec<SharedId>,
}

/// Declares an array for each component of a state.
pub(super) fn declare(b: &mut Builder, name: &str, reducer: &Reducer, areas: &[Area]) -> Vec<SharedId> {
    let one = |(component, (scalar, area)): (usize, (&Scalar, &Area))| {
        let name = Reducer::name(&format!("{name}_{}", reducer.op.number), component);
        b.shared(&name, *scalar, area.bytes as u32 / scalar.bytes(), area.first())
    };
    reducer.state.iter().zip(areas).enumerate().map(one).collect()
}

impl HeldTile<'_> {
    /// Reduces beyond a thread's registers: `values` gives each thread's values of the reducer with a number.
    pub fn reduce_across_threads(
        &self,
        b: &mut Builder,
        all: &[(&Reducer, TileReduction)],
        free: FreeShared,
        values: &mut dyn FnMut(&mut Builder, usize) -> Values,
    ) {
        let FreeShared { at, teams, team } = free;
        let needs: Vec<_> = all.iter().map(|(reducer, how)| reducer.shared(how)).collect();
        let (areas, _) = reduction_arrays(&needs, self.threads, teams, at.into());
        let mut pending: Vec<PendingReduction> = Vec::new();
        for (number, (reducer, how)) in all.iter().enumerate() {
            b.comment(reducer.op.to_string());
            let values = values(b, number);
            let values = self.across_lanes(b, reducer, how, values);
            if how.parts.len() == 1 && reducer.partials.cluster_peers() == 1 {
                self.put_all(b, reducer, how, &values);
                continue;
            }
            let parts = declare(b, "parts_of", reducer, &areas[number].parts);
            let first = team.filter(|_| !parts.is_empty()).map(|team| b.value(team * how.shared()));
            pending.push(PendingReduction { number, reducer, how, values, parts, first, met: Vec::new() });
        }
        for one in &mut pending {
            one.met = declare(b, "values_of", one.reducer, &areas[one.number].met);
        }
        if !pending.is_empty() {
            // No thread still reads the previous contents.
            (self.sync)(b);
        }
        for one in &pending {
            self.put_parts(b, one);
        }
        if pending.iter().any(|one| !one.parts.is_empty()) {
            (self.sync)(b);
            for level in 0..pending.iter().map(|one| one.how.tree).max().unwrap_or(0) {
                for one in pending.iter().filter(|one| one.how.tree > level) {
                    self.halve_parts(b, one, level);
                }
                (self.sync)(b);
            }
        }
        for one in pending.iter().filter(|one| !one.parts.is_empty()) {
            self.reduce_parts(b, one);
        }
        let met = pending.into_iter().filter(|one| !one.met.is_empty());
        self.reduce_peers(b, met.map(|PendingReduction { reducer, how, met, .. }| PeerValues { reducer, how, arrays: met }));
        self.finish_last(b, all, &areas, team);
    }

    /// Combines the second half of the parts in shared memory with the first.
    fn halve_parts(&self, b: &mut Builder, of: &PendingReduction, level: u32) {
        let PendingReduction { reducer, how, parts: arrays, first, .. } = of;
        let half = (how.parts.len() as u32 >> (level + 1)) * how.values;
        for step in 0..half.div_ceil(self.threads) {
            let number = b.bind("number", self.thread + step * self.threads);
            let body = |b: &mut Builder| {
                let at = first.map_or(number, |first| b.value(first + number));
                let load = |b: &mut Builder, from: ExprId| -> State {
                    arrays.iter().map(|array| b.load("part", Base::Shared(*array), from, 1, None)).collect()
                };
                let upper = b.value(at + half);
                let (own, other) = (load(b, at), load(b, upper));
                let both = reducer.combine(b, &own, &other);
                for (array, value) in arrays.iter().zip(both) {
                    b.store(Base::Shared(*array), at, value, None);
                }
            };
            let partly = (step + 1) * self.threads > half;
            if partly { b.if_then(number.lt(half), body) } else { body(b) }
        }
    }

    /// Values of the threads, into shared memory by part; where lanes have all of a value, there is one part.
    fn put_parts(&self, b: &mut Builder, of: &PendingReduction) {
        let PendingReduction { reducer, how, values, first, .. } = of;
        let arrays = if of.parts.is_empty() { &of.met } else { &of.parts };
        let mask = how.lane_bits.iter().fold(0u32, |mask, bit| mask | 1 << bit);
        let thread = if mask == 0 { self.thread } else { b.value(self.thread - (self.thread & mask)) };
        let whole = reducer.op.over.whole();
        let number = |b: &mut Builder, axis: usize| {
            let to = [Axis::Row, Axis::Col][axis];
            (how.part_steps[axis] > 0).then(|| {
                let mut place = self.layout.emit(b, to, &[(Axis::Thread, thread)], Scalar::I32);
                if !whole[axis] {
                    place = b.value(place % how.runs[axis]);
                }
                b.value(place / how.part_steps[axis])
            })
        };
        let part = match [number(b, 0), number(b, 1)] {
            [Some(row), Some(col)] => b.value(row * how.parts_across + col),
            [Some(row), None] => b.value(row * how.parts_across),
            [None, Some(col)] => col,
            [None, None] => b.int(0, Scalar::I32),
        };
        let start = b.value(part * how.values);
        let start = first.map_or(start, |first| b.value(first + start));
        let start = b.bind("part_at", start);
        for (place, state) in &values.held {
            let mut at = start;
            for axis in (0..2).filter(|axis| !whole[*axis]) {
                let step = if axis == 0 { how.across } else { 1 };
                at = b.value(at + values.thread[axis] * step + place[axis] * step);
            }
            for (array, value) in arrays.iter().zip(state) {
                b.store(Base::Shared(*array), at, *value, values.guard);
            }
        }
    }

    /// Reduces the parts in shared memory, and stores the values.
    fn reduce_parts(&self, b: &mut Builder, PendingReduction { reducer, how, parts: arrays, first, met, .. }: &PendingReduction) {
        for step in 0..how.values.div_ceil(self.threads) {
            let value = b.bind("value", self.thread + step * self.threads);
            let partly = (step + 1) * self.threads > how.values;
            let body = |b: &mut Builder| {
                let from = first.map_or(value, |first| b.value(first + value));
                let mut leaves = Vec::new();
                for part in &how.parts[..how.parts.len() >> how.tree] {
                    let mut load = |array: &SharedId| b.load("part", Base::Shared(*array), from + part * how.values, 1, None);
                    leaves.push(arrays.iter().map(&mut load).collect());
                }
                let total = reducer.all(b, &leaves);
                let total = bind(b, "total", total);
                for (array, value_of) in met.iter().zip(&total) {
                    b.store(Base::Shared(*array), value, *value_of, None);
                }
                if met.is_empty() {
                    let at = self.places(b, reducer, how, value);
                    self.put(b, reducer, at, &total, None);
                }
            };
            if partly { b.if_then(value.lt(how.values), body) } else { body(b) }
        }
    }
}
