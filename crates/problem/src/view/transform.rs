//! The named coordinate transforms and the builder that turns a strided tensor and a chain of them into a [`View`].
//!
//! A view is built from the tensor upward, and starts with the tensor's named dimensions. Each transform replaces some dimensions
//! by others. At the end three dimensions remain, which become (g, row, col). Every transform is *read* downward: it gives the
//! coordinates it replaced from those it introduced. The transforms are rocMLIR's.

use super::{Access, Bound, COL, G, ROW, View, simplest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tilewright_ir::affine::Affine;

/// A dimension of a tensor or of a stage of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dim {
    /// Name, unique within its stage.
    pub name: String,
    /// Number of coordinates.
    pub extent: u64,
}

/// One step of a chain. "Upper" is nearer to (g, row, col), "lower" nearer to memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Transform {
    /// lower = upper, under another name.
    PassThrough {
        /// Lower name.
        dim: String,
        /// Upper name.
        upper: String,
    },
    /// lower = upper - before; upper coordinates outside of the lower extent do not exist (they read as zero).
    Pad {
        /// Name, below and above.
        dim: String,
        /// Coordinates added in front.
        before: u64,
        /// The lower extent.
        extent: u64,
    },
    /// lower = upper + begin.
    Slice {
        /// Name, below and above.
        dim: String,
        /// First coordinate kept.
        begin: u64,
    },
    /// lower = extent - 1 - upper: the taps of a filter from the last to the first.
    Reverse {
        /// Name, below and above.
        dim: String,
        /// Its extent.
        extent: u64,
    },
    /// lower = sum of coefficient * upper: the windows of a convolution are stride * o + dilation * f.
    Embed {
        /// Lower name.
        dim: String,
        /// Upper dimensions and their coefficients.
        uppers: Vec<(Dim, i64)>,
    },
    /// One upper dimension runs over several lower ones, the last fastest: lower coordinates are quotients and remainders.
    Merge {
        /// Lower dimensions, slowest first.
        dims: Vec<Dim>,
        /// Upper name.
        upper: String,
    },
    /// Several upper dimensions share one lower one, the last fastest: lower = row-major flattening of upper.
    Unmerge {
        /// Lower name.
        dim: String,
        /// Upper dimensions, slowest first.
        uppers: Vec<Dim>,
    },
    /// Two upper dimensions with the coordinates of one lower: elements exist where both are the same.
    Diagonal {
        /// Lower dimension.
        dim: Dim,
        /// Upper names.
        uppers: [String; 2],
    },
    /// An upper dimension that no lower coordinate depends on.
    Broadcast {
        /// Upper name.
        upper: String,
    },
}

/// Why a chain of transforms is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// A transform names a dimension that is not there.
    #[error("no dimension `{name}` here; there are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Names that exist at that stage.
        known: String,
    },
    /// A transform introduces a name that is taken.
    #[error("there is already a dimension `{0}`; give the new one another name")]
    Repeated(String),
    /// Sizes do not fit each other.
    #[error("{transform} of `{name}`: {reason}")]
    Extent {
        /// Transform.
        transform: &'static str,
        /// Dimension.
        name: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// Offsets or extents leave the range of a signed 64-bit integer.
    #[error("extents or offsets of `{0}` do not fit in 63 bits")]
    Overflow(String),
}

/// A strided tensor and the transforms above it: the definition that a view's normal form must agree with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chain {
    /// Dimensions in memory and their strides in elements.
    pub tensor: Vec<(Dim, i64)>,
    /// Steps from the tensor upward.
    pub transforms: Vec<Transform>,
    /// Names of the upper dimensions (g, row, col).
    pub upper: [String; 3],
    /// Their extents.
    pub extent: [u64; 3],
}

/// Builds a view from a tensor upward. The first impossible step is reported by [`ViewBuilder::view`].
///
/// ```
/// use tilewright_problem::view::ViewBuilder;
///
/// // Every second row of a 4 x 3 matrix whose rows are 5 elements apart.
/// let rows = ViewBuilder::tensor(&[("g", 1, 0), ("row", 4, 5), ("col", 3, 1)]).unmerge("row", &[("pair", 2), ("of", 2)]);
/// let view = rows.slice("of", 0, 1).merge(&["pair", "of"], "even").view("g", "even", "col")?;
/// assert_eq!((view.extent, view.access.at([0, 1, 2])), ([1, 2, 3], Some(12)));
/// // The first impossible step is the error of `view`.
/// let error = ViewBuilder::dense(&[("g", 1), ("row", 4), ("col", 3)]).reverse("rows").view("g", "row", "col").unwrap_err();
/// assert!(error.to_string().contains("rows"));
/// # Ok::<(), tilewright_problem::view::ViewError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ViewBuilder {
    tensor: Vec<(Dim, i64)>,
    transforms: Vec<Transform>,
    dims: Vec<Dim>,
    error: Option<ViewError>,
}

