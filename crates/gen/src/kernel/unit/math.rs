//! Fragments and math: the k-steps of a k-tile, and, for multiply-adds, shared memory to registers and the outer product.

use super::scales::TileScales;
use super::{AccumulatorSet, Between, KTile, Promotion, Unit, clear, promote, promoted};
use crate::kernel::stages::schedule::MathPart;
use crate::kernel::tile::shared::SharedTile;
use crate::plan::{Along, KernelSpec, OperandTiling};
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// One operand's fragments.
struct Fragments {
    regs: RegId,
    /// Elements per k-step (vectors of math width for B under vector math).
    len: u32,
    /// The thread's first row.
    first: ExprId,
    lanes: u8,
    tiling: OperandTiling,
    shared: SharedTile,
}

/// A unit whose instructions are finished when they have been issued, k-step by k-step.
pub(crate) trait Steps {
    /// Clears the accumulators.
    fn start(&self, b: &mut Builder);
    /// Where this thread's fragments of a k-tile start.
    fn read_at(&self, b: &mut Builder, tile: KTile) -> [ExprId; 2];
    /// Reads a k-step's fragments into a set of registers.
    fn load(&self, b: &mut Builder, from: [ExprId; 2], step: ExprId, set: u32);
    /// Adds the product of a set of fragments, those of a k-step.
    fn multiply(&self, b: &mut Builder, step: ExprId, set: u32);
    /// Some k-steps have less to multiply than others: which is known where each is written out.
    fn uneven(&self) -> bool {
        false
    }
    /// As [`Unit::promote`].
    fn promote(&self, _: &mut Builder, _: Option<&TileScales>) {}
    /// The sums of a tile.
    fn accumulators(&self) -> AccumulatorSet;
}

/// The k-steps of a plan around what computes them.
pub(crate) struct KSteps<S> {
    steps: S,
    fragment_sets: u32,
    unroll_k: bool,
    k_steps: u32,
}

/// Multiply-adds of each thread on its own micro tile.
pub(crate) struct Fma {
    acc: RegId,
    /// Totals of two-level accumulation; `None` without it.
    promoted: Option<RegId>,
    thread: ExprId,
    a: Fragments,
    b: Fragments,
    accumulator: Scalar,
    /// Neighbours along k that a register of a fragment holds: dot products take several.
    depth: u32,
    mad: bool,
    a_first: bool,
    unroll: Unroll,
}

/// Position of a thread's micro-tile element `e` within the macro tile is `first + distance(e)`.
pub(crate) fn micro_first(b: &mut Builder, t: &OperandTiling, micro_id: ExprId) -> ExprId {
    t.micro_tile().emit(b, Axis::Row, &[(Axis::Thread, micro_id)], Scalar::I32)
}

/// Distance of micro-tile element `e` from the thread's first.
pub(crate) fn micro_distance(t: &OperandTiling, e: u32) -> u32 {
    t.micro_tile().at(Axis::Row, &[(Axis::Element, e.into())]) as u32
}

impl<S: Steps> KSteps<S> {
    pub fn new(spec: &KernelSpec, steps: S) -> Self {
        KSteps {
            steps,
            fragment_sets: spec.schedule.fragments_ahead + 1,
            unroll_k: spec.style.unroll_k,
            k_steps: spec.tiling.k_steps(),
        }
    }

    fn load_step(&self, b: &mut Builder, from: [ExprId; 2], step: u32) {
        let at = b.int(step as i64, Scalar::I32);
        self.steps.load(b, from, at, step % self.fragment_sets);
    }

    fn multiply_step(&self, b: &mut Builder, step: u32) {
        let at = b.int(step as i64, Scalar::I32);
        self.steps.multiply(b, at, step % self.fragment_sets);
    }

    fn whole(&self, b: &mut Builder, tile: KTile, between: Option<Between>) {
        let written_out = self.unroll_k && self.steps.uneven();
        if between.is_none() && self.fragment_sets == 1 && !written_out {
            let from = self.steps.read_at(b, tile);
            let unroll = if self.unroll_k { Unroll::Full } else { Unroll::No };
            return b.for_range("kk", 0, self.k_steps, unroll, |b, step| {
                self.steps.load(b, from, step, 0);
                self.steps.multiply(b, step, 0);
            });
        }
        self.first_fragments(b, tile);
        self.range(b, tile, 0..self.k_steps, between);
    }

    /// The last k-steps, while the first fragments of the next tile are read.
    fn tail(&self, b: &mut Builder, next: KTile) {
        let from = self.steps.read_at(b, next);
        let ahead = self.fragment_sets - 1;
        for step in 0..ahead {
            self.load_step(b, from, step);
            self.multiply_step(b, self.k_steps - ahead + step);
        }
    }

