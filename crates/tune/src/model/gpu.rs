//! The main kernel on a device with waves.

use super::tail::{self, Busiest};
use super::traffic::traffic;
use super::{Calibration, Estimate, Model, Work, at_work, fma_rate, soft_max};
use tilewright_gen::plan::{Derived, Footprint, Source, Split, StorePoint};
use tilewright_ir::affine::Atom;
use tilewright_ir::{Dialect, Scalar, Target, UNIT_PARTS};
use tilewright_problem::contraction::{Operand, Tensor};
use tilewright_problem::view::COL;

/// Cycles per work-group and k-tile on each resource of a unit, and the path through one wave.
struct KTile {
    math: f64,
    issue: f64,
    shared: f64,
    loads: f64,
    l2: f64,
    /// Cycles that a wave issues instructions, and that it waits besides memory latency.
    issuing: f64,
    waiting: f64,
    waves: f64,
    /// Stores to shared memory of a thread.
    stores: f64,
    /// Cycles per work-group for bringing in one k-tile while nothing else can be done.
    filling: f64,
}

pub(super) fn main_kernel(model: &Model, spec: &Derived, footprint: &Footprint, work: &Work) -> Estimate {
    let (c, target) = (&*model.contraction, model.target);
    let units = f64::from(target.units.max(1));
    let clock = target.rates.clock_ghz * 1e3; // cycles per microsecond
    let resident = f64::from(footprint.groups_per_unit.max(1));
    let usable = target.units_of_clusters(spec.tiling.cluster.size(), footprint.groups_per_unit);
    let busiest = match spec.tiling.tail {
        None => Busiest::of_whole((work.groups / at_work(spec, usable)).ceil().max(1.0)),
        Some(_) => {
            let beside = (f64::from(spec.tiling.persistent) / usable).max(1.0);
            tail::of_plan(&spec.tiling, work.groups, work.tail).times(beside)
        }
    };
    let per_unit = busiest.whole.max(1.0);
    let at_once = resident.min(per_unit);
    let running = (at_once * units).min(work.groups);
    let traffic = traffic(c, spec, target, work, running);
    let tile = k_tile(model, spec, work, footprint);

    // Latency of a load: the cache's, or memory's where it misses; a loaded device answers later.
    let k = &model.calibration;
    let cached = target.rates.dram_latency_ns * k.cached;
    let latency = (cached + (target.rates.dram_latency_ns * k.loaded - cached) * traffic.miss.sqrt()) * clock / 1e3;

    // Waves stay on the part of the unit where they begin: the busiest part has whole waves.
    let waves = (tile.waves * per_unit / f64::from(UNIT_PARTS)).max(1e-9);
    let uneven = waves.ceil() / waves;
    // A k-tile of `r` resident groups: cycles, and those that the busiest resource works.
    let round = |r: f64| -> (f64, f64) {
        let busy = soft_max(&[tile.math * uneven, tile.issue * uneven, tile.shared, tile.loads, tile.l2]) * r;
        let s = &spec.schedule;
        let barriers = if s.buffers > 1 { k.barrier } else { 2.0 * k.barrier };
        // Operands that come through registers and go to shared memory at once are waited for, whatever the others do. In a
        // single buffer they go there after the math.
        let through_registers = !s.copied().1;
        let at_once = s.fetch_ahead == 0 || (through_registers && s.store == StorePoint::AtOnce && s.buffers > 1);
        let own = tile.issuing * (tile.waves / f64::from(UNIT_PARTS)).max(1.0);
        let ahead = f64::from(s.fetch_ahead.max(1));
        let waiting = tile.waiting
            + barriers
            + if at_once { latency } else { (latency / ahead - own - tile.waiting).max(0.0) + k.stored * tile.stores };
        // With n waves per scheduler that each work a share f of their time, one can issue unless all wait.
        let share = tile.issuing / (tile.issuing + waiting);
        let used = 1.0 - (1.0 - share).powf((tile.waves * r / f64::from(UNIT_PARTS)).max(1.0));
        // The waves of a group meet at barriers: what they all lose there only other groups can fill.
        let group = busy / r.max(1.0);
        let alone = group / (group + k.sync);
        let filled = 1.0 - (1.0 - alone).powf(r.max(1.0));
        ((busy / (used * filled).max(share * alone)).max(own + waiting), busy)
    };
    let (out, staging) = epilogue(model, spec, work);
    // The busiest unit works through its groups `at_once` at a time.
    let rounds = (per_unit / at_once).floor();
    let rest = per_unit - rounds * at_once;
    let ramp = latency + k.ramp;
    let span = |r: f64, rounds: f64, iterations: f64| {
        if r <= 0.0 || rounds <= 0.0 {
            return 0.0;
        }
        let ends = (ramp + latency) / if rounds > 1.0 { r.max(1.0) } else { 1.0 };
        // The first k-tile comes in before any math.
        rounds * (iterations * round(r).0 + (out + tile.filling) * r + staging + ends)
    };
    // Splits of the last tiles, each with its share of the k-tiles.
    let of_splits = work.iterations * busiest.share;
    let together = at_once.min(busiest.splits);
    let split_rounds = if together > 0.0 { (busiest.splits / together).ceil() } else { 0.0 };
    let whole = span(at_once, rounds, work.iterations) + span(rest, 1.0, work.iterations);
    let cycles = whole + span(together, split_rounds, of_splits);
    let busy_cycles = round(at_once).1 / at_once * busiest.tiles().max(1.0) * work.iterations;
    let dram_us = traffic.bytes / (target.rates.dram_gbs * 1e3 * k.dram);
    let main_us = soft_max(&[cycles / clock * (1.0 + few_loaders(k, spec)), dram_us]);
    let us = |cycles: f64| cycles * work.iterations * work.groups / units / clock;
    Estimate {
        main_us,
        math_us: us(tile.math),
        issue_us: us(tile.issue),
        shared_us: us(tile.shared),
        l2_us: us(tile.l2),
        dram_us,
        stall_us: (main_us - (busy_cycles / clock).max(dram_us)).max(0.0),
        resident: footprint.groups_per_unit,
        imbalance: busiest.tiles().max(1.0) * units / work.groups.max(1.0),
        dram_bytes: traffic.bytes,
        ..Estimate::default()
    }
}

