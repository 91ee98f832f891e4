//! Plots of published results on a logarithmic axis, as SVG files for a light and for a dark ground: one line for each set, or one for each
//! record file.

use super::{SetResult, page::libraries, span};
use crate::plot::{Axis, escape, plain, ratio_ticks, shortened};
use crate::stats::{geometric_mean, quantile};
use std::fmt::Write;

/// Colours of a plot.
pub struct Theme {
    ground: &'static str,
    ink: &'static str,
    dim: &'static str,
    grid: &'static str,
    faster: &'static str,
    slower: &'static str,
}

/// For a light ground.
pub const LIGHT: Theme =
    Theme { ground: "#ffffff", ink: "#1d2530", dim: "#5b6675", grid: "#dfe4ea", faster: "#2f6fde", slower: "#c96a00" };
/// For a dark ground.
pub const DARK: Theme =
    Theme { ground: "#14181d", ink: "#e6eaf0", dim: "#a3afbc", grid: "#343d47", faster: "#6fa3ff", slower: "#ffab4d" };

/// Width of the picture: a pixel of a page that shows it 700 pixels wide.
const WIDTH: f64 = 700.0;
/// Where the names of sets end.
const NAMES: f64 = 246.0;
/// Where the axis begins and ends.
const SPAN: (f64, f64) = (262.0, 636.0);
/// Ratios at both ends of the axis.
const BOUNDS: (f64, f64) = (0.5, 8.0);
/// Height of the title with the names of both directions.
const TOP: f64 = 70.0;
/// Height of a set's line.
const ROW: f64 = 27.0;
/// Height of a heading.
const HEADING: f64 = 38.0;
/// Height of the numbers of the axis and the caption.
const FOOT: f64 = 132.0;

/// A line of a plot: a name, and the ratios of its cases, ascending.
struct Line {
    name: String,
    ratios: Vec<f64>,
}

/// Lines below a heading, which may be empty.
struct Group {
    heading: String,
    lines: Vec<Line>,
}

impl Group {
    fn height(&self) -> f64 {
        let heading = if self.heading.is_empty() { 0.0 } else { HEADING };
        heading + ROW * self.lines.len() as f64
    }
}

/// The sets by record file and libraries, in order of appearance.
fn groups(sets: &[SetResult]) -> Vec<Group> {
    let key = |set: &SetResult| (set.entry.records.clone(), set.entry.baseline.clone());
    let mut keys = Vec::new();
    for set in sets {
        if !keys.contains(&key(set)) {
            keys.push(key(set));
        }
    }
    let group = |one: &(String, String)| {
        let of: Vec<&SetResult> = sets.iter().filter(|set| key(set) == *one).collect();
        let labels: Vec<String> = of.iter().map(|set| set.entry.label()).collect();
        let (common, names) = without_common_words(&labels);
        let entry = &of.first()?.entry;
        let heading = format!("{} {common}", entry.stem());
        let heading = format!("{}, against {}", heading.trim_end(), libraries(entry));
        let lines = names.into_iter().zip(of).map(|(name, set)| Line { name, ratios: set.ratios() }).collect();
        Some(Group { heading, lines })
    };
    keys.iter().filter_map(group).collect()
}

/// One line for each record file, with the cases of all its sets.
fn files(sets: &[SetResult]) -> Group {
    let mut lines: Vec<Line> = Vec::new();
    for set in sets {
        let stem = set.entry.stem();
        match lines.iter_mut().find(|line| line.name == stem) {
            Some(line) => line.ratios.extend(set.ratios()),
            None => lines.push(Line { name: stem.into(), ratios: set.ratios() }),
        }
    }
    lines.iter_mut().for_each(|line| line.ratios.sort_by(f64::total_cmp));
    Group { heading: String::new(), lines }
}

