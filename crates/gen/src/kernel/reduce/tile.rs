//! A tile of results that the threads of a work-group hold, reduced to one value per row, column or tile.
//!
//! The order is fixed: elements of a thread pairwise, by their place along what is reduced; lanes pairwise; waves by their place. Elements
//! that are not there, or that another tile owns, count as the operator's identity.

use super::operator::Element;
use super::{Reducer, State, add, bind, get};
use crate::kernel::input::Ints;
use crate::kernel::tile::cluster::ClusterPlace;
use crate::plan::{Finish, Stage, TileReduction, atomic};
use std::collections::HashMap;
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::*;
use tilewright_problem::Extents;
use tilewright_problem::contraction::PartOf;

/// Lanes of the waves that consist of rows whose lanes alone exchange values directly (AMD's), and the bits of a lane's number in its row.
const WIDE: u32 = 64;
const ROW_BITS: u32 = 4;

/// An axis's coordinate at this distance from a first one.
pub(super) fn offset_coord(b: &mut Builder, first: Coord, by: ExprId, ints: Ints) -> Coord {
    let local = b.value(first.local + by.cast(ints.coord));
    Coord { local, ..first }
}

/// A tile, and the threads that hold it.
pub(crate) struct HeldTile<'a> {
    /// (thread, register) to (row, column) of the tile.
    pub layout: &'a Layout,
    pub thread: ExprId,
    pub threads: u32,
    /// The value in a register, in the type of the sums.
    pub value: OfRegister<'a>,
    /// Writes a register, for tiles that may overwrite registers past the edge of the result.
    pub overwrite: Option<Overwrite<'a>>,
    /// Condition under which a register counts; `None` where it always does.
    pub counts: &'a dyn Fn(u32) -> Option<ExprId>,
    /// The work-group's place in its cluster, where it has one.
    pub cluster: Option<ClusterPlace>,
    /// Number of this work-group's share, where several have shares of a tile.
    pub share: Option<ExprId>,
    /// Type of the results, for reductions of what is stored.
    pub stored: Scalar,
    pub g: ExprId,
    /// Number of the tile, along m and n.
    pub tile: [ExprId; 2],
    /// First row and column.
    pub start: [Coord; 2],
    /// Condition under which this tile owns a row (0) or column (1); `None` where it always does.
    pub owned: &'a dyn Fn(&mut Builder, Coord, usize) -> Option<ExprId>,
    /// The threads wait for each other.
    pub sync: &'a dyn Fn(&mut Builder),
    pub ints: Ints,
    /// After a work-group's last tile.
    pub walk: Option<Walk>,
    /// Column shift of a row of the tile, by its distance from the thread's first row.
    pub shift: Option<OfRegister<'a>>,
}

/// The value in a register.
pub(crate) type OfRegister<'a> = &'a dyn Fn(&mut Builder, u32) -> ExprId;

/// Registers of a tile of so many rows and columns, whose last ones may lie beyond the result's edge.
#[derive(Clone, Copy)]
pub(crate) struct Overwrite<'a> {
    pub size: [u32; 2],
    pub set: &'a dyn Fn(&mut Builder, u32, ExprId),
}

/// What is known of a tile. It is which of the thread's rows (0) and columns (1) the tile owns, and what the others hold.
#[derive(Default)]
pub(crate) struct Known {
    owned: HashMap<(usize, u32), Option<ExprId>>,
    filled: [Option<f64>; 2],
}

/// Where a work-group walks.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    /// Its first piece of work.
    pub work: ExprId,
    /// Its place in its cluster along m and n.
    pub place: [Option<ExprId>; 2],
}

/// Shared memory that is free for the reductions of a tile.
#[derive(Clone, Copy)]
pub(crate) struct FreeShared {
    /// Its first byte.
    pub at: u32,
    /// Teams of threads that work on tiles of their own, each with its own part of the memory.
    pub teams: u32,
    /// The number of this thread's team, where there are several.
    pub team: Option<ExprId>,
}

