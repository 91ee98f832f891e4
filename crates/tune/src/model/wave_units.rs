//! The main kernel with matrix instructions of single waves (`UNI1`, `UNI3`): a rough roofline of the unit, shared memory, the load
//! path, the last-level cache and device memory. It orders candidates among themselves and against the other units.

use super::calibration::*;
use super::matrix::{l2_cycles, store_pace};
use super::roofline::Roofline;
use super::traffic::traffic;
use super::{Estimate, Model, Work, at_work, soft_max};
use tilewright_gen::plan::{Along, Footprint, KernelSpec, OperandTiling, StorePoint, Transport};
use tilewright_ir::layout::Axis;
use tilewright_ir::{MatrixType, Mma};
use tilewright_problem::contraction::Operand;

/// How many times longer a wave's fragment reads take than the bytes alone: lines that start at the same banks.
fn conflicts(spec: &KernelSpec, o: &OperandTiling, element: u32) -> f64 {
    if element == 4
        && let Some(row) = Mma::find(spec.tiling.unit, MatrixType::TF32)
    {
        // Lanes read single words, of 8 rows and 4 k.
        let lanes = o.shared(spec.tiling.k_tile).compose(&row.b.layout(row.lanes(), row.b.registers));
        return lanes.map_or(1.0, |lanes| lanes.bank_cycles(Axis::Lane, row.lanes(), &[], 1, element).0 as f64);
    }
    let bytes = (o.lines(spec.tiling.k_tile).1 * element).max(1);
    let apart = (128 / (1 << bytes.trailing_zeros().min(7))).min(8);
    let lines = 8.0 / f64::from(apart.max(1));
    // Lanes that read words of two rows need each twice, unless both rows are theirs.
    match (spec.tiling.unit.family().run, o.shared_along) {
        (0, Along::Row) => 2.0 / f64::from(spec.tiling.interleave(o.micro).min(2)),
        _ => lines,
    }
}

pub(super) fn main_kernel(model: &Model, spec: &KernelSpec, footprint: &Footprint, work: &Work) -> Estimate {
    let (c, target, t, s) = (&*model.contraction, model.target, &spec.tiling, &spec.schedule);
    let units = f64::from(target.units.max(1));
    let clock = target.rates.clock_ghz * 1e3;
    let per_unit = (work.groups / at_work(spec, units)).ceil().max(1.0);
    let resident = f64::from(footprint.groups_per_unit.max(1)).min(per_unit);
    let running = (resident * units).min(work.groups);
    let traffic = traffic(c, spec, target, work, running);
    let bytes = f64::from(c.a.scalar.bytes());
    let depth = f64::from(t.k_tile);
    let waves = f64::from(t.math_threads() / t.unit.family().lanes);
    // Fewer waves than schedulers leave some of the unit idle.
    let busy_parts = (waves * resident / 4.0).min(1.0);
    let slower = t.instruction(c).map_or(1.0, |row| f64::from(row.slower));
    let math = work.fma * slower / target.rates.wave_matrix_fma / busy_parts;
    let read = |o: &OperandTiling| f64::from(o.micro) * depth * bytes * conflicts(spec, o, c.a.scalar.bytes());
    let (load_a, load_b) = (model.load_cost(spec, Operand::A), model.load_cost(spec, Operand::B));
    let brought = (f64::from(t.a.macro_tile) + f64::from(t.b.macro_tile)) * depth * bytes;
    let [a_copied, b_copied] = s.copies.each_ref().map(Transport::is_async);
    let stores = |on: bool, cycles: f64| if on { 0.0 } else { cycles };
    let stored = stores(a_copied, load_a.store_cycles) + stores(b_copied, load_b.store_cycles) + brought / 128.0;
    let shared = waves * (read(&t.a) + read(&t.b)) / 128.0 + stored;
    let loads = load_a.load_cycles + load_b.load_cycles;
    // Instructions besides those of the unit: four schedulers issue one a cycle each.
    let load_waves = f64::from(spec.load_threads().div_ceil(target.wave.max(1)));
    let one_by_one = |on: bool, n: f64| if on { 0.0 } else { n };
    let issued = load_a.loads + load_b.loads + one_by_one(a_copied, load_a.stores) + one_by_one(b_copied, load_b.stores);
    // Registers that do not fit are written to memory and read back in each k-tile.
    let held = target.limits.registers_per_unit / footprint.threads.max(1);
    let spilled = f64::from(footprint.registers.saturating_sub(held.min(target.limits.registers_per_thread)));
    let issue = load_waves * issued * 3.0 / 4.0 + 4.0 * spilled * waves;
    let l2 = l2_cycles(brought, traffic.miss, running / units);
    let latency = target.rates.dram_latency_ns * clock / 1e3 * 1.3;
    let ahead = f64::from(s.fetch_ahead);
    let alone = if s.fragments_ahead > 0 { WAVE_TURN } else { 2.0 * WAVE_TURN };
    let busy = soft_max(&[math, shared, loads, issue, l2]) + alone / resident;
    let waited = s.fetch_ahead == 0 || (s.store == StorePoint::AtOnce && !s.copied().0);
    let k_tile = if waited { busy + latency / resident } else { busy.max(latency / (ahead * resident)) };
    let size = f64::from(if t.split_k.ways > 1 { 4 } else { c.c.scalar.bytes() });
    let pace = if spec.epilogue.staged { ROWS * size } else { store_pace(spec.epilogue.store_width, size) };
    let out = f64::from(t.a.macro_tile) * f64::from(t.b.macro_tile) * size / pace;
    let overlap = if resident > 1.0 { 0.5 } else { 1.0 };
    let group = work.iterations * k_tile + (out + WAVE_RAMP) * overlap;
    let roofline = Roofline {
        cycles: group * per_unit + WAVE_RAMP * (1.0 - overlap),
        per_unit,
        busy,
        math,
        issue,
        shared,
        l2: l2.max(loads),
        dram_bytes: traffic.bytes,
        trust: 1.0,
    };
    roofline.estimate(target, footprint, work)
}