/// What fewer load waves than math waves lose, as a share of the time.
fn few_loaders(k: &Calibration, spec: &Derived) -> f64 {
    let ratio = f64::from(spec.tiling.math_threads()) / f64::from(spec.load_threads().max(1));
    k.few_loaders * ratio.log2().max(0.0)
}

fn k_tile(model: &Model, spec: &Derived, work: &Work, footprint: &Footprint) -> KTile {
    let (c, target, k) = (&*model.contraction, model.target, &model.calibration);
    let t = &spec.tiling;
    // Dot products take several k at a time.
    let depth = f64::from(t.k_steps());
    let rate = fma_rate(target, c.accumulator());
    let wave = f64::from(target.wave);
    let waves = (f64::from(t.math_threads()) / wave).ceil().max(1.0);
    let load_waves = (f64::from(spec.load_threads()) / wave).ceil().max(1.0);
    let (micro_a, micro_b) = (f64::from(t.a.micro), f64::from(t.b.micro));
    // A partly filled wave takes as long as a full one.
    let fill = waves * wave / f64::from(t.math_threads().max(1));
    let math = work.fma * fill / (rate * k.fma * f64::from(t.k_step()));

    let (reads_a, cycles_a) = model.fragment_reads(spec, Operand::A);
    let (reads_b, cycles_b) = model.fragment_reads(spec, Operand::B);
    let (reads, read_cycles) = (reads_a + reads_b, cycles_a + cycles_b);
    let (load_a, load_b) = (model.load_cost(spec, Operand::A), model.load_cost(spec, Operand::B));
    let asynchronous = |on: bool, v: f64| if on { 0.0 } else { v };
    let store_count = asynchronous(spec.schedule.copies[0].is_async(), load_a.stores)
        + asynchronous(spec.schedule.copies[1].is_async(), load_b.stores);
    let stored = (load_a.store_cycles + load_b.store_cycles) * k.store;
    // Narrow types are converted on their way to the multiply-add.
    let conversions = [(&c.a, micro_a), (&c.b, micro_b)]
        .iter()
        .map(|(x, n)| if narrow(x.scalar) && t.k_step() == 1 { *n } else { 0.0 })
        .sum::<f64>();
    let wide = if spec.style.wide_index { k.wide } else { 1.0 };
    let index = wide * (load_a.loads * address_cost(&c.a, t.a.source) + load_b.loads * address_cost(&c.b, t.b.source));
    let loop_cost = if spec.style.unroll_k { 0.0 } else { depth * 1.5 };
    // Instructions per thread besides the multiply-adds.
    let math_side = depth * (reads + conversions * 1.5) + loop_cost + k.overhead;
    // Every buffer beyond the first has its index moved on and wrapped around.
    let turning = f64::from(spec.schedule.buffers.saturating_sub(1) + spec.schedule.fetch_ahead) * k.turn;
    let load_side = load_a.loads + load_b.loads + index + store_count + k.overhead + turning;
    // Where memory instructions share the issue slots with arithmetic.
    let shares_issue = target.dialect != Dialect::Hip;
    let lanes_per_cycle = match target.dialect {
        Dialect::Hip => target.rates.f32_fma.min(64.0),
        _ => 32.0 * f64::from(UNIT_PARTS),
    };
    let other = if shares_issue { math_side } else { depth * conversions + loop_cost + k.overhead };
    let issue = math + (waves * other + load_waves * load_side) * wave / lanes_per_cycle;
    let shared_bytes_scale = 128.0 / target.rates.shared_bytes.max(1.0);
    let mut shared = (read_cycles * depth * waves + stored) * shared_bytes_scale;
    let mut issue = issue;
    // Registers that do not fit go through memory: two instructions per spilled value and k-step.
    let limit = target.limits.registers_per_thread;
    let spilled = f64::from(footprint.registers.saturating_sub(allowed_registers(spec, footprint, target).min(limit)));
    issue += spilled * 2.0 * depth * waves * wave / lanes_per_cycle;
    shared += spilled * depth * waves;

    let l2_bytes = model.tile_bytes(spec, Operand::A, t.k_tile) + model.tile_bytes(spec, Operand::B, t.k_tile);
    let loads = (load_a.load_cycles + load_b.load_cycles) * k.load;
    let l2 = l2_bytes / target.rates.l2_bytes.max(1.0);
    // One wave: its multiply-adds and reads, and the wait for what it reads in each k-step.
    let fma_clocks = wave / (rate * k.fma / f64::from(UNIT_PARTS));
    let step = micro_a * micro_b * fma_clocks + reads + conversions * 1.5;
    // Where k-steps are written out, as those are that read fragments ahead, the compiler orders reads as it likes.
    let written_out = spec.style.unroll_k || spec.schedule.fragments_ahead > 0;
    let wait = k.shared_latency + if written_out { 0.0 } else { k.loop_cycles };
    // Instructions of the loop body: beyond what the caches hold, fetching them takes its time.
    let steps = if written_out { depth } else { 1.0 };
    let body = steps * (micro_a * micro_b + reads) + load_side;
    let fetching = 1.0 + k.code_excess * ((body - k.code) / 1000.0).clamp(0.0, 4.0);
    issue *= fetching;
    KTile {
        math,
        issue,
        shared,
        loads,
        l2,
        issuing: (depth * step + load_side) * fetching,
        waiting: depth * wait + k.shared_latency,
        waves,
        stores: store_count,
        filling: loads.max(l2) + stored + load_waves * load_side / f64::from(UNIT_PARTS),
    }
}

