//! Where a work-group's accumulators and operand tiles are: layouts that follow from a derived plan.

use super::spec::{Edge, KernelSpec, Tiling};
use tilewright_ir::Scalar;
use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_problem::contraction::{Contraction, Vector};

impl Tiling {
    /// Which elements of the work-group's tile each thread that computes holds, and in which register: (thread, register) to (row,
    /// column). Threads count from the first that computes; where teams alternate between tiles, from the first of the team.
    pub fn accumulators(&self) -> Layout {
        let (thread, register) = (Affine::axis(0), Affine::axis(1));
        let places = |registers: u32| [(Axis::Thread, self.math_threads().into()), (Axis::Register, registers.into())];
        let Some(instruction) = self.accumulator_row() else {
            let from = places(self.a.micro * self.b.micro);
            let columns = i64::from(self.b.micro.max(1));
            let along = |to: Axis| {
                let (own, element) = match to {
                    Axis::Row => (self.a.micro_tile(), register.digit_of(columns, None)),
                    _ => (self.b.micro_tile(), register.digit_of(1, Some(columns))),
                };
                let position = self.grid().form(to).cloned().unwrap_or_default();
                let place = Layout::new(&from, &[(Axis::Thread, position), (Axis::Element, element)]);
                own.compose(&place).and_then(|own| own.form(Axis::Row).cloned()).unwrap_or_default()
            };
            return Layout::new(&from, &[(Axis::Row, along(Axis::Row)), (Axis::Col, along(Axis::Col))]);
        };
        let lanes = i64::from(instruction.lanes());
        let columns = instruction.columns(self.b.micro);
        let (rows, each) = (instruction.shape.m, instruction.accumulator_registers(columns));
        let (down, across) = (self.a.micro / rows.max(1), self.b.micro / columns.max(1));
        let from = places(each * down * across);
        let fragment = Layout::new(
            &from,
            &[
                (Axis::Lane, thread.digit_of(1, Some(lanes))),
                (Axis::Register, register.digit_of(1, Some(each.into()))),
                (Axis::Element, Affine::default()),
            ],
        );
        let owner = thread.digit_of(lanes, None);
        let owners_m = i64::from(self.a.macro_tile / self.a.micro.max(1));
        let number = register.digit_of(each.into(), None);
        let within = instruction.c.layout(instruction.lanes(), each).compose(&fragment);
        let along = |to: Axis| {
            let (owner, micro, number, side) = match to {
                Axis::Row => (owner.digit_of(1, Some(owners_m)), self.a.micro, number.digit_of(across.into(), None), rows),
                _ => (owner.digit_of(owners_m, None), self.b.micro, number.digit_of(1, Some(across.into())), columns),
            };
            let apart = i64::from(self.interleave(micro));
            let place = within.as_ref().and_then(|w| w.form(to)).cloned().unwrap_or_default();
            Affine::default()
                .plus(&owner, micro.into())
                .plus(&number.digit_of(apart, None), apart * i64::from(side))
                .plus(&number.digit_of(1, Some(apart)), 1)
                .plus(&place, apart)
        };
        Layout::new(&from, &[(Axis::Row, along(Axis::Row)), (Axis::Col, along(Axis::Col))])
    }
}

/// Scales of blocks that a thread holds for its sums.
///
/// ```
/// use tilewright_gen::plan::{HeldScales, Plan};
/// # use tilewright_problem::{Along, Math, Scale};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let gemm = Gemm::new(Scalar::E4M3, 512, 512, 512).trans(false, true).math(Math::Promoted);
/// let space = Space::new(&gemm.scale_by(Along::M, Scale::LineBlock).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 64x128x128 on 1x1, tma+tma, 3 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// // A lane of wgmma has accumulators of two rows, 8 rows apart. Each row has a scale.
/// let HeldScales { distances, of } = derived.held_scales(&derived.c, &derived.c.block_scales[0]);
/// assert_eq!((distances, &of[..4]), (vec![0, 8], &[0, 0, 1, 1][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HeldScales {
    /// How far the lines with values of their own are from the thread's first.
    pub distances: Vec<u32>,
    /// Which of these values each of the thread's sums has.
    pub of: Vec<u32>,
}

/// Scales of a thread for a k-tile up to which those of the next one have registers of their own.
const SCALES_AHEAD: u32 = 12;

/// Accumulators of a thread beyond which a second array of as many does not fit beside them.
const SUMS_TWICE: u32 = 88;

