//! Plans with a matrix unit: their rules of legality, and which keys say something to them.

use super::bulk::{partials, store_tile};
use super::fetched::fetch_wanted;
use super::fits::shared_bytes;
use super::grid::thread_grid;
use super::hulls::slots;
use super::keys::{Chiral, Common, Key};
use super::reach;
use super::refusal::Refusal;
use super::rules::{Env, atomic_sums, order};
use super::spec::*;
use super::tile::*;
use super::transport::Transport;
use super::value::{Plan, reset};
use super::workspace::workspace_per_oriented;
use tilewright_ir::{Limits, MAX_CLUSTER, MOST_ROLE_REGISTERS, Mma, REGISTER_STEP};
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::COL;

/// Keys of a factor that matrix units read.
const CHIRAL: [Chiral; 4] = [Chiral::Mic, Chiral::Wos, Chiral::Acp, Chiral::Clu];
/// Keys of the whole plan that matrix units read.
const COMMON: [Common; 20] = {
    use Common::*;
    [Unr, Gal, Ice, Iwi, Naw, Mac, Skw, Sks, Cvw, Cst, Mgp, Pfg, Buf, Fra, Lwv, Bim, Swp, Pst, Png, Rga]
};

/// Sets keys without effect to one value.
pub(super) fn normal(p: &mut Plan) {
    for key in Chiral::ALL.into_iter().filter(|k| !CHIRAL.contains(k)) {
        *p = p.with(Key::A(key), key.info().default).with(Key::B(key), key.info().default);
    }
    for key in Common::ALL.into_iter().filter(|k| !COMMON.contains(k) && *k != Common::Uni) {
        reset(p, key);
    }
    if p.common(Common::Ice) == 1 {
        reset(p, Common::Iwi);
        reset(p, Common::Sks);
    }
    if p.common(Common::Png) == 1 {
        reset(p, Common::Skw);
    }
    // Room for one work-group is there anyway.
    if p.common(Common::Mgp) == 1 {
        reset(p, Common::Mgp);
    }
    // Staged results choose their own vectors.
    if p.common(Common::Cst) == 1 {
        reset(p, Common::Cvw);
    }
    if p.common(Common::Gal) != 3 {
        reset(p, Common::Naw);
    }
    // With roles the load waves run ahead as far as buffers are free.
    if p.common(Common::Lwv) != 0 {
        p.set(Key::C(Common::Pfg), p.common(Common::Buf).max(2) - 1);
    }
}

