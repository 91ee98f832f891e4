//! From a plan and a contraction to a [`KernelSpec`]: every rule of legality that needs no device.
//!
//! There is one derivation for all math units: it asks their [`Family`] and the operands' [`Transport`] what they need. The rules for
//! MIOpenGEMM's keys are MIOpenGEMM's, with the alignment of vectors and the order of additions checked as well. Vectors are legal
//! where [`tilewright_problem::view`] says so.

use super::derived::Derived;
use super::exit;
use super::frame::{Frame, OperandFrame};
use super::grid::thread_grid;
use super::grouped;
use super::keys::{Chiral, Common, Key, Keys, OperandKeys, Side};
use super::normal::entries_may_alternate;
use super::operand;
use super::own_operands;
use super::refusal::Refusal;
use super::registers;
use super::rules::Env;
use super::second;
use super::shared_bytes::shared_map;
use super::shared_map::SharedMap;
use super::spans::slots;
use super::spec::*;
use super::special;
use super::tail;
use super::tile::{OperandTiling, k_step};
use super::transport::{TiledOperand, Transport};
use super::value::Plan;
use super::workspace::workspace_per_entry;
use std::borrow::Cow;
use tilewright_ir::mma::{Family, Owner};
use tilewright_ir::{Mma, Scalar};
use tilewright_problem::Extent;
use tilewright_problem::contraction::{Contraction, Operand, ResultSource};
use tilewright_problem::view::{COL, ROW};

/// Threads of a team that alternates with others between result tiles.
const TEAM: u32 = 128;

/// What the plan means for the contraction, or why it means nothing. Total: no plan and no contraction makes it fail
/// otherwise.
pub fn derive<'c>(plan: &Keys, c: &'c Contraction, env: &Env) -> Result<Derived<'c>, Refusal> {
    let plan = Plan::from(plan);
    check_values_and_results(&plan, c)?;
    let derived = derive_plan(&plan, c, env)?;
    let needed = workspace_per_entry(&derived);
    if needed > env.workspace_bytes {
        return Err(Refusal::Workspace { needed, available: env.workspace_bytes });
    }
    Ok(derived)
}

/// Every key has a value of its own, and the contraction has results. Of a tensor without elements reductions are what they begin with.
fn check_values_and_results(plan: &Plan, c: &Contraction) -> Result<(), Refusal> {
    if let Some(key) = plan.all_changed().find(|k| !k.info().legal.contains(plan.get(*k))) {
        return Err(Refusal::Value { key, value: plan.get(key) });
    }
    match c.source {
        ResultSource::Product | ResultSource::OwnOperands(_) if c.g == 0 || c.m == 0 || c.n == 0 => {
            Err(Refusal::Empty { g: c.g, m: c.m, n: c.n })
        }
        _ => Ok(()),
    }
}

