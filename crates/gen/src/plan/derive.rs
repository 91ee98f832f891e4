//! From a plan and a contraction to a [`KernelSpec`]: every rule of legality that needs no device.
//!
//! The rules for MIOpenGEMM's keys are MIOpenGEMM's, with the alignment of vectors and the order of additions checked as
//! well. Vectors are legal where [`tilewright_problem::view`] says so.

use super::grid::thread_grid;
use super::keys::{Common, Key};
use super::operand::{self, Frame};
use super::reach;
use super::refusal::Refusal;
use super::rules::{Env, atomic_sums, no_cluster_sum, order};
use super::spec::*;
use super::tile::*;
use super::transport::Transport;
use super::value::Plan;
use super::wave_unit;
use super::workspace::workspace_per_oriented;
use tilewright_ir::mma::FAMILIES;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{COL, ROW};

/// What the plan means for the contraction, or why it means nothing. Total: no plan and no contraction makes it fail
/// otherwise.
pub fn derive(plan: &Plan, c: &Contraction, env: &Env) -> Result<KernelSpec, Refusal> {
    if let Some(key) = Key::all().find(|k| !k.info().legal.contains(plan.get(*k))) {
        return Err(Refusal::Value { key, value: plan.get(key) });
    }
    if c.g == 0 || c.m == 0 || c.n == 0 {
        return Err(Refusal::Empty { g: c.g, m: c.m, n: c.n });
    }
    let unit = plan.family().unwrap_or(&FAMILIES[0]).unit;
    if unit.family().asynchronous {
        return super::unit::derive(plan, c, env, unit);
    }
    let at = |key: Common| plan.common(key);
    let on = |key: Common| plan.common(key) == 1;
    let exchanged = unit.family().fragments && on(Common::Swp);
    let c = &*c.oriented(exchanged);
    let owners = match unit.family().fragments {
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
        micro_b_fastest: !unit.family().fragments && on(Common::Mia),
        wave_a: if unit.family().fragments { 0 } else { wave_shape(plan, env, threads_a, threads_b)? },
        wave_lanes: env.wave.max(1),
        math_width: if unit.family().fragments { 1 } else { math_width(plan, &b)? },
        order: order(plan)?,
        split_k: SplitK { ways: at(Common::Ice), interleave: at(Common::Ice) > 1 && on(Common::Iwi) },
        edge_m: edge,
        edge_n: edge,
        k_stagger: on(Common::Ufo),
        unit,
        exchanged,
        persistent: at(Common::Pst),
        cluster: Cluster::ALONE,
        a,
        b,
    };
    let epilogue =
        if unit.family().fragments { wave_unit::epilogue(plan, c, env, &tiling)? } else { epilogue(plan, c, env, &tiling)? };
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
    // Operands are swapped already.
    let needed = workspace_per_oriented(&spec, c);
    if needed > env.workspace_bytes {
        return Err(Refusal::Workspace { needed, available: env.workspace_bytes });
    }
    Ok(spec)
}

fn schedule(plan: &Plan, env: &Env, unit: MathUnit) -> Result<Schedule, Refusal> {
    let at = |key: Common| plan.common(key);
    let (pfg, buf, fra, lwv, mac) = (at(Common::Pfg), at(Common::Buf), at(Common::Fra), at(Common::Lwv), at(Common::Mac));
    if buf > pfg + 1 {
        return Err(Refusal::Buffers { pfg, buf });
    }
    let copies = [Transport::by_threads(plan, Key::A)?, Transport::by_threads(plan, Key::B)?];
    let all_copied = copies.iter().all(Transport::is_async);
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
            _ if pfg == 0 || all_copied => StorePoint::AtOnce,
            0 => StorePoint::AtOnce,
            1 => StorePoint::AfterMath,
            _ => StorePoint::Spread,
        },
        fragments_ahead: fra,
        copies,
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
