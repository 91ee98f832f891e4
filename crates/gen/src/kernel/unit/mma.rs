//! Matrix instructions of single waves: fragments from the tiles that the ordinary loaders bring, and where sums lie in C.
//!
//! A wave owns a micro tile of whole instructions. NVIDIA's fragments come by `ldmatrix`, transposed where lines of shared memory
//! are rows of one k; AMD's lanes read their own elements. `ldmatrix` moves pairs of 16-bit elements and would split TF32
//! elements where it transposes, so lanes read TF32 elements and doubles one by one. No two lanes read the same bank: lines are
//! padded, or lanes take the k of swizzled panels in another order ([`KOrder`]). TF32 is rounded here, in registers, since
//! asynchronous copies bring f32 as it is, and no other reader of the tile need know. Where a product is three TF32 products,
//! operands are split here, too. B of an instruction's depth is split once for all rows. A is split fragment by fragment, so that
//! few registers hold both parts. Parts in bf16 have tiles of their own in shared memory. Where copies bring weights of 8 or 4
//! bits without conversion, lanes convert the weights that they read. A lane reads one or more words of a row, neighbours along
//! k, and reads the other operand in the same way.

use super::k_order::{KOrder, LanePlace};
use super::math::Steps;
use super::scales::TileScales;
use crate::kernel::tile::shared::{Apart, SharedTile};
use crate::kernel::unit::{
    AccumulatorSet, KTile, LANES_OF_ROW, Promotion, Registers, clear, matrix_row, promote, promoted, slice, split, wave,
};
use crate::plan::{Along, Blocks, KernelSpec};
use tilewright_ir::affine::Coord;
use tilewright_ir::layout::Axis;
use tilewright_ir::mma::Fragment;
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

/// One operand's fragments.
struct Fragments {
    regs: RegId,
    /// Registers of a k-step, for one part of its elements.
    len: u32,
    shared: SharedTile,
    /// The place in a stage of the first element that this lane reads, and the distance to the elements of further rows.
    /// `ldmatrix` goes 16 rows further each time, and reads of single elements go 8.
    lane: ExprId,
    blocks: Vec<ExprId>,
    /// In place of the distances, where lanes read single elements of panels.
    apart: Option<Vec<Apart>>,
    /// Rows (A) or columns (B) of the wave.
    micro: u32,
    /// Which k its lanes read where these come one by one.
    order: KOrder,
    /// Neighbours along k that a lane reads at once, where one operand is weights that lanes convert; both operands are read alike.
    run: Option<u32>,
    /// The type that they are converted to.
    factor: Scalar,
    /// Elements at a position of shared memory: two of 4 bits.
    each: u32,
}

impl Fragments {
    /// The first register of a set's fragments of a part.
    const fn first(&self, set: u32, part: u32) -> u32 {
        (set * self.shared.parts + part) * self.len
    }
}

/// The math of one wave.
pub(crate) struct WaveUnit {
    acc: RegId,
    /// Accumulators of a lane.
    acc_count: u32,
    /// Totals of two-level accumulation; `None` without it.
    promoted: Option<RegId>,
    fragments: [Fragments; 2],
    /// The parts of one fragment of A and of B for one k-step, if operands are split in registers.
    parts: Option<[RegId; 2]>,
    /// The products in place of each product: part of A and part of B.
    products: &'static [[u32; 2]],
    /// The instructions with elements, if some have none.
    exist: Option<Blocks>,
    /// The instruction.
    row: &'static Mma,
    /// Depth of a k-step.
    step: u32,
    /// The wave's first row and column within the macro tile.
    first: [ExprId; 2],
    lane: ExprId,
    a_first: bool,
}

