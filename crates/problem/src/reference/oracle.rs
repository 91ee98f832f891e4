//! Where a problem's factors and results lie, from the problem's own definition: deliberately not through views.

use super::data::TestData;
use super::element::value;
use crate::conv::{Conv, Layout};
use crate::epilogue::Along;
use crate::gemm::{Gemm, Order};
use crate::problem::Problem;

/// Result elements as (g, row, column), each a sum of k products. A GEMM's own coordinates; for a convolution g is
/// (sample, group), row an output pixel, column an output channel of the group, and k runs over (channel, filter taps).
pub(super) struct Oracle<'a> {
    data: &'a TestData,
    kind: Kind<'a>,
    /// Extents of g, row, column and k.
    pub extent: [u64; 4],
}

enum Kind<'a> {
    Gemm(&'a Gemm),
    Conv(&'a Conv, Space),
}

/// A convolution's spatial sizes, three dimensions always.
struct Space {
    input: [u64; 3],
    filter: [u64; 3],
    output: [u64; 3],
    stride: [u64; 3],
    dilation: [u64; 3],
    pad: [u64; 3],
}

impl<'a> Oracle<'a> {
    pub(super) fn new(data: &'a TestData) -> Oracle<'a> {
        match &data.problem {
            Problem::Gemm(gemm) => Oracle { data, kind: Kind::Gemm(gemm), extent: [gemm.batch, gemm.m, gemm.n, gemm.k] },
            Problem::Conv(conv) => {
                let three = |list: &[u64], fill: u64| {
                    let mut out = [fill; 3];
                    out[3 - list.len()..].copy_from_slice(list);
                    out
                };
                let output = conv.output();
                let space = Space {
                    input: three(&conv.input, 1),
                    filter: three(&conv.filter, 1),
                    output: three(&output, 1),
                    stride: three(&conv.stride, 1),
                    dilation: three(&conv.dilation, 1),
                    pad: three(&conv.pad_begin, 0),
                };
                let pixels = space.output.iter().product();
                let depth = conv.c_per_group() * space.filter.iter().product::<u64>();
                let extent = [conv.n * conv.groups, pixels, conv.k_per_group(), depth];
                Oracle { data, kind: Kind::Conv(conv, space), extent }
            }
        }
    }
    /// Position of a result element in C's buffer.
    pub(super) fn result_at(&self, g: u64, row: u64, column: u64) -> u64 {
        self.data.c.start
            + match &self.kind {
                Kind::Gemm(gemm) => at(gemm, 2, g, row, column),
                Kind::Conv(conv, space) => output_at(conv, space, g, row, column),
            }
    }
    /// The value added to a scaled sum.
    pub(super) fn bias(&self, g: u64, row: u64, column: u64) -> f64 {
        let Some(bias) = &self.data.bias else { return 0.0 };
        let at = match &self.kind {
            Kind::Gemm(gemm) => match gemm.bias {
                Some(x) => g * x.batch_stride + if x.along == Along::M { row } else { column },
                None => return 0.0,
            },
            Kind::Conv(conv, _) => g % conv.groups * conv.k_per_group() + column,
        };
        value(bias.scalar, &bias.bytes, bias.start + at)
    }
    /// The value added last.
    pub(super) fn residual(&self, g: u64, row: u64, column: u64) -> f64 {
        let Some(residual) = &self.data.residual else { return 0.0 };
        let at = match &self.kind {
            Kind::Gemm(gemm) => match gemm.residual {
                Some(x) => g * x.batch_stride + within(gemm, gemm.c.trans, x.ld, row, column),
                None => return 0.0,
            },
            Kind::Conv(conv, space) => output_at(conv, space, g, row, column),
        };
        value(residual.scalar, &residual.bytes, residual.start + at)
    }
    /// Left factors of a row for k from `first` on.
    pub(super) fn left(&self, g: u64, row: u64, first: u64, out: &mut [f64]) {
        let a = &self.data.a;
        let element = |position: u64| value(a.scalar, &a.bytes, a.start + position);
        match &self.kind {
            Kind::Gemm(gemm) => {
                for (k, x) in (first..).zip(out) {
                    *x = element(at(gemm, 0, g, row, k));
                }
            }
            Kind::Conv(conv, space) => {
                let (sample, group) = (g / conv.groups, g % conv.groups);
                let pixel = digits(row, space.output);
                for (k, x) in (first..).zip(out) {
                    let (channel, tap) = channel_and_tap(k, space);
                    let mut place = Some([0; 3]);
                    for d in 0..3 {
                        let padded = pixel[d] * space.stride[d] + tap[d] * space.dilation[d];
                        place = match (place, padded.checked_sub(space.pad[d])) {
                            (Some(mut p), Some(i)) if i < space.input[d] => {
                                p[d] = i;
                                Some(p)
                            }
                            _ => None,
                        };
                    }
                    *x = place.map_or(0.0, |p| {
                        let channel = group * conv.c_per_group() + channel;
                        element(match conv.layout {
                            Layout::Nchw => flat(sample * conv.c + channel, p, space.input),
                            Layout::Nhwc => flat(sample, p, space.input) * conv.c + channel,
                        })
                    });
                }
            }
        }
    }
    /// Right factors of a column for k from `first` on.
    pub(super) fn right(&self, g: u64, column: u64, first: u64, out: &mut [f64]) {
        let b = &self.data.b;
        let element = |position: u64| value(b.scalar, &b.bytes, b.start + position);
        match &self.kind {
            Kind::Gemm(gemm) => {
                for (k, x) in (first..).zip(out) {
                    *x = element(at(gemm, 1, g, k, column));
                }
            }
            Kind::Conv(conv, space) => {
                let channels = conv.c_per_group();
                let filter = g % conv.groups * conv.k_per_group() + column;
                for (k, x) in (first..).zip(out) {
                    let (channel, tap) = channel_and_tap(k, space);
                    *x = element(match conv.layout {
                        Layout::Nchw => flat(filter * channels + channel, tap, space.filter),
                        Layout::Nhwc => flat(filter, tap, space.filter) * channels + channel,
                    });
                }
            }
        }
    }
}

/// Position of element (i, j) of op(A), op(B) or C of a product.
fn at(gemm: &Gemm, matrix: usize, g: u64, i: u64, j: u64) -> u64 {
    let x = gemm.matrices()[matrix];
    g * x.batch_stride + within(gemm, x.trans, x.ld, i, j)
}

/// Position of element (i, j) within a matrix that is stored transposed or not.
fn within(gemm: &Gemm, trans: bool, ld: u64, i: u64, j: u64) -> u64 {
    let (stored_row, stored_column) = if trans { (j, i) } else { (i, j) };
    match gemm.order {
        Order::Col => stored_column * ld + stored_row,
        Order::Row => stored_row * ld + stored_column,
    }
}

/// Position of an output element of a convolution from its tensor's first on.
fn output_at(conv: &Conv, space: &Space, g: u64, row: u64, column: u64) -> u64 {
    let pixels: u64 = space.output.iter().product();
    let (sample, channel) = (g / conv.groups, g % conv.groups * conv.k_per_group() + column);
    match conv.layout {
        Layout::Nchw => (sample * conv.k + channel) * pixels + row,
        Layout::Nhwc => (sample * pixels + row) * conv.k + channel,
    }
}

fn channel_and_tap(k: u64, space: &Space) -> (u64, [u64; 3]) {
    let taps: u64 = space.filter.iter().product();
    (k / taps, digits(k % taps, space.filter))
}

fn digits(index: u64, extent: [u64; 3]) -> [u64; 3] {
    [index / (extent[1] * extent[2]), index / extent[2] % extent[1], index % extent[2]]
}

fn flat(outer: u64, p: [u64; 3], extent: [u64; 3]) -> u64 {
    ((outer * extent[0] + p[0]) * extent[1] + p[1]) * extent[2] + p[2]
}
