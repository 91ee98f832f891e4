//! Accumulators: which registers of a thread hold a part of a tile of C, and where in it their elements are.
//!
//! Every exit asks this one value, which answers from the layout of the plan's accumulators ([`Tiling::accumulators`]).

use super::AccumulatorSet;
use crate::plan::{STORE_ROWS, Tiling};
use std::ops::Range;
use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

/// Takes a run of neighbours: row and column of the first within the macro tile, and the values.
pub(crate) type Put<'a> = &'a mut dyn FnMut(&mut Builder, ExprId, ExprId, &[ExprId]);

/// The same with the numbers of the thread's elements.
pub(crate) type Pieces<'a> = &'a mut dyn FnMut(&mut Builder, ExprId, ExprId, &[u32]);

/// Accumulators of a thread.
pub(crate) struct Accumulators {
    pub regs: RegId,
    pub scalar: Scalar,
    /// Elements of a register: more than one with vector math.
    pub width: u32,
    /// (lane, element) to (row, column), counted from `first`.
    places: Layout,
    /// First row and column in the macro tile of what the wave holds; with multiply-adds, of what the thread does.
    pub first: [ExprId; 2],
    pub lane: ExprId,
    /// Rows of an instruction, and from one of them to the next.
    rows: u32,
    apart: u32,
}

/// Neighbours in registers: where the first is, as far as registers say so, and the number of each among the thread's elements.
pub(crate) struct Run {
    pub row: u32,
    pub col: u32,
    elements: Vec<u32>,
}

impl Accumulators {
    /// Those of a thread.
    pub fn new(b: &mut Builder, t: &Tiling, c: &Contraction, of: AccumulatorSet) -> Accumulators {
        let AccumulatorSet { regs, first, thread } = of;
        let owners = t.unit.family().lanes;
        let lanes = t.wave_lanes.clamp(1, owners);
        let all = t.accumulators();
        // Where each thread has a micro tile of its own, `first` says all.
        let (mut first, mut lane) = (first, if owners == 1 { b.int(0, Scalar::I32) } else { thread });
        if lanes < owners {
            // Each wave of a warpgroup has its rows.
            let further = all.at(Axis::Row, &[(Axis::Thread, lanes.into())]);
            first[0] = b.value(first[0] + thread / lanes * further);
            lane = b.value(thread % lanes);
        }
        let wave = Layout::new(&[(Axis::Lane, lanes.into())], &[(Axis::Thread, Affine::axis(0))]);
        let places = all.compose(&wave).unwrap_or(all);
        let rows = t.instruction.map_or(1, |row| row.shape.m);
        let apart = t.interleave(t.a.micro);
        Accumulators { regs, scalar: c.accumulator(), width: t.math_width.max(1), places, first, lane, rows, apart }
    }

    /// Row and column of a thread's first element.
    pub fn origin(&self, b: &mut Builder) -> [ExprId; 2] {
        [(Axis::Row, 0), (Axis::Col, 1)].map(|(to, i)| {
            let further = self.of_lane(b, to);
            b.value(self.first[i] + further)
        })
    }

    /// Registers of a thread.
    pub fn count(&self) -> u32 {
        self.places.extent(Axis::Register) as u32 / self.width
    }

    /// One of a thread's elements.
    pub fn value(&self, b: &mut Builder, element: u32) -> ExprId {
        b.value(Ex::reg(self.regs, element / self.width).extract(element % self.width))
    }

    /// The values of a run.
    pub fn values(&self, b: &mut Builder, run: &Run) -> Vec<ExprId> {
        run.elements.iter().map(|&element| self.value(b, element)).collect()
    }

    /// What these registers hold, as runs of neighbours along rows of C ([`Axis::Col`]) or columns ([`Axis::Row`]), one row of an
    /// instruction after the other.
    pub fn held(&self, along: Axis, registers: Range<u32>) -> Vec<Run> {
        let mut all = Vec::new();
        for element in registers.start * self.width..registers.end * self.width {
            let at = |to: Axis| self.places.at(to, &[(Axis::Register, element.into())]) as u32;
            all.push(Run { row: at(Axis::Row), col: at(Axis::Col), elements: vec![element] });
        }
        let instruction = |r: &Run| (r.row / (self.rows * self.apart), r.row % self.apart);
        match along {
            Axis::Row => all.sort_by_key(|r| (r.col, r.row)),
            _ => all.sort_by_key(|r| (instruction(r), r.row, r.col)),
        }
        let mut runs: Vec<Run> = Vec::new();
        for one in all {
            let next = |last: &&mut Run| {
                if along == Axis::Row { [last.row + last.len(), last.col] } else { [last.row, last.col + last.len()] }
            };
            match runs.last_mut().filter(|last| next(last) == [one.row, one.col]) {
                Some(last) => last.elements.extend(one.elements),
                None => runs.push(one),
            }
        }
        runs
    }

