//! Tensor maps of operands that are no matrices: windows of a filter over pixels, filters with reversed taps, parts of a strided gradient.
//!
//! A view as dimensions of memory (`tilewright_problem::view::Dimensions`) gives one of two maps. A *tiled* map has a box along
//! the contiguous digit and one more digit of rows or k. The other digits are coordinates of the copy. If rows run over pixels of
//! several image rows and samples, the map is in *im2col mode*. The window's origin walks over the pixels, and taps are offsets.

use tilewright_ir::affine::{Affine, Atom};
use tilewright_ir::{Im2col, Swizzle, TensorMap};
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{COL, Dimension, Dimensions, G, ROW};

/// Bytes of one row of the layout in shared memory.
pub(super) const ROW_BYTES: u32 = 128;
/// Least bytes of a row for weights that lanes convert: a k-tile of 128 weights of 4 bits.
pub(super) const RAW_ROW: u32 = 64;

/// Reason why rows that are at the same place as their neighbours are refused.
const REPEATED: &str = "its rows repeat in memory";

/// A tensor map, and the coordinates of copies through it.
pub(super) struct Walk {
    /// The map, its box a line of 128 bytes.
    pub map: TensorMap,
    /// Coordinates, and offsets in im2col mode, by (g, row, k) of the copy's first element.
    pub at: Vec<Affine>,
    /// k is the contiguous direction.
    pub k_contiguous: bool,
    /// Start of the map, in elements from the operand's first element.
    pub first: u64,
    /// The third dimension is the batch.
    pub batched: bool,
    /// The number of rows of a box divides this; 0: any number.
    pub lines: u64,
}

/// Derives the map for a tensor with tiles of `rows` by `k_tile`.
pub(super) fn walk(tensor: &Tensor, rows: u32, k_tile: u32) -> Result<Walk, String> {
    let Some(dims) = tensor.view.dims() else { return Err("its addresses are no positions along dimensions of memory".into()) };
    let of = Recogniser::new(tensor, &dims, [1, rows, k_tile])?;
    // Boxes of few lines are many copies: pixels walk better.
    let runs = match of.boxes() {
        Ok(walk) if walk.lines.is_multiple_of(64) => return Ok(walk),
        Ok(few) if few.lines.is_multiple_of(8) => return of.windows().or(Ok(few)),
        Ok(few) => format!("its rows are runs of {}, no multiple of 8", few.lines),
        Err(why) => why,
    };
    of.windows().map_err(|why| if runs == why { why } else { format!("{runs}; {why}") })
}

struct Recogniser<'a> {
    tensor: &'a Tensor,
    dims: &'a Dimensions,
    tile: [u32; 3],
    /// The contiguous dimension, its axis, and the other one.
    lead: usize,
    fast: usize,
    slow: usize,
}

impl<'a> Recogniser<'a> {
    fn new(tensor: &'a Tensor, dims: &'a Dimensions, tile: [u32; 3]) -> Result<Self, String> {
        let lowest =
            |axis: usize| move |&&(i, step): &&(usize, i64)| dims.digits[i].axis == axis && dims.digits[i].div == 1 && step == 1;
        let contiguous = |axis: usize| {
            let found = dims.dims.iter().position(|dim| dim.stride == 1 && dim.steps.iter().any(|s| lowest(axis)(&s)));
            found.map(|lead| (lead, axis))
        };
        let Some((lead, fast)) = contiguous(COL).or_else(|| contiguous(ROW)) else {
            return Err("neither rows nor k are contiguous".into());
        };
        let of = Recogniser { tensor, dims, tile, lead, fast, slow: ROW + COL - fast };
        let mut moving = dims.dims[lead].steps.iter().filter(|step| !lowest(fast)(step));
        if moving.any(|(i, step)| dims.digits[*i].axis != G && !of.goes_on(fast, (*i, *step))) {
            return Err("rows or taps also move along its contiguous dimension".into());
        }
        let row = i64::from(ROW_BYTES / tensor.scalar.bytes());
        let digit = dims.digits.iter().find(|digit| digit.axis == fast && digit.div == 1);
        if let Some(digit) = digit.filter(|digit| !digit.last && digit.extent % row != 0) {
            return Err(format!("runs of {} elements are no multiple of {row}, a row of 128 bytes", digit.extent));
        }
        Ok(of)
    }