/// [`super::derive`](fn@super::derive) for plans with a matrix unit.
pub(super) fn derive(plan: &Plan, c: &Contraction, env: &Env, unit: MathUnit) -> Result<KernelSpec, Refusal> {
    if c.g == 0 || c.m == 0 || c.n == 0 {
        return Err(Refusal::Empty { g: c.g, m: c.m, n: c.n });
    }
    let at = |key: Common| plan.common(key);
    let exchanged = at(Common::Swp) == 1;
    let c = &*c.oriented(exchanged);
    if c.matrix_input().and_then(|input| Mma::find(unit, input)).is_none() {
        return Err(Refusal::UnitTypes { uni: 2, a: c.a.scalar, b: c.b.scalar, sum: c.accumulator() });
    }
    Transport::suit_pipeline(plan)?;
    let (along_m, along_n) = owners(plan, unit)?;
    let k_tile = at(Common::Unr);
    let row = 128 / c.a.scalar.bytes();
    if k_tile % row != 0 {
        return Err(Refusal::UnitDepth { k_tile, unit: row });
    }
    let micro_n = plan.get(Key::B(Chiral::Mic));
    if micro_n > 32 {
        return Err(Refusal::UnitColumns { micro: micro_n });
    }
    let mut schedule = schedule(plan, env, unit)?;
    let (rows, columns) = unit.family().block;
    let cluster = cluster(plan, c)?;
    let k_tiles = c.k.div_ceil(u64::from(k_tile));
    let a = operand(plan, Key::A, &c.a, (rows, along_m, k_tile), at(Common::Rga))?;
    let copy_a = Transport::in_pipeline_of(plan, Key::A, &c.a, &a, cluster.n, (k_tiles, c.dynamic.m))?;
    let b = operand(plan, Key::B, &c.b, (columns, along_n, k_tile), 0)?;
    let copy_b = Transport::in_pipeline_of(plan, Key::B, &c.b, &b, cluster.m, (k_tiles, c.dynamic.n))?;
    schedule.copies = [copy_a, copy_b];
    if let Some(mut roles) = schedule.roles.filter(|_| at(Common::Mgp) < 2) {
        let copies = &schedule.copies;
        let written = copies.iter().any(Transport::is_written);
        let wanted = written.then(|| fetch_wanted([(&c.a, &a, &copies[0]), (&c.b, &b, &copies[1])], roles.load_threads));
        // Each 64 rows by 8 columns of a warpgroup are four sums of a thread; fragments live beside them.
        let sums = plan.get(Key::A(Chiral::Mic)) * (4 * plan.get(Key::B(Chiral::Mic)) + FRAGMENT * at(Common::Rga));
        roles.registers = budgets(roles.load_threads, at(Common::Mac), sums, unit, wanted);
        schedule.roles = Some(roles);
    }
    useful_clusters(c, &cluster, (&a, &b))?;
    let epilogue = epilogue(plan, c, env, &b)?;
    let tiling = Tiling {
        k_tile,
        threads_a: along_m * unit.family().lanes,
        threads_b: along_n,
        micro_b_fastest: false,
        wave_a: 0,
        wave_lanes: env.wave.max(1),
        math_width: 1,
        order: order(plan)?,
        split_k: SplitK { ways: at(Common::Ice), interleave: at(Common::Ice) > 1 && at(Common::Iwi) == 1 },
        edge_m: Edge::Predicate,
        edge_n: Edge::Predicate,
        k_stagger: false,
        unit,
        exchanged,
        persistent: at(Common::Pst),
        cluster,
        a,
        b,
    };
    let mut spec = KernelSpec {
        epilogue,
        schedule,
        style: Style {
            pragma_unroll: true,
            wide_index: false,
            mad: true,
            a_first: true,
            min_groups: if at(Common::Mgp) == 1 { 0 } else { at(Common::Mgp) },
            unroll_k: true,
        },
        tiling,
    };
    if spec.schedule.copies.iter().any(|copy| copy.shifted().is_some()) {
        let with = |slots| KernelSpec { schedule: spec.schedule.clone().with_slots(slots), ..spec.clone() };
        let slots = slots(spec.style.min_groups, |slots| shared_bytes(&with(slots), c));
        spec = with(slots);
    }
    let needed = workspace_per_oriented(&spec, c);
    if needed > env.workspace_bytes {
        return Err(Refusal::Workspace { needed, available: env.workspace_bytes });
    }
    Ok(spec)
}

/// Warpgroups along m and n that share a tile; one alone where each has a tile of its own.
fn owners(plan: &Plan, unit: MathUnit) -> Result<(u32, u32), Refusal> {
    let at = |key: Common| plan.common(key);
    let (mac, skw) = (at(Common::Mac), at(Common::Skw));
    let owners = unit.family().lanes;
    let in_turn = at(Common::Png) == 1;
    if in_turn && (at(Common::Lwv) == 0 || at(Common::Pst) == 0 || mac < 2 * owners) {
        return Err(Refusal::Turns { lwv: at(Common::Lwv), pst: at(Common::Pst), mac, owners });
    }
    let grid = (mac % owners == 0).then(|| if in_turn { Some((1, 1)) } else { thread_grid(mac / owners, skw) }).flatten();
    grid.ok_or(Refusal::UnitThreads { uni: 2, mac, skw, owners })
}

/// Clusters of which half would have nothing to do are refused.
fn useful_clusters(c: &Contraction, cluster: &Cluster, (a, b): (&OperandTiling, &OperandTiling)) -> Result<(), Refusal> {
    for (extent, macro_tile, along) in [(c.m, a.macro_tile, cluster.m), (c.n, b.macro_tile, cluster.n)] {
        if u64::from(along) >= 2 * extent.div_ceil(u64::from(macro_tile)) {
            let why = "half of them would have nothing to do: CLU is at least twice the tiles along its side";
            return Err(Refusal::Cluster { size: cluster.size(), why });
        }
    }
    Ok(())
}