fn derive_plan<'c>(plan: &Plan, c: &'c Contraction, env: &Env) -> Result<Derived<'c>, Refusal> {
    // Kernels without shared tiles read few keys.
    let product = c.source == ResultSource::Product;
    let plan = if product { plan } else { &plan.normalised(c) };
    let family = plan.family();
    let seen = plan.orient(c);
    let c = &*seen;
    if let Some(pairs) = c.pairs().filter(|_| c.factors()[0] == Operand::B) {
        return Err(Refusal::Pairs { granule: pairs.granule, why: "the transposed product has pairs of rows; use SWP0" });
    }
    let row = match family.owner {
        Owner::Thread => dot_instruction(plan, c, env, family),
        Owner::Wave | Owner::Warpgroup => Some(matrix_instruction(plan, c, env, family)?),
    };
    special::check(plan, c, row, env)?;
    let family = row.map_or(family, |row| row.unit.family());
    Transport::check_plan(plan)?;
    let (along_m, along_n) = owner_counts(plan, family)?;
    let schedule = schedule(plan, env, family, row.map_or(1, |row| k_step(row, c.splits(row)) * k_step_multiple(plan, c)))?;
    let cluster = exit::cluster(plan, c, Side::ALL.map(|side| plan.of(side).cluster))?;
    let predicate = plan.has_panels() || plan.predicate == 1 || !product;
    let edge = if predicate { Edge::Predicate } else { Edge::PullBack };
    let k_tile = plan.k_tile;
    check_extents(plan, c, edge)?;
    let frame = |loads| Frame {
        k: c.k,
        any_term: c.any_term(),
        k_tile,
        load_threads: schedule.roles.map_or(plan.threads, |r| r.load_threads),
        stagger: plan.stagger == 1,
        predicate: edge == Edge::Predicate,
        loads,
        family,
        row,
        split: row.and_then(|row| c.splits(row)),
        runs: Transport::runs(plan, &c.a, k_tile),
    };
    let (m, n) = (c.varies(Extent::M), c.varies(Extent::N));
    let entries_run_time = c.varies(Extent::G);
    let (a, b) = (Side::A, Side::B);
    let a =
        OperandFrame { side: a, tensor: &c.a, extent: c.m, run_time: m, entries_run_time, owners: along_m, shares: cluster.n };
    let b =
        OperandFrame { side: b, tensor: &c.b, extent: c.n, run_time: n, entries_run_time, owners: along_n, shares: cluster.m };
    let frames = [a, b];
    let [a, b] = match c.source {
        ResultSource::OwnOperands(_) => own_operands::derive(plan, c, [&a, &b])?,
        ResultSource::Elements(_) => operand::derive_both(plan, &a, &b, &frame(false))?,
        ResultSource::Product => operand::derive_both(plan, &a, &b, &frame(true))?,
    };
    let second = second::derive(plan, c, &frame(true), [&frames[0], &frames[1]], [&a, &b])?.map(Box::new);
    let (TiledOperand { tiling: a, copy: copy_a, read: read_a }, TiledOperand { tiling: b, copy: copy_b, read: read_b }) = (a, b);
    let copies = [read_a, read_b].map(|read| match read {
        Cow::Borrowed(_) => None,
        Cow::Owned(copy) => Some(copy),
    });
    grouped::check(plan, c, [&copy_a, &copy_b])?;
    if c.up().is_some() {
        copy_b.reads_two_tensors(plan)?;
    }
    let promoted = c.promotes(family).then(|| promoted(plan, c, &schedule)).transpose()?;
    let schedule = Schedule { copies: [copy_a, copy_b], second, promoted, ..schedule };
    check_useful_clusters(c, &cluster, &a, &b)?;
    let tiling = Tiling {
        k_tile,
        threads_a: along_m * family.lanes,
        threads_b: along_n,
        slices: if schedule.own() { plan.slices } else { 1 },
        micro_b_fastest: plan.along_n == 1,
        wave_a: wave_shape(plan, env, along_m, along_n)?,
        wave_lanes: env.wave.max(1),
        math_width: math_width(plan, &b)?,
        order: order(plan)?,
        entries_fastest: plan.entries_fastest == 1 && entries_may_alternate(c),
        split_k: SplitK { ways: plan.splits, interleave: plan.interleave_splits == 1 },
        edge_m: edge,
        edge_n: edge,
        k_stagger: plan.stagger == 1,
        unit: family.unit,
        instruction: row,
        swapped: c.factors()[0] == Operand::B,
        persistent: plan.persistent,
        cluster,
        tail: None,
        a,
        b,
    };
    let epilogue = exit::derive(plan, c, env, &tiling)?;
    let mut spec = KernelSpec { tiling, schedule, epilogue, style: style(plan, env), shared: SharedMap::default() };
    spec.tiling.tail = tail::derive(plan, c, &spec)?;
    set_registers_and_shared(&mut spec, c);
    spec.check_carry(c)?;
    spec.check_finish(c)?;
    Ok(Derived { spec, c: seen, copies })
}

fn style(plan: &Plan, env: &Env) -> Style {
    Style {
        pragma_unroll: plan.unroll_hint == 1,
        wide_index: plan.wide_index == 1,
        mad: plan.explicit_fma == 1,
        a_first: plan.a_first == 1,
        min_groups: plan.min_groups,
        unroll_k: plan.unroll_k == 1,
        straight: env.straight,
    }
}

/// What follows from all the rest: the registers of roles, how many slots shifted rows have room for, and the map of shared memory.
fn set_registers_and_shared(spec: &mut KernelSpec, c: &Contraction) {
    let registers = registers::of_roles(spec);
    spec.schedule.roles = spec.schedule.roles.map(|roles| RoleSplit { registers, ..roles });
    if spec.schedule.copies.iter().any(|copy| copy.shifted().is_some()) {
        let with = |slots| KernelSpec { schedule: spec.schedule.clone().with_slots(slots), ..spec.clone() };
        let slots = slots(spec.style.min_groups, |slots| shared_map(&with(slots), c).bytes());
        *spec = with(slots);
    }
    spec.shared = shared_map(spec, c);
}