    /// True if a higher digit of an axis goes on in the same dimension where runs of the axis' lowest digit end. Other digits of
    /// the axis lie between, as the halves of a gated product do.
    fn goes_on(&self, axis: usize, (i, step): (usize, i64)) -> bool {
        let digits = &self.dims.digits;
        let lowest = digits.iter().find(|digit| digit.axis == axis && digit.div == 1);
        digits[i].axis == axis && lowest.is_some_and(|lowest| digits[i].div > lowest.extent && step == lowest.extent)
    }

    fn lead(&self) -> &Dimension {
        &self.dims.dims[self.lead]
    }
    fn others(&self) -> impl Iterator<Item = &Dimension> {
        self.dims.dims.iter().enumerate().filter(|(i, _)| *i != self.lead).map(|(_, dim)| dim)
    }
    /// The digits of the slow axis in a dimension.
    fn pixels(&self, dim: &Dimension) -> Vec<(usize, i64)> {
        dim.steps.iter().copied().filter(|(i, _)| self.dims.digits[*i].axis == self.slow).collect()
    }
    /// A position as a form of (g, row, k).
    fn position(&self, start: i64, steps: &[(usize, i64)]) -> Affine {
        let sum = |form: Affine, (i, step): &(usize, i64)| form.plus(&self.dims.digits[*i].form(), *step);
        steps.iter().fold(Affine::constant(start), sum).simplified(&self.tensor.view.extent)
    }
    /// Values of a digit in tiles that may lie partly beyond the operand.
    fn values(&self, i: usize) -> i64 {
        let digit = &self.dims.digits[i];
        let (extent, tile) = (self.tensor.view.extent[digit.axis], u64::from(self.tile[digit.axis]));
        if digit.last { (extent.next_multiple_of(tile) as i64 + digit.div - 1) / digit.div } else { digit.extent }
    }
    /// Least and greatest sum of these steps.
    fn reach(&self, steps: &[(usize, i64)]) -> (i64, i64) {
        let ends = |(i, step): &(usize, i64)| step * (self.values(*i) - 1);
        steps.iter().map(ends).fold((0, 0), |(low, high), end| (low + end.min(0), high + end.max(0)))
    }

    /// Elements of k beyond the last arrive as zeros: where tiles end with k, or the last digit's positions beyond it do not exist.
    fn ends_with_k(&self) -> Result<(), String> {
        let k = self.tensor.view.extent[COL];
        let last = |(i, _): &&(usize, i64)| self.dims.digits[*i].axis == COL && self.dims.digits[*i].last;
        let outside = |dim: &Dimension| {
            let Some((i, step)) = dim.steps.iter().find(last) else { return false };
            let rest: Vec<_> = dim.steps.iter().copied().filter(|s| s.0 != *i).collect();
            let ((low, high), end) = (self.reach(&rest), step * self.dims.digits[*i].extent);
            dim.start + low + end >= dim.extent || dim.start + high + end < 0
        };
        if k.is_multiple_of(self.tile[COL].into()) || self.dims.dims.iter().any(outside) {
            return Ok(());
        }
        Err(format!("UNR{} does not divide k = {k}", self.tile[COL]))
    }

    fn map(&self, others: Vec<(i64, i64)>, im2col: Option<Im2col>, channels: i64) -> Result<(TensorMap, u64), String> {
        let scalar = self.tensor.scalar;
        let bytes = i64::from(scalar.bytes());
        let mut map = TensorMap {
            scalar,
            round_tf32: false,
            extent: vec![channels.unsigned_abs()],
            stride_bytes: Vec::new(),
            tile: vec![ROW_BYTES / scalar.bytes(), 1],
            swizzle: Swizzle::B128,
            im2col,
        };
        for (stride, extent) in others {
            // A single line has no neighbour; its stride is free.
            let stride = (stride * bytes).unsigned_abs();
            map.extent.push(extent.unsigned_abs());
            map.stride_bytes.push(if extent == 1 { stride.max(16).next_multiple_of(16) } else { stride });
        }
        suitable(&map)?;
        match u64::try_from(self.dims.base) {
            Ok(first) if (first * bytes.unsigned_abs()).is_multiple_of(16) => Ok((map, first)),
            _ => Err(format!(
                "it starts {} elements from the tensor's first, and copies start at a positive multiple of 16 bytes",
                self.dims.base
            )),
        }
    }

