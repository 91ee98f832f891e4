//! Bulk tensor copies of an operand: the tensor map of its view, and the layout of its tile in shared memory.
//!
//! Tiles are stored in the swizzled layout of 128-byte rows that warpgroup instructions read. It is `[k / 64][row][64]` where k
//! is contiguous in memory, and `[row / 64][k][64]` where rows are (numbers for 16-bit elements).

use super::tile::{Along, OperandTiling};
use super::windows::{RAW_ROW, ROW_BYTES, Walk, suitable, walk};
use crate::plan::WORKSPACE_ALIGN;
use serde::Serialize;
use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::mma::Family;
use tilewright_ir::{Scalar, Swizzle, TensorMap};
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{Access, AffineBox, COL, G, ROW};

/// Longest side of a box.
pub(super) const BOX: u32 = 256;
/// Reason why an operand that is contiguous along its rows is refused.
const ALONG_K: &str = "it is contiguous along rows, and instructions read 32-bit and 8-bit operands in shared memory along k only (RGA lifts this for 32 bits)";
/// Most pixels of one in im2col mode.
const COLUMN: u32 = 1024;

/// Bulk copies of one operand's tiles.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, tma+tma, 4 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// // A is contiguous along k: its k-tile is one column of 128 rows of 128 bytes.
/// let tile = derived.schedule.copies[0].tile().expect("a bulk tile");
/// assert_eq!((tile.k_contiguous, tile.columns, tile.row, tile.bytes), (true, 1, 64, 128 * 128));
/// assert_eq!(tile.map.extent, [512, 512]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BulkTile {
    /// The operand in global memory; a box is one copy. Dimensions of a matrix: the contiguous one, the other, and g where it takes part.
    pub map: TensorMap,
    /// Where a copy starts, by (g, row, k) of its first element: coordinates, and offsets in im2col mode.
    pub at: Vec<Affine>,
    /// Start of the map: an offset in elements from the operand's first element.
    pub first: u64,
    /// k is the contiguous direction in memory and in shared memory.
    pub k_contiguous: bool,
    /// The third dimension is the batch.
    pub batched: bool,
    /// Copies along the contiguous direction, each a column of 128-byte rows.
    pub columns: u32,
    /// Copies along the other direction.
    pub lines: u32,
    /// Elements of a row in shared memory, of 128 bytes (64 or 128 for weights that lanes convert). If a byte holds two numbers,
    /// the bytes of the row.
    pub row: u32,
    /// Numbers to an element: two of 4 bits.
    pub numbers: u32,
    /// Length of the runs along k in which the four lanes of a row hold the weights of operand A; `None` without them. Each
    /// k-step of 16 takes the next four elements of each lane's run. Two are in the lower and two in the upper half of the
    /// k-step.
    pub runs: Option<u32>,
    /// Bytes of one k-tile in shared memory; of both parts in sequence, where it is split there.
    pub bytes: u32,
}

impl BulkTile {
    /// The tile in shared memory: (row, k) to the element's position.
    pub fn layout(&self) -> Layout {
        let (along, across) = (self.columns * self.row, self.lines * self.map.tile.get(1).copied().unwrap_or(1));
        let (rows, depth, axis) = if self.k_contiguous { (across, along, Axis::K) } else { (along, across, Axis::Row) };
        Layout::panels(rows, depth, axis, self.map.swizzle, self.map.scalar)
    }
}

/// Rows of a bulk store: those of one wave's part of an instruction.
pub const STORE_ROWS: u32 = 16;
/// Staging buffers of a wave: one is written while the other is stored. Where teams alternate, another team computes meanwhile, and the
/// room serves buffers better (on an H200 a second staging buffer made no difference there).
pub const fn store_buffers(teams: u32) -> u32 {
    if teams > 1 { 1 } else { 2 }
}