/// How many times as deep a k-step is as with converted operands in shared memory. Lanes that convert elements of 4 bits read a
/// word of them.
fn k_step_multiple(plan: &Plan, c: &Contraction) -> u32 {
    let raw = [(Side::A, &c.a), (Side::B, &c.b)].map(|(side, tensor)| Transport::raw(plan, side, tensor));
    raw.into_iter().flatten().map(Scalar::numbers).max().unwrap_or(1)
}

/// The instruction that takes several k at once in place of this unit's. It is used where the target has it, k-tiles are whole
/// steps of it, and a register holds one k of a row.
fn dot_instruction(plan: &Plan, c: &Contraction, env: &Env, family: &Family) -> Option<&'static Mma> {
    let row = c.instruction(family.unit.dot_unit()?)?;
    let whole = plan.k_tile.is_multiple_of(row.step) && plan.math_width == 1;
    (env.dot && whole).then_some(row)
}

/// The instruction that the unit has for this.
fn matrix_instruction(plan: &Plan, c: &Contraction, env: &Env, family: &Family) -> Result<&'static Mma, Refusal> {
    let (uni, k_tile) = (family.number, plan.k_tile);
    if let ResultSource::OwnOperands(_) = c.source {
        let why = "matrix instructions need one operand A for all columns; use UNI0, or BIM2 or BIM3";
        return Err(Refusal::OwnLoads { key: Key::C(Common::Uni), value: uni, why });
    }
    let row = c.instruction(family.unit);
    let row = row.ok_or(Refusal::UnitTypes { uni, a: c.a.factor(), b: c.b.factor(), sum: c.accumulator() })?;
    if !env.float8.takes(row.input.storage()) {
        return Err(Refusal::UnitFloat8 { uni, scalar: c.a.factor(), takes: env.float8 });
    }
    if c.splits(row).is_some_and(|split| split.as_wide()) {
        Transport::check_wide_split(plan)?;
    }
    if env.wave != family.wave() {
        return Err(Refusal::UnitWave { uni, wave: env.wave, needed: family.wave() });
    }
    let micro = plan.b.micro;
    let columns = micro.saturating_mul(family.block.columns);
    if columns > family.columns || !Mma::all(family.unit, row.input).any(|row| row.has_columns(row.columns(columns))) {
        return Err(Refusal::UnitColumns { micro });
    }
    let (m, n) = (plan.a.micro.saturating_mul(family.block.rows), plan.b.micro.saturating_mul(family.block.columns));
    let own = Mma::all(family.unit, row.input).filter(|row| row.of_generation(env.mfma));
    let depth = own.clone().filter(|row| row.divides(m, n, row.step)).map(|row| row.step).min();
    let depth = depth.ok_or(Refusal::UnitTypes { uni, a: c.a.factor(), b: c.b.factor(), sum: c.accumulator() })?;
    let divides: Vec<&Mma> = own.filter(|row| row.divides(m, n, k_tile)).collect();
    // The newest are the deepest, and k-steps of theirs few: fragments that are read ahead need one more.
    let ahead = divides.iter().filter(|row| plan.fragments_ahead < k_tile / row.step);
    let wanted = |row: &Mma| if plan.deep_instruction == 1 { u32::MAX - row.step } else { row.step };
    let order = |row: &&&Mma| (std::cmp::Reverse(row.generations.first), row.halves, wanted(row));
    let chosen = ahead.min_by_key(order).or(divides.first());
    chosen.copied().ok_or(Refusal::UnitSteps { uni, k_tile, depth })
}

/// Owners of micro tiles (threads, waves, warpgroups) along m and n that share a macro tile. With ping-pong, the owners of one team.
fn owner_counts(plan: &Plan, family: &Family) -> Result<(u32, u32), Refusal> {
    let (mac, skw, owners) = (plan.threads, plan.skew, family.lanes);
    let in_turn = plan.ping_pong == 1;
    if in_turn && (plan.producers == 0 || plan.persistent == 0 || mac < 2 * TEAM || !mac.is_multiple_of(TEAM)) {
        return Err(Refusal::Turns { lwv: plan.producers, pst: plan.persistent, mac, owners: TEAM });
    }
    let together = if in_turn { TEAM } else { mac };
    let grid = mac.is_multiple_of(owners).then(|| thread_grid(together / owners, skw)).flatten();
    grid.ok_or(match owners {
        1 => Refusal::ThreadGrid { mac, skw },
        _ => Refusal::UnitThreads { uni: family.number, mac, skw, owners },
    })
}

