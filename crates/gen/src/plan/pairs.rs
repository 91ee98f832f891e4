//! Pairs of sums that make one result: which of a thread's accumulators they are, and the tile of results that exits see.
//!
//! A gated product has two columns for each column of its result, in granules ([`Pairs`]). Where a thread holds both sums of its results, it combines
//! them in registers. Then its accumulators are those of a tile with half the columns, so every exit works as with other products.

use super::bulk::{StoreTile, store_tile};
use super::refusal::Refusal;
use super::spec::{Edge, KernelSpec, Split, Tiling};
use super::tile::OperandTiling;
use std::borrow::Cow;
use std::collections::HashMap;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::mma::Owner;
use tilewright_problem::contraction::{Contraction, Pairs, StoredFactor};

/// Places of elements that are compared for every thread; beyond, for threads whose numbers have one bit.
const EVERY: u64 = 1 << 12;

impl Tiling {
    /// The tiling of the results of pairs: the same rows, half the columns.
    pub fn of_pairs(&self) -> Tiling {
        let b = OperandTiling {
            micro: self.b.micro / 2,
            macro_tile: self.b.macro_tile / 2,
            fragment_width: (self.b.fragment_width / 2).max(1),
            ..self.b.clone()
        };
        Tiling { b, ..self.clone() }
    }

    /// For each of a thread's results, in the order of the accumulators of [`Tiling::of_pairs`], the elements that its two sums are. `None` where some
    /// thread does not have both.
    pub fn pair_elements(&self, pairs: &Pairs) -> Option<Vec<[u32; 2]>> {
        let whole = self.accumulator_row().is_none_or(|row| (self.b.micro / 2).is_multiple_of(row.shape.n));
        if !self.b.micro.is_multiple_of(2) || !whole {
            return None;
        }
        let (sums, results) = (self.accumulators(), self.of_pairs().accumulators());
        let at = |layout: &Layout, thread: u32, element: u32| {
            [Axis::Row, Axis::Col].map(|to| layout.at(to, &[(Axis::Thread, thread.into()), (Axis::Register, element.into())]))
        };
        let sums_at = |thread, element| at(&sums, thread, element).map(|place| place as u64);
        let wanted = |thread, result| {
            let [row, column] = at(&results, thread, result).map(|place| place as u64);
            let first = pairs.first(column);
            [[row, first], [row, first + pairs.granule]]
        };
        let known: HashMap<[u64; 2], u32> =
            (0..sums.extent(Axis::Register) as u32).map(|element| (sums_at(0, element), element)).collect();
        let count = results.extent(Axis::Register) as u32;
        let elements = (0..count).map(|result| {
            let [first, second] = wanted(0, result).map(|place| known.get(&place).copied());
            Some([first?, second?])
        });
        let elements: Vec<[u32; 2]> = elements.collect::<Option<_>>()?;
        let threads = self.math_threads();
        let every = u64::from(threads) * u64::from(count) <= EVERY;
        let compared = (1..threads).filter(|thread| every || thread.is_power_of_two() || *thread == threads - 1);
        let same = |thread: u32| {
            (0..count).zip(&elements).all(|(result, held)| held.map(|element| sums_at(thread, element)) == wanted(thread, result))
        };
        compared.into_iter().all(same).then_some(elements)
    }
}

impl KernelSpec {
    /// The pairs whose results the main kernel makes: none where it leaves sums to another one.
    pub fn pairs(&self, c: &Contraction) -> Option<Pairs> {
        c.pairs().copied().filter(|_| self.epilogue.split != Split::Workspace)
    }
    /// Bulk stores of the pre-activations of the gate and of the other factor, where results leave by bulk stores and these
    /// go the same way.
    pub fn preactivation_stores(&self, c: &Contraction) -> Option<[FactorStore; 2]> {
        let (_, results) = (self.pairs(c)?, self.epilogue.exit.bulk()?);
        let store = |factor: usize| {
            let StoredFactor { tensor, first } = c.preactivations_of(factor)?;
            let tile = store_tile(&tensor, self.tiling.b.micro / 2).ok()?;
            results.goes_with(&tile).then_some(FactorStore { tile, first })
        };
        Some([store(0)?, store(1)?])
    }
    /// Accumulators that the main kernel makes one result of.
    pub fn sums_of_a_result(&self, c: &Contraction) -> u32 {
        if self.pairs(c).is_some() { 2 } else { 1 }
    }
    /// The plan and the contraction that exits see: those of the results.
    pub fn of_results<'s>(&'s self, c: &'s Contraction) -> OfResults<'s> {
        match self.pairs(c) {
            None => OfResults { spec: Cow::Borrowed(self), contraction: Cow::Borrowed(c) },
            Some(_) => {
                let spec = KernelSpec { tiling: self.tiling.of_pairs(), ..self.clone() };
                OfResults { spec: Cow::Owned(spec), contraction: Cow::Owned(c.of_pairs()) }
            }
        }
    }
}

/// Bulk stores of the pre-activations of one factor.
pub struct FactorStore {
    /// What one store moves.
    pub tile: StoreTile,
    /// Element of the buffer that the map begins at.
    pub first: u64,
}

/// A kernel and its contraction as exits see them: tiles and columns of results.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_problem::GateFunction;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // A gated product: a tile has 64 columns of gate and up, and 32 columns of results.
/// let gemm = Gemm::new(Scalar::F16, 64, 64, 64).gate(GateFunction::Silu).interleaved(true);
/// let space = Space::new(&gemm.build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, no interleave-micro")?;
/// let derived = space.resolve(&plan)?.spec;
/// let of_results = derived.of_results(&derived.c);
/// assert_eq!((derived.tiling.b.macro_tile, of_results.spec.tiling.b.macro_tile), (64, 32));
/// assert_eq!((derived.c.n, of_results.contraction.n), (128, 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OfResults<'s> {
    /// With tiles of results.
    pub spec: Cow<'s, KernelSpec>,
    /// With columns of results.
    pub contraction: Cow<'s, Contraction>,
}

/// Refuses tilings whose threads cannot combine what they hold.
pub(super) fn check(pairs: &Pairs, t: &Tiling, split: Split) -> Result<(), Refusal> {
    let refuse = |why| Err(Refusal::Pairs { granule: pairs.granule, why });
    if t.math_width > 1 {
        return refuse("with vector math a register has sums of several columns; use MVW1");
    }
    if split == Split::Cluster {
        return refuse("a work-group has parts of sums only; use SKS1 or ICE1");
    }
    if t.edge_n == Edge::PullBack && !pairs.columns.is_multiple_of(pairs.granule) {
        return refuse("a tile that is pulled back must end with the last column; use EDG1, or BIM0");
    }
    if !u64::from(t.b.macro_tile).is_multiple_of(2 * pairs.granule) || t.pair_elements(pairs).is_none() {
        return refuse(match t.unit.family().owner {
            Owner::Thread => "a thread must hold both; use BIM0 with an even B_MIC and B_MIW0",
            Owner::Wave | Owner::Warpgroup => {
                "an owner of instructions must hold both in one lane; use another BIM, a B_MIC of two granules, or UNI0"
            }
        });
    }
    Ok(())
}
