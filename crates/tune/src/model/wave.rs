//! What one wave's memory accesses cost: lanes are laid out as the generator lays them, and their addresses counted.

use super::Model;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use tilewright_gen::plan::{Along, BulkTile, Derived, OperandTiling, Source, Tiling};
use tilewright_ir::layout::{Axis, Layout, busiest_bank};
use tilewright_ir::{CACHE_LINE, CACHE_SECTOR};
use tilewright_problem::contraction::{Operand, Tensor};
use tilewright_problem::view::COL;

const LINE: i64 = CACHE_LINE as i64;
const SECTOR: i64 = CACHE_SECTOR as i64;

/// What decides how a tile is loaded: plans that share it share its cost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LoadShape {
    operand: Operand,
    threads: u32,
    k_tile: u32,
    /// The operand's tile, with one value for what only the math reads.
    tile: OperandTiling,
}

/// How threads lie over a tile of C.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ThreadGrid {
    /// Threads along m and n.
    threads: [u32; 2],
    /// Those along n are neighbours.
    b_fastest: bool,
    /// Threads of a wave along m, and all of them.
    wave_a: u32,
    wave_lanes: u32,
}

impl ThreadGrid {
    fn of(t: &Tiling) -> ThreadGrid {
        let threads = [t.threads_a, t.threads_b];
        ThreadGrid { threads, b_fastest: t.micro_b_fastest, wave_a: t.wave_a, wave_lanes: t.wave_lanes }
    }
}

/// What decides how fragments are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FragmentShape {
    operand: Operand,
    grid: ThreadGrid,
    micro: u32,
    micro_interleave: bool,
    width: u32,
    /// Bytes from one row to the next.
    pitch: u32,
    /// Bytes of a read.
    read: u32,
    /// Where bulk copies put the tile.
    panels: Option<BulkTile>,
}

/// What decides which elements of C the lanes of a wave store at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoreShape {
    grid: ThreadGrid,
    /// Rows, and columns: of the macro tile and of a thread, whether these are interleaved, in runs of how many.
    tiles: [(u32, u32, bool, u32); 2],
    width: u32,
    staged: bool,
}

/// Cost of loading one operand's tile once, for the whole work-group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadCost {
    /// Global load instructions per thread.
    pub loads: f64,
    /// Cycles of the load path (one line per cycle).
    pub load_cycles: f64,
    /// Shared store instructions per thread.
    pub stores: f64,
    /// Shared-memory cycles of the stores.
    pub store_cycles: f64,
}

/// Widest access that is one instruction, in bytes.
const WIDEST: i64 = 16;

/// Cycles that one access of a wave to shared memory takes, from the byte addresses of its lanes, each moving `bytes`. A cycle
/// serves 128 bytes, to as many lanes as they are enough for. Lanes that read the same word share it. Where either all neighbours
/// or all lanes two apart read the same, twice as many lanes are served at once.
pub(super) fn shared_cycles(addresses: &[i64], bytes: i64) -> f64 {
    if bytes > WIDEST {
        let parts = bytes / WIDEST;
        let shifted = |part: i64| addresses.iter().map(|a| a + part * WIDEST).collect::<Vec<i64>>();
        return (0..parts).map(|part| shared_cycles(&shifted(part), WIDEST)).sum();
    }
    let bank = |lanes: &[i64]| f64::from(busiest_bank(lanes.iter().copied(), bytes));
    let lanes = (LINE / bytes.max(4)) as usize;
    let pairs =
        |lanes: &[i64], apart: usize| (0..lanes.len()).all(|l| lanes.get(l ^ apart).is_none_or(|other| *other == lanes[l]));
    let served = |both: &[i64]| {
        let together = bytes > 4 && (pairs(both, 1) || pairs(both, 2));
        if together { bank(both) } else { both.chunks(lanes).map(bank).sum() }
    };
    addresses.chunks(2 * lanes).map(served).sum()
}

/// What a map holds for a key, measured where it holds nothing yet.
fn known<K: Eq + Hash, V: Copy>(map: &Mutex<HashMap<K, V>>, key: K, measure: impl FnOnce(&K) -> V) -> V {
    if let Some(value) = map.lock().ok().and_then(|m| m.get(&key).copied()) {
        return value;
    }
    let value = measure(&key);
    if let Ok(mut m) = map.lock() {
        m.insert(key, value);
    }
    value
}

/// Operand A is the first.
fn side(operand: Operand) -> usize {
    usize::from(operand == Operand::B)
}