impl KernelSpec {
    /// Returns whether a warpgroup finishes and promotes 64 rows before it issues the next 64 rows into the same accumulators.
    ///
    /// It does so under two conditions. The accumulators of all rows and their f32 totals do not fit into registers together. No
    /// registers hold fragments that serve several rows or k-steps.
    pub fn rows_in_turn(&self) -> bool {
        let t = &self.tiling;
        let rows = t.a.micro / t.unit.family().block.rows.max(1);
        let many = self.sums() > SUMS_TWICE;
        let no_fragments = t.instruction.is_some_and(|row| row.b.registers == 0) && t.a.fragment_sets == 0;
        self.schedule.promoted == Some(1) && no_fragments && rows > 1 && many
    }
    /// Accumulators of a thread for all rows of its micro tile.
    fn sums(&self) -> u32 {
        self.tiling.a.micro * self.tiling.b.micro / self.tiling.unit.family().lanes.max(1)
    }
    /// Accumulators of a thread of a matrix unit, including the totals of two-level accumulation.
    pub fn sum_registers(&self) -> u32 {
        let (t, count) = (&self.tiling, self.sums());
        match self.rows_in_turn() {
            true => count + count * t.unit.family().block.rows / t.a.micro.max(1),
            false => count * self.schedule.sum_sets(),
        }
    }
    /// Registers of a thread for scales of blocks of k.
    pub fn scale_registers(&self, c: &Contraction) -> u32 {
        let one = self.one_k_tiles_scales(c);
        if self.scales_ahead(c) { 2 * one } else { one }
    }
    fn one_k_tiles_scales(&self, c: &Contraction) -> u32 {
        c.block_scales.iter().map(|x| self.held_scales(c, x).distances.len() as u32).sum()
    }
    /// Whether those of the next k-tile are asked for while one is multiplied: where they are few.
    pub fn scales_ahead(&self, c: &Contraction) -> bool {
        self.one_k_tiles_scales(c) <= SCALES_AHEAD
    }
    /// Whether scales that were asked for ahead are taken when sums are added, and not before the instructions of a k-tile.
    pub fn scales_late(&self) -> bool {
        self.tiling.a.raw.is_some() && self.tiling.a.fragment_sets > 0
    }

    /// The scales along rows or columns that a thread holds.
    pub fn held_scales(&self, c: &Contraction, x: &Vector) -> HeldScales {
        let t = &self.tiling;
        let (tile, edge, extent, axis) =
            if x.along_n { (&t.b, t.edge_n, c.n, Axis::Col) } else { (&t.a, t.edge_m, c.m, Axis::Row) };
        let (macro_tile, micro) = (u64::from(tile.macro_tile), u64::from(tile.micro));
        // Neighbouring lines that share a value.
        let value = |line: u64| x.view.access.at([0, line as i64, 0]);
        let shared = (1..extent.max(1)).find(|line| value(*line) != value(0)).unwrap_or(u64::MAX);
        let tiles_in_step = edge == Edge::Predicate || extent.is_multiple_of(macro_tile);
        // Owners of whole instructions begin at multiples of a micro tile.
        let fragments = t.accumulator_row().is_some();
        let in_step = fragments && t.interleave(tile.micro) == 1 && micro.is_multiple_of(shared);
        // Lines of a thread up to this distance from a multiple of it share a value.
        let span = match shared {
            u64::MAX => u64::MAX,
            _ if !tiles_in_step => 1,
            _ if shared.is_multiple_of(macro_tile) => u64::MAX,
            _ if fragments && shared.is_multiple_of(micro) => u64::MAX,
            _ if in_step => shared,
            _ => 1,
        };
        let places = t.accumulators();
        let (mut distances, mut of) = (Vec::<u32>::new(), Vec::new());
        for register in 0..places.extent(Axis::Register) as i64 {
            let distance = places.at(axis, &[(Axis::Register, register)]) as u64;
            let first = (distance - distance % span) as u32;
            let known = distances.iter().position(|x| *x == first);
            of.push(known.unwrap_or(distances.len()) as u32);
            if known.is_none() {
                distances.push(first);
            }
        }
        HeldScales { distances, of }
    }

    /// A's (0) or B's (1) k-tiles in shared memory: (row, k, stage) to the element from where the operand's stages begin.
    pub fn shared_tiles(&self, which: usize, scalar: Scalar) -> Layout {
        let t = &self.tiling;
        let o = if which == 0 { &t.a } else { &t.b };
        let (tile, apart) = match self.schedule.copies.get(which).and_then(|copy| copy.tile()) {
            Some(tile) => {
                let along = if tile.k_contiguous { Axis::K } else { Axis::Row };
                let panels = Layout::panels(o.macro_tile, t.k_tile, along, tile.map.swizzle, tile.map.scalar);
                (panels, tile.bytes / scalar.bytes())
            }
            None => {
                let (lines, pitch) = o.lines(t.k_tile);
                (o.shared(t.k_tile), lines * pitch)
            }
        };
        tile.in_stages(self.schedule.buffers, apart.into())
    }
}
