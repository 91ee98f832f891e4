//! Records as one page that stands alone: what was compared where, summaries, plots, every case. Nothing is loaded from elsewhere,
//! and it reads on light and dark backgrounds.

use crate::plot::{self, escape, hue};
use crate::record::{Record, Side, summarise};
use crate::table::{self, digits, us};
use std::fmt::Write;

/// How pages look.
pub const STYLE: &str = "\
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1d2530; --dim: #5b6675; --line: #d5dbe3; --grid: #e6eaef;
  --h0: #2f6fde; --h1: #c96a00; --h2: #128a5f; --h3: #b5489c; --h4: #d23f31; --h5: #0a7f95; --good: #128a5f; --bad: #c63a2d; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --card: #1e242b; --ink: #e6eaf0; --dim: #a3afbc; --line: #343d47;
  --grid: #2b333c; --h0: #6fa3ff; --h1: #ffab4d; --h2: #4fd0a0; --h3: #e58fce; --h4: #ff8a7d; --h5: #55c6da; --good: #4fd0a0; --bad: #ff8a7d; } }
body { margin: 0; padding: 24px; background: var(--ground); color: var(--ink); font: 14px/1.5 'Inter', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; } h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 28px 0 8px; }
h3 { font-size: 15px; margin: 18px 0 6px; } .dim { color: var(--dim); fill: var(--dim); } p { margin: 4px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; } th { text-align: left; color: var(--dim); font-weight: 600; }
th, td { padding: 3px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; } .num { text-align: right; }
tr:last-child td { border-bottom: 0; } td.plan { white-space: normal; } code { font: 12px/1.4 'DejaVu Sans Mono', monospace; overflow-wrap: anywhere; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; } .key { margin-right: 18px; white-space: nowrap; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 6px; background: currentColor; }
svg { display: block; width: 100%; min-width: 980px; height: auto; } svg text { font: 12px 'Inter', 'DejaVu Sans', Arial, sans-serif; fill: var(--ink); }
svg text.dim { fill: var(--dim); } .mid { text-anchor: middle; } .end { text-anchor: end; } .grid { stroke: var(--grid); }
.one { stroke: var(--ink); stroke-width: 1.4; } .roof { fill: none; stroke: var(--dim); stroke-width: 1.6; stroke-dasharray: 6 4; }
.stem { stroke: currentColor; stroke-width: 1.6; opacity: .55; } svg circle, svg rect, svg polygon { fill: currentColor; fill-opacity: .85; }
.h0 { color: var(--h0); } .h1 { color: var(--h1); } .h2 { color: var(--h2); } .h3 { color: var(--h3); } .h4 { color: var(--h4); } .h5 { color: var(--h5); }
details summary { cursor: pointer; color: var(--dim); }";

/// The page. The same records give the same text.
pub fn page(records: &[Record]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>tilewright: side by side</title>\n\
         <style>\n{STYLE}\n</style>\n</head>\n<body>\n<main>\n<h1>tilewright, side by side</h1>"
    );
    let mut experiments: Vec<&str> = Vec::new();
    for record in records {
        if !experiments.contains(&record.experiment.as_str()) {
            experiments.push(&record.experiment);
        }
    }
    if records.is_empty() {
        out.push_str("<p class=\"dim\">There is no record.</p>\n");
    }
    for experiment in experiments {
        let of: Vec<&Record> = records.iter().filter(|r| r.experiment == experiment).collect();
        section(&mut out, experiment, &of);
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn section(out: &mut String, experiment: &str, records: &[&Record]) {
    let mut names: Vec<&str> = Vec::new();
    for side in records.iter().flat_map(|r| &r.sides) {
        if !names.contains(&side.name.as_str()) {
            names.push(&side.name);
        }
    }
    let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape(experiment));
    about(out, records);
    summary(out, records);
    out.push_str("<h3>Time of each library over tilewright's</h3>\n<div class=\"card\">\n");
    legend(out, &names, 1);
    out.push_str(&plot::ratios(records, &names));
    out.push_str("</div>\n<h3>Roofline</h3>\n<div class=\"card\">\n");
    legend(out, &names, 0);
    out.push_str(&plot::record_roofline(records, &names));
    out.push_str(
        "<p class=\"dim\">Broken lines: what the device could do at most at its nominal clock, by its description. Bytes are the \
         fewest that must move: every operand once.</p>\n</div>\n<h3>Every case</h3>\n<div class=\"card\">\n",
    );
    cases(out, records, &names);
    out.push_str("</div>\n</section>\n");
}

