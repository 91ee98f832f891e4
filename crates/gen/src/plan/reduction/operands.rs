//! Reductions of operands over k in the main loop (`RDK`): the elements that each thread reduces, and the destination of the values.
//!
//! Work-groups of the first column of tiles reduce all rows of A, and work-groups of the first row all columns of B. Each split of k has a
//! partial value of every row or column. Values are combined between lanes only, never through shared memory.

use super::partials::ReducedTiles;
use super::{Finish, Partials, TileReduction, runs};
use crate::plan::grid::gcd;
use crate::plan::spec::KernelSpec;
use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_problem::contraction::{Contraction, Reduce};

/// How threads hold an operand's tile where they reduce it: neighbours in vectors along rows, or along k.
///
/// ```
/// use tilewright_gen::plan::{OperandTile, OperandVector};
///
/// // 64 rows of 32 k by up to 128 threads of waves of 32, in vectors of 4 along k.
/// let tile = OperandTile::new(0, [64, 32], OperandVector { along_k: true, width: 4 }, 128, 32);
/// assert_eq!((tile.size, tile.threads), ([64, 32], 128));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandTile {
    /// (thread, register) to (row, column). The coordinate that is not kept is k.
    pub layout: Layout,
    /// Rows or columns, and k.
    pub size: [u32; 2],
    /// Threads that take part: the first ones.
    pub threads: u32,
    /// Neighbours that follow each other in registers, a vector of shared memory.
    pub width: u32,
}

/// A vector of an operand's tile in shared memory.
///
/// ```
/// use tilewright_gen::plan::{OperandTile, OperandVector};
/// use tilewright_ir::layout::Axis;
///
/// // With vectors along rows, a thread's first two elements are neighbouring rows; with vectors along k, neighbouring k.
/// let second = |along_k| {
///     let tile = OperandTile::new(0, [64, 32], OperandVector { along_k, width: 4 }, 64, 1);
///     [Axis::Row, Axis::Col].map(|axis| tile.layout.at(axis, &[(Axis::Register, 1)]))
/// };
/// assert_eq!((second(false), second(true)), ([1, 0], [0, 1]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OperandVector {
    /// Its elements lie along k, else along rows.
    pub along_k: bool,
    /// Elements.
    pub width: u32,
}

impl OperandTile {
    /// Of a tile of so many rows (or columns, where `kept` is 1) and so long along k, for at most so many threads. `wave`: lanes that can
    /// exchange values; 1 where they cannot.
    pub fn new(kept: usize, [rows, depth]: [u32; 2], vector: OperandVector, threads: u32, wave: u32) -> OperandTile {
        let OperandVector { along_k, width } = vector;
        let (by_rows, by_k) = if along_k { (1, width) } else { (width, 1) };
        let (groups, steps) = (rows / by_rows, depth / by_k);
        // Lanes that share a row: whole waves of them, or none.
        let whole = |lanes: &u32| *lanes == 1 || (groups * lanes).is_multiple_of(wave);
        let fits = |lanes: &u32| groups * lanes <= threads && steps.is_multiple_of(*lanes);
        let lanes = (0..=wave.max(1).ilog2()).rev().map(|log| 1 << log).find(|lanes| fits(lanes) && whole(lanes)).unwrap_or(1);
        // All rows at once, or as many as divide them.
        let at_once =
            if groups <= threads { groups } else { (1..=threads).rev().find(|n| groups.is_multiple_of(*n)).unwrap_or(1) };
        let (each, times) = (depth / lanes, groups / at_once);
        let (thread, register) = (Affine::axis(0), Affine::axis(1));
        let (lane, group) = (thread.digit_of(1, Some(lanes.into())), thread.digit_of(lanes.into(), None));
        let neighbour = register.digit_of(1, Some(by_rows.into()));
        let step = register.digit_of(by_rows.into(), Some(each.into()));
        let round = register.digit_of((by_rows * each).into(), None);
        let row = neighbour.plus(&group, by_rows.into()).plus(&round, (at_once * by_rows).into());
        let k = if along_k { step.plus(&lane, each.into()) } else { lane.plus(&step, lanes.into()) };
        let to = if kept == 0 { [(Axis::Row, row), (Axis::Col, k)] } else { [(Axis::Row, k), (Axis::Col, row)] };
        let threads = at_once * lanes;
        let from = [(Axis::Thread, threads.into()), (Axis::Register, (by_rows * each * times).into())];
        let size = if kept == 0 { [rows, depth] } else { [depth, rows] };
        OperandTile { layout: Layout::new(&from, &to), size, threads, width }
    }
}

impl KernelSpec {
    /// Reductions that the kernels of a product compute, of a contraction that is oriented as the plan says. They reduce its
    /// result, and operands where the main loop has them.
    pub fn reduced<'c>(&self, c: &'c Contraction) -> impl Iterator<Item = &'c Reduce> + use<'c> {
        let operands = self.epilogue.operands;
        c.all_reductions().filter(move |r| operands || !r.operand)
    }
    /// Where the values of an operand's reduction go: one work-group has all of a value, or its splits have parts.
    pub(super) fn operand_partials(&self, c: &Contraction, r: &Reduce) -> Partials {
        let t = &self.tiling;
        let size = [(t.a.macro_tile, c.m), (t.b.macro_tile, c.n)];
        let over = r.over.whole();
        let size = [0, 1].map(|axis| if over[axis] { size[axis].1.max(1) } else { size[axis].0.into() });
        Partials::new(c, r, ReducedTiles { shares: t.split_k.ways.into(), ..ReducedTiles::of(size, Finish::Kernel) })
    }
    /// How the threads that compute hold an operand's tile, in vectors as wide as these or narrower.
    pub(crate) fn operand_tile(&self, kept: usize, most: OperandVector) -> OperandTile {
        let t = &self.tiling;
        let rows = [t.a.macro_tile, t.b.macro_tile][kept];
        let vector = OperandVector { width: gcd(most.width, if most.along_k { t.k_tile } else { rows }), ..most };
        OperandTile::new(kept, [rows, t.k_tile], vector, t.math_threads(), self.exchanging())
    }
    /// How they reduce it.
    pub(crate) fn operand_reduction(&self, r: &Reduce, tile: &OperandTile) -> TileReduction {
        TileReduction::new(&tile.layout, tile.size, runs(r, &tile.layout, tile.size), self.exchanging())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_element_of_a_tile_is_held_once() {
        for (rows, depth) in [(128, 64), (48, 24), (96, 16), (256, 32), (7, 5)] {
            for (along_k, width, threads, wave) in [(true, 8, 128, 32), (false, 8, 256, 32), (true, 1, 64, 64), (false, 4, 32, 1)]
            {
                let width = gcd(width, if along_k { depth } else { rows });
                let tile = OperandTile::new(0, [rows, depth], OperandVector { along_k, width }, threads, wave);
                let mut seen = BTreeSet::new();
                for thread in 0..tile.threads {
                    for register in 0..tile.layout.extent(Axis::Register) as u32 {
                        let at = [(Axis::Thread, thread.into()), (Axis::Register, register.into())];
                        assert!(seen.insert([Axis::Row, Axis::Col].map(|to| tile.layout.at(to, &at))));
                    }
                }
                assert!(tile.threads <= threads && seen.len() as u32 == rows * depth);
                assert!(seen.last().is_some_and(|last| *last == [i64::from(rows) - 1, i64::from(depth) - 1]));
            }
        }
    }
}
