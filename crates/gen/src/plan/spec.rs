//! The four choices as values: what a plan means for one contraction. The generator reads these and nothing else.

use super::bulk::RowStaging;
pub use super::epilogue::{Epilogue, Exit, Split};
pub use super::schedule::{RoleSplit, Schedule, StorePoint};
use super::shared_map::SharedMap;
use super::tile::{OperandTiling, k_step};
use serde::Serialize;
pub use tilewright_ir::MathUnit;
use tilewright_ir::Mma;
use tilewright_ir::affine::{Affine, Atom};
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::mma::Owner;
use tilewright_problem::Extent;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::COL;

/// Most groups whose tiles work-groups count before they begin.
const COUNTED: u64 = 512;

/// Order in which work-groups visit result tiles (`GAL`).
///
/// ```
/// use tilewright_gen::plan::{GroupOrder, Plan};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, order=2")?;
/// let derived = space.resolve(&plan)?.spec;
/// assert_eq!(derived.tiling.order, GroupOrder::RowsFastest);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum GroupOrder {
    /// n fastest (`GAL1`).
    ColumnsFastest,
    /// m fastest (`GAL2`).
    RowsFastest,
    /// Strips this many tiles wide in n, walked row by row down m (`GAL3`, width from `NAW` and `ICE`).
    Strips(u32),
}

/// What happens at the edge of the result when a macro tile does not divide it.
///
/// ```
/// use tilewright_gen::plan::{Edge, Plan};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // 500 columns are no multiple of 64.
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 500, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, predicate")?;
/// let derived = space.resolve(&plan)?.spec;
/// assert_eq!((derived.tiling.edge_m, derived.tiling.edge_n), (Edge::Predicate, Edge::Predicate));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Edge {
    /// The last tile is pulled back to end at the edge; overlapped elements are computed twice and written once
    /// (MIOpenGEMM). Needs the dimension to be at least one macro tile.
    PullBack,
    /// Elements out of range are loaded as zero and not stored.
    Predicate,
}

/// How work on one result tile is split along k (`ICE`).
///
/// ```
/// use tilewright_gen::plan::{Plan, SplitK};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 64, 64, 4096).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, 4 splits, split-sum=1, interleave-splits")?;
/// let derived = space.resolve(&plan)?.spec;
/// assert_eq!(derived.tiling.split_k, SplitK { ways: 4, interleave: true });
/// // The next k-tile of a work-group is four k-tiles further.
/// assert_eq!(derived.tiling.k_stride(), 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SplitK {
    /// Work-groups per result tile; 1 = no split.
    pub ways: u32,
    /// Round-robin by k-tiles instead of contiguous ranges (`IWI`).
    pub interleave: bool,
}

/// The last tiles of persistent work-groups, where they are split along k.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 5000, 5000, 5000).build()?.into(), &target)?;
/// let text = "wgmma 128x256x64 on 2x1, tma+tma, 3 stages, 4 producers, persistent=132, tail-splits=6";
/// let plan = Plan::parse(text)?;
/// let derived = space.resolve(&plan)?.spec;
/// // 40 x 20 tiles: six rounds have 792 of 800. The last row of 20 is split.
/// let tail = derived.tiling.tail.expect("a split tail");
/// assert_eq!((tail.first, tail.splits), (39, 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Tail {
    /// Splits of each tile.
    pub splits: u32,
    /// The first row of tiles that is split, a multiple of the cluster's rows.
    pub first: u64,
}

/// Rows of C with splits of k whose partial sums are added in C or in workspace.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 5000, 5000, 5000).build()?.into(), &target)?;
/// let text = "wgmma 128x256x64 on 2x1, tma+tma, 3 stages, 4 producers, persistent=132, tail-splits=6";
/// let plan = Plan::parse(text)?;
/// let derived = space.resolve(&plan)?.spec;
/// // 39 rows of tiles are whole.
/// let split = derived.split_rows(&derived.c);
/// assert_eq!((split.rows, split.splits), (5000 - 39 * 128, 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRows {
    /// Their number.
    pub rows: u64,
    /// Splits of each tile; 1: none.
    pub splits: u32,
}

