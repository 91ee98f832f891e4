//! How a tile of results is reduced: registers of a thread first, then lanes of a wave, then waves through shared memory, then
//! work-groups through workspace. All of it follows from the layout that says which thread holds which element of the tile.

use super::grid::gcd;
use super::spec::{KernelSpec, Tiling};
use tilewright_ir::layout::{Axis, Layout};
use tilewright_problem::contraction::{Contraction, Reduce};

/// How the threads that hold a tile reduce it to one value per row, column or tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileReduction {
    /// Bits of the thread's number that tell lanes of a wave apart which hold the same rows or columns: lanes exchange across these.
    pub lane_bits: Vec<u32>,
    /// Numbers of the parts that meet in shared memory, ascending; one: the threads of one wave have all of a value.
    pub parts: Vec<u32>,
    /// What divides the rows and columns by which threads number their parts, and parts of a row of them; 0 where an axis is kept.
    pub part_steps: [u32; 2],
    /// See [`TileReduction::part_steps`].
    pub parts_across: u32,
    /// Values of the tile.
    pub values: u32,
}

impl TileReduction {
    /// Of a tile of so many rows and columns that threads hold as the layout says (thread, register to row, column). `wave`: lanes of a
    /// wave that can exchange values; 0 or 1 where they cannot.
    pub fn new(layout: &Layout, size: [u32; 2], over: [bool; 2], wave: u32) -> TileReduction {
        let threads = layout.extent(Axis::Thread) as u32;
        let at = |thread: u32| [Axis::Row, Axis::Col].map(|to| layout.at(to, &[(Axis::Thread, thread.into())]) as u32);
        let places: Vec<[u32; 2]> = (0..threads).map(at).collect();
        let kept = |[row, col]: [u32; 2]| [if over[0] { 0 } else { row }, if over[1] { 0 } else { col }];
        let whole = wave > 1 && wave.is_power_of_two() && threads.is_multiple_of(wave);
        let bits = if whole { wave.ilog2() } else { 0 };
        let alike = |bit: &u32| (0..places.len()).all(|t| kept(places[t]) == kept(places[t ^ (1 << bit)]));
        let lane_bits: Vec<u32> = (0..bits).filter(alike).collect();
        let mask = lane_bits.iter().fold(0, |mask, bit| mask | 1 << bit);
        let first: Vec<[u32; 2]> = (0..threads).filter(|t| t & mask == 0).map(|t| places[t as usize]).collect();
        let step = |axis: usize| if over[axis] { first.iter().fold(0, |d, p| gcd(d, p[axis])) } else { 0 };
        let part_steps = [step(0), step(1)];
        let number = |p: &[u32; 2], axis: usize| p[axis].checked_div(part_steps[axis]).unwrap_or(0);
        let parts_across = first.iter().map(|p| number(p, 1)).max().unwrap_or(0) + 1;
        let mut parts: Vec<u32> = first.iter().map(|p| number(p, 0) * parts_across + number(p, 1)).collect();
        parts.sort_unstable();
        parts.dedup();
        let values = (0..2).filter(|axis| !over[*axis]).map(|axis| size[axis]).product();
        TileReduction { lane_bits, parts, part_steps, parts_across, values }
    }
    /// Elements of shared memory through which the parts meet.
    pub fn shared(&self) -> u32 {
        match self.parts.as_slice() {
            [.., last] if self.parts.len() > 1 => (last + 1) * self.values,
            _ => 0,
        }
    }
}

/// Where the values that work-groups have of a reduction go: to the result where one work-group has all of a value, else to workspace,
/// `[batch entry][tile along m][tile along n][value]`, from where a further kernel takes them in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partials {
    /// Tiles that each have a part of a value, along m and n.
    pub tiles: [u64; 2],
    /// Values of a batch entry.
    pub values: u64,
    /// Batch entries.
    pub entries: u64,
    /// Parts of each result.
    pub parts: u64,
}

impl Partials {
    /// Of tiles of so many rows and columns, in numbers that are multiples of `together` (clusters).
    pub fn new(c: &Contraction, r: &Reduce, size: [u32; 2], together: [u32; 2]) -> Partials {
        let tiles = |axis: usize, extent: u64| {
            if [r.over.m, r.over.n][axis] {
                extent.div_ceil(size[axis].max(1).into()).next_multiple_of(together[axis].max(1).into())
            } else {
                1
            }
        };
        let tiles = [tiles(0, c.m), tiles(1, c.n)];
        let values = [(r.over.m, c.m), (r.over.n, c.n)].iter().filter(|a| !a.0).map(|a| a.1).product();
        let entries = if r.over.g { c.g } else { 1 };
        Partials { tiles, values, entries: c.g, parts: tiles[0].saturating_mul(tiles[1]).saturating_mul(entries) }
    }
    /// One work-group has all of a value.
    pub const fn in_place(&self) -> bool {
        self.parts == 1
    }
    /// Elements of workspace.
    pub const fn len(&self) -> u64 {
        if self.in_place() {
            return 0;
        }
        self.tiles[0].saturating_mul(self.tiles[1]).saturating_mul(self.values).saturating_mul(self.entries)
    }
    /// True if there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Tiling {
    /// The parts of a reduction that tiles of this plan leave, of a contraction that is oriented as the plan says.
    pub fn partials(&self, c: &Contraction, r: &Reduce) -> Partials {
        Partials::new(c, r, [self.a.macro_tile, self.b.macro_tile], [self.cluster.m, self.cluster.n])
    }
}

impl KernelSpec {
    /// Lanes of a wave that exchange values where results are reduced.
    pub(crate) const fn exchanging(&self) -> u32 {
        if self.epilogue.shuffles { self.tiling.wave_lanes } else { 1 }
    }
    /// How the threads that compute reduce a tile, for each reduction of a contraction that is oriented as the plan says.
    pub fn tile_reductions(&self, c: &Contraction) -> Vec<TileReduction> {
        let t = &self.tiling;
        let mut reductions = c.reductions().peekable();
        if reductions.peek().is_none() {
            return Vec::new();
        }
        let layout = t.accumulators(c);
        let size = [t.a.macro_tile, t.b.macro_tile];
        reductions.map(|r| TileReduction::new(&layout, size, [r.over.m, r.over.n], self.exchanging())).collect()
    }
    /// Some reduction's values are spread over tiles, and meet in workspace.
    pub fn reduces_in_workspace(&self, c: &Contraction) -> bool {
        c.reductions().any(|r| !self.tiling.partials(c, r).in_place())
    }
    /// Bytes of shared memory through which waves reduce a tile's results.
    pub(crate) fn reduction_bytes(&self, c: &Contraction) -> u64 {
        let elements: u64 = self.tile_reductions(c).iter().map(|r| u64::from(r.shared())).sum();
        elements * u64::from(c.accumulator().bytes()) * u64::from(self.teams())
    }
}

/// Bytes of workspace for the parts of all reductions, the whole batch together; each begins at a multiple of `align`.
pub(crate) fn partials_bytes(spec: &KernelSpec, c: &Contraction, align: u64) -> u64 {
    let bytes = |r: &Reduce| spec.tiling.partials(c, r).len().saturating_mul(c.accumulator().bytes().into());
    let all = c.reductions().map(bytes).filter(|bytes| *bytes > 0);
    all.fold(0, |sum, bytes| sum.saturating_add(bytes.saturating_add(align)))
}
