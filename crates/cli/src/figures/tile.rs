//! The result tile of one work-group beside the operand tiles that feed it: B above, A to the left, C in the corner.

use super::svg::{Anchor, Svg, hue};
use super::who;
use tilewright_gen::plan::{KernelSpec, OperandTiling};

/// Joins element positions to rectangles (row, column, height, width), so that a contiguous micro tile is one shape.
fn rectangles(rows: &[u32], cols: &[u32]) -> Vec<(u32, u32, u32, u32)> {
    let (row_runs, col_runs) = (runs(rows), runs(cols));
    row_runs.iter().flat_map(|&(r, h)| col_runs.iter().map(move |&(c, w)| (r, c, h, w))).collect()
}

/// Maximal runs (start, length) of consecutive numbers.
pub fn runs(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::new();
    for n in sorted {
        match out.last_mut() {
            Some((start, length)) if *start + *length == n => *length += 1,
            _ => out.push((n, 1)),
        }
    }
    out
}

/// "0-7" for one run, "0-1, 32-33, 64-65, …" for more.
fn span(numbers: &[u32]) -> String {
    let runs = runs(numbers);
    let mut parts: Vec<String> =
        runs.iter().take(3).map(|&(s, l)| if l == 1 { s.to_string() } else { format!("{s}-{}", s + l - 1) }).collect();
    if runs.len() > 3 {
        parts.push("…".to_string());
    }
    parts.join(", ")
}

/// Threads worth following: neighbours first, so that the walking order shows.
fn followed(threads: u32) -> Vec<u32> {
    let mut chosen = vec![0, 1, threads / 2, threads.saturating_sub(1)];
    chosen.retain(|&t| t < threads);
    chosen.dedup();
    chosen
}

/// Where the three tiles lie and at what scale.
struct Place {
    /// Extents of the macro tile and of the k-tile, in elements.
    mt_a: u32,
    mt_b: u32,
    depth: u32,
    /// Length of an element along m and n, and along k.
    scale: f64,
    k_scale: f64,
    /// Start of the result tile.
    cx: f64,
    cy: f64,
}

const LEFT: f64 = 30.0;
const TOP: f64 = 24.0;

impl Place {
    fn new(spec: &KernelSpec) -> Place {
        let tiling = &spec.tiling;
        let (mt_a, mt_b, depth) = (tiling.a.macro_tile.max(1), tiling.b.macro_tile.max(1), tiling.k_tile.max(1));
        let gap = 26.0;
        // The operand tiles keep the scale of the result along m and n; along k they are at least a finger wide.
        let scale = (450.0 / f64::from(mt_b)).min(470.0 / f64::from(mt_a)).min(40.0);
        let k_scale = scale.min(150.0 / f64::from(depth)).max(60.0 / f64::from(depth)).min(26.0);
        let deep = f64::from(depth) * k_scale;
        Place { mt_a, mt_b, depth, scale, k_scale, cx: LEFT + deep + gap, cy: TOP + deep + gap }
    }
    fn wide(&self) -> f64 {
        f64::from(self.mt_b) * self.scale
    }
    fn high(&self) -> f64 {
        f64::from(self.mt_a) * self.scale
    }
    /// A, B and C as (x, y, width, height).
    fn tiles(&self) -> [(f64, f64, f64, f64); 3] {
        let (wide, high, deep) = (self.wide(), self.high(), f64::from(self.depth) * self.k_scale);
        [(LEFT, self.cy, deep, high), (self.cx, TOP, wide, deep), (self.cx, self.cy, wide, high)]
    }
    /// Elements of the result.
    fn fill(&self, svg: &mut Svg, (rows, cols): (&[u32], &[u32]), colour: &str, opacity: f64) {
        for (r, c, h, w) in rectangles(rows, cols) {
            let (x, y) = (self.cx + f64::from(c) * self.scale, self.cy + f64::from(r) * self.scale);
            svg.fill(x, y, f64::from(w) * self.scale, f64::from(h) * self.scale, colour, opacity);
        }
    }
}

/// Draws the tiles and the legend. Gives the drawing and its height.
pub fn draw(spec: &KernelSpec, wave: u32) -> (Svg, f64) {
    let mut svg = Svg::default();
    let place = Place::new(spec);
    for (x, y, w, h) in place.tiles() {
        svg.rect(x, y, w, h, "soft");
    }
    threads(&mut svg, spec, wave, &place);
    lines(&mut svg, spec, &place);
    for (x, y, w, h) in place.tiles() {
        svg.rect(x, y, w, h, "frame");
    }
    let (mt_a, mt_b, depth) = (place.mt_a, place.mt_b, place.depth);
    let (middle, high) = (place.cx + place.wide() / 2.0, place.high());
    svg.text((middle, TOP - 8.0), 12.0, Anchor::Middle, "h2", &format!("B tile: k {depth} × n {mt_b}"));
    svg.text_up((LEFT - 10.0, place.cy + high / 2.0), 12.0, "h2", &format!("A tile: m {mt_a} × k {depth}"));
    svg.text((middle, place.cy + high + 18.0), 12.0, Anchor::Middle, "h2", &format!("C tile: m {mt_a} × n {mt_b}"));
    let y = legend(&mut svg, spec, wave, place.cx + place.wide() + 36.0);
    (svg, (place.cy + high + 28.0).max(y + 6.0))
}