/// Work-groups that run together and reach each other's shared memory, as extents. Neighbours along m share B's tile, and
/// neighbours along n share A's. Work-groups of different splits add up their partial sums.
///
/// ```
/// use tilewright_gen::plan::{Cluster, Plan};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, tma+tma, 4 stages, cluster 2x1, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// // Two work-groups, one below the other, share the tiles of B.
/// assert_eq!(derived.tiling.cluster, Cluster { m: 2, n: 1, splits: 1 });
/// assert_eq!(derived.tiling.cluster.sharers(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Cluster {
    /// Along m (`A_CLU`).
    pub m: u32,
    /// Along n (`B_CLU`).
    pub n: u32,
    /// Splits of k (`ICE` with `SKS2`).
    pub splits: u32,
}

impl Cluster {
    /// Number of work-groups.
    pub const fn size(self) -> u32 {
        self.m * self.n * self.splits
    }
    /// Work-groups that use what one of them copies, itself included.
    pub const fn sharers(self) -> u32 {
        self.m + self.n - 1
    }
}

/// How the result is cut and how operand tiles are loaded.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("mma 128x64x32 on 2x2")?;
/// let derived = space.resolve(&plan)?.spec;
/// let tiling = &derived.tiling;
/// assert_eq!((tiling.macro_tile(), tiling.k_tile, tiling.math_threads()), ((128, 64), 32, 128));
/// // Each of 2 x 2 warps has 64 x 32 results; a k-step of mma.sync is 16 deep.
/// assert_eq!((tiling.a.micro, tiling.b.micro, tiling.k_steps()), (64, 32, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Tiling {
    /// Left operand.
    pub a: OperandTiling,
    /// Right operand.
    pub b: OperandTiling,
    /// k-tile: depth of one main loop step (`UNR`).
    pub k_tile: u32,
    /// Threads along m in the work-group's thread grid (from `MAC`, `SKW`).
    pub threads_a: u32,
    /// Threads along n.
    pub threads_b: u32,
    /// Slices of the work-group, of as many threads each, that take equal parts of every k-tile for the same tile (`LSU`).
    pub slices: u32,
    /// Adjacent threads differ in their position along n (`MIA1`) instead of m (`MIA0`).
    pub micro_b_fastest: bool,
    /// Lanes of a wave along m when the wave covers a compact rectangle of micro tiles; 0 keeps the plain order.
    pub wave_a: u32,
    /// Lanes of a wave, where `wave_a` is used.
    pub wave_lanes: u32,
    /// Elements of vector arithmetic along n (1 = scalar math); CPU devices profit.
    pub math_width: u32,
    /// Order of tiles over the grid.
    pub order: GroupOrder,
    /// The same tile of all batch entries comes before the next tile (`GBI`). Entries that are adjacent in memory, as groups of
    /// channels are, then share the cache lines and pages that are fetched for them.
    pub entries_fastest: bool,
    /// Split along k.
    pub split_k: SplitK,
    /// Edges in m.
    pub edge_m: Edge,
    /// Edges in n.
    pub edge_n: Edge,
    /// Start each work-group at a different k offset (`UFO`).
    pub k_stagger: bool,
    /// What computes (`UNI`). With a matrix unit a micro tile belongs to all threads of a warp or warpgroup.
    pub unit: MathUnit,
    /// The instruction of the unit, where it is a matrix unit.
    pub instruction: Option<&'static Mma>,
    /// The kernel computes the transposed product: `a` speaks of the problem's B and `b` of its A (`SWP`).
    pub swapped: bool,
    /// Work-groups that walk over all tiles; 0: one per tile (`PST`).
    pub persistent: u32,
    /// Work-groups that run together.
    pub cluster: Cluster,
    /// The last tiles, where they are split along k (`TSP`).
    pub tail: Option<Tail>,
}