/// Words that all of several labels have in the same place at their begin or end, and the labels without them.
fn without_common_words(labels: &[String]) -> (String, Vec<String>) {
    let words: Vec<Vec<&str>> = labels.iter().map(|label| label.split(' ').collect()).collect();
    let shortest = words.iter().map(Vec::len).min().unwrap_or(0);
    let (Some(first), true) = (words.first(), words.len() > 1) else { return (String::new(), labels.to_vec()) };
    // One word of each label stays.
    let most = shortest.saturating_sub(1);
    let same_begin = |n: &usize| words.iter().all(|w| w.get(*n) == first.get(*n));
    let begin = (0..most).take_while(same_begin).count();
    let from_end = |w: &[&'_ str], n: usize| w.len().checked_sub(n + 1).and_then(|at| w.get(at)).map(ToString::to_string);
    let end = (0..most - begin).take_while(|n| words.iter().all(|w| from_end(w, *n) == from_end(first, *n))).count();
    let cut = |w: &[&str]| w.get(begin..w.len() - end).unwrap_or_default().join(" ");
    let common = [first.get(..begin), first.get(first.len() - end..)].map(Option::unwrap_or_default).concat().join(" ");
    (common, words.iter().map(|w| cut(w)).collect())
}

/// The plot with a line for each set. The same results give the same text.
pub fn speed(sets: &[SetResult], theme: &Theme) -> String {
    plot(&groups(sets), sets, theme, "set")
}

/// The plot with a line for each record file.
pub fn overview(sets: &[SetResult], theme: &Theme) -> String {
    plot(&[files(sets)], sets, theme, "record file")
}

// Writing to a String cannot fail.
fn plot(groups: &[Group], sets: &[SetResult], theme: &Theme, per: &str) -> String {
    let bottom = TOP + groups.iter().map(Group::height).sum::<f64>();
    let axis = Axis { low: BOUNDS.0, high: BOUNDS.1, from: SPAN.0, to: SPAN.1 };
    let mut out = String::new();
    frame(&mut out, bottom + FOOT, theme, &format!("{TITLE} per {per}"));
    let one = axis.at(1.0);
    for (class, x, text) in [("end", one - 8.0, "library faster \u{2190}"), ("", one + 8.0, "\u{2192} tilewright faster")] {
        let _ = writeln!(out, "<text class=\"dim {class}\" x=\"{x:.1}\" y=\"60\">{text}</text>");
    }
    let _ = writeln!(out, "<text class=\"dim end\" x=\"692\" y=\"60\">mean</text>");
    let mut y = TOP;
    for group in groups {
        let below = y + group.height();
        if !group.heading.is_empty() {
            let heading = escape(&shortened(&group.heading, 70));
            let _ = writeln!(out, "<text class=\"dim\" x=\"10\" y=\"{:.1}\">{heading}</text>", y + 26.0);
            y += HEADING;
        }
        for tick in ratio_ticks(&axis) {
            let (x, class) = (axis.at(tick), if tick == 1.0 { "one" } else { "grid" });
            let _ = writeln!(out, "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{below:.1}\"/>");
        }
        for line in &group.lines {
            draw(&mut out, &axis, y + ROW / 2.0, line);
            y += ROW;
        }
    }
    for tick in ratio_ticks(&axis) {
        let _ = writeln!(out, "<text class=\"dim mid\" x=\"{:.1}\" y=\"{:.1}\">{}</text>", axis.at(tick), y + 20.0, plain(tick));
    }
    caption(&mut out, sets, y + 52.0);
    out.push_str("</svg>\n");
    out
}

/// The head of the file: size, colours, title.
fn frame(out: &mut String, height: f64, theme: &Theme, title: &str) {
    let Theme { ground, ink, dim, grid, faster, slower } = theme;
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         <title>{title}</title>\n<style>\n\
         text {{ font: 16px 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif; fill: {ink}; }}\n\
         .dim {{ fill: {dim}; }} .mid {{ text-anchor: middle; }} .end {{ text-anchor: end; }} text.head {{ font-size: 21px; font-weight: 600; }}\n\
         .grid {{ stroke: {grid}; }} .one {{ stroke: {ink}; stroke-width: 1.5; }}\n\
         .faster {{ fill: {faster}; stroke: {faster}; }} .slower {{ fill: {slower}; stroke: {slower}; }}\n\
         rect.bar {{ stroke: none; opacity: .45; }} line.range {{ stroke-width: 1.5; }} circle {{ stroke: {ground}; stroke-width: 1.5; }}\n\
         </style>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"{ground}\"/>\n\
         <text class=\"head\" x=\"10\" y=\"28\">{title}</text>"
    );
}

const TITLE: &str = "tilewright over the vendor's library: speed ratio";

