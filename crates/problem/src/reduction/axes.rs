//! Axes that reductions reduce, as a whole or in blocks, and where the values of a result are that are left.

use super::Reduction;
use crate::extent::Extents;
use crate::names::number;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Axes of a result.
///
/// ```
/// use tilewright_problem::Axes;
///
/// // Blocks of 128 columns of each row, as scales of blocks have them.
/// let axes: Axes = "n128".parse()?;
/// assert_eq!((axes.n, axes.blocks), (true, [0, 128]));
/// assert_eq!(axes.turned().to_string(), "m128");
/// assert_eq!("k".parse::<Axes>().unwrap_err(), "`k` is no axis; the axes are b (batch), m (rows) and n (columns)");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Axes {
    /// Batch entries.
    pub g: bool,
    /// Rows.
    pub m: bool,
    /// Columns.
    pub n: bool,
    /// Rows and columns that are reduced together: blocks of so many, which divide the extent; 0: all of them.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub blocks: [u64; 2],
}

const fn is_whole(blocks: &[u64; 2]) -> bool {
    matches!(blocks, [0, 0])
}

impl Axes {
    /// The same axes of the transposed result.
    #[must_use]
    pub const fn turned(self) -> Axes {
        Axes { g: self.g, m: self.n, n: self.m, blocks: [self.blocks[1], self.blocks[0]] }
    }
    /// Rows and columns that are reduced as a whole.
    pub const fn whole(self) -> [bool; 2] {
        [self.m && self.blocks[0] == 0, self.n && self.blocks[1] == 0]
    }
    /// Rows or columns are reduced in blocks.
    pub const fn in_blocks(self) -> bool {
        !is_whole(&self.blocks)
    }
}

/// What is reduced: the extents of a result. Groups of a convolution are batch entries that follow each other, and always stay apart.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Gemm, Problem};
///
/// // 2 x 4 x 6 results. Blocks of 3 columns are reduced: 2 values per row, batch entries outermost.
/// let shape = Problem::from(Gemm::new(Scalar::F32, 4, 6, 8).batch(2).build()?).result_shape();
/// let over = "n3".parse().expect("axes");
/// assert_eq!((shape.left(over), shape.count(over)), (16, 3));
/// assert_eq!(shape.index(over, [1, 0, 5]), 9);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultShape {
    /// Batch entries, those of all groups; rows and columns.
    pub extents: Extents,
    /// Groups; 1 for a product.
    pub groups: u64,
}

impl ResultShape {
    /// Rows and columns that a value is computed of: 1 along what is kept.
    pub fn each(&self, over: Axes) -> [u64; 2] {
        let Extents { m, n, .. } = self.extents;
        let each = |over: bool, block: u64, extent: u64| match (over, block) {
            (false, _) => 1,
            (true, 0) => extent,
            (true, block) => block,
        };
        [each(over.m, over.blocks[0], m), each(over.n, over.blocks[1], n)]
    }
    /// Digits of an element's place: its number outside of the groups, in the groups, of rows and of columns. Each digit has its
    /// extent and whether these axes reduce it.
    fn digits(&self, over: Axes) -> [(bool, u64); 6] {
        let (Extents { g, m, n }, groups, [rows, columns]) = (self.extents, self.groups.max(1), self.each(over));
        // Of an axis that is reduced as a whole one value is left, of no element where the axis is empty.
        let whole = over.whole();
        let [down, across] = [(m, rows), (n, columns)].map(|(extent, each)| extent / each.max(1));
        let [down, across] = [(whole[0], down), (whole[1], across)].map(|(whole, values)| if whole { 1 } else { values });
        [(over.g, g / groups), (false, groups), (false, down), (true, rows), (false, across), (true, columns)]
    }
    /// Values that are left where these axes are reduced.
    pub fn left(&self, over: Axes) -> u64 {
        self.digits(over).iter().filter(|a| !a.0).map(|a| a.1).product()
    }
    /// Elements that each of them is computed of.
    pub fn count(&self, over: Axes) -> u64 {
        self.digits(over).iter().filter(|a| a.0).map(|a| a.1).product()
    }
    /// Where the value of an element is among those that are left: batch entries outermost, then rows.
    pub fn index(&self, over: Axes, element: [u64; 3]) -> u64 {
        self.number(over, element, false)
    }
    /// Number of an element among those of its value, in the same order, where the operator asks for it.
    pub fn within(&self, r: &Reduction, element: [u64; 3]) -> u64 {
        if r.operator.indexes() { self.number(r.over, element, true) } else { 0 }
    }
    fn number(&self, over: Axes, [g, m, n]: [u64; 3], reduced: bool) -> u64 {
        let digits = self.digits(over);
        let [groups, rows, columns] = [digits[1].1, digits[3].1.max(1), digits[5].1.max(1)];
        let digits = digits.into_iter().zip([g / groups, g % groups, m / rows, m % rows, n / columns, n % columns]);
        digits.filter(|((over, _), _)| *over == reduced).fold(0, |at, ((_, extent), i)| at * extent + i)
    }
    /// The element with a number among those of the value of another.
    pub fn element(&self, over: Axes, [g, m, n]: [u64; 3], mut number: u64) -> [u64; 3] {
        let digits = self.digits(over);
        let [_, (_, groups), _, (_, rows), _, (_, columns)] = digits;
        let mut at = [g / groups, g % groups, m / rows, m % rows, n / columns, n % columns];
        for (i, (_, extent)) in digits.into_iter().enumerate().rev().filter(|(_, (over, _))| *over) {
            at[i] = number % extent;
            number /= extent;
        }
        [at[0] * groups + at[1], at[2] * rows + at[3], at[4] * columns + at[5]]
    }
}