/// Work-groups that run together.
fn cluster(plan: &Plan, c: &Contraction) -> Result<Cluster, Refusal> {
    let at = |key: Common| plan.common(key);
    let splits = if at(Common::Sks) == 2 { at(Common::Ice) } else { 1 };
    let cluster = Cluster { m: plan.get(Key::A(Chiral::Clu)), n: plan.get(Key::B(Chiral::Clu)), splits };
    let size = cluster.m.saturating_mul(cluster.n).saturating_mul(splits);
    let refuse = |why| Err(Refusal::Cluster { size, why });
    if size > MAX_CLUSTER {
        return refuse("16 are the most there are");
    }
    if !at(Common::Pst).is_multiple_of(size) {
        return refuse("PST is no multiple of that");
    }
    if splits > 1 && at(Common::Pst) > 0 {
        return refuse("those of SKS2 end with their tile: its sums take the room of the buffers; use PST0");
    }
    if splits > 1 && at(Common::Cst) == 1 {
        return refuse("each of SKS2 stores a part of the tile from registers; use CST0");
    }
    // Staying work-groups count their work in clusters, launches in work-groups.
    let counted = cluster.size() > 1 && at(Common::Pst) > 0;
    if (cluster.sharers() > 1 || counted) && !c.dynamic.is_none() {
        return Err(Refusal::Cluster {
            size: cluster.size(),
            why: "tiles known only at launch are no whole clusters; use CLU1, and PST0 with SKS2",
        });
    }
    Ok(cluster)
}

fn schedule(plan: &Plan, env: &Env, unit: MathUnit) -> Result<Schedule, Refusal> {
    let at = |key: Common| plan.common(key);
    let (pfg, buf, lwv, mac) = (at(Common::Pfg), at(Common::Buf), at(Common::Lwv), at(Common::Mac));
    if env.wave != 32 {
        return Err(Refusal::RoleWaves { lwv, mac, wave: env.wave });
    }
    let acp = Key::A(Chiral::Acp);
    // Of the k-tiles in buffers one is read, and as many more as the math runs behind its instructions are still held.
    let held = 1 + at(Common::Fra).min(1);
    let pfg = if lwv > 0 { buf.max(2) - 1 } else { pfg };
    let needed = if lwv > 0 { held + 1 } else { pfg + held };
    if pfg == 0 || buf < needed {
        return Err(Refusal::AsyncAhead { acp, pfg, buf });
    }
    if at(Common::Fra) > 1 {
        return Err(Refusal::FragmentsAhead { fra: at(Common::Fra), k_steps: 2 });
    }
    let roles = (lwv > 0).then(|| RoleSplit {
        load_threads: lwv * env.wave,
        math_threads: mac,
        teams: if at(Common::Png) == 1 { mac / unit.family().lanes } else { 1 },
        registers: None,
    });
    Ok(Schedule {
        fetch_ahead: pfg,
        buffers: buf,
        store: StorePoint::AtOnce,
        fragments_ahead: at(Common::Fra),
        // What they are follows from the operands.
        copies: [Transport::Registers, Transport::Registers],
        roles,
        hints: false,
    })
}

/// Registers per thread of load and math waves: what the load waves do not need goes to the others. Whole warpgroups only, and
/// only where one work-group has the unit to itself. The sum over warpgroups must not exceed what the launch took (an even share
/// in steps of 8: 168, 128 and 96 for three to five warpgroups), or the waves wait for registers for ever.
/// Where load waves fetch tiles themselves: the registers that what they fetch would fill.
fn budgets(load_threads: u32, math_threads: u32, sums: u32, unit: MathUnit, wanted: Option<u32>) -> Option<(u32, u32)> {
    if let Some(wanted) = wanted {
        return budgets_to_fetch(load_threads, math_threads, sums, unit, wanted);
    }
    if load_threads != unit.family().lanes {
        return None;
    }
    match math_threads / unit.family().lanes {
        // From 208 sums on the assembler needs every register there is.
        2 if sums >= 208 => Some((24, 240)),
        2 => Some((40, 232)),
        3 => Some((32, 160)),
        4 => Some((24, 112)),
        _ => None,
    }
}

/// Load waves that fetch tiles themselves hold what is on its way: as much as they want and the sums leave them.
fn budgets_to_fetch(load_threads: u32, math_threads: u32, sums: u32, unit: MathUnit, wanted: u32) -> Option<(u32, u32)> {
    let owners = unit.family().lanes;
    if !load_threads.is_multiple_of(owners) {
        return None;
    }
    let (load, math) = (load_threads / owners, math_threads / owners);
    let even = Limits::WARPGROUP.registers_per_unit / (load_threads + math_threads) / REGISTER_STEP * REGISTER_STEP;
    let budget = |of_load: u32| {
        let left = (even * (load + math)).checked_sub(of_load * load)? / math / REGISTER_STEP * REGISTER_STEP;
        (of_load < even && left > even).then_some((of_load, left.min(MOST_ROLE_REGISTERS)))
    };
    let enough = |(_, of_math): &(u32, u32)| *of_math >= sums + UNIT_ROOM;
    let possible = || FETCH_BUDGETS.into_iter().filter_map(budget).filter(enough);
    let least = possible().rfind(|(of_load, _)| *of_load >= wanted);
    least.or_else(|| possible().next()).or_else(|| budget(40).filter(|_| load + math > 2))
}

