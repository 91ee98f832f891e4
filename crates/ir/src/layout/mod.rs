//! Layouts: where the elements of a tile are, in shared memory, in registers, among threads.
//!
//! A [`Layout`] maps named coordinates to named coordinates, each an affine form over digits. A layout that ends in shared memory
//! may permute 16-byte chunks on top ([`Swizzle`]). One value answers every question about a placement, on the host
//! ([`Layout::at`]) or in a kernel ([`Layout::emit`]). It says how wide accesses may be ([`Layout::vector`]) and which lanes
//! conflict in a bank ([`Layout::bank_cycles`]). Composing two of them says, say, which bytes of shared memory a thread's share
//! of a tile occupies.
//!
//! | placement | from | to |
//! |---|---|---|
//! | shared memory: padded lines, panels of 128 bytes | row, k, stage | position |
//! | fragments of a matrix instruction | lane, register, element | row, k or column |
//! | a thread's share of a tile | thread, vector, element | row, k |

mod banks;
mod inverse;

pub use banks::{BANKS, bank_cycles, busiest_bank};

use crate::affine::{Affine, Atom, Coord, Group, Part, affine};
use crate::{BinaryOp, Builder, ExprId, Scalar, Swizzle};
use serde::{Deserialize, Serialize};

/// A coordinate of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Axis {
    /// Row of a tile: m of A and C, n of B.
    Row,
    /// Column of a tile of C.
    Col,
    /// Depth of a tile of A or B.
    K,
    /// Which of several buffers.
    Stage,
    /// Thread of those that share the work.
    Thread,
    /// Lane of a wave; thread of a warpgroup.
    Lane,
    /// Register of a lane.
    Register,
    /// Which of a thread's vectors (accesses), in the order in which they are issued.
    Vector,
    /// Element within a vector or a register.
    Element,
    /// Place in memory, in elements.
    Position,
}

/// Where the elements of a tile are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    from: Vec<(Axis, u64)>,
    to: Vec<(Axis, Affine)>,
    /// On top of the first form.
    swizzle: Option<Chunks>,
}

/// A permutation of 16-byte chunks within each 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Chunks {
    swizzle: Swizzle,
    /// Bytes of an element.
    bytes: u32,
    /// The bit of a byte's place from which on bits are xor-ed into the chunk's number: 7 where the hardware does it.
    from: u32,
}

impl Chunks {
    fn apply(self, position: i64) -> i64 {
        let bytes = i64::from(self.bytes);
        let row = (position * bytes) >> self.from & i64::from(self.swizzle.mask());
        position ^ (row * 16 / bytes)
    }
    fn emit(self, b: &mut Builder, position: ExprId) -> ExprId {
        let bits = self.bytes.trailing_zeros();
        let row = b.binary(BinaryOp::Shr, position, i64::from(self.from - bits));
        let row = b.binary(BinaryOp::And, row, i64::from(self.swizzle.mask()));
        let chunk = b.binary(BinaryOp::Shl, row, i64::from(4 - bits));
        b.binary(BinaryOp::Xor, position, chunk)
    }
}

/// Coordinates by name; those not named are 0.
pub type Point<'a> = &'a [(Axis, i64)];

