//! How results leave: how the splits of k meet (`ICE`, `SKS`) and how results get to C (`CST`, `CVW`), for every unit alike.

use super::bulk::{StoreTile, partials, store_tile};
use super::keys::{Chiral, Common, Key};
use super::pairs;
use super::reach;
use super::reduction::Finish;
use super::refusal::Refusal;
use super::rules::Env;
use super::spec::*;
use super::value::Plan;
use tilewright_ir::mma::Owner;
use tilewright_ir::{MAX_CLUSTER, Scalar};
use tilewright_problem::contraction::{Contraction, LaunchExtents, ResultSource};
use tilewright_problem::view::{COL, ROW};
use tilewright_problem::{Extent, Operator, Ragged};

/// How splits meet and results leave, for a contraction that is oriented as the plan says already.
pub(super) fn derive(plan: &Plan, c: &Contraction, env: &Env, t: &Tiling) -> Result<Epilogue, Refusal> {
    if let ResultSource::Elements(_) = c.source {
        // Shares of the columns, which nothing but the reductions' values comes of.
        let finish = Finish::derive(plan, c, env)?;
        return Ok(Epilogue {
            split: Split::None,
            exit: Exit::Direct { width: 1 },
            shuffles: env.shuffles && env.wave > 1,
            finish,
            carry: false,
            operands: false,
        });
    }
    let split = split(plan, c, env)?;
    let operands = operands(plan, c, t)?;
    let shuffles = env.shuffles && env.wave > 1 && (operands || c.reductions().next().is_some());
    let finish = Finish::derive(plan, c, env)?;
    if split == Split::Atomic {
        linear_in_parts(plan, c, finish)?;
    }
    let carry = plan.carry == 1 && c.reductions().next().is_some();
    if c.drop_c && split != Split::Workspace {
        return Ok(Epilogue { split, exit: Exit::Direct { width: 1 }, shuffles, finish, carry, operands });
    }
    let combined = c.pairs().filter(|_| split != Split::Workspace);
    if let Some(pairs) = combined {
        pairs::check(pairs, t, split)?;
    }
    // Exits see the results of pairs.
    let of_pairs = combined.map(|_| (c.of_pairs(), t.of_pairs()));
    let (c, t) = of_pairs.as_ref().map_or((c, t), |(c, t)| (c, t));
    let exit = match (plan.staged, t.unit.family().owner) {
        // Additions go element by element; matrix units make them from registers.
        (1, Owner::Thread) if split == Split::Atomic => Exit::Staged { width: 1 },
        _ if split == Split::Atomic => Exit::Direct { width: 1 },
        (1, Owner::Thread) => Exit::Staged { width: width(plan, c, t, split)? },
        (1, Owner::Wave | Owner::Warpgroup) => whole_rows(plan, c, t, split)?,
        _ => Exit::Direct { width: width(plan, c, t, split)? },
    };
    Ok(Epilogue { split, exit, shuffles, finish, carry, operands })
}

/// Refuses what does not follow from parts of the sums one by one, or has to wait for all of them.
fn linear_in_parts(plan: &Plan, c: &Contraction, finish: Finish) -> Result<(), Refusal> {
    let ice = plan.splits;
    for r in c.reductions() {
        let linear = r.operator == Operator::Sum && r.function.is_none();
        if !linear {
            return Err(Refusal::ReduceSplit { ice, operator: r.operator });
        }
        if finish.stage().is_none() {
            return Err(Refusal::ReduceSplitFinish { ice });
        }
    }
    Ok(())
}

