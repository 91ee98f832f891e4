//! Block-sparse operands, as in a block-diagonal product: the instructions of a k-tile that multiply zeros only.

use super::spec::Tiling;
use super::tile::OperandTiling;
use std::ops::Range;
use tilewright_ir::affine::{Affine, Atom, gcd};
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{Bound, COL, ROW};

/// Existence of elements by k-step of a k-tile: for the rows of A and the columns of B of each instruction.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_problem::Problem;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Target;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // Four groups of 16 channels as one block-diagonal product: a k-tile of 64 has 4 blocks.
/// let problem = "conv_fwd_nhwc_n2_g4_c64_k64_in8x8_fil1x1_st1x1_dil1x1_pb0x0_pe0x0_bias0_ws0_f16";
/// let space = Space::new(&Problem::parse(problem)?, &target)?;
/// let plan = Plan::parse("mma 64x64x64 on 2x1, registers+registers, form=2")?;
/// let derived = space.resolve(&plan)?.spec;
/// let blocks = derived.tiling.blocks(&derived.c).expect("some are zeros");
/// assert_eq!((blocks.share(0), blocks.share(1)), (1.0, 0.25));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks([Vec<Vec<bool>>; 2]);

impl Blocks {
    /// Returns whether instruction (`i`, `j`) of a wave's tile has elements in both operands at this k-step.
    pub fn exist(&self, step: u32, i: u32, j: u32) -> bool {
        self.of(0, step, i..i + 1) && self.of(1, step, j..j + 1)
    }
    /// Returns whether rows of A (side 0) or columns of B (side 1) of these instructions have elements.
    pub fn of(&self, side: usize, step: u32, mut instructions: Range<u32>) -> bool {
        let found = |step: &Vec<bool>, i: u32| step.get(i as usize).copied().unwrap_or(true);
        let of_side = self.0.get(side).and_then(|steps| steps.get(step as usize));
        of_side.is_none_or(|step| instructions.any(|i| found(step, i)))
    }
    /// The share of a factor's instructions' rows, or columns, that exist.
    pub fn share(&self, side: usize) -> f64 {
        let all: Vec<bool> = self.0.get(side).into_iter().flatten().flatten().copied().collect();
        all.iter().filter(|exists| **exists).count() as f64 / all.len().max(1) as f64
    }
}

impl Tiling {
    /// The blocks of a k-tile that exist, if some do not and every k-tile, tile and wave has the same ones. A staggered start moves k-tiles
    /// against the period of the blocks: then none can be left out.
    pub fn blocks(&self, c: &Contraction) -> Option<Blocks> {
        if self.k_stagger {
            return None;
        }
        let shape = self.instruction?.shape;
        let of = |tensor: &Tensor, o: &OperandTiling, side: u32| {
            // Waves side by side have other blocks.
            let bounds = tensor.view.access.bounds.iter().filter(|_| o.micro == o.macro_tile);
            let bounds: Vec<&Bound> = bounds.filter(|bound| self.repeats(bound, tensor, o.macro_tile)).collect();
            let exists = |step: u32, block: u32| {
                bounds.iter().all(|bound| within(bound, of_number(block, side), of_number(step, shape.k)))
            };
            (0..self.k_tile / shape.k).map(|step| (0..o.micro / side).map(|block| exists(step, block)).collect()).collect()
        };
        let blocks = Blocks([of(&c.a, &self.a, shape.m), of(&c.b, &self.b, shape.n)]);
        (blocks.share(0) < 1.0 || blocks.share(1) < 1.0).then_some(blocks)
    }

    /// A condition on rows and k together that says the same of every tile and every k-tile.
    fn repeats(&self, bound: &Bound, tensor: &Tensor, rows: u32) -> bool {
        let period = |axis: usize| i64::from(if axis == ROW { rows } else { self.k_tile });
        let alone = |axis: usize| tensor.view.extent[axis] <= period(axis).unsigned_abs();
        let repeats = |atom: &Atom| match atom {
            Atom::Axis(axis) => matches!(*axis, ROW | COL) && alone(*axis),
            Atom::Digit { of, div, modulo } => match of.terms.as_slice() {
                [(Atom::Axis(axis @ (ROW | COL)), 1)] if of.constant == 0 => {
                    alone(*axis) || modulo.is_some_and(|modulo| period(*axis) % (div * modulo) == 0)
                }
                _ => false,
            },
        };
        bound.value.uses(ROW) && bound.value.uses(COL) && bound.value.terms.iter().all(|(atom, _)| repeats(atom))
    }
}

/// Returns whether a condition holds somewhere in a range of rows and a range of k.
fn within(bound: &Bound, rows: Range<u32>, depth: Range<u32>) -> bool {
    let grain = |axis: usize, of: u32| {
        let place = |atom: &Atom| match atom {
            Atom::Digit { of, div, .. } if **of == Affine::axis(axis) => Some(*div),
            atom => atom.uses(axis).then_some(1),
        };
        let places = bound.value.terms.iter().filter_map(|(atom, _)| place(atom));
        places.fold(i64::from(of), gcd).max(1) as usize
    };
    let (by_row, by_k) = (grain(ROW, rows.end - rows.start), grain(COL, depth.end - depth.start));
    let steps = |range: &Range<u32>, by: usize| (i64::from(range.start)..i64::from(range.end)).step_by(by);
    let holds = |value: i64| bound.low <= value && value < bound.high;
    steps(&rows, by_row).any(|row| steps(&depth, by_k).any(|k| holds(bound.value.at(&[0, row, k]))))
}

/// The range of this number, of ranges of a length that follow each other.
fn of_number(number: u32, length: u32) -> Range<u32> {
    number * length..(number + 1) * length
}
