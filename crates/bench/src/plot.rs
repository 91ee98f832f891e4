//! Plots of records as inline SVG: speed ratio per case, and the roofline. Colours are the page's classes.

use crate::record::{Record, Roof};
use std::fmt::Write;

/// Text for markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Class of the colour of the n-th name.
pub fn hue(n: usize) -> String {
    format!("h{}", n % 6)
}

/// Height of a row of the ratio plot, in pixels.
const ROW: f64 = 18.0;
/// Width of both plots.
const WIDTH: f64 = 980.0;
/// Where the case's names end.
const LEFT: f64 = 330.0;
/// Where the plotted area ends.
const RIGHT: f64 = 910.0;

/// A logarithmic axis between two pixels.
pub(crate) struct Axis {
    pub low: f64,
    pub high: f64,
    pub from: f64,
    pub to: f64,
}

impl Axis {
    pub fn at(&self, value: f64) -> f64 {
        let share = (value.max(1e-12) / self.low).ln() / (self.high / self.low).ln();
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }
    /// 1, 2, 5 times powers of ten within the axis, so many pixels apart at least.
    fn ticks(&self, apart: f64) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        // Powers of ten first: where there is no room for all, they stay.
        let powers = (first..=last).map(|e| 10f64.powi(e));
        let between = (first..=last).flat_map(|e| [5.0, 2.0].map(|m| m * 10f64.powi(e)));
        self.with_room(powers.chain(between), apart)
    }
    /// Those of the values that lie within the axis and so many pixels from all before them, in ascending order.
    fn with_room(&self, values: impl Iterator<Item = f64>, apart: f64) -> Vec<f64> {
        let mut kept: Vec<f64> = Vec::new();
        for value in values.filter(|v| *v >= self.low * 0.999 && *v <= self.high * 1.001) {
            if kept.iter().all(|other| (self.at(*other) - self.at(value)).abs() >= apart) {
                kept.push(value);
            }
        }
        kept.sort_by(f64::total_cmp);
        kept
    }
}