/// Returns whether the main loop reduces operands. It needs tiles that contain every element exactly once, unconverted.
fn operands(plan: &Plan, c: &Contraction, t: &Tiling) -> Result<bool, Refusal> {
    if plan.reduce_operands == 0 || c.operand_values.is_empty() {
        return Ok(false);
    }
    let refuse = |why| Err(Refusal::ReduceOperand { why });
    if let ResultSource::OwnOperands(_) = c.source {
        return refuse("with BIM4 no work-group loads a whole row or column of an operand");
    }
    if c.m == 0 || c.n == 0 {
        return refuse("C is empty, so no work-group loads the operand");
    }
    for x in &c.operand_values {
        let kept = if x.reduce.over.m { c.n } else { c.m };
        if x.len != c.g * kept || x.count != c.k {
            return refuse("the tiles do not contain each element of the operand exactly once");
        }
        let (tensor, tiling) = if x.reduce.over.m { (&c.b, &t.b) } else { (&c.a, &t.a) };
        let acp = if x.reduce.over.m { Key::B(Chiral::Acp) } else { Key::A(Chiral::Acp) };
        if plan.get(acp) == 4 {
            return refuse("ACP4 keeps a halo in shared memory, and no k-tiles that threads could reduce");
        }
        if tiling.shared_parts > 1 && tiling.split.is_some_and(|split| !split.adds_up()) {
            return refuse("shared memory has two bf16 numbers per element, which keep only 16 bits of it");
        }
        if tiling.rounded(t.unit.family(), tensor.factor()) && plan.has_panels() {
            return refuse("shared memory has the elements rounded to TF32 only");
        }
    }
    Ok(true)
}

fn split(plan: &Plan, c: &Contraction, env: &Env) -> Result<Split, Refusal> {
    let ice = plan.splits;
    match plan.split_sum {
        _ if ice <= 1 => Ok(Split::None),
        1 => Ok(Split::Workspace),
        2 => Ok(Split::Cluster),
        _ if !env.allow_atomics => Err(Refusal::AtomicsNotAllowed { ice }),
        _ if c.centre().is_some() => Err(Refusal::AtomicZeroPoints { ice }),
        _ if c.pairs().is_some() => Err(Refusal::AtomicGate { ice }),
        _ if !matches!(c.c.scalar, Scalar::F32 | Scalar::F64) => Err(Refusal::AtomicType { ice, scalar: c.c.scalar }),
        _ => match c.activation() {
            Some(activation) => Err(Refusal::AtomicActivation { ice, activation }),
            None => Ok(Split::Atomic),
        },
    }
}

/// Bytes of one load from another work-group's shared memory.
const PEER_BYTES: u32 = 16;

/// Derives the cluster: `m` x `n` neighbours that share tiles, and the splits of a tile if they are reduced within the cluster.
pub(super) fn cluster(plan: &Plan, c: &Contraction, [m, n]: [u32; 2]) -> Result<Cluster, Refusal> {
    let together = match c.source {
        ResultSource::Elements(_) => plan.finish == 5,
        _ => plan.split_sum == 2,
    };
    let splits = if together { plan.splits } else { 1 };
    let cluster = Cluster { m, n, splits };
    let size = m.saturating_mul(n).saturating_mul(splits);
    let refuse = |why| Err(Refusal::Cluster { size, why });
    if size > MAX_CLUSTER {
        return refuse("a cluster has at most 16; use a smaller CLU or ICE");
    }
    if !plan.persistent.is_multiple_of(size) {
        return refuse("PST must be a multiple of the size of a cluster");
    }
    if splits > 1 && plan.ping_pong == 1 {
        return refuse(
            "all threads of a cluster share one barrier, and ping-pong warpgroups reach it at different times; use PNG0",
        );
    }
    if splits > 1 && plan.math_width * c.accumulator().bytes() > PEER_BYTES {
        return refuse("partial sums of other work-groups are read 16 bytes at a time; use a smaller MVW");
    }
    // Persistent work-groups count their work in clusters, launches in work-groups.
    let counted = cluster.size() > 1 && plan.persistent > 0;
    if (cluster.sharers() > 1 || counted) && !c.fixed() {
        return refuse(
            "the number of tiles is known only at launch and may be no multiple of a cluster; use CLU1, and PST0 with SKS2",
        );
    }
    Ok(cluster)
}

