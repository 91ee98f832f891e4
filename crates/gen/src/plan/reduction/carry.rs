//! Values that a persistent work-group carries from tile to tile before it stores them (`RDC`), and the reductions that allow it.

use super::Stage;
use crate::plan::refusal::Refusal;
use crate::plan::spec::{GroupOrder, KernelSpec, Split};
use tilewright_problem::contraction::{Contraction, Reduce};

/// A carried reduction: the work-group walks along the reduced axis, so all its tiles have the same values.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // 4 work-groups walk over 16 x 1 tiles, and each keeps the largest values of the columns in its 4 tiles.
/// let space = Space::new(&Gemm::new(Scalar::F32, 1024, 64, 64).reduce("max:m".parse()?).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, persistent=4, carry, order=2")?;
/// let derived = space.resolve(&plan)?.spec;
/// let reduction = derived.c.reductions().next().expect("a reduction");
/// let carried = derived.carried(&derived.c, reduction).expect("a carried reduction");
/// assert_eq!((carried.sharers, carried.parts), (4, [4, 1]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Tiles (clusters) with different values. The tiles of a work-group are a multiple of this number apart.
    pub kept: u64,
    /// Work-groups (clusters, ping-pong teams) with the same values.
    pub sharers: u64,
    /// Parts of a value along m and n.
    pub parts: [u64; 2],
    /// The axis along which the sharers count: 0 for m, 1 for n.
    pub along: usize,
}

impl KernelSpec {
    /// The carried form of a reduction; `None` if it is not carried.
    pub fn carried(&self, c: &Contraction, r: &Reduce) -> Option<Carried> {
        if self.epilogue.carry { self.carries(c, r).ok() } else { None }
    }

    /// The order of tiles (`GAL`) and the number of work-groups (`PST`), near the plan's, that allow a carried reduction.
    fn to_carry(&self, c: &Contraction, r: &Reduce) -> (u32, u32) {
        let (kept, size) = (u32::try_from(self.kept_tiles(c, r)).unwrap_or(u32::MAX), self.tiling.cluster.size().max(1));
        // Fewer than there are tiles.
        let all = u32::try_from(self.clusters(c).iter().product::<u64>()).unwrap_or(u32::MAX);
        let each = (self.tiling.persistent / size).min(all.saturating_sub(1) / self.teams().max(1)) / kept.max(1);
        let stay = each.max(1).saturating_mul(kept);
        (if r.over.whole()[1] { 2 } else { 1 }, stay.saturating_mul(size))
    }

    /// The first of the reductions that cannot go on from tile to tile, where none can.
    pub(in crate::plan) fn check_carry(&self, c: &Contraction) -> Result<(), Refusal> {
        let mut all = c.reductions().map(|r| self.carries(c, r));
        match (self.epilogue.carry, all.next()) {
            (true, Some(Err(refusal))) if !all.any(|carried| carried.is_ok()) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Tiles, or clusters of them, that have different values of a reduction.
    fn kept_tiles(&self, c: &Contraction, r: &Reduce) -> u64 {
        let whole = r.over.whole();
        (0..2).filter(|axis| !whole[*axis]).map(|axis| self.clusters(c)[axis]).product()
    }

    /// Clusters along m and n, or tiles.
    fn clusters(&self, c: &Contraction) -> [u64; 2] {
        let t = &self.tiling;
        [(c.m, t.a.macro_tile, t.cluster.m), (c.n, t.b.macro_tile, t.cluster.n)]
            .map(|(extent, tile, together)| extent.div_ceil(tile.max(1).into()).div_ceil(together.max(1).into()))
    }

    fn carries(&self, c: &Contraction, r: &Reduce) -> Result<Carried, Refusal> {
        let (t, whole) = (&self.tiling, r.over.whole());
        let (gal, pst) = self.to_carry(c, r);
        let refuse = |why| Err(Refusal::ReduceCarry { over: r.over, why, gal, pst });
        if self.epilogue.split == Split::Workspace {
            return refuse("splits store partial sums in workspace (ICE1 and SKS2 do not)");
        }
        if self.epilogue.finish.stage() == Some(Stage::Element) {
            return refuse("RDF4 adds every element by its own atomic");
        }
        if c.g > 1 {
            return refuse("batch entries do not share tiles");
        }
        if !c.dynamic().is_none() {
            return refuse("the number of tiles is known only at launch");
        }
        let (kept, all): (u64, u64) = (self.kept_tiles(c, r), self.clusters(c).iter().product());
        // Tiles along the kept axis follow each other.
        let in_order = match (whole, t.order) {
            ([true, true], _) | ([false, true], GroupOrder::RowsFastest) | ([true, false], GroupOrder::ColumnsFastest) => true,
            _ => kept == 1,
        };
        if !in_order {
            return refuse("the next tile belongs to other values");
        }
        let stay = u64::from(t.persistent / t.cluster.size().max(1)) * u64::from(self.teams());
        if stay == 0 || !stay.is_multiple_of(kept) {
            return refuse("the work-groups (PST) are no multiple of the tiles along the kept axis");
        }
        if all <= stay {
            return refuse("no work-group has a second tile");
        }
        let (sharers, along) = (stay / kept, usize::from(whole[1]));
        let parts = [(0, t.cluster.m), (1, t.cluster.n)].map(|(axis, together)| match (whole[axis], along == axis) {
            (false, _) => 1,
            (true, false) => u64::from(together),
            (true, true) => sharers * u64::from(together),
        });
        Ok(Carried { kept, sharers, parts, along })
    }
}