impl WaveUnit {
    /// Declares fragments and accumulators for the wave of consumer thread `thread`, and clears the accumulators. A halo is the halo of the
    /// result tile that begins at this row and column.
    pub fn new(
        b: &mut Builder,
        c: &Contraction,
        spec: &KernelSpec,
        row: &'static Mma,
        shared: &[SharedTile],
        starts: Option<[Coord; 2]>,
        thread: ExprId,
    ) -> Self {
        let t = &spec.tiling;
        let (lanes, MmaShape { m: rows, n: columns, k: depth }) = (row.lanes(), row.shape);
        let (first, lane) = wave(b, t, row, thread);
        let sets = spec.schedule.fragments_ahead + 1;
        let order = match shared {
            [a, b] if a.panels.is_some() && b.panels.is_some() => KOrder::of_panels(row.input.bytes()),
            _ => KOrder::NATURAL,
        };
        // The terms of a sum may come in any order that both operands share. The four lanes of a row read neighbours along k, not
        // the instruction's pairs.
        let run = (t.a.raw.is_some() || t.b.raw.is_some()).then(|| t.k_step() / LANES_OF_ROW);
        let fragments = [(0, "a", &t.a, &c.a), (1, "b", &t.b, &c.b)].map(|(i, name, o, tensor)| {
            let (micro, each) = (o.micro, o.elements());
            let (of, side) = if i == 0 { (&row.a, rows) } else { (&row.b, columns) };
            let len = micro / side * of.registers * (t.k_step() / depth);
            let held = if of.elements == 1 { row.input.storage() } else { Scalar::U32 };
            let regs = b.regs(&format!("{name}_frag"), held.ty(), sets * shared[i].parts * len);
            let (place, every) = match (of.elements, run) {
                (_, Some(run)) => {
                    let (row, k) = (b.value(lane / LANES_OF_ROW), b.value(lane % LANES_OF_ROW * (run / each)));
                    ([b.value(first[i] + row), k], 8)
                }
                (1, _) => (element_of(b, of, lane, lanes, first[i], order), 8),
                _ => {
                    let [row, k] = matrix_row(b, of, side, lane, shared[i].along);
                    ([b.value(first[i] + row), k], 16)
                }
            };
            let start = starts.map(|starts| starts[i]);
            let apart = if of.elements == 1 && run.is_none() { shared[i].apart(micro) } else { None };
            let (at, blocks) = match &apart {
                Some(_) => (shared[i].at(b, place[0], place[1]), Vec::new()),
                None => shared[i].blocks(b, start, place, micro.div_ceil(every), every),
            };
            let lane = b.bind(&format!("{name}_lane_at"), at);
            Fragments {
                regs,
                len,
                shared: shared[i].clone(),
                lane,
                blocks,
                apart,
                micro,
                order,
                run,
                factor: tensor.factor(),
                each,
            }
        });
        let acc_count = t.a.micro * t.b.micro / lanes;
        let acc = b.regs("acc", row.sum.ty(), acc_count);
        let promoted = promoted(b, spec, row.sum.ty(), acc_count);
        let parts = t.a.split_in_registers().map(|split| {
            let lens = [row.a.registers, t.b.micro / columns * row.b.registers];
            [("a_parts", lens[0]), ("b_parts", lens[1])].map(|(name, len)| b.regs(name, Scalar::F32.ty(), split.parts * len))
        });
        let products = t.a.products();
        let exist = t.blocks(c);
        let (step, a_first) = (t.k_step(), spec.style.a_first);
        WaveUnit { acc, acc_count, promoted, fragments, parts, products, exist, row, step, first, lane, a_first }
    }

