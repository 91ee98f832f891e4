//! Convolutions as contractions. The same three tensors, with the windows of the filter over the input as a view, give all
//! directions:
//!
//! | direction | rows | columns | sum |
//! |---|---|---|---|
//! | forward | output pixels | output channels of a group | (input channel, filter taps) |
//! | backward-data | input pixels | input channels of a group | (output channel, filter taps) |
//! | backward-weight | output channels of a group | (input channel, filter taps) | (sample, output pixel) |
//!
//! Merged coordinates run in the order they lie in memory, so that vector access survives. Backward-data with a stride is a part for
//! each set of input pixels that the same taps reach ([`super::phases`]).

use super::form::{ConvForm, GroupForm, KOrder, Padding, Samples, added_channels, added_pixels, together};
use super::phases::{Axis, Phase, phases};
use super::{BUFFER_ALIGN, Parts, reduce_ops, retain_scaling};
use crate::contraction::{Contraction, EpilogueOp, LaunchExtents, Operand, PartOf, ResultSource, Tensor, Vector};
use crate::conv::{Conv, Direction, Layout};
use crate::epilogue::{Activation, Along};
use crate::error::{ProblemError, computed_in};
use crate::extent::Extents;
use crate::reduction::{Axes, Reduction};
use crate::view::{View, ViewBuilder};

/// Names of the spatial dimensions in the stages of a chain: input, output, filter; and of the phases within an input dimension.
const SPATIAL: [[&str; 4]; 3] = [["d", "do", "t", "phase d"], ["h", "ho", "r", "phase h"], ["w", "wo", "s", "phase w"]];

/// A convolution's chains, which directions share.
struct Chains<'a> {
    conv: &'a Conv,
    form: ConvForm,
    /// Of [`SPATIAL`], those that the convolution has.
    names: &'static [[&'static str; 4]],
    /// Dimensions that join the batch: phases.
    batch: Vec<(&'static str, u64)>,
    /// Groups of one product.
    together: u64,
    /// Channels of a tap that do not exist.
    padding: u64,
    /// Pixels after those of a plane that do not exist.
    plane_padding: u64,
}

pub(super) fn lower(conv: &Conv, form: ConvForm) -> Result<Parts, ProblemError> {
    form.check(conv)?;
    let together = if form.groups == GroupForm::Blocks { together(conv) } else { 1 };
    let (padding, plane_padding) = match form.padding {
        Padding::None => (0, 0),
        Padding::Channels => (added_channels(conv), 0),
        Padding::Planes => (0, added_pixels(conv)),
    };
    let chains = Chains { conv, form, names: &SPATIAL[3 - conv.dims()..], batch: Vec::new(), together, padding, plane_padding };
    let one = |lead| Parts { lead, rest: Vec::new(), operands: Vec::new() };
    match conv.direction {
        Direction::Forward => chains.forward().map(one),
        Direction::BackwardWeight => chains.backward_weight().map(one),
        Direction::BackwardData => {
            let mut parts = Vec::new();
            let all = phases(conv)?;
            let several = all.len() > 1 || all.iter().flatten().any(|axis| axis.phases > 1);
            for of in all {
                let batch = chains.names.iter().zip(&of).filter(|(_, axis)| axis.phases > 1);
                let batch = batch.map(|(name, axis)| (name[3], axis.phases)).collect();
                let chains = Chains { batch, ..chains };
                let part = chains.backward_data(&of)?;
                parts.push(if several { chains.of_whole(part, &of)? } else { part });
            }
            parts.sort_by(|x, y| y.flop().total_cmp(&x.flop()));
            let mut parts = parts.into_iter();
            let lead = parts.next().ok_or_else(|| ProblemError::value("input", 0, "has no pixels"))?;
            Ok(Parts { lead, rest: parts.collect(), operands: Vec::new() })
        }
    }
}

/// A dimension of a tensor in memory.
#[derive(Clone, Copy)]
struct Dim<'a> {
    name: &'a str,
    size: u64,
}