/// How results go out by bulk stores of [`STORE_ROWS`] rows.
///
/// ```
/// use tilewright_gen::plan::{Plan, store_tile};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, tma+tma, 4 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// // A store moves 16 rows of 64 columns: rows of 128 bytes.
/// let tile = store_tile(&derived.c.c, 128)?;
/// assert_eq!((tile.columns, tile.row_bytes(), tile.staging_bytes()), (64, 128, 2048));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct StoreTile {
    /// The result in global memory; dimensions: columns and rows, the contiguous ones first, and what is outside of them where there is
    /// more than one.
    pub map: TensorMap,
    /// Columns of a store.
    pub columns: u32,
    /// Rows are contiguous in memory, and in the staging buffer: one line for each column.
    pub by_rows: bool,
    /// The third dimension is used.
    pub batched: bool,
}

impl StoreTile {
    /// The same for another number of batch entries.
    pub fn of_entries(&self, entries: u64) -> StoreTile {
        let mut tile = self.clone();
        tile.map.extent.iter_mut().skip(2).for_each(|extent| *extent = entries);
        tile
    }
    /// Whether another store fits into the same staging buffers, filled in the same way.
    pub fn goes_with(&self, other: &StoreTile) -> bool {
        let form = |tile: &StoreTile| (tile.columns, tile.by_rows, tile.batched, tile.map.scalar, tile.map.swizzle);
        form(self) == form(other) && self.map.tile == other.map.tile
    }
    /// Bytes of one line in shared memory: a row's columns, or a column's rows.
    pub const fn row_bytes(&self) -> u32 {
        (if self.by_rows { STORE_ROWS } else { self.columns }) * self.map.scalar.bytes()
    }
    /// Bytes of a staging buffer; staging buffers start at multiples of 1024, where the layout's patterns do.
    pub const fn staging_bytes(&self) -> u32 {
        let bytes = STORE_ROWS * self.columns * self.map.scalar.bytes();
        if bytes < 1024 { 1024 } else { bytes }
    }
}

/// Columns of a store of results of this size: as many of a 128-byte row as divide a tile's; 0 where none do.
pub const fn store_columns(micro: u32, bytes: u32) -> u32 {
    let mut columns = ROW_BYTES / bytes;
    while columns > 0 && !micro.is_multiple_of(columns) {
        columns /= 2;
    }
    columns
}

/// Most results of one store of whole rows. Each row of the staging buffer ends with a gap of this size.
pub const ROW_VECTOR: u32 = 8;

/// A wave's staging buffer for plain stores of whole rows.
///
/// ```
/// use tilewright_gen::plan::RowStaging;
/// use tilewright_ir::Scalar;
///
/// // Micro tiles of 64 columns of f32: 16 rows of 32 columns, each with a gap of 8 elements.
/// let staging = RowStaging::new(64, 8, 4, Scalar::F32);
/// assert_eq!((staging.columns, staging.pitch(), staging.bytes()), (32, 40, 16 * 40 * 4));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RowStaging {
    /// Columns.
    pub columns: u32,
    /// Type of the sums.
    pub scalar: Scalar,
}

impl RowStaging {
    /// The staging buffer for waves of `micro` columns and results of `bytes` bytes. It has at least `held` columns, as many as one register
    /// of all lanes covers. It is half as wide as a bulk store for narrow results, so that accumulators take the same room.
    pub fn new(micro: u32, held: u32, bytes: u32, scalar: Scalar) -> RowStaging {
        let columns = store_columns(micro, bytes);
        let columns = if bytes < 4 && columns > 32 { 32 } else { columns };
        RowStaging { columns: columns.max(held), scalar }
    }
    /// Elements from one of its [`STORE_ROWS`] rows to the next. The gap holds the elements past the last multiple of 16 bytes and
    /// spreads the rows over different banks.
    pub const fn pitch(self) -> u32 {
        self.columns + ROW_VECTOR
    }
    /// Bytes.
    pub const fn bytes(self) -> u32 {
        STORE_ROWS * self.pitch() * self.scalar.bytes()
    }
}

