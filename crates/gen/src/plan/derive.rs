//! From a plan and a contraction to a [`KernelSpec`]: every rule of legality that needs no device.
//!
//! The rules for MIOpenGEMM's keys are MIOpenGEMM's, with the alignment of vectors and the order of additions checked as
//! well. Vectors are legal where [`tilewright_problem::view`] says so.

use super::grid::thread_grid;
use super::keys::{Chiral, Common, Key};
use super::operand::{self, Frame};
use super::reach;
use super::refusal::Refusal;
use super::spec::*;
use super::value::Plan;
use super::wave_unit;
use crate::plan::{WORKSPACE_ALIGN, materialised};
use tilewright_ir::{Scalar, Target};
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, G, ROW};

/// What legality reads besides plan and contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Env {
    /// Usable workspace in bytes.
    pub workspace_bytes: u64,
    /// Lanes per wave (1 on CPUs).
    pub wave: u32,
    /// Results may depend on the order of atomic additions (`SKS0` with `ICE` above 1).
    pub allow_atomics: bool,
}

impl Env {
    /// A target's wave with a workspace; atomics not allowed.
    pub fn new(target: &Target, workspace_bytes: u64) -> Env {
        Env { workspace_bytes, wave: target.wave, allow_atomics: false }
    }
}

/// What the plan means for the contraction, or why it means nothing. Total: no plan and no contraction makes it fail
/// otherwise.
pub fn derive(plan: &Plan, c: &Contraction, env: &Env) -> Result<KernelSpec, Refusal> {
    if let Some(key) = Key::all().find(|k| !k.info().legal.contains(plan.get(*k))) {
        return Err(Refusal::Value { key, value: plan.get(key) });
    }
    if c.g == 0 || c.m == 0 || c.n == 0 {
        return Err(Refusal::Empty { g: c.g, m: c.m, n: c.n });
    }
    let unit = MathUnit::of(plan.common(Common::Uni)).unwrap_or(MathUnit::Fma);
    if unit.family().asynchronous {
        return super::unit::derive(plan, c, env);
    }
    let at = |key: Common| plan.common(key);
    let on = |key: Common| plan.common(key) == 1;
    let exchanged = unit.family().is_wave() && on(Common::Swp);
    let c = &*c.oriented(exchanged);
    let owners = match unit.family().is_wave() {
        true => wave_unit::owners(plan, c, env, unit)?,
        false => thread_grid(at(Common::Mac), at(Common::Skw))
            .ok_or(Refusal::ThreadGrid { mac: at(Common::Mac), skw: at(Common::Skw) })?,
    };
    let schedule = schedule(plan, env, unit)?;
    if on(Common::Ufo) && c.k <= at(Common::Unr) as u64 {
        return Err(Refusal::Stagger { k: c.k, k_tile: at(Common::Unr) });
    }
    for (run_time, dim) in [(c.dynamic.m, "m"), (c.dynamic.n, "n")] {
        if run_time && !on(Common::Edg) {
            return Err(Refusal::PullBackRunTime { dim });
        }
    }
    let frame = Frame {
        k: c.k,
        k_tile: at(Common::Unr),
        load_threads: schedule.roles.map_or(at(Common::Mac), |r| r.load_threads),
        stagger: on(Common::Ufo),
        predicate: on(Common::Edg),
        unit,
    };
    let a = operand::derive(plan, Key::A, &c.a, (c.m, c.dynamic.m), owners.0, &frame)?;
    let b = operand::derive(plan, Key::B, &c.b, (c.n, c.dynamic.n), owners.1, &frame)?;
    let (threads_a, threads_b) = (owners.0 * unit.family().lanes, owners.1);
    let edge = if on(Common::Edg) { Edge::Predicate } else { Edge::PullBack };
    let tiling = Tiling {
        k_tile: at(Common::Unr),
        threads_a,
        threads_b,
        micro_b_fastest: !unit.family().is_wave() && on(Common::Mia),
        wave_a: if unit.family().is_wave() { 0 } else { wave_shape(plan, env, threads_a, threads_b)? },
        wave_lanes: env.wave.max(1),
        math_width: if unit.family().is_wave() { 1 } else { math_width(plan, &b)? },
        order: order(plan)?,
        split_k: SplitK { ways: at(Common::Ice), interleave: at(Common::Ice) > 1 && on(Common::Iwi) },
        edge_m: edge,
        edge_n: edge,
        k_stagger: on(Common::Ufo),
        unit,
        exchanged,
        persistent: 0,
        cluster: Cluster::ALONE,
        a,
        b,
    };
    let epilogue =
        if unit.family().is_wave() { wave_unit::epilogue(plan, c, env, &tiling)? } else { epilogue(plan, c, env, &tiling)? };
    let spec = KernelSpec {
        epilogue,
        schedule,
        style: Style {
            pragma_unroll: on(Common::Pun),
            wide_index: on(Common::Szt),
            mad: on(Common::Mad),
            a_first: on(Common::Afi),
            min_groups: at(Common::Mgp),
            unroll_k: on(Common::Ukl),
        },
        tiling,
    };
    // The contraction is turned already.
    let needed = workspace_per_oriented(&spec, c);
    if needed > env.workspace_bytes {
        return Err(Refusal::Workspace { needed, available: env.workspace_bytes });
    }
    Ok(spec)
}