impl Layout {
    /// The coordinates with their extents, and for each result its form over them: `Affine::axis(i)` is the i-th coordinate. Forms are
    /// kept as they are written.
    pub fn new(from: &[(Axis, u64)], to: &[(Axis, Affine)]) -> Layout {
        Layout { from: from.to_vec(), to: to.to_vec(), swizzle: None }
    }
    /// Shared memory of `rows` x `depth` elements as lines along `along` ([`Axis::Row`] or [`Axis::K`]), `pitch` elements apart.
    pub fn padded(rows: u32, depth: u32, along: Axis, pitch: u32) -> Layout {
        let pitch = i64::from(pitch);
        let (row, k) = if along == Axis::Row { (1, pitch) } else { (pitch, 1) };
        let at = Affine::default().plus(&Affine::axis(0), row).plus(&Affine::axis(1), k);
        Layout::new(&[(Axis::Row, rows.into()), (Axis::K, depth.into())], &[(Axis::Position, at)])
    }
    /// Shared memory of `rows` x `depth` elements as bulk copies write it and warpgroup instructions read it. Panels as wide as
    /// a row of the swizzle along `along` follow each other; each has all rows of the other direction.
    pub fn panels(rows: u32, depth: u32, along: Axis, swizzle: Swizzle, scalar: Scalar) -> Layout {
        let wide = i64::from(swizzle.row_bytes() / scalar.bytes());
        let (fast, slow, lines) = if along == Axis::Row { (0, 1, depth) } else { (1, 0, rows) };
        let at = Affine::axis(fast).digit_of(1, Some(wide));
        let at = at.plus(&Affine::axis(slow), wide).plus(&Affine::axis(fast).digit_of(wide, None), wide * i64::from(lines));
        let plain = Layout::new(&[(Axis::Row, rows.into()), (Axis::K, depth.into())], &[(Axis::Position, at)]);
        let swizzle = Some(Chunks { swizzle, bytes: scalar.bytes(), from: 7 }).filter(|chunks| chunks.swizzle.mask() > 0);
        Layout { swizzle, ..plain }
    }
    /// The same layout with 16-byte chunks permuted within each 128 bytes; elements have `bytes` bytes. Eight reads of 16 bytes
    /// that are `apart` bytes (a power of two) from each other then conflict in no bank. The number of a chunk is xor-ed with the
    /// number of the read.
    pub fn apart(self, apart: u32, bytes: u32) -> Layout {
        let from = apart.max(128).ilog2();
        Layout { swizzle: Some(Chunks { swizzle: Swizzle::B128, bytes, from }), ..self }
    }
    /// The same placement in one of `count` buffers, the first results of which are `apart` from each other.
    pub fn in_stages(mut self, count: u32, apart: i64) -> Layout {
        let stage = Affine::axis(self.from.len());
        self.from.push((Axis::Stage, count.into()));
        if let Some((_, form)) = self.to.first_mut() {
            *form = form.plus(&stage, apart);
        }
        self
    }

    /// Number of values of a coordinate; 1 of one that the layout does not have.
    pub fn extent(&self, axis: Axis) -> u64 {
        self.from.iter().find(|(a, _)| *a == axis).map_or(1, |(_, extent)| *extent)
    }
    /// A result's form over the coordinates, in the order of [`Layout::coordinates`], before any swizzle.
    pub fn form(&self, to: Axis) -> Option<&Affine> {
        self.to.iter().find(|(a, _)| *a == to).map(|(_, form)| form)
    }
    /// The coordinates and their extents.
    pub fn coordinates(&self) -> &[(Axis, u64)] {
        &self.from
    }
    fn extents(&self) -> Vec<u64> {
        self.from.iter().map(|(_, extent)| *extent).collect()
    }
    fn index(&self, axis: Axis) -> Option<usize> {
        self.from.iter().position(|(a, _)| *a == axis)
    }

