//! The main kernel with a matrix unit: one roofline of the unit, shared memory, the load path, the last-level cache and device
//! memory. Filling, draining and uneven rounds are added. Each copy method adds what it takes, whatever unit it feeds.
//!
//! What a device can do is [`Target`]'s; how results are stored and what waits without roles cost was measured on an H200
//! (notebook/2026-11-21-wgmma-pipeline.md).

use super::calibration::*;
use super::tail::{self, Busiest};
use super::traffic::traffic;
use super::wave::shared_cycles;
use super::{Estimate, Model, Work, soft_max};
use tilewright_gen::plan::{
    Along, Derived, FetchWork, Footprint, KernelSpec, OperandTiling, StorePoint, Tiling, Transport, bulk_tile, fetch_work,
    store_columns,
};
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::mma::{Owner, Reads};
use tilewright_ir::{CACHE_LINE, MatrixType, Mma, Scalar, Target, UNIT_PARTS};
use tilewright_problem::contraction::{Contraction, Operand, Tensor};
use tilewright_problem::view::ROW;

/// Cycles in which load waves fetch a k-tile, when so many work-groups share a unit. Batches of an operand wait one after the other.
fn fetched(spec: &Derived, latency: f64, resident: f64) -> f64 {
    let waves = f64::from(spec.load_threads() / spec.tiling.wave_lanes.max(1));
    let works: Vec<FetchWork> = (0..2).filter_map(|which| fetch_work(spec, which)).collect();
    let batches = |w: &FetchWork| f64::from(w.chunks.div_ceil(w.at_once.max(1)));
    // What comes from staging has been there for long.
    let waits: f64 = works.iter().filter(|w| !w.staged).map(batches).sum();
    let slots = works.iter().map(|w| f64::from(w.chunks * w.instructions + w.besides)).sum::<f64>();
    // Waves beside each other on a scheduler, of all work-groups, share its slots.
    let alone = waits * latency * FETCH_WAIT + slots / FETCH_ISSUE;
    (alone / resident).max(slots * (waves / f64::from(UNIT_PARTS)).max(1.0))
}

/// Result tiles that a compute unit computes one after the other. Persistent work-groups that do not fit at first start when others have ended.
fn rounds(work: &Work, t: &Tiling, usable: f64, resident: f64) -> Busiest {
    let stay = f64::from(t.persistent);
    if stay == 0.0 {
        return Busiest::of_whole((work.groups / usable).ceil().max(1.0));
    }
    let at_once = (usable * resident).min(stay);
    // Per unit, as many as stay there.
    let beside = (stay / usable).min(resident).max(1.0) * (stay / at_once).ceil();
    match t.tail {
        None => Busiest::of_whole((work.groups / stay).ceil().max(1.0) * beside),
        Some(_) => tail::of_plan(t, work.groups, work.tail).times(beside),
    }
}

/// Cycles of a warpgroup instruction with n columns, of 32 bytes of k: hardly less below 64 columns than from there up.
fn instruction(target: &Target, n: f64) -> f64 {
    (64.0 * 16.0 * n / target.rates.warpgroup_fma + 0.5).max(17.0 + n / 4.0)
}

/// Cycles in which one unit draws these bytes, `miss` of them from device memory, when this share of all units runs.
fn l2_cycles(target: &Target, bytes: f64, miss: f64, share: f64) -> f64 {
    bytes * ((1.0 - miss) / target.rates.l2_bytes * share.clamp(0.7, 1.0) + miss / target.rates.unit_dram_bytes)
}

/// Bytes per cycle at which a unit's results are stored straight from registers. A wave's store touches eight rows, in four
/// cycles each, with four runs of neighbours in each row. Results that fill the gaps between them may be neighbours along rows:
/// of four columns, then.
fn store_pace(c: &Contraction, width: u32, element: f64) -> f64 {
    let across = f64::from(width.max(1)) * element * f64::from(c.stored_together());
    if c.gaps.is_some() && c.stored_run(ROW) >= 8 { 2.0 * across } else { across }
}