/// The first wave's share of the result, then the threads that are followed: what they compute and what they load.
fn threads(svg: &mut Svg, spec: &KernelSpec, wave: u32, place: &Place) {
    let tiling = &spec.tiling;
    let (scale, k_scale) = (place.scale, place.k_scale);
    for t in 0..wave.min(tiling.math_threads()) {
        let (rows, cols) = who::micro_tile(tiling, t);
        place.fill(svg, (&rows, &cols), "#7c8b9c", 0.33);
    }
    for (index, &t) in followed(tiling.math_threads()).iter().enumerate() {
        let (rows, cols) = who::micro_tile(tiling, t);
        place.fill(svg, (&rows, &cols), hue(index), 0.95);
    }
    for (index, &t) in followed(spec.load_threads()).iter().enumerate() {
        for (row, k) in who::loads(&tiling.a, place.depth, t).into_iter().flatten() {
            svg.fill(LEFT + f64::from(k) * k_scale, place.cy + f64::from(row) * scale, k_scale, scale, hue(index), 0.95);
        }
        for (row, k) in who::loads(&tiling.b, place.depth, t).into_iter().flatten() {
            svg.fill(place.cx + f64::from(row) * scale, TOP + f64::from(k) * k_scale, scale, k_scale, hue(index), 0.95);
        }
    }
}

/// Lines between micro tiles (or vectors, where threads interleave), where there is room for them.
fn lines(svg: &mut Svg, spec: &KernelSpec, place: &Place) {
    let (cx, cy, wide, high) = (place.cx, place.cy, place.wide(), place.high());
    let step = |o: &OperandTiling| if o.micro_interleave { o.fragment_width.max(1) } else { o.micro.max(1) };
    for (count, step, vertical) in [(place.mt_b, step(&spec.tiling.b), true), (place.mt_a, step(&spec.tiling.a), false)] {
        if f64::from(step) * place.scale < 5.0 {
            continue;
        }
        for at in (0..=count).step_by(step as usize) {
            let offset = f64::from(at) * place.scale;
            let (from, to) = if vertical {
                ((cx + offset, cy), (cx + offset, cy + high))
            } else {
                ((cx, cy + offset), (cx + wide, cy + offset))
            };
            svg.line(from, to, "cell");
        }
    }
}

/// What the colours mean, and the micro tiles in words. Gives where the next line would stand.
fn legend(svg: &mut Svg, spec: &KernelSpec, wave: u32, x: f64) -> f64 {
    let tiling = &spec.tiling;
    let math = tiling.math_threads();
    let mut y = TOP + 14.0;
    let swatch = |svg: &mut Svg, y: &mut f64, colour: &str, opacity: f64, text: &str| {
        svg.fill(x, *y - 10.0, 11.0, 11.0, colour, opacity);
        svg.text((x + 19.0, *y), 12.5, Anchor::Start, "", text);
        *y += 19.0;
    };
    let line = |svg: &mut Svg, y: &mut f64, class: &str, text: &str| {
        svg.text((x, *y), 12.5, Anchor::Start, class, text);
        *y += 19.0;
    };
    line(svg, &mut y, "h2", "Threads of the result tile");
    for (index, &t) in followed(math).iter().enumerate() {
        let (rows, cols) = who::micro_tile(tiling, t);
        swatch(svg, &mut y, hue(index), 0.95, &format!("thread {t}: rows {}; columns {}", span(&rows), span(&cols)));
    }
    swatch(svg, &mut y, "#7c8b9c", 0.33, &format!("all of the first wave ({} threads)", wave.min(math)));
    line(svg, &mut y, "dim", "In the A and B tiles the same colours show what");
    line(svg, &mut y, "dim", "those threads load.");
    line(svg, &mut y, "", "");
    line(svg, &mut y, "h2", "Micro tiles");
    for (name, dim, o) in [("A", "m", &tiling.a), ("B", "n", &tiling.b)] {
        let how = if o.micro_interleave && o.micro > o.fragment_width {
            format!("interleaved: vectors of {}, {} apart", o.fragment_width, o.macro_tile / o.micro.max(1) * o.fragment_width)
        } else {
            "contiguous".to_string()
        };
        line(svg, &mut y, "", &format!("{name}: {} along {dim} per thread, {how}", o.micro));
    }
    let walk = if tiling.micro_b_fastest { "n" } else { "m" };
    line(svg, &mut y, "", &format!("{} × {} threads, adjacent ones step along {walk}", tiling.threads_a, tiling.threads_b));
    if tiling.wave_a > 0 {
        let along_n = wave.max(1) / tiling.wave_a.max(1);
        line(svg, &mut y, "", &format!("a wave covers {} × {along_n} micro tiles", tiling.wave_a));
    }
    if spec.schedule.roles.is_some() {
        line(svg, &mut y, "", &format!("{} threads load, {math} compute", spec.load_threads()));
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        assert_eq!(span(&[0, 1, 2, 3]), "0-3");
        assert_eq!(span(&[0, 1, 32, 33, 64, 65, 96, 97]), "0-1, 32-33, 64-65, …");
        assert_eq!(span(&[5]), "5");
        assert_eq!(rectangles(&[0, 1], &[4, 6]), [(0, 4, 2, 1), (0, 6, 2, 1)]);
        assert_eq!(followed(1), [0]);
        assert_eq!(followed(256), [0, 1, 128, 255]);
    }
}