/// The exit with staged results of a matrix unit: bulk stores if the operands use panels and C allows them, else row by row.
fn whole_rows(plan: &Plan, c: &Contraction, t: &Tiling, split: Split) -> Result<Exit, Refusal> {
    let partial = split == Split::Workspace;
    let stored = if partial { partials(c, c.g * u64::from(t.split_k.ways), c.m) } else { c.c.clone() };
    let adjacent = stored.view.stride(COL) == Some(1) && (partial || c.gaps.is_none());
    if plan.has_panels() {
        // Bulk stores need rows of C with known ends. Dynamic extents and groups therefore take plain stores. Partial sums have the
        // layout of the largest C, so their ends are known.
        let anywhere = |by_rows: bool| match &c.launch {
            _ if partial => false,
            LaunchExtents::Fixed => false,
            LaunchExtents::AtLaunch(x) => x.has(if by_rows { Extent::M } else { Extent::N }),
            LaunchExtents::Grouped(x) => x.of != Ragged::K,
        };
        // C is read in the widest runs.
        let even = c.n.is_multiple_of(2) && !c.varies(Extent::N);
        let width = if even && adjacent { neighbours(c, COL, t.run(), split) } else { 1 };
        if let Some(tile) = store_tile(&stored, t.b.micro).ok().filter(|tile| !anywhere(tile.by_rows)) {
            return Ok(Exit::Bulk { width, tile });
        }
    }
    if adjacent { Ok(Exit::Rows) } else { Err(Refusal::StagedRows) }
}

/// How partial sums of a tail's rows leave: in bulk where the whole tiles do and their staging buffers suit, else from registers.
pub(super) fn tail_exit(c: &Contraction, spec: &KernelSpec, split: SplitRows) -> Exit {
    let t = &spec.tiling;
    let stored = partials(c, c.g * u64::from(split.splits), split.rows);
    let same_buffers = |tile: &StoreTile| {
        let whole = spec.epilogue.exit.bulk().map(StoreTile::staging_bytes);
        whole == Some(tile.staging_bytes())
    };
    if let Some(tile) = store_tile(&stored, t.b.micro).ok().filter(same_buffers) {
        return Exit::Bulk { width: 1, tile };
    }
    // Neighbours that a thread holds.
    let along_n = c.c.view.stride(COL) == Some(1);
    let (extent, side) = if along_n { (c.n, &t.b) } else { (split.rows, &t.a) };
    let held = match t.unit.family().owner {
        Owner::Wave | Owner::Warpgroup if along_n => t.run(),
        Owner::Wave | Owner::Warpgroup => 1,
        Owner::Thread => side.fragment_width.max(if along_n { t.math_width } else { 1 }),
    };
    let widths = [4, 2].into_iter().filter(|width| width * c.accumulator().bytes() <= 16);
    let fits = |width: &u32| held.is_multiple_of(*width) && extent.is_multiple_of(u64::from(*width));
    Exit::Direct { width: widths.filter(fits).max().unwrap_or(1) }
}

/// How many neighbours along an axis of C, at most so many, one store may take. Partial sums are dense; C itself is as the problem says.
fn neighbours(c: &Contraction, axis: usize, most: u32, split: Split) -> u32 {
    if split == Split::Workspace { most } else { reach::vector_width(&c.c, axis, most) }
}

/// Elements per store of a thread that stores its own results, or multiply-adds' from a staging buffer.
fn width(plan: &Plan, c: &Contraction, t: &Tiling, split: Split) -> Result<u32, Refusal> {
    let (width, key) = (plan.store_width, Key::C(Common::Cvw));
    if width == 1 {
        return Ok(1);
    }
    let along_n = c.c.view.stride(COL) == Some(1);
    let (along, extent, side, axis) = if along_n { (Extent::N, c.n, &t.b, COL) } else { (Extent::M, c.m, &t.a, ROW) };
    let dim = along.name();
    let (held, wanted) = match t.unit.family().owner {
        // A lane holds neighbours along n.
        Owner::Wave | Owner::Warpgroup => {
            let held = if along_n { t.run() } else { 1 };
            (held, width.min(held))
        }
        Owner::Thread if plan.staged == 1 => (side.micro, width),
        Owner::Thread => (side.fragment_width.max(if along_n { t.math_width } else { 1 }), width),
    };
    let allowed = neighbours(c, axis, wanted, split);
    let stored = if split == Split::Workspace { c.accumulator() } else { c.c.scalar };
    let allowed = if width * stored.bytes() > 16 { allowed.min(4) } else { allowed };
    if allowed < width {
        return Err(Refusal::StoreAlign { width, allowed });
    }
    if !held.is_multiple_of(width) {
        return Err(Refusal::StoreUnit { width, dim, units: held });
    }
    if c.varies(along) {
        return Err(Refusal::VectorRunTime { key, width, dim });
    }
    if !extent.is_multiple_of(u64::from(width)) {
        return Err(Refusal::VectorEdge { key, width, dim, extent });
    }
    Ok(width)
}