/// The map of a matrix, or of a batch of matrices. Lines are contiguous along one axis and `apart` elements apart along the
/// other.
fn map_of_lines(
    tensor: &Tensor,
    [fast, slow]: [usize; 2],
    apart: i64,
    batch: Option<i64>,
    mut tile: Vec<u32>,
    swizzle: Swizzle,
) -> TensorMap {
    let (extents, numbers) = (tensor.view.extent, u64::from(tensor.scalar.numbers()));
    let stride = |elements: i64| elements.unsigned_abs() * u64::from(tensor.scalar.bytes()) / numbers;
    // A single line has no neighbour; its stride is free.
    let lines = if extents[slow] <= 1 { stride(apart).next_multiple_of(16).max(16) } else { stride(apart) };
    let (mut extent, mut stride_bytes) = (vec![extents[fast].div_ceil(numbers), extents[slow]], vec![lines]);
    if let Some(batch) = batch {
        extent.push(extents[G]);
        stride_bytes.push(stride(batch));
        tile.push(1);
    }
    TensorMap { scalar: tensor.scalar, round_tf32: false, extent, stride_bytes, tile, swizzle, im2col: None }
}

/// Derives the bulk store of a wave with `micro` columns.
///
/// # Errors
/// The property that the result's view lacks, in words: plain strides, columns or rows side by side, alignment to 16 bytes.
pub fn store_tile(tensor: &Tensor, micro: u32) -> Result<StoreTile, String> {
    let bytes = tensor.scalar.bytes();
    let Some(shape) = tensor.view.is_affine_box() else { return Err("its addresses are no plain strides".into()) };
    let extent = tensor.view.extent;
    if shape.base != 0 || (0..3).any(|i| shape.valid[i] != (0, extent[i] as i64)) {
        return Err("it is padded".into());
    }
    let [batch, row, column] = shape.strides;
    let by_rows = column != 1 && extent[COL] > 1;
    if by_rows && row != 1 && extent[ROW] > 1 {
        return Err("neither its columns nor its rows are contiguous".into());
    }
    let (fast, slow, apart) = if by_rows { (ROW, COL, column) } else { (COL, ROW, row) };
    // On an H200 stores that end inside 16 bytes were seen to clear what follows the last column.
    if !(extent[fast] * u64::from(bytes)).is_multiple_of(16) {
        return Err(format!("its {} contiguous elements do not end at a multiple of 16 bytes", extent[fast]));
    }
    let columns = store_columns(micro, bytes);
    let tile = if by_rows { vec![STORE_ROWS, columns] } else { vec![columns, STORE_ROWS] };
    if columns < 8 || tile[0] * bytes < 16 || tensor.align < 16 || apart < 0 || batch < 0 {
        return Err("its start, its direction or the width of a tile does not suit copies of 16 bytes".into());
    }
    let swizzle = match tile[0] * bytes {
        128 => Swizzle::B128,
        64 => Swizzle::B64,
        32 => Swizzle::B32,
        _ => Swizzle::None,
    };
    let batched = extent[G] > 1;
    let map = map_of_lines(tensor, [fast, slow], apart, batched.then_some(batch), tile, swizzle);
    if let Some(stride) = map.stride_bytes.iter().find(|s| **s % 16 != 0 || **s == 0 || **s >= 1 << 40) {
        return Err(format!("a stride of {stride} bytes is no multiple of 16 (below 2^40)"));
    }
    Ok(StoreTile { map, columns, by_rows, batched })
}

