//! The result of tuning a model or a file of cases, as a page that stands alone. It shows each problem with its layers, plan,
//! time, share, and distance from the limit of the device.

use crate::error::CliError;
use crate::output::{human_rate, human_time, write_file};
use crate::problem::{Case, Cases};
use crate::progress::roof_us;
use crate::session;
use std::fmt::Write;
use std::path::Path;
use tilewright::{CacheState, Context};
use tilewright_bench::{Point, Roof, STYLE, escape, least_bytes, roofline};
use tilewright_gen::plan::Plan;
use tilewright_tune::ProblemKey;
use tilewright_tune::records::{GENERATOR, TimeKind};
use tilewright_tune::search::device_key;

/// A problem with what the records hold of it.
struct Row<'a> {
    case: &'a Case,
    /// Plan in words, its text, microseconds.
    best: Option<(String, String, f64)>,
    /// Largest error found.
    error: Option<f64>,
    floor_us: f64,
    roof: Roof,
}

impl Row<'_> {
    /// How often the model runs it.
    fn calls(&self) -> f64 {
        self.case.layers.len().max(1) as f64
    }
    fn us(&self) -> f64 {
        self.best.as_ref().map_or(0.0, |(.., us)| us * self.calls())
    }
}

/// Writes the page of these problems.
pub fn write(path: &Path, title: &str, context: &Context, cases: &Cases, cache: CacheState) -> Result<(), CliError> {
    let mut modelled = false;
    let mut rows = Vec::new();
    for case in &cases.list {
        let operation = context.operation(case.problem.clone()).map_err(session::classify)?;
        let space = operation.space();
        let best = context
            .records()
            .best(&ProblemKey::of(space), &device_key(context.info(), cache), GENERATOR)
            .map_err(CliError::failed)?;
        modelled |= best.as_ref().is_some_and(|t| t.time_kind == Some(TimeKind::Modelled));
        let error = best.as_ref().and_then(|t| t.max_error);
        let best = best.and_then(|t| Some((Plan::parse(&t.plan).ok()?.readable(), t.plan, t.time_us?)));
        let roof = Roof::of(&context.info().target, case.problem.multiplied(), case.problem.math());
        rows.push(Row { case, best, error, floor_us: roof_us(&case.problem, context.info()), roof });
    }
    write_file(path, &page(title, context, &rows, &cases.untuned, modelled))
}

/// The noun for the counted rows: layers of a model, or cases.
fn counted(rows: &[Row<'_>]) -> &'static str {
    if rows.iter().any(|row| !row.case.layers.is_empty()) { "layers" } else { "cases" }
}

/// Beginning of the page, up to the heads of the table's columns.
fn head(title: &str, context: &Context, rows: &[Row<'_>], total: f64, modelled: bool) -> String {
    let calls = rows.iter().map(Row::calls).sum::<f64>();
    let floor: f64 = rows.iter().filter(|r| r.best.is_some()).map(|r| r.floor_us * r.calls()).sum();
    let kind = if modelled { "modelled, on the emulator" } else { "measured" };
    let counted = counted(rows);
    let launches = if floor > 0.0 && total > 5.0 * floor {
        " Starting a kernel takes some microseconds, which no plan of a small problem can save."
    } else {
        ""
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>tilewright: {0}</title>\n<style>\n{STYLE}\n</style>\n\
         </head>\n<body>\n<main>\n<h1>{0}</h1>\n<p class=\"dim\">{1}; times are {kind}</p>\n\
         <p>{calls} {counted}, {2} different problems: {3} in all, {4:.2} times their floor. The floor of a problem is the time of its \
         operations and bytes at the device's nominal rates, whichever is longer.{launches}</p>\n<div class=\"card\">\n<table>\n\
         <tr><th>{counted}</th><th>problem</th><th>plan</th><th class=\"num\">time of one call</th><th class=\"num\">rate</th>\
         <th class=\"num\">floor</th><th class=\"num\">time / floor</th><th class=\"num\">share of all calls</th>\
         <th class=\"num\">largest error</th></tr>\n",
        escape(title),
        escape(&context.info().name),
        rows.len(),
        human_time(total),
        total / floor.max(1e-9),
    )
}

/// The layers of a problem, or the set of a case file that it is in.
fn names(case: &Case) -> String {
    match case.layers.as_slice() {
        [] => escape(case.set.as_deref().unwrap_or_default()),
        [one] => escape(one),
        [first, ..] => {
            let all = escape(&case.layers.join(", "));
            format!("<details><summary>{} x, {} first</summary>{all}</details>", case.layers.len(), escape(first))
        }
    }
}

/// The roofline of all problems that have a time.
fn plot(rows: &[Row<'_>]) -> String {
    let timed = rows.iter().filter(|row| row.case.problem.flop() > 0.0);
    let points = timed.filter_map(|row| {
        let (.., us) = row.best.as_ref()?;
        let flop = row.case.problem.flop();
        let (intensity, tflops) = (flop / least_bytes(&row.case.problem).max(1.0), flop / us / 1e6);
        Some(Point { title: row.case.title.clone(), intensity, tflops, number: 0 })
    });
    let roofs: Vec<(&str, Roof)> = rows.iter().map(|row| (row.case.problem.dtype_name(), row.roof)).collect();
    format!("<h2>Roofline</h2>\n<div class=\"card\">\n{}</div>\n", roofline(&points.collect::<Vec<_>>(), &roofs))
}

fn page(title: &str, context: &Context, rows: &[Row<'_>], untuned: &[String], modelled: bool) -> String {
    let total = rows.iter().map(Row::us).sum::<f64>();
    let mut sorted: Vec<&Row<'_>> = rows.iter().collect();
    sorted.sort_by(|x, y| y.us().total_cmp(&x.us()));
    let mut out = head(title, context, rows, total, modelled);
    for row in sorted {
        let (names, title) = (names(row.case), escape(&row.case.title));
        // Writing to a String cannot fail, here and below.
        let _ = write!(out, "<tr><td class=\"plan\">{names}</td><td class=\"plan\">{title}</td>");
        let _ = match &row.best {
            None => writeln!(out, "<td class=\"plan dim\" colspan=\"7\">no verified plan in the records</td></tr>"),
            Some((words, plan, us)) => writeln!(
                out,
                "<td class=\"plan\">{}<details><summary>text</summary><code>{}</code></details></td><td class=\"num\">{}</td>\
                 <td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{:.2}</td><td class=\"num\">{:.1} %</td>\
                 <td class=\"num\">{}</td></tr>",
                escape(words),
                escape(plan),
                human_time(*us),
                human_rate(row.case.problem.flop(), *us),
                human_time(row.floor_us),
                us / row.floor_us.max(1e-9),
                100.0 * row.us() / total.max(1e-9),
                row.error.map_or("-".into(), |error| format!("{error:.1e}")),
            ),
        };
    }
    out.push_str("</table>\n</div>\n");
    out.push_str(&plot(rows));
    if !untuned.is_empty() {
        out.push_str("<h2>Not tuned</h2>\n<ul>\n");
        for reason in untuned {
            let _ = writeln!(out, "<li>{}</li>", escape(reason));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}
