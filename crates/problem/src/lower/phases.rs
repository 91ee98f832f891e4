//! Which taps of the filter reach which pixels of the input, along one axis.
//!
//! Output pixel `p` reads input pixel `h` through tap `r` where `h + pad = stride * p + dilation * r`. So the taps that reach `h` follow
//! from its phase `h mod stride`: they form an arithmetic sequence of step `stride / gcd(stride, dilation)`, and each further one is
//! `dilation / gcd` output pixels further back. Phases without a tap get no gradient. Without dilation the first tap grows by 1 from one
//! phase to the next, so neighbouring phases with as many rows and taps are one contraction, of which the phase is a digit of the batch.

use crate::conv::Conv;
use crate::error::ProblemError;

/// Most parts of a problem: each is a kernel.
const MOST: usize = 256;

/// Neighbouring phases of one axis: input pixels `first + stride * row + phase` for `phase` of `0..phases`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// First pixel.
    pub first: i64,
    /// How many phases.
    pub phases: u64,
    /// Pixels of each.
    pub rows: u64,
    /// Taps that reach them; `None` where none does.
    pub taps: Option<Taps>,
}

/// Taps `first + phase + step * i` for `i` of `0..count`; the i-th reads output pixel `pixel - pixel_step * i + row`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taps {
    pub first: i64,
    pub step: i64,
    pub count: i64,
    pub pixel: i64,
    pub pixel_step: i64,
}

/// Sizes and distances along one axis.
pub(super) struct Axis {
    pub input: i64,
    pub filter: i64,
    pub output: i64,
    pub stride: i64,
    dilation: i64,
    pad: i64,
}

impl Axis {
    pub fn new(conv: &Conv, d: usize) -> Axis {
        let of = |value: u64| value as i64;
        let (output, filter) = (conv.output()[d], conv.filter[d]);
        Axis {
            input: of(conv.input[d]),
            filter: of(filter),
            output: of(output),
            // Distances that are never gone.
            stride: if output == 1 {
                of(conv.stride[d]).min(of(conv.input[d] + conv.pad_begin[d] + conv.pad_end[d]))
            } else {
                of(conv.stride[d])
            },
            dilation: if filter == 1 { 1 } else { of(conv.dilation[d]) },
            pad: of(conv.pad_begin[d]),
        }
    }

    /// The taps of a pixel's phase.
    fn taps(&self, pixel: i64) -> Option<Taps> {
        let (padded, g) = (pixel + self.pad, gcd(self.stride, self.dilation));
        let (step, pixel_step) = (self.stride / g, self.dilation / g);
        let first = (0..step.min(self.filter)).find(|r| (padded - r * self.dilation).rem_euclid(self.stride) == 0)?;
        let count = (self.filter - 1 - first) / step + 1;
        Some(Taps { first, step, count, pixel: (padded - first * self.dilation) / self.stride, pixel_step })
    }

    /// The phases, neighbours together where they are alike.
    fn phases(&self) -> Result<Vec<Phase>, ProblemError> {
        let all = self.stride.min(self.input);
        let starts: Vec<i64> = if self.dilation == 1 {
            // Where the first tap starts over, where there are no more taps, or fewer, and where the last row is missing.
            let tap = |r: i64| (r - self.pad).rem_euclid(self.stride);
            let mut starts = vec![0, tap(0), tap(self.filter), self.input % self.stride];
            starts.retain(|s| *s < all);
            starts.sort_unstable();
            starts.dedup();
            starts
        } else if all as u64 > MOST as u64 {
            return Err(too_many(all as usize));
        } else {
            (0..all).collect()
        };
        let ends = starts.iter().skip(1).copied().chain([all]);
        Ok(starts
            .iter()
            .zip(ends)
            .map(|(&first, end)| Phase {
                first,
                phases: (end - first) as u64,
                rows: ((self.input - 1 - first) / self.stride + 1) as u64,
                taps: self.taps(first),
            })
            .collect())
    }
}

/// Every combination of the axes' phases.
pub(super) fn phases(conv: &Conv) -> Result<Vec<Vec<Phase>>, ProblemError> {
    let mut all: Vec<Vec<Phase>> = vec![Vec::new()];
    for d in 0..conv.dims() {
        let axis = Axis::new(conv, d).phases()?;
        all = all.iter().flat_map(|of| axis.iter().map(|phase| [of.as_slice(), &[*phase]].concat())).collect();
        if all.len() > MOST {
            return Err(too_many(all.len()));
        }
    }
    Ok(all)
}

fn too_many(parts: usize) -> ProblemError {
    ProblemError::Unsupported {
        what: format!("an input gradient in {parts} or more parts, one for each phase of stride and dilation,"),
        remedy: format!("at most {MOST} are; use a smaller stride, or a dilation of 1 beside a large stride"),
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
