//! The view of an operand's copy in workspace. It has padded lines (MIOpenGEMM COPY, `WOS1`), packed panels (NFORM, `WOS2`), or
//! is the tensor itself with padded rows (`WOS3`, [`super::padded_rows`]).

use super::padded_rows::padded_rows;
use super::tile::{Source, WORKSPACE_ALIGN};
use std::borrow::Cow;
use tilewright_ir::Scalar;
use tilewright_ir::affine::Affine;
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{Access, COL, G, ROW, View};

/// Elements between the lines of a copy whose lines hold `line` elements.
///
/// An odd multiple of 128 bytes where a line has at least 1024 bytes, else an odd multiple of 16 bytes. So every line starts
/// where 16-byte accesses (and bulk copies) may start, and long lines start on a cache line. No stride is a multiple of a large
/// power of two, which would send all lines to the same memory channel. MIOpenGEMM's own rule (3 or 6 modulo 16 elements) spreads
/// lines as well but rules out vectors.
pub fn copy_leading_dimension(line: u64, scalar: Scalar) -> u64 {
    let bytes = u64::from(scalar.bytes());
    let unit = if line.saturating_mul(bytes) >= 1024 { 128 } else { 16 } / bytes;
    let units = line.div_ceil(unit);
    (units | 1).saturating_mul(unit)
}

/// The tensor that an operand is read as, seen through the same coordinates: itself, or what a materialised operand is in workspace.
///
/// Where the original does not depend on g, neither does the copy: it is made once. Element 0 is the start of the workspace
/// region, aligned to [`WORKSPACE_ALIGN`]. Sizes that do not fit 64 bits saturate `len`, which no budget can then satisfy.
///
/// - [`Source::InPlace`]: the tensor itself.
/// - [`Source::Copy`]: rows along the direction that is contiguous in the original (k if neither or both are), at a distance of
///   [`copy_leading_dimension`]. Rows are padded with zeros to this distance.
/// - [`Source::CopyAlongK`]: the same, always with rows along k.
/// - [`Source::CopyInRuns`]: the same, of [`in_runs`].
/// - [`Source::PaddedRows`]: see [`padded_rows`].
/// - [`Source::Packed`]: element (g, row, k) at `((g * tiles + row / MT) * k_extent + k) * MT + row % MT`. The row extent is
///   rounded up to whole tiles; the rows added are zeros.
///
/// # Errors
/// The reason why there is no copy with padded rows, in words.
pub(super) fn materialised(tensor: &Tensor, source: Source, macro_tile: u32) -> Result<Cow<'_, Tensor>, &'static str> {
    let [g, rows, cols] = tensor.view.extent;
    let copies = if tensor.view.uses(G) { g } else { 1 };
    let int = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
    let (extent, offset, per_copy) = match source {
        Source::InPlace => return Ok(Cow::Borrowed(tensor)),
        Source::PaddedRows => return Ok(Cow::Owned(padded_rows(tensor)?.seen)),
        Source::Copy | Source::CopyAlongK | Source::CopyInRuns(_) => {
            let row_contiguous = source == Source::Copy && tensor.view.run(ROW) > tensor.view.run(COL);
            let (line, lines) = if row_contiguous { (rows, cols) } else { (cols, rows) };
            let ld = copy_leading_dimension(line, tensor.scalar);
            let (fast, slow) = if row_contiguous { (ROW, COL) } else { (COL, ROW) };
            let offset = Affine::axis(fast).plus(&Affine::axis(slow), int(ld));
            // Rows are whole in memory: the elements after the original's end are zero, so vectors may reach over it.
            let mut extent = tensor.view.extent;
            extent[fast] = ld;
            (extent, offset, ld.saturating_mul(lines))
        }
        Source::Packed => {
            let tile = u64::from(macro_tile.max(1));
            let tiles = rows.div_ceil(tile);
            let extent = [g, tiles.saturating_mul(tile), cols];
            let panel = tile.saturating_mul(cols);
            let row = Affine::axis(ROW);
            let offset = Affine::default()
                .plus(&Affine::axis(COL), int(tile))
                .plus(&row.digit(int(tile), None, &extent), int(panel))
                .plus(&row.digit(1, Some(int(tile)), &extent), 1);
            (extent, offset, panel.saturating_mul(tiles))
        }
    };
    let offset = if copies > 1 { offset.plus(&Affine::axis(G), int(per_copy)) } else { offset };
    let view = View { extent, access: Access { offset: offset.simplified(&extent), bounds: Vec::new() } };
    Ok(Cow::Owned(Tensor {
        scalar: tensor.scalar,
        factor: tensor.factor,
        signs: None,
        view,
        align: WORKSPACE_ALIGN,
        len: per_copy.saturating_mul(copies),
    }))
}

