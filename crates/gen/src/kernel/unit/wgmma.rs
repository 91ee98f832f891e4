//! The warpgroup unit: a k-tile's matrix instructions, and where their accumulators lie in the result tile.

use super::row_fragments::{FragmentSets, RowFragments, WeightRuns};
use super::scales::TileScales;
use super::{AccumulatorSet, Between, KTile, Promotion, Unit, clear, promote, promoted, slice};
use crate::kernel::stages::schedule::MathPart;
use crate::kernel::tile::shared::SharedTile;
use crate::plan::{Along, KernelSpec};
use tilewright_ir::{SharedTile as Descriptor, *};
use tilewright_problem::contraction::Contraction;

/// The math of one warpgroup: 64-row instructions over its micro tile.
pub(crate) struct Warpgroup {
    acc: RegId,
    /// Two-level accumulation.
    promoted: Option<Promoted>,
    /// The panels of both operands.
    shared: Vec<SharedTile>,
    /// The instruction.
    row: &'static Mma,
    /// The products in place of each product: part of A and part of B.
    products: &'static [[u32; 2]],
    /// Instructions along m.
    rows: u32,
    /// 64 rows are finished and promoted before the next 64 rows are issued.
    in_turn: bool,
    /// Columns of an instruction.
    columns: u32,
    /// Steps of a k-tile that have products.
    k_steps: Vec<u32>,
    /// The warpgroup's first row and column within the macro tile.
    first: [ExprId; 2],
    /// Position among the warpgroup's threads.
    lane: ExprId,
    /// Instructions of a k-tile may be unfinished while the next k-tile is issued.
    in_flight: bool,
    /// Fragments of operand A, if instructions read it from registers.
    fragments: Option<RowFragments>,
    /// Number of the ping-pong team.
    pub team: ExprId,
    /// Some work-group may have no k-tile. Accumulators then start from zeros instead of from the first product.
    may_be_empty: bool,
}

/// The f32 totals of two-level accumulation.
#[derive(Clone, Copy)]
struct Promoted {
    totals: RegId,
    /// The number of k-tiles after which the accumulators are added to them.
    every: u32,
}

/// One instruction of a k-tile.
struct Instruction {
    /// Its number along m.
    row: u32,
    k_step: u32,
    a: WarpgroupA,
    part_of_b: u32,
    /// False if the first k-step replaces the accumulators.
    later: Option<ExprId>,
}

impl Warpgroup {
    /// Declares the accumulators for the warpgroup of consumer thread `thread`.
    pub fn new(
        b: &mut Builder,
        spec: &KernelSpec,
        row: &'static Mma,
        shared: &[SharedTile],
        thread: ExprId,
        may_be_empty: bool,
        c: &Contraction,
    ) -> Self {
        let (t, owners) = (&spec.tiling, row.lanes());
        let along_m = t.a.macro_tile / t.a.micro;
        // The same in all lanes of a wave, and said so: descriptors are uniform.
        let consumers = t.math_threads() * spec.teams();
        let wave = b.uniform("consumer_wave", thread / WARP, i64::from(consumers / WARP) - 1);
        let group = b.value(wave / (owners / WARP));
        let owners_of_tile = t.math_threads() / owners;
        let team = b.value(group / owners_of_tile);
        let group = if spec.teams() > 1 { b.value(group % owners_of_tile) } else { group };
        let first = [b.bind("warpgroup_row", group % along_m * t.a.micro), b.bind("warpgroup_col", group / along_m * t.b.micro)];
        let lane = b.bind("warpgroup_thread", thread % owners);
        let (rows, sets) = (t.a.micro / row.shape.m, t.a.fragment_sets);
        let in_turn = spec.rows_in_turn();
        let acc = b.regs("acc", row.sum.ty(), if in_turn { 1 } else { rows } * row.accumulator_registers(t.b.micro));
        let totals = promoted(b, spec, row.sum.ty(), rows * row.accumulator_registers(t.b.micro));
        let split = t.a.split.is_some();
        let fragments = (sets > 0).then(|| {
            let run = shared[1].panels.as_ref().and_then(|tile| tile.runs);
            let weights = run.map(|run| WeightRuns { factor: c.a.factor(), run });
            RowFragments::new(b, &shared[0], row, FragmentSets { sets, rows, split, weights }, first[0], lane)
        });
        Warpgroup {
            acc,
            promoted: totals.zip(spec.schedule.promoted).map(|(totals, every)| Promoted { totals, every }),
            shared: shared.to_vec(),
            row,
            products: t.a.products(),
            rows,
            in_turn,
            columns: t.b.micro,
            // Sets of fragments alternate over whole k-tiles.
            k_steps: if sets > 0 { (0..t.k_tile / row.shape.k).collect() } else { t.steps(c, row.shape.k) },
            first,
            lane,
            in_flight: spec.schedule.math_in_flight > Some(0),
            fragments,
            team,
            may_be_empty,
        }
    }