    /// A result at a point; 0 for one that the layout does not have.
    pub fn at(&self, to: Axis, point: Point) -> i64 {
        // More coordinates than names there are cannot be.
        let mut values = [0; 10];
        for (axis, value) in point {
            if let Some(place) = self.index(*axis).and_then(|i| values.get_mut(i)) {
                *place = *value;
            }
        }
        let Some(index) = self.to.iter().position(|(a, _)| *a == to) else { return 0 };
        let value = self.to[index].1.at(&values);
        self.swizzle.filter(|_| index == 0).map_or(value, |chunks| chunks.apply(value))
    }
    /// A result as an expression of type `ty`, over the given coordinates (those not given are 0). Constant ones fold.
    pub fn emit(&self, b: &mut Builder, to: Axis, point: &[(Axis, ExprId)], ty: Scalar) -> ExprId {
        let Some(index) = self.to.iter().position(|(a, _)| *a == to) else { return b.int(0, ty) };
        let zero = b.int(0, ty);
        let value_of = |axis: Axis| point.iter().find(|(a, _)| *a == axis).map_or(zero, |(_, e)| *e);
        let coords: Vec<Coord> = self.from.iter().map(|(axis, _)| Coord::plain(b, value_of(*axis))).collect();
        // The coarsest part first: the part that varies least is leftmost, as in written numbers.
        let form = &self.to[index].1;
        let mut terms: Vec<(Atom, i64)> = form.terms.clone();
        terms.sort_by(|x, y| y.1.cmp(&x.1).then_with(|| nesting(&x.0).cmp(&nesting(&y.0))).then_with(|| y.0.cmp(&x.0)));
        let value = affine(b, &Affine { terms, constant: form.constant }, &coords, Part::Whole, ty);
        if index == 0 { self.permuted(b, value) } else { value }
    }
    /// Where an element is whose first result is `value` without the permutation of chunks.
    pub fn permuted(&self, b: &mut Builder, value: ExprId) -> ExprId {
        self.swizzle.map_or(value, |chunks| chunks.emit(b, value))
    }
    /// Chunks are permuted: places are no sums of what coordinates add.
    pub const fn is_permuted(&self) -> bool {
        self.swizzle.is_some()
    }

    /// Width of the widest vector along a coordinate: the largest power of two w that is at most `most`.
    ///
    /// A vector has w consecutive values of the coordinate, the first a multiple of w. For all other coordinates, its places (the first result) are
    /// consecutive and start at a multiple of w.
    pub fn vector(&self, axis: Axis, most: u32) -> u32 {
        let (Some(index), Some((_, form))) = (self.index(axis), self.to.first()) else { return 1 };
        let extent = self.extents();
        // A swizzle moves chunks of 16 bytes as a whole.
        let most = self.swizzle.map_or(most, |chunks| most.min(16 / chunks.bytes));
        let wide = |w: u32| Group { axis: index, width: w.into(), extent: &extent }.contiguous(form);
        let widths = (1..=most.max(1).ilog2()).map(|log| 1 << log).take_while(|w| wide(*w));
        widths.last().unwrap_or(1)
    }
    /// Cycles of shared memory for an access of `lanes` neighbours along a coordinate, and the cycles without bank conflicts. Each lane moves `width`
    /// elements of `bytes` bytes from its place (the first result) on. The other coordinates are given.
    pub fn bank_cycles(&self, axis: Axis, lanes: u32, others: Point, width: u32, bytes: u32) -> (u64, u64) {
        let Some((to, _)) = self.to.first() else { return (0, 0) };
        let mut point = others.to_vec();
        point.push((axis, 0));
        let mut addresses = Vec::with_capacity(lanes as usize);
        for lane in 0..lanes {
            if let Some(last) = point.last_mut() {
                last.1 = lane.into();
            }
            addresses.push((lane as usize, self.at(*to, &point) * i64::from(bytes)));
        }
        bank_cycles(&addresses, (width * bytes) as usize)
    }

    /// This layout of the results of another: coordinates that the other produces are taken from it, further ones stay. `None` where the
    /// other is swizzled, which no affine form says.
    pub fn compose(&self, inner: &Layout) -> Option<Layout> {
        if inner.is_permuted() {
            return None;
        }
        let mut from = inner.from.clone();
        let mut forms = Vec::new();
        for (axis, extent) in &self.from {
            forms.push(match inner.form(*axis) {
                Some(form) => form.clone(),
                None => {
                    from.push((*axis, *extent));
                    Affine::axis(from.len() - 1)
                }
            });
        }
        let extent: Vec<u64> = from.iter().map(|(_, e)| *e).collect();
        let to = self.to.iter().map(|(axis, form)| (*axis, form.substituted(&forms, &extent))).collect();
        Some(Layout { from, to, swizzle: self.swizzle })
    }
}

/// Nesting depth of digits.
fn nesting(atom: &Atom) -> u32 {
    match atom {
        Atom::Axis(_) => 0,
        Atom::Digit { of, .. } => 1 + of.terms.iter().map(|(inner, _)| nesting(inner)).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