/// Derives the bulk copies of a tensor's tiles of `macro_tile` by `k_tile`. Each of `shares` work-groups copies a part of a tile: whole
/// columns if they divide evenly, else rows.
///
/// # Errors
/// The property that the view lacks, in words: plain strides, alignment to 16 bytes, a contiguous direction, whole 128-byte rows, tiles that divide.
pub fn bulk_tile(tensor: &Tensor, o: &OperandTiling, k_tile: u32, unit: &Family, shares: u32) -> Result<BulkTile, String> {
    let (bytes, numbers) = (tensor.scalar.bytes(), tensor.scalar.numbers());
    if tensor.align < 16 {
        return Err(format!("its first element is aligned to {} bytes, and copies need 16", tensor.align));
    }
    let walk = match tensor.view.is_affine_box() {
        Some(shape) if shape.base == 0 && (0..3).all(|i| shape.valid[i] == (0, tensor.view.extent[i] as i64)) => {
            matrix(tensor, &shape)?
        }
        _ => walk(tensor, o.macro_tile, k_tile)?,
    };
    let k_contiguous = walk.k_contiguous;
    if o.raw.is_some() && !k_contiguous {
        return Err("it is contiguous along rows, and lanes convert neighbours along k; use ACP0".into());
    }
    if !k_contiguous && unit.along_k(bytes, o.fragment_sets > 0) {
        return Err(ALONG_K.into());
    }
    let row_bytes = if o.raw.is_some() && k_tile / numbers * bytes == RAW_ROW { RAW_ROW } else { ROW_BYTES };
    let row = row_bytes / bytes;
    let (along, across) = if k_contiguous { (k_tile / numbers, o.macro_tile) } else { (o.macro_tile, k_tile) };
    if along % row != 0 {
        let what = if k_contiguous { "UNR" } else { "the macro tile" };
        return Err(format!("{what} of {} is no multiple of {}, a row of 128 bytes", along * numbers, row * numbers));
    }
    if !k_contiguous && !whole_rows(o, bytes, unit) {
        return Err(format!("the {} rows of a warpgroup are no multiple of {row}", o.micro));
    }
    let shares = if (along / row).is_multiple_of(shares.max(1)) { 1 } else { shares };
    let most = if walk.map.im2col.is_some() { COLUMN } else { BOX };
    let fewest = across.div_ceil(most).next_multiple_of(shares);
    // Where boxes must not go beyond runs of lines, more of them may do.
    let counts = (fewest..=if walk.lines == 0 { fewest } else { across / 8 }).step_by(shares as usize);
    let suits =
        |n: &u32| across.is_multiple_of(*n) && (across / n).is_multiple_of(8) && walk.lines.is_multiple_of((across / n).into());
    let Some(lines) = counts.into_iter().find(suits) else {
        let runs = if walk.lines == 0 { String::new() } else { format!(" within runs of {}", walk.lines) };
        return Err(format!("the {across} rows of a tile do not divide into equal boxes of at most {most}, in steps of 8{runs}"));
    };
    let Walk { mut map, at, first, batched, .. } = walk;
    map.tile[1] = across / lines;
    if row_bytes == RAW_ROW {
        map.tile[0] = row;
        map.swizzle = Swizzle::B64;
    }
    map.round_tf32 = o.rounded(unit, tensor.scalar);
    let bytes = along * across * bytes;
    Ok(BulkTile { map, at, first, k_contiguous, batched, columns: along / row, lines, row, numbers, runs: None, bytes })
}

/// The map of a matrix, or a batch of them.
fn matrix(tensor: &Tensor, shape: &AffineBox) -> Result<Walk, String> {
    let (extent, bytes) = (tensor.view.extent, tensor.scalar.bytes());
    let [batch, row_stride, k_stride] = shape.strides;
    let k_contiguous = k_stride == 1 && (row_stride != 1 || extent[ROW] <= 1);
    if !k_contiguous && row_stride != 1 {
        return Err("neither rows nor k are contiguous".into());
    }
    let (fast, slow, apart) = if k_contiguous { (COL, ROW, row_stride) } else { (ROW, COL, k_stride) };
    let batched = extent[G] > 1 && batch != 0;
    let tile = vec![ROW_BYTES / bytes, 1];
    let map = map_of_lines(tensor, [fast, slow], apart, batched.then_some(batch), tile, Swizzle::B128);
    if [row_stride, k_stride, batch].iter().any(|s| *s < 0) {
        return Err("a stride is negative".into());
    }
    // Two numbers to a byte are counted in bytes.
    let numbers = i64::from(tensor.scalar.numbers());
    let first = Affine::axis(fast).digit_of(numbers, None);
    let at = [first, Affine::axis(slow)].into_iter().chain(batched.then(|| Affine::axis(G))).collect();
    suitable(&map).map(|()| Walk { map, at, k_contiguous, first: 0, batched, lines: 0 })
}

