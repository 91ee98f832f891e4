//! The copy of a tensor in workspace with padded rows (`WOS3`). The rows are the tensor's own rows, or its channels if channels are planes.
//! An operand reads the copy along k or along its own rows.

use super::tile::WORKSPACE_ALIGN;
use super::windows::ROW_BYTES;
use tilewright_ir::Scalar;
use tilewright_ir::affine::Affine;
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{Access, COL, Digit, Dimension, Dimensions, G, ROW, View};

/// A tensor and its copy with padded rows.
///
/// ```
/// use tilewright_gen::plan::padded_rows;
/// use tilewright_ir::{Scalar, Target};
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Conv, Layout};
///
/// // 3 channels of f16 are 6 bytes; their copy has rows of 4 channels, the last of them zeros.
/// let conv = Conv::new(Scalar::F16, 1, 3, 8, &[8, 8], &[3, 3]).layout(Layout::Nhwc).build()?;
/// let contraction = lower(&conv.into(), ConvForm::PER_SAMPLE)?.lead;
/// let padded = padded_rows(&contraction.a)?;
/// assert_eq!([padded.copied[0].len, padded.copied[1].len], [8 * 8 * 3, 8 * 8 * 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PaddedRows {
    /// The tensor as the copy reads it, by (plane, row, channel), and as it writes it. Channels that are added are zeros.
    pub copied: [Tensor; 2],
    /// The copy through the operand's own coordinates.
    pub seen: Tensor,
}

/// Derives the copy of a tensor with contiguous rows. They are padded to a multiple of 16 bytes, or to a power of two if they are
/// shorter. Vectors and boxes of bulk copies may therefore start at every row. No row of up to 128 bytes crosses a multiple of
/// 128 bytes.
///
/// If k or the operand's rows run along the tensor's contiguous dimension alone, its rows are the rows of the copy. Otherwise (an image under
/// the taps of a filter, in NCHW) a dimension without such movement (channels) becomes contiguous: the copy is transposed.
///
/// # Errors
/// The reason why there is no such copy, in words.
pub fn padded_rows(tensor: &Tensor) -> Result<PaddedRows, &'static str> {
    if tensor.signs.is_some() {
        return Err("this copy cannot negate parts of complex numbers; use WOS1");
    }
    let dims = tensor.view.dims().ok_or("its addresses are no positions along dimensions of memory")?;
    if dims.dims.is_empty() {
        return Err("it has a single element");
    }
    if tensor.view.is_affine_box().is_some() {
        return Err("it is a matrix; use WOS1");
    }
    if dims.base < 0 {
        return Err("it starts before the first element of its tensor");
    }
    let lead = rows_dimension(&dims, tensor.scalar);
    let rows = if lead == 0 { in_order(&dims) } else { planes(&dims, lead, tensor.len)? };
    let channels = dims.dims[lead].extent.unsigned_abs();
    let grain = channels.next_power_of_two().min(u64::from(16 / tensor.scalar.bytes()));
    let padded = channels.next_multiple_of(grain);
    // A row of up to 128 bytes lies within one aligned line of 128 bytes, because a bulk copy requests whole lines. Zeros therefore fill
    // the line. Rows of groups are excluded: the channels of the next group follow there.
    let grouped = lead == 0 && dims.dims[1..].iter().any(|dim| dim.steps.iter().all(|(i, _)| dims.digits[*i].axis == G));
    let narrow = !grouped && padded <= 8 * u64::from(16 / tensor.scalar.bytes());
    let padded = if narrow { padded.next_power_of_two() } else { padded };
    let mut distances = dims.dims[1..].iter().map(|dim| dim.stride).chain([dims.base]).map(i64::unsigned_abs);
    if lead == 0 && (dims.dims[0].stride != 1 || distances.all(|distance| distance.is_multiple_of(grain))) {
        return Err("its rows start at multiples of 16 bytes already, or are not contiguous");
    }
    let mut placed = Dimensions { base: int(rows.first.saturating_mul(padded)), ..dims.clone() };
    for (dim, apart_in_rows) in placed.dims.iter_mut().zip(&rows.distances) {
        dim.stride = int(apart_in_rows.saturating_mul(padded));
    }
    (placed.dims[lead].stride, placed.dims[lead].extent) = (1, int(padded));
    let view = |offset: Affine, columns: u64| {
        let extent = [rows.planes, rows.each, columns];
        View { extent, access: Access { offset: offset.simplified(&extent), bounds: Vec::new() } }
    };
    let plane = rows.each.saturating_mul(padded);
    let len = plane.saturating_mul(rows.planes);
    let copy =
        |view: View| Tensor { scalar: tensor.scalar, factor: tensor.factor, signs: None, view, align: WORKSPACE_ALIGN, len };
    let from = view(rows.from.plus(&Affine::axis(COL), dims.dims[lead].stride), channels);
    let to = copy(view(Affine::axis(COL).plus(&Affine::axis(ROW), int(padded)).plus(&Affine::axis(G), int(plane)), padded));
    let seen = copy(placed.view(tensor.view.extent));
    Ok(PaddedRows { copied: [Tensor { view: from, ..tensor.clone() }, to], seen })
}

