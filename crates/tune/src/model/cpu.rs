//! The main kernel on a processor without waves: an OpenCL work-group is a loop over its threads on one core.
//!
//! What counts there: vector arithmetic, values that live across barriers and go through memory, and small work-groups
//! with much work per thread.

use super::calibration::*;
use super::traffic::traffic;
use super::{Estimate, Model, Work, at_work, fma_rate, soft_max};
use tilewright_gen::plan::{Along, Derived};
use tilewright_ir::{CORE, Scalar};
use tilewright_problem::contraction::Operand;

pub(super) fn main_kernel(model: &Model, spec: &Derived, work: &Work) -> Estimate {
    let (c, target) = (&*model.contraction, model.target);
    let t = &spec.tiling;
    let units = f64::from(target.units.max(1));
    let clock = target.rates.clock_ghz * 1e3;
    let acc = c.accumulator();
    let lane_count = if acc == Scalar::F64 { CORE.vector_bytes / 8.0 } else { CORE.vector_bytes / 4.0 };
    let rate = fma_rate(target, acc);
    let threads = f64::from(t.math_threads());
    let depth = f64::from(t.k_tile);
    let (ma, mb) = (f64::from(t.a.micro), f64::from(t.b.micro));
    // Explicit vectors fill registers; scalar math is vectorised over threads where they read adjacent memory.
    let width = f64::from(t.math_width.max(1)).min(lane_count);
    let fill = if t.math_width > 1 { width / lane_count } else { 0.33 };
    let accumulators = ma * mb / width;
    let spill = ((accumulators + mb / width + 2.0) / CORE.registers).max(1.0);
    // Fragments indexed by a loop counter live in memory.
    let rolled = if spec.style.unroll_k || spec.schedule.fragments_ahead > 0 { 1.0 } else { 1.7 };
    let math = rolled * work.fma / (rate * fill * 0.7) * if spill > 1.0 { 1.0 + 1.5 * (spill - 1.0) } else { 1.0 };
    // Dependent multiply-adds: a handful of accumulators must be in flight.
    let chains = (8.0 / accumulators.max(1.0)).clamp(1.0, 4.0).powf(0.4);

    // Per k-step a thread reads its fragments; the left one as broadcasts.
    let a_reads = ma;
    let b_reads = mb / width * f64::max(1.0, width / f64::from(t.b.fragment_width.max(1)).max(1.0).min(width)).min(4.0);
    let reads = threads * depth * (a_reads + b_reads) / CORE.ports;
    let loads = load_cycles(model, spec, Operand::A) + load_cycles(model, spec, Operand::B);
    // Accumulators live across barriers: stored and loaded once per region, from whichever cache holds those of all threads.
    let private = threads * ma * mb * work.acc_bytes;
    let far = if private > CORE.caches[0] {
        12.0
    } else if private > CORE.caches[0] * 0.6 {
        3.0
    } else {
        1.0
    };
    let kept = far * threads * 2.0 * accumulators.max(1.0) / CORE.ports;
    let barriers = if spec.schedule.buffers > 1 { 1.0 } else { 2.0 };
    let regions = threads * CPU_REGION * barriers + 40.0;
    let tile = (f64::from(t.a.macro_tile) + f64::from(t.b.macro_tile)) * depth * f64::from(c.a.factor().bytes());
    let held = tile * f64::from(spec.schedule.buffers) + f64::from(t.a.macro_tile) * f64::from(t.b.macro_tile) * work.acc_bytes;
    let crowded = if held > CORE.caches[1] {
        2.0
    } else if tile > CORE.caches[0] {
        1.3
    } else {
        1.0
    };

    // Long bodies leave the instruction caches, and take compilers long.
    let steps = if spec.style.unroll_k { depth } else { 1.0 };
    let moves = [Operand::A, Operand::B].map(|o| model.load_cost(spec, o)).iter().map(|l| l.loads + l.stores).sum::<f64>();
    let body = steps * (1.0 + f64::from(spec.schedule.fragments_ahead)) * (accumulators + ma + mb / width) + 1.5 * moves;
    let fetching = 1.0 + 0.4 * (body / CPU_BODY - 1.0).clamp(0.0, 10.0);
    let busy = soft_max(&[math * chains, reads * crowded]) * fetching;
    let iteration = busy + loads + kept + regions;
    let out = f64::from(t.a.macro_tile) * f64::from(t.b.macro_tile) * 2.0 / f64::from(spec.epilogue.exit.width());
    let per_unit = (work.groups / at_work(spec, units)).ceil();
    let group = work.iterations * iteration + out + threads * 30.0 + 600.0;
    let traffic = traffic(c, spec, target, work, units.min(work.groups));
    let dram_us = traffic.bytes / (target.rates.dram_gbs * 1e3 * 0.7);
    let main_us = soft_max(&[per_unit * group / clock, dram_us]);
    let us = |cycles: f64| cycles * work.iterations * work.groups / units / clock;
    Estimate {
        main_us,
        math_us: us(math),
        issue_us: us(regions + kept + loads),
        shared_us: us(reads),
        l2_us: us(loads),
        dram_us,
        stall_us: us(math * (chains - 1.0)),
        resident: 1,
        imbalance: per_unit * units / work.groups.max(1.0),
        dram_bytes: traffic.bytes,
        ..Estimate::default()
    }
}

/// Cycles for moving an operand's tile into shared memory.
fn load_cycles(model: &Model, spec: &Derived, operand: Operand) -> f64 {
    let (t, k_tile) = (if operand == Operand::A { &spec.tiling.a } else { &spec.tiling.b }, spec.tiling.k_tile);
    let elements = f64::from(t.macro_tile) * f64::from(k_tile);
    let dense = model.contraction.tensor(operand).bytes_of(elements);
    // Strided walks touch whole lines for few elements.
    let waste = (model.tile_bytes(spec, operand, k_tile) / dense.max(1.0)).clamp(1.0, 8.0);
    let transposed = if t.load_along == Along::K { 2.0 } else { 1.0 };
    let width = f64::from(t.load_width.max(1));
    elements / width * 2.0 * transposed / CORE.ports * waste.sqrt() + elements * 0.25 * (transposed - 1.0)
}