impl Chains<'_> {
    fn named(&self, which: usize) -> Vec<&'static str> {
        self.names.iter().map(|n| n[which]).collect()
    }

    /// A tensor in memory: an outer dimension, then channels and spatial dimensions as the layout has them.
    fn dense(&self, outer: Dim<'_>, channels: Dim<'_>, spatial: &[&str], sizes: &[u64]) -> ViewBuilder {
        let spatial = spatial.iter().zip(sizes).map(|(name, size)| Dim { name, size: *size });
        let dims: Vec<Dim<'_>> = match self.conv.layout {
            Layout::Nchw => [outer, channels].into_iter().chain(spatial).collect(),
            Layout::Nhwc => [outer].into_iter().chain(spatial).chain([channels]).collect(),
        };
        ViewBuilder::dense(&dims.iter().map(|dim| (dim.name, dim.size)).collect::<Vec<_>>())
    }
    /// Products of each sample, or of all together.
    fn products(&self) -> u64 {
        self.conv.groups / self.together
    }
    /// Input or its gradient, its channels apart by product.
    fn input(&self) -> ViewBuilder {
        let conv = self.conv;
        let (samples, channels) = (Dim { name: "n", size: conv.n }, Dim { name: "channels", size: conv.c });
        self.dense(samples, channels, &self.named(0), &conv.input)
            .unmerge("channels", &[("group", self.products()), ("c", conv.c_per_group() * self.together)])
    }
    /// Output or its gradient.
    fn output(&self) -> ViewBuilder {
        let conv = self.conv;
        let (samples, channels) = (Dim { name: "n", size: conv.n }, Dim { name: "channels", size: conv.k });
        self.dense(samples, channels, &self.named(1), &conv.output())
            .unmerge("channels", &[("group", self.products()), ("k", conv.k_per_group() * self.together)])
    }
    /// Filter or its gradient: between the channels of one group, where a product has several.
    fn filter(&self) -> ViewBuilder {
        let conv = self.conv;
        let (filters, channels) = (Dim { name: "filters", size: conv.k }, Dim { name: "c", size: conv.c_per_group() });
        let filter = self.dense(filters, channels, &self.named(2), &conv.filter);
        if self.together == 1 {
            return filter.unmerge("filters", &[("group", conv.groups), ("k", conv.k_per_group())]);
        }
        filter
            .unmerge("filters", &[("group", self.products()), ("block", self.together), ("k", conv.k_per_group())])
            .diagonal("block", ["block k", "block c"])
            .merge(&["block k", "k"], "k")
            .merge(&["block c", "c"], "c")
    }
    /// The input under the windows of the filter: by output pixel and tap.
    fn windows(&self) -> ViewBuilder {
        let (conv, output) = (self.conv, self.conv.output());
        let mut input = self.input();
        for (d, [name, out, tap, _]) in self.names.iter().enumerate() {
            // A distance that is never gone may be anything; 1 keeps coefficients small.
            let step = |distance: u64, count: u64| if count == 1 { 1 } else { distance as i64 };
            let windows = [
                (*out, output[d], step(conv.stride[d], output[d])),
                (*tap, conv.filter[d], step(conv.dilation[d], conv.filter[d])),
            ];
            input = input.pad(name, conv.pad_begin[d], conv.pad_end[d]).embed(name, &windows);
        }
        input
    }
    /// Channels and taps as one: in their order in memory, or that of a copy whose rows are channels.
    fn with_taps(&self, builder: ViewBuilder, channel: &str, upper: &str) -> ViewBuilder {
        let taps = self.named(2);
        let order = match (self.conv.layout, self.form.k) {
            (Layout::Nhwc, _) | (_, KOrder::TapsFirst) => [taps.as_slice(), &[channel]].concat(),
            (Layout::Nchw, KOrder::InMemory) => [&[channel], taps.as_slice()].concat(),
        };
        builder.pad(channel, 0, self.padding).merge(&order, upper)
    }

    /// (g, rows) of what has a row for each pixel; `which` names the pixels.
    fn pixels(&self, builder: ViewBuilder, which: usize) -> ViewBuilder {
        let pixels = self.named(which);
        match self.form.batch {
            Samples::Apart => self.batch(builder.merge(&pixels, "m"), &["n", "group"]),
            Samples::Merged => self.batch(builder.merge(&[&["n"], pixels.as_slice()].concat(), "m"), &["group"]),
        }
    }
    /// The same of the result, whose columns are these channels.
    fn results(&self, builder: ViewBuilder, which: usize, channel: &str) -> Result<View, ProblemError> {
        Ok(self.pixels(self.channels(builder, channel), which).view("g", "m", channel)?)
    }
    /// g of what all samples share.
    fn shared(&self, builder: ViewBuilder) -> ViewBuilder {
        match self.form.batch {
            Samples::Apart => self.batch(builder.broadcast("n", self.conv.n), &["n", "group"]),
            Samples::Merged => self.batch(builder, &["group"]),
        }
    }
    /// Merges group and channel into one dimension where groups are columns: a single group remains.
    fn channels(&self, builder: ViewBuilder, channel: &str) -> ViewBuilder {
        if self.form.groups != GroupForm::Columns {
            return builder;
        }
        builder.merge(&["group", channel], channel).broadcast("group", 1)
    }
    fn batch(&self, builder: ViewBuilder, dims: &[&str]) -> ViewBuilder {
        let mut all: Vec<&str> = dims.iter().copied().chain(self.batch.iter().map(|b| b.0)).collect();
        if self.form.groups == GroupForm::Columns {
            // Groups that are columns are neighbours within a batch entry.
            all.rotate_left(dims.len());
        }
        if let [one] = all[..] { builder.pass_through(one, "g") } else { builder.merge(&all, "g") }
    }
    /// A tensor that is the same for all phases.
    fn of_all_phases(&self, builder: ViewBuilder) -> ViewBuilder {
        self.batch.iter().fold(builder, |builder, (name, phases)| builder.broadcast(name, *phases))
    }

    fn forward(&self) -> Result<Contraction, ProblemError> {
        let a = self.pixels(self.with_taps(self.windows(), "c", "sum"), 1).view("g", "m", "sum")?;
        let b = self.shared(self.channels(self.with_taps(self.filter(), "c", "sum"), "k")).view("g", "k", "sum")?;
        let c = self.results(self.output(), 1, "k")?;
        self.contraction([a, b, c], self.conv.k, self.conv.k_per_group())
    }

    /// Output pixels of all samples as one, the sum of a filter's gradient.
    fn all_pixels(&self, builder: ViewBuilder) -> ViewBuilder {
        let pixels = self.named(1);
        match self.plane_padding {
            0 => builder.merge(&[&["n"], pixels.as_slice()].concat(), "sum"),
            added => builder.merge(&pixels, "plane").pad("plane", 0, added).merge(&["n", "plane"], "sum"),
        }
    }

    fn backward_weight(&self) -> Result<Contraction, ProblemError> {
        let a = self.channels(self.all_pixels(self.output()), "k").view("group", "k", "sum")?;
        let b = self.with_taps(self.all_pixels(self.windows()), "c", "column").view("group", "column", "sum")?;
        let c = self.channels(self.with_taps(self.filter(), "c", "column"), "k").view("group", "k", "column")?;
        self.contraction([a, b, c], 0, 0)
    }

    /// Of what has a dimension for each axis of the input: the pixels of one phase along each.
    fn of_phases(&self, mut input: ViewBuilder, of: &[Phase]) -> ViewBuilder {
        for (phase, [name, _, _, digit]) in of.iter().zip(self.names) {
            let last = phase.first + phase.step * (phase.rows as i64 - 1) + phase.phases as i64 - 1;
            // A distance that is never gone may be anything.
            let step = if phase.rows == 1 { 1 } else { phase.step };
            let mut places = vec![(*name, phase.rows, step)];
            places.extend((phase.phases > 1).then_some((*digit, phase.phases, 1)));
            let first = phase.first - phase.gaps.map_or(0, |gaps| i64::from(gaps.before));
            input = input.slice(name, first as u64, last as u64 + 1).pass_through(name, "place").embed("place", &places);
        }
        input
    }

    /// The same part, with where its rows are among those of the whole result in reductions.
    fn of_whole(&self, mut part: Contraction, of: &[Phase]) -> Result<Contraction, ProblemError> {
        let conv = self.conv;
        let pixels: u64 = conv.input.iter().product();
        let phases: u64 = self.batch.iter().map(|(_, phases)| phases).product();
        let samples = if self.form.batch == Samples::Apart { 0 } else { pixels };
        let mut dims: Vec<(&str, u64, i64)> = Vec::new();
        let mut stride = 1;
        for (name, size) in self.named(0).into_iter().zip(&conv.input).rev() {
            dims.push((name, *size, stride));
            stride *= *size as i64;
        }
        dims.push(("n", conv.n, samples as i64));
        dims.reverse();
        let numbers = self.of_phases(ViewBuilder::tensor(&dims), of).broadcast("group", self.products()).broadcast("one", 1);
        let rows = self.pixels(numbers, 0).view("g", "m", "one")?;
        let m = if self.form.batch == Samples::Apart { pixels } else { conv.n * pixels };
        let extents = Extents { g: part.g / phases.max(1), m, n: part.n };
        for op in &mut part.epilogue {
            if let EpilogueOp::Reduce(r) = op {
                r.part = Some(Box::new(PartOf { extents, phases, rows: rows.clone() }));
            }
        }
        Ok(part)
    }

    /// The input pixels of one phase along each axis. Where no tap reaches them the sum has no terms. The views of its operands
    /// are then the views of one tap, so that copies of other parts could serve it.
    fn backward_data(&self, of: &[Phase]) -> Result<Contraction, ProblemError> {
        let conv = self.conv;
        let empty = of.iter().any(|axis| axis.taps.is_none());
        let (mut gradient, mut filter) = (self.of_all_phases(self.output()), self.filter());
        let input = self.of_phases(self.input(), of);
        if empty {
            filter = self.of_all_phases(filter);
        }
        for (d, (phase, [name, out, tap, digit])) in of.iter().zip(self.names).enumerate() {
            let axis = Axis::new(conv, d);
            let rows = phase.rows as i64;
            let wide = phase.phases > 1;
            let taps = phase.taps.filter(|_| !empty);
            // Output pixel of row 0 under the last tap, and the distance of taps.
            let (low, tap_step, count) =
                taps.map_or((0, 1, 1), |t| (t.pixel - t.pixel_step * (t.count - 1), t.pixel_step, t.count));
            let high = low + (rows - 1) + tap_step * (count - 1);
            let before = (-low).max(0);
            let after = (high + 1 - axis.output).max(0);
            gradient = gradient
                .pad(out, before as u64, after as u64)
                .slice(out, (low + before) as u64, (high + before) as u64 + 1)
                .pass_through(out, "place")
                .embed("place", &[(*name, phase.rows, 1), (*tap, count as u64, tap_step)]);
            let Some(t) = taps else {
                filter = filter.slice(tap, 0, 1);
                continue;
            };
            let end = t.first + t.step * (count - 1) + phase.phases as i64;
            let mut places = vec![(*tap, count as u64, t.step)];
            places.extend(wide.then_some((*digit, phase.phases, 1)));
            filter = filter
                .pad(tap, 0, (end - axis.filter).max(0) as u64)
                .slice(tap, t.first as u64, end as u64)
                .pass_through(tap, "place")
                .embed("place", &places)
                .reverse(tap);
        }
        let a = self.pixels(self.with_taps(gradient, "k", "sum"), 0).view("g", "m", "sum")?;
        let b = self.shared(self.channels(self.with_taps(filter, "k", "sum"), "c")).view("g", "c", "sum")?;
        let c = self.results(input, 0, "c")?;
        let contraction = self.contraction([a, b, c], conv.c, conv.c_per_group())?;
        let gaps = of.last().and_then(|innermost| innermost.gaps);
        Ok(Contraction { k: if empty { 0 } else { contraction.k }, gaps, ..contraction })
    }

    /// The reductions over axes of the contraction: where samples and pixels are one, those are its rows.
    fn reductions(&self) -> Result<Vec<Reduction>, ProblemError> {
        let merged = self.form.batch == Samples::Merged && self.conv.direction != Direction::BackwardWeight;
        if merged && !self.conv.merges() {
            return Err(ProblemError::Unsupported {
                what: "a reduction over samples or pixels alone, where they are one axis of the product,".into(),
                remedy: "compute each sample in a call of its own".into(),
            });
        }
        let over = |r: &Reduction| Axes { g: r.over.g && !merged, ..r.over };
        Ok(self.conv.reductions.iter().map(|r| Reduction { over: over(r), ..*r }).collect())
    }

    /// Groups whose elements a sum has.
    fn merged_groups(&self) -> u64 {
        match self.conv.direction {
            // Filter gradients store the blocks of the diagonal: no other group has a part in these.
            Direction::BackwardWeight => 1,
            // Bulk copies bring the next group's channels in the place of those that do not exist.
            Direction::Forward | Direction::BackwardData => {
                let next = self.padding > 0 && self.conv.groups > self.together;
                self.together + u64::from(next)
            }
        }
    }

    /// `channels` of the result, over all groups and of a group, have a bias each.
    fn contraction(&self, [a, b, c]: [View; 3], channels: u64, per_group: u64) -> Result<Contraction, ProblemError> {
        let conv = self.conv;
        let len = |operand| conv.operand(operand).1;
        let tensor = |view: View, operand| Tensor {
            scalar: conv.dtype,
            factor: None,
            signs: None,
            view,
            align: BUFFER_ALIGN,
            len: len(operand),
        };
        let result = |view: View| Tensor {
            scalar: conv.out_dtype,
            factor: None,
            signs: None,
            view,
            align: BUFFER_ALIGN,
            len: len(Operand::C),
        };
        let bias = if conv.bias {
            let values = ViewBuilder::dense(&[("channels", channels)]);
            let values = values.unmerge("channels", &[("group", self.products()), ("column", per_group * self.together)]);
            let view = self
                .shared(self.channels(self.of_all_phases(values), "column"))
                .broadcast("one", 1)
                .view("g", "column", "one")?;
            let accumulator = crate::error::computed_in(conv.dtype, conv.out_dtype)[1];
            let scalar = Activation::bias_dtype(conv.activation, accumulator, conv.out_dtype);
            Some(Vector { scalar, along_n: true, view, len: channels })
        } else {
            None
        };
        let mut epilogue = EpilogueOp::list(Vec::new(), bias, conv.activation, conv.residual.then(|| result(c.clone())));
        for op in epilogue.iter_mut().filter(|_| conv.mask) {
            if let EpilogueOp::AddTensor(x) = op {
                *op = EpilogueOp::Mask(x.clone());
            }
        }
        let [accumulator, results] = computed_in(conv.dtype, conv.out_dtype);
        retain_scaling(&mut epilogue, results, conv.drop_c);
        epilogue.extend(reduce_ops(&self.reductions()?, results, conv.groups));
        let source = match (self.form.groups, conv.direction) {
            (GroupForm::Apart | GroupForm::Blocks, _) => ResultSource::Product,
            (GroupForm::Columns, Direction::BackwardWeight) => ResultSource::OwnOperands(Along::M),
            (GroupForm::Columns, _) => ResultSource::OwnOperands(Along::N),
        };
        Ok(Contraction {
            g: c.extent[0],
            m: c.extent[1],
            n: c.extent[2],
            k: a.extent[2],
            a: tensor(a, Operand::A),
            b: tensor(b, Operand::B),
            epilogue,
            c: result(c),
            accumulator,
            math: conv.math,
            launch: LaunchExtents::Fixed,
            source,
            block_scales: Vec::new(),
            operand_values: Vec::new(),
            gaps: None,
            merged_groups: self.merged_groups(),
            drop_c: conv.drop_c,
            second: None,
            transposed: false,
        })
    }
}
