//! A small SVG writer: shapes, text and the one style sheet that every figure shares.
//!
//! Colours are CSS classes, so a viewer with a dark background gets dark cards. Viewers without media queries show the light ones.

use std::fmt::Write;

/// Where text stands relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The point is the left end.
    Start,
    /// The point is the middle.
    Middle,
}

/// Hues that stand apart, also for colour-blind eyes. Used by number, in this order.
pub const HUES: [&str; 8] = ["#2f6fde", "#e07b00", "#149a6b", "#b5489c", "#d23f31", "#0891a6", "#8a6d1d", "#6d5bd0"];

/// The hue for a number, repeating after eight.
pub fn hue(index: usize) -> &'static str {
    HUES.get(index % HUES.len()).copied().unwrap_or("#2f6fde")
}

const STYLE: &str = "\
text { font-family: 'Inter', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif; fill: #1d2530; }
.page { fill: #eef1f5; } .card { fill: #ffffff; stroke: #d5dbe3; } .h1 { font-weight: 700; } .h2 { font-weight: 600; }
.dim { fill: #5b6675; } .mono { font-family: 'JetBrains Mono', 'DejaVu Sans Mono', monospace; } .onhue { fill: #ffffff; }
.cell { fill: #f3f5f8; stroke: #dfe4ea; stroke-width: .5; } .frame { fill: none; stroke: #47525f; stroke-width: 1.2; }
.soft { fill: #e3e8ee; } .rule { stroke: #9aa5b1; stroke-width: 1; fill: none; } .wall { stroke: #47525f; stroke-width: 2; }
.way { fill: none; stroke: #47525f; stroke-width: 1.4; stroke-opacity: .6; } .tip { fill: #47525f; } .cluster { fill: none; stroke: #1d2530; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
text { fill: #e6eaf0; } .page { fill: #14181d; } .card { fill: #1e242b; stroke: #343d47; } .dim { fill: #a3afbc; } .onhue { fill: #ffffff; }
.cell { fill: #272e37; stroke: #39434e; } .frame { stroke: #b8c2cd; } .soft { fill: #38424d; } .rule { stroke: #6c7886; } .wall { stroke: #b8c2cd; }
.way { stroke: #b8c2cd; } .tip { fill: #b8c2cd; } .cluster { stroke: #e6eaf0; }
}";

/// A place in a drawing, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

/// The place `x` to the right and `y` down.
pub const fn point(x: f64, y: f64) -> Point {
    Point { x, y }
}

/// An upright rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// Left and upper edge.
    pub x: f64,
    pub y: f64,
    /// Width and height.
    pub w: f64,
    pub h: f64,
}

/// A drawing and its height.
pub struct Drawing {
    pub svg: Svg,
    pub height: f64,
}

/// Shapes collected for one drawing.
#[derive(Clone, Debug, Default)]
pub struct Svg {
    body: String,
}

/// Escapes text for XML content and attributes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A coordinate with at most two decimals.
fn num(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

impl Svg {
    /// Appends markup; writing to a string cannot fail.
    fn push(&mut self, markup: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{markup}");
    }
    /// A rectangle of a class of the style sheet.
    pub fn rect(&mut self, x: f64, y: f64, w: f64, h: f64, class: &str) {
        self.push(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{class}\"/>",
            num(x),
            num(y),
            num(w),
            num(h)
        ));
    }
    /// A rectangle with rounded corners of a class of the style sheet.
    pub fn card(&mut self, x: f64, y: f64, w: f64, h: f64) {
        self.push(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"10\" class=\"card\"/>",
            num(x),
            num(y),
            num(w),
            num(h)
        ));
    }
    /// A filled rectangle with a thin light border.
    pub fn fill(&mut self, x: f64, y: f64, w: f64, h: f64, colour: &str, opacity: f64) {
        self.push(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\" fill-opacity=\"{}\"/>",
            num(x),
            num(y),
            num(w),
            num(h),
            num(opacity)
        ));
    }
    /// A rectangle drawn as its outline only.
    pub fn outline(&mut self, x: f64, y: f64, w: f64, h: f64, colour: &str, width: f64) {
        self.push(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"/>",
            num(x),
            num(y),
            num(w),
            num(h),
            num(width)
        ));
    }
    /// A line of a class of the style sheet.
    pub fn line(&mut self, from: Point, to: Point, class: &str) {
        self.push(format_args!(
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{class}\"/>",
            num(from.x),
            num(from.y),
            num(to.x),
            num(to.y)
        ));
    }
    /// A path through points, with an arrow head at its end.
    pub fn arrow(&mut self, points: &[Point]) {
        let mut d = String::new();
        for (i, Point { x, y }) in points.iter().enumerate() {
            let _ = write!(d, "{}{} {} ", if i == 0 { 'M' } else { 'L' }, num(*x), num(*y));
        }
        self.push(format_args!("<path d=\"{}\" class=\"way\" marker-end=\"url(#tip)\"/>", d.trim_end()));
    }
    /// A line through points.
    pub fn path(&mut self, points: &[Point], colour: &str, width: f64) {
        let parts = points
            .iter()
            .enumerate()
            .map(|(i, Point { x, y })| format!("{}{} {}", if i == 0 { 'M' } else { 'L' }, num(*x), num(*y)));
        let d = parts.collect::<Vec<_>>().join(" ");
        self.push(format_args!("<path d=\"{d}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"/>", num(width)));
    }
    /// Text of a size in pixels and classes of the style sheet.
    pub fn text(&mut self, at: Point, size: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
        };
        self.push(format_args!(
            "<text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            num(at.x),
            num(at.y),
            num(size),
            escape(text)
        ));
    }
    /// Text turned by a quarter, read from bottom to top, centred on its point.
    pub fn text_up(&mut self, at: Point, size: f64, class: &str, text: &str) {
        let (x, y) = (num(at.x), num(at.y));
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" text-anchor=\"middle\" class=\"{class}\" transform=\"rotate(-90 {x} {y})\">{}</text>",
            num(size),
            escape(text)
        ));
    }
    /// What colours mean: squares with their words, in lines up to `right`. Gives where the next line would stand.
    pub fn key(&mut self, from: Point, right: f64, entries: &[(&str, String)]) -> f64 {
        let Point { x, mut y } = from;
        let mut at = x;
        for (colour, text) in entries {
            let wide = 15.0 + text.chars().count() as f64 * 7.2;
            if at > x && at + wide > right {
                (at, y) = (x, y + 17.0);
            }
            self.fill(at, y - 9.0, 10.0, 10.0, colour, 0.9);
            self.text(point(at + 15.0, y), 12.0, Anchor::Start, "dim", text);
            at += wide + 16.0;
        }
        y + 17.0
    }
    /// Puts another drawing's shapes here, moved by an offset.
    pub fn place(&mut self, x: f64, y: f64, part: &Svg) {
        self.push(format_args!("<g transform=\"translate({} {})\">\n{}</g>", num(x), num(y), part.body));
    }
    /// The finished document.
    pub fn document(&self, width: f64, height: f64, title: &str) -> String {
        let (w, h) = (num(width), num(height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n\
             <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\">\
             <path d=\"M0 0L8 4L0 8z\" class=\"tip\"/></marker></defs>\n\
             <rect width=\"{w}\" height=\"{h}\" class=\"page\"/>\n{}</svg>\n",
            escape(title),
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_numbers_are_short() {
        let mut svg = Svg::default();
        svg.text(point(1.0, 2.5), 12.0, Anchor::Middle, "dim", "a < b & \"c\"");
        assert!(svg.body.contains("a &lt; b &amp; &quot;c&quot;"));
        assert!(svg.body.contains("x=\"1\" y=\"2.5\""));
        assert_eq!(num(1.2345), "1.23");
        assert_eq!(num(10.0), "10");
    }
}