    /// Sums of a thread.
    fn count(&self) -> u32 {
        self.rows * self.row.accumulator_registers(self.columns)
    }
    /// First register of the accumulators of these rows' instructions.
    fn first_of(&self, row: u32) -> u32 {
        if self.in_turn { 0 } else { row * self.row.accumulator_registers(self.columns) }
    }

    /// Where the operand's k-step of the warpgroup's rows from row `further` on starts in its stage, in the tile of a part of its elements.
    fn tile(&self, b: &mut Builder, which: usize, part: u32, stage: ExprId, further: u32, k_step: u32) -> Descriptor {
        let (s, first, bytes) = (&self.shared[which], self.first[which], self.row.input.bytes());
        let at = |row: u32, k: u32| s.position(row, k) as u32 * bytes;
        let k_contiguous = s.along == Along::K;
        // Rows within a line are contiguous; the next line of rows is a whole column of k further.
        let (leading_bytes, per_row) =
            if k_contiguous { (0, s.pitch * bytes) } else { (at(s.pitch, 0), at(s.pitch, 0) / s.pitch) };
        let byte = b
            .value(stage * (s.stage * bytes) + first * per_row + (at(further, k_step * self.row.shape.k) + s.part(part) * bytes));
        let (array, stride_bytes) = (s.array, 8 * s.pitch * bytes);
        Descriptor { array, byte, swizzle: Swizzle::B128, k_contiguous, leading_bytes, stride_bytes }
    }

    /// Issues the instructions of one k-tile with both operands from shared memory. They form one group. Where rows alternate,
    /// they form several groups, and the last group may be unfinished. Where `later` is false, the first product
    /// replaces the accumulators; otherwise it is added to them.
    fn k_tile_shared(&self, b: &mut Builder, tile: KTile, later: Option<ExprId>) {
        let each = if self.in_turn { 1 } else { self.rows };
        for first in (0..self.rows).step_by(each as usize) {
            if first > 0 {
                b.matrix(MatrixOp::WarpgroupWait { pending: 0, acc: self.acc });
                self.promote_rows(b, first - 1, tile.scales);
            }
            b.matrix(MatrixOp::WarpgroupFence { acc: self.acc, left: Vec::new() });
            for (&k_step, row) in self.k_steps.iter().flat_map(|k_step| (first..first + each).map(move |row| (k_step, row))) {
                let mut later = later;
                for &[part_of_a, part_of_b] in self.products {
                    let a = WarpgroupA::Shared(self.tile(b, 0, part_of_a, tile.stage, row * self.row.shape.m, k_step));
                    self.multiply(b, tile.stage, Instruction { row, k_step, a, part_of_b, later: later.take() });
                }
            }
            b.matrix(MatrixOp::WarpgroupCommit);
        }
    }

    /// Adds the accumulators of one row of instructions to its totals, where rows alternate.
    fn promote_rows(&self, b: &mut Builder, row: u32, scales: Option<&TileScales>) {
        let each = self.row.accumulator_registers(self.columns);
        if let Some(Promoted { totals, .. }) = self.promoted {
            promote(b, Promotion { acc: self.acc, totals, first: row * each, count: each }, scales);
        }
    }

