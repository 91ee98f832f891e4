//! Destinations of the partial values of a reduction.

use super::{Carried, Finish, Stage};
use tilewright_problem::contraction::{Contraction, Reduce};

/// Destination of the values that work-groups compute for a reduction.
///
/// A value goes to the result if one work-group has the whole value, or if atomics combine it there. Otherwise partial values go to workspace,
/// `[batch entry][tile along m][tile along n][share][value]`, and are reduced in this order. A block of rows or columns that crosses tiles
/// has several partial values there, adjacent along the axis of the block.
///
/// ```
/// use tilewright_gen::plan::{Finish, Plan};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // 8 tiles side by side: each has a part of a row's largest value, which a further kernel reduces.
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 64).reduce("max:n".parse()?).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// let reduction = derived.c.reductions().next().expect("a reduction");
/// let partials = derived.partials(&derived.c, reduction);
/// assert_eq!((partials.tiles, partials.parts, partials.finish), ([1, 8], 8, Some(Finish::Kernel)));
/// assert!(partials.in_workspace());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partials {
    /// Tiles with a part of a value, along m and n; work-groups, where a work-group carries values across its tiles.
    pub tiles: [u64; 2],
    /// Rows and columns of a tile.
    pub size: [u64; 2],
    /// Work-groups that each have a share of a tile.
    pub shares: u64,
    /// Values of a batch entry in workspace.
    pub values: u64,
    /// Rows and columns of each of them; 0: those of a tile.
    pub runs: [u64; 2],
    /// The same of the result's values.
    pub blocks: [u64; 2],
    /// Values in workspace of each of the result's, along the axis along which these follow each other and along the other.
    pub inner: [u64; 2],
    /// Values in workspace along the first of these axes.
    pub across: u64,
    /// Batch entries.
    pub entries: u64,
    /// Batch entries that each have a part of a value, and groups that stay apart between one of them and the next.
    pub outer: u64,
    /// See [`Partials::outer`].
    pub groups: u64,
    /// Consecutive batch entries that each have a part of a value: entries of one part of the problem within one entry of the result.
    pub phases: u64,
    /// Parts of each result.
    pub parts: u64,
    /// How they meet; `None`: one work-group has all of a value.
    pub finish: Option<Finish>,
    /// Tiles along m and n that have different values, 1 along an axis that is reduced.
    pub strips: [u64; 2],
    /// How work-groups add up their tiles' parts, where they do.
    pub carried: Option<Carried>,
    /// Work-groups of a cluster that combine what they have of a value before it goes anywhere: along m, along n, and shares.
    pub peers: [u64; 3],
}

/// The tiles that have parts of a reduction's values.
#[derive(Clone, Copy)]
pub(in crate::plan) struct ReducedTiles {
    /// Rows and columns of a tile.
    pub size: [u64; 2],
    /// Rows and columns of the tile that one value is reduced of.
    pub runs: [u32; 2],
    /// Tiles along m and n come in multiples of these: clusters.
    pub together: [u32; 2],
    /// Work-groups that each have a share of a tile.
    pub shares: u64,
    /// How the parts are combined.
    pub finish: Finish,
    /// How work-groups add up their tiles' parts, where they do.
    pub carried: Option<Carried>,
}

impl ReducedTiles {
    /// Tiles of single work-groups, each of which has one value.
    pub(in crate::plan) const fn of(size: [u64; 2], finish: Finish) -> ReducedTiles {
        ReducedTiles { size, runs: [1; 2], together: [1; 2], shares: 1, finish, carried: None }
    }
}

impl Partials {
    /// Of a reduction whose values tiles have parts of.
    pub(in crate::plan) fn new(c: &Contraction, r: &Reduce, tiles: ReducedTiles) -> Partials {
        let ReducedTiles { size, runs, together, shares, finish, carried } = tiles;
        let all = |axis: usize| {
            let extent = [c.m, c.n][axis];
            extent.div_ceil(size[axis].max(1)).next_multiple_of(together[axis].max(1).into())
        };
        let (over, each) = (r.over.whole(), c.result_shape(r).each(r.over));
        let tiles = [0, 1].map(|axis| if over[axis] { all(axis) } else { 1 });
        let tiles = carried.map_or(tiles, |carried| carried.parts);
        // Along what is reduced there are whole clusters.
        let peers = match finish {
            Finish::Cluster => {
                let [m, n] = [0, 1].map(|axis| if over[axis] { u64::from(together[axis].max(1)) } else { 1 });
                [m, n, shares.max(1)]
            }
            _ => [1; 3],
        };
        let (tiles, shares) = ([0, 1].map(|axis| tiles[axis].div_ceil(peers[axis])), shares.div_ceil(peers[2]));
        let finish = if finish == Finish::Cluster { Finish::Kernel } else { finish };
        let strips = [0, 1].map(|axis| if over[axis] { 1 } else { all(axis) });
        let unit = |of: [u64; 2]| [0, 1].map(|axis| if over[axis] { 0 } else { of[axis] });
        let (runs, blocks) = (unit(runs.map(u64::from)), unit(each));
        // Along the problem's n.
        let order = [c.columns_axis(), 1 - c.columns_axis()];
        let [across, down] = order.map(|axis| [c.m, c.n][axis].checked_div(runs[axis]).unwrap_or(1));
        let values = down * across;
        let phases = r.part.as_ref().map_or(1, |part| part.phases.max(1));
        let outer = if r.over.g { c.g / (r.groups.max(1) * phases) } else { 1 };
        let inner = order.map(|axis| blocks[axis].checked_div(runs[axis]).unwrap_or(1));
        let each = tiles[0].saturating_mul(tiles[1]).saturating_mul(shares).saturating_mul(inner[0] * inner[1]);
        let parts = each.saturating_mul(outer).saturating_mul(phases);
        let alone = parts == 1 && !c.shares_values(r) && finish.stage() != Some(Stage::Element);
        // Of an empty axis there is no part: what the last kernel begins with is all.
        let finish = if parts == 0 { Finish::Kernel } else { finish };
        let finish = (!alone).then_some(finish);
        Partials {
            tiles,
            size,
            shares,
            values,
            runs,
            blocks,
            inner,
            across,
            entries: c.g,
            outer,
            groups: r.groups,
            phases,
            parts,
            finish,
            strips,
            carried,
            peers,
        }
    }
    /// Work-groups that combine what they have of a value in their shared memory.
    pub fn cluster_peers(&self) -> u64 {
        self.peers.iter().product()
    }
    /// One work-group, or one cluster, has all of a value.
    pub const fn in_place(&self) -> bool {
        self.finish.is_none()
    }
    /// They meet in workspace.
    pub const fn in_workspace(&self) -> bool {
        matches!(self.finish, Some(Finish::Kernel | Finish::Ticket))
    }
    /// Batch entries that have values of their own.
    pub const fn kept_entries(&self) -> u64 {
        if self.outer > 1 { self.groups } else { self.entries / self.phases }
    }
    /// Tickets: one for each set of values that the same work-groups have parts of.
    pub const fn tickets(&self) -> u64 {
        match self.finish {
            Some(Finish::Ticket) => self.kept_entries().saturating_mul(self.strips[0]).saturating_mul(self.strips[1]),
            _ => 0,
        }
    }
    /// Elements of workspace.
    pub const fn len(&self) -> u64 {
        if !self.in_workspace() {
            return 0;
        }
        let each = self.tiles[0].saturating_mul(self.tiles[1]).saturating_mul(self.shares);
        each.saturating_mul(self.values).saturating_mul(self.entries)
    }
    /// True if there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
