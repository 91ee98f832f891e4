//! What tuning a model came to, as a page that stands alone: each problem with its layers, plan, time, share, and how far it is from what
//! the device could do at most.

use crate::error::CliError;
use crate::output::{human_time, write_file};
use crate::problem::{Case, Cases};
use crate::session;
use std::fmt::Write;
use std::path::Path;
use tilewright::{CacheState, Context};
use tilewright_bench::{Roof, STYLE, escape, least_bytes};
use tilewright_gen::plan::Plan;
use tilewright_problem::Problem;
use tilewright_tune::records::{GENERATOR, TimeKind};
use tilewright_tune::search::device_key;
use tilewright_tune::space::Space;

/// A problem with what the records hold of it.
struct Row<'a> {
    case: &'a Case,
    /// Plan in words, its text, microseconds.
    best: Option<(String, String, f64)>,
    floor_us: f64,
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
        let best =
            context.records().best(&space.key(), &device_key(context.info(), cache), GENERATOR).map_err(CliError::failed)?;
        modelled |= best.as_ref().is_some_and(|t| t.time_kind == Some(TimeKind::Modelled));
        let best = best.and_then(|t| Some((in_words(space, &Plan::parse(&t.plan).ok()?)?, t.plan, t.time_us?)));
        rows.push(Row { case, best, floor_us: floor_us(context, &case.problem) });
    }
    write_file(path, &page(title, context, &rows, &cases.untuned, modelled))
}

/// No execution is faster: operations and bytes over what the device does of them at most.
fn floor_us(context: &Context, problem: &Problem) -> f64 {
    let roof = Roof::of(&context.info().target, problem.multiplied(), problem.math());
    (problem.flop() / (roof.tflops * 1e6)).max(least_bytes(problem) / (roof.dram_gbs * 1e3))
}

/// The plan's main choices.
fn in_words(space: &Space, plan: &Plan) -> Option<String> {
    let resolved = space.resolve(plan).ok()?;
    let t = &resolved.spec.tiling;
    let split = t.split_k.ways;
    let split = if split > 1 { format!(", k split in {split}") } else { String::new() };
    let (rows, columns, name) = (t.a.macro_tile, t.b.macro_tile, t.unit.family().name);
    Some(format!("{name}, tiles of {rows} x {columns}, {} of k at a time{split}", t.k_tile))
}

fn page(title: &str, context: &Context, rows: &[Row<'_>], untuned: &[String], modelled: bool) -> String {
    let (total, calls) = (rows.iter().map(Row::us).sum::<f64>(), rows.iter().map(Row::calls).sum::<f64>());
    let floor: f64 = rows.iter().filter(|r| r.best.is_some()).map(|r| r.floor_us * r.calls()).sum();
    let kind = if modelled { "modelled, on the emulator" } else { "measured" };
    let mut sorted: Vec<&Row<'_>> = rows.iter().collect();
    sorted.sort_by(|x, y| y.us().total_cmp(&x.us()));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>tilewright: {0}</title>\n<style>\n{STYLE}\n</style>\n\
         </head>\n<body>\n<main>\n<h1>{0}</h1>\n<p class=\"dim\">{1}; times are {kind}</p>\n\
         <p>{calls} layers, {2} different problems: {3} in all, {4:.2} times the least that their operations and bytes take on this \
         device.</p>\n<div class=\"card\">\n<table>\n<tr><th>layers</th><th>problem</th><th>plan</th><th class=\"num\">time</th>\
         <th class=\"num\">share</th><th class=\"num\">over the least</th></tr>\n",
        escape(title),
        escape(&context.info().name),
        rows.len(),
        human_time(total),
        total / floor.max(1e-9),
    );
    for row in sorted {
        let layers = match row.case.layers.as_slice() {
            [] => String::new(),
            [one] => escape(one),
            [first, ..] => {
                let all = escape(&row.case.layers.join(", "));
                format!("<details><summary>{} x, {} first</summary>{all}</details>", row.case.layers.len(), escape(first))
            }
        };
        // Writing to a String cannot fail, here and below.
        let _ = write!(out, "<tr><td class=\"plan\">{layers}</td><td class=\"plan\">{}</td>", escape(&row.case.title));
        let _ = match &row.best {
            None => writeln!(out, "<td class=\"plan dim\" colspan=\"4\">no verified plan in the records</td></tr>"),
            Some((words, plan, us)) => writeln!(
                out,
                "<td class=\"plan\">{}<details><summary>text</summary><code>{}</code></details></td><td class=\"num\">{}</td>\
                 <td class=\"num\">{:.1} %</td><td class=\"num\">{:.2}</td></tr>",
                escape(words),
                escape(plan),
                human_time(*us),
                100.0 * row.us() / total.max(1e-9),
                us / row.floor_us.max(1e-9),
            ),
        };
    }
    out.push_str("</table>\n</div>\n");
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
