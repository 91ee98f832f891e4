//! How results leave a work-group: which ways of summing splits and of storing are legal.

use super::bulk::{partials, store_tile};
use super::keys::{Common, Key};
use super::reach;
use super::refusal::Refusal;
use super::rules::{Env, atomic_sums};
use super::spec::*;
use super::value::Plan;
use tilewright_ir::{MAX_CLUSTER, Scalar};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{COL, ROW};

/// How splits are summed and results stored, or why they cannot be so.
pub(super) fn derive(plan: &Plan, c: &Contraction, env: &Env, tiling: &Tiling) -> Result<Epilogue, Refusal> {
    let family = tiling.unit.family();
    if family.asynchronous {
        of_warpgroups(plan, c, env, tiling)
    } else if family.fragments {
        of_waves(plan, c, env, tiling)
    } else {
        of_threads(plan, c, env, tiling)
    }
}

/// Work-groups that run together.
pub(super) fn cluster(plan: &Plan, c: &Contraction, [along_m, along_n]: [u32; 2]) -> Result<Cluster, Refusal> {
    let at = |key: Common| plan.common(key);
    let splits = if at(Common::Sks) == 2 { at(Common::Ice) } else { 1 };
    let cluster = Cluster { m: along_m, n: along_n, splits };
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

fn of_threads(plan: &Plan, c: &Contraction, env: &Env, tiling: &Tiling) -> Result<Epilogue, Refusal> {
    let ice = plan.common(Common::Ice);
    let staged = plan.common(Common::Cst) == 1;
    let workspace = plan.common(Common::Sks) == 1;
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

/// A lane stores its neighbours along n together, as many as [`Tiling::run`] says.
fn of_waves(plan: &Plan, c: &Contraction, env: &Env, tiling: &Tiling) -> Result<Epilogue, Refusal> {
    let (ice, width) = (plan.common(Common::Ice), plan.common(Common::Cvw));
    if ice > 1 && plan.common(Common::Sks) == 0 {
        if !env.allow_atomics {
            return Err(Refusal::AtomicsNotAllowed { ice });
        }
        atomic_sums(c, ice)?;
        return Ok(Epilogue { split_sum: SplitSum::Atomic, store_width: 1, staged: false, bulk: false });
    }
    let split_sum = if ice > 1 { SplitSum::Workspace } else { SplitSum::Atomic };
    if plan.common(Common::Cst) == 1 && tiling.unit == MathUnit::Mma {
        // Results leave row by row, in vectors as wide as the start of C allows.
        let stored = if ice > 1 { partials(c, c.g * u64::from(ice)) } else { c.c.clone() };
        let pulled = tiling.edge_n == Edge::PullBack && !c.n.is_multiple_of(u64::from(tiling.b.macro_tile));
        // Staging buffers hold f32.
        let wide = c.accumulator() != Scalar::F32;
        if stored.view.stride(COL) != Some(1) || stored.view.is_affine_box().is_none() || pulled || wide {
            return Err(Refusal::StagedRows);
        }
        return Ok(Epilogue { split_sum, store_width: 1, staged: true, bulk: false });
    }
    if width > 1 {
        let run = tiling.run();
        let most = if c.c.view.stride(COL) == Some(1) && run.is_multiple_of(width) { width } else { 1 };
        // Partial sums are dense; C itself is as the problem says.
        let allowed = if ice > 1 || most == 1 { most } else { reach::vector_width(&c.c, COL, width) };
        if allowed < width {
            return Err(Refusal::StoreAlign { width, allowed: if most == 1 { 1 } else { allowed } });
        }
        if c.dynamic.n {
            return Err(Refusal::VectorRunTime { key: Key::C(Common::Cvw), width, dim: "n" });
        }
        if !c.n.is_multiple_of(u64::from(width)) {
            return Err(Refusal::VectorEdge { key: Key::C(Common::Cvw), width, dim: "n", extent: c.n });
        }
    }
    Ok(Epilogue { split_sum, store_width: width, staged: false, bulk: false })
}

fn of_warpgroups(plan: &Plan, c: &Contraction, env: &Env, tiling: &Tiling) -> Result<Epilogue, Refusal> {
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
        let bulk = store_tile(&stored, tiling.b.micro).is_ok_and(|tile| !anywhere(tile.by_rows));
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
