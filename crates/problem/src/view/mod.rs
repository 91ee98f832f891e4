//! Views: where an element lives and whether it exists.
//!
//! A [`View`] is a strided tensor plus a chain of named coordinate transforms. Its normal form is an [`Access`]: an
//! affine offset over coordinates and digits of coordinates, and the ranges that make it valid. One normal form serves
//! the evaluator, the index expressions in kernels, the vector-width analysis and the box recogniser.

mod analysis;
mod dims;
mod transform;

pub use analysis::AffineBox;
pub use dims::{Digit, Dimension, Dimensions};
pub use transform::{Chain, Dim, Transform, ViewBuilder, ViewError};

use serde::{Deserialize, Serialize};
use tilewright_ir::affine::Affine;

/// First upper coordinate: batch.
pub const G: usize = 0;
/// Second upper coordinate: m for A and C, n for B.
pub const ROW: usize = 1;
/// Third upper coordinate: k for A and B, n for C.
pub const COL: usize = 2;

/// A range condition `low <= value < high`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bound {
    /// What is compared.
    pub value: Affine,
    /// Inclusive.
    pub low: i64,
    /// Exclusive.
    pub high: i64,
}

/// A view's normal form: offset in elements, and the conditions under which the element exists (it reads as zero
/// otherwise).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    /// Offset from the tensor's element 0.
    pub offset: Affine,
    /// All must hold.
    pub bounds: Vec<Bound>,
}

/// A tensor seen through coordinates (g, row, col).
///
/// ```
/// use tilewright_problem::view::ViewBuilder;
///
/// // The transpose of a dense 3 x 4 matrix, between a row of zeros and another one.
/// let view = ViewBuilder::dense(&[("g", 1), ("row", 3), ("col", 4)]).pad("col", 1, 1).view("g", "col", "row")?;
/// assert_eq!(view.extent, [1, 6, 3]);
/// assert_eq!(view.access.at([0, 2, 1]), Some(5));
/// assert_eq!(view.access.at([0, 0, 1]), None);
/// # Ok::<(), tilewright_problem::view::ViewError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// Extents of the upper coordinates (g, row, col).
    pub extent: [u64; 3],
    /// Normal form.
    pub access: Access,
}

impl View {
    /// The same elements with row and column exchanged.
    pub fn transposed(&self) -> View {
        let [g, row, col] = self.extent;
        let bounds = self.access.bounds.iter().map(|b| Bound { value: b.value.swapped(ROW, COL), ..b.clone() }).collect();
        View { extent: [g, col, row], access: Access { offset: self.access.offset.swapped(ROW, COL), bounds } }
    }
}

impl Access {
    /// Offset of an element, `None` where it does not exist.
    pub fn at(&self, point: [i64; 3]) -> Option<i64> {
        let valid = self.bounds.iter().all(|b| (b.low..b.high).contains(&b.value.at(&point)));
        valid.then(|| self.offset.at(&point))
    }
}

/// Conditions in their simplest form: lower end 0, those that always hold dropped, repeated ones once.
fn simplest(bounds: impl IntoIterator<Item = Bound>, extent: &[u64; 3]) -> Vec<Bound> {
    let mut kept: Vec<Bound> = Vec::new();
    for bound in bounds {
        let mut value = bound.value.simplified(extent);
        value.constant -= bound.low;
        let bound = Bound { value, low: 0, high: bound.high - bound.low };
        let (low, high) = bound.value.range(extent);
        if (low >= 0 && high < bound.high) || kept.contains(&bound) {
            continue;
        }
        match kept.iter_mut().find(|k| k.value == bound.value) {
            Some(same) => same.high = same.high.min(bound.high),
            None => kept.push(bound),
        }
    }
    kept
}
