//! The tiles of C in the order in which work-groups take them, as numbers. [`TileWalk`] writes the same order into kernels. Here
//! constants replace a work-group's number.

use super::cluster::ClusterPlace;
use super::position::TileWalk;
use crate::kernel::error::GenerateError;
use crate::kernel::generate::{Job, Tiles, inputs};
use crate::kernel::input::Ints;
use crate::plan::{Derived, WORKSPACE_ALIGN, partials_bytes};
use tilewright_ir::{Builder, ExprId, Scalar};

/// A piece of work: a tile of C, or a split of its sum over k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The work-group that does it.
    pub group: u64,
    /// Pieces of work that the work-group did before this one: above 0 in persistent work-groups only.
    pub round: u64,
    /// Number of the ping-pong team that computes it; 0 without ping-pong.
    pub team: u64,
    /// Tile along m and n. Clusters may have tiles past the last tile of C; these are not stored.
    pub tile: [u64; 2],
    /// First row and column.
    pub start: [u64; 2],
    /// Batch entry of the launch.
    pub g: u64,
    /// Which split of the sum over k.
    pub split: u64,
    /// First k (below 0 where the start is staggered), k-tiles, and how far the next one is.
    pub k_begin: i64,
    /// k-tiles.
    pub k_tiles: u64,
    /// From one k-tile to the next.
    pub k_step: i64,
}

/// The first pieces of work of a contraction's (first) launch, round by round and in each by work-group; at most `most`. Extents known
/// only at launch are taken to be the largest, and groups to be one that has all rows.
///
/// # Errors
/// As [`generate`](super::super::generate()).
pub fn works(derived: &Derived, workspace: u64, most: u64) -> Result<Vec<Work>, GenerateError> {
    let inputs = inputs(derived);
    let tail = derived.of_tail(&derived.c);
    let reduced = partials_bytes(&derived.spec, &derived.c, WORKSPACE_ALIGN.into());
    let job = |spec, tiles| Job::new(&derived.c, spec, tiles, 0, &inputs, [workspace, reduced]);
    let lead = job(&derived.spec, Tiles::Whole)?;
    let mut works = Vec::new();
    let before = add_works(&lead, 0, most, &mut works);
    if let Some(tail) = &tail {
        let tail = job(tail, Tiles::Tail)?;
        let before = if tail.follows(&lead, workspace) { before } else { 0 };
        add_works(&tail, before, most, &mut works);
    }
    Ok(works)
}

/// Adds the pieces of work of a part, after so many of the part before it in the launch, and returns their number.
fn add_works(job: &Job, before: u64, most: u64, works: &mut Vec<Work>) -> u64 {
    let (spec, shape, t) = (job.spec, &job.shape, &job.spec.tiling);
    let walk = TileWalk {
        c: job.c,
        tiling: t,
        inputs: [&job.inputs[0], &job.inputs[1]],
        shape,
        ints: Ints { coord: Scalar::I64, offset: Scalar::I64 },
        g_first: None,
        sizes: [None; 2],
        groups: None,
        terms: None,
        work: None,
        place: None,
        before: 0,
        more: false,
    };
    let own = u64::from(t.split_k.ways) * shape.tiles_m * shape.tiles_n * shape.chunk;
    let groups = if t.persistent == 0 { own } else { (before + own).min(u64::from(t.persistent)) }.max(1);
    let (size, stay) = (u64::from(t.cluster.size().max(1)), walk.stay().unsigned_abs());
    let b = &mut Builder::new("", 1);
    for piece in 0..own.min(most.saturating_sub(before)) {
        let (round, group) = ((before + piece) / groups, (before + piece) % groups);
        let id = b.int(group as i64, Scalar::I32);
        let place = ClusterPlace::of(b, t, id);
        let work = b.int((group / size + round * stay) as i64 - (before / size) as i64, Scalar::I32);
        let walk = TileWalk { place, ..walk };
        let at = walk.position(b, work);
        let k = walk.k_range(b, &at);
        let start = [at.m_start, at.n_start].map(|start| start.value(b));
        let number = |e: ExprId| b.kernel().as_int(e).unwrap_or(0);
        works.push(Work {
            group,
            round,
            team: round % u64::from(spec.teams().max(1)),
            tile: [at.tile_m, at.tile_n].map(|e| number(e).unsigned_abs()),
            start: start.map(|e| number(e).unsigned_abs()),
            g: number(at.g_local).unsigned_abs(),
            split: number(at.split).unsigned_abs(),
            k_begin: number(k.begin),
            k_tiles: number(k.tiles).unsigned_abs(),
            k_step: k.step,
        });
    }
    own
}