    /// Channels start at multiples of 16 bytes.
    fn aligned(&self, channel: &Affine) -> Result<(), String> {
        let (grain, axis) = (i64::from(16 / self.tensor.scalar.bytes()), Affine::axis(self.fast));
        // The contiguous digit itself is at a multiple of a row of 128 bytes where copies start.
        let contiguous = |atom: &Atom| match atom {
            Atom::Axis(axis) => *axis == self.fast,
            Atom::Digit { of, div, .. } => **of == axis && *div == 1,
        };
        let odd = channel.terms.iter().any(|(atom, step)| !contiguous(atom) && step % grain != 0);
        if odd || channel.constant % grain != 0 { Err("its groups do not start at multiples of 16 bytes".into()) } else { Ok(()) }
    }

    /// Boxes along one digit of the slow axis.
    fn boxes(&self) -> Result<Walk, String> {
        let digits = &self.dims.digits;
        let moved = |dim: &&Dimension| dim.steps.iter().any(|(i, _)| digits[*i].axis == self.slow && digits[*i].div == 1);
        let (side, lines) = match self.others().find(moved) {
            None if self.others().any(|dim| !self.pixels(dim).is_empty()) => return Err(REPEATED.into()),
            None => (None, 0),
            Some(dim) => match self.pixels(dim).as_slice() {
                [(i, 1), more @ ..] if more.iter().all(|step| self.goes_on(self.slow, *step)) => {
                    (Some(dim), if digits[*i].last { 0 } else { digits[*i].extent.unsigned_abs() })
                }
                _ => return Err("its rows of pixels are more than one digit of the slow axis".into()),
            },
        };
        self.ends_with_k()?;
        let rest = self.others().filter(|dim| side.is_none_or(|side| !std::ptr::eq(*dim, side)));
        let all: Vec<&Dimension> = side.into_iter().chain(rest).collect();
        let mut extents: Vec<(i64, i64)> = all.iter().map(|dim| (dim.stride, dim.extent)).collect();
        let mut at = vec![self.position(self.lead().start, &self.lead().steps)];
        if side.is_none() {
            extents.insert(0, (0, 1));
            at.push(Affine::axis(self.slow));
        }
        self.aligned(&at[0])?;
        at.extend(all.iter().map(|dim| self.position(dim.start, &dim.steps)));
        let (mut map, first) = self.map(extents, None, self.lead().extent)?;
        map.tile.resize(map.extent.len(), 1);
        Ok(Walk { map, at, k_contiguous: self.fast == COL, first, batched: false, lines })
    }

