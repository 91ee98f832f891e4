//! Tiles that producer warps write row by row: how threads share the rows, and which operands can be read so.

use super::grid::gcd;
use super::reach;
use tilewright_ir::WARP;
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::G;

/// Rows this many apart begin at the same offset within a vector.
pub const LINE_CLASSES: u32 = 8;
/// Pieces of 128 bytes that an instruction of a wave moves.
const WAVE_ROWS: u32 = 4;

/// Division of a tile of rows among producer threads: each wave takes rows of one class modulo [`LINE_CLASSES`], round by round.
///
/// ```
/// use tilewright_gen::plan::FetchShape;
///
/// // A tile of 128 rows of 128 bytes by 4 producer warps: a warp's instruction covers 4 rows of a class.
/// let shape = FetchShape::new(1, 128, 128);
/// assert_eq!((shape.waves, shape.lines, shape.rounds), (4, 4, 2));
/// // 128 rows of 8 vectors, shared by 128 threads.
/// assert_eq!(shape.count(), 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchShape {
    /// Waves.
    pub waves: u32,
    /// Waves that share a class.
    pub parts: u32,
    /// Classes of a wave, one after the other.
    pub rounds: u32,
    /// Pieces of 128 bytes of an instruction side by side along a row.
    pub columns: u32,
    /// Rows of the class that an instruction covers.
    pub lines: u32,
    /// Instructions side by side.
    pub column_blocks: u32,
    /// Instructions below each other.
    pub line_blocks: u32,
    /// Vectors of a thread in a round.
    pub per_round: u32,
}

impl FetchShape {
    /// Of so many columns of 128 bytes and lines (a multiple of 8).
    pub fn new(columns: u32, lines: u32, threads: u32) -> FetchShape {
        let waves = (threads / WARP).max(1);
        let beside = gcd(columns, WAVE_ROWS);
        let below = WAVE_ROWS / beside;
        let column_blocks = columns / beside;
        let line_blocks = (lines / LINE_CLASSES).div_ceil(below).max(1);
        let parts = (waves / LINE_CLASSES).max(1);
        // Each part takes blocks of its own, the same distance apart in every direction.
        let parts = if column_blocks > 1 && line_blocks > 1 { gcd(parts, line_blocks) } else { parts };
        FetchShape {
            waves,
            parts,
            rounds: LINE_CLASSES.div_ceil(waves),
            columns: beside,
            lines: below,
            column_blocks,
            line_blocks,
            per_round: (column_blocks * line_blocks).div_ceil(parts),
        }
    }
    /// Vectors of a thread.
    pub const fn count(&self) -> u32 {
        self.rounds * self.per_round
    }
}

/// Elements of a view that one access moves, along this axis.
pub fn fetch_width(tensor: &Tensor, axis: usize) -> u32 {
    let extent = tensor.view.extent[axis];
    let fits = |w: &u32| {
        *w * tensor.factor().bytes() <= 16 && extent.is_multiple_of(u64::from(*w)) && reach::vector_width(tensor, axis, *w) >= *w
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// True if rows of a tensor along this axis can be read in aligned vectors, wherever they begin.
pub fn fetched_by_lines(tensor: &Tensor, axis: usize) -> bool {
    let Some(shape) = tensor.view.is_affine_box() else { return false };
    let extent = tensor.view.extent;
    shape.base == 0
        && (0..3).all(|i| shape.valid[i] == (0, extent[i] as i64) && shape.strides[i] >= 0)
        && shape.strides[axis] == 1
        && axis != G
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Rows of 128 bytes that the threads' vectors lie in, as (line, column), each counted by how many threads have it.
    fn rows(shape: &FetchShape, columns: u32, lines: u32) -> Vec<(u32, u32)> {
        let mut rows = Vec::new();
        for (wave, round) in (0..shape.waves).flat_map(|wave| (0..shape.rounds).map(move |round| (wave, round))) {
            let (class, part) = if shape.waves <= LINE_CLASSES {
                (wave + round * shape.waves, 0)
            } else {
                (wave % LINE_CLASSES, wave / LINE_CLASSES)
            };
            for (i, row) in (0..shape.per_round).flat_map(|i| (0..WAVE_ROWS).map(move |row| (i, row))) {
                let block = i * shape.parts + part;
                let line = class + LINE_CLASSES * (block % shape.line_blocks * shape.lines + row / shape.columns);
                let column = block / shape.line_blocks * shape.columns + row % shape.columns;
                if class < LINE_CLASSES && part < shape.parts && line < lines && column < columns {
                    rows.push((line, column));
                }
            }
        }
        rows
    }

    #[test]
    fn each_row_of_a_tile_is_fetched_once() {
        for (columns, lines, waves) in (1..=6)
            .flat_map(|columns| [8, 24, 64, 80, 128, 192, 256].map(|lines| (columns, lines)))
            .flat_map(|(columns, lines)| (1..=16).map(move |waves| (columns, lines, waves)))
        {
            let shape = FetchShape::new(columns, lines, 32 * waves);
            let rows = rows(&shape, columns, lines);
            let different: HashSet<_> = rows.iter().collect();
            assert_eq!(rows.len(), different.len(), "{columns} {lines} {shape:?}");
            assert_eq!(different.len() as u32, columns * lines, "{columns} {lines} {shape:?}");
        }
    }
}
