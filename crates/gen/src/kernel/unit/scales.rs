//! Scales of blocks of k. Two-level accumulation multiplies a thread's accumulators by them. The scales are in registers before the math of
//! their k-tile.
//!
//! A few scales are loaded one k-tile ahead, after the instructions of the previous k-tile, so that no instruction waits for addresses or
//! memory. If lanes convert weights between instructions, the loads are issued as late as possible and still have a whole k-tile to arrive.

use super::accumulators::Accumulators;
use super::{AccumulatorSet, Promotion};
use crate::kernel::tile::position::TilePosition;
use crate::plan::{HeldScales, KernelSpec};
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::*;
use tilewright_problem::contraction::{Contraction, Vector};

/// Those of a result tile.
pub(crate) struct TileScales<'a> {
    g: ExprId,
    all: Vec<Scales<'a>>,
    /// Sums of a register.
    width: u32,
    /// The last term.
    last: i64,
}

/// Those along rows or columns.
struct Scales<'a> {
    x: &'a Vector,
    buffer: ArgId,
    values: RegId,
    /// Those of the k-tile that comes next, where they are asked for ahead.
    ahead: Option<RegId>,
    /// The thread's first line, and the last of the result.
    lines: [ExprId; 2],
    held: HeldScales,
}

impl<'a> TileScales<'a> {
    /// Those of a thread's accumulators of a tile; `None` where there are none. `buffers` has the vectors' values.
    pub fn new(
        b: &mut Builder,
        spec: &KernelSpec,
        c: &'a Contraction,
        at: &TilePosition,
        acc: AccumulatorSet,
        buffers: &[ArgId],
    ) -> Option<TileScales<'a>> {
        if buffers.is_empty() {
            return None;
        }
        let accumulators = Accumulators::new(b, &spec.tiling, c, acc);
        let origin = accumulators.origin(b);
        let all = c.block_scales.iter().zip(buffers).map(|(x, buffer)| {
            let axis = usize::from(x.along_n);
            let start = [&at.m_start, &at.n_start][axis].value(b);
            let coord = b.ty(start).scalar;
            let held = spec.held_scales(c, x);
            let last = [c.m, c.n][axis] as i64 - 1;
            let mut regs = |name: &str| b.regs(name, x.scalar.ty(), held.distances.len() as u32);
            let [now, then] = [["scales_m", "scales_m_ahead"], ["scales_n", "scales_n_ahead"]][axis];
            let (values, ahead) = (regs(now), spec.scales_ahead(c).then(|| regs(then)));
            Scales {
                x,
                buffer: *buffer,
                values,
                ahead,
                lines: [b.bind("scaled_line", start + origin[axis].cast(coord)), b.int(last, coord)],
                held,
            }
        });
        let all = all.collect();
        Some(TileScales { g: at.g, all, width: accumulators.width, last: c.k as i64 - 1 })
    }

    /// Loads the scales of the k-tile that begins at `k`, unless they were loaded ahead. They arrive during its math.
    pub fn begin(&self, b: &mut Builder, k: ExprId) {
        for scales in self.all.iter().filter(|scales| scales.ahead.is_none()) {
            self.load(b, scales, scales.values, k);
        }
    }

    /// Moves the scales that were loaded ahead into place, which frees their registers for the next k-tile.
    pub fn take(&self, b: &mut Builder) {
        for scales in &self.all {
            let Some(ahead) = scales.ahead else { continue };
            for i in 0..scales.held.distances.len() as u32 {
                let value = b.reg(ahead, i);
                b.set_reg(scales.values, i, value);
            }
        }
    }

    /// Loads the scales of the next k-tile, which begins at `k`. After the last k-tile it loads arbitrary scales.
    pub fn prefetch(&self, b: &mut Builder, k: ExprId) {
        let k = b.value(k.min(self.last));
        for scales in &self.all {
            if let Some(ahead) = scales.ahead {
                self.load(b, scales, ahead, k);
            }
        }
    }

    /// Loads the scales of the block that contains `k`. Rows past the result use the scales of the last row; they are never stored.
    fn load(&self, b: &mut Builder, scales: &Scales<'_>, to: RegId, k: ExprId) {
        for (i, distance) in (0..).zip(&scales.held.distances) {
            let line = b.value((scales.lines[0] + *distance).min(scales.lines[1]));
            let point = [self.g, line, k].map(|x| Coord::plain(b, x));
            let at = affine(b, &scales.x.view.access.offset, &point, Part::Whole, Scalar::I64);
            let value = b.load("scale", Base::Buffer(scales.buffer), at, 1, None);
            b.set_reg(to, i, value);
        }
    }

    /// Adds accumulators to their totals, times their scales.
    pub fn add(&self, b: &mut Builder, of: Promotion) {
        let Promotion { acc: from, totals: to, first, count } = of;
        for (source, register) in (0..count).zip(first..) {
            let (sum, more) = (b.reg(to, register), b.reg(from, source));
            let elements = (0..self.width).map(|lane| {
                let of = |scales: &Scales| Ex::reg(scales.values, scales.held.of[(register * self.width + lane) as usize]);
                let (sum, more) = (sum.extract(lane), more.extract(lane));
                let value = match self.all.iter().map(of).reduce(|x, y| x * y) {
                    Some(factor) => more.fma(factor, sum),
                    None => sum + more,
                };
                b.value(value)
            });
            let elements: Vec<ExprId> = elements.collect();
            let value = b.vector(&elements);
            b.set_reg(to, register, value);
        }
    }
}
