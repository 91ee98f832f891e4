//! Which thread loads which element of an operand's tile, enlarged, with thread numbers.

use super::svg::{Anchor, Svg, hue};
use super::who;
use tilewright_gen::plan::{Along, KernelSpec, OperandTiling, Source};

const CELL: f64 = 19.0;

/// Draws a corner of one operand's tile. `down` says whether the operand's rows run down the page (A) or across (B).
fn corner(svg: &mut Svg, at: (f64, f64), spec: &KernelSpec, operand: &OperandTiling, down: bool) -> (f64, f64) {
    let (rows, depth) = (operand.macro_tile.min(24), spec.tiling.k_tile.min(16));
    let place = |row: u32, k: u32| {
        let (r, k) = (f64::from(row) * CELL, f64::from(k) * CELL);
        if down { (at.0 + k, at.1 + r) } else { (at.0 + r, at.1 + k) }
    };
    let (w, h) = if down { (depth, rows) } else { (rows, depth) };
    svg.rect(at.0, at.1, f64::from(w) * CELL, f64::from(h) * CELL, "cell");
    for thread in 0..spec.load_threads() {
        for access in who::loads(operand, spec.tiling.k_tile, thread) {
            let inside: Vec<(u32, u32)> = access.iter().copied().filter(|&(r, k)| r < rows && k < depth).collect();
            let (Some(&first), Some(&last)) = (inside.first(), inside.last()) else { continue };
            for &(row, k) in &inside {
                let (x, y) = place(row, k);
                svg.fill(x + 0.5, y + 0.5, CELL - 1.0, CELL - 1.0, hue(thread as usize), 0.3);
                let size = if thread < 100 { 9.5 } else { 8.0 };
                svg.text((x + CELL / 2.0, y + CELL / 2.0 + 3.3), size, Anchor::Middle, "", &thread.to_string());
            }
            let ((x0, y0), (x1, y1)) = (place(first.0, first.1), place(last.0, last.1));
            svg.outline(x0 + 1.0, y0 + 1.0, x1 - x0 + CELL - 2.0, y1 - y0 + CELL - 2.0, hue(thread as usize), 1.3);
        }
    }
    svg.rect(at.0, at.1, f64::from(w) * CELL, f64::from(h) * CELL, "frame");
    let more_rows = operand.macro_tile > rows;
    let more_k = spec.tiling.k_tile > depth;
    let (right, bottom) = (at.0 + f64::from(w) * CELL, at.1 + f64::from(h) * CELL);
    if (more_rows && !down) || (more_k && down) {
        svg.text((right + 5.0, at.1 + f64::from(h) * CELL / 2.0), 14.0, Anchor::Start, "dim", "…");
    }
    if (more_rows && down) || (more_k && !down) {
        svg.text((at.0 + f64::from(w) * CELL / 2.0, bottom + 11.0), 14.0, Anchor::Middle, "dim", "⋮");
    }
    (right, bottom)
}

/// What the picture shows, in words.
fn words(operand: &OperandTiling, dim: &str) -> Vec<String> {
    let shape = format!("each thread: {} along {dim} × {} along k", operand.load_row, operand.load_k);
    let spread = if operand.load_interleave { ", interleaved" } else { ", contiguous" };
    let next = match operand.load_order {
        Along::K => "adjacent threads step along k",
        Along::Row => "adjacent threads step along the row",
    };
    let along = match operand.load_along {
        Along::Row => dim,
        Along::K => "k",
    };
    let vector = match operand.load_width {
        1 => "one element per load".to_string(),
        w => format!("{w} elements per load, along {along}"),
    };
    let source = match operand.source {
        Source::InPlace => "read where the operand lies",
        Source::Copy => "read from a padded copy in workspace",
        Source::CopyAlongK => "read from a padded copy in workspace, in lines along k",
        Source::Packed => "read from packed panels in workspace",
    };
    let shared = format!("in shared memory a row of k is {} + {} elements", operand.macro_tile, operand.pad);
    vec![format!("{shape}{spread}"), next.to_string(), vector, source.to_string(), shared]
}

/// Draws both operands' load tiles. Gives the drawing and its height.
pub fn draw(spec: &KernelSpec) -> (Svg, f64) {
    let mut svg = Svg::default();
    let top = 26.0;
    svg.text((30.0, 8.0), 12.5, Anchor::Start, "h2", "A tile (down: m, across: k)");
    let (right_a, bottom_a) = corner(&mut svg, (30.0, top), spec, &spec.tiling.a, true);
    let left_b = (right_a + 70.0).max(330.0);
    svg.text((left_b, 8.0), 12.5, Anchor::Start, "h2", "B tile (down: k, across: n)");
    let (_, bottom_b) = corner(&mut svg, (left_b, top), spec, &spec.tiling.b, false);
    let mut y = bottom_b + 34.0;
    for (name, dim, operand) in [("A", "m", &spec.tiling.a), ("B", "n", &spec.tiling.b)] {
        svg.text((left_b, y), 12.5, Anchor::Start, "h2", name);
        for line in words(operand, dim) {
            svg.text((left_b + 22.0, y), 12.5, Anchor::Start, "", &line);
            y += 18.0;
        }
        y += 6.0;
    }
    svg.text(
        (left_b, y + 4.0),
        11.0,
        Anchor::Start,
        "dim",
        "Numbers are threads; an outline is one load instruction's share of a thread.",
    );
    (svg, (bottom_a + 20.0).max(y + 12.0))
}