/// Registers the compiler may give a thread.
fn allowed_registers(spec: &Derived, footprint: &Footprint, target: &Target) -> u32 {
    let groups = spec.style.min_groups.max(1);
    target.limits.registers_per_unit / (groups * footprint.threads.next_multiple_of(target.wave)).max(1)
}

const fn narrow(s: Scalar) -> bool {
    s.is_storage() || s.is_int8()
}

/// Index instructions per load: a plain stride moves a pointer, a window divides and compares.
fn address_cost(tensor: &Tensor, source: Source) -> f64 {
    if source.gathers() {
        return 1.0;
    }
    let access = &tensor.view.access;
    let digits = access.offset.terms.iter().filter(|(a, _)| matches!(a, Atom::Digit { .. }) && a.uses(COL)).count();
    let bounds = access.bounds.iter().filter(|b| b.value.uses(COL)).count();
    if digits == 0 && bounds == 0 { 1.0 } else { 2.0 + 3.0 * digits as f64 + 3.0 * bounds as f64 }
}

/// Cycles per work-group for storing its result tile, and those that its waves wait for each other where results pass through
/// shared memory.
fn epilogue(model: &Model, spec: &Derived, work: &Work) -> (f64, f64) {
    let (t, k) = (&spec.tiling, &model.calibration);
    let elements = f64::from(t.a.macro_tile) * f64::from(t.b.macro_tile);
    let width = f64::from(spec.epilogue.exit.width());
    let results = elements / f64::from(spec.sums_of_a_result(&model.contraction));
    let instructions = results / (f64::from(model.target.wave) * width);
    let cost = if spec.epilogue.split == Split::Atomic { 4.0 } else { 1.0 };
    let store = instructions * model.store_accesses(spec) * cost * k.exit;
    let issue = instructions * (4.0 + 3.0 * width) / f64::from(UNIT_PARTS);
    // One micro row or column of every thread at a time. Before them, the partial sums of a cluster all at once: each work-group stages a share.
    let staged = match spec.epilogue.exit.staged() {
        false => 0,
        true if model.contraction.c.view.stride(COL) == Some(1) => t.a.micro,
        true => t.b.micro,
    };
    let (met, share) = match spec.epilogue.split {
        Split::Cluster => (1, 1.0 / f64::from(t.cluster.splits.max(1))),
        _ => (0, 1.0),
    };
    let passes = staged + met;
    let through = f64::from(met) + if staged > 0 { share } else { 0.0 };
    let through_shared = 2.0 * through * elements * work.acc_bytes / 128.0;
    // The splits of a cluster read from each other all but what they have themselves, between two barriers of theirs.
    let (from_others, cluster_barriers) = match spec.epilogue.split {
        Split::Cluster => (1.0 - 1.0 / f64::from(t.cluster.splits.max(1)), 2.0),
        _ => (0.0, 0.0),
    };
    let rates = &model.target.rates;
    let summed = elements * work.acc_bytes * from_others / rates.peer_bytes.max(1.0);
    (soft_max(&[store, issue]) + through_shared + summed, f64::from(passes) * k.pass + cluster_barriers * rates.cluster_barrier)
}