impl Tiling {
    /// Rows and columns of C, as the problem has them, that one work-group computes.
    pub const fn macro_tile(&self) -> (u32, u32) {
        let (a, b) = (self.a.macro_tile, self.b.macro_tile);
        if self.swapped { (b, a) } else { (a, b) }
    }
    /// Threads that compute a tile together; of several slices, those of one.
    pub fn math_threads(&self) -> u32 {
        self.threads_a * self.threads_b
    }
    /// Position of a thread in the grid of micro tiles, along m and n.
    pub fn grid(&self) -> Layout {
        let thread = Affine::axis(0);
        let (na, nb) = (i64::from(self.threads_a.max(1)), i64::from(self.threads_b.max(1)));
        let place = |index: &Affine, a: i64, b: i64| {
            if self.micro_b_fastest {
                (index.digit_of(b, None), index.digit_of(1, Some(b)))
            } else {
                (index.digit_of(1, Some(a)), index.digit_of(a, None))
            }
        };
        let (wave_a, lanes) = (i64::from(self.wave_a), i64::from(self.wave_lanes));
        let (row, col) = if wave_a == 0 || lanes < wave_a {
            place(&thread, na, nb)
        } else {
            // A wave covers wave_a x wave_b micro tiles; waves cover the thread grid, along m first.
            let (wave_b, waves_a) = (lanes / wave_a, (na / wave_a).max(1));
            let wave = thread.digit_of(lanes, None);
            let (lane_a, lane_b) = place(&thread.digit_of(1, Some(lanes)), wave_a, wave_b);
            let row = Affine::default().plus(&wave.digit_of(1, Some(waves_a)), wave_a).plus(&lane_a, 1);
            (row, Affine::default().plus(&wave.digit_of(waves_a, None), wave_b).plus(&lane_b, 1))
        };
        Layout::new(&[(Axis::Thread, (na * nb) as u64)], &[(Axis::Row, row), (Axis::Col, col)])
    }
    /// The instruction whose fragments hold the accumulators; `None` where each thread holds a micro tile.
    pub fn accumulator_row(&self) -> Option<&'static Mma> {
        match self.unit.family().owner {
            Owner::Thread => None,
            Owner::Wave | Owner::Warpgroup => self.instruction,
        }
    }
    /// From one k-tile of a work-group to its next, along k.
    pub fn k_stride(&self) -> i64 {
        i64::from(self.k_tile) * if self.split_k.interleave { i64::from(self.split_k.ways) } else { 1 }
    }
    /// Neighbours along n that a lane of a matrix unit holds.
    pub fn run(&self) -> u32 {
        match self.unit.family().run {
            // Instructions lie interleaved.
            0 => self.interleave(self.b.micro),
            run => run,
        }
    }
    /// Columns of a micro tile that all lanes of a wave hold together with a register each, or with as many as hold neighbours.
    pub fn held_columns(&self) -> u32 {
        let columns = self.instruction.map_or(1, |row| row.shape.n);
        if self.unit.family().run == 0 { columns * self.run() } else { columns }
    }
    /// Number of instructions with interleaved rows (or columns) in a micro tile of this length. One read of a lane, of 16 bytes
    /// at most, holds the same place of all of them. It is 1 where the rows of each instruction lie together.
    pub fn interleave(&self, micro: u32) -> u32 {
        let Some(row) = self.instruction.filter(|row| row.unit.family().run == 0) else { return 1 };
        let together = |many: &u32| (micro / row.shape.m).is_multiple_of(*many) && many * row.input.bytes() <= 16;
        [4, 2].into_iter().find(together).unwrap_or(1)
    }
    /// Depth of a k-step, for which fragments are read at once.
    pub fn k_step(&self) -> u32 {
        self.instruction.map_or(1, |row| k_step(row, self.a.split) * self.a.elements().max(self.b.elements()))
    }
    /// The steps of `depth` k in a k-tile in which some k exist. Channels of a tap that are padding alone have no such steps, if
    /// they are the same in every k-tile.
    pub fn steps(&self, c: &Contraction, depth: u32) -> Vec<u32> {
        let (all, k_tile) = (0..self.k_tile / depth.max(1), i64::from(self.k_tile));
        let runs = c.a.view.access.bounds.iter().chain(&c.b.view.access.bounds).filter_map(|bound| {
            let run = match bound.value.terms.as_slice() {
                [(Atom::Digit { of, div: 1, modulo: Some(run) }, 1)] if **of == Affine::axis(COL) => *run,
                [(Atom::Axis(COL), 1)] => i64::try_from(c.k).ok()?,
                _ => return None,
            };
            let whole = bound.value.constant == 0 && k_tile % run.max(1) == 0 && run % i64::from(depth) == 0;
            whole.then_some((run.max(1), bound.high))
        });
        match runs.min_by_key(|(_, exist)| *exist) {
            None => all.collect(),
            Some((run, exist)) => all.filter(|step| i64::from(step * depth) % run < exist).collect(),
        }
    }
    /// Products of parts in place of each of factors.
    pub const fn products(&self) -> u32 {
        self.a.products().len() as u32
    }
    /// Depth of a slice's part of a k-tile.
    pub fn slice_depth(&self) -> u32 {
        self.k_tile / self.slices.max(1)
    }
    /// k-steps of a k-tile, or of a slice's part of it.
    pub fn k_steps(&self) -> u32 {
        self.slice_depth() / self.k_step()
    }
}

