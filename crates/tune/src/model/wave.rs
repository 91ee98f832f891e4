//! What one wave's memory accesses cost: lanes are laid out as the generator lays them, and their addresses counted.

use super::Model;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use tilewright_gen::plan::{Along, KernelSpec, OperandTiling, Source, Tiling};
use tilewright_ir::layout::{Axis, busiest_bank};
use tilewright_ir::{CACHE_LINE, CACHE_SECTOR};
use tilewright_problem::contraction::Operand;

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

/// What decides how fragments are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FragmentShape {
    operand: Operand,
    /// Threads along m and n, whether those along n are neighbours, and the waves' rectangles.
    grid: (u32, u32, bool, u32, u32),
    micro: u32,
    micro_interleave: bool,
    width: u32,
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

/// Cycles that one access of a wave to shared memory takes: lanes at byte addresses, each moving `bytes`. Lanes that read
/// the same word share it.
fn shared_cycles(addresses: &[i64], bytes: i64, apart: f64) -> f64 {
    if bytes > WIDEST {
        let parts = bytes / WIDEST;
        let shifted = |part: i64| addresses.iter().map(|a| a + part * WIDEST).collect::<Vec<i64>>();
        return (0..parts).map(|part| shared_cycles(&shifted(part), WIDEST, apart)).sum();
    }
    let bank = |lanes: &[i64], bytes: i64| f64::from(busiest_bank(lanes.iter().copied(), bytes));
    // 128 bytes are handed out at a time: narrow accesses of 32 lanes, wide ones of fewer.
    let lanes = (LINE / bytes.max(4)) as usize;
    let phases: f64 = addresses.chunks(lanes.max(1)).map(|lanes| bank(lanes, bytes)).sum();
    // Phases that want the same words are served together, most of the time.
    let merged = if bytes > 4 { phases * apart } else { phases };
    merged.max(bank(addresses, bytes))
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

impl Model<'_> {
    /// The cost of loading an operand's tile under a plan.
    pub(super) fn load_cost(&self, spec: &KernelSpec, operand: Operand) -> LoadCost {
        let (t, copy) = match operand {
            Operand::A => (&spec.tiling.a, &spec.schedule.copies[0]),
            _ => (&spec.tiling.b, &spec.schedule.copies[1]),
        };
        if copy.in_pipeline() {
            // One thread asks for whole lines.
            let bytes = t.macro_tile * spec.tiling.k_tile * self.contraction.tensor(operand).scalar.bytes();
            return LoadCost { load_cycles: f64::from(bytes) / LINE as f64, ..LoadCost::default() };
        }
        let tile = OperandTiling { micro: 1, fragment_width: 1, micro_interleave: false, fragment_sets: 0, ..t.clone() };
        let shape = LoadShape { operand, threads: spec.load_threads().max(1), k_tile: spec.tiling.k_tile, tile };
        known(&self.loads, shape, |shape| self.measure_load(shape))
    }

    fn measure_load(&self, s: &LoadShape) -> LoadCost {
        let (t, share) = (&s.tile, s.tile.share(s.k_tile));
        let size = i64::from(self.contraction.tensor(s.operand).scalar.bytes());
        let lanes = self.target.wave.clamp(1, s.threads);
        let at = |to: Axis, lane: u32, vector: u32| share.at(to, &[(Axis::Thread, lane.into()), (Axis::Vector, vector.into())]);
        let ((count_row, count_k), width) = (t.vectors(), share.extent(Axis::Element) as i64);
        let waves = f64::from(s.threads) / f64::from(lanes);
        let vectors = f64::from(count_row * count_k);
        // A vector wider than an instruction moves in several pieces, each of which leaves gaps between lanes.
        let pieces = ((width * size + WIDEST - 1) / WIDEST).max(1);
        let piece = (width * size / pieces).max(1);
        let mut load_cycles = 0.0;
        // A few of the vectors stand for all of them.
        let sample = [(0, 0), (count_row / 2, count_k / 2), (count_row - 1, count_k - 1)];
        let mut lines = Vec::with_capacity(2 * lanes as usize);
        for (r, k) in sample {
            lines.clear();
            for lane in 0..lanes {
                let vector = k * count_row + r;
                if let Some(at) = self.address(s.operand, t, at(Axis::Row, lane, vector), at(Axis::K, lane, vector)) {
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
            store_cycles: shared_cycles(&addresses, store_bytes, 1.0) * stores * waves,
        }
    }

    /// Byte address of an element of the first tile; `None` where it does not exist.
    fn address(&self, operand: Operand, t: &OperandTiling, row: i64, k: i64) -> Option<i64> {
        let tensor = self.contraction.tensor(operand);
        let size = i64::from(tensor.scalar.bytes());
        let [_, rows, cols] = tensor.view.extent.map(|e| i64::try_from(e).unwrap_or(i64::MAX));
        let element = match t.source {
            Source::Packed => k * i64::from(t.macro_tile) + row,
            Source::Copy => k * rows + row,
            Source::CopyAlongK => row * cols + k,
            Source::InPlace | Source::PaddedRows => tensor.view.access.at([0, row.min(rows - 1), k.min(cols - 1)])?,
        };
        Some(element.saturating_mul(size))
    }

    /// Bytes of whole sectors that one tile of an operand touches: what the last-level cache delivers for it.
    pub(super) fn tile_bytes(&self, operand: Operand, t: &OperandTiling, k_tile: u32) -> f64 {
        let size = f64::from(self.contraction.tensor(operand).scalar.bytes());
        let dense = f64::from(t.macro_tile) * f64::from(k_tile) * size;
        if t.source.gathers() {
            return dense;
        }
        known(&self.tiles, (operand, t.macro_tile, k_tile), |_| self.measure_sectors(operand, t, k_tile))
    }

    fn measure_sectors(&self, operand: Operand, t: &OperandTiling, k_tile: u32) -> f64 {
        let (view, size) = (&self.contraction.tensor(operand).view, i64::from(self.contraction.tensor(operand).scalar.bytes()));
        let [_, rows, cols] = view.extent.map(|e| i64::try_from(e).unwrap_or(i64::MAX));
        let (tile_rows, tile_k) = (i64::from(t.macro_tile).min(rows), i64::from(k_tile).min(cols));
        let mut sectors = Vec::new();
        for row in 0..tile_rows {
            for k in 0..tile_k {
                if let Some(at) = view.access.at([0, row, k]) {
                    sectors.push(at.saturating_mul(size).div_euclid(SECTOR));
                }
            }
        }
        sectors.sort_unstable();
        sectors.dedup();
        sectors.len() as f64 * SECTOR as f64
    }

    /// Shared-memory cycles per wave and k-step for reading an operand's fragments.
    pub(super) fn fragment_cycles(&self, spec: &KernelSpec, operand: Operand) -> f64 {
        let t = &spec.tiling;
        let o = if operand == Operand::A { &t.a } else { &t.b };
        let shape = FragmentShape {
            operand,
            grid: (t.threads_a, t.threads_b, t.micro_b_fastest, t.wave_a, t.wave_lanes),
            micro: o.micro,
            micro_interleave: o.micro_interleave,
            width: o.fragment_width.max(1),
        };
        known(&self.fragments, shape, |_| self.measure_fragments(t, operand))
    }

    fn measure_fragments(&self, t: &Tiling, operand: Operand) -> f64 {
        let o = if operand == Operand::A { &t.a } else { &t.b };
        let size = i64::from(self.contraction.tensor(operand).scalar.bytes());
        let width = o.fragment_width.max(1);
        let (grid, own) = (t.grid(), o.micro_tile());
        let lanes = self.target.wave.clamp(1, t.math_threads().max(1));
        let addresses: Vec<i64> = (0..lanes)
            .map(|lane| {
                let id = grid.at(if operand == Operand::A { Axis::Row } else { Axis::Col }, &[(Axis::Thread, lane.into())]);
                own.at(Axis::Row, &[(Axis::Thread, id)]) * size
            })
            .collect();
        shared_cycles(&addresses, i64::from(width) * size, self.calibration.apart) * f64::from(o.micro.div_ceil(width))
    }

    /// Lines that one wave's store of one vector of C touches, and the bytes it moves.
    pub(super) fn store_lines(&self, spec: &KernelSpec) -> (f64, f64) {
        let t = &spec.tiling;
        let c = &self.contraction.c;
        let size = i64::from(c.scalar.bytes());
        let lanes = self.target.wave.clamp(1, t.math_threads().max(1));
        let moved = f64::from(lanes * spec.epilogue.exit.width()) * size as f64;
        if spec.epilogue.exit.staged() {
            return ((moved / LINE as f64).max(1.0), moved);
        }
        let (grid, own) = (t.grid(), [t.a.micro_tile(), t.b.micro_tile()]);
        let first = |which: usize, to: Axis, lane: u32| {
            own[which].at(Axis::Row, &[(Axis::Thread, grid.at(to, &[(Axis::Thread, lane.into())]))])
        };
        let [_, rows, cols] = c.view.extent.map(|e| i64::try_from(e).unwrap_or(i64::MAX));
        let mut sectors = Vec::with_capacity(lanes as usize);
        for lane in 0..lanes {
            let (row, col) = (first(0, Axis::Row, lane).min(rows - 1), first(1, Axis::Col, lane).min(cols - 1));
            if let Some(at) = c.view.access.at([0, row, col]) {
                sectors.push(at.saturating_mul(size).div_euclid(SECTOR));
            }
        }
        sectors.sort_unstable();
        sectors.dedup();
        ((sectors.len() as f64 * SECTOR as f64).max(moved) / LINE as f64, moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_follow_the_banks() {
        let lanes = |stride: i64| (0..32).map(|l| l * stride).collect::<Vec<i64>>();
        assert_eq!(shared_cycles(&lanes(4), 4, 0.5), 1.0);
        assert_eq!(shared_cycles(&lanes(8), 4, 0.5), 2.0);
        assert_eq!(shared_cycles(&lanes(128), 4, 0.5), 32.0);
        assert_eq!(shared_cycles(&lanes(0), 4, 0.5), 1.0);
        assert_eq!(shared_cycles(&lanes(132), 4, 0.5), 1.0);
        assert_eq!(shared_cycles(&lanes(16), 16, 0.5), 4.0);
        assert_eq!(shared_cycles(&lanes(0), 16, 0.5), 2.0);
        assert_eq!(shared_cycles(&lanes(32), 16, 0.5), 8.0);
        assert_eq!(shared_cycles(&lanes(32), 32, 0.5), 16.0);
        assert_eq!(shared_cycles(&(0..64).map(|l| l * 4).collect::<Vec<_>>(), 4, 0.5), 2.0);
        // Eight different vectors, each wanted by four lanes.
        let shared = |stride: i64| (0..32).map(|l| l % 8 * stride).collect::<Vec<i64>>();
        assert!(shared_cycles(&shared(16), 16, 0.5) < shared_cycles(&shared(32), 16, 0.5));
    }
}
