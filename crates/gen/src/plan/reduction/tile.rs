//! Reduction of a tile within a work-group: registers of a thread first, then lanes of a wave, then waves through shared memory. All steps
//! follow from the layout, which maps threads and registers to elements of the tile.

use crate::plan::grid::gcd;
use std::collections::{BTreeMap, BTreeSet};
use tilewright_ir::layout::{Axis, Layout};

/// How the threads that hold a tile reduce it to one value per row, column or tile.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 64).reduce("max:n".parse()?).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// // A value for each of a tile's 64 rows, reduced of its 64 columns.
/// let reduction = &derived.tile_reductions(&derived.c)[0];
/// assert_eq!((reduction.values, reduction.runs), (64, [1, 64]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileReduction {
    /// Bits of the thread number that distinguish lanes of a wave with the same rows or columns. Lanes exchange values across these bits.
    pub lane_bits: Vec<u32>,
    /// Lanes of a wave that can exchange values; 0 or 1 where they cannot.
    pub wave: u32,
    /// Numbers of the partial values in shared memory, ascending. One number: the threads of one wave have the whole value.
    pub parts: Vec<u32>,
    /// Steps of the rows and columns at which threads number their parts; 0 where an axis is kept.
    pub part_steps: [u32; 2],
    /// See [`TileReduction::part_steps`].
    pub parts_across: u32,
    /// Rows and columns of the tile that a value is reduced of: 1 along what is kept.
    pub runs: [u32; 2],
    /// Values of the tile, and those that follow each other along n.
    pub values: u32,
    /// See [`TileReduction::values`].
    pub across: u32,
    /// Number of halvings of the parts in shared memory before the remaining parts are combined.
    pub tree: u32,
}

impl TileReduction {
    /// The reduction of a tile of `size` rows and columns, in runs of `runs` rows and columns. Threads hold the tile as the
    /// layout says (thread, register to row, column). `wave`: lanes of a wave that can exchange values; 0 or 1 where they cannot.
    pub fn new(layout: &Layout, size: [u32; 2], runs: [u32; 2], wave: u32) -> TileReduction {
        let threads = layout.extent(Axis::Thread) as u32;
        let places: Vec<[u32; 2]> =
            (0..threads).map(|thread| [0, 1].map(|axis| place(layout, axis, Axis::Thread, thread))).collect();
        let kept = |p: [u32; 2]| [0, 1].map(|axis| p[axis] / runs[axis]);
        let whole = wave > 1 && wave.is_power_of_two() && threads.is_multiple_of(wave);
        let bits = if whole { wave.ilog2() } else { 0 };
        let alike = |bit: &u32| (0..places.len()).all(|t| kept(places[t]) == kept(places[t ^ (1 << bit)]));
        let lane_bits: Vec<u32> = (0..bits).filter(alike).collect();
        let mask = lane_bits.iter().fold(0, |mask, bit| mask | 1 << bit);
        let first: Vec<[u32; 2]> = (0..threads).filter(|t| t & mask == 0).map(|t| places[t as usize]).collect();
        let step = |axis: usize| first.iter().fold(0, |d, p| gcd(d, p[axis] % runs[axis]));
        let part_steps = [step(0), step(1)];
        let number = |p: &[u32; 2], axis: usize| (p[axis] % runs[axis]).checked_div(part_steps[axis]).unwrap_or(0);
        let parts_across = first.iter().map(|p| number(p, 1)).max().unwrap_or(0) + 1;
        let mut parts: Vec<u32> = first.iter().map(|p| number(p, 0) * parts_across + number(p, 1)).collect();
        parts.sort_unstable();
        parts.dedup();
        let [down, across] = [0, 1].map(|axis| size[axis] / runs[axis]);
        TileReduction { lane_bits, wave, parts, part_steps, parts_across, runs, values: down * across, across, tree: 0 }
    }
    /// The same with the parts combined pairwise, by all threads together, as long as their number is even.
    pub(super) fn by_tree(self) -> TileReduction {
        let count = self.parts.len() as u32;
        let numbered = self.parts.last().is_some_and(|last| last + 1 == count);
        TileReduction { tree: if numbered && count > 1 { count.trailing_zeros() } else { 0 }, ..self }
    }
    /// Nothing is combined.
    pub(super) fn of_elements(self) -> TileReduction {
        TileReduction { lane_bits: Vec::new(), parts: vec![0], ..self }
    }
    /// Values that a thread has parts of, by row and column in values of the tile as far as registers tell them apart. Each value
    /// comes with the registers that are reduced to it, by their row and column.
    pub fn held(&self, layout: &Layout) -> BTreeMap<[u32; 2], BTreeMap<[u32; 2], u32>> {
        let mut all: BTreeMap<[u32; 2], BTreeMap<[u32; 2], u32>> = BTreeMap::new();
        for register in 0..layout.extent(Axis::Register) as u32 {
            let at = [0, 1].map(|axis| place(layout, axis, Axis::Register, register));
            let kept = [0, 1].map(|axis| at[axis] / self.runs[axis]);
            all.entry(kept).or_default().insert(at, register);
        }
        all
    }
    /// Threads that share the parts of a value where the last of the work-groups combines them.
    pub fn sharers(&self, threads: u32, parts: u64) -> u32 {
        (threads / self.values.max(1)).clamp(1, u32::try_from(parts).unwrap_or(u32::MAX).max(1))
    }
    /// Elements of shared memory through which the parts meet.
    pub fn shared(&self) -> u32 {
        match self.parts.as_slice() {
            [.., last] if self.parts.len() > 1 => (last + 1) * self.values,
            _ => 0,
        }
    }
}

/// What a thread or a register adds to the row (0) or column (1).
fn place(layout: &Layout, axis: usize, of: Axis, number: u32) -> u32 {
    layout.at([Axis::Row, Axis::Col][axis], &[(of, number.into())]) as u32
}

/// Length of the runs of rows (axis 0) or columns (1) of a tile that become one partial value of a block.
///
/// It is the longest run that divides blocks and tiles, and that registers and threads both hold as runs. It gives all values of
/// the tile the same parts.
pub(super) fn run(layout: &Layout, axis: usize, size: u32, block: u64) -> u32 {
    let places = |of: Axis| (0..layout.extent(of) as u32).map(|i| place(layout, axis, of, i)).collect::<BTreeSet<u32>>();
    let (threads, registers) = (places(Axis::Thread), places(Axis::Register));
    let suits = |run: &u32| {
        let furthest = |places: &BTreeSet<u32>| places.iter().map(|p| p % run).max().unwrap_or(0);
        let mut parts: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for thread in &threads {
            registers.iter().for_each(|r| _ = parts.entry(thread / run + r / run).or_default().insert(thread % run));
        }
        let first = parts.values().next();
        furthest(&threads) + furthest(&registers) < *run && parts.values().all(|parts| Some(parts) == first)
    };
    let common = u32::try_from(block % u64::from(size.max(1))).map_or(1, |rest| gcd(size, rest));
    (1..=common).rev().filter(|run| common.is_multiple_of(*run)).find(suits).unwrap_or(1)
}
