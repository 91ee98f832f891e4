//! The main loop: each role emits its own steps of a lowered schedule.
//!
//! A step's meaning depends on neither unit nor copy method. Copies fill stages
//! ([`Copies`](crate::kernel::copy::copies::Copies)), and a [`Unit`] reads them. Work-group barriers or transaction barriers
//! ([`Ring`]) separate the two, as the schedule specifies.

use crate::kernel::copy::copies::TileCopies;
use crate::kernel::reduce::operands::OperandLoop;
use crate::kernel::stages::counter::Counter;
use crate::kernel::stages::ping_pong::Turns;
use crate::kernel::stages::ring::Ring;
use crate::kernel::stages::schedule::{Lowered, MathPart, Step};
use crate::kernel::tile::cluster::Release;
use crate::kernel::tile::position::KRange;
use crate::kernel::unit::idle::Idle;
use crate::kernel::unit::scales::TileScales;
use crate::kernel::unit::{KTile, Unit};
use crate::plan::{KernelSpec, Transport};
use tilewright_ir::*;

/// The math of a role.
pub(crate) struct Consumer {
    pub unit: Box<dyn Unit>,
    /// The stage that is read.
    pub read: Counter,
    /// The next stage to release, where that is not the one just read.
    pub released: Option<Counter>,
    /// True in one lane of each wave, where it speaks for the others.
    pub first_lane: Option<ExprId>,
    /// Where others copy into this work-group's stages.
    pub release: Option<Release>,
    /// Where teams alternate between result tiles.
    pub turns: Option<Turns>,
}

impl Consumer {
    /// The consumer for a tile in which these waves have no rows or no columns.
    pub fn idle(&self) -> Consumer {
        Consumer { unit: Box::new(Idle(self.unit.accumulators())), ..*self }
    }
}

/// The loop over the k-tiles of a result tile. Waves that only load have no math, waves that only compute have no copies.
pub(crate) struct MainLoop<'a> {
    pub spec: &'a KernelSpec,
    pub lowered: &'a Lowered,
    pub range: &'a KRange,
    pub ring: Option<&'a Ring>,
    pub copies: Option<&'a TileCopies<'a>>,
    pub math: Option<&'a Consumer>,
    /// Reductions of operands, which the waves that compute do beside.
    pub operands: &'a [OperandLoop<'a>],
    /// The scales of accumulators in two-level accumulation.
    pub scales: Option<&'a TileScales<'a>>,
}

/// Where a step stands.
#[derive(Clone, Copy)]
enum Place {
    Before,
    /// The number of the k-tile, and of the copy of the body where it is unrolled.
    Within(ExprId, u32),
    After,
}

