//! Bulk copies of misaligned rows (`ACP3`). They need the tensor maps of aligned spans, and a staging buffer that holds the spans
//! until producer warps shift them into the operand's tile.
//!
//! Starts, strides and copy coordinates of a tensor map are multiples of 16 bytes. With a misaligned leading dimension, the rows start at
//! different offsets within 16 bytes, but rows [`LINE_CLASSES`] apart start at the same offset. So rows j, j + 8, j + 16, ... form a class,
//! a tensor with its own map. The map starts at the last multiple of 16 bytes at or before the first element of row j. The operand's
//! elements are [`ClassMap::shift`] elements further right in the map. A copy brings 16 bytes more of each row than the tile has, and
//! zeros past the ends of the operand.

use super::bulk::{BOX, fetched_tile};
use super::fetch_shape::{FetchShape, LINE_CLASSES, fetched_by_lines};
use super::tile::OperandTiling;
use serde::Serialize;
use tilewright_ir::mma::Family;
use tilewright_ir::{Limits, Swizzle, TensorMap, WARP};
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{COL, G, ROW};

/// Most columns of 128 bytes in one box. A box has at most 256 elements along a row.
const BOX_COLUMNS: u32 = 3;
/// Alignment in shared memory of copies without a swizzle.
const COPY_ALIGN: u32 = 128;
/// Most k-tiles in the staging buffer. More would not hide more latency.
const MOST_SLOTS: u32 = 4;
/// Fewest: one is copied while the other is shifted.
const LEAST_SLOTS: u32 = 2;

/// The tensor map of one class of rows.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// // Rows of A are 513 elements of 2 bytes apart.
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 513).lda(513).ldb(512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, shifted-tma+tma, 3 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// let classes = &derived.schedule.copies[0].shifted().expect("a shifted tile").spans.classes;
/// // Row 3 begins 3 elements after a multiple of 16 bytes.
/// assert_eq!((classes.len(), classes[3].first, classes[3].shift), (8, 3 * 513 - 3, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClassMap {
    /// Rows of the class. Dimensions: along a row, rows, and g if the operand has a batch stride.
    pub map: TensorMap,
    /// Start of the map in elements from the operand's first element, a multiple of 16 bytes.
    pub first: u64,
    /// Elements from the start to the first element of a row, less than 16 bytes.
    pub shift: u32,
}

/// Layout of an operand's k-tiles in the staging buffer: by class, then by box, then row by row.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 513).lda(513).ldb(512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, shifted-tma+tma, 3 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// let spans = &derived.schedule.copies[0].shifted().expect("a shifted tile").spans;
/// // 128 rows are 8 classes of 16; each row has 64 elements and 16 bytes more.
/// assert_eq!((spans.lines, spans.pitch, spans.copied), (16, 72, 16 * 72 * 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Spans {
    /// The maps, by class: [`LINE_CLASSES`] of them.
    pub classes: Vec<ClassMap>,
    /// Boxes of a class side by side along its rows.
    pub boxes: u32,
    /// Columns of 128 bytes that a box holds.
    pub columns: u32,
    /// Elements of a row of a box.
    pub pitch: u32,
    /// Rows of a class in a tile.
    pub lines: u32,
    /// Bytes of one copy.
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

/// Derives the aligned spans for a tensor's tiles of `macro_tile` by `k_tile`.
///
/// # Errors
/// The property that the view lacks, in words: plain strides, a contiguous direction, start and batch stride at 16 bytes, a row of each class.
pub fn spans(tensor: &Tensor, o: &OperandTiling, k_tile: u32, unit: &Family) -> Result<Spans, String> {
    let tile = fetched_tile(tensor, o, k_tile, unit)?;
    let (fast, slow) = if tile.k_contiguous { (COL, ROW) } else { (ROW, COL) };
    let plain = tensor.view.is_affine_box().filter(|_| fetched_by_lines(tensor, fast));
    let Some(shape) = plain else { return Err("its rows are no plain strides with contiguous elements".into()) };
    if tensor.align < 16 {
        return Err(format!("its first element is aligned to {} bytes, and copies need 16", tensor.align));
    }
    let extent = tensor.view.extent;
    let (apart, batch) = (shape.strides[slow].unsigned_abs(), shape.strides[G].unsigned_abs());
    let bytes = tensor.scalar.bytes();
    let grain = u64::from(16 / bytes);
    let batched = extent[G] > 1 && batch != 0;
    if batched && !batch.is_multiple_of(grain) {
        return Err(format!("its batch stride of {batch} elements is no multiple of 16 bytes"));
    }
    let classes = u64::from(LINE_CLASSES);
    if extent[slow] < classes || apart == 0 {
        return Err(format!(
            "it has {} rows, fewer than the {classes} classes of misaligned rows, or a row stride of 0",
            extent[slow]
        ));
    }
    if !(classes * apart).is_multiple_of(grain) {
        return Err(format!("its row stride of {apart} elements gives more than {classes} classes of alignment"));
    }
    let lines = tile.map.tile[1] / LINE_CLASSES;
    let shape = FetchShape::new(tile.columns, tile.map.tile[1], WARP);
    // As many columns as divide the tile's, where an instruction's lie in whole boxes or within one.
    let suits =
        |n: &u32| tile.columns.is_multiple_of(*n) && (n.is_multiple_of(shape.columns) || shape.columns.is_multiple_of(*n));
    // The shift makes rows up to 16 bytes longer.
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
        return Err(format!("a stride of {stride} bytes is not below 2^40"));
    }
    if maps().any(|m| m.extent.iter().any(|e| *e == 0 || *e > 1 << 31)) {
        return Err(format!("one of the extents {extent:?} exceeds 2^31"));
    }
    let boxes = tile.columns / columns;
    Ok(Spans { classes, boxes, columns, pitch, lines, copied, box_bytes: copied.next_multiple_of(COPY_ALIGN) })
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
