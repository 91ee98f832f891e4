//! Where a convolution's factors and results lie, from its definition: output pixel `p` reads input pixel
//! `p * stride + tap * dilation - pad`, and gradients flow back the same way.

use tilewright_problem::{Conv, Direction, Layout};

/// A convolution with three spatial dimensions always. Result elements are (g, row, column), each a sum of k products:
///
/// | direction | g | row | column | k |
/// |---|---|---|---|---|
/// | forward | (sample, group) | output pixel | output channel | (input channel, tap) |
/// | backward-data | (sample, group) | input pixel | input channel | (output channel, tap) |
/// | backward-weight | group | output channel | (input channel, tap) | (sample, output pixel) |
///
/// Channels are those of a group.
pub(super) struct Convolution<'a> {
    conv: &'a Conv,
    input: [u64; 3],
    filter: [u64; 3],
    output: [u64; 3],
    stride: [u64; 3],
    dilation: [u64; 3],
    pad: [u64; 3],
}

impl<'a> Convolution<'a> {
    pub fn new(conv: &'a Conv) -> Convolution<'a> {
        let three = |list: &[u64], fill: u64| {
            let mut out = [fill; 3];
            out[3 - list.len()..].copy_from_slice(list);
            out
        };
        Convolution {
            conv,
            input: three(&conv.input, 1),
            filter: three(&conv.filter, 1),
            output: three(&conv.output(), 1),
            stride: three(&conv.stride, 1),
            dilation: three(&conv.dilation, 1),
            pad: three(&conv.pad_begin, 0),
        }
    }

    /// Extents of g, row, column and k.
    pub fn extent(&self) -> [u64; 4] {
        let (conv, volume) = (self.conv, |e: [u64; 3]| e.iter().product::<u64>());
        let (c, k) = (conv.c_per_group(), conv.k_per_group());
        match conv.direction {
            Direction::Forward => [conv.n * conv.groups, volume(self.output), k, conv.depth()],
            Direction::BackwardData => [conv.n * conv.groups, volume(self.input), c, conv.depth()],
            Direction::BackwardWeight => [conv.groups, k, c * volume(self.filter), conv.depth()],
        }
    }

    /// Position of a result element.
    pub fn result(&self, g: u64, row: u64, column: u64) -> u64 {
        let (sample, group) = self.sample_and_group(g);
        match self.conv.direction {
            Direction::Forward => self.in_output(sample, group, column, digits(row, self.output)),
            Direction::BackwardData => self.in_input(sample, group, column, digits(row, self.input)),
            Direction::BackwardWeight => {
                let (channel, tap) = self.column(column);
                self.in_filter(group, row, channel, tap)
            }
        }
    }
    /// Position of a result element's bias.
    pub fn bias(&self, g: u64, column: u64) -> u64 {
        let channels = if self.conv.direction == Direction::Forward { self.conv.k_per_group() } else { self.conv.c_per_group() };
        g % self.conv.groups * channels + column
    }
    /// Position in A of a row's k-th term, where it exists.
    pub fn left(&self, g: u64, row: u64, k: u64) -> Option<u64> {
        let (sample, group) = self.sample_and_group(g);
        match self.conv.direction {
            Direction::Forward => {
                let (channel, tap) = self.channel_and_tap(k);
                Some(self.in_input(sample, group, channel, self.read(digits(row, self.output), tap)?))
            }
            Direction::BackwardData => {
                let (channel, tap) = self.channel_and_tap(k);
                Some(self.in_output(sample, group, channel, self.reader(digits(row, self.input), tap)?))
            }
            Direction::BackwardWeight => {
                let (sample, pixel) = self.sample_and_pixel(k);
                Some(self.in_output(sample, group, row, pixel))
            }
        }
    }
    /// Position in B of a column's k-th term, where it exists.
    pub fn right(&self, g: u64, column: u64, k: u64) -> Option<u64> {
        let (_, group) = self.sample_and_group(g);
        match self.conv.direction {
            Direction::Forward => {
                let (channel, tap) = self.channel_and_tap(k);
                Some(self.in_filter(group, column, channel, tap))
            }
            Direction::BackwardData => {
                let (channel, tap) = self.channel_and_tap(k);
                Some(self.in_filter(group, channel, column, tap))
            }
            Direction::BackwardWeight => {
                let ((sample, pixel), (channel, tap)) = (self.sample_and_pixel(k), self.column(column));
                Some(self.in_input(sample, group, channel, self.read(pixel, tap)?))
            }
        }
    }

    /// The input pixel that an output pixel reads through a tap.
    fn read(&self, pixel: [u64; 3], tap: [u64; 3]) -> Option<[u64; 3]> {
        let mut place = [0; 3];
        for d in 0..3 {
            place[d] = (pixel[d] * self.stride[d] + tap[d] * self.dilation[d]).checked_sub(self.pad[d])?;
            if place[d] >= self.input[d] {
                return None;
            }
        }
        Some(place)
    }
    /// The output pixel that reads an input pixel through a tap.
    fn reader(&self, place: [u64; 3], tap: [u64; 3]) -> Option<[u64; 3]> {
        let mut pixel = [0; 3];
        for d in 0..3 {
            let steps = (place[d] + self.pad[d]).checked_sub(tap[d] * self.dilation[d])?;
            pixel[d] = steps / self.stride[d];
            if steps % self.stride[d] != 0 || pixel[d] >= self.output[d] {
                return None;
            }
        }
        Some(pixel)
    }

    fn sample_and_group(&self, g: u64) -> (u64, u64) {
        (g / self.conv.groups, g % self.conv.groups)
    }
    fn channel_and_tap(&self, index: u64) -> (u64, [u64; 3]) {
        let taps: u64 = self.filter.iter().product();
        (index / taps, digits(index % taps, self.filter))
    }
    /// Input channel and tap of a filter gradient's column, which run as they lie in memory.
    fn column(&self, index: u64) -> (u64, [u64; 3]) {
        match self.conv.layout {
            Layout::Nchw => self.channel_and_tap(index),
            Layout::Nhwc => (index % self.conv.c_per_group(), digits(index / self.conv.c_per_group(), self.filter)),
        }
    }
    fn sample_and_pixel(&self, index: u64) -> (u64, [u64; 3]) {
        let pixels: u64 = self.output.iter().product();
        (index / pixels, digits(index % pixels, self.output))
    }

    fn in_input(&self, sample: u64, group: u64, channel: u64, p: [u64; 3]) -> u64 {
        self.in_image(sample, group * self.conv.c_per_group() + channel, self.conv.c, p, self.input)
    }
    fn in_output(&self, sample: u64, group: u64, channel: u64, p: [u64; 3]) -> u64 {
        self.in_image(sample, group * self.conv.k_per_group() + channel, self.conv.k, p, self.output)
    }
    fn in_filter(&self, group: u64, filter: u64, channel: u64, tap: [u64; 3]) -> u64 {
        self.in_image(group * self.conv.k_per_group() + filter, channel, self.conv.c_per_group(), tap, self.filter)
    }
    fn in_image(&self, outer: u64, channel: u64, channels: u64, p: [u64; 3], extent: [u64; 3]) -> u64 {
        let flat = |outer: u64| ((outer * extent[0] + p[0]) * extent[1] + p[1]) * extent[2] + p[2];
        match self.conv.layout {
            Layout::Nchw => flat(outer * channels + channel),
            Layout::Nhwc => flat(outer) * channels + channel,
        }
    }
}

fn digits(index: u64, extent: [u64; 3]) -> [u64; 3] {
    [index / (extent[1] * extent[2]), index / extent[2] % extent[1], index % extent[2]]
}