    /// Windows that walk over pixels.
    fn windows(&self) -> Result<Walk, String> {
        let digits = &self.dims.digits;
        let (mut spatial, mut groups, mut samples) = (Vec::new(), Vec::new(), None);
        for dim in self.others() {
            let alone = dim.steps.len() == 1 && dim.start == 0 && dim.steps[0].1 == 1;
            match self.pixels(dim).as_slice() {
                [(i, _)] if digits[*i].last && alone => samples = Some(dim),
                [] if dim.steps.iter().all(|(i, _)| digits[*i].axis == G) => groups.push(dim),
                [] | [_] => spatial.push(dim),
                _ => return Err("its pixels are more than one digit of the slow axis along a dimension".into()),
            }
        }
        // The walk takes every step of the slow axis. It goes to the next pixel, or from the last one of a dimension to the next
        // of another.
        let moves = |i: usize| self.others().any(|dim| self.pixels(dim).iter().any(|(moved, _)| *moved == i));
        if (0..digits.len()).any(|i| digits[i].axis == self.slow && digits[i].extent > 1 && !moves(i)) {
            return Err(REPEATED.into());
        }
        if !(1..=3).contains(&spatial.len()) {
            return Err(format!("its pixels have {} dimensions, and copies take 1 to 3", spatial.len()));
        }
        // Elements of k beyond the last arrive as zeros: channels, or samples, that do not exist.
        let lowest = digits.iter().find(|digit| digit.axis == self.fast && digit.div == 1);
        // The channels of the next group follow a group's channels.
        let ends = if self.fast == COL { lowest.is_none_or(|d| d.last) && groups.is_empty() } else { samples.is_some() };
        let k = self.tensor.view.extent[COL];
        if !(ends || k.is_multiple_of(self.tile[COL].into())) {
            return Err(format!("UNR{} does not divide k = {k}", self.tile[COL]));
        }
        let order = |dim: &&Dimension| self.pixels(dim).first().map_or(i64::MAX, |(i, _)| digits[*i].div);
        spatial.sort_by_key(order);
        let (mut channel, mut channels) = (self.position(self.lead().start, &self.lead().steps), self.lead().extent);
        // Samples beyond the last do not exist; without any, what is beyond the last pixel would be in a second one.
        let mut sample = Affine::default();
        let mut outer = (0, 1);
        if let Some(dim) = samples.or_else(|| groups.pop()) {
            (sample, outer) = (self.position(dim.start, &dim.steps), (dim.stride, dim.extent));
        }
        for dim in groups {
            channel = channel.plus(&self.position(dim.start, &dim.steps), dim.stride);
            channels += dim.stride * (dim.extent - 1);
        }
        self.aligned(&channel)?;
        let mut windows = Im2col { lower: Vec::new(), upper: Vec::new(), step: Vec::new() };
        let (mut at, mut offsets) = (vec![channel], Vec::new());
        for dim in &spatial {
            let pixels = self.pixels(dim);
            let taps: Vec<_> = dim.steps.iter().copied().filter(|step| !pixels.contains(step)).collect();
            let (low, high) = self.reach(&taps);
            let lower = dim.start + low;
            let (mut origin, mut step, mut values) = (Affine::constant(lower), 1, 1);
            if let [(i, distance)] = pixels[..] {
                let digit = digits[i];
                let mut form = digit.form();
                if digit.last && samples.is_none() {
                    form = Affine::axis(digit.axis).digit_of(digit.div, Some(digit.extent));
                    sample = sample.plus(&Affine::axis(digit.axis).digit_of(digit.div * digit.extent, None), 1);
                }
                origin = origin.plus(&form, distance);
                (step, values) = (distance, digit.extent);
            }
            let upper = lower + (values - 1) * step + 1 - dim.extent;
            let (least, most) = Im2col::corners(spatial.len());
            if [lower, upper].iter().any(|corner| !(least..=most).contains(corner)) {
                return Err(format!("window corners of {lower} and {upper} pixels exceed the range {least} to {most}"));
            }
            if !(1..=8).contains(&step) || high - low > Im2col::offsets(spatial.len()) {
                return Err(format!("a step of {step} (legal: 1 to 8), or offsets up to {}, are out of range", high - low));
            }
            windows.lower.push(lower as i32);
            windows.upper.push(upper as i32);
            windows.step.push(step as u32);
            at.push(origin);
            offsets.push(self.position(-low, &taps));
        }
        at.push(sample);
        at.extend(offsets);
        let others = spatial.iter().map(|dim| (dim.stride, dim.extent)).chain([outer]).collect();
        let (map, first) = self.map(others, Some(windows), channels)?;
        Ok(Walk { map, at, k_contiguous: self.fast == COL, first, batched: false, lines: 0 })
    }
}

/// Strides and extents that maps can have.
pub(super) fn suitable(map: &TensorMap) -> Result<(), String> {
    if map.extent.len() > 5 {
        return Err(format!("it has {} dimensions, and copies take 5", map.extent.len()));
    }
    if let Some(stride) = map.stride_bytes.iter().find(|s| **s % 16 != 0 || **s == 0 || **s >= 1 << 40) {
        return Err(format!("a stride of {stride} bytes is no multiple of 16 (below 2^40)"));
    }
    if map.extent.iter().any(|e| *e == 0 || *e > 1 << 31) {
        return Err(format!("one of the extents {:?} exceeds 2^31", map.extent));
    }
    Ok(())
}
