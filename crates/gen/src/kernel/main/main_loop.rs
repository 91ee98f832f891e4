//! The main loop: the steps of a lowered schedule, each wave emitting those of its role.

use crate::kernel::copy::load::{Loader, SharedTile};
use crate::kernel::input::Ints;
use crate::kernel::main::steps::Pipeline;
use crate::kernel::stages::schedule::{Lowered, MathPart, Step};
use crate::kernel::tile::position::KRange;
use crate::kernel::unit::math::{Between, Math, Tiles};
use crate::plan::KernelSpec;
use tilewright_ir::affine::Coord;
use tilewright_ir::*;

/// Everything the main loop is made of. Waves that only load have no math, waves that only compute have no loaders.
pub(crate) struct MainLoop<'a> {
    pub spec: &'a KernelSpec,
    pub lowered: &'a Lowered,
    pub range: &'a KRange,
    pub ints: Ints,
    /// Shared tiles of A and B.
    pub shared: [SharedTile; 2],
    pub loaders: Option<[Loader<'a>; 2]>,
    pub math: Option<Math>,
    counters: Counters,
}

/// Mutable counters: where the next fetch starts, and which buffer each stage is at.
struct Counters {
    k_fetch: VarId,
    copy: Option<VarId>,
    store: Option<VarId>,
    read: Option<VarId>,
}

impl<'a> MainLoop<'a> {
    /// Declares the counters of this role.
    pub fn new(
        b: &mut Builder,
        spec: &'a KernelSpec,
        lowered: &'a Lowered,
        range: &'a KRange,
        ints: Ints,
        shared: [SharedTile; 2],
    ) -> Self {
        let k_fetch = b.declare("k_fetch", range.begin);
        let zero = b.int(0, Scalar::I32);
        let s = &spec.schedule;
        let many = s.buffers > 1;
        let counters = Counters {
            k_fetch,
            copy: (many && s.copied().0).then(|| b.declare("copy_buffer", zero)),
            store: (many && !s.copied().1).then(|| b.declare("store_buffer", zero)),
            read: many.then(|| b.declare("read_buffer", zero)),
        };
        MainLoop { spec, lowered, range, ints, shared, loaders: None, math: None, counters }
    }

    /// Prologue, loop and tail of one role of a pipeline of bulk copies.
    pub fn piped(b: &mut Builder, lowered: &Lowered, range: &KRange, pipeline: &Pipeline) {
        for step in &lowered.prologue {
            pipeline.step(b, *step, None, false);
        }
        b.for_range("t", 0, range.tiles, Unroll::No, |b, t| {
            for step in &lowered.body {
                pipeline.step(b, *step, Some(t), false);
            }
        });
        for step in &lowered.tail {
            pipeline.step(b, *step, None, true);
        }
    }

    /// Prologue and loop.
    pub fn emit(&self, b: &mut Builder) {
        if !self.lowered.prologue.is_empty() {
            b.comment("prologue: the first tiles are on their way before the loop starts");
        }
        self.steps(b, &self.lowered.prologue, None);
        let (sets, tiles, body) = (self.lowered.sets, self.range.tiles, &self.lowered.body);
        if sets == 1 {
            return b.for_range("t", 0, tiles, Unroll::No, |b, _| self.steps(b, body, Some(0)));
        }
        // Unrolled so that each fetch has a fixed set of staging registers.
        b.for_range("round", 0, (tiles + (sets - 1)) / sets, Unroll::No, |b, round| {
            self.steps(b, body, Some(0));
            for set in 1..sets {
                b.if_then((round * sets + set).lt(tiles), |b| self.steps(b, body, Some(set)));
            }
        });
    }

    /// Steps of the prologue (`None`) or of the copy of the body with this number.
    fn steps(&self, b: &mut Builder, steps: &[Step], unrolled: Option<u32>) {
        for step in steps {
            let set = |ahead: u32| (unrolled.unwrap_or(0) + ahead) % self.lowered.sets;
            match (*step, &self.loaders, &self.math) {
                (Step::Barrier, ..) => b.barrier(),
                (Step::Fence, ..) => b.push(Stmt::SchedHint { mask: 0, size: 0 }),
                // The step of another role, or of another kind of copy.
                (Step::Acquire { .. } | Step::Await | Step::Drain { .. } | Step::Release { .. }, ..)
                | (Step::TakeTurn | Step::HandOn, ..) => {}
                (Step::WaitCopies { pending }, Some(_), _) => b.push(Stmt::AsyncWait(pending)),
                (Step::Fetch { ahead }, Some(loaders), _) => self.fetch(b, loaders, set(ahead), unrolled.is_some()),
                (Step::Store { ahead }, Some(loaders), _) => self.store(b, loaders, set(ahead)),
                (Step::Fragments, _, Some(math)) => {
                    let tiles = self.tiles(b);
                    math.first_fragments(b, &tiles);
                }
                (Step::Math { part, store: None }, _, Some(math)) => self.math(b, math, part, None),
                (Step::Math { part, store: Some(ahead) }, Some(loaders), Some(math)) => {
                    self.math_and_store(b, math, part, loaders, set(ahead));
                }
                // The step of another role.
                _ => {}
            }
        }
    }