/// A number without needless digits.
pub(crate) fn plain(value: f64) -> String {
    let digits = match value {
        v if v >= 10.0 => 0,
        v if v >= 1.0 => 2,
        // Two that count.
        v => (1.0 - v.max(1e-9).log10().floor()) as usize,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// One row per case: how many times as long each library takes as the first side. Right of 1 the first side is faster.
pub fn ratios(records: &[&Record], names: &[&str]) -> String {
    let found = |r: &Record| (1..r.sides.len()).filter_map(|n| r.ratio(n)).collect::<Vec<_>>();
    let all: Vec<f64> = records.iter().flat_map(|r| found(r)).collect();
    let reach = all.iter().fold(1.25f64, |most, r| most.max(*r).max(1.0 / r));
    let (top, bottom) = (34.0, 34.0 + ROW * records.len() as f64);
    let axis = Axis { low: 1.0 / (reach * 1.1), high: reach * 1.1, from: LEFT, to: RIGHT };
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<svg role=\"img\" aria-label=\"time of each library over ours, per case\" viewBox=\"0 0 {WIDTH} {}\">",
        bottom + 34.0
    );
    for tick in ratio_ticks(&axis) {
        let x = axis.at(tick);
        let class = if tick == 1.0 { "one" } else { "grid" };
        let _ = writeln!(out, "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>");
        let _ = writeln!(out, "<text class=\"dim mid\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>", bottom + 15.0, plain(tick));
    }
    let middle = axis.at(1.0);
    let _ = writeln!(out, "<text class=\"dim end\" x=\"{:.1}\" y=\"18\">library is faster \u{2190}</text>", middle - 8.0);
    let _ = writeln!(out, "<text class=\"dim\" x=\"{:.1}\" y=\"18\">\u{2192} tilewright is faster</text>", middle + 8.0);
    let _ = writeln!(out, "<text class=\"dim\" x=\"{:.1}\" y=\"18\">least</text>", RIGHT + 12.0);
    for (row, record) in records.iter().enumerate() {
        let y = top + ROW * (row as f64 + 0.5);
        let name = escape(&record.case);
        let _ = writeln!(
            out,
            "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 10.0,
            y + 4.0,
            escape(&shortened(&record.case, 46))
        );
        let mut least = None::<f64>;
        for (n, side) in record.sides.iter().enumerate().skip(1) {
            let Some(ratio) = record.ratio(n) else { continue };
            least = Some(least.map_or(ratio, |l| l.min(ratio)));
            let (x, hue) = (axis.at(ratio), hue(number(names, &side.name)));
            let _ = writeln!(
                out,
                "<g class=\"{hue}\"><line class=\"stem\" x1=\"{middle:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{name}: {} takes {ratio:.3} times as long</title></circle></g>",
                escape(&side.name)
            );
        }
        let words = least.map_or_else(|| "no pair".to_string(), |l| format!("{l:.2}"));
        let _ = writeln!(out, "<text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\">{words}</text>", RIGHT + 12.0, y + 4.0);
    }
    out.push_str("</svg>\n");
    out
}

/// Ticks of the ratio plot: 1 always, the others where there is room for their numbers.
pub(crate) fn ratio_ticks(axis: &Axis) -> Vec<f64> {
    const STEPS: [f64; 18] = [1.0, 2.0, 0.5, 1.5, 0.67, 1.25, 0.8, 1.1, 0.9, 5.0, 0.2, 10.0, 0.1, 3.0, 4.0, 0.25, 8.0, 20.0];
    axis.with_room(STEPS.into_iter(), 34.0)
}

/// A time in the roofline.
pub struct Point {
    /// The case, and whose time it is.
    pub title: String,
    /// Operations per byte that must move.
    pub intensity: f64,
    /// Operations per second, in 10^12.
    pub tflops: f64,
    /// Which colour and mark it has: 0 is ours.
    pub number: usize,
}

fn points(records: &[&Record], names: &[&str]) -> Vec<Point> {
    let mut points = Vec::new();
    for record in records {
        for side in record.sides.iter().filter(|s| s.valid_us().is_some()) {
            if let Some(tflops) = record.tflops(side).filter(|t| *t > 0.0) {
                let title = format!("{}: {}", record.case, side.name);
                let (intensity, number) = (record.flop / record.bytes.max(1.0), number(names, &side.name));
                points.push(Point { title, intensity, tflops, number });
            }
        }
    }
    points
}

/// Left and lower edge of the roofline's area, in pixels.
const CORNER: (f64, f64) = (70.0, 430.0);

/// The roofline of every side of every case.
pub fn record_roofline(records: &[&Record], names: &[&str]) -> String {
    let roofs: Vec<(&str, Roof)> = records.iter().filter_map(|r| Some((r.dtype.as_str(), r.roof?))).collect();
    roofline(&points(records, names), &roofs)
}

/// Operations per second over operations per byte, below what the device can do at most: its roofs by what they are of.
pub fn roofline(points: &[Point], all_roofs: &[(&str, Roof)]) -> String {
    if points.is_empty() {
        return "<p class=\"dim\">No case has a valid time.</p>\n".into();
    }
    let mut roofs: Vec<(&str, Roof)> = Vec::new();
    for (of, roof) in all_roofs {
        if !roofs.iter().any(|(_, known)| known == roof) {
            roofs.push((of, *roof));
        }
    }
    let axis = |of: &dyn Fn(&Point) -> f64, roofs: &mut dyn Iterator<Item = f64>, from: f64, to: f64| Axis {
        low: points.iter().map(of).fold(f64::INFINITY, f64::min) / 1.6,
        high: points.iter().map(of).chain(roofs).fold(0.0, f64::max) * 1.6,
        from,
        to,
    };
    // The corner of every roof is in the picture.
    let x = axis(&|p| p.intensity, &mut roofs.iter().map(|(_, r)| r.corner()), CORNER.0, RIGHT);
    let y = axis(&|p| p.tflops, &mut roofs.iter().map(|(_, r)| r.tflops), CORNER.1, 20.0);
    let axes = Axes { x, y };
    let mut out = String::new();
    let _ = writeln!(out, "<svg role=\"img\" aria-label=\"roofline\" viewBox=\"0 0 {WIDTH} 480\">");
    axes.grid(&mut out);
    for (dtype, roof) in &roofs {
        axes.draw_roof(&mut out, dtype, roof);
    }
    for point in points {
        axes.draw_point(&mut out, point);
    }
    out.push_str("</svg>\n");
    out
}

/// The axes of the roofline: operations per byte, and operations per second.
struct Axes {
    x: Axis,
    y: Axis,
}

impl Axes {
    /// Lines and numbers of both axes, and what they count.
    fn grid(&self, out: &mut String) {
        let Axes { x, y } = self;
        let (left, bottom) = CORNER;
        for tick in x.ticks(34.0) {
            let at = x.at(tick);
            let _ = writeln!(out, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"20\" y2=\"{bottom}\"/>");
            let _ = writeln!(out, "<text class=\"dim mid\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>", bottom + 16.0, plain(tick));
        }
        for tick in y.ticks(14.0) {
            let at = y.at(tick);
            let _ = writeln!(out, "<line class=\"grid\" x1=\"{left}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
            let _ = writeln!(out, "<text class=\"dim end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>", left - 8.0, at + 4.0, plain(tick));
        }
        let middle = (left + RIGHT) / 2.0;
        let _ = writeln!(out, "<text class=\"dim mid\" x=\"{middle:.1}\" y=\"470\">operations per byte that must move</text>");
        let _ = writeln!(out, "<text class=\"dim\" x=\"{:.1}\" y=\"14\">TFLOP/s</text>", left - 50.0);
    }

    fn draw_roof(&self, out: &mut String, dtype: &str, roof: &Roof) {
        let Axes { x, y } = self;
        let slope = |intensity: f64| (intensity * roof.dram_gbs * 1e-3).min(roof.tflops);
        // Where the slope enters the picture from below or from the left.
        let start = x.low.max(y.low * 1e3 / roof.dram_gbs);
        let corners = [(start, slope(start)), (roof.corner(), roof.tflops), (x.high, roof.tflops)];
        let corners = corners.map(|(intensity, tflops)| format!("{:.1},{:.1}", x.at(intensity), y.at(tflops)));
        let _ = writeln!(out, "<polyline class=\"roof\" points=\"{}\"/>", corners.join(" "));
        let _ = writeln!(
            out,
            "<text class=\"dim end\" x=\"{:.1}\" y=\"{:.1}\">{}: {} TFLOP/s, {} GB/s</text>",
            RIGHT - 4.0,
            y.at(roof.tflops) - 6.0,
            escape(dtype),
            plain(roof.tflops),
            plain(roof.dram_gbs)
        );
    }

    /// A circle for ours, a square for the first library, triangles for the others.
    fn draw_point(&self, out: &mut String, point: &Point) {
        let Axes { x, y } = self;
        let Point { title, intensity, tflops, number: n } = point;
        let (cx, cy) = (x.at(*intensity), y.at(*tflops));
        let title = format!("<title>{} {} TFLOP/s at {intensity:.0} operations per byte</title>", escape(title), plain(*tflops));
        let mark = match n {
            0 => format!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4.5\">{title}</circle>"),
            1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7.5\" height=\"7.5\">{title}</rect>", cx - 3.75, cy - 3.75),
            _ => {
                let (top, low) = (cy - 5.0, cy + 3.6);
                format!(
                    "<polygon points=\"{cx:.1},{top:.1} {:.1},{low:.1} {:.1},{low:.1}\">{title}</polygon>",
                    cx - 4.6,
                    cx + 4.6
                )
            }
        };
        let _ = writeln!(out, "<g class=\"{}\">{mark}</g>", hue(*n));
    }
}