impl MainLoop<'_> {
    /// Prologue, loop and tail.
    pub fn emit(&self, b: &mut Builder) {
        let (sets, tiles, body) = (self.lowered.sets, self.range.tiles, &self.lowered.body);
        if self.lowered.prologue.iter().any(|step| matches!(step, Step::Fetch { .. })) {
            b.comment("prologue: the first tiles are on their way before the loop starts");
        }
        self.steps(b, &self.lowered.prologue, Place::Before);
        self.scales.into_iter().for_each(|scales| scales.prefetch(b, self.range.begin));
        if sets == 1 {
            b.for_range("t", 0, tiles, Unroll::No, |b, t| self.steps(b, body, Place::Within(t, 0)));
        } else {
            // Unrolled so that each fetch has a fixed set of staging registers.
            b.for_range("round", 0, (tiles + (sets - 1)) / sets, Unroll::No, |b, round| {
                let first = b.value(round * sets);
                self.steps(b, body, Place::Within(first, 0));
                for set in 1..sets {
                    let t = b.value(round * sets + set);
                    b.if_then(t.lt(tiles), |b| self.steps(b, body, Place::Within(t, set)));
                }
            });
        }
        self.steps(b, &self.lowered.tail, Place::After);
    }

    fn steps(&self, b: &mut Builder, steps: &[Step], place: Place) {
        steps.iter().for_each(|step| self.step(b, *step, place));
    }

    /// Emits a step, if it is this role's.
    fn step(&self, b: &mut Builder, step: Step, place: Place) {
        let unrolled = if let Place::Within(_, set) = place { set } else { 0 };
        let set = |ahead: u32| (unrolled + ahead) % self.lowered.sets;
        match (step, self.copies, self.math) {
            (Step::Barrier, Some(c), _) if c.role.panels() => {
                // Instructions read what this thread wrote.
                b.bulk(BulkOp::ProxyFence);
                b.barrier();
            }
            (Step::Barrier, ..) => b.barrier(),
            (Step::Fence, ..) => b.push(Stmt::SchedHint { mask: 0, size: 0 }),
            (Step::WaitCopies { pending }, Some(_), _) => b.push(Stmt::AsyncWait(pending)),
            (Step::Acquire { ahead }, Some(c), _) => self.if_tile(b, c, place, ahead, |b, ring| ring.acquire(b, c.role.issue)),
            (Step::Fetch { ahead }, Some(c), _) if self.ring.is_some() => {
                self.if_tile(b, c, place, ahead, |b, _| c.fetch(b, 0, true))
            }
            (Step::Fetch { ahead }, Some(c), _) => c.fetch(b, set(ahead), matches!(place, Place::Within(..))),
            (Step::Store { ahead }, Some(c), _) => c.store(b, set(ahead)),
            (Step::Await, _, Some(x)) => self.ring.into_iter().for_each(|ring| ring.wait(b, x.read)),
            (Step::Fragments, _, Some(x)) => {
                let (stage, k) = (x.read.stage(b), self.k_of(b, place, 0));
                x.unit.first_fragments(b, KTile { stage, number: None, k, scales: None });
            }
            (Step::Math { part, store: None }, _, Some(x)) => self.math(b, x, place, part, None),
            (Step::Math { part, store: Some(ahead) }, Some(c), Some(x)) => self.math(b, x, place, part, Some((c, set(ahead)))),
            (Step::Drain { pending }, _, Some(x)) => x.unit.drain(b, pending),
            (Step::Promote { every }, _, Some(x)) => self.promote(b, x, place, every),
            (Step::Release { distance }, _, Some(x)) => self.release(b, x, place, distance),
            (Step::TakeTurn, _, Some(Consumer { turns: Some(turns), .. })) => turns.take(b),
            (Step::HandOn, _, Some(Consumer { turns: Some(turns), first_lane: Some(first), .. })) => turns.hand_on(b, *first),
            // The step of another role.
            _ => {}
        }
    }

    /// The math of a k-tile; with `store`, staging registers of that set go to shared memory between its k-steps.
    fn math(&self, b: &mut Builder, x: &Consumer, place: Place, part: MathPart, store: Option<(&TileCopies, u32)>) {
        if part == MathPart::Tail {
            x.read.next(b);
        }
        let number = if let Place::Within(t, _) = place { Some(t) } else { None };
        let k = self.k_of(b, place, i64::from(part == MathPart::Tail));
        let tile = KTile { stage: x.read.stage(b), number, k, scales: self.scales };
        let scales = self.scales.filter(|_| part != MathPart::Tail);
        if let Some(scales) = scales {
            scales.begin(b, k);
            if !self.spec.scales_late() {
                scales.take(b);
            }
        }
        match store {
            None => x.unit.k_tile(b, tile, part, None),
            Some((c, set)) => {
                let carried = if part == MathPart::Head { self.spec.schedule.fragments_ahead } else { 0 };
                let k_steps = self.spec.tiling.k_steps() - carried;
                x.unit.k_tile(b, tile, part, Some(&mut |b, step| c.store_part(b, set, step, k_steps)));
            }
        }
        if scales.is_some() && !self.spec.scales_late() {
            self.ask_scales(b, place);
        }
        if let Some(number) = number.filter(|_| part != MathPart::Tail) {
            self.operands.iter().for_each(|operand| operand.add(b, tile.stage, number));
        }
        // Without a counter of its own for what is released, the stage that is read stays until then.
        if part == MathPart::Whole && (self.ring.is_none() || x.released.is_some()) {
            x.read.next(b);
        }
        if let Some((c, _)) = store {
            c.stored(b);
        }
    }

    /// Asks for the scales of the next k-tile.
    fn ask_scales(&self, b: &mut Builder, place: Place) {
        let (Some(scales), Place::Within(t, _)) = (self.scales, place) else { return };
        let next = b.value(self.range.begin + (t + 1) * self.range.step);
        scales.prefetch(b, next);
    }

    /// Adds the accumulators in f32 after every so many tiles, and after the last tile.
    fn promote(&self, b: &mut Builder, x: &Consumer, place: Place, every: u32) {
        let Place::Within(t, _) = place else { return };
        if let Some(scales) = self.scales.filter(|_| self.spec.scales_late()) {
            scales.take(b);
            self.ask_scales(b, place);
        }
        let due = (every > 1).then(|| {
            let done = b.value(t + 1);
            let (since, left) = (b.value(done % every), b.value(self.range.tiles - done));
            b.eq(since.min(left), 0)
        });
        b.if_given(due, |b| x.unit.promote(b, self.scales));
    }

    /// First k of a tile, this far ahead of a step's tile. After the last tile it is the first k of the last tile; no unit
    /// multiplies these fragments.
    fn k_of(&self, b: &mut Builder, place: Place, ahead: i64) -> ExprId {
        let (range, last) = (self.range, self.range.limit - i64::from(self.spec.tiling.k_tile));
        match place {
            Place::Within(t, _) if ahead == 0 => b.value(range.begin + t * range.step),
            Place::Within(t, _) => b.value((range.begin + t * range.step + ahead * range.step).min(last)),
            _ => b.value((range.begin + ahead * range.step).min(last)),
        }
    }

    /// What only the issuing thread does, if there is a tile that far ahead.
    fn if_tile(&self, b: &mut Builder, c: &TileCopies, place: Place, ahead: u32, body: impl FnOnce(&mut Builder, &Ring)) {
        let Some(ring) = self.ring else { return };
        let exists = match place {
            Place::Within(_, _) if ahead == 0 => None,
            Place::Within(t, _) => Some(b.value(t + ahead)),
            _ => Some(b.int(i64::from(ahead), b.ty(self.range.tiles).scalar)),
        };
        let exists = exists.map(|tile| b.value(tile.lt(self.range.tiles)));
        let guard = b.and_opt(exists, c.role.elected);
        b.if_given(guard, |b| body(b, ring));
    }

    fn release(&self, b: &mut Builder, x: &Consumer, place: Place, distance: u32) {
        let Some(ring) = self.ring else { return };
        let stage = x.released.unwrap_or(x.read);
        if self.spec.schedule.math_in_flight.is_none() || !self.operands.is_empty() {
            // Fragments may still be in flight to registers: neither an arrival nor the bulk copy after it waits for them.
            if self.spec.schedule.copies.iter().any(Transport::is_bulk) {
                b.bulk(BulkOp::ProxyFence);
            }
            // All lanes have read their fragments: one speaks for its wave.
            b.push(Stmt::Barrier(BarrierScope::Wave));
        }
        let release = |b: &mut Builder| {
            let barrier = ring.free(b, stage);
            match (x.release, x.first_lane) {
                (Some(Release { lanes, rank }), _) => b.if_then(lanes, |b| b.bulk(BulkOp::ArriveAt { barrier, rank })),
                (None, Some(first)) => b.if_then(first, |b| b.bulk(BulkOp::Arrive { barrier })),
                (None, None) => {}
            }
            stage.next(b);
        };
        let exists = match place {
            _ if distance == 0 => None,
            Place::Before => None,
            Place::Within(t, _) => Some(b.value(t.ge(distance))),
            Place::After => Some(b.value(self.range.tiles.ge(distance))),
        };
        b.if_given(exists, release);
    }
}