/// Where, when, against what, how.
fn about(out: &mut String, records: &[&Record]) {
    let mut lines: Vec<String> = Vec::new();
    let mut add = |line: String| {
        if !line.is_empty() && !lines.contains(&line) {
            lines.push(line);
        }
    };
    let owned: Vec<Record> = records.iter().map(|r| (*r).clone()).collect();
    table::origins(&owned).into_iter().for_each(&mut add);
    for side in records.iter().flat_map(|r| r.sides.iter()).filter(|s| s.plan.is_none() && !s.version.is_empty()) {
        add(format!("{} {}", side.name, side.version));
    }
    let range = |values: Vec<f64>| {
        let (low, high) = values.iter().fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        (high > 0.0).then(|| format!("{low:.0} to {high:.0}"))
    };
    let clocks = records.iter().filter_map(|r| r.clocks_after?.sm_mhz).map(f64::from).collect();
    if let Some(clocks) = range(clocks) {
        add(format!("multiprocessor clock after each case: {clocks} MHz"));
    }
    let spaces = table::workspaces(&owned);
    if !spaces.is_empty() {
        add(format!("workspace: {}", spaces.join("; ")));
    }
    for line in lines {
        let _ = writeln!(out, "<p class=\"dim\">{}</p>", escape(&line));
    }
    out.push_str(
        "<p class=\"dim\">One process, the same random operands, executions in turn; medians. Results are \
         compared with an f64 reference first.</p>\n",
    );
}

fn summary(out: &mut String, records: &[&Record]) {
    let owned: Vec<Record> = records.iter().map(|r| (*r).clone()).collect();
    let summaries = summarise(&owned);
    if summaries.is_empty() {
        return;
    }
    out.push_str(
        "<h3>Summary</h3>\n<div class=\"card\">\n<table>\n<tr><th>set</th><th>against</th><th class=\"num\">geometric mean</th>",
    );
    out.push_str("<th class=\"num\">worst</th><th>worst case</th><th class=\"num\">cases</th></tr>\n");
    for s in summaries {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td>{}{}<td>{}</td><td class=\"num\">{}</td></tr>",
            escape(&s.set),
            escape(&s.side),
            ratio(s.mean),
            ratio(s.worst.as_ref().map(|w| w.0)),
            escape(s.worst.as_ref().map_or("", |w| w.1.as_str())),
            escape(&s.counted())
        );
    }
    out.push_str("</table>\n</div>\n");
}

/// Names with their colours, from the n-th on.
fn legend(out: &mut String, names: &[&str], from: usize) {
    out.push_str("<p>");
    for (n, name) in names.iter().enumerate().skip(from) {
        let _ = write!(out, "<span class=\"key\"><i class=\"{}\"></i>{}</span>", hue(n), escape(name));
    }
    out.push_str("</p>\n");
}

/// A cell with a ratio; above 1 the first side is faster.
fn ratio(value: Option<f64>) -> String {
    match value {
        None => "<td class=\"num\"></td>".into(),
        Some(v) => format!("<td class=\"num {}\">{v:.3}</td>", if v >= 1.0 { "good" } else { "bad" }),
    }
}