    fn order(&self) -> [usize; 2] {
        if self.spec.style.a_first { [0, 1] } else { [1, 0] }
    }

    fn offsets(&self, b: &mut Builder, index: Option<VarId>) -> [ExprId; 2] {
        match index {
            None => [b.int(0, Scalar::I32); 2],
            Some(v) => {
                let i = b.get(v);
                [b.value(i * self.shared[0].buffer), b.value(i * self.shared[1].buffer)]
            }
        }
    }

    fn next(&self, b: &mut Builder, index: Option<VarId>) {
        let Some(v) = index else { return };
        let buffers = self.spec.schedule.buffers;
        let i = b.get(v);
        let next = if buffers == 2 { b.value(1 - i) } else { b.value(i.equals(buffers - 1).select(0, i + 1)) };
        b.set(v, next);
    }

    /// Fetches or copies the next tile. Where every tile is whole, the one after the last is the last again: nobody reads what
    /// is fetched then, and loads without a condition leave the loop one block, within which compilers keep their order.
    fn fetch(&self, b: &mut Builder, loaders: &[Loader<'a>; 2], set: u32, in_loop: bool) {
        let k = b.get(self.counters.k_fetch);
        let unit = if self.range.staggered { 1 } else { i64::from(self.spec.tiling.k_tile) };
        let zero = b.int(0, self.ints.coord);
        let coord = if unit == 1 { Coord::plain(b, k) } else { Coord { aligned: k, unit, local: zero } };
        let overruns = self.spec.schedule.fetch_ahead > 0 && !self.range.ragged;
        // In the loop there is a tile. Before it there may be none.
        let some = in_loop || b.kernel().as_int(self.range.tiles).is_some_and(|tiles| tiles > 0);
        let valid = (overruns && !some).then(|| b.bind("tile_exists", k.lt(self.range.limit)));
        let limit = self.range.ragged.then_some((self.range.staggered, self.range.limit));
        let offsets = self.offsets(b, self.counters.copy);
        let next = b.value(k + self.range.step);
        let more = overruns.then(|| b.bind("more_tiles", next.lt(self.range.limit)));
        for i in self.order() {
            loaders[i].fetch(b, coord, valid, limit, set, offsets[i]);
            loaders[i].advance(b, self.range.step, more);
        }
        let next = match more {
            Some(more) => b.value(more.select(next, k)),
            None => next,
        };
        b.set(self.counters.k_fetch, next);
        if loaders.iter().any(Loader::is_async) {
            b.push(Stmt::AsyncCommit);
            self.next(b, self.counters.copy);
        }
    }

    fn store(&self, b: &mut Builder, loaders: &[Loader<'a>; 2], set: u32) {
        let offsets = self.offsets(b, self.counters.store);
        for i in self.order() {
            if !loaders[i].is_async() {
                loaders[i].store(b, set, offsets[i], 0, loaders[i].pieces());
            }
        }
        self.next(b, self.counters.store);
    }

    fn tiles(&self, b: &mut Builder) -> Tiles<'_> {
        Tiles {
            tiling: &self.spec.tiling,
            shared: [&self.shared[0], &self.shared[1]],
            buffer: self.offsets(b, self.counters.read),
        }
    }

    fn math(&self, b: &mut Builder, math: &Math, part: MathPart, between: Option<Between>) {
        if part == MathPart::Tail {
            self.next(b, self.counters.read);
        }
        let tiles = self.tiles(b);
        match part {
            MathPart::Whole => {
                math.whole(b, &tiles, between);
                self.next(b, self.counters.read);
            }
            MathPart::Head => math.head(b, &tiles, between),
            MathPart::Tail => math.tail(b, &tiles),
        }
    }

    /// The second half of the k-steps carries the stores.
    fn math_and_store(&self, b: &mut Builder, math: &Math, part: MathPart, loaders: &[Loader<'a>; 2], set: u32) {
        let offsets = self.offsets(b, self.counters.store);
        let total: usize = loaders.iter().filter(|l| !l.is_async()).map(Loader::pieces).sum();
        let carried = if part == MathPart::Head { self.spec.schedule.fragments_ahead } else { 0 };
        let depth = (self.spec.tiling.k_steps() - carried) as usize;
        let half = depth / 2;
        let share = |s: usize| (s * total).div_ceil((depth - half).max(1)).min(total);
        let mut between = |b: &mut Builder, step: u32| {
            let Some(step) = (step as usize).checked_sub(half) else { return };
            let (from, to) = (share(step), share(step + 1));
            let mut base = 0;
            for i in self.order() {
                if loaders[i].is_async() {
                    continue;
                }
                let n = loaders[i].pieces();
                let within = |piece: usize| piece.clamp(base, base + n) - base;
                loaders[i].store(b, set, offsets[i], within(from), within(to));
                base += n;
            }
        };
        self.math(b, math, part, Some(&mut between));
        self.next(b, self.counters.store);
    }
}
