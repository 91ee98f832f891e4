//! How results are reduced under a plan: [`tile`] by the threads of a work-group, [`partials`] by work-groups together; [`elements`] are
//! results that are read instead of computed.

mod elements;
mod partials;
mod tile;

pub use elements::{ELEMENT_THREADS, ElementLoads, ElementTile};
pub use partials::Partials;
pub use tile::TileReduction;

use super::spec::{KernelSpec, Split};
use tilewright_ir::Scalar;
use tilewright_ir::layout::Layout;
use tilewright_problem::contraction::{Contraction, Reduce};

impl KernelSpec {
    /// Lanes of a wave that exchange values where results are reduced.
    pub(crate) const fn exchanging(&self) -> u32 {
        if self.epilogue.shuffles { self.tiling.wave_lanes } else { 1 }
    }
    /// How the threads that compute reduce a tile, for each reduction of a contraction that is oriented as the plan says.
    pub fn tile_reductions(&self, c: &Contraction) -> Vec<TileReduction> {
        if c.reductions().next().is_none() || self.epilogue.split == Split::Workspace {
            return Vec::new();
        }
        let t = &self.tiling;
        self.reductions_of(c, &t.accumulators(), [t.a.macro_tile, t.b.macro_tile])
    }
    /// How the kernel that sums splits up in workspace reduces a tile.
    pub fn element_reductions(&self, c: &Contraction) -> Vec<TileReduction> {
        if c.reductions().next().is_none() || self.epilogue.split != Split::Workspace {
            return Vec::new();
        }
        let tile = ElementTile::new(c);
        self.reductions_of(c, &tile.layout, tile.size)
    }
    fn reductions_of(&self, c: &Contraction, layout: &Layout, size: [u32; 2]) -> Vec<TileReduction> {
        c.reductions().map(|r| TileReduction::new(layout, size, [r.over.m, r.over.n], self.exchanging())).collect()
    }
    /// The parts of a reduction that tiles of this plan leave, of a contraction that is oriented as the plan says.
    pub fn partials(&self, c: &Contraction, r: &Reduce) -> Partials {
        let t = &self.tiling;
        if self.epilogue.split == Split::Workspace {
            return Partials::new(c, r, ElementTile::new(c).size.map(u64::from), [1; 2], 1);
        }
        if c.elements.is_some() {
            return Partials::new(c, r, [t.a.macro_tile.into(), self.share_of_columns(c)], [1; 2], 1);
        }
        let size = [t.a.macro_tile, t.b.macro_tile].map(u64::from);
        Partials::new(c, r, size, [t.cluster.m, t.cluster.n], t.cluster.splits.into())
    }
    /// Columns that a work-group of a reduction by itself walks over.
    pub fn share_of_columns(&self, c: &Contraction) -> u64 {
        let tile = u64::from(self.tiling.b.macro_tile.max(1));
        c.n.div_ceil(self.tiling.split_k.ways.max(1).into()).next_multiple_of(tile)
    }
    /// How a thread of a reduction by itself loads its elements.
    pub fn element_loads(&self, c: &Contraction) -> ElementLoads {
        ElementLoads::new(&self.tiling.accumulators(), c)
    }
    /// Some reduction's values are spread over tiles, and meet in workspace.
    pub fn reduces_in_workspace(&self, c: &Contraction) -> bool {
        c.reductions().any(|r| !self.partials(c, r).in_place())
    }
    /// Bytes of shared memory through which waves reduce a tile's results.
    pub(crate) fn reduction_bytes(&self, c: &Contraction) -> u64 {
        meeting_bytes(&self.tile_reductions(c), c, self.teams())
    }
    /// The same of the kernel that sums splits up in workspace.
    pub(crate) fn element_bytes(&self, c: &Contraction) -> u64 {
        meeting_bytes(&self.element_reductions(c), c, 1)
    }
}

/// Bytes of shared memory through which parts of a tile's values meet: an array for each component, aligned to its elements.
fn meeting_bytes(ways: &[TileReduction], c: &Contraction, teams: u32) -> u64 {
    c.reductions().zip(ways).fold(0, |bytes, (r, way)| {
        let elements = u64::from(way.shared()) * u64::from(teams);
        let more =
            |bytes: u64, scalar: Scalar| bytes.next_multiple_of(scalar.bytes().into()) + elements * u64::from(scalar.bytes());
        if elements == 0 { bytes } else { c.state(r).into_iter().fold(bytes, more) }
    })
}

/// Bytes of workspace for the parts of all reductions, the whole batch together; each begins at a multiple of `align`.
pub(crate) fn partials_bytes(spec: &KernelSpec, c: &Contraction, align: u64) -> u64 {
    let bytes = |r: &Reduce| {
        let elements = spec.partials(c, r).len();
        c.state(r).into_iter().map(move |scalar| elements.saturating_mul(scalar.bytes().into()))
    };
    let all = c.reductions().flat_map(bytes).filter(|bytes| *bytes > 0);
    all.fold(0, |sum, bytes| sum.saturating_add(bytes.saturating_add(align)))
}
