//! Fragments and math: the k-steps of a k-tile, and, for multiply-adds, shared memory to registers and the outer product.

use super::mfma::MfmaUnit;
use crate::kernel::copy::load::SharedTile;
use crate::kernel::unit::mma::WaveUnit;
use crate::plan::{OperandTiling, Tiling};
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// One operand's fragments.
pub(crate) struct Fragments {
    pub regs: RegId,
    /// Elements per k-step (vectors of math width for B under vector math).
    pub len: u32,
    /// Shared index of the thread's first element.
    thread: ExprId,
    lanes: u8,
}

/// Work to spread between the k-steps: called after the math of each.
pub(crate) type Between<'a> = &'a mut dyn FnMut(&mut Builder, u32);

/// The shared tiles of both operands and which of their buffers is meant.
pub(crate) struct Tiles<'a> {
    pub tiling: &'a Tiling,
    pub shared: [&'a SharedTile; 2],
    /// Element offsets of the buffers.
    pub buffer: [ExprId; 2],
}

/// What computes a k-step: reads its fragments, multiplies them.
pub(crate) enum MathRoom {
    /// Multiply-adds.
    Fma(Fma),
    /// Matrix instructions of waves of 32.
    Wave(WaveUnit),
    /// Matrix instructions of waves of 64.
    Mfma(MfmaUnit),
}

/// The compute side of the main loop.
pub(crate) struct Math {
    pub room: MathRoom,
    fragment_sets: u32,
    unroll_k: bool,
    k_steps: u32,
}

/// Multiply-adds of each thread on its own micro tile.
pub(crate) struct Fma {
    pub acc: RegId,
    a: Fragments,
    b: Fragments,
    accumulator: Scalar,
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

impl Math {
    /// The k-steps of a plan around what computes them.
    pub fn new(spec: &crate::plan::KernelSpec, room: MathRoom) -> Self {
        Math {
            room,
            fragment_sets: spec.schedule.fragments_ahead + 1,
            unroll_k: spec.style.unroll_k,
            k_steps: spec.tiling.k_steps(),
        }
    }

    fn read_at(&self, b: &mut Builder, buffer: [ExprId; 2]) -> [ExprId; 2] {
        match &self.room {
            MathRoom::Fma(fma) => fma.read_at(b, buffer),
            MathRoom::Wave(unit) => unit.read_at(b, buffer),
            MathRoom::Mfma(unit) => unit.read_at(b, buffer),
        }
    }

    fn load(&self, b: &mut Builder, x: &Tiles, from: [ExprId; 2], step: ExprId, set: u32) {
        match &self.room {
            MathRoom::Fma(fma) => fma.load(b, x, from, step, set),
            MathRoom::Wave(unit) => unit.load(b, from, step, set),
            MathRoom::Mfma(unit) => unit.load(b, from, step, set),
        }
    }

    fn multiply(&self, b: &mut Builder, set: u32) {
        match &self.room {
            MathRoom::Fma(fma) => fma.outer_product(b, set),
            MathRoom::Wave(unit) => unit.multiply(b, set),
            MathRoom::Mfma(unit) => unit.multiply(b, set),
        }
    }

    fn load_step(&self, b: &mut Builder, x: &Tiles, from: [ExprId; 2], step: u32) {
        let at = b.int(step as i64, Scalar::I32);
        self.load(b, x, from, at, step % self.fragment_sets);
    }

    /// The fragments that are read before a tile's math starts.
    pub fn first_fragments(&self, b: &mut Builder, x: &Tiles) {
        let from = self.read_at(b, x.buffer);
        for step in 0..(self.fragment_sets - 1).min(self.k_steps) {
            self.load_step(b, x, from, step);
        }
    }

    /// A whole k-tile. `between(b, step)` is called after the math of each k-step; it spreads other work over them.
    pub fn whole(&self, b: &mut Builder, x: &Tiles, between: Option<Between>) {
        if between.is_none() && self.fragment_sets == 1 {
            let from = self.read_at(b, x.buffer);
            let unroll = if self.unroll_k { Unroll::Full } else { Unroll::No };
            return b.for_range("kk", 0, self.k_steps, unroll, |b, step| {
                self.load(b, x, from, step, 0);
                self.multiply(b, 0);
            });
        }
        self.first_fragments(b, x);
        self.steps(b, x, 0..self.k_steps, between);
    }

