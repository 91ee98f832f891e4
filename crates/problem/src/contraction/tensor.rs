//! Operands of a contraction and vectors beside it: type, view and memory.

use crate::view::{COL, G, ROW, View};
use serde::{Deserialize, Serialize};
use tilewright_ir::Scalar;

/// Which operand of a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operand {
    /// Operand A, addressed by (g, m, k).
    A,
    /// Operand B, addressed by (g, n, k).
    B,
    /// Result, addressed by (g, m, n).
    C,
}

/// An operand: element type, view, and what is known of its start.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type in memory.
    pub scalar: Scalar,
    /// Type in which its elements are multiplied, where that is another: each becomes it on its way to shared memory.
    pub factor: Option<Scalar>,
    /// Which elements change their sign on their way to shared memory, where some do.
    pub signs: Option<Signs>,
    /// Where element (g, row, col) lives, in elements. A: (g, m, k); B: (g, n, k); C: (g, m, n).
    pub view: View,
    /// Known alignment of element 0 (buffer base plus the problem's offset), in bytes; a power of two.
    pub align: u32,
    /// Elements from element 0 to the end of the tensor's memory.
    pub len: u64,
}

/// Signs of a factor's elements, by whether their row and their term are odd: those of the parts of complex numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signs {
    /// `[row % 2][k % 2]`: the element is multiplied as its negative.
    pub negative: [[bool; 2]; 2],
    /// Elements are multiplied by a complex alpha when they are copied. Each becomes alpha's real part times itself, with its
    /// sign, plus alpha's imaginary part times the other part of its number. The other part is its neighbour in memory. The entry
    /// says whether the other part is negated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<[[bool; 2]; 2]>,
}

impl Signs {
    /// Whether the element of this row and term changes its sign.
    pub fn at(self, row: i64, k: i64) -> bool {
        Signs::of(self.negative, row, k)
    }
    /// Where alpha is complex: whether the other part of the element's number changes its sign.
    pub fn other_at(self, row: i64, k: i64) -> Option<bool> {
        self.other.map(|other| Signs::of(other, row, k))
    }
    fn of(table: [[bool; 2]; 2], row: i64, k: i64) -> bool {
        table[usize::from(row % 2 != 0)][usize::from(k % 2 != 0)]
    }
}

/// A vector that is added to results or multiplies them, one value per row (m) or column (n).
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    /// Element type in memory.
    pub scalar: Scalar,
    /// True: indexed by n; false: indexed by m.
    pub along_n: bool,
    /// Distance from one group (g) of the contraction's values to the next within the vector, as a view of (g, index, 0).
    pub view: View,
    /// Elements of the vector.
    pub len: u64,
}

impl Tensor {
    /// Type in which its elements are multiplied.
    pub fn factor(&self) -> Scalar {
        self.factor.unwrap_or(self.scalar)
    }
    /// Whether its elements are small weights: integers of 8 or 4 bits that are multiplied as floats.
    pub fn has_weights(&self) -> bool {
        self.scalar.is_weight() && self.factor.is_some()
    }
    /// Bytes that so many of its elements take in memory.
    pub fn bytes_of(&self, elements: f64) -> f64 {
        elements * f64::from(self.scalar.bytes()) / f64::from(self.scalar.numbers())
    }
    /// Elements from element 0 to just past the last that a launch with these extents touches.
    pub fn len_at(&self, extent: [u64; 3]) -> u64 {
        let Some(shape) = self.view.is_affine_box() else {
            // Fewer of what lies at equal distances, as the rows of a gated product's columns.
            let fewer = [G, ROW, COL].into_iter().map(|axis| {
                let apart = self.view.stride(axis).map_or(0, i64::unsigned_abs);
                self.view.extent[axis].saturating_sub(extent[axis]).saturating_mul(apart)
            });
            return self.len.saturating_sub(fewer.fold(0, u64::saturating_add));
        };
        // Coordinates before and beyond the elements that exist move nothing.
        let padded = (0..3).any(|i| shape.valid[i] != (0, self.view.extent[i] as i64));
        if padded && shape.strides.iter().all(|stride| *stride >= 0) {
            let last = (0..3).map(|i| i128::from(shape.strides[i]) * (i128::from(shape.valid[i].1).min(extent[i].into()) - 1));
            return u64::try_from(i128::from(shape.base) + last.sum::<i128>() + 1).unwrap_or(0).min(self.len);
        }
        let steps = shape.strides.iter().zip(extent).map(|(s, e)| s.unsigned_abs().saturating_mul(e.saturating_sub(1)));
        steps.fold(shape.base.unsigned_abs().saturating_add(1), u64::saturating_add).min(self.len)
    }
}
