//! Misaligned rows, copied in bulk to be shifted (`ACP3`): the tensor maps of their aligned spans, and the staging that holds
//! them until load waves put them into the operand's tile.
//!
//! A tensor map starts at a multiple of 16 bytes, and so do its strides and the coordinates of copies along a line. Of a leading
//! dimension that is no such multiple every line begins elsewhere within 16 bytes, but lines [`LINE_CLASSES`] apart begin alike.
//! So lines j, j + 8, j + 16, ... of a tensor are a tensor of their own, whose map starts at the multiple of 16 bytes at or before
//! line j's first element; elements of the operand are [`ClassMap::shift`] further right in it. A copy brings 16 bytes more of
//! each line than the tile has, and zeros for what lies beyond the operand's ends.

use super::bulk::{BOX, fetched_tile};
use super::fetch_shape::{FetchShape, LINE_CLASSES, fetched_by_lines};
use super::tile::OperandTiling;
use serde::Serialize;
use tilewright_ir::mma::Family;
use tilewright_ir::{Limits, Swizzle, TensorMap, WARP};
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{COL, G, ROW};

/// Columns of 128 bytes that one box holds at most: boxes end at 256 elements.
const BOX_COLUMNS: u32 = 3;
/// Bytes at whose multiples copies without a swizzle end up.
const COPY_ALIGN: u32 = 128;
/// Most k-tiles in staging: what they hold beyond these is no longer latency.
const MOST_SLOTS: u32 = 4;
/// Fewest: one is copied while the other is shifted.
const LEAST_SLOTS: u32 = 2;

/// The tensor map of one class of lines.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClassMap {
    /// Lines of the class; dimensions: along a line, lines, and g where it takes part.
    pub map: TensorMap,
    /// Where it starts: elements behind the operand's first, a multiple of 16 bytes.
    pub first: u64,
    /// Elements from there to the first of a line, less than 16 bytes.
    pub shift: u32,
}

/// How an operand's k-tiles lie in staging: by class, within it by box, within it line by line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Spans {
    /// The maps, by class: [`LINE_CLASSES`] of them.
    pub classes: Vec<ClassMap>,
    /// Boxes of a class side by side along its lines.
    pub boxes: u32,
    /// Columns of 128 bytes that a box holds.
    pub columns: u32,
    /// Elements of a line of a box.
    pub pitch: u32,
    /// Lines of a class in a tile.
    pub lines: u32,
    /// Bytes that one copy brings.
    pub copied: u32,
    /// Bytes from one box to the next.
    pub box_bytes: u32,
}

impl Spans {
    /// Bytes of a k-tile.
    pub const fn slot_bytes(&self) -> u32 {
        LINE_CLASSES * self.boxes * self.box_bytes
    }
}

/// How a tensor's tiles of `macro_tile` by `k_tile` come as aligned spans of lines, or why they cannot, in words.
///
/// # Errors
/// What the view lacks: plain strides, a contiguous direction, a start and batch entries at 16 bytes, a line of each class.
pub fn spans(tensor: &Tensor, o: &OperandTiling, k_tile: u32, unit: &Family) -> Result<Spans, String> {
    let tile = fetched_tile(tensor, o, k_tile, unit)?;
    let (fast, slow) = if tile.k_contiguous { (COL, ROW) } else { (ROW, COL) };
    let plain = tensor.view.is_affine_box().filter(|_| fetched_by_lines(tensor, fast));
    let Some(shape) = plain else { return Err("its lines are no plain strides with neighbours in memory; use ACP0".into()) };
    if tensor.align < 16 {
        return Err(format!("its first element is aligned to {} bytes, copies of lines need 16; use ACP0", tensor.align));
    }
    let extent = tensor.view.extent;
    let (apart, batch) = (shape.strides[slow].unsigned_abs(), shape.strides[G].unsigned_abs());
    let bytes = tensor.scalar.bytes();
    let grain = u64::from(16 / bytes);
    let batched = extent[G] > 1 && batch != 0;
    if batched && !batch.is_multiple_of(grain) {
        return Err(format!("its batch entries, {batch} elements apart, do not begin at 16 bytes; use ACP0"));
    }
    let classes = u64::from(LINE_CLASSES);
    if extent[slow] < classes || apart == 0 {
        return Err(format!(
            "it has {} lines, fewer than the {classes} that begin differently, or all are one; use ACP0",
            extent[slow]
        ));
    }
    if !(classes * apart).is_multiple_of(grain) {
        return Err(format!("its lines, {apart} elements apart, begin in more than {classes} ways within 16 bytes; use ACP0"));
    }
    let lines = tile.map.tile[1] / LINE_CLASSES;
    let shape = FetchShape::new(tile.columns, tile.map.tile[1], WARP);
    // As many columns as divide the tile's, where an instruction's lie in whole boxes or within one.
    let suits =
        |n: &u32| tile.columns.is_multiple_of(*n) && (n.is_multiple_of(shape.columns) || shape.columns.is_multiple_of(*n));
    // What lies before the first element of a row makes them longer.
    let pitch_of = |columns: u32| columns * tile.row + 16 / bytes;
    let columns = (1..=BOX_COLUMNS).rev().filter(|n| pitch_of(*n) <= BOX).find(suits).unwrap_or(1);
    let pitch = pitch_of(columns);
    let copied = pitch * lines * bytes;
    let class = |class: u64| {
        let first = class * apart;
        let shift = first % grain;
        let mut map = TensorMap {
            scalar: tensor.scalar,
            round_tf32: o.rounded(unit, tensor.scalar),
            extent: vec![extent[fast] + shift, (extent[slow] - class).div_ceil(classes)],
            stride_bytes: vec![classes * apart * u64::from(bytes)],
            tile: vec![pitch, lines],
            swizzle: Swizzle::None,
            im2col: None,
        };
        if batched {
            map.extent.push(extent[G]);
            map.stride_bytes.push(batch * u64::from(bytes));
            map.tile.push(1);
        }
        ClassMap { map, first: first - shift, shift: shift as u32 }
    };
    let classes: Vec<ClassMap> = (0..classes).map(class).collect();
    let maps = || classes.iter().map(|c| &c.map);
    if let Some(stride) = maps().flat_map(|m| &m.stride_bytes).find(|s| **s >= 1 << 40) {
        return Err(format!("a stride of {stride} bytes: copies take less than 2^40"));
    }
    if maps().any(|m| m.extent.iter().any(|e| *e == 0 || *e > 1 << 31)) {
        return Err(format!("extents {extent:?}: copies count to 2^31"));
    }
    let boxes = tile.columns / columns;
    Ok(Spans { classes, boxes, columns, pitch, lines, copied, box_bytes: copied.next_multiple_of(COPY_ALIGN) })
}

/// Where staging begins, behind so many barriers behind a circular buffer that ends at `from`.
pub(crate) fn staging_start(from: u64, barriers: u32) -> u64 {
    (from + 8 * u64::from(barriers)).next_multiple_of(COPY_ALIGN.into())
}

/// k-tiles in staging: as many as the shared memory holds beside the rest of a work-group. `bytes` says what it takes with so many.
pub(super) fn slots(min_groups: u32, bytes: impl Fn(u32) -> u64) -> u32 {
    let limits = Limits::WARPGROUP;
    let share = match min_groups {
        0 | 1 => limits.shared_per_group,
        groups => limits.shared_per_unit / groups - limits.shared_reserved(),
    };
    (LEAST_SLOTS..=MOST_SLOTS).rev().find(|slots| bytes(*slots) <= u64::from(share)).unwrap_or(LEAST_SLOTS)
}