/// Place of a name among the names.
fn number(names: &[&str], name: &str) -> usize {
    names.iter().position(|n| *n == name).unwrap_or(0)
}

/// At most so many letters, the end of long texts cut.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most - 1).chain(['\u{2026}']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_logarithmic_and_keep_their_bounds() {
        let axis = Axis { low: 0.1, high: 10.0, from: 100.0, to: 200.0 };
        assert!((axis.at(1.0) - 150.0).abs() < 1e-9 && (axis.at(0.1) - 100.0).abs() < 1e-9);
        assert!((axis.at(1e9) - 200.0).abs() < 1e-9 && (axis.at(0.0) - 100.0).abs() < 1e-9);
        assert_eq!(axis.ticks(10.0), [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]);
        assert_eq!(axis.ticks(40.0), [0.1, 1.0, 10.0]);
    }

    #[test]
    fn numbers_of_ticks_do_not_overlap_and_are_not_zero() {
        for reach in [1.1, 1.4, 2.4, 9.0, 21.0] {
            let axis = Axis { low: 1.0 / reach, high: reach, from: LEFT, to: RIGHT };
            let ticks = ratio_ticks(&axis);
            assert!(ticks.contains(&1.0), "{ticks:?}");
            assert!(ticks.windows(2).all(|pair| axis.at(pair[1]) - axis.at(pair[0]) >= 34.0), "{ticks:?}");
        }
        let axis = Axis { low: 1e-5, high: 1e3, from: CORNER.1, to: 20.0 };
        let ticks = axis.ticks(14.0);
        assert!(ticks.len() > 8 && ticks.windows(2).all(|pair| axis.at(pair[0]) - axis.at(pair[1]) >= 14.0), "{ticks:?}");
        let texts: Vec<String> = ticks.iter().map(|t| plain(*t)).collect();
        assert!(
            texts.iter().zip(&ticks).all(|(text, tick)| (text.parse::<f64>().unwrap() / tick - 1.0).abs() < 1e-9),
            "{texts:?}"
        );
    }

    #[test]
    fn numbers_and_names_are_short() {
        assert_eq!([plain(4800.0), plain(0.5), plain(2.0), plain(1.25)], ["4800", "0.5", "2", "1.25"]);
        assert_eq!([plain(0.67), plain(0.005), plain(0.00021)], ["0.67", "0.005", "0.00021"]);
        assert_eq!(shortened("abcdef", 4), "abc\u{2026}");
        assert_eq!(escape("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
    }
}