    fn range(&self, b: &mut Builder, tile: KTile, range: std::ops::Range<u32>, between: Option<Between>) {
        let from = self.steps.read_at(b, tile);
        let mut nothing = |_: &mut Builder, _: u32| {};
        let between: Between = match between {
            Some(f) => f,
            None => &mut nothing,
        };
        let ahead = self.fragment_sets - 1;
        for step in range {
            if step + ahead < self.k_steps {
                self.load_step(b, from, step + ahead);
            }
            self.multiply_step(b, step);
            between(b, step);
        }
    }
}

impl<S: Steps> Unit for KSteps<S> {
    fn start(&self, b: &mut Builder) {
        self.steps.start(b);
    }
    fn first_fragments(&self, b: &mut Builder, tile: KTile) {
        let from = self.steps.read_at(b, tile);
        for step in 0..(self.fragment_sets - 1).min(self.k_steps) {
            self.load_step(b, from, step);
        }
    }
    fn k_tile(&self, b: &mut Builder, tile: KTile, part: MathPart, between: Option<Between>) {
        match part {
            MathPart::Whole => self.whole(b, tile, between),
            // The k-steps whose successors' fragments are in the same tile.
            MathPart::Head => self.range(b, tile, 0..self.k_steps - (self.fragment_sets - 1), between),
            MathPart::Tail => self.tail(b, tile),
        }
    }
    fn promote(&self, b: &mut Builder, scales: Option<&TileScales>) {
        self.steps.promote(b, scales);
    }
    fn accumulators(&self) -> AccumulatorSet {
        self.steps.accumulators()
    }
}

impl Fma {
    /// Declares fragments and accumulators of the thread at this position among those that compute.
    pub fn new(b: &mut Builder, spec: &KernelSpec, accumulator: Scalar, shared: &[SharedTile], thread: ExprId) -> Self {
        let t = &spec.tiling;
        let grid = t.grid();
        let [id_a, id_b] = [Axis::Row, Axis::Col].map(|to| grid.emit(b, to, &[(Axis::Thread, thread)], Scalar::I32));
        let id_a = b.bind("micro_id_a", id_a);
        let id_b = b.bind("micro_id_b", id_b);
        let first_a = micro_first(b, &t.a, id_a);
        let first_a = b.bind("micro_row", first_a);
        let first_b = micro_first(b, &t.b, id_b);
        let first = [first_a, b.bind("micro_col", first_b)];
        let sets = spec.schedule.fragments_ahead + 1;
        let lanes = t.math_width as u8;
        let (rows, cols) = (t.a.micro, t.b.micro / t.math_width);
        let unroll = if spec.style.pragma_unroll { Unroll::Full } else { Unroll::Silent };
        let (depth, held) = t.instruction.map_or((1, accumulator), |row| (row.a.elements, row.input.storage()));
        let fragments = |b: &mut Builder, which: usize| {
            let (name, len, lanes, tiling) = [("a_frag", rows, 1, &t.a), ("b_frag", cols, lanes, &t.b)][which];
            let regs = b.regs(name, held.vector(lanes.max(depth as u8)), sets * len);
            Fragments { regs, len, first: first[which], lanes, tiling: tiling.clone(), shared: shared[which].clone() }
        };
        let (fa, fb) = if spec.style.a_first {
            let fa = fragments(b, 0);
            (fa, fragments(b, 1))
        } else {
            let fb = fragments(b, 1);
            (fragments(b, 0), fb)
        };
        let acc = b.regs("acc", accumulator.vector(lanes), rows * cols);
        let promoted = promoted(b, spec, accumulator.vector(lanes), rows * cols);
        let mad = spec.style.mad || depth > 1;
        Fma { acc, promoted, thread, a: fa, b: fb, accumulator, depth, mad, a_first: spec.style.a_first, unroll }
    }

    fn load_fragment(&self, b: &mut Builder, f: &Fragments, from: ExprId, step: ExprId, set: u32) {
        let (s, t) = (&f.shared, &f.tiling);
        let width = t.fragment_width;
        if self.depth > 1 {
            return self.load_neighbours(b, f, from, step, set);
        }
        if s.panels.is_some() {
            return self.load_from_panels(b, f, from, step, set);
        }
        let at = b.value(from + step * s.pitch);
        let vectors = t.micro / width;
        b.for_range("i", 0, vectors, self.unroll, |b, i| {
            let apart = micro_distance(t, width);
            let at = b.value(at + i * apart);
            if f.lanes as u32 > 1 {
                // Vector math: fragment elements are vectors of the math width.
                for part in 0..width / f.lanes as u32 {
                    let value = b.load("fragment", Base::Shared(s.array), at + (part * f.lanes as u32), f.lanes as u32, None);
                    b.set_reg(f.regs, i * (width / f.lanes as u32) + (set * f.len + part), value.cast(self.accumulator));
                }
                return;
            }
            let value = b.load("fragment", Base::Shared(s.array), at, width, None);
            for lane in 0..width {
                b.set_reg(f.regs, i * width + (set * f.len + lane), value.extract(lane).cast(self.accumulator));
            }
        });
    }

