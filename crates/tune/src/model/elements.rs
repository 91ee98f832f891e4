//! Standalone reductions: plans worth a look, and what the kernel over the elements takes.
//!
//! It is bound by memory: by how much of a sector each load uses, and by how many bytes are on their way at once.

use super::calibration::elements::*;
use super::{Estimate, Model};
use tilewright_gen::plan::{Derived, ElementLoads, Footprint, Keys, OperandKeys};
use tilewright_gen::space::Space;
use tilewright_ir::CACHE_SECTOR;
use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{COL, ROW};

const SECTOR: i64 = CACHE_SECTOR as i64;

/// Tiles along the direction in which elements are adjacent, and numbers of work-groups that share the columns.
pub(super) fn seeds(space: &Space, form: u32, c: &Contraction) -> Vec<Keys> {
    let along_rows = along_rows(c);
    let vector = (16 / c.a.scalar.bytes()).max(1);
    let units = u64::from(space.target().units.max(1));
    let mut plans = Vec::new();
    for threads in [64u32, 128, 256, 512] {
        for along_m in (0..=threads.ilog2()).map(|log| 1 << log) {
            let skew = (threads.ilog2().div_ceil(2) + 10).checked_sub(u32::ilog2(along_m));
            // Whole lines, where a few vectors of each thread are one.
            let lanes = u64::from(if along_rows { along_m } else { threads / along_m });
            let line = u64::from(vector) * lanes;
            let extent = if along_rows { c.m } else { c.n };
            let whole = Some(extent / line.max(1)).filter(|more| extent.is_multiple_of(line) && [3, 5, 6, 7].contains(more));
            let many = [1, 2, 4, 8].into_iter().chain(whole.map(|more| more as u32));
            for (width, more) in many.flat_map(|more| [1, vector].map(|width| (width, more))) {
                let (of_fast, of_slow) = if along_rows { (width, more) } else { (width * more, 1) };
                let tile_n = threads / along_m * if along_rows { of_slow } else { of_fast };
                let tile_m = along_m * if along_rows { of_fast } else { of_slow };
                if u64::from(tile_m) >= 2 * c.m.max(1) || u64::from(tile_n) >= 2 * c.n.max(1) {
                    continue;
                }
                let fast = OperandKeys { micro: of_fast, read_width: width, interleave_micro: 1, ..OperandKeys::default() };
                let slow = OperandKeys { micro: of_slow, read_width: 1, ..OperandKeys::default() };
                let (a, b) = if along_rows { (fast, slow) } else { (slow, fast) };
                let (skew, along_n) = (skew.unwrap_or(10), u32::from(!along_rows));
                let plan = Keys { a, b, form, threads, skew, along_n, k_tile: 8, ..Keys::default() };
                let rows = c.m.div_ceil(tile_m.into());
                let most = c.n.div_ceil(tile_n.into()).min(4096);
                let mut shares: Vec<u64> =
                    [1, units, 4 * units, 16 * units].map(|groups| groups.div_ceil(rows.max(1)).min(most).max(1)).into();
                shares.dedup();
                plans.extend(shares.into_iter().map(|share| Keys { splits: share as u32, ..plan }));
            }
        }
    }
    plans
}

/// True if elements are adjacent along the rows' direction.
fn along_rows(c: &Contraction) -> bool {
    let view = c.read_view();
    view.stride(COL) != Some(1) && (view.stride(ROW) == Some(1) || view.run(ROW) > view.run(COL))
}

