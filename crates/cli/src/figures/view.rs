//! How a convolution reads its image: the window of one output pixel, and the row of operand A that it becomes.

use super::svg::{Anchor, Area, Drawing, Svg, hue, point};
use super::{ROOM, SMALL, letters, wrap};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::{Conv, Direction, Layout};

/// Side of a pixel, and most pixels that are drawn in a direction.
const PIXEL: f64 = 26.0;
const MOST: i64 = 10;
/// Most runs of elements that are drawn of a row.
const RUNS: usize = 12;
/// Height of the row that is drawn in its runs, with the text below it.
const GAP: f64 = 60.0;

/// A pixel of the image, which may be outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pixel {
    pub h: i64,
    pub w: i64,
}

/// Neighbours in a row of A that read one pixel; none for padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub pixel: Option<Pixel>,
    pub elements: usize,
}

/// The output pixel whose row is drawn: not at an edge, where the image is large enough.
fn drawn(conv: &Conv) -> Option<Pixel> {
    let out = conv.output();
    let [high, wide] = out.as_slice() else { return None };
    Some(Pixel { h: (high.saturating_sub(1)).min(2) as i64, w: (wide.saturating_sub(1)).min(3) as i64 })
}

/// The runs of the row of A that belongs to an output pixel of the first sample and group, as the contraction's view has them.
pub fn runs(conv: &Conv, c: &Contraction, row: i64) -> Vec<Run> {
    let (wide, channels) = (conv.input[1] as i64, conv.c as i64);
    let pixel = |offset: i64| match conv.layout {
        Layout::Nhwc => Pixel { h: offset / channels / wide, w: offset / channels % wide },
        Layout::Nchw => Pixel { h: offset / wide % conv.input[0] as i64, w: offset % wide },
    };
    let mut runs: Vec<Run> = Vec::new();
    for column in 0..c.k as i64 {
        let at = c.a.view.access.at([0, row, column]).map(pixel);
        match runs.last_mut().filter(|run| run.pixel == at) {
            Some(run) => run.elements += 1,
            None => runs.push(Run { pixel: at, elements: 1 }),
        }
    }
    runs
}

/// Draws window and row of a forward convolution in two dimensions. Gives the drawing and its height; of others nothing.
pub fn draw(conv: &Conv, c: &Contraction) -> Option<Drawing> {
    let output = drawn(conv).filter(|_| conv.direction == Direction::Forward)?;
    let row = output.h * conv.output()[1] as i64 + output.w;
    let mut svg = Svg::default();
    let (before, after) = (&conv.pad_begin, &conv.pad_end);
    let sides = [0, 1].map(|d: usize| (conv.input[d] + before[d] + after[d]) as i64);
    let shown = sides.map(|side| side.min(MOST));
    let [high, wide] = shown.map(|side| side as f64 * PIXEL);
    let top = 30.0;
    svg.text(point(0.0, 6.0), 13.0, Anchor::Start, "h2", "Input image with its padding");
    svg.rect(0.0, top, wide, high, "soft");
    // Of the window: which line of the filter reads a line of the image.
    let first = [0, 1].map(|d: usize| [output.h, output.w][d] * conv.stride[d] as i64);
    let tap = |at: i64, d: usize| {
        let apart = at - first[d];
        let step = conv.dilation[d] as i64;
        (apart >= 0 && apart % step == 0 && apart / step < conv.filter[d] as i64).then_some(apart / step)
    };
    for (h, w) in (0..shown[0]).flat_map(|h| (0..shown[1]).map(move |w| (h, w))) {
        let (x, y) = (w as f64 * PIXEL, top + h as f64 * PIXEL);
        let pixel = Pixel { h: h - before[0] as i64, w: w - before[1] as i64 };
        let inside = (0..conv.input[0] as i64).contains(&pixel.h) && (0..conv.input[1] as i64).contains(&pixel.w);
        if inside {
            svg.rect(x + 0.5, y + 0.5, PIXEL - 1.0, PIXEL - 1.0, "cell");
        }
        if let (Some(r), Some(_)) = (tap(h, 0), tap(w, 1)) {
            svg.fill(x + 1.0, y + 1.0, PIXEL - 2.0, PIXEL - 2.0, hue(r as usize), if inside { 0.9 } else { 0.35 });
            if inside && pixel.h < 10 && pixel.w < 10 {
                let name = format!("{},{}", pixel.h, pixel.w);
                svg.text(point(x + PIXEL / 2.0, y + PIXEL / 2.0 + 4.2), SMALL, Anchor::Middle, "onhue", &name);
            }
        }
    }
    svg.rect(0.0, top, wide, high, "frame");
    let left = wide + 44.0;
    let area = Area { x: left, y: top, w: ROOM - left, h: high };
    matrix(&mut svg, area, row, c, &runs(conv, c, row), before[0] as i64 + first[0]);
    let mut y = top + high.max(120.0) + 24.0;
    let layout = if conv.layout == Layout::Nhwc { "channels last" } else { "channels first" };
    let lines = [
        format!("Output pixel ({}, {}) is row {row} of A, which has {} rows and {} columns.", output.h, output.w, c.m, c.k),
        format!("A box of the row is a run of elements of one input pixel h,w; the tensor is {layout}."),
        "Grey: padding, which reads as zero. A colour is a line of the filter.".to_string(),
    ];
    for line in lines.iter().flat_map(|text| wrap(text, letters(ROOM, SMALL))) {
        svg.text(point(0.0, y), SMALL, Anchor::Start, "", &line);
        y += 17.0;
    }
    Some(Drawing { svg, height: y - 8.0 })
}

