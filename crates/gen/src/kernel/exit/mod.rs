//! What happens to the accumulators: scaling, bias, activation and residual before they are stored, and the ways to memory.

mod bulk;
mod direct;
mod exchange;
mod functions;
pub mod operations;
pub mod out;
mod owners;
pub mod pairs;
mod rows;
mod zero_points;

use super::input::{Input, Ints};
use super::tile::cluster::ClusterPlace;
use super::tile::position::{TilePosition, TileWalk};
use super::unit::AccumulatorSet;
use super::unit::accumulators::{Accumulators, Run};
use crate::kernel::reduce::Reducer;
use crate::kernel::reduce::tile::{FreeShared, HeldTile, Kept, OfRegister, Overwrite, Walk};
use crate::plan::{Edge, Exit, KernelSpec, SharedMap, Split, StoreTile, TileReduction};
use bulk::StagedStore;
use out::{Made, Out, OutArgs, Target};
use owners::{Owners, Share};
use pairs::TilePairs;
use rows::RowStore;
use tilewright_ir::mma::Owner;
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

/// What the epilogue of a kernel is built from.
pub(crate) struct Epilogue<'a> {
    pub c: &'a Contraction,
    pub spec: &'a KernelSpec,
    pub inputs: [&'a Input; 2],
    pub args: &'a OutArgs<'a>,
    pub ints: Ints,
    /// Number of this thread among those that compute, and whether it is the first of its wave.
    pub thread: ExprId,
    pub first_lane: ExprId,
    /// The work-group's place in its cluster.
    pub place: Option<ClusterPlace>,
    /// How results leave by bulk stores, where they do.
    pub store: Option<&'a BulkOutput>,
    /// The next tile's operands arrive during the epilogue: staging buffers follow the operand tiles. Otherwise staging buffers
    /// overlay the operand tiles, after a barrier of all waves.
    pub piped: bool,
    /// Places of the part's arrays in shared memory.
    pub shared: &'a SharedMap,
    /// What this thread has of the reductions that go on from tile to tile.
    pub kept: Vec<Kept>,
}

/// Bulk stores of results.
pub(crate) struct BulkOutput {
    /// What one store moves.
    pub tile: StoreTile,
    /// The argument that maps the result.
    pub map: ArgId,
    /// The arguments that map the pre-activations of the gate and of the other factor, where these leave in the same way.
    pub preactivations: Vec<ArgId>,
}

/// Staging buffers of the waves and what goes through them.
pub(crate) enum Staged {
    /// Bulk stores.
    Bulk(StagedStore),
    /// Plain stores of whole rows.
    Rows(RowStore),
}