/// How the kernel is spelled: no effect on its results.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, wide-index")?;
/// let derived = space.resolve(&plan)?.spec;
/// // The kernel computes the same with indices of 32 bits.
/// assert!(derived.style.wide_index);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Style {
    /// Ask for unrolling of load, fragment, math and store loops (`PUN`).
    pub pragma_unroll: bool,
    /// All index arithmetic in 64 bits (`SZT`).
    pub wide_index: bool,
    /// `fma(a, b, c)` instead of `c += a * b` (`MAD`).
    pub mad: bool,
    /// A before B in definitions, loads and loops (`AFI`).
    pub a_first: bool,
    /// Work-groups per compute unit to make room for in registers; 0 = compiler's choice.
    pub min_groups: u32,
    /// Unroll the k loop over one k-tile fully.
    pub unroll_k: bool,
    /// As [`Env::straight`](super::rules::Env::straight): parts of a problem have kernels of their own, where they would be branches
    /// of one.
    pub straight: bool,
}

/// A derived plan: what the generator needs besides the contraction.
///
/// ```
/// use tilewright_gen::plan::{Constraint, Env, Plan, derive};
/// use tilewright_ir::{Scalar, Target};
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Gemm, Problem};
///
/// let contraction = lower(&Problem::Gemm(Gemm::new(Scalar::F32, 512, 512, 512).build()?), ConvForm::PER_SAMPLE)?.lead;
/// let target = Target::by_arch("sm_80").expect("a known architecture");
/// let plan: Plan = Constraint::parse("A_MIC8__B_MIC4__C_UNR16_MAC256")?.apply(&Plan::default()).into();
/// let spec = derive(&plan, &contraction, &Env::new(&target, 0))?;
/// assert_eq!((spec.tiling.macro_tile(), spec.launch_threads()), ((128, 64), 256));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct KernelSpec {
    /// How the result is cut.
    pub tiling: Tiling,
    /// When things happen.
    pub schedule: Schedule,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// Spelling.
    pub style: Style,
    /// Where each array lies in shared memory.
    pub shared: SharedMap,
}

impl KernelSpec {
    /// Number of counters in shared memory: tiles before each group of rows or columns, and in all. `None` if work-groups do not count tiles.
    pub fn counted_groups(&self, c: &Contraction) -> Option<u32> {
        let counted = c.grouped(Extent::M) || c.grouped(Extent::N);
        let counted = counted && c.g <= COUNTED && self.schedule.in_pipeline() && !self.style.straight;
        counted.then(|| c.g as u32 + 1)
    }
    /// Threads of the work-group as launched.
    pub fn launch_threads(&self) -> u32 {
        match self.schedule.roles {
            Some(r) => r.load_threads + r.math_threads,
            None => self.tiling.math_threads() * self.tiling.slices,
        }
    }
    /// Ping-pong teams of consumer threads that alternate between result tiles; 1: all threads compute each tile together.
    pub fn teams(&self) -> u32 {
        self.schedule.roles.map_or(1, |r| r.teams)
    }
    /// Number of splits of k whose partial sums are added outside of work-groups and clusters: in C or in workspace.
    pub const fn split_outside(&self) -> u32 {
        match self.epilogue.split {
            Split::None | Split::Cluster => 1,
            Split::Atomic | Split::Workspace => self.tiling.split_k.ways,
        }
    }
    /// A wave's staging buffer for rows of results, for a contraction oriented as the plan says.
    pub(crate) fn row_staging(&self, c: &Contraction) -> RowStaging {
        let stored = if self.epilogue.split == Split::Workspace { c.accumulator() } else { c.c.scalar };
        RowStaging::new(self.tiling.b.micro, self.tiling.held_columns(), stored.bytes(), c.accumulator())
    }
    /// Threads that load operand tiles.
    pub fn load_threads(&self) -> u32 {
        match self.schedule.roles {
            Some(r) => r.load_threads,
            None => self.tiling.math_threads() * self.tiling.slices,
        }
    }
}