    /// Fragments of elements that fill a register, one instruction's after the other; those of TF32 are rounded, unless they are to be split.
    fn load_elements(&self, b: &mut Builder, f: &Fragments, from: ExprId, k_step: ExprId, set: u32, is_a: bool) {
        let (of, shape) = (if is_a { &self.row.a } else { &self.row.b }, self.row.shape);
        let (side, depth) = (if is_a { shape.m } else { shape.n }, shape.k);
        let steps = self.step / depth;
        let per_step = f.len / steps;
        for step in 0..steps {
            for block in 0..f.micro / side {
                for register in 0..of.registers {
                    let (across, along) = (of.at(Axis::Row, 0, register, 0), of.at(Axis::K, 0, register, 0));
                    let rows = ((side * block + across) / 8) as usize;
                    let place = match &f.apart {
                        Some(apart) => LanePlace { lane: f.lane, block: apart.get(rows).copied().unwrap_or_default() },
                        None => {
                            let further = f.blocks.get(rows).copied().unwrap_or(f.lane);
                            LanePlace { lane: b.value(f.lane + further), block: Apart::default() }
                        }
                    };
                    let at = f.order.further(b, &f.shared, place, k_step, self.step, depth * step + along);
                    let at = b.value(from + at);
                    let value = b.load("element", Base::Shared(f.shared.array), at, 1, None);
                    let round = self.row.input == MatrixType::TF32 && self.parts.is_none();
                    let value = if round { value.unary(UnaryOp::RoundTf32) } else { value.into() };
                    b.set_reg(f.regs, set * f.len + step * per_step + of.registers * block + register, value);
                }
            }
        }
    }
}

impl WaveUnit {
    /// Reads the fragments of a k-step as runs of neighbours along k, one row of each eight for a lane. Two words of a run are one instruction's: the
    /// first fills the register of its lower k, the second that of its upper.
    fn load_runs(&self, b: &mut Builder, f: &Fragments, from: ExprId, k_step: ExprId, set: u32, is_a: bool) {
        let (of, shape) = (if is_a { &self.row.a } else { &self.row.b }, self.row.shape);
        let (side, depth) = (if is_a { shape.m } else { shape.n }, shape.k);
        let steps = self.step / depth;
        let at = f.shared.steps(b, from, k_step, self.step / f.each);
        for (block, further) in (0..).zip(&f.blocks) {
            let at = b.value(at + *further);
            let run = f.run.unwrap_or(1) / f.each;
            let read = b.load("run", Base::Shared(f.shared.array), at, run, None);
            let factors = b.value(read.cast(f.factor));
            let words = b.words(factors);
            let words = b.bind("words", words);
            let (instruction, across) = (8 * block / side, 8 * block % side);
            for (step, half) in (0..steps).flat_map(|step| [0, 1].map(|half| (step, half))) {
                let place = |r: &u32| (of.at(Axis::Row, 0, *r, 0), of.at(Axis::K, 0, *r, 0)) == (across, half * depth / 2);
                let Some(register) = (0..of.registers).find(place) else { continue };
                let word = b.extract(words, 2 * step + half);
                b.set_reg(f.regs, set * f.len + step * f.len / steps + of.registers * instruction + register, word);
            }
        }
    }

    /// What exists of the k-step with this number, where that is a constant.
    fn exist(&self, b: &Builder, step: ExprId) -> Option<(&Blocks, u32)> {
        let step = b.kernel().as_int(step).and_then(|step| u32::try_from(step).ok())?;
        self.exist.as_ref().map(|blocks| (blocks, step))
    }
}

impl Steps for WaveUnit {
    fn start(&self, b: &mut Builder) {
        let all = std::iter::once(self.acc).chain(self.promoted);
        all.for_each(|regs| clear(b, self.row.sum.ty(), regs, self.acc_count));
    }

    fn read_at(&self, b: &mut Builder, tile: KTile) -> [ExprId; 2] {
        [(0, "a_read_at"), (1, "b_read_at")].map(|(i, name)| {
            let f = &self.fragments[i];
            let from = f.shared.from(b, tile.stage, tile.k);
            // From a stage's start on, single elements are found by xor.
            if self.row.a.elements == 1 || f.shared.halo.is_some() { b.bind(name, from) } else { b.bind(name, from + f.lane) }
        })
    }