/// Byte address of an element of the first tile; `None` where it does not exist.
fn address(tensor: &Tensor, t: &OperandTiling, row: i64, k: i64) -> Option<i64> {
    let (size, numbers) = (i64::from(tensor.scalar.bytes()), i64::from(tensor.scalar.numbers()));
    let [_, rows, cols] = tensor.view.extent.map(|e| i64::try_from(e).unwrap_or(i64::MAX));
    let element = match t.source {
        Source::Packed => k * i64::from(t.macro_tile) + row,
        Source::Copy => k * rows + row,
        Source::CopyAlongK | Source::CopyInRuns(_) => row * cols + k,
        Source::InPlace | Source::PaddedRows => tensor.view.access.at([0, row.min(rows - 1), k.min(cols - 1)])?,
    };
    Some((element / numbers).saturating_mul(size))
}

/// Bytes of whole sectors that a tile touches of a tensor that is no gathered copy.
fn measure_sectors(read: &Tensor, t: &OperandTiling, k_tile: u32) -> f64 {
    let (size, numbers) = (i64::from(read.scalar.bytes()), i64::from(read.scalar.numbers()));
    let [_, rows, cols] = read.view.extent.map(|e| i64::try_from(e).unwrap_or(i64::MAX));
    let (tile_rows, tile_k) = (i64::from(t.macro_tile).min(rows), i64::from(k_tile).min(cols));
    let mut sectors = Vec::new();
    for row in 0..tile_rows {
        for k in 0..tile_k {
            if let Some(at) = read.view.access.at([0, row, k]) {
                sectors.push((at / numbers).saturating_mul(size).div_euclid(SECTOR));
            }
        }
    }
    sectors.sort_unstable();
    sectors.dedup();
    sectors.len() as f64 * SECTOR as f64
}