impl ViewBuilder {
    /// A tensor in memory: (name, extent, stride in elements) per dimension.
    pub fn tensor(dims: &[(&str, u64, i64)]) -> ViewBuilder {
        let tensor: Vec<_> =
            dims.iter().map(|&(name, extent, stride)| (Dim { name: name.to_string(), extent }, stride)).collect();
        let mut builder = ViewBuilder { tensor: tensor.clone(), transforms: Vec::new(), dims: Vec::new(), error: None };
        let mut span = (0i128, 0i128);
        for (dim, stride) in tensor {
            let reach = i128::from(stride) * (i128::from(dim.extent) - 1).max(0);
            span = (span.0 + reach.min(0), span.1 + reach.max(0));
            if span.0 < i128::from(i64::MIN) || span.1 >= i128::from(i64::MAX) {
                builder.fail(ViewError::Overflow(dim.name.clone()));
            }
            builder.add(dim);
        }
        builder
    }
    /// A dense tensor, last dimension fastest.
    pub fn dense(dims: &[(&str, u64)]) -> ViewBuilder {
        let mut stride = 1u64;
        let mut strided: Vec<(&str, u64, i64)> = Vec::new();
        let mut fits = true;
        for &(name, extent) in dims.iter().rev() {
            strided.push((name, extent, i64::try_from(stride).unwrap_or(i64::MAX)));
            let next = stride.checked_mul(extent.max(1)).filter(|&s| s <= i64::MAX as u64);
            fits &= next.is_some();
            stride = next.unwrap_or(1);
        }
        strided.reverse();
        let mut builder = ViewBuilder::tensor(&strided);
        if !fits {
            builder.fail(ViewError::Overflow(dims.iter().map(|d| d.0).collect::<Vec<_>>().join(", ")));
        }
        builder
    }
    /// Renames a dimension.
    pub fn pass_through(mut self, dim: &str, upper: &str) -> Self {
        if let Some(found) = self.take(dim) {
            self.push(
                Transform::PassThrough { dim: dim.to_string(), upper: upper.to_string() },
                vec![Dim { name: upper.to_string(), extent: found.extent }],
            );
        }
        self
    }
    /// Adds coordinates without elements before and after a dimension.
    pub fn pad(mut self, dim: &str, before: u64, after: u64) -> Self {
        if (before, after) == (0, 0) && self.dims.iter().any(|known| known.name == dim) {
            return self;
        }
        if let Some(found) = self.take(dim) {
            let extent = found.extent.checked_add(before).and_then(|e| e.checked_add(after));
            match extent.filter(|&e| e <= i64::MAX as u64) {
                Some(extent) => self.push(
                    Transform::Pad { dim: dim.to_string(), before, extent: found.extent },
                    vec![Dim { name: dim.to_string(), extent }],
                ),
                None => self.fail(ViewError::Overflow(dim.to_string())),
            }
        }
        self
    }
    /// Keeps the coordinates `begin .. end` of a dimension.
    pub fn slice(mut self, dim: &str, begin: u64, end: u64) -> Self {
        if let Some(found) = self.take(dim) {
            if begin >= end || end > found.extent {
                let reason = format!("{begin}..{end} must be a part of 0..{}", found.extent);
                self.fail(ViewError::Extent { transform: "slice", name: dim.to_string(), reason });
            } else {
                let upper = Dim { name: dim.to_string(), extent: end - begin };
                self.push(Transform::Slice { dim: dim.to_string(), begin }, vec![upper]);
            }
        }
        self
    }
    /// Counts a dimension from its end.
    pub fn reverse(mut self, dim: &str) -> Self {
        if let Some(found) = self.take(dim) {
            self.push(Transform::Reverse { dim: dim.to_string(), extent: found.extent }, vec![found]);
        }
        self
    }
    /// Replaces a dimension by several whose weighted sum it is: (name, extent, coefficient) each.
    pub fn embed(mut self, dim: &str, uppers: &[(&str, u64, i64)]) -> Self {
        if let Some(found) = self.take(dim) {
            let reach = |sign: i128| {
                let ends = uppers.iter().map(|u| (i128::from(u.1) - 1).max(0) * i128::from(u.2));
                ends.filter(|&e| e * sign > 0).sum::<i128>()
            };
            let (low, high) = (reach(-1), reach(1));
            if low < 0 || high >= i128::from(found.extent) {
                let reason = format!("reaches {low}..={high}, the dimension has 0..{}; pad it first", found.extent);
                self.fail(ViewError::Extent { transform: "embed", name: dim.to_string(), reason });
                return self;
            }
            let uppers: Vec<_> = uppers.iter().map(|&(name, extent, c)| (Dim { name: name.to_string(), extent }, c)).collect();
            let dims = uppers.iter().map(|(d, _)| d.clone()).collect();
            self.push(Transform::Embed { dim: dim.to_string(), uppers }, dims);
        }
        self
    }
    /// Replaces several dimensions, slowest first, by one that runs over all of them.
    pub fn merge(mut self, dims: &[&str], upper: &str) -> Self {
        let mut lower = Vec::new();
        let mut extent = Some(1u64);
        for dim in dims {
            let Some(found) = self.take(dim) else { return self };
            extent = extent.and_then(|e| e.checked_mul(found.extent)).filter(|&e| e <= i64::MAX as u64);
            lower.push(found);
        }
        match extent {
            Some(extent) => self
                .push(Transform::Merge { dims: lower, upper: upper.to_string() }, vec![Dim { name: upper.to_string(), extent }]),
            None => self.fail(ViewError::Overflow(upper.to_string())),
        }
        self
    }
    /// Replaces a dimension by several, slowest first, whose extents multiply to its own.
    pub fn unmerge(mut self, dim: &str, uppers: &[(&str, u64)]) -> Self {
        if let Some(found) = self.take(dim) {
            let product = uppers.iter().try_fold(1u64, |p, u| p.checked_mul(u.1));
            if product != Some(found.extent) {
                let reason =
                    format!("extents {:?} must multiply to {}", uppers.iter().map(|u| u.1).collect::<Vec<_>>(), found.extent);
                self.fail(ViewError::Extent { transform: "unmerge", name: dim.to_string(), reason });
                return self;
            }
            let uppers: Vec<_> = uppers.iter().map(|&(name, extent)| Dim { name: name.to_string(), extent }).collect();
            self.push(Transform::Unmerge { dim: dim.to_string(), uppers: uppers.clone() }, uppers);
        }
        self
    }
    /// Replaces a dimension by two of its extent; what exists is where their coordinates are the same: the blocks of a block-diagonal
    /// matrix.
    pub fn diagonal(mut self, dim: &str, uppers: [&str; 2]) -> Self {
        if let Some(found) = self.take(dim) {
            let dims = uppers.map(|name| Dim { name: name.to_string(), extent: found.extent }).to_vec();
            self.push(Transform::Diagonal { dim: found, uppers: uppers.map(str::to_string) }, dims);
        }
        self
    }
    /// Adds a dimension that changes nothing.
    pub fn broadcast(mut self, upper: &str, extent: u64) -> Self {
        let dims = vec![Dim { name: upper.to_string(), extent }];
        self.push(Transform::Broadcast { upper: upper.to_string() }, dims);
        self
    }
    /// The chain whose upper coordinates (g, row, col) are the three remaining dimensions, named here.
    ///
    /// # Errors
    /// [`ViewError`] of the first impossible step, or if other dimensions remain.
    pub fn chain(self, g: &str, row: &str, col: &str) -> Result<Chain, ViewError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let extent_of = |name: &str| {
            let found = self.dims.iter().find(|d| d.name == name);
            found.map(|d| d.extent).ok_or_else(|| ViewError::Unknown { name: name.to_string(), known: names(&self.dims) })
        };
        let extent = [extent_of(g)?, extent_of(row)?, extent_of(col)?];
        if let Some(extra) = self.dims.iter().find(|d| ![g, row, col].contains(&d.name.as_str())) {
            let reason = format!("remains beside {g}, {row} and {col}; merge or slice it");
            return Err(ViewError::Extent { transform: "view", name: extra.name.clone(), reason });
        }
        let upper = [g.to_string(), row.to_string(), col.to_string()];
        Ok(Chain { tensor: self.tensor, transforms: self.transforms, upper, extent })
    }
    /// The view of [`ViewBuilder::chain`].
    ///
    /// # Errors
    /// As [`ViewBuilder::chain`].
    pub fn view(self, g: &str, row: &str, col: &str) -> Result<View, ViewError> {
        Ok(self.chain(g, row, col)?.view())
    }

    fn fail(&mut self, error: ViewError) {
        self.error.get_or_insert(error);
    }
    fn take(&mut self, name: &str) -> Option<Dim> {
        match self.dims.iter().position(|d| d.name == name) {
            Some(index) => Some(self.dims.remove(index)),
            None => {
                let known = names(&self.dims);
                self.fail(ViewError::Unknown { name: name.to_string(), known });
                None
            }
        }
    }
    fn add(&mut self, dim: Dim) {
        if self.dims.iter().any(|d| d.name == dim.name) {
            self.fail(ViewError::Repeated(dim.name));
        } else if dim.extent == 0 || dim.extent > i64::MAX as u64 {
            let reason = format!("{} coordinates; must be 1 to 2^63 - 1", dim.extent);
            self.fail(ViewError::Extent { transform: "dimension", name: dim.name, reason });
        } else {
            self.dims.push(dim);
        }
    }
    fn push(&mut self, transform: Transform, uppers: Vec<Dim>) {
        self.transforms.push(transform);
        for dim in uppers {
            self.add(dim);
        }
    }
}

