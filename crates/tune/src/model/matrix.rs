//! The main kernel with a matrix unit: a roofline of the tensor cores, shared memory, the last-level cache and device memory, with
//! what filling, draining and uneven rounds add.
//!
//! Rates of the H100 and H200 that [`Target`] does not name: instructions of 64 x n x 32 bytes take n / 2 cycles from n = 64 up
//! and hardly less below (measured by others on an H100); all units together draw about 48 bytes per cycle each from the
//! last-level cache.

use super::traffic::traffic;
use super::{Estimate, Model, Work, soft_max};
use tilewright_gen::plan::{Footprint, KernelSpec};

/// Bytes per cycle and unit from the last-level cache when all units ask.
const L2_BYTES: f64 = 48.0;
/// Cycles from the first copy of a work-group to its first instruction, and from the last to the end.
const RAMP: f64 = 1900.0;
/// Cycles that the waits of one k-tile cost where a single warpgroup drains its instructions.
const DRAIN: f64 = 45.0;
/// Cycles of a tile that teams taking turns do not hide.
const TURN: f64 = 120.0;
/// Bytes per cycle and unit that results are stored with, pairs of 16-bit results at a time.
const STORE_BYTES: f64 = 24.0;

/// Cycles of one instruction with n columns.
fn instruction(n: f64) -> f64 {
    (n / 2.0 + 0.5).max(17.0 + n / 4.0)
}

pub(super) fn main_kernel(model: &Model, spec: &KernelSpec, footprint: &Footprint, work: &Work) -> Estimate {
    let (c, target) = (model.contraction.oriented(spec.tiling.exchanged), model.target);
    let t = &spec.tiling;
    let units = f64::from(target.units.max(1));
    let clock = target.rates.clock_ghz * 1e3;
    let per_unit = (work.groups / units).ceil().max(1.0);
    let resident = f64::from(footprint.groups_per_unit.max(1)).min(per_unit);
    let running = (resident * units).min(work.groups);
    let traffic = traffic(&c, spec, target, work, running);

    let bytes = f64::from(c.a.scalar.bytes());
    let (rows, columns, depth) = (f64::from(t.a.macro_tile), f64::from(t.b.macro_tile), f64::from(t.k_tile));
    let owners = f64::from(t.math_threads() / t.unit.owner_threads());
    let steps = depth * bytes / 32.0;
    let issued = owners * f64::from(t.a.micro / 64) * steps;
    let math = issued * instruction(f64::from(t.b.micro));
    let shared = issued * (2048.0 + 32.0 * f64::from(t.b.micro)) / 128.0;
    let l2 = (rows + columns) * depth * bytes / L2_BYTES * (running / units).clamp(0.3, 1.0);
    // Another group, or instructions left unfinished, hide the drain of one.
    let teams = f64::from(spec.teams());
    let hidden = owners * teams * resident > 1.0 || spec.schedule.fragments_ahead > 0;
    let drain = if hidden { 4.0 } else { DRAIN };
    let latency = target.rates.dram_latency_ns * clock / 1e3 * 1.3;
    let ahead = f64::from(spec.schedule.buffers.saturating_sub(1).max(1));
    let busy = soft_max(&[math, shared, l2]) + drain;
    // A ring that does not span the latency of a copy is waited for.
    let k_tile = busy.max(latency / (ahead * resident));
    let stored = rows * columns * f64::from(if t.split_k.ways > 1 { 4 } else { c.c.scalar.bytes() });
    // Bulk stores fly while the next tile, or another work-group, is computed; what remains is filling the slabs.
    let pace = if spec.epilogue.staged { 96.0 } else { STORE_BYTES * f64::from(spec.epilogue.store_width.max(1)) / 2.0 };
    let out = stored / pace;
    // Work-groups that stay copy ahead while they store.
    let ramp = if t.persistent > 0 { RAMP / per_unit + RAMP * 0.15 } else { RAMP };
    let overlap = if resident > 1.0 { 0.4 } else { 1.0 };
    // Teams that take turns store while another computes.
    let math_of_tile = work.iterations * k_tile;
    let group = if teams > 1.0 {
        (math_of_tile + TURN).max((math_of_tile + out + ramp) / teams)
    } else {
        math_of_tile + (out + ramp) * overlap
    };
    let cycles = group * per_unit + RAMP * (1.0 - overlap);
    let dram_us = traffic.bytes / (target.rates.dram_gbs * 1e3 * 0.85);
    let main_us = soft_max(&[cycles / clock, dram_us]);
    let us = |cycles: f64| cycles * work.iterations * work.groups / units / clock;
    Estimate {
        main_us,
        math_us: us(math),
        issue_us: 0.0,
        shared_us: us(shared),
        l2_us: us(l2),
        dram_us,
        stall_us: (main_us - us(busy).max(dram_us)).max(0.0),
        resident: footprint.groups_per_unit,
        imbalance: per_unit * units / work.groups.max(1.0),
        dram_bytes: traffic.bytes,
        ..Estimate::default()
    }
}