fn cases(out: &mut String, records: &[&Record], names: &[&str]) {
    out.push_str("<table>\n<tr><th>set</th><th>case</th>");
    for (n, name) in names.iter().enumerate() {
        let name = escape(name);
        let _ = write!(out, "<th class=\"num\">{name} \u{b5}s</th><th class=\"num\">TFLOP/s</th>");
        if n > 0 {
            out.push_str("<th class=\"num\">ratio</th>");
        }
    }
    out.push_str("</tr>\n");
    for record in records {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escape(&record.set), escape(&record.case));
        for (n, name) in names.iter().enumerate() {
            let found = record.sides.iter().position(|s| s.name == *name);
            let side = found.and_then(|i| record.sides.get(i));
            let rate = side.and_then(|s| record.tflops(s)).map(digits).unwrap_or_default();
            let (time, why) = match side {
                Some(Side { time: Some(t), correct: Some(true), .. }) => (us(t.median_us), ""),
                Some(Side { time: Some(t), failure, .. }) => {
                    (format!("wrong ({})", us(t.median_us)), failure.as_deref().unwrap_or_default())
                }
                Some(Side { failure: Some(failure), .. }) => ("failed".into(), failure.as_str()),
                _ => (String::new(), ""),
            };
            let _ = write!(out, "<td class=\"num\" title=\"{}\">{time}</td><td class=\"num\">{rate}</td>", escape(why));
            if n > 0 {
                out.push_str(&ratio(found.filter(|i| *i > 0).and_then(|i| record.ratio(i))));
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n<details><summary>Plans and failures</summary>\n<table>\n");
    for record in records {
        for side in &record.sides {
            let what = match (&side.failure, &side.plan) {
                (Some(failure), _) => escape(failure.lines().next().unwrap_or_default()),
                (None, Some(plan)) => format!("<code>{}</code>", escape(plan)),
                (None, None) if side.note.is_empty() => continue,
                (None, None) => escape(&side.note),
            };
            let (case, name) = (escape(&record.case), escape(&side.name));
            let _ = writeln!(out, "<tr><td>{case}</td><td>{name}</td><td class=\"plan\">{what}</td></tr>");
        }
    }
    out.push_str("</table>\n</details>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    /// Every element is closed by its own end tag, in order.
    fn balanced(page: &str) {
        let mut open: Vec<&str> = Vec::new();
        for piece in page.split('<').skip(1) {
            let (tag, _) = piece.split_once('>').expect("a tag ends");
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
            match tag {
                _ if tag.starts_with('!') || tag.ends_with('/') || ["meta"].contains(&name) => {}
                _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
                _ => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_page_names_every_case_and_needs_nothing() {
        let mut wrong = record("y", "f32 <wrong> & odd", Some(2.0));
        wrong.sides[1].correct = Some(false);
        wrong.sides[1].failure = Some("3 elements differ".into());
        let mut old = record("y", "f32 old", Some(1.1));
        old.roof = None;
        let records =
            [record("x", "f32 fast", Some(1.5)), record("x", "f32 slow", Some(0.4)), record("y", "f32 lone", None), wrong, old];
        let page = page(&records);
        balanced(&page);
        for record in &records {
            let name = escape(&record.case);
            // In the table, in the plot of ratios.
            assert!(page.matches(&name).count() >= 2, "{name}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("takes 1.500 times as long") && page.contains("takes 0.400 times as long"));
        assert!(!page.contains("takes 2.000"), "a wrong result has no ratio");
        assert!(page.contains("67 TFLOP/s, 4800 GB/s") && page.contains("3 elements differ") && page.contains("wrong (20.00)"));
        assert!(page.contains("prefers-color-scheme: dark"));
        for foreign in ["http:", "https:", "src=", "@import", "url(", "<script", "<link"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert_eq!(page, super::page(&records));
    }

    #[test]
    fn a_page_without_records_or_times_is_a_page() {
        balanced(&page(&[]));
        let mut lone = record("x", "f32 lone", None);
        lone.sides[0].time = None;
        let page = page(&[lone]);
        balanced(&page);
        assert!(page.contains("No case has a valid time") && page.contains("f32 lone"));
    }
}