fn names(dims: &[Dim]) -> String {
    dims.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl Chain {
    /// Offset of an element, `None` where it does not exist: the transforms walked one by one. Coordinates must lie within
    /// the extents.
    pub fn at(&self, point: [i64; 3]) -> Option<i64> {
        let mut at: BTreeMap<&str, i64> = self.upper.iter().map(String::as_str).zip(point).collect();
        for transform in self.transforms.iter().rev() {
            match transform {
                Transform::PassThrough { dim, upper } => {
                    let v = at.remove(upper.as_str())?;
                    at.insert(dim, v);
                }
                Transform::Pad { dim, before, extent } => {
                    let v = i128::from(*at.get(dim.as_str())?) - i128::from(*before);
                    if v < 0 || v >= i128::from(*extent) {
                        return None;
                    }
                    at.insert(dim, i64::try_from(v).ok()?);
                }
                Transform::Slice { dim, begin } => {
                    let v = *at.get(dim.as_str())?;
                    at.insert(dim, v + i64::try_from(*begin).ok()?);
                }
                Transform::Reverse { dim, extent } => {
                    let v = i64::try_from(*extent).ok()? - 1 - *at.get(dim.as_str())?;
                    at.insert(dim, v);
                }
                Transform::Embed { dim, uppers } => {
                    let mut sum = 0;
                    for (upper, coefficient) in uppers {
                        sum += coefficient * at.remove(upper.name.as_str())?;
                    }
                    at.insert(dim, sum);
                }
                Transform::Merge { dims, upper } => {
                    let mut v = at.remove(upper.as_str())?;
                    for dim in dims.iter().rev() {
                        let extent = i64::try_from(dim.extent).ok()?;
                        at.insert(&dim.name, v % extent);
                        v /= extent;
                    }
                }
                Transform::Unmerge { dim, uppers } => {
                    let mut v = 0;
                    for upper in uppers {
                        v = v * i64::try_from(upper.extent).ok()? + at.remove(upper.name.as_str())?;
                    }
                    at.insert(dim, v);
                }
                Transform::Diagonal { dim, uppers: [x, y] } => {
                    let (x, y) = (at.remove(x.as_str())?, at.remove(y.as_str())?);
                    if x != y {
                        return None;
                    }
                    at.insert(&dim.name, x);
                }
                Transform::Broadcast { upper } => {
                    at.remove(upper.as_str())?;
                }
            }
        }
        let mut offset = 0;
        for (dim, stride) in &self.tensor {
            offset += stride * at.get(dim.name.as_str())?;
        }
        Some(offset)
    }

    /// The normal form.
    pub fn view(&self) -> View {
        let extent = &self.extent;
        let mut at: BTreeMap<&str, Affine> = self.upper.iter().map(String::as_str).zip([G, ROW, COL].map(Affine::axis)).collect();
        let mut bounds = Vec::new();
        // A builder's chain names only dimensions that exist, so a missing name cannot occur; zero stands for it.
        for transform in self.transforms.iter().rev() {
            match transform {
                Transform::PassThrough { dim, upper } => {
                    let v = at.remove(upper.as_str()).unwrap_or_default();
                    at.insert(dim, v);
                }
                Transform::Pad { dim, before, extent: lower } => {
                    let v = at.entry(dim).or_default();
                    v.constant -= *before as i64;
                    bounds.push(Bound { value: v.clone(), low: 0, high: *lower as i64 });
                }
                Transform::Slice { dim, begin } => at.entry(dim).or_default().constant += *begin as i64,
                Transform::Reverse { dim, extent: lower } => {
                    let mut v = Affine::default().plus(&at.remove(dim.as_str()).unwrap_or_default(), -1);
                    v.constant += *lower as i64 - 1;
                    at.insert(dim, v);
                }
                Transform::Embed { dim, uppers } => {
                    let mut sum = Affine::default();
                    for (upper, coefficient) in uppers {
                        sum = sum.plus(&at.remove(upper.name.as_str()).unwrap_or_default(), *coefficient);
                    }
                    at.insert(dim, sum.simplified(extent));
                }
                Transform::Merge { dims, upper } => {
                    let v = at.remove(upper.as_str()).unwrap_or_default();
                    let mut div = 1;
                    for (index, dim) in dims.iter().enumerate().rev() {
                        let size = dim.extent as i64;
                        let modulo = (index > 0).then_some(size);
                        at.insert(&dim.name, v.digit(div, modulo, extent));
                        div *= size;
                    }
                }
                Transform::Unmerge { dim, uppers } => {
                    let mut sum = Affine::default();
                    for upper in uppers {
                        let outer = Affine::default().plus(&sum, upper.extent as i64);
                        sum = outer.plus(&at.remove(upper.name.as_str()).unwrap_or_default(), 1);
                    }
                    at.insert(dim, sum.simplified(extent));
                }
                Transform::Diagonal { dim, uppers } => {
                    let [x, y] = uppers.each_ref().map(|upper| at.remove(upper.as_str()).unwrap_or_default());
                    bounds.push(Bound { value: x.plus(&y, -1), low: 0, high: 1 });
                    at.insert(&dim.name, x);
                }
                Transform::Broadcast { upper } => {
                    at.remove(upper.as_str());
                }
            }
        }
        let mut offset = Affine::default();
        for (dim, stride) in &self.tensor {
            if let Some(v) = at.get(dim.name.as_str()) {
                offset = offset.plus(v, *stride);
            }
        }
        let access = Access { offset: offset.simplified(extent), bounds: simplest(bounds, extent) };
        View { extent: self.extent, access }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointwise_convolution_is_a_plain_matrix() {
        let view = ViewBuilder::dense(&[("n", 4), ("h", 5), ("w", 6), ("c", 8)])
            .pad("h", 0, 0)
            .embed("h", &[("ho", 5, 1), ("r", 1, 1)])
            .embed("w", &[("wo", 6, 1), ("s", 1, 1)])
            .merge(&["r", "s", "c"], "k")
            .merge(&["n", "ho", "wo"], "m")
            .broadcast("g", 1)
            .view("g", "m", "k")
            .unwrap();
        assert_eq!(view.extent, [1, 120, 8]);
        assert_eq!(view.access.offset, Affine::axis(COL).plus(&Affine::axis(ROW), 8));
        assert!(view.access.bounds.is_empty());
    }

    #[test]
    fn impossible_steps_are_refused() {
        let t = || ViewBuilder::dense(&[("a", 4), ("b", 6)]);
        let message = |b: ViewBuilder| b.view("a", "b", "c").unwrap_err().to_string();
        assert!(message(t().pad("x", 1, 1)).contains("no dimension `x`"));
        assert!(message(t().slice("b", 3, 7)).contains("part of 0..6"));
        assert!(message(t().embed("b", &[("p", 3, 2), ("q", 3, 1)])).contains("pad it first"));
        assert!(message(t().embed("b", &[("p", 3, -1), ("q", 3, 1)])).contains("reaches -2"));
        assert!(message(t().unmerge("b", &[("p", 4), ("q", 2)])).contains("multiply to 6"));
        assert!(message(t().broadcast("a", 2)).contains("already a dimension `a`"));
        assert!(message(t().broadcast("c", 2).broadcast("d", 2)).contains("remains"));
        assert!(message(t()).contains("no dimension `c`"));
        assert!(message(ViewBuilder::dense(&[("a", 1 << 40), ("b", 1 << 40)])).contains("63 bits"));
        assert!(message(ViewBuilder::dense(&[("a", 0)])).contains("must be 1"));
    }
}