/// The kernel over the elements.
pub(super) fn main_kernel(model: &Model, spec: &Derived, footprint: &Footprint) -> Estimate {
    let (c, target) = (&*model.contraction, model.target);
    if c.m == 0 || c.n == 0 {
        // Nothing is read.
        return Estimate { resident: footprint.groups_per_unit, ..Estimate::default() };
    }
    let (rates, units) = (&target.rates, target.units_of_clusters(spec.tiling.cluster.size(), footprint.groups_per_unit));
    let (layout, loads) = (spec.tiling.accumulators(), spec.element_loads(c));
    let tiles = c.m.div_ceil(spec.tiling.a.macro_tile.into());
    let share = spec.share_of_columns(c);
    let groups = tiles as f64 * c.n.div_ceil(share) as f64;
    let threads = f64::from(spec.tiling.math_threads());
    // Whole tiles are loaded, those over the edge in part.
    let bytes = (c.m as f64 * c.n as f64).min(c.a.len as f64) * f64::from(c.a.scalar.bytes());
    let used = used_of_sectors(&layout, c, &loads, target.wave.max(1));
    let resident = f64::from(footprint.groups_per_unit.max(1)).min((groups / units).ceil().max(1.0));
    let each = layout.extent(Axis::Register) as f64 * f64::from(c.a.scalar.bytes()) * AHEAD;
    // Of a tile that reaches over the edge, threads beyond it load nothing, but issue their instructions.
    let steps = spec.element_steps(c);
    let exists = c.m as f64 / (tiles * u64::from(spec.tiling.a.macro_tile)) as f64;
    let flying = (resident * units).min(groups) * threads * each * exists;
    let by_latency = flying / (rates.dram_latency_ns * 1e-3);
    let whole = rates.dram_gbs * 1e3;
    let narrow = f64::from(16 - (loads.width() * c.a.scalar.bytes()).min(16)) / 16.0;
    let dram_us = bytes / used / whole * (1.0 + NARROW * narrow) * (1.0 + (SHORT_RUN / adjacent_bytes(spec, c)).powi(2));
    let rounds = (groups / (resident * units)).ceil().max(1.0);
    // The two add up in part: where loads fly that just cover the latency, some come late.
    let waited = (bytes / used / by_latency.max(1.0)).hypot(dram_us);
    let stall_us = waited - dram_us + rounds * rates.dram_latency_ns * 2e-3;
    // A load, a conversion and a few instructions per element and operator.
    let instructions =
        c.m as f64 / exists * c.n as f64 * (2.0 + 2.0 * c.reductions().count() as f64 + 8.0 / f64::from(loads.width()));
    // At the ends of lines elements are asked for one by one, and counted where they exist.
    let ends = (steps.first + steps.all[1] - steps.whole[1]) as f64 * f64::from(spec.tiling.b.macro_tile);
    let instructions = instructions + c.m as f64 / exists * ends * if loads.shifted { AT_ENDS } else { 2.0 };
    let issue_us = instructions / (rates.f32_fma * units * rates.clock_ghz * 1e3);
    let imbalance = (groups / units).ceil().max(1.0) * units / groups.max(1.0);
    Estimate {
        main_us: dram_us.max(issue_us) * imbalance.max(1.0) + stall_us,
        issue_us,
        dram_us,
        stall_us,
        resident: footprint.groups_per_unit,
        imbalance,
        dram_bytes: bytes,
        ..Estimate::default()
    }
}

/// Adjacent bytes that a tile reads of each line; endless where it has whole lines, which follow each other.
fn adjacent_bytes(spec: &Derived, c: &Contraction) -> f64 {
    let t = &spec.tiling;
    let (extent, line) = if along_rows(c) { (t.a.macro_tile, c.m) } else { (t.b.macro_tile, c.n) };
    if u64::from(extent) < line { f64::from(extent * c.a.scalar.bytes()) } else { f64::INFINITY }
}

/// How much of the sectors that a wave's load touches it uses, 0 to 1.
fn used_of_sectors(layout: &Layout, c: &Contraction, loads: &ElementLoads, wave: u32) -> f64 {
    let view = c.read_view();
    let bytes = i64::from(c.a.scalar.bytes());
    let width = loads.width();
    let lanes = u64::from(wave).min(layout.extent(Axis::Thread));
    let at = |thread: u64, to: Axis| layout.at(to, &[(Axis::Thread, thread as i64)]);
    let place = |thread: u64| {
        let (row, col) = (at(thread, Axis::Row), at(thread, Axis::Col));
        let exists = (row as u64) < c.m && (col as u64) < c.n;
        let at = offset(&view.access.offset, [0, row, col]);
        let before = if loads.shifted { offset(&view.access.offset, [0, row, 0]) % i64::from(width) } else { 0 };
        exists.then(|| (at - before) * bytes)
    };
    let starts: Vec<i64> = (0..lanes).filter_map(place).collect();
    let mut sectors: Vec<i64> =
        starts.iter().flat_map(|start| start / SECTOR..=(start + i64::from(width) * bytes - 1) / SECTOR).collect();
    sectors.sort_unstable();
    sectors.dedup();
    let asked = starts.len() as f64 * f64::from(width) * bytes as f64;
    (asked / (sectors.len() as f64 * SECTOR as f64)).clamp(1.0 / 32.0, 1.0)
}

fn offset(form: &Affine, point: [i64; 3]) -> i64 {
    form.at(&point)
}
