//! Products in which each column has its own operand A: plans worth a look, and what their main kernel takes.
//!
//! Threads load what they multiply themselves. Memory bounds them where filters are small, instructions where they are large.

use super::calibration::own::*;
use super::seed_keys::tiled;
use super::{Estimate, Model, Work, fma_rate, soft_max};
use tilewright_gen::plan::{Derived, Footprint, Keys, OperandKeys, OwnLoads, Tiling, added_bytes, thread_grid};
use tilewright_gen::space::Space;
use tilewright_ir::layout::Axis;
use tilewright_ir::{CACHE_LINE, CACHE_SECTOR, Scalar, UNIT_PARTS};
use tilewright_problem::contraction::{Contraction, Operand, Tensor};

/// Bytes of a vector of columns.
const VECTOR: u32 = 16;
const SECTOR: f64 = CACHE_SECTOR as f64;
const LINE: i64 = CACHE_LINE as i64;
/// k that slices of a work-group may share, and sums of their threads.
const LONG: u32 = 512;
const LEAST_SUMS: u32 = 16;
const MOST_SUMS: u32 = 72;
/// Vectors of columns and runs of rows, over thread grids from long along the rows to long along the columns.
pub(super) fn seeds(space: &Space, form: u32, c: &Contraction) -> Vec<Keys> {
    let c = Keys::default().orient(c);
    let divides = |extent: u64, values: &[u32]| -> Vec<u32> {
        values.iter().copied().filter(|value| extent.is_multiple_of(u64::from(*value))).collect()
    };
    let widths = divides(c.n, &[8, 4, 2, 1]).into_iter().filter(|width| width * c.a.scalar.bytes() <= VECTOR).take(2);
    let rows = divides(c.m, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16]);
    let mut depths = divides(c.k.max(1), &[1, 2, 3, 4, 5, 7, 8, 9, 14, 16, 25, 27, 49]);
    depths.extend(u32::try_from(c.k).ok().filter(|k| *k <= 64));
    let (units, mut plans) = (u64::from(space.target().units.max(1)), Vec::new());
    let base = Keys { form, along_n: 1, order: 1, explicit_fma: 1, ..Keys::default() };
    let split = u32::from(!space.env().allow_atomics);
    for width in widths {
        for (threads, skew) in
            [64u32, 96, 128, 144, 192, 256, 288].into_iter().flat_map(|mac| (4..=16).map(move |skw| (mac, skw)))
        {
            let Some((along_m, along_n)) = thread_grid(threads, skew) else { continue };
            if u64::from(along_n * width) >= 2 * c.n || along_n * width * c.a.scalar.bytes() < SECTOR as u32 && c.n > 16 {
                continue;
            }
            for (row, depth) in rows.iter().flat_map(|row| depths.iter().map(move |depth| (*row, *depth))) {
                let work = row * width * depth;
                if u64::from(along_m * row) >= 2 * c.m.next_power_of_two()
                    || row * width > 64
                    || !(8 * width..=4096).contains(&work)
                {
                    continue;
                }
                let groups = c.g * c.m.div_ceil((along_m * row).into()) * c.n.div_ceil((along_n * width).into());
                let wanted = units * 1024 / (groups * u64::from(threads)).max(1);
                let most = (c.k / u64::from(depth) / 4).clamp(1, 4096);
                let mut ways = [1, wanted / 2, wanted, 2 * wanted].map(|ways| ways.clamp(1, most) as u32).to_vec();
                ways.dedup();
                let shape = tiled(base, threads, skew, [row, width]);
                for (splits, source) in ways.iter().flat_map(|ways| [(*ways, 0), (*ways, 2)]) {
                    let b = OperandKeys { source, ..shape.b };
                    plans.push(Keys { b, k_tile: depth, store_width: width, splits, split_sum: split, ..shape });
                }
            }
        }
    }
    plans.extend(sliced(space, Keys { split_sum: split, ..base }, &c));
    plans
}

