//! How a tile of results is reduced: registers of a thread first, then lanes of a wave, then waves through shared memory, then
//! work-groups through workspace. All of it follows from the layout that says which thread holds which element of the tile.

use super::grid::gcd;
use super::spec::{KernelSpec, Split};
use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_problem::contraction::{Contraction, Reduce};
use tilewright_problem::view::{COL, ROW};

/// Threads of a work-group that takes results from memory, element by element.
pub const ELEMENT_THREADS: u32 = 256;

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
/// `[batch entry][tile along m][tile along n][share][value]`, from where a further kernel takes them in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partials {
    /// Tiles that each have a part of a value, along m and n.
    pub tiles: [u64; 2],
    /// Work-groups that each have a share of a tile.
    pub shares: u64,
    /// Values of a batch entry.
    pub values: u64,
    /// Batch entries.
    pub entries: u64,
    /// Batch entries that each have a part of a value, and groups that stay apart between one of them and the next.
    pub outer: u64,
    /// See [`Partials::outer`].
    pub groups: u64,
    /// Parts of each result.
    pub parts: u64,
}

impl Partials {
    /// Of tiles of so many rows and columns, in numbers that are multiples of `together` (clusters), each of so many shares.
    pub fn new(c: &Contraction, r: &Reduce, size: [u64; 2], together: [u32; 2], shares: u64) -> Partials {
        let tiles = |axis: usize, extent: u64| {
            if [r.over.m, r.over.n][axis] {
                extent.div_ceil(size[axis].max(1)).next_multiple_of(together[axis].max(1).into())
            } else {
                1
            }
        };
        let tiles = [tiles(0, c.m), tiles(1, c.n)];
        let values = [(r.over.m, c.m), (r.over.n, c.n)].iter().filter(|a| !a.0).map(|a| a.1).product();
        let outer = if r.over.g { c.g / r.groups.max(1) } else { 1 };
        let each = tiles[0].saturating_mul(tiles[1]).saturating_mul(shares);
        Partials { tiles, shares, values, entries: c.g, outer, groups: r.groups, parts: each.saturating_mul(outer) }
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
        let each = self.tiles[0].saturating_mul(self.tiles[1]).saturating_mul(self.shares);
        each.saturating_mul(self.values).saturating_mul(self.entries)
    }
    /// True if there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes that one load brings at most.
const LOAD_BYTES: u32 = 16;

/// The registers of a thread that one load each fills: neighbours in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementLoads {
    /// Registers of each load, in the order of their elements.
    pub runs: Vec<Vec<u32>>,
}

impl ElementLoads {
    /// Of elements that threads hold as the layout says (thread, register to row, column).
    pub fn new(layout: &Layout, c: &Contraction) -> ElementLoads {
        let most = LOAD_BYTES / c.a.scalar.bytes().max(1);
        let (threads, registers) = (layout.extent(Axis::Thread), layout.extent(Axis::Register) as u32);
        let place = |axis: usize, register: u32| layout.at([Axis::Row, Axis::Col][axis], &[(Axis::Register, register.into())]);
        let legal = |axis: usize, width: u32| {
            let (to, extent) = [(Axis::Row, c.m), (Axis::Col, c.n)][axis];
            let align = c.a.align / c.a.scalar.bytes().max(1);
            let allowed = c.elements.as_ref().map_or(1, |view| view.vector_width([ROW, COL][axis], width, align));
            let multiple = |t: u64| layout.at(to, &[(Axis::Thread, t as i64)]).rem_euclid(width.into()) == 0;
            allowed >= width && extent.is_multiple_of(width.into()) && (0..threads).all(multiple)
        };
        for width in [8, 4, 2].into_iter().filter(|width| *width <= most) {
            for axis in [1, 0].into_iter().filter(|axis| legal(*axis, width)) {
                let mut sorted: Vec<u32> = (0..registers).collect();
                sorted.sort_by_key(|r| (place(1 - axis, *r), place(axis, *r)));
                let runs: Vec<Vec<u32>> = sorted.chunks(width as usize).map(<[u32]>::to_vec).collect();
                let adjacent = |run: &Vec<u32>| {
                    let first = (place(1 - axis, run[0]), place(axis, run[0]));
                    let next = |(i, r): (i64, &u32)| (place(1 - axis, *r), place(axis, *r)) == (first.0, first.1 + i);
                    run.len() == width as usize && first.1.rem_euclid(width.into()) == 0 && (0..).zip(run).all(next)
                };
                if runs.iter().all(adjacent) {
                    return ElementLoads { runs };
                }
            }
        }
        ElementLoads { runs: (0..registers).map(|register| vec![register]).collect() }
    }
    /// Elements of a load.
    pub fn width(&self) -> u32 {
        self.runs.first().map_or(1, |run| run.len() as u32)
    }
}

/// A tile of results that a work-group takes from memory, element by element: the split-k reduction's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementTile {
    /// (thread, register) to (row, column).
    pub layout: Layout,
    /// Rows and columns.
    pub size: [u32; 2],
}

