//! The main kernel with a matrix unit: a roofline of the tensor cores, shared memory, the last-level cache and device memory, with
//! what filling, draining and uneven rounds add.
//!
//! Rates of the H100 and H200 that [`Target`] does not name: instructions of 64 x n x 32 bytes take n / 2 cycles from n = 64 up
//! and hardly less below (measured by others on an H100); all units together draw about 48 bytes per cycle each from the
//! last-level cache. How results are stored, waits without roles and what one unit draws from device memory was measured on an H200
//! (docs/performance.md).

use super::calibration::*;
use super::roofline::Roofline;
use super::traffic::traffic;
use super::{Estimate, Model, Work, soft_max};
use tilewright_gen::plan::materialised;
use tilewright_gen::plan::{
    FetchWork, Footprint, KernelSpec, OperandTiling, Tiling, Transport, bulk_tile, fetch_work, store_columns,
};
use tilewright_problem::contraction::{Contraction, Tensor};

/// Cycles in which load waves fetch a k-tile, when so many work-groups share a unit. Batches of an operand wait one after the other;
/// of operands that are asked for ahead each waits while the other does.
fn fetched(c: &Contraction, spec: &KernelSpec, latency: f64, resident: f64) -> f64 {
    let waves = f64::from(spec.load_threads() / spec.tiling.wave_lanes.max(1));
    let works: Vec<FetchWork> = (0..2).filter_map(|which| fetch_work(spec, c, which)).collect();
    let batches = |w: &FetchWork| f64::from(w.chunks.div_ceil(w.at_once.max(1)));
    // What comes from staging has been there for long.
    let ahead = works.iter().filter(|w| w.ahead && !w.staged).map(batches).fold(0.0, f64::max);
    let waits = ahead + works.iter().filter(|w| !w.ahead).map(batches).sum::<f64>();
    let slots = works.iter().map(|w| f64::from(w.chunks * w.instructions + w.besides)).sum::<f64>();
    // Waves beside each other on a scheduler, of all work-groups, share its slots.
    let alone = waits * latency * FETCH_WAIT + slots / FETCH_ISSUE;
    (alone / resident).max(slots * (waves / SCHEDULERS).max(1.0))
}

/// Units that clusters of this size keep busy: they stand within a part of the chip with 14 to 18 of them (on an H200 32 clusters of
/// four take two rounds).
fn usable(units: f64, cluster: u32) -> f64 {
    let lost = match cluster {
        0..=2 => 0.0,
        3..=4 => 12.0,
        5..=8 => 20.0,
        _ => 36.0,
    };
    units * (1.0 - lost / 132.0)
}

/// Result tiles that a compute unit computes one after the other. Persistent work-groups that do not fit at first start when others have ended.
fn rounds(tiles: f64, t: &Tiling, usable: f64, resident: f64) -> f64 {
    let stay = f64::from(t.persistent);
    if stay == 0.0 {
        return (tiles / usable).ceil().max(1.0);
    }
    let at_once = (usable * resident).min(stay);
    // Per unit, as many as stay there.
    let beside = (stay / usable).min(resident).max(1.0);
    (tiles / stay).ceil().max(1.0) * beside * (stay / at_once).ceil()
}

/// Cycles of one instruction with n columns.
fn instruction(n: f64) -> f64 {
    (n / 2.0 + 0.5).max(17.0 + n / 4.0)
}

/// Cycles in which one unit draws these bytes, `miss` of them from device memory, when this share of all units runs.
pub(super) fn l2_cycles(bytes: f64, miss: f64, share: f64) -> f64 {
    bytes * ((1.0 - miss) / L2_BYTES * share.clamp(0.7, 1.0) + miss / UNIT_DRAM)
}

/// Bytes per cycle that a unit's results are stored with straight from registers: a wave's store touches eight rows, in four cycles
/// each, with four runs of neighbours in each row.
pub(super) fn store_pace(width: u32, element: f64) -> f64 {
    f64::from(width.max(1)) * element
}

/// Cycles of a k-tile in which its instructions wait to be drained and its first fragments are read, where a unit holds so many
/// work-groups with so many warpgroups each. Another warpgroup, or instructions left unfinished, hide them.
fn drains(spec: &KernelSpec, owners: f64, resident: f64) -> f64 {
    let (ahead, roles, warpgroups) = (spec.schedule.math_behind > 0, spec.schedule.roles.is_some(), owners * resident);
    let drain = match (ahead, roles) {
        (true, _) => 4.0,
        (false, true) if warpgroups > 1.0 => 4.0,
        (false, true) => DRAIN,
        (false, false) => DRAIN_ALONE / resident,
    };
    let fragments = match (spec.tiling.a.fragment_sets, !ahead && warpgroups <= 1.0) {
        (0, _) => 0.0,
        (_, true) => FRAGMENTS.0,
        (_, false) => FRAGMENTS.1,
    };
    drain + fragments
}