impl FreeShared {
    /// All of it, for the only tile.
    pub const ALL: FreeShared = FreeShared { at: 0, teams: 1, team: None };
}

/// What a thread has of a reduction that goes on from tile to tile: the state of each value, in variables.
pub(crate) type Kept = Vec<Vec<VarId>>;

/// Values that a thread has of a reduction. `held` has the row and column of each as far as constants go. The thread adds
/// `thread` to all of them.
pub(crate) struct Values {
    pub held: Vec<([u32; 2], State)>,
    pub thread: [ExprId; 2],
    /// Threads that have them to themselves; `None`: all.
    pub guard: Option<ExprId>,
}

impl HeldTile<'_> {
    /// Reduces the tile by all reducers.
    pub fn reduce(&self, b: &mut Builder, all: &[(&Reducer, TileReduction)], place: [ExprId; 2], free: FreeShared) {
        let mut known = Known::default();
        self.reduce_across_threads(b, all, free, &mut |b, number| {
            let (reducer, how) = &all[number];
            self.in_registers(b, reducer, how, place, &mut known)
        });
    }

    /// What a thread adds to rows and columns of its registers.
    pub fn place(&self, b: &mut Builder) -> [ExprId; 2] {
        let place = [Axis::Row, Axis::Col].map(|to| self.layout.emit(b, to, &[(Axis::Thread, self.thread)], Scalar::I32));
        [b.bind("held_row", place[0]), b.bind("held_col", place[1])]
    }

    /// Values that a thread has of a reducer.
    pub fn values(&self, how: &TileReduction) -> Vec<[u32; 2]> {
        how.held(self.layout).into_keys().collect()
    }

    /// The state of no element for each value of a thread, in variables.
    pub fn nothing(layout: &Layout, b: &mut Builder, reducer: &Reducer, how: &TileReduction) -> Kept {
        let identity = reducer.identity(b);
        let mut state = || identity.iter().map(|value| b.declare("kept", *value)).collect();
        how.held(layout).keys().map(|_| state()).collect()
    }

    /// Adds the tile to what the thread has of those before.
    pub fn carry(&self, b: &mut Builder, reducer: &Reducer, how: &TileReduction, kept: &Kept, place: [ExprId; 2]) {
        b.comment(reducer.op.to_string());
        let values = self.in_registers(b, reducer, how, place, &mut Known::default());
        for (state, (_, own)) in kept.iter().zip(&values.held) {
            add(b, reducer, state, own);
        }
    }

    /// What a thread has of all tiles.
    pub fn kept(&self, b: &mut Builder, reducer: &Reducer, how: &TileReduction, kept: &Kept, place: [ExprId; 2]) -> Values {
        let states: Vec<State> = kept.iter().map(|state| get(b, state)).collect();
        self.of_thread(b, reducer, how, place, self.values(how).into_iter().zip(states).collect())
    }

    /// Condition that a row or column which the thread holds exists and is this tile's.
    fn owned(
        &self,
        b: &mut Builder,
        known: &mut HashMap<(usize, u32), Option<ExprId>>,
        axis: usize,
        offset: u32,
        place: [ExprId; 2],
    ) -> Option<ExprId> {
        if let Some(found) = known.get(&(axis, offset)) {
            return *found;
        }
        let by = b.value(place[axis] + offset);
        let coord = offset_coord(b, self.start[axis], by, self.ints);
        let condition = (self.owned)(b, coord, axis).map(|c| b.bind(["has_row", "has_col"][axis], c));
        known.insert((axis, offset), condition);
        condition
    }

    /// Puts the operator's identity where a tile at the edge has elements that do not exist. A branch for such tiles alone
    /// replaces a condition for each of the thread's rows or columns. These conditions are too many for its registers. False
    /// where it cannot.
    fn fill(&self, b: &mut Builder, reducer: &Reducer, place: [ExprId; 2], filled: &mut [Option<f64>; 2]) -> bool {
        let (Some(Overwrite { size, set }), Some(none)) = (self.overwrite, reducer.fill()) else { return false };
        let whole = reducer.op.over.whole();
        for axis in (0..2).filter(|axis| whole[*axis]) {
            let last = b.int(i64::from(size[axis]) - 1, Scalar::I32);
            let last = offset_coord(b, self.start[axis], last, self.ints);
            let Some(inside) = (self.owned)(b, last, axis) else { continue };
            if filled[axis].replace(none) == Some(none) {
                continue;
            }
            let over = b.unary(UnaryOp::Not, inside);
            b.if_then(over, |b| {
                let mut owned = HashMap::new();
                for register in 0..self.layout.extent(Axis::Register) as u32 {
                    let to = [Axis::Row, Axis::Col][axis];
                    let offset = self.layout.at(to, &[(Axis::Register, register.into())]) as u32;
                    if let Some(exists) = self.owned(b, &mut owned, axis, offset, place) {
                        let value = (self.value)(b, register);
                        let none = b.float(none, b.ty(value).scalar);
                        let value = b.value(exists.select(value, none));
                        set(b, register, value);
                    }
                }
            });
        }
        true
    }

    /// Index of a thread's first element of a value.
    fn first_index(&self, b: &mut Builder, reducer: &Reducer, how: &TileReduction, place: [ExprId; 2], kept: [u32; 2]) -> ExprId {
        let (scalar, steps) = (reducer.state[1], reducer.steps());
        let (over, whole) = ([reducer.op.over.m, reducer.op.over.n], reducer.op.over.whole());
        let mut first = b.int(0, scalar);
        if reducer.op.over.g && reducer.op.part.is_none() {
            first = self.entry_index(b, reducer);
        }
        for axis in (0..2).filter(|axis| over[*axis]) {
            let mut at = offset_coord(b, self.start[axis], place[axis], self.ints).value(b);
            if !whole[axis] {
                at = b.value((at + i64::from(kept[axis] * how.runs[axis])) % (reducer.extents()[axis] as i64));
            }
            first = b.value(first + at.cast(scalar) * (steps[axis] as i64));
        }
        b.bind("first_index", first)
    }

    /// Index of the first element of the tile's batch entry.
    fn entry_index(&self, b: &mut Builder, reducer: &Reducer) -> ExprId {
        let over = [reducer.op.over.m, reducer.op.over.n];
        let apart = reducer.op.groups.max(1) * reducer.partials.phases;
        let entry = b.value(self.g.cast(reducer.state[1]) / (apart as i64));
        let each = (0..2).filter(|axis| over[*axis]).map(|axis| reducer.extents()[axis]).product::<u64>();
        b.value(entry * (each as i64))
    }

    /// The index in the whole result of an element of a part. `index` is the element's index among the elements of the batch
    /// entry in the part. Both count in the same order.
    fn index_in_whole(&self, b: &mut Builder, reducer: &Reducer, part: &PartOf, index: ExprId) -> ExprId {
        let (over, scalar) = ([reducer.op.over.m, reducer.op.over.n], reducer.state[1]);
        let (columns_axis, rows) = (reducer.inner, 1 - reducer.inner);
        let columns = if over[columns_axis] { reducer.extents()[columns_axis] as i64 } else { 1 };
        let index = b.bind("index", index);
        let [row, column] = [b.value(index / columns), b.value(index % columns)];
        let mut point = [self.g, index, index].map(|at| Coord::plain(b, at));
        point[1 + rows] = Coord::plain(b, row);
        let row = affine(b, &part.rows.access.offset, &point, Part::Whole, scalar);
        let within = b.value(row * columns + column);
        if !reducer.op.over.g {
            return within;
        }
        let first = self.entry_index(b, reducer);
        b.value(first + within)
    }

    /// Elements of each thread.
    pub fn in_registers(
        &self,
        b: &mut Builder,
        reducer: &Reducer,
        how: &TileReduction,
        place: [ExprId; 2],
        known: &mut Known,
    ) -> Values {
        let (whole, steps) = (reducer.op.over.whole(), reducer.steps());
        let filled = self.fill(b, reducer, place, &mut known.filled);
        let (mut held, mut first) = (Vec::new(), None);
        for (kept, elements) in how.held(self.layout) {
            if reducer.op.operator.indexes() && (first.is_none() || reducer.op.over.in_blocks()) {
                first = Some(self.first_index(b, reducer, how, place, kept));
            }
            let mut all = Vec::new();
            for (at, register) in elements {
                let mut value = (self.value)(b, register);
                if reducer.op.stored {
                    let scalar = b.ty(value).scalar;
                    value = b.value(value.cast(self.stored).cast(scalar));
                }
                value = reducer.seen(b, value);
                let mut counts: Vec<ExprId> = (self.counts)(register).into_iter().collect();
                // A run of a block exists as a whole or not at all.
                for axis in (0..2).filter(|axis| whole[*axis] && !filled) {
                    counts.extend(self.owned(b, &mut known.owned, axis, at[axis], place));
                }
                let within = |axis: usize| if whole[axis] { at[axis] } else { at[axis] % how.runs[axis] };
                let index = (0..2).map(|axis| u64::from(within(axis)) * steps[axis]).sum();
                all.push(Element { value, index, counts });
            }
            if reducer.partials.finish == Some(Finish::Atomic(Stage::Element)) {
                held.extend(all.into_iter().map(|element| (kept, reducer.elements(b, first, vec![element]))));
                continue;
            }
            let mut total = reducer.elements(b, first, all);
            if let (Some(part), [_, index]) = (&reducer.op.part, total.as_mut_slice())
                && reducer.op.operator.indexes()
            {
                *index = self.index_in_whole(b, reducer, part, *index);
            }
            if let (Some(shift), [_, index]) = (self.shift, total.as_mut_slice())
                && reducer.op.operator.indexes()
            {
                // What is before the first is as good as the first where nothing is better.
                let by = shift(b, kept[0]);
                let scalar = b.ty(*index).scalar;
                *index = b.value((*index - by.cast(scalar)).max(0));
            }
            held.push((kept, bind(b, "total", total)));
        }
        self.of_thread(b, reducer, how, place, held)
    }

    fn of_thread(
        &self,
        b: &mut Builder,
        reducer: &Reducer,
        how: &TileReduction,
        place: [ExprId; 2],
        held: Vec<([u32; 2], State)>,
    ) -> Values {
        let whole = reducer.op.over.whole();
        let thread = [0, 1].map(|axis| match how.runs[axis] {
            run if run > 1 && !whole[axis] => b.value(place[axis] / run),
            _ => place[axis],
        });
        Values { held, thread, guard: None }
    }

    /// Values of lanes that have parts of the same ones. Where a lane has an even number of values it keeps one half and gives
    /// the other away. Each step then exchanges half as many values as the step before, and all lanes have some to store.
    pub(super) fn across_lanes(&self, b: &mut Builder, reducer: &Reducer, how: &TileReduction, mut values: Values) -> Values {
        let mut copies = 0;
        for &bit in &how.lane_bits {
            let mask = 1u32 << bit;
            let exchange = |b: &mut Builder, state: &[ExprId]| -> State {
                state.iter().map(|value| b.shuffle("other", *value, ShuffleKind::Xor(mask))).collect()
            };
            let half = values.held.len() / 2;
            // Halves of values along both axes may not lie alike.
            let apart = |i: usize| [0, 1].map(|axis| values.held[half + i].0[axis].checked_sub(values.held[i].0[axis]));
            let alike = || !apart(0).contains(&None) && (1..half).all(|i| apart(i) == apart(0));
            let even = values.held.len().is_multiple_of(2) && half > 0 && alike();
            if bit == ROW_BITS
                && !even
                && copies == (1 << ROW_BITS) - 1
                && how.wave == WIDE
                && how.lane_bits.contains(&(ROW_BITS + 1))
            {
                // Each row of lanes has one value, which reaches all lanes without shared memory's crossbar.
                for (_, state) in &mut values.held {
                    let of_row = |b: &mut Builder, row: u32| -> State {
                        let from = ShuffleKind::Broadcast(row << ROW_BITS);
                        state.iter().map(|value| b.shuffle("row", *value, from)).collect()
                    };
                    let rows: Vec<State> = (0..WIDE >> ROW_BITS).map(|row| of_row(b, row)).collect();
                    let all = reducer.all(b, &rows);
                    *state = bind(b, "both", all);
                }
                copies = WIDE - 1;
                break;
            }
            if !even {
                for (_, state) in &mut values.held {
                    let other = exchange(b, state);
                    let both = reducer.combine(b, state, &other);
                    *state = bind(b, "both", both);
                }
                copies |= mask;
                continue;
            }
            let apart = apart(0).map(Option::unwrap_or_default);
            let upper = b.value(self.thread & mask);
            let upper = b.bind("upper", upper.equals(i64::from(mask)));
            let mut held = Vec::with_capacity(half);
            for i in 0..half {
                let (place, low) = &values.held[i];
                let high = &values.held[half + i].1;
                let given = reducer.select(b, upper, low, high);
                let given = bind(b, "given", given);
                let own = reducer.select(b, upper, high, low);
                let other = exchange(b, &given);
                let both = reducer.combine(b, &own, &other);
                held.push((*place, bind(b, "both", both)));
            }
            values.held = held;
            for (axis, apart) in apart.into_iter().enumerate().filter(|(_, apart)| *apart > 0) {
                let further = b.value(upper.select(Ex::int(apart.into(), Scalar::I32), 0));
                let moved = b.value(values.thread[axis] + further);
                values.thread[axis] = b.bind("moved", moved);
            }
        }
        if copies > 0 {
            let first = b.value(self.thread & copies);
            values.guard = Some(b.bind("first_of_lanes", first.equals(0)));
        }
        values
    }

    /// Stores values whose whole tile one thread has reduced.
    pub fn put_all(&self, b: &mut Builder, reducer: &Reducer, how: &TileReduction, values: &Values) {
        for (place, state) in &values.held {
            let at = [0, 1].map(|axis| b.value((values.thread[axis] + place[axis]) * how.runs[axis]));
            self.put(b, reducer, at, state, values.guard);
        }
    }

    /// First row and column of a value of the tile, 0 along what is reduced.
    pub(super) fn places(&self, b: &mut Builder, reducer: &Reducer, how: &TileReduction, value: ExprId) -> [ExprId; 2] {
        let (zero, whole) = (b.int(0, Scalar::I32), reducer.op.over.whole());
        let number = match whole {
            [false, false] => [b.value(value / how.across), b.value(value % how.across)],
            _ => [value; 2],
        };
        [0, 1].map(|axis| if whole[axis] { zero } else { b.value(number[axis] * how.runs[axis]) })
    }

    /// Number of the value at (row, column) of the tile among the values of a batch entry. Also the condition that the value
    /// exists and is this tile's. Each value is computed from `units` rows and columns.
    pub(super) fn value_at(
        &self,
        b: &mut Builder,
        reducer: &Reducer,
        at: [ExprId; 2],
        units: [u64; 2],
    ) -> (ExprId, Option<ExprId>) {
        let (whole, mut number, mut exists) = (reducer.op.over.whole(), None, None);
        for axis in [1 - reducer.inner, reducer.inner].into_iter().filter(|axis| !whole[*axis]) {
            let coord = offset_coord(b, self.start[axis], at[axis], self.ints);
            let owned = (self.owned)(b, coord, axis);
            exists = b.and_opt(exists, owned);
            let own = coord.value(b);
            let own = if units[axis] > 1 { b.value(own / (units[axis] as i64)) } else { own };
            let Extents { m, n, .. } = reducer.shape.extents;
            let across = ([m, n][axis] / units[axis].max(1)) as i64;
            number = Some(number.map_or(own, |rows: ExprId| b.value(rows.cast(Scalar::I64) * across + own.cast(Scalar::I64))));
        }
        (number.unwrap_or_else(|| b.int(0, Scalar::I64)), exists)
    }

    /// Stores a value of the tile: at (row, column) of it, as far as these are kept.
    pub(super) fn put(&self, b: &mut Builder, reducer: &Reducer, at: [ExprId; 2], state: &[ExprId], mut guard: Option<ExprId>) {
        let (whole, partials) = (reducer.op.over.whole(), &reducer.partials);
        let parts = partials.in_workspace();
        let mut index = if parts { b.value(self.g.cast(Scalar::I64)) } else { self.entry(b, reducer) };
        for axis in (0..2).filter(|axis| whole[*axis] && parts) {
            let part = self.part(b, reducer, axis);
            index = b.value(index * (partials.tiles[axis] as i64) + part.cast(Scalar::I64));
        }
        let (kept, exists) = self.value_at(b, reducer, at, if parts { partials.runs } else { partials.blocks });
        guard = b.and_opt(guard, exists);
        if let Some(share) = self.share.filter(|_| parts && partials.shares > 1) {
            index = b.value(index * (partials.shares as i64) + share.cast(Scalar::I64));
        }
        let values = if parts { b.int(partials.values as i64, Scalar::I64) } else { reducer.values(b) };
        let index = b.value(index * values + kept.cast(Scalar::I64));
        let values = if parts { state.to_vec() } else { vec![reducer.finish(b, state)] };
        let by_atomics = partials.finish.and_then(Finish::stage).and_then(|_| atomic(reducer.op.operator));
        for (to, value) in reducer.to.iter().zip(values) {
            match by_atomics {
                Some(op) => b.atomic(op, Base::Buffer(*to), index, value, guard),
                None => b.store(Base::Buffer(*to), index, value, guard),
            }
        }
    }

    /// Number of the tile's part of a value along an axis that is reduced. It is the work-group's number where the work-group
    /// adds up the parts of its tiles, and the cluster's where its work-groups combine their parts.
    fn part(&self, b: &mut Builder, reducer: &Reducer, axis: usize) -> ExprId {
        let part = self.own_part(b, reducer, axis);
        match reducer.partials.peers[axis] {
            1 => part,
            peers => b.value(part / (peers as i64)),
        }
    }

    fn own_part(&self, b: &mut Builder, reducer: &Reducer, axis: usize) -> ExprId {
        let (Some(carried), Some(Walk { work, place })) = (&reducer.partials.carried, self.walk) else {
            return self.tile[axis];
        };
        let place = place[axis].unwrap_or_else(|| b.int(0, Scalar::I32));
        if carried.along != axis {
            return place;
        }
        let together = carried.parts[axis] / carried.sharers;
        b.value(work / (carried.kept as i64) % (carried.sharers as i64) * (together as i64) + place)
    }

    /// The batch entry of the tile's values in the result.
    pub(super) fn entry(&self, b: &mut Builder, reducer: &Reducer) -> ExprId {
        let mut entry = b.value(self.g.cast(Scalar::I64));
        if reducer.partials.phases > 1 {
            entry = b.value(entry / (reducer.partials.phases as i64));
        }
        if reducer.partials.outer > 1 { b.value(entry % (reducer.partials.groups as i64)) } else { entry }
    }
}