    /// Neighbours along k of each row: lines run along k.
    fn load_neighbours(&self, b: &mut Builder, f: &Fragments, from: ExprId, step: ExprId, set: u32) {
        let k = b.value(step * self.depth);
        for element in 0..f.tiling.micro {
            let distance = micro_distance(&f.tiling, element);
            let at = if f.shared.panels.is_some() {
                let row = b.value(f.first + distance);
                f.shared.at(b, row, k)
            } else {
                b.value(k + distance * f.shared.pitch)
            };
            let value = b.load("fragment", Base::Shared(f.shared.array), from + at, self.depth, None);
            b.set_reg(f.regs, set * f.len + element, value);
        }
    }

    /// From panels vectors end with a chunk of 16 bytes, or are single elements where lines run along k.
    fn load_from_panels(&self, b: &mut Builder, f: &Fragments, from: ExprId, step: ExprId, set: u32) {
        let t = &f.tiling;
        let width = f.shared.vector_of_rows(t.fragment_width);
        let mut values = Vec::new();
        for element in (0..t.micro).step_by(width as usize) {
            let row = b.value(f.first + micro_distance(t, element));
            let at = f.shared.at(b, row, step);
            let value = b.load("fragment", Base::Shared(f.shared.array), from + at, width, None);
            values.extend((0..width).map(|lane| b.value(value.extract(lane).cast(self.accumulator))));
        }
        for (i, part) in (0..).zip(values.chunks(usize::from(f.lanes))) {
            let value = b.vector(part);
            b.set_reg(f.regs, set * f.len + i, value);
        }
    }
}

impl Steps for Fma {
    fn start(&self, b: &mut Builder) {
        let zero = b.zero(self.accumulator.vector(self.b.lanes));
        b.for_range("i", 0, self.a.len * self.b.len, self.unroll, |b, i| b.set_reg(self.acc, i, zero));
        self.promoted.iter().for_each(|totals| clear(b, self.accumulator.vector(self.b.lanes), *totals, self.a.len * self.b.len));
    }

    fn read_at(&self, b: &mut Builder, tile: KTile) -> [ExprId; 2] {
        [(&self.a, "a_read_at"), (&self.b, "b_read_at")].map(|(f, name)| {
            let at = b.value(tile.stage * f.shared.stage);
            // In panels the place follows from row and k together.
            match f.shared.along {
                _ if f.shared.panels.is_some() => b.bind(name, at),
                Along::Row => b.bind(name, at + f.first),
                Along::K => b.bind(name, at + f.first * f.shared.pitch),
            }
        })
    }

    fn load(&self, b: &mut Builder, from: [ExprId; 2], step: ExprId, set: u32) {
        for which in if self.a_first { [0, 1] } else { [1, 0] } {
            self.load_fragment(b, [&self.a, &self.b][which], from[which], step, set);
        }
    }

    fn multiply(&self, b: &mut Builder, _: ExprId, set: u32) {
        let (rows, cols) = (self.a.len, self.b.len);
        let one = |b: &mut Builder, i: ExprId, j: ExprId| {
            let x = b.reg(self.a.regs, i + (set * rows));
            let x = b.splat(x, self.b.lanes);
            let y = b.reg(self.b.regs, j + (set * cols));
            let at = b.value(i * cols + j);
            let old = b.reg(self.acc, at);
            let sum = if self.mad { b.value(x.fma(y, old)) } else { b.value(old + x * y) };
            b.set_reg(self.acc, at, sum);
        };
        if self.a_first {
            b.for_range("i", 0, rows, self.unroll, |b, i| b.for_range("j", 0, cols, self.unroll, |b, j| one(b, i, j)));
        } else {
            b.for_range("j", 0, cols, self.unroll, |b, j| b.for_range("i", 0, rows, self.unroll, |b, i| one(b, i, j)));
        }
    }

    fn promote(&self, b: &mut Builder, scales: Option<&TileScales>) {
        if let Some(totals) = self.promoted {
            let count = self.a.len * self.b.len;
            promote(b, Promotion { acc: self.acc, totals, first: 0, count }, scales);
            clear(b, self.accumulator.vector(self.b.lanes), self.acc, count);
        }
    }

    fn accumulators(&self) -> AccumulatorSet {
        AccumulatorSet { regs: self.promoted.unwrap_or(self.acc), first: [self.a.first, self.b.first], thread: self.thread }
    }
}
