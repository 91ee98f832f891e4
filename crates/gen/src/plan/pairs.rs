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
use tilewright_ir::affine::Atom;
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
        let (sums, results) = (Places::new(self.accumulators()), Places::new(self.of_pairs().accumulators()));
        let wanted = |[row, column]: [i64; 2]| {
            let first = pairs.first(column as u64) as i64;
            [[row, first], [row, first + pairs.granule as i64]]
        };
        let known: HashMap<[i64; 2], u32> = (0..).zip(sums.of(0)).map(|(element, place)| (place, element)).collect();
        let elements = results.of(0).into_iter().map(|result| {
            let [first, second] = wanted(result).map(|place| known.get(&place).copied());
            Some([first?, second?])
        });
        let elements: Vec<[u32; 2]> = elements.collect::<Option<_>>()?;
        let threads = self.math_threads();
        let every = u64::from(threads) * elements.len() as u64 <= EVERY;
        let compared = (1..threads).filter(|thread| every || thread.is_power_of_two() || *thread == threads - 1);
        let same = |thread: u32| {
            let (sums, results) = (sums.of(thread), results.of(thread));
            elements.iter().zip(results).all(|(held, result)| held.map(|element| sums[element as usize]) == wanted(result))
        };
        compared.into_iter().all(same).then_some(elements)
    }
}

/// Rows and columns of accumulators by thread and register. A candidate of a search is asked for thousands of them.
struct Places {
    layout: Layout,
    /// What each register adds to the place of a thread's first one; empty where digits of thread and register mix.
    offsets: Vec<[i64; 2]>,
}

impl Places {
    fn new(layout: Layout) -> Places {
        let of_one = |atom: &Atom| layout.coordinates().iter().enumerate().filter(|(i, _)| atom.uses(*i)).count() <= 1;
        let parts =
            [Axis::Row, Axis::Col].map(|to| layout.form(to).is_none_or(|form| form.terms.iter().all(|(atom, _)| of_one(atom))));
        let mut places = Places { layout, offsets: Vec::new() };
        if parts == [true; 2] {
            let first = places.at(0, 0);
            let offset = |place: [i64; 2]| [place[0] - first[0], place[1] - first[1]];
            places.offsets = places.of(0).into_iter().map(offset).collect();
        }
        places
    }
    fn at(&self, thread: u32, register: u64) -> [i64; 2] {
        [Axis::Row, Axis::Col].map(|to| self.layout.at(to, &[(Axis::Thread, thread.into()), (Axis::Register, register as i64)]))
    }
    /// Row and column of each register of a thread.
    fn of(&self, thread: u32) -> Vec<[i64; 2]> {
        if self.offsets.is_empty() {
            return (0..self.layout.extent(Axis::Register)).map(|register| self.at(thread, register)).collect();
        }
        let [row, column] = self.at(thread, 0);
        self.offsets.iter().map(|offset| [row + offset[0], column + offset[1]]).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::space::Space;
    use tilewright_ir::{Scalar, Target};
    use tilewright_problem::Gemm;

    #[test]
    fn offsets_of_registers_are_the_same_for_every_thread() {
        for (arch, plan) in [
            ("sm_80", "fma 64x64x16 on 16x16"),
            ("sm_80", "fma 64x64x16 on 16x16, no interleave-micro"),
            ("sm_80", "mma 64x64x16 on 2x2"),
            ("sm_90a", "wgmma 128x128x64"),
            ("gfx942", "mfma 64x64x16 on 2x2"),
        ] {
            let gemm = Gemm::new(Scalar::F16, 64, 64, 64).build().unwrap();
            let space = Space::new(&gemm.into(), &Target::by_arch(arch).unwrap()).unwrap();
            let tiling = space.resolve(&Plan::parse(plan).unwrap()).unwrap_or_else(|e| panic!("{plan}: {e}")).spec.tiling.clone();
            let places = Places::new(tiling.accumulators());
            assert!(!places.offsets.is_empty(), "{plan}: digits mix thread and register");
            for thread in 0..tiling.math_threads() {
                let one_by_one: Vec<_> = (0..places.offsets.len() as u64).map(|register| places.at(thread, register)).collect();
                assert_eq!(places.of(thread), one_by_one, "{plan}: thread {thread}");
            }
        }
    }
}
