//! Figures of a plan, drawn from its derived form: tiles, loads, order over the grid, and the schedule in time.

mod grid;
pub mod instructions;
mod loads;
mod svg;
mod tile;
mod timeline;
mod who;

use svg::{Anchor, Svg};
use tilewright_gen::plan::KernelSpec;

/// What the figures need besides the derived plan.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Batch extent.
    pub g: u64,
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Length of the sum.
    pub k: u64,
    /// Threads per wave.
    pub wave: u32,
    /// Work-groups that the device runs at the same time.
    pub concurrent: u64,
    /// First line of the page: the problem.
    pub title: String,
    /// Second line: plan and device.
    pub subtitle: String,
}

const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 24.0;

/// The whole page of figures as one SVG document.
pub fn page(spec: &KernelSpec, shape: &Shape) -> String {
    let mut page = Svg::default();
    page.text((MARGIN, 40.0), 21.0, Anchor::Start, "h1", &shape.title);
    let mut y = 62.0;
    for line in wrap(&shape.subtitle, 150) {
        page.text((MARGIN, y), 11.5, Anchor::Start, "dim mono", &line);
        y += 16.0;
    }
    y += 4.0;
    let inner = WIDTH - 4.0 * MARGIN;
    let cards: [(&str, (Svg, f64)); 4] = [
        ("One work-group: its tile of the result and the operand tiles of one k-tile", tile::draw(spec, shape.wave)),
        ("Loading: which thread brings in what", loads::draw(spec)),
        ("The grid: order of tiles, edges, and the sum over k", grid::draw(spec, shape)),
        ("The schedule: stages of the main loop in time", timeline::draw(&spec.schedule, inner)),
    ];
    for (title, (drawing, height)) in &cards {
        page.card(MARGIN, y, WIDTH - 2.0 * MARGIN, height + 66.0);
        page.text((2.0 * MARGIN, y + 30.0), 15.0, Anchor::Start, "h2", title);
        page.place(2.0 * MARGIN, y + 54.0, drawing);
        y += height + 66.0 + 18.0;
    }
    page.document(WIDTH, y + 4.0, &shape.title)
}

/// Breaks a line at `_` or blanks so that no part is longer than `most` characters where that can be had.
fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in text.split_inclusive(['_', ' ']) {
        if let Some(last) = lines.last_mut()
            && (last.is_empty() || last.chars().count() + part.chars().count() <= most)
        {
            last.push_str(part);
            continue;
        }
        lines.push(part.to_string());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_gen::plan::*;

    fn sample() -> (KernelSpec, Shape) {
        let a = OperandTiling {
            micro: 8,
            macro_tile: 128,
            pad: 2,
            load_row: 4,
            load_k: 1,
            load_interleave: false,
            load_order: Along::K,
            load_width: 2,
            load_along: Along::Row,
            store_width: 2,
            fragment_width: 2,
            micro_interleave: true,
            shared_along: Along::Row,
            source: Source::InPlace,
            fragment_sets: 0,
        };
        let b = OperandTiling {
            micro: 6,
            macro_tile: 96,
            load_row: 3,
            load_width: 1,
            micro_interleave: false,
            shared_along: Along::Row,
            fragment_width: 1,
            ..a.clone()
        };
        let spec = KernelSpec {
            tiling: Tiling {
                a,
                b,
                k_tile: 8,
                threads_a: 16,
                threads_b: 16,
                micro_b_fastest: false,
                wave_a: 0,
                wave_lanes: 64,
                math_width: 1,
                order: GroupOrder::Strips(4),
                split_k: SplitK { ways: 3, interleave: false },
                edge_m: Edge::PullBack,
                edge_n: Edge::Predicate,
                k_stagger: false,
                unit: MathUnit::Fma,
                exchanged: false,
                persistent: 0,
                cluster: Cluster::ALONE,
            },
            schedule: Schedule {
                fetch_ahead: 1,
                buffers: 2,
                store: StorePoint::AfterMath,
                fragments_ahead: 1,
                math_behind: 0,
                copies: [Transport::Registers, Transport::Registers],
                roles: None,
                hints: false,
            },
            epilogue: Epilogue { split_sum: SplitSum::Workspace, store_width: 1, staged: false, bulk: false },
            style: Style { pragma_unroll: true, wide_index: false, mad: false, a_first: true, min_groups: 0, unroll_k: true },
        };
        let shape = Shape {
            g: 1,
            m: 1000,
            n: 1000,
            k: 3000,
            wave: 64,
            concurrent: 64,
            title: "gemm 1000 × 1000 × 3000, f32".into(),
            subtitle: "A_MIC8_PAD1_PLU0".into(),
        };
        (spec, shape)
    }

    #[test]
    fn page_is_well_formed_and_names_its_parts() {
        let (spec, shape) = sample();
        let text = page(&spec, &shape);
        for part in
            ["A tile: m 128", "B tile: k 8", "strips 4 tiles wide", "pulled back", "3 work-groups share 375 k-tiles", "store"]
        {
            assert!(text.contains(part), "{part}");
        }
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
    }

    #[test]
    fn wrapping_keeps_everything() {
        let text = "A_MIC8_PAD1__B_MIC6_PAD2 on emu";
        assert_eq!(wrap(text, 10).concat(), text);
    }
}