/// Operand A as lines, one of them in its runs.
fn matrix(svg: &mut Svg, area: Area, row: i64, c: &Contraction, runs: &[Run], window: i64) {
    let Area { x, y: top, w: wide, h: high } = area;
    svg.text(point(x, 6.0), 13.0, Anchor::Start, "h2", "Operand A: one row per output pixel");
    svg.rect(x, top, wide, high.max(120.0), "soft");
    let lines = ((high.max(120.0) - GAP) / 12.0) as i64;
    for line in 0..lines {
        let y = top + line as f64 * 12.0 + if line >= lines / 2 { GAP } else { 0.0 };
        svg.line(point(x, y), point(x + wide, y), "rule");
    }
    let at = top + (lines / 2) as f64 * 12.0;
    let shown = &runs[..runs.len().min(RUNS)];
    let more = if shown.len() < runs.len() { 20.0 } else { 0.0 };
    let all: usize = shown.iter().map(|run| run.elements).sum();
    let mut from = x;
    // Lines of the image that the window reads have the colours of the filter's lines.
    let first = shown.iter().filter_map(|run| run.pixel).map(|pixel| pixel.h).min().unwrap_or(window);
    for run in shown {
        let part = (wide - more) * run.elements as f64 / all.max(1) as f64;
        match run.pixel {
            Some(pixel) => {
                svg.fill(from + 0.5, at + 4.0, part - 1.0, 26.0, hue((pixel.h - first) as usize), 0.9);
                let name = format!("{},{}", pixel.h, pixel.w);
                if name.len() <= letters(part, SMALL) {
                    svg.text(point(from + part / 2.0, at + 21.2), SMALL, Anchor::Middle, "onhue", &name);
                }
            }
            None => svg.fill(from + 0.5, at + 4.0, part - 1.0, 26.0, "#8893a0", 0.35),
        }
        from += part;
    }
    if more > 0.0 {
        svg.text(point(from + 4.0, at + 21.0), 13.0, Anchor::Start, "dim", "…");
    }
    svg.rect(x, top, wide, high.max(120.0), "frame");
    let elements = shown.first().map_or(0, |run| run.elements);
    let text = format!("row {row}: {} runs, the first of {elements} elements; k = {}", runs.len(), c.k);
    svg.text(point(x + 6.0, at + 48.0), SMALL, Anchor::Start, "", &text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::Scalar;
    use tilewright_problem::Problem;
    use tilewright_problem::lower::{ConvForm, lower};

    /// The row of an output pixel reads the window's pixels, in the order of the layout.
    #[test]
    fn a_row_is_the_window_of_its_pixel() {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            let conv = Conv::new(Scalar::F32, 1, 8, 8, &[8, 8], &[3, 3]).pad(&[1, 1], &[1, 1]).layout(layout);
            let conv = conv.build().expect("a convolution");
            let parts = lower(&Problem::from(conv.clone()), ConvForm::PER_SAMPLE).expect("it lowers");
            let found = runs(&conv, &parts.lead, 2 * 8 + 3);
            let window: Vec<Pixel> = (1..4).flat_map(|h| (2..5).map(move |w| Pixel { h, w })).collect();
            let pixels: Vec<Pixel> = found.iter().filter_map(|run| run.pixel).collect();
            match layout {
                Layout::Nhwc => assert_eq!((pixels, found[0].elements), (window, 8)),
                Layout::Nchw => assert_eq!((&pixels[..9], pixels.len()), (&window[..], 72)),
            }
            let corner = runs(&conv, &parts.lead, 0);
            assert!(corner[0].pixel.is_none(), "the first tap of a corner is padding");
        }
    }
}