/// Refuses a staggered start of a single k-tile, and tiles that are pulled back from an edge that is known only at launch.
fn check_extents(plan: &Plan, c: &Contraction, edge: Edge) -> Result<(), Refusal> {
    let k_tile = plan.k_tile;
    if plan.stagger == 1 && c.k <= u64::from(k_tile) {
        return Err(Refusal::Stagger { k: c.k, k_tile });
    }
    match [Extent::M, Extent::N].into_iter().find(|extent| c.varies(*extent)) {
        Some(extent) if edge == Edge::PullBack => Err(Refusal::PullBackRunTime { dim: extent.name() }),
        _ => Ok(()),
    }
}

/// Refuses clusters with at least half of their work-groups idle.
fn check_useful_clusters(c: &Contraction, cluster: &Cluster, a: &OperandTiling, b: &OperandTiling) -> Result<(), Refusal> {
    for (extent, macro_tile, along) in [(c.m, a.macro_tile, cluster.m), (c.n, b.macro_tile, cluster.n)] {
        if u64::from(along) >= 2 * extent.div_ceil(u64::from(macro_tile)).max(1) {
            let why = "at least half of the work-groups would be idle along one side; use a smaller CLU";
            return Err(Refusal::Cluster { size: cluster.size(), why });
        }
    }
    Ok(())
}

/// The schedule, before the operands' transports are known.
fn schedule(plan: &Plan, env: &Env, family: &Family, k_step: u32) -> Result<Schedule, Refusal> {
    let (pfg, buf, fra, lwv, mac) = (plan.ahead, plan.buffers, plan.fragments_ahead, plan.producers, plan.threads);
    let pipeline = plan.has_pipeline();
    let acp = Key::A(Chiral::Acp);
    match pipeline {
        true if pfg == 0 || buf < plan.least_stages() => return Err(Refusal::AsyncAhead { acp, value: plan.get(acp), pfg, buf }),
        false if buf > pfg + 1 => return Err(Refusal::Buffers { pfg, buf }),
        _ => {}
    }
    if !plan.k_tile.is_multiple_of(k_step) {
        return Err(Refusal::UnitSteps { uni: family.number, k_tile: plan.k_tile, depth: k_step });
    }
    // FRA counts k-tiles of unfinished instructions, or k-steps whose fragments are read ahead.
    let (math_in_flight, fragments_ahead, k_steps) = match family.in_flight {
        0 => (None, fra, plan.k_tile / k_step),
        k_tiles => (Some(fra), 0, k_tiles + 1),
    };
    if fra >= k_steps {
        return Err(Refusal::FragmentsAhead { fra, k_steps });
    }
    if (lwv > 0 || pipeline) && (env.wave < 2 || !mac.is_multiple_of(env.wave)) {
        return Err(Refusal::RoleWaves { lwv, mac, wave: env.wave });
    }
    let roles = (lwv > 0).then(|| RoleSplit {
        load_threads: lwv.saturating_mul(env.wave),
        math_threads: mac,
        teams: if plan.ping_pong == 1 { mac / TEAM } else { 1 },
        registers: None,
    });
    let all_copied = plan.all_copied();
    Ok(Schedule {
        fetch_ahead: pfg,
        buffers: buf,
        store: match plan.store_point {
            _ if pipeline || pfg == 0 || all_copied => StorePoint::AtOnce,
            0 => StorePoint::AtOnce,
            1 => StorePoint::AfterMath,
            _ => StorePoint::Spread,
        },
        fragments_ahead,
        math_in_flight,
        promoted: None,
        copies: [Transport::Registers, Transport::Registers],
        second: None,
        roles,
        hints: plan.fences == 1,
    })
}

/// k-tiles after which two-level accumulation adds the accumulators: those of so many terms. No instruction is unfinished then.
fn promoted(plan: &Plan, c: &Contraction, schedule: &Schedule) -> Result<u32, Refusal> {
    let (unr, every) = (plan.k_tile, c.promoted_every());
    if !every.is_multiple_of(unr) {
        return Err(Refusal::PromotedTile { unr, every });
    }
    if let Some(fra @ 1..) = schedule.math_in_flight {
        return Err(Refusal::PromotedInFlight { fra });
    }
    let (ice, ufo, iwi) = (plan.splits, plan.stagger, plan.interleave_splits);
    // All accumulators of one promotion must have the scales of one block.
    let (tiles, ways) = (c.k.div_ceil(unr.into()), u64::from(ice.max(1)));
    let whole = iwi == 0 && tiles.is_multiple_of(ways) && (tiles / ways * u64::from(unr)).is_multiple_of(every.into());
    if !c.block_scales.is_empty() && (ufo > 0 || ice > 1 && unr != every && !whole) {
        return Err(Refusal::ScaledParts { unr, ice, ufo, every });
    }
    Ok(every / unr)
}