/// Cycles of a k-tile in which its instructions wait to be drained and its first fragments are read. A unit holds `resident`
/// work-groups with `owners` warpgroups each. Another warpgroup, or instructions left unfinished, hide them.
fn drains(spec: &Derived, owners: f64, resident: f64) -> f64 {
    let (ahead, roles, warpgroups) = (spec.schedule.math_in_flight > Some(0), spec.schedule.roles.is_some(), owners * resident);
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

/// Cycles in which the results of a tile leave; `barrier`: those of a cluster barrier.
fn storing(c: &Contraction, spec: &KernelSpec, target: &Target, barrier: f64) -> f64 {
    let t = &spec.tiling;
    let (rows, columns) = (f64::from(t.a.macro_tile), f64::from(t.b.macro_tile));
    let outside = spec.split_outside() > 1;
    let results = rows * columns / f64::from(spec.sums_of_a_result(c));
    let stored = results * f64::from(if outside { 4 } else { c.c.scalar.bytes() * c.stored_together() });
    // Bulk stores overlap with the next tile, or another work-group; what remains is filling the staging buffers.
    let waves = f64::from(t.math_threads() / t.wave_lanes.max(1));
    let element = if spec.split_outside() > 1 { 4 } else { c.c.scalar.bytes() };
    // Narrow staging buffers, where no wider ones divide a warpgroup's columns, are many.
    let width_scale = (f64::from(store_columns(t.b.micro, element) * element) / 128.0).sqrt();
    let pace = if spec.epilogue.exit.bulk().is_some() {
        (SLABS.0 + SLABS.1 * waves) * width_scale
    } else if spec.epilogue.exit.staged() {
        f64::from(element) * ROWS * width_scale
    } else {
        store_pace(c, spec.epilogue.exit.width(), f64::from(element))
    };
    if t.cluster.splits > 1 {
        // Sums are written, read from all splits, and a part of them is stored.
        let accumulator_bytes = rows * columns * 4.0;
        accumulator_bytes / target.rates.shared_bytes
            + accumulator_bytes / target.rates.peer_bytes
            + 2.0 * barrier
            + stored / pace / f64::from(t.cluster.splits)
    } else {
        stored / pace
    }
}

/// How many times longer a wave's fragment reads take than the bytes alone, where four lanes read neighbours along k of each of eight rows.
fn conflicts_of_runs(spec: &Derived, o: &OperandTiling, bytes: f64) -> f64 {
    let of = |elements: u32| (f64::from(elements) * bytes) as i64;
    let (run, pitch) = (of(spec.tiling.k_step() / 4), of(o.lines(spec.tiling.k_tile).1));
    let lanes: Vec<i64> = (0..32).map(|lane| lane / 4 * pitch + lane % 4 * run).collect();
    shared_cycles(&lanes, run) / (32 * run) as f64 * f64::from(CACHE_LINE)
}

/// How many times longer a wave's fragment reads take than the bytes alone: lines that start at the same banks.
fn conflicts(spec: &Derived, side: usize, tensor: &Tensor, element: u32) -> f64 {
    let o = [&spec.tiling.a, &spec.tiling.b][side];
    if spec.tiling.a.raw.or(spec.tiling.b.raw).is_some() {
        return conflicts_of_runs(spec, o, o.shared_bytes(tensor));
    }
    // Swizzled panels have none.
    if spec.schedule.in_pipeline() {
        return 1.0;
    }
    let single = if element == 8 { MatrixType::F64 } else { MatrixType::TF32 };
    if element >= 4
        && let Some(row) = Mma::find(spec.tiling.unit, single)
    {
        // Lanes read single elements, of 8 rows and 4 k.
        let lanes = o.shared(spec.tiling.k_tile).compose(&row.b.layout(row.lanes(), row.b.registers));
        let cycles = |lanes: Layout| lanes.bank_cycles(Axis::Lane, row.lanes(), &[], 1, element);
        return lanes.map(cycles).map_or(1.0, |(cycles, least)| cycles as f64 / least.max(1) as f64);
    }
    if let Some(halo) = spec.schedule.copies[side].halo() {
        let (passes, fewest) = halo.passes();
        return passes as f64 / fewest.max(1) as f64;
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

/// Each k-step has text of its own.
fn written_out(spec: &Derived) -> bool {
    spec.style.unroll_k || spec.schedule.fragments_ahead > 0
}

/// Cycles of a unit's resources for a k-tile of one work-group.
struct Resources {
    math: f64,
    issue: f64,
    shared: f64,
    loads: f64,
    /// Cycles in which bulk copies start and arrive, whatever their size.
    copies: f64,
    l2: f64,
    /// Cycles that nothing hides: waits for instructions, for barriers, for others of a cluster, for the tiles that load waves write.
    besides: f64,
}

/// Cycles of a k-tile's instructions: those of the unit, those in which shared memory gives the operands, and those that nothing hides.
struct Multiplied {
    math: f64,
    shared: f64,
    waits: f64,
}

/// Instructions that read both operands from shared memory, whatever waves do meanwhile.
fn of_panels(model: &Model, spec: &Derived, work: &Work, resident: f64, per_unit: f64) -> Multiplied {
    let (c, target, t, family) = (&*model.contraction, model.target, &spec.tiling, spec.tiling.unit.family());
    let owners = f64::from(t.math_threads() / family.lanes);
    let steps = t.steps(c, 32 / c.a.factor().bytes()).len();
    // Where each unit has one tile, the fullest says how long it takes.
    let at_work = work.at_work + (1.0 - work.at_work) / per_unit;
    let issued = owners * at_work * f64::from(t.a.micro / family.block.rows * t.products()) * steps as f64;
    let shared = issued * 32.0 * f64::from(family.block.rows + t.b.micro) / target.rates.shared_bytes;
    let turns = if spec.rows_in_turn() { f64::from(t.a.micro / family.block.rows) } else { 1.0 };
    Multiplied { math: issued * instruction(target, f64::from(t.b.micro)), shared, waits: turns * drains(spec, owners, resident) }
}

/// Instructions of waves, which read fragments of both operands first.
fn of_fragments(model: &Model, spec: &Derived, work: &Work, resident: f64) -> Multiplied {
    let (c, target, t) = (&*model.contraction, model.target, &spec.tiling);
    let owners = f64::from(t.math_threads() / t.unit.family().lanes);
    // Fewer waves than schedulers leave some of the unit idle.
    let busy_parts = (owners * resident / f64::from(UNIT_PARTS)).min(1.0);
    let rate = match t.instruction {
        Some(row) if row.sum == Scalar::F64 => target.rates.f64_matrix_fma,
        row => target.rates.wave_matrix_fma / row.map_or(1.0, |row| f64::from(row.halves) / 2.0),
    };
    // Instructions that would multiply zeros alone are left out where k-steps are written out.
    let exist = written_out(spec).then(|| t.blocks(c)).flatten();
    let share = |side: usize| exist.as_ref().map_or(1.0, |blocks| blocks.share(side));
    let read = |side: usize, o: &OperandTiling, tensor: &Tensor| {
        let conflicts = conflicts(spec, side, tensor, c.a.factor().bytes());
        let parts = f64::from(o.shared_parts);
        f64::from(o.micro) * f64::from(t.k_tile) * o.shared_bytes(tensor) * parts * conflicts * share(side)
    };
    let turn = if spec.schedule.fragments_ahead > 0 { WAVE_TURN } else { 2.0 * WAVE_TURN };
    let read = read(0, &t.a, &c.a) + read(1, &t.b, &c.b);
    let shared = owners * read / target.rates.shared_bytes;
    // The only wave of a scheduler reads fragments or multiplies them. Measured for f64 alone.
    let alone = t.instruction.is_some_and(|row| row.sum == Scalar::F64) && owners * resident <= f64::from(UNIT_PARTS);
    Multiplied {
        math: work.fma * f64::from(t.products()) / rate / busy_parts * share(0) * share(1),
        shared,
        waits: turn / resident + if alone { shared } else { 0.0 },
    }
}

fn resources(
    model: &Model,
    spec: &Derived,
    footprint: &Footprint,
    work: &Work,
    resident: f64,
    per_unit: f64,
    l2: f64,
) -> Resources {
    let (c, target, t, family) = (&*model.contraction, model.target, &spec.tiling, spec.tiling.unit.family());
    let (bytes, depth) = (f64::from(c.a.factor().bytes()), f64::from(t.k_tile));
    let owners = f64::from(t.math_threads() / family.lanes);
    let sides = [(&t.a, Operand::A), (&t.b, Operand::B)];
    let together = if t.cluster.sharers() > 1 { TOGETHER } else { 0.0 };
    let Multiplied { math, shared: read, waits } = match family.reads {
        Reads::Panels => of_panels(model, spec, work, resident, per_unit),
        Reads::Vectors | Reads::Fragments => of_fragments(model, spec, work, resident),
    };
    // Instructions besides those of the unit: four schedulers issue one a cycle each.
    let load_waves = f64::from(spec.load_threads().div_ceil(target.wave.max(1)));
    let mut sum = Resources { math, issue: 0.0, shared: read, loads: 0.0, copies: 0.0, l2, besides: waits + together };
    for ((o, operand), copy) in sides.into_iter().zip(&spec.schedule.copies) {
        let tensor = c.tensor(operand);
        let parts = f64::from(o.shared_parts);
        let brought = f64::from(o.macro_tile) * depth * o.shared_bytes(tensor) * parts;
        if tensor.has_weights() && (o.raw.is_some() || spec.schedule.math_in_flight.is_none()) {
            // Instructions in flight hide the conversion of weights on their way to shared memory. Each wave makes factors of what it reads, or each thread of what it stores.
            let made = if o.raw.is_some() { owners * f64::from(o.micro) } else { f64::from(o.macro_tile) };
            sum.issue += made * depth / f64::from(t.wave_lanes.max(1)) * CONVERTING / f64::from(UNIT_PARTS);
        }
        let weights = [t.b.raw, t.a.raw][usize::from(operand == Operand::B)];
        if weights.is_some() && fragments(spec) {
            // The other operand's words, two for each instruction; of a left fragment they are no neighbours among its registers, and are moved there.
            let words = owners * f64::from(o.micro) * depth * bytes / 4.0 / f64::from(t.wave_lanes.max(1));
            let moved = if operand == Operand::A { 1.0 } else { 0.0 };
            sum.issue += words * (moved + 0.25) / f64::from(UNIT_PARTS);
        }
        if let Transport::Halo(halo) = copy {
            // Once for all k-tiles: lines of channels, each thread's pieces with an address and bounds of their own.
            let share = 1.0 / work.iterations.max(1.0);
            let (copied, pieces) = (f64::from(halo.copied()) * bytes, f64::from(halo.copied() / halo.tile.load_width.max(1)));
            sum.loads += copied / 128.0 * share;
            sum.shared += copied / target.rates.shared_bytes * share;
            sum.issue += pieces / f64::from(target.wave.max(1)) * WINDOW_ADDRESS / f64::from(UNIT_PARTS) * share;
        } else if copy.is_written() {
            sum.besides += brought / FETCH_PORT;
        } else if !copy.in_pipeline() {
            let load = model.load_cost(spec, operand);
            let by_hand = if copy.is_async() { 0.0 } else { 1.0 };
            sum.loads += load.load_cycles;
            sum.shared += by_hand * load.store_cycles * parts + brought / target.rates.shared_bytes;
            sum.issue += load_waves * (load.loads + by_hand * load.stores * parts) * 3.0 / f64::from(UNIT_PARTS);
            if parts > 1.0 {
                let elements = f64::from(o.macro_tile) * depth / f64::from(target.wave.max(1));
                sum.issue += elements * parts * PART / f64::from(UNIT_PARTS);
            }
        } else {
            // Bulk copies write what units read.
            sum.shared += brought / target.rates.shared_bytes;
            if let Transport::Bulk(tile) = copy {
                let sharers = if operand == Operand::A { t.cluster.n } else { t.cluster.m };
                let boxes = f64::from(tile.columns * tile.lines);
                let started = boxes * COPY.0 / f64::from(sharers);
                sum.copies += started + boxes * COPY.1;
                if fragments(spec) && spec.schedule.roles.is_none() {
                    // A wave that multiplies starts the copies.
                    sum.besides += started / resident;
                }
            }
        }
    }
    let (issue, besides) = by_hand(model, spec, footprint, resident);
    (sum.issue, sum.besides) = (sum.issue + issue, sum.besides + besides);
    sum
}

/// Lanes hold fragments of both operands.
fn fragments(spec: &Derived) -> bool {
    spec.tiling.instruction.is_some_and(|row| row.b.registers > 0)
}

/// Cycles beside copies and instructions of the unit: those in which schedulers issue what waves do with factors and sums, and those that nothing hides.
fn by_hand(model: &Model, spec: &Derived, footprint: &Footprint, resident: f64) -> (f64, f64) {
    let (c, target, t, family) = (&*model.contraction, model.target, &spec.tiling, spec.tiling.unit.family());
    let (bytes, depth) = (f64::from(c.a.factor().bytes()), f64::from(t.k_tile));
    let (owners, parts) = (f64::from(t.math_threads() / family.lanes), f64::from(UNIT_PARTS));
    let (mut issue, mut besides) = (0.0, 0.0);
    if t.a.split_in_registers().is_some() && fragments(spec) {
        // Each wave splits what it reads.
        issue += owners * f64::from(t.a.micro + t.b.micro) * depth / f64::from(t.wave_lanes.max(1)) * SPLITTING / parts;
    }
    if let (Some(every), Some(_)) = (spec.schedule.promoted, spec.schedule.math_in_flight) {
        // Another warpgroup's instructions hide the additions of one.
        let added = f64::from(t.a.micro * t.b.micro / family.lanes) / f64::from(every);
        issue += owners * added;
        besides += if owners * resident > 1.0 { 0.0 } else { added };
    }
    if t.a.raw.or(t.b.raw).is_some() && fragments(spec) {
        let blocks = t.a.micro / family.block.rows.max(1) * (t.b.micro / family.block.columns.max(1));
        issue += owners * f64::from(blocks) * depth * bytes / 32.0 / parts;
    }
    if t.instruction.is_some_and(|row| row.sum == Scalar::F64) && !spec.schedule.in_pipeline() {
        // Two waves of a scheduler issue their loads and stores at the same time, between barriers, and no instruction of the unit meanwhile.
        let moved = spec.schedule.copies.iter().zip([&t.a, &t.b]).map(|(copy, o)| copy.loads_and_stores(o)).sum::<f64>();
        besides += moved * DOUBLE_MOVES * ALONE / resident;
    }
    if !spec.schedule.writes_later() {
        // Registers that do not fit are written to memory and read back in each k-tile.
        let held = target.limits.share(footprint.threads.div_ceil(t.wave_lanes.max(1)), t.wave_lanes.max(1));
        let spilled = f64::from(footprint.registers.saturating_sub(held.min(target.limits.registers_per_thread)));
        issue += 4.0 * spilled * owners;
    }
    (issue, besides)
}

/// Cycles for which a circular buffer holds copies of a k-tile: what it does not span of their latency is waited for.
fn spanned(spec: &Derived, latency: f64, resident: f64) -> f64 {
    let s = &spec.schedule;
    if !s.in_pipeline() {
        return 0.0;
    }
    // Without roles a copy is issued before the wait for the instructions of the tile before.
    let in_flight = 0.5 * f64::from(s.math_in_flight.unwrap_or(0));
    let ahead = if s.roles.is_some() { f64::from(s.buffers) - 1.0 } else { f64::from(s.fetch_ahead) + in_flight };
    // Staging holds the k-tiles before those of the circular buffer, where every operand comes through it.
    let all_staged = s.copies.iter().all(|copy| copy.shifted().is_some());
    let staged = if all_staged { f64::from(s.slots().max(1)) - 1.0 } else { 0.0 };
    latency / ((ahead.max(1.0) + staged) * resident)
}

/// Cycles of a work-group's k-tile: the resources it needs, or what it waits for.
fn k_tile(spec: &Derived, busy: f64, latency: f64, miss: f64, resident: f64) -> f64 {
    let s = &spec.schedule;
    if !s.in_pipeline() {
        // Whatever comes through registers and goes to shared memory at once, however the other operand comes.
        let waited = s.fetch_ahead == 0 || (s.store == StorePoint::AtOnce && !s.copied().1);
        return if waited { busy + latency / resident } else { busy.max(latency / (f64::from(s.fetch_ahead) * resident)) };
    }
    // Load waves wait for each batch of what they fetch.
    busy.max(fetched(spec, latency * (1.0 + miss) / 2.0, resident))
}

/// Cycles that a work-group takes for a tile if it has to wait for the tile's windows before it multiplies, however few share its
/// unit. A wave's instructions run one after the other.
fn waited_windows(c: &Contraction, spec: &Derived, work: &Work, latency: f64) -> f64 {
    let (t, family) = (&spec.tiling, spec.tiling.unit.family());
    let halos = || spec.schedule.copies.iter().filter_map(Transport::halo);
    if halos().next().is_none() {
        return 0.0;
    }
    let threads = f64::from(spec.load_threads().max(1));
    let pieces = |copied: u32, width: u32| f64::from(copied) / f64::from(width.max(1)) / threads;
    let windows: f64 = halos().map(|halo| pieces(halo.copied(), halo.tile.load_width) * WINDOW_ADDRESS).sum();
    let sides = [&t.a, &t.b];
    let brought = sides.iter().zip(&spec.schedule.copies).filter(|(_, copy)| copy.halo().is_none());
    let brought: f64 = brought.map(|(o, _)| 1.5 * pieces(o.macro_tile * t.k_tile, o.load_width)).sum();
    let exist = written_out(spec).then(|| t.blocks(c)).flatten();
    let blocks = |side: usize| {
        let share = exist.as_ref().map_or(1.0, |blocks| blocks.share(side));
        f64::from(sides[side].micro) / f64::from([family.block.rows, family.block.columns][side].max(1)) * share
    };
    // A fragment read brings one instruction's rows, or the columns of two.
    let issued = f64::from(t.k_steps()) * (blocks(0) * blocks(1) + blocks(0) + blocks(1) / 2.0);
    let lanes = f64::from(t.wave_lanes.max(1));
    let stored = f64::from(t.a.micro) * f64::from(t.b.micro) / lanes * STAGED;
    let instructions = windows + work.iterations * (brought + issued) + stored;
    2.0 * latency + instructions * ALONE
}

/// What the estimate is multiplied with where it is known to be too low.
fn trust(spec: &Derived) -> f64 {
    let (t, copies) = (&spec.tiling, &spec.schedule.copies);
    let in_bulk = |which, o: &OperandTiling| bulk_tile(spec.read(which), o, t.k_tile, t.unit.family(), 1).is_ok();
    let needless = [(0, &t.a), (1, &t.b)]
        .into_iter()
        .zip(copies)
        .any(|((which, o), copy)| copy.is_written() && o.shared_parts == 1 && in_bulk(which, o));
    let clustered = if t.cluster.sharers() > 1 { SHARED } else { 1.0 } * if t.cluster.splits > 1 { SUMMED } else { 1.0 };
    // Waves that convert weights do not overlap the conversion with their instructions. More instructions per weight reduce its share.
    let raw = t.a.raw.or(t.b.raw).is_some() && spec.schedule.math_in_flight.is_none();
    let columns = f64::from(if t.a.raw.is_some() { t.b.macro_tile } else { t.a.macro_tile }.max(8));
    let converting = if raw { RAW.0 + RAW.1 * (columns / 8.0).log2() } else { 1.0 };
    let split = if t.tail.is_some() { SPLIT_TAIL } else { 1.0 };
    clustered * converting * split * if needless { NEEDLESS } else { 1.0 }
}

pub(super) fn main_kernel(model: &Model, spec: &Derived, footprint: &Footprint, work: &Work) -> Estimate {
    let (c, target, t) = (&*model.contraction, model.target, &spec.tiling);
    let unit = match t.unit.family().owner {
        Owner::Warpgroup => &WARPGROUPS,
        Owner::Wave | Owner::Thread => &WAVES,
    };
    let units = f64::from(target.units.max(1));
    let clock = target.rates.clock_ghz * 1e3;
    let cluster = t.cluster;
    let usable = target.units_of_clusters(cluster.size(), footprint.groups_per_unit);
    let busiest = rounds(work, t, usable, f64::from(footprint.groups_per_unit.max(1)));
    let per_unit = busiest.tiles().max(1.0);
    // Persistent work-groups may be fewer than a unit holds.
    let stay = if t.persistent > 0 { (f64::from(t.persistent) / usable).max(1.0) } else { f64::INFINITY };
    let resident = f64::from(footprint.groups_per_unit.max(1)).min(per_unit).min(stay);
    let running = (resident * units).min(work.groups);
    let traffic = traffic(c, spec, target, work, running);
    // What a cluster shares is read once for all of it.
    let exist = t.blocks(c);
    let read = |side: usize, o: &OperandTiling, shared: u32| match &spec.schedule.copies[side] {
        Transport::Halo(halo) => f64::from(halo.copied()) / work.iterations.max(1.0),
        copy => {
            // What does not exist is not read, but of a copy that has the zeros.
            let exist =
                exist.as_ref().filter(|_| !copy.in_pipeline() && !o.source.gathers()).map_or(1.0, |blocks| blocks.share(side));
            f64::from(o.macro_tile) / f64::from(shared) * f64::from(t.k_tile) * exist
        }
    };
    let bytes = c.a.bytes_of(read(0, &t.a, cluster.n)) + c.b.bytes_of(read(1, &t.b, cluster.m));
    let l2 = l2_cycles(target, bytes, traffic.miss, running / units);
    let r = resources(model, spec, footprint, work, resident, per_unit, l2);
    let latency = target.rates.dram_latency_ns * clock / 1e3 * unit.loaded;
    let needed = [r.math, r.shared, r.loads, r.copies, r.issue, r.l2];
    // Copies queue, so their latency grows with the load. Buffers that cover the latency of an idle cache do not cover the
    // latency of a busy one.
    let busy = soft_max(&[soft_max(&needed), spanned(spec, latency, resident)]) + r.besides;
    let math_of_tile = work.iterations * k_tile(spec, busy, latency, traffic.miss, resident);
    let barrier = target.rates.cluster_barrier * f64::from(cluster.size()).log2();
    let out = storing(c, spec, target, barrier);
    // A cluster meets before its first copy.
    let start = unit.ramp + barrier;
    // Load waves of persistent work-groups prefetch while results are stored.
    let prefetch = t.persistent > 0 && spec.schedule.roles.is_some();
    let ramp = if prefetch { start / per_unit + unit.ramp * 0.15 } else { start };
    let overlap = if resident > 1.0 { unit.overlap } else { 1.0 };
    // Teams that alternate store while another computes; nothing hides the storing of the last tile.
    let teams = f64::from(spec.teams());
    let (group, last) = if teams > 1.0 {
        let group = (math_of_tile + TURN).max((math_of_tile + out + ramp) / teams);
        (group, (math_of_tile + out + ramp - group).max(0.0))
    } else {
        let waited = waited_windows(c, spec, work, latency) / resident;
        ((math_of_tile + (out + ramp) * overlap).max(waited), unit.ramp * (1.0 - overlap))
    };
    let dram_us = traffic.bytes / (target.rates.dram_gbs * 1e3 * STREAMED);
    // Each split of the last tiles stores partial sums, where a share of the tile's time has its share of `out`.
    let splits = spec.of_tail(c).map_or(0.0, |tail| {
        let each = storing(c, &tail, target, barrier) + ramp;
        busiest.splits * (each - busiest.share * (out + ramp)) * overlap
    });
    let main_us = soft_max(&[(group * per_unit + splits + last) / clock, dram_us]) * trust(spec);
    let us = |cycles: f64| cycles * work.iterations * work.groups / units / clock;
    Estimate {
        main_us,
        math_us: us(r.math),
        issue_us: us(r.issue),
        shared_us: us(r.shared),
        l2_us: us(r.l2.max(r.loads).max(r.copies)),
        dram_us,
        stall_us: (main_us - us(soft_max(&needed) + r.besides).max(dram_us)).max(0.0),
        resident: footprint.groups_per_unit,
        imbalance: per_unit * units / work.groups.max(1.0),
        dram_bytes: traffic.bytes,
        ..Estimate::default()
    }
}
