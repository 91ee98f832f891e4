//! How results are reduced under a plan.
//!
//! | file | question |
//! |---|---|
//! | `tile` | how the threads of a work-group reduce a tile |
//! | `partials` | where parts of work-groups go |
//! | `finish` | how these parts are combined |
//! | `elements` | results that are read instead of computed |
//! | `carry` | what a work-group keeps from tile to tile |
//! | `operands` | reductions of operands over k |
//! | `arrays` | where the shared memory of a reduction lies |

mod arrays;
mod carry;
mod elements;
mod finish;
mod operands;
mod partials;
mod tile;

pub use arrays::{ReductionArrays, SharedReduction, reduction_arrays};
pub use carry::Carried;
pub use elements::{ELEMENT_BLOCK, ELEMENT_THREADS, ElementLoads, ElementSteps, ElementTile};
pub use finish::{Finish, Stage, atomic};
pub use operands::{OperandTile, OperandVector};
pub use partials::Partials;
pub use tile::TileReduction;

use super::refusal::Refusal;
use super::spec::{KernelSpec, Split};
use partials::ReducedTiles;
use tilewright_ir::layout::Layout;
use tilewright_problem::contraction::{Contraction, Reduce, ResultSource};

impl KernelSpec {
    /// Lanes of a wave that exchange values where results are reduced.
    pub(crate) const fn exchanging(&self) -> u32 {
        let tree = matches!(self.epilogue.finish.stage(), Some(Stage::Group));
        if self.epilogue.shuffles && !tree { self.tiling.wave_lanes } else { 1 }
    }
    /// How the threads that compute reduce a tile, for each reduction of a contraction that is oriented as the plan says.
    pub fn tile_reductions(&self, c: &Contraction) -> Vec<TileReduction> {
        if c.reductions().next().is_none() || self.epilogue.split == Split::Workspace {
            return Vec::new();
        }
        let t = &self.tiling;
        self.reductions_of(c, &t.accumulators(), [t.a.macro_tile, t.b.macro_tile])
    }
    /// How the kernel that sums splits up in workspace, or prepares C for atomic additions, reduces a tile.
    pub fn element_reductions(&self, c: &Contraction) -> Vec<TileReduction> {
        if c.reductions().next().is_none() || !matches!(self.epilogue.split, Split::Workspace | Split::Atomic) {
            return Vec::new();
        }
        let tile = ElementTile::new(c);
        self.reductions_of(c, &tile.layout, tile.size)
    }
    fn reductions_of(&self, c: &Contraction, layout: &Layout, size: [u32; 2]) -> Vec<TileReduction> {
        let of = |r: &Reduce| {
            let way = TileReduction::new(layout, size, runs(r, layout, size), self.exchanging());
            match self.epilogue.finish.stage() {
                Some(Stage::Element) => way.of_elements(),
                Some(Stage::Group) => way.by_tree(),
                _ => way,
            }
        };
        c.reductions().map(of).collect()
    }
    /// The parts of a reduction that tiles of this plan leave, of a contraction that is oriented as the plan says.
    pub fn partials(&self, c: &Contraction, r: &Reduce) -> Partials {
        let (t, finish) = (&self.tiling, self.epilogue.finish);
        if r.operand {
            return self.operand_partials(c, r);
        }
        if self.epilogue.split == Split::Workspace {
            let tile = ElementTile::new(c);
            let runs = runs(r, &tile.layout, tile.size);
            return Partials::new(c, r, ReducedTiles { runs, ..ReducedTiles::of(tile.size.map(u64::from), finish) });
        }
        if let ResultSource::Elements(_) = c.source {
            // Shares of a cluster are those of one tile.
            let shares = u64::from(t.cluster.splits);
            let size = [t.a.macro_tile.into(), self.share_of_columns(c) * shares];
            return Partials::new(c, r, ReducedTiles { shares, ..ReducedTiles::of(size, finish) });
        }
        let size = [t.a.macro_tile, t.b.macro_tile];
        let runs = if r.over.in_blocks() { runs(r, &t.accumulators(), size) } else { [1; 2] };
        let carried = self.carried(c, r);
        // Each split adds its share of what results add up to.
        let shares = if self.epilogue.split == Split::Atomic { t.split_k.ways } else { t.cluster.splits };
        let together = [t.cluster.m, t.cluster.n];
        Partials::new(c, r, ReducedTiles { size: size.map(u64::from), runs, together, shares: shares.into(), finish, carried })
    }
    /// Columns that a work-group of a standalone reduction walks over.
    pub fn share_of_columns(&self, c: &Contraction) -> u64 {
        let tile = u64::from(self.tiling.b.macro_tile.max(1));
        c.n.div_ceil(self.tiling.split_k.ways.max(1).into()).next_multiple_of(tile).max(tile)
    }
    /// How a thread of a standalone reduction loads its elements.
    pub fn element_loads(&self, c: &Contraction) -> ElementLoads {
        ElementLoads::new(&self.tiling.accumulators(), c)
    }
    /// The steps along the columns of its work-groups.
    pub fn element_steps(&self, c: &Contraction) -> ElementSteps {
        let tile = u64::from(self.tiling.b.macro_tile);
        ElementSteps::new(c, &self.element_loads(c), tile, self.share_of_columns(c))
    }
    /// A kernel after the others reduces the parts in workspace.
    pub fn finishes_after(&self, c: &Contraction) -> bool {
        self.reduced(c).any(|r| self.partials(c, r).finish == Some(Finish::Kernel))
    }
    /// A kernel ahead of the others sets results or tickets to their first values.
    pub fn begins_ahead(&self, c: &Contraction) -> bool {
        c.reductions().any(|r| self.partials(c, r).finish.is_some_and(|finish| finish != Finish::Kernel))
    }
    /// Two runs give the same bits: nothing is added up by atomics.
    pub(in crate::plan) fn repeats(&self, c: &Contraction) -> bool {
        let varies = |r: &Reduce| r.operator.adds() && self.partials(c, r).finish.is_some_and(|finish| finish.stage().is_some());
        self.epilogue.split != Split::Atomic && !c.reductions().any(varies)
    }
    /// Refuses a finish with nothing to do, because another plan gives the same kernel.
    pub(super) fn check_finish(&self, c: &Contraction) -> Result<(), Refusal> {
        let finished = Err(Refusal::ReduceFinished { rdf: self.epilogue.finish.number() });
        let mut all = c.reductions().map(|r| self.partials(c, r).parts).peekable();
        if self.epilogue.finish != Finish::Kernel && all.peek().is_some() && all.all(|parts| parts == 0) {
            return finished;
        }
        if self.epilogue.finish == Finish::Cluster {
            self.check_cluster_reduction(c)?;
        }
        let same = matches!(self.epilogue.finish, Finish::Ticket | Finish::Atomic(Stage::Wave));
        if same && c.reductions().all(|r| self.partials(c, r).in_place()) {
            return finished;
        }
        let scattered = |r: &&Reduce| self.partials(c, r).inner != [1; 2];
        match c.reductions().find(scattered).filter(|_| self.epilogue.finish == Finish::Ticket) {
            Some(r) => Err(Refusal::ReduceBlocks { over: r.over }),
            None => Ok(()),
        }
    }
    /// Refuses clusters whose work-groups share no values or cannot synchronise.
    fn check_cluster_reduction(&self, c: &Contraction) -> Result<(), Refusal> {
        let refuse = |why| Err(Refusal::ReduceCluster { why });
        if self.epilogue.split == Split::Workspace {
            return refuse("the kernel that adds splits in workspace has no clusters; use SKS2, ICE1");
        }
        let shares = match c.source {
            ResultSource::Elements(_) => c.n.div_ceil(self.share_of_columns(c)),
            _ => self.tiling.cluster.splits.into(),
        };
        if shares != u64::from(self.tiling.cluster.splits) {
            return refuse("the number of column ranges differs from the work-groups of the cluster; use another ICE");
        }
        if self.teams() > 1 {
            return refuse(
                "all threads of a cluster share one barrier, and ping-pong warpgroups reach it at different times; use PNG0",
            );
        }
        match c.reductions().all(|r| self.partials(c, r).cluster_peers() == 1) {
            true => refuse("the work-groups of a cluster share no values; use SKS2, CLU along the reduced axis"),
            false => Ok(()),
        }
    }
    /// Returns whether some of these reductions combine values in the shared memory of a cluster.
    fn combines_in_cluster(&self, all: &[(&Reduce, TileReduction)], c: &Contraction) -> bool {
        all.iter().any(|(r, _)| self.partials(c, r).cluster_peers() > 1)
    }
    /// Threads of a cluster meet where results, or what goes on from tile to tile, are reduced.
    pub(crate) fn reduces_in_cluster(&self, c: &Contraction, after_last: bool) -> bool {
        self.combines_in_cluster(&self.reductions_at(c, after_last), c)
    }
    /// Bytes of shared memory through which threads reduce each tile's results.
    pub(in crate::plan) fn tile_reduction_bytes(&self, c: &Contraction) -> u64 {
        self.shared_parts_bytes(&self.reductions_at(c, false), c, self.tiling.math_threads(), self.teams())
    }
    /// The same after the last tile.
    pub(in crate::plan) fn carried_reduction_bytes(&self, c: &Contraction) -> u64 {
        self.shared_parts_bytes(&self.reductions_at(c, true), c, self.tiling.math_threads(), self.teams())
    }
    /// Reductions of each tile, or those after the last tile.
    pub(crate) fn reductions_at<'c>(&self, c: &'c Contraction, after_last: bool) -> Vec<(&'c Reduce, TileReduction)> {
        if after_last && !self.epilogue.carry {
            return Vec::new();
        }
        let all = c.reductions().zip(self.tile_reductions(c));
        all.filter(|(r, _)| self.carried(c, r).is_some() == after_last).collect()
    }
    /// 32-bit registers in which a thread keeps what goes on from tile to tile.
    pub(in crate::plan) fn carried_registers(&self, c: &Contraction) -> u32 {
        if !self.epilogue.carry {
            return 0;
        }
        let layout = self.tiling.accumulators();
        let words = |r: &Reduce| c.state(r).iter().map(|scalar| scalar.bytes().div_ceil(4)).sum::<u32>();
        self.reductions_at(c, true).iter().map(|(r, how)| how.held(&layout).len() as u32 * words(r)).sum()
    }
    /// The same of the kernel that sums splits up in workspace.
    pub(crate) fn element_bytes(&self, c: &Contraction) -> u64 {
        let all: Vec<_> = c.reductions().zip(self.element_reductions(c)).collect();
        self.shared_parts_bytes(&all, c, ELEMENT_THREADS, 1)
    }
    /// How often the computing threads wait for each other while they reduce a tile, or after the last tile.
    pub(crate) fn reduction_barriers(&self, c: &Contraction, after_last: bool) -> usize {
        let all = self.reductions_at(c, after_last);
        let ways = || all.iter().map(|(_, way)| way);
        let through_shared = match ways().any(|way| way.shared() > 0) {
            true => 2,
            // Ahead of what others of the cluster read.
            false => usize::from(self.combines_in_cluster(&all, c)),
        };
        let tree = ways().map(|way| way.tree as usize).max().unwrap_or(0);
        let tickets = all.iter().map(|(r, way)| (self.partials(c, r), way));
        let tickets: Vec<_> = tickets.filter(|(parts, _)| parts.finish == Some(Finish::Ticket)).collect();
        let shared = tickets.iter().any(|(parts, way)| way.sharers(self.tiling.math_threads(), parts.parts) > 1);
        through_shared + tree + if tickets.is_empty() { 0 } else { 2 + usize::from(shared) }
    }
    /// Bytes of shared memory through which so many threads of each team reduce values.
    fn shared_parts_bytes(&self, all: &[(&Reduce, TileReduction)], c: &Contraction, threads: u32, teams: u32) -> u64 {
        let values: Vec<_> = all.iter().map(|(r, _)| (c.state(r), self.partials(c, r))).collect();
        let with = values.iter().zip(all);
        let all: Vec<_> = with.map(|((state, partials), (_, how))| SharedReduction { state, how, partials }).collect();
        reduction_arrays(&all, threads, teams, 0).1
    }
}

/// Rows and columns of a tile that one of its values is reduced of, where threads hold it as the layout says.
fn runs(r: &Reduce, layout: &Layout, size: [u32; 2]) -> [u32; 2] {
    let (over, whole) = ([r.over.m, r.over.n], r.over.whole());
    [0, 1].map(|axis| match (over[axis], whole[axis]) {
        (false, _) => 1,
        (true, true) => size[axis].max(1),
        (true, false) => tile::run(layout, axis, size[axis], r.over.blocks[axis]),
    })
}

/// Bytes of workspace for the parts of all reductions, the whole batch together; each begins at a multiple of `align`.
pub(crate) fn partials_bytes(spec: &KernelSpec, c: &Contraction, align: u64) -> u64 {
    let bytes = |r: &Reduce| {
        let parts = spec.partials(c, r);
        let of_components = c.state(r).into_iter().map(move |scalar| parts.len().saturating_mul(scalar.bytes().into()));
        of_components.chain([parts.tickets().saturating_mul(4)])
    };
    let all = spec.reduced(c).flat_map(bytes).filter(|bytes| *bytes > 0);
    all.fold(0, |sum, bytes| sum.saturating_add(bytes.saturating_add(align)))
}