/// Cycles in which the results of a tile leave; `meet`: those of a cluster barrier.
fn storing(c: &Contraction, spec: &KernelSpec, meet: f64) -> f64 {
    let t = &spec.tiling;
    let (rows, columns) = (f64::from(t.a.macro_tile), f64::from(t.b.macro_tile));
    let stored = rows * columns * f64::from(if spec.split_outside() > 1 { 4 } else { c.c.scalar.bytes() });
    // Bulk stores overlap with the next tile, or another work-group; what remains is filling the staging buffers.
    let waves = f64::from(t.math_threads() / t.wave_lanes.max(1));
    let element = if spec.split_outside() > 1 { 4 } else { c.c.scalar.bytes() };
    // Narrow staging buffers, where no wider ones divide a warpgroup's columns, are many.
    let slab = (f64::from(store_columns(t.b.micro, element) * element) / 128.0).sqrt();
    let pace = if spec.epilogue.bulk {
        (SLABS.0 + SLABS.1 * waves) * slab
    } else if spec.epilogue.staged {
        f64::from(element) * ROWS * slab
    } else {
        store_pace(spec.epilogue.store_width, f64::from(element))
    };
    if t.cluster.splits > 1 {
        // Sums are written, read from all splits, and a part of them is stored.
        let sums = rows * columns * 4.0;
        sums / 128.0 + sums / PEER + 2.0 * meet + stored / pace / f64::from(t.cluster.splits)
    } else {
        stored / pace
    }
}

pub(super) fn main_kernel(model: &Model, spec: &KernelSpec, footprint: &Footprint, work: &Work) -> Estimate {
    let (c, target) = (&*model.contraction, model.target);
    let t = &spec.tiling;
    let units = f64::from(target.units.max(1));
    let clock = target.rates.clock_ghz * 1e3;
    let cluster = t.cluster;
    let per_unit = rounds(work.groups, t, usable(units, cluster.size()), f64::from(footprint.groups_per_unit.max(1)));
    let resident = f64::from(footprint.groups_per_unit.max(1)).min(per_unit);
    let running = (resident * units).min(work.groups);
    let traffic = traffic(c, spec, target, work, running);

    let bytes = f64::from(c.a.scalar.bytes());
    let (rows, columns, depth) = (f64::from(t.a.macro_tile), f64::from(t.b.macro_tile), f64::from(t.k_tile));
    let owners = f64::from(t.math_threads() / t.unit.family().lanes);
    let steps = depth * bytes / 32.0;
    let issued = owners * f64::from(t.a.micro / 64) * steps;
    let math = issued * instruction(f64::from(t.b.micro));
    let shared = issued * (2048.0 + 32.0 * f64::from(t.b.micro)) / 128.0;
    // What a cluster shares is read once for all of it.
    let read = rows / f64::from(cluster.n) + columns / f64::from(cluster.m);
    let l2 = l2_cycles(read * depth * bytes, traffic.miss, running / units);
    let teams = f64::from(spec.teams());
    let roles = spec.schedule.roles.is_some();
    let drain = drains(spec, owners, resident);
    let latency = target.rates.dram_latency_ns * clock / 1e3 * LOADED;
    // Without roles a copy is issued before the wait for the instructions of the tile before.
    let behind = 0.5 * f64::from(spec.schedule.math_behind);
    let ahead = if roles { f64::from(spec.schedule.buffers) - 1.0 } else { f64::from(spec.schedule.fetch_ahead) + behind };
    // Staging holds the k-tiles before those of the circular buffer, where every operand comes through it.
    let staged = if spec.schedule.copies.iter().all(|copy| copy.shifted().is_some()) {
        f64::from(spec.schedule.slots().max(1)) - 1.0
    } else {
        0.0
    };
    let ahead = ahead.max(1.0) + staged;
    let together = if cluster.sharers() > 1 { TOGETHER } else { 0.0 };
    let by_hand: f64 = [(rows, 0), (columns, 1)]
        .into_iter()
        .filter(|(_, i)| spec.schedule.copies[*i].is_written())
        .map(|(lines, _)| lines)
        .sum();
    let busy = soft_max(&[math, shared, l2]) + drain + together + by_hand * depth * bytes / FETCH_PORT;
    // A ring that does not span the latency of a copy is waited for; so are load waves, each batch of what they fetch.
    let fetched = fetched(c, spec, latency * (1.0 + traffic.miss) / 2.0, resident);
    let k_tile = busy.max(latency / (ahead * resident)).max(fetched);
    let meet = MEET * f64::from(cluster.size()).log2();
    let out = storing(c, spec, meet);
    // A cluster meets before its first copy.
    let start = RAMP + meet;
    // Load waves of persistent work-groups prefetch while results are stored.
    let ramp = if t.persistent > 0 && roles { start / per_unit + RAMP * 0.15 } else { start };
    let overlap = if resident > 1.0 { 0.4 } else { 1.0 };
    // Teams that alternate store while another computes.
    let math_of_tile = work.iterations * k_tile;
    let group = if teams > 1.0 {
        (math_of_tile + TURN).max((math_of_tile + out + ramp) / teams)
    } else {
        math_of_tile + (out + ramp) * overlap
    };
    // Nothing hides the storing of the last tile.
    let last = if teams > 1.0 { (math_of_tile + out + ramp - group).max(0.0) } else { RAMP * (1.0 - overlap) };
    let in_bulk =
        |tensor: &Tensor, o: &OperandTiling| bulk_tile(&materialised(tensor, o.source, o.macro_tile), o, t.k_tile).is_ok();
    let fetched = spec.schedule.copies.each_ref().map(Transport::is_written);
    let needless = (fetched[0] && in_bulk(&c.a, &t.a)) || (fetched[1] && in_bulk(&c.b, &t.b));
    let clustered = if cluster.sharers() > 1 { SHARED } else { 1.0 } * if cluster.splits > 1 { SUMMED } else { 1.0 };
    let trust = clustered * if needless { NEEDLESS } else { 1.0 };
    let roofline = Roofline {
        cycles: group * per_unit + last,
        per_unit,
        busy,
        math,
        issue: 0.0,
        shared,
        l2,
        dram_bytes: traffic.bytes,
        trust,
    };
    roofline.estimate(target, footprint, work)
}