    /// Calls `put(row, column, values)` for the values in these registers, in runs of at most `width` neighbours along an axis. Each run starts at
    /// a multiple of its length.
    pub fn runs(&self, b: &mut Builder, along: Axis, width: u32, registers: Range<u32>, put: Put) {
        self.pieces(b, along, width, registers, &mut |b, row, col, elements| {
            let values: Vec<ExprId> = elements.iter().map(|&element| self.value(b, element)).collect();
            put(b, row, col, &values);
        });
    }

    /// The same with the numbers of the elements instead of their values.
    pub fn pieces(&self, b: &mut Builder, along: Axis, width: u32, registers: Range<u32>, put: Pieces) {
        let [row, col] = [Axis::Row, Axis::Col].map(|to| self.of_lane(b, to));
        let (row, col) = (b.bind("out_row", self.first[0] + row), b.bind("out_col", self.first[1] + col));
        for run in self.held(along, registers) {
            let (row, col) = (b.value(row + run.row), b.value(col + run.col));
            let first = if along == Axis::Row { run.row } else { run.col };
            for part in aligned_parts(first, run.len(), width) {
                let further = part.start;
                let elements = &run.elements[part.start as usize..part.end as usize];
                let (row, col) = if along == Axis::Row { (b.value(row + further), col) } else { (row, b.value(col + further)) };
                put(b, row, col, elements);
            }
        }
    }

    /// What the lane adds to row or column.
    fn of_lane(&self, b: &mut Builder, to: Axis) -> ExprId {
        self.places.emit(b, to, &[(Axis::Lane, self.lane)], Scalar::I32)
    }

    /// What the lane adds to row or column, divided by what divides it in every lane.
    fn part_of_lane(&self, b: &mut Builder, to: Axis, by: u32) -> ExprId {
        let mut form = self.places.form(to).cloned().unwrap_or_default();
        form.terms.iter_mut().for_each(|(_, times)| *times /= i64::from(by));
        let divided = Layout::new(self.places.coordinates(), &[(to, form)]);
        divided.emit(b, to, &[(Axis::Lane, self.lane)], Scalar::I32)
    }

    /// The first rows of a wave's bands: [`STORE_ROWS`] lines each, [`Accumulators::apart`] rows from each other.
    pub fn bands(&self) -> Vec<u32> {
        let mut bands: Vec<u32> = self.held(Axis::Col, 0..self.count()).iter().map(|run| self.band(run)).collect();
        bands.dedup();
        bands
    }

    fn band(&self, run: &Run) -> u32 {
        let span = STORE_ROWS * self.apart;
        run.row / span * span + run.row % self.apart
    }

    /// Rows from one line of a band to the next.
    pub const fn apart(&self) -> u32 {
        self.apart
    }

    /// What the wave holds of a band within some columns: runs with their line in place of the row, and their column among those.
    pub fn in_band(&self, band: u32, columns: Range<u32>) -> Vec<Run> {
        let runs = self.held(Axis::Col, 0..self.count()).into_iter();
        let ours = runs.filter(|run| self.band(run) == band && columns.contains(&run.col));
        let line = |row: u32| row % (STORE_ROWS * self.apart) / self.apart;
        ours.map(|run| Run { row: line(run.row), col: run.col - columns.start, ..run }).collect()
    }

    /// What the lane adds to the line of a run of a band, and, in runs of this length, to its column.
    pub fn lane_in_band(&self, b: &mut Builder, run: u32) -> [ExprId; 2] {
        [self.part_of_lane(b, Axis::Row, self.apart), self.part_of_lane(b, Axis::Col, run)]
    }
}

/// The parts in which `count` neighbours are stored that start `first` elements from a multiple of `width`, a power of two. Each
/// part starts at a multiple of its length, which is a power of two up to `width`. Registers of a share may begin and end within
/// a vector.
fn aligned_parts(first: u32, count: u32, width: u32) -> Vec<Range<u32>> {
    let mut parts = Vec::new();
    let mut from = 0;
    while from < count {
        let starts = 1 << (first + from).trailing_zeros().min(31);
        let fits = 1 << (count - from).ilog2();
        let length = width.max(1).min(starts).min(fits);
        parts.push(from..from + length);
        from += length;
    }
    parts
}

impl Run {
    /// Their numbers among the thread's elements.
    pub fn elements(&self) -> impl Iterator<Item = u32> {
        self.elements.iter().copied()
    }
    /// Neighbours.
    pub fn len(&self) -> u32 {
        self.elements.len() as u32
    }
}