/// Sums over much more than a thread takes at once, of few results: slices of the work-group share them.
fn sliced(space: &Space, base: Keys, c: &Contraction) -> Vec<Keys> {
    let (units, bytes) = (u64::from(space.target().units.max(1)), u64::from(c.a.scalar.bytes()));
    let divides = |extent: u64, value: &u32| extent.is_multiple_of(u64::from(*value));
    let mut plans = Vec::new();
    if c.k < u64::from(LONG) || c.reductions().next().is_some() {
        return plans;
    }
    let rows = || (1..=MOST_SUMS).filter(|row| divides(c.m, row));
    let widths = [8u32, 4, 2].into_iter().filter(|width| divides(c.n, width) && width * c.a.scalar.bytes() <= VECTOR);
    for (width, row) in widths.flat_map(|width| rows().map(move |row| (width, row))) {
        let columns = c.n / u64::from(width);
        if !(LEAST_SUMS..=MOST_SUMS).contains(&(width * row)) {
            continue;
        }
        // Whole sectors of neighbouring groups, all of them or a part; all rows, or half.
        let whole = |along: &u32| divides(columns, along) && (u64::from(along * width) * bytes).is_multiple_of(SECTOR as u64);
        let all = c.m.div_ceil(row.into()).next_power_of_two().min(64) as u32;
        let grids = (1..=64u32).filter(whole).flat_map(|along_n| [(all, along_n), (all.div_ceil(2), along_n)]);
        for (along_m, along_n) in grids {
            let threads = along_m * along_n;
            let tiles = c.g * c.m.div_ceil((along_m * row).into()) * columns.div_ceil(along_n.into());
            let skew = (threads.ilog2().div_ceil(2) + 10).saturating_sub(along_m.ilog2());
            let slices = [2u32, 4, 7, 8, 14, 16, 32].into_iter().filter(|slices| (96..=384).contains(&(threads * slices)));
            let shares = slices.flat_map(|slices| [4u32, 7, 8, 14, 16].map(|depth| (slices, slices * depth)));
            for (slices, depth) in shares.filter(|(_, depth)| divides(c.k, depth)) {
                let most = (c.k / u64::from(depth) / 4).clamp(1, 4096);
                let mut ways = [1, 2, 4].map(|each| (units * each / tiles.max(1)).clamp(1, most) as u32).to_vec();
                ways.dedup();
                let plan = Keys { slices, k_tile: depth, ..tiled(base, threads, skew, [row, width]) };
                let ways = ways.into_iter().map(|splits| Keys { splits, ..plan });
                plans.extend(ways.flat_map(|plan| [0, 1].map(|ahead| Keys { ahead, ..plan })));
            }
        }
    }
    plans
}