/// The order in which work-groups take tiles.
fn order(plan: &Plan) -> Result<GroupOrder, Refusal> {
    match plan.order {
        1 => Ok(GroupOrder::ColumnsFastest),
        2 => Ok(GroupOrder::RowsFastest),
        _ => {
            let (naw, ice) = (plan.strip_groups, plan.splits);
            match (naw / ice.max(1)).isqrt() {
                0 => Err(Refusal::Strip { naw, ice }),
                width => Ok(GroupOrder::Strips(width)),
            }
        }
    }
}

fn wave_shape(plan: &Plan, env: &Env, along_m: u32, along_n: u32) -> Result<u32, Refusal> {
    let wva = plan.wave_shape;
    if wva == 0 {
        return Ok(0);
    }
    let wave = env.wave.max(1);
    if !wave.is_multiple_of(wva) || !along_m.is_multiple_of(wva) || !along_n.is_multiple_of(wave / wva) {
        return Err(Refusal::WaveShape { wva, wave, along_m, along_n });
    }
    Ok(wva)
}

fn math_width(plan: &Plan, b: &OperandTiling) -> Result<u32, Refusal> {
    let width = plan.math_width;
    if !b.micro.is_multiple_of(width) || !b.fragment_width.is_multiple_of(width) {
        return Err(Refusal::MathWidth { width, micro: b.micro, fragment: b.fragment_width });
    }
    Ok(width)
}

/// A plan that derives for every contraction that is not empty: predicated edges, in place, no split, no vectors. The
/// end of every ordered fallback.
pub fn generic(c: &Contraction) -> Plan {
    let (micro, threads, k_tile) = match c.m.min(c.n) {
        _ if c.pairs().is_some() => (4, 64, 16),
        _ if matches!(c.source, ResultSource::OwnOperands(_)) => (1, 64, 1),
        // No sums take registers or time.
        16.. if c.k == 0 => (8, 256, 16),
        1000.. => (8, 256, 16),
        100.. => (4, 64, 16),
        8.. => (2, 64, 8),
        _ => (1, 64, 8),
    };
    let keys = Keys { threads, k_tile, predicate: 1, split_sum: 1, order: 1, ..Keys::default() };
    keys.but(|keys| {
        keys.both(|o| o.micro = micro);
        // A thread holds both sums of a result.
        keys.b.interleave_micro = if c.pairs().is_some() { 0 } else { keys.b.interleave_micro };
    })
    .into()
}

/// A plan for a reduction of a tensor's elements on a device with this number of compute units. It has vectors along the
/// direction in which elements are adjacent, and four work-groups for each unit.
pub fn of_elements(c: &Contraction, units: u32) -> Plan {
    let view = c.read_view();
    let along_rows = view.stride(COL) != Some(1) && (view.stride(ROW) == Some(1) || view.run(ROW) > view.run(COL));
    let vector = (16 / c.a.scalar.bytes().max(1)).max(1);
    let [fast, slow] = if along_rows { Side::ALL } else { [Side::B, Side::A] };
    // 256 threads: 32 along the one direction, 8 along the other.
    let ([along_m, along_n], more) = if along_rows { ([32, 8], [vector, 4]) } else { ([8, 32], [1, 2 * vector]) };
    let (tiles, steps) = (c.m.div_ceil(along_m * u64::from(more[0])), c.n.div_ceil(along_n * u64::from(more[1])));
    let shares = (4 * u64::from(units)).div_ceil(tiles.max(1)).min(steps).clamp(1, 4096);
    let [of_fast, of_slow] = if along_rows { more } else { [more[1], more[0]] };
    let mut keys =
        Keys { threads: 256, skew: if along_rows { 9 } else { 11 }, k_tile: 8, splits: shares as u32, ..Keys::default() };
    keys.along_n = u32::from(!along_rows);
    *keys.of_mut(fast) = OperandKeys { micro: of_fast, read_width: vector, interleave_micro: 1, ..*keys.of(fast) };
    *keys.of_mut(slow) = OperandKeys { micro: of_slow, read_width: 1, ..*keys.of(slow) };
    keys.into()
}