/// The dimension with positions that become neighbours. It moves with the lowest digit of k, or of the operand's rows, and with
/// no other digit but groups. The contiguous dimension comes before others. Dimensions with a digit that goes on in whole lines
/// come before both, because tiles are made of these.
fn rows_dimension(dims: &Dimensions, scalar: Scalar) -> usize {
    let lowest = |dim: &Dimension, axis: usize| {
        let mut moving = dim.steps.iter().map(|(i, step)| (dims.digits[*i], *step)).filter(|(digit, _)| digit.axis != G);
        let first = moving.next().filter(|(digit, step)| (digit.axis, digit.div, *step) == (axis, 1, 1));
        first.filter(|_| moving.next().is_none()).map(|(digit, _)| digit)
    };
    let along = |axis: usize| dims.dims.iter().enumerate().find_map(move |(i, dim)| Some((i, lowest(dim, axis)?)));
    let found: Vec<(usize, Digit)> = [COL, ROW].into_iter().filter_map(along).collect();
    let contiguous = found.iter().filter(|(i, _)| *i == 0 && dims.dims[0].stride == 1);
    let ordered: Vec<&(usize, Digit)> = contiguous.chain(&found).collect();
    let line = i64::from(ROW_BYTES / scalar.bytes());
    let whole = ordered.iter().find(|(_, digit)| digit.last || digit.extent % line == 0);
    whole.or(ordered.first()).map_or(0, |(i, _)| *i)
}

/// The rows of a copy.
struct Rows {
    /// First element of each in the tensor, by (plane, row).
    from: Affine,
    planes: u64,
    /// Rows of a plane.
    each: u64,
    /// For each dimension, rows of the copy between neighbouring positions.
    distances: Vec<u64>,
    /// Rows before the one where all positions are 0.
    first: u64,
}

fn int(v: u64) -> i64 {
    i64::try_from(v).unwrap_or(i64::MAX)
}

/// Rows of a tensor with a contiguous first dimension: all other dimensions are digits of the row.
fn in_order(dims: &Dimensions) -> Rows {
    let mut rows = Rows { from: Affine::constant(dims.base), planes: 1, each: 1, distances: vec![0], first: 0 };
    for (i, dim) in dims.dims.iter().enumerate().skip(1) {
        let last = i + 1 == dims.dims.len();
        rows.from = rows.from.plus(&Affine::axis(ROW).digit_of(int(rows.each), (!last).then_some(dim.extent)), dim.stride);
        rows.distances.push(rows.each);
        rows.each = rows.each.saturating_mul(dim.extent.unsigned_abs());
    }
    rows
}

/// Between two neighbours of a dimension lies a plane of elements, with a row of the copy for each element. Dimensions beyond it
/// are digits of the plane. So the tensor is read as contiguous as it is, and whole. Parts of a problem that read other pixels of
/// it have the same copy.
fn planes(dims: &Dimensions, lead: usize, len: u64) -> Result<Rows, &'static str> {
    let plane = dims.dims[lead].stride.unsigned_abs();
    let (inner, outer) = (&dims.dims[..lead], &dims.dims[lead + 1..]);
    let mut rows = Rows { from: Affine::axis(ROW), planes: 1, each: plane, distances: Vec::new(), first: 0 };
    rows.distances.extend(inner.iter().map(|dim| dim.stride.unsigned_abs()).chain([0]));
    // What is in front of the first position belongs to the dimensions as well.
    let mut rest = dims.base.unsigned_abs();
    let mut firsts: Vec<u64> = outer
        .iter()
        .rev()
        .map(|dim| {
            let stride = dim.stride.unsigned_abs();
            let first = rest / stride;
            rest %= stride;
            first
        })
        .collect();
    firsts.reverse();
    let reach = |dims: &[Dimension]| {
        dims.iter()
            .map(|dim| (dim.extent.unsigned_abs() - 1).saturating_mul(dim.stride.unsigned_abs()))
            .fold(0, u64::saturating_add)
    };
    if rest.saturating_add(reach(inner)) >= plane {
        return Err("its channels are no contiguous planes");
    }
    let last = dims.base.unsigned_abs() - rest + reach(&dims.dims[lead..]);
    if last.saturating_add(plane) > len {
        return Err("its last plane ends past the end of its tensor");
    }
    rows.first = rest;
    for (i, (dim, first)) in outer.iter().zip(firsts).enumerate() {
        let positions = first.saturating_add(dim.extent.unsigned_abs());
        let digit = Affine::axis(G).digit_of(int(rows.planes), (i + 1 < outer.len()).then_some(int(positions)));
        rows.from = rows.from.plus(&digit, dim.stride);
        let distance = rows.planes.saturating_mul(plane);
        rows.first = rows.first.saturating_add(first.saturating_mul(distance));
        rows.distances.push(distance);
        rows.planes = rows.planes.saturating_mul(positions);
    }
    Ok(rows)
}