impl Epilogue<'_> {
    /// Staging buffers of the waves, where results go through such.
    pub fn staged(&self, b: &mut Builder) -> Option<Staged> {
        if self.spec.pairs(self.c).is_some() {
            return self.with_results(|results| results.staged(b)).flatten();
        }
        if !self.spec.epilogue.exit.by_waves() {
            return None;
        }
        Some(match self.store {
            Some(store) => Staged::Bulk(StagedStore::new(b, self, store)),
            None => Staged::Rows(RowStore::new(b, self)),
        })
    }

    /// Declares the staging buffers.
    fn staging_array(&self, b: &mut Builder, scalar: Scalar) -> SharedId {
        let area = self.shared.results;
        b.shared("smem_c", scalar, area.bytes as u32 / scalar.bytes(), area.first())
    }

    /// Where there is no sum, there is nothing in registers or to stage.
    fn without_terms(&self) -> bool {
        let alone = self.args.reducers.is_empty() && !self.spec.exchanges_parts();
        self.c.k == 0 && alone && self.spec.epilogue.exit.bulk().is_none()
    }

    /// Stores a tile's results; `staged` are the buffers of all tiles, if there are such.
    pub fn emit(&self, b: &mut Builder, acc: &AccumulatorSet, at: &TilePosition, staged: Option<&Staged>) {
        if self.spec.exchanges_parts() {
            return self.sum_parts(b, acc, at, staged);
        }
        let reduced = (!self.args.reducers.is_empty()).then(|| {
            let (out, math) = (Out::new(b, self, at), self.accumulators(b, acc));
            out.by_beta(b, |b, old| out.apply_in_registers(b, &math, 0..math.count(), old));
            self.reduce(b, &math, at, &out, &|_| None);
            out.applied_already()
        });
        if matches!(self.args.target, Target::Nowhere) {
            return;
        }
        self.store(b, acc, at, reduced, None, staged);
    }

    /// Stores the accumulators of a tile. `out` tells which operations registers have passed already, and how results are made. With `owners`,
    /// each peer stores its own share.
    fn store(
        &self,
        b: &mut Builder,
        acc: &AccumulatorSet,
        at: &TilePosition,
        out: Option<Out>,
        owners: Option<&Owners>,
        staged: Option<&Staged>,
    ) {
        if self.spec.pairs(self.c).is_some() {
            return self.store_pairs(b, acc, at, staged);
        }
        let over = self.spec.epilogue.exit.by_waves() && !self.piped;
        let own = over.then(|| {
            // Nobody reads the tiles any more.
            b.barrier();
            self.staged(b)
        });
        let out = out.unwrap_or_else(|| Out::new(b, self, at));
        if self.without_terms() {
            return out.by_beta(b, |b, old| out.without_terms(b, old));
        }
        let unit = self.spec.tiling.unit.family().owner;
        let math = self.accumulators(b, acc);
        if !self.spec.epilogue.exit.by_waves() {
            out.make(b, &math, None);
        }
        match (&self.spec.epilogue.exit, unit) {
            (Exit::Staged { .. }, _) => return out.staged(b, acc, owners),
            (_, Owner::Thread) => return out.by_beta(b, |b, old| out.direct(b, acc, old)),
            (_, Owner::Wave | Owner::Warpgroup) => {}
        }
        let out = out.adding_old_ahead(b, &math);
        let staged = own.as_ref().and_then(Option::as_ref).or(staged);
        shares(b, owners, |b, share| match staged {
            // A bulk store does not read the results that it replaces.
            Some(Staged::Bulk(staged)) => out.by_beta(b, |b, old| match (old, share) {
                (true, Some(share)) => out.runs_of(b, &math, share, old),
                (true, None) => {
                    out.make(b, &math, None);
                    out.runs(b, &math, old);
                }
                _ => out.in_bulk(b, &math, staged, share),
            }),
            Some(Staged::Rows(rows)) => match share {
                // Where there is no sum, there is nothing to stage.
                Some(share) if self.c.k == 0 => out.by_beta(b, |b, old| out.runs_of(b, &math, share, old)),
                _ => out.in_rows(b, &math, rows, share),
            },
            None => out.by_beta(b, |b, old| out.runs(b, &math, old)),
        });
        if let Some(Staged::Bulk(staged)) = own.as_ref().and_then(Option::as_ref) {
            staged.finish(b);
        }
    }

    /// Stores what the pairs of a tile's sums make.
    fn store_pairs(&self, b: &mut Builder, acc: &AccumulatorSet, at: &TilePosition, staged: Option<&Staged>) {
        let to = self.results_at(b, at);
        self.with_results(|results| {
            if let Some(pairs) = TilePairs::new(b, acc, [self, results], [at, &to]) {
                let make = |b: &mut Builder, runs: Option<&[Run]>| pairs.make(b, runs);
                let made = Made { make: &make, preactivations: &pairs.preactivations };
                let out = Out::new(b, results, &to).of_made(made);
                results.store(b, &pairs.set, &to, Some(out), None, staged);
            }
        });
    }

    /// Number of this thread among those that compute the same tile.
    pub fn thread_of_tile(&self, b: &mut Builder) -> ExprId {
        match self.spec.teams() {
            1 => self.thread,
            _ => b.bind("team_thread", self.thread % self.spec.tiling.math_threads()),
        }
    }

    /// Reduces what the registers hold of a tile, as far as they count.
    fn reduce(&self, b: &mut Builder, math: &Accumulators, at: &TilePosition, out: &Out, counts: &dyn Fn(u32) -> Option<ExprId>) {
        let value = |b: &mut Builder, element: u32| math.value(b, element);
        let set = |b: &mut Builder, element: u32, value: ExprId| b.set_reg(math.regs, element, value);
        // What a pulled-back tile does not own is stored nevertheless.
        let free = math.width == 1 && self.inputs.iter().all(|input| input.edge == Edge::Predicate);
        let size = self.inputs.map(|input| input.tiling.macro_tile);
        let overwrite = free.then_some(Overwrite { size, set: &set });
        let held = HeldValues { value: &value, overwrite, counts };
        self.with_tile(b, at, out, None, held, |b, tile, free| {
            let (carried, now) = (self.reducers(true), self.reducers(false));
            let place = tile.place(b);
            for ((reducer, how), kept) in carried.iter().zip(&self.kept) {
                tile.carry(b, reducer, how, kept, place);
            }
            tile.reduce(b, &now, place, free);
        });
    }

    /// Reductions of each tile, or those after the last tile, and how the threads reduce them.
    fn reducers(&self, after_last: bool) -> Vec<(&Reducer<'_>, TileReduction)> {
        let all = self.args.reducers.iter().zip(self.spec.tile_reductions(self.c));
        all.filter(|(reducer, _)| reducer.partials.carried.is_some() == after_last).collect()
    }

    /// Ahead of the first tile: reductions that go on from tile to tile have no elements yet.
    pub fn carried_identities(&self, b: &mut Builder) -> Vec<Kept> {
        let (all, layout) = (self.reducers(true), self.spec.tiling.accumulators());
        all.iter().map(|(reducer, how)| HeldTile::nothing(&layout, b, reducer, how)).collect()
    }

    /// After the last tile of a work-group: stores its parts of the reductions carried from tile to tile. The argument is its
    /// first piece of work.
    pub fn store_carried(&self, b: &mut Builder, tiles: &TileWalk, work: ExprId) {
        if self.kept.is_empty() {
            return;
        }
        let at = tiles.position(b, work);
        let out = Out::new(b, self, &at);
        let place = self.place.map(|place| [(place.size.m, place.m), (place.size.n, place.n)]);
        let place = place.map_or([None; 2], |place| place.map(|(together, at)| (together > 1).then_some(at)));
        let nothing = |b: &mut Builder, _| b.zero(self.c.accumulator().vector(1));
        let held = HeldValues { value: &nothing, overwrite: None, counts: &|_| None };
        self.with_tile(b, &at, &out, Some(Walk { work, place }), held, |b, tile, free| {
            let (all, place) = (self.reducers(true), tile.place(b));
            tile.reduce_across_threads(b, &all, free, &mut |b, number| {
                let (reducer, how) = &all[number];
                tile.kept(b, reducer, how, &self.kept[number], place)
            });
        });
    }

    /// Runs the body for what threads hold of a tile, with the shared memory that is free.
    fn with_tile(
        &self,
        b: &mut Builder,
        at: &TilePosition,
        out: &Out,
        walk: Option<Walk>,
        held: HeldValues,
        then: impl FnOnce(&mut Builder, &HeldTile, FreeShared),
    ) {
        let HeldValues { value, overwrite, counts } = held;
        let (t, teams) = (&self.spec.tiling, self.spec.teams());
        let layout = t.accumulators();
        let team = (teams > 1).then(|| b.value(self.thread / t.math_threads()));
        let thread = self.thread_of_tile(b);
        let tile = HeldTile {
            layout: &layout,
            thread,
            threads: t.math_threads(),
            value,
            overwrite,
            counts,
            cluster: self.place,
            share: self.place.filter(|_| t.cluster.splits > 1).map(|place| place.split),
            stored: self.c.c.scalar,
            g: at.g,
            tile: [at.tile_m, at.tile_n],
            start: [at.m_start, at.n_start],
            owned: &|b, position, axis| out.owned(b, position, axis),
            sync: &|b| self.sync_math(b),
            ints: self.ints,
            walk,
            shift: None,
        };
        let from = if walk.is_some() { self.shared.carried } else { self.shared.reductions };
        then(b, &tile, FreeShared { at: from.first(), teams, team });
    }

    fn accumulators(&self, b: &mut Builder, acc: &AccumulatorSet) -> Accumulators {
        Accumulators::new(b, &self.spec.tiling, self.c, *acc)
    }

    /// Emits the producer warps' share of barriers during the epilogue.
    pub fn join_barriers(&self, b: &mut Builder) {
        if self.spec.pairs(self.c).is_some() {
            self.with_results(|results| results.join_barriers(b));
            return;
        }
        let (t, tiles) = (&self.spec.tiling, vec![BarrierScope::WorkGroup; usize::from(!self.piped)]);
        let reduced = self.reduction_barriers(false);
        let exit = match &self.spec.epilogue.exit {
            Exit::Direct { .. } => Vec::new(),
            Exit::Rows | Exit::Bulk { .. } => tiles.clone(),
            Exit::Staged { .. } if self.without_terms() => Vec::new(),
            // Before and after each part of the tile.
            Exit::Staged { .. } => tiles.repeat(2 * if out::columns_contiguous(self.c) { t.a.micro } else { t.b.micro } as usize),
        };
        let exchanged = match self.spec.epilogue.split {
            Split::Cluster => [tiles, vec![BarrierScope::Cluster; 2]].concat(),
            _ => Vec::new(),
        };
        [exchanged, reduced, exit].concat().into_iter().for_each(|scope| b.push(Stmt::Barrier(scope)));
    }

    /// Barriers of all warps in the reduction of a tile, or in the store of carried values. A cluster that combines values has two cluster
    /// barriers.
    fn reduction_barriers(&self, after_last: bool) -> Vec<BarrierScope> {
        let count = if self.piped { 0 } else { self.spec.reduction_barriers(self.c, after_last) };
        let of_cluster = if self.spec.reduces_in_cluster(self.c, after_last) { 2 } else { 0 };
        [vec![BarrierScope::WorkGroup; count], vec![BarrierScope::Cluster; of_cluster]].concat()
    }

    /// Emits the producer warps' share of barriers after the last tile.
    pub fn join_last_barriers(&self, b: &mut Builder) {
        self.reduction_barriers(true).into_iter().for_each(|scope| b.push(Stmt::Barrier(scope)));
    }

    /// Emits a barrier of the consumer warps, without producer warps that run ahead.
    fn sync_math(&self, b: &mut Builder) {
        let (threads, teams) = (self.spec.tiling.math_threads(), self.spec.teams());
        match (self.piped, teams) {
            (false, _) => b.barrier(),
            (true, 1) => b.push(Stmt::Barrier(BarrierScope::Named { id: 1, threads })),
            // Each team separately.
            _ => (1..=teams as u8).for_each(|id| {
                let sync = |b: &mut Builder| b.push(Stmt::Barrier(BarrierScope::Named { id, threads }));
                b.if_then((self.thread / threads + 1).equals(u32::from(id)), sync);
            }),
        }
    }
}

/// What a thread's registers hold of a tile.
struct HeldValues<'v> {
    /// The value in a register.
    value: OfRegister<'v>,
    overwrite: Option<Overwrite<'v>>,
    /// Condition under which a register counts; `None` where it always does.
    counts: &'v dyn Fn(u32) -> Option<ExprId>,
}

/// What each of those does that have shares of a tile, or what is done with all of it.
fn shares(b: &mut Builder, owners: Option<&Owners>, each: impl Fn(&mut Builder, Option<&Share>)) {
    match owners {
        Some(owners) => owners.each(b, None, |b, share| each(b, Some(share))),
        None => each(b, None),
    }
}