/// What the assembler wants of registers besides the sums.
const UNIT_ROOM: u32 = 40;
/// Registers of load threads that fetch, the most first.
const FETCH_BUDGETS: [u32; 7] = [152, 136, 120, 104, 88, 72, 56];

fn operand(
    plan: &Plan,
    side: fn(Chiral) -> Key,
    tensor: &Tensor,
    (step, owners, k_tile): (u32, u32, u32),
    fragment_sets: u32,
) -> Result<OperandTiling, Refusal> {
    let mic = side(Chiral::Mic);
    let micro = plan.get(mic) * step;
    let macro_tile = micro * owners;
    if macro_tile > 1 << 12 {
        return Err(Refusal::TileTooLarge { mic, micro, threads: owners });
    }
    let source = match plan.get(side(Chiral::Wos)) {
        0 => Source::InPlace,
        // From shared memory 32-bit operands are read along k alone.
        1 if tensor.scalar.bytes() == 4 && fragment_sets == 0 => Source::CopyAlongK,
        1 => Source::Copy,
        _ => {
            return Err(Refusal::BulkBox {
                acp: side(Chiral::Acp),
                why: "packed panels (WOS2) are cut for multiply-adds".into(),
            });
        }
    };
    let width = 16 / tensor.scalar.bytes();
    Ok(OperandTiling {
        micro,
        macro_tile,
        pad: 0,
        load_row: macro_tile,
        load_k: k_tile,
        load_interleave: false,
        load_order: Along::K,
        load_width: width,
        load_along: Along::Row,
        store_width: width,
        fragment_width: 1,
        micro_interleave: false,
        shared_along: Along::Row,
        source,
        fragment_sets,
    })
}

fn epilogue(plan: &Plan, c: &Contraction, env: &Env, columns: &OperandTiling) -> Result<Epilogue, Refusal> {
    let (ice, wanted) = (plan.common(Common::Ice), plan.common(Common::Cvw));
    if ice > 1 && plan.common(Common::Sks) == 0 {
        if !env.allow_atomics {
            return Err(Refusal::AtomicsNotAllowed { ice });
        }
        atomic_sums(c, ice)?;
        return Ok(Epilogue { split_sum: SplitSum::Atomic, store_width: 1, staged: false, bulk: false });
    }
    let by_cluster = plan.common(Common::Sks) == 2;
    let split_sum = match ice {
        1 => SplitSum::Atomic,
        _ if by_cluster => SplitSum::Cluster,
        _ => SplitSum::Workspace,
    };
    let partial = ice > 1 && !by_cluster;
    // A thread holds pairs along n.
    let adjacent = c.c.view.stride(COL) == Some(1);
    let allowed = match (adjacent, partial) {
        (false, _) => 1,
        (true, true) => 2,
        (true, false) => reach::vector_width(&c.c, COL, 2),
    };
    let even = c.n.is_multiple_of(2) && !c.dynamic.n;
    if plan.common(Common::Cst) == 1 {
        let stored = if partial { partials(c, c.g * u64::from(ice)) } else { c.c.clone() };
        // Lines of C that end anywhere leave by plain stores; partial sums lie as those of the largest C.
        let anywhere = |by_rows: bool| !partial && if by_rows { c.dynamic.m } else { c.dynamic.n };
        let bulk = store_tile(&stored, columns.micro).is_ok_and(|tile| !anywhere(tile.by_rows));
        // What bulk stores do not reach leaves row by row.
        if !bulk && (stored.view.stride(COL) != Some(1) || stored.view.is_affine_box().is_none()) {
            return Err(Refusal::StagedRows);
        }
        // Where bulk stores do not serve, because C is read as well, results leave in the widest runs.
        let store_width = if even { allowed } else { 1 };
        return Ok(Epilogue { split_sum, store_width, staged: true, bulk });
    }
    if wanted > allowed {
        return Err(Refusal::StoreAlign { width: wanted, allowed });
    }
    if wanted > 1 && c.dynamic.n {
        return Err(Refusal::VectorRunTime { key: Key::C(Common::Cvw), width: wanted, dim: "n" });
    }
    if !c.n.is_multiple_of(u64::from(wanted)) {
        return Err(Refusal::VectorEdge { key: Key::C(Common::Cvw), width: wanted, dim: "n", extent: c.n });
    }
    Ok(Epilogue { split_sum, store_width: wanted, staged: false, bulk: false })
}