/// Whether each owner's rows, of elements of so many bytes, begin where its unit may read panels.
fn whole_rows(o: &OperandTiling, bytes: u32, unit: &Family) -> bool {
    (o.micro * bytes).is_multiple_of(unit.begins) || o.micro == o.macro_tile
}

/// Derives the layout in shared memory of tiles of `macro_tile` by `k_tile` that producer warps write, for any view. Its map only gives
/// the shape.
///
/// # Errors
/// Tiles that are not whole 128-byte rows of the layout.
pub fn fetched_tile(tensor: &Tensor, o: &OperandTiling, k_tile: u32, unit: &Family) -> Result<BulkTile, String> {
    let extent = tensor.view.extent;
    // Lines along which neighbours are neighbours in memory; along k where neither direction is better.
    let rows = tensor.view.run(ROW) > tensor.view.run(COL) && extent[ROW] > 1;
    let rows = rows && !unit.along_k(tensor.factor().bytes(), false);
    panels(tensor, o, k_tile, if rows { Along::Row } else { Along::K }, unit)
}

/// Derives swizzled panels for tiles that threads write, contiguous along rows or along k. Their map only gives the shape.
///
/// # Errors
/// Tiles that are not whole 128-byte rows of the layout.
pub(super) fn panels(tensor: &Tensor, o: &OperandTiling, k_tile: u32, along: Along, unit: &Family) -> Result<BulkTile, String> {
    let (bytes, extent, rows) = (tensor.factor().bytes(), tensor.view.extent, along == Along::Row);
    let row = ROW_BYTES / bytes;
    if rows && unit.along_k(bytes, false) {
        return Err(ALONG_K.into());
    }
    if rows && !(o.macro_tile.is_multiple_of(row) && whole_rows(o, bytes, unit)) {
        return Err(format!("the {} rows of a tile, {} of a warpgroup, must be multiples of {row}", o.macro_tile, o.micro));
    }
    let (along, across) = if rows { (o.macro_tile, k_tile) } else { (k_tile, o.macro_tile) };
    if !along.is_multiple_of(row) || !across.is_multiple_of(8) {
        return Err(format!("a tile of {along} x {across} elements is no whole number of 128-byte rows, in steps of eight rows"));
    }
    let map = TensorMap {
        scalar: tensor.factor(),
        round_tf32: false,
        extent: if rows { vec![extent[ROW], extent[COL]] } else { vec![extent[COL], extent[ROW]] },
        stride_bytes: vec![16],
        tile: vec![row, across],
        swizzle: Swizzle::B128,
        im2col: None,
    };
    let bytes = o.macro_tile * k_tile * bytes * o.shared_parts;
    Ok(BulkTile {
        map,
        at: Vec::new(),
        first: 0,
        k_contiguous: !rows,
        batched: false,
        columns: along / row,
        lines: 1,
        row,
        numbers: 1,
        runs: None,
        bytes,
    })
}

/// The tensor of the partial sums of so many rows, seen as (split and batch entry, row, column). It is contiguous in the direction of C,
/// as the kernel that adds them up reads them.
pub fn partials(c: &Contraction, entries: u64, rows: u64) -> Tensor {
    let mut view = c.c.view.clone();
    view.extent = [entries, rows, c.n];
    view.access = Access { offset: Affine::default(), bounds: Vec::new() };
    let (row, col) = if c.c.view.stride(COL) == Some(1) { (c.n, 1) } else { (1, rows) };
    for (axis, stride) in [(G, rows * c.n), (ROW, row), (COL, col)] {
        view.access.offset = view.access.offset.plus(&Affine::axis(axis), stride as i64);
    }
    Tensor { scalar: c.accumulator(), factor: None, signs: None, view, align: WORKSPACE_ALIGN, len: entries * rows * c.n }
}
