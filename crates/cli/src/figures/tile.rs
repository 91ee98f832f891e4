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

/// Draws the tiles and the legend. Gives the drawing and its height.
pub fn draw(spec: &KernelSpec, wave: u32, width: f64) -> (Svg, f64) {
    let mut svg = Svg::default();
    let tiling = &spec.tiling;
    let (mt_a, mt_b, depth) = (tiling.a.macro_tile.max(1), tiling.b.macro_tile.max(1), tiling.k_tile.max(1));
    let gap = 26.0;
    // The operand tiles keep the scale of the result along m and n; along k they are at least a finger wide.
    let scale = (450.0 / f64::from(mt_b)).min(470.0 / f64::from(mt_a)).min(40.0);
    let k_scale = scale.min(150.0 / f64::from(depth)).max(60.0 / f64::from(depth)).min(26.0);
    let (wide, high, deep) = (f64::from(mt_b) * scale, f64::from(mt_a) * scale, f64::from(depth) * k_scale);
    let (left, top) = (30.0, 24.0);
    let (cx, cy) = (left + deep + gap, top + deep + gap);
    let math = tiling.math_threads();
    let loaders = spec.load_threads();

    for (x, y, w, h) in [(left, cy, deep, high), (cx, top, wide, deep), (cx, cy, wide, high)] {
        svg.rect(x, y, w, h, "soft");
    }
    // The first wave's share of the result, then the threads that are followed.
    let first_wave: Vec<u32> = (0..wave.min(math)).collect();
    for &t in &first_wave {
        let (rows, cols) = who::micro_tile(tiling, t);
        for (r, c, h, w) in rectangles(&rows, &cols) {
            svg.fill(
                cx + f64::from(c) * scale,
                cy + f64::from(r) * scale,
                f64::from(w) * scale,
                f64::from(h) * scale,
                "#7c8b9c",
                0.33,
            );
        }
    }
    let chosen = followed(math);
    for (index, &t) in chosen.iter().enumerate() {
        let (rows, cols) = who::micro_tile(tiling, t);
        for (r, c, h, w) in rectangles(&rows, &cols) {
            svg.fill(
                cx + f64::from(c) * scale,
                cy + f64::from(r) * scale,
                f64::from(w) * scale,
                f64::from(h) * scale,
                hue(index),
                0.95,
            );
        }
    }
    let chosen_loads = followed(loaders);
    for (index, &t) in chosen_loads.iter().enumerate() {
        for (row, k) in who::loads(&tiling.a, depth, t).into_iter().flatten() {
            svg.fill(left + f64::from(k) * k_scale, cy + f64::from(row) * scale, k_scale, scale, hue(index), 0.95);
        }
        for (row, k) in who::loads(&tiling.b, depth, t).into_iter().flatten() {
            svg.fill(cx + f64::from(row) * scale, top + f64::from(k) * k_scale, scale, k_scale, hue(index), 0.95);
        }
    }
    // Lines between micro tiles (or vectors, where threads interleave), where there is room for them.
    let step = |o: &OperandTiling| if o.micro_interleave { o.fragment_width.max(1) } else { o.micro.max(1) };
    for (count, step, vertical) in [(mt_b, step(&tiling.b), true), (mt_a, step(&tiling.a), false)] {
        if f64::from(step) * scale < 5.0 {
            continue;
        }
        for at in (0..=count).step_by(step as usize) {
            let offset = f64::from(at) * scale;
            let (from, to) = if vertical {
                ((cx + offset, cy), (cx + offset, cy + high))
            } else {
                ((cx, cy + offset), (cx + wide, cy + offset))
            };
            svg.line(from, to, "cell");
        }
    }
    for (x, y, w, h) in [(left, cy, deep, high), (cx, top, wide, deep), (cx, cy, wide, high)] {
        svg.rect(x, y, w, h, "frame");
    }
    svg.text((cx + wide / 2.0, top - 8.0), 12.0, Anchor::Middle, "h2", &format!("B tile: k {depth} × n {mt_b}"));
    svg.text_up((left - 10.0, cy + high / 2.0), 12.0, "h2", &format!("A tile: m {mt_a} × k {depth}"));
    svg.text((cx + wide / 2.0, cy + high + 18.0), 12.0, Anchor::Middle, "h2", &format!("C tile: m {mt_a} × n {mt_b}"));

    let x = cx + wide + 36.0;
    let mut y = top + 14.0;
    let swatch = |svg: &mut Svg, y: &mut f64, colour: &str, opacity: f64, text: &str| {
        svg.fill(x, *y - 10.0, 11.0, 11.0, colour, opacity);
        svg.text((x + 19.0, *y), 12.5, Anchor::Start, "", text);
        *y += 19.0;
    };
    let line = |svg: &mut Svg, y: &mut f64, class: &str, text: &str| {
        svg.text((x, *y), 12.5, Anchor::Start, class, text);
        *y += 19.0;
    };
    line(&mut svg, &mut y, "h2", "Threads of the result tile");
    for (index, &t) in chosen.iter().enumerate() {
        let (rows, cols) = who::micro_tile(tiling, t);
        swatch(&mut svg, &mut y, hue(index), 0.95, &format!("thread {t}: rows {}; columns {}", span(&rows), span(&cols)));
    }
    swatch(&mut svg, &mut y, "#7c8b9c", 0.33, &format!("all of the first wave ({} threads)", first_wave.len()));
    line(&mut svg, &mut y, "dim", "In the A and B tiles the same colours show what");
    line(&mut svg, &mut y, "dim", "those threads load.");
    line(&mut svg, &mut y, "", "");
    line(&mut svg, &mut y, "h2", "Micro tiles");
    for (name, dim, o) in [("A", "m", &tiling.a), ("B", "n", &tiling.b)] {
        let how = if o.micro_interleave && o.micro > o.fragment_width {
            format!("interleaved: vectors of {}, {} apart", o.fragment_width, o.macro_tile / o.micro.max(1) * o.fragment_width)
        } else {
            "contiguous".to_string()
        };
        line(&mut svg, &mut y, "", &format!("{name}: {} along {dim} per thread, {how}", o.micro));
    }
    let walk = if tiling.micro_b_fastest { "n" } else { "m" };
    line(&mut svg, &mut y, "", &format!("{} × {} threads, adjacent ones step along {walk}", tiling.threads_a, tiling.threads_b));
    if tiling.wave_a > 0 {
        line(
            &mut svg,
            &mut y,
            "",
            &format!("a wave covers {} × {} micro tiles", tiling.wave_a, wave.max(1) / tiling.wave_a.max(1)),
        );
    }
    if spec.schedule.roles.is_some() {
        line(&mut svg, &mut y, "", &format!("{} threads load, {} compute", spec.load_threads(), math));
    }
    let height = (cy + high + 28.0).max(y + 6.0);
    let _ = width;
    (svg, height)
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