/// Workspace in bytes for the copies and partial sums of a single batch entry; with less than that for the whole batch, the
/// batch is cut into chunks.
pub fn workspace_per_entry(spec: &KernelSpec, c: &Contraction) -> u64 {
    workspace_per_oriented(spec, &c.oriented(spec.tiling.exchanged))
}

fn workspace_per_oriented(spec: &KernelSpec, c: &Contraction) -> u64 {
    let copy = |tensor: &Tensor, tiling: &OperandTiling| {
        if tiling.source == Source::InPlace {
            return 0;
        }
        let copied = materialised(tensor, tiling.source, tiling.macro_tile);
        let entries = if copied.view.uses(G) { c.g.max(1) } else { 1 };
        copied.len.saturating_mul(copied.scalar.bytes() as u64) / entries + u64::from(WORKSPACE_ALIGN)
    };
    let partials = if splits_by_workspace(spec) {
        let result = c.m.saturating_mul(c.n).saturating_mul(c.accumulator().bytes() as u64);
        result.saturating_mul(spec.tiling.split_k.ways as u64).saturating_add(u64::from(WORKSPACE_ALIGN))
    } else {
        0
    };
    copy(&c.a, &spec.tiling.a).saturating_add(copy(&c.b, &spec.tiling.b)).saturating_add(partials)
}

pub(super) fn splits_by_workspace(spec: &KernelSpec) -> bool {
    spec.tiling.split_k.ways > 1 && spec.epilogue.split_sum == SplitSum::Workspace
}

fn schedule(plan: &Plan, env: &Env, unit: MathUnit) -> Result<Schedule, Refusal> {
    let at = |key: Common| plan.common(key);
    let (pfg, buf, fra, lwv, mac) = (at(Common::Pfg), at(Common::Buf), at(Common::Fra), at(Common::Lwv), at(Common::Mac));
    if buf > pfg + 1 {
        return Err(Refusal::Buffers { pfg, buf });
    }
    let copied = |side: fn(Chiral) -> Key| {
        let acp = side(Chiral::Acp);
        if plan.get(acp) >= 2 {
            return Err(Refusal::BulkUnit { acp });
        }
        // The copy of tile t + PFG lands while tile t is read: it needs a buffer of its own.
        if plan.get(acp) == 1 && (pfg == 0 || buf < pfg + 1) {
            return Err(Refusal::AsyncAhead { acp, pfg, buf });
        }
        Ok(plan.get(acp) == 1)
    };
    let (async_a, async_b) = (copied(Key::A)?, copied(Key::B)?);
    let k_steps = at(Common::Unr) / unit.family().depth;
    if fra >= k_steps {
        return Err(Refusal::FragmentsAhead { fra, k_steps });
    }
    let roles = if lwv == 0 {
        None
    } else if env.wave < 2 || mac % env.wave != 0 {
        return Err(Refusal::RoleWaves { lwv, mac, wave: env.wave });
    } else {
        Some(RoleSplit { load_threads: lwv.saturating_mul(env.wave), math_threads: mac, teams: 1, registers: None })
    };
    Ok(Schedule {
        fetch_ahead: pfg,
        buffers: buf,
        store: match at(Common::Stp) {
            _ if pfg == 0 || (async_a && async_b) => StorePoint::AtOnce,
            0 => StorePoint::AtOnce,
            1 => StorePoint::AfterMath,
            _ => StorePoint::Spread,
        },
        fragments_ahead: fra,
        async_a,
        async_b,
        bulk: false,
        fetched: [false; 2],
        shifted: [false; 2],
        slots: 0,
        roles,
        hints: at(Common::Hnt) == 1,
    })
}