impl ElementTile {
    /// Of a contraction's result: threads next to each other take elements that are.
    pub fn new(c: &Contraction) -> ElementTile {
        let (lanes, registers) = (64, 8);
        let others = ELEMENT_THREADS / lanes;
        let (thread, register) = (Affine::axis(0), Affine::axis(1));
        let fast = thread.digit_of(1, Some(lanes.into()));
        let slow = thread.digit_of(lanes.into(), None).plus(&register, others.into());
        let [(rows, m), (columns, n)] = match c.c.view.stride(COL) {
            Some(1) => [(slow, others * registers), (fast, lanes)],
            _ => [(fast, lanes), (slow, others * registers)],
        };
        let from = [(Axis::Thread, ELEMENT_THREADS.into()), (Axis::Register, registers.into())];
        ElementTile { layout: Layout::new(&from, &[(Axis::Row, rows), (Axis::Col, columns)]), size: [m, n] }
    }
}

impl KernelSpec {
    /// Lanes of a wave that exchange values where results are reduced.
    pub(crate) const fn exchanging(&self) -> u32 {
        if self.epilogue.shuffles { self.tiling.wave_lanes } else { 1 }
    }
    /// How the threads that compute reduce a tile, for each reduction of a contraction that is oriented as the plan says.
    pub fn tile_reductions(&self, c: &Contraction) -> Vec<TileReduction> {
        if c.reductions().next().is_none() || self.epilogue.split == Split::Workspace {
            return Vec::new();
        }
        let t = &self.tiling;
        self.reductions_of(c, &t.accumulators(c), [t.a.macro_tile, t.b.macro_tile])
    }
    /// How the kernel that sums splits up in workspace reduces a tile.
    pub fn element_reductions(&self, c: &Contraction) -> Vec<TileReduction> {
        if c.reductions().next().is_none() || self.epilogue.split != Split::Workspace {
            return Vec::new();
        }
        let tile = ElementTile::new(c);
        self.reductions_of(c, &tile.layout, tile.size)
    }
    fn reductions_of(&self, c: &Contraction, layout: &Layout, size: [u32; 2]) -> Vec<TileReduction> {
        c.reductions().map(|r| TileReduction::new(layout, size, [r.over.m, r.over.n], self.exchanging())).collect()
    }
    /// The parts of a reduction that tiles of this plan leave, of a contraction that is oriented as the plan says.
    pub fn partials(&self, c: &Contraction, r: &Reduce) -> Partials {
        let t = &self.tiling;
        if self.epilogue.split == Split::Workspace {
            return Partials::new(c, r, ElementTile::new(c).size.map(u64::from), [1; 2], 1);
        }
        if c.elements.is_some() {
            return Partials::new(c, r, [t.a.macro_tile.into(), self.share_of_columns(c)], [1; 2], 1);
        }
        let size = [t.a.macro_tile, t.b.macro_tile].map(u64::from);
        Partials::new(c, r, size, [t.cluster.m, t.cluster.n], t.cluster.splits.into())
    }
    /// Columns that a work-group of a reduction by itself walks over.
    pub fn share_of_columns(&self, c: &Contraction) -> u64 {
        let tile = u64::from(self.tiling.b.macro_tile.max(1));
        c.n.div_ceil(self.tiling.split_k.ways.max(1).into()).next_multiple_of(tile)
    }
    /// How a thread of a reduction by itself loads its elements.
    pub fn element_loads(&self, c: &Contraction) -> ElementLoads {
        ElementLoads::new(&self.tiling.accumulators(c), c)
    }
    /// Some reduction's values are spread over tiles, and meet in workspace.
    pub fn reduces_in_workspace(&self, c: &Contraction) -> bool {
        c.reductions().any(|r| !self.partials(c, r).in_place())
    }
    /// Bytes of shared memory through which waves reduce a tile's results.
    pub(crate) fn reduction_bytes(&self, c: &Contraction) -> u64 {
        meeting_bytes(&self.tile_reductions(c), c) * u64::from(self.teams())
    }
    /// The same of the kernel that sums splits up in workspace.
    pub(crate) fn element_bytes(&self, c: &Contraction) -> u64 {
        meeting_bytes(&self.element_reductions(c), c)
    }
}

/// Bytes of shared memory through which parts of a tile's values meet.
fn meeting_bytes(ways: &[TileReduction], c: &Contraction) -> u64 {
    ways.iter().map(|way| u64::from(way.shared())).sum::<u64>() * u64::from(c.accumulator().bytes())
}

/// Bytes of workspace for the parts of all reductions, the whole batch together; each begins at a multiple of `align`.
pub(crate) fn partials_bytes(spec: &KernelSpec, c: &Contraction, align: u64) -> u64 {
    let bytes = |r: &Reduce| spec.partials(c, r).len().saturating_mul(c.accumulator().bytes().into());
    let all = c.reductions().map(bytes).filter(|bytes| *bytes > 0);
    all.fold(0, |sum, bytes| sum.saturating_add(bytes.saturating_add(align)))
}