    fn load(&self, b: &mut Builder, from: [ExprId; 2], step: ExprId, set: u32) {
        for which in if self.a_first { [0, 1] } else { [1, 0] } {
            let f = &self.fragments[which];
            if f.run.is_some() {
                self.load_runs(b, f, from[which], step, set, which == 0);
                continue;
            }
            if self.row.a.elements == 1 {
                self.load_elements(b, f, from[which], step, set, which == 0);
                continue;
            }
            let at = f.shared.steps(b, from[which], step, self.step);
            let side = if which == 0 { self.row.shape.m } else { self.row.shape.n };
            // Four matrices of 8 x 8 are 16 rows, or 16 columns; the last 8 columns of an odd number come alone.
            for (block, further) in (0..).zip(&f.blocks) {
                let count = if f.micro - 16 * block >= 16 { 4 } else { 2 };
                let instructions = 16 * block / side..(16 * (block + 1)).min(f.micro) / side;
                if !self.exist(b, step).is_none_or(|(blocks, step)| blocks.of(which, step, instructions)) {
                    continue;
                }
                let at = b.value(at + *further);
                let at = f.shared.read_from(b, at);
                for part in 0..f.shared.parts {
                    let from = b.mem(Base::Shared(f.shared.array), at + f.shared.part(part));
                    let to = slice(b, f.regs, f.first(set, part) + 4 * block);
                    b.matrix(MatrixOp::LoadMatrix { to, count, trans: f.shared.along == Along::Row, from });
                }
            }
        }
    }

    fn multiply(&self, b: &mut Builder, k_step: ExprId, set: u32) {
        let ([left, right], row) = (&self.fragments, self.row);
        let MmaShape { m: rows, n: columns, k: depth } = row.shape;
        let (across, steps) = (right.micro / columns, self.step / depth);
        for step in 0..steps {
            let (len_a, len_b) = (row.a.registers, row.b.registers * across);
            let of_b = |part: u32| right.first(set, part) + step * right.len / steps;
            if let Some([_, parts]) = self.parts {
                let from = Registers { regs: right.regs, first: of_b(0) };
                split(b, from, Registers { regs: parts, first: 0 }, len_b);
            }
            for i in 0..left.micro / rows {
                let of_a = |part: u32| left.first(set, part) + step * left.len / steps + len_a * i;
                if let Some([parts, _]) = self.parts {
                    let from = Registers { regs: left.regs, first: of_a(0) };
                    split(b, from, Registers { regs: parts, first: 0 }, len_a);
                }
                for &[part_of_a, part_of_b] in self.products {
                    let [from_a, from_b] = match self.parts {
                        Some([a, b]) => [(a, part_of_a * len_a), (b, part_of_b * len_b)],
                        None => [(left.regs, of_a(part_of_a)), (right.regs, of_b(part_of_b))],
                    }
                    .map(|(regs, first)| Registers { regs, first });
                    for j in 0..across {
                        let exist = self.exist(b, k_step);
                        if !exist.is_none_or(|(blocks, first)| blocks.exist(first * steps + step, i, j)) {
                            continue;
                        }
                        let a = slice(b, from_a.regs, from_a.first);
                        let right = slice(b, from_b.regs, from_b.first + row.b.registers * j);
                        let acc = slice(b, self.acc, row.c.registers * (i * across + j));
                        b.matrix(MatrixOp::Mma { input: row.input, shape: row.shape, a, b: right, acc });
                    }
                }
            }
        }
    }

    fn uneven(&self) -> bool {
        self.exist.is_some()
    }

    fn promote(&self, b: &mut Builder, scales: Option<&TileScales>) {
        if let Some(totals) = self.promoted {
            promote(b, Promotion { acc: self.acc, totals, first: 0, count: self.acc_count }, scales);
            clear(b, self.row.sum.ty(), self.acc, self.acc_count);
        }
    }

    fn accumulators(&self) -> AccumulatorSet {
        AccumulatorSet { regs: self.promoted.unwrap_or(self.acc), first: self.first, thread: self.lane }
    }
}

/// Row and k of a lane in the first instruction of a wave: what register 0 of a fragment holds.
fn element_of(b: &mut Builder, of: &Fragment, lane: ExprId, lanes: u32, first: ExprId, order: KOrder) -> [ExprId; 2] {
    let places = of.layout(lanes, of.registers);
    let [row, k] = [Axis::Row, Axis::K].map(|to| places.emit(b, to, &[(Axis::Lane, lane)], Scalar::I32));
    [b.value(first + row), order.of_lane(b, k)]
}