/// The letters of the reduced axes, `b`, `m`, `n`, each followed by its block size if it has one: `mn`, `mn10`.
impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.g, "b", 0), (self.m, "m", self.blocks[0]), (self.n, "n", self.blocks[1])];
        all.iter().filter(|a| a.0).try_for_each(|(_, name, block)| match block {
            0 => f.write_str(name),
            _ => write!(f, "{name}{block}"),
        })
    }
}

impl FromStr for Axes {
    type Err = String;

    fn from_str(axes: &str) -> Result<Axes, String> {
        let mut over = Axes::default();
        let mut rest = axes;
        while let Some(axis) = rest.chars().next() {
            let after = &rest[axis.len_utf8()..];
            let end = after.find(|ch: char| !ch.is_ascii_digit()).unwrap_or(after.len());
            let (digits, further) = after.split_at(end);
            let (slot, block) = match axis {
                'b' => (&mut over.g, None),
                'm' => (&mut over.m, Some(0)),
                'n' => (&mut over.n, Some(1)),
                _ => return Err(format!("`{axis}` is no axis; the axes are b (batch), m (rows) and n (columns)")),
            };
            if std::mem::replace(slot, true) {
                return Err(format!("axis {axis} is there twice"));
            }
            match (digits, block) {
                ("", _) => {}
                (_, None) => {
                    return Err(format!("`{axis}{digits}`: the batch has no blocks; those of m and n are m{digits}, n{digits}"));
                }
                (_, Some(axis)) => match number(digits)? {
                    0 => return Err(format!("`{axes}`: a block has one element at least")),
                    size => over.blocks[axis] = size,
                },
            }
            rest = further;
        }
        Ok(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_elements_are_read_back() {
        let shape = ResultShape { extents: Extents { g: 6, m: 4, n: 5 }, groups: 2 };
        for over in ["bm", "n", "mn", "m2", "bm2n5"].map(|axes| axes.parse::<Axes>().unwrap()) {
            for element @ [g, m, n] in [[0, 0, 0], [5, 3, 4], [3, 1, 2]] {
                let [rows, columns] = shape.each(over);
                // What is kept of it, and the rest by its number.
                let kept = [if over.g { g % 2 } else { g }, m / rows * rows, n / columns * columns];
                let number = shape.within(&Reduction::new(crate::reduction::Operator::ArgMax, over), element);
                assert_eq!(shape.element(over, kept, number), element, "{over}");
                assert!(number < shape.count(over) && shape.index(over, element) < shape.left(over), "{over}");
            }
        }
        let (rows, blocks) = ("n".parse().unwrap(), "n5".parse().unwrap());
        assert_eq!((shape.index(rows, [5, 3, 4]), shape.left(blocks), shape.index(blocks, [5, 3, 4])), (23, 24, 23));
    }
}