fn wave_shape(plan: &Plan, env: &Env, along_m: u32, along_n: u32) -> Result<u32, Refusal> {
    let wva = plan.common(Common::Wva);
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
    let width = plan.common(Common::Mvw);
    if !b.micro.is_multiple_of(width) || !b.fragment_width.is_multiple_of(width) {
        return Err(Refusal::MathWidth { width, micro: b.micro, fragment: b.fragment_width });
    }
    Ok(width)
}

pub(super) fn order(plan: &Plan) -> Result<GroupOrder, Refusal> {
    match plan.common(Common::Gal) {
        1 => Ok(GroupOrder::ColumnsFastest),
        2 => Ok(GroupOrder::RowsFastest),
        _ => {
            let (naw, ice) = (plan.common(Common::Naw), plan.common(Common::Ice));
            match (naw / ice.max(1)).isqrt() {
                0 => Err(Refusal::Strip { naw, ice }),
                width => Ok(GroupOrder::Strips(width)),
            }
        }
    }
}

/// Whether splits may be added to C by atomics.
pub(super) fn atomic_sums(c: &Contraction, ice: u32) -> Result<(), Refusal> {
    match c.activation {
        _ if !matches!(c.c.scalar, Scalar::F32 | Scalar::F64) => Err(Refusal::AtomicType { ice, scalar: c.c.scalar }),
        Some(activation) => Err(Refusal::AtomicActivation { ice, activation }),
        None => Ok(()),
    }
}

/// Sums over a cluster are built for warpgroups.
pub(super) fn no_cluster_sum(plan: &Plan) -> Result<(), Refusal> {
    let ice = plan.common(Common::Ice);
    if ice > 1 && plan.common(Common::Sks) == 2 { Err(Refusal::ClusterUnit { ice }) } else { Ok(()) }
}

fn epilogue(plan: &Plan, c: &Contraction, env: &Env, tiling: &Tiling) -> Result<Epilogue, Refusal> {
    let ice = plan.common(Common::Ice);
    let staged = plan.common(Common::Cst) == 1;
    let workspace = plan.common(Common::Sks) == 1;
    no_cluster_sum(plan)?;
    if ice > 1 && !workspace {
        if !env.allow_atomics {
            return Err(Refusal::AtomicsNotAllowed { ice });
        }
        atomic_sums(c, ice)?;
        return Ok(Epilogue { split_sum: SplitSum::Atomic, store_width: 1, staged, bulk: false });
    }
    let split_sum = if ice > 1 { SplitSum::Workspace } else { SplitSum::Atomic };
    let width = plan.common(Common::Cvw);
    if width == 1 {
        return Ok(Epilogue { split_sum, store_width: 1, staged, bulk: false });
    }
    let along_n = c.c.view.stride(COL) == Some(1);
    let (dim, extent, side, axis) = if along_n { ("n", c.n, &tiling.b, COL) } else { ("m", c.m, &tiling.a, ROW) };
    if if along_n { c.dynamic.n } else { c.dynamic.m } {
        return Err(Refusal::VectorRunTime { key: Key::C(Common::Cvw), width, dim });
    }
    // Partial sums are dense; C itself is as the problem says.
    let allowed = if ice > 1 { width } else { reach::vector_width(&c.c, axis, width) };
    if allowed < width {
        return Err(Refusal::StoreAlign { width, allowed });
    }
    let unit = side.fragment_width.max(if along_n { tiling.math_width } else { 1 });
    let units = if staged { side.micro } else { unit };
    if units % width != 0 {
        return Err(Refusal::StoreUnit { width, dim, units });
    }
    if extent % width as u64 != 0 && (ice > 1 || extent % side.macro_tile as u64 != 0) {
        return Err(Refusal::VectorEdge { key: Key::C(Common::Cvw), width, dim, extent });
    }
    Ok(Epilogue { split_sum, store_width: width, staged, bulk: false })
}