/// Name, range, bar, dot and mean of a line.
fn draw(out: &mut String, axis: &Axis, y: f64, line: &Line) {
    let Line { name, ratios } = line;
    let (Some(mean), Some(worst), Some(best)) = (geometric_mean(ratios), ratios.first(), ratios.last()) else { return };
    let (Some(low), Some(high)) = (quantile(ratios, 0.1), quantile(ratios, 0.9)) else { return };
    let class = if mean < 1.0 { "slower" } else { "faster" };
    let text = y + 5.5;
    let _ = writeln!(out, "<text class=\"end\" x=\"{NAMES}\" y=\"{text:.1}\">{}</text>", escape(&shortened(name, 25)));
    let (left, right) = (axis.at(*worst), axis.at(*best));
    let _ = writeln!(out, "<line class=\"range {class}\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
    let (from, width) = (axis.at(low), axis.at(high) - axis.at(low));
    let _ =
        writeln!(out, "<rect class=\"bar {class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"12\"/>", y - 6.0);
    let _ = writeln!(out, "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"6\"/>", axis.at(mean));
    let _ = writeln!(out, "<text class=\"end\" x=\"692\" y=\"{text:.1}\">{mean:.2}</text>");
}

/// What the marks mean, and where and when the sets were measured.
fn caption(out: &mut String, sets: &[SetResult], mut y: f64) {
    let mut devices: Vec<&str> = sets.iter().flat_map(SetResult::devices).collect();
    devices.sort_unstable();
    devices.dedup();
    let first = sets.iter().filter_map(|set| Some(set.days()?.0)).min();
    let last = sets.iter().filter_map(|set| Some(set.days()?.1)).max();
    let mut lines = vec![
        format!("{}; {}.", devices.join(", "), span(first.zip(last))),
        "Dot: geometric mean. Bar: 10th to 90th percentile of the cases.".to_string(),
        "Thin line: worst to best case. Orange: the mean is below 1.".to_string(),
    ];
    let (low, high) = BOUNDS;
    if sets.iter().flat_map(SetResult::ratios).any(|ratio| !(low..=high).contains(&ratio)) {
        lines.push(format!("Lines that reach an edge go on: the axis ends at {} and {}.", plain(low), plain(high)));
    }
    for line in lines {
        let _ = writeln!(out, "<text class=\"dim\" x=\"10\" y=\"{y:.1}\">{}</text>", escape(&line));
        y += 22.0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{read, tests::folder};
    use super::*;

    #[test]
    fn common_words_move_to_the_heading() {
        let of = |labels: &[&str]| without_common_words(&labels.iter().map(ToString::to_string).collect::<Vec<_>>());
        let (common, names) = of(&["net forward bf16 nhwc", "net backward-data bf16 nhwc"]);
        assert_eq!((common.as_str(), names), ("net bf16 nhwc", vec!["forward".to_string(), "backward-data".into()]));
        assert_eq!(of(&["f32", "f32 tf32x3"]).1, ["f32", "f32 tf32x3"]);
        assert_eq!(of(&["a a", "a a"]), ("a".into(), vec!["a".into(), "a".into()]));
        assert_eq!(of(&["net forward"]), (String::new(), vec!["net forward".into()]));
    }

    #[test]
    fn every_set_is_drawn_on_both_sides_of_one() {
        let folder = folder("x,r.jsonl,gemm,exact,cublas,20,20,published,\ny,r.jsonl,gemm,exact,cublas,1,1,published,\n");
        let sets = read(folder.path()).unwrap().whole;
        for theme in [LIGHT, DARK] {
            let plot = speed(&sets, &theme);
            assert!(plot.contains(&format!("fill=\"{}\"", theme.ground)) && plot.trim_end().ends_with("</svg>"));
            assert!(!plot.contains("<script") && !plot.contains("NaN"));
            // 1 is a quarter of the axis from 0.5 to 8, 2 is half of it.
            let x = |share: f64| format!("{:.1}", SPAN.0 + (SPAN.1 - SPAN.0) * share);
            assert!(plot.contains(&format!("<line class=\"one\" x1=\"{}\"", x(0.25))), "{plot}");
            assert!(plot.contains(&format!("<circle class=\"faster\" cx=\"{}\"", x(0.5))), "{plot}");
            assert!(plot.contains(&format!("<circle class=\"slower\" cx=\"{}\"", x(0.0))), "{plot}");
            assert!(!plot.contains("reach an edge"));
        }
    }

    #[test]
    fn a_record_file_has_the_cases_of_all_its_sets() {
        let folder = folder("x,r.jsonl,gemm,exact,cublas,20,20,published,\ny,r.jsonl,gemm,exact,cublas,1,1,published,\n");
        let sets = read(folder.path()).unwrap().whole;
        let group = files(&sets);
        assert_eq!((group.lines.len(), group.lines[0].name.as_str()), (1, "r"));
        assert_eq!(group.lines[0].ratios.len(), sets.iter().map(SetResult::count).sum::<usize>());
        assert!(group.lines[0].ratios.is_sorted());
        assert_eq!(overview(&sets, &LIGHT).matches("<circle").count(), 1);
    }

    #[test]
    fn a_plot_without_sets_is_a_plot() {
        for plot in [speed(&[], &LIGHT), overview(&[], &DARK)] {
            assert!(plot.trim_end().ends_with("</svg>"));
        }
    }
}