    /// Emits a k-tile with operand A in registers. While the instructions of a k-step run, the next fragments are read into a free set of
    /// registers. If sets are reused within the k-tile, each k-step is a commit group.
    fn k_tile_of(&self, b: &mut Builder, buffer: ExprId, fragments: &RowFragments, later: Option<ExprId>) {
        let k_steps = self.k_steps.len() as u32;
        let again = self.in_flight || k_steps > fragments.sets;
        let begun = fragments.begin(b, buffer, k_steps * self.row.shape.k);
        for &k_step in &self.k_steps {
            // After a drained tile every set is free.
            if k_step > 0 && (self.in_flight || k_step >= fragments.sets) {
                b.matrix(MatrixOp::WarpgroupWait { pending: fragments.sets - 1, acc: self.acc });
            }
            let left = fragments.load(b, buffer, k_step, &begun);
            b.matrix(MatrixOp::WarpgroupFence { acc: self.acc, left: left.clone() });
            for (row, a) in (0..).zip(left.chunks(fragments.parts())) {
                let mut later = later;
                for &[part_of_a, part_of_b] in self.products {
                    let a = WarpgroupA::Regs(a[part_of_a as usize]);
                    self.multiply(b, buffer, Instruction { row, k_step, a, part_of_b, later: later.take() });
                }
            }
            if again || k_step + 1 == k_steps {
                b.matrix(MatrixOp::WarpgroupCommit);
            }
        }
        // All lanes have read their fragments: one speaks for its wave when the buffer is released.
        b.push(Stmt::Barrier(BarrierScope::Wave));
    }

    /// Issues an instruction on the operands in a stage.
    fn multiply(&self, b: &mut Builder, stage: ExprId, of: Instruction) {
        let Instruction { row, k_step, a, part_of_b, later } = of;
        let right = self.tile(b, 1, part_of_b, stage, 0, k_step);
        let acc = slice(b, self.acc, self.first_of(row));
        let yes = b.int(1, Scalar::Bool);
        b.matrix(MatrixOp::Warpgroup {
            input: self.row.input,
            n: self.columns,
            a,
            b: right,
            acc,
            accumulate: if k_step == 0 { later.unwrap_or(yes) } else { yes },
        });
    }
}

impl Unit for Warpgroup {
    fn start(&self, b: &mut Builder) {
        let cleared = if self.may_be_empty { Some(self.acc) } else { None };
        let cleared = self.promoted.map_or(cleared, |promoted| Some(promoted.totals));
        cleared.iter().for_each(|regs| clear(b, self.row.sum.ty(), *regs, self.count()));
    }

    /// Instructions may be unfinished after it; the first product of the first k-tile replaces the accumulators.
    fn k_tile(&self, b: &mut Builder, tile: KTile, _: MathPart, _: Option<Between>) {
        let later = match (tile.number, self.promoted) {
            (Some(_), Some(Promoted { every: 1, .. })) => Some(b.int(0, Scalar::Bool)),
            (Some(t), Some(Promoted { every, .. })) => {
                let since = b.value(t % every);
                Some(b.bind("accumulate", since.gt(0)))
            }
            (Some(t), None) if !self.may_be_empty => Some(b.bind("accumulate", t.gt(0))),
            _ => None,
        };
        match &self.fragments {
            Some(fragments) => self.k_tile_of(b, tile.stage, fragments, later),
            None => self.k_tile_shared(b, tile, later),
        }
    }

    /// And until the fragments of the next k-step have room.
    fn drain(&self, b: &mut Builder, k_tiles: u32) {
        let pending = match &self.fragments {
            Some(fragments) => (k_tiles * self.k_steps.len() as u32).min(fragments.sets - 1),
            None => k_tiles,
        };
        b.matrix(MatrixOp::WarpgroupWait { pending, acc: self.acc });
    }

    fn promote(&self, b: &mut Builder, scales: Option<&TileScales>) {
        if self.in_turn {
            return self.promote_rows(b, self.rows - 1, scales);
        }
        if let Some(Promoted { totals, .. }) = self.promoted {
            promote(b, Promotion { acc: self.acc, totals, first: 0, count: self.count() }, scales);
        }
    }

    fn may_idle(&self) -> bool {
        true
    }

    fn accumulators(&self) -> AccumulatorSet {
        AccumulatorSet { regs: self.promoted.map_or(self.acc, |promoted| promoted.totals), first: self.first, thread: self.lane }
    }
}