/// The main kernel.
pub(super) fn main_kernel(model: &Model, spec: &Derived, footprint: &Footprint, work: &Work, cached: bool) -> Estimate {
    let (c, target, t) = (&*model.contraction, model.target, &spec.tiling);
    let (rates, units) = (&target.rates, f64::from(target.units.max(1)));
    let [Some(a), Some(b)] = spec.schedule.copies.each_ref().map(|copy| copy.own()) else { return Estimate::default() };
    let wave = f64::from(target.wave.max(1));
    let (threads, slices) = (f64::from(spec.launch_threads()), f64::from(t.slices));
    let waves = (threads / wave).ceil();
    let narrow = |scalar: Scalar| if scalar.bytes() < 4 { 1.0 } else { 0.0 };
    let (accumulators, depth) = (f64::from(t.a.micro * t.b.micro), f64::from(t.slice_depth()));
    // Instructions of a thread in a k-tile: multiply-adds, conversions, loads with address and conditions.
    let side = |loads: &OwnLoads, scalar: Scalar| {
        let (places, width) = (loads.places.len() as f64, f64::from(loads.width));
        let conditions = loads.places.first().map_or(0, |place| place.bounds.len()) as f64;
        let size = f64::from(scalar.bytes());
        let issued = places * (width * narrow(scalar) + 2.0 + CONDITION * conditions);
        // Clocks in the first-level cache for a wave.
        let cached = (wave * width * size / rates.shared_bytes.max(1.0)).max(if width * size < 16.0 { NARROW } else { 1.0 });
        (issued, places, cached, places * width * size)
    };
    let ((issued_a, places_a, cached_a, bytes_a), (issued_b, places_b, cached_b, _)) = (side(a, c.a.scalar), side(b, c.b.scalar));
    let cached_a = places_a * cached_a.max(lines(c, t, target.wave.max(1)) / LOOKED_UP);
    let cached_b = places_b * cached_b;
    // Slices exchange their sums, and each stores a part of them.
    let exchanged = if t.slices > 1 { accumulators } else { 0.0 };
    let out = accumulators / slices * (1.0 + 2.0 / f64::from(spec.epilogue.exit.width())) + exchanged * (1.0 + 2.0 / 4.0);
    let rate = fma_rate(target, c.accumulator());
    let lanes = if target.wave > 1 { 32.0 * f64::from(UNIT_PARTS) } else { rate };
    let math = work.iterations * accumulators * depth;
    let issued = math + work.iterations * (issued_a + issued_b) + out + AROUND;
    let exchanged = exchanged * f64::from(c.accumulator().bytes()) * 2.0 * wave / rates.shared_bytes.max(1.0);
    let l1 = waves * (work.iterations * (cached_a + cached_b) + exchanged);
    let resident = f64::from(footprint.groups_per_unit.max(1)).min((work.groups / units).ceil().max(1.0));
    // What a work-group reads of the last-level cache, once.
    let k = (work.iterations * f64::from(t.k_tile)).max(1.0);
    let line = f64::from(t.b.macro_tile.min(c.n as u32)) * f64::from(c.a.scalar.bytes()) / SECTOR;
    // A run that is no whole sectors begins and ends within some.
    let line = SECTOR * if line.fract() > 0.0 && u64::from(t.b.macro_tile) < c.n { line.ceil() + 0.5 } else { line.ceil() };
    let read = |k: u32| model.tile_bytes(spec, Operand::A, k) / SECTOR * line + model.tile_bytes(spec, Operand::B, k);
    let all = k.min(KEPT);
    // What shared memory leaves of the first-level cache, for each work-group.
    let room = f64::from(target.limits.shared_per_unit) / resident - f64::from(footprint.shared_bytes);
    let kept = (all * (room / read(all as u32).max(1.0)).clamp(0.0, 1.0)).max(f64::from(t.k_tile).min(k)) as u32;
    let read = read(kept) * (k / f64::from(kept));
    let stored = accumulators
        * f64::from(t.math_threads())
        * f64::from(if t.split_k.ways > 1 { c.accumulator() } else { c.c.scalar }.bytes());
    let l2 = (read + stored) / rates.l2_bytes.max(1.0);
    let result = c.g as f64 * c.m as f64 * c.n as f64;
    let out_bytes = if t.split_k.ways > 1 {
        result * f64::from(t.split_k.ways) * work.acc_bytes
    } else {
        result * f64::from(c.c.scalar.bytes())
    };
    let of = |tensor: &Tensor, read: bool| if read { tensor.len as f64 * f64::from(tensor.scalar.bytes()) } else { 0.0 };
    let in_bytes = of(&c.a, c.k > 0 && !cached) + of(&c.b, c.k > 0);
    let dram_bytes = in_bytes + out_bytes + added_bytes(c);
    let clock = rates.clock_ghz * 1e3;
    let us = |clocks: f64| clocks * work.groups / (units * clock);
    let (math_us, issue_us) = (us(waves * wave * math / rate), us(waves * wave * issued / (lanes * REACHED)));
    let (l1_us, l2_us, dram_us) = (us(l1), us(l2), dram_bytes / (rates.dram_gbs * 1e3 * REACHED));
    // Bytes of memory on their way: those of a thread's loads that no other thread has.
    let loaded = (work.groups * threads * work.iterations * bytes_a).max(1.0);
    let flying = resident * units * threads * bytes_a * (in_bytes / loaded).min(1.0);
    let by_latency = in_bytes / (flying / (rates.dram_latency_ns * 1e-3)).max(1.0);
    // A wave's k-tile: its instructions, and loads one after the other, as compilers leave them where they are, or all under the math.
    let of_tile = issued / work.iterations.max(1.0);
    // A filter that all work-groups read is in the first-level cache.
    let near = c.b.len as f64 * f64::from(c.b.scalar.bytes()) <= f64::from(target.limits.shared_per_unit);
    let waits = (places_a + places_b * if near { NEAR } else { 1.0 }) * WAIT;
    let of_tile = if spec.schedule.fetch_ahead > 0 { of_tile.max(waits.min(FIRST_WAIT)) } else { of_tile + waits };
    let at_once = units * resident * clock;
    let by_latency = by_latency.max(of_tile * work.iterations * work.groups / at_once);
    let busy = soft_max(&[issue_us, l1_us, l2_us, dram_us, by_latency]);
    let imbalance = (work.groups / units).ceil().max(1.0) * units / work.groups.max(1.0);
    // A thread waits for its first loads, and others of the unit fill that time, round after round.
    let rounds = (work.groups / (units * resident)).ceil().max(1.0);
    let others = (resident * waves / f64::from(UNIT_PARTS)).max(1.0);
    let ends = 2.0 * rates.dram_latency_ns * 1e-3 * (1.0 + rounds / others);
    Estimate {
        main_us: busy * imbalance + ends,
        math_us,
        issue_us,
        shared_us: l1_us,
        l2_us,
        dram_us,
        stall_us: (busy - soft_max(&[issue_us, l1_us, l2_us, dram_us])).max(0.0) * imbalance + ends,
        resident: footprint.groups_per_unit,
        imbalance,
        dram_bytes,
        ..Estimate::default()
    }
}

/// Lines of memory that a wave's load of the factor that each column has of its own lies in.
fn lines(c: &Contraction, t: &Tiling, wave: u32) -> f64 {
    let (grid, bytes) = (t.grid(), i64::from(c.a.scalar.bytes()));
    let micro = [(Axis::Row, t.a.micro), (Axis::Col, t.b.micro)];
    let line = |lane: u32| {
        let (thread, slice) = (lane % t.math_threads(), lane / t.math_threads());
        let [row, col] = micro.map(|(to, micro)| grid.at(to, &[(Axis::Thread, thread.into())]) * i64::from(micro));
        let exists = (row as u64) < c.m && (col as u64) < c.n;
        let k = i64::from(slice * t.slice_depth());
        exists.then(|| (c.a.view.access.offset.at(&[col, row, k]) * bytes).div_euclid(LINE))
    };
    let mut found: Vec<i64> = (0..wave.min(t.math_threads() * t.slices)).filter_map(line).collect();
    found.sort_unstable();
    found.dedup();
    found.len() as f64
}