impl Model<'_> {
    /// The cost of loading an operand's tile under a plan.
    pub(super) fn load_cost(&self, spec: &Derived, operand: Operand) -> LoadCost {
        let (t, copy) = match operand {
            Operand::A => (&spec.tiling.a, &spec.schedule.copies[0]),
            _ => (&spec.tiling.b, &spec.schedule.copies[1]),
        };
        if copy.in_pipeline() {
            // One thread asks for whole lines.
            let bytes = self.contraction.tensor(operand).bytes_of(f64::from(t.macro_tile * spec.tiling.k_tile));
            return LoadCost { load_cycles: bytes / LINE as f64, ..LoadCost::default() };
        }
        let tile = OperandTiling { micro: 1, fragment_width: 1, micro_interleave: false, fragment_sets: 0, ..t.clone() };
        let shape = LoadShape { operand, threads: spec.load_threads().max(1), k_tile: spec.tiling.k_tile, tile };
        let own = self.contraction.tensor(operand);
        let read = if t.source.gathers() { own } else { spec.read(side(operand)) };
        known(&self.loads, shape, |shape| self.measure_load(shape, read))
    }

    fn measure_load(&self, s: &LoadShape, read: &Tensor) -> LoadCost {
        let (t, share) = (&s.tile, s.tile.share(s.k_tile));
        let lanes = self.target.wave.clamp(1, s.threads);
        let at = |to: Axis, lane: u32, vector: u32| share.at(to, &[(Axis::Thread, lane.into()), (Axis::Vector, vector.into())]);
        let ((count_row, count_k), width) = (t.vectors(), share.extent(Axis::Element) as i64);
        let waves = f64::from(s.threads) / f64::from(lanes);
        let vectors = f64::from(count_row * count_k);
        // A vector wider than an instruction moves in several pieces, each of which leaves gaps between lanes.
        let bytes = self.contraction.tensor(s.operand).scalar.bytes_of(width as u64) as i64;
        let pieces = ((bytes + WIDEST - 1) / WIDEST).max(1);
        let piece = (bytes / pieces).max(1);
        let mut load_cycles = 0.0;
        // A few of the vectors stand for all of them.
        let sample = [(0, 0), (count_row / 2, count_k / 2), (count_row - 1, count_k - 1)];
        let mut lines = Vec::with_capacity(2 * lanes as usize);
        for (r, k) in sample {
            lines.clear();
            for lane in 0..lanes {
                let vector = k * count_row + r;
                if let Some(at) = address(read, t, at(Axis::Row, lane, vector), at(Axis::K, lane, vector)) {
                    lines.extend([at.div_euclid(LINE), (at + piece - 1).div_euclid(LINE)]);
                }
            }
            lines.sort_unstable();
            lines.dedup();
            let moved = f64::from(lanes) * piece as f64 / LINE as f64;
            load_cycles += (lines.len() as f64).max(moved) * pieces as f64 / sample.len() as f64;
        }
        // Elements along a line go to shared memory as vectors, elements across one by one.
        let length = if t.load_along == Along::Row { t.load_row } else { t.load_k };
        let store_width = if t.load_along == t.shared_along { t.store_width.min(length).max(1) } else { 1 };
        let stores = f64::from(t.load_row.max(1) * t.load_k.max(1)) / f64::from(store_width);
        let size = i64::from(self.contraction.tensor(s.operand).factor().bytes());
        let (shared, store_bytes) = (t.shared(s.k_tile), i64::from(store_width) * size);
        let stored = |lane: u32| {
            let place = [(Axis::Row, at(Axis::Row, lane, 0)), (Axis::K, at(Axis::K, lane, 0))];
            shared.at(Axis::Position, &place) * size
        };
        let addresses: Vec<i64> = (0..lanes).map(stored).collect();
        LoadCost {
            loads: vectors * pieces as f64,
            load_cycles: load_cycles * vectors * waves,
            stores,
            store_cycles: shared_cycles(&addresses, store_bytes) * stores * waves,
        }
    }

    /// Bytes of whole sectors that one tile of an operand touches: what the last-level cache delivers for it.
    pub(super) fn tile_bytes(&self, spec: &Derived, operand: Operand, k_tile: u32) -> f64 {
        let t = if operand == Operand::A { &spec.tiling.a } else { &spec.tiling.b };
        let dense = self.contraction.tensor(operand).bytes_of(f64::from(t.macro_tile) * f64::from(k_tile));
        if t.source.gathers() {
            return dense;
        }
        known(&self.tiles, (operand, t.source, t.macro_tile, k_tile), |_| measure_sectors(spec.read(side(operand)), t, k_tile))
    }

    /// Reads of an operand's fragments per lane and k-step, and their shared-memory cycles per wave.
    pub(super) fn fragment_reads(&self, spec: &Derived, operand: Operand) -> (f64, f64) {
        let t = &spec.tiling;
        let (o, copy) = if operand == Operand::A { (&t.a, &spec.schedule.copies[0]) } else { (&t.b, &spec.schedule.copies[1]) };
        let panels = copy.tile().cloned();
        let size = self.contraction.tensor(operand).factor().bytes();
        // Neighbours along k of a row, of dot products.
        let (wanted, pitch, read) = match t.k_step() {
            1 => (o.fragment_width.max(1), size, size),
            deep => (1, o.lines(t.k_tile).1 * size, deep * size),
        };
        let shape = FragmentShape {
            operand,
            grid: ThreadGrid::of(t),
            micro: o.micro,
            micro_interleave: o.micro_interleave,
            // Operands contiguous along k are read one row at a time.
            width: panels.as_ref().map_or(wanted, |tile| tile.layout().vector(Axis::Row, wanted).max(1)),
            pitch,
            read,
            panels,
        };
        let reads = f64::from(o.micro.div_ceil(shape.width));
        (reads, reads * known(&self.fragments, shape, |shape| self.measure_fragments(t, shape)))
    }

    /// Shared-memory cycles of one read.
    fn measure_fragments(&self, t: &Tiling, shape: &FragmentShape) -> f64 {
        let (o, axis) = if shape.operand == Operand::A { (&t.a, Axis::Row) } else { (&t.b, Axis::Col) };
        let (apart, size) = (i64::from(shape.pitch), i64::from(shape.read));
        let (grid, own, panels) = (t.grid(), o.micro_tile(), shape.panels.as_ref().map(BulkTile::layout));
        let lanes = self.target.wave.clamp(1, t.math_threads().max(1));
        let addresses: Vec<i64> = (0..lanes)
            .map(|lane| {
                let row = own.at(Axis::Row, &[(Axis::Thread, grid.at(axis, &[(Axis::Thread, lane.into())]))]);
                let element = i64::from(self.contraction.tensor(shape.operand).factor().bytes());
                let place = |tile: &Layout| tile.at(Axis::Position, &[(Axis::Row, row), (Axis::K, 0)]) * element;
                panels.as_ref().map_or(row * apart, place)
            })
            .collect();
        shared_cycles(&addresses, i64::from(shape.width) * size)
    }

    /// Sectors and lines, counted together, that a wave's store of one vector of C per lane touches. Each costs the cache about
    /// the same, however little of it is written. The mean over a few tiles, whose rows begin at other places in lines.
    pub(super) fn store_accesses(&self, spec: &Derived) -> f64 {
        let t = &spec.tiling;
        let tiles = [&t.a, &t.b].map(|o| (o.macro_tile, o.micro, o.micro_interleave, o.fragment_width));
        let (width, staged) = (spec.epilogue.exit.width(), spec.epilogue.exit.staged());
        let shape = StoreShape { grid: ThreadGrid::of(t), tiles, width, staged };
        known(&self.stores, shape, |_| self.measure_stores(spec))
    }

    fn measure_stores(&self, spec: &Derived) -> f64 {
        const TILES: [(i64, i64); 4] = [(0, 0), (1, 1), (2, 3), (3, 2)];
        let (t, c) = (&spec.tiling, &self.contraction.c);
        let (size, width) = (i64::from(c.scalar.bytes()), i64::from(spec.epilogue.exit.width()));
        let lanes = self.target.wave.clamp(1, t.math_threads().max(1));
        let (grid, own) = (t.grid(), [t.a.micro_tile(), t.b.micro_tile()]);
        let place = |which: usize, to: Axis, lane: u32| {
            own[which].at(Axis::Row, &[(Axis::Thread, grid.at(to, &[(Axis::Thread, lane.into())]))])
        };
        let by_columns = c.view.stride(COL) == Some(1);
        let run = i64::from(if by_columns { t.b.macro_tile } else { t.a.macro_tile }).max(1);
        // The epilogue stores staged results one run after the other.
        let at = |lane: u32| match i64::from(lane) * width {
            _ if !spec.epilogue.exit.staged() => (place(0, Axis::Row, lane), place(1, Axis::Col, lane)),
            element if by_columns => (element / run, element % run),
            element => (element % run, element / run),
        };
        let [_, rows, cols] = c.view.extent.map(|e| i64::try_from(e).unwrap_or(i64::MAX).max(1));
        let mut touched = 0;
        for (tile_row, tile_col) in TILES {
            let (row, col) = (tile_row * i64::from(t.a.macro_tile), tile_col * i64::from(t.b.macro_tile));
            let stored = (0..lanes).filter_map(|lane| {
                let (in_row, in_col) = at(lane);
                Some(c.view.access.at([0, (row + in_row) % rows, (col + in_col) % cols])?.saturating_mul(size))
            });
            let ends: Vec<(i64, i64)> = stored.map(|at| (at, at + width * size - 1)).collect();
            for block in [SECTOR, LINE] {
                let mut blocks: Vec<i64> =
                    ends.iter().flat_map(|(from, to)| from.div_euclid(block)..=to.div_euclid(block)).collect();
                blocks.sort_unstable();
                blocks.dedup();
                touched += blocks.len();
            }
        }
        touched as f64 / TILES.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_follow_the_banks() {
        let lanes = |stride: i64| (0..32).map(|l| l * stride).collect::<Vec<i64>>();
        assert_eq!(shared_cycles(&lanes(4), 4), 1.0);
        assert_eq!(shared_cycles(&lanes(8), 4), 2.0);
        assert_eq!(shared_cycles(&lanes(128), 4), 32.0);
        assert_eq!(shared_cycles(&lanes(0), 4), 1.0);
        assert_eq!(shared_cycles(&lanes(132), 4), 1.0);
        assert_eq!(shared_cycles(&lanes(16), 16), 4.0);
        assert_eq!(shared_cycles(&lanes(0), 16), 2.0);
        assert_eq!(shared_cycles(&lanes(32), 16), 8.0);
        assert_eq!(shared_cycles(&lanes(32), 32), 16.0);
        assert_eq!(shared_cycles(&(0..64).map(|l| l * 4).collect::<Vec<_>>(), 4), 2.0);
        // Eight vectors of 16 bytes, each wanted by four lanes: those that neighbours share are handed out to twice as many lanes at once.
        let shared = |vector: fn(i64) -> i64| (0..32).map(|l| vector(l) * 16).collect::<Vec<i64>>();
        assert_eq!(shared_cycles(&shared(|l| l / 4), 16), 2.0);
        assert_eq!(shared_cycles(&shared(|l| l % 8), 16), 4.0);
        assert_eq!(shared_cycles(&shared(|l| l % 2), 16), 2.0);
    }
}