    /// The k-steps whose successors' fragments are in the same tile.
    pub fn head(&self, b: &mut Builder, x: &Tiles, between: Option<Between>) {
        self.steps(b, x, 0..self.k_steps - (self.fragment_sets - 1), between);
    }

    /// The last k-steps, while the first fragments of the next tile, in the given buffers, are read.
    pub fn tail(&self, b: &mut Builder, next: &Tiles) {
        let from = self.read_at(b, next.buffer);
        let ahead = self.fragment_sets - 1;
        for step in 0..ahead {
            self.load_step(b, next, from, step);
            self.multiply(b, (self.k_steps - ahead + step) % self.fragment_sets);
        }
    }

    fn steps(&self, b: &mut Builder, x: &Tiles, range: std::ops::Range<u32>, between: Option<Between>) {
        let from = self.read_at(b, x.buffer);
        let mut nothing = |_: &mut Builder, _: u32| {};
        let between: Between = match between {
            Some(f) => f,
            None => &mut nothing,
        };
        let ahead = self.fragment_sets - 1;
        for step in range {
            if step + ahead < self.k_steps {
                self.load_step(b, x, from, step + ahead);
            }
            self.multiply(b, step % self.fragment_sets);
            between(b, step);
        }
    }
}

impl Fma {
    /// Declares fragments and accumulators, and clears the latter.
    pub fn new(b: &mut Builder, spec: &crate::plan::KernelSpec, accumulator: Scalar, first: [ExprId; 2]) -> Self {
        let t = &spec.tiling;
        let sets = spec.schedule.fragments_ahead + 1;
        let lanes = t.math_width as u8;
        let acc_ty = accumulator.vector(lanes);
        let (rows, cols) = (t.a.micro, t.b.micro / t.math_width);
        let unroll = if spec.style.pragma_unroll { Unroll::Full } else { Unroll::Silent };
        let fragments = |b: &mut Builder, name: &str, thread, len: u32, lanes: u8| {
            let regs = b.regs(name, accumulator.vector(lanes), sets * len);
            Fragments { regs, len, thread, lanes }
        };
        let (fa, fb) = if spec.style.a_first {
            let fa = fragments(b, "a_frag", first[0], rows, 1);
            (fa, fragments(b, "b_frag", first[1], cols, lanes))
        } else {
            let fb = fragments(b, "b_frag", first[1], cols, lanes);
            (fragments(b, "a_frag", first[0], rows, 1), fb)
        };
        let acc = b.regs("acc", acc_ty, rows * cols);
        let zero = b.zero(acc_ty);
        b.for_range("i", 0, rows * cols, unroll, |b, i| b.set_reg(acc, i, zero));
        Fma { acc, a: fa, b: fb, accumulator, mad: spec.style.mad, a_first: spec.style.a_first, unroll }
    }

    /// Where this thread's fragments start in the shared buffers at the given element offsets.
    fn read_at(&self, b: &mut Builder, buffer: [ExprId; 2]) -> [ExprId; 2] {
        let a_from = b.bind("a_read_at", buffer[0] + self.a.thread);
        [a_from, b.bind("b_read_at", buffer[1] + self.b.thread)]
    }

    fn load(&self, b: &mut Builder, x: &Tiles, from: [ExprId; 2], step: ExprId, set: u32) {
        let order = if self.a_first { [0, 1] } else { [1, 0] };
        for which in order {
            self.load_fragment(b, x, which, from[which], step, set);
        }
    }

    fn load_fragment(&self, b: &mut Builder, x: &Tiles, which: usize, from: ExprId, step: ExprId, set: u32) {
        let (f, t) = if which == 0 { (&self.a, &x.tiling.a) } else { (&self.b, &x.tiling.b) };
        let s = x.shared[which];
        let width = t.fragment_width;
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

    fn outer_product(&self, b: &mut Builder, set: u32) {
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
}