/// Permutes the tensor's k to the order of weights in registers: the four lanes of a row hold runs of `run` weights each. Each 16 new k take
/// the next four k of each run, two of them among the first eight. k must be a multiple of `4 * run`.
pub fn in_runs(tensor: &Tensor, run: u32) -> Tensor {
    let (k, run, extent) = (Affine::axis(COL), i64::from(run), tensor.view.extent);
    let digit = |div: i64, modulo: Option<i64>| k.digit(div, modulo, &extent);
    let order = Affine::default()
        .plus(&digit(4 * run, None), 4 * run)
        .plus(&digit(16, Some(run / 4)), 4)
        .plus(&digit(8, Some(2)), 2)
        .plus(&digit(2, Some(4)), run)
        .plus(&digit(1, Some(2)), 1);
    let forms = [Affine::axis(G), Affine::axis(ROW), order];
    let mut view = tensor.view.clone();
    view.access.offset = view.access.offset.substituted(&forms, &extent);
    Tensor { view, ..tensor.clone() }
}

/// Elements that a copy in workspace writes of an operand with `rows` rows. The kernel reads the copy as this tensor. 0 where the
/// operand is read in place.
pub(super) fn copied_elements(c: &Contraction, read: &Tensor, source: Source, rows: u64) -> f64 {
    match source {
        Source::InPlace => 0.0,
        Source::PaddedRows => read.len as f64,
        _ => (if read.view.uses(G) { c.g as f64 } else { 1.0 }) * rows as f64 * c.k as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tilewright_problem::lower::{ConvForm, lower};
    use tilewright_problem::{Conv, Gemm, Layout, Order, Problem};

    fn operand(batch: u64, trans: bool) -> Tensor {
        let gemm = Gemm::new(Scalar::F32, 10, 6, 7).order(Order::Col).batch(batch).trans(trans, false).build().unwrap();
        lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead.a
    }
    fn copy(tensor: &Tensor, source: Source, macro_tile: u32) -> Tensor {
        materialised(tensor, source, macro_tile).unwrap().into_owned()
    }
    /// Every element has a place of its own within the region.
    fn injective(tensor: &Tensor) {
        let [g, rows, cols] = tensor.view.extent.map(|e| e as i64);
        let mut seen = HashSet::new();
        for g in 0..if tensor.view.uses(G) { g } else { 1 } {
            for r in 0..rows {
                for c in 0..cols {
                    let at = tensor.view.access.at([g, r, c]).unwrap();
                    assert!((0..tensor.len as i64).contains(&at) && seen.insert(at));
                }
            }
        }
    }

    #[test]
    fn copies_keep_the_contiguous_direction() {
        let col = copy(&operand(3, false), Source::Copy, 8);
        assert_eq!((col.view.stride(ROW), col.view.stride(COL), col.view.stride(G)), (Some(1), Some(12), Some(84)));
        assert_eq!((col.len, col.align), (252, 512));
        let row = copy(&operand(1, true), Source::Copy, 8);
        assert_eq!((row.view.stride(ROW), row.view.stride(COL)), (Some(12), Some(1)));
        assert_eq!((row.view.uses(G), row.len), (false, 120));
        injective(&col);
        injective(&row);
        assert_eq!(col.view.vector_width(ROW, 16, 64), 4);
    }

    #[test]
    fn copies_of_windows_follow_the_longer_run() {
        let conv = |layout, stride: u64| {
            let conv =
                Conv::new(Scalar::F32, 2, 5, 4, &[9, 9], &[3, 3]).layout(layout).stride(&[stride; 2]).pad(&[1; 2], &[1, 0]);
            let a = lower(&Problem::Conv(conv.build().unwrap()), ConvForm::PER_SAMPLE).unwrap().lead.a;
            let copied = copy(&a, Source::Copy, 8);
            injective(&copied);
            (a.view.run(ROW), a.view.run(COL), copied.view.stride(ROW) == Some(1))
        };
        assert_eq!(conv(Layout::Nchw, 1), (8, 3, true));
        assert_eq!(conv(Layout::Nchw, 2), (1, 3, false));
        assert_eq!(conv(Layout::Nhwc, 1), (1, 15, false));
    }

    #[test]
    fn panels() {
        let packed = copy(&operand(2, true), Source::Packed, 4);
        assert_eq!(packed.view.extent, [2, 12, 7]);
        injective(&packed);
        for g in 0..2 {
            for r in 0..12 {
                for k in 0..7 {
                    assert_eq!(packed.view.access.at([g, r, k]), Some(((g * 3 + r / 4) * 7 + k) * 4 + r % 4));
                }
            }
        }
        assert_eq!(packed.view.vector_width(ROW, 16, 64), 4);
        let one = copy(&operand(1, false), Source::Packed, 16);
        assert_eq!((one.view.stride(ROW), one.view.stride(COL), one.len), (Some(1), Some(16), 112));
    }

    #[test]
    fn leading_dimensions_take_vectors_and_avoid_powers_of_two() {
        for scalar in [Scalar::F16, Scalar::F32, Scalar::F64] {
            for line in 1..5000 {
                let ld = copy_leading_dimension(line, scalar);
                let bytes = ld * u64::from(scalar.bytes());
                assert!(ld >= line && bytes.is_multiple_of(16) && !bytes.is_multiple_of(256));
                assert!(ld - line < 16 * 16 && (line < 512 || ld < line + line / 2));
            }
        }
    }
}
