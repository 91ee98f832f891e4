//! Which taps of the filter reach which pixels of the input, along one axis.
//!
//! Output pixel `p` reads input pixel `h` through tap `r` where `h + pad = stride * p + dilation * r`. So the taps that reach `h`
//! follow from its phase `h mod stride`. They form an arithmetic sequence of step `stride / gcd(stride, dilation)`. Each further
//! tap is `dilation / gcd` output pixels further back. Phases without a tap get no gradient. Without dilation the first tap grows
//! by 1 from one phase to the next. Neighbouring phases with as many rows and taps therefore form one contraction, with the phase
//! as a digit of the batch. Where no tap reaches along one axis, all pixels of the other axes are rows of one part. Pixels of
//! planes (NCHW) are contiguous. If one phase of an image row has taps, that phase's store also writes the zeros of the row's
//! pixels without taps.

use crate::contraction::Gaps;
use crate::conv::{Conv, Layout};
use crate::error::ProblemError;

/// Most parts of a problem: each is a kernel.
const MOST: usize = 256;

/// Most neighbours that leave together.
const MOST_TOGETHER: i64 = 8;

/// Neighbouring phases of one axis: input pixels `first + step * row + phase` for `phase` of `0..phases`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// First pixel.
    pub first: i64,
    /// Pixels from one row to the next.
    pub step: i64,
    /// How many phases.
    pub phases: u64,
    /// Pixels of each.
    pub rows: u64,
    /// Taps that reach them; `None` where none does.
    pub taps: Option<Taps>,
    /// The other phases of the axis, which no tap reaches, where their pixels leave with these.
    pub gaps: Option<Gaps>,
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
    stride: i64,
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

    /// All pixels as rows.
    const fn whole(&self) -> Phase {
        Phase { first: 0, step: 1, phases: 1, rows: self.input as u64, taps: None, gaps: None }
    }

    /// The one phase with taps, with the pixels of all others between its own.
    fn with_gaps(&self, reached: &[Phase]) -> Option<Phase> {
        let [one] = reached else { return None };
        let whole = one.step > 1 && one.step <= MOST_TOGETHER && self.input % one.step == 0;
        let gaps = Gaps { of: u32::try_from(one.step).ok()?, before: u32::try_from(one.first).ok()? };
        (one.phases == 1 && whole).then_some(Phase { gaps: Some(gaps), ..*one })
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
                step: self.stride,
                phases: (end - first) as u64,
                rows: ((self.input - 1 - first) / self.stride + 1) as u64,
                taps: self.taps(first),
                gaps: None,
            })
            .collect())
    }
}

/// Every combination of the axes' phases, those with a tap along each axis first. In a combination without taps, the axes after the first
/// axis without a tap are not split into phases.
pub(super) fn phases(conv: &Conv) -> Result<Vec<Vec<Phase>>, ProblemError> {
    let axes: Vec<Axis> = (0..conv.dims()).map(|d| Axis::new(conv, d)).collect();
    let mut all: Vec<Vec<Phase>> = vec![Vec::new()];
    let mut empty = Vec::new();
    for (d, axis) in axes.iter().enumerate() {
        let (mut reached, mut missed) = axis.phases()?.into_iter().partition::<Vec<_>, _>(|phase| phase.taps.is_some());
        let lines = conv.layout == Layout::Nchw && d + 1 == axes.len() && !conv.reduces_result();
        if let Some(one) = axis.with_gaps(&reached).filter(|_| lines) {
            (reached, missed) = (vec![one], Vec::new());
        }
        let whole: Vec<Phase> = axes[d + 1..].iter().map(Axis::whole).collect();
        let with = |phases: &[Phase], tail: &[Phase]| -> Vec<Vec<Phase>> {
            all.iter().flat_map(|of| phases.iter().map(|phase| [of.as_slice(), &[*phase], tail].concat())).collect()
        };
        empty.extend(with(&missed, &whole));
        all = with(&reached, &[]);
        if all.len() + empty.len() > MOST {
            return Err(too_many(all.len() + empty.len()));
        }
    }
    all.extend(empty);
    Ok(all)
}

fn too_many(parts: usize) -> ProblemError {
    ProblemError::Unsupported {
        what: format!("an input gradient with {parts} or more phases of stride and dilation"),
        remedy: format!("at most {MOST} are possible; use a smaller stride, or a dilation of 1 with a large stride"),
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
